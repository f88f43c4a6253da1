//! Ports that always have frames, ports that have some now and then, and an interface with a rate, in virtual time.

use tombolo_core::nic::{Next, PortId, Scheduler, Sent, Share, Turns};
use tombolo_random::{Random, Seeds};

const S: u64 = 1_000_000_000;
/// 2 Gb/s.
const RATE: u64 = 250_000_000;
/// The longest segment, and how late a sleep may end.
const MOST: u64 = 65_536;
const WAKE_NS: u64 = 100_000;

#[derive(Clone, Copy)]
struct Port {
    share: Share,
    /// Bytes of its frames: from, to.
    sizes: (u64, u64),
    /// It has a frame so often, in nanoseconds; 0: always.
    every_ns: u64,
    /// When its next frame is there.
    ready_ns: u64,
    /// Its frame that waits, where it is read before its turn: the scheduler is told how long it is.
    waiting: Option<Sent>,
    is_read_before: bool,
    /// The longest time from when a frame was there until it was sent.
    waited_ns: u64,
    sent: Sent,
}

impl Port {
    fn greedy(share: Share, sizes: (u64, u64)) -> Self {
        Self {
            share,
            sizes,
            every_ns: 0,
            ready_ns: 0,
            waiting: None,
            is_read_before: false,
            waited_ns: 0,
            sent: Sent::default(),
        }
    }

    fn draw(&self, random: &mut Random) -> Sent {
        on_the_wire(self.sizes.0 + random.below(self.sizes.1 - self.sizes.0 + 1))
    }
}

/// A segment's frames on the wire, each with 38 bytes beside its payload (preamble, header, checksum and gap).
fn on_the_wire(bytes: u64) -> Sent {
    let frames = bytes.div_ceil(1500);
    Sent { frames, bytes: bytes + frames * 38 }
}

/// What the interface saves up at most, as long as the driver is no later than it said.
const BURST: u64 = RATE * WAKE_NS / S + MOST;
/// What it may owe before a frame goes ahead.
const DEBT: u64 = 2 * MOST + 4 * 1538;

/// Lets ports send for `for_ns`. Returns the time at the end.
fn run(random: &mut Random, scheduler: &mut Scheduler, ports: &mut [Port], for_ns: u64) -> u64 {
    for (id, port) in (0..).zip(&*ports) {
        scheduler.set(0, PortId(id), port.share);
    }
    go_on(random, scheduler, ports, 0, for_ns)
}

/// Lets ports send until a time, and returns that at the end. The simulated driver oversleeps at random, unless a port has a frame
/// meanwhile. The interface never sends more than its rate allows, what it saves up, what it may owe for frames that go ahead, and one
/// segment.
fn go_on(
    random: &mut Random,
    scheduler: &mut Scheduler,
    ports: &mut [Port],
    from_ns: u64,
    until_ns: u64,
) -> u64 {
    let mut now_ns = from_ns;
    while now_ns < until_ns {
        for (id, port) in (0..).map(PortId).zip(&mut *ports) {
            if port.ready_ns > now_ns {
                continue;
            }
            if !port.is_read_before {
                scheduler.has_frames(id);
            } else if port.waiting.is_none() {
                let frame = port.draw(random);
                port.waiting = Some(frame);
                scheduler.frame_waits(now_ns, id, frame.bytes);
            }
        }
        let allowed = RATE as f64 * now_ns as f64 / S as f64 + (BURST + DEBT + 2 * MOST) as f64;
        assert!(total(ports) as f64 <= allowed, "{} of {allowed} at {now_ns}", total(ports));
        match scheduler.next(now_ns) {
            Next::Read(id) => {
                let port = &mut ports[usize::from(id.0)];
                if port.ready_ns > now_ns {
                    scheduler.was_empty(id);
                    continue;
                }
                let sent = port.waiting.take().unwrap_or_else(|| port.draw(random));
                if port.every_ns > 0 {
                    port.waited_ns = port.waited_ns.max(now_ns - port.ready_ns);
                }
                port.ready_ns += port.every_ns;
                port.sent =
                    Sent { frames: port.sent.frames + sent.frames, bytes: port.sent.bytes + sent.bytes };
                scheduler.charge(now_ns, id, sent);
                if port.is_read_before && port.ready_ns > now_ns {
                    scheduler.was_empty(id);
                }
                now_ns += 200;
            }
            Next::Wait(at_ns) => {
                assert!(at_ns > now_ns, "to wait for what is over");
                let next = ports.iter().map(|port| port.ready_ns).filter(|ready_ns| *ready_ns > now_ns).min();
                now_ns = (at_ns + random.below(WAKE_NS)).min(next.unwrap_or(u64::MAX));
            }
            Next::Idle => {
                let next = ports.iter().map(|port| port.ready_ns).min().unwrap_or(until_ns);
                assert!(next > now_ns, "a port has a frame, and is not read");
                now_ns = next;
            }
        }
    }
    for (id, port) in (0..).zip(&*ports) {
        assert_eq!(scheduler.sent(PortId(id)), port.sent);
    }
    now_ns
}

