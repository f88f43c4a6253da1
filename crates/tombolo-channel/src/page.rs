//! The page of channels, and the page with the doorbell behind it.
//!
//! The doorbell is one word a program: a bit for each channel, set by the
//! program, taken all at once by the node (QOS ch. 6 names one doorbell word a
//! process, polled round robin). Ringing twice sets one bit, so duplicates
//! drop by themselves.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tombolo_host::event;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::shared::{SharedMemory, SharedMemoryError};

use crate::slot::{Descriptor, Failure, SLOTS, SlotError, Status, TransferStatus, is_read};

/// Both pages.
pub const SHARED_BYTES: usize = 2 * PAGE_BYTES;
const PAGE_BYTES: usize = 4096;
const SLOT_BYTES: usize = 64;
const SIZE_WORD: usize = 5;
const DONE_BYTES: usize = 44;
const TARGET_WORD: usize = 6;
const RESULT_WORD: usize = 7;

// The words of the second page lie in cache lines of their own.
const DOORBELL: usize = PAGE_BYTES;
const ASLEEP: usize = PAGE_BYTES + 64;
const ENDED: usize = PAGE_BYTES + 128;
const WAITING: usize = PAGE_BYTES + 192;

/// The pages, as the program and the node see them.
#[derive(Debug)]
pub struct ChannelPage(SharedMemory);

impl AsFd for ChannelPage {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ChannelPage {
    /// New pages, all ones (QOS §2.3.3.2), and the doorbell silent.
    pub fn create() -> Result<Self, SharedMemoryError> {
        let page = Self(SharedMemory::create("tombolo-channels", SHARED_BYTES)?);
        for word in 0..PAGE_BYTES / 8 {
            page.0.atomic_u64(word * 8)?.store(u64::MAX, Ordering::Relaxed);
        }
        Ok(page)
    }

    /// Pages that the node made.
    pub fn open(descriptor: impl Into<PassedDescriptor>) -> Result<Self, SharedMemoryError> {
        Ok(Self(SharedMemory::open(descriptor, SHARED_BYTES)?))
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        self.0.atomic_u64(offset).unwrap_or_else(|_| unreachable!("inside, by the constants above"))
    }

    fn short(&self, offset: usize) -> &AtomicU32 {
        self.0.atomic_u32(offset).unwrap_or_else(|_| unreachable!("inside, by the constants above"))
    }

    fn word(&self, slot: usize, word: usize) -> &AtomicU64 {
        self.long(slot % SLOTS * SLOT_BYTES + word * 8)
    }

    fn done(&self, slot: usize) -> &AtomicU32 {
        self.short(slot % SLOTS * SLOT_BYTES + DONE_BYTES)
    }

    /// The program's: writes a descriptor, of which the node hears when the channel is rung for.
    pub fn write(&self, slot: usize, descriptor: &Descriptor) {
        let words = descriptor.encode();
        for (word, value) in words[..SIZE_WORD].iter().enumerate() {
            self.word(slot, word).store(*value, Ordering::Relaxed);
        }
        let done = u64::from(TransferStatus::Initialised.word(is_read(slot)));
        self.word(slot, SIZE_WORD).store(words[SIZE_WORD] | done << 32, Ordering::Relaxed);
        for word in [TARGET_WORD, RESULT_WORD] {
            self.word(slot, word).store(words[word], Ordering::Relaxed);
        }
    }

    /// The program's: writes a descriptor and rings. True: the node sleeps and has to be woken.
    #[must_use]
    pub fn post(&self, slot: usize, descriptor: &Descriptor) -> bool {
        self.write(slot, descriptor);
        self.ring(1 << (slot % SLOTS))
    }

    /// The program's: rings for these channels. True: the node has to be woken.
    #[must_use]
    pub fn ring(&self, slots: u64) -> bool {
        // Sequentially consistent with the node's saying that it sleeps and looking again.
        self.long(DOORBELL).fetch_or(slots, Ordering::SeqCst);
        self.short(ASLEEP).load(Ordering::SeqCst) != 0
    }

    /// The channels rung for that the node has not taken yet.
    pub fn rung(&self) -> u64 {
        self.long(DOORBELL).load(Ordering::Relaxed)
    }

