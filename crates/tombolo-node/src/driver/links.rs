//! The life of a node's links: their timers, their loss, and the end of all of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_host::timing::node as timing;
use tombolo_link::identity::{KeyFileError, KeyRights};
use tombolo_link::{LinkState, LossReason, Security};

use crate::driver::node::Node;
use crate::fabric::connection::Connection;
use crate::fabric::link_driver::{AskError, LinkDriver};
use crate::fabric::messages::Request;
use crate::fabric::neighbour::Answer;
use crate::fabric::paths::Left;
use crate::fabric::table::Fabric;

impl LinkDriver for Node {
    fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    fn ask_by(
        &self,
        connection: &Arc<Connection>,
        request: Request,
        timeout: Duration,
    ) -> Result<Answer, AskError> {
        self.ask(connection, request, timeout)
    }

    fn mark_lost(&self, connection: &Arc<Connection>, reason: LossReason) {
        self.link_lost(connection, reason);
    }

    fn forget_lost(&self, connection: &Connection) {
        self.forget(connection);
    }
}

/// When to check the timers of a quiet link. Times are rounded so that as many links as possible are checked together.
fn quiet_timers_at_ns(now_ns: u64, wait: Duration) -> u64 {
    let (wait_ns, grid_ns) = (wait.as_nanos() as u64, timing::QUIET_TIMERS.as_nanos() as u64);
    let at_ns = now_ns + wait_ns;
    if wait_ns > 2 * grid_ns { at_ns.next_multiple_of(grid_ns) } else { at_ns }
}

impl Node {
    /// Runs the engine's timers that are due. Returns the time until the next one, if there is one.
    pub fn expire(&self) -> Option<Duration> {
        let now = self.now();
        let mut engine = self.fabric.engine.lock();
        let deadline = engine.deadline()?;
        if deadline.0 > now.0 {
            return Some(Duration::from_nanos(deadline.0 - now.0));
        }
        engine.expire(now);
        drop(engine);
        self.pump();
        let deadline = self.fabric.engine.lock().deadline()?;
        Some(Duration::from_nanos(deadline.0.saturating_sub(self.now().0)))
    }

    /// Runs the timers of the links. Returns when to call this again.
    pub fn tick(&self) -> Option<Instant> {
        let now = Instant::now();
        let now_ns = self.now().0;
        let mut next: Option<Instant> = None;
        let mut soon = |time: Instant| next = Some(next.map_or(time, |next| next.min(time)));
        for connection in self.peers() {
            let is_quiet = connection.is_quiet.load(Ordering::Relaxed);
            let at_ns = connection.tick_at_ns.load(Ordering::Relaxed);
            if is_quiet && at_ns > now_ns {
                soon(now + Duration::from_nanos(at_ns - now_ns));
                continue;
            }
            let time = connection.link.tick(now);
            let latest = now + timing::MAX_SLEEP;
            let wait = time.unwrap_or(latest).min(latest).saturating_duration_since(now);
            let at_ns = quiet_timers_at_ns(now_ns, wait);
            connection.tick_at_ns.store(at_ns, Ordering::Relaxed);
            if is_quiet {
                soon(now + Duration::from_nanos(at_ns - now_ns));
            } else if let Some(time) = time {
                soon(time);
            }
            if let LinkState::Lost(reason) = connection.link.state() {
                // A lost connection stays in the list until it is forgotten. Nothing is taken from it after this.
                if connection.has_link() {
                    self.take_last(&connection, reason);
                    self.link_lost(&connection, reason);
                }
            } else if connection.link.is_suspect() != connection.is_paused.load(Ordering::Relaxed)
                && self.fabric.pause_or_resume(&connection)
            {
                self.pump();
            } else if connection.is_paused.load(Ordering::Relaxed) {
                // If the link was silent a short while before, too, this silence has not been reported yet.
                connection.tell_of_silence();
            }
        }
        self.expire_arrangements(now);
        if self.fabric.send_waiting_third_party() {
            let again = now + timing::SEND_PAUSE;
            next = Some(next.map_or(again, |next| next.min(again)));
        }
        next
    }

    /// Handles the loss of a link. If it was the last link of its peer, the peer is lost: its transfers fail.
    pub(crate) fn link_lost(&self, connection: &Arc<Connection>, reason: LossReason) {
        match self.fabric.leave(connection, reason) {
            Left::Nothing => return,
            Left::Path => {}
            Left::Neighbour(neighbour) => {
                self.lost(neighbour.id, reason);
                self.fabric.peer_lost(&neighbour);
                self.gatherer.lock().forget(neighbour.id);
                // Before anything of the peer's next life is written: writes of this life that wait for pages are
                // dropped.
                self.carry_out_accesses();
                self.third_party_lost(neighbour.id);
            }
        }
        self.pump();
    }

