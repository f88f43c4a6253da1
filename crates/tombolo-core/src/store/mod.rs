//! The far store: numbered slots of far memory, each with one or two copies at lenders.
//!
//! **What.** A front end (the pager now; disks and files later) takes a *slot* for a page of data, writes it once,
//! reads it, and releases it. Each slot has one or two *places*: pages of segments that lenders have lent. The store
//! decides where places are, borrows more segments as slots are taken, gives unused ones back, reads from another
//! copy when a lender is late, replaces copies that are lost, and moves them away from a lender that is drained.
//!
//! **Why.** Slots are *written once*: changed data goes to a fresh slot. So nothing is read while it is written, no
//! copy is older than another, and a lender that was silent for a while needs no resynchronisation. The place of a
//! released slot is used again only when every read and write there has ended, because a late write would otherwise
//! overwrite what another slot has stored there; a lender that is dead is never written to again.
//!
//! **How.** The caller owns the links, the memory and the clock. It carries out each [`Action`] of [`Store::poll`],
//! reports its end, and comes back at [`Store::next_deadline`]. Memory that the front end can reach directly (a
//! window on a lender of this machine) is used without any action: [`Store::direct`], [`Store::commit`].
//!
//! ```text
//!            take              write, commit              release
//!   (free) -------> Taken ---> Saving ------> Stored ----------------> (free, once its reads and copies have ended)
//!                     |          | no lender can take it   |
//!                     |          +--> Err: Taken again     +-- a copy is lost, or its lender is drained:
//!                     +-- release --> (free)                   read it, write a new place, attach that
//! ```

mod buffers;
mod copies;
mod growth;
mod lenders;
mod reads;
mod roster;
mod slots;
mod work;
mod writes;

use std::collections::{BTreeMap, VecDeque};

use crate::lookup::Lookup;

pub use growth::{Lent, Refused};
pub use lenders::{LenderId, LenderState, Newcomer, Place, Traffic};
pub use reads::{JOINED_MOST, Ticket};
pub use roster::{MemberId, Roster, RosterAction, Who};
pub use work::Io;
pub use writes::Piece;

use copies::Copies;
use lenders::Lenders;
use reads::Reads;
use slots::{Phase, SlotTable};
use work::Works;
use writes::Saving;

/// Bounds and times of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Places of each slot: 1 or 2.
    pub copies: u8,
    /// Most slots in use at once.
    pub slots_max: u32,
    /// Pages of the first segment that is borrowed from a lender.
    pub segment_least_pages: u32,
    /// Most pages of one segment, at most [`Place::SEGMENT_PAGES_MAX`].
    pub segment_most_pages: u32,
    /// Pages that follow each other at one lender before the next lender is used.
    pub stripe_pages: u32,
    /// Number of buffers, and so the most reads through them at once, those of background copies included.
    pub buffers: u32,
    /// How long a read may take before the other copy is read, too, unless four round trips are longer.
    pub late_read_ns: u64,
    /// Most background copies at once.
    pub copies_in_flight: u32,
    /// Most background copies a second.
    pub copies_per_s: u32,
    /// How long a lender that has refused to lend is not asked again.
    pub ask_again_ns: u64,
    /// How long a segment must be unused before it is given back.
    pub unused_ns: u64,
    /// Whether a front end itself writes the page of a slot with one place, if that place is mapped here. If false, all
    /// writes are [`Action::Write`].
    pub has_direct_writes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            copies: 1,
            slots_max: u32::MAX,
            segment_least_pages: 1024,
            segment_most_pages: 65_536,
            stripe_pages: 64,
            buffers: 512,
            late_read_ns: 50_000_000,
            copies_in_flight: 16,
            copies_per_s: 25_000,
            ask_again_ns: 1_000_000_000,
            unused_ns: 10_000_000_000,
            has_direct_writes: true,
        }
    }
}

/// Number of a slot. A front end may keep it in 32 bits.
pub type SlotId = u32;

/// Why no slot can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// A lender has been asked for more memory, or a silent one may be heard again: try later.
    #[error("far memory is being borrowed")]
    NotYet,
    /// All that may be borrowed is in use.
    #[error("far memory is full")]
    Full,
}

/// A lender cannot be drained: no other one could take what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no other lender is there for what it has: add one first")]
pub struct NoOtherLender;

/// The data of a slot cannot be read or stored: no lender is left for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lender of these pages is gone")]
pub struct Gone;

/// Where an action's bytes are in the caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The front end's staging memory, from this page on.
    Staged(u32),
    /// The store's buffer of this number.
    Buffer(u32),
}

