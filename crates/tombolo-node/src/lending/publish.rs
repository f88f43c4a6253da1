//! Named segments at the node that has them: made, filled by a peer, checked, published, found.
//!
//! ```text
//!   Create --> draft --- the peer's writes ---> Publish --> checksum --> name
//!               |  goes with its link             |           | not that which was said: freed
//! ```
//!
//! A draft is reached through the engine alone: its descriptor stays here, so once it is taken
//! out of the peer's hands nobody can change it. Allocating and checking are tasks of the pool,
//! which answer when they are done; so is allocating what is lent.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tombolo_host::pool::{BlockingTask, Step};
use tombolo_host::shared::SharedMemory;
use tombolo_link::SendError;

use crate::driver::node::{Node, Peer};
use crate::driver::questions::Answered;
use crate::fabric::messages::{Message, MessageV1, NamedSegment, Reply};
use crate::lending::ledger::{Allocation, Ledger, LendError, Published, Segment};
use crate::lending::named::{Checksum, Hasher, SegmentName};
use crate::memory::blocking::Owner;
use crate::memory::reclaim::{Reclaimer, Room};

/// How much is hashed in one step.
const STEP_BYTES: usize = 8 << 20;
/// How long a full link is tried again for an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);
/// Of a list, so that its answer is a control message.
const MAX_LIST_BYTES: usize = 12 * 1024;
/// What an entry takes besides its name: two numbers, a length and the checksum.
const ENTRY_BYTES: usize = 64;

/// Tasks of one peer at once.
const MAX_OPEN_TASKS: u32 = 64;
/// How long a peer that asks for memory waits for what others gave back to be freed.
const FREEING_PATIENCE: Duration = Duration::from_secs(30);

/// Who waits for the end of a task, and under which number.
struct Asker {
    peer: Arc<Peer>,
    /// The link that it asked by: other ones may be lost without anybody knowing it yet.
    by: Arc<Peer>,
    number: u32,
    /// Where the answer is kept, in case it is lost with its link.
    answered: Option<Answered>,
    /// An answer that the link has not taken yet, what goes with it, and until when it is tried.
    unsent: Option<(Vec<u8>, Option<Arc<SharedMemory>>, Instant)>,
}

impl Asker {
    /// None: the peer has too many open tasks.
    fn new(by: &Arc<Peer>, number: u32) -> Option<Self> {
        let (peer, by) = (by.whole().clone(), by.clone());
        let asker = Self { peer, by, number, answered: None, unsent: None };
        let before = asker.peer.open_tasks.fetch_add(1, Ordering::Relaxed);
        (before < MAX_OPEN_TASKS).then_some(asker)
    }

    /// The task has ended so; the answer is sent now, or in later steps.
    fn answer(&mut self, reply: Reply) -> Step {
        self.answer_with(reply, None)
    }

    /// The same, with memory for who can map it.
    fn answer_with(&mut self, reply: Reply, memory: Option<Arc<SharedMemory>>) -> Step {
        if let Some(answered) = &self.answered {
            answered.ended(&self.peer, self.number, &reply);
        }
        let message = Message::V1(MessageV1::Answer { number: self.number, reply }).encode();
        self.unsent = Some((message, memory, Instant::now() + ANSWER_PATIENCE));
        self.send().unwrap_or(Step::Over)
    }

    /// Sends the answer, if there is one. Some: nothing else is left to be done.
    fn send(&mut self) -> Option<Step> {
        let (message, memory, deadline) = self.unsent.as_ref()?;
        let is_of_use = self.by.has_link() && !self.by.link.is_suspect();
        let link = if is_of_use { self.by.link.clone() } else { self.peer.control_link() };
        let memory = memory.as_ref().filter(|_| link.supports_windows());
        let descriptors: SmallVec<[_; 1]> = memory.iter().map(|memory| memory.as_fd()).collect();
        let sent = link.send_control(message, &descriptors);
        let waits = matches!(sent, Err(SendError::Full)) && Instant::now() < *deadline;
        Some(if waits { Step::Waits } else { Step::Over })
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.peer.open_tasks.fetch_sub(1, Ordering::Relaxed);
    }
}

