//! One network interface for many nodes (MICRO ch. 3 and 6): an owner serves an uplink, and ports attach to it.
//!
//! **What.** [`serve::Owner`] has the uplink: an interface of the host, or a TAP device into it. [`attach::Attached`]
//! makes or opens the port's [`device`], keeps it, and passes its descriptors to the owner. [`tombolo_core::nic`] makes
//! every decision about frames, and this crate reads and writes them.
//!
//! **Why.** A frame is read once from its sender's TAP and written once to its receiver's, in one process: a bare relay
//! between the two does no less. The TAP belongs to the process that attaches the port, so an owner that restarts gets it
//! again.
//!
//! For a port of another machine ([`far`]), the process that attaches it keeps the device as well. The frames go through
//! pipes, by transfers of a node inside each of the two processes.
//!
//! **Who may.** Processes of the owner's user and root attach ports as they like: they choose the virtual networks, weight and
//! guarantee of a port. Two kinds of other askers can attach ports and make no other requests: processes of users that a file
//! ([`allowance`]) lets in, and nodes of other machines whose key is on the list with `may=port`. Of what all ports share,
//! they get what the owner gives them. Programs behind a port have no part in that, and what they send is checked.
//!
//! ```text
//!   namespace          tombolo net attach             tombolo net serve
//!   ┌──────────┐      ┌──────────────────┐  queues   ┌──────────────────────────┐
//!   │ programs │─TAP──│ keeps the TAP    │──────────►│ control: who may, what   │
//!   └──────────┘   │  │ waits for the    │  socket   │ worker: exchange, reads, ─── uplink
//!                  │  │ owner's end      │◄─────────►│         writes           │
//!                  │  └──────────────────┘           └──────────────────────────┘
//!                  └── frames ─────────────────────────────►┘
//! ```
#![forbid(unsafe_code)]

pub mod allowance;
mod aside;
pub mod attach;
pub mod bits;
pub mod client;
pub mod control;
pub mod device;
pub mod far;
mod frames;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod letters;
mod machine;
pub mod parties;
pub mod protocol;
mod refusals;
pub mod serve;
mod station;
mod uplink;
mod worker;
