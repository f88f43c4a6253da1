//! Reads of front ends. Each goes to the nearest copy, and also to the other copy if the lender of the nearest is late
//! or silent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::buffers::Buffers;
use super::copies::NO_BUFFER_PAUSE_NS;
use super::lenders::{LenderId, Place};
use super::work::Work;
use super::{Action, Ended, Gone, Io, SlotId, Store};

/// How often a read is repeated that fails although a lender is alive, and by how much the pause before each repetition
/// grows: 5 s in all. Bounds, not measurements.
const FAILURES_MAX: u32 = 32;
const FAILED_PAUSE_NS: u64 = 10_000_000;

/// Most pages that one message reads. They are 16 KiB: the largest block of the engine, and the largest transfer that
/// is sent before evictions.
pub const JOINED_MOST: u32 = 4;

/// Names a read of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket {
    /// Chosen by the front end.
    pub name: u64,
    /// Since when a thread has been waiting for the page. `None`: it is read ahead of need, after those that threads
    /// wait for.
    pub waited_since_ns: Option<u64>,
}

/// A read under way.
#[derive(Clone, Debug)]
struct Read {
    ticket: Ticket,
    slot: SlotId,
    /// Places that the read was sent to.
    asked: Vec<Place>,
    /// Number of those that have not answered.
    open: u32,
    /// When the read is sent to the other copy, too; after a failure, when it is repeated.
    late_at_ns: u64,
    /// How often all attempts have failed although a lender is alive.
    failures: u32,
}

/// All reads of front ends.
#[derive(Debug)]
pub(super) struct Reads {
    next: u64,
    open: BTreeMap<u64, Read>,
    /// When a read is sent to another copy or repeated, and which read that is.
    late: BTreeSet<(u64, u64)>,
    buffers: Buffers,
    /// Number of buffers that are kept free for reads of the other copy.
    reserve: usize,
    /// Reads that wait for a buffer: first those that a thread waits for, then those ahead of need.
    waiting: [VecDeque<(Ticket, SlotId)>; 2],
}

impl Reads {
    pub(super) fn new(buffers: u32, has_two: bool) -> Self {
        Self {
            next: 0,
            open: BTreeMap::new(),
            late: BTreeSet::new(),
            buffers: Buffers::new(buffers),
            reserve: if has_two { buffers as usize / 4 } else { 0 },
            waiting: Default::default(),
        }
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.late.first().map(|(at_ns, _)| *at_ns)
    }

    /// Whether a read may begin.
    fn may_begin(&self) -> bool {
        self.buffers.free() > self.reserve
    }

    /// Takes a buffer for a background copy, if more than half of all buffers are free: most are left to front ends.
    pub(super) fn spare_buffer(&mut self) -> Option<u32> {
        if self.buffers.free() > self.buffers.count() / 2 { self.buffers.take() } else { None }
    }
}

impl Store {
    /// Reads a slot into one of the store's buffers. [`Action::Arrived`] reports the end. Until then, the caller must
    /// be one of the slot's users.
    pub fn read(&mut self, now_ns: u64, slot: SlotId, ticket: Ticket) {
        if !self.reads.may_begin() {
            self.reads.waiting[usize::from(ticket.waited_since_ns.is_none())].push_back((ticket, slot));
            return;
        }
        self.reads.next += 1;
        let read = self.reads.next;
        let known = Read { ticket, slot, asked: Vec::new(), open: 0, late_at_ns: u64::MAX, failures: 0 };
        self.reads.open.insert(read, known);
        if !self.read_next(now_ns, read) {
            self.read_failed(read);
        }
    }

    /// The front end does not need the contents of a buffer any more.
    pub fn buffer_done(&mut self, now_ns: u64, buffer: u32) {
        self.reads.buffers.give_back(buffer);
        self.begin_waiting(now_ns);
    }

    fn begin_waiting(&mut self, now_ns: u64) {
        // A read that fails at once takes no buffer, and the next one has its turn.
        while self.reads.may_begin()
            && let Some((ticket, slot)) = self.reads.waiting.iter_mut().find_map(VecDeque::pop_front)
        {
            self.read(now_ns, slot, ticket);
        }
    }

    /// Number of reads that have not ended, those that wait for a buffer included.
    pub fn reads_open(&self) -> usize {
        self.reads.open.len() + self.reads.waiting.iter().map(VecDeque::len).sum::<usize>()
    }

