//! The page table of one address space, and what the program may do to it.
//!
//! A page is named by its address, as the program sees it. The kernel's own list of
//! mappings is the truth about what is mapped: this table holds what the kernel does
//! not know, namely what is far. So a page without an entry is *Untouched*, and entries
//! of ranges that were unmapped are removed.
//!
//! An operation (a fetch, an eviction) is named by the page on which it began. When the program moves that page
//! elsewhere meanwhile, the table notes the new place. If a fetch begins at the old place before that operation has
//! ended, it gets a name that no page has ([`Table::fetching`]). No eviction begins there until then.

#[expect(
    clippy::disallowed_types,
    reason = "with a hasher of its own, which is the same in each run: see `BlockHasher`"
)]
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::frames::{Frame, Frames, Saved};
use super::page::{Entry, Page, State};
use super::ranges::Ranges;
use super::replacement::PageName;
use super::unasked::Unasked;
use crate::lookup::Lookup;
use crate::store::Store;

/// Pages of a block of entries.
const BLOCK: u64 = 512;
/// Blocks of a table that a fork goes through before others may have the slots and frames: this takes some hundred
/// microseconds.
const FORK_BLOCKS: usize = 16;

/// A hasher for block numbers. Most of these are neighbours: one multiplication spreads them.
#[derive(Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
}

#[expect(clippy::disallowed_types, reason = "as above")]
type Blocks = HashMap<u64, Box<[Entry; BLOCK as usize]>, BuildHasherDefault<BlockHasher>>;

/// An access that the kernel could not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// It was a write.
    pub write: bool,
    /// The page is present, but write-protected.
    pub protected: bool,
    /// It was by the agent or the evictor, for which an eviction may be waiting: it must not wait for one.
    pub agent: bool,
}

/// What a fault needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing now: the thread waits until the end of the operation wakes it.
    Wait,
    /// The page reads as zero: map zeroes, once there is room for it.
    Zero,
    /// The page was resident, and was dropped in a way that the kernel does not report:
    /// map zeroes. There is room for it already.
    ZeroAgain,
    /// The page is in this slot.
    Fetch(u32),
    /// The page is resident, and its slot is valid. Usually it is mapped, and two threads have asked for it. If it is
    /// not mapped, for whatever reason, map it from the slot. There is room for it already.
    FetchAgain(u32),
    /// The page is being saved by this operation, and its contents are at hand: map them, and then call
    /// [`Table::taken_back`].
    TakeBack(Page),
    /// Take the write protection off.
    Unprotect,
    /// A write to a page that shares this frame: once there is room for a copy, take the write protection off.
    Copy(Frame),
    /// The page is resident, and shares a frame. Usually it is mapped, and two threads have asked for it. If it is not
    /// mapped, for whatever reason, call [`Table::own`] and decide anew.
    SharedAgain,
    /// The contents of the page are lost.
    Poison,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Evicted: the contents are in this slot.
    Saved(u32),
    /// Evicted: the page reads as zero.
    Zero,
    /// Not evicted: the page is mapped as before, and this slot still has its contents, if any has.
    Stays(Option<u32>),
    /// As [`Outcome::Stays`], because the kernel refuses to move the page: it would refuse again.
    Refused(Option<u32>),
    /// As [`Outcome::Stays`], because the page is shared or pinned: before it is tried again, the agent makes it the
    /// process's own.
    Shared(Option<u32>),
    /// The contents are gone.
    Lost,
}

impl Outcome {
    /// The slot that has the contents.
    pub fn slot(self) -> Option<u32> {
        match self {
            Self::Saved(slot) => Some(slot),
            Self::Stays(slot) | Self::Refused(slot) | Self::Shared(slot) => slot,
            Self::Zero | Self::Lost => None,
        }
    }

    /// Whether the page is mapped as before.
    pub fn stays(self) -> bool {
        matches!(self, Self::Stays(_) | Self::Refused(_) | Self::Shared(_))
    }
}

/// A page of a forked child that shares the end of its parent's eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Follower {
    /// Number of the child's space.
    pub space: u32,
    /// The page there.
    pub page: Page,
}

/// What follows from the end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Where the page is now.
    pub page: Page,
    /// Pages for which threads wait.
    pub wake: Vec<Page>,
    /// The page was resident, and is not any more.
    pub freed: bool,
    /// The page was not resident, and is now.
    pub gained: bool,
    /// The page is resident and stands in no queue.
    pub unqueued: bool,
    /// Pages of children that share this end, with their outcomes. A saved slot is shared with each already; where it
    /// cannot be, the outcome is [`Outcome::Lost`].
    pub followers: Vec<(Follower, Outcome)>,
}

/// What came of discarding a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Pages whose contents were given up.
    pub pages: u64,
    /// How many of them were resident and shared no frame.
    pub resident: u64,
    /// Some pages are in an operation, whose commands must not reach the range any more.
    pub in_operation: bool,
}

/// What came of moving a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remapped {
    /// Resident pages at their new place, which stand in no queue.
    pub unqueued: Vec<Page>,
    /// Pages that are here no more, and for which threads wait.
    pub wake: Vec<Page>,
    /// Number of pages that were resident at the new place according to the table, and are gone; without those that
    /// shared a frame.
    pub resident: u64,
    /// Some pages are in an operation, whose commands must not reach the range any more.
    pub in_operation: bool,
}

/// A child's table at the moment of the fork.
#[derive(Debug)]
pub struct Forked {
    /// The table.
    pub table: Table,
    /// Number of pages that are resident in the child and share no frame.
    pub resident: u64,
    /// Number of the parent's pages whose room is counted with a frame from now on.
    pub shared: u64,
    /// Number of new frames that need room of their own.
    pub frames: u64,
    /// New frames of which no holder stands in a replacement queue: they are queued by names of their own.
    pub unnamed: Vec<Frame>,
}

/// A frame that a holder has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// The frame.
    pub frame: Frame,
    /// The holder's name stands in a replacement queue, but not for the frame any more.
    pub was_queued: bool,
}

