//! Queues of transfers: many at once, fences, and ends.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tombolo_channel::{SLOTS, TransferStatus};
use tombolo_client::{
    Completion, Domain, Failure, Grant, List, Memory, Notification, Order, Piece, PostError, Queue, Remote,
    Spec, Target, WaitError, Who,
};
use tombolo_host::event;
use tombolo_node::{Limits, Security};

use crate::harness::{Host, PATIENCE, pair, pattern, shm, udp};
use crate::late::at_slow_node;

const PIECE: usize = 3000;
const PIECES: usize = 500;

/// A domain with memory for all pieces.
fn program(host: &Host, number: u16) -> (Domain, Memory) {
    let domain = host.domain(number);
    let bytes = (PIECE * PIECES).next_multiple_of(4096);
    let memory = domain.allocate(bytes, &[Grant::all(Who::Anyone)]).unwrap();
    (domain, memory)
}

fn ends(queue: &mut Queue) -> Vec<Completion> {
    std::iter::from_fn(|| queue.wait_any(PATIENCE).unwrap()).collect()
}

fn piece(from: &Memory, to: &Memory, index: usize) -> Spec {
    let offset = (index * PIECE) as u64;
    Spec::new(from.address() + offset, to.address() + offset, PIECE as u32)
}

#[test]
fn far_more_transfers_than_channels_all_end_once() {
    for listen in [shm(), udp()] {
        let [one, other] = pair(&listen);
        let ((near, memory), (_far, there)) = (program(&one, 1), program(&other, 2));
        let target = Target { node: 1, domain: 2 };
        let bytes = pattern(1, PIECE * PIECES);
        memory.write(0, &bytes).unwrap();
        let mut queue = near.queue(PIECES);
        let writes =
            (0..PIECES).map(|index| (Order::write(target, piece(&memory, &there, index)), index as u64));
        assert_eq!(queue.post_all(writes), PIECES);
        assert_eq!(queue.post(Order::fetch_add(target, 0, 0), 0), Err(PostError::QueueFull(PIECES)));
        // By both ways of taking them.
        let mut found = Vec::new();
        while found.len() < PIECES / 2 {
            let before = found.len();
            assert!(queue.poll(&mut found, 7) <= 7);
            assert!(found.len() - before <= 7);
        }
        found.extend(ends(&mut queue));
        assert!(found.iter().all(|end| end.outcome == Ok(0)), "{found:?}");
        let contexts: BTreeSet<u64> = found.iter().map(|end| end.context).collect();
        assert_eq!((contexts.len(), found.len()), (PIECES, PIECES));
        let mut read = vec![0; bytes.len()];
        there.read(0, &mut read).unwrap();
        assert!(read == bytes);
        // And back.
        memory.write(0, &vec![0; bytes.len()]).unwrap();
        let reads =
            (0..PIECES).map(|index| (Order::read(target, piece(&there, &memory, index)), index as u64));
        assert_eq!(queue.post_all(reads), PIECES);
        assert!(ends(&mut queue).iter().all(|end| end.outcome == Ok(0)));
        memory.read(0, &mut read).unwrap();
        assert!(read == bytes);
        assert_eq!((queue.len(), queue.wait_any(PATIENCE)), (0, Ok(None)));
    }
}

#[test]
fn what_is_behind_a_fence_finds_all_before_it() {
    let [one, other] = pair(&shm());
    let ((near, memory), (_far, there)) = (program(&one, 1), program(&other, 2));
    let target = Target { node: 1, domain: 2 };
    let mut queue = near.queue(1000);
    for round in 1..=50u64 {
        let half = memory.len() / 2;
        let bytes = pattern(round, half);
        memory.write(0, &bytes).unwrap();
        // The large one is overtaken by everything that may.
        let large = Spec::new(memory.address(), there.address(), half as u32);
        let back = Spec::new(there.address(), memory.address() + half as u64, half as u32);
        let orders = [
            (Order::write(target, large), 1),
            (Order::read(target, back).fenced(), 2),
            (Order::fetch_add(target, there.address(), 1).fenced(), 3),
            (Order::fetch_add(target, there.address(), 1).fenced(), 4),
        ];
        assert_eq!(queue.post_all(orders), 4);
        let found = ends(&mut queue);
        let contexts: Vec<u64> = found.iter().map(|end| end.context).collect();
        assert_eq!(contexts, [1, 2, 3, 4]);
        let mut read = vec![0; half];
        memory.read(half, &mut read).unwrap();
        assert!(read == bytes, "round {round}");
        let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!([found[2].outcome, found[3].outcome], [Ok(word), Ok(word.wrapping_add(1))]);
    }
}

