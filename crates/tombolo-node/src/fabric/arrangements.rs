//! Arrangements with the node at the destination of third-party transfers, made before a transfer is asked for or made.
//!
//! The asker's node lets the carrier write to the destination on its behalf. The carrier learns under which number it
//! does so. One arrangement serves all transfers between the same three nodes, until one of the nodes is lost or a
//! transfer is refused. Transfers that come before the destination has answered wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_core::rdma::{PeerId, Transfer};
use tombolo_link::SendError;
use tombolo_wire::Asker;

use crate::fabric::messages::{Carriage, Message, MessageV1, Reply, Request};
use crate::fabric::neighbour::Neighbour;
use crate::fabric::third_party::MAX_MADE_EACH;

/// How long a node may take to answer before what waits for it is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most arrangements at once, with all peers.
const MAX_ARRANGEMENTS: usize = 4096;
/// Most transfers that wait for nodes to answer. Nodes that never answer thus hold few of the places for transfers.
const MAX_WAITING: usize = 2 * MAX_MADE_EACH;

/// What is arranged with the destination, and about which peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wish {
    /// The peer may write on this node's behalf.
    LetCarry(PeerId),
    /// This node may write on the peer's behalf.
    WriteFor(PeerId),
}

impl Wish {
    fn about(self) -> PeerId {
        match self {
            Self::LetCarry(peer) | Self::WriteFor(peer) => peer,
        }
    }
}

/// A transfer that goes on when the arrangement is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// This node asks the carrier for the transfer.
    Ask { carrier: PeerId, user: u64, carriage: Carriage },
    /// This node makes the transfer, which a peer has asked for.
    Make { user: u64, to: PeerId, transfer: Transfer },
}

#[derive(Debug)]
enum Arrangement {
    /// The node at the destination was asked, under this number.
    Asked {
        number: u32,
        request: Request,
        since: Instant,
        waiting: Vec<Next>,
    },
    Made(Asker),
}

impl Arrangement {
    fn waiting(&self) -> usize {
        match self {
            Self::Asked { waiting, .. } => waiting.len(),
            Self::Made(_) => 0,
        }
    }
}

/// Result of [`Arrangements::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The arrangement is made, and the transfer goes on. The number to write under matters only for
    /// [`Wish::WriteFor`].
    Made(Asker, Next),
    /// The transfer goes on when the node at the destination has answered.
    Waits,
    /// Too many transfers or arrangements wait, or the link is full.
    Full,
    /// The node at the destination is gone.
    Lost,
}

/// The arrangements with all peers.
#[derive(Debug, Default)]
pub(crate) struct Arrangements {
    all: Mutex<HashMap<(PeerId, Wish), Arrangement>>,
    /// Whether any arrangement waits for its answer.
    waits: AtomicBool,
}

fn question(number: u32, request: &Request) -> Vec<u8> {
    Message::V1(MessageV1::Ask { number, request: request.clone() }).encode()
}

impl Arrangements {
    /// Gives `next` back at once if the arrangement with `to` is made. Otherwise keeps it until `to` answers, and asks
    /// `to` if that has not been done.
    pub(crate) fn begin(&self, to: &Neighbour, wish: Wish, request: Request, next: Next) -> Begun {
        let mut all = self.all.lock();
        // Checked with the lock held: if the peer is lost from now on, `peer_lost` finds what waits.
        if to.loss().is_some() {
            return Begun::Lost;
        }
        match all.get_mut(&(to.id, wish)) {
            Some(Arrangement::Made(number)) => return Begun::Made(*number, next),
            Some(Arrangement::Asked { waiting, .. }) if waiting.len() >= MAX_MADE_EACH => return Begun::Full,
            Some(Arrangement::Asked { waiting, .. }) => {
                waiting.push(next);
                return Begun::Waits;
            }
            None => {}
        }
        let waiting: usize = all.values().map(Arrangement::waiting).sum();
        if all.len() >= MAX_ARRANGEMENTS || waiting >= MAX_WAITING {
            return Begun::Full;
        }
        let number = to.next_number();
        match to.control_link().map(|link| link.send_control(&question(number, &request), &[])) {
            Some(Ok(())) => {}
            Some(Err(SendError::Full)) => return Begun::Full,
            // The question is asked again by another link when the loss of this one is noticed (`ask_again`).
            _ if to.has_several() => {}
            _ => return Begun::Lost,
        }
        let asked = Arrangement::Asked { number, request, since: Instant::now(), waiting: vec![next] };
        all.insert((to.id, wish), asked);
        self.waits.store(true, Ordering::Relaxed);
        Begun::Waits
    }

