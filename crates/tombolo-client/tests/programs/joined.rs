//! Several processes in one domain.

use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_client::{
    Domain, Failure, Grant, Invitation, OpenError, OwnMemory, PROCESSES, Right, Spec, Target, WaitError, Who,
};
use tombolo_host::own::{PAGE_BYTES, ProcessMemory, ThisProcess};
use tombolo_wire::NackCode;

use crate::harness::{Host, PATIENCE, pattern, shm, udp};

fn at(domain: &Domain) -> Target {
    Target { node: 0, domain: domain.number() }
}

fn refused<T: std::fmt::Debug>(result: Result<T, OpenError>, why: &str) {
    match result {
        Err(OpenError::Refused(reason)) => assert!(reason.contains(why), "{reason}"),
        other => panic!("not refused for {why:?}: {other:?}"),
    }
}

/// One that is allowed in, beside its founder.
fn two(host: &Host) -> [Domain; 2] {
    let founder = Domain::open(&host.programs, None).unwrap();
    let joined = Domain::join(&host.programs, &founder.invite().unwrap()).unwrap();
    assert_eq!(joined.number(), founder.number());
    [founder, joined]
}

/// Each moves what the other has, of both kinds, without grants; notifications and atomic operations too.
#[test]
fn each_process_reaches_all_memory_of_the_domain() {
    let (host, _) = Host::start(&shm(), &[]);
    let [founder, joined] = two(&host);
    let bytes = pattern(3, 100_000);
    for (mover, owner) in [(&founder, &joined), (&joined, &founder)] {
        let own = owner.register(OwnMemory::map(200_000).unwrap(), &[]).unwrap();
        let other = mover.register(OwnMemory::map(200_000).unwrap(), &[]).unwrap();
        let node = owner.allocate(200_704, &[]).unwrap();
        assert_ne!(own.address() >> 52, other.address() >> 52);
        other.write(0, &bytes).unwrap();
        for there in [own.address(), node.address()] {
            mover
                .write(at(owner), Spec::new(other.address(), there, 100_000))
                .unwrap()
                .wait(PATIENCE)
                .unwrap();
            let back = Spec::new(there, other.address() + 100_000, 100_000);
            mover.read(at(owner), back).unwrap().wait(PATIENCE).unwrap();
            let mut found = vec![0; 100_000];
            other.read(100_000, &mut found).unwrap();
            assert!(found == bytes);
            let word = there + 150_000;
            let before = mover.fetch_add(at(owner), word, 7).unwrap().wait(PATIENCE).unwrap();
            assert_eq!(
                (before, mover.fetch_add(at(owner), word, 1).unwrap().wait(PATIENCE).unwrap()),
                (0, 7)
            );
        }
        let mut found = vec![0; 100_000];
        own.read(0, &mut found).unwrap();
        assert!(found == bytes);
        assert_eq!(own.word(150_000).unwrap().load(Ordering::Relaxed), 8);
        owner.deregister(own).unwrap();
        mover.deregister(other).unwrap();
    }
}

/// Others reach what is granted to them, by whichever process, at this node and another; and grants to the domain mean all its
/// processes.
#[test]
fn others_see_one_domain() {
    for (link, other_link) in [(shm(), shm()), (udp(), udp())] {
        let (host, address) = Host::start(&link, &[]);
        let (there, _) = Host::start(&other_link, &[&address]);
        let [founder, joined] = two(&host);
        let stranger = Domain::open(&there.programs, None).unwrap();
        let target = stranger.find(&joined.export(0, 1).unwrap()).unwrap().expect("the nodes are joined");
        let from = stranger.register(OwnMemory::map(4096).unwrap(), &[]).unwrap();
        from.write(0, b"for all").unwrap();
        let granted = joined.register(OwnMemory::map(4096).unwrap(), &[Grant::all(Who::Anyone)]).unwrap();
        let kept = joined.register(OwnMemory::map(4096).unwrap(), &[]).unwrap();
        let write = |to: u64| {
            let spec = Spec::new(from.address(), to, 7);
            stranger.write(target, spec).unwrap().wait(PATIENCE)
        };
        write(granted.address()).unwrap();
        let mut found = [0; 7];
        granted.read(0, &mut found).unwrap();
        assert_eq!(&found, b"for all");
        let denied = write(kept.address());
        assert!(matches!(denied, Err(WaitError::Failed(Failure::Refused { .. }))), "{denied:?}");
        // At its own address alone it is the founder's, who has nothing there.
        let nobodys = write(granted.address() & ((1 << 52) - 1));
        assert!(matches!(nobodys, Err(WaitError::Failed(Failure::Refused { .. }))), "{nobodys:?}");
        let neighbour = Domain::open(&host.programs, None).unwrap();
        let memory = neighbour.allocate(4096, &[Grant::read(Who::Program(founder.number()))]).unwrap();
        memory.write(0, b"granted").unwrap();
        let spec = Spec::new(memory.address(), kept.address(), 7);
        joined.read(at(&neighbour), spec).unwrap().wait(PATIENCE).unwrap();
        kept.read(0, &mut found).unwrap();
        assert_eq!(&found, b"granted");
    }
}