#[test]
fn with_few_slots_and_many_fences_all_end_in_the_order_of_the_fences() {
    let limits = Limits { transactions: 4, ..Limits::default() };
    let (host, _) = Host::start_with("small", &shm(), &[], limits);
    let ((near, memory), (_far, there)) = (program(&host, 1), program(&host, 2));
    let mut queues = [near.queue(PIECES), near.queue(PIECES)];
    for queue in &mut queues {
        for index in 0..PIECES {
            let spec = piece(&memory, &there, index);
            let order = Order::write(Target { node: 0, domain: 2 }, spec);
            queue.post(if index % 50 == 49 { order.fenced() } else { order }, index as u64).unwrap();
        }
    }
    for mut queue in queues {
        let mut open: BTreeSet<u64> = (0..PIECES as u64).collect();
        for end in ends(&mut queue) {
            assert_eq!(end.outcome, Ok(0));
            assert!(open.remove(&end.context));
            assert!(end.context % 50 != 49 || open.first().is_none_or(|first| *first > end.context));
        }
        assert!(open.is_empty());
    }
}

/// The node has no room for each of them at first.
#[test]
fn what_the_node_has_no_room_for_is_posted_again() {
    const ORDERS: u64 = 100;
    let (domain, done, node) = at_slow_node(|node, is_done| {
        let mut open: BTreeSet<u64> = (0..ORDERS).collect();
        let mut refused = BTreeSet::new();
        while is_done.try_recv().is_err() {
            let rung = node.page.take_rung();
            for slot in (0..SLOTS).filter(|slot| rung & 1 << slot != 0) {
                let index = node.page.descriptor(slot).unwrap().destination_address;
                if refused.insert(index) {
                    let _ = node.page.notify(slot, TransferStatus::Paused);
                    continue;
                }
                assert!(index != 50 || open.first() == Some(&50), "{open:?} are before the fence");
                assert!(open.remove(&index), "{index} began twice");
                let _ = node.page.notify_end(slot, Ok(0));
            }
        }
        assert!(open.is_empty());
    });
    let mut queue = domain.queue(ORDERS as usize);
    let orders = (0..ORDERS).map(|index| {
        let order = Order::write(Target { node: 0, domain: 3 }, Spec::new(0, index, 1));
        (if index == 50 { order.fenced() } else { order }, index)
    });
    assert_eq!(queue.post_all(orders), ORDERS as usize);
    let found = ends(&mut queue);
    done.send(()).unwrap();
    node.join().unwrap();
    let contexts: BTreeSet<u64> = found.iter().map(|end| end.context).collect();
    assert_eq!((contexts.len(), found.len()), (ORDERS as usize, ORDERS as usize));
    assert!(found.iter().all(|end| end.outcome == Ok(0)));
}

/// The node has no room for any of them, several times, and the program waits for nothing but its descriptor.
#[test]
fn a_program_that_waits_for_its_descriptor_learns_that_there_is_room_again() {
    const ORDERS: u64 = 10;
    let (domain, done, node) = at_slow_node(|node, is_done| {
        let mut refusals = 3 * ORDERS;
        while is_done.try_recv().is_err() {
            let rung = node.page.take_rung();
            for slot in (0..SLOTS).filter(|slot| rung & 1 << slot != 0) {
                let waits = match refusals {
                    0 => node.page.notify_end(slot, Ok(0)),
                    _ => node.page.notify(slot, TransferStatus::Paused),
                };
                refusals = refusals.saturating_sub(1);
                if waits {
                    node.say_ended();
                }
            }
        }
    });
    let mut queue = domain.queue(ORDERS as usize);
    let order = |index| Order::write(Target { node: 0, domain: 3 }, Spec::new(0, index, 1));
    assert_eq!(queue.post_all((0..ORDERS).map(|index| (order(index), index))), ORDERS as usize);
    let mut found = Vec::new();
    while found.len() < ORDERS as usize {
        domain.arm();
        if queue.poll(&mut found, SLOTS) > 0 {
            continue;
        }
        let is_readable = event::wait_readable(&[domain.as_fd()], Some(PATIENCE)).unwrap();
        assert!(is_readable, "nobody says that there is room again");
        domain.drain().unwrap();
    }
    done.send(()).unwrap();
    node.join().unwrap();
}

