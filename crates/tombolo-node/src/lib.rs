//! The node: lends memory, borrows it, drives the engine.
//!
//! Its files lie in layers called rooms. A room calls only rooms below it. `tests/rooms.rs` checks that.
//!
//! ```text
//!   far         memory of other nodes: borrowed pages, copies to and from named segments, pings
//!    │
//!   driver      one node: its loop, what comes and goes by links, who reaches which memory, status
//!    ├────────────┐
//!   lending     programs
//!    │            │   what peers have of this node; domains and requests of programs
//!    ├────────────┘
//!    ├────────────┐
//!   fabric      memory
//!                 │   links to other nodes, who those are, messages between nodes;
//!                     allocating and freeing, in a pool of threads. Neither calls the other.
//! ```
#![forbid(unsafe_code)]

mod driver;
mod fabric;
mod far;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod lending;
mod memory;
mod programs;

pub use driver::node::{Node, NodeEvent, NodeEvents, Owner};
pub use driver::serve::{PeerEvent, Turn, receive_programs, serve};
pub use fabric::connection::Connection as Peer;
pub use fabric::joining::Paths;
pub use fabric::label::{PeerLabel, name as harmless_name, reason as harmless_reason};
pub use fabric::life::{Life, NodeIdentity};
pub use fabric::link_driver::{AskError, JoinError};
pub use fabric::messages::{Checksum, NamedSegment};
pub use fabric::neighbourhood::{NeighbourEvent, Neighbourhood};
pub use fabric::status::{
    Borrower, EndlessStatus, LinkStatus, NamedTotals, NeighbourState, NeighbourStatus, NodeStatus,
    ProgramLimits, ProgramStatus,
};
pub use far::asking::{BorrowError, StatusClient};
pub use far::copy::{CopyError, Opened, Progress, Store};
pub use far::front::{Arrived, FarEvent, FarLender, FarLink, FarMemory, FarStatus, Staging, Written};
pub use far::ping::{MAX_PING_BYTES, PingError, Pinger};
pub use far::store::{DeadWindows, FAR_BUFFER_BYTES, FarOptions, FarStore, LenderError};
pub use lending::ledger::LendError;
pub use lending::named::{Hasher, MAX_NAME_BYTES, NameError, SegmentName};
pub use programs::domain::ProgramAtWork;
pub use programs::helper::{HelperCommand, HelperError, help_accesses};
pub use programs::{Limits, MAX_TRANSACTIONS};
pub use tombolo_core::rdma::MAX_PATHS;
pub use tombolo_core::store::Traffic;
pub use tombolo_link::identity;
pub use tombolo_link::shm::ShmListener;
pub use tombolo_link::{Address, AddressError, Listener, Listeners, OpenError, Security, listen};
