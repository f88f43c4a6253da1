//! The links that the engine's loop drives in each round, and those that it leaves alone.
//!
//! ```text
//!            nothing came for a while, nothing waits to go
//!   awake ───────────────────────────────────────────────► quiet
//!     ▲      its descriptor is readable; another thread drove it, or sends by it    │
//!     └────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! An awake link is driven in each round. A quiet link costs nothing, however many there are: an epoll reports that
//! something has arrived. Any other thread that drives a quiet link or sends by it reports this to the loop
//! ([`Stirred`](crate::fabric::stirred::Stirred)), since that thread may take what has arrived, or leave work behind
//! that the link's descriptor does not show.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tombolo_host::event::Poll;
use tombolo_host::timing::node as timing;

use crate::driver::node::Node;
use crate::driver::shares::Shares;
use crate::fabric::connection::Connection;

/// Maximum number of readable descriptors that one call of epoll reports.
const AT_ONCE: usize = 64;
/// Keys in the epoll for descriptors that are not links.
const STIRRED: u64 = u64::MAX;
const OTHERS: u64 = u64::MAX - 1;

/// A link that is driven in each round.
struct Awake {
    connection: Arc<Connection>,
    /// Something arrived since `since` was last updated.
    came: bool,
    /// When something last arrived, as of the last update.
    since: Instant,
}

/// The links of one engine's loop.
pub(super) struct Watch {
    poll: Poll,
    ready: Vec<u64>,
    awake: Vec<Awake>,
    quiet: HashMap<u32, Arc<Connection>>,
    /// Numbers of all links, awake and quiet.
    known: HashSet<u32>,
    pub(super) shares: Shares,
    /// When a refused link was last reported.
    refused_at: Option<Instant>,
}

impl Watch {
    /// A watch over the node's links and `others`: it does not sleep while one of these descriptors is readable.
    pub(super) fn new(node: &Node, others: &[std::os::fd::BorrowedFd<'_>]) -> Result<Self, Errno> {
        let poll = Poll::new()?;
        poll.add(node.fabric.stirred.descriptor(), STIRRED)?;
        for other in others {
            poll.add(*other, OTHERS)?;
        }
        Ok(Self {
            poll,
            ready: Vec::with_capacity(AT_ONCE),
            awake: Vec::new(),
            quiet: HashMap::new(),
            known: HashSet::new(),
            shares: Shares::default(),
            refused_at: None,
        })
    }

    /// Adds the links that are not known yet. New links are awake.
    pub(super) fn update(&mut self, all: Vec<Arc<Connection>>, now: Instant) {
        for connection in all {
            if !self.known.insert(connection.id.0) {
                continue;
            }
            self.shares.add(&*connection.link);
            // A link that the epoll cannot take is driven in each round.
            let is_watched =
                self.poll.add_edges(connection.link.descriptor(), connection.id.0.into()).is_ok();
            connection.is_watched.store(is_watched, Ordering::Relaxed);
            self.awake.push(Awake { connection, came: false, since: now });
        }
    }

    /// Whether a refused link should be reported now: at most one in a second.
    pub(super) fn is_news(&mut self, now: Instant) -> bool {
        let is_news = self.refused_at.is_none_or(|then| now.duration_since(then) >= Duration::from_secs(1));
        if is_news {
            self.refused_at = Some(now);
        }
        is_news
    }

    /// Removes the links for which `stays` returns false.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&Arc<Connection>) -> bool) {
        let (poll, shares, known) = (&self.poll, &mut self.shares, &mut self.known);
        let mut keep = |connection: &Arc<Connection>| {
            let stays = stays(connection);
            if !stays {
                shares.remove(&*connection.link);
                known.remove(&connection.id.0);
                poll.remove(connection.link.descriptor());
            }
            stays
        };
        self.awake.retain(|awake| keep(&awake.connection));
        self.quiet.retain(|_, connection| keep(connection));
    }

    /// Drives the awake links. Returns how many packets and messages arrived.
    pub(super) fn drive(&mut self, node: &Node) -> usize {
        let stirred = node.fabric.stirred.take();
        if !stirred.is_empty() {
            let now = Instant::now();
            stirred.into_iter().for_each(|id| self.wake(id, now));
        }
        let mut found = 0;
        for awake in &mut self.awake {
            let came = node.drive(&awake.connection);
            awake.came |= came > 0;
            found += came;
        }
        found
    }

    fn wake(&mut self, id: u32, now: Instant) {
        if let Some(connection) = self.quiet.remove(&id) {
            connection.is_quiet.store(false, Ordering::SeqCst);
            self.awake.push(Awake { connection, came: false, since: now });
        }
    }

    /// Wakes the quiet links that have something to receive. Waits for one at most for `timeout`.
    pub(super) fn look(&mut self, node: &Node, timeout: Duration) {
        let stirred = &node.fabric.stirred;
        let mut timeout = if !timeout.is_zero() && stirred.fall_asleep() { timeout } else { Duration::ZERO };
        loop {
            let waited = self.poll.wait(&mut self.ready, timeout);
            stirred.wake_up();
            // After an error, a later call reports the links.
            if waited.is_err() {
                return;
            }
            let now = Instant::now();
            for at in 0..self.ready.len() {
                match self.ready.get(at).map(|key| (*key, u32::try_from(*key))) {
                    Some((_, Ok(id))) => self.wake(id, now),
                    Some((STIRRED, _)) => stirred.drain(),
                    _ => {}
                }
            }
            if self.ready.len() < AT_ONCE {
                return;
            }
            timeout = Duration::ZERO;
        }
    }

