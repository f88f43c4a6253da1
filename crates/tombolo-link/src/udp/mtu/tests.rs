//! The size of datagrams over a path in virtual time, which loses, shrinks, grows and lies.

use std::collections::BTreeMap;

use super::*;

const WITNESS_BYTES: usize = 48;
const USEFUL_BYTES: usize = 16_810;
const AGAIN: Duration = Duration::from_secs(300);
const DELAY: Duration = Duration::from_millis(3);

/// A path, and the end of a link that looks into it.
struct Bench {
    mtu: PathMtu,
    now: Instant,
    start: Instant,
    /// The largest datagram that passes.
    passes: usize,
    /// What the interface takes.
    interface: usize,
    /// What the kernel thinks of the route.
    route: usize,
    loss_per_mille: u32,
    /// Whether anything passes at all.
    dead: bool,
    random: crate::testing::Random,
    /// Answers on their way.
    answers: BTreeMap<(Instant, u64), (u32, usize, usize)>,
    answered: u64,
    /// The largest datagram that the peer has received since its last answer.
    received: usize,
    /// Datagrams on the wire, without witnesses.
    probes: usize,
    /// A datagram of the present size goes every millisecond.
    traffic: bool,
    /// No datagram is larger, whatever the size allows.
    largest: usize,
}

impl Bench {
    fn new(interface: usize, passes: usize) -> Self {
        let start = Instant::now();
        let path = Path {
            route_bytes: interface,
            useful_bytes: USEFUL_BYTES,
            headers_bytes: 28,
            local: false,
            probe_again: AGAIN,
        };
        Self {
            mtu: PathMtu::new(path, start),
            now: start,
            start,
            passes,
            interface,
            route: interface,
            loss_per_mille: 0,
            dead: false,
            random: crate::testing::Random::new(1),
            answers: BTreeMap::new(),
            answered: 0,
            received: 0,
            probes: 0,
            traffic: false,
            largest: usize::MAX,
        }
    }

    /// A datagram goes. Whether it arrives.
    fn carry(&mut self, bytes: usize) -> bool {
        let arrives = bytes <= self.passes && !self.random.per_mille(self.loss_per_mille) && !self.dead;
        if arrives {
            self.received = self.received.max(bytes);
        }
        arrives
    }

    fn ask(&mut self, id: u32, bytes: usize) {
        if self.carry(bytes) {
            let largest = std::mem::take(&mut self.received);
            if !self.random.per_mille(self.loss_per_mille) {
                self.answered += 1;
                self.answers.insert((self.now + 2 * DELAY, self.answered), (id, bytes, largest));
            }
        }
    }

    fn poll(&mut self) {
        for _ in 0..100 {
            let route = self.route.min(self.interface);
            let Some(probe) = self.mtu.poll(self.now, &|| Some(route)) else { return };
            if probe.bytes > self.interface {
                self.mtu.refused(probe.bytes);
                continue;
            }
            self.probes += 1;
            self.ask(probe.id, probe.bytes);
            self.ask(probe.id, WITNESS_BYTES);
            return;
        }
        panic!("probes without end");
    }

    /// Lets time pass.
    fn run(&mut self, duration: Duration) {
        let end = self.now + duration;
        self.poll();
        while self.now < end {
            let answer = self.answers.first_key_value().map(|((at, _), _)| *at);
            let traffic = self.traffic.then(|| self.now + Duration::from_millis(1));
            let deadline = self.mtu.deadline(self.now).max(self.now + Duration::from_micros(100));
            let next = [answer, traffic].into_iter().flatten().fold(deadline, Instant::min);
            self.now = next.max(self.now).min(end);
            while let Some(first) = self.answers.first_entry().filter(|first| first.key().0 <= self.now) {
                let (id, bytes, largest) = first.remove();
                let _ = self.mtu.arrived(id, bytes, largest, self.now);
            }
            if self.traffic {
                let present = self.mtu.present().min(self.largest);
                if present > self.interface {
                    self.mtu.refused(present);
                } else {
                    self.carry(present);
                    self.mtu.sent(present);
                }
            }
            self.poll();
            let present = self.mtu.present();
            assert!((MIN_BYTES..=USEFUL_BYTES).contains(&present), "{present}");
        }
    }

