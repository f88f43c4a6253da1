//! Several links to one node.
//!
//! Every link has a [`Peer`] of its own, which receives and sends on it. The first
//! one *is* the peer: its number in the engine, its questions, its borrowed memory.
//! The others are parts of it, the engine's further paths:
//!
//! ```text
//!  the node that joins                          the one that was joined
//!   first link   Introduce, PathToken ────────►  a random token, kept with the peer
//!   other links  BePath { token } ────────────►  from now on a path of that peer
//! ```
//!
//! Whoever shows the token has been told it over the first link, so nobody else can
//! add a link to a peer. A lost path is left by the engine; the node that joined
//! tries to have it back ([`Paths::keep`]). Only with its last link a peer is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use aws_lc_rs::{constant_time, rand};
use tombolo_core::rdma::{MAX_PATHS, PathId, PeerId};
use tombolo_link::{Address, Link, LinkState, LossReason, Security};

use crate::control::{Reply, Request};
use crate::node::{JoinError, Node, Peer};

/// Between two looks at the paths.
const LOOK: Duration = Duration::from_millis(20);
/// Before a lost path is tried again: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// What a link must show to become a path of a peer.
pub(crate) type Token = [u8; 16];

impl Peer {
    /// Its number in the engine, and which of its paths this link is.
    pub(crate) fn place(&self) -> (PeerId, PathId) {
        match self.part_of.get() {
            None => (self.id, PathId(0)),
            Some((whole, path)) => (whole.id, *path),
        }
    }

    /// The peer that this link leads to.
    pub(crate) fn whole(self: &Arc<Self>) -> &Arc<Self> {
        self.part_of.get().map_or(self, |(whole, _)| whole)
    }

    /// Whether this is only a further link to a peer.
    pub fn is_part(&self) -> bool {
        self.part_of.get().is_some()
    }

    /// Whether its own link can be used; it may have others.
    pub fn has_link(&self) -> bool {
        self.link_lost.get().is_none() && self.lost.get().is_none()
    }

    /// The link with that number.
    pub(crate) fn by(self: Arc<Self>, path: PathId) -> Option<Arc<Self>> {
        if path == PathId(0) {
            return self.has_link().then_some(self);
        }
        self.paths.read().iter().find(|part| part.place().1 == path).cloned()
    }

    /// The link that messages are sent by: the first that is there and not suspect, or the first that is there.
    pub(crate) fn control_link(&self) -> Arc<dyn Link> {
        if self.has_link() && !self.link.is_suspect() {
            return self.link.clone();
        }
        let parts = self.paths.read();
        let good = parts.iter().find(|part| !part.link.is_suspect());
        let other = good.or_else(|| parts.first().filter(|_| !self.has_link()));
        other.map_or_else(|| self.link.clone(), |part| part.link.clone())
    }

    /// Whether all of its links are suspect.
    fn is_suspect(&self) -> bool {
        let own = !self.has_link() || self.link.is_suspect();
        own && self.paths.read().iter().all(|part| part.link.is_suspect())
    }

    /// Whether the link that messages are sent by is suspect: they wait in it.
    pub(crate) fn is_waiting(&self) -> bool {
        self.loss().is_none() && self.control_link().is_suspect()
    }

    /// The token for further links to it.
    fn token(&self) -> Option<Token> {
        if let Some(token) = self.token.get() {
            return Some(*token);
        }
        let mut token = Token::default();
        rand::fill(&mut token).ok()?;
        Some(*self.token.get_or_init(|| token))
    }
}

/// Addresses of one node, joined by all of them.
#[derive(Debug)]
pub struct Paths {
    peer: Arc<Peer>,
    token: Token,
    routes: Vec<Route>,
}

/// One way to it.
#[derive(Debug)]
struct Route {
    address: Address,
    part: Option<Arc<Peer>>,
    /// Its loss has been told.
    told: bool,
    pause: Duration,
    try_at: Instant,
}

