//! Which neighbours to bring along: only when the faults show a stride.
//!
//! A stride is believed once three faults of the recent ones lie on a line.
//! Then each fault that lands where the stream was expected to stop doubles the
//! window. Random faults find no line and fetch nothing.

use super::page::Page;
use std::sync::atomic::{AtomicU32, Ordering};

/// Faults remembered.
const RECENT: usize = 24;
/// Streams followed at once.
const STREAMS: usize = 8;
/// Longest stride believed, in pages.
const STRIDE_MAX: i64 = 64;
/// First and largest window, in pages.
const WINDOW_MIN: u32 = 4;
const WINDOW_MAX: u32 = 64;
/// Most pages of a space that are fetched and that no stream has come to yet, the pages asked for among them.
pub(super) const AHEAD_MOST: usize = STREAMS * (WINDOW_MAX as usize + 1);
/// How many steps beyond the end of its window a stream is still known. With 2, streams over memory that is there in
/// part are lost at each piece; with 64, random faults near a stream fetch windows for nothing (decision 19).
const LATE_MAX: i64 = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Where the next fault is expected.
    next: i64,
    stride: i64,
    window: u32,
    used_at: u64,
}

/// The fault history of one space.
#[derive(Debug)]
pub struct Prefetch {
    recent: [i64; RECENT],
    count: u64,
    streams: [Stream; STREAMS],
}

/// What to fetch besides the faulting page: `count` pages, each `stride` after the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Distance between pages; may be negative.
    pub stride: i64,
    /// How many pages; 0 for none.
    pub count: u32,
}

impl Default for Prefetch {
    fn default() -> Self {
        Self { recent: [i64::MIN / 4; RECENT], count: 0, streams: [Stream::default(); STREAMS] }
    }
}

impl Prefetch {
    /// A fault on `page`: what should come with it.
    pub fn fault(&mut self, page: Page) -> Ahead {
        let page = page.cast_signed();
        self.count += 1;
        let now = self.count;
        let ahead = self.follow(page, now).or_else(|| self.discover(page, now));
        self.recent[(now % RECENT as u64) as usize] = page;
        ahead.unwrap_or(Ahead { stride: 1, count: 0 })
    }

    fn follow(&mut self, page: i64, now: u64) -> Option<Ahead> {
        // A few steps late is the same stream: some of its pages were there already. The nearest one is it.
        let late = |stream: &Stream| match page - stream.next {
            0 => Some(0),
            ahead if ahead % stream.stride == 0 => {
                Some(ahead / stream.stride).filter(|late| (1..=LATE_MAX).contains(late))
            }
            _ => None,
        };
        let followed = self.streams.iter_mut().filter(|stream| stream.window > 0);
        let (_, stream) =
            followed.filter_map(|stream| Some((late(stream)?, stream))).min_by_key(|(late, _)| *late)?;
        stream.window = (stream.window * 2).min(WINDOW_MAX);
        stream.used_at = now;
        stream.next = page + stream.stride * (i64::from(stream.window) + 1);
        Some(Ahead { stride: stream.stride, count: stream.window })
    }

    fn discover(&mut self, page: i64, now: u64) -> Option<Ahead> {
        let stride = self.recent.iter().find_map(|&other| {
            let stride = page - other;
            (stride != 0 && stride.abs() <= STRIDE_MAX && self.recent.contains(&(other - stride)))
                .then_some(stride)
        })?;
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used_at)?;
        *oldest = Stream {
            next: page + stride * (i64::from(WINDOW_MIN) + 1),
            stride,
            window: WINDOW_MIN,
            used_at: now,
        };
        Some(Ahead { stride, count: WINDOW_MIN })
    }
}

/// First touches: memory that is filled from front to back, or from back to
/// front, gets more pages at a time.
#[derive(Debug, Default)]
pub struct Touches {
    runs: [Touch; 8],
    turn: usize,
}

/// A run of pages that were touched first one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Touch {
    /// Pages mapped so far: the next touch is expected at `end`, or below `first`.
    first: Page,
    end: Page,
    /// How many pages the last touch got; 0 for none.
    pages: u32,
}

/// Most pages mapped for one first touch.
pub const TOUCH_MAX: u32 = 64;

impl Touches {
    /// Which pages to map for a touch of `page`: the first, and how many. `page` is among them.
    pub fn touch(&mut self, page: Page) -> (Page, u32) {
        let known =
            self.runs.iter().position(|run| run.pages > 0 && (run.end == page || run.first == page + 1));
        let Some(index) = known else {
            self.turn = (self.turn + 1) % self.runs.len();
            self.runs[self.turn] = Touch { first: page, end: page + 1, pages: 1 };
            return (page, 1);
        };
        let run = &mut self.runs[index];
        let pages = (run.pages * 2).min(TOUCH_MAX);
        let first = if run.end == page { page } else { (page + 1).saturating_sub(u64::from(pages)) };
        (first, if run.end == page { pages } else { (page + 1 - first) as u32 })
    }

