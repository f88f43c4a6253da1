//! How a batch of pages leaves a program.
//!
//! A *clean* page is write-protected and its contents are stored: it is dropped.
//!
//! A dirty page is **moved** to the staging area (`UFFDIO_MOVE`, by the agent):
//! from then on nobody writes it, and whoever touches it waits. Its contents are
//! read from there, saved unless they are zeroes, and the page is gone. A page
//! that a device or io_uring has pinned does not move, so a direct read into it
//! is not lost, as it would be if the page were copied and dropped.
//!
//! A dirty page that cannot be moved although nobody has pinned it, because a
//! fork shares it or it is not writable, is **kept** mapped, write-protected,
//! while it is copied, and dropped afterwards.
//!
//! Each stage is done for the whole batch at once: with threads running,
//! dropping pages one at a time is ten times dearer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_host::process::{self, SPANS_MAX, Span};
use tombolo_host::sparse::page_is_zero;
use tombolo_host::uffd::{PAGE_BYTES, UffdError};

use crate::evict::Evictor;
use crate::page::{Entry, State};
use crate::protocol::STAGING_PAGES;
use crate::replacement::PageName;
use crate::space::{Order, Space, extend};
use crate::stats::Counters;

/// Pages of one batch.
pub const BATCH: usize = STAGING_PAGES;

const EAGAIN: u8 = libc::EAGAIN as u8;
const EBUSY: u8 = libc::EBUSY as u8;
const ENOENT: u8 = libc::ENOENT as u8;

/// What an attempt to make room came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many pages are gone.
    Evicted(u64),
    /// Nothing was found to evict.
    NoVictims,
    /// Dirty pages were found, and no far page to put them in.
    FarFull,
}

/// How a victim leaves, and how far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Its slot has the contents: just drop it.
    Clean,
    /// Not tried yet, or moved.
    Move,
    /// In the staging area at this index.
    Moved(u32),
    /// Protected, copied and then dropped.
    Keep,
    /// It has no contents (any more): it reads as zero.
    Empty,
    /// It was moved, and cannot be read: rather no contents than wrong ones.
    Unread,
    /// It stays.
    Stay,
    /// It was moved and could not be saved: it goes back.
    Back,
    /// It stays, and is made this process's own so that it can be moved next time.
    Unshare,
}

#[derive(Clone, Copy, Debug)]
struct Victim {
    page: u32,
    slot: Option<u32>,
    way: Way,
    /// Where the contents go in this process: the slot's window, or staging memory.
    copy: u64,
    /// Which page of the staging memory that is, where the slot has no window.
    staged: Option<u32>,
}

impl Evictor {
    /// Evicts those of these pages (sorted) that can be.
    pub(crate) fn evict(&mut self, space: &Arc<Space>, pages: &[u32]) -> Outcome {
        let (mut victims, full) = self.claim(space, pages);
        if victims.is_empty() {
            return if full { Outcome::FarFull } else { Outcome::NoVictims };
        }
        Counters::add(&self.pager.stats.counters.batches, 1);
        for slot in victims.iter().filter(|victim| victim.way == Way::Move).filter_map(|victim| victim.slot) {
            self.pager.far.warm(slot);
        }
        if self.windowed {
            let moves = victims.iter().filter(|victim| victim.way == Way::Move).count();
            self.placement.arrange(&self.pager.home, space.agent(), moves, victims.len());
        }
        self.move_out(space, &mut victims);
        self.protect_kept(space, &mut victims);
        read_moved(space, &mut victims);
        read_kept(space, &mut victims);
        self.save(&mut victims);
        self.drop_kept(space, &mut victims);
        let evicted = self.settle(space, &victims);
        if evicted == 0 && full { Outcome::FarFull } else { Outcome::Evicted(evicted) }
    }

