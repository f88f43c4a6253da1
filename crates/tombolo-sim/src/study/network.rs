//! Nodes with engines on a topology.

use std::collections::{BTreeMap, BTreeSet};

use tombolo_core::iommu::TouchPolicy;
use tombolo_core::rdma::{Direction, PathId, PeerId, PostError, Transfer};
use tombolo_random::Random;
use tombolo_wire::Domain;

use super::StudyError;
use super::outcome::{Outcome, busy_percent, percentile};
use super::scenario::{Pages, Scenario, TopologyKind, Workload, WorkloadKind};
use crate::boards::qfdb::{self, FaultSetup, Optimisations, Setup, Wiring};
use crate::hosts::{EngineHost, Failure, Hypotheses, Program};
use crate::kernel::{PartId, Span, Time};
use crate::parts::{Hop, Input, Link, LinkConfig, LinkFaults, World};
use crate::platform::{Platform, PlatformError};

/// A run takes so much virtual time at most: longer than any that ends.
const LONGEST: Span = Span::from_ns(1_000_000_000_000);
/// Transfers of a run at most: the outcome has them all.
const MOST_TRANSFERS: u64 = 10_000_000;

struct Network {
    world: World,
    nodes: Vec<PartId>,
    /// By line, one for each of the links between two vertices.
    lines: BTreeMap<(Hop, u8), PartId>,
    names: BTreeMap<PartId, String>,
}

impl Network {
    /// A transfer that an engine did not take: whose it was, and why.
    fn refused(&self, programs: &[(PartId, usize, u32)]) -> Option<(PartId, PostError)> {
        programs.iter().find_map(|(part, program, _)| {
            // A program posts nothing more after that.
            match self.world.part::<EngineHost>(*part)?.ended(*program).last()?.status {
                Err(Failure::NotPosted(error)) => Some((*part, error)),
                _ => None,
            }
        })
    }
}

/// What nodes of this scenario are.
fn setup(platform: &Platform, scenario: &Scenario, links: u8) -> Result<Setup, PlatformError> {
    let faults = |pages: Pages| {
        let touch = if pages.ahead <= 1 { TouchPolicy::Page } else { TouchPolicy::Ahead(pages.ahead) };
        let timeout = platform.span("timeout")?;
        let (hits_under_fault, hypotheses) = (pages.hits_under_fault, Hypotheses::default());
        Ok::<_, PlatformError>(FaultSetup { touch, timeout, hits_under_fault, hypotheses })
    };
    let faults = scenario.pages.map(faults).transpose()?;
    let optimisations = if scenario.engine.optimised { Optimisations::ALL } else { Optimisations::NONE };
    let (wiring, has_classes, seed) = (Wiring::OneHop, scenario.engine.classes, scenario.seed);
    Ok(Setup { wiring, optimisations, links, has_classes, faults, seed, ..Setup::default() })
}

