//! Which page is evicted next: S3-FIFO, fed by what a supervisor can see.
//!
//! New pages enter a *small* queue (a small part of the room) and leave from there,
//! unless they come back soon after: a page that faults again within one
//! memory's worth of evictions (its age, kept in its table entry, is the ghost
//! queue) enters the *main* queue. Pages that are fetched ahead of a stream count
//! as new: most are used once, while the stream passes.
//!
//! Uses of a resident page cannot be seen. But how soon a page came back tells
//! how often it is used: each halving of that time is worth one more *life*, a
//! round through the main queue. So a page that is used a hundred times as often
//! as others, like an index, is rarely away. A write fault counts as a use.
//!
//! A page that the kernel has refused to move because of its mapping (locked, or read-only and never dropped from)
//! waits in a queue of its own, the *refused* queue. It comes up now and then, since its mapping may have changed.
//!
//! The kernel does not move a page that a fork shares, either. The evictor has the agent make such a page the process's
//! own, and then tries it again before any other ([`Replacement::pop_retry`]): if the page waited behind all others,
//! another fork might share it again.
//!
//! A page that shares a frame stands for the frame, under its own name. When the page leaves the frame and other
//! holders are left, the frame gets a name of its own in the queues.
//!
//! The queues hold names of pages, not pages: a name whose page is no longer resident is dropped when it comes up.
//! Names of spaces that have ended are removed together when there are many of them, because no name comes up as long
//! as room is not short.

use std::collections::{BTreeSet, VecDeque};

use super::frames::Frame;
use super::page::{AGE_MASK, LIVES_MAX, Page};
use super::prefetch::AHEAD_MOST;

/// Names a page of a space, or a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageName(u64);

/// Addresses of programs have 47 bits, so their pages have 35; one more tells a second operation on a page from the
/// first.
const PAGE_BITS: u32 = 36;

impl PageName {
    /// Number of spaces that can be named.
    pub const SPACES_MAX: u32 = (1 << (64 - PAGE_BITS)) - 1;
    /// In place of a space: the name is a frame's.
    const FRAMES: u32 = Self::SPACES_MAX;
    /// Number of pages of a space that can be named, each with a second operation.
    pub const PAGES_MAX: Page = 1 << (PAGE_BITS - 1);

    /// Page `page` of space number `space` (below [`PageName::SPACES_MAX`]).
    pub fn new(space: u32, page: Page) -> Self {
        Self(u64::from(space) << PAGE_BITS | page & ((1 << PAGE_BITS) - 1))
    }

    /// A frame that several spaces share.
    pub fn of_frame(frame: Frame) -> Self {
        Self::new(Self::FRAMES, Page::from(frame))
    }

    /// The frame, if the name is a frame's.
    pub fn frame(self) -> Option<Frame> {
        (self.space() == Self::FRAMES).then_some(self.page() as Frame)
    }

    /// The number of the space.
    pub fn space(self) -> u32 {
        (self.0 >> PAGE_BITS) as u32
    }

    /// The page.
    pub fn page(self) -> Page {
        self.0 & ((1 << PAGE_BITS) - 1)
    }

    /// As one word.
    pub fn word(self) -> u64 {
        self.0
    }

    /// From [`PageName::word`].
    pub fn from_word(word: u64) -> Self {
        Self(word)
    }
}

/// The queues and the clock of evictions.
#[derive(Debug)]
pub struct Replacement {
    small: VecDeque<PageName>,
    /// If the small queue is longer than this, its pages come up before those of the main queue.
    small_pages: usize,
    main: VecDeque<PageName>,
    /// Pages that the kernel has refused to move.
    refused: VecDeque<PageName>,
    /// Number of pages of the other queues that came up since the last refused page.
    others: u32,
    /// Number of refused pages that came up and were not refused again so far.
    left: u32,
    /// Pages that could not leave because they were shared, and frames of which a holder has left: they are tried again
    /// first.
    retries: VecDeque<PageName>,
    /// Spaces that have ended, whose names may still be in the queues.
    ended: BTreeSet<u32>,
    /// Number of these names, at most.
    ended_names: usize,
    limit_pages: usize,
    evictions: u64,
}