    /// Claims those of the pages that are to go.
    fn claim(&self, space: &Space, pages: &[u32]) -> (Vec<Victim>, bool) {
        let mut victims = Vec::with_capacity(pages.len());
        let mut full = false;
        let staging = self.pager.far.staging();
        let mut staged = 0;
        let mut table = space.table.lock();
        let forking = table.forking > 0;
        let mut slots = self.pager.slots.lock();
        let mut replacement = self.pager.replacement.lock();
        for &page in pages {
            let entry = table.get(page).with_queued(false);
            table.set(page, entry);
            if entry.state() != State::Resident || table.closed {
                continue;
            }
            let mut again = |entry: Entry| {
                replacement.reinsert(PageName { space: space.index, page });
                entry.with_queued(true).with_referenced(false)
            };
            if entry.is_referenced() || forking || !space.has_agent.load(Ordering::Acquire) {
                table.set(page, again(entry));
                continue;
            }
            if let Some(slot) = entry.slot() {
                if self.pager.far.is_lost(slot) {
                    // Its contents are here only, now.
                    slots.release(slot);
                    table.set(page, again(entry.with_slot(None)));
                    continue;
                }
                self.pager.habit.observe(false);
                table.set(page, entry.with_state(State::EvictDrop));
                victims.push(Victim { page, slot: Some(slot), way: Way::Clean, copy: 0, staged: None });
                continue;
            }
            let Some(slot) = slots.take() else {
                full = true;
                table.set(page, again(entry));
                continue;
            };
            let (copy, stage) = match self.pager.far.window(slot) {
                Some(window) => (window.address, None),
                None if staged < staging.pages => {
                    staged += 1;
                    (staging.address + u64::from(staged - 1) * PAGE_BYTES as u64, Some(staged - 1))
                }
                None => {
                    slots.release(slot);
                    table.set(page, again(entry));
                    continue;
                }
            };
            table.set(page, entry.with_state(State::EvictCopy).with_slot(Some(slot)).with_kept(false));
            victims.push(Victim { page, slot: Some(slot), way: Way::Move, copy, staged: stage });
        }
        table.evicting = !victims.is_empty();
        (victims, full)
    }

    /// Drops the clean victims and moves the others to the staging area.
    fn move_out(&mut self, space: &Space, victims: &mut [Victim]) {
        let mut order = Order::default();
        for victim in victims.iter() {
            match victim.way {
                Way::Clean => extend(&mut order.drop, victim.page),
                _ => extend(&mut order.move_out, victim.page),
            }
        }
        let done = match space.command(&order, &mut self.message) {
            Ok(done) => done,
            Err(_) => {
                // The agent is gone, and with it its address space, or soon.
                for victim in victims.iter_mut().filter(|victim| victim.way == Way::Move) {
                    victim.way = Way::Stay;
                }
                return;
            }
        };
        self.complain_of_drop(done.drop_error);
        let mut statuses = (0u32..).zip(done.moved);
        for victim in victims.iter_mut().filter(|victim| victim.way == Way::Move) {
            let Some((index, status)) = statuses.next() else {
                victim.way = Way::Stay;
                continue;
            };
            victim.way = match status {
                0 => Way::Moved(index),
                // Dropped by the program without telling.
                ENOENT => Way::Empty,
                EAGAIN => Way::Stay,
                EBUSY if space.is_shared(victim.page) == Some(false) => Way::Unshare,
                // Shared by a fork, or not writable, or a kernel that cannot move.
                _ => Way::Keep,
            };
        }
    }

    fn complain_of_drop(&self, error: u32) {
        if error != 0 {
            // The pages are saved and protected; that they are still mapped does
            // no harm (see `Space::inherit`), but they take memory.
            let error = std::io::Error::from_raw_os_error(error as i32);
            self.pager.say_once(
                "drop",
                &format!("pages could not be dropped ({error}): they stay in local memory"),
            );
        }
    }

    /// From here on a write to a kept victim waits.
    fn protect_kept(&self, space: &Space, victims: &mut [Victim]) {
        if victims.iter().all(|victim| victim.way != Way::Keep) {
            return;
        }
        {
            let mut table = space.table.lock();
            for victim in victims.iter().filter(|victim| victim.way == Way::Keep) {
                let entry = table.get(victim.page);
                table.set(victim.page, entry.with_kept(true));
            }
        }
        for victim in victims.iter_mut().filter(|victim| victim.way == Way::Keep) {
            if space.uffd.write_protect(space.address(victim.page), PAGE_BYTES, true).is_err() {
                victim.way = Way::Stay;
            }
        }
    }

