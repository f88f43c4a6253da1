//! What the supervisor knows about one page of a program: a word of state.
//!
//! ```text
//!            first touch                 write fault: slot given up
//!  Untouched ----------> Resident (dirty) <---- Resident (clean, has a slot)
//!      ^                     |     ^                  |          ^
//!      | zero page           v     | refused          v          |
//!      +---------------- EvictCopy +              EvictDrop -----+ refused
//!                            |                        |
//!                            v        fault           v       data is here
//!                          Remote ------------------------> Fetching ---> Resident
//!                            |
//!                            +--- lender gone ---> Lost
//! ```
//!
//! *EvictCopy*: the contents are being saved; the page is in the staging area, or
//! on its way there, or (*kept*) still mapped, write-protected.
//! *EvictDrop*: the contents are safe and the page may vanish at any moment.
//! *Fetching* ends when the far side answers or is given up. Where far memory is
//! directly reachable, a page goes from *Remote* to *Resident* at once.
//!
//! *EvictCopy*, *EvictDrop* and *Fetching* are *operations*: they end later, with an outcome. What the program does to
//! the page meanwhile is noted (*discarded*, or moved elsewhere by `mremap`), and settled when the operation ends.

use super::frames::Frame;

/// A page of an address space: its address divided by [`PAGE_BYTES`].
pub type Page = u64;

/// Size of a page in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// The states of a page: see the diagram in the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Reads as zero; nothing is stored.
    Untouched = 0,
    /// Mapped in the program.
    Resident = 1,
    /// Only in far memory.
    Remote = 2,
    /// On its way from far memory.
    Fetching = 3,
    /// Being saved.
    EvictCopy = 5,
    /// Saved, being unmapped.
    EvictDrop = 6,
    /// Its contents are lost, as when the lender that had them is gone.
    Lost = 7,
}

const STATE_MASK: u64 = 7;
const HAS_SLOT: u64 = 1 << 3;
const WAITER: u64 = 1 << 4;
const QUEUED: u64 = 1 << 5;
const DISCARD: u64 = 1 << 6;
const REFERENCED: u64 = 1 << 7;
const WRITABLE: u64 = 1 << 8;
/// Of a page that is resident or being evicted. In a page that is being fetched, this bit is [`WRITABLE`].
const SHARED: u64 = 1 << 8;
const KEPT: u64 = 1 << 9;
/// Of a page that is resident. In a page that is being evicted, this bit is [`KEPT`].
const VERIFIED: u64 = 1 << 9;
const FOLLOWER: u64 = 1 << 13;
/// Of a page that is resident. In a page that is being evicted, this bit is [`FOLLOWER`].
const PROTECTED: u64 = 1 << 13;
const LIVES_SHIFT: u32 = 10;
const LIVES_MASK: u64 = 7;
const SLOT_SHIFT: u32 = 14;
const SLOT_BITS: u64 = 32;
const AGE_SHIFT: u32 = 46;

/// Mask of the coarse clock of evictions, which wraps around. A page's age on it tells whether the page came back soon
/// or late.
pub const AGE_MASK: u64 = (1 << (64 - AGE_SHIFT)) - 1;

/// Most lives a page can have.
pub const LIVES_MAX: u8 = LIVES_MASK as u8;

/// The word of one page. Copied out of the table, changed, and put back, all
/// under the table's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

impl Entry {
    /// The state.
    pub fn state(self) -> State {
        match self.0 & STATE_MASK {
            0 => State::Untouched,
            1 => State::Resident,
            2 => State::Remote,
            3 => State::Fetching,
            5 => State::EvictCopy,
            6 => State::EvictDrop,
            _ => State::Lost,
        }
    }

    /// The same page in another state.
    #[must_use]
    pub fn with_state(self, state: State) -> Self {
        Self(self.0 & !STATE_MASK | state as u64)
    }

    /// The far slot that holds the page's contents, if one does.
    pub fn slot(self) -> Option<u32> {
        (self.0 & HAS_SLOT != 0).then_some((self.0 >> SLOT_SHIFT) as u32)
    }

    /// The same page with this slot, or none.
    #[must_use]
    pub fn with_slot(self, slot: Option<u32>) -> Self {
        let cleared = self.0 & !(((1 << SLOT_BITS) - 1) << SLOT_SHIFT) & !HAS_SLOT;
        Self(match slot {
            Some(slot) => cleared | HAS_SLOT | u64::from(slot) << SLOT_SHIFT,
            None => cleared,
        })
    }

    /// The frame that a resident page shares with other spaces, if it shares one.
    pub fn frame(self) -> Option<Frame> {
        (self.state() == State::Resident && self.0 & SHARED != 0).then_some((self.0 >> SLOT_SHIFT) as Frame)
    }

    /// The same page, resident, sharing this frame. Its flags "protected" and "verified" do not change.
    #[must_use]
    pub fn with_frame(self, frame: Frame) -> Self {
        let shared = self.with_state(State::Resident).with_slot(None);
        Self(shared.0 | SHARED | u64::from(frame) << SLOT_SHIFT)
    }

    /// Whether a resident page is write-protected, as far as is known: because its slot has its contents, or for a
    /// fork.
    pub fn is_protected(self) -> bool {
        self.state() == State::Resident && self.0 & (HAS_SLOT | PROTECTED | VERIFIED) != 0
    }

    /// The same page, resident, now write-protected.
    #[must_use]
    pub fn with_protection(self) -> Self {
        Self(self.0 | PROTECTED)
    }

    /// The same resident page, which does not share its frame any more, with this slot, or none.
    #[must_use]
    pub fn with_own_page(self, slot: Option<u32>) -> Self {
        Self(self.0 & !(SHARED | VERIFIED | PROTECTED)).with_slot(slot)
    }