/// Least number of names of ended spaces that is worth a sweep. Fewer names, up to 32 KiB, stay where they are.
const ENDED_LEAST: usize = 4096;

/// Number of pages of the other queues that come up for each page of the refused queue. It bounds the cost of retries
/// where the kernel refuses nearly all pages that are local (decision 19).
const OTHERS_PER_REFUSED: u32 = 16;

/// When more than this number of pages of the refused queue have come up without being refused again, the program has
/// changed its mappings: the whole queue joins the main queue. The number is larger than that of the pages that can be
/// on their way out at once, since it is not known yet whether those are refused.
const LEFT_MOST: u32 = 256;

/// Evictions per tick of the coarse clock.
const TICK: u64 = 64;

/// How many pages the small queue keeps. A fiftieth of the room costs fewer faults than a tenth in traces of sort,
/// sqlite and made-up programs. But pages that are fetched ahead have to be there still when their stream comes to
/// them, as far as a small memory allows that (decision 19).
fn small_pages(limit_pages: usize) -> usize {
    (limit_pages / 50).max(AHEAD_MOST).min(limit_pages / 10)
}

impl Replacement {
    /// For a memory of `limit_pages`.
    pub fn new(limit_pages: usize) -> Self {
        let room = limit_pages + limit_pages / 2 + 1024;
        Self {
            small: VecDeque::with_capacity(room),
            small_pages: small_pages(limit_pages),
            main: VecDeque::with_capacity(room),
            refused: VecDeque::new(),
            others: 0,
            left: 0,
            retries: VecDeque::new(),
            ended: BTreeSet::new(),
            ended_names: 0,
            limit_pages,
            evictions: 0,
        }
    }

    /// A page was mapped. `evicted_at`: its age if it came back from far memory because a thread asked for it. Returns
    /// its lives.
    pub fn insert(&mut self, name: PageName, evicted_at: Option<u64>) -> u8 {
        let away = evicted_at.map(|age| (self.age().wrapping_sub(age) & AGE_MASK) * TICK);
        let Some(away) = away.filter(|&away| away < self.limit_pages as u64) else {
            self.small.push_back(name);
            return 0;
        };
        self.main.push_back(name);
        let times = self.limit_pages as u64 / (away + TICK / 2).max(1);
        (times.max(1).ilog2() as u8).min(LIVES_MAX)
    }

    /// Puts a page that came up but was in use back for another round.
    pub fn reinsert(&mut self, name: PageName) {
        self.main.push_back(name);
    }

    /// The kernel has refused to move a page that came up: it goes to the refused queue.
    pub fn refused(&mut self, name: PageName) {
        self.left = self.left.saturating_sub(1);
        self.refused.push_back(name);
    }

    /// Puts names back that are to come up before any other: those of pages that could not leave because they were
    /// shared, and those of frames of which a holder has left. Before that, the evictor has each page made its
    /// process's own by the agent.
    pub fn retry(&mut self, names: impl IntoIterator<Item = PageName>) {
        self.retries.extend(names);
    }

    /// Whether pages are to be tried again before any other.
    pub fn has_retries(&self) -> bool {
        !self.retries.is_empty()
    }

    /// The next name to try again, before any other. If its page cannot leave this time either, because it is pinned or
    /// shared again, the caller reinserts it.
    pub fn pop_retry(&mut self) -> Option<PageName> {
        self.retries.pop_front()
    }

    /// The next page to look at.
    pub fn pop(&mut self) -> Option<PageName> {
        self.others += 1;
        if self.others > OTHERS_PER_REFUSED {
            self.others = 0;
            if let Some(name) = self.pop_refused() {
                return Some(name);
            }
        }
        self.pop_other().or_else(|| self.pop_refused())
    }