    /// Gives the slots of zero pages back, and sends the others where there is no window.
    fn save(&self, victims: &mut [Victim]) {
        let counters = &self.pager.stats.counters;
        let mut send = Vec::new();
        for victim in victims.iter_mut() {
            let Some(slot) = victim.slot.filter(|_| matches!(victim.way, Way::Moved(_) | Way::Keep)) else {
                continue;
            };
            // SAFETY: a page of a window or of the staging memory, just written, page-aligned.
            if unsafe { page_is_zero(victim.copy) } {
                self.pager.slots.lock().release(slot);
                victim.slot = None;
                Counters::add(&counters.zero_drops, 1);
                continue;
            }
            Counters::add(&counters.pages_out, 1);
            send.extend(victim.staged.map(|staged| (slot, staged)));
        }
        if !send.is_empty() && self.pager.far.write(&send).is_err() {
            // Which of them arrived is not known: those here are the only good copies.
            for victim in victims.iter_mut().filter(|victim| victim.staged.is_some() && victim.slot.is_some())
            {
                victim.way = if matches!(victim.way, Way::Moved(_)) { Way::Back } else { Way::Stay };
            }
        }
    }

    /// Unmaps the kept victims, whose contents are safe now.
    fn drop_kept(&mut self, space: &Arc<Space>, victims: &mut [Victim]) {
        let mut order = Order::default();
        {
            let mut table = space.table.lock();
            for victim in victims.iter() {
                match victim.way {
                    Way::Keep => {
                        let entry =
                            table.get(victim.page).with_slot(victim.slot).with_state(State::EvictDrop);
                        table.set(victim.page, entry);
                        extend(&mut order.drop, victim.page);
                    }
                    Way::Unshare => extend(&mut order.unshare, victim.page),
                    _ => {}
                }
            }
        }
        // Victims to be unshared are resident again before the agent touches them.
        let unshare: Vec<Victim> =
            victims.iter().filter(|victim| victim.way == Way::Unshare).copied().collect();
        self.stay(space, &unshare);
        if (!order.drop.is_empty() || !order.unshare.is_empty())
            && let Ok(done) = space.command(&order, &mut self.message)
        {
            self.complain_of_drop(done.drop_error);
        }
    }

    /// Victims that stay what they were. Returns how many of them the program discarded.
    fn stay(&self, space: &Arc<Space>, victims: &[Victim]) {
        if victims.is_empty() {
            return;
        }
        for victim in victims.iter().filter(|victim| victim.way == Way::Back) {
            while let Err(UffdError::Again(_)) =
                space.uffd.copy(space.address(victim.page), victim.copy, PAGE_BYTES, false)
            {
                // A fork's event is for a handler to read.
                std::thread::yield_now();
            }
        }
        let mut waiters = Vec::new();
        let mut freed = 0;
        {
            let mut table = space.table.lock();
            if table.closed {
                return;
            }
            for victim in victims {
                Counters::add(&self.pager.stats.counters.evictions_undone, 1);
                if let Some(slot) = victim.slot {
                    self.pager.slots.lock().release(slot);
                }
                let entry = table.get(victim.page);
                waiters.extend(entry.has_waiter().then_some(victim.page));
                let name = PageName { space: space.index, page: victim.page };
                self.pager.replacement.lock().reinsert(name);
                let entry = if entry.is_discarded() {
                    freed += 1;
                    Entry(0)
                } else {
                    entry.with_slot(None).with_state(State::Resident).with_waiter(false)
                };
                table.set(victim.page, entry.with_queued(true));
            }
        }
        self.pager.unreserve(space, freed);
        wake(space, &waiters);
    }

