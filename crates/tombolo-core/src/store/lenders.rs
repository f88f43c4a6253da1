//! Lenders, their segments, and which pages of these are used.
//!
//! The pages of one lender are numbered across its segments. Pages are taken in ascending order, so that pages that are
//! written together lie together and are moved by one transfer. When the search for a page has passed twice as many
//! pages as are in use, it begins again at the first page: far pages that were used lately are warm in caches and page
//! tables, others are not.

use std::cmp::Reverse;
use std::num::NonZeroU64;

use super::Location;

/// A lender of a store: one life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LenderId(pub u32);

/// A page that a lender has lent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place(NonZeroU64);

const SEGMENT_SHIFT: u32 = 18;
/// Set in every place, so that its number is never zero.
const MARK: u64 = 1 << 63;

impl Place {
    /// Most pages of a segment.
    pub const SEGMENT_PAGES_MAX: u32 = 1 << SEGMENT_SHIFT;

    fn new(lender: LenderId, segment: usize, page: u32) -> Self {
        let page = (segment as u64) << SEGMENT_SHIFT | u64::from(page);
        Self(NonZeroU64::new(MARK | u64::from(lender.0) << 32 | page).unwrap_or(NonZeroU64::MAX))
    }

    /// Its lender.
    pub fn lender(self) -> LenderId {
        LenderId(((self.0.get() & !MARK) >> 32) as u32)
    }

    fn number(self) -> u32 {
        self.0.get() as u32
    }

    fn segment(self) -> usize {
        (self.number() >> SEGMENT_SHIFT) as usize
    }

    fn page(self) -> u32 {
        self.number() & (Self::SEGMENT_PAGES_MAX - 1)
    }

    /// The place this many pages further in the segment.
    pub(super) fn offset(self, pages: u32) -> Self {
        Self::new(self.lender(), self.segment(), self.page() + pages)
    }

    /// Whether another place lies this many pages further in the same segment.
    pub(super) fn is_followed_by(self, other: Self, pages: u32) -> bool {
        self.page() + pages < Self::SEGMENT_PAGES_MAX && self.offset(pages) == other
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "lender {} segment {} page {}", self.lender().0, self.segment(), self.page())
    }
}

/// A lender that joins a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Newcomer {
    /// Names the machine it is on. Two copies go to two hosts if possible.
    pub host: u64,
    /// Of two copies, the one at the lender with the smaller distance is read first.
    pub distance: u32,
    /// Time of a round trip to it; 0 if it is not known, or if its memory is reached directly.
    pub round_trip_ns: u64,
}

/// What a lender may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenderState {
    /// For everything.
    Active,
    /// Everything is being moved away from it.
    Draining,
    /// It is dead, and what it lent is mapped here: its pages may be read, and are being copied elsewhere.
    DeadReadable,
    /// It is dead, or has been drained.
    Gone,
}

#[derive(Debug)]
struct Segment {
    /// The lender's name for it.
    name: u64,
    pages: u32,
    used: u32,
    /// Address at which it is mapped here, if it is.
    direct: Option<u64>,
    /// A bit for each page: set while the page is used.
    bits: Vec<u64>,
    /// It was given back: its number may be used for another segment.
    is_gone: bool,
    /// When it was first seen to be unused.
    unused_since_ns: Option<u64>,
}

impl Segment {
    /// The first unused page, from page `from` on.
    fn find(&self, from: u32) -> Option<u32> {
        let mut word = from as usize / 64;
        let mut mask = (1u64 << (from % 64)) - 1;
        while let Some(&bits) = self.bits.get(word) {
            let page = (word * 64) as u32 + (bits | mask).trailing_ones();
            if page >= self.pages {
                return None;
            }
            if page / 64 == word as u32 {
                return Some(page);
            }
            word += 1;
            mask = 0;
        }
        None
    }
}

