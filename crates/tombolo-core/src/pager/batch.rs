//! How a page leaves: from the order to its agent until its eviction has ended.
//!
//! A [`Victim`] is a page on its way out: where it is ([`At`]) and what is known of its contents ([`Contents`]). The driver tells it
//! what happens ([`Event`]), and at the end it says what has become of the page ([`Victim::end`]).
//!
//! ```text
//!             moved            zero, or saved
//!   Ordered ---------> Moved ---------------------> Remote, or Untouched
//!      |                 |  \
//!      |                 |   +-- not saved, or wanted --> Back, Taken --> Resident
//!      |                 +-- cannot be read --> Unread --> Lost
//!      +-- its contents were stored before --> Gone --> Remote
//!      +-- was not there --> Absent --> Remote, or Untouched
//!      +-- refused --> Stays --> Resident
//!      +-- read-only --> Kept ---- saved, then dropped --> Gone --> Remote, or Untouched
//!                          +-- not saved, or not dropped --> Stays --> Resident
//! ```
//!
//! The rule in each case: a page whose contents are in doubt is lost rather than wrong, and one that can stay stays.
//! `tests/leaving.txt` has the whole table.

use super::frames::Frame;
use super::page::{Entry, Page, State};
use super::table::Outcome;
use crate::store::{NoRoom, Store};

/// Where contents that are to be stored are copied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Straight to the slot, which the driver reaches at this address.
    Direct(u64),
    /// To this page of the driver's staging memory, from which they are sent; `None` until it has one.
    Staged(Option<u32>),
}

/// What is known of the contents of a page that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// They were stored before the page was to leave, in this slot or (`None`) as zeroes: the page can just go.
    Stored(Option<u32>),
    /// They are to be stored in this slot, which was taken for them.
    New(u32, Place),
    /// They have been stored in this slot since it was to leave.
    Saved(u32),
    /// They have been read since the page was to leave, and are zeroes.
    Zero,
}

/// Where a page that is to leave is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Where it was. Its agent has the order to move it away.
    Ordered,
    /// In the staging area of its program, at this index. Its contents were not stored before.
    Moved(u32),
    /// Where it was, write-protected until its contents are safe; then it is dropped.
    Kept,
    /// It has left, and its contents are known.
    Gone,
    /// It was not where its entry says.
    Absent,
    /// It has left, and what it held is not known: the page is lost, which is better than wrong contents.
    Unread,
    /// It stays as it was, for this reason.
    Stays(Why),
    /// It has left and could not be saved: it is to be mapped again.
    Back,
    /// It was wanted before it was saved, and is mapped again in its own program. Children that share its eviction do
    /// not have it yet.
    Taken,
}

/// Why a page stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It could not leave this time.
    NotNow,
    /// It could not leave this time, but is still write-protected: what is stored is what it holds.
    Protected,
    /// The kernel moves no such page.
    Refused,
    /// A fork shares it, or it is pinned: the agent makes it the process's own before it is tried next.
    Shared,
}

/// What happens to a page that is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The agent did not get its order.
    NotOrdered,
    /// The agent has moved it to the staging area, to this index.
    Moved(u32),
    /// The agent was told to move it, and the page tables, which tell whether it did, could not be read in time.
    PerhapsMoved,
    /// The agent has found no page there.
    NotThere,
    /// It is pinned, or a fork shares it.
    Busy,
    /// Its mapping is not writable: the kernel moves no page of such a mapping.
    ReadOnly,
    /// The kernel refuses to move it.
    Refused,
    /// It was not moved: mappings were changing, or the order was cancelled.
    Changing,
    /// The program has given it up or moved it elsewhere.
    Elsewhere,
    /// It cannot be write-protected, or cannot be read where it is.
    NotKept,
    /// It could not be read from the staging area.
    NotRead,
    /// It holds nothing but zeroes.
    Zero,
    /// Its contents have been written to its slot.
    Saved,
    /// It could not be saved.
    NotSaved,
    /// A thread wanted it while it was being saved, and has got it back.
    Wanted,
    /// It is mapped again, wherever it was wanted.
    Returned,
    /// It cannot be mapped again.
    NotReturned,
    /// The agent has dropped it where it was.
    Dropped,
    /// The agent has not dropped it.
    NotDropped,
    /// It was dropped where it was, by the agent or by the program. The kernel's events do not tell by which, so its
    /// last contents are unknown.
    Doubtful,
    /// The agent has ended, and what it had done cannot be read from its program's page tables.
    AgentLost,
}