fn network(
    platform: &Platform,
    scenario: &Scenario,
    kind: &TopologyKind,
    pairs: &[(u32, u32, u32, Time)],
) -> Result<Network, StudyError> {
    let (topology, links) = (kind.topology()?, kind.links.max(1));
    let setup = setup(platform, scenario, links)?;
    let (rate, beside_bytes) = qfdb::line(platform, setup.wiring)?;
    let config = qfdb::host(platform, &setup, rate, beside_bytes)?;
    let mut world = World::new(scenario.seed);
    let count = topology.nodes();
    let nodes: Vec<_> = (0..count).map(|_| world.add(EngineHost::new(config))).collect();
    let mut names: BTreeMap<_, _> =
        nodes.iter().enumerate().map(|(number, part)| (*part, format!("node {number}"))).collect();
    // Out of one node's logic and into another's: half of what both take there and back.
    let latency = Span::from_picos(platform.span("logic")?.picos() / 2);
    let logic: Vec<_> =
        (0..count).map(|_| world.add(Link::new(LinkConfig { latency, ..LinkConfig::default() }))).collect();
    names.extend(logic.iter().enumerate().map(|(number, part)| (*part, format!("logic of node {number}"))));
    let wrong = &scenario.faults;
    let faults = LinkFaults {
        loss: wrong.loss,
        corruption: wrong.corruption,
        duplication: wrong.duplication,
        reordering: wrong.reordering,
        delay: Span::from_ns(wrong.delay_us.saturating_mul(1_000)),
    };
    let latency = platform.span("hop")?;
    let queue_bytes = kind.queue_kib.map(|kib| u64::from(kib) << 10);
    let line = LinkConfig { line: Some(rate), overhead_bytes: beside_bytes, latency, faults, queue_bytes };
    let mut lines = BTreeMap::new();
    for hop in topology.hops() {
        for link in 0..links {
            let part = world.add(Link::new(line));
            let number = if links > 1 { format!(" ({link})") } else { String::new() };
            names.insert(part, format!("link {} to {}{number}", hop.from, hop.to));
            lines.insert((hop, link), part);
        }
    }
    // Nodes know those with whom they have to do.
    let known: BTreeSet<_> = pairs.iter().flat_map(|(from, to, ..)| [(*from, *to), (*to, *from)]).collect();
    for link in 0..links {
        let mut ways = BTreeMap::new();
        for &(from, to) in &known {
            let mut way = vec![Input::of(logic[from as usize])];
            way.extend(topology.way(from, to).iter().map(|hop| Input::of(lines[&(*hop, link)])));
            way.push(Input::of(nodes[to as usize]));
            ways.insert((from, to), world.add_route(&way).expect("lines and a node"));
        }
        for (&(from, to), way) in &ways {
            let back = ways[&(to, from)];
            world.with(nodes[from as usize], |host: &mut EngineHost, here| {
                host.add_way(here.now(), PeerId(to), PathId(link), *way, back);
            });
        }
    }
    Ok(Network { world, nodes, lines, names })
}

/// Who writes to whom, how much, and when it begins.
fn pairs(workload: &Workload, nodes: u32, seed: u64) -> Vec<(u32, u32, u32, Time)> {
    let (bytes, start) = (workload.bytes, Time::ZERO);
    let others = |from: u32| (0..nodes).filter(move |to| *to != from);
    let mut random = Random::new(seed);
    let mut pairs: Vec<(u32, u32, u32, Time)> = match workload.kind {
        WorkloadKind::Uniform => (0..nodes)
            .map(|from| {
                let other = random.below(u64::from(nodes - 1)) as u32;
                (from, if other < from { other } else { other + 1 }, bytes, start)
            })
            .collect(),
        WorkloadKind::Incast => (1..nodes).map(|from| (from, 0, bytes, start)).collect(),
        WorkloadKind::AllToAll => {
            (0..nodes).flat_map(|from| others(from).map(move |to| (from, to, bytes, start))).collect()
        }
        WorkloadKind::Permutation => {
            // One cycle through all nodes in a random order: nobody writes to itself.
            let mut order: Vec<u32> = (0..nodes).collect();
            for place in (1..order.len()).rev() {
                order.swap(place, random.below(place as u64 + 1) as usize);
            }
            let next = order.iter().cycle().skip(1);
            order.iter().zip(next).map(|(from, to)| (*from, *to, bytes, start)).collect()
        }
        WorkloadKind::Listed => {
            let listed = workload.transfers.iter();
            listed
                .map(|(from, to, bytes, us)| {
                    let at = Time::ZERO.after(Span::from_ns(us.saturating_mul(1_000)));
                    (*from, *to, *bytes, at)
                })
                .collect()
        }
    };
    pairs.sort_by_key(|(.., at)| *at);
    pairs
}

/// Bytes of a node's memory for one program: as many as the longest transfer has.
const WINDOW_BYTES: u64 = 1 << 32;
/// Such windows of a node: an address has 48 bits.
const MOST_WINDOWS: u64 = 1 << 16;

