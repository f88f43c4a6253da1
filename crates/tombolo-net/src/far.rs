//! Ports of other machines: the nodes inside owner and port, their rings, and the port's end of the pipes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tombolo_client::{Domain, EmbedError, Embedded, Embedding, Grant, OpenError, Target, Who};
use tombolo_core::nic::session::VERSION;
use tombolo_core::nic::{Coalescing, Tag};
use tombolo_host::timing::net::{JOIN_TIMEOUT, NODE_CHECK_INTERVAL, OWNER_OUTAGE, OWNER_TIMEOUT};
use tombolo_node::{Address, JoinError, Peer, Security, harmless_reason};

use crate::frames::{End, FrameBuffer};
use crate::letters::{Letter, Ring};
use crate::parties::Party;
use crate::protocol::{Answer, Ask, Port, Request};
use crate::station::{Kind, Memories, News, Station};
use crate::worker::nanoseconds;

/// The number of an owner's domain, which its ports address.
pub const OWNER_DOMAIN: u16 = 1;
/// Bytes of each ring: some eight round trips of 100 µs at 10 Gb/s.
pub const RING_BYTES: u32 = 1 << 20;
/// Most frames that are read from a device before frames from the owner have their turn.
const FRAMES_AT_ONCE: usize = 16;

/// Why a port cannot be attached to an owner at another machine, or is not any more.
#[derive(Debug, thiserror::Error)]
pub enum FarError {
    /// The node inside this process cannot be started.
    #[error(transparent)]
    Embed(#[from] EmbedError),
    /// The node inside this process gives no domain or memory, or has ended.
    #[error("the node inside this process: {0}")]
    Domain(#[from] OpenError),
    /// The owner's node cannot be reached.
    #[error(transparent)]
    Join(#[from] JoinError),
    /// The owner refuses the port.
    #[error("{0}")]
    Refused(String),
    /// The owner has another port of that name.
    #[error("{0}")]
    NameTaken(String),
    /// The owner does not answer.
    #[error("the owner has not answered within {} s", OWNER_TIMEOUT.as_secs())]
    TimedOut,
    /// The owner has gone, or has sent something invalid.
    #[error("{0}")]
    Ended(String),
    /// Waiting for the owner fails.
    #[error("waiting: {0}")]
    Wait(#[from] io::Error),
}

/// Allocates memory for a pair of pipes to a node.
///
/// # Errors
/// The node inside this process gives none.
pub fn memories(domain: &Domain, peer: Target) -> Result<Memories, OpenError> {
    let grant = Grant { who: Who::Node(peer.node), read: false, write: true };
    let mirror = domain.allocate(RING_BYTES as usize, &[])?;
    match domain.allocate(RING_BYTES as usize, &[grant]) {
        Ok(ring) => Ok(Memories { ring, mirror }),
        Err(error) => {
            drop(domain.free(mirror));
            Err(error)
        }
    }
}

/// Frees the memory of a pair of pipes.
pub fn free(domain: &Domain, memories: Memories) {
    let Memories { ring, mirror } = memories;
    for memory in [ring, mirror] {
        if let Err(error) = domain.free(memory) {
            tracing::warn!(%error, "memory of a port that has gone is not free");
        }
    }
}

/// Starts a node inside a process that serves an uplink or attaches a port.
///
/// # Errors
/// The node cannot listen, or has no memory.
pub fn embed(name: &str, listen: Address, security: Security) -> Result<Embedded, EmbedError> {
    let embedded = Embedded::start(&Embedding { name: name.to_owned(), listen, security })?;
    embedded.node().set_outage(OWNER_OUTAGE);
    Ok(embedded)
}

/// The link to a node, by the node's number at `embedded`.
pub fn find_node(embedded: &Embedded, node: u32) -> Option<Arc<Peer>> {
    let mut peers = embedded.node().peers().into_iter();
    peers.find(|peer| peer.id.0 == node && !peer.is_part() && peer.loss().is_none())
}

/// A port's connection to an owner at another machine.
pub struct FarOwner {
    station: Station,
    owner: Target,
    key: u64,
    begin: Instant,
    checked: Instant,
    buffer: FrameBuffer,
    came: Vec<u64>,
    /// Answers of the owner that wait to be handled.
    answers: VecDeque<Answer>,
    /// The node. It is the last field, so that everything that uses it is dropped before.
    embedded: Embedded,
}

impl FarOwner {
    /// Connects to the owner at an address and attaches a port.
    ///
    /// # Errors
    /// The owner cannot be reached, or refuses the port.
    pub fn attach(
        address: &Address,
        security: &Security,
        port: &Port,
        how: Coalescing,
    ) -> Result<(Self, Answer), FarError> {
        let mut word = [0; 8];
        rustix::rand::getrandom(&mut word, rustix::rand::GetRandomFlags::empty()).map_err(io::Error::from)?;
        let session = u64::from_le_bytes(word);
        let path = std::env::temp_dir().join(format!("tombolo-port-{}-{session:x}", std::process::id()));
        let embedded = embed(&port.name, Address::Shm(path.clone()), security.clone())?;
        // No process is to connect there.
        let _ = std::fs::remove_file(&path);
        let node = embedded.join(address, security, JOIN_TIMEOUT)?;
        let domain = embedded.open_undriven(None)?;
        let owner = Target { node, domain: OWNER_DOMAIN };
        let memories = memories(&domain, owner)?;
        let mut far = Self {
            // The station has one other side, so parties do not matter.
            station: Station::open(domain, false, Box::new(Party::Node))?,
            owner,
            key: 0,
            begin: Instant::now(),
            checked: Instant::now(),
            buffer: FrameBuffer::new(),
            came: Vec::new(),
            answers: VecDeque::new(),
            embedded,
        };
        let ring = Ring { address: memories.ring.address(), bytes: RING_BYTES };
        far.station.post(owner, Letter::Hello { version: VERSION, session, ring });
        let until = Instant::now() + OWNER_TIMEOUT;
        let answer = far.wait(until, |news| match news {
            News::Welcome { session: of, ring } if of == session => Some(Ok(ring)),
            News::Refused { session: of, reason } if of == session => Some(Err(reason)),
            _ => None,
        })?;
        let there = answer.ok_or(FarError::TimedOut)?;
        let there = there.map_err(|reason| FarError::Refused(harmless_reason(&reason)))?;
        if !there.is_possible() || there.bytes != RING_BYTES {
            return Err(FarError::Ended("the owner has a ring that is none".into()));
        }
        far.station.add(far.key, owner, session, memories, there, how);
        let request = Request { version: crate::protocol::VERSION, ask: Ask::Attach(port.clone()) };
        let request = serde_json::to_vec(&request).map_err(io::Error::other)?;
        let now_ns = far.now_ns();
        if !far.station.push(now_ns, far.key, Kind::Control, &[io::IoSlice::new(&request)]) {
            return Err(FarError::Refused("what is said of the port is too long".into()));
        }
        let answer = far.wait(until, |news| match news {
            News::Control { bytes, .. } => Some(Ok(bytes)),
            News::Ended { reason, .. } => Some(Err(reason)),
            _ => None,
        })?;
        let answer = answer.ok_or(FarError::TimedOut)?.map_err(FarError::Ended)?;
        match serde_json::from_slice(&answer) {
            Ok(Answer::Refused(reason)) => Err(FarError::Refused(harmless_reason(&reason))),
            Ok(Answer::NameTaken(reason)) => Err(FarError::NameTaken(harmless_reason(&reason))),
            Ok(answer) => Ok((far, answer)),
            Err(error) => Err(FarError::Ended(format!("the owner's answer cannot be read: {error}"))),
        }
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.begin.elapsed())
    }

    /// Waits for the news that `is_it` accepts. News before that are dropped. `None`: the time is over.
    fn wait<T>(
        &mut self,
        until: Instant,
        mut is_it: impl FnMut(News) -> Option<T>,
    ) -> Result<Option<T>, FarError> {
        loop {
            // Frames that come before the answer are lost, as on a wire that is just being plugged in.
            let _ = self.turn();
            while self.station.take(self.key, &mut self.buffer) != Err(Errno::AGAIN) {}
            let mut news = self.station.take_news().into_iter();
            if let Some(found) = news.by_ref().find_map(&mut is_it) {
                for news in news {
                    if let News::Control { bytes, .. } = news {
                        self.answers.extend(serde_json::from_slice::<Answer>(&bytes));
                    }
                }
                return Ok(Some(found));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            self.check()?;
            self.sleep(&[], CHECK_INTERVAL)?;
        }
    }

    fn turn(&mut self) -> bool {
        let now_ns = self.now_ns();
        self.came.clear();
        self.station.turn(now_ns, &mut self.came)
    }

    /// Checks, once in [`NODE_CHECK_INTERVAL`], that the owner's node is still there.
    fn check(&mut self) -> Result<(), FarError> {
        if self.checked.elapsed() >= NODE_CHECK_INTERVAL {
            self.checked = Instant::now();
            if find_node(&self.embedded, self.owner.node).is_none() {
                return Err(FarError::Ended("its node has gone".into()));
            }
        }
        Ok(())
    }

    /// Sleeps until there may be something to do, for at most `most`.
    fn sleep(&mut self, others: &[BorrowedFd<'_>], most: Duration) -> io::Result<()> {
        self.station.arm();
        if self.turn() || !self.came.is_empty() {
            return Ok(());
        }
        let now_ns = self.now_ns();
        let most = self.station.longest_sleep(now_ns).map_or(most, |longest| longest.min(most));
        let timeout = Timespec::try_from(most).map_err(io::Error::other)?;
        let mut waits = vec![PollFd::new(&self.station, PollFlags::IN)];
        waits.extend(others.iter().map(|other| PollFd::new(other, PollFlags::IN)));
        match poll(&mut waits, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let is_told = waits.first().is_some_and(|wait| !wait.revents().is_empty());
        drop(waits);
        if is_told {
            self.station.drain();
        }
        Ok(())
    }

    /// Moves frames between a device and the owner for `time`, or until the owner sends an answer, which is returned.
    ///
    /// # Errors
    /// The owner has gone.
    pub fn carry(
        &mut self,
        ends: &[End<BorrowedFd<'_>>],
        time: Duration,
    ) -> Result<Option<Answer>, FarError> {
        let until = Instant::now() + time;
        let waits: Vec<BorrowedFd<'_>> = ends.iter().map(AsFd::as_fd).collect();
        loop {
            let mut is_busy = self.turn();
            // From the device to the owner.
            let mut is_full = self.station.is_full(self.key);
            // The device is read in each round, also while frames keep coming from the owner.
            for end in ends {
                for _ in 0..FRAMES_AT_ONCE {
                    if is_full || self.buffer.read(end).is_err() {
                        break;
                    }
                    is_busy = true;
                    let now_ns = self.now_ns();
                    let (station, key) = (&mut self.station, self.key);
                    let _ = self.buffer.with_parts(Tag::Keep, |parts| {
                        Ok::<_, Errno>(station.push(now_ns, key, Kind::Frame, parts))
                    });
                    is_full = self.station.is_full(self.key);
                }
            }
            // From the owner to the device.
            for _ in 0..4 * FRAMES_AT_ONCE {
                match self.station.take(self.key, &mut self.buffer) {
                    Ok(()) => {
                        is_busy = true;
                        // A frame that the device does not take is lost, as on a wire.
                        if let Some(end) = ends.first() {
                            let _ = self.buffer.write(end, Tag::Keep);
                        }
                    }
                    Err(Errno::INVAL) => {}
                    Err(_) => break,
                }
            }
            for news in self.station.take_news() {
                match news {
                    News::Control { key, bytes } => {
                        self.station.heeded(key);
                        self.answers.extend(serde_json::from_slice::<Answer>(&bytes));
                    }
                    News::Ended { reason, .. } => return Err(FarError::Ended(harmless_reason(&reason))),
                    _ => {}
                }
            }
            if let Some(answer) = self.answers.pop_front() {
                return Ok(Some(answer));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                self.check()?;
                return Ok(None);
            }
            if !is_busy {
                self.sleep(if is_full { &[] } else { &waits }, left)?;
            }
        }
    }
}

/// How often a thread that waits for the owner's answer checks whether it is to give up. A user does not notice a tenth of a
/// second.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long sending the letter that ends a port may take. This is a bound, not a measurement: an owner that does not get the
/// letter sees the link end.
const GOODBYE_TIMEOUT: Duration = Duration::from_millis(200);
/// How often it is checked whether that letter was sent.
const GOODBYE_INTERVAL: Duration = Duration::from_millis(10);

impl Drop for FarOwner {
    fn drop(&mut self) {
        self.station.remove(self.key);
        // A letter tells the owner that the port has ended, if the owner is still there.
        let until = Instant::now() + GOODBYE_TIMEOUT;
        while self.station.is_waiting_for_end() && Instant::now() < until {
            self.turn();
            let _ = self.sleep(&[], GOODBYE_INTERVAL);
        }
    }
}

#[cfg(test)]
mod hostile;