impl Node {
    /// Joins a node by several addresses of it: the first as [`Node::join`] does, the others as
    /// further paths.
    pub fn join_by(
        &self,
        addresses: &[Address],
        security: &Security,
        timeout: Duration,
    ) -> Result<Option<Paths>, JoinError> {
        let Some(first) = addresses.first() else { return Ok(None) };
        let peer = self.join(first, security, timeout)?;
        if addresses.len() == 1 {
            return Ok(None);
        }
        self.join_again(&peer, addresses, security, timeout).map(Some)
    }

    /// Joins a node that was joined by the first of these addresses by the others, too.
    pub fn join_again(
        &self,
        peer: &Arc<Peer>,
        addresses: &[Address],
        security: &Security,
        timeout: Duration,
    ) -> Result<Paths, JoinError> {
        let mut paths = Paths { peer: peer.clone(), token: Token::default(), routes: Vec::new() };
        let Some((first, others)) = addresses.split_first() else { return Ok(paths) };
        paths.token = match self.ask(peer, Request::PathToken, timeout) {
            Ok((Reply::PathToken(token), _)) => token,
            Ok((other, _)) => return Err(JoinError::Refused(first.clone(), format!("{other:?}"))),
            Err(error) => return Err(JoinError::Ask(first.clone(), error)),
        };
        paths.routes.push(Route::new(first, Some(peer.clone())));
        for address in others {
            let part = self.join_as_path(peer, paths.token, address, security, timeout)?;
            paths.routes.push(Route::new(address, Some(part)));
        }
        Ok(paths)
    }

    /// Connects once more to a peer.
    pub(crate) fn join_as_path(
        &self,
        peer: &Arc<Peer>,
        token: Token,
        address: &Address,
        security: &Security,
        timeout: Duration,
    ) -> Result<Arc<Peer>, JoinError> {
        let link = tombolo_link::connect(address, security, timeout)?;
        let refused = |why: String| JoinError::Refused(address.clone(), why);
        // What comes by it is the peer's from the start; what goes by it waits for the answer.
        let part = self.add_part(peer, link).ok_or_else(|| refused("it has too many links".into()))?;
        let joined = match self.ask(&part, Request::BePath { token }, timeout) {
            Ok((Reply::Done, _)) => self.open_path(&part).map_err(refused),
            Ok((Reply::Failed(why), _)) => Err(refused(why)),
            Ok((other, _)) => Err(refused(format!("{other:?}"))),
            Err(error) => Err(JoinError::Ask(address.clone(), error)),
        };
        if joined.is_err() {
            self.lose(&part, LossReason::ClosedByPeer);
            self.forget(&part);
        }
        joined.map(|()| part)
    }

    /// A link that is a part of a peer from the start.
    pub(crate) fn add_part(&self, whole: &Arc<Peer>, link: Arc<dyn Link>) -> Option<Arc<Peer>> {
        let mut parts = whole.paths.write();
        let path = free_path(&parts)?;
        let part = self.add_link(link, |part| {
            let _ = part.part_of.set((whole.clone(), path));
        });
        parts.push(part.clone());
        Some(part)
    }

    /// The engine may use it.
    pub(crate) fn open_path(&self, part: &Arc<Peer>) -> Result<(), String> {
        let (id, path) = part.place();
        // With the lock held, so that a loss comes before or after.
        let parts = part.whole().paths.write();
        let known = parts.iter().any(|known| Arc::ptr_eq(known, part));
        if known && self.engine.lock().add_path(self.now(), id, path) {
            return Ok(());
        }
        Err("the peer is gone".into())
    }

    /// A peer asks for the token of its further links.
    pub(crate) fn path_token(&self, peer: &Peer) -> Reply {
        match peer.token() {
            Some(token) => Reply::PathToken(token),
            None => Reply::Failed("no random numbers".into()),
        }
    }

