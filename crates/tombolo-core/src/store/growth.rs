//! Borrowing segments from lenders, and giving them back.

use super::lenders::{LenderId, LenderState, Place};
use super::{Action, NoRoom, SlotId, Store};

/// Why a lender lends nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It has no more than this many pages.
    HasOnly(u32),
    /// The request failed; another one may succeed.
    Failed,
}

/// Requests in a row that may fail before a lender counts as one that has nothing to lend. A bound, not a measurement.
const FAILURES_MAX: u32 = 5;

/// A segment that was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The lender's name for it.
    pub segment: u64,
    /// Its length.
    pub pages: u32,
    /// Where it is mapped here, if it is.
    pub direct: Option<u64>,
}

impl Store {
    /// Takes the places for a new slot.
    pub(super) fn find_places(&mut self) -> Result<[Option<Place>; 2], NoRoom> {
        let Some(first) = self.take_place(0, &[], None).or_else(|| {
            self.grow_all();
            self.lenders.take_silent()
        }) else {
            return match self.no_room(&[]) {
                NoRoom::NotYet => Err(NoRoom::NotYet),
                // A place at a lender that is being drained: its page is moved away later, if there is room then.
                NoRoom::Full => {
                    self.lenders.take_leaving().map(|place| [Some(place), None]).ok_or(NoRoom::Full)
                }
            };
        };
        if self.config.copies < 2 {
            return Ok([Some(first), None]);
        }
        let except = [first.lender()];
        let host = self.lenders.host(first);
        let second = self.take_place(1, &except, host).or_else(|| {
            self.grow_all();
            // A lender on the same machine is taken only if none elsewhere can be had soon.
            let waits = self.is_growing(&except, host);
            if waits { None } else { self.take_place(1, &except, None) }
        });
        if second.is_none() && self.is_growing(&except, None) {
            self.free_place(first);
            return Err(NoRoom::NotYet);
        }
        // A slot with one place is better than none.
        Ok([Some(first), second])
    }

    /// Takes a page, and asks its lender for more memory in time.
    pub(super) fn take_place(
        &mut self,
        copy: usize,
        except: &[LenderId],
        host: Option<u64>,
    ) -> Option<Place> {
        let place = self.lenders.take(copy, except, host)?;
        self.grow(place.lender());
        Some(place)
    }

    /// Whether a lender that is well, is not in `except` and is not on the machine `host` has been asked for memory.
    fn is_growing(&self, except: &[LenderId], host: Option<u64>) -> bool {
        self.lenders.ids().filter(|id| !except.contains(id)).any(|id| {
            self.lenders.get(id).is_some_and(|lender| {
                lender.is_well() && lender.asked.is_some() && host.is_none_or(|host| !lender.is_on(host))
            })
        })
    }

    pub(super) fn no_room(&self, except: &[LenderId]) -> NoRoom {
        let may_be_heard = |id| {
            self.lenders.get(id).is_some_and(|lender| {
                lender.state() == LenderState::Active
                    && lender.is_suspect()
                    && (lender.free_pages() > 0 || lender.ask_after_ns == 0)
            })
        };
        let has_failed = |id| {
            self.lenders
                .get(id)
                .is_some_and(|lender| lender.is_well() && (1..FAILURES_MAX).contains(&lender.failures))
        };
        let others = || self.lenders.ids().filter(|id| !except.contains(id));
        let waits = self.works.is_freeing() || self.is_growing(except, None) || others().any(has_failed);
        // Lenders in `except` count here, too: copies that they have already are safe only if they are heard.
        if waits || self.lenders.ids().any(may_be_heard) { NoRoom::NotYet } else { NoRoom::Full }
    }

    /// Asks every lender with little unused memory for more. If this is called before the first slot is taken, that
    /// slot need not wait.
    pub fn grow_all(&mut self) {
        for id in self.lenders.ids() {
            self.grow(id);
        }
    }

    /// Asks a lender for a further segment if few of its pages are unused.
    pub(super) fn grow(&mut self, id: LenderId) {
        let config = self.config;
        let Some(lender) = self.lenders.get(id) else { return };
        let keep = u64::from(keep_pages(lender.largest_segment(), config.segment_least_pages));
        if lender.free_pages() >= keep
            || lender.asked.is_some()
            || lender.ask_after_ns > 0
            || !lender.is_well()
            || !lender.can_have_more_segments()
        {
            return;
        }
        // A slot has at most one place at this lender. A quarter more is for places that wait for late reads and
        // writes.
        let most = u64::from(config.slots_max) * 5 / 4;
        // Each segment is as large as half of what is borrowed already, so that there are few segments.
        let half = lender.borrowed_pages() / 2;
        let size = (half - half % u64::from(config.segment_least_pages.max(1)))
            .clamp(u64::from(config.segment_least_pages), u64::from(config.segment_most_pages));
        let pages = size.min(most.saturating_sub(lender.borrowed_pages())) as u32;
        self.ask(id, pages);
    }

