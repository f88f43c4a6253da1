//! How this node is, in parts that each fit into a control message.
//!
//! Borrowers come first, by their numbers, then the counters of the node, then those of each link. A part
//! is made when it is asked for: what comes or goes between two parts may be missing, or be in both.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tombolo_host::pool::{BlockingTask, Step};
use tombolo_link::MAX_CONTROL_BYTES;

use crate::driver::node::Node;
use crate::fabric::connection::Connection;
use crate::fabric::messages::{NodeStatus, Reply};
use crate::lending::asker::Asker;

/// Room for borrowers and counters in one answer: the rest is for what stands before them.
pub(crate) const MAX_STATUS_BYTES: usize = MAX_CONTROL_BYTES - 1024;
/// What a counter or a borrower takes beside its texts, at most: numbers and lengths of ten bytes each.
const COUNTER_BYTES: usize = 20;
const BORROWER_BYTES: usize = 60;

// Where a part begins: with the borrower of that number, a counter, or the links of a peer.
const COUNTERS: u64 = 1 << 32;
const LINKS: u64 = 2 << 32;

/// A peer asks how this node is: with many links, to look takes longer than others may wait for the engine.
struct StatusTask {
    node: Weak<Node>,
    asker: Asker,
    from: u64,
}

impl BlockingTask for StatusTask {
    fn step(&mut self) -> Step {
        if let Some(step) = self.asker.send() {
            return step;
        }
        match self.node.upgrade().filter(|_| self.asker.neighbour.loss().is_none()) {
            Some(node) => self.asker.answer(node.status_reply(self.from)),
            None => Step::Over,
        }
    }
}

impl Node {
    /// Answers a peer that asks how this node is, from that entry on. `None`: the answer follows.
    pub(crate) fn answer_with_status(&self, by: &Arc<Connection>, number: u32, from: u64) -> Option<Reply> {
        // A program that drives a node of its own does this, too.
        let Some(node) = self.served.get() else { return Some(self.status_reply(from)) };
        let node = node.clone();
        self.lending.begin_for(by, number, |asker| Box::new(StatusTask { node, asker, from }))
    }

    fn status_reply(&self, from: u64) -> Reply {
        let (status, next) = self.status_part(from, MAX_STATUS_BYTES);
        Reply::Status { status: Box::new(status), next }
    }

    /// How this node is.
    pub fn status(&self) -> NodeStatus {
        self.status_part(0, usize::MAX).0
    }

    /// The status of this node from entry `from` on, as many entries as fit into `max_bytes`; and where the next
    /// part begins, if there is more.
    pub(crate) fn status_part(&self, from: u64, max_bytes: usize) -> (NodeStatus, Option<u64>) {
        let mut connections = self.peers();
        connections.sort_by_key(|connection| connection.id);
        let mut status = self.status_head();
        let mut left_bytes = max_bytes;
        let mut takes = |bytes: usize| match left_bytes.checked_sub(bytes) {
            Some(left) => {
                left_bytes = left;
                true
            }
            None => false,
        };
        for connection in connections.iter().filter(|connection| u64::from(connection.id.0) >= from) {
            let Some(borrower) = self.lending.borrower(connection) else { continue };
            let texts = [Some(&borrower.name), borrower.address.as_ref(), borrower.key.as_ref()];
            if !takes(BORROWER_BYTES + texts.into_iter().flatten().map(String::len).sum::<usize>()) {
                return (status, Some(connection.id.0.into()));
            }
            status.borrowers.push(borrower);
        }
        let bytes_of = |(name, _): &(String, u64)| COUNTER_BYTES + name.len();
        for (place, counter) in (COUNTERS..).zip(self.counters(&connections)) {
            if place < from {
                continue;
            }
            if !takes(bytes_of(&counter)) {
                return (status, Some(place));
            }
            status.counters.push(counter);
        }
        for connection in connections.iter().filter(|connection| LINKS + u64::from(connection.id.0) >= from) {
            let counters = self.link_counters(connection);
            if !takes(counters.iter().map(bytes_of).sum()) {
                return (status, Some(LINKS + u64::from(connection.id.0)));
            }
            status.counters.extend(counters);
        }
        (status, None)
    }

    /// What stands in every part.
    fn status_head(&self) -> NodeStatus {
        let ledger = self.lending.ledger.lock();
        NodeStatus {
            name: self.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process_id: std::process::id(),
            uptime_s: self.fabric.uptime().as_secs(),
            lend_bytes: ledger.lend_bytes(),
            lent_bytes: ledger.lent_bytes(),
            borrowers: Vec::new(),
            counters: Vec::new(),
        }
    }

    /// How a link is, for [`Node::status`]: how large packets may be now, and where its neighbour has several,
    /// what went by it.
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

    /// The counters of the node as a whole: always the same ones, in the same order.
    fn counters(&self, connections: &[Arc<Connection>]) -> Vec<(String, u64)> {
        let mut counters = vec![
            ("packets_dropped".to_owned(), self.packets_dropped.load(Ordering::Relaxed)),
            ("is_ending".to_owned(), u64::from(self.fabric.is_ending())),
        ];
        counters.extend(self.fabric.engine.lock().counters().named());
        counters.extend(self.gone_links.and(connections.iter().map(|connection| &*connection.link)));
        counters.extend(self.listener_stats.named());
        counters.extend(self.programs.counters());
        counters.extend(self.access_counters());
        counters.extend(self.lending.ledger.lock().counters());
        counters
    }
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
    /// More than one control message can tell.
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
            let status = crate::status_of(&address, &Security::Insecure).unwrap();
            assert_eq!((status.borrowers.len(), status.lent_bytes), (BORROWERS, lent));
            let sizes: BTreeSet<u64> = status.borrowers.iter().map(|borrower| borrower.bytes).collect();
            assert_eq!(sizes.len(), BORROWERS, "each is told of once");
            assert!(status.borrowers.iter().all(|each| each.process_id == Some(std::process::id())));
            let names: BTreeSet<&String> = status.counters.iter().map(|(name, _)| name).collect();
            assert_eq!(names.len(), status.counters.len(), "each is told of once");
            let wanted = lender.status();
            assert!(
                wanted.counters.iter().all(|(name, _)| names.contains(name) || name.starts_with("peer_"))
            );
            let message = |status| Reply::Status { status: Box::new(status), next: Some(u64::MAX) };
            let whole = MessageV1::Answer { number: 0, reply: message(wanted) };
            assert!(Message::V1(whole).encode().len() > MAX_CONTROL_BYTES, "it fits: the test shows nothing");
            let mut from = Some(0);
            while let Some(place) = from {
                let (part, next) = lender.status_part(place, MAX_STATUS_BYTES);
                let part = MessageV1::Answer { number: u32::MAX, reply: message(part) };
                assert!(Message::V1(part).encode().len() <= MAX_CONTROL_BYTES);
                assert!(next.is_none_or(|next| next > place));
                from = next;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
