//! How many pages are resident, and how many may be.
//!
//! Pages of a space without an agent cannot be evicted, nor can the frames that such a space holds. They are counted apart,
//! so that they do not push out the pages of other spaces. Where nothing else can be evicted either, the limit gives way by
//! an *allowance*, which shrinks again while evictions succeed.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use tombolo_core::pager::Spare;

use tombolo_pager_protocol::AREA_PAGES;

/// The pages that one space, or all frames of one kind, have claimed.
#[derive(Debug, Default)]
pub struct Account(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Pages that are or are about to be resident.
    pages: u64,
    /// Whether the pages can be evicted, and so count against the limit.
    limited: bool,
}

/// The room of all spaces.
#[derive(Debug)]
pub struct Room {
    limit_pages: u64,
    allowance: AtomicU64,
    limited: AtomicU64,
    /// Pages of all accounts, limited or not. One number, so that pages that pass from one kind to the other count once.
    resident: AtomicU64,
    peak: AtomicU64,
    /// Its lock also guards the number of pages in each staging area.
    on_the_way: Mutex<OnTheWay>,
}

/// Pages that lie in a staging area from now on. They are counted if an agent is there that will empty it.
#[derive(Clone, Copy, Debug)]
pub struct Staged<'a> {
    /// Number of pages in the area.
    pub area: &'a AtomicU32,
    /// Pages that come to it.
    pub pages: u32,
    /// Whether the space has an agent.
    pub has_agent: &'a AtomicBool,
}

/// Pages of all spaces that belong to no account.
#[derive(Debug, Default)]
struct OnTheWay {
    /// In staging areas.
    staged: u64,
    /// Copies of shared pages, made so that these can leave.
    copies: u64,
}

impl OnTheWay {
    /// Pages that count against the limit: those beyond the room that exists beside it.
    fn counted(&self) -> u64 {
        self.staged.saturating_sub(STAGED_BESIDE) + self.copies.saturating_sub(COPIES_BESIDE)
    }

    fn change_staged(&mut self, area: &AtomicU32, change: impl FnOnce(u32) -> u32) {
        let was = area.load(Ordering::Relaxed);
        let now = change(was);
        area.store(now, Ordering::Relaxed);
        self.staged = (self.staged + u64::from(now)).saturating_sub(u64::from(was));
    }

    fn remove_copies(&mut self, pages: u64) {
        debug_assert!(self.copies >= pages, "{pages} of {self:?}");
        self.copies = self.copies.saturating_sub(pages);
    }
}

/// Pages in staging areas that have room beside the limit. Together with [`COPIES_BESIDE`], as many as one area has.
const STAGED_BESIDE: u64 = AREA_PAGES as u64 - COPIES_BESIDE;
/// Copies of shared pages that have room beside the limit.
const COPIES_BESIDE: u64 = AREA_PAGES as u64 / 2;

/// Smallest step by which the limit gives way, in pages.
const ALLOWANCE_STEP: u64 = 64;

impl Room {
    /// Room for `limit_pages`.
    pub fn new(limit_pages: u64) -> Self {
        Self {
            limit_pages,
            allowance: AtomicU64::new(0),
            limited: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            on_the_way: Mutex::default(),
        }
    }

    /// Most pages that the limit allows.
    pub fn limit_pages(&self) -> u64 {
        self.limit_pages
    }

    /// Pages resident now, of all spaces.
    pub fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Pages that can be evicted.
    pub fn evictable(&self) -> u64 {
        self.limited.load(Ordering::Relaxed)
    }

    /// Most pages that were resident at once.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Pages that still fit; negative where the limit is exceeded.
    pub fn free(&self) -> i64 {
        let most = self.limit_pages + self.allowance.load(Ordering::Relaxed);
        most.cast_signed() - self.limited.load(Ordering::Relaxed).cast_signed()
    }

