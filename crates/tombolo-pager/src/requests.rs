//! Serves the program's requests, which it makes by touching a page of the control area.
//!
//! A request is a page fault, and its answer is the contents of the page.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_core::pager::{PAGE_BYTES, Page, PageName, State};
use tombolo_host::process::{self, Mapped};
use tombolo_host::uffd::UffdError;

use crate::pager::Pager;
use crate::serve::{NotBrought, Step};
use crate::space::{Space, Table};
use crate::stats::Counters;
use tombolo_interpose::fitness::Reason;
use tombolo_pager_protocol::{
    ATTACH_PAGE, Answer, CONTROL_PAGES, FORKING, GUARD, GUARDED, IS_PARTLY_UNKNOWN, LOCALISE,
    LOCALISE_ANONYMOUS, NO_REQUEST, REGISTER, REQUEST_PAGE, REQUESTS, Request, UNSERVED,
};

/// Bounds of one request to make memory local, since other threads wait meanwhile: pages with contents that it makes local,
/// and pages that it looks at (64 MiB).
const LOCALISED_AT_ONCE: usize = 64;
const LOOKED_AT_ONCE: u64 = 1 << 14;

/// Which part of a range is to become ordinary memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    All,
    /// The part before the first mapping of a file or of shared memory.
    Anonymous,
}

/// A page-aligned buffer of one page.
#[repr(C, align(4096))]
struct PageBuffer([u8; PAGE_BYTES as usize]);

/// Whether a part of a range is not known to be far memory: it is ordinary memory, or became far without a report.
fn is_partly_unknown(table: &Table, start: u64, length: u64) -> bool {
    let (first, end) = (start / PAGE_BYTES, (start + length).div_ceil(PAGE_BYTES));
    let far: u64 = table.states.ranges_within(first, end).into_iter().map(|(first, end)| end - first).sum();
    far < end - first
}

/// Whether a range of a program's memory can be read while the table is locked. It cannot where pages are served: this
/// thread would have to serve its own fault.
fn may_be_read(space: &Space, table: &Table, at: u64, length: u64) -> bool {
    let (first, end) = (at / PAGE_BYTES, at.saturating_add(length).div_ceil(PAGE_BYTES));
    end - first <= 2
        && table.states.ranges_within(first, end).is_empty()
        && (first..end).all(|page| space.control_page(page).is_none())
}

/// Looks at a program's memory. `None` if that is not possible.
fn look<T>(space: &Space, look: impl FnMut(u32) -> io::Result<T>) -> Option<T> {
    let program = space.named_program()?;
    space.by_program(&program, look).ok()??.ok()
}

/// The parts of a range before and behind the control area, which itself never becomes ordinary memory.
fn around_control(space: &Space, start: u64, end: u64) -> [(u64, u64); 2] {
    let (control, behind) = (space.control_address(0), space.control_address(CONTROL_PAGES));
    if end <= control || behind <= start {
        return [(start, end), (end, end)];
    }
    [(start, control.max(start)), (behind.min(end), end)]
}

impl Pager {
    /// Whether a forked child has seccomp filters that the first program of its family did not have. In another pid
    /// namespace, the child's number may be another process's here, or none. Then the filters of its parent count, which
    /// the child has as well.
    fn has_filters_of_its_own(space: &Space, thread: u32) -> bool {
        if space.agent_refused.load(Ordering::Relaxed) {
            return true;
        }
        // The child's parent is either the process that forked it or, when that has ended, this process.
        let parents = [space.parent.pid, Some(std::process::id())];
        let child = process::seccomp_filters(thread).filter(|found| parents.contains(&Some(found.parent)));
        let found = child.or_else(|| process::seccomp_filters(space.parent.pid?));
        let has_more = found.is_some_and(|found| found.count > space.parent.filters);
        space.agent_refused.store(has_more, Ordering::Relaxed);
        has_more
    }

