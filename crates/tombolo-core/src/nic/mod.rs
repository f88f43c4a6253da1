//! One network interface for many nodes: rings, queues, scheduler, switch and coalescing (MICRO §3.2, §6.1).
//!
//! The types here are plain state machines: the thread that moves frames passes them the frames and the time, and they
//! return where each frame goes, and when.
//!
//! ```text
//!   port ──┐                             ┌──► uplink, shaped
//!   port ──┼─► scheduler ─► switch ──────┤      ([`Exchange`])
//!   port ──┘                             └──► ports
//! ```
//!
//! A TAP device has its queues and its coalescing in the kernel. A port of another machine has a [`pipe`] in each direction,
//! with a [`Coalescer`]. [`session`] decides which ports of other machines have pipes, [`connection`] decides which processes
//! of the owner's machine are connected, and [`effort`] finds the ports that are slow to write to. Descriptor rings ([`ring`])
//! and [`Fifo`] are those of the prototype's ports, for the model (`tombolo-sim::hosts`): no port here uses them.

mod coalesce;
pub mod connection;
mod counters;
mod cutting;
pub mod effort;
mod exchange;
mod fifo;
mod frame;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod offload;
pub mod pipe;
pub mod registers;
pub mod ring;
mod scheduler;
pub mod session;
mod switch;

pub use coalesce::{Coalescer, Coalescing};
pub use counters::{Counters, SIZES, Traffic};
pub use cutting::{Cut, settle, wire_bytes_max};
pub use exchange::{COPIES_AT_ONCE, Exchange, Limits, Outward, PortConfig, Step};
pub use fifo::Fifo;
pub use frame::{Frame, Mac, NoMac, Speaks, TAG_BYTES};
pub use scheduler::{Next, PortId, Scheduler, Sent, Share, Turns};
pub use switch::{BadRules, Mode, Origin, Refusal, Rules, Switch, Tag, Targets, Vlans};
