//! Software and a device share a ring and take turns by chance; software sometimes writes nonsense into it.

use std::collections::VecDeque;

use tombolo_core::nic::Fifo;
use tombolo_core::nic::ring::{
    Bounds, Descriptor, Device, Fragment, RX_DESCRIPTORS, RingError, Software, TX_DESCRIPTORS, control,
    status,
};
use tombolo_random::{Random, Seeds};

const BASE: u64 = 0x1_0000;
const BOUNDS: Bounds = Bounds { start: 1 << 20, length_bytes: 1 << 20, frame_bytes_max: 65_536 };

fn fragment(random: &mut Random) -> Fragment {
    let length_bytes = 1 + random.below(3000) as u32;
    let offset = random.below(BOUNDS.length_bytes - u64::from(length_bytes));
    Fragment { address: BOUNDS.start + offset, length_bytes }
}

struct Ring {
    random: Random,
    memory: Vec<Descriptor>,
    software: Software,
    device: Device,
    next: u64,
    /// Frames that were given, in their order, each with its fragments.
    given: VecDeque<(u64, Vec<Fragment>)>,
    /// Descriptors that are done, of which software is to be told.
    done: VecDeque<u64>,
    frames: u64,
    stops: u64,
}

impl Ring {
    fn new(seed: u64, count: u32) -> Self {
        let mut memory = vec![Descriptor::default(); count as usize];
        let software = Software::new(&mut memory[..], BASE);
        Self {
            random: Random::new(seed),
            memory,
            software,
            device: Device::default(),
            next: 0,
            given: VecDeque::new(),
            done: VecDeque::new(),
            frames: 0,
            stops: 0,
        }
    }

    fn take_back(&mut self) {
        while let Some(done) = self.software.take_back(&self.memory[..]) {
            if done.status & status::ERRORS != 0 {
                return;
            }
            assert_eq!(Some(done.software), self.done.pop_front());
        }
    }

    /// The ring has stopped: both sides begin anew, and what was not done is known.
    fn reset(&mut self) {
        self.stops += 1;
        self.take_back();
        assert!(self.done.is_empty(), "software was not told of {:?}", self.done);
        let left = self.software.reset(&mut self.memory[..], BASE);
        self.device.reset();
        let given = std::mem::take(&mut self.given);
        let mut expected: Vec<u64> =
            given.into_iter().flat_map(|(frame, fragments)| vec![frame; fragments.len()]).collect();
        // The descriptor that was wrong was taken back with its error.
        if left.len() + 1 == expected.len() {
            expected.remove(0);
        }
        assert_eq!(left, expected);
        assert_eq!((self.software.tail(), self.device.current(), self.device.error()), (0, 0, None));
    }

    fn send(&mut self) {
        let fragments: Vec<_> = (0..1 + self.random.below(5)).map(|_| fragment(&mut self.random)).collect();
        self.next += 1;
        let free = self.software.free(&self.memory[..]);
        match self.software.send(&mut self.memory[..], &fragments, self.next) {
            Ok(()) => self.given.push_back((self.next, fragments)),
            Err(_) => assert!((fragments.len() as u32) > free, "{free} are free"),
        }
    }

    /// Something in the ring that is given to the device is made wrong. Returns what is to be found.
    fn spoil(&mut self) -> Option<(u32, Vec<RingError>)> {
        let tail = self.software.tail();
        let given = tail - self.device.current();
        if self.random.one_in(4) {
            let far = self.memory.len() as u32 + 1 + self.random.below(1000) as u32;
            return Some((self.device.current().wrapping_add(far), vec![RingError::Tail]));
        }
        if given == 0 {
            return None;
        }
        let at = self.device.current() % self.memory.len() as u32;
        let descriptor = &mut self.memory[at as usize];
        let expected = match self.random.below(4) {
            0 => {
                descriptor.control &= !control::LENGTH;
                RingError::Length
            }
            1 => {
                descriptor.control &= !control::START;
                RingError::Start
            }
            2 => {
                descriptor.buffer = BOUNDS.start + BOUNDS.length_bytes - 1;
                descriptor.control = (descriptor.control & !control::LENGTH) | 2;
                RingError::Address
            }
            _ => {
                descriptor.buffer = u64::MAX;
                RingError::Address
            }
        };
        Some((tail, vec![expected]))
    }