    fn pop_refused(&mut self) -> Option<PageName> {
        let name = self.refused.pop_front();
        self.left += u32::from(name.is_some());
        if self.left > LEFT_MOST {
            self.left = 0;
            self.main.append(&mut self.refused);
        }
        name
    }

    fn pop_other(&mut self) -> Option<PageName> {
        let small_first = self.small.len() > self.small_pages || self.main.is_empty();
        if small_first {
            self.small.pop_front().or_else(|| self.main.pop_front())
        } else {
            self.main.pop_front()
        }
    }

    /// A space has ended. `names` of its pages stand in the queues; no other space gets its number.
    pub fn ended(&mut self, space: u32, names: usize) {
        if names == 0 {
            return;
        }
        self.ended.insert(space);
        self.ended_names += names;
        // A sweep looks at every name and removes a third of them or more: at most three looks for each name that it
        // removes.
        if self.ended_names < ENDED_LEAST || self.ended_names < self.names() / 3 {
            return;
        }
        // Neighbouring names mostly are of one space: the last answer is kept.
        let mut known = (space, true);
        for queue in [&mut self.small, &mut self.main, &mut self.refused, &mut self.retries] {
            queue.retain(|name| {
                if name.space() != known.0 {
                    known = (name.space(), self.ended.contains(&name.space()));
                }
                !known.1
            });
        }
        self.ended.clear();
        self.ended_names = 0;
    }

    fn names(&self) -> usize {
        self.small.len() + self.main.len() + self.refused.len() + self.retries.len()
    }

    /// Now, on the coarse clock.
    pub fn age(&self) -> u64 {
        (self.evictions / TICK) & AGE_MASK
    }

