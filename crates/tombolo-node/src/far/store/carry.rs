//! Carrying out the actions of the store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_core::rdma::{Class, Direction, Transfer, TransferError};
use tombolo_core::store::{Action, Ended, Io, JOINED_MOST, Location, Source};
use tombolo_wire::Domain;

use super::lender::Job;
use super::{FarStore, PAGE_BYTES, READ_PAGES};
use crate::driver::address_space::BUFFERS;
use crate::driver::node::Node;
use crate::far::front::{Arrived, FarEvent};

/// Offset of a page in the node's buffer memory.
fn offset_of(page: Source) -> u64 {
    let page = match page {
        Source::Buffer(buffer) => buffer,
        Source::Staged(staged) => READ_PAGES + staged,
    };
    u64::from(page) * PAGE_BYTES
}

/// The name of a transfer in the engine: the [`Io`] of its first page, the buffer of that page (for a write
/// [`NO_BUFFER`]), and the number of further pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Named {
    io: u64,
    buffer: u64,
    further: u32,
}

const BUFFER_SHIFT: u32 = 44;
const FURTHER_SHIFT: u32 = 54;
const IO_MASK: u64 = (1 << BUFFER_SHIFT) - 1;
const BUFFER_MASK: u64 = (1 << (FURTHER_SHIFT - BUFFER_SHIFT)) - 1;
const FURTHER_MASK: u64 = 3;
/// Stands in the place of the buffer in the name of a write.
const NO_BUFFER: u64 = BUFFER_MASK;

const _: () = assert!((READ_PAGES as u64) <= NO_BUFFER && (JOINED_MOST as u64) <= FURTHER_MASK + 1);

impl Named {
    fn into_word(self) -> u64 {
        debug_assert!(self.io <= IO_MASK && self.buffer <= BUFFER_MASK, "{self:?}");
        u64::from(self.further) << FURTHER_SHIFT | self.buffer << BUFFER_SHIFT | self.io
    }

    fn from_word(word: u64) -> Self {
        let buffer = word >> BUFFER_SHIFT & BUFFER_MASK;
        Self { io: word & IO_MASK, buffer, further: (word >> FURTHER_SHIFT & FURTHER_MASK) as u32 }
    }

    /// The pages of the transfer: the index and the [`Io`] of each.
    fn ios(self) -> impl Iterator<Item = (u32, Io)> {
        (0..=self.further).map(move |page| (page, Io::from_word(self.io).offset(page)))
    }
}

impl FarStore {
    /// Carries out the actions of the store, and those that follow from them. Returns whether it has posted transfers.
    /// The next thread that drives the node sends them.
    pub(super) fn carry_out(&self) -> bool {
        let mut has_posted = false;
        loop {
            let action = self.store.lock().poll(self.now_ns());
            let Some(action) = action else { return has_posted };
            has_posted |= matches!(action, Action::Write { .. } | Action::Read { .. });
            self.carry_out_one(action);
        }
    }

    /// As [`Self::carry_out`], and sends what was posted, because it may be long until another thread drives the node.
    pub(super) fn carry_out_and_send(&self) {
        if self.carry_out() {
            self.drive(Node::pump);
        }
    }

    fn carry_out_one(&self, action: Action) {
        match action {
            Action::Borrow { lender, pages } => {
                if let Some(lender) = self.lender(lender) {
                    lender.give(Job::Borrow { pages });
                }
            }
            Action::GiveBack { lender, segment } => match self.lender(lender) {
                Some(lender) if lender.is_lost() => self.unmap(&lender, segment),
                Some(lender) => lender.give(Job::GiveBack { segment }),
                None => {}
            },
            Action::Write { io, to, from, pages } => self.write_to(io, to, from, pages),
            Action::Read { io, from, buffer, pages } => self.read_from(io, from, buffer, pages),
            Action::Written { slot, result } => {
                let mut writing = self.writing.lock();
                if writing.open.remove(&slot) && result.is_err() {
                    writing.failed.push(slot);
                }
                if writing.open.is_empty() && self.writer_sleeps.load(Ordering::SeqCst) {
                    let _ = rustix::io::write(&self.written, &1u64.to_ne_bytes());
                }
            }
            Action::Arrived { ticket, buffer } => {
                let base = self.node.buffers().as_mut_ptr() as u64;
                let address = buffer.ok().map(|buffer| base + offset_of(Source::Buffer(buffer)));
                let since = ticket.waited_since_ns.map(|ns| self.epoch + Duration::from_nanos(ns));
                let buffer = buffer.ok();
                self.notify(FarEvent::Arrived(Arrived { ticket: ticket.name, address, since, buffer }));
            }
            Action::Drained { lender } => {
                let Some(lender) = self.lender(lender) else { return };
                let address = lender.address().to_string();
                self.notify(FarEvent::LenderDrained { lender: address });
                self.forget_if_gone(&lender);
            }
        }
    }

    fn end(&self, io: Io, ended: Ended) {
        self.store.lock().completed(self.now_ns(), io, ended);
    }

