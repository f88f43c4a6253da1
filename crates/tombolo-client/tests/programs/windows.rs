//! Windows: memory of one program that another one maps, at one node and at two, until it is revoked or freed.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_channel::{Message, Reply, Request, decode, encode};
use tombolo_client::{
    Domain, Failure, Grant, Memory, OpenError, Spec, Target, WaitError, Who, Window, WindowEnd, WindowError,
};
use tombolo_host::event;
use tombolo_host::unix::SeqpacketSocket;
use tombolo_node::Limits;
use tombolo_wire::NackCode;

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};

const BYTES: usize = 1 << 20;
const ALL: [Grant; 1] = [Grant::all(Who::Anyone)];
const READ: [Grant; 1] = [Grant::read(Who::Anyone)];

/// An owner and another program, at one node and at two.
fn scenes(check: impl Fn(&Domain, &Domain, Target)) {
    let (host, _) = Host::start(&shm(), &[]);
    let owner = host.domain(1);
    check(&owner, &host.domain(2), Target { node: 0, domain: 1 });
    let [near, far] = pair(&shm());
    let owner = far.domain(1);
    check(&owner, &near.domain(2), Target { node: 1, domain: 1 });
}

fn refused(error: &OpenError, with: &str) {
    assert!(matches!(error, OpenError::Refused(reason) if reason.contains(with)), "{error}");
}

#[test]
fn both_sides_load_store_and_change_the_same_memory() {
    scenes(|owner, other, target| {
        let memory = owner.allocate_window(BYTES, &ALL).unwrap();
        let window = other.map_window(target, memory.address()).unwrap();
        assert_eq!((window.len(), window.is_writable(), window.has_owner()), (BYTES, true, true));
        let bytes = pattern(7, 5000);
        window.write(4090, &bytes).unwrap();
        let mut found = vec![0; bytes.len()];
        memory.read(4090, &mut found).unwrap();
        assert!(found == bytes);
        memory.word(8).unwrap().store(5, Ordering::Release);
        assert_eq!(window.fetch_add(8, 3), Ok(5));
        assert_eq!(window.compare_swap(8, 8, 9), Ok(8));
        assert_eq!(window.compare_swap(8, 8, 10), Ok(9));
        window.store(16, 77).unwrap();
        assert_eq!((window.load(8), memory.word(16).unwrap().load(Ordering::Acquire)), (Ok(9), 77));
        // Transfers reach it as well, and the atomic operations of both are atomic with each other.
        let own = other.allocate(4096, &[]).unwrap();
        other
            .read(target, Spec::new(memory.address() + 4090, own.address(), 96))
            .unwrap()
            .wait(PATIENCE)
            .unwrap();
        let mut found = [0; 96];
        own.read(0, &mut found).unwrap();
        assert_eq!(found[..], bytes[..96]);
        assert_eq!(other.fetch_add(target, memory.address() + 8, 1).unwrap().wait(PATIENCE), Ok(9));
        // Nothing lies outside, and no word across.
        assert!(matches!(window.load(BYTES), Err(WindowError::Range(_))));
        assert!(matches!(window.store(4, 0), Err(WindowError::Range(_))));
        assert!(matches!(window.read(BYTES - 1, &mut [0; 2]), Err(WindowError::Range(_))));
    });
}

#[test]
fn what_is_granted_for_reading_is_read_and_nothing_else() {
    scenes(|owner, other, target| {
        let memory = owner.allocate_window(BYTES, &READ).unwrap();
        let window = other.map_window(target, memory.address()).unwrap();
        memory.word(0).unwrap().store(1, Ordering::Release);
        assert_eq!((window.load(0), window.is_writable()), (Ok(1), false));
        assert_eq!(window.store(0, 2), Err(WindowError::ReadOnly));
        assert_eq!(window.write(0, &[2]), Err(WindowError::ReadOnly));
        assert_eq!(window.fetch_add(0, 2), Err(WindowError::ReadOnly));
        // The owner itself may map it, for reading.
        assert_eq!(owner.map_window(Target { node: 0, domain: 1 }, memory.address()).unwrap().load(0), Ok(1));
    });
}

