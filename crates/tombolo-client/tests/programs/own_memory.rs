//! Transfers from and to memory that programs have registered: what arrives, what is refused, and
//! what happens when the memory is not there, does not come, or goes.

use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_channel::{Message, Reply, Request, decode, encode};
use tombolo_client::{
    Domain, Failure, Grant, Memory, Notification, OpenError, OwnMemory, Registered, Spec, Target, WaitError,
    Who,
};
use tombolo_host::own;
use tombolo_host::uffd::Userfaultfd;
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_wire::NackCode;

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};

const ANYONE: [Grant; 1] = [Grant::all(Who::Anyone)];

/// Memory of either kind.
enum Area {
    Node(Memory),
    Own(Registered),
}

impl Area {
    fn new(domain: &Domain, bytes: usize, is_own: bool, grants: &[Grant]) -> Self {
        if is_own {
            Self::Own(domain.register(OwnMemory::map(bytes).unwrap(), grants).unwrap())
        } else {
            Self::Node(domain.allocate(bytes, grants).unwrap())
        }
    }

    fn address(&self) -> u64 {
        match self {
            Self::Node(memory) => memory.address(),
            Self::Own(memory) => memory.address(),
        }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        match self {
            Self::Node(memory) => memory.write(offset, bytes).unwrap(),
            Self::Own(memory) => memory.write(offset, bytes).unwrap(),
        }
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        match self {
            Self::Node(memory) => memory.read(offset, &mut bytes).unwrap(),
            Self::Own(memory) => memory.read(offset, &mut bytes).unwrap(),
        }
        bytes
    }

    fn word(&self, offset: usize) -> u64 {
        let word = match self {
            Self::Node(memory) => memory.word(offset),
            Self::Own(memory) => memory.word(offset),
        };
        word.unwrap().load(Ordering::Acquire)
    }
}

/// Writes and reads between own memory and memory of either kind, all alignments, each notified.
fn exchange(near: &Domain, far: &Domain, node: u32, sizes: &[usize]) {
    let target = Target { node, domain: far.number() };
    let bytes = sizes.iter().max().unwrap().next_multiple_of(4096) + (1 << 16);
    let words = bytes - 64;
    for (mine_is_own, theirs_is_own) in [(true, false), (false, true), (true, true)] {
        let mine = Area::new(near, bytes, mine_is_own, &[]);
        let theirs = Area::new(far, bytes, theirs_is_own, &ANYONE);
        for (round, &length) in sizes.iter().enumerate() {
            let what = format!("{length} bytes at node {node}, own {mine_is_own} and {theirs_is_own}");
            let (from, to) = (round * 13 % 4096, round * 77 % 4096);
            let sent = pattern(round as u64 + 1, length);
            mine.write(from, &sent);
            // Now and then where no aligned words fit.
            let at = words + round % 3;
            let notification = Notification {
                address: theirs.address() + at as u64,
                first: round as u64 + 100,
                last: round as u64 + 200,
            };
            let spec = Spec::new(mine.address() + from as u64, theirs.address() + to as u64, length as u32);
            near.write(target, spec.notify(notification)).unwrap().wait(PATIENCE).expect(&what);
            assert!(theirs.read(to, length) == sent, "{what}");
            let mut expected = notification.first.to_le_bytes().to_vec();
            expected.extend(notification.last.to_le_bytes());
            assert_eq!(theirs.read(at, 16), expected, "{what}");

            mine.write(from, &vec![0; length]);
            let notification =
                Notification { address: mine.address() + words as u64, first: round as u64 + 1, last: 7 };
            let spec = Spec::new(theirs.address() + to as u64, mine.address() + from as u64, length as u32);
            near.read(target, spec.notify(notification)).unwrap().wait(PATIENCE).expect(&what);
            assert!(mine.read(from, length) == sent, "read: {what}");
            assert_eq!((mine.word(words), mine.word(words + 8)), (round as u64 + 1, 7), "read: {what}");
        }
        for (domain, area) in [(near, mine), (far, theirs)] {
            match area {
                Area::Node(memory) => domain.free(memory).unwrap(),
                Area::Own(memory) => drop(domain.deregister(memory).unwrap()),
            }
        }
    }
}

