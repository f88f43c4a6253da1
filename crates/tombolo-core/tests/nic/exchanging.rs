//! The whole interface in virtual time: ports with queues of their own, a shaped uplink that is full now and then, and
//! traffic between ports.

use std::collections::VecDeque;

use tombolo_core::nic::offload::{OFFLOAD_BYTES, OffloadHeader, on_wire};
use tombolo_core::nic::{
    COPIES_AT_ONCE, Counters, Exchange, Limits, Mac, Mode, Origin, Outward, PortConfig, PortId, Refusal,
    Rules, Share, Step, Targets, Turns,
};
use tombolo_random::{Random, Seeds};

use crate::switching::frame_of;

const S: u64 = 1_000_000_000;
const RATE: u64 = 250_000_000;
const WAKE_NS: u64 = 100_000;
const OUTSIDE: u8 = 100;
const ALL: u8 = 0xff;

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

fn limits(rate: Option<u64>) -> Limits {
    Limits { turns: Turns::Bytes, rate, wake_ns: WAKE_NS, segment_bytes_max: 65_536, mtu: 1500 }
}

fn config(number: u8, share: Share) -> PortConfig {
    PortConfig { rules: Rules::new(mac(number)), share, mtu: 1500 }
}

/// A frame as a test sees it: whose, its number, for whom, and its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sample {
    number: u64,
    to: u8,
    length: usize,
}

/// A segment of TCP over IPv4 that is cut into frames of 1500 bytes, or a short frame.
fn bytes_of(from: u8, sample: &Sample) -> (OffloadHeader, Vec<u8>) {
    let to = if sample.to == ALL { Mac([0xff; 6]) } else { mac(sample.to) };
    let mut bytes = frame_of(to, mac(from), None, sample.length);
    let mut header = [0; OFFLOAD_BYTES];
    if sample.length > 1514 {
        bytes[12..14].copy_from_slice(&[8, 0]);
        bytes[14] = 0x45;
        bytes[23] = 6;
        bytes[14 + 20 + 12] = 5 << 4;
        header = [1, 1, 54, 0, 0, 0, 34, 0, 16, 0];
        header[4..6].copy_from_slice(&1460u16.to_ne_bytes());
    }
    (header, bytes)
}

#[derive(Default)]
struct Port {
    /// In its kernel's queue.
    queue: VecDeque<Sample>,
    /// What the driver keeps of it.
    kept: Option<Sample>,
    /// To the uplink, to another port, refused: what should have come there, in order.
    sent: u64,
    came: Vec<u64>,
    outside: Vec<u64>,
}

/// A frame that goes to many ports, and those that have not had it.
#[derive(Debug)]
struct Spread {
    from: Origin,
    sample: Sample,
    left: VecDeque<u16>,
}

impl Spread {
    /// The ports that get it next are these.
    fn check(&mut self, targets: &Targets) {
        let next: Vec<PortId> = self.left.drain(..self.left.len().min(COPIES_AT_ONCE)).map(PortId).collect();
        assert_eq!(targets.ports, next, "{self:?}");
    }
}

/// What was counted, also of ports and owners that have gone.
#[derive(Default)]
struct Totals {
    sent: u64,
    received: u64,
    refused: u64,
    undelivered: u64,
}

impl Totals {
    fn add(&mut self, counters: &Counters) {
        self.sent += counters.sent.segments;
        self.received += counters.received.segments;
        self.refused += counters.refused_for(Refusal::Unknown);
        self.undelivered += counters.undelivered;
    }
}