#[test]
fn a_window_is_mapped_by_those_who_may_and_where_it_begins() {
    let (host, _) = Host::start(&shm(), &[]);
    let [owner, one, two] = [1, 2, 3].map(|number| host.domain(number));
    let target = Target { node: 0, domain: 1 };
    let memory = owner.allocate_window(BYTES, &[Grant::all(Who::Program(2))]).unwrap();
    let plain = owner.allocate(BYTES, &ALL).unwrap();
    one.map_window(target, memory.address()).unwrap();
    refused(&two.map_window(target, memory.address()).unwrap_err(), "granted to others");
    for address in [memory.address() + 4096, plain.address(), 0, u64::MAX] {
        refused(&one.map_window(target, address).unwrap_err(), "no open window of domain 1 begins at");
    }
    refused(&one.map_window(Target { node: 0, domain: 9 }, memory.address()).unwrap_err(), "no domain 9");
    refused(&one.map_window(Target { node: 5, domain: 1 }, memory.address()).unwrap_err(), "no node");
    for grants in [
        vec![Grant::write(Who::Anyone)],
        vec![Grant::all(Who::Program(2)), Grant::read(Who::Program(3))],
        vec![Grant::read(Who::Program(2)), Grant::all(Who::Program(3))],
    ] {
        refused(&owner.allocate_window(BYTES, &grants).unwrap_err(), "to all alike");
    }
    refused(&owner.allocate_window(100, &ALL).unwrap_err(), "whole number of pages");
    refused(&owner.revoke_window(&plain).unwrap_err(), "no window begins");
    // Nobody may map what is granted to nobody, and nobody but its owner is told so otherwise.
    let own = owner.allocate_window(4096, &[]).unwrap();
    refused(&one.map_window(target, own.address()).unwrap_err(), "granted to others");
}

#[test]
fn a_link_that_passes_no_memory_has_no_windows() {
    let [near, far] = pair(&udp());
    let owner = far.domain(1);
    let memory = owner.allocate_window(4096, &ALL).unwrap();
    let error = near.domain(2).map_window(Target { node: 1, domain: 1 }, memory.address()).unwrap_err();
    refused(&error, "windows need one over shared memory");
}

/// The library opens a window when it has mapped it; a program that does not cannot be overtaken by who maps it for reading.
#[test]
fn nobody_maps_a_window_before_its_owner() {
    let (host, _) = Host::start(&shm(), &[]);
    let socket = SeqpacketSocket::connect(&host.programs).unwrap();
    let ask = |number, request| {
        socket.send(&[&encode(&Message::AskV2 { number, request })], &[]).unwrap();
        let mut buffer = vec![0; tombolo_channel::MAX_MESSAGE_BYTES];
        assert_eq!(event::wait_readable(&[socket.as_fd()], Some(PATIENCE)), Ok(true), "no answer");
        let received = socket.receive(&mut buffer).unwrap();
        match decode(&buffer[..received.length_bytes]) {
            Some(Message::AnswerV2 { reply, .. }) => reply,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(1, Request::Open { domain: Some(1) }), Reply::Opened { domain: 1 });
    let Reply::Allocated { address } = ask(2, Request::AllocateWindow { bytes: 4096, grants: READ.to_vec() })
    else {
        panic!("not allocated")
    };
    let other = host.domain(2);
    let target = Target { node: 0, domain: 1 };
    refused(&other.map_window(target, address).unwrap_err(), "no open window");
    assert!(matches!(ask(3, Request::WindowMoved { address }), Reply::Failed(_)), "it was not revoked");
    assert!(matches!(ask(4, Request::OpenWindow { address: address + 4096 }), Reply::Failed(_)));
    assert_eq!(ask(5, Request::OpenWindow { address }), Reply::Done);
    assert_eq!(ask(6, Request::OpenWindow { address }), Reply::Done, "it is asked again after a late answer");
    let window = other.map_window(target, address).unwrap();
    // It is revoked, and its owner does not go on: nobody finds it, and it can be asked again.
    for number in [7, 8] {
        assert_eq!(ask(number, Request::RevokeWindow { address }), Reply::Allocated { address });
        assert_eq!(window.check(), Err(WindowEnd::Revoked));
        refused(&other.map_window(target, address).unwrap_err(), "no open window");
    }
    assert!(matches!(ask(9, Request::OpenWindow { address }), Reply::Failed(_)), "it is being moved");
    assert_eq!(host.counter("programs_memory_bytes"), 8192);
    assert_eq!(ask(10, Request::WindowMoved { address }), Reply::Done);
    assert_eq!(ask(11, Request::WindowMoved { address }), Reply::Done, "its answer came late");
    assert!(matches!(ask(12, Request::RevokeWindow { address }), Reply::Failed(_)));
    assert_eq!(host.counter("programs_memory_bytes"), 4096);
    assert_eq!(ask(13, Request::Free { address }), Reply::Done);
}

/// Counts in a word of each page, until it is told to stop; each round finds what the one before has left.
fn count(memory: &Memory, stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        count += 1;
        for page in 0..BYTES / 4096 {
            let word = memory.word(page * 4096).unwrap();
            assert_eq!(word.load(Ordering::Relaxed), count - 1, "page {page}");
            word.store(count, Ordering::Relaxed);
        }
    }
    count
}

