//! One process of a domain: its channels, its mailbox, and its socket.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tombolo_channel::{ChannelPage, Failure, Mailbox, Message, Reply, Secret, TransferStatus, Who, encode};
use tombolo_core::iommu::ContextId;
use tombolo_core::rdma::TransferError;
use tombolo_host::unix::{SeqpacketSocket, UnixError};

use super::domains::DomainKey;
use super::mail_shares::MailShares;
use super::own::OwnRanges;
use super::user::Poster;
use crate::memory::blocking::Owner;
use crate::memory::reclaim::Room;

/// Records of the messages that were put into a mailbox.
#[derive(Debug)]
pub(super) struct Written {
    /// Number of messages put in so far.
    pub(super) messages: u64,
    /// The senders of the waiting messages, if senders share the mailbox's room.
    pub(super) shares: Option<MailShares>,
}

/// A domain's mailbox.
#[derive(Debug)]
pub(super) struct MailboxState {
    pub(super) mailbox: Mailbox,
    /// The domains and nodes that may write to it.
    pub(super) senders: Vec<Who>,
    pub(super) written: Mutex<Written>,
    pub(super) _room: Room,
}

/// A program that has transfers under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramAtWork {
    /// Its domain.
    pub domain: u16,
    /// Its process, if the kernel knows it.
    pub process_id: Option<u32>,
    /// How many transfers it waits for.
    pub transfers: u32,
}

/// What the processes of a domain have in common.
#[derive(Debug, Default)]
pub(super) struct Family {
    /// A process that presents it can join the domain. The node makes it when a process first asks for an invitation.
    pub(super) secret: OnceLock<Secret>,
    /// The number that was given to a process last.
    pub(super) last_process: AtomicU8,
}

/// One process of an open domain. Each process of the domain has one of these, with the same `number`.
#[derive(Debug)]
pub(crate) struct ProgramDomain {
    pub(crate) number: u16,
    /// The process's number in the domain.
    pub(crate) process: u8,
    pub(super) family: Arc<Family>,
    /// Unique among all processes in domains during the node's life.
    pub(super) life: u32,
    pub(crate) page: ChannelPage,
    pub(super) socket: SeqpacketSocket,
    pub(super) own: OwnRanges,
    /// Number of access areas that it has had.
    pub(super) areas: AtomicU32,
    pub(super) mailbox_state: OnceLock<MailboxState>,
    /// Channels with a transfer under way.
    pub(crate) busy: AtomicU64,
    /// It has rung since [`super::awake::Awake`] last checked this mark.
    pub(crate) rang: AtomicBool,
    /// Its process has left. Set under the lock of [`super::awake::Awake`].
    pub(super) has_left: AtomicBool,
}

impl ProgramDomain {
    /// Its key among the processes of all domains.
    pub(crate) fn key(&self) -> DomainKey {
        (self.number, self.process)
    }

    /// The user number of a channel's transfer.
    pub(crate) fn user(&self, slot: usize) -> u64 {
        Poster::user_of_program(self.number, self.life, slot)
    }

    /// A new context, by which the IOMMU knows this program's own memory from now on. Each access area has its own
    /// context, so that nothing left over from one area is taken for the next area's.
    pub(super) fn new_context(&self) -> ContextId {
        let area = self.areas.fetch_add(1, Ordering::Relaxed);
        ContextId(u64::from(self.life) << 32 | u64::from(area))
    }

    /// Whether this context belongs to this process.
    pub(super) fn has_context(&self, context: ContextId) -> bool {
        context.0 >> 32 == u64::from(self.life)
    }

    /// The program's transfers under way, if it has any.
    pub(crate) fn at_work(&self) -> Option<ProgramAtWork> {
        let transfers = self.busy.load(Ordering::Relaxed).count_ones();
        let process_id = || self.socket.peer().ok().and_then(|peer| peer.process_id);
        (transfers > 0).then(|| ProgramAtWork { domain: self.number, process_id: process_id(), transfers })
    }

    /// The owner of this program's tasks in the pool.
    pub(super) fn owner(&self) -> Owner {
        Owner::Program(self.number, self.life)
    }

    /// The owner of tasks that use descriptors of the program.
    pub(super) fn process_owner(&self) -> Owner {
        match self.socket.peer() {
            Ok(peer) => Owner::Process { id: peer.process_id.unwrap_or(0), user: peer.user_id },
            Err(_) => Owner::Process { id: 0, user: u32::MAX },
        }
    }

    /// Tells the program that a transfer is over.
    pub(crate) fn end(&self, slot: usize, result: Result<u64, Failure>) {
        self.busy.fetch_and(!(1 << slot), Ordering::Relaxed);
        if self.page.notify_end(slot, result) {
            self.send_ended();
        }
    }

    /// Tells the program that a transfer was not begun.
    pub(crate) fn pause(&self, slot: usize) {
        self.busy.fetch_and(!(1 << slot), Ordering::Relaxed);
        if self.page.notify(slot, TransferStatus::Paused) {
            self.send_ended();
        }
    }

    pub(super) fn send_ended(&self) {
        // If the socket is full, the messages in it wake the program as well.
        let _ = self.socket.send(&[&encode(&Message::EndedV1)], &[]);
    }

    /// Answers the request with this number.
    pub(super) fn reply(
        &self,
        number: u32,
        reply: Reply,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), UnixError> {
        self.socket.send(&[&encode(&Message::AnswerV2 { number, reply })], descriptors)
    }
}

pub(crate) fn failure_of(error: TransferError) -> Failure {
    match error {
        TransferError::PeerUnreachable | TransferError::Undeliverable | TransferError::Incomplete => {
            Failure::Unreachable
        }
        TransferError::Refused(refusal) => Failure::refused(refusal),
        TransferError::Local(refusal) => Failure::local(refusal),
        _ => Failure::Gone,
    }
}