    /// `count` pages were evicted.
    pub fn advance(&mut self, count: u64) {
        self.evictions += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(page: Page) -> PageName {
        PageName::new(0, page)
    }

    #[test]
    fn a_page_that_comes_back_soon_outlives_a_scan() {
        let mut replacement = Replacement::new(100);
        replacement.insert(name(1000), Some(replacement.age()));
        for page in 0..50 {
            replacement.insert(name(page), None);
        }
        let gone: Vec<Page> = (0..40).filter_map(|_| replacement.pop()).map(PageName::page).collect();
        assert_eq!(gone, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn the_sooner_a_page_comes_back_the_more_lives_it_has() {
        let mut replacement = Replacement::new(100 * TICK as usize);
        let age = replacement.age();
        let mut lives = Vec::new();
        for step in [0, 1, 6, 24, 60, 200] {
            replacement.advance(step * TICK);
            lives.push(replacement.insert(name(1), Some(age)));
        }
        assert!(lives.is_sorted_by(|a, b| a >= b), "{lives:?}");
        assert_eq!((lives[0], lives[4], lives[5]), (LIVES_MAX, 0, 0));
    }

    #[test]
    fn a_page_that_comes_back_late_is_new() {
        let mut replacement = Replacement::new(100);
        let age = replacement.age();
        replacement.advance(100 * TICK);
        replacement.insert(name(7), Some(age));
        replacement.insert(name(8), Some(replacement.age()));
        assert_eq!(replacement.pop(), Some(name(8)));
    }

    #[test]
    fn what_was_refused_comes_up_now_and_then() {
        let mut replacement = Replacement::new(100);
        (0..100).for_each(|page| replacement.refused(name(page)));
        // Two pages can leave, and come back.
        (1000..1002).for_each(|page| replacement.reinsert(name(page)));
        let mut refused = 0;
        for _ in 0..1700 {
            let popped = replacement.pop().unwrap();
            match popped.page() {
                0..100 => {
                    refused += 1;
                    replacement.refused(popped);
                }
                _ => replacement.reinsert(popped),
            }
        }
        assert_eq!(refused, 100);
        // No other pages are queued: the refused ones come up one after the other.
        let mut replacement = Replacement::new(100);
        (0..100).for_each(|page| replacement.refused(name(page)));
        let popped: Vec<_> = std::iter::from_fn(|| replacement.pop()).map(PageName::page).collect();
        assert_eq!(popped, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_not_refused_any_more_comes_up_as_others_do() {
        let mut replacement = Replacement::new(10_000);
        (0..10_000).for_each(|page| replacement.refused(name(page)));
        (10_000..10_100).for_each(|page| replacement.reinsert(name(page)));
        // Every page that comes up leaves, and comes back as another.
        let (mut pops, mut left) = (0, 0);
        while left < 10_000 {
            pops += 1;
            let page = replacement.pop().unwrap().page();
            left += u32::from(page < 10_000);
            replacement.reinsert(name(10_000 + page));
        }
        assert!(pops < 20_000, "{pops}");
    }

    #[test]
    fn names_of_spaces_that_have_ended_go() {
        let mut replacement = Replacement::new(1000);
        for page in 0..1000 {
            replacement.insert(name(page), None);
        }
        for space in 1..=400 {
            for page in 0..1000 {
                let name = PageName::new(space, page);
                match page % 3 {
                    0 => replacement.refused(name),
                    1 => replacement.reinsert(name),
                    _ => {
                        replacement.insert(name, None);
                    }
                }
            }
            replacement.ended(space, 1000);
            assert!(replacement.names() < 8000, "{} names", replacement.names());
        }
        let left = std::iter::from_fn(|| replacement.pop()).filter(|name| name.space() == 0);
        assert!(left.map(PageName::page).eq(0..1000), "those of others stay, in their order");
    }

    #[test]
    fn everything_inserted_comes_up_once() {
        let mut replacement = Replacement::new(10);
        for page in 0..30 {
            replacement.insert(name(page), (page % 3 == 0).then_some(0));
        }
        let mut pages: Vec<Page> = std::iter::from_fn(|| replacement.pop()).map(PageName::page).collect();
        pages.sort_unstable();
        assert_eq!(pages, (0..30).collect::<Vec<_>>());
    }

    /// Streams that take turns, over memory that is far: what was fetched ahead is still there when it is read.
    #[test]
    fn what_is_fetched_ahead_waits_for_its_stream() {
        use crate::pager::prefetch::Prefetch;
        use std::collections::BTreeMap;

        for streams in [1, 3, 8] {
            let limit_pages = 6000;
            let (mut replacement, mut prefetch) = (Replacement::new(limit_pages), Prefetch::default());
            // Whether each resident page was read.
            let mut resident: BTreeMap<Page, bool> = BTreeMap::new();
            for page in 0..limit_pages as u64 {
                replacement.insert(name(1_000_000_000 + page), Some(replacement.age()));
                resident.insert(1_000_000_000 + page, true);
            }
            let (mut faults, mut unread) = (0, 0);
            for (step, stream) in (0..3000).flat_map(|step| (0..streams).map(move |stream| (step, stream))) {
                let page = stream * 1_000_000 + step;
                if resident.insert(page, true).is_some() {
                    continue;
                }
                faults += 1;
                replacement.insert(name(page), None);
                let ahead = prefetch.fault(page);
                for next in (1..=u64::from(ahead.count)).map(|distance| page + distance) {
                    resident.entry(next).or_insert_with(|| {
                        replacement.insert(name(next), None);
                        false
                    });
                }
                while resident.len() > limit_pages {
                    let gone = replacement.pop().expect("pages are resident").page();
                    unread += u32::from(resident.remove(&gone) == Some(false));
                    replacement.advance(1);
                }
            }
            assert_eq!(unread, 0, "{streams} streams");
            assert!(faults < streams * 100, "{streams} streams: {faults} faults");
        }
    }
}