const SIZES: [usize; 9] = [0, 1, 7, 255, 4096, 5000, 16_385, 100_003, (3 << 20) + 5];
const LARGE: usize = 64 << 20;

#[test]
fn between_programs_of_one_node() {
    let (host, _) = Host::start(&shm(), &[]);
    exchange(&host.domain(1), &host.domain(2), 0, &SIZES);
    exchange(&host.domain(4), &host.domain(5), 0, &[LARGE]);
    let alone = host.domain(3);
    exchange(&alone, &alone, 0, &SIZES);
}

#[test]
fn between_two_nodes_over_shared_memory() {
    let hosts = pair(&shm());
    exchange(&hosts[0].domain(1), &hosts[1].domain(2), 1, &SIZES);
    exchange(&hosts[0].domain(3), &hosts[1].domain(4), 1, &[LARGE]);
}

#[test]
fn between_two_nodes_over_udp() {
    let hosts = pair(&udp());
    exchange(&hosts[0].domain(1), &hosts[1].domain(2), 1, &SIZES);
}

fn refused(code: NackCode, address: u64) -> Result<(), WaitError> {
    Err(WaitError::Failed(Failure::Refused { code, page: Some(address & !4095) }))
}

/// It names the page.
fn decode_error(address: u64) -> Result<(), WaitError> {
    refused(NackCode::DecodeError, address)
}

/// What of own memory is out of reach, at node `node`.
fn nothing_else_is_reached(near: &Domain, far: &Domain, node: u32) {
    let mine = near.register(OwnMemory::map(8192).unwrap(), &[]).unwrap();
    let private = far.register(OwnMemory::map(8192).unwrap(), &[]).unwrap();
    let readable = far.register(OwnMemory::map(8192).unwrap(), &[Grant::read(Who::Anyone)]).unwrap();
    let target = Target { node, domain: far.number() };
    let write = |address: u64, size: u32| {
        near.write(target, Spec::new(mine.address(), address, size)).unwrap().wait(PATIENCE)
    };
    let read = |address: u64, size: u32| {
        near.read(target, Spec::new(address, mine.address(), size)).unwrap().wait(PATIENCE)
    };
    let mismatch = |address| refused(NackCode::DomainMismatch, address);
    mine.write(0, &[7; 8192]).unwrap();
    assert_eq!(write(private.address(), 64), mismatch(private.address()));
    assert_eq!(read(private.address(), 64), mismatch(private.address()));
    assert_eq!(write(readable.address(), 64), mismatch(readable.address()));
    assert_eq!(read(readable.address(), 64), Ok(()));
    assert_eq!(read(readable.address() + 8000, 200), decode_error(readable.address() + 8000));
    assert_eq!(read(readable.address() - 1, 1), decode_error(readable.address() - 1));
    // Memory of this very process that is not registered.
    let other = OwnMemory::map(4096).unwrap();
    assert_eq!(write(other.address(), 64), decode_error(other.address()));
    let spec = Spec::new(other.address(), readable.address(), 64);
    assert!(near.write(target, spec).unwrap().wait(PATIENCE).is_err());
    // A notification goes only where bytes may.
    let words = Notification { address: private.address(), first: 1, last: 2 };
    let writable = far.register(OwnMemory::map(4096).unwrap(), &ANYONE).unwrap();
    let spec = Spec::new(mine.address(), writable.address(), 64).notify(words);
    assert_eq!(near.write(target, spec).unwrap().wait(PATIENCE), mismatch(private.address()));
    let mut found = vec![0; 8192];
    for memory in [&private, &readable] {
        memory.read(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0));
    }
    // After it is deregistered, nothing of it.
    let address = readable.address();
    let memory = far.deregister(readable).unwrap();
    assert_eq!(read(address, 64), decode_error(address));
    drop(memory);
}

