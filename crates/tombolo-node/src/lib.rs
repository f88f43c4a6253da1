//! The node: lends memory, borrows it, drives the engine.
//!
//! ```text
//!            Node (one engine, its peers, the ledger of what is lent)
//!   serve ----+----- accept, drive, take back                  lending
//!   Borrowed -+----- segments of several lenders as one range  borrowing: FarMemory
//!   Store ----+----- segments with names, at another node      copying to and fro
//!   programs -+----- domains, channels and memory of programs  transfers between them
//! ```
#![forbid(unsafe_code)]

mod admission;
mod bells;
mod borrow;
mod carry;
mod control;
mod copy;
mod counters;
mod far;
#[doc(hidden)]
pub mod fuzzing;
mod label;
mod ledger;
mod life;
mod loop_back;
mod named;
mod neighbours;
mod node;
mod numbers;
mod own_moves;
mod paths;
mod ping;
mod programs;
mod publish;
mod questions;
mod reads;
mod reclaim;
mod serve;
mod status;
mod tend;
mod work;

pub use borrow::{BorrowError, Borrowed, Borrowing, status_of};
pub use control::{Borrower, NamedSegment, NodeStatus};
pub use copy::{CopyError, Opened, Progress, Store};
pub use far::{FarEvent, FarMemory, FarSink, LenderGone, Staging, Window};
pub use label::PeerLabel;
pub use ledger::LendError;
pub use life::{Life, NodeIdentity};
pub use named::{Checksum, Hasher, MAX_NAME_BYTES, NameError, SegmentName};
pub use neighbours::{NeighbourEvent, Neighbourhood};
pub use node::{AskError, JoinError, Limits, MAX_TRANSACTIONS, Node, Peer};
pub use paths::Paths;
pub use ping::{MAX_PING_BYTES, PingError, Pinger};
pub use programs::callers::receive_programs;
pub use serve::{PeerEvent, Turn, serve};
pub use tombolo_core::rdma::MAX_PATHS;
pub use tombolo_link::identity;
pub use tombolo_link::shm::ShmListener;
pub use tombolo_link::{Address, AddressError, Listener, Listeners, OpenError, Security, listen};
