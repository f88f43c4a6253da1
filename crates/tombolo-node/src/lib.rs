//! The node: lends memory, borrows it, drives the engine.
//!
//! ```text
//!            Node (one engine, its peers, the ledger of what is lent)
//!   serve ----+----- accept, drive, take back                  lending
//!   Borrowed -+----- segments of several lenders as one range  borrowing: FarMemory
//! ```
#![forbid(unsafe_code)]

mod borrow;
mod control;
mod counters;
mod far;
mod ledger;
mod node;
mod reads;
mod serve;

pub use borrow::{BorrowError, Borrowed, Borrowing, status_of};
pub use control::{Borrower, NodeStatus};
pub use far::{FarEvent, FarMemory, FarSink, LenderGone, Staging, Window};
pub use ledger::LendError;
pub use node::{AskError, Node};
pub use serve::{PeerEvent, serve};
pub use tombolo_link::identity;
pub use tombolo_link::{Address, AddressError, Listener, OpenError, Security, listen};