    /// The program's: how far a transfer is.
    pub fn status(&self, slot: usize) -> Status {
        match TransferStatus::from_word(self.done(slot).load(Ordering::SeqCst), is_read(slot)) {
            Some(TransferStatus::Complete) => Status::Finished,
            Some(TransferStatus::Failed) => Status::FinishedWithError(Failure::from_code(self.result(slot))),
            Some(TransferStatus::Paused) => Status::Paused,
            _ => Status::Ongoing,
        }
    }

    /// The program's: the word before an atomic operation, once that has finished.
    pub fn result(&self, slot: usize) -> u64 {
        self.word(slot, RESULT_WORD).load(Ordering::Relaxed)
    }

    /// The program's: transfers that have ended, and messages that have come, while it asked to hear of them. Wraps.
    pub fn ended(&self) -> u32 {
        self.short(ENDED).load(Ordering::SeqCst)
    }

    /// The program's: how it also wants to hear of transfers that end. Say so, look at the transfers
    /// and [`Self::ended`], sleep. [`Waiting::Message`] is for the next one alone.
    pub fn wait_by(&self, waiting: Waiting) {
        self.short(WAITING).fetch_or(waiting as u32, Ordering::SeqCst);
    }

    /// The program's: asks no longer to be told in this way.
    pub fn wait_no_more_by(&self, waiting: Waiting) {
        self.short(WAITING).fetch_and(!(waiting as u32), Ordering::SeqCst);
    }

    /// The program's: sleeps until more than `ended` transfers have ended, or the time is over. With a slot, only the end of that slot's
    /// transfer wakes the caller (or that of the slot 32 away); with `None`, each end and each message. May return early. Only after
    /// [`Waiting::Futex`].
    pub fn sleep(&self, ended: u32, timeout: Duration, slot: Option<usize>) {
        let reasons = slot.map_or(EVERY_REASON, reason);
        event::futex_wait_for(self.short(ENDED), ended, timeout, reasons);
    }

    /// The node's: the channels rung for since the last time.
    pub fn take_rung(&self) -> u64 {
        let doorbell = self.long(DOORBELL);
        // A load is cheap; a swap takes the cache line from the program.
        if doorbell.load(Ordering::Relaxed) == 0 { 0 } else { doorbell.swap(0, Ordering::SeqCst) }
    }

    /// The node's: announces that it sleeps. True: the doorbell was rung meanwhile, so it must not sleep.
    pub fn fall_asleep(&self) -> bool {
        self.short(ASLEEP).store(1, Ordering::SeqCst);
        self.long(DOORBELL).load(Ordering::SeqCst) != 0
    }

    /// The node's: announces that it is awake.
    pub fn wake_up(&self) {
        self.short(ASLEEP).store(0, Ordering::SeqCst);
    }

    /// The node's: a private copy of what a channel asks for.
    pub fn descriptor(&self, slot: usize) -> Result<Descriptor, SlotError> {
        let words: [u64; 8] = std::array::from_fn(|word| self.word(slot, word).load(Ordering::Relaxed));
        Descriptor::decode(&words)
    }

    /// The node's: a transfer has ended, well (with the word before an atomic operation) or not. True:
    /// the program asks for a message.
    #[must_use]
    pub fn notify_end(&self, slot: usize, result: Result<u64, Failure>) -> bool {
        let (status, word) = match result {
            Ok(before) => (TransferStatus::Complete, before),
            Err(failure) => (TransferStatus::Failed, failure.code()),
        };
        self.word(slot, RESULT_WORD).store(word, Ordering::Relaxed);
        self.notify(slot, status)
    }

    /// The node's: how far a transfer is. True: it has ended, and the program asks for a message.
    #[must_use]
    pub fn notify(&self, slot: usize, status: TransferStatus) -> bool {
        let word = status.word(is_read(slot));
        if status == TransferStatus::Ongoing || status == TransferStatus::Initialised {
            // Nothing waits for a transfer that only began.
            self.done(slot).store(word, Ordering::Release);
            return false;
        }
        self.done(slot).store(word, Ordering::SeqCst);
        self.announce_for(reason(slot))
    }

    /// The node's: something has happened that the program may wait for, and was stored sequentially
    /// consistently, as the program says that it waits before it looks again. True: it asks for a message.
    #[must_use]
    pub fn announce(&self) -> bool {
        self.announce_for(EVERY_REASON)
    }

