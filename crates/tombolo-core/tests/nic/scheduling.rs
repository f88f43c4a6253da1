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
    /// Bytes of its segments: from, to.
    sizes: (u64, u64),
    /// How many of them are in each frame.
    bytes_each: u64,
    /// It has frames so often, in nanoseconds; 0: always.
    every_ns: u64,
    /// How many at a time.
    group: u64,
    /// How many of these are sent.
    of_group: u64,
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
            bytes_each: 1500,
            every_ns: 0,
            group: 1,
            of_group: 0,
            ready_ns: 0,
            waiting: None,
            is_read_before: false,
            waited_ns: 0,
            sent: Sent::default(),
        }
    }

    fn draw(&self, random: &mut Random) -> Sent {
        in_frames(self.sizes.0 + random.below(self.sizes.1 - self.sizes.0 + 1), self.bytes_each)
    }
}

/// A segment's frames on the wire, each with 38 bytes beside its payload (preamble, header, checksum and gap).
fn on_the_wire(bytes: u64) -> Sent {
    in_frames(bytes, 1500)
}

fn in_frames(bytes: u64, each: u64) -> Sent {
    let frames = bytes.div_ceil(each);
    Sent { frames, bytes: bytes + frames * 38 }
}

/// A shaped interface, and the longest segments of its ports.
#[derive(Clone, Copy)]
struct Interface {
    rate: u64,
    most: u64,
}

const FAST: Interface = Interface { rate: RATE, most: MOST };
/// 100 Mb/s, with segments of 2 ms.
const SLOW: Interface = Interface { rate: 12_500_000, most: 25_000 };
/// 1 Mb/s, with segments of two frames.
const SLOWEST: Interface = Interface { rate: 125_000, most: 3000 };

impl Interface {
    fn scheduler(self, turns: Turns) -> Scheduler {
        let mut scheduler = Scheduler::new(turns, WAKE_NS, self.most);
        scheduler.shape(0, Some(self.rate), self.most);
        scheduler
    }

    /// What it saves up at most, as long as the driver is no later than it said.
    fn burst(self) -> u64 {
        self.rate * WAKE_NS / S + self.most
    }

    /// What it may owe before no frame goes ahead: a segment of the most bytes, and four frames.
    fn debt(self) -> u64 {
        2 * self.most + 4 * 1538
    }

    /// How long the uplink takes to send this many bytes.
    fn ns_of(self, bytes: u64) -> u64 {
        bytes * S / self.rate
    }
}

/// Lets ports send for `for_ns`. Returns the time at the end.
fn run(
    interface: Interface,
    random: &mut Random,
    scheduler: &mut Scheduler,
    ports: &mut [Port],
    for_ns: u64,
) -> u64 {
    for (id, port) in (0..).zip(&*ports) {
        scheduler.set(0, PortId(id), port.share);
    }
    go_on(interface, random, scheduler, ports, 0, for_ns)
}