    /// How much room there is for pages that a program has not asked for. `headroom`: pages that are kept free.
    pub fn spare(&self, account: &Account, headroom: u64) -> Spare {
        if !account.0.lock().limited {
            return Spare::None;
        }
        let free = self.limit_pages.cast_signed() - self.limited.load(Ordering::Relaxed).cast_signed();
        Spare::of(self.limit_pages, free, headroom, self.allowance.load(Ordering::Relaxed) > 0)
    }

    /// Claims room for up to `want` pages; returns how many were granted.
    pub fn reserve(&self, account: &Account, want: u64) -> u64 {
        let mut state = account.0.lock();
        let granted = if state.limited {
            let most = self.limit_pages + self.allowance.load(Ordering::Relaxed);
            let before = self.limited.fetch_update(Ordering::Acquire, Ordering::Relaxed, |resident| {
                let free = most.saturating_sub(resident);
                (free > 0).then(|| resident + want.min(free))
            });
            before.map_or(0, |before| want.min(most.saturating_sub(before)))
        } else {
            want
        };
        state.pages += granted;
        self.add_resident(granted);
        granted
    }

    /// Claims room even if the limit is exceeded.
    pub fn take(&self, account: &Account, pages: u64) {
        let mut state = account.0.lock();
        if state.limited {
            self.limited.fetch_add(pages, Ordering::Relaxed);
        }
        state.pages += pages;
        self.add_resident(pages);
    }

    fn add_resident(&self, pages: u64) {
        let before = self.resident.fetch_add(pages, Ordering::Relaxed);
        self.peak.fetch_max(before + pages, Ordering::Relaxed);
    }

    /// Returns claimed room.
    pub fn give_back(&self, account: &Account, pages: u64) {
        if pages > 0 {
            self.evictions_ended(account, (pages, 0), None, 0);
        }
    }

    /// Counts ended evictions: an account returns `freed` pages and gains `gained`, pages come to lie in a staging area,
    /// and copies of shared pages are no longer on their way. In one step, since between two steps another thread would
    /// take room that does not exist.
    pub fn evictions_ended(
        &self,
        account: &Account,
        (freed, gained): (u64, u64),
        staged: Option<Staged<'_>>,
        copies: u64,
    ) {
        let mut state = account.0.lock();
        debug_assert!(state.pages >= freed, "{} of {}", freed, state.pages);
        let freed = freed.min(state.pages);
        state.pages = state.pages - freed + gained;
        let more = gained.wrapping_sub(freed);
        let limited = if state.limited { more } else { 0 };
        if staged.is_none() && copies == 0 {
            return self.count(limited, more);
        }
        self.change(limited, more, |on_the_way| {
            if let Some(staged) = staged.filter(|staged| staged.has_agent.load(Ordering::Acquire)) {
                on_the_way.change_staged(staged.area, |was| was + staged.pages);
            }
            on_the_way.remove_copies(copies);
        });
    }

    /// Notes that nothing lies in a staging area any more. Pages stay in an area until it is used again, and most of the
    /// pages in all areas count against the limit.
    pub fn clear_staged(&self, area: &AtomicU32) {
        self.change(0, 0, |on_the_way| on_the_way.change_staged(area, |_| 0));
    }

    /// How many copies of shared pages can be made now: what is left of [`COPIES_BESIDE`], and the free room. At least one,
    /// since the copies of a stopped program exist for long.
    pub fn possible_copies(&self) -> u64 {
        let left = COPIES_BESIDE.saturating_sub(self.on_the_way.lock().copies);
        (left + u64::try_from(self.free()).unwrap_or(0)).max(1)
    }

    /// Counts copies of shared pages that agents are about to make so that these can leave.
    pub fn add_copies(&self, pages: u64) {
        self.change(0, 0, |on_the_way| on_the_way.copies += pages);
    }

    /// Ends the count of copies that are gone or are counted elsewhere.
    pub fn remove_copies(&self, pages: u64) {
        self.change(0, 0, |on_the_way| on_the_way.remove_copies(pages));
    }