    fn ask(&mut self, id: LenderId, pages: u32) {
        if let Some(lender) = self.lenders.get_mut(id).filter(|_| pages > 0) {
            lender.asked = Some(pages);
            self.actions.push_back(Action::Borrow { lender: id, pages });
        }
    }

    /// A lender has answered [`Action::Borrow`].
    pub fn lent(&mut self, now_ns: u64, id: LenderId, answer: Result<Lent, Refused>) {
        let ask_again_ns = self.config.ask_again_ns;
        let Some(lender) = self.lenders.get_mut(id) else { return };
        let asked = lender.asked.take();
        match answer {
            Ok(lent) if lender.state() == LenderState::Active && asked.is_some() => {
                lender.failures = 0;
                lender.lend(lent.segment, lent.pages.min(Place::SEGMENT_PAGES_MAX), lent.direct);
                self.next_unused_check_ns.get_or_insert(now_ns.saturating_add(self.config.unused_ns));
                self.copies.look_again();
                self.move_waiting_writes();
            }
            // The answer comes too late: the lender is drained or dead by now.
            Ok(lent) => {
                self.actions.push_back(Action::GiveBack { lender: id, segment: lent.segment });
                self.give_back_drained(id);
            }
            // The lender has less than it was asked for: it is asked for that.
            Err(Refused::HasOnly(pages)) if lender.is_well() && (1..asked.unwrap_or(0)).contains(&pages) => {
                self.ask(id, pages);
            }
            Err(refused) => {
                lender.failures = if refused == Refused::Failed { lender.failures + 1 } else { 0 };
                lender.ask_after_ns = now_ns.saturating_add(ask_again_ns).max(1);
                let check = lender.ask_after_ns;
                self.next_unused_check_ns =
                    Some(self.next_unused_check_ns.map_or(check, |next| next.min(check)));
                self.give_back_drained(id);
            }
        }
    }

    /// Gives segments back that were unused for long, and ends the pause of lenders that may be asked again.
    pub(super) fn give_back_unused(&mut self, now_ns: u64) {
        if self.next_unused_check_ns.is_none_or(|check| now_ns < check) {
            return;
        }
        let config = self.config;
        let (mut again, mut next) = (false, u64::MAX);
        for id in self.lenders.ids() {
            let Some(lender) = self.lenders.get_mut(id) else { continue };
            if lender.ask_after_ns > 0 && lender.ask_after_ns <= now_ns {
                lender.ask_after_ns = 0;
                again = true;
            }
            if lender.ask_after_ns > 0 {
                next = next.min(lender.ask_after_ns);
            }
            if lender.state() != LenderState::Active {
                continue;
            }
            let keep = u64::from(keep_pages(lender.largest_segment(), config.segment_least_pages));
            let names = lender.unused_segments(now_ns, config.unused_ns, 2 * keep);
            if lender.borrowed_pages() > 0 {
                next = next.min(now_ns.saturating_add(config.unused_ns));
            }
            for segment in names {
                self.actions.push_back(Action::GiveBack { lender: id, segment });
            }
        }
        self.next_unused_check_ns = (next < u64::MAX).then_some(next);
        if again {
            if self.slots.used() > 0 {
                self.grow_all();
            }
            self.copies.look_again();
        }
    }

    /// Gives back the segments of a drained or dead lender as soon as no slot needs a page there.
    pub(super) fn give_back_drained(&mut self, id: LenderId) {
        if !self.lenders.is_newly_drained(id, || self.works.never_free(id)) {
            return;
        }
        for place in self.works.forget_claims(id) {
            self.lenders.free(place);
        }
        let Some(lender) = self.lenders.get_mut(id) else { return };
        for segment in lender.all_segments() {
            self.actions.push_back(Action::GiveBack { lender: id, segment });
        }
        self.lenders.set_gone(id);
        self.actions.push_back(Action::Drained { lender: id });
    }

    /// Takes a page for a copy of a slot, if possible on another machine than the copy that it has. If there is none,
    /// asks the lenders for more memory.
    pub(super) fn place_for_copy(&mut self, slot: SlotId, except: &[LenderId]) -> Option<Place> {
        let hosts: Vec<u64> = self
            .places(slot)
            .into_iter()
            .flatten()
            .filter(|&place| !self.lenders.is_to_leave(place))
            .filter_map(|place| self.lenders.host(place))
            .collect();
        let elsewhere = hosts.first().and_then(|&host| self.take_place(1, except, Some(host)));
        let found = elsewhere.or_else(|| self.take_place(1, except, None));
        if found.is_none() {
            self.grow_all();
        }
        found
    }
}

/// Number of pages of a lender that are kept unused: half of its largest segment.
fn keep_pages(largest_segment: u32, least: u32) -> u32 {
    (largest_segment.max(least) / 2).max(1)
}