    /// The victims are gone, or stay: their entries say so, and whoever waited tries again.
    fn settle(&self, space: &Arc<Space>, victims: &[Victim]) -> u64 {
        let staying: Vec<Victim> =
            victims.iter().filter(|victim| matches!(victim.way, Way::Stay | Way::Back)).copied().collect();
        self.stay(space, &staying);
        let counters = &self.pager.stats.counters;
        let mut waiters = Vec::new();
        let mut gone = 0;
        {
            let mut table = space.table.lock();
            table.evicting = false;
            if table.closed {
                return 0;
            }
            let mut slots = self.pager.slots.lock();
            let mut replacement = self.pager.replacement.lock();
            for victim in
                victims.iter().filter(|victim| !matches!(victim.way, Way::Stay | Way::Back | Way::Unshare))
            {
                gone += 1;
                let entry = table.get(victim.page);
                waiters.extend(entry.has_waiter().then_some(victim.page));
                let slot = victim.slot.filter(|_| !matches!(victim.way, Way::Empty | Way::Unread));
                let lost = victim.way == Way::Unread && !entry.is_discarded();
                let left = if lost {
                    slots.release(victim.slot.unwrap_or(u32::MAX));
                    Entry(0).with_state(State::Lost)
                } else if entry.is_discarded() || slot.is_none() {
                    if let Some(slot) = victim.slot {
                        slots.release(slot);
                    }
                    Entry(0)
                } else {
                    Entry(0).with_state(State::Remote).with_slot(slot).with_age(replacement.age())
                };
                table.set(victim.page, left.with_queued(entry.is_queued()));
                Counters::add(&counters.clean_drops, u64::from(victim.way == Way::Clean));
            }
            replacement.advance(gone);
        }
        self.pager.unreserve(space, gone);
        wake(space, &waiters);
        gone
    }
}

fn wake(space: &Space, pages: &[u32]) {
    for &page in pages {
        let _ = space.uffd.wake(space.address(page), PAGE_BYTES);
    }
}

/// Ranges for one vectored copy.
#[derive(Default)]
struct Vector {
    local: Vec<Span>,
    remote: Vec<Span>,
}

impl Vector {
    fn push(&mut self, local: u64, remote: u64) {
        for (spans, address) in [(&mut self.local, local), (&mut self.remote, remote)] {
            match spans.last_mut() {
                Some(last) if last.address + last.length == address => last.length += PAGE_BYTES as u64,
                _ => spans.push(Span { address, length: PAGE_BYTES as u64 }),
            }
        }
        debug_assert!(self.local.len().max(self.remote.len()) <= SPANS_MAX);
    }

    /// Copies; returns whole pages copied.
    fn copy(&self, pid: u32) -> usize {
        // SAFETY: the local ranges are far windows or staging memory, which no
        // reference points into, and whose slots belong to the victims.
        unsafe { process::read_memory(pid, &self.local, &self.remote) }.unwrap_or(0) / PAGE_BYTES
    }
}

/// Copies the moved victims out of the staging area.
fn read_moved(space: &Space, victims: &mut [Victim]) {
    let mut vector = Vector::default();
    for victim in victims.iter() {
        if let Way::Moved(index) = victim.way {
            vector.push(victim.copy, space.staging_address(index));
        }
    }
    if vector.local.is_empty() {
        return;
    }
    let mut left = vector.copy(space.reader());
    for victim in victims.iter_mut().filter(|victim| matches!(victim.way, Way::Moved(_))) {
        if left == 0 {
            // Most likely the process has ended, and nobody will ask for the page.
            victim.way = Way::Unread;
            continue;
        }
        left -= 1;
    }
}

/// Copies the kept victims out of the program. One that cannot be read stays.
fn read_kept(space: &Space, victims: &mut [Victim]) {
    let pid = space.reader();
    for victim in victims.iter_mut().filter(|victim| victim.way == Way::Keep) {
        let mut vector = Vector::default();
        vector.push(victim.copy, space.address(victim.page));
        if vector.copy(pid) == 0 && !read_by_file(pid, space.address(victim.page), victim.copy) {
            victim.way = Way::Stay;
        }
    }
}

/// Reads a page that its process may not read itself (`PROT_NONE`).
fn read_by_file(pid: u32, address: u64, copy: u64) -> bool {
    let mut page = [0u8; PAGE_BYTES];
    let read = std::fs::File::open(format!("/proc/{pid}/mem"))
        .and_then(|file| std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, address));
    if read.is_err() {
        return false;
    }
    let local = [Span { address: copy, length: PAGE_BYTES as u64 }];
    let own = [Span { address: page.as_ptr() as u64, length: PAGE_BYTES as u64 }];
    // SAFETY: the local range belongs to the victim, as in `Vector::copy`.
    unsafe { process::read_memory(std::process::id(), &local, &own) }.is_ok_and(|bytes| bytes == PAGE_BYTES)
}
