//! Frames between nodes: transfers and messages that overtake each other and are made again, and a sender that lies. (A
//! message that is lost for good ends its pipe, and none comes twice: the engine sees to that.)

use std::collections::BTreeMap;

use tombolo_core::nic::pipe::{
    BATCHES_MAX, Batch, Inlet, Outlet, RECORD_BYTES_MAX, RECORD_HEAD_BYTES, RING_BYTES_MIN, is_ring,
};
use tombolo_random::{Random, Seeds};

/// What happens at some time.
enum Event {
    /// A batch's bytes are in the receiver's memory.
    Placed(Batch),
    /// The message of a batch comes.
    Announced(Batch),
    Credited(u64),
}

/// A mistake in what carries it out, which must be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    Nothing,
    /// A message is sent before its bytes have arrived.
    AnnouncedEarly,
    /// Room is given back before it was read.
    CreditedEarly,
}

struct World {
    random: Random,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    sequence: u64,
    outlet: Outlet,
    inlet: Inlet<()>,
    /// The rings, by units of a record's head: which record is there, and its bytes at its begin.
    mirror: Vec<(u64, u32)>,
    ring: Vec<(u64, u32)>,
    sent: u64,
    received: u64,
    planted: Planted,
}

impl World {
    fn new(seed: u64, planted: Planted) -> Self {
        let units = (RING_BYTES_MIN / RECORD_HEAD_BYTES) as usize;
        Self {
            random: Random::new(seed),
            now: 0,
            events: BTreeMap::new(),
            sequence: 0,
            outlet: Outlet::new(RING_BYTES_MIN),
            inlet: Inlet::new(RING_BYTES_MIN),
            mirror: vec![(0, 0); units],
            ring: vec![(0, 0); units],
            sent: 0,
            received: 0,
            planted,
        }
    }

    fn at(&mut self, event: Event) {
        self.sequence += 1;
        let delay = self.random.below(1000);
        self.events.insert((self.now + delay, self.sequence), event);
    }

    fn unit(place: u64) -> usize {
        (place % u64::from(RING_BYTES_MIN) / u64::from(RECORD_HEAD_BYTES)) as usize
    }

    fn send(&mut self) {
        let most = if self.random.one_in(3) { RECORD_BYTES_MAX } else { 2000 };
        let bytes = RECORD_HEAD_BYTES + self.random.below(u64::from(most - RECORD_HEAD_BYTES)) as u32;
        let Some(offset) = self.outlet.reserve(bytes) else { return };
        assert!(offset + bytes <= RING_BYTES_MIN, "a record over the end");
        self.sent += 1;
        let begin = Self::unit(u64::from(offset));
        for unit in begin..begin + bytes.div_ceil(RECORD_HEAD_BYTES) as usize {
            self.mirror[unit] = (self.sent, bytes);
        }
    }