fn too_many() -> Reply {
    Reply::Failed(format!(
        "{MAX_OPEN_TASKS} segments are being made or published for you: wait for their end"
    ))
}

fn failed(error: &impl ToString) -> Reply {
    Reply::Failed(error.to_string())
}

fn refused(error: LendError) -> Reply {
    match error {
        LendError::TooMuch { free_bytes, .. } => Reply::TooMuch { free_bytes },
        error => failed(&error),
    }
}

/// What a published segment is, as peers are told.
fn described(name: &SegmentName, published: &Published) -> NamedSegment {
    NamedSegment {
        name: name.as_str().to_owned(),
        bytes: published.length_bytes,
        checksum: published.checksum,
        age_s: published.since.elapsed().as_secs(),
    }
}

/// How far memory for a peer is.
enum Stage {
    /// What others gave back is being freed, and there will be room then.
    AwaitsRoom(Instant),
    Allocates(Allocation, Room),
    /// It is there, or will not be.
    Over,
}

/// Allocates a draft, or what is lent.
struct Creation {
    asker: Asker,
    ledger: Arc<Mutex<Ledger>>,
    reclaimer: Reclaimer,
    bytes: u64,
    stage: Stage,
    /// The length of a draft, which need not be one of pages.
    draft_bytes: Option<u64>,
}

impl Creation {
    /// Takes room, or waits for it.
    fn reserve(&mut self, since: Instant) -> Result<Step, LendError> {
        let room = self.ledger.lock().reserve(self.bytes);
        match room {
            Err(LendError::BeingFreed) if since.elapsed() < FREEING_PATIENCE => {
                self.stage = Stage::AwaitsRoom(since);
                Ok(Step::Waits)
            }
            room => {
                let room = room?;
                self.stage = Stage::Allocates(Allocation::new(self.bytes)?, room);
                Ok(Step::More)
            }
        }
    }

    /// Allocates some more.
    fn allocate(&mut self, mut allocation: Allocation, room: Room) -> Result<Step, LendError> {
        if !allocation.go_on()? {
            self.stage = Stage::Allocates(allocation, room);
            return Ok(Step::More);
        }
        let memory = Arc::new(allocation.finish());
        let segment = Segment::new(memory.clone(), room, self.reclaimer.clone());
        let (segment, memory) = {
            let (peer, mut ledger) = (&self.asker.peer, self.ledger.lock());
            // Who is lost by now is forgotten under this lock, before or after.
            if peer.loss().is_some() {
                return Ok(Step::Over);
            }
            match self.draft_bytes {
                Some(bytes) => (ledger.enter_draft(peer.id, segment, bytes)?, None),
                None => (ledger.enter(peer.id, segment)?, Some(memory)),
            }
        };
        Ok(self.asker.answer_with(Reply::Lent { segment }, memory))
    }
}

impl BlockingTask for Creation {
    fn step(&mut self) -> Step {
        if let Some(step) = self.asker.send() {
            return step;
        }
        if self.asker.peer.loss().is_some() {
            return Step::Over;
        }
        let step = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::AwaitsRoom(since) => self.reserve(since),
            Stage::Allocates(allocation, room) => self.allocate(allocation, room),
            Stage::Over => Ok(Step::Over),
        };
        step.unwrap_or_else(|error| self.asker.answer(refused(error)))
    }
}

/// Checks a full draft and gives it its name.
struct Publication {
    asker: Asker,
    ledger: Arc<Mutex<Ledger>>,
    name: SegmentName,
    draft: Option<(Segment, u64)>,
    hasher: Hasher,
    hashed_bytes: usize,
    checksum: Checksum,
}