#[test]
fn failures_say_so_and_the_rest_goes_on() {
    let [one, other] = pair(&shm());
    let ((near, memory), (_far, there)) = (program(&one, 1), program(&other, 2));
    let mut queue = near.queue(100);
    for index in 0..100 {
        let domain = if index % 3 == 0 { 9 } else { 2 };
        let order = Order::write(Target { node: 1, domain }, piece(&memory, &there, index));
        queue.post(order, index as u64).unwrap();
    }
    let first = queue.wait_any(Duration::ZERO);
    assert!(matches!(first, Ok(Some(_)) | Err(WaitError::TimedOut(_))), "{first:?}");
    for end in ends(&mut queue) {
        let is_refused = matches!(end.outcome, Err(WaitError::Failed(Failure::Refused { .. })));
        assert_eq!(is_refused, end.context % 3 == 0, "{end:?}");
    }
}

#[test]
fn all_end_with_their_node() {
    let (host, _) = Host::start(&shm(), &[]);
    let (near, memory) = program(&host, 1);
    let mut queue = near.queue(PIECES);
    let target = Target { node: 0, domain: 1 };
    let orders = (0..PIECES).map(|index| {
        let order = Order::write(target, piece(&memory, &memory, index));
        (if index == 300 { order.fenced() } else { order }, index as u64)
    });
    assert_eq!(queue.post_all(orders), PIECES);
    drop(host);
    let found = ends(&mut queue);
    assert_eq!(found.len(), PIECES);
    let is_known = |end: &Completion| {
        matches!(
            end.outcome,
            Ok(0) | Err(WaitError::NodeGone | WaitError::Failed(Failure::NodeGone | Failure::Unreachable))
        )
    };
    assert!(found.iter().all(is_known), "{found:?}");
    assert!(found.iter().any(|end| end.outcome.is_err()));
    // What is posted now ends so, too.
    queue.post(Order::write(target, piece(&memory, &memory, 0)), 7).unwrap();
    let end = queue.wait_any(PATIENCE).unwrap().unwrap();
    assert!(end.context == 7 && end.outcome.is_err());
}

#[test]
fn channels_of_a_dropped_queue_are_free_again() {
    let (host, _) = Host::start(&shm(), &[]);
    let (near, memory) = program(&host, 1);
    let target = Target { node: 0, domain: 1 };
    for _ in 0..20 {
        let mut queue = near.queue(PIECES);
        for index in 0..PIECES {
            queue.post(Order::write(target, piece(&memory, &memory, index)), 0).unwrap();
        }
        drop(queue);
    }
    let mut queue = near.queue(1);
    queue.post(Order::write(target, piece(&memory, &memory, 0)), 1).unwrap();
    assert_eq!(queue.wait_any(PATIENCE), Ok(Some(Completion { context: 1, outcome: Ok(0) })));
}

#[test]
fn memory_is_found_by_its_handle_from_any_node() {
    let (first, address) = Host::start_named("first", &shm(), &[]);
    let (second, other_address) = Host::start_named("second", &shm(), &[]);
    // Its numbers of the two are other ones than theirs.
    let (third, _) = Host::start_named("third", &shm(), &[&other_address, &address]);
    let (domain, memory) = program(&first, 7);
    memory.write(0, b"found").unwrap();
    let told = domain.export(memory.address(), 5).unwrap().to_bytes();
    let remote = Remote::from_bytes(&told).unwrap();
    assert_eq!((remote.address(), remote.length_bytes()), (memory.address(), 5));
    for (host, expected) in [(&first, Some(0)), (&third, Some(2)), (&second, None)] {
        let (near, own) = program(host, 8);
        let target = near.find(&remote).unwrap();
        assert_eq!(target, expected.map(|node| Target { node, domain: 7 }), "{}", host.node.status().name);
        let Some(target) = target else { continue };
        let spec = Spec::new(remote.address(), own.address(), remote.length_bytes() as u32);
        near.read(target, spec).unwrap().wait(PATIENCE).unwrap();
        let mut bytes = [0; 5];
        own.read(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"found");
    }
}

