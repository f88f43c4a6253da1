//! What a program links to use its node: a domain, memory, transfers.
//!
//! The five steps of QOS §2.3.3.2 in today's idiom:
//!
//! | QOS | here |
//! | --- | --- |
//! | `alloc_comm_chan` | [`Domain::open`] |
//! | `alloc_dmable_buf` | [`Domain::allocate`], or [`Domain::register`] for memory of the program's own |
//! | `insert_descriptor_with_completion` | [`Spec`] |
//! | `trigger_dma_transfer` | [`Domain::write`], [`Domain::read`] |
//! | `poll_dma_transfer` | [`Transfer::status`], [`Transfer::wait`], or [`Domain::arm`] and epoll |
//!
//! Beside them: [`Domain::fetch_add`] and [`Domain::compare_swap`] change a word of another domain,
//! [`Domain::send`] and [`Mailbox::receive`] pass small messages, and [`Domain::carry`] moves bytes
//! between two others.
//!
//! With the feature `embedded` a program can have a node of its own inside ([`Embedded`]), which goes
//! on while the program polls and waits: no other process stands between it and its peers.
//!
//! No system call is made to start a transfer while the node is awake.
//!
//! ```no_run
//! use std::time::Duration;
//! use tombolo_client::{Domain, Spec, Target};
//!
//! let domain = Domain::open("/run/tombolo/programs".as_ref(), None)?;
//! let memory = domain.allocate(1 << 20, &[])?;
//! memory.write(0, b"hello")?;
//! // The address was told by the program whose domain 7 is.
//! let there = Target { node: 1, domain: 7 };
//! let spec = Spec::new(memory.address(), 0x100_0000_0000_0000, 5);
//! domain.write(there, spec)?.wait(Duration::from_secs(1))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A [`Queue`] takes any number of transfers, begins them in batches, and hands out their ends. A [`List`] is one transfer
//! between several pieces of memory at each end. A [`Remote`] names memory to
//! programs at other nodes.
//!
//! Memory of [`Domain::allocate_window`] can be mapped by programs of the same machine ([`Domain::map_window`]), which load and
//! store there themselves, until it is revoked or freed.
//!
//! # Order
//!
//! - The bytes of a transfer are placed in any order. Its notification is written after all of them, the first word
//!   before the last.
//! - When a write has ended, all its bytes are in the memory of the other domain; when a read has ended, all are in the own
//!   memory. Whoever starts a transfer after that, here or there, finds them.
//! - When a transfer has failed, none of its bytes come any more, and its memory may be used for something else. But a node
//!   that was lost, or does not answer, may place what it got before until it notices; and a program that was stopped in the middle
//!   of a copy finishes that copy when it goes on.
//! - Two transfers under way overtake each other, also those between the same two domains, of one class, or to the same
//!   bytes. What has to come after another is started when that has ended: by waiting, or behind a fence
//!   ([`Order::fenced`]). A read behind a fence finds what the writes before it have written.
//! - The parts of a list overtake each other like transfers. Its notification is written after all of them.
//! - Each atomic operation is carried out once, and whole. Two under way, on one word or on several, are carried out in any
//!   order.
//! - Bytes are copied in any order. A word of 8 bytes is copied as one if its addresses at source and destination are multiples of 8:
//!   a program that reads it while transfers write it finds the word before or the word that comes. System calls promise no
//!   such thing; they make the copies of a helper of the node (for a program that may have no threads), and of a program that has set a
//!   handler of SIGSEGV or SIGBUS of its own after it registered memory. Of what is longer than a word, a part may be changed.
//! - Messages under way to one mailbox arrive in any order.
#![forbid(unsafe_code)]

mod asking;
mod channels;
mod domain;
#[cfg(feature = "embedded")]
mod embedded;
mod error;
mod inner;
mod invitation;
mod list;
mod mailbox;
mod memory;
mod own_access;
mod queue;
mod readiness;
mod remote;
mod requests;
mod transfer;
mod waiting;
mod window;

pub use domain::Domain;
#[cfg(feature = "embedded")]
pub use embedded::{EmbedError, Embedded, Embedding};
pub use error::{DeregisterError, OpenError, PostError, SendError, WaitError};
pub use invitation::{Invitation, InvitationError};
pub use list::{List, ListError, Piece};
pub use mailbox::Mailbox;
pub use memory::{Memory, Registered};
pub use queue::{Completion, Order, Queue};
pub use remote::{Remote, RemoteError};
pub use tombolo_channel::{
    Failure, FaultRegisters, Faults, Grant, MAX_MAIL_BYTES, MAX_MAILS, Mail, PROCESSES, PeerStatus, Status,
    Target, Touch, Who,
};
pub use tombolo_host::own::{OwnMemory, Right};
pub use tombolo_host::shared::WindowEnd;
pub use tombolo_wire::{CLASSES, Notification};
pub use transfer::{Atomic, Spec, Transfer};
pub use window::{Window, WindowError};