impl BlockingTask for Publication {
    fn step(&mut self) -> Step {
        if let Some(step) = self.asker.send() {
            return step;
        }
        let Some((mut segment, length_bytes)) = self.draft.take() else { return Step::Over };
        if segment.is_in_use() {
            // A packet that came before is being placed by another thread: soon that is over.
            self.draft = Some((segment, length_bytes));
            return Step::Waits;
        }
        let length = usize::try_from(length_bytes).unwrap_or(usize::MAX);
        let step = STEP_BYTES.min(length - self.hashed_bytes);
        if let Ok(span) = segment.memory().span(self.hashed_bytes, step) {
            self.hasher.update_shared(span);
        }
        self.hashed_bytes += step;
        if self.hashed_bytes < length {
            self.draft = Some((segment, length_bytes));
            return Step::More;
        }
        let checksum = std::mem::take(&mut self.hasher).finish();
        if checksum != self.checksum {
            drop(segment);
            return self.asker.answer(Reply::Mismatch { checksum });
        }
        let published =
            Published { segment: Arc::new(segment), length_bytes, checksum, since: Instant::now() };
        let replaced = self.ledger.lock().publish(self.name.clone(), published);
        drop(replaced);
        self.asker.answer(Reply::Done)
    }
}

impl Node {
    /// Makes a draft. None: the answer follows.
    pub(crate) fn create(&self, by: &Arc<Peer>, number: u32, length_bytes: u64) -> Option<Reply> {
        // No bytes take a page too: so names are no more than pages.
        let bytes = length_bytes.max(1).checked_next_multiple_of(4096).unwrap_or(u64::MAX / 4096 * 4096);
        self.begin_creation(by, number, bytes, Some(length_bytes))
    }

    /// Lends memory. None: the answer follows.
    pub(crate) fn lend(&self, by: &Arc<Peer>, number: u32, bytes: u64) -> Option<Reply> {
        self.begin_creation(by, number, bytes, None)
    }

    fn begin_creation(
        &self,
        by: &Arc<Peer>,
        number: u32,
        bytes: u64,
        draft_bytes: Option<u64>,
    ) -> Option<Reply> {
        let Some(asker) = Asker::new(by, number) else { return Some(too_many()) };
        let owner = Owner::Peer(asker.peer.id);
        let (ledger, reclaimer) = (self.ledger.clone(), self.reclaimer(owner));
        let stage = Stage::AwaitsRoom(Instant::now());
        self.begin(owner, Box::new(Creation { asker, ledger, reclaimer, bytes, stage, draft_bytes }))
    }

    /// Publishes a draft. None: the answer follows.
    pub(crate) fn publish(
        &self,
        by: &Arc<Peer>,
        number: u32,
        segment: u16,
        name: &str,
        checksum: Checksum,
    ) -> Option<Reply> {
        let Some(mut asker) = Asker::new(by, number) else { return Some(too_many()) };
        asker.answered = Some(self.answered.clone());
        let Some(draft) = self.ledger.lock().take_draft(asker.peer.id, segment) else {
            return Some(Reply::Failed(format!("segment {segment} is none of yours that can have a name")));
        };
        let name = match name.parse::<SegmentName>() {
            Ok(name) => name,
            Err(error) => return Some(failed(&error)),
        };
        self.begin(
            Owner::Peer(asker.peer.id),
            Box::new(Publication {
                asker,
                ledger: self.ledger.clone(),
                name,
                draft: Some(draft),
                hasher: Hasher::default(),
                hashed_bytes: 0,
                checksum,
            }),
        )
    }

    fn begin(&self, owner: Owner, task: Box<dyn BlockingTask>) -> Option<Reply> {
        self.pool.offer(owner, task).err().map(|error| failed(&error))
    }

    pub(crate) fn find_name(&self, name: &str) -> Reply {
        with_name(name, |name| {
            let ledger = self.ledger.lock();
            let found = ledger.named(name).map(|published| described(name, published));
            found.map_or(Reply::NoSuchName, Reply::Found)
        })
    }