#[test]
fn grants_hold() {
    let (host, _) = Host::start(&shm(), &[]);
    nothing_else_is_reached(&host.domain(1), &host.domain(2), 0);
    for address in [shm(), udp()] {
        let hosts = pair(&address);
        nothing_else_is_reached(&hosts[0].domain(1), &hosts[1].domain(2), 1);
    }
}

/// A domain opened by hand, whose program says what it likes.
struct Raw(SeqpacketSocket);

impl Raw {
    fn open(host: &Host, number: u16) -> Self {
        let raw = Self(SeqpacketSocket::connect(&host.programs).unwrap());
        let opened = raw.ask(Request::Open { domain: Some(number) }, &[]);
        assert!(matches!(opened, Some(Reply::Opened { .. })), "{opened:?}");
        raw
    }

    fn ask(&self, request: Request, descriptors: &[std::os::fd::BorrowedFd<'_>]) -> Option<Reply> {
        let mut buffer = [0; 4096];
        self.0.send(&[&encode(&Message::AskV2 { number: 5, request })], descriptors).unwrap();
        let since = Instant::now();
        loop {
            match self.0.receive(&mut buffer) {
                Ok(received) => match decode(&buffer[..received.length_bytes]) {
                    Some(Message::AnswerV2 { number: 5, reply }) => return Some(reply),
                    other => panic!("{other:?}"),
                },
                Err(UnixError::WouldBlock) => {
                    assert!(since.elapsed() < PATIENCE);
                    std::thread::yield_now();
                }
                Err(_) => return None,
            }
        }
    }

    fn register(&self, address: u64, bytes: u64) -> Reply {
        let descriptors = own::descriptors().unwrap();
        let request = Request::Register { address, bytes, grants: ANYONE.into() };
        self.ask(request, &descriptors.each_ref().map(AsFd::as_fd)).unwrap()
    }
}

#[test]
fn memory_is_reached_as_its_program_could() {
    let (host, _) = Host::start(&shm(), &[]);
    let near = host.domain(1);
    let mine = near.allocate(8192, &[]).unwrap();
    let target = Target { node: 0, domain: 2 };
    let far = Raw::open(&host, 2);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let range = |permissions: &str, is_right: &dyn Fn(u64) -> bool| {
        let mut ranges =
            maps.lines().filter(|line| line.split(' ').nth(1) == Some(permissions)).map(|line| {
                let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
                [start, end].map(|word| u64::from_str_radix(word, 16).unwrap())
            });
        ranges.find(|[start, end]| is_right(end - start)).unwrap()[0]
    };
    // Of the program itself, and a thread's guard page. (What is larger may be room that the allocator grows into.)
    let (constant, forbidden) = (range("r--p", &|_| true), range("---p", &|bytes| bytes == 4096));
    for address in [constant, forbidden] {
        assert_eq!(far.register(address, 4096), Reply::Done);
    }
    let write = |address| near.write(target, Spec::new(mine.address(), address, 64)).unwrap().wait(PATIENCE);
    let read = |address| near.read(target, Spec::new(address, mine.address(), 64)).unwrap().wait(PATIENCE);
    let mismatch = |address| refused(NackCode::DomainMismatch, address);
    assert_eq!(write(constant), mismatch(constant));
    assert_eq!(read(constant), Ok(()));
    assert_eq!(write(forbidden), mismatch(forbidden));
    assert_eq!(read(forbidden), mismatch(forbidden));
    // Unmapped in the middle of transfers.
    let memory = OwnMemory::map(16 << 20).unwrap();
    let address = memory.address();
    assert_eq!(far.register(address, 16 << 20), Reply::Done);
    let from = near.allocate(16 << 20, &[]).unwrap();
    let transfers: Vec<_> =
        (0..8).map(|_| near.write(target, Spec::new(from.address(), address, 16 << 20)).unwrap()).collect();
    drop(memory);
    for transfer in transfers {
        assert!(matches!(transfer.wait(PATIENCE), Ok(()) | Err(WaitError::Failed(Failure::Refused { .. }))));
    }
    assert_eq!(read(address), decode_error(address));
}

#[test]
fn what_is_registered_is_checked() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.register(OwnMemory::map(8192).unwrap(), &[]).unwrap();
    let raw = Raw::open(&host, 2);
    let refused = |address: u64, bytes: u64, text: &str| {
        let reply = raw.register(address, bytes);
        assert!(matches!(&reply, Reply::Failed(reason) if reason.contains(text)), "{reply:?}");
    };
    refused(memory.address(), 0, "no memory of this process");
    refused(u64::MAX - 5, 100, "no memory of this process");
    refused((1 << 56) - 5, 100, "no memory of this process");
    // Of this process and the next one, and of that alone, which is not there.
    refused((1 << 52) - 5, 100, "no memory of this process");
    refused(1 << 52, 100, "no memory of this process");
    // Descriptors of something else.
    let file = |path: &str| std::fs::File::options().read(true).write(true).open(path).unwrap();
    let [mem, maps, page_map] = own::descriptors().unwrap();
    let ends = SeqpacketSocket::pair().unwrap();
    let (null, read_only) = (file("/dev/null"), std::fs::File::open("/proc/self/mem").unwrap());
    let other = file("/proc/self/comm");
    for wrong in [
        vec![null.as_fd(), maps.as_fd()],
        vec![other.as_fd(), maps.as_fd()],
        vec![ends.0.as_fd(), maps.as_fd()],
        vec![read_only.as_fd(), maps.as_fd()],
        vec![mem.as_fd(), mem.as_fd()],
        vec![mem.as_fd(), maps.as_fd(), null.as_fd()],
        vec![mem.as_fd(), maps.as_fd(), page_map.as_fd(), page_map.as_fd(), page_map.as_fd()],
        vec![mem.as_fd()],
        vec![],
    ] {
        let request = Request::Register { address: 4096, bytes: 4096, grants: vec![] };
        let reply = raw.ask(request, &wrong);
        assert!(matches!(&reply, Some(Reply::Failed(reason)) if reason.contains("/proc/")), "{reply:?}");
    }
    assert_eq!(raw.register(memory.address(), 8192), Reply::Done);
    refused(memory.address() + 4096, 8192, "overlap");
    refused(memory.address() - 4096, 8192, "overlap");
    let again = raw.ask(Request::Deregister { address: 12345 }, &[]);
    assert!(matches!(&again, Some(Reply::Failed(reason)) if reason.contains("no memory")), "{again:?}");
    assert_eq!(raw.ask(Request::Deregister { address: memory.address() }, &[]), Some(Reply::Done));
    let many = vec![Grant::read(Who::Anyone); 65];
    assert!(matches!(domain.register(OwnMemory::map(4096).unwrap(), &many), Err(OpenError::Refused(_))));
}