    /// How long until the size is this.
    fn until(&mut self, bytes: usize, patience: Duration) -> Duration {
        let since = self.now;
        while self.mtu.present() != bytes {
            let so_far = self.now - self.start;
            assert!(self.now - since < patience, "{} bytes after {so_far:?}", self.mtu.present());
            self.run(Duration::from_millis(1));
        }
        self.now - since
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_size_of_the_interface_is_used_once_one_probe_has_passed() {
    let mut bench = Bench::new(1472, 1472);
    assert_eq!(bench.mtu.present(), BASE_BYTES);
    assert!(bench.until(1472, secs(1)) <= 2 * DELAY + Duration::from_millis(1));
    // What is larger the kernel refuses: nothing goes for it, nor while nobody uses the link.
    bench.run(secs(3600));
    assert_eq!((bench.mtu.present(), bench.probes), (1472, 1));
}

#[test]
fn without_a_network_between_the_size_is_there_at_once() {
    let path = Path {
        route_bytes: 65_507,
        useful_bytes: USEFUL_BYTES,
        headers_bytes: 28,
        local: true,
        probe_again: AGAIN,
    };
    let start = Instant::now();
    let mut mtu = PathMtu::new(path, start);
    assert_eq!(mtu.present(), USEFUL_BYTES);
    assert_eq!(mtu.poll(start, &|| None), None);
    assert_eq!(mtu.deadline(start), start + AGAIN);
    // The interface shrinks.
    mtu.refused(USEFUL_BYTES);
    assert_eq!(mtu.present(), BASE_BYTES);
    assert_eq!(mtu.poll(start, &|| Some(1472)), Some(Probe { id: 0, bytes: 1472 }));
}

#[test]
fn every_path_is_found_with_few_probes() {
    for interface in [1472, 8972, 65_507] {
        for passes in 528..=interface.min(USEFUL_BYTES) {
            if passes % 61 != 0 && ![1200, 1272, 1472].contains(&passes) {
                continue;
            }
            let mut bench = Bench::new(interface, passes);
            bench.traffic = true;
            bench.run(secs(5));
            let present = bench.mtu.present();
            // The largest that is tried below what passes.
            let tried =
                COMMON_MTUS.map(|mtu| mtu - 28).into_iter().chain([528, 1200, interface, USEFUL_BYTES]);
            let best = tried.filter(|size| *size <= passes).max();
            assert_eq!(Some(present), best, "{passes} of {interface}");
            // After a fall it looks more often at first.
            bench.traffic = false;
            bench.run(4 * AGAIN);
            let probes = bench.probes;
            bench.run(AGAIN);
            assert!(bench.probes - probes <= 7 * LOST_PROBES as usize, "{}", bench.probes - probes);
        }
    }
}

#[test]
fn lost_datagrams_do_not_keep_the_size_from_being_found() {
    for seed in 0..200 {
        let mut bench = Bench::new(8972, 1472);
        bench.random = crate::testing::Random::new(seed);
        // One way; a probe's way and its answer's both count.
        bench.loss_per_mille = 50 + 5 * (seed as u32 % 20);
        bench.traffic = true;
        bench.until(1472, secs(700));
        // While it is used it may be taken for lost, and is found again.
        bench.run(secs(60));
        bench.loss_per_mille = 0;
        bench.until(1472, AGAIN + secs(10));
    }
}

#[test]
fn a_hole_is_noticed_while_datagrams_fall_into_it_and_the_size_comes_back() {
    let mut bench = Bench::new(1472, 1472);
    bench.until(1472, secs(1));
    bench.traffic = true;
    bench.run(secs(10));
    bench.passes = 1272;
    bench.until(BASE_BYTES, secs(1));
    bench.until(1272, secs(1));
    // Even less, and what all hosts take is left.
    bench.passes = 600;
    bench.until(FLOOR_BYTES, secs(2));
    bench.run(secs(10));
    assert_eq!(bench.mtu.present(), FLOOR_BYTES);
    // The route is whole again.
    bench.passes = 1472;
    bench.until(1472, AGAIN + secs(1));
    // Datagrams need not be as large as they may be to be lost.
    bench.largest = 1130;
    bench.passes = 1072;
    bench.until(FLOOR_BYTES, secs(2));
}

#[test]
fn what_the_kernel_hears_of_the_route_is_tried_first() {
    let mut bench = Bench::new(8972, 8972);
    bench.until(8972, secs(1));
    bench.traffic = true;
    (bench.passes, bench.route) = (3333, 3333);
    bench.mtu.hinted();
    bench.until(3333, secs(1));
    // A lie costs probes alone.
    let mut bench = Bench::new(1472, 1472);
    bench.route = 552;
    bench.until(1472, secs(1));
    let probes = bench.probes;
    for _ in 0..10_000 {
        bench.mtu.hinted();
        bench.run(Duration::from_micros(100));
    }
    assert_eq!(bench.mtu.present(), 1472);
    assert!(bench.probes - probes <= 5, "{}", bench.probes - probes);
}

#[test]
fn an_interface_that_shrinks_and_grows_is_followed() {
    let mut bench = Bench::new(8972, 8972);
    bench.until(8972, secs(1));
    bench.traffic = true;
    bench.run(secs(1));
    for (interface, size) in [(1472, 1472), (1000, 1000), (400, 400), (8972, 8972), (1472, 1472)] {
        (bench.interface, bench.passes, bench.route) = (interface, interface, interface);
        bench.until(size, AGAIN + secs(1));
    }
}

#[test]
fn a_silent_peer_and_a_slow_network_say_nothing_about_the_size() {
    let mut bench = Bench::new(1472, 1472);
    bench.until(1472, secs(1));
    bench.traffic = true;
    bench.dead = true;
    let probes = bench.probes;
    bench.run(secs(30));
    assert_eq!(bench.mtu.present(), 1472);
    assert!(bench.probes - probes <= 35);
    bench.dead = false;
    bench.run(secs(10));
    assert_eq!(bench.mtu.present(), 1472);
    assert!(bench.mtu.search.is_none());
}

#[test]
fn an_idle_link_is_idle() {
    for passes in [1472, 1400] {
        let mut bench = Bench::new(1472, passes);
        bench.run(secs(3));
        let probes = bench.probes;
        bench.run(AGAIN - secs(10));
        assert_eq!(bench.probes, probes);
        bench.run(AGAIN);
        assert!(bench.probes - probes <= 5 * LOST_PROBES as usize);
    }
}

#[test]
fn answers_to_what_was_not_asked_change_nothing() {
    let start = Instant::now();
    let route = || Some(1472);
    let mut mtu = Bench::new(1472, 1472).mtu;
    for id in 0..100 {
        assert!(!mtu.arrived(id, 1472, 0, start));
    }
    let probe = mtu.poll(start, &route).unwrap();
    for (id, bytes) in [
        (probe.id.wrapping_sub(1), 1472),
        (probe.id + 1, 1472),
        (u32::MAX, 1472),
        (probe.id, 1473),
        (probe.id, 1471),
        (probe.id, usize::MAX),
        (probe.id, MIN_BYTES),
    ] {
        assert!(!mtu.arrived(id, bytes, 0, start), "{id} {bytes}");
        assert_eq!(mtu.present(), BASE_BYTES);
    }
    // A witness counts once, however often it is heard.
    let mut now = start;
    assert!(mtu.arrived(probe.id, WITNESS_BYTES, WITNESS_BYTES, now));
    for _ in 0..100 {
        assert!(!mtu.arrived(probe.id, WITNESS_BYTES, WITNESS_BYTES, now));
    }
    now += MTU_PROBE_LATENESS;
    let again = mtu.poll(now, &route).unwrap();
    assert_eq!(again.bytes, 1472);
    assert!(!mtu.arrived(probe.id, WITNESS_BYTES, WITNESS_BYTES, now));
    // The earlier one was only late.
    assert!(mtu.arrived(probe.id, 1472, 0, now));
    assert_eq!(mtu.present(), 1472);
    assert!(!mtu.arrived(again.id, 1472, 2000, now));
}

proptest::proptest! {
    #[test]
    fn nothing_that_is_said_makes_it_leave_its_bounds(
        events in proptest::collection::vec((0..6_u8, 0..8_u32, 0..20_000_usize), 0..300),
    ) {
        let mut mtu = Bench::new(8972, 8972).mtu;
        let mut now = Instant::now();
        for (what, id, bytes) in events {
            match what {
                0 => { let _ = mtu.arrived(id, bytes, bytes / 2, now); }
                1 => mtu.refused(bytes),
                2 => mtu.sent(bytes),
                3 => mtu.hinted(),
                4 => now = now.max(mtu.deadline(now)),
                _ => { let _ = mtu.arrived(id, WITNESS_BYTES, bytes, now); }
            }
            let _ = mtu.poll(now, &|| (id % 2 == 0).then_some(bytes));
            proptest::prop_assert!((MIN_BYTES..=USEFUL_BYTES).contains(&mtu.present()));
            proptest::prop_assert!(mtu.floor >= MIN_BYTES);
            // There is always something to wait for.
            proptest::prop_assert!(mtu.deadline(now) > now || mtu.probing.is_some() || mtu.used > 0);
        }
    }
}