    /// Takes out the transfers that have waited too long for a node to answer. They cannot go on.
    pub(crate) fn overdue(&self, now: Instant) -> Vec<Next> {
        let mut waited = Vec::new();
        if !self.waits.load(Ordering::Relaxed) {
            return waited;
        }
        let mut all = self.all.lock();
        let is_open = |arrangement: &Arrangement| matches!(arrangement, Arrangement::Asked { .. });
        all.retain(|_, arrangement| match arrangement {
            Arrangement::Asked { since, waiting, .. } if now.duration_since(*since) > PATIENCE => {
                waited.append(waiting);
                false
            }
            _ => true,
        });
        self.waits.store(all.values().any(is_open), Ordering::Relaxed);
        waited
    }

    /// How many transfers wait, until the nodes at their destinations have agreed, before this node asks `carrier` to
    /// make them.
    pub(crate) fn waiting_for(&self, carrier: PeerId) -> usize {
        let all = self.all.lock();
        let with_it = all.iter().filter(|((_, wish), _)| *wish == Wish::LetCarry(carrier));
        with_it.map(|(_, arrangement)| arrangement.waiting()).sum()
    }

    /// Handles an answer. `None`: it is not one to a question of [`Arrangements::begin`]. Otherwise returns the
    /// transfers that waited for it, and the number to write under, which is `None` if the peer refused.
    pub(crate) fn answered(
        &self,
        by: PeerId,
        number: u32,
        reply: &Reply,
    ) -> Option<(Vec<Next>, Option<Asker>)> {
        if !self.waits.load(Ordering::Relaxed) {
            return None;
        }
        let mut all = self.all.lock();
        let asked = all.iter().find(|((to, _), arrangement)| {
            *to == by && matches!(arrangement, Arrangement::Asked { number: asked, .. } if *asked == number)
        });
        let key = *asked?.0;
        let asker = match (key.1, reply) {
            (Wish::LetCarry(_), Reply::Done) => Some(Asker::SENDER),
            (Wish::WriteFor(_), Reply::Asker(number)) if *number != 0 => Some(Asker(*number)),
            _ => None,
        };
        let asked = all.remove(&key);
        if let Some(asker) = asker {
            all.insert(key, Arrangement::Made(asker));
        }
        let Some(Arrangement::Asked { waiting, .. }) = asked else { return None };
        Some((waiting, asker))
    }

    /// Asks the open questions to a peer again by another link, because one of several links is lost or suspect. The
    /// peer may get a question twice, which does no harm.
    pub(crate) fn ask_again(&self, to: &Neighbour) {
        for ((peer, _), arrangement) in &*self.all.lock() {
            if let Arrangement::Asked { number, request, .. } = arrangement
                && *peer == to.id
                && let Some(link) = to.control_link()
            {
                // If the link is full or lost, what waits is given up in time (`overdue`).
                let _ = link.send_control(&question(*number, request), &[]);
            }
        }
    }

    /// Drops the arrangements of that wish, because a transfer was refused: they may not hold any more.
    pub(crate) fn forget(&self, wish: Wish) {
        let is_made = |arrangement: &Arrangement| matches!(arrangement, Arrangement::Made(_));
        self.all.lock().retain(|(_, known), arrangement| !(*known == wish && is_made(arrangement)));
    }