/// Jain's index: 1 if all are equal.
fn jain(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let (count, sum) = (values.clone().count() as f64, values.clone().sum::<f64>());
    sum * sum / (count * values.map(|value| value * value).sum::<f64>())
}

fn some_sizes(random: &mut Random) -> (u64, u64) {
    [(60, 60), (60, 1500), (1500, 1500), (60, 9000), (1500, MOST), (MOST, MOST)][random.index(6)]
}

fn total(ports: &[Port]) -> u64 {
    ports.iter().map(|port| port.sent.bytes).sum()
}

#[test]
fn greedy_ports_get_their_weights_whatever_their_frames_are() {
    Seeds::from_environment(10).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let count = 2 + random.below(6);
        let greedy = |random: &mut Random| {
            let share = Share { weight: 1 + random.below(4) as u32, ..Share::default() };
            let is_read_before = random.one_in(2);
            Port { is_read_before, ..Port::greedy(share, some_sizes(random)) }
        };
        let mut ports: Vec<_> = (0..count).map(|_| greedy(&mut random)).collect();
        let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
        scheduler.shape(0, Some(RATE));
        let end_ns = run(&mut random, &mut scheduler, &mut ports, S / 2);
        let shares = ports.iter().map(|port| port.sent.bytes as f64 / f64::from(port.share.weight));
        assert!(jain(shares.clone()) > 0.999, "{:?}", shares.collect::<Vec<_>>());
        let weights: u32 = ports.iter().map(|port| port.share.weight).sum();
        let all = total(&ports) as f64;
        for port in &ports {
            let right = all * f64::from(port.share.weight) / f64::from(weights);
            assert!((port.sent.bytes as f64 / right - 1.0).abs() < 0.02, "{} of {right}", port.sent.bytes);
        }
        // 60 B take 200 ns to read here, which is below the rate.
        let is_fast = ports.iter().all(|port| port.sizes.0 >= 1500);
        let used = all / (RATE as f64 * end_ns as f64 / S as f64);
        assert!(used < 1.01 && (!is_fast || used > 0.98), "{used}");
    });
}

#[test]
fn by_frames_each_sends_as_many_frames() {
    Seeds::from_environment(10).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let mut ports: Vec<_> =
            (0..4).map(|_| Port::greedy(Share::default(), some_sizes(&mut random))).collect();
        let mut scheduler = Scheduler::new(Turns::Frames, WAKE_NS, MOST);
        scheduler.shape(0, Some(RATE));
        run(&mut random, &mut scheduler, &mut ports, S / 2);
        let frames = ports.iter().map(|port| port.sent.frames as f64);
        assert!(jain(frames.clone()) > 0.999, "{:?}", frames.collect::<Vec<_>>());
    });
}

#[test]
fn what_is_guaranteed_is_had_and_caps_hold() {
    Seeds::from_environment(10).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let guaranteed = Share { guaranteed: RATE / 2, ..Share::default() };
        let capped = Share { most: Some(RATE / 20), weight: 100, ..Share::default() };
        let mut ports =
            vec![Port::greedy(guaranteed, (1500, 1500)), Port::greedy(capped, some_sizes(&mut random))];
        ports.extend((0..6).map(|_| Port::greedy(Share::default(), some_sizes(&mut random))));
        let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
        scheduler.shape(0, Some(RATE));
        let end_ns = run(&mut random, &mut scheduler, &mut ports, S / 2);
        let rate = |port: &Port| port.sent.bytes as f64 * S as f64 / end_ns as f64;
        // What it is to be is of the rate that is had: small frames take longer to read than to send.
        assert!(rate(&ports[0]) > 0.98 * RATE as f64 / 2.0, "{}", rate(&ports[0]));
        assert!(rate(&ports[1]) < 1.02 * RATE as f64 / 20.0 + MOST as f64, "{}", rate(&ports[1]));
        let others = ports.iter().skip(2).map(|port| port.sent.bytes as f64);
        assert!(jain(others) > 0.999);
    });
}

