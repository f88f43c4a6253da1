//! Frames of local memory that several address spaces share after a fork.
//!
//! A page that a fork has left in parent and child is one frame, and counts once. Each holder's table entry names the
//! frame (see [`Entry::frame`]); the frame knows how many holders it has, and where its contents are stored, if they
//! are. So a frame is saved once, whichever holder is evicted first, and it is free when the last holder has left.
//!
//! ```text
//!   parent's entry --+                  +--> holders
//!                    +--> frame (id) ---+--> saved: not | zero | slot
//!   child's entry ---+                  +--> the page where most holders have it
//! ```
//!
//! A holder that writes gets a page of its own from the kernel, and leaves the frame. If its page is write-protected,
//! the kernel asks the pager first, which takes room for the copy. Two cases escape this. Right after a fork, until the
//! protection is in place, a holder may write unseen. And if a page was pinned when its process forked, the kernel has
//! copied it at once, and a device may write to the pinned page past any protection. So a holder is *unverified* at
//! first: before its page may stand for the frame's contents, the page is protected, and the kernel must say that
//! another process has it mapped too ([`Table::verify`]). (A page that was protected by its slot before the fork is not
//! pinned for writing.)
//!
//! [`Entry::frame`]: super::page::Entry::frame
//! [`Table::verify`]: super::table::Table::verify

use super::page::Page;
use crate::store::Store;

/// Number of a frame.
pub type Frame = u32;

/// Where the contents of a frame are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    /// Nowhere.
    Not,
    /// They are zeroes.
    Zero,
    /// In this slot, of which the frame is a user.
    Slot(u32),
}

#[derive(Clone, Copy, Debug)]
struct Record {
    /// Number of holders; 0: the frame's number is free.
    holders: u32,
    saved: Saved,
    page: Page,
    /// The frame's own name stands in a replacement queue. It may outlast the frame, and then names the next frame with
    /// this number.
    is_queued: bool,
    /// A holder cannot be evicted, so the frame has to stay.
    is_stuck: bool,
}

/// What is left of a frame after a holder has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Other holders.
    Holders,
    /// Nothing: the frame is free.
    Nothing {
        /// See [`Frames::set_stuck`].
        was_stuck: bool,
    },
}

/// All shared frames.
#[derive(Debug, Default)]
pub struct Frames {
    records: Vec<Record>,
    free: Vec<Frame>,
    /// Frames that have holders.
    live: u64,
    /// Frames whose contents are in a slot.
    stored: u64,
    /// The frame that [`Frames::release_saved`] looked at last.
    looked_at: usize,
}

/// Most frames that one call of [`Frames::release_saved`] looks at, before others may have the frames.
const LOOKED_AT_ONCE: usize = 1 << 14;

impl Frames {
    /// Makes a frame with one holder, which has it at `page`. `slot`: where its contents are stored, if they are. The
    /// holder's share in that slot becomes the frame's.
    pub fn share(&mut self, page: Page, slot: Option<u32>) -> Frame {
        let saved = slot.map_or(Saved::Not, Saved::Slot);
        self.live += 1;
        self.stored += u64::from(slot.is_some());
        let record = Record { holders: 1, saved, page, is_queued: false, is_stuck: false };
        if let Some(frame) = self.free.pop()
            && let Some(place) = self.records.get_mut(frame as usize)
        {
            *place = Record { is_queued: place.is_queued, ..record };
            return frame;
        }
        self.records.push(record);
        (self.records.len() - 1) as Frame
    }

    fn get(&self, frame: Frame) -> Option<&Record> {
        self.records.get(frame as usize)
    }

    fn get_mut(&mut self, frame: Frame) -> Option<&mut Record> {
        self.records.get_mut(frame as usize)
    }

    /// Adds a holder to a frame.
    pub fn join(&mut self, frame: Frame) {
        if let Some(record) = self.get_mut(frame) {
            record.holders += 1;
        }
    }

    /// A holder has left.
    pub fn leave(&mut self, frame: Frame, slots: &mut Store) -> Remains {
        let Some(record) = self.get_mut(frame) else { return Remains::Nothing { was_stuck: false } };
        debug_assert!(record.holders > 0, "frame {frame} has no holder to leave it");
        record.holders = record.holders.saturating_sub(1);
        if record.holders > 0 {
            return Remains::Holders;
        }
        let was_stuck = std::mem::take(&mut record.is_stuck);
        self.forget(frame, slots);
        self.live -= 1;
        self.free.push(frame);
        Remains::Nothing { was_stuck }
    }

    /// Number of holders.
    pub fn holders(&self, frame: Frame) -> u32 {
        self.get(frame).map_or(0, |record| record.holders)
    }

    /// The page at which most holders have the frame.
    pub fn page(&self, frame: Frame) -> Page {
        self.get(frame).map_or(0, |record| record.page)
    }

    /// Sets the page at which most holders have the frame.
    pub fn set_page(&mut self, frame: Frame, page: Page) {
        if let Some(record) = self.get_mut(frame) {
            record.page = page;
        }
    }

    /// Where the contents are stored.
    pub fn saved(&self, frame: Frame) -> Saved {
        self.get(frame).map_or(Saved::Not, |record| record.saved)
    }

    /// Notes where the contents are stored. A share in the slot becomes the frame's.
    pub fn set_saved(&mut self, frame: Frame, saved: Saved, slots: &mut Store) {
        self.forget(frame, slots);
        if let Some(record) = self.get_mut(frame) {
            record.saved = saved;
            self.stored += u64::from(matches!(saved, Saved::Slot(_)));
        }
    }