/// A page on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The page at which its eviction began. The program may have moved it since.
    pub page: Page,
    /// Where it is.
    pub at: At,
    /// What it holds.
    pub contents: Contents,
    /// It was tried just before, and could not leave because it was shared.
    pub is_retry: bool,
    /// The frame that it shares with other spaces, if any.
    pub frame: Option<Frame>,
    /// Its memory lies, or may lie, in the staging area of its program. This stays true whatever becomes of the page.
    pub is_in_area: bool,
}

impl Victim {
    /// A page that its agent is to move away.
    pub fn new(page: Page, contents: Contents) -> Self {
        Self { page, at: At::Ordered, contents, is_retry: false, frame: None, is_in_area: false }
    }

    /// Begins the eviction of a resident page that shares no frame. Also returns its entry from now on. An error: there
    /// is no slot for it.
    pub fn of_resident(page: Page, entry: Entry, slots: &mut Store) -> Result<(Self, Entry), NoRoom> {
        if let Some(slot) = entry.slot() {
            let left = entry.with_eviction(State::EvictDrop, Some(slot));
            return Ok((Self::new(page, Contents::Stored(Some(slot))), left));
        }
        let contents = Contents::to_store(slots)?;
        Ok((Self::new(page, contents), entry.with_eviction(State::EvictCopy, None)))
    }

    /// This victim, whose page shares a frame with other spaces.
    #[must_use]
    pub fn with_frame(self, frame: Frame) -> Self {
        Self { frame: Some(frame), ..self }
    }

    /// Whether its contents were stored before it was to leave.
    pub fn is_stored(&self) -> bool {
        matches!(self.contents, Contents::Stored(_))
    }

    /// The slot that has its contents, or was taken for them.
    pub fn slot(&self) -> Option<u32> {
        match self.contents {
            Contents::Stored(slot) => slot,
            Contents::New(slot, _) | Contents::Saved(slot) => Some(slot),
            Contents::Zero => None,
        }
    }

    /// Where its contents go, if they are to be stored.
    pub fn place(&self) -> Option<Place> {
        match self.contents {
            Contents::New(_, place) => Some(place),
            Contents::Stored(_) | Contents::Saved(_) | Contents::Zero => None,
        }
    }

    /// The page of the staging memory that it has, if any.
    pub fn staged(&self) -> Option<u32> {
        self.place().and_then(|place| match place {
            Place::Staged(staged) => staged,
            Place::Direct(_) => None,
        })
    }

    /// Whether its contents go through the staging memory.
    pub fn is_staged(&self) -> bool {
        matches!(self.place(), Some(Place::Staged(_)))
    }

    /// Gives it this page of the staging memory, or takes that away.
    pub fn stage(&mut self, staged: Option<u32>) {
        if let Contents::New(_, Place::Staged(place)) = &mut self.contents {
            *place = staged;
        }
    }

    /// Whether its contents are to be read and stored.
    pub fn is_to_be_read(&self) -> bool {
        self.place().is_some() && matches!(self.at, At::Moved(_) | At::Kept)
    }

    /// Whether it has left the program and its contents are in the staging memory only.
    pub fn is_offered_back(&self) -> bool {
        self.staged().is_some() && matches!(self.at, At::Moved(_))
    }

    /// Whether its contents are needed until they are mapped again everywhere.
    pub fn goes_back(&self) -> bool {
        matches!(self.at, At::Back | At::Taken)
    }

    /// Whether it has left the program and waits for no lender and no agent.
    pub fn is_settled(&self) -> bool {
        match self.at {
            At::Gone | At::Absent => true,
            At::Moved(_) => self.staged().is_none(),
            _ => false,
        }
    }

    /// Whether it leaves, unlike a page that stays where it is.
    pub fn leaves(&self) -> bool {
        !matches!(self.at, At::Stays(_))
    }