/// A driver that comes back milliseconds late sends nearly as much as one that does not: the bucket learns how late it is.
#[test]
fn what_a_late_driver_could_have_sent_is_made_up_for() {
    Seeds::from_environment(10).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let late_ns = 1_000_000 + random.below(5_000_000);
        let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
        scheduler.shape(0, Some(RATE));
        scheduler.set(0, PortId(0), Share::default());
        let (mut now_ns, mut bytes) = (0, 0);
        while now_ns < 2 * S {
            scheduler.has_frames(PortId(0));
            match scheduler.next(now_ns) {
                Next::Read(id) => {
                    let sent = on_the_wire(1500);
                    scheduler.charge(now_ns, id, sent);
                    // At first it learns.
                    bytes += if now_ns > S { sent.bytes } else { 0 };
                    now_ns += 200;
                }
                // Not always, and not always as much.
                Next::Wait(at_ns) if random.one_in(20) => now_ns = at_ns + random.below(late_ns),
                Next::Wait(at_ns) => now_ns = at_ns,
                Next::Idle => panic!("it has frames"),
            }
        }
        let used = bytes as f64 / RATE as f64;
        assert!((0.98..1.01).contains(&used), "{used}, up to {late_ns} ns late");
    });
}

/// One with little to send does not wait for those with much.
#[test]
fn a_quiet_port_is_read_within_a_frame_of_each_other() {
    let mut random = Random::new(1);
    let mut ports: Vec<_> = (0..3).map(|_| Port::greedy(Share::default(), (1500, 1500))).collect();
    let quiet = Port { every_ns: 1_000_000, ..Port::greedy(Share::default(), (100, 100)) };
    ports.push(quiet);
    let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
    scheduler.shape(0, Some(RATE));
    run(&mut random, &mut scheduler, &mut ports, S);
    assert!(ports[3].sent.frames >= 998, "{} of 1000 frames", ports[3].sent.frames);
    assert!(jain(ports.iter().take(3).map(|port| port.sent.bytes as f64)) > 0.999);
}

/// A port that sends less than its part waits neither for the segments of others nor for the interface's bucket. Greedy ports keep
/// equal shares beside it.
#[test]
fn who_asks_little_goes_ahead_of_segments() {
    Seeds::from_environment(10).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let read_before = |share, sizes| Port { is_read_before: true, ..Port::greedy(share, sizes) };
        let count = 2 + random.index(6);
        let mut ports: Vec<_> = (0..count).map(|_| read_before(Share::default(), (MOST, MOST))).collect();
        // As many that flood with small frames, and others that ask for a tenth of their part.
        ports.extend((0..count).map(|_| read_before(Share::default(), (1000, 1500))));
        let all = count as u64 * 3;
        let every_ns = 10 * all * 1538 * S / RATE;
        let quiet = Port { every_ns, ..read_before(Share::default(), (60, 1500)) };
        ports.extend((0..count).map(|_| Port { ready_ns: every_ns + random.below(every_ns), ..quiet }));
        let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
        scheduler.shape(0, Some(RATE));
        let end_ns = run(&mut random, &mut scheduler, &mut ports, S / 2);
        // A step takes 200 ns; others of the quiet ones may come at the same time. A segment takes 270 µs.
        let waited_ns = ports[2 * count..].iter().map(|port| port.waited_ns).max().unwrap();
        assert!(waited_ns < 10_000, "{waited_ns} ns among {count}");
        let greedy = ports[..2 * count].iter().map(|port| port.sent.bytes as f64);
        assert!(jain(greedy.clone()) > 0.999, "{:?}", greedy.collect::<Vec<_>>());
        let used = total(&ports) as f64 / (RATE as f64 * end_ns as f64 / S as f64);
        assert!((0.98..1.01).contains(&used), "{used}");
    });
}

/// A thousand ports that all ask at once do not have the interface owe more than its limit.
#[test]
fn what_goes_ahead_is_bounded() {
    let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
    scheduler.shape(0, Some(RATE));
    let frame = on_the_wire(1500);
    for id in (0..1000).map(PortId) {
        scheduler.set(0, id, Share::default());
    }
    // They have been there for a second, but for the last one, which has just come: no frame of it goes ahead.
    scheduler.set(S, PortId(1000), Share::default());
    for id in (0..=1000).rev().map(PortId) {
        scheduler.frame_waits(S, id, frame.bytes);
    }
    let mut bytes = 0;
    let at_ns = loop {
        match scheduler.next(S) {
            Next::Read(id) => {
                assert_ne!(id, PortId(1000));
                scheduler.charge(S, id, frame);
                scheduler.was_empty(id);
            }
            Next::Wait(at_ns) => break at_ns,
            Next::Idle => panic!("ports have frames"),
        }
        bytes += frame.bytes;
    };
    assert!((BURST + DEBT..=BURST + DEBT + frame.bytes).contains(&bytes), "{bytes}");
    // As soon as it owes less, the next one goes.
    assert!((S..S + frame.bytes * S / RATE + 2).contains(&at_ns), "{at_ns}");
    assert_eq!(scheduler.next(at_ns - 1), Next::Wait(at_ns));
    assert!(matches!(scheduler.next(at_ns), Next::Read(_)));
}