/// Checks that the nodes' memories have enough windows, and that the outcome can hold all transfers.
fn check(workload: &Workload, pairs: &[(u32, u32, u32, Time)]) -> Result<(), StudyError> {
    let mut windows = BTreeMap::new();
    for (from, to, ..) in pairs {
        for node in [from, to] {
            *windows.entry(*node).or_insert(0_u64) += 1;
        }
    }
    let impossible = |what: String| Err(StudyError::Impossible(what));
    if windows.values().any(|windows| *windows > MOST_WINDOWS) {
        return impossible(format!("a node would have more than {MOST_WINDOWS} pairs"));
    }
    match (pairs.len() as u64).saturating_mul(workload.count) > MOST_TRANSFERS {
        true => impossible(format!("these are more than {MOST_TRANSFERS} transfers")),
        false => Ok(()),
    }
}

pub(super) fn run(
    platform: &Platform,
    scenario: &Scenario,
    kind: &TopologyKind,
    workload: &Workload,
    keeps_timeline: bool,
) -> Result<Outcome, StudyError> {
    let pairs = pairs(workload, kind.topology()?.nodes(), scenario.seed);
    check(workload, &pairs)?;
    let mut network = network(platform, scenario, kind, &pairs)?;
    if keeps_timeline {
        network.world.keep_timeline();
    }
    let (mut programs, mut windows) = (Vec::new(), vec![0; network.nodes.len()]);
    let mut window = |node: u32| {
        let window: &mut u64 = &mut windows[node as usize];
        *window += 1;
        (*window - 1) * WINDOW_BYTES
    };
    for (from, to, bytes, at) in &pairs {
        network.world.run_until(*at);
        // Who reads has the bytes sent to it.
        let (runs, peer) = if workload.reads { (*to, *from) } else { (*from, *to) };
        let (source_address, destination_address) = (window(*from), window(*to));
        let nodes = [(*from, source_address), (*to, destination_address)];
        for ((node, address), is_absent) in nodes
            .into_iter()
            .zip(scenario.pages.map_or([false; 2], |pages| [pages.source, pages.destination]))
        {
            if is_absent {
                let part = network.nodes[node as usize];
                network.world.with(part, |host: &mut EngineHost, _| host.take_away(address, (*bytes).into()));
            }
        }
        let transfer = Transfer {
            direction: if workload.reads { Direction::Read } else { Direction::Write },
            domain: Domain(1),
            own_domain: Domain(1),
            source_address,
            destination_address,
            size_bytes: *bytes,
            notification: None,
            class: None,
            user: 0,
        };
        let gap = Span::from_ns(workload.gap_us.saturating_mul(1_000));
        let (count, outstanding) = (workload.count, workload.outstanding);
        let program = Program { peer: PeerId(peer), transfer, count, outstanding, gap };
        let part = network.nodes[runs as usize];
        let program = network.world.with(part, |host: &mut EngineHost, here| host.run(here, program));
        programs.push((part, program.expect("a node"), *bytes));
    }
    let mut span = Span::from_ns(1_000_000);
    let is_over = loop {
        let is_over = network.world.run_within(span);
        if let Some((part, error)) = network.refused(&programs) {
            let most = platform.count("transactions")?;
            let hint = if error == PostError::Full {
                format!(" (constants.transactions is {most})")
            } else {
                String::new()
            };
            return Err(StudyError::Impossible(format!("{}: {error}{hint}", network.names[&part])));
        }
        if is_over || span >= LONGEST {
            break is_over;
        }
        span = span.times(4).min(LONGEST);
    };
    Ok(outcome(&mut network, &programs, is_over))
}