/// Runs to the end: each frame comes once, in order, to where it is to, or is counted as lost; the uplink is not exceeded, and
/// nothing stands still. Ports do not take frames, nor does the uplink; frames come from outside; ports leave and come; the
/// owner dies, and another one finds what is left in the ports' queues.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let rate = random.one_in(2).then_some(RATE);
    let count = if random.one_in(4) { 15 + random.below(40) as u8 } else { 2 + random.below(5) as u8 };
    let mut exchange = Exchange::new(Mode::Bridge, limits(rate));
    let mut ports: Vec<Port> = (0..count).map(|_| Port::default()).collect();
    let shares: Vec<Share> = (0..count)
        .map(|_| {
            let share = Share { weight: 1 + random.below(3) as u32, ..Share::default() };
            if random.one_in(3) { Share { most: Some(RATE / 4), ..share } } else { share }
        })
        .collect();
    for id in 0..count {
        exchange.set(0, PortId(id.into()), config(id, shares[usize::from(id)])).unwrap();
    }
    let mut targets = Targets::default();
    let (mut now_ns, mut is_full, mut refused, mut outside_bytes) = (0, false, 0, 0);
    // Of ports, and of the uplink, that have gone; what was kept when they went, or waited in a queue that went with its port;
    // from outside to ports, and to nobody; what was not taken.
    let (mut of_ports, mut of_uplink) = (Totals::default(), Totals::default());
    let (mut kept_lost, mut queue_lost, mut inward, mut unknown) = (0, 0, 0, 0);
    let (mut not_taken, mut not_taken_inward, mut not_taken_outside, mut lives) = (0, 0, 0, 1u64);
    let mut spreads: Vec<Spread> = Vec::new();
    // Copies of what ports send to all.
    let mut copies = 0u64;
    let mut steps = 0u64;
    loop {
        steps += 1;
        assert!(steps < 400_000, "it goes on for ever");
        // New frames, in the first half; afterwards all must become empty.
        if steps < 3000 && random.one_in(3) {
            let id = random.below(count.into()) as usize;
            for _ in 0..=random.below(8) {
                let to = match random.below(8) {
                    0 => ALL,
                    1..=4 => OUTSIDE,
                    _ => random.below(count.into()) as u8,
                };
                let length = [60, 300, 1514, 30_000][random.index(4)];
                let sample = Sample { number: ports[id].sent, to, length };
                ports[id].sent += 1;
                ports[id].queue.push_back(sample);
            }
        }
        // From outside, to a port or to nobody.
        if steps < 3000 && random.one_in(10) && !exchange.is_spreading(Origin::Uplink) {
            let to = if random.one_in(5) { ALL } else { random.below(u64::from(count) + 1) as u8 };
            let sample = Sample { number: steps, to, length: [60, 1514, 30_000][random.index(3)] };
            let (header, bytes) = bytes_of(OUTSIDE, &sample);
            let found = exchange.from_uplink(&header, &bytes, &mut targets);
            if to == count {
                assert_eq!(found, Err(Refusal::Unknown));
                unknown += 1;
            } else if to == ALL {
                assert!(found.is_ok() && !targets.uplink);
                let mut spread = Spread { from: Origin::Uplink, sample, left: (0..count.into()).collect() };
                spread.check(&targets);
                for id in &targets.ports {
                    let was_taken = !random.one_in(20);
                    exchange.delivered(*id, &bytes, &targets.wire, was_taken);
                    inward += u64::from(was_taken);
                    not_taken_inward += u64::from(!was_taken);
                }
                spreads.extend(Some(spread).filter(|spread| !spread.left.is_empty()));
            } else {
                assert!(found.is_ok() && targets.ports == [PortId(to.into())] && !targets.uplink);
                let was_taken = !random.one_in(20);
                exchange.delivered(PortId(to.into()), &bytes, &targets.wire, was_taken);
                inward += u64::from(was_taken);
                not_taken_inward += u64::from(!was_taken);
            }
        }
        // A port goes, with its queue, and another one comes in its place.
        if steps < 3000 && random.one_in(300) {
            let id = random.index(count.into());
            of_ports.add(exchange.counters(PortId(id as u16)).unwrap());
            exchange.remove(PortId(id as u16));
            spreads.retain(|spread| spread.from != Origin::Port(PortId(id as u16)));
            spreads.iter_mut().for_each(|spread| spread.left.retain(|left| *left != id as u16));
            kept_lost += u64::from(ports[id].kept.take().is_some());
            queue_lost += ports[id].queue.drain(..).count() as u64;
            exchange.set(now_ns, PortId(id as u16), config(id as u8, shares[id])).unwrap();
        }
        // The owner dies; the next one has the ports' queues, with what is in them.
        if steps < 3000 && random.one_in(500) {
            for id in 0..count {
                of_ports.add(exchange.counters(PortId(id.into())).unwrap());
                kept_lost += u64::from(ports[usize::from(id)].kept.take().is_some());
            }
            of_uplink.add(exchange.uplink_counters());
            spreads.clear();
            (exchange, is_full, lives) = (Exchange::new(Mode::Bridge, limits(rate)), false, lives + 1);
            for id in 0..count {
                exchange.set(now_ns, PortId(id.into()), config(id, shares[usize::from(id)])).unwrap();
            }
        }
        if random.one_in(50) && is_full {
            is_full = false;
            exchange.uplink_has_room();
        }
        for (id, port) in (0..).zip(&ports) {
            if !port.queue.is_empty() {
                exchange.has_frames(PortId(id));
            }
        }
        match exchange.next(now_ns) {
            Step::Read(id) => {
                let port = &mut ports[usize::from(id.0)];
                let is_spreading = spreads.iter().any(|spread| spread.from == Origin::Port(id));
                assert!(port.kept.is_none() && !is_spreading, "a port that waits is read");
                let Some(sample) = port.queue.pop_front() else {
                    exchange.was_empty(id);
                    continue;
                };
                let (header, bytes) = bytes_of(id.0 as u8, &sample);
                let result = exchange.from_port(now_ns, id, &header, &bytes, &mut targets);
                if sample.to == id.0 as u8 {
                    assert_eq!(result, Err(Refusal::Unknown), "to itself");
                    refused += 1;
                } else if sample.to == OUTSIDE || sample.to == ALL {
                    assert!(targets.uplink);
                    let all = if sample.to == ALL { 0..count.into() } else { 0..0 };
                    let left = all.filter(|to| *to != id.0).collect();
                    let mut spread = Spread { from: Origin::Port(id), sample, left };
                    spread.check(&targets);
                    for to in &targets.ports {
                        let was_taken = !random.one_in(20);
                        exchange.delivered(*to, &bytes, &targets.wire, was_taken);
                        ports[usize::from(to.0)]
                            .came
                            .extend(was_taken.then_some(u64::from(id.0) << 32 | sample.number));
                        not_taken += u64::from(!was_taken);
                        copies += 1;
                    }
                    spreads.extend(Some(spread).filter(|spread| !spread.left.is_empty()));
                    match result {
                        Ok(Outward::Now) => {
                            assert!(rate.is_none() && !is_full);
                            if random.one_in(20) {
                                is_full = true;
                                exchange.keep(now_ns, id, targets.wire);
                                ports[usize::from(id.0)].kept = Some(sample);
                            } else if random.one_in(20) {
                                exchange.lost_at_uplink();
                                not_taken_outside += 1;
                            } else {
                                exchange.sent_now(&bytes, &targets.wire);
                                ports[usize::from(id.0)].outside.push(sample.number);
                            }
                        }
                        Ok(Outward::Later) => ports[usize::from(id.0)].kept = Some(sample),
                        other => panic!("{other:?}"),
                    }
                } else {
                    assert_eq!(result, Ok(Outward::No));
                    assert_eq!(targets.ports, [PortId(sample.to.into())]);
                    let was_taken = !random.one_in(20);
                    exchange.delivered(PortId(sample.to.into()), &bytes, &targets.wire, was_taken);
                    if was_taken {
                        ports[usize::from(sample.to)].came.push(u64::from(id.0) << 32 | sample.number);
                    } else {
                        not_taken += 1;
                    }
                }
            }
            Step::Send(id) => {
                assert!(!is_full, "the uplink has no room");
                if random.one_in(20) {
                    is_full = true;
                    exchange.uplink_is_full();
                    continue;
                }
                let port = &mut ports[usize::from(id.0)];
                let sample = port.kept.take().expect("it waits");
                let was_taken = !random.one_in(20);
                if was_taken {
                    port.outside.push(sample.number);
                }
                let (header, bytes) = bytes_of(id.0 as u8, &sample);
                outside_bytes += on_wire(&header, &bytes, 1500).unwrap().bytes;
                exchange.sent(now_ns, id, &bytes, was_taken);
                not_taken_outside += u64::from(!was_taken);
            }
            Step::Spread(from) => {
                exchange.spread(from, &mut targets);
                let at = spreads.iter().position(|spread| spread.from == from).expect("it spreads");
                let spread = &mut spreads[at];
                spread.check(&targets);
                assert!(!targets.uplink);
                let (header, bytes) = bytes_of(OUTSIDE, &spread.sample);
                assert_eq!(on_wire(&header, &bytes, 1500), Ok(targets.wire));
                for to in &targets.ports {
                    let was_taken = !random.one_in(20);
                    exchange.delivered(*to, &bytes, &targets.wire, was_taken);
                    if let Origin::Port(id) = from {
                        let came = &mut ports[usize::from(to.0)].came;
                        came.extend(was_taken.then_some(u64::from(id.0) << 32 | spread.sample.number));
                        not_taken += u64::from(!was_taken);
                        copies += 1;
                    } else {
                        inward += u64::from(was_taken);
                        not_taken_inward += u64::from(!was_taken);
                    }
                }
                assert_eq!(exchange.is_spreading(from), !spread.left.is_empty());
                spreads.retain(|spread| !spread.left.is_empty());
            }
            Step::Wait(at_ns) => {
                assert!(spreads.is_empty(), "ports wait for their copies");
                assert!(at_ns > now_ns);
                // What the interface may owe, and two segments.
                let longest_ns = 2 * (2 * 131_072 + 10_000) * 1_000_000_000 / RATE;
                let waits = !is_full && ports.iter().any(|port| port.kept.is_some());
                assert!(!waits || at_ns - now_ns < longest_ns, "a frame waits for {} ns", at_ns - now_ns);
                now_ns = at_ns + random.below(WAKE_NS);
            }
            Step::Idle => {
                let has_work = ports.iter().any(|port| port.kept.is_some() || !port.queue.is_empty());
                assert!((is_full || !has_work) && spreads.is_empty(), "it stands still");
                if steps >= 3000 && !has_work {
                    break;
                }
                now_ns += 1000;
            }
        }
        now_ns += random.below(500);
    }
    if let Some(rate) = rate {
        // Each owner begins with what may be saved up, and may end with a debt for frames that went ahead, and for one segment.
        let debt = 2 * 65_536 + 4 * 1538 + 70_000;
        let saved = u128::from(rate) * u128::from(WAKE_NS) / u128::from(S) + 70_000;
        let burst = (saved + debt) * u128::from(lives);
        assert!(u128::from(outside_bytes) <= u128::from(rate) * u128::from(now_ns) / u128::from(S) + burst);
    }
    (0..count).for_each(|id| of_ports.add(exchange.counters(PortId(id.into())).unwrap()));
    of_uplink.add(exchange.uplink_counters());
    assert_eq!((of_ports.refused, of_uplink.refused), (refused, unknown));
    assert_eq!(
        (of_ports.undelivered, of_uplink.undelivered),
        (not_taken + not_taken_inward, not_taken_outside)
    );
    let came: usize = ports.iter().map(|port| port.came.len()).sum();
    let outside: usize = ports.iter().map(|port| port.outside.len()).sum();
    assert_eq!((of_ports.received, of_uplink.sent), (came as u64 + inward, outside as u64));
    // What was read came somewhere, or is known to be lost; what was not read was refused, or went with its port.
    let within = came as u64 + not_taken - copies;
    assert_eq!(of_ports.sent, within + outside as u64 + not_taken_outside + kept_lost);
    assert_eq!(of_ports.sent + refused + queue_lost, ports.iter().map(|port| port.sent).sum());
    for port in &ports {
        assert!(port.outside.is_sorted(), "out of order");
        for from in 0..u64::from(count) {
            assert!(port.came.iter().filter(|key| **key >> 32 == from).is_sorted(), "out of order");
        }
    }
}