/// What the kernel's page tables say of a page that is write-protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing is there.
    Absent,
    /// Another address space may have it, too.
    Shared,
    /// No other address space has it, or that cannot be told.
    Exclusive,
}

/// An operation whose page is not where it began.
#[derive(Clone, Copy, Debug)]
struct Forward {
    began: Page,
    /// Where the page is now; `None`: nowhere, another page was moved to its place.
    now: Option<Page>,
    /// The entry of the page where it began is a mark of this operation.
    marked: bool,
    /// If the page is nowhere: it counts as resident until the operation ends.
    counted: bool,
    /// A thread waits for this name to be free.
    waiter: bool,
}

/// The table of one address space.
#[derive(Debug, Default)]
pub struct Table {
    blocks: Blocks,
    /// Ranges known to be far. A mapping that grew in place may reach beyond its range.
    ranges: Ranges,
    /// Pages that may have guards.
    guarded: Ranges,
    /// Pages to be mapped without a thread that waits for them, and ranges where none may be.
    unasked: Unasked,
    /// Operations whose page is not where they began.
    forwards: Vec<Forward>,
    /// Pages of children that wait for the end of an operation here.
    followers: Vec<(Page, Follower)>,
    /// Evictions whose pages can be taken back, in order.
    offered: Vec<Page>,
    /// Number of pages that are resident and have a slot.
    clean: u64,
    /// Number of pages that share a frame.
    shared: u64,
    /// Number of those that are not verified, and of those that are not even protected.
    unverified: u64,
    unprotected: u64,
    /// Where this space has pages that share frames and were moved, so that most holders of the frame have it
    /// elsewhere. Entries may be out of date.
    moved: Lookup<Frame, Page>,
    /// Frames that this space's pages have left, of which the driver is to be told.
    left: Vec<Left>,
    /// Pages that were being evicted or fetched in the parent when this space was forked: the table has them as far,
    /// but they may be present.
    doubtful: Vec<Page>,
}

impl std::fmt::Debug for BlockHasher {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BlockHasher({})", self.0)
    }
}

/// Whether a page in an operation counts as resident: it was resident, or room is reserved for it.
fn is_counted(entry: Entry) -> bool {
    in_operation(entry) && !entry.is_follower() && !entry.is_counted_with_frame()
}

/// Whether a page shares a frame and is not verified.
fn is_unverified(entry: Entry) -> bool {
    entry.frame().is_some() && !entry.is_verified()
}

/// Whether a page shares a frame and the program can write to it unseen.
fn is_unprotected(entry: Entry) -> bool {
    entry.frame().is_some() && !entry.is_protected()
}

/// Whether protecting a page, or looking at it, along with the pages around it costs nothing.
fn is_indifferent(entry: Entry) -> bool {
    entry.is_protected() || entry.state() == State::Remote
}

/// Whether a page is here, and its contents are far, too.
fn is_clean(entry: Entry) -> bool {
    entry.state() == State::Resident && entry.slot().is_some()
}

fn in_operation(entry: Entry) -> bool {
    matches!(entry.state(), State::Fetching | State::EvictCopy | State::EvictDrop)
}

/// The name of an operation that begins at a page while an earlier one, which also began there, is under way elsewhere.
fn second_name(page: Page) -> Page {
    page | PageName::PAGES_MAX
}

impl Table {
    /// The entry of a page.
    pub fn get(&self, page: Page) -> Entry {
        self.blocks.get(&(page / BLOCK)).map_or(Entry(0), |block| block[(page % BLOCK) as usize])
    }

    /// Changes the entry of a page.
    pub fn set(&mut self, page: Page, entry: Entry) {
        if entry.0 == 0 && !self.blocks.contains_key(&(page / BLOCK)) {
            return;
        }
        let block = self.blocks.entry(page / BLOCK).or_insert_with(|| Box::new([Entry(0); BLOCK as usize]));
        let before = std::mem::replace(&mut block[(page % BLOCK) as usize], entry);
        self.clean = self.clean + u64::from(is_clean(entry)) - u64::from(is_clean(before));
        self.shared = self.shared + u64::from(entry.frame().is_some()) - u64::from(before.frame().is_some());
        self.unverified =
            self.unverified + u64::from(is_unverified(entry)) - u64::from(is_unverified(before));
        self.unprotected =
            self.unprotected + u64::from(is_unprotected(entry)) - u64::from(is_unprotected(before));
    }

    /// Number of pages that share a frame.
    pub fn shared_pages(&self) -> u64 {
        self.shared
    }

    /// Number of pages that share a frame and are not verified: what is there may be a copy.
    pub fn unverified_pages(&self) -> u64 {
        self.unverified
    }

    /// Number of pages that share a frame and are not protected: the program may write to them unseen.
    pub fn unprotected_pages(&self) -> u64 {
        self.unprotected
    }

    /// The page of this space that shares `frame`, if one does. `page`: where most holders have the frame.
    pub fn holder(&self, frame: Frame, page: Page) -> Option<Page> {
        let is_there = |page: &Page| self.get(*page).frame() == Some(frame);
        let moved = || self.moved.get(&frame).copied();
        Some(page).filter(is_there).or_else(|| moved().filter(is_there))
    }

    /// Frames that pages of this space have left since the last call.
    #[must_use]
    pub fn take_left(&mut self) -> Vec<Left> {
        std::mem::take(&mut self.left)
    }

    /// Whether [`Table::take_left`] has anything to return.
    pub fn has_left(&self) -> bool {
        !self.left.is_empty()
    }

    /// A page leaves the frame that its entry names. The caller changes the entry.
    fn leave(&mut self, entry: Entry) {
        if let Some(frame) = entry.frame() {
            self.left.push(Left { frame, was_queued: entry.is_queued() });
            if !self.moved.is_empty() {
                self.moved.remove(&frame);
            }
        }
    }

