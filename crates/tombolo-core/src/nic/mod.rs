//! One network interface for many nodes: rings, queues, scheduler, switch and coalescing (MICRO §3.2, §6.1).
//!
//! Plain state machines: whoever moves frames tells them what has come and what the time is, and they say what goes
//! where, and when.
//!
//! ```text
//!   port: ring ──► TX FIFO ──┐                       ┌──► uplink, shaped
//!   port: ring ──► TX FIFO ──┼─► scheduler ─► switch ┤
//!   port: ring ──► TX FIFO ──┘                       └──► RX FIFO ──► coalescing ──► ring of a port
//! ```

mod coalesce;
mod counters;
mod exchange;
mod fifo;
mod frame;
pub mod offload;
pub mod ring;
mod scheduler;
mod switch;

pub use coalesce::{Coalescer, Coalescing};
pub use counters::{Counters, SIZES, Traffic};
pub use exchange::{Exchange, Limits, Outward, PortConfig, Step};
pub use fifo::Fifo;
pub use frame::{Frame, Mac, NoMac, Speaks, TAG_BYTES};
pub use scheduler::{Next, PortId, Scheduler, Sent, Share, Turns};
pub use switch::{BadRules, Mode, Origin, Refusal, Rules, Switch, Targets, Vlans};
