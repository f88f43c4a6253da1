//! Hosts run machines of the core on modelled hardware: who carries out which action, and what that takes.
//!
//! [`EngineHost`] is a node of the documents' RDMA: the initiator half of an engine is run by a processor, one action at a time, each
//! with its price; the responder half by a receive block that takes no processor time. [`ComputeBlock`] and [`MemoryBlock`] are the two ends of a bus of
//! memory in databeats; [`NicNode`], [`SharedMac`] and [`Station`] an interface that nodes share; [`SdpNode`] connections of Sockets Direct.

mod blocks;
mod engine;
mod faults;
mod intake;
mod mac;
mod nic;
mod processor;
mod program;
mod sdp;
mod sender;

pub use blocks::{BlockConfig, ComputeBlock, Controller, MemoryBlock, link_input};
pub use engine::{Carried, EngineHost, EngineHostConfig, Requests};
pub use faults::{FaultConfig, FaultCounts, Hypotheses};
pub use mac::{SharedMac, SharedMacConfig, Station, WIRE};
pub use nic::{Job, NicConfig, NicNode};
pub use processor::{Prices, TaskKind};
pub use program::{Ended, Failure, Program};
pub use sdp::{SdpNode, SdpPrices, SdpProgram};

#[cfg(test)]
mod tests;
