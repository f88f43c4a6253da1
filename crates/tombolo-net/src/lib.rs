//! One network interface for many nodes (MICRO ch. 3 and 6): an owner serves an uplink, and ports attach to it.
//!
//! **What.** [`serve::Owner`] has the uplink: an interface of the host, or a TAP device into it. [`attach::Attached`]
//! makes or opens the port's [`device`], keeps it, and passes its descriptors to the owner. Every decision about frames
//! is made in [`tombolo_core::nic`]; here they are read and written.
//!
//! **Why.** A frame is read once from its sender's TAP and written once to its receiver's, in one process, which is
//! what a bare relay between the two does. The TAP belongs to who attaches: an owner that restarts gets it again.
//!
//! Ports of other machines ([`far`]) keep their devices as well; frames go through pipes, by transfers of a node inside
//! each of the two processes.
//!
//! **Who may.** Processes of the owner's user and root attach ports as they like: which virtual networks, weights and
//! guarantees a port has is theirs to say. Others, which are processes of users that a file ([`allowance`]) lets in, and nodes
//! of other machines whose key is on the list and may `port`, attach ports and ask nothing else; what all share they get as
//! the owner says. Programs behind a port have no part in that: what they send is checked.
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