    /// Serves a fault on a page of the control area, by a thread of the program or by the evictor, which reads staging
    /// areas.
    pub(crate) fn serve_control(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        index: usize,
        thread: u32,
        is_evictor: bool,
    ) -> Step {
        let answer = match index {
            // Creating an agent takes system calls that a program may have forbidden itself by seccomp filters, which could
            // end it.
            ATTACH_PAGE if Self::has_filters_of_its_own(space, thread) => Answer::default(),
            ATTACH_PAGE => Answer { served: 1, value: space.token, number: 0 },
            _ if (REQUEST_PAGE..REQUEST_PAGE + REQUESTS).contains(&index) => {
                // The kernel reports faults before other events. A thread may just have unmapped or moved the range that
                // this request names. That event has to be read first.
                let page = space.control_address(ATTACH_PAGE);
                if let Err(UffdError::Again(_)) = space.uffd.write_protect(page, PAGE_BYTES as usize, false) {
                    return Step::Again;
                }
                self.carry_out(space, table, index - REQUEST_PAGE)
            }
            // The evictor reads a page that was moved here, and it is absent: an error is better than wrong contents.
            _ if is_evictor => {
                let page = space.control_address(index);
                if let Err(UffdError::Again(_)) = space.uffd.poison(page, PAGE_BYTES as usize) {
                    return Step::Again;
                }
                space.wake_later(table, page / PAGE_BYTES, 1);
                return Step::Done;
            }
            // The staging area: an absent page reads as zero.
            _ => Answer::default(),
        };
        let mut page = PageBuffer([0; PAGE_BYTES as usize]);
        page.0[..8].copy_from_slice(&answer.served.to_ne_bytes());
        page.0[8..16].copy_from_slice(&answer.value.to_ne_bytes());
        page.0[16..24].copy_from_slice(&answer.number.to_ne_bytes());
        let (address, source) = (space.control_address(index), page.0.as_ptr() as u64);
        match space.map(table, address / PAGE_BYTES, source, 1, false) {
            Err(UffdError::Again(_)) => Step::Again,
            Err(_) => {
                // The page is mapped already, or its mapping is gone: the waiting threads try again.
                space.wake_later(table, address / PAGE_BYTES, 1);
                Step::Done
            }
            Ok(_) => Step::Done,
        }
    }

    /// Carries out the request at a place, unless it was carried out before: a fault that a signal interrupts is reported
    /// again.
    fn carry_out(&self, space: &Arc<Space>, table: &mut Table, place: usize) -> Answer {
        let mut bytes = [0u8; size_of::<Request>()];
        let at = space.requests + (place * size_of::<Request>()) as u64;
        if !may_be_read(space, table, at, bytes.len() as u64) || !space.read(at, &mut bytes) {
            return Answer::default();
        }
        let field =
            |index: usize| u64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap_or_default());
        let (number, operation, start, length) = (field(0), field(1), field(2), field(3));
        if number == 0 {
            // Either this fault belongs to an earlier request and the place is being written again, or the place was never
            // used and all pages are touched, as by mlockall(2).
            return Answer { number: NO_REQUEST, ..Answer::default() };
        }
        if let Some(&(known, answer)) = table.answered.get(place)
            && known == number
        {
            return answer;
        }
        let end = start.checked_add(length).filter(|_| start.is_multiple_of(PAGE_BYTES) && length > 0);
        let answer = match (operation, end) {
            (REGISTER, Some(_)) => self.register(space, table, start, length),
            (LOCALISE, Some(end)) => self.localise(space, table, start, end, What::All),
            (LOCALISE_ANONYMOUS, Some(end)) => self.localise(space, table, start, end, What::Anonymous),
            (IS_PARTLY_UNKNOWN, Some(_)) => {
                Answer { served: 1, value: is_partly_unknown(table, start, length).into(), number: 0 }
            }
            (GUARD, Some(end)) => {
                table.states.guard(start / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
                Answer { served: 1, ..Answer::default() }
            }
            (GUARDED, Some(end)) => {
                self.discard_guarded(space, table, start / PAGE_BYTES, end.div_ceil(PAGE_BYTES))
            }
            (FORKING, _) => {
                self.protect_for_fork(space, table);
                Answer { served: 1, ..Answer::default() }
            }
            (UNSERVED, _) => self.note_unserved(space, table, start, length),
            _ => Answer::default(),
        };
        let answer = Answer { number, ..answer };
        if let Some(known) = table.answered.get_mut(place) {
            *known = (number, answer);
        }
        answer
    }

    /// Notes that the program is about to execute another one that cannot be served, for this reason. `path`: address of
    /// that program's path.
    fn note_unserved(&self, space: &Space, table: &Table, path: u64, reason: u64) -> Answer {
        const PART_BYTES: usize = 256;
        const PARTS_MAX: u64 = 4;
        let Some(reason) = Reason::from_number(reason) else { return Answer::default() };
        let mut text = Vec::new();
        for part in 0..PARTS_MAX {
            let mut bytes = [0u8; PART_BYTES];
            let at = path.checked_add(part * PART_BYTES as u64);
            if !at.is_some_and(|at| {
                at != 0 && may_be_read(space, table, at, PART_BYTES as u64) && space.read(at, &mut bytes)
            }) {
                break;
            }
            let end = bytes.iter().position(|byte| *byte == 0);
            text.extend_from_slice(&bytes[..end.unwrap_or(PART_BYTES)]);
            if end.is_some() {
                break;
            }
        }
        self.executes_unserved(reason, &text);
        Answer { served: 1, ..Answer::default() }
    }

