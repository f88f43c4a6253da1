//! Two nodes with an engine each, and a line each way between them.

use super::{Carried, EngineHost, EngineHostConfig, Prices, Program, TaskKind};
use crate::kernel::{PartId, Rate, Span, Time};
use crate::parts::{Input, Link, LinkConfig, LinkFaults, World};
use tombolo_core::rdma::{Config, Direction, PathId, PeerId, Retransmission, Transfer};
use tombolo_random::mix;
use tombolo_wire::{Domain, Notification};

const OTHER: PeerId = PeerId(0);

struct Pair {
    world: World,
    nodes: [PartId; 2],
    links: [PartId; 2],
}

fn pair(config: EngineHostConfig, link: LinkConfig) -> Pair {
    let mut world = World::new(11);
    let nodes = [(); 2].map(|()| world.add(EngineHost::new(config)));
    let links = [(); 2].map(|()| world.add(Link::new(link)));
    let ways = [0, 1]
        .map(|from| world.add_route(&[Input::of(links[from]), Input::of(nodes[1 - from])]).expect("a route"));
    for node in 0..2 {
        let (there, back) = (ways[node], ways[1 - node]);
        world.with(nodes[node], |host: &mut EngineHost, here| {
            host.add_way(here.now(), OTHER, PathId(0), there, back);
        });
    }
    Pair { world, nodes, links }
}

fn transfer(
    direction: Direction,
    source_address: u64,
    destination_address: u64,
    size_bytes: u32,
) -> Transfer {
    Transfer {
        direction,
        domain: Domain(1),
        own_domain: Domain(1),
        source_address,
        destination_address,
        size_bytes,
        notification: None,
        class: None,
        user: 0,
    }
}

impl Pair {
    fn run(&mut self, node: usize, transfer: Transfer, count: u64) -> usize {
        let program = Program { peer: OTHER, transfer, count, outstanding: 1, gap: Span::ZERO };
        self.world
            .with(self.nodes[node], |host: &mut EngineHost, here| host.run(here, program))
            .expect("a node")
    }

    fn node(&self, node: usize) -> &EngineHost {
        self.world.part(self.nodes[node]).expect("a node")
    }

    fn memory<R>(&mut self, node: usize, act: impl FnOnce(&mut [u8]) -> R) -> R {
        let act = |host: &mut EngineHost, _: &mut crate::parts::Here<'_>| act(host.memory());
        self.world.with(self.nodes[node], act).expect("a node")
    }
}

/// QOS Fig 3.8.
fn prices() -> Prices {
    Prices {
        seen: Span::from_ns(1_100),
        queue: Span::from_ns(300),
        block: Span::from_ns(200 + 200 + 60),
        message: Span::from_ns(370),
        answer: Span::from_ns(140 + 200),
        request: Span::from_ns(12 * 140),
        timeout: Span::from_ns(200),
        completion: Span::ZERO,
    }
}

fn engine() -> Config {
    Config {
        retransmission: Retransmission::Fixed { timeout_ns: 20_000_000 },
        congestion: None,
        early_notification: false,
        ..Config::default()
    }
}

#[test]
fn a_small_write_takes_the_sum_of_its_prices_and_of_its_way() {
    let link = LinkConfig { latency: Span::from_ns(300), ..LinkConfig::default() };
    let took = |engine: Config, notification, size_bytes| {
        let mut pair =
            pair(EngineHostConfig { engine, prices: prices(), ..EngineHostConfig::default() }, link);
        let write = Transfer { notification, ..transfer(Direction::Write, 0, 0, size_bytes) };
        let program = pair.run(0, write, 3);
        pair.world.run();
        assert_eq!(pair.world.stuck(), []);
        let ended = pair.node(0).ended(program);
        assert_eq!(ended.len(), 3);
        assert!(ended.iter().all(|one| one.status == Ok(()) && one.took() == ended[0].took()), "{ended:?}");
        assert_eq!([TaskKind::Doorbell, TaskKind::Answer].map(|kind| pair.node(0).tasks(kind)), [3, 3]);
        assert_eq!(pair.node(1).processor_busy(), Span::ZERO);
        ended[0].took().picos() / 1_000
    };
    let words = Some(Notification { address: 64, first: 1, last: 2 });
    // A block that carries its notification, and one that has none.
    assert_eq!(took(engine(), words, 16), 1_100 + 460 + 370 + 300 + 300 + 340);
    assert_eq!(took(engine(), None, 16), 1_100 + 460 + 300 + 300 + 340);
    // By the queue.
    assert_eq!(took(Config { bypass: false, ..engine() }, None, 16), 1_100 + 300 + 460 + 300 + 300 + 340);
}