/// Stores rising numbers until the window is over; the last of which it knew that it is there.
fn store(window: &Window) -> u64 {
    for number in 1.. {
        match window.store(4096 + 8, number) {
            Ok(()) => {}
            Err(WindowError::Ended(WindowEnd::Revoked)) => return number - 1,
            Err(other) => panic!("{other}"),
        }
    }
    0
}

#[test]
fn a_window_that_is_revoked_is_its_owners_alone_and_nothing_of_it_is_lost() {
    scenes(|owner, other, target| {
        let memory = owner.allocate_window(BYTES, &ALL).unwrap();
        let address = memory.address();
        let [first, second] = [0, 1].map(|_| other.map_window(target, address).unwrap());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let counting = scope.spawn(|| count(&memory, &stop));
            let storing = scope.spawn(|| store(&first));
            while second.load(0).unwrap() < 3 || second.load(4096 + 8).unwrap() < 1000 {
                std::thread::yield_now();
            }
            owner.revoke_window(&memory).unwrap();
            let stored = storing.join().unwrap();
            let found = memory.word(4096 + 8).unwrap().load(Ordering::Relaxed);
            assert!(found >= stored, "{stored} numbers were said to be there, and {found} is");
            assert_eq!(second.check(), Err(WindowEnd::Revoked));
            // What is stored now goes nowhere.
            assert!(second.store(4096 + 8, u64::MAX).is_err());
            assert_eq!(memory.word(4096 + 8).unwrap().load(Ordering::Relaxed), found);
            stop.store(true, Ordering::Relaxed);
            let counted = counting.join().unwrap();
            assert_eq!(memory.word(0).unwrap().load(Ordering::Relaxed), counted);
        });
        refused(&other.map_window(target, address).unwrap_err(), "no open window");
        let own = other.allocate(4096, &[]).unwrap();
        let failed = other.write(target, Spec::new(own.address(), address, 8)).unwrap().wait(PATIENCE);
        let is_refused = |failure: &Failure| matches!(failure, Failure::Refused { code, .. } if *code == NackCode::DomainMismatch);
        assert!(matches!(&failed, Err(WaitError::Failed(failure)) if is_refused(failure)), "{failed:?}");
        // For its owner it is memory like any other, and is no window a second time.
        let local = Target { node: 0, domain: 1 };
        let spec = Spec::new(address, address + 4096, 8);
        owner.write(local, spec).unwrap().wait(PATIENCE).unwrap();
        assert_eq!(
            memory.word(4096).unwrap().load(Ordering::Relaxed),
            memory.word(0).unwrap().load(Ordering::Relaxed)
        );
        owner.revoke_window(&memory).unwrap();
        owner.free(memory).unwrap();
    });
}

