//! The RDMA engine: writes and reads between two memories, in blocks that are
//! scheduled by class, acknowledged one by one and placed exactly once.
//!
//! ```text
//!  post ──► transfers ──► scheduler ──► transactions ──► Action::SendBlock
//!              ▲           3 classes      1024 slots            │ the link
//!              │                             ▲                  ▼
//!  Complete ◄──┴── acknowledge, time out ────┘   handle ──► Verdict::Place
//!                                                              │ caller copies
//!  Action::Send(Ack) ◄── block whole, notification written ◄── placed
//! ```
//!
//! The engine has three state machines. The [`initiator`] is the controller and send side, the [`responder`] is
//! the receive side, and the [`read_server`] turns read requests into write-backs, which the initiator sends
//! (QOS §3.6). [`Engine`] combines the three and is the only type that a runtime needs.
//!
//! **Order of use.** Call `add_peer` first. After it, make these calls in any order and from any thread, under
//! one lock: `post` when a program rings its doorbell, `handle` for each packet, `placed` or `refused` when the
//! bytes that a [`Verdict::Place`] names are copied or cannot be copied, and `expire` when `deadline` has
//! passed. After each of these calls, call `poll` until it returns `None`.
//!
//! **Paths.** A peer has up to eight links, its paths. Each block and each short packet to be sent names the
//! path to send it by. Packets may arrive by any path. When a link is lost, the caller calls `path_lost`, and
//! the blocks under way there are sent again by other paths. The peer itself is lost only when the caller calls
//! `peer_lost`.
//!
//! **What is bounded.** Every table has a limit in [`Config`]. A full table is back-pressure: `post` returns
//! [`PostError::Full`], a block waits for a slot, a read request waits or is rejected with a code on which its
//! sender tries again. Answers to blocks need no table that can fill: an answer is a mark on the entry that it
//! belongs to, and a queue holds each marked entry once.
//!
//! **Faults.** A block whose page is absent is sent again after a pause ([`Config::fault_pause_ns`]). Two calls
//! end the pause early: [`Engine::page_ready`] for a page at the destination, which sends a `Resume` to the
//! block's sender, and [`Engine::source_ready`] for a page at the source. [`crate::own`] makes these calls when
//! the pages of programs' own memory are resident.

mod action;
mod config;
pub mod congestion;
mod counters;
mod engine;
pub mod initiator;
pub mod read_server;
pub mod responder;
mod round_trip;
mod scheduler;
mod segmentation;
mod time;
mod transaction;
mod transfer;

pub use action::{Action, Block, BlockId, BlockNotification, Completion, Packets, PathStatus, Verdict};
pub use action::{DropReason, NotificationWrite, Operation, Placement};
pub use config::{Config, Retransmission};
pub use counters::Counters;
pub use engine::Engine;
pub use segmentation::block_length;
pub use time::Time;
pub use transaction::{Event, IllegalTransition, State};
pub use transfer::{
    Class, Direction, MAX_PATHS, PathId, PeerId, PostError, Transfer, TransferError, TransferId,
};