fn outcome(network: &mut Network, programs: &[(PartId, usize, u32)], is_over: bool) -> Outcome {
    let slices = network.world.take_timeline();
    let world = &network.world;
    let mut outcome = Outcome::new(world.trace());
    let host = |part: PartId| world.part::<EngineHost>(part).expect("a node");
    let (mut took, mut failed, mut open, mut bytes, mut end) = (Vec::new(), 0_u64, 0_u64, 0_u64, Time::ZERO);
    for (part, program, size) in programs {
        open += u64::from(host(*part).is_open(*program));
        for ended in host(*part).ended(*program) {
            match ended.status {
                Ok(()) => {
                    took.push(ended.took().picos() as f64 / 1e6);
                    bytes += u64::from(*size);
                }
                Err(_) => failed += 1,
            }
            end = end.max(ended.ended_at);
        }
    }
    // What did not end has lasted until now.
    let is_over = is_over && open == 0;
    let end = if is_over { end } else { world.now() };
    took.sort_by(f64::total_cmp);
    let mean = took.iter().sum::<f64>() / took.len().max(1) as f64;
    outcome.add("transfers", took.len() as f64);
    outcome.add("failed", failed as f64);
    outcome.add("open", open as f64);
    outcome.add("is_over", f64::from(u8::from(is_over)));
    outcome.add("span_us", end.picos() as f64 / 1e6);
    outcome.add("gbit_per_s", bytes as f64 * 8e3 / end.picos().max(1) as f64);
    outcome.add("mean_us", mean);
    for (name, percent) in [("p50_us", 50), ("p90_us", 90), ("p99_us", 99), ("max_us", 100)] {
        outcome.add(name, percentile(&took, percent));
    }
    let (mut sums, mut busiest) = (BTreeMap::new(), [0.0_f64; 2]);
    for (number, part) in network.nodes.iter().enumerate() {
        let host = host(*part);
        let mut values: Vec<_> =
            host.counters().named().into_iter().map(|(name, count)| (name, count as f64)).collect();
        for (name, count) in &values {
            *sums.entry(name.clone()).or_insert(0.0) += count;
        }
        let processor = busy_percent(host.processor_busy(), end);
        busiest[0] = busiest[0].max(processor);
        values.push(("processor_busy_percent".into(), processor));
        values.push(("sender_busy_percent".into(), busy_percent(host.sender_busy(), end)));
        let (refused, unreadable) = host.dropped();
        values.extend([("mailbox_refused".into(), refused as f64), ("unreadable".into(), unreadable as f64)]);
        if let Some(faults) = host.faults() {
            values.extend([
                ("pages_touched".into(), faults.machine.pages_touched as f64),
                ("touches".into(), faults.machine.touches as f64),
                ("driver_busy_percent".into(), busy_percent(faults.driver, end)),
                ("thread_busy_percent".into(), busy_percent(faults.thread, end)),
            ]);
        }
        outcome.parts.push((format!("node {number}"), values));
    }
    for line in network.lines.values() {
        let counters = world.part::<Link>(*line).expect("a line").counters();
        let busy = busy_percent(counters.busy, end);
        busiest[1] = busiest[1].max(busy);
        let values = [
            ("sent", counters.sent as f64),
            ("bytes", counters.bytes as f64),
            ("lost", counters.lost as f64),
            ("overrun", counters.overrun as f64),
            ("damaged", counters.damaged as f64),
            ("repeated", counters.repeated as f64),
            ("most_waiting_bytes", counters.most_waiting as f64),
            ("busy_percent", busy),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value)).to_vec();
        outcome.parts.push((network.names[line].clone(), values));
    }
    for name in ["blocks_sent", "blocks_retransmitted", "timeouts", "packets_placed", "bypasses"] {
        outcome.add(name, sums.get(name).copied().unwrap_or(0.0));
    }
    outcome.add("busiest_processor_percent", busiest[0]);
    outcome.add("busiest_link_percent", busiest[1]);
    let name = |part: PartId| network.names.get(&part).cloned().unwrap_or_default();
    outcome.keep(slices, name);
    outcome.tracks_cut_at = world.timeline_cut_at();
    outcome
}

#[cfg(test)]
mod tests {
    use crate::study::{Scenario, run};

    /// A value of an example, with these keys set.
    fn value(example: &str, set: &[(&str, &str)], name: &str) -> f64 {
        let set: Vec<_> = set.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let text = Scenario::example(example).expect("an example");
        let scenario = Scenario::parse(text, &set).unwrap_or_else(|error| panic!("{example}: {error}"));
        let outcome = run(&scenario, false).unwrap_or_else(|error| panic!("{example}: {error}"));
        outcome.value(name).unwrap_or_else(|| panic!("{example} has no {name}"))
    }