/// Where a page is, or where a run of pages begins, in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its lender.
    pub lender: LenderId,
    /// The segment, by the lender's name for it.
    pub segment: u64,
    /// First page, counted from the start of the segment.
    pub page: u32,
    /// Where that page is mapped here, if it is.
    pub direct: Option<u64>,
}

impl Location {
    /// The location `pages` further in the segment.
    #[must_use]
    pub fn offset(self, pages: u32) -> Self {
        let direct = self.direct.map(|address| address + u64::from(pages) * crate::pager::PAGE_BYTES);
        Self { page: self.page + pages, direct, ..self }
    }
}

/// What the caller is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask a lender for a segment of this many pages; report it with [`Store::lent`].
    Borrow {
        /// Which lender.
        lender: LenderId,
        /// How many pages.
        pages: u32,
    },
    /// Give a segment back: nothing in it is used.
    GiveBack {
        /// Which lender.
        lender: LenderId,
        /// The lender's name for the segment.
        segment: u64,
    },
    /// Write pages; report the end with [`Store::completed`].
    Write {
        /// Names this write.
        io: Io,
        /// Where the first page goes.
        to: Location,
        /// Where the first page comes from.
        from: Source,
        /// How many pages, which follow each other at both ends.
        pages: u32,
    },
    /// Read pages into buffers; report the end of each page with [`Store::completed`], under the name that
    /// [`Io::offset`] gives it.
    Read {
        /// Names the read of the first page.
        io: Io,
        /// Where that page is.
        from: Location,
        /// Number of its buffer. Each further page goes to the next buffer.
        buffer: u32,
        /// How many pages, which follow each other at both ends.
        pages: u32,
    },
    /// Tell the front end that a slot was written, or could not be.
    Written {
        /// Which slot.
        slot: SlotId,
        /// How it ended.
        result: Result<(), Gone>,
    },
    /// Tell the front end that its read has ended. If there is a buffer, return it with [`Store::buffer_done`].
    Arrived {
        /// As given to [`Store::read`].
        ticket: Ticket,
        /// Number of the buffer that has the page.
        buffer: Result<u32, Gone>,
    },
    /// Tell the front end that a lender that is drained or dead has nothing of this store any more.
    Drained {
        /// Which lender.
        lender: LenderId,
    },
}

/// The end of a read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every byte has arrived. Of a read: the CRC32C of the page.
    Done {
        /// CRC32C of the page that was read; ignored for a write.
        checksum: u32,
    },
    /// It has failed, and no byte of it will arrive any more.
    Failed,
    /// A write has failed, and its bytes may arrive later: its place is not used again while its lender lives.
    MayStillArrive,
}

/// Counters of what has happened in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Slots that were stored with fewer copies than wanted.
    pub stored_with_one: u64,
    /// Copies made in the background because another was lost.
    pub copies_restored: u64,
    /// Copies moved away from lenders that are drained or dead.
    pub copies_moved: u64,
    /// Reads for which the other copy was read, too.
    pub reads_doubled: u64,
    /// Reads that another copy answered than the one that was read first.
    pub reads_by_other: u64,
    /// Pages that were read with a checksum other than that of what was written.
    pub corrupt_pages: u64,
    /// Writes that were sent to another lender because the first one failed or was silent.
    pub writes_moved: u64,
    /// Slots whose two places are at lenders of one host.
    pub same_host: u64,
    /// Reports of reads or writes that had ended before.
    pub late_reports: u64,
}

/// State of a lender, and what it has of this store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LenderStatus {
    /// Its state.
    pub state: LenderState,
    /// Nothing is heard of it at present.
    pub is_suspect: bool,
    /// Pages borrowed from it.
    pub borrowed_pages: u64,
    /// Pages of those that are used.
    pub used_pages: u64,
    /// Pages read from it and written to it.
    pub traffic: Traffic,
    /// It is drained or dead, and has nothing of this store any more.
    pub is_drained: bool,
}

/// The far store: see the module's documentation.
#[derive(Debug)]
pub struct Store {
    config: Config,
    lenders: Lenders,
    slots: SlotTable,
    /// Reads and writes under way.
    works: Works,
    saving: Lookup<SlotId, Saving>,
    reads: Reads,
    copies: Copies,
    /// Places that slots have given up while a front end was reading these slots directly.
    retired: BTreeMap<SlotId, Vec<Place>>,
    actions: VecDeque<Action>,
    counters: Counters,
    /// Slots stored with fewer copies than wanted.
    degraded: u64,
    next_unused_check_ns: Option<u64>,
}

