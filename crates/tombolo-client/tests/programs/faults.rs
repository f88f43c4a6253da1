//! Absent pages of registered memory: every kind of transfer, at either end or both, for every kind of absence,
//! policy and link. The bytes are right, the cell's own counter has moved, and nothing is left in any table.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{
    Domain, Failure, FaultRegisters, Faults, Grant, MAX_MAIL_BYTES, Mailbox, Notification, OpenError,
    OwnMemory, Registered, Right, Spec, Target, Touch, Transfer, WaitError, Who,
};
use tombolo_host::own::{ProcessMemory, ThisProcess};
use tombolo_host::testing::{Fork, collapse, give_pages_back, left_out, protect, swap_out};
use tombolo_host::uffd::{Event, Userfaultfd};
use tombolo_host::zram::ZramSwap;
use tombolo_node::{Address, Limits, Node};
use tombolo_wire::NackCode;

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};

const ANYONE: [Grant; 1] = [Grant::all(Who::Anyone)];
/// Three blocks between nodes and a part of a fourth, across pages.
const BYTES: u32 = 50_000;
const AREA: usize = 1 << 16;
/// Where they are in the area of the source, and in that of the destination.
const FROM: u64 = 77;
const TO: u64 = 12_192;

/// How pages come to be absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Untouched,
    GivenBack,
    /// Read before, so the kernel's page of zeros is there.
    ZeroPage,
    Forked,
    /// A thread of the test serves them by userfaultfd.
    Served,
    /// The kernel has swapped them out.
    Swapped,
    /// Put together by the kernel to a huge page, which a child shares.
    Collapsed,
    /// Served, too, but when the first is asked for, nobody may use any of them any more.
    Forbidden,
    /// Likewise, and every second one is not mapped any more.
    Unmapped,
}

impl Kind {
    /// But for those that are swapped out, which needs swap.
    const ALL: [Self; 8] = [
        Self::Untouched,
        Self::GivenBack,
        Self::ZeroPage,
        Self::Forked,
        Self::Served,
        Self::Collapsed,
        Self::Forbidden,
        Self::Unmapped,
    ];

    /// The end of the name of the counter that must move, for an access of that kind.
    fn counted_as(self, writes: bool) -> Option<&'static str> {
        match self {
            Self::Untouched | Self::GivenBack | Self::Served | Self::Forbidden | Self::Unmapped => {
                Some("missing")
            }
            // Reading what is shared is no fault.
            Self::ZeroPage | Self::Forked | Self::Collapsed => writes.then_some("copy_on_write"),
            Self::Swapped => Some("swapped"),
        }
    }

    /// How a transfer that meets it in the middle is refused.
    fn refused(self) -> Option<NackCode> {
        match self {
            Self::Forbidden => Some(NackCode::DomainMismatch),
            Self::Unmapped => Some(NackCode::DecodeError),
            _ => None,
        }
    }
}