    fn flush(&mut self) {
        while let Some(batch) = self.outlet.next_batch() {
            self.at(Event::Placed(batch));
            if self.planted == Planted::AnnouncedEarly {
                self.at(Event::Announced(batch));
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Placed(batch) => {
                let begin = Self::unit(batch.start);
                let end = begin + (batch.length / RECORD_HEAD_BYTES) as usize;
                self.ring[begin..end].copy_from_slice(&self.mirror[begin..end]);
                // The transfer paused when a part was there, and is made again.
                if self.random.one_in(8) && self.planted != Planted::AnnouncedEarly {
                    return self.at(Event::Placed(batch));
                }
                if self.planted != Planted::AnnouncedEarly {
                    self.at(Event::Announced(batch));
                }
            }
            // The message paused, and is sent again.
            Event::Announced(batch) if self.random.one_in(8) => self.at(Event::Announced(batch)),
            Event::Announced(batch) => {
                self.inlet.came(batch, ()).expect("it is honest");
                self.outlet.arrived();
            }
            Event::Credited(head) => self.outlet.credit(head).expect("it is honest"),
        }
    }

    /// Takes batches, whose records follow those before.
    fn receive(&mut self) {
        while let Some((batch, ())) = self.inlet.next_batch() {
            if self.planted == Planted::CreditedEarly {
                self.inlet.consumed(batch.end());
                let head = self.inlet.credit();
                self.outlet.credit(head).expect("it was sent");
                (0..30).for_each(|_| self.send());
                self.flush();
                self.run(2000);
            }
            let mut place = batch.start;
            while place < batch.end() {
                self.received += 1;
                let (record, bytes) = self.ring[Self::unit(place)];
                assert_eq!(record, self.received, "another record at {place}");
                let units = bytes.div_ceil(RECORD_HEAD_BYTES) as usize;
                let begin = Self::unit(place);
                assert!(self.ring[begin..begin + units].iter().all(|unit| *unit == (record, bytes)));
                place += u64::from(bytes.next_multiple_of(RECORD_HEAD_BYTES));
                self.inlet.consumed(place);
            }
            assert_eq!(place, batch.end(), "a part of a record");
            if self.random.one_in(3) {
                break;
            }
        }
        if self.inlet.credit_due().is_some() || self.random.one_in(10) {
            let head = self.inlet.credit();
            if self.random.one_in(4) {
                // The message could not be sent.
                self.inlet.was_not_told();
            } else {
                self.at(Event::Credited(head));
            }
        }
    }

    fn run(&mut self, length: u64) {
        let end = self.now + length;
        while let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= end) {
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.event(event);
        }
        self.now = end;
    }

    fn all(mut self) {
        for _ in 0..300 {
            for _ in 0..self.random.below(8) {
                self.send();
            }
            if !self.random.one_in(4) {
                self.flush();
            }
            let pause = self.random.below(500);
            self.run(pause);
            if !self.random.one_in(4) {
                self.receive();
            }
        }
        for _ in 0..100 {
            self.flush();
            self.run(2000);
            self.receive();
        }
        assert_eq!(self.received, self.sent, "frames are missing");
        assert!(!self.outlet.has_records() && self.sent > 50);
    }
}

#[test]
fn frames_come_whole_once_and_in_order() {
    Seeds::from_environment(100).run("cargo test -p tombolo-core --test nic", |seed| {
        World::new(seed, Planted::Nothing).all();
    });
}

#[test]
fn planted_mistakes_are_found() {
    for planted in [Planted::AnnouncedEarly, Planted::CreditedEarly] {
        let found = (1..=30)
            .filter(|&seed| std::panic::catch_unwind(|| World::new(seed, planted).all()).is_err())
            .count();
        assert!(found > 0, "{planted:?}");
    }
}

/// Whatever a sender says, what is handed out lies within the ring, and what is consumed is not given back twice.
#[test]
fn a_sender_that_lies_is_found_out_or_harmless() {
    Seeds::from_environment(500).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let mut inlet = Inlet::new(RING_BYTES_MIN);
        let mut outlet = Outlet::new(RING_BYTES_MIN);
        for _ in 0..100 {
            let place = |random: &mut Random| match random.below(5) {
                0 => u64::MAX - random.below(100),
                1 => u64::from(RING_BYTES_MIN) * random.below(3),
                2 => random.below(1 << 21),
                _ => random.below(1 << 12) * u64::from(RECORD_HEAD_BYTES),
            };
            let from = place(&mut random);
            let start = if random.one_in(3) { place(&mut random) } else { from };
            let length = place(&mut random) as u32;
            let mut count = 0;
            if inlet.came(Batch { from, start, length }, ()).is_ok() {
                while let Some((batch, ())) = inlet.next_batch() {
                    let offset = batch.start % u64::from(RING_BYTES_MIN);
                    assert!(offset + u64::from(batch.length) <= u64::from(RING_BYTES_MIN));
                    inlet.consumed(batch.end() + random.below(100));
                    count += 1;
                }
            }
            assert!(count <= BATCHES_MAX);
            let _ = inlet.credit_due();
            let _ = inlet.credit();
            let _ = outlet.credit(place(&mut random));
            let _ = outlet.reserve(random.below(1 << 32) as u32);
            let _ = outlet.next_batch();
        }
    });
    assert!(is_ring(RING_BYTES_MIN) && !is_ring(0) && !is_ring(RING_BYTES_MIN + 8));
}