#[test]
fn each_frame_comes_once_and_nothing_stands_still() {
    Seeds::from_environment(40).run("cargo test -p tombolo-core --test nic", run);
}

/// Two flood the uplink, which is shaped; two others flood each other and are not slowed down by that.
#[test]
fn ports_reach_each_other_while_the_uplink_is_taken() {
    let mut exchange = Exchange::new(Mode::Bridge, limits(Some(RATE / 100)));
    for id in 0..4 {
        exchange.set(0, PortId(id.into()), config(id, Share::default())).unwrap();
    }
    let destination = [OUTSIDE, OUTSIDE, 3, 2];
    let (mut within, mut outward, mut now_ns) = (0u64, [0u64; 2], 0);
    let mut targets = Targets::default();
    while now_ns < S / 10 {
        for id in 0..4 {
            exchange.has_frames(PortId(id));
        }
        match exchange.next(now_ns) {
            Step::Read(id) => {
                let sample = Sample { number: 0, to: destination[usize::from(id.0)], length: 1514 };
                let (header, bytes) = bytes_of(id.0 as u8, &sample);
                let outwards = exchange.from_port(now_ns, id, &header, &bytes, &mut targets).unwrap();
                within += u64::from(outwards == Outward::No);
                now_ns += 1000;
            }
            Step::Send(id) => {
                outward[usize::from(id.0)] += 1;
                exchange.sent(now_ns, id, &[0; 14], true);
                now_ns += 1000;
            }
            other => panic!("{other:?} while ports have frames"),
        }
    }
    // 100,000 steps of 1 µs; the uplink takes 163 frames in that time, and what it saves up.
    assert!(within > 99_000, "{within}");
    assert!(outward.iter().all(|frames| (75..150).contains(frames)), "{outward:?}");
    assert!(outward[0].abs_diff(outward[1]) <= 2, "{outward:?}");
}