    /// Whether it has left, and this eviction has saved its contents or found that they are zeroes.
    pub fn is_newly_saved(&self) -> bool {
        matches!(self.contents, Contents::Saved(_) | Contents::Zero)
            && matches!(self.at, At::Moved(_) | At::Gone)
    }

    /// Takes note of what has happened to it.
    pub fn happened(&mut self, event: Event) {
        let next = self.after(event);
        debug_assert!(next.is_some(), "{event:?} cannot happen to {self:?}");
        *self = next.unwrap_or(*self);
        self.is_in_area |= matches!(event, Event::Moved(_) | Event::PerhapsMoved);
    }

    /// The page after this event. `None`: the event cannot happen to a page in this state.
    fn after(self, event: Event) -> Option<Self> {
        let at = |at| Some(Self { at, ..self });
        let stays = |why| Some(Self { at: At::Stays(why), ..self });
        let stored = self.is_stored();
        match (self.at, event) {
            (At::Ordered, Event::Moved(_) | Event::PerhapsMoved | Event::AgentLost) if stored => at(At::Gone),
            (At::Ordered, Event::Moved(index)) => at(At::Moved(index)),
            (At::Ordered, Event::PerhapsMoved | Event::AgentLost) => at(At::Unread),
            (At::Ordered, Event::NotThere) => at(At::Absent),
            (At::Ordered, Event::Busy) if self.is_retry => stays(Why::NotNow),
            (At::Ordered, Event::Busy) => stays(Why::Shared),
            (At::Ordered, Event::ReadOnly) => at(At::Kept),
            (At::Ordered, Event::Refused) => stays(Why::Refused),
            (At::Ordered, Event::Changing | Event::NotOrdered) => stays(Why::NotNow),

            (At::Absent, Event::Elsewhere) => stays(Why::NotNow),

            (At::Moved(_), Event::NotRead) => at(At::Unread),
            (At::Moved(_) | At::Kept, Event::Zero) if self.place().is_some() => {
                Some(Self { contents: Contents::Zero, ..self })
            }
            (At::Moved(_) | At::Kept, Event::Saved) => Some(self.saved()),
            (At::Moved(_), Event::NotSaved) if self.place().is_some() => at(At::Back),
            (At::Moved(_), Event::Wanted) if self.place().is_some() => at(At::Taken),
            // The page has not been taken from the program.
            (At::Kept, Event::Elsewhere | Event::NotKept | Event::NotSaved) => stays(Why::NotNow),
            // The page may be gone now: what it held is known only if it was saved before.
            (At::Kept, Event::Dropped | Event::AgentLost) if self.place().is_some() => at(At::Unread),
            (At::Kept, Event::Dropped | Event::AgentLost) => at(At::Gone),
            (At::Kept, Event::NotDropped | Event::NotOrdered) if self.place().is_some() => stays(Why::NotNow),
            (At::Kept, Event::NotDropped | Event::NotOrdered) => stays(Why::Protected),
            (At::Kept, Event::Doubtful) => at(At::Unread),

            // The page is mapped again: how a write of its contents ends does not matter any more.
            (At::Taken, Event::Saved | Event::NotSaved) => at(self.at),
            (At::Back | At::Taken, Event::Returned) => stays(Why::NotNow),
            (At::Back | At::Taken, Event::NotReturned) => at(At::Unread),
            _ => None,
        }
    }

    /// Its slot has its contents from now on.
    fn saved(self) -> Self {
        match self.contents {
            Contents::New(slot, _) => Self { contents: Contents::Saved(slot), ..self },
            Contents::Stored(_) | Contents::Saved(_) | Contents::Zero => self,
        }
    }

    /// Returns how its eviction ends. Releases its slot if that is not part of the outcome.
    pub fn end(&self, slots: &mut Store) -> Outcome {
        debug_assert!(!matches!(self.at, At::Ordered | At::Kept), "{self:?} has not come to an end");
        let outcome = self.outcome();
        if let Some(slot) = self.slot().filter(|_| outcome.slot().is_none()) {
            slots.release(slot);
        }
        outcome
    }