#[test]
fn a_read_is_a_request_and_a_write_back() {
    let link = LinkConfig { latency: Span::from_ns(300), ..LinkConfig::default() };
    let mut pair =
        pair(EngineHostConfig { engine: engine(), prices: prices(), ..EngineHostConfig::default() }, link);
    let program = pair.run(0, transfer(Direction::Read, 0, 0, 16), 1);
    pair.world.run();
    assert_eq!(pair.world.stuck(), []);
    // Seen, queued, the request sent; read there, the block begun and sent back, with the words that end every read.
    let expected = 1_100 + 300 + 370 + 300 + 12 * 140 + 460 + 370 + 300;
    assert_eq!(pair.node(0).ended(program)[0].took(), Span::from_ns(expected));
    assert_eq!([TaskKind::Request, TaskKind::Block].map(|kind| pair.node(1).tasks(kind)), [1, 1]);
}

/// A megabyte by a line of 10 Gb/s: as many packets of 256 bytes and what goes beside them.
#[test]
fn a_large_write_fills_the_line_if_two_blocks_do() {
    let beside_bytes = 40;
    let line = Rate::from_bits_per_s(10_000_000_000);
    let link = LinkConfig {
        line,
        overhead_bytes: beside_bytes,
        latency: Span::from_ns(1_000),
        ..LinkConfig::default()
    };
    let took = |outstanding_blocks| {
        let engine = Config { outstanding_blocks, turn_blocks: outstanding_blocks, ..engine() };
        let config = EngineHostConfig {
            engine,
            prices: prices(),
            beside_bytes,
            send: line,
            ..EngineHostConfig::default()
        };
        let mut pair = pair(config, link);
        let program = pair.run(0, transfer(Direction::Write, 0, 0, 1 << 20), 1);
        pair.world.run();
        pair.node(0).ended(program)[0].took().picos() / 1_000
    };
    let on_the_line = 4_096 * (256 + 40) * 8 / 10;
    assert!((on_the_line..on_the_line * 102 / 100).contains(&took(2)), "{} for {on_the_line}", took(2));
    // One at a time waits for an answer 64 times: the way there and back, a block's and an answer's price.
    let waits = 64 * (2_000 + 460 + 340);
    assert!(took(1) > on_the_line + waits, "{} for {}", took(1), on_the_line + waits);
}

fn fill(memory: &mut [u8], seed: u64) {
    for (place, word) in memory.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(seed ^ mix(place as u64)).to_le_bytes());
    }
}

const PART_BYTES: u64 = 1 << 18;

/// Writes and reads of many sizes by a line that does everything wrong: every byte arrives.
fn storm(carried: Carried, faults: LinkFaults) -> Pair {
    let line = Rate::from_bits_per_s(10_000_000_000);
    let link = LinkConfig { line, latency: Span::from_ns(500), faults, ..LinkConfig::default() };
    let engine = Config { retransmission: Retransmission::Fixed { timeout_ns: 200_000 }, ..engine() };
    let config = EngineHostConfig {
        engine,
        prices: prices(),
        send: line,
        carried,
        memory_bytes: 4 * PART_BYTES as usize,
        ..EngineHostConfig::default()
    };
    let mut pair = pair(config, link);
    if carried == Carried::Bytes {
        (0..2).for_each(|node| pair.memory(node, |memory| fill(memory, node as u64)));
    }
    // Node 0 writes its first part to the other's second, and reads the other's third into its fourth.
    let mut at = 0;
    for size in [0, 1, 255, 256, 4_096, 16_384, 16_385, 100_000] {
        let (write_to, read_from, read_to) = (PART_BYTES + at, 2 * PART_BYTES + at, 3 * PART_BYTES + at);
        pair.run(0, transfer(Direction::Write, at, write_to, size), 1);
        pair.run(0, transfer(Direction::Read, read_from, read_to, size), 1);
        at += u64::from(size);
    }
    pair.world.run_until(Time::ZERO.after(Span::from_ns(2_000_000_000)));
    for program in 0..16 {
        let ended = pair.node(0).ended(program);
        assert!(ended.len() == 1 && ended[0].status == Ok(()), "{program}: {ended:?}");
    }
    if carried == Carried::Bytes {
        let part = |memory: &mut [u8], number: usize| {
            let from = number * PART_BYTES as usize;
            memory[from..from + at as usize].to_vec()
        };
        let parts = |pair: &mut Pair, node| {
            pair.memory(node, |memory| [0, 1, 2, 3].map(|number| part(memory, number)))
        };
        let (here, there) = (parts(&mut pair, 0), parts(&mut pair, 1));
        assert!(here[0] == there[1] && there[2] == here[3]);
    }
    pair
}

