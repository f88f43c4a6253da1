//! The size of packets follows the route, over real routers: bytes arrive and are right while the route
//! carries less than the ends think, less than it did, and more again.
//!
//! Needs root and `ip`: says so where it may not, which with `TOMBOLO_REQUIRE_ALL=1` is a failure.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, work};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tombolo_link::udp::{DEFAULT_OUTAGE, MAX_PACKET_BYTES, Settings, UdpLink, UdpListener};
use tombolo_link::{Link, Listener};
use tombolo_node::identity::{AllowList, KeyPair};
use tombolo_node::{Address, FarStore, Node, Security, serve};

const FAR_BYTES: u64 = 8 << 20;
const SETTINGS: Settings = Settings { probe_again: Duration::from_secs(1), outage: DEFAULT_OUTAGE };
/// What IP, UDP and the link put around a packet that is alone in a datagram, and in a sealed one.
const AROUND_BYTES: usize = 20 + 8 + 16 + 2;
const SEALED_BYTES: usize = AROUND_BYTES + 24;

fn ip(words: &str) -> Result<(), String> {
    let output = Command::new("ip").args(words.split_whitespace()).output();
    let output = output.map_err(|error| format!("ip: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    output.status.success().then_some(()).ok_or_else(|| format!("ip {words}: {said}"))
}

/// Two hosts with two routers between them.
///
/// ```text
///  here 10.77.1.1 ── 10.77.1.2 near 10.77.2.1 ── 10.77.2.2 far 10.77.3.2 ── 10.77.3.1 there
///        MTU 1500                     the middle                 MTU 1500
/// ```
///
/// And the same with `fd77:1::1` and so on.
struct Network {
    name: String,
}

impl Network {
    fn new() -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let network = Self { name: format!("tombolo-{}-{number}", std::process::id()) };
        for place in ["here", "near", "far", "there"] {
            // One that was left behind by a killed test, whose process had this number.
            let _ = ip(&format!("netns delete {}", network.of(place)));
            ip(&format!("netns add {}", network.of(place)))?;
            network.at(place, "link set lo up")?;
        }
        for (number, (one, other)) in [("here", "near"), ("near", "far"), ("far", "there")].iter().enumerate()
        {
            let (a, b) = (network.of(one), network.of(other));
            ip(&format!("link add to-{other} netns {a} type veth peer name to-{one} netns {b}"))?;
            // The hosts are at 1, and so is the near end of the middle.
            let (first, second) = if *other == "there" { (2, 1) } else { (1, 2) };
            for (place, device, host) in [(one, other, first), (other, one, second)] {
                network.at(place, &format!("address add 10.77.{}.{host}/24 dev to-{device}", number + 1))?;
                let address = format!("fd77:{}::{host}/64", number + 1);
                network.at(place, &format!("address add {address} dev to-{device} nodad"))?;
                network.at(place, &format!("link set to-{device} up"))?;
            }
        }
        network.at("here", "route add default via 10.77.1.2")?;
        network.at("there", "route add default via 10.77.3.2")?;
        network.at("near", "route add 10.77.3.0/24 via 10.77.2.2")?;
        network.at("far", "route add 10.77.1.0/24 via 10.77.2.1")?;
        network.at("here", "route add default via fd77:1::2")?;
        network.at("there", "route add default via fd77:3::2")?;
        network.at("near", "route add fd77:3::/64 via fd77:2::2")?;
        network.at("far", "route add fd77:1::/64 via fd77:2::1")?;
        for router in ["near", "far"] {
            for forwarding in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
                let file = format!("/proc/sys/net/{forwarding}");
                let written = network.within(router, || std::fs::write(&file, "1"));
                written.map_err(|error| format!("{file}: {error}"))?;
            }
        }
        Ok(network)
    }

    fn of(&self, place: &str) -> String {
        format!("{}-{place}", self.name)
    }

    fn at(&self, place: &str, words: &str) -> Result<(), String> {
        ip(&format!("-n {} {words}", self.of(place)))
    }

    /// Does something on a thread at that place.
    fn within<T: Send>(&self, place: &str, steps: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = || {
                self.enter(place);
                steps()
            };
            scope.spawn(inside).join().unwrap()
        })
    }

    /// Puts this thread at that place.
    fn enter(&self, place: &str) {
        let file = File::open(format!("/run/netns/{}", self.of(place))).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    fn set_middle(&self, mtu_bytes: usize) {
        self.at("near", &format!("link set to-far mtu {mtu_bytes}")).unwrap();
        self.at("far", &format!("link set to-near mtu {mtu_bytes}")).unwrap();
    }

    /// The routers say nothing about what they drop.
    fn silence_routers(&self) {
        for router in ["near", "far"] {
            self.at(router, "rule add iif lo blackhole priority 1").unwrap();
            self.at(router, "-6 rule add iif lo blackhole priority 1").unwrap();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for place in ["here", "near", "far", "there"] {
            let _ = ip(&format!("netns delete {}", self.of(place)));
        }
    }
}

/// A network, or None where there may be none.
fn network() -> Option<Network> {
    match Network::new() {
        Ok(network) => Some(network),
        Err(trouble) => {
            tombolo_host::testing::left_out(&format!("needs root and `ip`: {trouble}"));
            None
        }
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "still not: {what}");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// Packets at both ends, as large as an MTU allows.
struct Ends<'a> {
    link: &'a dyn Link,
    there: &'a Node,
    rounds: &'a AtomicU64,
}

impl Ends<'_> {
    fn size_there(&self) -> u64 {
        let counters = self.there.status().counters;
        counters.get("peer_1_path_0_packet_bytes").copied().unwrap_or(0)
    }

    /// Packets become as large as that MTU allows, both ways, and the work goes on.
    fn await_mtu(&self, mtu_bytes: usize) {
        self.await_mtus(mtu_bytes, mtu_bytes);
    }

    /// As `await_mtu`, with an MTU for each way.
    fn await_mtus(&self, here_bytes: usize, there_bytes: usize) {
        self.await_packets(here_bytes - SEALED_BYTES, there_bytes - SEALED_BYTES);
    }

    /// As `await_mtus`, in bytes of packets.
    fn await_packets(&self, here_bytes: usize, there_bytes: usize) {
        wait_until(&format!("packets of {here_bytes} and {there_bytes} bytes"), || {
            self.link.max_packet_bytes() == here_bytes && self.size_there() == there_bytes as u64
        });
        let before = self.rounds.load(Ordering::Relaxed);
        wait_until("the work goes on", || self.rounds.load(Ordering::Relaxed) >= before + 3);
    }
}