    /// Changes the pages on the way, and with them the number of pages that count against the limit and the number of
    /// resident pages. `limited` and `resident` are the changes of the accounts' own pages; they wrap if negative.
    fn change(&self, limited: u64, resident: u64, change: impl FnOnce(&mut OnTheWay)) {
        let mut on_the_way = self.on_the_way.lock();
        let before = on_the_way.counted();
        change(&mut on_the_way);
        let more = on_the_way.counted().wrapping_sub(before);
        self.count(limited.wrapping_add(more), resident.wrapping_add(more));
    }

    /// Adds to both numbers. Freed room is published last: a thread that takes it finds that the pages are gone.
    fn count(&self, limited: u64, resident: u64) {
        let before = self.resident.fetch_add(resident, Ordering::Release);
        self.peak.fetch_max(before.wrapping_add(resident), Ordering::Relaxed);
        self.limited.fetch_add(limited, Ordering::Release);
    }

    /// Whether staging areas hold so many pages that agents should empty them.
    pub fn is_staging_full(&self) -> bool {
        self.on_the_way.lock().staged > (self.limit_pages / 32).max(2 * AREA_PAGES as u64)
    }

    /// Passes claimed pages from one account to another. At no time do they count twice.
    pub fn pass(&self, from: &Account, to: &Account, pages: u64) {
        let (pages, was_limited) = {
            let mut state = from.0.lock();
            debug_assert!(state.pages >= pages, "{} of {}", pages, state.pages);
            let pages = pages.min(state.pages);
            state.pages -= pages;
            (pages, state.limited)
        };
        let mut state = to.0.lock();
        state.pages += pages;
        if state.limited != was_limited {
            self.count_limited(state.limited, pages);
        }
    }

    /// Adds pages to those that count against the limit, or subtracts them.
    fn count_limited(&self, limited: bool, pages: u64) {
        if limited {
            self.limited.fetch_add(pages, Ordering::Relaxed);
        } else {
            self.limited.fetch_sub(pages, Ordering::Relaxed);
        }
    }

    /// Sets whether the pages of an account can be evicted from now on.
    pub fn set_limited(&self, account: &Account, limited: bool) {
        let mut state = account.0.lock();
        if state.limited != limited {
            state.limited = limited;
            self.count_limited(limited, state.pages);
        }
    }

    /// Lets the limit give way by at least `pages`, since nothing can be evicted. Returns the whole allowance.
    pub fn allow(&self, pages: u64) -> u64 {
        // The longer this lasts, the larger the steps.
        let step = (self.allowance.load(Ordering::Relaxed) / 2).max(ALLOWANCE_STEP);
        let more = pages.max(step);
        self.allowance.fetch_add(more, Ordering::Relaxed) + more
    }

