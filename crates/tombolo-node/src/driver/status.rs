//! How this node is, in parts that each fit into a control message.
//!
//! Borrowers come first, by their numbers, then the counters of the node, then those of each link. A part
//! is made when it is asked for: what comes or goes between two parts may be missing, or be in both.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tombolo_link::MAX_CONTROL_BYTES;

use crate::driver::node::{Node, Peer};
use crate::fabric::messages::{Borrower, NodeStatus};

/// Room for borrowers and counters in one answer: the rest is for what stands before them.
pub(crate) const MAX_STATUS_BYTES: usize = MAX_CONTROL_BYTES - 1024;
/// The most of a name, of this node or another.
const MAX_NAME_BYTES: usize = 64;
/// What a counter or a borrower takes beside its texts, at most: numbers and lengths of ten bytes each.
const COUNTER_BYTES: usize = 20;
const BORROWER_BYTES: usize = 60;

// Where a part begins: with the borrower of that number, a counter, or the links of a peer.
const COUNTERS: u64 = 1 << 32;
const LINKS: u64 = 2 << 32;

impl Node {
    /// How this node is.
    pub fn status(&self) -> NodeStatus {
        self.status_part(0, usize::MAX).0
    }

    /// How this node is, from some entry on, as much as fits into so many bytes; and where the next part
    /// begins, if there is more.
    pub(crate) fn status_part(&self, from: u64, max_bytes: usize) -> (NodeStatus, Option<u64>) {
        let mut peers = self.peers();
        peers.sort_by_key(|peer| peer.id);
        let mut status = self.status_head();
        let mut left_bytes = max_bytes;
        let mut takes = |bytes: usize| match left_bytes.checked_sub(bytes) {
            Some(left) => {
                left_bytes = left;
                true
            }
            None => false,
        };
        for peer in peers.iter().filter(|peer| u64::from(peer.id.0) >= from) {
            let Some(borrower) = self.borrower(peer) else { continue };
            let texts = [Some(&borrower.name), borrower.address.as_ref(), borrower.key.as_ref()];
            if !takes(BORROWER_BYTES + texts.into_iter().flatten().map(String::len).sum::<usize>()) {
                return (status, Some(peer.id.0.into()));
            }
            status.borrowers.push(borrower);
        }
        let bytes_of = |(name, _): &(String, u64)| COUNTER_BYTES + name.len();
        for (place, counter) in (COUNTERS..).zip(self.counters(&peers)) {
            if place < from {
                continue;
            }
            if !takes(bytes_of(&counter)) {
                return (status, Some(place));
            }
            status.counters.push(counter);
        }
        for peer in peers.iter().filter(|peer| LINKS + u64::from(peer.id.0) >= from) {
            let counters = self.link_counters(peer);
            if !takes(counters.iter().map(bytes_of).sum()) {
                return (status, Some(LINKS + u64::from(peer.id.0)));
            }
            status.counters.extend(counters);
        }
        (status, None)
    }

    /// What stands in every part.
    fn status_head(&self) -> NodeStatus {
        let ledger = self.ledger.lock();
        NodeStatus {
            name: shortened(self.name()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process_id: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            lend_bytes: ledger.lend_bytes(),
            lent_bytes: ledger.lent_bytes(),
            borrowers: Vec::new(),
            counters: Vec::new(),
        }
    }

    /// What a peer has borrowed, if it has.
    pub(crate) fn borrower(&self, peer: &Peer) -> Option<Borrower> {
        let (mut bytes, mut segments) = (0, 0);
        for (_, memory) in self.ledger.lock().segments_of(peer.id) {
            bytes += memory.len() as u64;
            segments += 1;
        }
        (segments > 0).then(|| Borrower {
            name: shortened(&peer.name.lock()),
            process_id: peer.link.peer_process_id(),
            address: peer.link.peer_address().map(|address| address.to_string()),
            key: peer.link.peer_key().map(|key| key.to_string()),
            bytes,
            segments,
        })
    }

    /// The counters of the node as a whole: always the same ones, in the same order.
    fn counters(&self, peers: &[Arc<Peer>]) -> Vec<(String, u64)> {
        let mut counters = vec![("packets_dropped".to_owned(), self.packets_dropped.load(Ordering::Relaxed))];
        counters.extend(crate::driver::counters::engine(&self.engine.lock().counters()));
        counters.extend(self.gone_links.and(peers.iter().map(|peer| &*peer.link)));
        counters.extend(self.at_the_door.named());
        counters.extend(self.programs.counters());
        counters.extend(self.ledger.lock().counters());
        counters
    }
}

fn shortened(name: &str) -> String {
    name[..name.floor_char_boundary(MAX_NAME_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use tombolo_link::{Address, Security};

    use super::*;
    use crate::fabric::messages::{Message, MessageV1, Reply, Request};

    const PATIENCE: Duration = Duration::from_secs(60);
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
                let peer = borrower.join(&address, &Security::Insecure, PATIENCE).unwrap();
                let answer = borrower.ask(&peer, Request::Lend { bytes: 4096 * count }, PATIENCE);
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