    /// Gives up the stored contents, because they are out of date, or gone with their lender.
    pub fn forget(&mut self, frame: Frame, slots: &mut Store) {
        let saved = self.get_mut(frame).map(|record| std::mem::replace(&mut record.saved, Saved::Not));
        if let Some(Saved::Slot(slot)) = saved {
            slots.release(slot);
            self.stored -= 1;
        }
    }

    /// How often [`Frames::release_saved`] is to be called to look at all frames.
    pub fn looks(&self) -> usize {
        if self.stored == 0 { 0 } else { self.records.len().div_ceil(LOOKED_AT_ONCE) }
    }

    /// Releases up to `want` slots of the next frames, because far memory is full. It releases only slots that their
    /// frame alone uses: one that an evicted holder uses as well would not become free. Returns how many it released.
    pub fn release_saved(&mut self, want: u64, slots: &mut Store) -> u64 {
        let mut released = 0;
        let count = self.records.len();
        for _ in 0..count.min(LOOKED_AT_ONCE) {
            if released == want || released == self.stored {
                break;
            }
            self.looked_at = (self.looked_at + 1) % count;
            let Some(record) = self.records.get_mut(self.looked_at) else { break };
            if let Saved::Slot(slot) = record.saved
                && slots.users(slot) == 1
            {
                record.saved = Saved::Not;
                slots.release(slot);
                released += 1;
            }
        }
        self.stored -= released;
        released
    }

    /// Notes that the frame's own name is to be in a replacement queue, because no holder's name is. Returns whether
    /// the caller has to put it there: it was in none.
    #[must_use]
    pub fn enqueue(&mut self, frame: Frame) -> bool {
        let record = self.get_mut(frame).filter(|record| record.holders > 0);
        record.is_some_and(|record| !std::mem::replace(&mut record.is_queued, true))
    }

    /// The frame's own name came up in its queue. Returns whether the frame still exists.
    #[must_use]
    pub fn dequeue(&mut self, frame: Frame) -> bool {
        let Some(record) = self.get_mut(frame) else { return false };
        record.is_queued = false;
        record.holders > 0
    }

    /// Notes whether a holder cannot be evicted, so that the frame stays whatever is done. Returns whether that has
    /// changed.
    #[must_use]
    pub fn set_stuck(&mut self, frame: Frame, is_stuck: bool) -> bool {
        let record = self.get_mut(frame).filter(|record| record.holders > 0);
        record.is_some_and(|record| std::mem::replace(&mut record.is_stuck, is_stuck) != is_stuck)
    }

    /// Frames that have holders.
    pub fn live(&self) -> u64 {
        self.live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        Store::new(crate::store::Config { slots_max: 4, ..Default::default() })
    }

    #[test]
    fn a_frame_lives_as_long_as_it_has_holders() {
        let (mut frames, mut slots) = (Frames::default(), store());
        let frame = frames.share(7, None);
        frames.join(frame);
        assert_eq!((frames.holders(frame), frames.page(frame), frames.live()), (2, 7, 1));
        assert_eq!(frames.leave(frame, &mut slots), Remains::Holders);
        assert!(frames.set_stuck(frame, true) && !frames.set_stuck(frame, true));
        assert_eq!(frames.leave(frame, &mut slots), Remains::Nothing { was_stuck: true });
        assert_eq!((frames.holders(frame), frames.live()), (0, 0));
        assert!(!frames.set_stuck(frame, true), "it has gone");
    }

    #[test]
    fn slots_are_given_up_that_nobody_else_shares() {
        let (mut frames, mut slots) =
            (Frames::default(), Store::new(crate::store::Config { slots_max: 4, ..Default::default() }));
        slots.add_lender(crate::store::Newcomer { host: 0, distance: 0, round_trip_ns: 0 });
        slots.grow_all();
        let Some(crate::store::Action::Borrow { lender, pages }) = slots.poll(0) else {
            panic!("a lender is asked")
        };
        slots.lent(0, lender, Ok(crate::store::Lent { segment: 0, pages, direct: Some(1 << 32) }));
        let [first, second] = [(); 2].map(|()| slots.take().unwrap().0);
        assert!(slots.share(second));
        let all = [first, second].map(|slot| frames.share(u64::from(slot), Some(slot)));
        assert_eq!((frames.release_saved(5, &mut slots), frames.release_saved(5, &mut slots)), (1, 0));
        assert_eq!((frames.saved(all[0]), frames.saved(all[1])), (Saved::Not, Saved::Slot(second)));
        slots.release(second);
        assert_eq!((frames.release_saved(5, &mut slots), slots.used()), (1, 0));
    }

    #[test]
    fn a_name_in_a_queue_outlasts_its_frame() {
        let (mut frames, mut slots) = (Frames::default(), store());
        let frame = frames.share(7, None);
        assert!(frames.enqueue(frame) && !frames.enqueue(frame));
        let _ = frames.leave(frame, &mut slots);
        assert_eq!(frames.share(8, None), frame, "numbers are used again");
        assert!(!frames.enqueue(frame), "the old name stands for the new frame");
        assert!(frames.dequeue(frame));
        let _ = frames.leave(frame, &mut slots);
        assert!(!frames.dequeue(frame) && frames.saved(frame) == Saved::Not);
    }
}
