//! The sending side: queues bursts for links and cuts them into databeats.

use std::collections::VecDeque;

use tombolo_wire::{BusTransaction, Databeat, TransactionKind};

use super::MAX_INTERFACES;

/// Databeats that leave in one cycle of a link: up to two, since the stream has 128 bits.
pub type Cycle = [Option<Databeat>; 2];

/// How the parts of transactions follow each other (REMAP §V).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pacing {
    /// Each transaction begins a cycle of its own.
    BackToBack,
    /// Data of a burst follow each other without gaps. An address or an answer has a cycle of its own.
    Pipelined,
}

/// A burst: an address and what is written there, data that were read, or an answer.
type Burst = VecDeque<BusTransaction>;

/// One link: the bursts of each interface that go by it.
#[derive(Debug, Default)]
struct Link {
    waiting: Vec<VecDeque<Burst>>,
    /// The interface whose burst is being sent, and what is left of it.
    current: Option<(u8, Burst)>,
    /// Parts of the transaction that is being sent.
    parts: VecDeque<Databeat>,
    /// The interface that had its turn last.
    last: usize,
}

impl Link {
    fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.current.is_none() && self.waiting.iter().all(VecDeque::is_empty)
    }

    /// Takes up the next transaction. `goes_on`: only if it is data of the burst that is being sent.
    fn next_transaction(&mut self, goes_on: bool) {
        if self.current.as_ref().is_none_or(|(_, burst)| burst.is_empty()) {
            self.current = None;
            if goes_on {
                return;
            }
            let count = self.waiting.len();
            let turns = (1..=count).map(|turn| (self.last + turn) % count);
            let Some(next) = turns.into_iter().find(|interface| !self.waiting[*interface].is_empty()) else {
                return;
            };
            self.last = next;
            self.current = self.waiting[next].pop_front().map(|burst| (next as u8, burst));
        }
        let Some((interface, burst)) = &mut self.current else { return };
        let is_data = |transaction: &BusTransaction| {
            matches!(transaction.kind(), TransactionKind::WriteData | TransactionKind::ReadData)
        };
        if goes_on && !burst.front().is_some_and(is_data) {
            return;
        }
        if let Some(transaction) = burst.pop_front() {
            self.parts.extend(transaction.parts(*interface));
        }
    }

    fn poll(&mut self, pacing: Pacing) -> Option<Cycle> {
        if self.parts.is_empty() {
            self.next_transaction(false);
        }
        let first = self.parts.pop_front()?;
        if self.parts.is_empty() && pacing == Pacing::Pipelined {
            let is_data = matches!(first.kind, TransactionKind::WriteData | TransactionKind::ReadData);
            if is_data {
                self.next_transaction(true);
            }
        }
        Some([Some(first), self.parts.pop_front()])
    }
}

/// The sending side of a compute block or a memory block.
#[derive(Debug)]
pub struct Egress {
    pacing: Pacing,
    links: Vec<Link>,
    /// For each set of links: which of them the last burst for that set has taken. The sets are few.
    last: Vec<(Vec<u8>, usize)>,
}

impl Egress {
    /// A sending side without bursts. Either number is raised to 1 or lowered to [`MAX_INTERFACES`] if necessary.
    #[must_use]
    pub fn new(interfaces: usize, links: usize, pacing: Pacing) -> Self {
        let interfaces = interfaces.clamp(1, MAX_INTERFACES);
        let link = || Link { waiting: vec![VecDeque::new(); interfaces], ..Link::default() };
        Self {
            pacing,
            links: (0..links.clamp(1, MAX_INTERFACES)).map(|_| link()).collect(),
            last: Vec::new(),
        }
    }

    /// Queues a burst of an interface for one of these links, all of which lead to the same memory block. Bursts
    /// with the same set of links take these links in turn. `false` if there is no such interface, or none of these
    /// links.
    pub fn push(
        &mut self,
        interface: u8,
        links: &[u8],
        burst: impl IntoIterator<Item = BusTransaction>,
    ) -> bool {
        let known: Vec<u8> =
            links.iter().copied().filter(|link| usize::from(*link) < self.links.len()).collect();
        if known.is_empty() || usize::from(interface) >= self.links[0].waiting.len() {
            return false;
        }
        let place = match self.last.iter_mut().find(|(set, _)| *set == known) {
            Some((set, place)) => {
                *place = (*place + 1) % set.len();
                *place
            }
            None => {
                self.last.push((known.clone(), 0));
                0
            }
        };
        let link = &mut self.links[usize::from(known[place])];
        link.waiting[usize::from(interface)].push_back(burst.into_iter().collect());
        true
    }

    /// The databeats that a link sends in its next cycle. `None` if there are none.
    pub fn poll(&mut self, link: u8) -> Option<Cycle> {
        let pacing = self.pacing;
        self.links.get_mut(usize::from(link))?.poll(pacing)
    }

    /// Whether nothing waits or is being sent.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.links.iter().all(Link::is_idle)
    }
}
