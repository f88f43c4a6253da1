//! The status of this node, in parts that each fit into a control message.
//!
//! Borrowers come first, then neighbours, programs, and, on request, the counters of the node and of each link. Each
//! part is made when it is asked for. So an entry that appears or disappears between two parts may be missing, or be in
//! both.

use std::cell::OnceCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde::Serialize;
use tombolo_host::pool::{BlockingTask, Step};
use tombolo_link::MAX_CONTROL_BYTES;

use crate::driver::node::Node;
use crate::fabric::connection::Connection;
use crate::fabric::messages::Reply;
use crate::fabric::neighbour::Neighbour;
use crate::fabric::status::{
    Borrower, LinkStatus, NeighbourState, NeighbourStatus, NodeStatus, ProgramStatus, json_of,
};
use crate::fabric::wanted::WantedStatus;
use crate::lending::asker::Asker;

/// Room for a part in an answer. The rest is for the text around it.
const MAX_PART_BYTES: usize = MAX_CONTROL_BYTES - 64;
/// Maximum number of listening addresses in a status: each part repeats them.
const MAX_LISTENS: usize = 16;
/// Bytes that a counter takes besides its name, at most: quotation marks, colon, comma and twenty digits.
const COUNTER_BYTES: usize = 24;

// The first place of each section. Places of entries rise from part to part.
const WANTED: u64 = 1 << 32;
const NEIGHBOURS: u64 = 2 << 32;
const PROGRAMS: u64 = 3 << 32;
const COUNTERS: u64 = 4 << 32;
const LINKS: u64 = 5 << 32;

/// An entry of a status.
enum Entry {
    Borrower(Borrower),
    Neighbour(NeighbourStatus),
    Program(ProgramStatus),
    Counters(Vec<(String, u64)>),
}

impl Entry {
    /// Bytes that this entry takes in a part.
    fn bytes(&self) -> usize {
        fn with_comma(entry: &impl Serialize) -> usize {
            json_of(entry).len() + 1
        }
        match self {
            Self::Borrower(borrower) => with_comma(borrower),
            Self::Neighbour(neighbour) => with_comma(neighbour),
            Self::Program(program) => with_comma(program),
            Self::Counters(counters) => counters.iter().map(|(name, _)| name.len() + COUNTER_BYTES).sum(),
        }
    }

    fn enter(self, status: &mut NodeStatus) {
        match self {
            Self::Borrower(borrower) => status.borrowers.push(borrower),
            Self::Neighbour(neighbour) => status.neighbours.push(neighbour),
            Self::Program(program) => status.programs.push(program),
            Self::Counters(counters) => status.counters.extend(counters),
        }
    }
}

/// Answers a peer that asks for this node's status. It is a task because, with many links, collecting the status takes
/// longer than other threads may wait for the engine.
struct StatusTask {
    node: Weak<Node>,
    asker: Asker,
    from: u64,
    counters: bool,
}

impl BlockingTask for StatusTask {
    fn step(&mut self) -> Step {
        if let Some(step) = self.asker.send() {
            return step;
        }
        match self.node.upgrade().filter(|_| self.asker.neighbour.loss().is_none()) {
            Some(node) => self.asker.answer(node.status_reply(self.from, self.counters)),
            None => Step::Over,
        }
    }
}

impl Node {
    /// Answers a peer that asks for this node's status from entry `from` on. `None`: the answer follows.
    pub(crate) fn answer_with_status(
        &self,
        by: &Arc<Connection>,
        number: u32,
        from: u64,
        counters: bool,
    ) -> Option<Reply> {
        // The node is not served: for example, a program drives a node of its own.
        let Some(node) = self.served.get() else { return Some(self.status_reply(from, counters)) };
        let node = node.clone();
        self.lending.begin_for(by, number, |asker| Box::new(StatusTask { node, asker, from, counters }))
    }

    fn status_reply(&self, from: u64, counters: bool) -> Reply {
        let (part, next) = self.status_part(from, counters, MAX_PART_BYTES);
        Reply::Status { part: part.text(), next }
    }