#[test]
fn every_byte_arrives_by_a_line_that_loses_repeats_damages_and_reorders() {
    let faults = LinkFaults {
        loss: 20_000,
        corruption: 20_000,
        duplication: 20_000,
        reordering: 50_000,
        delay: Span::from_ns(50_000),
    };
    let pair = storm(Carried::Bytes, faults);
    let counters = pair.node(0).counters();
    assert!(counters.blocks_retransmitted > 0, "{counters:?}");
    let dropped: Vec<_> = [0, 1].map(|node| pair.node(node).dropped()).to_vec();
    assert!(dropped.iter().any(|(_, unreadable)| *unreadable > 0), "{dropped:?}");
    let lost = pair.links.map(|link| pair.world.part::<Link>(link).expect("a link").counters().lost);
    assert!(lost.iter().all(|lost| *lost > 0), "{lost:?}");
}

/// Names cost the simulator less, and change nothing but what damage does: it never hits a header.
#[test]
fn packets_that_are_only_named_take_the_same_time() {
    let faults = LinkFaults { loss: 20_000, duplication: 20_000, ..LinkFaults::default() };
    let [bytes, names] = [Carried::Bytes, Carried::Names].map(|carried| storm(carried, faults));
    for program in 0..16 {
        assert_eq!(bytes.node(0).ended(program), names.node(0).ended(program));
    }
    assert_eq!(bytes.node(0).counters(), names.node(0).counters());
    assert_eq!(bytes.world.trace(), names.world.trace());
}

#[test]
fn a_full_mailbox_drops_and_the_timeout_repairs() {
    let engine = Config { outstanding_blocks: 64, turn_blocks: 64, ..engine() };
    // All blocks are sent before the first answer comes, and then answers come faster than the processor reads them.
    let link = LinkConfig { latency: Span::from_ns(100_000), ..LinkConfig::default() };
    let prices = Prices { answer: Span::from_ns(5_000), ..prices() };
    let config = EngineHostConfig { engine, prices, mailbox: 1, ..EngineHostConfig::default() };
    let mut pair = pair(config, link);
    let program = pair.run(0, transfer(Direction::Write, 0, 0, 1 << 20), 1);
    pair.world.run();
    assert_eq!(pair.node(0).ended(program)[0].status, Ok(()));
    let (refused, _) = pair.node(0).dropped();
    assert!(refused > 0 && pair.node(0).counters().timeouts > 0, "{refused} refused");
}

/// Bytes that are not there: the program hears of it, and nothing else moves.
#[test]
fn a_source_outside_of_the_memory_ends_its_transfer() {
    for size in [16, 100_000] {
        let memory = 8_192;
        let config = EngineHostConfig {
            engine: engine(),
            prices: prices(),
            carried: Carried::Bytes,
            memory_bytes: memory,
            ..EngineHostConfig::default()
        };
        let mut pair = pair(config, LinkConfig::default());
        let program = pair.run(0, transfer(Direction::Write, memory as u64 - 8, 0, size), 1);
        pair.world.run();
        let ended = pair.node(0).ended(program);
        assert!(ended.len() == 1 && ended[0].status.is_err(), "{size}: {ended:?}");
    }
}