    pub(crate) fn open_name(&self, peer: &Peer, name: &str) -> Reply {
        with_name(name, |name| {
            let mut ledger = self.ledger.lock();
            // Who is lost by now is forgotten under this lock, before or after.
            if peer.loss().is_some() {
                return Reply::Failed("the link is lost".into());
            }
            match ledger.open(peer.id, name) {
                None => Reply::NoSuchName,
                Some(Ok((segment, published))) => {
                    Reply::Opened { segment, found: described(name, &published) }
                }
                Some(Err(error)) => refused(error),
            }
        })
    }

    pub(crate) fn delete_name(&self, name: &str) -> Reply {
        with_name(name, |name| {
            let deleted = self.ledger.lock().unpublish(name);
            deleted.map_or(Reply::NoSuchName, |_| Reply::Done)
        })
    }

    pub(crate) fn list_names(&self, after: Option<&str>) -> Reply {
        let after = match after.map(str::parse::<SegmentName>).transpose() {
            Ok(after) => after,
            Err(error) => return failed(&error),
        };
        let ledger = self.ledger.lock();
        let (mut segments, mut bytes) = (Vec::new(), 0);
        for (name, published) in ledger.named_after(after.as_ref()) {
            bytes += name.as_str().len() + ENTRY_BYTES;
            if bytes > MAX_LIST_BYTES {
                return Reply::Names { segments, more: true };
            }
            segments.push(described(name, published));
        }
        Reply::Names { segments, more: false }
    }
}