/// Offload headers that lie are refused, and what is cut is counted as it is on the wire.
#[test]
fn offload_headers_are_believed_as_far_as_the_frame_bears_them_out() {
    let sample = Sample { number: 0, to: OUTSIDE, length: 14 + 40 + 3 * 1460 + 1 };
    let (header, bytes) = bytes_of(0, &sample);
    let wire = on_wire(&header, &bytes, 1500).unwrap();
    assert_eq!((wire.frames, wire.frame_bytes, wire.last_bytes), (4, 1518, 64));
    assert_eq!(wire.bytes, 3 * 1538 + 84);
    // Each byte of the header, and those of the frame that it leans on, with any value: no panic, and what is taken is
    // within the MTU.
    for at in 0..OFFLOAD_BYTES {
        for value in 0..=255 {
            let mut header = header;
            header[at] = value;
            if let Ok(wire) = on_wire(&header, &bytes, 1500) {
                assert!(wire.frame_bytes <= 1518 && wire.frames <= 300, "{header:?}: {wire:?}");
            }
        }
    }
    for length in 0..bytes.len() {
        let _ = on_wire(&header, &bytes[..length], 1500);
    }
    for (at, value, what) in [
        (0, 0, "no checksum"),
        (1, 4, "TCP over IPv6 in IPv4"),
        (1, 5, "UDP in TCP"),
        (1, 3, "fragments of UDP"),
        (4, 3, "frames of 3 bytes"),
        (6, 35, "a checksum that begins elsewhere"),
    ] {
        let mut header = header;
        header[at] = value;
        if at == 4 {
            header[5] = 0;
        }
        assert!(on_wire(&header, &bytes, 1500).is_err(), "{what}");
    }
    // Extension headers that end in their middle.
    for length in 54..140 {
        let mut frame = vec![0; length];
        frame[12..15].copy_from_slice(&[0x86, 0xdd, 0x60]);
        (frame[26], frame[55 % length]) = (5 << 4, 3);
        let mut header = [1, 4, 0, 0, 0, 0, 14, 0, 16, 0];
        header[4..6].copy_from_slice(&100u16.to_ne_bytes());
        header[6..8].copy_from_slice(&14u16.to_ne_bytes());
        assert!(on_wire(&header, &frame, 1500).is_err(), "{length}");
    }
    assert!(on_wire(&[0; OFFLOAD_BYTES], &bytes, 1500).is_err(), "a giant");
    assert!(on_wire(&[0; OFFLOAD_BYTES], &bytes[..13], 1500).is_err(), "a runt");
}