    fn register(&self, space: &Space, table: &mut Table, start: u64, length: u64) -> Answer {
        let (first, end) = (start / PAGE_BYTES, (start + length).div_ceil(PAGE_BYTES));
        let registered = if end > PageName::PAGES_MAX {
            Err("it is above 128 TiB".to_owned())
        } else {
            space.uffd.register(start, length).map_err(|error| error.to_string())
        };
        if let Err(error) = registered {
            Counters::add(&self.stats.counters.unregistered_pages, end - first);
            self.say_once(
                "register",
                &format!("{} KiB could not be made far ({error}): they stay in local memory", length / 1024),
            );
            return Answer::default();
        }
        let discarded = table.states.register(first, end, &mut self.far.slots());
        self.unreserve(space, discarded.resident);
        self.leave_frames(table);
        Answer { served: 1, ..Answer::default() }
    }

    /// Makes every page of a range resident, beyond the limit if need be. Returns `false` if some are still on their way.
    fn bring_all(&self, space: &Arc<Space>, table: &mut Table, first: Page, end: Page) -> bool {
        let mut all = true;
        let since = Instant::now();
        for (page, entry) in table.states.entries(first, end) {
            if entry.state() == State::Lost {
                all &= self.keep_lost(space, page);
                continue;
            }
            let (State::Remote, Some(slot)) = (entry.state(), entry.slot()) else {
                all &= matches!(entry.state(), State::Untouched | State::Resident);
                continue;
            };
            if table.states.is_name(page) {
                all = false;
                continue;
            }
            if self.reserve(space, 1) == 0 {
                self.room.take(&space.account, 1);
            }
            match self.bring(space, table, page, slot, false, Some(since)) {
                Ok(()) => {
                    all &= table.states.get(page).state() == State::Resident;
                }
                Err(error) => {
                    self.unreserve(space, 1);
                    match error {
                        NotBrought::Lost => {
                            all &= self.poison_now(space, table, page) == Step::Done;
                            all &=
                                table.states.get(page).state() != State::Lost || self.keep_lost(space, page);
                        }
                        // The page is present, or not mapped: it has no far contents.
                        NotBrought::Refused(UffdError::Exists(_) | UffdError::NotMapped) => {
                            table.states.discard(page, page + 1, &mut self.far.slots());
                        }
                        NotBrought::Refused(_) => all = false,
                    }
                }
            }
        }
        all
    }

    /// Makes a range ordinary memory, or only its first part if many of its pages have contents: all of those have to be
    /// resident at the same time first. The answer's value says how far it got: see [`LOCALISE`] and
    /// [`LOCALISE_ANONYMOUS`].
    fn localise(
        &self,
        space: &Arc<Space>,
        table: &mut Table,
        start: u64,
        range_end: u64,
        what: What,
    ) -> Answer {
        // Memory above this address cannot be far.
        let range_end = range_end.min(Space::address(PageName::PAGES_MAX));
        let (first, mut whole) = (start / PAGE_BYTES, range_end.div_ceil(PAGE_BYTES));
        if first >= whole {
            return Answer { served: 1, ..Answer::default() };
        }
        // Before the first page that is known to be far, no page has contents. Parts of it may be far nevertheless: where a
        // mapping grew, that was not reported.
        let far = table.states.first_far(first, whole);
        let looked_at = far.map_or(whole, |far| whole.min(far + LOOKED_AT_ONCE));
        let entries = table.states.entries(first, looked_at).into_iter();
        let mut used: Vec<Page> = entries.map(|(page, _)| page).collect();
        used.sort_unstable();
        let mut end = used.get(LOCALISED_AT_ONCE).copied().unwrap_or(looked_at);
        if what == What::Anonymous {
            let range = start..Space::address(end);
            let is_other = |one: Mapped| !one.is_private_anonymous;
            let other = look(space, |thread| process::find_mapping(thread, range.clone(), is_other));
            if let Some(other) = other.flatten() {
                whole = other.start / PAGE_BYTES;
                end = whole;
            }
            if first == end {
                return Answer { served: 1, ..Answer::default() };
            }
        }
        if !self.bring_all(space, table, first, end) {
            return Answer { served: 1, value: 1, ..Answer::default() };
        }
        if !self.keep_joinable(space, table, first, first) || !self.keep_joinable(space, table, end - 1, end)
        {
            return Answer { served: 1, value: 1, ..Answer::default() };
        }
        for (start, end) in around_control(space, start, Space::address(end).min(range_end)) {
            if let Err(error) = self.unregister(space, table, start, end) {
                self.say_once("localise", &format!("far memory could not be made local ({error})"));
                return Answer::default();
            }
        }
        let value = if end == whole { 0 } else { 1 + (end - first) };
        Answer { served: 1, value, ..Answer::default() }
    }