/// Own memory that a userfaultfd serves.
fn faulting(bytes: usize) -> (OwnMemory, Userfaultfd) {
    let memory = OwnMemory::map(bytes).unwrap();
    let faults = Userfaultfd::for_this_process().unwrap();
    faults.enable(0).unwrap();
    faults.register_missing(memory.address(), bytes as u64).unwrap();
    (memory, faults)
}

#[test]
fn memory_that_never_comes_holds_up_nobody_else() {
    for hosts in [vec![Host::start(&shm(), &[]).0], pair(&shm()).into(), pair(&udp()).into()] {
        let node = hosts.len() as u32 - 1;
        let (first, last) = (&hosts[0], &hosts[hosts.len() - 1]);
        let (near, far, bystander) = (first.domain(1), last.domain(2), last.domain(3));
        let mine = near.allocate(1 << 20, &[]).unwrap();
        let (memory, faults) = faulting(1 << 20);
        let slow = far.register(memory, &ANYONE).unwrap();
        let theirs = bystander.register(OwnMemory::map(1 << 20).unwrap(), &ANYONE).unwrap();
        let spec = Spec::new(mine.address(), slow.address(), 1 << 20);
        let back = Spec::new(slow.address(), mine.address(), 1 << 20);
        let target = Target { node, domain: 2 };
        let mut stuck: Vec<_> = (0..4).map(|_| near.write(target, spec).unwrap()).collect();
        stuck.extend((0..4).map(|_| near.read(target, back).unwrap()));
        // Others go on meanwhile.
        for round in 0..20 {
            let bytes = pattern(round, 50_000);
            mine.write(0, &bytes).unwrap();
            let spec = Spec::new(mine.address(), theirs.address(), 50_000);
            near.write(Target { node, domain: 3 }, spec).unwrap().wait(PATIENCE).unwrap();
            let mut found = vec![0; 50_000];
            theirs.read(0, &mut found).unwrap();
            assert!(found == bytes);
        }
        // Nothing but its own page is waited for: the memory is given back at once, and what waits for it fails.
        let since = Instant::now();
        let memory = far.deregister(slow).unwrap();
        assert!(since.elapsed() < Duration::from_secs(2), "it waits for a page: {:?}", since.elapsed());
        for transfer in stuck {
            let ended = transfer.wait(PATIENCE);
            assert!(matches!(ended, Err(WaitError::Failed(_))), "{ended:?}");
        }
        // The domain and the node end without it.
        drop((far, near, bystander));
        drop(hosts);
        drop(faults);
        drop(memory);
    }
}