/// Four ports in virtual time.
struct Flood {
    exchange: Exchange,
    step: u64,
    kept: [Option<Sample>; 4],
    /// Frames that each has sent.
    sent: [u64; 4],
}

impl Flood {
    fn new(rate: Option<u64>) -> Self {
        Self::with(limits(rate))
    }

    fn with(limits: Limits) -> Self {
        let mut exchange = Exchange::new(Mode::Bridge, limits);
        for id in 0..4 {
            exchange.set(0, PortId(id.into()), config(id, Share::default())).unwrap();
        }
        Self { exchange, step: 0, kept: [None; 4], sent: [0; 4] }
    }

    fn set(&mut self, id: u8, share: Share) {
        self.exchange.set(self.step * 1000, PortId(id.into()), config(id, share)).unwrap();
    }

    /// Reads and sends for `steps` of 1 µs; `frame`: what a port sends next, or nothing. Returns the bytes on the
    /// wire that each has sent to the uplink.
    fn run(&mut self, steps: u64, frame: impl Fn(u16, u64) -> Option<Sample>) -> [u64; 4] {
        let Self { exchange, step, kept, sent } = self;
        let mut targets = Targets::default();
        let mut outward = [0; 4];
        let end = *step + steps;
        while *step < end {
            *step += 1;
            let now_ns = *step * 1000;
            for id in 0..4 {
                if kept[usize::from(id)].is_none() && frame(id, sent[usize::from(id)]).is_some() {
                    exchange.has_frames(PortId(id));
                }
            }
            match exchange.next(now_ns) {
                Step::Read(id) => {
                    let number = usize::from(id.0);
                    let Some(sample) = frame(id.0, sent[number]) else {
                        exchange.was_empty(id);
                        continue;
                    };
                    sent[number] += 1;
                    let (header, bytes) = bytes_of(id.0 as u8, &sample);
                    match exchange.from_port(now_ns, id, &header, &bytes, &mut targets) {
                        Ok(Outward::Later) => kept[number] = Some(sample),
                        Ok(Outward::Now) => {
                            exchange.sent_now(&bytes, &targets.wire);
                            outward[number] += targets.wire.bytes;
                        }
                        Ok(Outward::No) | Err(_) => {}
                    }
                }
                Step::Send(id) => {
                    let number = usize::from(id.0);
                    let sample = kept[number].take().expect("it waits");
                    let (header, bytes) = bytes_of(id.0 as u8, &sample);
                    outward[number] += on_wire(&header, &bytes, 1500).unwrap().bytes;
                    exchange.sent(now_ns, id, &bytes, true);
                }
                Step::Spread(from) => panic!("{from:?} spreads among four ports"),
                // As a driver that comes back no earlier.
                Step::Wait(at_ns) => *step = (at_ns / 1000).max(*step).min(end),
                Step::Idle => *step = end,
            }
        }
        outward
    }
}

