//! Ports whose frames take long, always, now and then, or never, in virtual time.

use tombolo_core::nic::PortId;
use tombolo_core::nic::effort::{
    ASIDE_MAX_NS, ASIDE_MIN_NS, EXCESS_MAX_NS, EXCESS_OF_ALL_MAX_NS, Effort, WATCH_NS, usual_ns,
};
use tombolo_random::{Random, Seeds};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// What a port's frames take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cost {
    Usual,
    /// Each of them.
    Long(u64),
    /// One of so many.
    NowAndThen(u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    Nothing,
    /// What is written aside is not told of.
    AsideForgotten,
    /// It is said that all is usual.
    CostsForgotten,
}

/// Ten seconds and more of one thread, whose frames go to ports in turn.
fn run(seed: u64, planted: Planted) {
    let mut random = Random::new(seed);
    let mut effort = Effort::default();
    let count = 1 + random.below(6) as u16;
    let mut costs: Vec<Cost> = (0..count)
        .map(|_| match random.below(3) {
            0 => Cost::Usual,
            1 => Cost::Long(100_000 + random.below(20 * MS)),
            _ => Cost::NowAndThen(1 + random.below(200), random.below(30 * MS)),
        })
        .collect();
    // Beyond the usual, in the thread itself; the longest; and when each port went aside first, and began to be quick.
    let mut direct_ns = vec![0u64; count.into()];
    let (mut longest_ns, mut now_ns) = (vec![0u64; count.into()], 0u64);
    let (mut aside_since, mut quick_since) = (vec![None; count.into()], vec![None; count.into()]);
    let end_ns = 10 * S + random.below(10 * S);
    while now_ns < end_ns {
        let index = random.below(count.into()) as usize;
        let id = PortId(index as u16);
        let bytes = 60 + random.below(65_000) as usize;
        let usual = usual_ns(bytes);
        let took_ns = match costs[index] {
            Cost::Usual => random.below(usual),
            Cost::Long(ns) => usual + ns,
            Cost::NowAndThen(parts, ns) => usual + if random.below(parts) == 0 { ns } else { 0 },
        };
        let is_aside = effort.is_aside(now_ns, id);
        let is_watched = effort.is_watched(now_ns, id);
        // Others keep the processor busy, which is no matter of the port's.
        let waited_ns = if random.one_in(50) { random.below(10 * MS) } else { 0 };
        assert!(
            costs[index] != Cost::Usual || quick_since[index].is_some() || !is_aside,
            "a quick port is aside"
        );
        // What is written aside takes none of this thread's time.
        now_ns += if is_aside { 50_000 } else { took_ns };
        if is_aside {
            aside_since[index].get_or_insert(now_ns);
        } else {
            direct_ns[index] += took_ns.saturating_sub(usual);
            longest_ns[index] = longest_ns[index].max(took_ns);
        }
        let is_told = !(is_aside && planted == Planted::AsideForgotten || planted == Planted::CostsForgotten);
        if is_told && is_aside {
            effort.spent_aside(now_ns, id, bytes, took_ns);
        } else if is_told && is_watched {
            effort.spent(now_ns, id, bytes, took_ns);
        } else if is_told {
            effort.took(now_ns, id, bytes, took_ns + waited_ns);
        }
        // One that was slow has thrown its rules away.
        if random.below(200_000) == 0 && costs[index] != Cost::Usual {
            costs[index] = Cost::Usual;
            quick_since[index] = Some(now_ns);
        }
    }
    for index in 0..usize::from(count) {
        // One that is always slow is tried once; others are tried less and less often. And there is the frame by which it is
        // first seen, once a second.
        let (tries, seen, counted_ns) = match costs[index] {
            Cost::Long(_) => (1, 1, aside_since[index].unwrap_or(now_ns)),
            _ => (2 + u64::from((now_ns / ASIDE_MIN_NS).ilog2()), 1 + now_ns / WATCH_NS, now_ns),
        };
        let most = counted_ns / 20 + (EXCESS_MAX_NS + longest_ns[index]) * tries + longest_ns[index] * seen;
        assert!(direct_ns[index] <= most, "{:?} has cost {} ns, not {most}", costs[index], direct_ns[index]);
        let id = PortId(index as u16);
        // It comes back.
        assert!(!effort.is_aside(now_ns + ASIDE_MAX_NS, id));
        effort.remove(id);
        assert!(!effort.is_aside(now_ns, id), "it is another one");
    }
}

#[test]
fn slow_ports_cost_others_little_and_quick_ones_stay() {
    Seeds::from_environment(200).run("cargo test -p tombolo-core --test nic", |seed| {
        run(seed, Planted::Nothing);
    });
}

/// Ports none of which costs more than it may: together they do, and a quick one among them is left alone.
#[test]
fn many_ports_that_are_a_little_slow_cost_others_little() {
    const COUNT: u16 = 40;
    let (mut effort, mut now_ns, mut direct_ns) = (Effort::default(), 0, 0);
    let usual = usual_ns(60);
    while now_ns < 20 * S {
        for id in (0..COUNT).map(PortId) {
            let excess_ns = if id.0 == 0 { 0 } else { 90_000 };
            if effort.is_aside(now_ns, id) {
                assert!(id.0 != 0, "a quick port is aside");
                now_ns += usual;
            } else {
                now_ns += usual + excess_ns;
                direct_ns += excess_ns;
            }
            if effort.is_aside(now_ns, id) {
                effort.spent_aside(now_ns, id, 60, usual + excess_ns);
            } else if effort.is_watched(now_ns, id) {
                effort.spent(now_ns, id, 60, usual + excess_ns);
            } else {
                effort.took(now_ns, id, 60, usual + excess_ns);
            }
        }
    }
    let most = now_ns / 10 + 2 * EXCESS_OF_ALL_MAX_NS;
    assert!(direct_ns <= most, "they have cost {direct_ns} ns, not {most}");
}

/// However long a port was slow, once it is quick it comes back, and a little now and then does not send it away again.
#[test]
fn a_port_that_is_quick_again_is_as_others() {
    let (mut effort, id, usual, mut now_ns) = (Effort::default(), PortId(0), usual_ns(60), 0);
    effort.took(now_ns, id, 60, 20 * MS);
    assert!(effort.spent(now_ns, id, 60, 20 * MS));
    while now_ns < 60 * S {
        assert!(effort.is_aside(now_ns, id));
        effort.spent_aside(now_ns, id, 60, 8 * MS);
        now_ns += 10 * MS;
    }
    let since_ns = now_ns;
    while effort.is_aside(now_ns, id) {
        effort.spent_aside(now_ns, id, 60, usual);
        now_ns += MS;
    }
    assert!(now_ns - since_ns <= ASIDE_MIN_NS, "it was slow once");
    for _ in 0..10_000 {
        assert!(!effort.spent(now_ns, id, 60, usual + 1_000) && !effort.is_aside(now_ns, id));
        now_ns += MS;
    }
}

#[test]
fn planted_mistakes_about_slow_ports_are_found() {
    for planted in [Planted::AsideForgotten, Planted::CostsForgotten] {
        let found = (1..=50).filter(|&seed| std::panic::catch_unwind(|| run(seed, planted)).is_err()).count();
        assert!(found > 0, "{planted:?}");
    }
}