impl Store {
    /// A store without lenders.
    pub fn new(mut config: Config) -> Self {
        config.copies = config.copies.clamp(1, 2);
        config.segment_most_pages = config.segment_most_pages.clamp(1, Place::SEGMENT_PAGES_MAX);
        config.segment_least_pages = config.segment_least_pages.clamp(1, config.segment_most_pages);
        Self {
            config,
            lenders: Lenders::new(config.stripe_pages),
            slots: SlotTable::default(),
            works: Works::default(),
            saving: Lookup::default(),
            reads: Reads::new(config.buffers, config.copies > 1),
            copies: Copies::default(),
            retired: BTreeMap::new(),
            actions: VecDeque::new(),
            counters: Counters::default(),
            degraded: 0,
            next_unused_check_ns: None,
        }
    }

    /// Adds a lender.
    pub fn add_lender(&mut self, newcomer: Newcomer) -> LenderId {
        let id = self.lenders.add(newcomer);
        self.may_be_room(id);
        id
    }

    /// Number of lenders that were ever added. Each life of a node counts.
    pub fn lives(&self) -> u64 {
        self.lenders.ids().count() as u64
    }

    /// Slots in use.
    pub fn used(&self) -> u32 {
        self.slots.used()
    }

    /// Pages that are borrowed now.
    pub fn borrowed_pages(&self) -> u64 {
        self.lenders.usable().map(|lender| lender.borrowed_pages()).sum()
    }

    /// Counters of what has happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of slots that are stored with fewer copies than wanted. After the death of a lender, it grows as
    /// [`Store::poll`] finds such slots.
    pub fn degraded(&self) -> u64 {
        self.degraded
    }

    /// Number of copies that are to be made: of slots that have too few, and of pages at lenders that are being
    /// drained. After the death of a lender, it grows as [`Store::poll`] finds them.
    pub fn copies_waiting(&self) -> u64 {
        let draining = self.lenders.ids().filter_map(|id| {
            let lender = self.lenders.get(id).filter(|lender| lender.state() == LenderState::Draining)?;
            Some(lender.used_pages().saturating_sub(self.works.never_free(id)))
        });
        self.degraded + draining.sum::<u64>()
    }

    /// Whether all copies that the death or drain of a lender asks for have been found, and each has been made or waits
    /// for a lender.
    pub fn is_settled(&self) -> bool {
        self.copies.is_idle()
    }

    /// Whether an active lender is silent, so that writes may take long.
    pub fn waits_for_lender(&self) -> bool {
        self.lenders.is_one_silent()
    }

    /// The status of a lender.
    pub fn lender(&self, id: LenderId) -> Option<LenderStatus> {
        self.lenders.get(id).map(|lender| LenderStatus {
            state: lender.state(),
            is_suspect: lender.is_suspect(),
            borrowed_pages: lender.borrowed_pages(),
            used_pages: lender.used_pages(),
            traffic: lender.traffic,
            is_drained: lender.is_drained(),
        })
    }

    /// The places of a slot.
    pub fn places(&self, slot: SlotId) -> [Option<Place>; 2] {
        self.slots.get(slot).map_or([None; 2], |slot| slot.places)
    }

    /// Where a place is.
    pub fn location(&self, place: Place) -> Option<Location> {
        self.lenders.location(place)
    }

    /// Takes a slot, for one user. If it has one place, and that is mapped here, also returns the address: the caller
    /// may write the page there itself and then call [`Store::commit`].
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn take(&mut self) -> Result<(SlotId, Option<u64>), NoRoom> {
        if self.slots.used() >= self.config.slots_max {
            return Err(NoRoom::Full);
        }
        let places = self.find_places()?;
        let direct = match places {
            [Some(place), None] if self.config.copies == 1 && self.config.has_direct_writes => {
                self.lenders.direct(place)
            }
            _ => None,
        };
        let Some(slot) = self.slots.take(places) else {
            for place in places.into_iter().flatten() {
                self.free_place(place);
            }
            return Err(NoRoom::Full);
        };
        Ok((slot, direct))
    }

    /// The caller has written a slot's only place itself.
    ///
    /// # Errors
    /// [`Gone`] if its lender's memory cannot be read any more; the slot is still the caller's to release.
    pub fn commit(&mut self, slot: SlotId, checksum: Option<u32>) -> Result<(), Gone> {
        let Some(known) = self.slots.get(slot).filter(|known| known.phase == Phase::Taken) else {
            return Err(Gone);
        };
        let place = known.places.into_iter().flatten().find(|place| self.lenders.is_readable(*place));
        let place = place.ok_or(Gone)?;
        self.note_written(place, 1);
        self.stored(slot, checksum);
        Ok(())
    }