    fn outcome(&self) -> Outcome {
        let is_kept = self.is_stored() || self.at == At::Stays(Why::Protected);
        let kept = self.slot().filter(|_| is_kept);
        match self.at {
            At::Moved(_) | At::Gone if self.place().is_some() => Outcome::Lost,
            At::Moved(_) | At::Gone => self.slot().map_or(Outcome::Zero, Outcome::Saved),
            At::Absent => kept.map_or(Outcome::Zero, Outcome::Saved),
            At::Unread => Outcome::Lost,
            At::Stays(Why::Refused) => Outcome::Refused(kept),
            At::Stays(Why::Shared) => Outcome::Shared(kept),
            At::Stays(Why::NotNow | Why::Protected) | At::Back | At::Taken | At::Kept | At::Ordered => {
                Outcome::Stays(kept)
            }
        }
    }
}

impl Contents {
    /// Contents that are to be stored, with a slot that is taken for them.
    pub fn to_store(slots: &mut Store) -> Result<Self, NoRoom> {
        let (slot, direct) = slots.take()?;
        Ok(Self::placed(slot, direct))
    }

    /// Contents that are to be stored in `slot`. `direct`: the address at which the driver reaches the slot, if it can.
    pub fn placed(slot: u32, direct: Option<u64>) -> Self {
        Self::New(slot, direct.map_or(Place::Staged(None), Place::Direct))
    }
}

/// Goes on with pages whose contents have been read: releases the slots of zero pages, and commits the slots into which
/// contents were copied directly. Returns the slots that are still to be written, with the page of each in the staging
/// memory. `is_zero`: whether the driver has read only zeroes.
pub fn sort_out(
    victims: &mut [Victim],
    slots: &mut Store,
    mut is_zero: impl FnMut(&Victim) -> bool,
) -> Vec<(u32, u32)> {
    let mut to_write = Vec::new();
    for victim in victims.iter_mut().filter(|victim| victim.is_to_be_read()) {
        let Contents::New(slot, place) = victim.contents else { continue };
        if is_zero(victim) {
            slots.release(slot);
            victim.happened(Event::Zero);
            continue;
        }
        match place {
            Place::Staged(Some(staged)) => to_write.push((slot, staged)),
            Place::Direct(_) if slots.commit(slot, None).is_ok() => victim.happened(Event::Saved),
            // The slot's lender is gone, and with it the memory to which the page was copied.
            Place::Direct(_) if matches!(victim.at, At::Moved(_)) => victim.happened(Event::NotRead),
            Place::Direct(_) | Place::Staged(None) => victim.happened(Event::NotSaved),
        }
    }
    to_write
}

/// Takes note of pages that were offered back and have been taken. `left`: the pages that are still offered, in order.
pub fn note_taken(victims: &mut [Victim], left: &[Page]) {
    for victim in victims.iter_mut().filter(|victim| victim.is_offered_back()) {
        if left.binary_search(&victim.page).is_err() {
            victim.happened(Event::Wanted);
        }
    }
}