    /// Sends the read to the best copy that it was not sent to yet. False: there is no such copy, or no buffer for it.
    fn read_next(&mut self, now_ns: u64, read: u64) -> bool {
        let Some(known) = self.reads.open.get(&read) else { return false };
        let slot = known.slot;
        let places = self.places(slot);
        let is_stored = self.slots.get(slot).is_some_and(|slot| slot.phase == super::Phase::Stored);
        let untried = places.into_iter().flatten().filter(|place| is_stored && !known.asked.contains(place));
        let best = untried
            .filter_map(|place| Some((self.lenders.cost_of_reading(place)?, place)))
            .min_by_key(|(cost, _)| *cost);
        let Some((_, place)) = best else { return false };
        let Some(buffer) = self.reads.buffers.take() else { return false };
        let Some(from) = self.lenders.location(place) else {
            self.reads.buffers.give_back(buffer);
            return false;
        };
        let round_trip_ns = self.lenders.read_begins(place.lender());
        let late_ns = self.config.late_read_ns.max(4 * round_trip_ns);
        let io = self.works.begin(Work::Read { read, slot, place, buffer });
        self.actions.push_back(Action::Read { io, from, buffer, pages: 1 });
        if let Some(known) = self.reads.open.get_mut(&read) {
            self.reads.late.remove(&(known.late_at_ns, read));
            known.asked.push(place);
            known.open += 1;
            known.late_at_ns = now_ns.saturating_add(late_ns);
            if places.into_iter().flatten().any(|place| !known.asked.contains(&place)) {
                self.reads.late.insert((known.late_at_ns, read));
            }
        }
        true
    }

    /// Whether this is the first attempt to read a page for which no thread waits.
    fn is_ahead(&self, io: Io) -> bool {
        let read = match self.works.get(io) {
            Some(Work::Read { read, .. }) => *read,
            _ => return false,
        };
        let is_first = |known: &Read| known.asked.len() == 1 && known.failures == 0;
        let known = self.reads.open.get(&read);
        known.is_some_and(|known| known.ticket.waited_since_ns.is_none() && is_first(known))
    }

    /// Joins neighbouring reads ahead of need into one message, which costs about as much as a message for one page.
    /// The pages arrive together, so a thread that needs the first of them also waits for the others. Therefore a page
    /// that a thread already waits for is read alone. So is a page whose first read is late or has failed. A message
    /// ends where the engine would begin another block.
    pub(super) fn joined(&mut self, action: Action) -> Action {
        let Action::Read { io, from, buffer, mut pages } = action else { return action };
        if from.direct.is_some() || !self.is_ahead(io) {
            return action;
        }
        while !(buffer + pages).is_multiple_of(JOINED_MOST) {
            let next = Action::Read {
                io: io.offset(pages),
                from: from.offset(pages),
                buffer: buffer + pages,
                pages: 1,
            };
            if self.actions.front() != Some(&next) || !self.is_ahead(io.offset(pages)) {
                break;
            }
            self.actions.pop_front();
            pages += 1;
        }
        Action::Read { io, from, buffer, pages }
    }

    fn read_failed(&mut self, read: u64) {
        if let Some(known) = self.reads.open.remove(&read) {
            self.reads.late.remove(&(known.late_at_ns, read));
            self.actions.push_back(Action::Arrived { ticket: known.ticket, buffer: Err(Gone) });
        }
    }

    /// A read of one place has ended.
    pub(super) fn read_ended(
        &mut self,
        now_ns: u64,
        (read, slot, place, buffer): (u64, SlotId, Place, u32),
        ended: Ended,
    ) {
        self.lenders.read_ends(place.lender());
        // If the other copy has answered before, the number may belong to another slot by now.
        let is_awaited = self.reads.open.contains_key(&read);
        let is_good = match ended {
            Ended::Done { checksum } if is_awaited => self.is_as_written(slot, checksum),
            _ => false,
        };
        self.unclaim(place);
        if let Some(known) = self.reads.open.get_mut(&read) {
            known.open -= 1;
            if is_good {
                self.counters.reads_by_other += u64::from(known.asked.first() != Some(&place));
                let (ticket, late) = (known.ticket, (known.late_at_ns, read));
                self.reads.open.remove(&read);
                self.reads.late.remove(&late);
                self.actions.push_back(Action::Arrived { ticket, buffer: Ok(buffer) });
                return;
            }
        }
        // The next attempt of this read takes a buffer before the reads that wait for one.
        self.reads.buffers.give_back(buffer);
        if is_awaited && !is_good && matches!(ended, Ended::Done { .. }) {
            self.give_up_place(slot, place);
        }
        let is_last = self.reads.open.get(&read).is_some_and(|known| known.open == 0);
        if is_last && !self.read_next(now_ns, read) {
            let is_wrong = !is_good && matches!(ended, Ended::Done { .. }) && !self.has_other(slot, place);
            if is_wrong || self.is_lost(slot) || !self.read_again(now_ns, read) {
                self.read_failed(read);
            }
        }
        self.begin_waiting(now_ns);
    }

