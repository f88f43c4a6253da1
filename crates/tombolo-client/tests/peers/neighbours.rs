//! Nodes that are to be joined to others: as programs see it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{Domain, Failure, Grant, Memory, Spec, Target, WaitError, Who};
use tombolo_node::identity::{AllowList, KeyPair};
use tombolo_node::{Address, Node, Security};

use crate::harness::{Host, PATIENCE, pattern, shm};
use crate::relay::Relay;

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start(name: &str, listen: &Address, wanted: &[&Address], security: &Security) -> Host {
    let wanted = wanted.iter().map(|address| vec![(*address).clone()]).collect();
    Host::start_wanting(Node::new(name, 0, 0).unwrap(), listen, wanted, security)
}

fn numbers(domain: &Domain) -> Vec<(u32, String)> {
    domain.peers().unwrap().into_iter().map(|peer| (peer.node, peer.name)).collect()
}

fn is_joined(domain: &Domain, node: u32, name: &str) -> bool {
    numbers(domain).contains(&(node, name.to_owned()))
}

fn write(domain: &Domain, from: &Memory, to: Target, address: u64) -> Result<(), WaitError> {
    domain.write(to, Spec::new(from.address(), address, 64)).unwrap().wait(PATIENCE)
}

/// A place to listen at over UDP, again and again, that nobody else has meanwhile: a loopback address of this process
/// alone, and a port below those that the kernel gives away (32768).
fn free() -> Address {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // 22 bits, of which the port has the upper ones. Addresses that begin with 127.0 are those of other tests.
    let process = std::process::id();
    let host = [127, 1 + (process >> 8 & 0x7F) as u8, process as u8, number];
    Address::Udp((host, 10_000 + (process >> 15) as u16).into())
}

fn with_keys() -> Security {
    let keys = KeyPair::generate().unwrap();
    let allowed = AllowList::Keys(vec![keys.public()]);
    Security::secure(keys, allowed)
}

/// Numbers go by the order in which neighbours were named, not by that in which they come; a transfer to one that
/// is not there fails at once, and says so.
fn numbers_are_kept(kind: fn() -> Address, security: &Security) {
    let [near, first, second] = [kind(), kind(), kind()];
    let host = start("near", &near, &[&first, &second], security);
    let own = host.domain(1);
    let mine = own.allocate(4096, &[]).unwrap();
    mine.write(0, &pattern(3, 64)).unwrap();
    for node in [1, 2] {
        let outcome = write(&own, &mine, Target { node, domain: 2 }, 0);
        assert_eq!(outcome, Err(WaitError::Failed(Failure::Unreachable)), "node {node}");
    }
    let outcome = write(&own, &mine, Target { node: 3, domain: 2 }, 0);
    assert_eq!(outcome, Err(WaitError::Failed(Failure::NoSuchNode)));
    let _second = start("second", &second, &[], security);
    wait_until("the second is joined", || is_joined(&own, 2, "second"));
    assert_eq!(numbers(&own).len(), 2, "{:?}", numbers(&own));
    let mut lives = Vec::new();
    for _ in 0..3 {
        let host = start("first", &first, &[], security);
        let theirs = host.domain(2);
        wait_until("the first is joined", || is_joined(&own, 1, "first"));
        // Any node may write there, and one that was meant to in the first life, nowhere later.
        let memory = theirs.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
        write(&own, &mine, Target { node: 1, domain: 2 }, memory.address()).unwrap();
        let mut found = [0; 64];
        memory.read(0, &mut found).unwrap();
        assert!(found == pattern(3, 64)[..]);
        lives.push(memory.address());
        drop((theirs, memory, host));
        wait_until("the first is gone", || !is_joined(&own, 1, "first"));
        let outcome = write(&own, &mine, Target { node: 1, domain: 2 }, lives[0]);
        assert_eq!(outcome, Err(WaitError::Failed(Failure::Unreachable)));
    }
    assert!(is_joined(&own, 2, "second"));
}

#[test]
fn numbers_are_kept_for_neighbours_over_shared_memory() {
    numbers_are_kept(shm, &Security::Insecure);
}

#[test]
fn numbers_are_kept_for_neighbours_over_udp() {
    numbers_are_kept(free, &with_keys());
    numbers_are_kept(free, &Security::Insecure);
}

