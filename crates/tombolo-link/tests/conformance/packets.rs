//! Packets arrive whole or not at all; where the link loses none, all do, in order.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use crate::harness::{Pair, check, packet, receive_until, send, try_send};
use tombolo_link::{LinkError, SendError, SharedSpan};

/// After this much silence, what has not come has been lost.
const QUIET: Duration = Duration::from_millis(400);

pub fn every_size_arrives_whole_or_not_at_all(pair: &Pair) {
    let max = pair.one.max_packet_bytes();
    let mut sizes: Vec<usize> = (1..=300).collect();
    sizes.extend((301..max).step_by(97));
    sizes.extend([max - 1, max]);
    let mut received = 0;
    // Told by its content: the shortest packets have no room for a number.
    for chunk in sizes.chunks(16) {
        for size in chunk {
            send(&*pair.one, 7, *size);
        }
        pair.one.flush().unwrap();
        let wanted = Cell::new(chunk.len());
        let mut arrived = Vec::new();
        let quiet = if pair.lossless { crate::harness::PATIENCE } else { Duration::from_millis(30) };
        // Driving the sending side's timers releases what a fault holds back.
        pair.one.tick(std::time::Instant::now());
        receive_until(
            &*pair.other,
            quiet,
            |bytes| {
                assert_eq!(bytes.to_vec(), packet(7, bytes.len()));
                arrived.push(bytes.len());
                wanted.set(wanted.get().saturating_sub(1));
            },
            || wanted.get() == 0,
        );
        if pair.lossless {
            assert_eq!(arrived, chunk);
        }
        received += arrived.len();
    }
    assert!(received >= sizes.len() / 2, "only {received} of {} arrived", sizes.len());
}

pub fn too_large_is_an_error(pair: &Pair) {
    let max = pair.one.max_packet_bytes();
    let expected = SendError::TooLarge { bytes: max + 1, max_bytes: max };
    assert_eq!(try_send(&*pair.one, 1, max + 1), Err(expected));
    assert_eq!(pair.one.send(&vec![0; max + 1], SharedSpan::empty()), Err(expected));
}

pub fn both_directions_at_once(pair: &Pair) {
    const PACKETS: u64 = 20_000;
    let exchange = |mine: &dyn tombolo_link::Link, seed: u64| {
        let mut seen: HashMap<u64, u32> = HashMap::new();
        let mut last = None;
        let mut sent = 0;
        let mut quiet_since = std::time::Instant::now();
        let span = mine.max_packet_bytes() as u64 - 16;
        while sent < PACKETS || quiet_since.elapsed() < QUIET {
            if pair.lossless && sent == PACKETS && seen.len() as u64 == PACKETS {
                break;
            }
            for _ in 0..32 {
                if sent == PACKETS {
                    break;
                }
                // The same size for some packets, so that batches form.
                let size = 16 + ((sent / 20 + seed) * 7919) % span;
                match try_send(mine, sent, size as usize) {
                    Ok(()) => sent += 1,
                    Err(SendError::Full) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            mine.flush().unwrap();
            let received = mine.receive(64, &mut |bytes| {
                let number = check(bytes);
                *seen.entry(number).or_default() += 1;
                if pair.lossless {
                    assert_eq!(number, last.map_or(0, |last| last + 1));
                }
                last = Some(number);
            });
            match received {
                Ok(0) => {}
                Ok(_) => quiet_since = std::time::Instant::now(),
                // The other side has everything and has gone home.
                Err(LinkError::Lost(_)) if sent == PACKETS => break,
                Err(error) => panic!("{error}"),
            }
            mine.tick(std::time::Instant::now());
        }
        assert!(seen.keys().all(|number| *number < PACKETS));
        seen.len() as u64
    };
    std::thread::scope(|scope| {
        let one = scope.spawn(|| exchange(&*pair.one, 1));
        let other = scope.spawn(|| exchange(&*pair.other, 2));
        for arrived in [one.join().unwrap(), other.join().unwrap()] {
            if pair.lossless {
                assert_eq!(arrived, PACKETS);
            }
            // A UDP receiver that shares two cores with everything else may lose many.
            assert!(arrived > PACKETS / 20, "only {arrived} of {PACKETS} arrived");
        }
    });
}

pub fn a_full_link_loses_nothing(pair: &Pair) {
    for round in 0..5_u64 {
        let mut sent = 0_u64;
        loop {
            match try_send(&*pair.one, sent, 16 + ((sent * 613 + round) % 3000) as usize) {
                Ok(()) => sent += 1,
                Err(SendError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(sent > 20);
        assert_eq!(try_send(&*pair.one, sent, 3000), Err(SendError::Full));
        let mut next = 0;
        while pair.other.receive(7, &mut |bytes| {
            assert_eq!(check(bytes), next);
            next += 1;
        }) != Ok(0)
        {}
        assert_eq!(next, sent);
    }
    assert!(pair.one.counters().full >= 10);
}

pub fn a_sink_may_send(pair: &Pair) {
    for number in 0..50 {
        send(&*pair.one, number, 100);
    }
    pair.one.flush().unwrap();
    let mut echoed = 0;
    let done = Cell::new(false);
    receive_until(
        &*pair.other,
        QUIET,
        |bytes| {
            send(&*pair.other, check(bytes), 200);
            pair.other.flush().unwrap();
            assert_eq!(pair.other.state(), tombolo_link::LinkState::Up);
            echoed += 1;
            done.set(pair.lossless && echoed == 50);
        },
        || done.get(),
    );
    assert!(echoed > 20);
    let mut back = 0;
    receive_until(&*pair.one, QUIET, |bytes| back += u32::from(check(bytes) < 50), || false);
    assert!(back > 10);
}

pub fn a_budget_is_kept(pair: &Pair) {
    for number in 0..40 {
        send(&*pair.one, number, 64);
    }
    pair.one.flush().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    pair.one.tick(std::time::Instant::now());
    let mut total = 0;
    assert_eq!(pair.other.receive(0, &mut |_| panic!("no budget")), Ok(0));
    while let Ok(count @ 1..) = pair.other.receive(3, &mut |_| total += 1) {
        assert!(count <= 3);
    }
    assert!(total > 20);
    let counters = pair.other.counters();
    assert_eq!((counters.packets_received, counters.bytes_received), (total, total * 64));
}

pub fn many_threads_send(pair: &Pair) {
    const EACH: u64 = 2000;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let link = &*pair.one;
            scope.spawn(move || {
                for number in 0..EACH {
                    send(link, thread * EACH + number, 40 + (number % 500) as usize);
                    if number % 8 == 0 {
                        link.flush().unwrap();
                    }
                }
                link.flush().unwrap();
            });
        }
        let mut next = [0; 4];
        let total = Cell::new(0);
        receive_until(
            &*pair.other,
            if pair.lossless { crate::harness::PATIENCE } else { QUIET },
            |bytes| {
                let number = check(bytes);
                let (thread, number) = ((number / EACH) as usize, number % EACH);
                if pair.lossless {
                    assert_eq!(number, next[thread]);
                }
                next[thread] = number + 1;
                total.set(total.get() + 1);
            },
            || pair.lossless && total.get() == 4 * EACH,
        );
        assert!(total.get() > EACH / 10);
    });
}
