//! MICRO §4.1 and §4.10: pages that two nodes share, and the writes that lock up both.

use super::{Claim, Class, Document, Figure, Kind, Number, Report, Role, micro, named, qos};
use crate::boards::qfdb;
use crate::boards::zedboard::{PairEnd, Port, STORES, pair};
use crate::hosts::{EngineHost, Program};
use crate::kernel::Span;
use crate::parts::{AccessKind, Cache, CacheConfig, SnoopSlots};
use crate::platform::PlatformError;
use tombolo_core::rdma::Direction;

const PLATFORM: &str = "zedboard-gen1";
/// What figures of this file have in common.
const KIND: Kind = Kind { document: Document::Micro, class: Class::Hardware, platform: PLATFORM };
/// Accesses to one word, one after the other.
const ACCESSES: u32 = 100;

/// Figures of chapter 4.
pub const FIGURES: [Figure; 2] = [
    Figure { id: "M-CACHE", document: Document::Micro, run: caching },
    Figure { id: "M-LOCK", document: Document::Micro, run: lock_up },
];

/// Who caches a page that its owner and a user of another node share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caching {
    User,
    Owner,
    Nowhere,
}

/// A word of such a page: its value in memory and in caches, whose lines say whether it is there.
struct Shared {
    caching: Caching,
    /// By which port of the owner the user's accesses come.
    port: Port,
    memory: u64,
    /// Of the user and of the owner.
    caches: [(Cache, u64); 2],
    /// Accesses that went to the other node.
    remote: u32,
}

const USER: usize = 0;
const OWNER: usize = 1;
/// Where the word is.
const WORD: u64 = 64;

impl Shared {
    fn new(caching: Caching, port: Port) -> Self {
        // One line is enough.
        let cache = || (Cache::new(CacheConfig { line_bytes: 32, ways: 1, sets: 1 }), 0);
        Self { caching, port, memory: 0, caches: [cache(), cache()], remote: 0 }
    }

    fn is_cached(&self, by: usize) -> bool {
        match self.caching {
            Caching::User => by == USER,
            Caching::Owner => by == OWNER,
            Caching::Nowhere => false,
        }
    }

    /// An access to the owner's memory by the user: the coherent port asks the owner's cache first.
    fn at_owner(&mut self, write: Option<u64>) -> u64 {
        self.remote += 1;
        let is_there = self.port == Port::Acp && self.caches[OWNER].0.has(WORD);
        let place = if is_there { &mut self.caches[OWNER].1 } else { &mut self.memory };
        if let Some(value) = write {
            *place = value;
        }
        *place
    }

    /// A node writes the word, or reads it.
    fn access(&mut self, by: usize, write: Option<u64>) -> u64 {
        let kind = if write.is_some() { AccessKind::Write } else { AccessKind::Read };
        if self.is_cached(by) {
            if self.caches[by].0.access(WORD, kind).is_err() {
                self.caches[by].1 = if by == USER { self.at_owner(None) } else { self.memory };
            }
            if let Some(value) = write {
                self.caches[by].1 = value;
            }
            return self.caches[by].1;
        }
        if by == USER {
            return self.at_owner(write);
        }
        if let Some(value) = write {
            self.memory = value;
        }
        self.memory
    }

    /// Whether each node sees what the other wrote, after both have had the word.
    fn is_seen(caching: Caching, port: Port) -> [bool; 2] {
        [(USER, OWNER), (OWNER, USER)].map(|(writer, reader)| {
            let mut shared = Self::new(caching, port);
            shared.access(reader, None);
            shared.access(writer, Some(7));
            shared.access(reader, None) == 7
        })
    }
}