fn sample(to: u8, length: usize) -> Option<Sample> {
    Some(Sample { number: 0, to, length })
}

/// A port whose frame once found the uplink full has no more of it afterwards than the others.
#[test]
fn an_uplink_that_was_full_once_is_shared_as_before() {
    let mut flood = Flood::new(None);
    flood.exchange.uplink_is_full();
    flood.run(10, |id, _| if id == 0 { sample(OUTSIDE, 1514) } else { None });
    flood.exchange.uplink_has_room();
    let outward = flood.run(100_000, |_, _| sample(OUTSIDE, 1514));
    assert!(outward.iter().all(|bytes| bytes.abs_diff(outward[1]) <= 4 * 1538), "{outward:?}");
}

/// What a port has sent to the uplink in its turns there is no debt where ports are read.
#[test]
fn a_port_that_was_busy_at_the_uplink_is_read_at_once_after_a_pause() {
    let mut flood = Flood::new(Some(RATE));
    let both = |id: u16, _: u64| match id {
        0 => sample(OUTSIDE, 30_000),
        1 => sample(2, 60),
        _ => None,
    };
    flood.run(300_000, both);
    flood.run(1000, |id, _| if id == 1 { sample(2, 60) } else { None });
    let outward = flood.run(10_000, both);
    assert!(outward[0] > 1_000_000, "{outward:?}");
}

/// A port that has sent to the uplink once, and then floods another one, is read no more often than others that flood; nor is
/// one that also says all to everybody.
#[test]
fn turns_at_the_uplink_are_no_more_turns_at_reading() {
    let mut flood = Flood::new(Some(RATE));
    flood.run(200_000, |id, number| match id {
        0 if number == 0 => sample(OUTSIDE, 60),
        0 => sample(2, 60),
        1 => sample(3, 60),
        3 => sample(1, 60),
        _ => None,
    });
    let [one, other, _, third] = flood.sent;
    assert!(one.abs_diff(other) < 3000 && one.abs_diff(third) < 3000, "{:?} frames", flood.sent);
    let mut flood = Flood::new(Some(RATE));
    flood.run(200_000, |id, _| match id {
        // To three ports, and to the uplink.
        0 => sample(0xff, 60),
        1 => sample(3, 60),
        _ => None,
    });
    let [loud, other, ..] = flood.sent;
    assert!(3 * loud < other + 6000, "{loud} broadcasts and {other} frames");
}

/// Weights hold for a port that also sends to others; guarantees hold for several, and leave the others what is left.
#[test]
fn weights_and_guarantees_hold_at_the_uplink() {
    let mut flood = Flood::new(Some(RATE));
    for (id, weight) in [(0, 8), (1, 1), (2, 1), (3, 1)] {
        flood.set(id, Share { weight, ..Share::default() });
    }
    let outward = flood.run(1_000_000, |id, number| match id {
        0 if number % 2 == 1 => sample(2, 60),
        0 | 1 => sample(OUTSIDE, 1514),
        _ => None,
    });
    let ratio = outward[0] as f64 / outward[1] as f64;
    assert!((6.5..=8.1).contains(&ratio), "{outward:?}");
    for (id, guaranteed) in [(0, RATE / 4), (1, RATE / 2), (2, 0), (3, 0)] {
        flood.set(id, Share { guaranteed, ..Share::default() });
    }
    let outward = flood.run(1_000_000, |_, _| sample(OUTSIDE, 1514));
    let all: u64 = outward.iter().sum();
    let share = |id: usize| outward[id] as f64 / all as f64;
    assert!(share(0) >= 0.25 && share(1) >= 0.5 && share(2) > 0.04 && share(3) > 0.04, "{outward:?}");
    // More is guaranteed than there is: those that have guarantees share it.
    for id in 0..4 {
        flood.set(id, Share { guaranteed: u64::MAX, ..Share::default() });
    }
    let outward = flood.run(100_000, |_, _| sample(OUTSIDE, 1514));
    assert!(outward.iter().all(|bytes| bytes.abs_diff(outward[0]) <= 4 * 1538), "{outward:?}");
}