/// One lender.
#[derive(Debug)]
pub(super) struct Lender {
    newcomer: Newcomer,
    state: LenderState,
    is_suspect: bool,
    segments: Vec<Segment>,
    /// Pages of the largest segment.
    largest: u32,
    /// Unused pages.
    free: u64,
    used: u64,
    /// Where the search for an unused page begins: segment and page.
    cursor: (usize, u32),
    /// About how many pages the cursor has passed since the search began at the first page.
    passed: u64,
    /// Number of pages that the lender was asked for, until it answers.
    pub(super) asked: Option<u32>,
    /// Time before which it is not asked for memory again; 0: it may be asked now.
    pub(super) ask_after_ns: u64,
    /// Requests for memory that failed in a row.
    pub(super) failures: u32,
    /// Reads under way.
    reads: u32,
    /// When it was last read from, as the number of reads that had begun at all lenders.
    last_read: u64,
    /// Pages that came from it and went to it.
    pub(super) traffic: Traffic,
    /// The front end was told that it is drained.
    is_drained: bool,
}

/// Pages that have come from a lender, and that have gone to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Read from it.
    pub pages_read: u64,
    /// Written to it.
    pub pages_written: u64,
}

/// Number of reads under way at one lender at which another lender is read from as well. A lender that has just been
/// read from is awake: waking another takes as long as some ten pages of 4 KiB at 10 Gb/s.
const READS_OF_ONE: u32 = 8;

/// The search for an unused page passes at least this many pages before it begins anew.
const ROUND_LEAST: u64 = 4096;

impl Lender {
    pub(super) fn state(&self) -> LenderState {
        self.state
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained
    }

    pub(super) fn borrowed_pages(&self) -> u64 {
        self.free + self.used
    }

    pub(super) fn used_pages(&self) -> u64 {
        self.used
    }

    pub(super) fn free_pages(&self) -> u64 {
        self.free
    }

    /// Whether new data may be written to it.
    pub(super) fn is_well(&self) -> bool {
        self.state == LenderState::Active && !self.is_suspect
    }

    /// Whether it is on the machine `host`.
    pub(super) fn is_on(&self, host: u64) -> bool {
        self.newcomer.host == host
    }

    /// Whether a segment number is left.
    pub(super) fn can_have_more_segments(&self) -> bool {
        self.segments.len() < 1 << (32 - SEGMENT_SHIFT) || self.segments.iter().any(|segment| segment.is_gone)
    }

    pub(super) fn largest_segment(&self) -> u32 {
        self.largest
    }

    pub(super) fn lend(&mut self, name: u64, pages: u32, direct: Option<u64>) {
        let bits = vec![0; pages.div_ceil(64) as usize];
        let segment = Segment { name, pages, used: 0, direct, bits, is_gone: false, unused_since_ns: None };
        // A segment that was given back has no used page: its number can be used again.
        match self.segments.iter_mut().find(|segment| segment.is_gone) {
            Some(gone) => *gone = segment,
            None => self.segments.push(segment),
        }
        self.free += u64::from(pages);
        self.largest = self.largest.max(pages);
    }

    /// Takes an unused page: the next one after the last taken, if that is unused.
    fn take(&mut self, id: LenderId) -> Option<Place> {
        if self.free == 0 {
            return None;
        }
        if self.passed > ROUND_LEAST.max(2 * self.used) {
            (self.cursor, self.passed) = ((0, 0), 0);
        }
        let count = self.segments.len();
        // The last step looks at the cursor's segment once more, from its beginning.
        for step in 0..=count {
            let (index, from) = match step {
                0 => self.cursor,
                _ => ((self.cursor.0 + step) % count, 0),
            };
            let segment = self.segments.get_mut(index)?;
            if segment.is_gone || segment.used == segment.pages {
                continue;
            }
            let Some(page) = segment.find(from) else { continue };
            if let Some(word) = segment.bits.get_mut(page as usize / 64) {
                *word |= 1 << (page % 64);
            }
            segment.used += 1;
            segment.unused_since_ns = None;
            self.free -= 1;
            self.used += 1;
            if index < self.cursor.0 || (index == self.cursor.0 && page < self.cursor.1) {
                self.passed = 0;
            } else {
                let skipped = if index == self.cursor.0 { page - self.cursor.1 } else { page };
                self.passed += u64::from(skipped) + 1;
            }
            self.cursor = (index, page + 1);
            return Some(Place::new(id, index, page));
        }
        None
    }

    fn free(&mut self, place: Place) {
        let Some(segment) = self.segments.get_mut(place.segment()) else { return };
        let bit = 1u64 << (place.page() % 64);
        let Some(word) = segment.bits.get_mut(place.page() as usize / 64) else { return };
        debug_assert!(*word & bit != 0, "{place:?} is freed twice");
        if *word & bit == 0 {
            return;
        }
        *word &= !bit;
        segment.used -= 1;
        self.used -= 1;
        self.free += 1;
    }

