//! What this node lends: how much, and to which peer.
//!
//! A segment is a fresh memfd: zeroed by the kernel before anyone sees it, its
//! pages allocated when it is lent (so that a borrower does not find out later
//! that there are none), and freed when the last mapping of it goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use tombolo_core::rdma::PeerId;
use tombolo_host::shared::SharedMemory;

/// Why memory was not lent.
#[derive(Debug, thiserror::Error)]
pub enum LendError {
    /// More than is free.
    #[error("{asked_bytes} bytes asked, {free_bytes} free")]
    TooMuch {
        /// What was asked.
        asked_bytes: u64,
        /// What could be lent.
        free_bytes: u64,
    },
    /// Zero, or not whole pages.
    #[error("{0} bytes are not a whole number of pages")]
    BadSize(u64),
    /// A peer has as many segments as have numbers.
    #[error("no segment number is free")]
    NoNumber,
    /// The system refused.
    #[error("the system gives no memory: {0}")]
    System(String),
}

/// From here on the numbers are of programs' domains.
const FIRST_PROGRAM: u16 = 0x8000;

/// Who has what.
#[derive(Debug)]
pub struct Ledger {
    lend_bytes: u64,
    lent_bytes: u64,
    segments: BTreeMap<(PeerId, u16), Arc<SharedMemory>>,
}

impl Ledger {
    /// Nothing lent yet, of `lend_bytes`.
    pub fn new(lend_bytes: u64) -> Self {
        Self { lend_bytes, lent_bytes: 0, segments: BTreeMap::new() }
    }

    /// What may be lent.
    pub fn lend_bytes(&self) -> u64 {
        self.lend_bytes
    }

    /// What is lent.
    pub fn lent_bytes(&self) -> u64 {
        self.lent_bytes
    }

    /// Reserves `bytes` for a peer before they are allocated, which takes time.
    pub fn reserve(&mut self, bytes: u64) -> Result<(), LendError> {
        if bytes == 0 || !bytes.is_multiple_of(4096) {
            return Err(LendError::BadSize(bytes));
        }
        let free_bytes = self.lend_bytes.saturating_sub(self.lent_bytes);
        if bytes > free_bytes {
            return Err(LendError::TooMuch { asked_bytes: bytes, free_bytes });
        }
        self.lent_bytes += bytes;
        Ok(())
    }

    /// Undoes [`Ledger::reserve`].
    pub fn unreserve(&mut self, bytes: u64) {
        self.lent_bytes = self.lent_bytes.saturating_sub(bytes);
    }

    /// Enters reserved and allocated memory; returns its number.
    pub fn enter(&mut self, peer: PeerId, memory: Arc<SharedMemory>) -> Result<u16, LendError> {
        let number = (1..FIRST_PROGRAM).find(|&number| !self.segments.contains_key(&(peer, number)));
        let number = number.ok_or(LendError::NoNumber)?;
        self.segments.insert((peer, number), memory);
        Ok(number)
    }

    /// A peer's segment.
    pub fn find(&self, peer: PeerId, number: u16) -> Option<Arc<SharedMemory>> {
        self.segments.get(&(peer, number)).cloned()
    }

    /// Takes a segment back. False: the peer has no such one.
    pub fn release(&mut self, peer: PeerId, number: u16) -> bool {
        let Some(memory) = self.segments.remove(&(peer, number)) else { return false };
        self.unreserve(memory.len() as u64);
        true
    }

    /// Takes everything back that a peer has; returns the bytes.
    pub fn release_all(&mut self, peer: PeerId) -> u64 {
        let numbers: Vec<u16> = self.segments_of(peer).map(|(number, _)| number).collect();
        let before = self.lent_bytes;
        for number in numbers {
            self.release(peer, number);
        }
        before - self.lent_bytes
    }

    /// What a peer has.
    pub fn segments_of(&self, peer: PeerId) -> impl Iterator<Item = (u16, &Arc<SharedMemory>)> {
        self.segments.range((peer, 0)..=(peer, u16::MAX)).map(|(&(_, number), memory)| (number, memory))
    }
}

/// New memory of this size, with all its pages.
pub fn allocate(bytes: u64) -> Result<SharedMemory, LendError> {
    let length = usize::try_from(bytes).map_err(|_| LendError::BadSize(bytes))?;
    let memory = SharedMemory::create("tombolo-segment", length)
        .map_err(|error| LendError::System(error.to_string()))?;
    // Pages on demand could fail when a borrower writes, as SIGBUS or worse.
    const STEP: u64 = 64 << 20;
    let mut offset = 0;
    while offset < bytes {
        let step = STEP.min(bytes - offset);
        let allocated = rustix::io::retry_on_intr(|| {
            rustix::fs::fallocate(&memory, FallocateFlags::empty(), offset, step)
        });
        allocated.map_err(|error| LendError::System(error.to_string()))?;
        offset += step;
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn lend(ledger: &mut Ledger, peer: PeerId, bytes: u64) -> Result<u16, LendError> {
        ledger.reserve(bytes)?;
        ledger.enter(peer, Arc::new(allocate(bytes)?))
    }

    #[test]
    fn no_more_is_lent_than_there_is_and_what_is_released_can_be_lent_again() {
        let mut ledger = Ledger::new(3 * 4096);
        let first = lend(&mut ledger, A, 8192).unwrap();
        assert!(matches!(lend(&mut ledger, B, 8192), Err(LendError::TooMuch { free_bytes: 4096, .. })));
        assert!(!ledger.release(B, first), "not B's");
        assert!(ledger.release(A, first));
        assert!(!ledger.release(A, first), "only once");
        lend(&mut ledger, B, 12288).unwrap();
        assert_eq!(ledger.lent_bytes(), 12288);
    }

    #[test]
    fn a_peer_that_is_gone_leaves_nothing() {
        let mut ledger = Ledger::new(1 << 20);
        lend(&mut ledger, A, 4096).unwrap();
        lend(&mut ledger, A, 4096).unwrap();
        let kept = lend(&mut ledger, B, 4096).unwrap();
        assert_eq!(ledger.release_all(A), 8192);
        assert_eq!(ledger.release_all(A), 0);
        assert!(ledger.find(B, kept).is_some());
    }

    #[test]
    fn memory_is_zero_and_odd_sizes_are_refused() {
        let memory = allocate(8192).unwrap();
        assert!(memory.span(0, 8192).unwrap().to_vec().iter().all(|&byte| byte == 0));
        let mut ledger = Ledger::new(1 << 20);
        assert!(matches!(ledger.reserve(0), Err(LendError::BadSize(0))));
        assert!(matches!(ledger.reserve(4097), Err(LendError::BadSize(4097))));
    }
}