/// Frames that went ahead were paid for by the time in which their port sent nothing else: when it becomes greedy, it has its share at once.
#[test]
fn who_asked_little_has_its_share_when_it_asks_for_more() {
    let mut random = Random::new(1);
    let greedy = Port { is_read_before: true, ..Port::greedy(Share::default(), (MOST, MOST)) };
    // An eighth of what is its part.
    let every_ns = 16 * 1538 * S / RATE;
    let mut ports = [greedy, Port { every_ns, sizes: (1500, 1500), ..greedy }];
    let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
    scheduler.shape(0, Some(RATE));
    let now_ns = run(&mut random, &mut scheduler, &mut ports, 5 * S);
    (ports[1].every_ns, ports[1].ready_ns) = (0, now_ns);
    let before = [ports[0].sent.bytes, ports[1].sent.bytes];
    go_on(&mut random, &mut scheduler, &mut ports, now_ns, now_ns + S / 20);
    let [first, second] = [0, 1].map(|port| ports[port].sent.bytes - before[port]);
    assert!(first.abs_diff(second) <= 2 * MOST, "{first} and {second}");
}

/// What goes ahead comes behind guarantees that are not used up, however many ports ask.
#[test]
fn a_guarantee_holds_beside_all_that_goes_ahead() {
    let mut random = Random::new(1);
    let port = |share| Port { is_read_before: true, ..Port::greedy(share, (MOST, MOST)) };
    let guaranteed = Share { guaranteed: RATE / 2, ..Share::default() };
    let mut ports = vec![port(guaranteed)];
    // It asks for less than what is guaranteed to it, and waits for no segment.
    let some = Share { guaranteed: RATE / 20, ..Share::default() };
    ports.push(Port { every_ns: 1_000_000, sizes: (1000, 1500), ..port(some) });
    ports.extend([Share::default(); 20].map(port));
    // Two frames each, all at the same time.
    let every_ns = 300 * 1538 * 2 * S / (RATE / 4);
    for _ in 0..2 {
        let quiet = Port { every_ns, sizes: (1500, 1500), ..port(Share::default()) };
        ports.extend([quiet; 300]);
    }
    let mut scheduler = Scheduler::new(Turns::Bytes, WAKE_NS, MOST);
    scheduler.shape(0, Some(RATE));
    let end_ns = run(&mut random, &mut scheduler, &mut ports, S);
    let rate = |port: &Port| port.sent.bytes as f64 * S as f64 / end_ns as f64;
    assert!(rate(&ports[0]) > 0.98 * RATE as f64 / 2.0, "{}", rate(&ports[0]));
    // A segment of the other guarantee, and what the interface owes.
    let longest_ns = (DEBT + 2 * MOST) * S / RATE + WAKE_NS;
    assert!(ports[1].waited_ns < longest_ns, "{} of {longest_ns}", ports[1].waited_ns);
}

/// Shares change, and ports come and go: who is there has its share.
#[test]
fn ports_come_and_go_and_the_others_share_what_is_left() {
    let mut scheduler = Scheduler::new(Turns::Bytes, 0, MOST);
    let frame = Sent { frames: 1, bytes: 1000 };
    let counts = |scheduler: &mut Scheduler, rounds: u32| {
        let mut counts = [0u32; 3];
        for _ in 0..rounds {
            let Next::Read(id) = scheduler.next(0) else { panic!("nothing to read") };
            counts[usize::from(id.0)] += 1;
            scheduler.charge(0, id, frame);
        }
        counts
    };
    for id in 0..3 {
        scheduler.set(0, PortId(id), Share::default());
        scheduler.has_frames(PortId(id));
    }
    assert!(counts(&mut scheduler, 3000).iter().all(|count| (990..=1010).contains(count)));
    scheduler.remove(PortId(1));
    scheduler.set(0, PortId(2), Share { weight: 3, ..Share::default() });
    let [one, gone, three] = counts(&mut scheduler, 4000);
    assert!(gone == 0 && (990..=1010).contains(&one), "{one} {gone} {three}");
    scheduler.was_empty(PortId(0));
    scheduler.was_empty(PortId(2));
    assert_eq!(scheduler.next(0), Next::Idle);
}