/// Pages that are served by a thread of this test, late.
struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Serves a range with these bytes, and does something to it when its first page is asked for.
    fn start(memory: &OwnMemory, bytes: Vec<u8>, late: Duration, mut before: Option<fn(u64, usize)>) -> Self {
        let faults = Userfaultfd::for_this_process().unwrap();
        faults.enable(0).unwrap();
        faults.register_missing(memory.address(), memory.len() as u64).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let (start, length) = (memory.address(), memory.len());
        let thread = std::thread::spawn(move || {
            let source = OwnMemory::map(bytes.len()).unwrap();
            source.write(0, &bytes).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                match faults.read_event() {
                    Ok(Some(Event::Fault { address, .. })) => {
                        std::thread::sleep(late);
                        let page = address & !4095;
                        if let Some(change) = before.take() {
                            change(start, length);
                            // The threads that have faulted access the pages again.
                            let _ = faults.wake(start, length);
                            continue;
                        }
                        let _ = faults.copy(page, source.address() + (page - start), 4096, false);
                    }
                    _ => std::thread::yield_now(),
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// New memory, where a huge page may begin, below all that the kernel places by itself: it puts nothing else into a hole there as long as it
/// has room above. For [`unmap_all`].
fn map_low(length: usize) -> OwnMemory {
    static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
    let at = std::ptr::with_exposed_provenance_mut(NEXT.fetch_add(4 << 20, Ordering::Relaxed));
    // SAFETY: only where there is a hole; nobody else uses it.
    unsafe {
        let mapped = rustix::mm::mmap_anonymous(at, length, RIGHTS, FIXED).unwrap();
        OwnMemory::from_raw(std::ptr::NonNull::new(mapped.cast()).unwrap(), length)
    }
}

const RIGHTS: rustix::mm::ProtFlags = rustix::mm::ProtFlags::READ.union(rustix::mm::ProtFlags::WRITE);
const FIXED: rustix::mm::MapFlags =
    rustix::mm::MapFlags::PRIVATE.union(rustix::mm::MapFlags::FIXED_NOREPLACE);

/// One end of a transfer, whose pages may be absent.
struct Area {
    memory: Registered,
    /// What it holds, as its program sees it.
    holds: Vec<u8>,
    _fork: Option<Fork>,
    _server: Option<Server>,
}

impl Area {
    fn new(domain: &Domain, kind: Option<Kind>, faults: Faults, seed: u64) -> Self {
        // Large enough for a huge page.
        let length = if kind == Some(Kind::Collapsed) { 2 << 20 } else { AREA };
        let memory = map_low(length);
        let (mut holds, mut fork, mut server) = (vec![0; AREA], None, None);
        let fill = || {
            let bytes = pattern(seed, AREA);
            memory.write(0, &bytes).unwrap();
            bytes
        };
        match kind {
            None => holds = fill(),
            Some(Kind::Untouched) => {}
            Some(Kind::GivenBack) => {
                fill();
                give_pages_back(&memory);
            }
            Some(Kind::ZeroPage) => memory.read(0, &mut vec![0; AREA]).unwrap(),
            Some(Kind::Forked) => {
                holds = fill();
                fork = Some(Fork::new());
            }
            Some(Kind::Swapped) => {
                holds = fill();
                swap_out(&memory);
            }
            Some(Kind::Collapsed) => {
                holds = fill();
                collapse(&memory).expect("the kernel makes a huge page");
                fork = Some(Fork::new());
            }
            Some(Kind::Served | Kind::Forbidden | Kind::Unmapped) => {
                holds = pattern(seed, AREA);
                let before: Option<fn(u64, usize)> = match kind {
                    Some(Kind::Forbidden) => Some(forbid_all),
                    Some(Kind::Unmapped) => Some(unmap_half),
                    _ => None,
                };
                server = Some(Server::start(&memory, holds.clone(), Duration::from_micros(50), before));
            }
        }
        let memory = domain.register_with(memory, &ANYONE, faults).unwrap();
        Self { memory, holds, _fork: fork, _server: server }
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read(offset, &mut bytes).unwrap();
        bytes
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Write,
    Read,
    /// A write with a notification, whose words are at a page of their own.
    Notified,
    /// A read with a notification, likewise.
    NotifiedRead,
    Atomic,
}

const TRANSFERS: [Operation; 4] =
    [Operation::Write, Operation::Read, Operation::Notified, Operation::NotifiedRead];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Where {
    Source,
    Destination,
    Both,
}

impl Operation {
    fn is_read(self) -> bool {
        matches!(self, Self::Read | Self::NotifiedRead)
    }

    fn is_notified(self) -> bool {
        matches!(self, Self::Notified | Self::NotifiedRead)
    }
}

/// Nodes and a domain at each.
struct Scene<'a> {
    near: (&'a Host, Domain),
    far: (&'a Host, Domain),
    there: Target,
    /// Whether transfers get through. With nobody to handle faults they do not.
    gets_through: bool,
}

/// Where the words of a notification are, in their area: in a page before the bytes, of those that are never brought in ahead.
const WORDS: usize = 64;
/// How long a transfer that cannot get through is looked at: others take a millisecond.
const LOOK: Duration = Duration::from_millis(50);

fn faults_at(host: &Host, end: &str, kind: &str) -> u64 {
    host.counter(&format!("faults_{end}_{kind}"))
}

impl Scene<'_> {
    /// One cell of the matrix.
    fn cell(&self, operation: Operation, place: Where, kind: Kind, faults: Faults) {
        let what = format!("{operation:?} with {kind:?} pages at {place:?}, {faults:?}");
        let kind_at = |end| (place == end || place == Where::Both).then_some(kind);
        let source_is_near = !operation.is_read();
        let (near_end, far_end) = if source_is_near {
            (Where::Source, Where::Destination)
        } else {
            (Where::Destination, Where::Source)
        };
        let near = Area::new(&self.near.1, kind_at(near_end), faults, 1);
        let far = Area::new(&self.far.1, kind_at(far_end), faults, 2);
        let mut ends = vec![(Where::Source, "source"), (Where::Destination, "destination")];
        if operation.is_notified() {
            ends.push((Where::Destination, "notification"));
        }
        let counted: Vec<_> = ends
            .into_iter()
            .filter(|(end, _)| kind_at(*end).is_some())
            .filter_map(|(end, name)| {
                let host = if (end == Where::Source) == source_is_near { self.near.0 } else { self.far.0 };
                let name = if operation == Operation::Atomic { "atomic" } else { name };
                let counted = kind.counted_as(end == Where::Destination)?;
                Some((host, name, counted, faults_at(host, name, counted)))
            })
            .collect();
        if !self.gets_through {
            if !counted.is_empty() {
                self.check_stuck(operation, (&near.memory, &far.memory), &what);
                for (host, name, counted, before) in
                    counted.iter().filter(|(_, name, ..)| *name != "notification")
                {
                    // Of both ends, one holds it up.
                    let others = place == Where::Both;
                    let since = Instant::now();
                    while !others && faults_at(host, name, counted) == *before {
                        assert!(since.elapsed() < PATIENCE, "no fault at the {name}: {what}");
                        std::thread::yield_now();
                    }
                }
            }
            return;
        }
        let (from, to) = (FROM, TO);
        let (mine, theirs) = (near.memory.address(), far.memory.address());
        if let Some(code) = kind.refused() {
            let denied =
                || [self.near.0, self.far.0].iter().map(|host| host.counter("faults_denied")).sum::<u64>();
            let denied_before = denied();
            let ended = self.end_of(operation, (&near.memory, &far.memory), PATIENCE);
            let is_of = |end, area: &Area, page: u64| {
                kind_at(end).is_some()
                    && page.checked_sub(area.memory.address()).is_some_and(|at| at < AREA as u64)
            };
            // The error says at which end, and where.
            let is_right = match ended {
                Err(WaitError::Failed(Failure::Local { code: found, page: Some(page) })) => {
                    found == code && is_of(near_end, &near, page)
                }
                Err(WaitError::Failed(Failure::Refused { code: found, page: Some(page) })) => {
                    found == code && is_of(far_end, &far, page)
                }
                _ => false,
            };
            assert!(is_right, "{ended:?}: {what}");
            assert!(denied() > denied_before, "nothing was denied: {what}");
            // Of both ends, one may have to do without: the other was first. What is copied at once, and its pages brought by that,
            // meets no fault that could be told from the refusal.
            let has_moved =
                counted.iter().any(|(host, name, counted, before)| faults_at(host, name, counted) > *before);
            assert!(has_moved || faults == Faults::default(), "no fault: {what}");
            self.put_away(near, far, &what);
            return;
        }
        match operation {
            Operation::Write | Operation::Notified | Operation::Read | Operation::NotifiedRead => {
                self.begin(operation, (mine, theirs)).wait(PATIENCE).expect(&what);
                if operation.is_notified() {
                    let mut expected = 3_u64.to_le_bytes().to_vec();
                    expected.extend(4_u64.to_le_bytes());
                    let destination = if source_is_near { &far } else { &near };
                    assert_eq!(destination.read(WORDS, 16), expected, "{what}");
                }
            }
            Operation::Atomic => {
                let before = u64::from_le_bytes(far.holds[8..16].try_into().unwrap());
                let added = self.near.1.fetch_add(self.there, theirs + 8, 5).unwrap().wait(PATIENCE);
                assert_eq!(added, Ok(before), "{what}");
                let after = before.wrapping_add(5).to_le_bytes();
                assert_eq!(far.read(8, 8), after, "{what}");
            }
        }
        if operation != Operation::Atomic {
            let (source, destination) = if source_is_near { (&near, &far) } else { (&far, &near) };
            let (from, length) = (from as usize, BYTES as usize);
            let expected = &source.holds[from..from + length];
            assert!(destination.read(to as usize, length) == expected, "{what}");
            // What lies around it is as it was.
            let mut around = destination.holds[..to as usize].to_vec();
            if operation.is_notified() {
                around[WORDS..WORDS + 16].copy_from_slice(&destination.read(WORDS, 16));
            }
            assert!(destination.read(0, to as usize) == around, "{what}");
        }
        for (host, name, counted, before) in counted {
            assert!(faults_at(host, name, counted) > before, "no fault at the {name}: {what}");
            // How long such faults took is known, too.
            let since = Instant::now();
            while host.counter(&format!("faults_stall_{name}_{counted}_p99_us")) == 0 {
                assert!(since.elapsed() < PATIENCE, "no time of a fault at the {name}: {what}");
                std::thread::yield_now();
            }
        }
        self.put_away(near, far, &what);
    }

    /// Nothing is left in any table when nobody uses the areas any more.
    fn put_away(&self, near: Area, far: Area, what: &str) {
        let ends = [(&self.near, near), (&self.far, far)];
        for ((_, domain), area) in ends {
            let (start, length) = (area.memory.address(), area.memory.len());
            domain.deregister(area.memory).unwrap();
            unmap_all(start, length);
        }
        for host in [self.near.0, self.far.0] {
            let since = Instant::now();
            while !host.node.is_at_rest() {
                assert!(since.elapsed() < PATIENCE, "something is left in a table: {what}");
                std::thread::yield_now();
            }
        }
    }

    /// A message lies in memory of the nodes at both ends, whatever pages the programs have: it meets no fault.
    fn mail(&self, mailbox: &Mailbox, kind: Kind) {
        let faults = Faults::default();
        let areas = [&self.near.1, &self.far.1].map(|domain| Area::new(domain, Some(kind), faults, 1));
        let counted = || {
            let hosts = [self.near.0, self.far.0].into_iter();
            let counters = hosts.flat_map(|host| host.node.status().counters);
            counters.filter(|(name, _)| name.starts_with("faults_")).collect::<Vec<_>>()
        };
        let before = counted();
        let bytes = pattern(5, MAX_MAIL_BYTES);
        self.near.1.send(self.there, &bytes).unwrap().wait(PATIENCE).unwrap();
        assert!(mailbox.receive(PATIENCE).unwrap().bytes == bytes, "{kind:?}");
        assert_eq!(counted(), before, "{kind:?}");
        for (domain, area) in [&self.near.1, &self.far.1].into_iter().zip(areas) {
            let (start, length) = (area.memory.address(), area.memory.len());
            domain.deregister(area.memory).unwrap();
            unmap_all(start, length);
        }
    }

    /// Begins a transfer between areas at these addresses.
    fn begin(&self, operation: Operation, (mine, theirs): (u64, u64)) -> Transfer {
        let (source, destination) = if operation.is_read() { (theirs, mine) } else { (mine, theirs) };
        let mut spec = Spec::new(source + FROM, destination + TO, BYTES);
        if operation.is_notified() {
            spec = spec.notify(Notification { address: destination + WORDS as u64, first: 3, last: 4 });
        }
        match operation.is_read() {
            true => self.near.1.read(self.there, spec).unwrap(),
            false => self.near.1.write(self.there, spec).unwrap(),
        }
    }

    /// How an operation on these areas ends.
    fn end_of(
        &self,
        operation: Operation,
        (near, far): (&Registered, &Registered),
        patience: Duration,
    ) -> Result<(), WaitError> {
        match operation {
            Operation::Atomic => {
                self.near.1.fetch_add(self.there, far.address() + 8, 5).unwrap().wait(patience).map(drop)
            }
            _ => self.begin(operation, (near.address(), far.address())).wait(patience),
        }
    }

    /// It does not get through, and goes again and again, for half a minute: as long as its domain is open.
    fn check_stuck(&self, operation: Operation, areas: (&Registered, &Registered), what: &str) {
        let ended = self.end_of(operation, areas, LOOK);
        assert!(matches!(ended, Err(WaitError::TimedOut(_) | WaitError::Paused)), "{ended:?}: {what}");
    }

    /// All cells of these kinds.
    fn matrix(&self, kinds: &[Kind]) {
        let policies = [Touch::Page, Touch::Ahead(4), Touch::Adaptive];
        let mailbox = self.far.1.open_mailbox(8, &[Who::Anyone]).unwrap();
        for &kind in kinds {
            self.mail(&mailbox, kind);
            for (touch, terminates) in policies.into_iter().flat_map(|touch| [(touch, false), (touch, true)])
            {
                let faults = Faults { touch, terminates };
                for place in [Where::Source, Where::Destination, Where::Both] {
                    for operation in TRANSFERS {
                        self.cell(operation, place, kind, faults);
                    }
                }
                // It has no source in memory.
                self.cell(Operation::Atomic, Where::Destination, kind, faults);
            }
        }
    }
}

#[test]
fn transfers_between_programs_of_one_node_meet_absent_pages() {
    let (host, _) = Host::start(&shm(), &[]);
    let (near, far) = (host.domain(1), host.domain(2));
    let there = Target { node: 0, domain: 2 };
    Scene { near: (&host, near), far: (&host, far), there, gets_through: true }.matrix(&Kind::ALL);
}

fn between(hosts: &[Host; 2], kinds: &[Kind]) {
    let (near, far) = (hosts[0].domain(1), hosts[1].domain(2));
    let there = Target { node: 1, domain: 2 };
    Scene { near: (&hosts[0], near), far: (&hosts[1], far), there, gets_through: true }.matrix(kinds);
    // Blocks that were refused went on when their page was there, and not only when their time was over.
    for counter in ["resumes", "sources_ready"] {
        assert!(hosts[0].counter(counter) > 0, "no {counter}");
    }
}

#[test]
fn transfers_over_shared_memory_meet_absent_pages() {
    between(&pair(&shm()), &Kind::ALL);
}

#[test]
fn transfers_over_udp_meet_absent_pages() {
    between(&pair(&udp()), &Kind::ALL);
}

#[test]
fn transfers_meet_pages_that_the_kernel_has_swapped_out() {
    let swap = match ZramSwap::new(256 << 20, tombolo_host::timing::host::ZRAM_TURN_TIMEOUT) {
        Ok(swap) => swap,
        Err(error) => return left_out(&format!("needs swap on zram: {error}")),
    };
    {
        let (host, _) = Host::start(&shm(), &[]);
        let (near, far) = (host.domain(1), host.domain(2));
        let there = Target { node: 0, domain: 2 };
        Scene { near: (&host, near), far: (&host, far), there, gets_through: true }.matrix(&[Kind::Swapped]);
    }
    between(&pair(&shm()), &[Kind::Swapped]);
    between(&pair(&udp()), &[Kind::Swapped]);
    lossy_cells(&[Kind::Swapped]);
    drop(swap);
}

/// Passes datagrams on both ways, but for one in `lost`. The thread says how many were lost.
fn lossy(node: &Address, lost: u32, stop: &Arc<AtomicBool>) -> (Address, std::thread::JoinHandle<u32>) {
    let Address::Udp(node) = *node else { panic!("not udp") };
    let [front, back] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
    back.connect(node).unwrap();
    let address = Address::Udp(front.local_addr().unwrap());
    for socket in [&front, &back] {
        socket.set_nonblocking(true).unwrap();
    }
    let stop = stop.clone();
    let thread = std::thread::spawn(move || {
        let (mut bytes, mut caller, mut count) = (vec![0; 1 << 16], None, 0_u32);
        while !stop.load(Ordering::Relaxed) {
            let mut passes = || {
                count += 1;
                !count.is_multiple_of(lost)
            };
            let mut idle = true;
            if let Ok((length, from)) = front.recv_from(&mut bytes) {
                caller = Some(from);
                idle = false;
                if passes() {
                    let _ = back.send(&bytes[..length]);
                }
            }
            if let (Ok(length), Some(caller)) = (back.recv(&mut bytes), caller) {
                idle = false;
                if passes() {
                    let _ = front.send_to(&bytes[..length], caller);
                }
            }
            if idle {
                std::thread::yield_now();
            }
        }
        count / lost
    });
    (address, thread)
}

#[test]
fn transfers_over_udp_with_losses_meet_absent_pages() {
    lossy_cells(&Kind::ALL);
}

fn lossy_cells(kinds: &[Kind]) {
    let (far, address) = Host::start(&udp(), &[]);
    let stop = Arc::new(AtomicBool::new(false));
    let (address, relay) = lossy(&address, 29, &stop);
    let (near, _) = Host::start(&shm(), &[&address]);
    {
        let there = Target { node: 1, domain: 2 };
        let (near, far) = ((&near, near.domain(1)), (&far, far.domain(2)));
        Scene { near, far, there, gets_through: true }.matrix(kinds);
    }
    drop(near);
    stop.store(true, Ordering::Relaxed);
    let lost = relay.join().unwrap();
    assert!(lost > 20, "{lost} datagrams were lost");
}

/// The twin of the matrix: with nobody to handle faults, no transfer that meets one gets through.
#[test]
fn without_a_handler_the_matrix_fails() {
    let without = |name| {
        let mut limits = Limits::default();
        limits.faults.handles_faults = false;
        Node::with_limits(name, 0, 0, limits).unwrap()
    };
    let kinds = [Kind::Untouched, Kind::Forked, Kind::Served].map(|kind| (shm(), kind));
    for (link, kind) in kinds.into_iter().chain([(udp(), Kind::Untouched)]) {
        for (touch, terminates) in [(Touch::Adaptive, false), (Touch::Page, true)] {
            // What does not get through keeps its channels: each few cells have nodes of their own.
            let (far, address) = Host::start_node(without("far"), &link, &[]);
            let (near, _) = Host::start_node(without("near"), &shm(), &[&address]);
            for (host, node) in [(&near, 1), (&far, 0)] {
                let (one, other) = (host.any_domain(), far.any_domain());
                let there = Target { node, domain: other.number() };
                let scene = Scene { near: (host, one), far: (&far, other), there, gets_through: false };
                for place in [Where::Source, Where::Destination, Where::Both] {
                    for operation in TRANSFERS {
                        scene.cell(operation, place, kind, Faults { touch, terminates });
                    }
                }
                scene.cell(Operation::Atomic, Where::Destination, kind, Faults { touch, terminates });
            }
        }
    }
}

/// What the program itself could not do is refused, the program lives, and what is allowed again goes.
#[test]
fn protected_and_unmapped_pages_are_refused_and_harm_nobody() {
    for hosts in [vec![Host::start(&shm(), &[]).0], pair(&shm()).into(), pair(&udp()).into()] {
        let node = hosts.len() as u32 - 1;
        let (near, far) = (hosts[0].domain(1), hosts[hosts.len() - 1].domain(2));
        let there = Target { node, domain: 2 };
        for terminates in [false, true] {
            let faults = Faults { touch: Touch::Page, terminates };
            let mine = Area::new(&near, None, faults, 1);
            let theirs = Area::new(&far, None, faults, 2);
            let spec = Spec::new(mine.memory.address(), theirs.memory.address(), BYTES);
            let write = || near.write(there, spec).unwrap().wait(PATIENCE);
            // The error names the page.
            let code = NackCode::DomainMismatch;
            let page = Some(theirs.memory.address() & !4095);
            let refused = WaitError::Failed(Failure::Refused { code, page });
            let raw = |area: &Area| {
                // SAFETY: the same range; both are only reached through spans.
                unsafe {
                    OwnMemory::from_raw(
                        std::ptr::NonNull::new(area.memory.as_mut_ptr()).unwrap(),
                        area.memory.len(),
                    )
                }
            };
            far.take_fault_registers().unwrap();
            assert_eq!(far.take_fault_registers().unwrap(), FaultRegisters::default());
            protect(&raw(&theirs), false);
            assert_eq!(write(), Err(refused));
            // Its owner hears of it, too.
            let registers = far.take_fault_registers().unwrap();
            assert!(registers.permission_fault && registers.write_not_read, "{registers:?}");
            assert_eq!(registers.address & !4095, theirs.memory.address());
            let add = near.fetch_add(there, theirs.memory.address(), 1).unwrap().wait(PATIENCE);
            assert_eq!(add, Err(refused));
            protect(&raw(&theirs), true);
            assert_eq!(write(), Ok(()));
            assert!(theirs.read(0, BYTES as usize) == mine.holds[..BYTES as usize]);
            // What is not mapped is no permission fault.
            unmap_page(&theirs.memory, 3);
            far.take_fault_registers().unwrap();
            let (code, page) = (NackCode::DecodeError, Some((theirs.memory.address() & !4095) + 3 * 4096));
            assert_eq!(write(), Err(WaitError::Failed(Failure::Refused { code, page })));
            let registers = far.take_fault_registers().unwrap();
            assert!(registers.translation_fault && !registers.permission_fault, "{registers:?}");
            map_page(&theirs.memory, 3);
            assert_eq!(write(), Ok(()));
            assert!(theirs.read(0, BYTES as usize) == mine.holds[..BYTES as usize]);
            // Put together by the kernel, it is as before.
            let huge = near.register_with(OwnMemory::map(4 << 20).unwrap(), &[], faults).unwrap();
            huge.write(0, &pattern(3, 4 << 20)).unwrap();
            collapse(&raw_of(&huge)).expect("the kernel makes a huge page");
            let spec = Spec::new(huge.address() + (1 << 20), theirs.memory.address(), BYTES);
            near.write(there, spec).unwrap().wait(PATIENCE).unwrap();
            assert!(theirs.read(0, BYTES as usize) == pattern(3, 4 << 20)[1 << 20..][..BYTES as usize]);
        }
    }
}

fn forbid_all(start: u64, length: usize) {
    let at = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: memory that is only reached through spans, which survive it.
    unsafe { rustix::mm::mprotect(at, length, rustix::mm::MprotectFlags::empty()) }.expect("mprotect");
}

/// What [`map_low`] has mapped, when nobody uses it any more.
fn unmap_all(start: u64, length: usize) {
    let at = std::ptr::with_exposed_provenance_mut(start as usize);
    // SAFETY: nobody uses it any more.
    unsafe { rustix::mm::munmap(at, length) }.expect("munmap");
}

/// Every second page.
fn unmap_half(start: u64, length: usize) {
    for offset in (0..length).step_by(2 * 4096) {
        let at = std::ptr::with_exposed_provenance_mut(start as usize + offset);
        // SAFETY: memory that is only reached through spans, which survive it.
        unsafe { rustix::mm::munmap(at, 4096) }.expect("munmap");
    }
}

/// Unmaps a page of registered memory, which nobody may use then.
fn unmap_page(memory: &Registered, page: usize) {
    // SAFETY: a page of a mapping that is reached through spans alone, which nobody uses until it is mapped again.
    unsafe { rustix::mm::munmap(memory.as_mut_ptr().add(page * 4096).cast(), 4096) }.unwrap();
}

fn map_page(memory: &Registered, page: usize) {
    // SAFETY: only where there is a hole.
    unsafe { rustix::mm::mmap_anonymous(memory.as_mut_ptr().add(page * 4096).cast(), 4096, RIGHTS, FIXED) }
        .unwrap();
}

fn raw_of(memory: &Registered) -> OwnMemory {
    // SAFETY: the same range; both are only reached through spans.
    unsafe { OwnMemory::from_raw(std::ptr::NonNull::new(memory.as_mut_ptr()).unwrap(), memory.len()) }
}

/// What is prefetched meets no fault, and what is not does.
#[test]
fn prefetched_pages_are_there() {
    for hosts in [vec![Host::start(&shm(), &[]).0], pair(&udp()).into()] {
        let node = hosts.len() as u32 - 1;
        let (near, far) = (hosts[0].domain(1), hosts[hosts.len() - 1].domain(2));
        let (near_host, far_host) = (&hosts[0], &hosts[hosts.len() - 1]);
        let mine = near.register(OwnMemory::map(3 << 20).unwrap(), &ANYONE).unwrap();
        let theirs = far.register(OwnMemory::map(3 << 20).unwrap(), &ANYONE).unwrap();
        let faults = |host: &Host, end: &str| host.counter(&format!("faults_{end}_missing"));
        let move_from = |offset: u64| {
            let spec = Spec::new(mine.address() + offset, theirs.address() + offset, BYTES);
            near.write(Target { node, domain: 2 }, spec).unwrap().wait(PATIENCE).unwrap();
        };
        let is_there = |memory: &Registered, at: usize| !own_pages_missing(memory, at);
        assert!(near.prefetch(&mine, 0..(2 << 20) + 1, Right::Read));
        assert!(far.prefetch(&theirs, 0..2 << 20, Right::Write));
        let since = Instant::now();
        while !(is_there(&mine, 2 << 20) && is_there(&theirs, (2 << 20) - 4096)) {
            assert!(since.elapsed() < PATIENCE);
        }
        let before = [faults(near_host, "source"), faults(far_host, "destination")];
        move_from(100);
        move_from((2 << 20) - u64::from(BYTES));
        assert_eq!([faults(near_host, "source"), faults(far_host, "destination")], before);
        move_from((2 << 20) + 8192);
        let after = [faults(near_host, "source"), faults(far_host, "destination")];
        assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    }
}

/// Whether the kernel has no page there.
fn own_pages_missing(memory: &OwnMemory, at: usize) -> bool {
    let process = ThisProcess::new().unwrap();
    process.absent(memory.address() + at as u64, 1, Right::Read).pages != 0
}

/// All memory of a program at once, whatever is mapped there later.
#[test]
fn a_whole_address_space_is_registered() {
    let hosts = pair(&shm());
    let (near, far) = (hosts[0].domain(1), hosts[1].domain(2));
    // SAFETY: what is written to below is memory that nothing else uses, and nobody else knows these domains.
    let [mine, theirs] =
        [&near, &far].map(|domain| domain.register(unsafe { OwnMemory::address_space() }, &ANYONE).unwrap());
    let there = Target { node: 1, domain: 2 };
    let (from, to) = (OwnMemory::map(1 << 20).unwrap(), OwnMemory::map(1 << 20).unwrap());
    from.write(0, &pattern(3, 1 << 20)).unwrap();
    near.write(there, Spec::new(from.address(), to.address(), 1 << 20)).unwrap().wait(PATIENCE).unwrap();
    let mut found = vec![0; 1 << 20];
    to.read(0, &mut found).unwrap();
    assert!(found == pattern(3, 1 << 20));
    // From the heap, as it is.
    let boxed = pattern(4, 10_000).into_boxed_slice();
    let spec = Spec::new(boxed.as_ptr().expose_provenance() as u64, to.address(), 10_000);
    near.write(there, spec).unwrap().wait(PATIENCE).unwrap();
    to.read(0, &mut found[..10_000]).unwrap();
    assert!(found[..10_000] == *boxed);
    // What is not mapped now.
    let gone = to.address();
    drop(to);
    let write = |to| near.write(there, Spec::new(from.address(), to, 64)).unwrap().wait(PATIENCE);
    let refused = Failure::Refused { code: NackCode::DecodeError, page: Some(gone) };
    assert_eq!(write(gone), Err(WaitError::Failed(refused)));
    // Nor what can never be.
    for wild in [0, 1 << 47, (1 << 56) - 4096] {
        assert!(matches!(write(wild), Err(WaitError::Failed(Failure::Refused { .. }))), "{wild:#x}");
    }
    assert!(matches!(near.register(from, &ANYONE), Err(OpenError::Refused(_))), "it is registered");
    for (domain, memory) in [(near, mine), (far, theirs)] {
        domain.deregister(memory).unwrap();
    }
}