/// A guarantee is of the uplink: a port that has one and sends to others keeps nobody from it, and gets its weight of
/// what is left.
#[test]
fn a_guarantee_keeps_nobody_out() {
    let mut flood = Flood::new(Some(RATE));
    flood.set(0, Share { guaranteed: RATE / 4, ..Share::default() });
    let outward = flood.run(10_000, |id, number| match id {
        0 if number > 0 => sample(2, 60),
        0 | 1 => sample(OUTSIDE, 1514),
        _ => None,
    });
    assert!(outward[1] > 1_000_000, "{outward:?}");
    let mut flood = Flood::new(Some(RATE));
    flood.set(0, Share { guaranteed: RATE * 3 / 10, weight: 20, ..Share::default() });
    let outward = flood.run(1_000_000, |id, _| if id < 2 { sample(OUTSIDE, 1514) } else { None });
    let rest = outward[0] as f64 - 0.3 * (outward[0] + outward[1]) as f64;
    assert!((15.0..=25.0).contains(&(rest / outward[1] as f64)), "{outward:?}");
}

/// Frames for other ports cost a port none of its weight at the uplink, nor does a cap that it reaches after each frame: it keeps its place in the
/// round, and its turn.
#[test]
fn a_turn_at_the_uplink_is_kept_meanwhile() {
    let part = |share: Share, turns: Turns, local: u64, bytes: usize| {
        let mut flood = Flood::with(Limits { turns, ..limits(Some(SLOW_RATE)) });
        flood.set(0, share);
        let outward = flood.run(1_500_000, |id, number| match id {
            0 if number % (local + 1) > 0 => sample(3, 1514),
            0 => sample(OUTSIDE, 1514),
            _ => sample(OUTSIDE, bytes),
        });
        let all = outward.iter().sum::<u64>() as f64;
        assert!(all > 0.98 * 1.5 * SLOW_RATE as f64, "the uplink is idle: {all}, {share:?} {turns:?}");
        outward[0] as f64 / all
    };
    for turns in [Turns::Frames, Turns::Bytes] {
        for weight in [1, 10, 100] {
            let right = f64::from(weight) / f64::from(weight + 3);
            for guaranteed in [0, 1000] {
                for local in [1, 3] {
                    let part = part(Share { weight, guaranteed, most: None }, turns, local, 1514);
                    assert!(
                        (0.97..1.03).contains(&(part / right)),
                        "{part} of {right}, {turns:?}, {local} local"
                    );
                }
            }
            for share_of_cap in [2, 8, 100] {
                let most = SLOW_RATE / share_of_cap;
                let share = Share { weight, guaranteed: 1000, most: Some(most) };
                // The others owe for many rounds then.
                if turns == Turns::Bytes {
                    part(share, turns, 0, 25_000);
                }
                let part = part(share, turns, 0, 1514);
                let right = right.min(1.0 / share_of_cap as f64);
                // At first it has what its cap saves up.
                let saved = 70_000.0 / (1.5 * SLOW_RATE as f64);
                let is_right = part > 0.95 * right && part < 1.03 * right + saved;
                assert!(is_right, "{part} of {right}, {turns:?}, weight {weight} with a cap");
            }
        }
    }
}

/// A port that is removed after each of its floods and comes again owes, also to the ports that are read in turn beside it.
#[test]
fn to_come_again_is_no_way_to_be_read_more() {
    let mut flood = Flood::new(Some(RATE));
    let local = |id: u16, _| sample(if id == 0 { 1 } else { 0 }, 9000);
    // It has been there for long.
    flood.run(12_000_000, |_, _| None);
    let before = flood.sent;
    for _ in 0..1000 {
        let sent = flood.sent[0];
        while flood.sent[0] == sent {
            flood.run(1, local);
        }
        flood.exchange.remove(PortId(0));
        flood.kept[0] = None;
        flood.set(0, Share::default());
    }
    let [again, stays, ..] = std::array::from_fn::<_, 4, _>(|id| flood.sent[id] - before[id]);
    assert!(again <= stays + 20, "{again} of who comes again, {stays} of who stays");
}

