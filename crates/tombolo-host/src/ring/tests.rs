//! The ring against a queue that cannot be wrong, two threads, and a peer that scribbles.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tombolo_random::Random;

use super::*;

const CAPACITY: usize = 4096;

fn ring(capacity_bytes: usize) -> (Arc<SharedMemory>, Producer, Consumer) {
    let memory = Arc::new(SharedMemory::create("ring", footprint_bytes(capacity_bytes)).unwrap());
    let producer = Producer::new(Arc::clone(&memory), 0, capacity_bytes).unwrap();
    let consumer = Consumer::new(Arc::clone(&memory), 0, capacity_bytes).unwrap();
    (memory, producer, consumer)
}

fn pop(consumer: &mut Consumer) -> Result<Option<Vec<u8>>, RingError> {
    let mut packet = None;
    consumer.pop(|span| packet = Some(span.to_vec()))?;
    Ok(packet)
}

#[derive(Debug, Clone)]
enum Step {
    Push { header_bytes: usize, payload_bytes: usize, value: u8 },
    Pop,
    Release,
    Arm,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..80_usize, 0..900_usize, any::<u8>()).prop_map(
            |(header_bytes, payload_bytes, value)| Step::Push { header_bytes, payload_bytes, value }
        ),
        3 => Just(Step::Pop),
        1 => Just(Step::Release),
        1 => Just(Step::Arm),
    ]
}

proptest! {
    #[test]
    fn behaves_like_a_queue(steps in prop::collection::vec(step(), 1..300)) {
        let (_memory, mut producer, mut consumer) = ring(CAPACITY);
        let mut oracle: VecDeque<Vec<u8>> = VecDeque::new();
        let mut asleep = false;
        for step in steps {
            match step {
                Step::Push { header_bytes, payload_bytes, value } => {
                    let header = vec![value; header_bytes];
                    let payload = vec![!value; payload_bytes];
                    match producer.push(&header, payload.as_slice().into()) {
                        Ok(()) => {
                            oracle.push_back([header, payload].concat());
                            producer.publish();
                            prop_assert_eq!(producer.take_wake(), asleep);
                            asleep = false;
                        }
                        Err(PushError::Full) => prop_assert!(!oracle.is_empty() || consumer.unreleased_bytes > 0),
                        Err(other) => prop_assert!(false, "{other}"),
                    }
                }
                Step::Pop => prop_assert_eq!(pop(&mut consumer).unwrap(), oracle.pop_front()),
                Step::Release => consumer.release(),
                Step::Arm => {
                    let ready = consumer.arm().unwrap();
                    prop_assert_eq!(ready, !oracle.is_empty());
                    asleep = !ready;
                }
            }
        }
        while let Some(expected) = oracle.pop_front() {
            prop_assert_eq!(pop(&mut consumer).unwrap(), Some(expected));
        }
        prop_assert_eq!(pop(&mut consumer).unwrap(), None);
    }

    /// Whatever a hostile producer writes, the consumer answers with packets or an error.
    #[test]
    fn survives_scribbling(
        pushes in 0..20_usize,
        writes in prop::collection::vec((0..footprint_bytes(CAPACITY) - 8, any::<u64>()), 1..60),
        tail in prop_oneof![any::<u64>(), 0..2 * CAPACITY as u64],
    ) {
        let (memory, mut producer, mut consumer) = ring(CAPACITY);
        for _ in 0..pushes {
            let _ = producer.push(b"header", [7_u8; 100].as_slice().into());
            producer.publish();
        }
        for (offset, value) in writes {
            memory.span_mut(offset, 8).unwrap().copy_from(value.to_ne_bytes().as_slice().into());
        }
        memory.atomic_u64(0).unwrap().store(tail, Ordering::Release);
        for _ in 0..1000 {
            match pop(&mut consumer) {
                Ok(Some(packet)) => prop_assert!(packet.len() <= CAPACITY),
                Ok(None) | Err(_) => break,
            }
        }
        consumer.release();
        let _ = consumer.arm();
        let _ = producer.push(b"", [7_u8; 100].as_slice().into());
        let _ = producer.arm_for_room(100);
    }
}