    /// Shrinks the allowance after pages were evicted.
    pub fn evicted(&self, pages: u64) {
        if pages > 0 && self.allowance.load(Ordering::Relaxed) > 0 {
            let less = |allowance: u64| Some(allowance.saturating_sub(pages.div_ceil(4)));
            let _ = self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }
}

impl Account {
    /// Pages that are or are about to be resident.
    pub fn pages(&self) -> u64 {
        self.0.lock().pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static HAS_AGENT: AtomicBool = AtomicBool::new(true);

    #[test]
    fn a_space_without_an_agent_does_not_take_the_others_room() {
        let room = Room::new(10);
        let (first, second) = (Account::default(), Account::default());
        room.set_limited(&first, true);
        assert_eq!(room.reserve(&second, 100), 100);
        assert_eq!(room.reserve(&first, 8), 8);
        assert_eq!(room.reserve(&first, 8), 2);
        assert_eq!((room.reserve(&first, 1), room.free(), room.resident()), (0, 0, 110));
        room.set_limited(&second, true);
        assert_eq!((room.free(), room.resident()), (-100, 110));
        room.give_back(&second, 100);
        room.give_back(&first, 4);
        assert_eq!((room.free(), room.peak()), (4, 110));
    }

    #[test]
    fn what_is_passed_on_counts_once() {
        let room = Room::new(10);
        let [first, second, unlimited] = [(); 3].map(|()| Account::default());
        room.set_limited(&first, true);
        room.set_limited(&second, true);
        room.take(&first, 10);
        room.pass(&first, &second, 6);
        assert_eq!((first.pages(), second.pages(), room.free(), room.peak()), (4, 6, 0, 10));
        room.pass(&second, &unlimited, 5);
        assert_eq!((second.pages(), unlimited.pages(), room.free(), room.resident()), (1, 5, 5, 10));
        room.pass(&unlimited, &first, 5);
        assert_eq!((first.pages(), room.free(), room.peak()), (9, 0, 10));
    }

    #[test]
    fn copies_of_shared_pages_count_from_the_beginning() {
        let room = Room::new(100);
        let account = Account::default();
        room.set_limited(&account, true);
        room.take(&account, 90);
        assert_eq!(room.possible_copies(), COPIES_BESIDE + 10);
        room.add_copies(COPIES_BESIDE + 10);
        assert_eq!((room.free(), room.possible_copies(), room.peak()), (0, 1, 100));
        // They have been moved to a staging area.
        let area = AtomicU32::new(0);
        let staged = Staged { area: &area, pages: STAGED_BESIDE as u32 + 10, has_agent: &HAS_AGENT };
        room.evictions_ended(&account, (0, 0), Some(staged), COPIES_BESIDE + 10);
        assert_eq!((room.free(), room.possible_copies(), room.peak()), (0, COPIES_BESIDE, 100));
        room.clear_staged(&area);
        assert_eq!((room.free(), room.resident()), (10, 90));
        // Even with no room at all, some copies can be made.
        room.take(&account, 20);
        assert_eq!((room.free(), room.possible_copies()), (-10, COPIES_BESIDE));
    }

    #[test]
    fn pages_in_an_area_without_an_agent_do_not_count() {
        let room = Room::new(1000);
        let account = Account::default();
        room.set_limited(&account, true);
        room.take(&account, 500);
        let (area, has_agent) = (AtomicU32::new(0), AtomicBool::new(false));
        room.evictions_ended(
            &account,
            (500, 20),
            Some(Staged { area: &area, pages: 500, has_agent: &has_agent }),
            0,
        );
        assert_eq!((room.free(), account.pages(), area.load(Ordering::Relaxed)), (980, 20, 0));
    }

    /// A thread that claims room while evictions end gets none of the room of pages that lie in a staging area.
    #[test]
    fn pages_that_leave_for_a_staging_area_make_no_room_in_between() {
        const PAGES: u64 = 1000;
        let room = Room::new(PAGES);
        let (leaving, taking) = (Account::default(), Account::default());
        room.set_limited(&leaving, true);
        room.set_limited(&taking, true);
        room.take(&leaving, PAGES);
        let (area, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let taken = room.reserve(&taking, PAGES);
                    room.give_back(&taking, taken);
                }
            });
            for _ in 0..10_000 {
                let staged = Staged { area: &area, pages: 100, has_agent: &HAS_AGENT };
                room.evictions_ended(&leaving, (100, 0), Some(staged), 0);
                room.clear_staged(&area);
                while leaving.pages() < PAGES {
                    room.reserve(&leaving, PAGES - leaving.pages());
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!((room.free(), room.peak()), (0, PAGES));
    }

    #[test]
    fn the_limit_gives_way_and_comes_back() {
        let room = Room::new(1);
        let account = Account::default();
        room.set_limited(&account, true);
        assert_eq!((room.reserve(&account, 1), room.reserve(&account, 1)), (1, 0));
        assert_eq!(room.allow(1), ALLOWANCE_STEP);
        assert_eq!(room.reserve(&account, 100), ALLOWANCE_STEP);
        room.evicted(4 * ALLOWANCE_STEP);
        assert_eq!(room.free(), -(ALLOWANCE_STEP as i64));
    }
}