#[test]
fn only_invited_processes_get_in_and_only_so_many() {
    let (host, _) = Host::start(&shm(), &[]);
    let founder = Domain::open(&host.programs, Some(7)).unwrap();
    let guess = Invitation::from_bytes(&[&b"TmbI\x00\x01\x07\x00"[..], &[0; 16]].concat()).unwrap();
    refused(Domain::join(&host.programs, &guess), "no invitation");
    let invitation = founder.invite().unwrap();
    assert_eq!((founder.invite().unwrap(), invitation.domain()), (invitation, 7));
    refused(Domain::join(&host.programs, &guess), "no invitation");
    let mut elsewhere = invitation.to_bytes();
    elsewhere[6] = 8;
    let elsewhere = Invitation::from_bytes(&elsewhere).unwrap();
    refused(Domain::join(&host.programs, &elsewhere), "no invitation");
    let mut others: Vec<_> =
        (1..PROCESSES).map(|_| Domain::join(&host.programs, &invitation).unwrap()).collect();
    refused(Domain::join(&host.programs, &invitation), "16 processes");
    // Any of them invites, and a place that one has left is free.
    assert_eq!(others[3].invite().unwrap(), invitation);
    drop(others.remove(3));
    let since = Instant::now();
    let again = loop {
        match Domain::join(&host.programs, &invitation) {
            Ok(joined) => break joined,
            Err(_) if since.elapsed() < PATIENCE => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let memory = again.register(OwnMemory::map(4096).unwrap(), &[]).unwrap();
    assert!(memory.address() >> 52 == 4, "{:#x}", memory.address());
    refused(Domain::open(&host.programs, Some(7)).map(drop), "belongs to another program");
}

/// What a process has goes with it, and nothing else; the domain goes with the last, and its invitation too.
#[test]
fn a_process_leaves_with_what_it_has_and_the_domain_ends_with_the_last() {
    let (host, _) = Host::start(&shm(), &[]);
    let [founder, joined] = two(&host);
    let (number, invitation) = (founder.number(), founder.invite().unwrap());
    let gone = founder.allocate(4096, &[]).unwrap();
    let kept = joined.allocate(4096, &[]).unwrap();
    let own = joined.register(OwnMemory::map(4096).unwrap(), &[]).unwrap();
    // One takes nothing away from another.
    let foreign = joined.allocate(4096, &[]).unwrap();
    let foreign_at = foreign.address();
    refused(founder.free(foreign), "no memory begins at");
    assert_eq!(joined.fetch_add(at(&joined), foreign_at, 1).unwrap().wait(PATIENCE), Ok(0));
    let founders_own = founder.register(OwnMemory::map(4096).unwrap(), &[]).unwrap();
    let (gone_at, founders_own_at) = (gone.address(), founders_own.address());
    drop((gone, founders_own, founder));
    let word = |address| joined.fetch_add(at(&joined), address, 1).unwrap().wait(PATIENCE);
    let since = Instant::now();
    while word(gone_at).is_ok() {
        assert!(since.elapsed() < PATIENCE, "the memory of a process that has left stays");
    }
    assert!(word(founders_own_at).is_err());
    assert_eq!((word(kept.address()).unwrap(), word(own.address()).unwrap()), (0, 0));
    assert_eq!(joined.invite().unwrap(), invitation);
    refused(Domain::open(&host.programs, Some(number)).map(drop), "belongs to another program");
    let third = Domain::join(&host.programs, &invitation).unwrap();
    assert_eq!(
        third.own_address(0),
        Some(2 << 52),
        "the number of the process that has left is given to the next"
    );
    assert_eq!(third.fetch_add(at(&third), kept.address(), 0).unwrap().wait(PATIENCE).unwrap(), 1);
    joined.deregister(own).unwrap();
    drop((kept, third, joined));
    let since = Instant::now();
    while let Err(error) = Domain::open(&host.programs, Some(number)) {
        assert!(since.elapsed() < PATIENCE, "the domain stays: {error}");
    }
    refused(Domain::join(&host.programs, &invitation).map(drop), "no invitation");
}

/// A mailbox is that of the process that opened it, and takes messages to the domain.
#[test]
fn messages_to_the_domain_come_to_the_process_that_has_the_mailbox() {
    let (host, _) = Host::start(&shm(), &[]);
    let [founder, joined] = two(&host);
    let mailbox = joined.open_mailbox(8, &[Who::Anyone]).unwrap();
    let sender = Domain::open(&host.programs, None).unwrap();
    sender.send(at(&founder), b"to whom it may concern").unwrap().wait(PATIENCE).unwrap();
    assert_eq!(mailbox.receive(PATIENCE).unwrap().bytes, b"to whom it may concern");
    refused(founder.open_mailbox(8, &[Who::Anyone]).map(drop), "another process");
    // It goes with its process; then another one may have it.
    drop((mailbox, joined));
    let since = Instant::now();
    let mailbox = loop {
        match founder.open_mailbox(8, &[Who::Anyone]) {
            Ok(mailbox) => break mailbox,
            Err(error) => assert!(since.elapsed() < PATIENCE, "{error}"),
        }
    };
    sender.send(at(&founder), b"to the other one").unwrap().wait(PATIENCE).unwrap();
    assert_eq!(mailbox.receive(PATIENCE).unwrap().bytes, b"to the other one");
}

/// What is said of a process's memory names it as the domain does.
#[test]
fn faults_and_refusals_name_addresses_of_the_domain() {
    let (host, _) = Host::start(&shm(), &[]);
    let [founder, joined] = two(&host);
    let memory = OwnMemory::map(8 * 4096).unwrap();
    let raw = memory.address();
    let own = joined.register(memory, &[]).unwrap();
    assert_eq!((own.address(), joined.own_address(raw)), ((1 << 52) + raw, Some(own.address())));
    assert_eq!(joined.own_address(1 << 52), None);
    let from = founder.allocate(8 * 4096, &[]).unwrap();
    let write = |offset: u64, bytes| {
        let spec = Spec::new(from.address(), own.address() + offset, bytes);
        founder.write(at(&founder), spec).unwrap().wait(PATIENCE)
    };
    joined.take_fault_registers().unwrap();
    assert_eq!(write(4096, 64), Ok(()));
    let registers = joined.take_fault_registers().unwrap();
    assert!(registers.translation_fault && registers.write_not_read, "{registers:?}");
    assert_eq!(registers.address, own.address() + 4096);
    // Those of the other process have seen nothing.
    assert!(!founder.take_fault_registers().unwrap().translation_fault);
    // SAFETY: a page of a mapping that is reached through spans alone, and not again.
    unsafe { rustix::mm::munmap(own.as_mut_ptr().add(3 * 4096).cast(), 4096) }.unwrap();
    let page = own.address() + 3 * 4096;
    let refused = Failure::Local { code: NackCode::DecodeError, page: Some(page) };
    assert_eq!(write(2 * 4096, 2 * 4096), Err(WaitError::Failed(refused)));
    // Brought in before.
    assert!(joined.prefetch(&own, 5 * 4096..6 * 4096, Right::Write));
    let since = Instant::now();
    let process = ThisProcess::new().unwrap();
    while process.absent(raw + 5 * PAGE_BYTES, 1, Right::Write).pages != 0 {
        assert!(since.elapsed() < PATIENCE, "the page is not brought in");
    }
}

/// All memory of a process, whatever is mapped there later.
#[test]
fn a_whole_address_space_is_a_part_of_the_domain() {
    let (host, _) = Host::start(&shm(), &[]);
    let [founder, joined] = two(&host);
    // SAFETY: what is written to below is memory that nothing else uses, and nobody else knows these domains.
    let all = joined.register(unsafe { OwnMemory::address_space() }, &[]).unwrap();
    let to = OwnMemory::map(4096).unwrap();
    let from = founder.register(OwnMemory::map(4096).unwrap(), &[]).unwrap();
    from.write(0, b"wherever").unwrap();
    let there = joined.own_address(to.address()).unwrap();
    founder.write(at(&founder), Spec::new(from.address(), there, 8)).unwrap().wait(PATIENCE).unwrap();
    let mut found = [0; 8];
    to.read(0, &mut found).unwrap();
    assert_eq!(&found, b"wherever");
    joined.deregister(all).unwrap();
}