    /// Drops the arrangements with or about a peer that is gone. Returns the transfers that waited for them, which
    /// cannot go on.
    pub(crate) fn peer_lost(&self, peer: PeerId) -> Vec<Next> {
        let mut waited = Vec::new();
        self.all.lock().retain(|(to, wish), arrangement| {
            let stays = *to != peer && wish.about() != peer;
            if let (false, Arrangement::Asked { waiting, .. }) = (stays, arrangement) {
                waited.append(waiting);
            }
            stays
        });
        waited
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tombolo_link::Link;
    use tombolo_link::testing::memory_pair;

    use super::*;
    use crate::driver::node::Node;
    use crate::fabric::life::{Life, NodeIdentity};

    fn request() -> Request {
        Request::LetCarry { carrier: NodeIdentity { key: None, life: Life([3; 16]) } }
    }

    fn next(user: u64) -> Next {
        let carriage = Carriage {
            to: None,
            source_domain: 0x8001,
            source_address: 0,
            destination_domain: 0x8002,
            destination_address: 0,
            size_bytes: 1,
            notification: None,
            class: None,
        };
        Next::Ask { carrier: PeerId(9), user, carriage }
    }

    /// Numbers of the questions that have come.
    fn questions(link: &dyn Link) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Ok(Some(message)) = link.receive_control() {
            match Message::decode(&message.bytes) {
                Ok(Message::V1(MessageV1::Ask { number, request: asked })) if asked == request() => {
                    numbers.push(number)
                }
                other => panic!("{other:?}"),
            }
        }
        numbers
    }

    fn scene() -> (Arc<Node>, Arc<crate::fabric::connection::Connection>, Arc<dyn Link>) {
        let node = Node::new("asker", 0, 0).unwrap();
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        (Arc::new(node), peer, far)
    }

    const WISH: Wish = Wish::LetCarry(PeerId(9));

    #[test]
    fn it_is_asked_once_and_all_that_wait_go_on() {
        let (_node, to, far) = scene();
        let all = Arrangements::default();
        let begin = |user| all.begin(to.neighbour(), WISH, request(), next(user));
        assert_eq!([begin(1), begin(2)], [Begun::Waits, Begun::Waits]);
        let asked = questions(&*far);
        assert_eq!((asked.len(), all.waiting_for(PeerId(9))), (1, 2));
        assert_eq!(all.answered(to.id, asked[0] + 1, &Reply::Done), None);
        let waited = all.answered(to.id, asked[0], &Reply::Done);
        assert_eq!(waited, Some((vec![next(1), next(2)], Some(Asker::SENDER))));
        assert_eq!(begin(3), Begun::Made(Asker::SENDER, next(3)));
        all.forget(WISH);
        assert_eq!((begin(4), questions(&*far).len()), (Begun::Waits, 1));
    }

    #[test]
    fn what_is_refused_is_asked_again_by_the_next() {
        let (_node, to, far) = scene();
        let all = Arrangements::default();
        for answer in [Reply::Failed("no".into()), Reply::Asker(3)] {
            assert_eq!(all.begin(to.neighbour(), WISH, request(), next(1)), Begun::Waits);
            let asked = questions(&*far);
            assert_eq!(all.answered(to.id, asked[0], &answer), Some((vec![next(1)], None)));
        }
    }

    #[test]
    fn nothing_waits_for_ever() {
        let (_node, to, _far) = scene();
        let all = Arrangements::default();
        for user in 0..MAX_MADE_EACH as u64 {
            assert_eq!(all.begin(to.neighbour(), WISH, request(), next(user)), Begun::Waits);
        }
        assert_eq!(all.begin(to.neighbour(), WISH, request(), next(1)), Begun::Full);
        assert_eq!(all.overdue(Instant::now()), []);
        assert_eq!(all.overdue(Instant::now() + 2 * PATIENCE).len(), MAX_MADE_EACH);
        assert_eq!(all.begin(to.neighbour(), WISH, request(), next(7)), Begun::Waits);
        // The carrier is gone.
        assert_eq!(all.peer_lost(PeerId(9)), [next(7)]);
    }
}
