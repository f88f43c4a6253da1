//! What goes by the links of borrowers and neighbours in a second, from two looks.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use serde::Serialize;
use tombolo_node::{Borrower, LinkStatus, NeighbourStatus, NodeStatus};

/// What goes by the links to one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rate {
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// The rates of a status's entries, in the same order.
#[derive(Default)]
pub struct Rates {
    pub borrowers: Vec<Option<Rate>>,
    pub neighbours: Vec<Option<Rate>>,
}

/// Bytes sent and received, by link.
type Totals = Vec<(u8, u64, u64)>;

impl Rates {
    pub fn between(before: &NodeStatus, now: &NodeStatus, elapsed: Duration) -> Self {
        Self {
            borrowers: of(&before.borrowers, &now.borrowers, elapsed, |borrower: &Borrower| {
                let Borrower { name, process_id, address, key, .. } = borrower;
                // The kernel counts what it maps, not the link.
                let links = if borrower.is_mapped { &[][..] } else { &borrower.links };
                ((0, name.clone(), *process_id, address.clone(), key.clone()), totals(links))
            }),
            neighbours: of(&before.neighbours, &now.neighbours, elapsed, |neighbour: &NeighbourStatus| {
                let NeighbourStatus { number, name, process_id, key, addresses, links, .. } = neighbour;
                ((*number, name.clone(), *process_id, addresses.first().cloned(), key.clone()), totals(links))
            }),
        }
    }
}

/// Who it is, as well as can be told.
type Who = (u32, String, Option<u32>, Option<String>, Option<String>);

fn of<T>(
    before: &[T],
    now: &[T],
    elapsed: Duration,
    each: impl Fn(&T) -> (Who, Totals),
) -> Vec<Option<Rate>> {
    // Those that cannot be told apart stand in the same order.
    let mut known: HashMap<Who, VecDeque<Totals>> = HashMap::new();
    for (who, totals) in before.iter().map(&each) {
        known.entry(who).or_default().push_back(totals);
    }
    let rate = |(who, totals): (Who, Totals)| {
        let earlier = known.get_mut(&who)?.pop_front()?;
        let mut sums = [0u64; 2];
        for (path, sent, received) in &totals {
            // A link that has come since begins with what it has carried since.
            let found = earlier.iter().find(|(known, ..)| known == path);
            let (sent_before, received_before) =
                found.map_or((0, 0), |(_, sent, received)| (*sent, *received));
            sums[0] = sums[0].saturating_add(sent.saturating_sub(sent_before));
            sums[1] = sums[1].saturating_add(received.saturating_sub(received_before));
        }
        let per_s = |bytes: u64| (bytes as f64 / elapsed.as_secs_f64()).round() as u64;
        (!totals.is_empty()).then(|| Rate { sent_bytes: per_s(sums[0]), received_bytes: per_s(sums[1]) })
    };
    now.iter().map(each).map(rate).collect()
}

fn totals(links: &[LinkStatus]) -> Totals {
    links.iter().map(|link| (link.path, link.sent_bytes, link.received_bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(name: &str, links: &[(u8, u64)]) -> NeighbourStatus {
        let link = |&(path, bytes): &(u8, u64)| LinkStatus {
            path,
            sent_bytes: bytes,
            received_bytes: 2 * bytes,
            ..LinkStatus::default()
        };
        NeighbourStatus {
            name: name.into(),
            links: links.iter().map(link).collect(),
            ..NeighbourStatus::default()
        }
    }

    #[test]
    fn rates_are_those_of_the_same_node_between_two_looks() {
        let status = |neighbours: Vec<NeighbourStatus>| NodeStatus { neighbours, ..NodeStatus::default() };
        let before = status(vec![
            neighbour("twin", &[(0, 100)]),
            neighbour("gone", &[(0, 5)]),
            neighbour("twin", &[(0, 1000)]),
        ]);
        let now = status(vec![
            neighbour("new", &[(0, 7)]),
            neighbour("twin", &[(0, 300), (1, 50)]),
            neighbour("twin", &[(0, 1000)]),
            neighbour("absent", &[]),
        ]);
        let rates = Rates::between(&before, &now, Duration::from_millis(500));
        let rate = |bytes| Some(Rate { sent_bytes: bytes, received_bytes: 2 * bytes });
        assert_eq!(rates.neighbours, [None, rate(500), rate(0), None]);
    }

    #[test]
    fn of_who_maps_the_memory_no_rate_is_known() {
        let borrower =
            |is_mapped| Borrower { is_mapped, links: vec![LinkStatus::default()], ..Borrower::default() };
        let status = NodeStatus { borrowers: vec![borrower(true), borrower(false)], ..NodeStatus::default() };
        let rates = Rates::between(&status, &status, Duration::from_secs(1));
        assert_eq!(rates.borrowers, [None, Some(Rate::default())]);
    }
}