    /// Releases up to `want` slots of clean pages. Each page stays protected: its next write finds that it has no slot.
    /// Returns how many it released.
    pub fn release_clean(&mut self, want: u64, slots: &mut Store) -> u64 {
        let freed = want.min(self.clean);
        let mut left = freed;
        for entry in self.blocks.values_mut().flat_map(|block| block.iter_mut()) {
            if left == 0 {
                break;
            }
            if let Some(slot) = entry.slot().filter(|_| is_clean(*entry)) {
                *entry = entry.with_slot(None).with_protection();
                slots.release(slot);
                left -= 1;
            }
        }
        self.clean -= freed;
        freed
    }

    /// Every page of `[first, end)` that has an entry, in no order.
    pub fn entries(&self, first: Page, end: Page) -> Vec<(Page, Entry)> {
        let mut found = Vec::new();
        let mut look = |number: u64, block: &[Entry; BLOCK as usize]| {
            let base = number * BLOCK;
            let from = first.max(base);
            let to = end.min(base + BLOCK);
            for page in from..to {
                let entry = block[(page - base) as usize];
                if entry.0 != 0 {
                    found.push((page, entry));
                }
            }
        };
        let (low, high) = (first / BLOCK, end.div_ceil(BLOCK));
        if high.saturating_sub(low) <= self.blocks.len() as u64 {
            for number in low..high {
                if let Some(block) = self.blocks.get(&number) {
                    look(number, block);
                }
            }
        } else {
            for (&number, block) in self.blocks.iter().filter(|(number, _)| (low..high).contains(*number)) {
                look(number, block);
            }
        }
        found
    }

    /// Every page that has an entry, in no order.
    pub fn all(&self) -> Vec<(Page, Entry)> {
        self.entries(0, Page::MAX)
    }

    /// A range is far from now on. It is fresh: what the table had there is forgotten.
    pub fn register(&mut self, first: Page, end: Page, slots: &mut Store) -> Discarded {
        let discarded = self.unregister(first, end, slots);
        self.ranges.insert(first, end);
        discarded
    }

    /// A range is not far any more.
    pub fn unregister(&mut self, first: Page, end: Page, slots: &mut Store) -> Discarded {
        self.ranges.cut(first, end);
        self.guarded.cut(first, end);
        self.unasked.replaced(first, end);
        self.discard(first, end, slots)
    }

    /// The range around a page, if it is known to be far.
    pub fn range(&self, page: Page) -> Option<(Page, Page)> {
        self.ranges.around(page)
    }

    /// The first page of `[first, end)` that is known to be far.
    pub fn first_far(&self, first: Page, end: Page) -> Option<Page> {
        self.ranges.first_of(first, end)
    }

    /// The parts of `[first, end)` that are known to be far.
    pub fn ranges_within(&self, first: Page, end: Page) -> Vec<(Page, Page)> {
        self.ranges.within(first, end)
    }

    /// Pages of `[first, end)` turned out to be far: a mapping has grown.
    pub fn grow(&mut self, first: Page, end: Page) {
        self.ranges.add(first, end);
    }

    /// Number of pages of address space that are far.
    pub fn far_pages(&self) -> u64 {
        self.ranges.pages()
    }

    /// Pages of `[first, end)` may have guards from now on. Mapping a page takes its guard away. So such a page is
    /// mapped only if a thread asks for it, and by a call that leaves guards alone.
    pub fn guard(&mut self, first: Page, end: Page) {
        self.guarded.add(first, end);
        self.unasked.cut(first, end);
    }

    /// Whether a page may have a guard.
    pub fn may_have_guard(&self, page: Page) -> bool {
        self.guarded.around(page).is_some()
    }

    /// The length of the longer of two runs of pages that are not untouched: directly before a page, and directly
    /// behind it. A run is counted to the end of the next block of entries at most.
    pub fn known_beside(&self, page: Page) -> u32 {
        let is_known = |entry: &&Entry| entry.state() != State::Untouched;
        let (number, at) = (page / BLOCK, (page % BLOCK) as usize);
        let of =
            |number: Option<u64>| number.and_then(|number| self.blocks.get(&number)).map(|block| &block[..]);
        let own = of(Some(number));
        // A run that reaches the end of a block goes on in the next one.
        let mut before = own.map_or(0, |own| own[..at].iter().rev().take_while(is_known).count());
        if before == at {
            let more = of(number.checked_sub(1)).map(|block| block.iter().rev().take_while(is_known).count());
            before += more.unwrap_or(0);
        }
        let mut behind = own.map_or(0, |own| own[at + 1..].iter().take_while(is_known).count());
        if behind == BLOCK as usize - 1 - at {
            behind += of(Some(number + 1)).map_or(0, |block| block.iter().take_while(is_known).count());
        }
        before.max(behind) as u32
    }

    /// Whether a page is untouched and cannot have a guard.
    fn is_free(&self, page: Page) -> bool {
        self.get(page).state() == State::Untouched && !self.may_have_guard(page)
    }

    /// Whether a page is untouched, and may be mapped although no thread has asked for it.
    fn may_come(&self, page: Page) -> bool {
        self.is_free(page) && !self.unasked.is_given_up(page)
    }

    /// The kernel is about to drop a range that the program gives up. Until a thread asks for a page there, none is
    /// mapped unasked.
    pub fn give_up(&mut self, first: Page, end: Page) {
        self.unasked.give_up(first, end);
    }

    /// A thread of the program has asked for a page: if the program had given up a range around it, the kernel has
    /// dropped that by now.
    pub fn asked_for(&mut self, page: Page) {
        self.unasked.asked_for(page);
    }

    /// Which pages may be mapped with one that a thread touches for the first time: of the `count` pages from `first`
    /// on, the run around that page. Returns its first page and its length. If the range of the page is not known, the
    /// run has no page before it.
    pub fn touched_with(&self, page: Page, first: Page, count: u32) -> (Page, u32) {
        let end = first + u64::from(count);
        let (low, high) = self.range(page).unwrap_or((page, end));
        if !self.may_come(page) {
            return (page, 1);
        }
        let from =
            (first.max(low)..page).rev().take_while(|&page| self.may_come(page)).last().unwrap_or(page);
        let run = (from..end.min(high)).take_while(|&page| self.may_come(page)).count().max(1);
        (from, run as u32)
    }

