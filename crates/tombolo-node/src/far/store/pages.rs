//! The far store as front ends see it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tombolo_core::store::{LenderState, Piece, SlotId, Store, Ticket};
use tombolo_host::event;
use tombolo_host::event_queue::EventQueue;
use tombolo_host::timing::node as timing;

use super::{FarStore, Lender, PAGE_BYTES, READ_PAGES, STAGING_PAGES};
use crate::driver::node::Node;
use crate::far::front::{Arrived, FarEvent, FarLender, FarLink, FarMemory, FarStatus, Staging, Written};

impl FarStore {
    /// The lenders without windows: their links carry packets.
    fn remote(&self) -> Vec<Arc<Lender>> {
        self.lenders().iter().filter(|lender| !lender.is_windowed).cloned().collect()
    }

    /// Computes the checksums of slots while the lenders are storing them.
    fn sum_up(&self, slots: &[(SlotId, u32)]) {
        let checksum = |&(slot, staged): &(SlotId, u32)| {
            (slot, self.checksum(u64::from(READ_PAGES + staged) * PAGE_BYTES))
        };
        let checksums: Vec<_> = slots.iter().map(checksum).collect();
        let mut store = self.store.lock();
        for (slot, checksum) in checksums {
            store.set_checksum(slot, checksum);
        }
    }
}

impl FarMemory for FarStore {
    fn events(&self) -> &EventQueue<FarEvent> {
        &self.events
    }

    fn done(&self, arrived: Arrived) {
        if let Some(buffer) = arrived.buffer {
            self.store.lock().buffer_done(self.now_ns(), buffer);
        }
        self.in_flight.fetch_sub(1, Ordering::Release);
    }

    fn slots(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    fn prepare(&self) {
        self.store.lock().grow_all();
        self.ring();
    }

    fn is_windowed(&self) -> bool {
        self.lenders().iter().filter(|lender| !lender.is_lost()).all(|lender| lender.is_windowed)
    }

    fn warm(&self, address: u64) {
        let window = self.windows.read().range(..=address).next_back().map(|(_, window)| window.clone());
        if let Some(window) = window {
            window.warm(address);
        }
    }

    fn staging(&self) -> Staging {
        let address = self.node.buffers().as_mut_ptr() as u64 + u64::from(READ_PAGES) * PAGE_BYTES;
        Staging { address, pages: STAGING_PAGES }
    }

    fn write(&self, slots: &[(SlotId, u32)]) {
        let piece = |&(slot, staged): &(SlotId, u32)| Piece { slot, staged, checksum: None };
        let pieces: Vec<Piece> = slots.iter().map(piece).collect();
        self.writing.lock().open.extend(slots.iter().map(|(slot, _)| *slot));
        self.store.lock().write(&pieces);
        self.carry_out();
        self.drive(Node::pump);
        // If all pages are copied by the kernel, no link can damage them.
        if !self.is_windowed() {
            self.sum_up(slots);
        }
        let mut writing = self.writing.lock();
        writing.before = slots.len();
        writing.polled_until = Some(Instant::now() + timing::WRITE_POLL);
    }

    fn write_on(&self) -> Written {
        if !self.writing.lock().open.is_empty() {
            self.progress();
        }
        let mut writing = self.writing.lock();
        let open = writing.open.len();
        if open == 0 {
            return Written::All(std::mem::take(&mut writing.failed));
        }
        let now = Instant::now();
        if open < writing.before {
            writing.before = open;
            writing.polled_until = Some(now + timing::WRITE_POLL);
        }
        if writing.polled_until.is_some_and(|until| now <= until) {
            return Written::Soon;
        }
        drop(writing);
        let sleep = self.node.expire().unwrap_or(timing::WRITE_MAX_SLEEP).min(timing::WRITE_MAX_SLEEP);
        Written::Later(sleep)
    }

    fn wait_written(&self, timeout: Duration) {
        // Before sleeping, send what threads that drive the links lazily have left unsent.
        let remote = self.remote();
        for lender in &remote {
            self.node.flush(&lender.peer);
        }
        let alive: Vec<_> = remote
            .iter()
            .filter(|lender| !lender.is_lost() && lender.peer.has_link())
            .map(|lender| lender.peer.link.descriptor())
            .collect();
        self.writer_sleeps.store(true, Ordering::SeqCst);
        // Another thread may have taken the last answer.
        if !self.writing.lock().open.is_empty() {
            let own = [self.written.as_fd(), self.node_events.as_fd()];
            let alive: Vec<_> = alive.into_iter().chain(own).collect();
            let _ = event::wait_readable(&alive, Some(timeout));
        }
        self.writer_sleeps.store(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.written, &mut [0u8; 8]);
    }

    fn read(&self, slot: SlotId, ticket: u64, since: Option<Instant>) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let waited_since_ns =
            since.map(|since| since.saturating_duration_since(self.epoch).as_nanos() as u64);
        self.store.lock().read(self.now_ns(), slot, Ticket { name: ticket, waited_since_ns });
    }