    /// A link says that it is another path of a peer.
    pub(crate) fn be_path(&self, newcomer: &Arc<Peer>, token: &Token) -> Reply {
        let same = |peer: &Arc<Peer>| {
            let known = peer.token.get();
            known.is_some_and(|known| constant_time::verify_slices_are_equal(known, token).is_ok())
        };
        let Some(whole) = self.peers().into_iter().find(same) else {
            return Reply::Failed("this node has not given that token to a peer: is it another one?".into());
        };
        if newcomer.is_part() || newcomer.token.get().is_some() || !newcomer.paths.read().is_empty() {
            return Reply::Failed("this link is a peer's already".into());
        }
        let mut parts = whole.paths.write();
        let Some(path) = free_path(&parts).filter(|_| whole.loss().is_none()) else {
            return Reply::Failed(format!("a peer has at most {MAX_PATHS} links"));
        };
        // It was a peer of its own until now, and has nothing.
        self.engine.lock().peer_lost(self.now(), newcomer.id);
        if newcomer.part_of.set((whole.clone(), path)).is_err() {
            return Reply::Failed("this link is a peer's already".into());
        }
        parts.push(newcomer.clone());
        self.engine.lock().add_path(self.now(), whole.id, path);
        Reply::Done
    }

    /// A link is suspect, or no longer: meanwhile the engine does without it. What is under way there goes by
    /// others, or waits, and no timer of it runs; the session lives on, so nothing is done twice.
    pub(crate) fn pause_or_resume(&self, peer: &Arc<Peer>) {
        let (id, path) = peer.place();
        {
            // With the lock held, so that a loss comes before or after.
            let parts = peer.whole().paths.write();
            let is_open = match peer.is_part() {
                true => parts.iter().any(|part| Arc::ptr_eq(part, peer)),
                false => peer.has_link(),
            };
            let is_suspect = peer.link.is_suspect();
            if !is_open || peer.is_paused.swap(is_suspect, Ordering::AcqRel) == is_suspect {
                return;
            }
            let mut engine = self.engine.lock();
            if is_suspect {
                engine.path_lost(id, path);
            } else {
                engine.add_path(self.now(), id, path);
            }
        }
        if let Some(told) = self.neighbourhood.get() {
            told.suspected(id, peer.whole().is_suspect());
        }
        if peer.link.is_suspect() && self.has_several(peer.whole()) {
            self.carry_by_another_path(peer.whole());
        }
        self.pump();
    }

    /// A link is gone. Returns the peer that is gone with it, if it was the last.
    pub(crate) fn leave_path(&self, peer: &Arc<Peer>, reason: LossReason) -> Option<Arc<Peer>> {
        let whole = peer.whole();
        let (id, path) = peer.place();
        {
            let mut parts = whole.paths.write();
            let (is_known, is_last) = if peer.is_part() {
                let before = parts.len();
                parts.retain(|part| !Arc::ptr_eq(part, peer));
                let _ = peer.lost.set(reason);
                (parts.len() < before, parts.is_empty() && whole.link_lost.get().is_some())
            } else if parts.is_empty() {
                (true, true)
            } else {
                (whole.link_lost.set(reason).is_ok(), false)
            };
            if !is_known {
                return None;
            }
            if is_last {
                return Some(whole.clone());
            }
            // With the lock held: without it, its number may be that of a path that has just come.
            self.engine.lock().path_lost(id, path);
        }
        self.carry_by_another_path(whole);
        self.pump();
        None
    }

    /// How a link is, for [`Node::status`]: how large packets may be now, and where its peer has several,
    /// what went by it.
    pub(crate) fn link_counters(&self, part: &Arc<Peer>) -> Vec<(String, u64)> {
        let mut counters = Vec::new();
        let (whole, (id, path)) = (part.whole(), part.place());
        let of = format!("peer_{}_path_{}", id.0, path.0);
        let is_lone = !part.is_part() && part.paths.read().is_empty() && part.has_link();
        let status = if is_lone { None } else { self.engine.lock().path_status(whole.id, path) };
        if let Some(status) = status {
            let link = part.link.counters();
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
        if part.has_link() {
            counters.push((format!("{of}_packet_bytes"), part.link.max_packet_bytes() as u64));
        }
        counters
    }
}

/// A number that no other link of the peer has; 0 is its first one's.
fn free_path(parts: &[Arc<Peer>]) -> Option<PathId> {
    let mut free = (1..MAX_PATHS as u8).map(PathId);
    free.find(|path| parts.iter().all(|part| part.place().1 != *path))
}

impl Route {
    fn new(address: &Address, part: Option<Arc<Peer>>) -> Self {
        Self { address: address.clone(), part, told: false, pause: PAUSES[0], try_at: Instant::now() }
    }