    /// The whole status of this node, with its counters.
    pub fn status(&self) -> NodeStatus {
        self.status_part(0, true, usize::MAX).0
    }

    /// A part of this node's status, from place `from` on: as many entries as fit into `max_bytes`. Also returns the
    /// place at which the next part begins, if there is one.
    pub fn status_part(&self, from: u64, counters: bool, max_bytes: usize) -> (NodeStatus, Option<u64>) {
        let mut connections = self.peers();
        connections.sort_by_key(|connection| connection.id);
        let mut status = self.status_head();
        let head_bytes = status.text().len();
        let mut left_bytes = max_bytes.saturating_sub(head_bytes);
        for (place, entry) in self.entries(&connections, from, counters) {
            // Without a limit, nothing is measured.
            let bytes = if max_bytes == usize::MAX { 0 } else { entry.bytes() };
            // An entry that fits into no part is left out: the next part must begin after this one.
            if head_bytes.saturating_add(bytes) > max_bytes {
                continue;
            }
            let Some(left) = left_bytes.checked_sub(bytes) else { return (status, Some(place)) };
            left_bytes = left;
            entry.enter(&mut status);
        }
        (status, None)
    }

    /// The entries from place `from` on, with their places. Each entry is made when its turn comes.
    fn entries<'a>(
        &'a self,
        connections: &'a [Arc<Connection>],
        from: u64,
        with_counters: bool,
    ) -> impl Iterator<Item = (u64, Entry)> + 'a {
        let links_from = move |section: u64| {
            let placed =
                connections.iter().map(move |connection| (section + u64::from(connection.id.0), connection));
            placed.filter(move |(place, _)| *place >= from)
        };
        let borrowers = links_from(0).filter_map(|(place, connection)| {
            let mut borrower = self.lending.borrower(connection)?;
            borrower.links = self.links_of(connection.neighbour());
            Some((place, Entry::Borrower(borrower)))
        });
        let wanted = self.fabric.wanted();
        let count = wanted.map_or(0, |wanted| wanted.count());
        let wanted = (WANTED..).zip(0..count).filter(move |(place, _)| *place >= from).filter_map(
            move |(place, index)| {
                Some((place, Entry::Neighbour(self.wanted_neighbour(index, wanted?.status(index)?))))
            },
        );
        let neighbours = links_from(NEIGHBOURS)
            .filter(|(_, connection)| self.is_neighbour(connection))
            .map(|(place, connection)| (place, Entry::Neighbour(self.neighbour_status(connection))));
        let domains: Vec<_> = self.programs.open_domains().values().cloned().collect();
        let memory = OnceCell::new();
        let programs = domains.into_iter().filter_map(move |domain| {
            let place = PROGRAMS + u64::from(domain.number) * 256 + u64::from(domain.process);
            let memory = || memory.get_or_init(|| self.programs.memory_by_process());
            (place >= from).then(|| (place, Entry::Program(self.programs.status(&domain, memory()))))
        });
        let counters = (with_counters && from < LINKS).then(|| {
            let own = (COUNTERS..).zip(self.counters(connections)).filter(move |(place, _)| *place >= from);
            own.map(|(place, counter)| (place, Entry::Counters(vec![counter])))
        });
        let of_links = with_counters.then(|| {
            links_from(LINKS)
                .map(|(place, connection)| (place, Entry::Counters(self.link_counters(connection))))
        });
        borrowers
            .chain(wanted)
            .chain(neighbours)
            .chain(programs)
            .chain(counters.into_iter().flatten())
            .chain(of_links.into_iter().flatten())
    }

    /// The fields that every part has.
    fn status_head(&self) -> NodeStatus {
        let ledger = self.lending.ledger.lock();
        let (lend_bytes, lent_bytes) = (ledger.lend_bytes(), ledger.lent_bytes());
        let being_freed_bytes = ledger.account().being_freed_bytes();
        let listens = self.listens.get().map_or(&[][..], Vec::as_slice);
        NodeStatus {
            name: self.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process_id: std::process::id(),
            uptime_s: self.fabric.uptime().as_secs(),
            listens: listens.iter().take(MAX_LISTENS).cloned().collect(),
            ending_within_s: self.fabric.ends_within().map(|within| within.as_secs()),
            lend_bytes,
            lent_bytes,
            free_bytes: lend_bytes.saturating_sub(lent_bytes).saturating_sub(being_freed_bytes),
            being_freed_bytes,
            limits: self.programs.limits(),
            named: ledger.named_totals(),
            ..NodeStatus::default()
        }
    }

    /// Whether this is the first link of a joined node that appears nowhere else in the status.
    fn is_neighbour(&self, connection: &Connection) -> bool {
        !connection.is_part()
            && connection.loss().is_none()
            && connection.identity().is_some()
            && !self.fabric.numbers.is_kept(connection.id)
            && self.lending.borrower(connection).is_none()
    }

    /// The status of a neighbour that this node wants to be joined to.
    fn wanted_neighbour(&self, index: usize, wanted: WantedStatus) -> NeighbourStatus {
        let number = index as u32 + 1;
        let peer = self.fabric.numbers.peer(number).filter(|_| wanted.is_joined);
        let joined = peer.and_then(|peer| self.fabric.connection(peer));
        let mut status = joined.map(|joined| self.neighbour_status(&joined)).unwrap_or_default();
        status.number = number;
        status.is_wanted = true;
        status.addresses = wanted.addresses.iter().map(ToString::to_string).collect();
        status.failure = wanted.failure;
        if status.state != NeighbourState::Silent {
            status.since_s = wanted.lasts.as_secs();
        }
        status
    }

    /// The status of the node that is joined by this link.
    fn neighbour_status(&self, first: &Arc<Connection>) -> NeighbourStatus {
        let neighbour = first.neighbour();
        let (state, lasts) = match silence_of(neighbour) {
            Some(silence) => (NeighbourState::Silent, silence),
            None => (NeighbourState::Joined, first.age()),
        };
        NeighbourStatus {
            number: self.fabric.numbers.number(neighbour.id),
            name: neighbour.name(),
            process_id: first.link.peer_process_id(),
            key: first.link.peer_key().map(|key| key.to_string()),
            addresses: first.link.peer_address().map(|address| address.to_string()).into_iter().collect(),
            is_wanted: false,
            state,
            since_s: lasts.as_secs(),
            failure: None,
            links: self.links_of(neighbour),
        }
    }

    /// The status of each link to a neighbour, with its traffic.
    fn links_of(&self, neighbour: &Neighbour) -> Vec<LinkStatus> {
        let links = neighbour.links();
        let paths: Vec<_> = {
            let engine = self.fabric.engine.lock();
            let place = |link: &Arc<Connection>| link.place();
            links.iter().map(place).map(|(id, path)| engine.path_status(id, path)).collect()
        };
        let status = |(connection, path): (&Arc<Connection>, Option<_>)| {
            let counters = connection.link.counters();
            let path: Option<tombolo_core::rdma::PathStatus> = path;
            LinkStatus {
                path: connection.place().1.0,
                address: connection.link.peer_address().map(|address| address.to_string()),
                answers: !connection.link.is_suspect(),
                sent_bytes: counters.bytes_sent,
                received_bytes: counters.bytes_received,
                packet_bytes: connection.link.max_packet_bytes() as u64,
                window_bytes: path.as_ref().map_or(0, |path| path.window_bytes),
                round_trip_ns: path.as_ref().and_then(|path| path.round_trip_ns),
                blocks_sent: path.as_ref().map_or(0, |path| path.blocks_sent),
            }
        };
        links.iter().zip(paths).map(status).collect()
    }

    /// The counters of a link, for [`Node::status`]: the current size of its packets, and its traffic unless it is the
    /// neighbour's only link.
    fn link_counters(&self, connection: &Arc<Connection>) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        let (id, path) = connection.place();
        let of = format!("peer_{}_path_{}", id.0, path.0);
        let is_lone = !connection.is_part()
            && connection.neighbour().further.read().is_empty()
            && connection.has_link();
        let status = if is_lone { None } else { self.fabric.engine.lock().path_status(id, path) };
        if let Some(status) = status {
            let link = connection.link.counters();
            let values = [
                ("up", u64::from(status.is_up)),
                ("blocks_sent", status.blocks_sent),
                ("bytes_sent", link.bytes_sent),
                ("bytes_received", link.bytes_received),
                ("window_bytes", status.window_bytes),
                ("round_trip_ns", status.round_trip_ns.unwrap_or(0)),
            ];
            counters.extend(values.map(|(name, value)| (format!("{of}_{name}"), value)));
        }
        if connection.has_link() {
            counters.push((format!("{of}_packet_bytes"), connection.link.max_packet_bytes() as u64));
        }
        counters
    }

    /// The counters of the node as a whole, always in the same order.
    fn counters(&self, connections: &[Arc<Connection>]) -> Vec<(String, u64)> {
        let mut counters = vec![("packets_dropped".to_owned(), self.packets_dropped.load(Ordering::Relaxed))];
        counters.extend(self.fabric.engine.lock().counters().named());
        counters.extend(self.gone_links.and(connections.iter().map(|connection| &*connection.link)));
        counters.extend(self.listener_stats.named());
        counters.extend(self.programs.counters());
        counters.extend(self.access_counters());
        counters
    }
}