    /// Puts off pages of `[first, end)`: they are to be mapped when no fault waits, if they are still untouched then.
    /// Only those in the range around `page` count.
    pub fn put_off(&mut self, page: Page, first: Page, end: Page) {
        if let Some((low, high)) = self.range(page) {
            self.unasked.put_off(first.max(low), end.min(high));
        }
    }

    /// Takes the next run of pages that were put off and that may be mapped, `most` at most: its first page and its
    /// length. The pages that were put off last, and those behind them, come first.
    pub fn next_put_off(&mut self, most: u32) -> Option<(Page, u32)> {
        let mut unasked = std::mem::take(&mut self.unasked);
        let next = unasked.next(most, |unasked, page| self.is_free(page) && !unasked.is_given_up(page));
        self.unasked = unasked;
        next
    }

    /// Whether pages are put off.
    pub fn has_put_off(&self) -> bool {
        self.unasked.is_any_put_off()
    }

    /// Forgets all pages that were put off.
    pub fn forget_put_off(&mut self) {
        self.unasked.forget_put_off();
    }

    /// Decides what a fault needs. Before it answers [`Decision::Wait`], it notes that a thread waits.
    pub fn decide(&mut self, page: Page, access: Access) -> Decision {
        let entry = self.get(page);
        match entry.state() {
            State::Lost => Decision::Poison,
            State::EvictCopy if access.protected && !entry.is_kept() && !entry.is_counted_with_frame() => {
                // The protection is of no use: the page is moved as it is, before the write or after it. (If it shares
                // a frame, the protection counts: what is saved is for other holders, too.)
                Decision::Unprotect
            }
            // The eviction may be waiting for the agent to carry out its command. (That of a follower is another
            // space's, and does not.) Likewise, the evictor copies pages from their places: if the program has given
            // such a page up, the evictor must not wait for the end of its own eviction.
            State::EvictCopy | State::EvictDrop
                if access.agent && !access.protected && !entry.is_follower() =>
            {
                Decision::ZeroAgain
            }
            State::EvictCopy | State::EvictDrop => match self.offered_for(page, entry) {
                Some(began) => Decision::TakeBack(began),
                None => {
                    self.set(page, entry.with_waiter(true));
                    Decision::Wait
                }
            },
            State::Fetching => {
                let writable = entry.is_writable() || access.write;
                self.set(page, entry.with_writable(writable).with_waiter(true));
                Decision::Wait
            }
            State::Resident if let Some(frame) = entry.frame() => {
                if access.protected {
                    Decision::Copy(frame)
                } else {
                    Decision::SharedAgain
                }
            }
            State::Resident | State::Untouched if access.protected => Decision::Unprotect,
            State::Resident if entry.slot().is_none() => Decision::ZeroAgain,
            State::Untouched => Decision::Zero,
            State::Remote | State::Resident if self.is_name(page) && self.is_name(second_name(page)) => {
                // A third operation would have no name.
                for forward in self.forwards.iter_mut().filter(|forward| forward.began == page) {
                    forward.waiter = true;
                }
                Decision::Wait
            }
            // This also holds if the page was protected when the thread met it: it may have been evicted since, and
            // then the slot has its contents. If a fork left the page mapped (see `fork`), the kernel refuses to copy
            // contents there.
            state => match entry.slot() {
                Some(slot) if state == State::Resident => Decision::FetchAgain(slot),
                Some(slot) => Decision::Fetch(slot),
                None => Decision::Zero,
            },
        }
    }

    /// The page is mapped now. `keep_slot`: it is write-protected, so its slot still has its contents. Returns its
    /// entry and, if it came from far memory, when it was evicted.
    pub fn mapped(&mut self, page: Page, keep_slot: bool, slots: &mut Store) -> (Entry, Option<u64>) {
        let entry = self.get(page);
        debug_assert!(entry.frame().is_none(), "an absent page is its space's own");
        let evicted_at = entry.slot().map(|_| entry.age());
        let mut mapped =
            Entry(0).with_state(State::Resident).with_queued(entry.is_queued()).with_slot(entry.slot());
        if !keep_slot && let Some(slot) = entry.slot() {
            slots.release(slot);
            mapped = mapped.with_slot(None);
        }
        self.set(page, mapped);
        (mapped, evicted_at)
    }

    /// Zeroes were mapped where a page is being evicted ([`Decision::ZeroAgain`]). If the program had given up the old
    /// contents, the zeroes are the page from now on: it is resident when the eviction ends.
    pub fn zeroed(&mut self, page: Page) {
        let entry = self.get(page);
        if in_operation(entry) && entry.is_discarded() {
            self.set(page, entry.with_referenced(true));
        }
    }

    /// The kernel refuses to map a page that the table has as absent, because it is present: it was mapped before its
    /// mapping was registered, or a fork left it (see `fork`). What is there is the program's, and resident from now
    /// on.
    pub fn found_present(&mut self, page: Page, slots: &mut Store) {
        let discarded = self.discard(page, page + 1, slots);
        debug_assert_eq!(discarded.resident, 0, "a resident page is not mapped again");
        self.mapped(page, false, slots);
    }

    /// Takes the pages that the table has as far but that may be present, because they were being evicted or fetched
    /// when this space was forked. Each is returned once. The caller calls [`found_present`](Self::found_present) for a
    /// page that is present, and [`doubt`](Self::doubt) for one of which it cannot tell.
    pub fn doubtful(&mut self) -> Vec<Page> {
        let all = std::mem::take(&mut self.doubtful);
        // As long as the parent's eviction goes on, the page stays in doubt.
        let (leaving, settled): (Vec<Page>, Vec<Page>) =
            all.into_iter().partition(|page| self.get(*page).state() == State::EvictCopy);
        self.doubtful = leaving;
        // An untouched page is one whose eviction has found zeroes.
        let is_away = |page: &Page| match self.get(*page).state() {
            State::Remote => true,
            State::Untouched => self.range(*page).is_some(),
            _ => false,
        };
        let mut far: Vec<Page> = settled.into_iter().filter(is_away).collect();
        // A page that its parent doubted as well may be in the list twice.
        far.sort_unstable();
        far.dedup();
        far
    }