    /// So many pages from `first` on were mapped for a touch of `page`.
    pub fn mapped(&mut self, page: Page, first: Page, pages: u32) {
        let run =
            self.runs.iter_mut().find(|run| run.pages > 0 && (run.end == page || run.first == page + 1));
        if let Some(run) = run {
            run.pages = pages;
            run.first = run.first.min(first);
            run.end = run.end.max(first + u64::from(pages));
        }
    }
}

/// Whether pages that are fetched for reading tend to be written afterwards.
///
/// A page mapped write-protected is cheap to evict while it stays clean, but its
/// first write costs a fault, which is dearer than what a clean page saves. So
/// where writes usually follow, pages are mapped writable at once, but for a
/// sample of them, by which the habit is watched.
#[derive(Debug, Default)]
pub struct WriteHabit {
    /// Share of watched pages that were written, in 1/65536, moving average.
    written: AtomicU32,
    turn: AtomicU32,
}

/// One page in so many stays protected whatever the habit.
const SAMPLE: u32 = 16;
/// Above this share, in 1/65536, pages are mapped writable.
const HABIT: u32 = 65536 / 4;

impl WriteHabit {
    /// A protected page was written (or evicted without).
    pub fn observe(&self, written: bool) {
        let old = self.written.load(Ordering::Relaxed);
        let target = if written { 65536 } else { 0 };
        // A lost update among threads loses one observation of many.
        self.written.store((old * 63 + target) / 64, Ordering::Relaxed);
    }

    /// Whether to map the next page that is read write-protected.
    pub fn protect(&self) -> bool {
        self.written.load(Ordering::Relaxed) < HABIT
            || self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a reader over `pages`, faulting only where nothing was fetched ahead.
    fn faults(pages: impl Iterator<Item = Page>) -> (usize, usize) {
        let mut prefetch = Prefetch::default();
        let mut present = std::collections::BTreeSet::new();
        let (mut faults, mut fetched) = (0, 0);
        for page in pages {
            if present.insert(page) {
                faults += 1;
                let ahead = prefetch.fault(page);
                for step in 1..=i64::from(ahead.count) {
                    let next = page.checked_add_signed(ahead.stride * step);
                    fetched += usize::from(next.is_some_and(|page| present.insert(page)));
                }
            }
        }
        (faults, fetched)
    }

    #[test]
    fn sequential_and_strided_readers_rarely_fault() {
        assert!(faults(0..10_000).0 < 200);
        assert!(faults((0..10_000).rev()).0 < 200);
        assert!(faults((0..10_000).map(|page| page * 7)).0 < 200);
    }

    #[test]
    fn interleaved_streams_are_told_apart() {
        let pages = (0..5_000).flat_map(|step| [step, 1_000_000 + step, 2_000_000 - step]);
        assert!(faults(pages).0 < 400);
    }

    #[test]
    fn first_touches_grow_along_a_run_up_or_down_only() {
        let mut touches = Touches::default();
        let (mut up, mut down, mut count) = (100, 9_000, 0);
        while up < 3_000 {
            for page in [up, down] {
                let (first, pages) = touches.touch(page);
                assert!((first..first + u64::from(pages)).contains(&page));
                touches.mapped(page, first, pages);
            }
            (up, down) = (touches.runs[1].end, touches.runs[2].first - 1);
            count += 1;
        }
        assert!(count < 60 && down < 7_000);
        assert_eq!(touches.touch(50_000), (50_000, 1));
        assert_eq!(touches.touch(50_001), (50_001, 2));
        touches.mapped(50_001, 50_001, 1);
        assert_eq!(touches.touch(50_002), (50_002, 2));
        assert_eq!(touches.touch(60_000), (60_000, 1));
        assert_eq!(touches.touch(0), (0, 1));
    }

    #[test]
    fn pages_are_mapped_writable_where_writes_follow_and_protected_again_where_not() {
        let habit = WriteHabit::default();
        assert!((0..100).all(|_| habit.protect()));
        for _ in 0..100 {
            habit.observe(true);
        }
        assert_eq!((0..160).filter(|_| habit.protect()).count(), 10);
        for _ in 0..200 {
            habit.observe(false);
        }
        assert!((0..100).all(|_| habit.protect()));
    }

    #[test]
    fn random_readers_fetch_next_to_nothing_ahead() {
        let mut random = tombolo_random::Random::for_test(1);
        let pages = (0..10_000).map(|_| random.below(1_000_000));
        let (faults, fetched) = faults(pages);
        assert!(fetched * 50 < faults, "{fetched} pages fetched ahead for {faults} faults");
    }
}