    /// Forgets a lost link, so that its place can be used again. Returns the bytes that its peer had borrowed, even if
    /// the link was forgotten before.
    pub fn forget(&self, connection: &Connection) -> u64 {
        let neighbour = connection.own();
        if self.fabric.forget(connection) {
            self.gone_links.add(&*connection.link);
        }
        // Threads that forget the link later or at the same time get the same number of bytes.
        let mut ledger = self.lending.ledger.lock();
        let bytes = ledger.release_all(connection.id);
        neighbour.returned_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Flushes and closes all links, so that peers need not wait for the outage even if another thread, such as one
    /// that dials, still holds the node.
    pub fn leave(&self) {
        for connection in self.peers() {
            self.flush(&connection);
            connection.link.close(LossReason::ClosedByPeer);
        }
    }

    /// Compares the keys of all links with the list again, and closes links whose key is no longer on it. Returns the
    /// labels of their peers. The peers of all other links get the rights that the list gives now.
    pub fn close_disallowed(&self, security: &Security) -> Result<Vec<String>, KeyFileError> {
        let Security::Secure(identity) = security else { return Ok(Vec::new()) };
        identity.reader.wait(timing::LIST_TIMEOUT).map(|rights| self.close_unlisted(&rights))
    }

    /// As [`Self::close_disallowed`], with the given reading of the list.
    pub fn close_unlisted(&self, rights: &KeyRights) -> Vec<String> {
        let mut closed = Vec::new();
        for connection in self.peers() {
            let Some(key) = connection.link.peer_key().filter(|_| connection.has_link()) else { continue };
            if let Some(permissions) = rights.of(&key) {
                *connection.permissions.lock() = permissions;
                continue;
            }
            connection.link.close(LossReason::KeyRemoved);
            self.link_lost(&connection, LossReason::KeyRemoved);
            let name = connection.neighbour().name();
            closed.push(if name.is_empty() { key.to_string() } else { format!("`{name}`, {key}") });
        }
        closed
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use tombolo_link::identity::{AllowList, KeyPair};
    use tombolo_link::{Address, Security};

    use super::*;
    use crate::fabric::messages::Request;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The list of keys is on a file system that hangs: a new link waits, and an existing link does not.
    #[test]
    fn a_list_that_cannot_be_read_keeps_no_link_waiting() {
        let path = std::env::temp_dir().join(format!("tombolo-list-{}", std::process::id()));
        let [ours, theirs] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let secure = |list| Security::secure(theirs.clone(), list);
        let theirs_list = || AllowList::Keys(vec![ours.public()]);
        fs::write(&path, format!("{}\n", theirs.public())).unwrap();
        let security = Security::secure(ours.clone(), AllowList::from_file(&path).unwrap());
        let lender = Arc::new(Node::new("lender", 1 << 20, 0).unwrap());
        lender.permit_by_list(&security);
        let listener =
            tombolo_link::listen(&Address::Udp("127.0.0.1:0".parse().unwrap()), &security).unwrap();
        let (address, stop) = (listener.address(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| crate::serve(&lender, &*listener, &stop, &|_| {}));
            let first = Node::new("first", 0, 0).unwrap();
            let peer = first.join(&address, &secure(theirs_list()), TIMEOUT).unwrap();
            fs::remove_file(&path).unwrap();
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, mode).unwrap();
            let second = scope.spawn(|| {
                let second = Node::new("second", 0, 0).unwrap();
                second.join(&address, &secure(theirs_list()), TIMEOUT).map(drop)
            });
            // Opening the FIFO for writing succeeds only while the list is being read.
            let begin = Instant::now();
            let mut file = loop {
                let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
                match rustix::fs::open(&path, flags, rustix::fs::Mode::empty()) {
                    Ok(file) => break fs::File::from(file),
                    Err(rustix::io::Errno::NXIO) if begin.elapsed() < TIMEOUT => {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(errno) => panic!("{errno}"),
                }
            };
            for _ in 0..20 {
                let answer = first.ask(&peer, Request::IsEnding, TIMEOUT);
                assert!(answer.is_ok(), "{answer:?}");
                assert!(!second.is_finished());
            }
            writeln!(file, "{}", theirs.public()).unwrap();
            drop(file);
            second.join().unwrap().unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        fs::remove_file(&path).unwrap();
    }
}