/// Segments of ports are as short as the uplink needs them, those from outside as long as any.
#[test]
fn what_is_longer_than_the_uplink_can_bear_is_cut() {
    let exchange = |rate| Exchange::new(Mode::Bridge, limits(rate));
    let most =
        |rate| [Origin::Port(PortId(0)), Origin::Uplink].map(|from| exchange(rate).wire_bytes_max(from));
    assert_eq!(most(Some(SLOW_RATE)), [50_000, 131_072]);
    assert_eq!(most(None), [131_072, 131_072]);
}

/// 100 Mb/s.
const SLOW_RATE: u64 = 12_500_000;

/// How many steps of 1 µs pass at most until a short frame of port 2 is sent, while the other ports send what `frame` says.
fn longest_wait(flood: &mut Flood, frame: impl Fn(u16) -> Option<Sample>) -> u64 {
    let mut longest = 0;
    for _ in 0..50 {
        flood.run(20_011, |id, _| if id == 2 { None } else { frame(id) });
        let mut steps = 0;
        while flood.run(1, |id, _| if id == 2 { sample(OUTSIDE, 60) } else { frame(id) })[2] == 0 {
            steps += 1;
            assert!(steps < 1_000_000, "it is not sent");
        }
        longest = longest.max(steps);
    }
    longest
}

/// A port that sends little waits for no segment of others at the shaped uplink.
#[test]
fn a_short_frame_goes_ahead_of_segments() {
    let mut flood = Flood::new(Some(SLOW_RATE));
    let segments = |_| sample(OUTSIDE, 25_000);
    let steps = longest_wait(&mut flood, segments);
    assert!(steps < 20, "{steps} steps");
    // Nor does one that is guaranteed what the others are.
    for id in 0..4 {
        flood.set(id, Share { guaranteed: SLOW_RATE / 4, ..Share::default() });
    }
    let steps = longest_wait(&mut flood, segments);
    assert!(steps < 20, "{steps} steps with guarantees");
}

/// A port with a guarantee that has reached its cap has no frame that others would wait for.
#[test]
fn a_guarantee_that_cannot_be_used_holds_up_no_frame() {
    let mut flood = Flood::new(Some(SLOW_RATE));
    flood.set(0, Share { guaranteed: SLOW_RATE / 2, most: Some(SLOW_RATE / 10), weight: 1 });
    let steps = longest_wait(&mut flood, |id| match id {
        0 => sample(OUTSIDE, 1514),
        1 => sample(OUTSIDE, 25_000),
        _ => None,
    });
    assert!(steps < 200, "{steps} steps");
    // Nor has one that has more for other ports.
    let mut flood = Flood::new(Some(SLOW_RATE));
    flood.set(0, Share { guaranteed: SLOW_RATE / 2, ..Share::default() });
    let turn = std::cell::Cell::new(0u64);
    let steps = longest_wait(&mut flood, |id| match id {
        0 => {
            turn.set(turn.get() + 1);
            if turn.get().is_multiple_of(40) { sample(OUTSIDE, 60) } else { sample(3, 60) }
        }
        1 => sample(OUTSIDE, 25_000),
        _ => None,
    });
    assert!(steps < 200, "{steps} steps beside a port with a guarantee and local frames");
}

/// Frames that are refused take turns, too, however short.
#[test]
fn a_flood_of_refused_frames_takes_no_more_than_its_turns() {
    let mut exchange = Exchange::new(Mode::Bridge, limits(None));
    for id in 0..4 {
        exchange.set(0, PortId(id.into()), config(id, Share::default())).unwrap();
    }
    let mut targets = Targets::default();
    let (mut empty, mut good) = (0u64, 0u64);
    for step in 0..20_000 {
        exchange.has_frames(PortId(0));
        exchange.has_frames(PortId(1));
        match exchange.next(step) {
            Step::Read(PortId(0)) => {
                empty += 1;
                assert!(exchange.from_port(step, PortId(0), &[0; OFFLOAD_BYTES], &[], &mut targets).is_err());
            }
            Step::Read(id) => {
                good += 1;
                let (header, bytes) = bytes_of(1, &sample(2, 60).unwrap());
                exchange.from_port(step, id, &header, &bytes, &mut targets).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(empty.abs_diff(good) < 100, "{empty} empty frames, {good} others");
}