    /// Gives a mapping an `anon_vma` before it may be split at `edge`; `page` lies next to it in the range that becomes
    /// ordinary. The kernel joins two mappings, for instance when a range is to move as one, only if they have the same
    /// `anon_vma`. If both parts are touched for the first time after the split, each gets an `anon_vma` of its own. So a
    /// page is mapped now. This is not done where no mapping is split: the `anon_vma` would keep the mapping apart from its
    /// neighbours. Returns `false` if this is not possible now.
    fn keep_joinable(&self, space: &Space, table: &mut Table, page: Page, edge: Page) -> bool {
        if space.control_page(page).is_some() {
            return true;
        }
        // If that cannot be looked up, as before Linux 6.11, assume a split.
        let is_split = look(space, |thread| process::is_within_mapping(thread, Space::address(edge)));
        if !is_split.unwrap_or(true) {
            return true;
        }
        // The kernel refuses if the page has contents, a guard or a poison mark, and if the range is not far. All of these
        // are fine.
        let mapped = space.map_zero(table, page);
        !mapped.is_err_and(|error| matches!(error, UffdError::Again(_)) || error.is_out_of_memory())
    }

    /// Makes a lost page raise SIGBUS also when its range is no longer served. A page that is present stays: it is poisoned
    /// already, or was left by a fork. Returns `false` if this is not possible now.
    fn keep_lost(&self, space: &Space, page: Page) -> bool {
        let poisoned = space.at_rest(space.uffd.poison(Space::address(page), PAGE_BYTES as usize));
        matches!(poisoned, Ok(()) | Err(UffdError::Exists(_) | UffdError::NotMapped | UffdError::Gone))
    }

    /// Stops the kernel from reporting faults and changes of a range, and forgets that it is far. The kernel refuses a
    /// range as a whole where nothing is mapped, and where one mapping is of a kind that can never be far. So the range is
    /// then taken mapping by mapping. The kernel may also unregister only a part, where a program has as many mappings as
    /// it may. Also in case of an error, the part that is no longer reported is no longer known as far.
    fn unregister(&self, space: &Space, table: &mut Table, start: u64, end: u64) -> io::Result<()> {
        if start == end || space.uffd.unregister(start, end - start).is_ok() {
            self.forget(space, table, start, end);
            return Ok(());
        }
        let mapped = look(space, |thread| process::mappings_within(thread, start..end));
        let mapped = mapped.map(|mapped| mapped.into_iter().map(|one| (one.start, one.end)).collect());
        // If the mappings cannot be read, take the ranges that are known to be far, page by page, since a range may be
        // several mappings.
        let parts: Vec<_> = mapped.unwrap_or_else(|| {
            let far = table.states.ranges_within(start / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
            let pages = far.into_iter().flat_map(|(first, end)| first..end);
            pages.map(|page| (Space::address(page), Space::address(page + 1))).collect()
        });
        for (start, end) in parts {
            match space.uffd.unregister(start, end - start) {
                // A mapping that can never be far is refused.
                Err(error) if error.raw_os_error() != Some(libc::EINVAL) => return Err(error),
                _ => self.forget(space, table, start, end),
            }
        }
        self.forget(space, table, start, end);
        Ok(())
    }

    /// Forgets a range that is ordinary memory now.
    fn forget(&self, space: &Space, table: &mut Table, start: u64, end: u64) {
        let (first, end) = (start / PAGE_BYTES, end.div_ceil(PAGE_BYTES));
        let discarded = table.states.unregister(first, end, &mut self.far.slots());
        Counters::add(&self.stats.counters.localised_pages, discarded.resident);
        self.unreserve(space, discarded.resident);
        self.leave_frames(table);
    }

    /// Called when the program has installed guards: gives up the contents of the range, and does not map pages that are on
    /// their way.
    fn discard_guarded(&self, space: &Space, table: &mut Table, first: Page, end: Page) -> Answer {
        let discarded = table.states.discard(first, end, &mut self.far.slots());
        Counters::add(&self.stats.counters.discarded_pages, discarded.pages);
        self.unreserve(space, discarded.resident);
        self.leave_frames(table);
        Answer { served: 1, ..Answer::default() }
    }
}
