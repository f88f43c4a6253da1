//! What this node lends: how much, to which peer, and under which names.
//!
//! A segment is a fresh memfd: zeroed by the kernel before anyone sees it, its
//! pages allocated when it is lent (so that a borrower does not find out later
//! that there are none), and freed, in the pool, when the peer that has it releases
//! it or goes; a published segment when its name is gone and nobody reads it. What it
//! takes of what may be lent can be lent again when it is free ([`crate::memory::reclaim`]).

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use tombolo_core::rdma::PeerId;
use tombolo_host::shared::SharedMemory;

use crate::fabric::life::NoRandomNumbers;
use crate::fabric::messages::Checksum;
use crate::fabric::status::NamedTotals;
use crate::lending::named::SegmentName;
use crate::memory::allocation::AllocationError;
use crate::memory::reclaim::{Account, Holder, Room, Segment, TakeError};

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
    /// A peer has as many segments as one may have.
    #[error("you have {MAX_SEGMENTS} segments, and may have no more: release some")]
    NoNumber,
    /// There will be enough when more is freed of what others gave back.
    #[error("what others gave back is not free yet")]
    BeingFreed,
    /// The system refused.
    #[error("the system gives no memory: {0}")]
    System(String),
}

impl From<AllocationError> for LendError {
    fn from(error: AllocationError) -> Self {
        match error {
            AllocationError::BadSize(bytes) => Self::BadSize(bytes),
            AllocationError::System(reason) => Self::System(reason),
        }
    }
}

impl From<NoRandomNumbers> for LendError {
    fn from(error: NoRandomNumbers) -> Self {
        Self::System(error.to_string())
    }
}

/// Segments that one peer may have. Each has a descriptor of this process, which others need too.
const MAX_SEGMENTS: u16 = 256;
/// From the next on the numbers are of programs' domains.
const LAST_NUMBER: u16 = 0x7FFF;

/// A segment with a name. Its bytes do not change any more.
#[derive(Debug, Clone)]
pub struct Published {
    /// The memory; its last page may be longer than the bytes.
    pub segment: Arc<Segment>,
    /// How many bytes there are.
    pub length_bytes: u64,
    /// Of those.
    pub checksum: Checksum,
    /// Since when it has the name.
    pub since: Instant,
}

/// What a peer has under a number.
#[derive(Debug)]
enum Holding {
    /// Memory to do with as it likes. It may have its descriptor.
    Lent(Segment),
    /// A draft that the peer fills, to be published. The peer reaches it through this node alone.
    Draft(Segment, u64),
    /// What others may read as well.
    Reading(Arc<Segment>),
}

impl Holding {
    fn memory(&self) -> &Arc<SharedMemory> {
        match self {
            Self::Lent(segment) | Self::Draft(segment, _) => segment.memory(),
            Self::Reading(segment) => segment.memory(),
        }
    }
}

/// Who has what.
#[derive(Debug)]
pub struct Ledger {
    account: Arc<Account>,
    segments: BTreeMap<(PeerId, u16), Holding>,
    /// The number that was given last.
    last_number: u16,
    named: BTreeMap<SegmentName, Published>,
}

impl Ledger {
    /// Nothing lent yet, of `lend_bytes`.
    pub fn new(lend_bytes: u64) -> Self {
        Self {
            account: Account::new(lend_bytes),
            segments: BTreeMap::new(),
            last_number: 0,
            named: BTreeMap::new(),
        }
    }

    /// The account of what is lent.
    pub(crate) fn account(&self) -> Arc<Account> {
        self.account.clone()
    }

    /// What may be lent.
    pub fn lend_bytes(&self) -> u64 {
        self.account.limit_bytes()
    }

    /// What is lent, to peers or for names.
    pub fn lent_bytes(&self) -> u64 {
        self.account.in_use_bytes()
    }