fn caching() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "M-CACHE",
        "Who caches a borrowed page",
        "MICRO §4.1, Fig 4.1, 4.2",
        "a cache at the user, at the owner, or nowhere; the coherent port asks the owner's cache, the other one does not",
    );
    let read_ns = micro::word_ns(&platform, AccessKind::Read)?;
    let mut spent = Vec::new();
    for (what, caching) in [
        ("cached by its user", Caching::User),
        ("by its owner", Caching::Owner),
        ("nowhere", Caching::Nowhere),
    ] {
        let mut shared = Shared::new(caching, Port::Acp);
        for _ in 0..ACCESSES {
            shared.access(USER, None);
        }
        spent.push((what, f64::from(shared.remote) * read_ns));
    }
    report.claims.push(Claim {
        what: "who caches a page pays for the way once, and who does not with each access".into(),
        found: spent
            .iter()
            .map(|(what, ns)| format!("{what}: {ns:.0} ns for {ACCESSES} reads"))
            .collect::<Vec<_>>()
            .join("; "),
        holds: spent[0].1 * f64::from(ACCESSES) == spent[1].1 && spent[1].1 == spent[2].1,
        note: None,
    });
    for (what, caching, port, seen) in [
        (
            "with the page cached by its user neither sees the other's writes",
            Caching::User,
            Port::Acp,
            [false, false],
        ),
        ("with owner and coherent port both do", Caching::Owner, Port::Acp, [true, true]),
        ("with owner and the other port neither does", Caching::Owner, Port::Hp, [false, false]),
        ("without caches both do", Caching::Nowhere, Port::Hp, [true, true]),
    ] {
        let found = Shared::is_seen(caching, port);
        report.claims.push(Claim {
            what: what.into(),
            found: format!("owner sees user: {}; user sees owner: {}", found[0], found[1]),
            holds: found == seen,
            note: None,
        });
    }
    report.numbers.push(Number {
        what: "one access to the other node, on average".into(),
        stated: 725.0,
        found: f64::midpoint(read_ns, micro::word_ns(&platform, AccessKind::Write)?),
        unit: "ns",
        role: Role::Shown,
        note: None,
    });
    Ok(report)
}

/// Two engines under load in both directions: how many transfers complete, and of how many; none, if a part waits for ever.
fn engines() -> Result<(usize, usize), PlatformError> {
    const COUNT: u64 = 50;
    let mut board = qfdb::board(&named("exanest-qfdb"), &qfdb::Setup::default())?;
    let mut programs = Vec::new();
    for node in board.nodes.clone() {
        for direction in [Direction::Write, Direction::Read] {
            let transfer = qos::transfer(direction, 64 << 10);
            let program =
                Program { peer: qfdb::PEER, transfer, count: COUNT, outstanding: 8, gap: Span::ZERO };
            let program = board.world.with(node, |host: &mut EngineHost, here| host.run(here, program));
            programs.push((node, program.expect("a node")));
        }
    }
    let is_over = board.world.run_within(Span::from_ns(10_000_000_000)) && board.world.stuck().is_empty();
    let ended = programs.iter().map(|(node, program)| {
        let host = board.world.part::<EngineHost>(*node).expect("a node");
        host.ended(*program).iter().filter(|ended| ended.status == Ok(())).count()
    });
    Ok((if is_over { ended.sum() } else { 0 }, programs.len() * COUNT as usize))
}

fn lock_up() -> Result<Report, PlatformError> {
    let mut report = KIND.report(
        "M-LOCK",
        "Two nodes that write each other's memory",
        "MICRO §4.10",
        "a snoop unit that holds one write, and has another one with another destination wait behind it",
    );
    let written = |slots, nodes: &[usize]| pair(slots, AccessKind::Write).run(nodes);
    let is_whole = |end: &PairEnd, nodes: &[usize]| {
        end.stuck.is_empty() && nodes.iter().all(|node| end.answered[*node] == STORES)
    };
    for (what, slots, nodes, locks_up) in [
        ("one node alone does not lock up", SnoopSlots::One, &[0][..], false),
        ("nor does the other", SnoopSlots::One, &[1], false),
        ("both lock up at the first store", SnoopSlots::One, &[0, 1], true),
        ("whichever begins", SnoopSlots::One, &[1, 0], true),
        ("with a unit that holds one write each way they do not", SnoopSlots::OneEachWay, &[0, 1], false),
    ] {
        let end = written(slots, nodes);
        let found = if end.stuck.is_empty() {
            format!("{:?} stores are answered", end.answered)
        } else {
            format!("{:?} stores are answered; for ever wait {}", end.answered, end.stuck.join(", "))
        };
        let holds =
            if locks_up { end.answered == [0, 0] && !end.stuck.is_empty() } else { is_whole(&end, nodes) };
        report.claims.push(Claim { what: what.into(), found, holds, note: None });
    }
    let reads = pair(SnoopSlots::One, AccessKind::Read).run(&[0, 1]);
    report.claims.push(Claim {
        what: "reads of both do not".into(),
        found: format!("{:?} loads are answered", reads.answered),
        holds: is_whole(&reads, &[0, 1]),
        note: None,
    });
    let (ended, all) = engines()?;
    report.claims.push(Claim {
        what: "nor do two engines that write and read each other's memory at once".into(),
        found: format!("{ended} of {all} transfers complete, and nothing waits"),
        holds: ended == all,
        note: None,
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_holds() {
        for report in [caching(), lock_up()].map(|report| report.expect("constants")) {
            assert!(report.claims.iter().all(|claim| claim.holds), "{:?}", report.claims);
        }
    }
}