    fn device_sends(&mut self) {
        let mut fragments = Vec::new();
        let tail = self.software.tail();
        match self.device.next_frame(&mut self.memory[..], tail, &BOUNDS, &mut fragments) {
            Ok(true) => {
                if self.random.one_in(100) {
                    let stopped = self.device.sent(&mut self.memory[..], &fragments, false);
                    assert_eq!(stopped, Err(RingError::Memory));
                    return self.reset();
                }
                let (frame, given) = self.given.pop_front().expect("a frame");
                assert_eq!(fragments, given);
                self.device.sent(&mut self.memory[..], &fragments, true).expect("it is sent");
                self.done.extend(given.iter().map(|_| frame));
                self.frames += 1;
            }
            Ok(false) => assert!(self.given.is_empty()),
            Err(error) => panic!("{error}: {:?}", self.given.front()),
        }
    }

    fn run_tx(mut self) -> Self {
        for _ in 0..2000 {
            match self.random.below(20) {
                0..8 => self.send(),
                8..16 => self.device_sends(),
                16..19 => self.take_back(),
                _ => {
                    if let Some((tail, expected)) = self.spoil() {
                        let mut fragments = vec![Fragment { address: 0, length_bytes: 1 }];
                        for _ in 0..2 {
                            let found =
                                self.device.next_frame(&mut self.memory[..], tail, &BOUNDS, &mut fragments);
                            assert!(found.is_err_and(|error| expected.contains(&error)), "{found:?}");
                            assert!(fragments.is_empty());
                        }
                        self.reset();
                    }
                }
            }
        }
        assert_eq!(self.device.frames(), self.frames);
        self
    }
}

#[test]
fn frames_are_sent_once_and_in_order_and_what_is_wrong_stops_the_ring() {
    let (mut frames, mut stops) = (0, 0);
    Seeds::from_environment(200).run("cargo test -p tombolo-core --test nic", |seed| {
        let ring = Ring::new(seed, TX_DESCRIPTORS).run_tx();
        frames += ring.frames;
        stops += ring.stops;
    });
    println!("{frames} frames, {stops} stops");
    assert!(frames > 0);
}

#[test]
fn frames_that_come_fill_buffers_and_none_is_lost_but_for_want_of_those() {
    Seeds::from_environment(200).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let mut memory = vec![Descriptor::default(); RX_DESCRIPTORS as usize];
        let mut software = Software::new(&mut memory[..], BASE);
        let mut device = Device::default();
        // Frames that are on their way, and how much of the first has come.
        let (mut expected, mut come) = (VecDeque::new(), 0);
        let (mut dropped, mut frames, mut offered) = (0u64, 0u64, 0u64);
        for _ in 0..5000 {
            match random.below(3) {
                0 => {
                    let buffer = Fragment { length_bytes: 1500, ..fragment(&mut random) };
                    let buffer = Fragment { address: buffer.address.min(BOUNDS.start + (1 << 19)), ..buffer };
                    offered += u64::from(software.offer(&mut memory[..], buffer, offered).is_ok());
                }
                1 => {
                    let bytes = 60 + random.below(9000) as u32;
                    let mut fragments = Vec::new();
                    let free = software.tail().wrapping_sub(device.current());
                    let tail = software.tail();
                    if device.buffers(&mut memory[..], tail, &BOUNDS, bytes, &mut fragments).expect("a ring")
                    {
                        assert_eq!(
                            fragments.iter().map(|fragment| fragment.length_bytes).sum::<u32>(),
                            bytes
                        );
                        device.received(&mut memory[..], &fragments, true).expect("it is received");
                        expected.push_back(bytes);
                        frames += 1;
                    } else {
                        assert!(free < bytes.div_ceil(1500), "{free} buffers for {bytes} B");
                        dropped += 1;
                    }
                }
                _ => {
                    while let Some(done) = software.take_back(&memory[..]) {
                        assert_eq!(done.status & status::START != 0, come == 0);
                        come += done.status & status::LENGTH;
                        if done.status & status::END != 0 {
                            assert_eq!(expected.pop_front(), Some(come));
                            come = 0;
                        }
                    }
                }
            }
        }
        assert_eq!(device.frames(), frames);
        assert!(frames > 0 && dropped > 0, "{frames} frames, {dropped} dropped");
    });
}