    /// Takes `bytes` of what may be lent, before they are allocated, which takes time.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<Room, LendError> {
        if bytes == 0 || !bytes.is_multiple_of(4096) {
            return Err(LendError::BadSize(bytes));
        }
        self.account.take(bytes).map_err(|error| match error {
            TakeError::TooMuch { free_bytes } => LendError::TooMuch { asked_bytes: bytes, free_bytes },
            TakeError::BeingFreed => LendError::BeingFreed,
        })
    }

    fn hold(&mut self, peer: PeerId, holding: Holding) -> Result<u16, LendError> {
        if self.segments.range((peer, 0)..=(peer, u16::MAX)).count() >= MAX_SEGMENTS.into() {
            return Err(LendError::NoNumber);
        }
        // One after the other: what is late for a segment that was released finds nothing.
        let after = (self.last_number + 1..=LAST_NUMBER).chain(1..=self.last_number);
        let number = after.into_iter().find(|&number| !self.segments.contains_key(&(peer, number)));
        let number = number.ok_or(LendError::NoNumber)?;
        self.last_number = number;
        self.segments.insert((peer, number), holding);
        Ok(number)
    }

    /// Enters what is lent to a peer; returns its number.
    pub fn enter(&mut self, peer: PeerId, segment: Segment) -> Result<u16, LendError> {
        self.hold(peer, Holding::Lent(segment))
    }

    /// Enters what a peer will fill with `length_bytes` and publish; returns its number.
    pub fn enter_draft(
        &mut self,
        peer: PeerId,
        segment: Segment,
        length_bytes: u64,
    ) -> Result<u16, LendError> {
        self.hold(peer, Holding::Draft(segment, length_bytes))
    }

    /// Takes what a peer has filled out of its hands: it cannot change it any more.
    pub fn take_draft(&mut self, peer: PeerId, number: u16) -> Option<(Segment, u64)> {
        match self.segments.remove(&(peer, number)) {
            Some(Holding::Draft(segment, length_bytes)) => Some((segment, length_bytes)),
            Some(other) => {
                self.segments.insert((peer, number), other);
                None
            }
            None => None,
        }
    }

    /// Gives bytes a name. What had it before is returned: who reads that goes on reading it.
    pub fn publish(&mut self, name: SegmentName, published: Published) -> Option<Published> {
        self.named.insert(name, published)
    }

    /// What has this name.
    pub fn named(&self, name: &SegmentName) -> Option<&Published> {
        self.named.get(name)
    }

    /// Everything that has a name, of the names after this one.
    pub fn named_after(
        &self,
        name: Option<&SegmentName>,
    ) -> impl Iterator<Item = (&SegmentName, &Published)> {
        let after = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.named.range::<SegmentName, _>((after, Bound::Unbounded))
    }

    /// Takes a name away. Who reads what had it goes on reading it.
    pub fn unpublish(&mut self, name: &SegmentName) -> Option<Published> {
        self.named.remove(name)
    }

    /// How many segments have names, and of how many bytes.
    pub fn named_totals(&self) -> NamedTotals {
        let bytes = self.named.values().map(|published| published.length_bytes).sum();
        NamedTotals { segments: self.named.len() as u64, bytes }
    }

    /// Lets a peer read what has this name; its number, and what it reads.
    pub fn open(&mut self, peer: PeerId, name: &SegmentName) -> Option<Result<(u16, Published), LendError>> {
        let published = self.named.get(name)?.clone();
        let number = self.hold(peer, Holding::Reading(published.segment.clone()));
        Some(number.map(|number| (number, published)))
    }

    /// A peer's segment, and whether it is there to be read only.
    pub fn find(&self, peer: PeerId, number: u16) -> Option<(Arc<SharedMemory>, bool)> {
        let holding = self.segments.get(&(peer, number))?;
        Some((holding.memory().clone(), matches!(holding, Holding::Reading(_))))
    }

    /// The memory that is lent to a peer under that number, to be mapped by it: by which of its processes is not known.
    pub fn lent(&mut self, peer: PeerId, number: u16) -> Option<Arc<SharedMemory>> {
        match self.segments.get_mut(&(peer, number))? {
            Holding::Lent(segment) => {
                segment.set_holder(Holder::Anybody);
                Some(segment.memory().clone())
            }
            Holding::Draft(..) | Holding::Reading(_) => None,
        }
    }

    /// Takes a segment back. False: the peer has no such one.
    pub fn release(&mut self, peer: PeerId, number: u16) -> bool {
        let mut released = self.segments.remove(&(peer, number));
        if let Some(Holding::Lent(segment)) = &mut released {
            // The peer lives, and has it mapped still, perhaps.
            segment.set_holder(Holder::Anybody);
        }
        released.is_some()
    }

    /// Takes everything back that a peer has; returns the bytes.
    pub fn release_all(&mut self, peer: PeerId) -> u64 {
        let before = self.lent_bytes();
        let held: Vec<_> =
            self.segments.range((peer, 0)..=(peer, u16::MAX)).map(|(&number, _)| number).collect();
        for number in held {
            self.segments.remove(&number);
        }
        before.saturating_sub(self.lent_bytes())
    }

    /// What a peer alone has: what it reads under a name belongs to nobody.
    pub fn segments_of(&self, peer: PeerId) -> impl Iterator<Item = (u16, &Arc<SharedMemory>)> {
        let holdings = self.segments.range((peer, 0)..=(peer, u16::MAX));
        let own = holdings.filter(|(_, holding)| !matches!(holding, Holding::Reading(_)));
        own.map(|(&(_, number), holding)| (number, holding.memory()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::allocation::allocate;
    use crate::memory::reclaim::Reclaimer;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn segment(ledger: &mut Ledger, bytes: u64) -> Result<Segment, LendError> {
        let room = reserve(ledger, bytes)?;
        Ok(Segment::new(Arc::new(allocate(bytes)?), room, reclaimer()))
    }

    fn reclaimer() -> Reclaimer {
        Reclaimer::new(crate::memory::blocking::Pools::new(), crate::memory::blocking::Owner::Peer(PeerId(1)))
    }

    /// Waits for what is being freed.
    fn reserve(ledger: &mut Ledger, bytes: u64) -> Result<Room, LendError> {
        let since = Instant::now();
        loop {
            match ledger.reserve(bytes) {
                Err(LendError::BeingFreed) => assert!(since.elapsed() < Duration::from_secs(60)),
                reserved => return reserved,
            }
            std::thread::yield_now();
        }
    }

    fn lend(ledger: &mut Ledger, peer: PeerId, bytes: u64) -> Result<u16, LendError> {
        let segment = segment(ledger, bytes)?;
        ledger.enter(peer, segment)
    }

    fn publish(ledger: &mut Ledger, peer: PeerId, name: &str, bytes: u64) -> Option<Published> {
        let draft = segment(ledger, bytes).unwrap();
        let number = ledger.enter_draft(peer, draft, bytes).unwrap();
        let (segment, length_bytes) = ledger.take_draft(peer, number).unwrap();
        let published = Published {
            segment: Arc::new(segment),
            length_bytes,
            checksum: Checksum([0; 32]),
            since: Instant::now(),
        };
        ledger.publish(name.parse().unwrap(), published)
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
    fn a_number_comes_again_after_all_others() {
        let mut ledger = Ledger::new(1 << 20);
        let kept = lend(&mut ledger, A, 4096).unwrap();
        let (mut last, reclaimer) = (kept, reclaimer());
        for _ in 0..u32::from(LAST_NUMBER) + 10 {
            // Its pages do not matter here, and to allocate them takes time.
            let memory = Arc::new(SharedMemory::create("test", 4096).unwrap());
            let room = reserve(&mut ledger, 4096).unwrap();
            let number = ledger.enter(A, Segment::new(memory, room, reclaimer.clone())).unwrap();
            let next = if last == LAST_NUMBER { kept + 1 } else { last + 1 };
            assert_eq!(number, next);
            assert!(ledger.release(A, number));
            last = number;
        }
        for _ in 1..MAX_SEGMENTS {
            lend(&mut ledger, A, 4096).unwrap();
        }
        assert!(matches!(lend(&mut ledger, A, 4096), Err(LendError::TooMuch { .. } | LendError::NoNumber)));
    }

    #[test]
    fn a_peer_that_is_gone_leaves_nothing() {
        let mut ledger = Ledger::new(1 << 20);
        lend(&mut ledger, A, 4096).unwrap();
        lend(&mut ledger, A, 4096).unwrap();
        let draft = segment(&mut ledger, 4096).unwrap();
        ledger.enter_draft(A, draft, 1).unwrap();
        let kept = lend(&mut ledger, B, 4096).unwrap();
        assert_eq!(ledger.release_all(A), 3 * 4096);
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
        assert_eq!(ledger.lent_bytes(), 0);
    }

    #[test]
    fn a_name_outlives_who_gave_it_and_its_readers_outlive_the_name() {
        let mut ledger = Ledger::new(1 << 20);
        let name = "x".parse().unwrap();
        assert!(publish(&mut ledger, A, "x", 4096).is_none());
        assert_eq!((ledger.release_all(A), ledger.lent_bytes()), (0, 4096));
        let (old, _) = ledger.open(B, &name).unwrap().unwrap();
        assert!(publish(&mut ledger, A, "x", 8192).is_some());
        assert_eq!(ledger.lent_bytes(), 12288, "B still reads the old one");
        assert_eq!(ledger.find(B, old).unwrap().0.len(), 4096);
        let (new, _) = ledger.open(B, &name).unwrap().unwrap();
        assert_eq!(ledger.find(B, new).unwrap().0.len(), 8192);
        assert!(ledger.unpublish(&name).is_some());
        assert!(ledger.unpublish(&name).is_none() && ledger.open(B, &name).is_none());
        assert!(ledger.release(B, old));
        assert_eq!(ledger.lent_bytes(), 8192);
        assert_eq!((ledger.release_all(B), ledger.lent_bytes()), (8192, 0));
    }

    #[test]
    fn a_reader_changes_nothing_and_only_a_draft_can_be_published() {
        let mut ledger = Ledger::new(1 << 20);
        publish(&mut ledger, A, "x", 4096);
        let (reading, _) = ledger.open(A, &"x".parse().unwrap()).unwrap().unwrap();
        assert!(ledger.find(A, reading).unwrap().1, "to be read only");
        assert!(ledger.find(B, reading).is_none());
        // Whoever has lent memory may have its descriptor, and could change it later.
        let lent = lend(&mut ledger, A, 4096).unwrap();
        for number in [lent, reading, 99] {
            assert!(ledger.take_draft(A, number).is_none());
        }
        assert!(!ledger.find(A, lent).unwrap().1, "it is still there");
        assert_eq!(ledger.segments_of(A).count(), 1);
    }

    #[test]
    fn names_are_listed_in_order_from_any_on() {
        let mut ledger = Ledger::new(1 << 20);
        for name in ["b", "a", "c"] {
            publish(&mut ledger, A, name, 4096);
        }
        let after = |name: Option<&str>| -> Vec<String> {
            let name = name.map(|name| name.parse().unwrap());
            ledger.named_after(name.as_ref()).map(|(name, _)| name.to_string()).collect()
        };
        assert_eq!(after(None), ["a", "b", "c"]);
        assert_eq!(after(Some("a")), ["b", "c"]);
        assert_eq!(after(Some("bb")), ["c"]);
        assert!(after(Some("c")).is_empty());
    }
}
