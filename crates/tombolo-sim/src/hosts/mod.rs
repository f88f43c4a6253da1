//! Hosts run machines of the core on modelled hardware: who carries out which action, and what that takes.
//!
//! [`EngineHost`] is a node of the documents' RDMA: the initiator half of an engine is run by a processor, one action at a time, each
//! with its price; the responder half by a receive block that takes no processor time.

mod engine;
mod faults;
mod intake;
mod processor;
mod program;
mod sender;

pub use engine::{Carried, EngineHost, EngineHostConfig, Requests};
pub use faults::FaultConfig;
pub use processor::{Prices, TaskKind};
pub use program::{Ended, Program};

#[cfg(test)]
mod tests;