    /// The same page, whose eviction has begun. If it shares a frame, its room is counted with the frame.
    #[must_use]
    pub fn with_eviction(self, state: State, slot: Option<u32>) -> Self {
        self.with_slot(slot).with_state(state).with_kept(false).with_follower(false).with_referenced(false)
    }

    /// Whether the page is being evicted and its room is counted with the frame that it shares.
    pub fn is_counted_with_frame(self) -> bool {
        matches!(self.state(), State::EvictCopy | State::EvictDrop) && self.0 & SHARED != 0
    }

    /// How often the page is still spared when its turn to leave comes.
    pub fn lives(self) -> u8 {
        (self.0 >> LIVES_SHIFT & LIVES_MASK) as u8
    }

    /// The same page with this number of lives, at most [`LIVES_MAX`].
    #[must_use]
    pub fn with_lives(self, lives: u8) -> Self {
        let lives = u64::from(lives.min(LIVES_MAX));
        Self(self.0 & !(LIVES_MASK << LIVES_SHIFT) | lives << LIVES_SHIFT)
    }

    /// When the page was last evicted, on the coarse clock.
    pub fn age(self) -> u64 {
        self.0 >> AGE_SHIFT
    }

    /// The same page with this eviction time.
    #[must_use]
    pub fn with_age(self, age: u64) -> Self {
        Self(self.0 & !(AGE_MASK << AGE_SHIFT) | (age & AGE_MASK) << AGE_SHIFT)
    }
}

macro_rules! flag {
    ($(#[$doc:meta] $get:ident $set:ident $mask:ident;)*) => {
        impl Entry {
            $(
                #[$doc]
                pub fn $get(self) -> bool {
                    self.0 & $mask != 0
                }
                #[$doc]
                #[must_use]
                pub fn $set(self, on: bool) -> Self {
                    Self(if on { self.0 | $mask } else { self.0 & !$mask })
                }
            )*
        }
    };
}

flag! {
    /// A thread waits for an operation on this page to end.
    has_waiter with_waiter WAITER;
    /// The page stands in a replacement queue.
    is_queued with_queued QUEUED;
    /// The program gave the contents up during an operation.
    is_discarded with_discarded DISCARD;
    /// The page was used again since it was queued.
    is_referenced with_referenced REFERENCED;
    /// While the page is fetched: a write waits for it, so it is to be mapped writable.
    is_writable with_writable WRITABLE;
    /// While the page is evicted: it stays mapped until its contents are safe.
    is_kept with_kept KEPT;
    /// While the page is evicted: it is a forked child's, and its eviction is that of the parent's page.
    is_follower with_follower FOLLOWER;
    /// While the page is resident and shares a frame: its slot protected it at the fork, or it was seen to be shared while protected.
    is_verified with_verified VERIFIED;
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.state())?;
        if let Some(slot) = self.slot() {
            write!(formatter, " slot {slot}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_disturb_each_other() {
        let entry = Entry(0)
            .with_state(State::Lost)
            .with_slot(Some(u32::MAX))
            .with_age(AGE_MASK)
            .with_lives(5)
            .with_waiter(true)
            .with_referenced(true);
        assert_eq!(entry.state(), State::Lost);
        assert_eq!(entry.slot(), Some(u32::MAX));
        assert_eq!((entry.age(), entry.lives()), (AGE_MASK, 5));
        assert_eq!(entry.with_lives(200).lives(), LIVES_MAX);
        assert!(entry.has_waiter() && entry.is_referenced() && !entry.is_queued() && !entry.is_discarded());
        let entry = entry.with_slot(None).with_state(State::Resident).with_waiter(false);
        assert_eq!((entry.state(), entry.slot(), entry.age()), (State::Resident, None, AGE_MASK));
        assert!(!entry.has_waiter() && entry.is_referenced());
    }

    #[test]
    fn a_shared_page_has_a_frame_in_place_of_a_slot() {
        let entry = Entry(0).with_state(State::Resident).with_slot(Some(7)).with_queued(true).with_age(9);
        let shared = entry.with_frame(u32::MAX).with_verified(true);
        assert_eq!((shared.frame(), shared.slot(), shared.age()), (Some(u32::MAX), None, 9));
        assert!(shared.is_verified() && shared.is_queued() && !entry.with_frame(0).is_verified());
        let evicted = shared.with_eviction(State::EvictCopy, None);
        assert_eq!((evicted.frame(), evicted.slot(), evicted.is_kept()), (None, None, false));
        assert!(evicted.is_counted_with_frame());
        assert!(!entry.with_eviction(State::EvictCopy, None).is_counted_with_frame());
        let own = shared.with_own_page(Some(8));
        assert_eq!((own.frame(), own.slot(), own.is_verified()), (None, Some(8), false));
        assert!(own.is_queued());
    }

    #[test]
    fn protection_is_of_resident_pages_and_ends_with_the_frame() {
        let resident = Entry(0).with_state(State::Resident);
        assert!(!resident.is_protected() && resident.with_slot(Some(1)).is_protected());
        let protected = resident.with_protection();
        assert!(protected.is_protected() && protected.with_frame(3).is_protected());
        assert!(!protected.with_frame(3).is_verified(), "what is protected may be a copy");
        assert!(resident.with_frame(3).with_verified(true).is_protected());
        assert!(!protected.with_frame(3).with_own_page(None).is_protected());
        let evicted = protected.with_eviction(State::EvictCopy, None);
        assert!(!evicted.is_protected() && !evicted.is_follower());
    }

    #[test]
    fn an_all_zero_word_is_an_untouched_page() {
        assert_eq!(Entry(0).state(), State::Untouched);
        assert_eq!(Entry(0).slot(), None);
    }
}