/// Lets ports send until a time, and returns that at the end. The simulated driver oversleeps at random, unless a port has a frame
/// meanwhile. The interface never sends more than its rate allows, what it saves up, what it may owe for frames that go ahead, and one
/// segment.
fn go_on(
    interface: Interface,
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
        let besides = interface.burst() + interface.debt() + 2 * interface.most;
        let allowed = interface.rate as f64 * now_ns as f64 / S as f64 + besides as f64;
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
                port.sent =
                    Sent { frames: port.sent.frames + sent.frames, bytes: port.sent.bytes + sent.bytes };
                port.of_group += 1;
                if port.of_group == port.group {
                    (port.of_group, port.ready_ns) = (0, port.ready_ns + port.every_ns);
                }
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
        scheduler.shape(0, Some(RATE), MOST);
        let end_ns = run(FAST, &mut random, &mut scheduler, &mut ports, S / 2);
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
        scheduler.shape(0, Some(RATE), MOST);
        run(FAST, &mut random, &mut scheduler, &mut ports, S / 2);
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
        scheduler.shape(0, Some(RATE), MOST);
        let end_ns = run(FAST, &mut random, &mut scheduler, &mut ports, S / 2);
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
        scheduler.shape(0, Some(RATE), MOST);
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
    scheduler.shape(0, Some(RATE), MOST);
    run(FAST, &mut random, &mut scheduler, &mut ports, S);
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
        scheduler.shape(0, Some(RATE), MOST);
        let end_ns = run(FAST, &mut random, &mut scheduler, &mut ports, S / 2);
        // A step takes 200 ns; others of the quiet ones may come at the same time. A segment takes 270 µs.
        let waited_ns = ports[2 * count..].iter().map(|port| port.waited_ns).max().unwrap();
        assert!(waited_ns < 10_000, "{waited_ns} ns among {count}");
        let greedy = ports[..2 * count].iter().map(|port| port.sent.bytes as f64);
        assert!(jain(greedy.clone()) > 0.999, "{:?}", greedy.collect::<Vec<_>>());
        let used = total(&ports) as f64 / (RATE as f64 * end_ns as f64 / S as f64);
        assert!((0.98..1.01).contains(&used), "{used}");
    });
}