    /// Names of all segments, which are to be given back now.
    pub(super) fn all_segments(&mut self) -> Vec<u64> {
        let lent = self.segments.iter().filter(|segment| !segment.is_gone);
        lent.map(|segment| segment.name).collect()
    }

    /// Removes segments that are to be given back now, and returns their names: those that were unused for `unused_ns`,
    /// as long as at least `keep_pages` unused pages are left.
    pub(super) fn unused_segments(&mut self, now_ns: u64, unused_ns: u64, keep_pages: u64) -> Vec<u64> {
        let mut names = Vec::new();
        let mut free = self.free;
        // The last segments are used least.
        for segment in self.segments.iter_mut().rev().filter(|segment| !segment.is_gone && segment.used == 0)
        {
            let since = *segment.unused_since_ns.get_or_insert(now_ns);
            let is_spare =
                free >= u64::from(segment.pages) + keep_pages && now_ns >= since.saturating_add(unused_ns);
            if is_spare {
                segment.is_gone = true;
                free -= u64::from(segment.pages);
                names.push(segment.name);
            }
        }
        self.free = free;
        if !names.is_empty() {
            (self.cursor, self.passed) = ((0, 0), 0);
            let lent = self.segments.iter().filter(|segment| !segment.is_gone);
            self.largest = lent.map(|segment| segment.pages).max().unwrap_or(0);
        }
        names
    }
}

/// Where places for the first copies, or those for the second ones, are taken at present.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    lender: Option<LenderId>,
    /// Pages until the stream goes on to the next lender.
    left: u32,
}

/// All lenders.
#[derive(Debug)]
pub(super) struct Lenders {
    all: Vec<Lender>,
    streams: [Stream; 2],
    stripe_pages: u32,
    /// Reads that have begun so far, at all lenders.
    reads: u64,
}

impl Lenders {
    pub(super) fn new(stripe_pages: u32) -> Self {
        Self { all: Vec::new(), streams: [Stream::default(); 2], stripe_pages: stripe_pages.max(1), reads: 0 }
    }

    pub(super) fn add(&mut self, newcomer: Newcomer) -> LenderId {
        let id = LenderId(self.all.len() as u32);
        self.all.push(Lender {
            newcomer,
            state: LenderState::Active,
            is_suspect: false,
            segments: Vec::new(),
            largest: 0,
            free: 0,
            used: 0,
            cursor: (0, 0),
            passed: 0,
            asked: None,
            ask_after_ns: 0,
            failures: 0,
            reads: 0,
            last_read: 0,
            traffic: Traffic::default(),
            is_drained: false,
        });
        id
    }

    pub(super) fn get(&self, id: LenderId) -> Option<&Lender> {
        self.all.get(id.0 as usize)
    }