#[test]
fn a_page_that_never_comes_fails_its_own_transfer_alone() {
    let (host, _) = Host::start(&shm(), &[]);
    let (near, far) = (host.domain(1), host.domain(2));
    let (memory, faults) = faulting(1 << 16);
    let slow = far.register(memory, &ANYONE).unwrap();
    let mine = near.allocate(4096, &[]).unwrap();
    let spec = Spec::new(mine.address(), slow.address(), 100);
    let write = || near.write(Target { node: 0, domain: 2 }, spec).unwrap().wait(PATIENCE);
    assert_eq!(write(), decode_error(slow.address()));
    assert_eq!(write(), decode_error(slow.address()), "it is known by now");
    assert_eq!(host.counter("faults_timed_out"), 2);
    drop(faults);
    let since = Instant::now();
    while write().is_err() {
        assert!(since.elapsed() < PATIENCE);
    }
}

#[test]
fn memory_that_comes_late_is_waited_for() {
    // A page is waited for two seconds, for which the thread that brings it may have no processor: once, not twice.
    copy_to_late_memory().or_else(|_| copy_to_late_memory()).unwrap();
}

fn copy_to_late_memory() -> Result<(), WaitError> {
    let hosts = pair(&shm());
    let (near, far) = (hosts[0].domain(1), hosts[1].domain(2));
    let mine = near.allocate(1 << 16, &[]).unwrap();
    let (memory, faults) = faulting(1 << 16);
    let slow = far.register(memory, &ANYONE).unwrap();
    let bytes = pattern(5, 50_000);
    mine.write(100, &bytes).unwrap();
    let spec = Spec::new(mine.address() + 100, slow.address() + 50, 50_000);
    let stop = AtomicBool::new(false);
    assert_eq!(hosts[0].node.programs_at_work(), []);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            let page = OwnMemory::map(4096).unwrap();
            page.write(0, &[1; 4096]).unwrap();
            // A node that is to end waits for it.
            let at_work = || hosts[0].node.programs_at_work();
            let since = Instant::now();
            while !matches!(&*at_work(), [program] if (program.domain, program.transfers) == (1, 1)) {
                assert!(since.elapsed() < PATIENCE, "{:?}", at_work());
                std::thread::yield_now();
            }
            while !stop.load(Ordering::Relaxed) {
                if let Ok(Some(tombolo_host::uffd::Event::Fault { address, .. })) = faults.read_event() {
                    let _ = faults.copy(address & !4095, page.address(), 4096, false);
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let transfer = near.write(Target { node: 1, domain: 2 }, spec).unwrap();
        let ended = transfer.wait(PATIENCE);
        let mut found = vec![0; 50_000];
        slow.read(50, &mut found).unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(ended.is_err() || found == bytes);
        ended
    });
    assert_eq!(hosts[0].node.programs_at_work(), []);
    ended
}