/// A node that was started again at the same place, with the same domain at the same address, is not the one that a handle means.
#[test]
fn a_handle_means_one_life_of_a_node() {
    let (near, _) = Host::start(&shm(), &[]);
    let asking = near.domain(1);
    let listen = shm();
    let mut last: Option<(Remote, Target)> = None;
    for _ in 0..3 {
        let (far, address) = Host::start(&listen, &[]);
        let (domain, memory) = program(&far, 7);
        near.node.join(&address, &Security::Insecure, PATIENCE).unwrap();
        let remote = domain.export(memory.address(), 5).unwrap();
        let target = asking.find(&remote).unwrap().expect("it is joined");
        if let Some((before, there)) = last.replace((remote, target)) {
            // The near node may not have noticed yet that the earlier one is gone.
            let since = std::time::Instant::now();
            while asking.find(&before).unwrap().is_some() {
                assert!(since.elapsed() < PATIENCE, "an earlier life");
                std::thread::yield_now();
            }
            assert_ne!(there, target);
            let (own, size) = (asking.allocate(4096, &[]).unwrap(), before.length_bytes() as u32);
            let spec = Spec::new(before.address(), own.address(), size);
            assert!(asking.read(there, spec).unwrap().wait(PATIENCE).is_err());
        }
    }
}

/// Pieces of a memory that do not touch, in an order of their own, of these lengths.
fn pieces(random: &mut tombolo_random::Random, memory: &Memory, lengths: &[u32]) -> Vec<Piece> {
    let mut offset = 0;
    let mut pieces: Vec<Piece> = lengths
        .iter()
        .map(|&length| {
            offset += random.below(50);
            let piece = Piece::new(memory.address() + offset, length);
            offset += u64::from(length);
            piece
        })
        .collect();
    assert!(offset <= memory.len() as u64);
    for place in (1..pieces.len()).rev() {
        pieces.swap(place, random.below(place as u64 + 1) as usize);
    }
    pieces
}

/// The bytes of pieces, one after the other.
fn gathered(memory: &Memory, pieces: &[Piece]) -> Vec<u8> {
    let parts = pieces.iter().map(|piece| {
        let mut bytes = vec![0; piece.length_bytes as usize];
        memory.read((piece.address - memory.address()) as usize, &mut bytes).unwrap();
        bytes
    });
    parts.flatten().collect()
}

/// Random lengths of pieces, whose sum is the length of a list.
fn lengths(random: &mut tombolo_random::Random, most: u64, mut bytes: u32) -> Vec<u32> {
    let mut lengths = Vec::new();
    while bytes > 0 {
        let length = (random.below(most) as u32).min(bytes);
        lengths.push(length);
        bytes -= length;
    }
    lengths
}

#[test]
fn lists_gather_and_scatter() {
    for listen in [shm(), udp()] {
        let [one, other] = pair(&listen);
        let ((near, memory), (far, there)) = (program(&one, 1), program(&other, 2));
        let words = far.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
        let target = Target { node: 1, domain: 2 };
        let mut random = tombolo_random::Random::for_test(1);
        let mut queue = near.queue(3);
        for round in 1..=20u64 {
            let bytes = random.below(100_000) as u32;
            let most = [2, 50, 5_000, 80_000][round as usize % 4];
            let bytes = if most == 2 { bytes.min(300) } else { bytes };
            let [ours, theirs] = [&memory, &there].map(|memory| {
                let lengths = lengths(&mut random, most, bytes);
                pieces(&mut random, memory, &lengths)
            });
            memory.write(0, &pattern(round, 200_000)).unwrap();
            there.write(0, &vec![0; 200_000]).unwrap();
            let notification = Notification { address: words.address(), first: round, last: round };
            let list = List::write(target, &ours, &theirs).unwrap().notify(notification);
            queue.post_list(list, round).unwrap();
            // A reader that sees the notification finds all bytes of the list.
            let since = std::time::Instant::now();
            while words.word(8).unwrap().load(Ordering::Acquire) != round {
                queue.poll(&mut Vec::new(), 0);
                assert!(since.elapsed() < PATIENCE, "round {round}: no notification");
            }
            assert!(gathered(&there, &theirs) == gathered(&memory, &ours), "round {round}");
            let end = Completion { context: round, outcome: Ok(0) };
            assert_eq!(queue.wait_any(PATIENCE), Ok(Some(end)));
            // Nothing between the pieces was written.
            let (mut all, mut expected) = (vec![0; 200_000], vec![0; 200_000]);
            there.read(0, &mut all).unwrap();
            let mut source = gathered(&memory, &ours).into_iter();
            for piece in &theirs {
                let start = (piece.address - there.address()) as usize;
                expected[start..start + piece.length_bytes as usize].fill_with(|| source.next().unwrap());
            }
            assert!(all == expected, "round {round}");
            // And back, elsewhere, behind what was written meanwhile.
            memory.write(0, &vec![0; 200_000]).unwrap();
            let lengths = lengths(&mut random, most, bytes);
            let back = pieces(&mut random, &memory, &lengths);
            let list = List::read(target, &theirs, &back).unwrap();
            queue.post_list(list.fenced().in_class(2), 7).unwrap();
            assert_eq!(queue.wait_any(PATIENCE), Ok(Some(Completion { context: 7, outcome: Ok(0) })));
            assert!(gathered(&memory, &back) == gathered(&there, &theirs), "round {round}");
            assert!(queue.is_empty());
        }
    }
}