/// How long all links of a neighbour have been silent. `None`: the neighbour is not suspect.
fn silence_of(neighbour: &Neighbour) -> Option<Duration> {
    if !neighbour.is_suspect() {
        return None;
    }
    let links = neighbour.links();
    Some(links.iter().filter_map(|link| link.silent_for()).min().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use tombolo_link::{Address, Security};

    use super::*;
    use crate::fabric::label::MAX_NAME_BYTES;
    use crate::fabric::messages::{Message, MessageV1, Request};

    const TIMEOUT: Duration = Duration::from_secs(60);
    /// More borrowers than fit into one control message.
    const BORROWERS: usize = 200;

    #[test]
    fn a_node_with_many_borrowers_tells_of_all_of_them() {
        let path = std::env::temp_dir().join(format!("tombolo-status-{}", std::process::id()));
        let address = Address::Shm(path);
        let name = "n".repeat(MAX_NAME_BYTES);
        let lender = Arc::new(Node::new(&name, 1 << 30, 0).unwrap());
        let listener = tombolo_link::listen(&address, &Security::Insecure).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| crate::serve(&lender, &*listener, &stop, &|_| {}));
            let borrower = Node::new(&"b".repeat(MAX_NAME_BYTES), 0, 0).unwrap();
            let mut lent = 0;
            for count in 1..=BORROWERS as u64 {
                let peer = borrower.join(&address, &Security::Insecure, TIMEOUT).unwrap();
                let answer = borrower.ask(&peer, Request::Lend { bytes: 4096 * count }, TIMEOUT);
                assert!(matches!(answer, Ok((Reply::Lent { .. }, _))), "{answer:?}");
                lent += 4096 * count;
            }
            let status =
                crate::StatusClient::connect(&address, &Security::Insecure).unwrap().ask(true).unwrap();
            assert_eq!((status.borrowers.len(), status.lent_bytes), (BORROWERS, lent));
            let sizes: BTreeSet<u64> = status.borrowers.iter().map(|borrower| borrower.bytes).collect();
            assert_eq!(sizes.len(), BORROWERS, "each is told of once");
            assert!(status.borrowers.iter().all(|each| each.process_id == Some(std::process::id())));
            let wanted = lender.status();
            let is_told = |name: &String| status.counters.contains_key(name) || name.starts_with("peer_");
            assert!(wanted.counters.keys().all(is_told));
            assert!(wanted.text().len() > MAX_CONTROL_BYTES, "it fits: the test shows nothing");
            let mut from = Some(0);
            while let Some(place) = from {
                let reply = lender.status_reply(place, true);
                let &Reply::Status { next, .. } = &reply else { panic!("{reply:?}") };
                let part = MessageV1::Answer { number: u32::MAX, reply };
                assert!(Message::V1(part).encode().len() <= MAX_CONTROL_BYTES);
                assert!(next.is_none_or(|next| next > place));
                from = next;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
