//! The memory that a node and a program share for accesses.
//!
//! ```text
//! 0     posted (the node's)   │ 64   answered (the program's)   │ 128  asleep │ 192  wakes (a futex)
//! 4096  orders: a ring of 64 bytes each      then outcomes, as many     then the staging
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tombolo_host::event;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::shared::{SharedMemory, SharedMemoryError, SharedSpan, SharedSpanMut};

use super::order::{Order, Outcome, RING_ORDERS, WORDS};

/// Bytes for what is copied.
pub const STAGING_BYTES: usize = 4 << 20;

const POSTED: usize = 0;
const ANSWERED: usize = 64;
const ASLEEP: usize = 128;
const WAKES: usize = 192;
const ORDERS: usize = 4096;
const RING_BYTES: usize = RING_ORDERS as usize * WORDS * 8;
const OUTCOMES: usize = ORDERS + RING_BYTES;
const STAGING: usize = OUTCOMES + RING_BYTES;
const AREA_BYTES: usize = STAGING + STAGING_BYTES;

/// The area, as the node and the program see it.
#[derive(Debug)]
pub struct AccessArea(SharedMemory);

impl AsFd for AccessArea {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AccessArea {
    /// A new area, without orders.
    pub fn create() -> Result<Self, SharedMemoryError> {
        Ok(Self(SharedMemory::create("tombolo-accesses", AREA_BYTES)?))
    }

    /// An area that the node made.
    pub fn open(descriptor: impl Into<PassedDescriptor>) -> Result<Self, SharedMemoryError> {
        Ok(Self(SharedMemory::open(descriptor, AREA_BYTES)?))
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        self.0.atomic_u64(offset).unwrap_or_else(|_| unreachable!("inside, by the constants above"))
    }

    fn asleep(&self) -> &AtomicU32 {
        self.0.atomic_u32(ASLEEP).unwrap_or_else(|_| unreachable!("inside, by the constants above"))
    }

    fn wakes(&self) -> &AtomicU32 {
        self.0.atomic_u32(WAKES).unwrap_or_else(|_| unreachable!("inside, by the constants above"))
    }

    fn load(&self, ring: usize, at: u64) -> [u64; WORDS] {
        let place = ring + (at % RING_ORDERS) as usize * WORDS * 8;
        std::array::from_fn(|word| self.long(place + word * 8).load(Ordering::Relaxed))
    }

    fn store(&self, ring: usize, at: u64, words: &[u64; WORDS]) {
        let place = ring + (at % RING_ORDERS) as usize * WORDS * 8;
        for (word, value) in words.iter().enumerate() {
            self.long(place + word * 8).store(*value, Ordering::Relaxed);
        }
    }

    /// The node's: its order of that number in the sequence, and the program is woken if it sleeps.
    pub fn post(&self, at: u64, order: &Order) {
        self.store(ORDERS, at, &order.encode());
        // Sequentially consistent with the program's saying that it sleeps and looking again.
        self.long(POSTED).store(at + 1, Ordering::SeqCst);
        if self.asleep().load(Ordering::SeqCst) != 0 && self.asleep().swap(0, Ordering::SeqCst) != 0 {
            self.wake();
        }
    }

    /// The node's: how many orders the program says to have answered.
    pub fn answered(&self) -> u64 {
        self.long(ANSWERED).load(Ordering::SeqCst)
    }

    /// The node's: an answer, in the sequence of answers. `None`: that is none.
    pub fn outcome(&self, at: u64) -> Option<(u64, Outcome)> {
        Outcome::decode(&self.load(OUTCOMES, at))
    }

    /// The program's: how many orders there were.
    pub fn posted(&self) -> u64 {
        self.long(POSTED).load(Ordering::SeqCst)
    }

    /// The program's: an order, in the sequence of orders. The error is the number of one that makes no sense.
    pub fn order(&self, at: u64) -> Result<Order, u64> {
        let words = self.load(ORDERS, at);
        Order::decode(&words).ok_or(words[0])
    }

    /// The program's: its answer of that number in the sequence.
    pub fn answer(&self, at: u64, id: u64, outcome: Outcome) {
        self.store(OUTCOMES, at, &outcome.encode(id));
        self.long(ANSWERED).store(at + 1, Ordering::SeqCst);
    }

    /// The program's: no thread looks for orders any more; look at [`Self::posted`] once more after this.
    pub fn fall_asleep(&self) {
        self.asleep().store(1, Ordering::SeqCst);
    }

    /// The program's: a thread looks for orders again and again.
    pub fn stay_awake(&self) {
        self.asleep().store(0, Ordering::SeqCst);
    }

    /// The program's: how often threads were woken that [`Self::sleep`].
    pub fn woken(&self) -> u32 {
        self.wakes().load(Ordering::SeqCst)
    }

    /// The program's: sleeps until one was woken more often than that, or the time is over.
    pub fn sleep(&self, woken: u32, timeout: Duration) {
        event::futex_wait(self.wakes(), woken, Some(timeout));
    }

    /// Wakes a thread that sleeps.
    pub fn wake(&self) {
        self.wake_some(1);
    }

    /// Wakes all that sleep.
    pub fn wake_all(&self) {
        self.wake_some(u32::MAX >> 1);
    }

    fn wake_some(&self, count: u32) {
        self.wakes().fetch_add(1, Ordering::SeqCst);
        event::futex_wake(self.wakes(), count);
    }

    /// Bytes of the staging, to read.
    pub fn span(&self, offset: u64, length_bytes: u32) -> Option<SharedSpan<'_>> {
        let place = Self::place(offset, length_bytes)?;
        self.0.span(place, length_bytes as usize).ok()
    }

    /// Bytes of the staging, to write.
    pub fn span_mut(&self, offset: u64, length_bytes: u32) -> Option<SharedSpanMut<'_>> {
        let place = Self::place(offset, length_bytes)?;
        self.0.span_mut(place, length_bytes as usize).ok()
    }

    fn place(offset: u64, length_bytes: u32) -> Option<usize> {
        let end = offset.checked_add(length_bytes.into())?;
        (end <= STAGING_BYTES as u64).then_some(STAGING + offset as usize)
    }
}
