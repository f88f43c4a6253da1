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
//! Three machines and their glue. The [`initiator`] is the controller and send
//! side, the [`responder`] the receive side, the [`read_server`] turns read
//! requests into write-backs of the initiator (QOS §3.6). [`Engine`] is all
//! three behind one door, and the only thing a runtime needs.
//!
//! **Order of use.** `add_peer`; then, in any order and from any thread under
//! one lock: `post` when a program rings, `handle` for each packet (and `placed`
//! or `refused` once the bytes a [`Verdict::Place`] names are copied), `expire`
//! when `deadline` has passed, and after each of these `poll` until it returns
//! `None`.
//!
//! **Paths.** A peer has up to eight links. Each block and each short packet
//! that is to be sent names one; packets may come by any. A link that is lost is
//! left with `path_lost`, and its blocks go by the others; the peer itself is
//! lost only when its caller says so.
//!
//! **What is bounded.** Every table has a limit in [`Config`]. A full one is
//! back-pressure: `post` says [`PostError::Full`], a block waits for a slot, a
//! read request waits or is rejected with a code on which its sender comes back.
//! Answers are not queued in a table that can fill: they are a mark on the entry
//! they answer, and the entries with marks are chained.
//!
//! **Faults.** A block whose page is absent pauses ([`Config::fault_pause_ns`]) and goes
//! again. [`Engine::page_ready`] (which sends a `Resume` to the block's sender) and [`Engine::source_ready`] end the pause at
//! once; [`crate::own`] calls them when the pages of programs' own memory are there.

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