    fn write_to(&self, io: Io, to: Location, from: Source, pages: u32) {
        let length_bytes = u64::from(pages) * PAGE_BYTES;
        let Some(lender) = self.lender(to.lender) else { return self.end(io, Ended::Failed) };
        if to.direct.is_some() {
            let window = lender.windows.lock().get(&to.segment).cloned();
            let copied = window.is_some_and(|window| {
                let at = to.page as usize * PAGE_BYTES as usize;
                window.warm(window.base() + at as u64);
                let buffers = self.node.buffers();
                window
                    .memory
                    .copy_by_kernel(at, buffers, offset_of(from) as usize, length_bytes as usize)
                    .is_ok()
            });
            let ended = if copied { Ended::Done { checksum: 0 } } else { Ended::Failed };
            return self.end(io, ended);
        }
        // Faults go before evictions, and both before copies in the background.
        let class = if matches!(from, Source::Staged(_)) { Class::Medium } else { Class::Low };
        let transfer = Transfer {
            direction: Direction::Write,
            domain: Domain(to.segment as u16),
            own_domain: BUFFERS,
            source_address: offset_of(from),
            destination_address: u64::from(to.page) * PAGE_BYTES,
            size_bytes: length_bytes as u32,
            notification: None,
            class: Some(class),
            user: self.user(Named { io: io.into_word(), buffer: NO_BUFFER, further: 0 }),
        };
        self.post(&lender, transfer);
    }

    fn all_failed(&self, named: Named) {
        named.ios().for_each(|(_, io)| self.end(io, Ended::Failed));
    }

    fn read_from(&self, io: Io, from: Location, buffer: u32, pages: u32) {
        let named = Named { io: io.into_word(), buffer: u64::from(buffer), further: pages - 1 };
        let Some(lender) = self.lender(from.lender) else { return self.all_failed(named) };
        let offset = offset_of(Source::Buffer(buffer));
        if from.direct.is_some() {
            let window = lender.windows.lock().get(&from.segment).cloned();
            let at = from.page as usize * PAGE_BYTES as usize;
            let copied = window.is_some_and(|window| {
                let buffers = self.node.buffers();
                buffers.copy_by_kernel(offset as usize, &window.memory, at, PAGE_BYTES as usize).is_ok()
            });
            let ended = if copied { Ended::Done { checksum: self.checksum(offset) } } else { Ended::Failed };
            assert_eq!(pages, 1, "what the kernel copies is not joined");
            return self.end(io, ended);
        }
        let transfer = Transfer {
            direction: Direction::Read,
            domain: Domain(from.segment as u16),
            own_domain: BUFFERS,
            source_address: u64::from(from.page) * PAGE_BYTES,
            destination_address: offset,
            size_bytes: pages * PAGE_BYTES as u32,
            notification: None,
            class: None,
            user: self.user(named),
        };
        self.post(&lender, transfer);
    }

    fn post(&self, lender: &super::Lender, transfer: Transfer) {
        let user = transfer.user;
        if self.node.post(lender.peer.id, transfer).is_err() {
            self.all_failed(Named::from_word(user));
        }
    }

    fn user(&self, named: Named) -> u64 {
        self.owner.user(named.into_word())
    }

    /// The write or the reads that the transfer with this name consists of, and how each has ended. A read that is done
    /// has the checksum of its page.
    pub(super) fn of_transfer(
        &self,
        word: u64,
        result: Result<(), TransferError>,
    ) -> impl Iterator<Item = (Io, Ended)> {
        let named = Named::from_word(word);
        named.ios().map(move |(page, io)| (io, self.ended(named.buffer, page, result)))
    }

    /// How a page of a transfer has ended.
    fn ended(&self, buffer: u64, page: u32, result: Result<(), TransferError>) -> Ended {
        match (buffer, result) {
            (_, Err(TransferError::Refused(_) | TransferError::Local(_))) => Ended::Failed,
            // Packets of the write may still arrive.
            (NO_BUFFER, Err(_)) => Ended::MayStillArrive,
            (_, Err(_)) => Ended::Failed,
            (NO_BUFFER, Ok(())) => Ended::Done { checksum: 0 },
            (buffer, Ok(())) => {
                Ended::Done { checksum: self.checksum((buffer + u64::from(page)) * PAGE_BYTES) }
            }
        }
    }

    /// The checksum of a page of the buffer memory.
    pub(super) fn checksum(&self, offset: u64) -> u32 {
        let span = self.node.buffers().span(offset as usize, PAGE_BYTES as usize);
        span.map_or(0, |span| span.checksum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transfer_is_named_by_one_word() {
        let owner = 0xff << 56;
        for io in [0, 1, IO_MASK - 3] {
            for buffer in [0, u64::from(READ_PAGES) - 1, NO_BUFFER] {
                for further in 0..JOINED_MOST {
                    let named = Named { io, buffer, further };
                    assert!(named.into_word() < 1 << 56);
                    assert_eq!(Named::from_word(named.into_word() | owner), named);
                }
            }
        }
        let named = Named { io: 7, buffer: 3, further: 2 };
        assert_eq!(
            named.ios().map(|(page, io)| (page, io.into_word())).collect::<Vec<_>>(),
            [(0, 7), (1, 8), (2, 9)]
        );
    }
}