    /// Repeats a read soon: all attempts have failed although a lender is alive. False: it was repeated often enough.
    fn read_again(&mut self, now_ns: u64, read: u64) -> bool {
        let Some(known) = self.reads.open.get_mut(&read).filter(|known| known.failures < FAILURES_MAX) else {
            return false;
        };
        self.reads.late.remove(&(known.late_at_ns, read));
        known.failures += 1;
        known.asked.clear();
        known.late_at_ns = now_ns.saturating_add(u64::from(known.failures) * FAILED_PAUSE_NS);
        self.reads.late.insert((known.late_at_ns, read));
        true
    }

    /// Whether a page has the checksum of what was written to its slot.
    pub(super) fn is_as_written(&mut self, slot: SlotId, checksum: u32) -> bool {
        let written = self.slots.get(slot).and_then(|slot| slot.checksum);
        let is_good = written.is_none_or(|written| written == checksum);
        self.counters.corrupt_pages += u64::from(!is_good);
        is_good
    }

    /// Gives up a copy of a slot that is corrupt or cannot be read, if the slot has another readable one. Does nothing
    /// while the slot is being copied.
    pub(super) fn give_up_place(&mut self, slot: SlotId, place: Place) {
        let Some(known) = self.slots.get(slot) else { return };
        let index = known.places.iter().position(|known| *known == Some(place));
        let Some(index) = index.filter(|_| !known.is_copying) else { return };
        if self.has_other(slot, place) {
            if let Some(known) = self.slots.get_mut(slot) {
                known.places[index] = None;
            }
            self.retire(slot, place);
            self.look_at(slot);
        }
    }

    /// Whether a slot's data may be read at another place, too.
    pub(super) fn has_other(&self, slot: SlotId, place: Place) -> bool {
        let mut others = self.places(slot).into_iter().flatten().filter(|other| *other != place);
        others.any(|other| self.lenders.is_readable(other))
    }

    /// Sends reads that are late to the other copy, too.
    pub(super) fn double_late_reads(&mut self, now_ns: u64) {
        while let Some(&(at_ns, read)) = self.reads.late.first() {
            if at_ns > now_ns {
                return;
            }
            self.reads.late.pop_first();
            self.double(now_ns, read);
        }
    }

    /// Sends the reads that a silent or dead lender has not answered to the other copy, too.
    pub(super) fn double_reads_of(&mut self, now_ns: u64, lender: LenderId) {
        for work in self.works.at(lender) {
            if let Work::Read { read, .. } = work {
                self.double(now_ns, read);
            }
        }
    }

    fn double(&mut self, now_ns: u64, read: u64) {
        let is_first = self.reads.open.get(&read).is_some_and(|known| known.open == 0);
        if self.reads.open.contains_key(&read) && self.read_next(now_ns, read) {
            self.counters.reads_doubled += u64::from(!is_first);
            return;
        }
        let Some(known) = self.reads.open.get(&read) else { return };
        let is_other = |place: &Place| !known.asked.contains(place) && self.lenders.is_readable(*place);
        let has_other = self.places(known.slot).iter().flatten().any(is_other);
        if let Some(known) = self.reads.open.get_mut(&read).filter(|_| has_other) {
            // No buffer is free: try again soon.
            self.reads.late.remove(&(known.late_at_ns, read));
            known.late_at_ns = now_ns.saturating_add(NO_BUFFER_PAUSE_NS);
            self.reads.late.insert((known.late_at_ns, read));
        } else if is_first {
            // The lender from which the read was to be repeated is dead by now.
            self.read_failed(read);
        }
    }
}
