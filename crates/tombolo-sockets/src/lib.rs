//! The node of Sockets Direct on one machine (SDP §4.1.1, §4.2.3): it hands TCP connections over to pairs of Unix sockets while they are being made.
//!
//! What is decided is decided by [`tombolo_core::sdp::handover`]; here are the sockets. One thread waits for all of them ([`node`]).
//!
//! ```text
//!   client ── its socket ──►┌────── node ──────┐◄── what it accepted ── server
//!          ◄── end A ───────│ connects, looks  │─────── end B ────────►
//!                           │ both TCP sockets │
//!                           │ stay here, idle  │   until nobody has A and B
//!                           └──────────────────┘
//! ```
#![forbid(unsafe_code)]

mod closing;
mod ends;
pub mod node;
mod offers;
mod relay;
pub mod status;
mod table;

pub use node::{Node, NodeError};