#[test]
fn a_list_ends_once_however_its_parts_end() {
    let (host, _) = Host::start(&shm(), &[]);
    let ((near, memory), (_far, there)) = (program(&host, 1), program(&host, 2));
    let target = Target { node: 0, domain: 2 };
    let mut queue = near.queue(2);
    // Parts that touch nothing, among a hundred that do.
    let sources: Vec<Piece> = (0..100).map(|at| Piece::new(memory.address() + at * 100, 50)).collect();
    let mut destinations: Vec<Piece> = (0..100).map(|at| Piece::new(there.address() + at * 90, 50)).collect();
    destinations[40].address = 8;
    destinations[60].address = 16;
    let notification = Notification { address: there.address() + (1 << 20), first: 5, last: 5 };
    let list = List::write(target, &sources, &destinations).unwrap().notify(notification);
    queue.post_list(list, 1).unwrap();
    let nothing = [&memory, &there].map(|memory| [Piece::new(memory.address(), 0); 2]);
    let nothing = List::write(target, &nothing[0], &nothing[1]).unwrap();
    queue.post_list(nothing.clone().fenced(), 2).unwrap();
    let full = nothing.clone();
    assert_eq!((queue.len(), queue.post_list(full, 3)), (2, Err(PostError::QueueFull(2))));
    let found = ends(&mut queue);
    let contexts: Vec<u64> = found.iter().map(|end| end.context).collect();
    assert_eq!((contexts, found[1].outcome), (vec![1, 2], Ok(0)));
    let Err(WaitError::Failed(failure)) = found[0].outcome else { panic!("{found:?}") };
    assert!(failure.page() == Some(0), "{failure}");
    assert_eq!(there.word((1 << 20) + 8).unwrap().load(Ordering::Acquire), 0, "notified of what failed");
    // Pieces of nothing need not lie anywhere.
    let source = [Piece::new(8, 0), Piece::new(memory.address(), 8)];
    let destination = [Piece::new(16, 0), Piece::new(there.address(), 8)];
    let list = List::write(target, &source, &destination).unwrap().notify(notification);
    queue.post_list(list, 7).unwrap();
    assert_eq!(ends(&mut queue), [Completion { context: 7, outcome: Ok(0) }]);
    there.word((1 << 20) + 8).unwrap().store(0, Ordering::Release);
    // A list of nothing with a notification is the notification.
    queue.post_list(nothing.notify(notification), 4).unwrap();
    assert_eq!(ends(&mut queue), [Completion { context: 4, outcome: Ok(0) }]);
    assert_eq!(there.word((1 << 20) + 8).unwrap().load(Ordering::Acquire), 5);
    // Those of a node that is gone end, too.
    queue.post_list(List::write(target, &sources, &sources).unwrap(), 5).unwrap();
    drop(host);
    let found = ends(&mut queue);
    assert_eq!(found.len(), 1);
    queue.post_list(List::write(target, &sources, &sources).unwrap().notify(notification), 6).unwrap();
    assert_eq!(ends(&mut queue), [Completion { context: 6, outcome: Err(WaitError::NodeGone) }]);
}
