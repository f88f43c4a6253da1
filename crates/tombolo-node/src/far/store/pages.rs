//! The far store as front ends see it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use tombolo_core::store::{LenderState, Piece, SlotId, Store, Ticket};
use tombolo_host::event;
use tombolo_host::timing::node as timing;

use super::{FarStore, Lender, PAGE_BYTES, READ_PAGES, STAGING_PAGES};
use crate::far::front::{FarLender, FarLink, FarMemory, FarSink, FarStatus, Staging};

impl FarStore {
    /// Lenders whose links carry packets, if they are there.
    fn remote(&self) -> Vec<Arc<Lender>> {
        self.lenders().iter().filter(|lender| !lender.is_windowed).cloned().collect()
    }

    /// Computes the checksums of slots while lenders are at work.
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
    fn start(&self, sink: FarSink) {
        let _ = self.sink.set(sink);
        for event in std::mem::take(&mut *self.early.lock()) {
            self.notify(event);
        }
    }

    fn slots(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }

    fn prepare(&self) {
        self.store.lock().grow_all();
        self.ring();
    }

    fn is_windowed(&self) -> bool {
        self.lenders().iter().all(|lender| lender.is_windowed)
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

    fn write(&self, slots: &[(SlotId, u32)]) -> Vec<SlotId> {
        let _one_at_a_time = self.writer.lock();
        let piece = |&(slot, staged): &(SlotId, u32)| Piece { slot, staged, checksum: None };
        let pieces: Vec<Piece> = slots.iter().map(piece).collect();
        self.writing.lock().open.extend(slots.iter().map(|(slot, _)| *slot));
        self.store.lock().write(&pieces);
        self.carry_out();
        self.node.pump();
        // Where all is copied by the kernel, no link can damage it.
        if !self.is_windowed() {
            self.sum_up(slots);
        }
        let mut polled_until = Instant::now() + timing::WRITE_POLL;
        let mut before = slots.len();
        loop {
            let open = self.writing.lock().open.len();
            if open == 0 {
                return std::mem::take(&mut self.writing.lock().failed);
            }
            self.progress();
            let now = Instant::now();
            if open < before {
                before = open;
                polled_until = now + timing::WRITE_POLL;
            } else if now > polled_until {
                // Before sleeping: what drives lazily leaves answers behind.
                let remote = self.remote();
                for lender in &remote {
                    self.node.flush(&lender.peer);
                }
                let sleep =
                    self.node.expire().unwrap_or(timing::WRITE_MAX_SLEEP).min(timing::WRITE_MAX_SLEEP);
                let alive: Vec<_> = remote
                    .iter()
                    .filter(|lender| !lender.is_lost() && lender.peer.has_link())
                    .map(|lender| lender.peer.link.descriptor())
                    .collect();
                self.writer_sleeps.store(true, Ordering::SeqCst);
                // Another thread may have taken the last answer.
                if !self.writing.lock().open.is_empty() {
                    let alive: Vec<_> = alive.into_iter().chain([self.written.as_fd()]).collect();
                    let _ = event::wait_readable(&alive, Some(sleep));
                }
                self.writer_sleeps.store(false, Ordering::SeqCst);
                let _ = rustix::io::read(&self.written, &mut [0u8; 8]);
            }
        }
    }

    fn read(&self, slot: SlotId, ticket: u64, since: Option<Instant>) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let waited_since_ns =
            since.map(|since| since.saturating_duration_since(self.epoch).as_nanos() as u64);
        self.store.lock().read(self.now_ns(), slot, Ticket { name: ticket, waited_since_ns });
    }

    fn flush(&self) {
        self.carry_out();
        self.node.pump();
    }

    fn progress(&self) {
        for lender in self.lenders().iter().filter(|lender| !lender.is_windowed) {
            if lender.peer.has_link() {
                self.node.drive_lazily(&lender.peer);
            }
        }
        // Timers count milliseconds, and a thread that waits for a page calls this every microsecond.
        if self.rounds.fetch_add(1, Ordering::Relaxed).is_multiple_of(timing::TIMER_CHECK_ROUNDS) {
            self.node.expire();
            self.carry_out();
        }
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
        // Where only further links are left, others wait at them.
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
        let mut lendable: u64 = 0;
        let list = lenders.iter().map(|lender| {
            let status = self.store.lock().lender(lender.id);
            if status.is_some_and(|status| status.state == LenderState::Active) {
                lendable += lender.lendable_pages.load(Ordering::Relaxed);
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
        let list = list.collect();
        let most = lendable / u64::from(self.copies);
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
            lenders: list,
        }
    }
}
