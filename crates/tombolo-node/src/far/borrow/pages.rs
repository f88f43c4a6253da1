//! Borrowed memory as front ends see it: pages, read and written through windows or by transfers.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_core::rdma::{Direction, Transfer};
use tombolo_host::event;
use tombolo_host::timing::node as timing;
use tombolo_wire::Domain;

use super::{Borrowed, PAGE_BYTES, READ_PAGES, STAGING_PAGES, WARM_BYTES, WRITE};
use crate::driver::address_space::BUFFERS;
use crate::far::front::{FarMemory, FarSink, LenderGone, Staging, Window};
use crate::far::reads::Waiter;

impl FarMemory for Borrowed {
    fn start(&self, sink: FarSink) {
        let _ = self.sink.set(sink);
    }

    fn pages(&self) -> u32 {
        u32::try_from(self.table.length_bytes() / PAGE_BYTES).unwrap_or(u32::MAX)
    }

    fn window(&self, page: u32) -> Option<Window> {
        let (lender, place) = self.lender(page)?;
        let window = lender.window.as_ref()?;
        let address = window.as_mut_ptr() as u64 + place.offset_bytes;
        Some(Window { address, pages: (place.length_bytes / PAGE_BYTES) as u32 })
    }

    fn warm(&self, page: u32) {
        let Some((lender, place)) = self.lender(page) else { return };
        let piece = place.offset_bytes as usize / WARM_BYTES;
        if let (Some(window), Some(warm)) = (&lender.window, lender.warm.get(piece))
            && !warm.load(Ordering::Relaxed)
            && !warm.swap(true, Ordering::Relaxed)
        {
            window.populate(piece * WARM_BYTES, WARM_BYTES);
        }
    }

    fn is_lost(&self, page: u32) -> bool {
        self.lender(page).is_none_or(|(lender, _)| lender.is_lost() || lender.peer.loss().is_some())
    }

    fn staging(&self) -> Staging {
        let address = self.node.buffers().as_mut_ptr() as u64 + u64::from(READ_PAGES) * PAGE_BYTES;
        Staging { address, pages: STAGING_PAGES }
    }

    fn write(&self, pages: &[(u32, u32)]) -> Result<(), LenderGone> {
        let _one_at_a_time = self.writer.lock();
        self.writes_failed.store(false, Ordering::Relaxed);
        let mut index = 0;
        while let Some(&(page, staged)) = pages.get(index) {
            let (lender, place) = self.lender(page).ok_or(LenderGone)?;
            // Neighbours in far memory and in the staging memory are one transfer.
            let most = (place.length_bytes / PAGE_BYTES) as usize;
            let mut count = 1;
            while count < most
                && pages.get(index + count) == Some(&(page + count as u32, staged + count as u32))
            {
                count += 1;
            }
            let transfer = Transfer {
                direction: Direction::Write,
                domain: Domain(lender.segment),
                own_domain: BUFFERS,
                source_address: u64::from(READ_PAGES + staged) * PAGE_BYTES,
                destination_address: place.offset_bytes,
                size_bytes: (count as u64 * PAGE_BYTES) as u32,
                notification: None,
                // Faults go before evictions.
                class: Some(tombolo_core::rdma::Class::Medium),
                user: WRITE | index as u64,
            };
            self.writes_open.fetch_add(1, Ordering::Relaxed);
            if self.node.post(lender.peer.id, transfer).is_err() {
                self.writes_open.fetch_sub(1, Ordering::Relaxed);
                self.writes_failed.store(true, Ordering::Relaxed);
                break;
            }
            index += count;
        }
        self.node.pump();
        let mut polled_until = Instant::now() + timing::WRITE_POLL;
        while self.writes_open.load(Ordering::Acquire) > 0 {
            let before = self.writes_open.load(Ordering::Relaxed);
            self.progress();
            let now = Instant::now();
            if self.writes_open.load(Ordering::Relaxed) < before {
                polled_until = now + timing::WRITE_POLL;
            } else if now > polled_until {
                // Before sleeping: what drives lazily leaves answers behind.
                for lender in &self.lenders {
                    self.node.flush(&lender.peer);
                }
                let sleep =
                    self.node.expire().unwrap_or(timing::WRITE_MAX_SLEEP).min(timing::WRITE_MAX_SLEEP);
                let alive: Vec<_> = self
                    .descriptors()
                    .into_iter()
                    .filter_map(|(descriptor, alive)| alive.then_some(descriptor))
                    .collect();
                let _ = event::wait_readable(&alive, Some(sleep));
            }
        }
        if self.writes_failed.load(Ordering::Relaxed) { Err(LenderGone) } else { Ok(()) }
    }

    fn read(&self, page: u32, ticket: u64, since: Option<Instant>) {
        if let Some(buffer) = self.reads.begin(page, Waiter { ticket, since })
            && !self.post_read(page, buffer)
        {
            self.reads.not_posted(buffer);
        }
    }

    fn flush(&self) {
        self.node.pump();
        self.report_unposted();
    }

    fn progress(&self) {
        for lender in self.lenders.iter().filter(|lender| lender.window.is_none()) {
            if lender.peer.has_link() {
                self.node.drive_lazily(&lender.peer);
            }
        }
        // Timers count milliseconds, and a thread that waits for a page calls this every microsecond.
        if self.rounds.fetch_add(1, Ordering::Relaxed).is_multiple_of(timing::TIMER_CHECK_ROUNDS) {
            self.node.expire();
        }
        self.report_unposted();
    }

    fn in_flight(&self) -> u64 {
        self.reads.in_flight()
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, bool)> {
        let remote = self.lenders.iter().filter(|lender| lender.window.is_none());
        remote
            .map(|lender| (lender.peer.link.descriptor(), !lender.is_lost() && lender.peer.has_link()))
            .collect()
    }

    fn sleep_time(&self) -> Option<Duration> {
        let remote = self.lenders.iter().filter(|lender| lender.window.is_none() && !lender.is_lost());
        // Where only further links are left, others wait at them.
        for lender in remote.filter(|lender| lender.peer.has_link()) {
            if self.node.arm(&lender.peer).unwrap_or(false) {
                return Some(Duration::ZERO);
            }
        }
        if self.in_flight() == 0 {
            return None;
        }
        Some(self.node.expire().unwrap_or(timing::READ_MAX_SLEEP).max(timing::READ_MIN_SLEEP))
    }
}