    /// Adds a user to a slot. False: no further user can be counted.
    #[must_use]
    pub fn share(&mut self, slot: SlotId) -> bool {
        self.slots.get_mut(slot).is_some_and(|slot| {
            let shares = slot.users > 0 && slot.users < u16::MAX;
            slot.users += u16::from(shares);
            shares
        })
    }

    /// Number of users of a slot.
    pub fn users(&self, slot: SlotId) -> u16 {
        self.slots.get(slot).map_or(0, |slot| slot.users)
    }

    /// Takes one user from a slot. A slot without users is freed as soon as nothing reads or writes it.
    pub fn release(&mut self, slot: SlotId) {
        if let Some(known) = self.slots.get_mut(slot).filter(|known| known.users > 0) {
            known.users -= 1;
            self.free_if_unused(slot);
        }
    }

    /// Address at which a slot's page can be read directly, if it can.
    pub fn direct(&self, slot: SlotId) -> Option<u64> {
        self.place_to_read_directly(slot).map(|(_, address)| address)
    }

    fn place_to_read_directly(&self, slot: SlotId) -> Option<(Place, u64)> {
        let direct = |place| Some((place, self.lenders.direct_to_read(place)?));
        self.slots.get(slot)?.places.into_iter().flatten().find_map(direct)
    }

    /// Begins a direct read, if a slot's page can be read directly: returns its address. Its place is not used for
    /// another slot until [`Store::unpin`].
    ///
    /// # Errors
    /// [`Gone`]: no lender has it any more.
    pub fn pin(&mut self, slot: SlotId) -> Result<Option<u64>, Gone> {
        let Some((place, address)) = self.place_to_read_directly(slot) else {
            return if self.is_lost(slot) { Err(Gone) } else { Ok(None) };
        };
        let Some(known) = self.slots.get_mut(slot) else { return Err(Gone) };
        let Some(pins) = known.pins.checked_add(1) else { return Ok(None) };
        known.pins = pins;
        if let Some(lender) = self.lenders.get_mut(place.lender()) {
            lender.traffic.pages_read += 1;
        }
        Ok(Some(address))
    }

    fn note_written(&mut self, place: Place, pages: u64) {
        if let Some(lender) = self.lenders.get_mut(place.lender()) {
            lender.traffic.pages_written += pages;
        }
    }

    /// A direct read has ended.
    pub fn unpin(&mut self, slot: SlotId) {
        let Some(known) = self.slots.get_mut(slot).filter(|known| known.pins > 0) else { return };
        known.pins -= 1;
        if known.pins == 0 {
            for place in self.retired.remove(&slot).into_iter().flatten() {
                self.free_place(place);
            }
            self.free_if_unused(slot);
        }
    }

    /// Whether the data of a stored slot cannot be read any more. Also true of a slot that is not in use.
    pub fn is_lost(&self, slot: SlotId) -> bool {
        self.slots.get(slot).is_none_or(|slot| {
            slot.phase == Phase::Stored
                && !slot.places.into_iter().flatten().any(|place| self.lenders.is_readable(place))
        })
    }

    /// A read or write of an [`Action`] has ended. A second report of the same one is only counted.
    pub fn completed(&mut self, now_ns: u64, io: Io, ended: Ended) {
        let Some(work) = self.works.end(io) else {
            self.counters.late_reports += 1;
            return;
        };
        self.work_ended(now_ns, work, ended);
    }

    /// Nothing is heard of a lender, or it is heard again.
    pub fn set_suspect(&mut self, now_ns: u64, lender: LenderId, is_suspect: bool) {
        if !self.lenders.set_suspect(lender, is_suspect) {
            return;
        }
        if is_suspect {
            self.unwell(now_ns, lender);
        } else {
            self.may_be_room(lender);
        }
    }

    /// A lender has joined or is heard again, so it may have room for copies and writes that wait.
    fn may_be_room(&mut self, lender: LenderId) {
        if self.slots.used() > 0 {
            self.grow(lender);
        }
        self.copies.look_again();
        self.move_waiting_writes();
    }

    /// A lender is dead: that life of the node is never used again. `is_readable`: what it lent is mapped here, and may
    /// be read until it has been copied elsewhere.
    pub fn set_dead(&mut self, now_ns: u64, lender: LenderId, is_readable: bool) {
        if !self.lenders.set_dead(lender, is_readable) {
            return;
        }
        if !is_readable {
            for place in self.works.forget_claims(lender) {
                self.lenders.free(place);
            }
        }
        self.unwell(now_ns, lender);
        self.copies.sweep();
        self.give_back_drained(lender);
    }