    /// Puts doubtful pages back of which the caller could not tell whether they are present.
    pub fn doubt(&mut self, pages: &[Page]) {
        self.doubtful.extend(pages);
    }

    /// Whether there are pages that the table has as far but that may be present.
    pub fn has_doubtful(&self) -> bool {
        !self.doubtful.is_empty()
    }

    /// A fetch of the page from its slot begins. Returns the operation's name: the page, unless an operation that began
    /// here is under way elsewhere. The evictor itself may wait for this fetch, so the fetch must not wait for an
    /// eviction. `waiter`: a thread waits for the page. If not, it is fetched ahead of need.
    pub fn fetching(&mut self, page: Page, writable: bool, waiter: bool) -> Page {
        let entry = self.get(page);
        self.set(page, entry.with_state(State::Fetching).with_writable(writable).with_waiter(waiter));
        if !self.is_name(page) {
            return page;
        }
        let began = second_name(page);
        self.forwards.push(Forward { began, now: Some(page), marked: false, counted: false, waiter: false });
        began
    }

    /// A write to a protected page is about to be allowed: its slot's contents will differ.
    /// Returns whether it had a slot.
    pub fn written(&mut self, page: Page, slots: &mut Store) -> bool {
        let entry = self.get(page);
        if entry.state() != State::Resident {
            return false;
        }
        if let Some(slot) = entry.slot() {
            slots.release(slot);
        }
        self.leave(entry);
        self.set(page, entry.with_own_page(None).with_referenced(true));
        entry.slot().is_some()
    }

    /// Makes a page that shares a frame this space's own: its room is counted for itself from now on. The page is clean
    /// if it is verified and the frame is stored.
    pub fn own(&mut self, page: Page, slots: &mut Store, frames: &Frames) {
        let entry = self.get(page);
        let Some(frame) = entry.frame() else { return };
        let slot = match frames.saved(frame) {
            Saved::Slot(slot) if entry.is_verified() && slots.share(slot) => Some(slot),
            _ => None,
        };
        self.leave(entry);
        self.set(page, entry.with_own_page(slot));
    }

    /// Notes what the page tables say of a page that shares a frame. They were read while the page was write-protected.
    /// Returns whether it is its space's own from now on, and counts as such.
    pub fn verify(&mut self, page: Page, seen: Seen, slots: &mut Store, frames: &Frames) -> bool {
        let entry = self.get(page);
        let Some(frame) = entry.frame() else { return false };
        match seen {
            Seen::Shared if entry.is_protected() => {
                self.set(page, entry.with_verified(true));
                return false;
            }
            Seen::Shared | Seen::Exclusive => {
                self.own(page, slots, frames);
                return true;
            }
            Seen::Absent => {}
        }
        // The program has given the page up in a way that the kernel does not report, or a child has not inherited it.
        // If its contents are stored, the next fault fetches them, as for any clean page that is absent.
        let stored = match frames.saved(frame) {
            Saved::Slot(slot) if entry.is_verified() && slots.share(slot) => Some(slot),
            _ => None,
        };
        self.leave(entry);
        let left = match stored {
            Some(_) => Entry(0).with_state(State::Remote).with_slot(stored).with_age(entry.age()),
            None => Entry(0),
        };
        self.set(page, left.with_queued(entry.is_queued()));
        false
    }

    /// The first run of pages of `[from, end)` that begins and ends with one that shares a frame and is not verified:
    /// its first page and its length. The caller may look at the pages in between, too, whatever their kind.
    pub fn unverified_run(&self, from: Page, end: Page) -> Option<(Page, u64)> {
        self.run(from, end, is_unverified)
    }

    /// As [`Table::unverified_run`], for pages that share a frame and are not protected. The caller may protect the
    /// pages in between, too.
    pub fn unprotected_run(&self, from: Page, end: Page) -> Option<(Page, u64)> {
        self.run(from, end, is_unprotected)
    }

    /// As [`Table::unprotected_run`], for all resident pages that are not protected. A fork is about to share these.
    pub fn writable_run(&self, from: Page, end: Page) -> Option<(Page, u64)> {
        self.run(from, end, |entry| entry.state() == State::Resident && !entry.is_protected())
    }