/// A thousand ports that all ask at once do not have the interface owe more than its limit, at any rate.
#[test]
fn what_goes_ahead_is_bounded() {
    let frame = on_the_wire(1500);
    for interface in [SLOWEST, SLOW, FAST] {
        let mut scheduler = interface.scheduler(Turns::Bytes);
        for id in (0..1000).map(PortId) {
            scheduler.set(0, id, Share::default());
        }
        // They have been there for a long time, but for the last one, which has just come: no frame of it goes ahead.
        let now_ns = 100 * S;
        scheduler.set(now_ns, PortId(1000), Share::default());
        for id in (0..=1000).rev().map(PortId) {
            scheduler.frame_waits(now_ns, id, frame.bytes);
        }
        let mut bytes = 0;
        let at_ns = loop {
            match scheduler.next(now_ns) {
                Next::Read(id) => {
                    assert_ne!(id, PortId(1000));
                    scheduler.charge(now_ns, id, frame);
                    scheduler.was_empty(id);
                }
                Next::Wait(at_ns) => break at_ns,
                Next::Idle => panic!("ports have frames"),
            }
            bytes += frame.bytes;
        };
        let most = interface.burst() + interface.debt();
        assert!((most..=most + frame.bytes).contains(&bytes), "{bytes} of {most} at {}", interface.rate);
        // As soon as it owes less, the next one goes.
        let soon_ns = now_ns + interface.ns_of(frame.bytes) + 2;
        assert!((now_ns..=soon_ns).contains(&at_ns), "{at_ns}");
        assert_eq!(scheduler.next(at_ns - 1), Next::Wait(at_ns));
        assert!(matches!(scheduler.next(at_ns), Next::Read(_)));
    }
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
    scheduler.shape(0, Some(RATE), MOST);
    let now_ns = run(FAST, &mut random, &mut scheduler, &mut ports, 5 * S);
    (ports[1].every_ns, ports[1].ready_ns) = (0, now_ns);
    let before = [ports[0].sent.bytes, ports[1].sent.bytes];
    go_on(FAST, &mut random, &mut scheduler, &mut ports, now_ns, now_ns + S / 20);
    let [first, second] = [0, 1].map(|port| ports[port].sent.bytes - before[port]);
    // It may owe what one segment has on the wire at most.
    assert!(first.abs_diff(second) <= 2 * MOST + FAST.most, "{first} and {second}");
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
    scheduler.shape(0, Some(RATE), MOST);
    let end_ns = run(FAST, &mut random, &mut scheduler, &mut ports, S);
    let rate = |port: &Port| port.sent.bytes as f64 * S as f64 / end_ns as f64;
    assert!(rate(&ports[0]) > 0.98 * RATE as f64 / 2.0, "{}", rate(&ports[0]));
    // A segment of the other guarantee, and what the interface owes.
    let longest_ns = FAST.ns_of(FAST.debt() + 2 * MOST) + WAKE_NS;
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

/// A port with a frame of that length now and then, which is read before its turn.
fn now_and_then(share: Share, bytes: u64, every_ns: u64) -> Port {
    Port { is_read_before: true, every_ns, ready_ns: every_ns, ..Port::greedy(share, (bytes, bytes)) }
}

fn always(share: Share, bytes: u64) -> Port {
    Port { is_read_before: true, ..Port::greedy(share, (bytes, bytes)) }
}

fn weight(weight: u32) -> Share {
    Share { weight, ..Share::default() }
}

fn guaranteed(bytes: u64) -> Share {
    Share { guaranteed: bytes, ..Share::default() }
}

/// What a port was given, of what all were given.
fn part_of(ports: &[Port], index: usize) -> f64 {
    ports[index].sent.bytes as f64 / total(ports) as f64
}

/// Time pays for what goes ahead, and for nothing else: who sends segments at a pace, of whatever length, has no more of the interface than a port
/// that always has some.
#[test]
fn pauses_give_nobody_more_than_its_turns() {
    for interface in [SLOWEST, SLOW, FAST] {
        for (greedy, asked) in [(1, 0.55), (1, 0.6), (1, 0.75), (3, 0.3), (7, 0.15)] {
            // As long as the port is told to send, and as long as is not cut.
            for bytes in [interface.most, interface.most * 19 / 10] {
                let every_ns = (interface.ns_of(on_the_wire(bytes).bytes) as f64 / asked) as u64;
                let mut ports = vec![now_and_then(weight(1), bytes, every_ns)];
                ports.extend((0..greedy).map(|_| always(weight(1), interface.most)));
                let mut scheduler = interface.scheduler(Turns::Bytes);
                run(interface, &mut Random::new(1), &mut scheduler, &mut ports, interface.ns_of(500 * bytes));
                let fair = 1.0 / ports.len() as f64;
                let part = part_of(&ports, 0) / fair;
                assert!(
                    (0.95..1.03).contains(&part),
                    "{part} of its part beside {greedy}, asking for {asked} in {bytes} at {}",
                    interface.rate
                );
            }
        }
    }
}

/// At any rate, and whatever the weights of the others: who asks little waits for no segment.
#[test]
fn who_asks_little_waits_for_no_segment_of_heavy_ports() {
    for interface in [SLOWEST, SLOW, FAST] {
        for heavy in [1, 20, 100, 1000] {
            let every_ns = interface.ns_of(200_000);
            let greedy = |weight: Share| always(weight, interface.most);
            let mut ports = vec![
                greedy(weight(heavy)),
                greedy(weight(heavy)),
                now_and_then(weight(heavy), 100, every_ns),
            ];
            let mut scheduler = interface.scheduler(Turns::Bytes);
            run(interface, &mut Random::new(1), &mut scheduler, &mut ports, 300 * every_ns);
            let waited_ns = ports[2].waited_ns;
            assert!(waited_ns < 10_000, "{waited_ns} ns at {} among weights of {heavy}", interface.rate);
            assert!(ports[2].sent.frames > 290);
        }
    }
}

/// Where the guarantees together are the whole rate, a port that does not use up its guarantee waits for no other port.
#[test]
fn who_does_not_use_its_guarantee_waits_for_no_segment() {
    for (of_greedy, of_quiet) in [(20, 20), (20, 5), (24, 4)] {
        let share = |percent: u64| guaranteed(SLOW.rate * percent / 100);
        let mut ports = vec![always(share(of_greedy), SLOW.most); 4];
        ports.insert(2, now_and_then(share(of_quiet), 100, S / 100));
        let mut scheduler = SLOW.scheduler(Turns::Bytes);
        run(SLOW, &mut Random::new(1), &mut scheduler, &mut ports, 3 * S);
        let waited_ns = ports[2].waited_ns;
        assert!(waited_ns < 10_000, "{waited_ns} ns with {of_quiet} % beside {of_greedy} %");
    }
}

/// What goes ahead takes nothing from a large guarantee.
#[test]
fn a_large_guarantee_is_had_beside_all_that_goes_ahead() {
    for percent in [50, 80, 90, 95] {
        let mut ports = vec![always(guaranteed(RATE * percent / 100), MOST), always(weight(1), MOST)];
        // Two frames each, all at the same time: nine tenths of what is left.
        let every_ns = FAST.ns_of(300 * 1538 * 2) * 1000 / (9 * (100 - percent));
        for _ in 0..2 {
            ports.extend([now_and_then(weight(1), 1500, every_ns); 300]);
        }
        let mut scheduler = FAST.scheduler(Turns::Bytes);
        let end_ns = run(FAST, &mut Random::new(1), &mut scheduler, &mut ports, 2 * S);
        let had = ports[0].sent.bytes as f64 / (RATE as f64 * end_ns as f64 / S as f64);
        assert!(had > 0.999 * percent as f64 / 100.0, "{had} of {percent} %");
    }
}

/// A weight that is lowered counts at once.
#[test]
fn what_a_greater_weight_had_left_is_gone() {
    let mut random = Random::new(1);
    let mut ports = [always(weight(1000), SLOW.most), always(weight(1), SLOW.most)];
    let mut scheduler = SLOW.scheduler(Turns::Bytes);
    // In the middle of the turn of the first.
    let now_ns = run(SLOW, &mut random, &mut scheduler, &mut ports, 2 * S + S / 50);
    ports[0].share = weight(1);
    scheduler.set(now_ns, PortId(0), ports[0].share);
    let before = [ports[0].sent.bytes, ports[1].sent.bytes];
    go_on(SLOW, &mut random, &mut scheduler, &mut ports, now_ns, now_ns + S / 5);
    let [first, second] = [0, 1].map(|port| ports[port].sent.bytes - before[port]);
    assert!(first.abs_diff(second) <= 3 * SLOW.most, "{first} and {second}");
}

/// Who detaches and attaches again and again has no more than who stays, whether its segments are long on the wire or of many frames.
#[test]
fn to_come_again_gives_nothing() {
    // Segments of ordinary frames, and of the most that are not cut.
    for (turns, bytes_each) in [(Turns::Bytes, 1500), (Turns::Bytes, 42), (Turns::Frames, 46)] {
        let mut random = Random::new(1);
        let mut ports = vec![always(weight(1), SLOW.most); 20];
        let bytes = 2 * SLOW.most * bytes_each / (bytes_each + 38);
        ports[0].sizes = (bytes, bytes);
        let mut scheduler = SLOW.scheduler(turns);
        let mut now_ns = run(SLOW, &mut random, &mut scheduler, &mut ports, S / 100);
        let units = |sent: Sent| if turns == Turns::Bytes { sent.bytes } else { sent.frames };
        let (mut segments, mut had) = (0, 0);
        while now_ns < 20 * S {
            ports[0].bytes_each = bytes_each;
            now_ns = go_on(SLOW, &mut random, &mut scheduler, &mut ports, now_ns, now_ns + S / 1000);
            if ports[0].sent.frames > 0 {
                (segments, had) = (segments + 1, had + units(ports[0].sent));
                scheduler.remove(PortId(0));
                ports[0].sent = Sent::default();
                ports[0].waiting = None;
                now_ns += S / 50;
                scheduler.set(now_ns, PortId(0), ports[0].share);
            }
        }
        assert!(segments > 5, "{segments}");
        let others = ports[1..].iter().map(|port| units(port.sent)).min().unwrap();
        let first = units(in_frames(bytes, bytes_each));
        let most = 1.02 * others as f64 + first as f64;
        assert!(had as f64 <= most, "{had} and {others}, {turns:?} and {bytes_each} bytes a frame");
    }
}

/// The state of a cap and of a guarantee is not new, either, for who comes again.
#[test]
fn a_cap_holds_for_who_comes_again() {
    let mut scheduler = FAST.scheduler(Turns::Bytes);
    let share = Share { most: Some(RATE / 100), ..Share::default() };
    let frame = on_the_wire(1500);
    let (mut now_ns, mut bytes) = (0, 0);
    while now_ns < S {
        scheduler.set(now_ns, PortId(0), share);
        scheduler.has_frames(PortId(0));
        while scheduler.next(now_ns) == Next::Read(PortId(0)) {
            scheduler.charge(now_ns, PortId(0), frame);
            bytes += frame.bytes;
        }
        scheduler.remove(PortId(0));
        now_ns += S / 100;
    }
    assert!(bytes <= RATE / 100 + 2 * MOST, "{bytes}");
}

/// With turns by frames no frame goes ahead, and neither does one of a port that has reached its cap.
#[test]
fn what_must_not_go_ahead_waits() {
    let shares = [guaranteed(SLOW.rate / 4), Share { most: Some(1000), ..Share::default() }];
    for (turns, goes) in [(Turns::Frames, [false, false]), (Turns::Bytes, [true, false])] {
        for (share, goes) in shares.into_iter().zip(goes) {
            let mut scheduler = SLOW.scheduler(turns);
            scheduler.set(0, PortId(0), Share::default());
            scheduler.set(0, PortId(1), share);
            let now_ns = 10 * S;
            // The interface owes something, and the port has used up its cap.
            scheduler.charge(now_ns, PortId(0), on_the_wire(SLOW.burst() + 1000));
            scheduler.charge_cap(now_ns, PortId(1), on_the_wire(2 * MOST));
            scheduler.frame_waits(now_ns, PortId(1), 138);
            let next = scheduler.next(now_ns);
            assert_eq!(next == Next::Read(PortId(1)), goes, "{turns:?} {share:?} {next:?}");
        }
    }
}

/// A guarantee that was used up a while ago is there again for the next frame, which waits for nothing.
#[test]
fn a_guarantee_comes_again_while_its_port_has_nothing() {
    let mut scheduler = SLOW.scheduler(Turns::Bytes);
    scheduler.set(0, PortId(0), guaranteed(SLOW.rate));
    scheduler.set(0, PortId(1), Share::default());
    scheduler.charge(0, PortId(0), on_the_wire(3 * SLOW.burst()));
    scheduler.charge(S, PortId(1), on_the_wire(2 * SLOW.burst()));
    scheduler.frame_waits(S, PortId(0), 138);
    assert_eq!(scheduler.next(S), Next::Read(PortId(0)));
}

/// A port that has had the whole uplink while no other port sent, and then sends little, does not wait for the segments of others.
#[test]
fn who_had_much_and_asks_little_now_waits_for_no_segment() {
    let mut random = Random::new(1);
    let mut ports = [always(weight(1), SLOW.most), now_and_then(weight(1), SLOW.most, 1 << 62)];
    let mut scheduler = SLOW.scheduler(Turns::Bytes);
    let now_ns = run(SLOW, &mut random, &mut scheduler, &mut ports, 5 * S);
    // The other one asks for all that it can get, and this one for a frame now and then, soon.
    ports[1] = Port { sent: ports[1].sent, ..always(weight(1), SLOW.most) };
    let ready_ns = now_ns + S / 20;
    ports[0] = Port { sent: ports[0].sent, ready_ns, ..now_and_then(weight(1), 100, S / 100) };
    go_on(SLOW, &mut random, &mut scheduler, &mut ports, now_ns, now_ns + S);
    assert!(ports[0].waited_ns < 10_000, "{} ns", ports[0].waited_ns);
}

/// What an interface saves up falls with its rate: the longest segments are shorter then.
#[test]
fn a_slower_interface_saves_up_less() {
    let mut scheduler = FAST.scheduler(Turns::Bytes);
    scheduler.set(0, PortId(0), Share::default());
    scheduler.shape(0, Some(SLOWEST.rate), SLOWEST.most);
    let frame = on_the_wire(1500);
    let mut bytes = 0;
    scheduler.has_frames(PortId(0));
    while scheduler.next(10 * S) == Next::Read(PortId(0)) {
        scheduler.charge(10 * S, PortId(0), frame);
        bytes += frame.bytes;
    }
    assert!(bytes <= SLOWEST.burst() + frame.bytes, "{bytes}");
}

/// Ports that ask for less than their parts, all at the same time, owe little however long that goes on: each has its share at once when it
/// asks for more.
#[test]
fn to_wait_ahead_leaves_no_debt() {
    let mut random = Random::new(1);
    const PORTS: usize = 100;
    let mut ports = vec![always(weight(1), SLOW.most)];
    // Two frames each, seven tenths of their parts.
    let every_ns = 35_000_000;
    ports.extend([now_and_then(weight(1), 3000, every_ns); PORTS - 1]);
    let mut scheduler = SLOW.scheduler(Turns::Bytes);
    let now_ns = run(SLOW, &mut random, &mut scheduler, &mut ports, 30 * S);
    let last = PORTS - 1;
    (ports[last].every_ns, ports[last].ready_ns, ports[last].sizes) = (0, now_ns, (SLOW.most, SLOW.most));
    let before = [ports[0].sent.bytes, ports[last].sent.bytes];
    go_on(SLOW, &mut random, &mut scheduler, &mut ports, now_ns, now_ns + S);
    let [greedy, new] = [ports[0].sent.bytes - before[0], ports[last].sent.bytes - before[1]];
    assert!(greedy.abs_diff(new) <= 4 * SLOW.most, "{greedy} and {new}");
}

/// What a port has sent at a fast interface keeps it waiting no longer at a slow one than a segment of that does.
#[test]
fn a_slower_interface_remembers_less() {
    let mut scheduler = FAST.scheduler(Turns::Bytes);
    for id in 0..2 {
        scheduler.set(0, PortId(id), Share::default());
    }
    scheduler.charge(0, PortId(0), on_the_wire(1_000_000));
    scheduler.shape(0, Some(SLOWEST.rate), SLOWEST.most);
    let now_ns = S / 10;
    scheduler.charge(now_ns, PortId(1), on_the_wire(SLOWEST.burst() + 9000));
    scheduler.frame_waits(now_ns, PortId(0), 138);
    assert_eq!(scheduler.next(now_ns + S / 20), Next::Read(PortId(0)));
}

/// Who comes under the number of one that owed much pays one segment of that, of the most bytes or of the most frames; nothing after ten seconds.
/// How long the port was there before does not count.
#[test]
fn an_heir_owes_one_segment() {
    let cases =
        [(Turns::Bytes, 9, 131_072), (Turns::Frames, 9, 1560), (Turns::Bytes, 11, 0), (Turns::Frames, 11, 0)];
    for (turns, away_s, right) in cases {
        let mut scheduler = Scheduler::new(turns, 0, MOST);
        for id in 0..2 {
            scheduler.set(0, PortId(id), Share::default());
            scheduler.has_frames(PortId(id));
        }
        let gone_ns = 100 * S;
        scheduler.charge(gone_ns, PortId(0), on_the_wire(100_000_000));
        assert_eq!(scheduler.next(gone_ns), Next::Read(PortId(1)));
        scheduler.remove(PortId(0));
        let now_ns = gone_ns + away_s * S;
        scheduler.set(now_ns, PortId(0), Share::default());
        scheduler.has_frames(PortId(0));
        let (mut paid, each) = (0, if turns == Turns::Bytes { 1538 } else { 1 });
        while scheduler.next(now_ns) != Next::Read(PortId(0)) {
            scheduler.charge(now_ns, PortId(1), on_the_wire(1500));
            paid += each;
        }
        assert!(paid + each >= right && paid <= right + 3 * each, "{paid} of {right}, {turns:?}");
    }
}

/// A port that sends less than its part, a few frames at a time, does not wait for its turn behind the segments of others: what it sends
/// goes as its allowance grows.
#[test]
fn a_few_frames_at_a_time_go_as_their_port_may() {
    for greedy in [4, 19, 99] {
        // Three full frames each time, four tenths of its part.
        let every_ns = SLOW.ns_of(3 * 1538 * (greedy + 1)) * 10 / 4;
        let mut ports = vec![always(weight(1), SLOW.most); greedy as usize];
        ports.push(Port { group: 3, ..now_and_then(weight(1), 1500, every_ns) });
        let mut scheduler = SLOW.scheduler(Turns::Bytes);
        run(SLOW, &mut Random::new(1), &mut scheduler, &mut ports, 100 * every_ns);
        // The allowance is two of them.
        let longest_ns = every_ns * 4 / 10 / 3 + 100_000;
        let port = &ports[greedy as usize];
        assert!(port.waited_ns < longest_ns, "{} of {longest_ns} ns behind {greedy}", port.waited_ns);
        assert!(port.sent.frames >= 290, "{}", port.sent.frames);
        let right = 1.0 / greedy as f64;
        let least = ports[..greedy as usize].iter().map(|port| port.sent.bytes).min().unwrap() as f64;
        let of_greedy: u64 = ports[..greedy as usize].iter().map(|port| port.sent.bytes).sum();
        assert!(least / of_greedy as f64 > 0.97 * right, "{least} of {of_greedy}");
    }
}

/// A guarantee that is used up serves the next frame as soon as it is back, also while the interface owes something.
#[test]
fn a_guarantee_is_used_as_soon_as_it_is_back() {
    let mut scheduler = SLOW.scheduler(Turns::Bytes);
    // All of the rate is guaranteed, so no part is left for anybody.
    let of_first = SLOW.rate / 10;
    scheduler.set(0, PortId(0), guaranteed(of_first));
    scheduler.set(0, PortId(1), guaranteed(SLOW.rate - of_first));
    // It owes 1 ms of its guarantee; the interface owes for 4 ms.
    let (now_ns, saved) = (S, of_first * WAKE_NS / S + SLOW.most + SLOW.debt());
    scheduler.charge(now_ns, PortId(0), Sent { frames: 54, bytes: saved + of_first / 1000 });
    scheduler.frame_waits(now_ns, PortId(0), 138);
    let Next::Wait(at_ns) = scheduler.next(now_ns) else { panic!("its guarantee is used up") };
    assert!((at_ns - now_ns).abs_diff(S / 1000) < 10_000, "{at_ns}");
    assert_eq!(scheduler.next(at_ns), Next::Read(PortId(0)));
}

/// A port that leaves the round now and then, since it may not be read for a moment, comes back in its turn and not ahead of others.
#[test]
fn to_leave_the_round_gives_nothing() {
    let mut random = Random::new(1);
    let mut scheduler = Scheduler::new(Turns::Bytes, 0, MOST);
    for id in 0..3 {
        scheduler.set(0, PortId(id), Share::default());
        scheduler.has_frames(PortId(id));
    }
    let mut frames = [0u32; 3];
    for _ in 0..30_000 {
        let Next::Read(id) = scheduler.next(0) else { panic!("all have frames") };
        frames[usize::from(id.0)] += 1;
        scheduler.charge(0, id, on_the_wire(700));
        if random.one_in(4) {
            scheduler.pause(PortId(0));
            scheduler.has_frames(PortId(0));
        }
    }
    assert!((3_000..=10_200).contains(&frames[0]), "{frames:?}");
}