    /// Begins to move everything away from a lender. [`Action::Drained`] reports the end.
    ///
    /// # Errors
    /// [`NoOtherLender`].
    pub fn drain(&mut self, lender: LenderId) -> Result<(), NoOtherLender> {
        let is_other =
            |id: LenderId| id != lender && self.lenders.get(id).is_some_and(|other| other.is_well());
        if !self.lenders.ids().any(is_other) {
            return Err(NoOtherLender);
        }
        if self.lenders.set_draining(lender) {
            self.copies.sweep();
            self.give_back_drained(lender);
        }
        Ok(())
    }

    /// A slot's page could not be read directly at this address. True: it can be read in another way.
    pub fn direct_read_failed(&mut self, slot: SlotId, address: u64) -> bool {
        if self.is_lost(slot) {
            return false;
        }
        if self.direct(slot) != Some(address) {
            return true;
        }
        let places = self.places(slot);
        let failed = places.into_iter().flatten().find(|&place| self.lenders.direct(place) == Some(address));
        match failed.filter(|&failed| self.has_other(slot, failed)) {
            // If the slot is being copied just now, the end of the copy decides about this place.
            Some(place) => {
                self.give_up_place(slot, place);
                true
            }
            None => false,
        }
    }

    /// The next action, if there is one. To be called until there is none: after every other call, and at
    /// [`Store::next_deadline`].
    pub fn poll(&mut self, now_ns: u64) -> Option<Action> {
        if self.actions.is_empty() {
            self.double_late_reads(now_ns);
            self.give_back_unused(now_ns);
            self.copy(now_ns);
        }
        let action = self.actions.pop_front()?;
        Some(self.joined(action))
    }

    /// When to call [`Store::poll`] at the latest.
    pub fn next_deadline(&self) -> Option<u64> {
        [
            self.reads.next_deadline(),
            self.next_unused_check_ns,
            self.copies.next_deadline(self.copies_at_once()),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Whether reads or copies at lenders are under way. (A front end waits for the end of its writes itself.)
    pub fn is_at_work(&self) -> bool {
        self.works.has_more_than_saves()
    }

    /// Whether actions are ready for [`Store::poll`].
    pub fn has_actions(&self) -> bool {
        !self.actions.is_empty()
    }

    /// Sends the reads and writes of a silent or dead lender to other lenders, where they can take them.
    fn unwell(&mut self, now_ns: u64, lender: LenderId) {
        self.double_reads_of(now_ns, lender);
        self.move_writes_of(lender);
        self.give_up_copies_of(lender);
    }

    /// Notes that a slot is stored.
    fn stored(&mut self, slot: SlotId, checksum: Option<u32>) {
        if let Some(known) = self.slots.get_mut(slot) {
            known.phase = Phase::Stored;
            known.checksum = checksum;
        }
        let places = self.places(slot);
        self.counters.stored_with_one +=
            u64::from(places.iter().flatten().count() < usize::from(self.config.copies));
        if let [Some(one), Some(other)] = places {
            self.counters.same_host += u64::from(self.lenders.share_a_host(one, other));
        }
        self.look_at(slot);
        self.free_if_unused(slot);
    }

    /// Frees a slot if it has no users and nothing reads, writes or copies it.
    fn free_if_unused(&mut self, slot: SlotId) {
        let Some(known) = self.slots.get(slot) else { return };
        let is_busy = known.pins > 0 || known.is_copying || known.phase == Phase::Saving;
        if known.users > 0 || is_busy {
            return;
        }
        self.degraded -= u64::from(known.is_degraded);
        for place in known.places.into_iter().flatten() {
            self.free_place(place);
        }
        self.slots.free(slot);
    }

    /// Frees a place that no slot needs any more, as soon as nothing reads or writes there.
    fn free_place(&mut self, place: Place) {
        if self.lenders.is_fenced(place.lender()) || !self.works.free_later(place) {
            self.lenders.free(place);
        }
        // This also holds for a place that is never freed: a drain does not wait for such places.
        self.give_back_drained(place.lender());
    }

    /// A write to a place has ended.
    fn write_ended(&mut self, place: Place, ended: Ended) {
        if ended == Ended::MayStillArrive {
            self.works.never_unclaim(place);
            self.give_back_drained(place.lender());
        } else {
            self.unclaim(place);
        }
    }

    /// A read or write at a place has ended.
    fn unclaim(&mut self, place: Place) {
        if self.works.unclaim(place) {
            self.lenders.free(place);
            self.give_back_drained(place.lender());
        }
    }
}