    fn run(&self, from: Page, end: Page, is_one: fn(Entry) -> bool) -> Option<(Page, u64)> {
        let mut found: Option<(Page, Page)> = None;
        let mut page = from;
        'blocks: while page < end {
            let stop = end.min((page / BLOCK + 1) * BLOCK);
            match self.blocks.get(&(page / BLOCK)) {
                None if found.is_some() => break,
                None => {}
                Some(block) => {
                    for page in page..stop {
                        let entry = block[(page % BLOCK) as usize];
                        if is_one(entry) {
                            found = Some((found.map_or(page, |(first, _)| first), page + 1));
                        } else if found.is_some() && !is_indifferent(entry) {
                            break 'blocks;
                        }
                    }
                }
            }
            page = stop;
        }
        found.map(|(first, end)| (first, end - first))
    }

    /// A page has been write-protected.
    pub fn protected(&mut self, page: Page) {
        let entry = self.get(page);
        if entry.state() == State::Resident && !entry.is_protected() {
            self.set(page, entry.with_protection());
        }
    }

    /// Ranges of pages, in order, outside of which no page is resident.
    pub fn resident_ranges(&self) -> Vec<(Page, Page)> {
        self.ranges_with(|entry| entry.state() == State::Resident)
    }

    /// Ranges of pages, in order, outside of which no page shares a frame.
    pub fn shared_ranges(&self) -> Vec<(Page, Page)> {
        self.ranges_with(|entry| entry.frame().is_some())
    }

    fn ranges_with(&self, is_one: impl Fn(&Entry) -> bool) -> Vec<(Page, Page)> {
        let has_one = |block: &[Entry; BLOCK as usize]| block.iter().any(&is_one);
        let mut found: Vec<u64> =
            self.blocks.iter().filter(|(_, block)| has_one(block)).map(|(number, _)| *number).collect();
        found.sort_unstable();
        found.into_iter().map(|number| (number * BLOCK, (number + 1) * BLOCK)).collect()
    }

    /// Makes a page that is the only holder of its frame this space's own again: its room is counted for itself from
    /// now on. Returns whether it needs no write protection any more.
    pub fn collapse(&mut self, page: Page, slots: &mut Store, frames: &Frames) -> bool {
        let before = self.get(page);
        self.own(page, slots, frames);
        before.is_protected() && self.get(page).slot().is_none()
    }

    /// Marks a page as lost: its contents cannot be had any more.
    pub fn lost(&mut self, page: Page, slots: &mut Store) {
        let entry = self.get(page);
        if let Some(slot) = entry.slot() {
            slots.release(slot);
        }
        self.leave(entry);
        self.set(page, Entry(0).with_state(State::Lost).with_queued(entry.is_queued()));
    }

    /// Gives up the contents of `[first, end)`: the range reads as zero from now on, or is not mapped any more.
    pub fn discard(&mut self, first: Page, end: Page, slots: &mut Store) -> Discarded {
        let mut discarded = Discarded::default();
        self.unasked.cut(first, end);
        // A page that appears there from now on was asked for, so it is not in doubt.
        self.doubtful.retain(|page| !(first..end).contains(page));
        for (page, entry) in self.entries(first, end) {
            if in_operation(entry) {
                discarded.in_operation = true;
                discarded.pages += u64::from(!entry.is_discarded());
                self.set(page, entry.with_discarded(true).with_referenced(false));
                continue;
            }
            if entry.state() == State::Untouched {
                continue;
            }
            discarded.pages += 1;
            discarded.resident += u64::from(entry.state() == State::Resident && entry.frame().is_none());
            if let Some(slot) = entry.slot() {
                slots.release(slot);
            }
            self.leave(entry);
            self.set(page, Entry(0).with_queued(entry.is_queued()));
        }
        discarded
    }

    /// A range was unmapped, or something else was mapped there.
    pub fn unmap(&mut self, first: Page, end: Page, slots: &mut Store) -> Discarded {
        self.unregister(first, end, slots)
    }

    /// Whether an operation that began at this page is under way and its page was moved elsewhere meanwhile. The page
    /// may have been moved back.
    pub fn is_name(&self, page: Page) -> bool {
        self.forwards.iter().any(|forward| forward.began == page)
    }

    /// Another page is about to take the place of one that is in an operation.
    fn vacate(&mut self, page: Page, entry: Entry, slots: &mut Store) {
        // Fetched contents are not wanted any more, so their slot is released. The slot of an eviction is the
        // evictor's.
        if let Some(slot) = entry.slot().filter(|_| entry.state() == State::Fetching) {
            slots.release(slot);
        }
        if let Some(forward) = self.forwards.iter_mut().find(|forward| forward.now == Some(page)) {
            forward.now = None;
            forward.counted = is_counted(entry);
        } else if let Some(forward) =
            self.forwards.iter_mut().find(|forward| forward.began == page && forward.marked)
        {
            forward.marked = false;
        } else {
            let counted = is_counted(entry);
            self.forwards.push(Forward { began: page, now: None, marked: false, counted, waiter: false });
        }
        self.set(page, Entry(0).with_queued(entry.is_queued()));
    }

    /// `count` pages from `from` on are at `to` now. The ranges do not overlap; whatever the table has at
    /// `to` is forgotten (a forked child has entries of ranges that it did not inherit).
    pub fn remap(&mut self, from: Page, to: Page, count: u64, slots: &mut Store) -> Remapped {
        let mut remapped =
            Remapped { resident: self.discard(to, to + count, slots).resident, ..Remapped::default() };
        for (page, entry) in self.entries(to, to + count) {
            if in_operation(entry) {
                remapped.in_operation = true;
                remapped.wake.extend(entry.has_waiter().then_some(page));
                self.vacate(page, entry, slots);
            }
        }
        self.doubtful.retain(|page| !(to..to + count).contains(page));
        for page in self.doubtful.iter_mut().filter(|page| (from..from + count).contains(*page)) {
            *page = to + (*page - from);
        }
        for (page, entry) in self.entries(from, from + count) {
            let target = to + (page - from);
            if in_operation(entry) && !entry.is_discarded() {
                remapped.in_operation = true;
                // The operation keeps its name. The old entry of its page becomes a mark of it, until it ends.
                match self.forwards.iter_mut().find(|forward| forward.now == Some(page)) {
                    Some(forward) => {
                        forward.now = Some(target);
                        remapped.wake.extend(entry.has_waiter().then_some(page));
                        self.set(page, Entry(0).with_queued(entry.is_queued()));
                    }
                    None => {
                        self.forwards.push(Forward {
                            began: page,
                            now: Some(target),
                            marked: true,
                            counted: false,
                            waiter: false,
                        });
                        // A thread that waits here looks again: it may be the evictor, which reads a kept page from its
                        // place.
                        remapped.wake.extend(entry.has_waiter().then_some(page));
                        // Only the new entry has the slot.
                        let mark = entry.with_discarded(true).with_slot(None).with_waiter(false);
                        self.set(page, mark);
                    }
                }
                let queued = self.get(target).is_queued();
                self.set(target, entry.with_waiter(false).with_queued(queued));
                continue;
            }
            if in_operation(entry) || entry.state() == State::Untouched {
                continue;
            }
            self.set(page, Entry(0).with_queued(entry.is_queued()));
            let queued = self.get(target).is_queued();
            self.set(target, entry.with_queued(queued));
            if let Some(frame) = entry.frame() {
                self.moved.insert(frame, target);
            }
            if entry.state() == State::Resident && !queued {
                remapped.unqueued.push(target);
            }
        }
        self.unasked.cut(from, from + count);
        // The kernel reports moves of registered memory only. The old range stays registered until it is reported to be unmapped.
        self.grow(from, from + count);
        self.grow(to, to + count);
        // Guards move with their pages.
        let guarded = self.guarded.within(from, from + count);
        self.guarded.cut(from, from + count);
        self.guarded.cut(to, to + count);
        for (first, end) in guarded {
            self.guarded.add(to + (first - from), to + (end - from));
        }
        remapped
    }

    /// The table of a child that was forked. `child` is the number of its space.
    ///
    /// From the moment the kernel copies page tables until the fork is reported, it maps nothing for us: so what is
    /// *Resident* here is present in the child. A page that is being moved out may have gone before that moment or
    /// after it. If it went before, the child's page is absent, and its contents are those that are being saved. If it
    /// went after, the child's page is present, and no fault asks for it. So the child's page *follows* the eviction
    /// here: in both cases the slot is right.
    ///
    /// What is *Resident* shares a frame from now on. Clean pages are write-protected, here and in the child. For
    /// others, it has to be found out whether they are still shared ([`Table::verify`]): the program may have written
    /// to them since, and of pages that were pinned, the child has copies.
    ///
    /// `with` is called with one piece of the work after another, and runs it on the slots and the frames: between two
    /// pieces, others may have these.
    pub fn fork(
        &mut self,
        child: u32,
        mut with: impl FnMut(&mut dyn FnMut(&mut Store, &mut Frames)),
    ) -> Forked {
        let (ranges, guarded) = (self.ranges.clone(), self.guarded.clone());
        let mut forked = Forked {
            table: Self { ranges, guarded, moved: self.moved.clone(), ..Self::default() },
            resident: 0,
            shared: 0,
            frames: 0,
            unnamed: Vec::new(),
        };
        forked.table.doubtful.clone_from(&self.doubtful);
        let mut blocks = std::mem::take(&mut self.blocks);
        let mut left = blocks.iter_mut().peekable();
        while left.peek().is_some() {
            with(&mut |slots, frames| {
                for (&number, block) in left.by_ref().take(FORK_BLOCKS) {
                    self.fork_block(number, block, child, slots, frames, &mut forked);
                }
            });
        }
        self.blocks = blocks;
        forked
    }

    fn fork_block(
        &mut self,
        number: u64,
        block: &mut [Entry; BLOCK as usize],
        child: u32,
        slots: &mut Store,
        frames: &mut Frames,
        forked: &mut Forked,
    ) {
        let mut theirs: Option<Box<[Entry; BLOCK as usize]>> = None;
        for (at, entry) in block.iter_mut().enumerate().filter(|(_, entry)| entry.0 != 0) {
            let page = number * BLOCK + at as u64;
            let inherited = if entry.state() == State::Resident {
                self.share(page, entry, slots, frames, forked)
            } else {
                // A page that is on its way may be present: it came before the fork, or is fetched again for a fault
                // that was served long ago.
                if matches!(entry.state(), State::EvictDrop | State::EvictCopy | State::Fetching) {
                    forked.table.doubtful.push(page);
                }
                self.inherited(page, *entry, child, slots)
            };
            forked.resident += u64::from(inherited.state() == State::Resident && inherited.frame().is_none());
            if inherited.0 != 0 {
                theirs.get_or_insert_with(|| Box::new([Entry(0); BLOCK as usize]))[at] = inherited;
            }
        }
        if let Some(theirs) = theirs {
            forked.table.blocks.insert(number, theirs);
        }
    }

    /// Shares a resident page with a child. Returns the child's entry.
    fn share(
        &mut self,
        page: Page,
        entry: &mut Entry,
        slots: &mut Store,
        frames: &mut Frames,
        forked: &mut Forked,
    ) -> Entry {
        let before = *entry;
        let frame = match before.frame() {
            None => {
                forked.shared += 1;
                self.shared += 1;
                self.clean -= u64::from(before.slot().is_some());
                let frame = frames.share(page, before.slot());
                // No queue names this page: an earlier eviction failed, and dropped its name.
                forked.unnamed.extend((!before.is_queued()).then_some(frame));
                // Pinning a page for writing writes to it, and a write gives its slot up: a page with a slot is not pinned.
                *entry = before.with_frame(frame).with_verified(before.slot().is_some());
                self.unverified += u64::from(is_unverified(*entry));
                self.unprotected += u64::from(is_unprotected(*entry));
                frame
            }
            // The stored copy may be older than the last holder's writes.
            Some(frame) if frames.holders(frame) == 1 => {
                if !before.is_verified() {
                    frames.forget(frame, slots);
                }
                frames.set_page(frame, page);
                frame
            }
            Some(frame) if before.is_verified() => frame,
            // This space's page may be another one than that of the frame's other holders.
            Some(_) => {
                self.leave(before);
                let frame = frames.share(page, None);
                forked.frames += 1;
                forked.unnamed.extend((!before.is_queued()).then_some(frame));
                *entry = before.with_frame(frame);
                frame
            }
        };
        frames.join(frame);
        forked.table.shared += 1;
        forked.table.unverified += u64::from(is_unverified(*entry));
        forked.table.unprotected += u64::from(is_unprotected(*entry));
        let theirs = Entry(0).with_frame(frame).with_verified(entry.is_verified()).with_age(before.age());
        if entry.is_protected() { theirs.with_protection() } else { theirs }
    }

    /// The child's entry for a page that is not resident here.
    fn inherited(&mut self, page: Page, entry: Entry, child: u32, slots: &mut Store) -> Entry {
        if in_operation(entry) && entry.is_discarded() {
            return Entry(0);
        }
        let (state, slot) = match entry.state() {
            State::Untouched => return Entry(0),
            State::Lost => (State::Lost, None),
            State::EvictCopy if entry.is_kept() => (State::Resident, None),
            State::EvictCopy => {
                let moved = self.forwards.iter().find(|forward| forward.now == Some(page));
                let operation = moved.map_or(page, |known| known.began);
                self.followers.push((operation, Follower { space: child, page }));
                return Entry(0).with_state(State::EvictCopy).with_follower(true);
            }
            State::Resident | State::Remote | State::Fetching | State::EvictDrop => match entry.slot() {
                // The slot cannot be shared any further: the child's page is poisoned when it is touched.
                Some(slot) if !slots.share(slot) => (State::Lost, None),
                Some(slot) => (State::Remote, Some(slot)),
                None => (State::Untouched, None),
            },
        };
        if state == State::Untouched {
            return Entry(0);
        }
        Entry(0).with_state(state).with_slot(slot).with_age(entry.age())
    }

    /// Where the page of an operation is now, and its entry there.
    pub fn operation(&self, began: Page) -> (Page, Entry) {
        match self.forwards.iter().find(|forward| forward.began == began) {
            Some(Forward { now: Some(page), .. }) => (*page, self.get(*page)),
            // The page is nowhere.
            Some(forward) => (
                began,
                Entry(0).with_state(State::Fetching).with_discarded(true).with_follower(!forward.counted),
            ),
            None => (began, self.get(began)),
        }
    }

    /// Offers pages that have left the program to be taken back. Their evictions are named by where they began, in
    /// order. The caller keeps the contents until [`Table::withdraw`]: until then, a fault of this program on such a
    /// page takes it back. A child that shares the eviction waits for its end. There is one such list at a time.
    pub fn offer(&mut self, began: Vec<Page>) {
        debug_assert!(began.is_sorted() && self.offered.is_empty());
        self.offered = began;
    }

    /// The evictions whose pages can be taken back, in order.
    pub fn offered(&self) -> &[Page] {
        &self.offered
    }

    /// Whether a thread waits for an offered page already.
    pub fn is_awaited(&self, began: Page) -> bool {
        let (page, entry) = self.operation(began);
        entry.has_waiter() && self.offered_for(page, entry) == Some(began)
    }

    /// An offered page is mapped again. Its eviction is to end with [`Outcome::Stays`], without a slot.
    pub fn taken_back(&mut self, began: Page) {
        if let Ok(at) = self.offered.binary_search(&began) {
            self.offered.remove(at);
        }
        // Mapping the page has woken the threads that waited for it. The page is in use, so it is not the next to
        // leave.
        let (page, entry) = self.operation(began);
        self.set(page, entry.with_waiter(false).with_referenced(true));
    }

    /// Whether a page in an operation has been taken back, so that it is mapped.
    pub fn is_taken_back(&self, page: Page) -> bool {
        let entry = self.get(page);
        entry.state() == State::EvictCopy && entry.is_referenced() && !entry.is_discarded()
    }

    /// No page can be taken back any more. Returns the evictions whose pages were not.
    pub fn withdraw(&mut self) -> Vec<Page> {
        std::mem::take(&mut self.offered)
    }

    /// The eviction that offers this page, if one does.
    fn offered_for(&self, page: Page, entry: Entry) -> Option<Page> {
        if self.offered.is_empty() || entry.is_discarded() || entry.is_kept() {
            return None;
        }
        let began = match self.forwards.iter().find(|forward| forward.now == Some(page)) {
            Some(forward) => forward.began,
            None => page,
        };
        self.offered.binary_search(&began).ok().map(|_| began)
    }

    /// Whether pages of children wait for the end of an operation here: the table is needed until then.
    pub fn is_followed(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Pages of children that wait for the end of this operation.
    pub fn followers(&self, began: Page) -> Vec<Follower> {
        self.followers
            .iter()
            .filter(|(operation, _)| *operation == began)
            .map(|(_, follower)| *follower)
            .collect()
    }

    /// An eviction, or a fetch that failed, has ended. `age`: now, on the clock of evictions.
    pub fn finish(&mut self, began: Page, outcome: Outcome, age: u64, slots: &mut Store) -> Finished {
        let mut wake = Vec::new();
        let forward = self
            .forwards
            .iter()
            .position(|forward| forward.began == began)
            .map(|index| self.forwards.swap_remove(index));
        if let Some(forward) = forward {
            let mark = self.get(began);
            if forward.waiter || (forward.marked && mark.has_waiter()) {
                wake.push(began & !PageName::PAGES_MAX);
            }
            if forward.marked {
                self.set(began, Entry(0).with_queued(mark.is_queued()));
            }
        }
        let mut followers = Vec::new();
        self.followers.retain(|(operation, follower)| {
            if *operation == began {
                followers.push(*follower);
            }
            *operation != began
        });
        let followers = followers
            .into_iter()
            .map(|follower| {
                let theirs = match outcome {
                    Outcome::Saved(slot) if !slots.share(slot) => Outcome::Lost,
                    // The child has the page, too, but the slot is this space's alone.
                    Outcome::Stays(_) | Outcome::Refused(_) | Outcome::Shared(_) => Outcome::Stays(None),
                    other => other,
                };
                (follower, theirs)
            })
            .collect();
        let page = match forward {
            None => began,
            Some(Forward { now: Some(page), .. }) => page,
            Some(Forward { now: None, counted, .. }) => {
                if let Some(slot) = outcome.slot() {
                    slots.release(slot);
                }
                return Finished {
                    page: began,
                    wake,
                    freed: counted,
                    gained: false,
                    unqueued: false,
                    followers,
                };
            }
        };
        let entry = self.get(page);
        if entry.has_waiter() {
            wake.push(page);
        }
        let counted = is_counted(entry);
        let (left, held) = match outcome {
            Outcome::Saved(slot) => {
                (Entry(0).with_state(State::Remote).with_slot(Some(slot)).with_age(age), Some(slot))
            }
            Outcome::Zero => (Entry(0), None),
            Outcome::Lost => (Entry(0).with_state(State::Lost), None),
            Outcome::Stays(slot) | Outcome::Refused(slot) | Outcome::Shared(slot) => (
                Entry(0).with_state(State::Resident).with_slot(slot).with_referenced(entry.is_referenced()),
                slot,
            ),
        };
        let left = if entry.is_discarded() {
            if let Some(slot) = held {
                slots.release(slot);
            }
            // Another page has been mapped here since.
            if entry.is_referenced() { Entry(0).with_state(State::Resident) } else { Entry(0) }
        } else {
            left
        };
        self.set(page, left.with_queued(entry.is_queued()));
        let resident = left.state() == State::Resident;
        Finished {
            page,
            wake,
            freed: counted && !resident,
            gained: !counted && resident,
            unqueued: resident && !entry.is_queued(),
            followers,
        }
    }
}