/// What was granted to a neighbour before it came is its first life's; a later life has the number, and no grants.
#[test]
fn grants_to_a_neighbour_are_its_lifes() {
    let [near, far] = [shm(), shm()];
    let host = start("near", &near, &[&far], &Security::Insecure);
    let own = host.domain(1);
    let granted = own.allocate(4096, &[Grant::all(Who::Node(1))]).unwrap();
    let mut later = None;
    for life in 0..3 {
        let other = start("far", &far, &[&near], &Security::Insecure);
        let theirs = other.domain(2);
        wait_until("both are joined", || is_joined(&own, 1, "far") && is_joined(&theirs, 1, "near"));
        let mine = theirs.allocate(4096, &[]).unwrap();
        let target = Target { node: 1, domain: 1 };
        let outcome = write(&theirs, &mine, target, granted.address());
        assert_eq!(outcome.is_ok(), life == 0, "life {life}: {outcome:?}");
        // Granted anew, it is the present life's.
        let again = own.allocate(4096, &[Grant::all(Who::Node(1))]).unwrap();
        assert_eq!(write(&theirs, &mine, target, again.address()), Ok(()), "life {life}");
        if let Some(before) = later.replace(again) {
            let before: Memory = before;
            assert!(write(&theirs, &mine, target, before.address()).is_err(), "life {life}");
        }
        drop((theirs, mine, other));
        wait_until("the other is gone", || !is_joined(&own, 1, "far"));
    }
}

/// Two nodes have one link, whichever of them starts first or starts again.
fn one_link_between(kind: fn() -> Address, security: &Security) {
    let places = [kind(), kind()];
    let begin =
        |which: usize| start(["one", "other"][which], &places[which], &[&places[1 - which]], security);
    let mut hosts = [Some(begin(0)), Some(begin(1))];
    for round in 0..6 {
        let links = |host: &Option<Host>| host.as_ref().map(|host| host.counter("links_up"));
        let is_known = |which: usize| {
            let host = hosts[which].as_ref().unwrap();
            is_joined(&host.any_domain(), 1, ["other", "one"][which])
        };
        wait_until("both are joined, by one link", || {
            is_known(0) && is_known(1) && hosts.iter().all(|host| links(host) == Some(1))
        });
        let which = round % 2;
        hosts[which] = None;
        hosts[which] = Some(begin(which));
    }
}

#[test]
fn nodes_that_want_each_other_have_one_link_over_shared_memory() {
    one_link_between(shm, &Security::Insecure);
}

#[test]
fn nodes_that_want_each_other_have_one_link_over_udp() {
    one_link_between(free, &with_keys());
}

/// A neighbour of several addresses is joined by all of them, whichever of the two nodes has dialed first; a path
/// that is lost is dialed again, and the neighbour stays.
#[test]
fn a_neighbour_of_several_addresses_has_a_path_by_each() {
    let security = with_keys();
    let [near, far] = [free(), free()];
    let relays = [Relay::to(&far, 0), Relay::to(&far, 0)];
    let ways = relays.iter().map(|relay| relay.address.clone()).collect();
    let node = |name: &str| {
        let node = Node::new(name, 0, 0).unwrap();
        node.set_outage(Duration::from_millis(1500));
        node
    };
    // Its own dials lead past the relays.
    let other = Host::start_wanting(node("far"), &far, vec![vec![near.clone()]], &security);
    let host = Host::start_wanting(node("near"), &near, vec![ways], &security);
    let own = host.domain(1);
    let mine = own.allocate(4096, &[]).unwrap();
    let theirs = other.domain(2);
    let memory = theirs.allocate(4096, &[Grant::all(Who::Anyone)]).unwrap();
    let links = |count: u64| host.counter("links_up") == count && other.counter("links_up") == count;
    wait_until("two links", || is_joined(&own, 1, "far") && is_joined(&theirs, 1, "near") && links(2));
    let works = || write(&own, &mine, Target { node: 1, domain: 2 }, memory.address());
    for _ in 0..2 {
        relays.iter().for_each(|relay| relay.cut(true));
        wait_until("the paths by the relays are lost", || host.counter("links_up") < 2);
        relays.iter().for_each(|relay| relay.cut(false));
        wait_until("two links again", || is_joined(&own, 1, "far") && links(2));
        wait_until("bytes pass", || works().is_ok());
    }
}