    fn announce_for(&self, reasons: NonZeroU32) -> bool {
        let waiting = self.short(WAITING).load(Ordering::SeqCst);
        if waiting == 0 {
            return false;
        }
        self.short(ENDED).fetch_add(1, Ordering::SeqCst);
        if waiting & Waiting::Futex as u32 != 0 {
            event::futex_wake_for(self.short(ENDED), MAX_WOKEN, reasons);
        }
        // One message for each time it was asked for: a program that does not read must not find its socket full.
        let message = Waiting::Message as u32;
        waiting & message != 0 && self.short(WAITING).fetch_and(!message, Ordering::SeqCst) & message != 0
    }
}

/// The most threads of a program that one event wakes: waking costs the node's time. With more sleepers that match, the rest wake by
/// themselves when their sleep is over (100 ms at most).
const MAX_WOKEN: u32 = 256;

/// What threads sleep for that wait for anything.
const EVERY_REASON: NonZeroU32 = NonZeroU32::MAX;

/// What a thread sleeps for that waits for this slot.
fn reason(slot: usize) -> NonZeroU32 {
    NonZeroU32::new(1 << (slot as u32 % u32::BITS)).unwrap_or(EVERY_REASON)
}

/// How a program hears of transfers that end, besides looking by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Waiting {
    /// It sleeps in [`ChannelPage::sleep`].
    Futex = 1,
    /// By one message on its socket, which it polls.
    Message = 2,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::Target;

    #[test]
    fn a_descriptor_crosses_and_its_end_comes_back() {
        let ours = ChannelPage::create().unwrap();
        let theirs = ChannelPage::open(ours.as_fd().try_clone_to_owned().unwrap()).unwrap();
        let target = Target { node: 3, domain: 4 };
        let descriptor = Descriptor { class: Some(1), ..Descriptor::new(1, 2, u32::MAX, target) };
        assert_eq!(theirs.status(5), Status::Ongoing);
        for slot in [5, 40, 63] {
            assert!(!theirs.post(slot, &descriptor));
            assert!(!theirs.ring(1 << slot));
            assert_eq!((ours.take_rung(), ours.take_rung()), (1 << slot, 0));
            assert_eq!(ours.descriptor(slot), Ok(descriptor));
            assert!(!ours.notify(slot, TransferStatus::Ongoing));
            assert_eq!(theirs.status(slot), Status::Ongoing);
            let ended = theirs.ended();
            assert!(!ours.notify_end(slot, Ok(77)));
            assert_eq!((theirs.status(slot), theirs.ended()), (Status::Finished, ended));
            assert_eq!(theirs.result(slot), 77);
            theirs.wait_by(Waiting::Message);
            assert!(ours.notify_end(slot, Err(Failure::Gone)));
            assert_eq!(
                (theirs.status(slot), theirs.ended()),
                (Status::FinishedWithError(Failure::Gone), ended + 1)
            );
            theirs.wait_by(Waiting::Futex);
            assert!(!ours.notify_end(slot, Ok(0)), "one message for each time it was asked for");
            assert_eq!(theirs.ended(), ended + 2);
            theirs.wait_no_more_by(Waiting::Futex);
        }
        assert!(!ours.fall_asleep());
        assert!(theirs.post(0, &descriptor), "the node sleeps");
        assert!(ours.fall_asleep(), "the doorbell was rung");
    }

    /// A thread that sleeps for the end of one slot's transfer is woken for that, and not for the end of another's.
    #[test]
    fn threads_are_woken_for_their_own_transfers() {
        const LONG: Duration = Duration::from_secs(60);
        let page = ChannelPage::create().unwrap();
        page.wait_by(Waiting::Futex);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while page.status(3) == Status::Ongoing {
                    page.sleep(page.ended(), LONG, Some(3));
                }
            });
            let wake = |slot| event::futex_wake_for(page.short(ENDED), MAX_WOKEN, reason(slot));
            let mut woken = 0;
            while woken < 20 {
                assert_eq!(wake(4) + wake(36), 0, "it sleeps for slot 3");
                woken += wake(3);
                std::thread::yield_now();
            }
            assert!(!page.notify_end(3, Ok(0)));
        });
    }
}