#[test]
fn the_largest_packet_fits_wherever_the_indexes_stand() {
    let (_memory, mut producer, mut consumer) = ring(CAPACITY);
    let largest = vec![1_u8; producer.max_packet_bytes()];
    for shift in 0..200 {
        producer.push(&vec![2; shift], SharedSpan::empty()).unwrap();
        producer.publish();
        assert_eq!(pop(&mut consumer).unwrap().unwrap().len(), shift);
        consumer.release();
        producer.push(&[], largest.as_slice().into()).unwrap();
        producer.publish();
        assert_eq!(pop(&mut consumer).unwrap().unwrap(), largest);
        consumer.release();
    }
    let too_large = vec![1_u8; producer.max_packet_bytes() + 1];
    assert_eq!(producer.push(&too_large, SharedSpan::empty()), Err(PushError::TooLarge));
}

#[test]
fn rings_that_cannot_be_are_refused() {
    let memory = Arc::new(SharedMemory::create("ring", footprint_bytes(CAPACITY)).unwrap());
    let new = |offset, capacity| Producer::new(Arc::clone(&memory), offset, capacity).map(drop);
    assert_eq!(new(0, 5000), Err(RingError::Capacity(5000)));
    assert_eq!(new(0, 2 * CAPACITY), Err(RingError::Placement));
    assert_eq!(new(64, CAPACITY), Err(RingError::Placement));
    assert_eq!(new(usize::MAX, CAPACITY), Err(RingError::Placement));
}

#[test]
fn two_threads_pass_everything_in_order() {
    const PACKETS: u32 = 200_000;
    let (_memory, mut producer, mut consumer) = ring(1 << 14);
    let writer = std::thread::spawn(move || {
        for number in 0..PACKETS {
            let payload = vec![number as u8; number as usize % 700];
            while producer.push(&number.to_le_bytes(), payload.as_slice().into()).is_err() {
                std::thread::yield_now();
            }
        }
        producer.publish();
    });
    let mut expected = 0_u32;
    while expected < PACKETS {
        let Some(packet) = pop(&mut consumer).unwrap() else {
            consumer.release();
            std::thread::yield_now();
            continue;
        };
        assert_eq!(packet[..4], expected.to_le_bytes());
        assert_eq!(packet.len(), 4 + expected as usize % 700);
        assert!(packet[4..].iter().all(|byte| *byte == expected as u8));
        expected += 1;
    }
    writer.join().unwrap();
}

/// The other process writes at random, all the time, while we read.
#[test]
fn survives_a_peer_that_scribbles_meanwhile() {
    let (memory, mut producer, mut consumer) = ring(CAPACITY);
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = {
        let (memory, stop) = (Arc::clone(&memory), Arc::clone(&stop));
        std::thread::spawn(move || {
            let mut random = Random::for_test(1);
            while !stop.load(Ordering::Relaxed) {
                let place = 4096 + random.index(CAPACITY - 8);
                memory.span_mut(place, 4).unwrap().copy_from(random.next().to_ne_bytes().as_slice().into());
            }
        })
    };
    for _ in 0..50_000 {
        let _ = producer.push(b"abc", [1_u8; 300].as_slice().into());
        producer.publish();
        if pop(&mut consumer).is_err() {
            (producer, consumer) = {
                memory.atomic_u64(0).unwrap().store(0, Ordering::Relaxed);
                memory.atomic_u64(128).unwrap().store(0, Ordering::Relaxed);
                (
                    Producer::new(Arc::clone(&memory), 0, CAPACITY).unwrap(),
                    Consumer::new(Arc::clone(&memory), 0, CAPACITY).unwrap(),
                )
            };
        }
        consumer.release();
    }
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
}