#[test]
fn deregistered_memory_does_not_change() {
    let hosts = pair(&shm());
    let far = hosts[1].domain(2);
    let stop = AtomicBool::new(false);
    let (writers, address) = ([hosts[0].domain(1), hosts[1].domain(1)], std::sync::atomic::AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (writer, node) in writers.iter().zip([1, 0]) {
            let (stop, address) = (&stop, &address);
            scope.spawn(move || {
                let mine = writer.allocate(1 << 20, &[]).unwrap();
                mine.write(0, &vec![0xAA; 1 << 20]).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let spec = Spec::new(mine.address(), address.load(Ordering::Relaxed), 1 << 20);
                    let _ = writer.write(Target { node, domain: 2 }, spec).unwrap().wait(PATIENCE);
                }
            });
        }
        for _ in 0..20 {
            let memory = far.register(OwnMemory::map(1 << 20).unwrap(), &ANYONE).unwrap();
            address.store(memory.address(), Ordering::Relaxed);
            let since = Instant::now();
            while memory.word(0).unwrap().load(Ordering::Acquire) == 0 {
                assert!(since.elapsed() < PATIENCE);
                std::thread::yield_now();
            }
            let memory = far.deregister(memory).unwrap();
            memory.write(0, &vec![0x55; 1 << 20]).unwrap();
            let until = Instant::now() + Duration::from_millis(20);
            let mut found = vec![0; 1 << 20];
            while Instant::now() < until {
                memory.read(0, &mut found).unwrap();
                assert!(found.iter().all(|byte| *byte == 0x55));
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// The other process of the next test, which is this one when it is told a socket.
#[test]
fn a_program_to_be_killed() {
    let Some(socket) = std::env::var_os("TOMBOLO_TEST_SOCKET") else { return };
    let domain = Domain::open(socket.as_ref(), Some(2)).unwrap();
    let memory = domain.register(OwnMemory::map(64 << 20).unwrap(), &ANYONE).unwrap();
    println!("address {}", memory.address());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_program_fails_what_goes_there() {
    let hosts = pair(&shm());
    let near = hosts[0].domain(1);
    let mine = near.allocate(64 << 20, &[]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["own_memory::a_program_to_be_killed", "--exact", "--nocapture"])
        .env("TOMBOLO_TEST_SOCKET", &hosts[1].programs)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let address: u64 = lines
        .map(Result::unwrap)
        .find_map(|line| line.split_once("address ").map(|(_, number)| number.parse().unwrap()))
        .unwrap();
    let spec = Spec::new(mine.address(), address, 64 << 20);
    let target = Target { node: 1, domain: 2 };
    near.write(target, Spec { size_bytes: 4096, ..spec }).unwrap().wait(PATIENCE).unwrap();
    let transfers: Vec<_> = (0..8).map(|_| near.write(target, spec).unwrap()).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    for transfer in transfers {
        let ended = transfer.wait(PATIENCE);
        assert!(matches!(ended, Err(WaitError::Failed(Failure::Refused { .. }))), "{ended:?}");
    }
    // Its domain is free again, and others work on.
    let since = Instant::now();
    let far = loop {
        match Domain::open(&hosts[1].programs, Some(2)) {
            Ok(domain) => break domain,
            Err(_) => assert!(since.elapsed() < PATIENCE),
        }
    };
    exchange(&near, &far, 1, &[10_000]);
}

#[test]
fn a_failed_transfer_touches_nothing_after_it_is_told() {
    let (host, _) = Host::start(&shm(), &[]);
    let (near, far) = (host.domain(1), host.domain(2));
    let mine = near.register(OwnMemory::map(1 << 20).unwrap(), &[]).unwrap();
    let theirs = far.allocate(1 << 20, &ANYONE).unwrap();
    let target = Target { node: 0, domain: 2 };
    theirs.write(0, &vec![0xAA; 1 << 20]).unwrap();
    for round in 0..50 {
        // It runs off the end of own memory, after a few blocks.
        let from = (1 << 20) - 40_000 - round * 100;
        let spec = Spec::new(theirs.address(), mine.address() + from, 100_000);
        let ended = near.read(target, spec).unwrap().wait(PATIENCE);
        let code = NackCode::DecodeError;
        assert!(
            matches!(ended, Err(WaitError::Failed(Failure::Local { code: found, .. })) if found == code),
            "{ended:?}"
        );
        mine.write(0, &vec![0x55; 1 << 20]).unwrap();
        // Another transfer through the same thread comes behind whatever was left.
        near.write(target, Spec::new(mine.address(), theirs.address(), 64)).unwrap().wait(PATIENCE).unwrap();
        let mut found = vec![0; 1 << 20];
        mine.read(0, &mut found).unwrap();
        assert!(found.iter().all(|byte| *byte == 0x55), "round {round}");
        theirs.write(0, &[0xAA; 64]).unwrap();
    }
}

/// The other process of the next test.
#[test]
fn a_program_that_becomes_another() {
    let Some(socket) = std::env::var_os("TOMBOLO_TEST_EXEC") else { return };
    let domain = Domain::open(socket.as_ref(), Some(2)).unwrap();
    let memory = domain.register(OwnMemory::map(1 << 20).unwrap(), &ANYONE).unwrap();
    println!("address {}", memory.address());
    std::io::stdin().read_line(&mut String::new()).unwrap();
    // It lives on under the same number, until its input ends.
    panic!("{}", std::os::unix::process::CommandExt::exec(&mut Command::new("cat")));
}

#[test]
fn another_program_under_the_same_number_is_not_touched() {
    let hosts = pair(&shm());
    let near = hosts[0].domain(1);
    let mine = near.allocate(1 << 20, &[]).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["own_memory::a_program_that_becomes_another", "--exact", "--nocapture"])
        .env("TOMBOLO_TEST_EXEC", &hosts[1].programs)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let address: u64 = lines
        .find_map(|line| line.split_once("address ").map(|(_, number)| number.parse().unwrap()))
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let spec = Spec::new(mine.address(), address, 1 << 20);
    let target = Target { node: 1, domain: 2 };
    near.write(target, spec).unwrap().wait(PATIENCE).unwrap();
    let transfers: Vec<_> = (0..16).map(|_| near.write(target, spec).unwrap()).collect();
    input.write_all(b"now\n").unwrap();
    for transfer in transfers {
        assert!(matches!(transfer.wait(PATIENCE), Ok(()) | Err(WaitError::Failed(Failure::Refused { .. }))));
    }
    let since = Instant::now();
    while near.write(target, spec).unwrap().wait(PATIENCE).is_ok() {
        assert!(since.elapsed() < PATIENCE);
    }
    // The other program works.
    input.write_all(b"still here\n").unwrap();
    assert_eq!(lines.next().as_deref(), Some("still here"));
    drop(input);
    assert!(child.wait().unwrap().success());
}