/// The writes of slots have ended. `failed`: the slots that could not be written.
pub fn written(victims: &mut [Victim], failed: &[u32]) {
    for victim in victims.iter_mut().filter(|victim| victim.staged().is_some()) {
        if matches!(victim.at, At::Moved(_) | At::Kept | At::Taken) {
            let has_failed = victim.slot().is_some_and(|slot| failed.contains(&slot));
            victim.happened(if has_failed { Event::NotSaved } else { Event::Saved });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;

    const PLACES: [At; 12] = [
        At::Ordered,
        At::Moved(3),
        At::Kept,
        At::Gone,
        At::Absent,
        At::Unread,
        At::Stays(Why::NotNow),
        At::Stays(Why::Protected),
        At::Stays(Why::Refused),
        At::Stays(Why::Shared),
        At::Back,
        At::Taken,
    ];

    const EVENTS: [Event; 21] = [
        Event::NotOrdered,
        Event::Moved(3),
        Event::PerhapsMoved,
        Event::NotThere,
        Event::Busy,
        Event::ReadOnly,
        Event::Refused,
        Event::Changing,
        Event::Elsewhere,
        Event::NotKept,
        Event::NotRead,
        Event::Zero,
        Event::Saved,
        Event::NotSaved,
        Event::Wanted,
        Event::Returned,
        Event::NotReturned,
        Event::Dropped,
        Event::NotDropped,
        Event::Doubtful,
        Event::AgentLost,
    ];

    /// The contents that a page can have in each place.
    fn contents(at: At) -> Vec<Contents> {
        let stored = Contents::Stored(Some(7));
        let new = [Contents::New(7, Place::Direct(4096)), Contents::New(7, Place::Staged(Some(2)))];
        let known = [Contents::Saved(7), Contents::Zero];
        match at {
            At::Ordered | At::Absent => [&[stored], &new[..]].concat(),
            At::Moved(_) => [new, known].concat(),
            At::Kept => [&[stored], &new[..], &known].concat(),
            At::Stays(Why::Protected) => [&[stored], &known[..]].concat(),
            At::Gone => [&[stored], &known[..]].concat(),
            At::Back | At::Taken => new.to_vec(),
            At::Unread | At::Stays(_) => [&[stored], &new[..]].concat(),
        }
    }

    fn victims() -> impl Iterator<Item = Victim> {
        PLACES.into_iter().flat_map(|at| {
            let all = contents(at).into_iter();
            all.map(move |contents| Victim { at, ..Victim::new(5, contents) })
        })
    }

    fn all() -> impl Iterator<Item = (Victim, Event)> {
        victims().flat_map(|victim| {
            [false, true].into_iter().flat_map(move |is_retry| {
                EVENTS.into_iter().map(move |event| (Victim { is_retry, ..victim }, event))
            })
        })
    }

    /// Compares all transitions, and the outcome of every page whose eviction can end, with `tests/leaving.txt`.
    /// `TOMBOLO_BLESS=1` rewrites that file after an intended change.
    #[test]
    fn the_table_of_transitions() {
        let mut found = String::new();
        for (victim, event) in all() {
            let first = Victim { is_retry: false, ..victim }.after(event).map(|next| next.at);
            let retry = if victim.is_retry { ", tried again" } else { "" };
            if let Some(next) = victim.after(event).filter(|next| !victim.is_retry || first != Some(next.at))
            {
                let changed = if next.contents == victim.contents {
                    String::new()
                } else {
                    format!(", {:?}", next.contents)
                };
                let _ = writeln!(
                    found,
                    "{:?}, {:?}{retry}: {event:?} -> {:?}{changed}",
                    victim.at, victim.contents, next.at
                );
            }
        }
        for victim in victims().filter(|victim| !matches!(victim.at, At::Ordered | At::Kept)) {
            let _ = writeln!(found, "{:?}, {:?} ends as {:?}", victim.at, victim.contents, victim.outcome());
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/leaving.txt");
        if tombolo_random::is_on("TOMBOLO_BLESS") {
            std::fs::write(path, &found).unwrap();
        }
        let known = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(found, known, "transitions have changed: TOMBOLO_BLESS=1 if that is meant");
    }

    /// Whatever happens, contents count as saved only after they were saved, and a page that was not taken from the
    /// program is not lost.
    #[test]
    fn no_contents_are_made_up() {
        for (victim, event) in all() {
            let Some(next) = victim.after(event) else { continue };
            let is_saved = |victim: Victim| matches!(victim.contents, Contents::Saved(_));
            assert!(is_saved(victim) || !is_saved(next) || event == Event::Saved, "{victim:?} {event:?}");
            assert_eq!(victim.is_stored(), next.is_stored(), "{victim:?} {event:?}");
            let lost = next.at == At::Unread;
            let is_unsafe = victim.place().is_some() && matches!(event, Event::Dropped);
            let is_certain = !is_unsafe
                && !matches!(
                    event,
                    Event::PerhapsMoved
                        | Event::NotRead
                        | Event::NotReturned
                        | Event::Doubtful
                        | Event::AgentLost
                );
            assert!(!(lost && is_certain), "{victim:?} {event:?}");
            assert!(!(lost && victim.is_stored() && victim.at == At::Ordered), "{victim:?} {event:?}");
            assert!(
                !victim.goes_back() || !next.leaves() || next.goes_back() || lost,
                "{victim:?} {event:?}"
            );
        }
    }
}