    /// The values of a sweep; `grows`: each is larger than the one before, else smaller.
    fn sweep(example: &str, key: &str, values: &[&str], name: &str, grows: bool) {
        let found: Vec<f64> = values.iter().map(|one| value(example, &[(key, one)], name)).collect();
        let is_right = found.windows(2).all(|pair| (pair[0] < pair[1]) == grows && pair[0] != pair[1]);
        assert!(is_right, "{example}: {name} by {key} {values:?}: {found:?}");
    }

    /// What each example is there to show.
    #[test]
    fn each_setting_does_what_it_says() {
        sweep("livelock", "faults.loss", &["0", "1000", "10000"], "gbit_per_s", false);
        sweep("livelock", "faults.loss", &["0", "1000", "10000"], "blocks_retransmitted", true);
        sweep("touch-ahead", "pages.ahead", &["1", "2", "4"], "max_us", false);
        sweep("window", "constants.outstanding", &["1", "2"], "gbit_per_s", true);
        sweep("classes", "engine.classes", &["true", "false"], "p50_us", true);
        sweep("links", "topology.links", &["1", "2", "4"], "gbit_per_s", true);
        sweep("timeout", "constants.timeout", &["0.5", "5", "20"], "max_us", true);
        sweep("window", "engine.optimised", &["true", "false"], "max_us", true);
        sweep("window", "workload.reads", &["false", "true"], "max_us", true);
        sweep("timeout", "workload.gap_us", &["0", "10"], "span_us", true);
        sweep("window", "topology.nodes", &["2", "3"], "transfers", true);
        let incast = |queue: &str| {
            let set = [
                ("topology.kind", "ring"),
                ("topology.nodes", "4"),
                ("workload.kind", "incast"),
                ("topology.queue_kib", queue),
            ];
            value("window", &set, "blocks_retransmitted")
        };
        assert!(incast("4") > 0.0 && incast("65536") == 0.0, "{} {}", incast("4"), incast("65536"));
    }

    #[test]
    fn faults_of_each_kind_are_seen_by_the_engines() {
        let count = |key: &str, name: &str| {
            value("livelock", &[("faults.loss", "0"), (key, "5000"), ("faults.delay_us", "50")], name)
        };
        assert!(count("faults.corruption", "blocks_retransmitted") > 0.0);
        let twice =
            count("faults.duplication", "packets_placed") - count("faults.reordering", "packets_placed");
        assert!(twice >= 0.0 && count("faults.duplication", "failed") == 0.0);
        // Nothing arrives: nothing ends, and that is said.
        let lost = [("faults.loss", "1000000"), ("workload.count", "1"), ("constants.timeout", "100")];
        let of = |name: &str| value("livelock", &lost, name);
        assert_eq!((of("transfers"), of("open"), of("is_over"), of("gbit_per_s")), (0.0, 1.0, 0.0, 0.0));
        assert!(of("busiest_link_percent") <= 100.0 && of("span_us") > 9e8);
    }

    #[test]
    fn absent_pages_at_each_end_are_another_matter() {
        let pages = |source, destination| {
            let set = [("pages.source", source), ("pages.destination", destination)];
            value("touch-ahead", &set, "max_us")
        };
        let [none, source, destination] = [("false", "false"), ("true", "false"), ("false", "true")]
            .map(|(source, destination)| pages(source, destination));
        // Of the source only the timeout of 1 ms brings a block again.
        assert!(
            none < destination && destination < 1_000.0 && source > 1_000.0,
            "{none} {source} {destination}"
        );
    }

    #[test]
    fn more_transfers_than_an_engine_takes_are_refused() {
        let text = Scenario::example("window").expect("an example");
        let set = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        for set in [
            vec![set("workload.outstanding", "2000"), set("workload.count", "2000")],
            vec![set("workload.count", "100000000")],
        ] {
            let scenario = Scenario::parse(text, &set).expect("each value is right");
            assert!(run(&scenario, false).is_err(), "{set:?}");
        }
    }
}