fn with_name(name: &str, answer: impl FnOnce(&SegmentName) -> Reply) -> Reply {
    match name.parse::<SegmentName>() {
        Ok(name) => answer(&name),
        Err(error) => failed(&error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use tombolo_core::rdma::{Direction, PeerId, Transfer};
    use tombolo_link::{Address, Security};
    use tombolo_wire::Domain;

    use super::*;
    use crate::driver::node::BUFFERS;
    use crate::fabric::messages::Request;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// A node that lends, served by a thread of its own.
    struct Lender {
        node: Arc<Node>,
        address: Address,
        stop: Arc<AtomicBool>,
        thread: Option<std::thread::JoinHandle<()>>,
    }

    impl Lender {
        fn new(lend_bytes: u64) -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("tombolo-publish-{}-{number}", std::process::id()));
            let address = Address::Shm(path);
            let listener = tombolo_link::listen(&address, &Security::Insecure).unwrap();
            let node = Arc::new(Node::new("lender", lend_bytes, 0).unwrap());
            let stop = Arc::new(AtomicBool::new(false));
            let thread = std::thread::spawn({
                let (node, stop) = (node.clone(), stop.clone());
                move || crate::serve(&node, &*listener, &stop, &|_| {})
            });
            Self { node, address, stop, thread: Some(thread) }
        }

        fn wait_until_free(&self) {
            let since = Instant::now();
            while self.node.status().lent_bytes > 0 {
                assert!(since.elapsed() < PATIENCE, "memory does not come back");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    impl Drop for Lender {
        fn drop(&mut self) {
            self.stop.store(true, Ordering::Relaxed);
            let _ = self.thread.take().map(std::thread::JoinHandle::join);
        }
    }

    /// A node that asks.
    struct Borrower {
        node: Arc<Node>,
        peer: Arc<Peer>,
        ended: std::sync::mpsc::Receiver<Result<(), String>>,
    }

    impl Borrower {
        fn new(lender: &Lender) -> Self {
            let node = Arc::new(Node::new("borrower", 0, 8192).unwrap());
            let (told, ended) = std::sync::mpsc::channel();
            node.on_completion(Box::new(move |_, result| {
                let _ = told.send(result.map_err(|error| error.to_string()));
            }));
            let peer = node.join(&lender.address, &Security::Insecure, PATIENCE).unwrap();
            Self { node, peer, ended }
        }

        fn ask(&self, request: Request) -> Reply {
            self.node.ask(&self.peer, request, PATIENCE).unwrap().0
        }

        fn create(&self, bytes: u64) -> u16 {
            match self.ask(Request::Create { bytes }) {
                Reply::Lent { segment } => segment,
                other => panic!("{other:?}"),
            }
        }

        fn publish(&self, segment: u16, name: &str, checksum: Checksum) -> Reply {
            self.ask(Request::Publish { segment, name: name.to_owned(), checksum })
        }

        fn open(&self, name: &str) -> u16 {
            match self.ask(Request::Open { name: name.to_owned() }) {
                Reply::Opened { segment, .. } => segment,
                other => panic!("{other:?}"),
            }
        }

        /// Moves the first bytes of a segment from or to the buffer.
        fn transfer(&self, direction: Direction, segment: u16, size_bytes: u32) -> Result<(), String> {
            let transfer = Transfer {
                direction,
                domain: Domain(segment),
                own_domain: BUFFERS,
                source_address: 0,
                destination_address: 0,
                size_bytes,
                notification: None,
                class: None,
                user: 1,
            };
            self.node.post(self.peer.id, transfer).unwrap();
            self.node.pump();
            let since = Instant::now();
            loop {
                self.node.drive(&self.peer);
                if let Ok(result) = self.ended.try_recv() {
                    return result;
                }
                assert!(since.elapsed() < PATIENCE, "a transfer does not end");
                self.node.expire();
                let _ = self.peer.link.wait(Duration::from_millis(1));
            }
        }

        /// Publishes these bytes.
        fn put(&self, name: &str, bytes: &[u8]) {
            let segment = self.create(bytes.len() as u64);
            self.node.buffers().span_mut(0, bytes.len()).unwrap().copy_from(bytes.into());
            self.transfer(Direction::Write, segment, bytes.len() as u32).unwrap();
            assert_eq!(self.publish(segment, name, checksum(bytes)), Reply::Done);
        }

        fn read(&self, segment: u16, length: usize) -> Vec<u8> {
            self.transfer(Direction::Read, segment, length as u32).unwrap();
            self.node.buffers().span(0, length).unwrap().to_vec()
        }
    }

    fn checksum(bytes: &[u8]) -> Checksum {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    #[test]
    fn only_what_has_come_as_it_was_sent_gets_a_name() {
        let lender = Lender::new(1 << 20);
        let borrower = Borrower::new(&lender);
        let segment = borrower.create(5);
        let sent = checksum(b"other");
        let arrived = checksum(&[0; 5]);
        assert_eq!(borrower.publish(segment, "x", sent), Reply::Mismatch { checksum: arrived });
        assert_eq!(borrower.ask(Request::Find { name: "x".into() }), Reply::NoSuchName);
        assert_eq!(lender.node.status().lent_bytes, 0, "its memory is free");
        assert!(matches!(borrower.publish(segment, "x", arrived), Reply::Failed(_)), "it is gone");
        let lent = match borrower.ask(Request::Lend { bytes: 4096 }) {
            Reply::Lent { segment } => segment,
            other => panic!("{other:?}"),
        };
        assert!(
            matches!(borrower.publish(lent, "x", checksum(&[])), Reply::Failed(_)),
            "a window leads there"
        );
        let segment = borrower.create(5);
        assert!(
            matches!(borrower.publish(segment, "a/b", arrived), Reply::Failed(why) if why.contains("'/'"))
        );
        assert_eq!(
            borrower.ask(Request::Create { bytes: 2 << 20 }),
            Reply::TooMuch { free_bytes: (1 << 20) - 4096 }
        );
        assert_eq!(
            borrower.ask(Request::Create { bytes: u64::MAX }),
            Reply::TooMuch { free_bytes: (1 << 20) - 4096 }
        );
    }

    #[test]
    fn a_reader_keeps_what_it_reads_and_cannot_change_it() {
        let lender = Lender::new(1 << 20);
        let (one, other) = (Borrower::new(&lender), Borrower::new(&lender));
        one.put("x", b"old bytes");
        let reading = other.open("x");
        assert_eq!(other.read(reading, 9), b"old bytes");
        let refused = other.transfer(Direction::Write, reading, 9).unwrap_err();
        assert!(refused.contains("DomainMismatch"), "{refused}");
        one.put("x", b"new");
        assert_eq!(other.read(reading, 9), b"old bytes", "nobody has changed it");
        assert_eq!(other.ask(Request::Delete { name: "x".into() }), Reply::Done);
        assert_eq!(other.ask(Request::Delete { name: "x".into() }), Reply::NoSuchName);
        assert_eq!(other.read(reading, 9), b"old bytes");
        assert_eq!(lender.node.status().lent_bytes, 4096);
        drop(other);
        lender.wait_until_free();
        assert_eq!(one.ask(Request::Open { name: "x".into() }), Reply::NoSuchName);
    }

    /// What a lender says of itself, asked by way of its loop.
    fn being_freed(asker: &Borrower) -> (u64, u64) {
        let Reply::Status { status, .. } = asker.ask(Request::Status { from: 0 }) else { panic!() };
        let freeing = status.counters.iter().find(|(name, _)| name == "lend_being_freed_bytes");
        (status.lent_bytes, freeing.map_or(0, |(_, bytes)| *bytes))
    }

    #[test]
    fn freeing_what_one_has_borrowed_holds_up_nobody_else() {
        const BYTES: u64 = 64 << 20;
        let lender = Lender::new(BYTES + (8 << 20));
        let (one, other, third) = (Borrower::new(&lender), Borrower::new(&lender), Borrower::new(&lender));
        assert!(matches!(one.ask(Request::Lend { bytes: BYTES }), Reply::Lent { .. }));
        let peers = lender.node.peers();
        let has_some = |peer: &&Arc<Peer>| lender.node.ledger.lock().segments_of(peer.id).count() > 0;
        let owner = Owner::Peer(peers.iter().find(has_some).unwrap().id);
        let hanging = crate::memory::blocking::testing::hang(&lender.node.pool, owner);
        drop((peers, one));
        let since = Instant::now();
        while being_freed(&other) != (0, BYTES) {
            assert!(since.elapsed() < PATIENCE, "the borrower is not forgotten");
        }
        // Others are answered, and have what is left.
        assert!(matches!(other.ask(Request::Lend { bytes: 8 << 20 }), Reply::Lent { .. }));
        std::thread::scope(|scope| {
            // A borrower that comes back waits for what it had.
            let (node, peer) = (&third.node, &third.peer);
            let returns =
                scope.spawn(move || node.ask(peer, Request::Lend { bytes: BYTES }, PATIENCE).unwrap().0);
            for _ in 0..100 {
                assert_eq!(being_freed(&other), (8 << 20, BYTES), "it is lent again before it is free");
            }
            assert!(!returns.is_finished());
            assert_eq!(
                other.ask(Request::Lend { bytes: 2 * BYTES }),
                Reply::TooMuch { free_bytes: BYTES },
                "for more than there is, nobody waits"
            );
            drop(hanging);
            assert!(matches!(returns.join().unwrap(), Reply::Lent { .. }));
        });
        assert_eq!(being_freed(&other), (BYTES + (8 << 20), 0));
    }

    #[test]
    fn what_has_a_name_outlives_the_link_and_a_draft_does_not() {
        let lender = Lender::new(1 << 20);
        let one = Borrower::new(&lender);
        one.put("kept", b"kept");
        let segment = one.create(100_000);
        one.transfer(Direction::Write, segment, 100).unwrap();
        drop(one);
        let since = Instant::now();
        while lender.node.status().lent_bytes > 4096 {
            assert!(since.elapsed() < PATIENCE, "the draft is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
        let other = Borrower::new(&lender);
        assert_eq!(other.read(other.open("kept"), 4), b"kept");
    }

    #[test]
    fn a_long_list_comes_in_parts() {
        let lender = Lender::new(1 << 20);
        let borrower = Borrower::new(&lender);
        let name = |index: u32| format!("{index:0>200}");
        for index in 0..100 {
            let segment = borrower.create(0);
            assert_eq!(borrower.publish(segment, &name(index), checksum(&[])), Reply::Done);
        }
        let (mut names, mut parts) = (Vec::new(), 0);
        loop {
            let after = names.last().cloned();
            let Reply::Names { segments, more } = borrower.ask(Request::List { after }) else { panic!() };
            names.extend(segments.into_iter().map(|segment| segment.name));
            parts += 1;
            if !more {
                break;
            }
        }
        assert_eq!(names, (0..100).map(name).collect::<Vec<_>>());
        assert!(parts > 1);
        let store = crate::Store::connect("list", std::slice::from_ref(&lender.address), &Security::Insecure)
            .unwrap();
        assert_eq!(store.list().unwrap().len(), 100);
        assert!(matches!(borrower.ask(Request::List { after: Some("a/b".into()) }), Reply::Failed(_)));
    }

    #[test]
    fn two_thousand_segments_have_names_and_all_of_it_is_told() {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

        const SEGMENTS: u64 = 2000;
        // Each has a descriptor of the node.
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
        let lender = Lender::new(SEGMENTS * 4096);
        let borrower = Borrower::new(&lender);
        for index in 0..SEGMENTS {
            let segment = borrower.create(0);
            assert_eq!(borrower.publish(segment, &format!("{index:0>100}"), checksum(&[])), Reply::Done);
        }
        let status = crate::status_of(&lender.address, &Security::Insecure).unwrap();
        let count = status.counters.iter().find(|(name, _)| name == "named_segments");
        assert_eq!((count.map(|(_, count)| *count), status.lent_bytes), (Some(SEGMENTS), SEGMENTS * 4096));
        let store = crate::Store::connect("list", std::slice::from_ref(&lender.address), &Security::Insecure)
            .unwrap();
        assert_eq!(store.list().unwrap().len() as u64, SEGMENTS);
        assert!(matches!(borrower.ask(Request::Create { bytes: 0 }), Reply::TooMuch { free_bytes: 0 }));
    }

    #[test]
    fn a_copy_that_is_not_what_its_checksum_says_is_an_error_at_the_reader() {
        let lender = Lender::new(1 << 20);
        let published = Published {
            segment: Arc::new(Segment::new(
                Arc::new(crate::lending::ledger::allocate(4096).unwrap()),
                lender.node.ledger.lock().reserve(4096).unwrap(),
                lender.node.reclaimer(Owner::Peer(PeerId(1))),
            )),
            length_bytes: 10,
            checksum: checksum(b"something"),
            since: Instant::now(),
        };
        lender.node.ledger.lock().publish("x".parse().unwrap(), published);
        let mut store =
            crate::Store::connect("read", std::slice::from_ref(&lender.address), &Security::Insecure)
                .unwrap();
        let opened = store.open(&"x".parse().unwrap()).unwrap();
        let read = store.read(&opened, &mut std::io::sink(), &mut |_| true);
        assert!(matches!(read, Err(crate::CopyError::Mismatch { .. })), "{read:?}");
    }

    #[test]
    fn a_source_that_is_not_as_long_as_it_said_leaves_nothing() {
        let lender = Lender::new(1 << 20);
        let name = "x".parse().unwrap();
        for said in [99, 101] {
            let mut store =
                crate::Store::connect("write", std::slice::from_ref(&lender.address), &Security::Insecure)
                    .unwrap();
            let written = store.write(&name, said, &mut &[0u8; 100][..], &mut |_| true);
            assert!(matches!(written, Err(crate::CopyError::Changed(_))), "{written:?}");
            let interrupted = store.write(&name, 100, &mut &[0u8; 100][..], &mut |_| false);
            assert!(matches!(interrupted, Err(crate::CopyError::Interrupted)), "{interrupted:?}");
        }
        lender.wait_until_free();
        let mut store =
            crate::Store::connect("write", std::slice::from_ref(&lender.address), &Security::Insecure)
                .unwrap();
        let written = store.write(&name, 100, &mut &[0u8; 100][..], &mut |_| true).unwrap();
        assert_eq!(store.find(&name).unwrap().checksum, written);
    }
}
