//! Which pages to fetch along with a faulting one: only when the faults show a stride.
//!
//! A stride is believed as soon as three of the recent faults lie on a line. Then each fault on the first page of the
//! stream that was not fetched doubles the window. Random faults find no line and fetch nothing.

use super::page::Page;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of recent faults that are remembered.
const RECENT: usize = 24;
/// Most streams that are followed at once.
const STREAMS: usize = 8;
/// Longest stride believed, in pages.
const STRIDE_MAX: i64 = 64;
/// First and largest window, in pages.
const WINDOW_MIN: u32 = 4;
const WINDOW_MAX: u32 = 64;
/// Most pages of a space that its streams have fetched and not come to yet, the faulting pages included.
pub(super) const AHEAD_MOST: usize = STREAMS * (WINDOW_MAX as usize + 1);
/// How many strides beyond the expected page a fault still counts to a stream. With 2, a stream over memory that is
/// partly there is lost at each such part; with 64, random faults near a stream fetch windows for nothing (decision
/// 19).
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
    /// Notes a fault on `page`. Returns what to fetch with it.
    pub fn fault(&mut self, page: Page) -> Ahead {
        let page = page.cast_signed();
        self.count += 1;
        let now = self.count;
        let ahead = self.follow(page, now).or_else(|| self.discover(page, now));
        self.recent[(now % RECENT as u64) as usize] = page;
        ahead.unwrap_or(Ahead { stride: 1, count: 0 })
    }

    fn follow(&mut self, page: i64, now: u64) -> Option<Ahead> {
        // A fault a few strides beyond the expected page is of the same stream: the pages between were there already.
        // If several streams fit, the nearest one counts.
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

/// Sizes of first touches: each maps an aligned block of untouched pages around the page, four times as large as the
/// run of known pages beside it.
///
/// So memory that is filled costs few faults: blocks have 16 pages, 64, 256, and from then on 512. A program that uses
/// a page here and there gets 16 pages with each, or fewer if most of those that it was given leave again as zeroes.
#[derive(Debug)]
pub struct Touches {
    /// Pages of a block with nothing known beside it: a quarter of them, where room is short.
    least: u32,
    /// Of the pages that were to leave lately, most did not.
    stays: bool,
}

/// Most pages of a block: a huge page.
pub const TOUCH_MAX: u32 = 512;
/// Pages of a block with nothing known beside it; and of one with something beside it, where room is short.
const TOUCH_LEAST: u32 = 16;
/// A block is this many times as large as the run of known pages beside it.
const TOUCH_GROWTH: u32 = 4;
/// Least number of pages of an eviction from which anything is concluded.
const LEFT_LEAST: usize = 16;

/// How much room the pager has for pages that no thread has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spare {
    /// Plenty.
    Ample,
    /// Little: what is mapped ahead of a program must not push out what it uses.
    Short,
    /// Next to nothing: pages do not leave as fast as the program gets them.
    None,
}

/// Room is ample while at least one page in `AMPLE` of the limit is free.
const AMPLE: u64 = 4;

impl Spare {
    /// The room that is left. `free`: pages that still fit into the limit; the pager keeps `headroom` of them free.
    /// `has_given_way`: the limit is exceeded at present.
    pub fn of(limit_pages: u64, free: i64, headroom: u64, has_given_way: bool) -> Self {
        match free {
            _ if free <= (headroom / 4).cast_signed() => Self::None,
            _ if has_given_way || free < (limit_pages / AMPLE + headroom).cast_signed() => Self::Short,
            _ => Self::Ample,
        }
    }
}

impl Default for Touches {
    fn default() -> Self {
        Self { least: TOUCH_LEAST, stays: false }
    }
}

impl Touches {
    /// The block to map for a touch of a page: its first page, and how many pages it has (a power of two). `beside`: the run of known pages
    /// beside the page.
    pub fn block(&self, page: Page, beside: u32, spare: Spare) -> (Page, u32) {
        let spare = if self.stays { Spare::None } else { spare };
        let count = match (spare, beside) {
            (Spare::Ample, 0) => self.least,
            (Spare::Ample, beside) => {
                beside.next_power_of_two().saturating_mul(TOUCH_GROWTH).clamp(self.least, TOUCH_MAX)
            }
            (Spare::Short, 0) => (self.least / TOUCH_GROWTH).max(1),
            (Spare::Short, _) => self.least,
            (Spare::None, beside) => beside.next_power_of_two().min(self.least),
        };
        (page & !u64::from(count - 1), count)
    }

    /// The pager has mapped a block beside a run of `beside` known pages. If the run is as long as a block, the program
    /// fills memory, and blocks grow.
    pub fn went_on(&mut self, beside: u32) {
        if beside >= self.least {
            self.least = (self.least * 2).min(TOUCH_LEAST);
        }
    }