    fn flush(&self) {
        self.carry_out();
        self.drive(Node::pump);
    }

    fn progress(&self) {
        // Timers count milliseconds, and a thread that waits for a page calls this every microsecond.
        let expires = self.rounds.fetch_add(1, Ordering::Relaxed).is_multiple_of(timing::TIMER_CHECK_ROUNDS);
        self.drive(|node| {
            for lender in self.lenders().iter().filter(|lender| !lender.is_windowed) {
                if lender.peer.has_link() {
                    node.drive_lazily(&lender.peer);
                }
            }
            if expires {
                node.expire();
            }
        });
        if expires {
            self.carry_out_and_send();
        }
    }

    fn finish_losses(&self) {
        // A loss is handled under this lock, and its event is queued after its pages are marked as lost.
        drop(self.in_order.lock());
    }

    fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    fn links(&self) -> Vec<FarLink> {
        let links = self.remote().into_iter().map(|lender| {
            let is_alive = !lender.is_lost() && lender.peer.has_link();
            FarLink { peer: lender.peer.clone(), is_alive }
        });
        links.collect()
    }

    fn sleep_time(&self) -> Option<Duration> {
        // A lost first link is skipped: other threads wait at the further links.
        for lender in self.lenders().iter().filter(|lender| !lender.is_windowed && !lender.is_lost()) {
            if lender.peer.has_link() && self.node.arm(&lender.peer).unwrap_or(false) {
                return Some(Duration::ZERO);
            }
        }
        if self.in_flight() == 0 && !self.store.lock().is_at_work() {
            return None;
        }
        Some(self.node.expire().unwrap_or(timing::READ_MAX_SLEEP).max(timing::READ_MIN_SLEEP))
    }

    fn status(&self) -> FarStatus {
        let lenders = self.lenders();
        let (mut lendable, mut largest) = (0, 0);
        let list = lenders.iter().map(|lender| {
            let status = self.store.lock().lender(lender.id);
            if status.is_some_and(|status| status.state == LenderState::Active) {
                let pages = lender.lendable_pages.load(Ordering::Relaxed);
                lendable += pages;
                largest = largest.max(pages);
            }
            FarLender {
                name: lender.name(),
                address: lender.address().to_string(),
                state: self.state_of(lender.id),
                borrowed_pages: status.map_or(0, |status| status.borrowed_pages),
                used_pages: status.map_or(0, |status| status.used_pages),
                traffic: status.map(|status| status.traffic).unwrap_or_default(),
            }
        });
        let mut list: Vec<FarLender> = list.collect();
        list.splice(0..0, self.gone.lock().values().cloned());
        let most = match self.copies {
            1 => lendable,
            // The second copies of the pages at the largest lender have to be at the others.
            _ => (lendable / 2).min(lendable - largest),
        };
        let store = self.store.lock();
        FarStatus {
            used_pages: u64::from(store.used()),
            most_pages: self.most_pages.map_or(most, |pages| pages.min(most)),
            borrowed_pages: store.borrowed_pages(),
            borrowed_peak_pages: self.borrowed_peak_pages.load(Ordering::Relaxed),
            copies: self.copies,
            degraded_pages: store.degraded(),
            copies_waiting: store.copies_waiting(),
            counters: store.counters(),
            lives: store.lives(),
            lenders: list,
        }
    }
}