    pub(super) fn get_mut(&mut self, id: LenderId) -> Option<&mut Lender> {
        self.all.get_mut(id.0 as usize)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LenderId> + use<> {
        (0..self.all.len() as u32).map(LenderId)
    }

    /// The lenders that are alive.
    pub(super) fn usable(&self) -> impl Iterator<Item = &Lender> {
        self.all.iter().filter(|lender| matches!(lender.state, LenderState::Active | LenderState::Draining))
    }

    /// Notes whether a lender is silent. Returns whether that has changed.
    pub(super) fn set_suspect(&mut self, id: LenderId, is_suspect: bool) -> bool {
        let lender = self.get_mut(id).filter(|lender| !lender.is_dead() && lender.is_suspect != is_suspect);
        lender.map(|lender| lender.is_suspect = is_suspect).is_some()
    }

    /// Notes that a lender is dead. Returns whether its state has changed.
    pub(super) fn set_dead(&mut self, id: LenderId, is_readable: bool) -> bool {
        let Some(lender) = self.get_mut(id) else { return false };
        let state = if is_readable { LenderState::DeadReadable } else { LenderState::Gone };
        if lender.state == LenderState::Gone || lender.state == state {
            return false;
        }
        (lender.state, lender.asked) = (state, None);
        if !is_readable {
            lender.forget();
        }
        true
    }

    /// Notes that a lender is to be drained. Returns whether its state has changed.
    pub(super) fn set_draining(&mut self, id: LenderId) -> bool {
        let lender = self.get_mut(id).filter(|lender| lender.state == LenderState::Active);
        lender.map(|lender| lender.state = LenderState::Draining).is_some()
    }

    /// Returns true once, when no slot needs any page of a lender that is being drained or is dead. `not_needed` counts
    /// its used pages that no slot needs.
    pub(super) fn is_newly_drained(&mut self, id: LenderId, not_needed: impl FnOnce() -> u64) -> bool {
        let Some(lender) = self.get_mut(id) else { return false };
        let is_drained = matches!(lender.state, LenderState::Draining | LenderState::DeadReadable)
            && lender.asked.is_none()
            && !lender.is_drained
            && (lender.used == 0 || lender.used == not_needed());
        lender.is_drained |= is_drained;
        is_drained
    }

    pub(super) fn set_gone(&mut self, id: LenderId) {
        if let Some(lender) = self.get_mut(id) {
            lender.state = LenderState::Gone;
            lender.forget();
        }
    }

    /// Takes a page for a copy (0 or 1), at a lender that is well, is not in `except`, and is not on the machine
    /// `host`.
    pub(super) fn take(&mut self, copy: usize, except: &[LenderId], host: Option<u64>) -> Option<Place> {
        let may = |id: LenderId, lender: &Lender| {
            lender.is_well()
                && lender.free > 0
                && !except.contains(&id)
                && host.is_none_or(|host| lender.newcomer.host != host)
        };
        let stream = self.streams.get(copy).copied().unwrap_or_default();
        let current = stream
            .lender
            .filter(|_| stream.left > 0)
            .filter(|&id| self.get(id).is_some_and(|lender| may(id, lender)));
        let (id, left) = match current {
            Some(id) => (id, stream.left),
            None => {
                let count = self.all.len() as u32;
                let after = stream.lender.map_or(copy as u32, |id| id.0 + 1);
                let next = (0..count)
                    .map(|step| LenderId(after.wrapping_add(step) % count))
                    .find(|&id| self.get(id).is_some_and(|lender| may(id, lender)))?;
                (next, self.stripe_pages)
            }
        };
        if let Some(stream) = self.streams.get_mut(copy) {
            *stream = Stream { lender: Some(id), left: left - 1 };
        }
        self.get_mut(id)?.take(id)
    }

    /// Whether an active lender, which has to acknowledge writes, is silent.
    pub(super) fn is_one_silent(&self) -> bool {
        let is_silent = |lender: &Lender| lender.state == LenderState::Active && lender.is_suspect;
        self.ids().any(|id| self.get(id).is_some_and(is_silent))
    }

    /// Takes a page at a lender that is being drained: better than none.
    pub(super) fn take_leaving(&mut self) -> Option<Place> {
        let may =
            |lender: &Lender| lender.state == LenderState::Draining && !lender.is_suspect && lender.free > 0;
        let id = self.ids().find(|&id| self.get(id).is_some_and(may))?;
        self.get_mut(id)?.take(id)
    }

    /// Takes a page of a silent lender's window: this process writes there by itself, so the lender need not answer.
    pub(super) fn take_silent(&mut self) -> Option<Place> {
        let has_windows = |lender: &Lender| lender.segments.iter().any(|segment| segment.direct.is_some());
        let may = |lender: &Lender| {
            lender.state == LenderState::Active && lender.is_suspect && lender.free > 0 && has_windows(lender)
        };
        let id = self.ids().find(|&id| self.get(id).is_some_and(may))?;
        self.get_mut(id)?.take(id)
    }

    /// A read begins. Returns how long a round trip to its lender takes; 0 if that is not known.
    pub(super) fn read_begins(&mut self, id: LenderId) -> u64 {
        self.reads += 1;
        let reads = self.reads;
        let Some(lender) = self.get_mut(id) else { return 0 };
        lender.reads += 1;
        lender.last_read = reads;
        lender.newcomer.round_trip_ns
    }

    pub(super) fn read_ends(&mut self, id: LenderId) {
        if let Some(lender) = self.get_mut(id) {
            lender.reads = lender.reads.saturating_sub(1);
        }
    }

    pub(super) fn free(&mut self, place: Place) {
        if let Some(lender) = self.get_mut(place.lender()) {
            lender.free(place);
        }
    }

    pub(super) fn host(&self, place: Place) -> Option<u64> {
        self.get(place.lender()).map(|lender| lender.newcomer.host)
    }

    pub(super) fn share_a_host(&self, one: Place, other: Place) -> bool {
        self.host(one) == self.host(other)
    }

    /// Whether a lender is gone, so that no read or write there is waited for.
    pub(super) fn is_fenced(&self, id: LenderId) -> bool {
        self.get(id).is_none_or(|lender| lender.state == LenderState::Gone)
    }

    /// Whether what is stored at a place may be read.
    pub(super) fn is_readable(&self, place: Place) -> bool {
        !self.is_fenced(place.lender())
    }

    /// Whether what is stored at a place counts as a copy.
    pub(super) fn is_live(&self, place: Place) -> bool {
        self.get(place.lender()).is_some_and(|lender| !lender.is_dead())
    }

    /// Whether what is stored at a place is to be moved away.
    pub(super) fn is_to_leave(&self, place: Place) -> bool {
        self.get(place.lender()).is_none_or(|lender| lender.state != LenderState::Active)
    }

    pub(super) fn location(&self, place: Place) -> Option<Location> {
        let segment = self.get(place.lender())?.segments.get(place.segment())?;
        Some(Location {
            lender: place.lender(),
            segment: segment.name,
            page: place.page(),
            direct: segment.direct.map(|base| base + (u64::from(place.page()) << 12)),
        })
    }

    /// Address at which a page is mapped here, if it is.
    pub(super) fn direct(&self, place: Place) -> Option<u64> {
        let segment = self.all.get(place.lender().0 as usize)?.segments.get(place.segment())?;
        segment.direct.map(|base| base + (u64::from(place.page()) << 12))
    }

    pub(super) fn direct_to_read(&self, place: Place) -> Option<u64> {
        self.direct(place).filter(|_| self.is_readable(place))
    }

    /// The cost of copying a place elsewhere: the place with the least cost is copied. `None`: it cannot be read.
    pub(super) fn cost_of_copying(&self, place: Place) -> Option<(bool, u32, u32)> {
        let (is_silent, distance, ..) = self.cost_of_reading(place)?;
        Some((is_silent, distance, self.get(place.lender())?.reads))
    }

    /// The cost of reading a place for a front end: the place with the least cost is read. `None`: it cannot be read.
    pub(super) fn cost_of_reading(&self, place: Place) -> Option<(bool, u32, u32, Reverse<u64>)> {
        let lender = self.get(place.lender()).filter(|lender| lender.state != LenderState::Gone)?;
        // The memory of a dead lender that can still be read is mapped here, so its silence does not matter.
        let is_silent = lender.is_suspect && lender.state != LenderState::DeadReadable;
        let load = lender.reads / READS_OF_ONE;
        Some((is_silent, lender.newcomer.distance, load, Reverse(lender.last_read)))
    }
}

impl Lender {
    /// Drops the segments: none of their pages is used again.
    fn forget(&mut self) {
        self.segments = Vec::new();
        (self.free, self.used, self.largest) = (0, 0, 0);
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, LenderState::DeadReadable | LenderState::Gone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lenders(segments: &[&[u32]]) -> Lenders {
        let mut lenders = Lenders::new(2);
        for (host, pages) in (0u64..).zip(segments) {
            let id = lenders.add(Newcomer { host, distance: 0, round_trip_ns: 0 });
            for (name, &pages) in (0u64..).zip(*pages) {
                lenders.get_mut(id).unwrap().lend(name, pages, Some(name << 32));
            }
        }
        lenders
    }

    #[test]
    fn pages_are_consecutive_in_stripes_and_run_out_and_come_back() {
        let mut lenders = lenders(&[&[3], &[2, 100]]);
        let taken: Vec<Place> = std::iter::from_fn(|| lenders.take(0, &[], None)).collect();
        assert_eq!(taken.len(), 105);
        let order: Vec<(u32, u32)> =
            taken.iter().take(7).map(|place| (place.lender().0, place.page())).collect();
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (1, 0), (1, 1)]);
        let mut sorted = taken.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 105, "no page is taken twice");
        lenders.free(taken[1]);
        assert_eq!((lenders.take(0, &[], None), lenders.take(0, &[], None)), (Some(taken[1]), None));
        assert_eq!(lenders.location(taken[5]).unwrap().direct, Some(1 << 32));
    }

    /// A node that comes back is a new lender, so there may be many in a long run.
    #[test]
    fn the_lender_after_65536_others_has_places_of_its_own() {
        let mut lenders = lenders(&vec![&[][..]; 1 << 16]);
        lenders.get_mut(LenderId(0)).unwrap().lend(7, 3, None);
        let last = lenders.add(Newcomer { host: 1, distance: 0, round_trip_ns: 0 });
        assert_eq!(last, LenderId(1 << 16));
        lenders.get_mut(last).unwrap().lend(7, 3, Some(9 << 32));
        let mut taken: Vec<Place> = std::iter::from_fn(|| lenders.take(0, &[], None)).collect();
        assert_eq!(taken.iter().filter(|place| place.lender() == last).count(), 3);
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(taken.len(), 6, "two are one");
        for place in taken {
            let direct = lenders.location(place).unwrap().direct;
            assert_eq!(direct.is_some(), place.lender() == last, "{place:?}");
            lenders.free(place);
        }
    }

    #[test]
    fn few_pages_in_use_stay_few() {
        let mut lenders = lenders(&[&[100_000]]);
        let mut held = std::collections::VecDeque::new();
        for _ in 0..300_000 {
            held.push_back(lenders.take(0, &[], None).unwrap());
            if held.len() > 5_000 {
                let oldest = held.pop_front().unwrap();
                lenders.free(oldest);
            }
        }
        assert!(
            held.iter().all(|place| place.page() < 16_000),
            "{:?}",
            held.iter().map(|place| place.page()).max()
        );
    }

    #[test]
    fn the_second_copy_is_elsewhere() {
        let mut lenders = lenders(&[&[64], &[64]]);
        for _ in 0..64 {
            let one = lenders.take(0, &[], None).unwrap();
            let other = lenders.take(1, &[one.lender()], lenders.host(one)).unwrap();
            assert_ne!(one.lender(), other.lender());
        }
        assert_eq!(lenders.take(0, &[], None), None);
    }

    #[test]
    fn reads_stay_with_a_lender_until_it_has_enough_and_copies_go_to_the_other() {
        let mut lenders = lenders(&[&[64], &[64]]);
        let places = [lenders.take(0, &[], None).unwrap(), lenders.take(1, &[LenderId(0)], None).unwrap()];
        assert_eq!(places.map(Place::lender), [LenderId(0), LenderId(1)]);
        let nearest = |lenders: &Lenders| {
            places.into_iter().min_by_key(|place| lenders.cost_of_reading(*place)).unwrap().lender()
        };
        lenders.read_begins(LenderId(1));
        for _ in 1..READS_OF_ONE {
            assert_eq!(nearest(&lenders), LenderId(1));
            lenders.read_begins(LenderId(1));
        }
        assert_eq!(nearest(&lenders), LenderId(0), "the other has enough to do");
        lenders.read_ends(LenderId(1));
        assert_eq!(nearest(&lenders), LenderId(1));
        assert!(lenders.cost_of_copying(places[0]) < lenders.cost_of_copying(places[1]));
    }

    #[test]
    fn unused_segments_are_given_back_after_a_while() {
        let mut lenders = lenders(&[&[64, 64, 64]]);
        let place = lenders.take(0, &[], None).unwrap();
        let lender = lenders.get_mut(LenderId(0)).unwrap();
        assert_eq!(lender.unused_segments(5, 10, 64), [] as [u64; 0]);
        assert_eq!(lender.unused_segments(15, 10, 64), [2]);
        assert_eq!(lender.unused_segments(100, 10, 64), [] as [u64; 0], "64 pages are kept");
        assert_eq!(lender.borrowed_pages(), 128);
        lenders.free(place);
        assert!(lenders.set_draining(LenderId(0)) && lenders.is_newly_drained(LenderId(0), || 0));
        assert!(!lenders.is_newly_drained(LenderId(0), || 0));
        assert_eq!(lenders.get_mut(LenderId(0)).unwrap().all_segments(), [0, 1]);
    }
}