/// Buffers that are wrong stop the ring of frames that come, and so does memory that cannot be written; afterwards it begins
/// anew.
#[test]
fn what_is_wrong_stops_the_ring_of_frames_that_come() {
    let good = Fragment { address: BOUNDS.start, length_bytes: 1500 };
    let mut memory = vec![Descriptor::default(); RX_DESCRIPTORS as usize];
    let mut software = Software::new(&mut memory[..], BASE);
    let mut device = Device::default();
    let mut fragments = Vec::new();
    let outside = Fragment { address: BOUNDS.start - 1, ..good };
    let over_the_end = Fragment { address: BOUNDS.start + BOUNDS.length_bytes - 1499, ..good };
    let empty = Fragment { length_bytes: 0, ..good };
    for (wrong, expected) in
        [(outside, RingError::Address), (over_the_end, RingError::Address), (empty, RingError::Length)]
    {
        software.offer(&mut memory[..], good, 1).unwrap();
        software.offer(&mut memory[..], good, 2).unwrap();
        // Software, or whoever writes into its ring, changes it afterwards.
        let descriptor = &mut memory[1];
        descriptor.buffer = wrong.address;
        descriptor.control = descriptor.control & !control::LENGTH | wrong.length_bytes;
        for _ in 0..2 {
            let found = device.buffers(&mut memory[..], software.tail(), &BOUNDS, 3000, &mut fragments);
            assert_eq!((found, fragments.len()), (Err(expected), 0), "{wrong:?}");
        }
        assert_eq!(device.error(), Some(expected));
        while software.take_back(&memory[..]).is_some() {}
        software.reset(&mut memory[..], BASE);
        device.reset();
        assert_eq!((device.error(), device.current(), software.tail()), (None, 0, 0));
    }
    software.offer(&mut memory[..], good, 1).unwrap();
    assert_eq!(device.buffers(&mut memory[..], software.tail(), &BOUNDS, 60, &mut fragments), Ok(true));
    assert_eq!(device.received(&mut memory[..], &fragments, false), Err(RingError::Memory));
    while software.take_back(&memory[..]).is_some() {}
    software.reset(&mut memory[..], BASE);
    device.reset();
    software.offer(&mut memory[..], good, 7).unwrap();
    assert_eq!(device.buffers(&mut memory[..], software.tail(), &BOUNDS, 60, &mut fragments), Ok(true));
    device.received(&mut memory[..], &fragments, true).unwrap();
    assert_eq!(software.take_back(&memory[..]).map(|done| done.software), Some(7));
    assert_eq!(device.frames(), 1);
}

/// A frame that fills the ring and does not end there is not waited for.
#[test]
fn a_frame_without_an_end_stops_the_ring() {
    let mut memory = vec![Descriptor::default(); TX_DESCRIPTORS as usize];
    let mut software = Software::new(&mut memory[..], BASE);
    let mut device = Device::default();
    let all = vec![Fragment { address: BOUNDS.start, length_bytes: 10 }; TX_DESCRIPTORS as usize];
    software.send(&mut memory[..], &all, 1).unwrap();
    memory.iter_mut().for_each(|descriptor| descriptor.control &= !control::END);
    let mut fragments = Vec::new();
    let found = device.next_frame(&mut memory[..], software.tail(), &BOUNDS, &mut fragments);
    assert_eq!((found, fragments.len()), (Err(RingError::NoEnd), 0));
}

/// A queue keeps its bound, its order, and count of what it has dropped.
#[test]
fn a_queue_with_a_bound_drops_what_does_not_fit() {
    Seeds::from_environment(20).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let bytes_max = random.below(20_000);
        let mut fifo = Fifo::new(bytes_max);
        let (mut expected, mut bytes, mut dropped) = (VecDeque::new(), 0, 0);
        for number in 0..2000 {
            if random.one_in(2) {
                let length = random.below(2000) as u32;
                if bytes + u64::from(length) <= bytes_max {
                    fifo.push(length, number).unwrap();
                    expected.push_back((length, number));
                    bytes += u64::from(length);
                } else {
                    assert_eq!(fifo.push(length, number), Err(number));
                    dropped += 1;
                }
            } else {
                let oldest = expected.pop_front();
                bytes -= oldest.map_or(0, |(length, _)| u64::from(length));
                assert_eq!(fifo.pop(), oldest);
            }
            assert_eq!(
                (fifo.bytes(), fifo.dropped(), fifo.is_empty()),
                (bytes, dropped, expected.is_empty())
            );
        }
    });
}

#[test]
fn descriptors_lie_in_memory_as_the_engine_has_them() {
    let descriptor = Descriptor {
        next: 0x1122_3344_5566_7788,
        buffer: 0x99aa_bbcc_ddee_ff00,
        control: control::START | control::END | 1514,
        status: status::COMPLETE,
        app: [1, 2, 3, 4, 5],
        software: 7,
    };
    let bytes = descriptor.to_bytes();
    assert_eq!(bytes[..8], 0x1122_3344_5566_7788u64.to_le_bytes());
    assert_eq!(bytes[0x18..0x1c], (0x0c00_0000u32 | 1514).to_le_bytes());
    assert_eq!((bytes[0x20], bytes[0x30], bytes[0x38]), (1, 5, 7));
    assert_eq!(Descriptor::from_bytes(&bytes), descriptor);
}