    fn is_up(&self) -> bool {
        self.part.as_ref().is_some_and(|part| part.has_link() && part.link.state() == LinkState::Up)
    }

    /// Why it was lost, once.
    fn news(&mut self) -> Option<LossReason> {
        let part = self.part.as_ref().filter(|part| !self.told && !part.has_link())?;
        self.told = true;
        part.link_lost.get().copied().or_else(|| part.loss())
    }
}

impl Paths {
    /// The node at the other end.
    pub fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// How many of the links are up.
    pub fn up(&self) -> usize {
        self.routes.iter().filter(|route| route.is_up()).count()
    }

    /// Has lost paths back as soon as it can, until the peer is lost or `stop` says so. Somebody
    /// else drives the node meanwhile.
    pub fn keep(&mut self, node: &Node, security: &Security, timeout: Duration, stop: &AtomicBool) {
        self.keep_and_tell(node, security, timeout, stop, &|_, _| {});
    }

    /// The same. `told` hears of each link that is lost while others are left.
    pub(crate) fn keep_and_tell(
        &mut self,
        node: &Node,
        security: &Security,
        timeout: Duration,
        stop: &AtomicBool,
        told: &dyn Fn(&Address, LossReason),
    ) {
        while !stop.load(Ordering::Relaxed) && self.peer.loss().is_none() {
            for route in &mut self.routes {
                if let Some(reason) = route.news() {
                    told(&route.address, reason);
                }
            }
            self.mend(node, security, timeout);
            std::thread::sleep(LOOK);
        }
    }

    /// Tries what is lost and due once.
    fn mend(&mut self, node: &Node, security: &Security, timeout: Duration) {
        for route in &mut self.routes {
            if route.is_up() || Instant::now() < route.try_at {
                continue;
            }
            match node.join_as_path(&self.peer, self.token, &route.address, security, timeout) {
                Ok(part) => {
                    route.part = Some(part);
                    route.told = false;
                    route.pause = PAUSES[0];
                }
                Err(_) => route.pause = (route.pause * 2).min(PAUSES[1]),
            }
            route.try_at = Instant::now() + route.pause;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_link::testing::memory_pair;

    fn link() -> Arc<dyn Link> {
        memory_pair().unwrap().0
    }

    /// A path that comes while another is left never has the number that the engine is about to leave.
    #[test]
    fn a_lost_path_does_not_take_its_successor_along() {
        let node = Node::new("node", 0, 0).unwrap();
        let whole = node.add_peer(link());
        let join = || {
            let part = node.add_part(&whole, link()).unwrap();
            node.open_path(&part).unwrap();
            part
        };
        let is_up = |part: &Arc<Peer>| {
            let (id, path) = part.place();
            node.engine.lock().path_status(id, path).unwrap().is_up
        };
        let first = join();
        std::thread::scope(|scope| {
            // The engine is busy while the link is found lost.
            let engine = node.engine.lock();
            scope.spawn(|| node.leave_path(&first, LossReason::ClosedByPeer));
            while first.lost.get().is_none() {
                std::thread::yield_now();
            }
            for _ in 0..1000 {
                assert!(whole.paths.try_read().is_none(), "its number can be given again already");
                std::thread::yield_now();
            }
            drop(engine);
        });
        assert!(!is_up(&first));
        let second = join();
        assert_eq!(first.place(), second.place());
        // Another thread finds the first one lost, too, and late.
        assert!(node.leave_path(&first, LossReason::ClosedByPeer).is_none());
        assert!(is_up(&second));
    }
}