    /// Whether there are quiet links.
    pub(super) fn has_quiet(&self) -> bool {
        !self.quiet.is_empty()
    }

    /// Makes links quiet by which nothing has arrived for long, or with `all` every link: before a sleep. Returns
    /// whether all links that the epoll watches are quiet.
    pub(super) fn rest(&mut self, node: &Node, now: Instant, all: bool) -> bool {
        let mut index = 0;
        while let Some(awake) = self.awake.get_mut(index) {
            if std::mem::take(&mut awake.came) {
                awake.since = now;
            }
            let is_due = all || now.duration_since(awake.since) >= timing::QUIET;
            if is_due && rests(node, &awake.connection) {
                let awake = self.awake.swap_remove(index);
                self.quiet.insert(awake.connection.id.0, awake.connection);
            } else {
                if is_due {
                    awake.since = now;
                }
                index += 1;
            }
        }
        // Links that the epoll does not watch are driven after each sleep.
        !self.awake.iter().any(|awake| awake.connection.is_watched.load(Ordering::Relaxed))
    }
}

/// Whether a link can be left alone. If so, packets that arrive after the link was last driven show at its descriptor,
/// and so does new room in a link that was full.
fn rests(node: &Node, connection: &Connection) -> bool {
    if !connection.has_link() {
        // A lost link brings nothing more, even if its neighbour has other links.
        return true;
    }
    if !connection.is_watched.load(Ordering::Relaxed) {
        return false;
    }
    // Set this before the link is armed: a thread that then drives the link, which disarms it, sees the mark and stirs
    // the link.
    connection.is_quiet.store(true, Ordering::SeqCst);
    if node.arm(connection).unwrap_or(true) {
        connection.is_quiet.store(false, Ordering::SeqCst);
        return false;
    }
    true
}

#[cfg(test)]
mod tests {
    use tombolo_host::shared::SharedSpan;
    use tombolo_link::Link;
    use tombolo_link::testing::memory_pair;

    use super::*;
    use crate::fabric::messages::{Message, MessageV1, Request};

    /// Adds `count` quiet links to the node. Returns its watch and the other ends of the links.
    fn scene(node: &Node, count: usize) -> (Watch, Vec<Arc<dyn Link>>) {
        let mut watch = Watch::new(node, &[]).unwrap();
        let mut others: Vec<Arc<dyn Link>> = Vec::new();
        for _ in 0..count {
            let (near, far) = memory_pair().unwrap();
            node.add_peer(near);
            others.push(far);
        }
        watch.update(node.peers(), Instant::now());
        watch.update(node.peers(), Instant::now());
        assert_eq!(watch.awake.len(), count, "each is there once");
        assert!(watch.rest(node, Instant::now(), true) && watch.has_quiet());
        (watch, others)
    }

    fn ask(link: &dyn Link) {
        let message = Message::V1(MessageV1::Ask { number: 1, request: Request::Identify }).encode();
        link.send_control(&message, &[]).unwrap();
    }

    #[test]
    fn a_quiet_link_is_driven_when_something_has_come_and_no_other_is() {
        let node = Node::new("node", 0, 0).unwrap();
        let (mut watch, others) = scene(&node, 50);
        watch.look(&node, Duration::ZERO);
        assert_eq!((watch.awake.len(), watch.drive(&node)), (0, 0));
        ask(&*others[7]);
        watch.look(&node, Duration::from_secs(60));
        assert_eq!((watch.awake.len(), watch.drive(&node)), (1, 1));
        let now = Instant::now();
        assert!(!watch.rest(&node, now, false), "something came just now");
        assert!(watch.rest(&node, now + 2 * timing::QUIET, false));
        // Packets wake the link, too. A peer signals them only to a link that is armed.
        others[9].send(&[1, 2, 3], SharedSpan::empty()).unwrap();
        others[9].flush().unwrap();
        watch.look(&node, Duration::from_secs(60));
        assert_eq!((watch.awake.len(), watch.drive(&node)), (1, 1));
    }

    /// A thread that drives a link takes what has arrived, so the descriptor no longer shows it.
    #[test]
    fn a_link_that_another_thread_has_driven_is_looked_at_again() {
        let node = Node::new("node", 0, 0).unwrap();
        let (mut watch, others) = scene(&node, 3);
        let peers = node.peers();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                node.drive(&peers[1]);
                others[1].send(&[1], SharedSpan::empty()).unwrap();
                others[1].flush().unwrap();
            });
            let since = Instant::now();
            while watch.drive(&node) == 0 {
                assert!(since.elapsed() < Duration::from_secs(60), "nobody looks");
                watch.look(&node, Duration::from_secs(60));
            }
        });
        // The link is awake already, so it is not added twice.
        node.drive(&peers[1]);
        assert_eq!(watch.awake.len(), 1);
        watch.retain(|connection| connection.id == peers[0].id);
        assert_eq!((watch.awake.len(), watch.quiet.len(), watch.known.len()), (0, 1, 1));
    }
}
