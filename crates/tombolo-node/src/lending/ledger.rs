//! The ledger: how much memory this node lends, to which peer, and under which names.
//!
//! A segment is a fresh memfd, zeroed by the kernel. Its pages are allocated when it is lent, so that the borrower does
//! not find out later that there are none. They are freed in the pool when the peer that has the segment releases it or
//! is lost. A published segment is freed when its name is gone and no peer reads it any more. Its room can be lent
//! again when the memory is free ([`crate::memory::reclaim`]).

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
    /// More bytes were asked for than are free.
    #[error("{asked_bytes} bytes asked, {free_bytes} free")]
    TooMuch {
        /// Bytes asked for.
        asked_bytes: u64,
        /// Bytes that could be lent.
        free_bytes: u64,
    },
    /// The size is zero, or not whole pages.
    #[error("{0} bytes are not a whole number of pages")]
    BadSize(u64),
    /// The peer has as many segments as a peer may have.
    #[error("you have {MAX_SEGMENTS} segments, and may have no more: release some")]
    NoNumber,
    /// There will be enough memory when more of what was given back is free.
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

/// Maximum number of segments of one peer. Each takes a file descriptor of this process, which needs some for other
/// purposes.
const MAX_SEGMENTS: u16 = 256;
/// The last number of a segment. The numbers above it are programs' domains.
const LAST_NUMBER: u16 = 0x7FFF;

/// A segment with a name. Its bytes no longer change.
#[derive(Debug, Clone)]
pub struct Published {
    /// The memory, whose last page may extend beyond the bytes.
    pub segment: Arc<Segment>,
    /// Number of bytes.
    pub length_bytes: u64,
    /// Checksum of the bytes.
    pub checksum: Checksum,
    /// When the segment got its name.
    pub since: Instant,
}

/// The segment that a peer has under a number.
#[derive(Debug)]
enum Holding {
    /// Memory for any use of the peer, which may have its descriptor.
    Lent(Segment),
    /// A draft that the peer fills and then publishes, with its length. The peer reaches it through this node alone.
    Draft(Segment, u64),
    /// A published segment that the peer reads. Other peers may read it, too.
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

/// The segments of each peer, and the published segments.
#[derive(Debug)]
pub struct Ledger {
    account: Arc<Account>,
    segments: BTreeMap<(PeerId, u16), Holding>,
    /// The number that was last given to a segment.
    last_number: u16,
    named: BTreeMap<SegmentName, Published>,
}

impl Ledger {
    /// A ledger with nothing lent, of `lend_bytes`.
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

    /// Bytes that may be lent altogether.
    pub fn lend_bytes(&self) -> u64 {
        self.account.limit_bytes()
    }

    /// Bytes that are lent to peers or published.
    pub fn lent_bytes(&self) -> u64 {
        self.account.in_use_bytes()
    }

    /// Takes room for `bytes`. This comes before their allocation, which takes time.
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
        // Numbers are given in turn, so that late packets for a released segment find nothing.
        let after = (self.last_number + 1..=LAST_NUMBER).chain(1..=self.last_number);
        let number = after.into_iter().find(|&number| !self.segments.contains_key(&(peer, number)));
        let number = number.ok_or(LendError::NoNumber)?;
        self.last_number = number;
        self.segments.insert((peer, number), holding);
        Ok(number)
    }

    /// Enters a segment that is lent to a peer. Returns its number.
    pub fn enter(&mut self, peer: PeerId, segment: Segment) -> Result<u16, LendError> {
        self.hold(peer, Holding::Lent(segment))
    }

    /// Enters a draft that a peer will fill with `length_bytes` and publish. Returns its number.
    pub fn enter_draft(
        &mut self,
        peer: PeerId,
        segment: Segment,
        length_bytes: u64,
    ) -> Result<u16, LendError> {
        self.hold(peer, Holding::Draft(segment, length_bytes))
    }

    /// Takes a draft away from its peer, which can no longer change it.
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

    /// Publishes a segment under a name. Returns the segment that had the name before: peers that read it go on reading
    /// it.
    pub fn publish(&mut self, name: SegmentName, published: Published) -> Option<Published> {
        self.named.insert(name, published)
    }

    /// The segment with this name.
    pub fn named(&self, name: &SegmentName) -> Option<&Published> {
        self.named.get(name)
    }

    /// The published segments whose names come after this one, in order.
    pub fn named_after(
        &self,
        name: Option<&SegmentName>,
    ) -> impl Iterator<Item = (&SegmentName, &Published)> {
        let after = name.map_or(Bound::Unbounded, Bound::Excluded);
        self.named.range::<SegmentName, _>((after, Bound::Unbounded))
    }

    /// Removes a name and returns its segment: peers that read the segment go on reading it.
    pub fn unpublish(&mut self, name: &SegmentName) -> Option<Published> {
        self.named.remove(name)
    }

    /// Number of published segments, and of their bytes.
    pub fn named_totals(&self) -> NamedTotals {
        let bytes = self.named.values().map(|published| published.length_bytes).sum();
        NamedTotals { segments: self.named.len() as u64, bytes }
    }

    /// Lets a peer read the segment with this name. Returns the segment's number at that peer, and the segment.
    pub fn open(&mut self, peer: PeerId, name: &SegmentName) -> Option<Result<(u16, Published), LendError>> {
        let published = self.named.get(name)?.clone();
        let number = self.hold(peer, Holding::Reading(published.segment.clone()));
        Some(number.map(|number| (number, published)))
    }

    /// The memory of a peer's segment, and whether the peer may only read it.
    pub fn find(&self, peer: PeerId, number: u16) -> Option<(Arc<SharedMemory>, bool)> {
        let holding = self.segments.get(&(peer, number))?;
        Some((holding.memory().clone(), matches!(holding, Holding::Reading(_))))
    }

    /// The memory that is lent to a peer under that number, to be passed to the peer again. Which of the peer's
    /// processes maps it is not known.
    pub fn lent(&mut self, peer: PeerId, number: u16) -> Option<Arc<SharedMemory>> {
        match self.segments.get_mut(&(peer, number))? {
            Holding::Lent(segment) => {
                segment.set_holder(Holder::Anybody);
                Some(segment.memory().clone())
            }
            Holding::Draft(..) | Holding::Reading(_) => None,
        }
    }

    /// Takes a segment back. False: the peer has no segment with this number.
    pub fn release(&mut self, peer: PeerId, number: u16) -> bool {
        let mut released = self.segments.remove(&(peer, number));
        if let Some(Holding::Lent(segment)) = &mut released {
            // The peer is alive and may still have the segment mapped.
            segment.set_holder(Holder::Anybody);
        }
        released.is_some()
    }

    /// Takes all segments of a peer back. Returns the bytes that this frees.
    pub fn release_all(&mut self, peer: PeerId) -> u64 {
        let before = self.lent_bytes();
        let held: Vec<_> =
            self.segments.range((peer, 0)..=(peer, u16::MAX)).map(|(&number, _)| number).collect();
        for number in held {
            self.segments.remove(&number);
        }
        before.saturating_sub(self.lent_bytes())
    }

    /// The segments that only this peer has: not the published segments that it reads.
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

    /// Takes room, and waits for memory that is being freed.
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
            // Memory without its pages: they do not matter here, and allocating them takes time.
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
        // The peer may have the descriptor of lent memory, and could change the memory later.
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