fn with_keys() -> Security {
    let keys = KeyPair::generate().unwrap();
    let allowed = AllowList::Keys(vec![keys.public()]);
    Security::secure(keys, allowed)
}

/// Works on memory there from here, with keys, while `steps` changes the network.
fn while_working(network: &Network, steps: impl FnOnce(&Ends<'_>)) {
    while_working_at(network, &with_keys(), ("here", "10.77.1.1"), ("there", "10.77.3.1"), steps);
}

/// As `while_working`, with nodes at these places and addresses.
fn while_working_at(
    network: &Network,
    security: &Security,
    at_here: (&str, &str),
    at_there: (&str, &str),
    steps: impl FnOnce(&Ends<'_>),
) {
    let listener = |(place, address): (&str, &str)| {
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        network.within(place, || UdpListener::bind_with(address, security, SETTINGS).unwrap())
    };
    let (listener_here, listener_there) = (listener(at_here), listener(at_there));
    let Address::Udp(address) = listener_there.address() else { panic!("not udp") };
    let node = |name, lend| Arc::new(Node::new(name, lend, 4 << 20).unwrap());
    let (here, there) = (node("here", 0), node("there", FAR_BYTES));
    let (stop, ends_stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let (stop, ends_stop, rounds) = (&stop, &ends_stop, AtomicU64::new(0));
    let rounds = &rounds;
    thread::scope(|scope| {
        for (place, node, listener) in
            [(at_here.0, &here, listener_here), (at_there.0, &there, listener_there)]
        {
            scope.spawn(move || {
                network.enter(place);
                serve(node, &listener, ends_stop, &|_| {});
            });
        }
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let link = network
                .within(at_here.0, || UdpLink::connect_with(address, security, PATIENCE, SETTINGS).unwrap());
            let link: Arc<dyn Link> = Arc::new(link);
            let links = vec![link.clone()];
            let far = FarStore::over(here.clone(), &[Address::Udp(address)], links, None).unwrap();
            thread::scope(|scope| {
                let worker = scope.spawn(|| {
                    work(&far, 7, || {
                        rounds.fetch_add(1, Ordering::Relaxed);
                        !stop.load(Ordering::Relaxed)
                    })
                });
                let ends = Ends { link: &*link, there: &there, rounds };
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| steps(&ends)));
                stop.store(true, Ordering::Relaxed);
                worker.join().unwrap();
                outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
            far.release();
        }));
        ends_stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn counter(link: &dyn Link, name: &str) -> u64 {
    link.counters().named().find(|(known, _)| *known == name).map_or(0, |(_, count)| count)
}

fn follow(silent: bool) {
    let Some(network) = network() else { return };
    network.set_middle(1300);
    if silent {
        network.silence_routers();
    }
    while_working(&network, |ends| {
        ends.await_mtu(1300);
        // The middle gets narrower under way: 1228 is left, and then 556.
        network.set_middle(1250);
        ends.await_mtu(if silent { 1228 } else { 1250 });
        assert!(counter(ends.link, "size_lowered") > 0);
        network.set_middle(1100);
        ends.await_mtu(if silent { 556 } else { 1100 });
        let raised = counter(ends.link, "size_raised");
        network.set_middle(1500);
        ends.await_mtu(1500);
        assert!(counter(ends.link, "size_raised") > raised);
    });
}

#[test]
fn packets_follow_a_route_whose_routers_say_what_it_takes() {
    follow(false);
}

#[test]
fn packets_follow_a_route_whose_routers_say_nothing() {
    follow(true);
}

#[test]
fn packets_follow_the_interface() {
    let Some(network) = network() else { return };
    network.silence_routers();
    while_working(&network, |ends| {
        ends.await_mtu(1500);
        // The other end's way into it is a silent hole.
        for (mtu_bytes, there_bytes) in [(1300, 1300), (1100, 556), (1500, 1500)] {
            network.at("here", &format!("link set to-near mtu {mtu_bytes}")).unwrap();
            network.at("near", &format!("link set to-here mtu {mtu_bytes}")).unwrap();
            ends.await_mtus(mtu_bytes, there_bytes);
        }
        assert!(counter(ends.link, "size_lowered") >= 2);
    });
}

#[test]
fn packets_without_keys_follow_the_loopback_interface() {
    let Some(network) = network() else { return };
    let at = ("here", "127.0.0.1");
    while_working_at(&network, &Security::Insecure, at, at, |ends| {
        ends.await_packets(MAX_PACKET_BYTES, MAX_PACKET_BYTES);
        // A whole block from the start. What was lowered in between, because a check was read late, was raised again.
        assert_eq!(counter(ends.link, "size_raised"), counter(ends.link, "size_lowered"));
        network.at("here", "link set lo mtu 3000").unwrap();
        ends.await_packets(3000 - AROUND_BYTES, 3000 - AROUND_BYTES);
        network.at("here", "link set lo mtu 65536").unwrap();
        ends.await_packets(MAX_PACKET_BYTES, MAX_PACKET_BYTES);
    });
}

#[test]
fn packets_follow_a_route_of_ipv6() {
    let Some(network) = network() else { return };
    let (here, there) = (("here", "fd77:1::1"), ("there", "fd77:3::1"));
    while_working_at(&network, &with_keys(), here, there, |ends| {
        let packet_bytes = |mtu_bytes: usize| mtu_bytes - 20 - SEALED_BYTES;
        ends.await_packets(packet_bytes(1500), packet_bytes(1500));
        network.silence_routers();
        network.set_middle(1400);
        ends.await_packets(packet_bytes(1400), packet_bytes(1400));
        network.set_middle(1500);
        ends.await_packets(packet_bytes(1500), packet_bytes(1500));
    });
}