    /// An eviction of `of` pages has ended: `left` of them have left, and `zeroes` of these held only zeroes. If most
    /// were zeroes, the program has not used pages that it did not ask for, and blocks become smaller. If most did not
    /// leave, blocks are no larger than the run of known pages beside the page.
    pub fn left(&mut self, zeroes: usize, left: usize, of: usize) {
        if left >= LEFT_LEAST && zeroes * 2 > left {
            self.least = (self.least / 2).max(1);
        }
        if of >= LEFT_LEAST {
            self.stays = left * 2 < of;
        }
    }
}

/// Whether pages that are fetched for reading tend to be written afterwards.
///
/// A page mapped write-protected is cheap to evict while it stays clean, but its first write costs a fault, which is
/// dearer than what a clean page saves. So where writes usually follow, pages are mapped writable at once, except for a
/// sample that shows whether the habit lasts.
#[derive(Debug, Default)]
pub struct WriteHabit {
    /// Share of watched pages that were written, in 1/65536, moving average.
    written: AtomicU32,
    turn: AtomicU32,
}

/// One page in this many is mapped protected whatever the habit.
const SAMPLE: u32 = 16;
/// Above this share, in 1/65536, pages are mapped writable.
const HABIT: u32 = 65536 / 4;

impl WriteHabit {
    /// A page that was mapped protected has been written, or evicted without a write.
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

    /// Touches `pages` in their order. Returns the number of faults, and the number of pages that are there in the end.
    fn touched(pages: impl Iterator<Item = Page>, spare: Spare) -> (usize, usize) {
        let touches = Touches::default();
        let mut present = std::collections::BTreeSet::new();
        let mut faults = 0;
        for page in pages {
            if present.contains(&page) {
                continue;
            }
            faults += 1;
            let before = (0..page).rev().take(512).take_while(|page| present.contains(page)).count();
            let behind = (page + 1..).take(512).take_while(|page| present.contains(page)).count();
            let (first, count) = touches.block(page, before.max(behind) as u32, spare);
            assert!((first..first + u64::from(count)).contains(&page), "{first} {count} {page}");
            present.extend(first..first + u64::from(count));
        }
        (faults, present.len())
    }

    #[test]
    fn memory_that_is_filled_costs_few_faults() {
        for pages in [touched(0..10_240, Spare::Ample), touched((0..10_240).rev(), Spare::Ample)] {
            assert_eq!(pages, (23, 10_240));
        }
        // Where room is short, a block has no more than 16 pages.
        assert_eq!(touched(0..10_240, Spare::Short), (641, 10_240));
        // Where there is next to no room, a block is as large as the run beside it, up to 16 pages.
        assert_eq!(touched(0..10_240, Spare::None), (644, 10_240));
    }

    #[test]
    fn pages_here_and_there_bring_few_others() {
        for stride in [64, 512] {
            assert_eq!(touched((0..100).map(|page| page * stride + 7), Spare::Ample), (100, 1_600));
        }
    }

    #[test]
    fn what_leaves_as_zeroes_is_given_no_more() {
        let mut touches = Touches::default();
        for (zeroes, least) in [(8, 16), (9, 8), (16, 4), (16, 2), (16, 1), (16, 1)] {
            touches.left(zeroes, 16, 16);
            assert_eq!(
                (touches.block(1_000, 1, Spare::Short).1, touches.block(1_000, 0, Spare::Ample).1),
                (least, least)
            );
            assert_eq!(touches.block(1_000, 0, Spare::Short).1, (least / 4).max(1));
        }
        touches.left(3, 3, 3);
        for beside in [1, 1, 2, 4, 7] {
            touches.went_on(beside);
        }
        assert_eq!(
            (touches.block(1_003, 1, Spare::Short), touches.block(1_003, 1, Spare::Ample)),
            ((1_000, 8), (1_000, 8))
        );
        (0..3).for_each(|_| touches.went_on(16));
        assert_eq!(touches.block(1_003, 1, Spare::Short), (992, 16));
    }

    /// A program that touches a neighbouring page now and then does not fill memory.
    #[test]
    fn a_sparse_program_stays_one() {
        let mut touches = Touches::default();
        for _ in 0..50 {
            touches.left(120, 128, 128);
            (0..8).for_each(|_| touches.went_on(1));
        }
        assert!(touches.block(1_000, 1, Spare::Short).1 <= 4);
    }

    #[test]
    fn what_does_not_leave_is_given_no_more() {
        let mut touches = Touches::default();
        touches.left(0, 7, 16);
        assert_eq!(touches.block(1_000, 0, Spare::Ample), (1_000, 1));
        touches.left(0, 8, 16);
        assert_eq!(touches.block(1_000, 0, Spare::Ample), (992, 16));
    }

    #[test]
    fn spare_room_is_what_the_limit_leaves() {
        let of = |free, has_given_way| Spare::of(1_000, free, 40, has_given_way);
        let found = [290, 289, 11, 10, 0, -5].map(|free| of(free, false));
        assert_eq!(found, [Spare::Ample, Spare::Short, Spare::Short, Spare::None, Spare::None, Spare::None]);
        assert_eq!(of(900, true), Spare::Short);
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
