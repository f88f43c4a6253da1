//! Several links to one node.
//!
//! The first link creates the [`Neighbour`], which has the number in the engine, the questions and the borrowed memory.
//! The other links are further paths of the engine to that neighbour:
//!
//! ```text
//!  the node that joins                          the one that was joined
//!   first link   Introduce, PathToken ────────►  a random token, kept with the neighbour
//!   other links  BePath { token } ────────────►  from now on a path to that neighbour
//! ```
//!
//! Only the node at the other end of the first link has been told the token, so no other node can add a link to a
//! neighbour. The engine stops using a lost path. The node that joined tries to restore it ([`super::joining::Paths`]).
//! A neighbour is lost only when its last link is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use subtle::ConstantTimeEq;
use tombolo_core::rdma::{MAX_PATHS, PathId};
use tombolo_link::{Link, LossReason};

use crate::fabric::connection::Connection;
use crate::fabric::messages::Reply;
use crate::fabric::neighbour::Neighbour;
use crate::fabric::table::{Fabric, tell_whether_reliable};

/// What a link must show to become a path of a neighbour.
pub(crate) type Token = [u8; 16];

/// What is lost together with a link.
#[derive(Debug)]
pub(crate) enum Left {
    /// Nothing: the loss of the link was known.
    Nothing,
    /// One of several paths: other links of the neighbour are left.
    Path,
    /// The neighbour: this was its last link.
    Neighbour(Arc<Neighbour>),
}

impl Fabric {
    /// Adds a link that is a further one of a neighbour from the start. `None`: the neighbour has too many links.
    pub(crate) fn add_further(
        &self,
        neighbour: &Arc<Neighbour>,
        link: Arc<dyn Link>,
    ) -> Option<Arc<Connection>> {
        let newcomer = self.newcomer(link);
        let mut further = neighbour.further.write();
        let path = free_path(&further)?;
        let connection = self.add_link(newcomer, |connection| {
            connection.set_further(neighbour, path);
        });
        further.push(connection.clone());
        Some(connection)
    }

    /// Lets the engine use a further link.
    pub(crate) fn open_path(&self, connection: &Arc<Connection>) -> Result<(), String> {
        let (id, path) = connection.place();
        // With the lock held, so that a loss of the link comes before or after this.
        let further = connection.neighbour().further.write();
        let is_known = further.iter().any(|known| Arc::ptr_eq(known, connection));
        if is_known {
            let mut engine = self.engine.lock();
            if engine.add_path(self.now(), id, path) {
                tell_whether_reliable(&mut engine, connection);
                return Ok(());
            }
        }
        Err("the peer is gone".into())
    }

    /// Answers a neighbour that asks for the token of its further links.
    pub(crate) fn path_token(&self, neighbour: &Neighbour) -> Reply {
        match neighbour.token() {
            Some(token) => Reply::PathToken(token),
            None => Reply::Failed("no random numbers".into()),
        }
    }

    /// Makes a link a further path of the neighbour that was given this token. Returns the answer.
    pub(crate) fn be_path(&self, newcomer: &Arc<Connection>, token: &Token) -> Reply {
        let is_same = |connection: &Arc<Connection>| {
            let known = connection.own().known_token();
            known.is_some_and(|known| bool::from(known[..].ct_eq(&token[..])))
        };
        let Some(first) = self.connections().into_iter().find(is_same) else {
            return Reply::Failed("this node has not given that token to a peer: is it another one?".into());
        };
        let own = newcomer.own();
        if newcomer.is_part() || own.known_token().is_some() || !own.further.read().is_empty() {
            return Reply::Failed("this link is a peer's already".into());
        }
        let neighbour = first.neighbour();
        let mut further = neighbour.further.write();
        let Some(path) = free_path(&further).filter(|_| neighbour.loss().is_none()) else {
            return Reply::Failed(format!("a peer has at most {MAX_PATHS} links"));
        };
        // Until now the link was a peer of its own in the engine, with nothing under way.
        self.engine.lock().peer_lost(self.now(), newcomer.id);
        if !newcomer.set_further(neighbour, path) {
            return Reply::Failed("this link is a peer's already".into());
        }
        further.push(newcomer.clone());
        let mut engine = self.engine.lock();
        engine.add_path(self.now(), neighbour.id, path);
        tell_whether_reliable(&mut engine, newcomer);
        Reply::Done
    }