/// Several threads revoke one window, of huge pages where there are some, while the kernel writes into it for others: it moves
/// once, and what the kernel wrote is there.
#[test]
fn a_window_moves_once_however_many_revoke_it_and_system_calls_write_there() {
    const LARGE: usize = 6 << 20;
    let (host, _) = Host::start(&shm(), &[]);
    let (owner, other) = (host.domain(1), host.domain(2));
    let bytes = pattern(3, LARGE / 2);
    for round in 0..5 {
        let memory = owner.allocate_window(LARGE, &ALL).unwrap();
        let window = other.map_window(Target { node: 0, domain: 1 }, memory.address()).unwrap();
        let revoked_before = host.counter("programs_windows_revoked");
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut file = tempfile(&bytes);
                for start in (0..bytes.len()).step_by(4096) {
                    // SAFETY: a part of the mapping, which nobody else writes.
                    let place = unsafe {
                        std::slice::from_raw_parts_mut(memory.as_mut_ptr().add(LARGE / 2 + start), 4096)
                    };
                    file.read_exact(place).unwrap();
                }
            });
            let revoking: Vec<_> =
                (0..3).map(|_| scope.spawn(|| owner.revoke_window(&memory).unwrap())).collect();
            writing.join().unwrap();
            revoking.into_iter().for_each(|one| one.join().unwrap());
        });
        assert_eq!(host.counter("programs_windows_revoked"), revoked_before + 1, "round {round}");
        let mut found = vec![0; bytes.len()];
        memory.read(LARGE / 2, &mut found).unwrap();
        assert!(found == bytes, "round {round}");
        assert_eq!(window.check(), Err(WindowEnd::Revoked));
        owner.free(memory).unwrap();
        let since = std::time::Instant::now();
        while host.counter("programs_memory_bytes") + host.counter("programs_memory_being_freed_bytes") > 0 {
            assert!(since.elapsed() < PATIENCE, "memory is left");
            std::thread::yield_now();
        }
    }
}

/// A file with these bytes, at its beginning.
fn tempfile(bytes: &[u8]) -> std::fs::File {
    let path = crate::harness::path("bytes");
    std::fs::write(&path, bytes).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

/// The node is gone: its program takes the window back all the same.
#[test]
fn a_window_is_revoked_without_its_node() {
    let (host, _) = Host::start(&shm(), &[]);
    let (owner, other) = (host.domain(1), host.domain(2));
    let memory = owner.allocate_window(BYTES, &ALL).unwrap();
    let window = other.map_window(Target { node: 0, domain: 1 }, memory.address()).unwrap();
    window.store(0, 5).unwrap();
    drop(host);
    owner.revoke_window(&memory).unwrap();
    window.word(0).unwrap().store(6, Ordering::SeqCst);
    assert_eq!(memory.word(0).unwrap().load(Ordering::SeqCst), 5);
}

#[test]
fn a_window_that_is_freed_or_whose_domain_is_closed_is_over() {
    scenes(|owner, other, target| {
        let [one, two] = [0, 1].map(|_| owner.allocate_window(4096, &ALL).unwrap());
        let [first, second] = [&one, &two].map(|memory| other.map_window(target, memory.address()).unwrap());
        owner.free(one).unwrap();
        assert_eq!((first.check(), second.check()), (Err(WindowEnd::Freed), Ok(())));
        assert_eq!(second.store(0, 1), Ok(()));
        drop(two);
        // It is mapped still.
        assert!(first.load(0).is_err());
    });
    let (host, _) = Host::start(&shm(), &[]);
    let (owner, other) = (host.domain(1), host.domain(2));
    let memory = owner.allocate_window(4096, &ALL).unwrap();
    let window = other.map_window(Target { node: 0, domain: 1 }, memory.address()).unwrap();
    drop((owner, memory));
    while window.check().is_ok() {
        std::thread::yield_now();
    }
    assert_eq!(window.check(), Err(WindowEnd::Freed));
}

#[test]
fn a_window_is_not_revoked_where_there_is_no_room_to_move_it() {
    let limits = Limits { program_memory_bytes: 3 << 19, ..Limits::default() };
    let (host, _) = Host::start_with("small", &shm(), &[], limits);
    let (owner, other) = (host.domain(1), host.domain(2));
    let memory = owner.allocate_window(BYTES, &ALL).unwrap();
    let window = other.map_window(Target { node: 0, domain: 1 }, memory.address()).unwrap();
    refused(&owner.revoke_window(&memory).unwrap_err(), "left for programs");
    // All is as it was.
    window.store(0, 3).unwrap();
    assert_eq!(memory.word(0).unwrap().load(Ordering::Acquire), 3);
    let own = other.allocate(4096, &[]).unwrap();
    let spec = Spec::new(own.address(), memory.address(), 8);
    other.write(Target { node: 0, domain: 1 }, spec).unwrap().wait(PATIENCE).unwrap();
}