    /// Lets the engine do without a link while the link is suspect, and use it again afterwards. What is under way on a
    /// suspect link goes by other links, or waits, and no timer of it runs. The session lives on, so nothing is done
    /// twice. Returns false if nothing has changed.
    pub(crate) fn pause_or_resume(&self, connection: &Arc<Connection>) -> bool {
        let ((id, path), neighbour) = (connection.place(), connection.neighbour());
        {
            // With the lock held, so that a loss of the link comes before or after this.
            let further = neighbour.further.write();
            let is_open = match connection.is_part() {
                true => further.iter().any(|known| Arc::ptr_eq(known, connection)),
                false => connection.has_link(),
            };
            let is_suspect = connection.link.is_suspect();
            if !is_open || connection.is_paused.swap(is_suspect, Ordering::AcqRel) == is_suspect {
                return false;
            }
            let mut engine = self.engine.lock();
            if is_suspect {
                engine.path_lost(self.now(), id, path);
            } else {
                engine.add_path(self.now(), id, path);
            }
        }
        connection.tell_of_silence();
        if let Some(reports) = self.reports.get() {
            reports.suspected(id, neighbour.is_suspect());
        }
        if connection.link.is_suspect() && neighbour.has_several() {
            self.arrangements.ask_again(neighbour);
            self.third_party.ask_again(neighbour);
        }
        true
    }

    /// Takes a lost link away from its neighbour. Returns what is lost together with it.
    pub(crate) fn leave(&self, connection: &Arc<Connection>, reason: LossReason) -> Left {
        if !connection.has_link() {
            return Left::Nothing;
        }
        let neighbour = connection.neighbour().clone();
        let (id, path) = connection.place();
        let is_last = {
            let mut further = neighbour.further.write();
            let (is_known, is_last) = if connection.is_part() {
                let before = further.len();
                further.retain(|known| !Arc::ptr_eq(known, connection));
                let _ = connection.lost.set(reason);
                let is_first_lost = neighbour.first().is_none_or(|first| first.link_loss().is_some());
                (further.len() < before, further.is_empty() && is_first_lost)
            } else if further.is_empty() {
                (true, true)
            } else {
                (connection.lost.set(reason).is_ok(), false)
            };
            if !is_known {
                return Left::Nothing;
            }
            if !is_last {
                // With the lock held: otherwise a new path could have got this path's number already.
                self.engine.lock().path_lost(self.now(), id, path);
            }
            is_last
        };
        // To be called after other threads can see the loss.
        let left = || self.departures.fetch_add(1, Ordering::Release);
        if !is_last {
            left();
            self.arrangements.ask_again(&neighbour);
            self.third_party.ask_again(&neighbour);
            return Left::Path;
        }
        let is_news = neighbour.set_lost(reason);
        left();
        if is_news { Left::Neighbour(neighbour) } else { Left::Nothing }
    }
}

/// A path number that no link of the neighbour has. The first link has number 0.
fn free_path(further: &[Arc<Connection>]) -> Option<PathId> {
    let mut free = (1..MAX_PATHS as u8).map(PathId);
    free.find(|path| further.iter().all(|known| known.place().1 != *path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::node::Node;
    use tombolo_link::testing::memory_pair;

    fn link() -> Arc<dyn Link> {
        memory_pair().unwrap().0
    }

    /// A new path never has the number of a path that the engine is about to leave.
    #[test]
    fn a_lost_path_does_not_take_its_successor_along() {
        let node = Node::new("node", 0, 0).unwrap();
        let fabric = &node.fabric;
        let first_link = fabric.add_peer(link());
        let neighbour = first_link.neighbour();
        let join = || {
            let further = fabric.add_further(neighbour, link()).unwrap();
            fabric.open_path(&further).unwrap();
            further
        };
        let is_up = |connection: &Arc<Connection>| {
            let (id, path) = connection.place();
            fabric.engine.lock().path_status(id, path).unwrap().is_up
        };
        let first = join();
        std::thread::scope(|scope| {
            // The engine is busy while the link is found lost.
            let engine = fabric.engine.lock();
            scope.spawn(|| fabric.leave(&first, LossReason::ClosedByPeer));
            while first.lost.get().is_none() {
                std::thread::yield_now();
            }
            for _ in 0..1000 {
                assert!(neighbour.further.try_read().is_none(), "its number can be given again already");
                std::thread::yield_now();
            }
            drop(engine);
        });
        assert!(!is_up(&first));
        let second = join();
        assert_eq!(first.place(), second.place());
        // Another thread notices the loss of the first path, too, and late.
        assert!(matches!(fabric.leave(&first, LossReason::ClosedByPeer), Left::Nothing));
        assert!(is_up(&second));
    }
}
