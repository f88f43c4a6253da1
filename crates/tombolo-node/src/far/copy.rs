//! Copies to and from named segments: bytes go into a node under a name, and come out again.
//!
//! The bytes go through the engine in pieces, several at once, each from a buffer of its own. One thread drives the
//! link all the while, so that the caller may take its time with files. No copy counts before both ends have computed
//! the same checksum.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tombolo_core::rdma::{Direction, PostError, Transfer, TransferError};
use tombolo_host::shared::{SharedMemoryError, SharedSpan};
use tombolo_host::timing::node as timing;
use tombolo_link::udp::DEFAULT_OUTAGE;
use tombolo_link::{Address, LossReason, Security};
use tombolo_wire::Domain;

use crate::driver::address_space::BUFFERS;
use crate::driver::node::{Node, NodeEvent, NodeEvents};
use crate::driver::path_maintainer::{PathLossSink, PathMaintainer};
use crate::fabric::connection::Connection;
use crate::fabric::link_driver::{AskError, JoinError};
use crate::fabric::messages::{Checksum, NamedSegment, Reply, Request};
use crate::lending::ledger::LendError;
use crate::lending::named::{Hasher, SegmentName};

/// Bytes that one transfer of a copy moves.
const PIECE_BYTES: usize = 1 << 20;
/// Transfers open at once: 8 MiB under way, so that checksumming and writing one piece overlaps with the others. A
/// bound, not a measurement.
const PIECES: usize = 8;
/// Rate at which a node allocates and checks, at least: hundreds of times slower than memory, so that a busy
/// machine is not given up. A bound, not a measurement.
const SLOWEST_BYTES_PER_S: u64 = 20 << 20;
/// Rounds in which packets are taken from a link that always has some, before the timers are looked at. A bound, not a
/// measurement. Received packets are handled first, or the timers would take them for lost.
const ROUNDS: u32 = 64;

/// Why something was not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The node cannot be reached.
    #[error("{0}")]
    Join(#[from] JoinError),
    /// This side could not be set up.
    #[error("cannot set up the copying node: {0}")]
    SetUp(#[from] LendError),
    /// No address of the node is known.
    #[error("no address to copy from or to")]
    NoAddress,
    /// The thread that drives the link could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The node does not answer, or is gone.
    #[error("node {address}: {source}")]
    Ask {
        /// Which node.
        address: Address,
        /// Why.
        source: AskError,
    },
    /// The node was lost during the copy.
    #[error("node {address} is gone: {reason}")]
    Lost {
        /// Which node.
        address: Address,
        /// Why.
        reason: LossReason,
    },
    /// The node does not have as much room as the file needs.
    #[error("node {address} has no room for {asked_bytes} bytes: {free_bytes} are free")]
    NoRoom {
        /// Which node.
        address: Address,
        /// What was asked.
        asked_bytes: u64,
        /// What is free there.
        free_bytes: u64,
    },
    /// No segment has that name.
    #[error("nothing is called `{name}` at {address}")]
    NoSuchName {
        /// Which node.
        address: Address,
        /// What was looked for.
        name: SegmentName,
    },
    /// The node refused.
    #[error("node {address}: {reason}")]
    Refused {
        /// Which node.
        address: Address,
        /// What it said.
        reason: String,
    },
    /// A transfer could not be begun.
    #[error("{0}")]
    Post(#[from] PostError),
    /// A transfer failed.
    #[error("node {address}: {source}")]
    Transfer {
        /// With which node.
        address: Address,
        /// Why.
        source: TransferError,
    },
    /// A piece does not lie within the buffer memory.
    #[error("{0}")]
    Buffer(#[from] SharedMemoryError),
    /// The source cannot be read.
    #[error("cannot read: {0}")]
    Read(io::Error),
    /// The source has more or fewer bytes than the caller has said.
    #[error("it changed while it was copied, and is not {0} bytes long any more; copy it again")]
    Changed(u64),
    /// The target cannot be written.
    #[error("cannot write: {0}")]
    Write(io::Error),
    /// The bytes that have arrived are not those that were sent.
    #[error("the checksum of what arrived is {arrived}, and not {sent}: nothing was kept; copy it again")]
    Mismatch {
        /// Checksum of what was sent.
        sent: Checksum,
        /// Checksum of what has arrived.
        arrived: Checksum,
    },
    /// The caller has stopped the copy, by its progress function or by [`Store::interrupt_when`].
    #[error("interrupted")]
    Interrupted,
}

/// Called with the number of bytes done; returns false to stop.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> bool;

/// The named segments at another node. After a copy has failed, its link must not be used any more: connect again.
#[derive(Debug)]
pub struct Store {
    address: Address,
    node: Arc<Node>,
    peer: Arc<Connection>,
    events: NodeEvents,
    stop: Arc<AtomicBool>,
    service: Option<JoinHandle<()>>,
    is_interrupted: fn() -> bool,
    /// Keeps the further links.
    _path_maintainer: PathMaintainer,
}

/// A segment that can be read.
#[derive(Debug)]
pub struct Opened {
    /// Its name, length and checksum.
    pub found: NamedSegment,
    segment: u16,
}

impl Drop for Store {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(service) = self.service.take() {
            let _ = service.join();
        }
    }
}

/// Drives a link until it is lost or not wanted any more.
fn drive(node: &Node, peer: &Arc<Connection>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) && peer.loss().is_none() {
        // Received packets are handled before the timers, which would take them for lost.
        let drained = (0..ROUNDS).any(|_| node.drive(peer) == 0);
        let until = node.expire().unwrap_or(timing::STORE_MAX_SLEEP).min(timing::STORE_MAX_SLEEP);
        if drained && peer.has_link() {
            let _ = peer.link.wait(until);
        } else if drained {
            // Other threads wait at the further links.
            std::thread::sleep(until);
        }
        node.tick();
    }
}

/// Offset and length of the piece with this index. `None`: it lies beyond the end.
fn piece(index: u64, length_bytes: u64) -> Option<(u64, usize)> {
    let start = index.checked_mul(PIECE_BYTES as u64).filter(|&start| start < length_bytes)?;
    Some((start, (length_bytes - start).min(PIECE_BYTES as u64) as usize))
}

/// Index of a piece's buffer.
fn slot(index: u64) -> usize {
    (index % PIECES as u64) as usize
}

/// Offset of a piece's buffer.
fn buffer(index: u64) -> usize {
    slot(index) * PIECE_BYTES
}

fn long_timeout(bytes: u64) -> Duration {
    timing::STORE_LONG_TIMEOUT + Duration::from_secs(bytes / SLOWEST_BYTES_PER_S)
}

/// Asks for the named segments: the first `most`, and perhaps some more. `None`: the answers are no list of names.
pub(super) fn list<E>(
    most: usize,
    mut ask: impl FnMut(Request) -> Result<Reply, E>,
) -> Result<Option<Vec<NamedSegment>>, E> {
    let mut all: Vec<NamedSegment> = Vec::new();
    loop {
        let after = all.last().map(|last| last.name.clone());
        let Reply::Names { segments, more } = ask(Request::List { after })? else { return Ok(None) };
        let more = more && !segments.is_empty();
        for segment in segments {
            // Names are shown to people, so each must be valid. Each list must begin after the end of the last one.
            if segment.name.parse::<SegmentName>().is_err()
                || all.last().is_some_and(|last| last.name >= segment.name)
            {
                return Ok(None);
            }
            all.push(segment);
        }
        if !more || all.len() >= most {
            return Ok(Some(all));
        }
    }
}

impl Store {
    /// Connects to a node by all of these addresses of it, and introduces this one by `name`.
    pub fn connect(name: &str, addresses: &[Address], security: &Security) -> Result<Self, CopyError> {
        Self::connect_with(name, addresses, security, DEFAULT_OUTAGE)
    }

    /// As [`Self::connect`]. Over UDP the node may be silent for `outage` before it is lost. What is asked of it waits
    /// meanwhile.
    pub fn connect_with(
        name: &str,
        addresses: &[Address],
        security: &Security,
        outage: Duration,
    ) -> Result<Self, CopyError> {
        let address = addresses.first().ok_or(CopyError::NoAddress)?;
        let node = Arc::new(Node::new(name, 0, PIECES * PIECE_BYTES)?);
        node.set_outage(outage);
        let (_, events) = node.add_owner().map_err(CopyError::Thread)?;
        let peer = node.join(address, security, timing::STORE_TIMEOUT)?;
        let mut paths = Vec::new();
        if addresses.len() > 1 {
            paths.push(node.join_again(&peer, addresses, security, timing::STORE_TIMEOUT)?);
        }
        let nobody: PathLossSink = Arc::new(|_, _| {});
        let path_maintainer =
            PathMaintainer::start(&node, paths, security, &nobody).map_err(CopyError::Thread)?;
        let stop = Arc::new(AtomicBool::new(false));
        let service = std::thread::Builder::new().name("copy".into()).spawn({
            let (node, peer, stop) = (node.clone(), peer.clone(), stop.clone());
            move || drive(&node, &peer, &stop)
        });
        let service = Some(service.map_err(CopyError::Thread)?);
        Ok(Self {
            address: address.clone(),
            node,
            peer,
            events,
            stop,
            service,
            is_interrupted: || false,
            _path_maintainer: path_maintainer,
        })
    }

    /// From now on a question to the node is given up, with [`CopyError::Interrupted`], when `is_interrupted` returns
    /// true. The node may take minutes to allocate or to check what is copied.
    pub fn interrupt_when(&mut self, is_interrupted: fn() -> bool) {
        self.is_interrupted = is_interrupted;
    }

    fn ask(&self, request: Request, timeout: Duration) -> Result<Reply, CopyError> {
        let answer = self.node.ask_while(&self.peer, request, timeout, &|| !(self.is_interrupted)());
        if matches!(answer, Err(AskError::Interrupted)) {
            return Err(CopyError::Interrupted);
        }
        match answer.map_err(|source| CopyError::Ask { address: self.address.clone(), source })?.0 {
            Reply::Failed(reason) => Err(CopyError::Refused { address: self.address.clone(), reason }),
            reply => Ok(reply),
        }
    }

    fn ask_of(&self, name: &SegmentName, request: Request) -> Result<Reply, CopyError> {
        match self.ask(request, timing::STORE_TIMEOUT)? {
            Reply::NoSuchName => {
                Err(CopyError::NoSuchName { address: self.address.clone(), name: name.clone() })
            }
            reply => Ok(reply),
        }
    }

    fn unfitting<T>(&self, what: &str) -> Result<T, CopyError> {
        let reason = format!("{what} does not fit the question; run the same release on both");
        Err(CopyError::Refused { address: self.address.clone(), reason })
    }

    /// The segment that has this name.
    pub fn find(&self, name: &SegmentName) -> Result<NamedSegment, CopyError> {
        match self.ask_of(name, Request::Find { name: name.as_str().to_owned() })? {
            Reply::Found(found) if found.name == name.as_str() => Ok(found),
            _ => self.unfitting("an answer"),
        }
    }

    /// All named segments, in the order of their names.
    pub fn list(&self) -> Result<Vec<NamedSegment>, CopyError> {
        match list(usize::MAX, |request| self.ask(request, timing::STORE_TIMEOUT))? {
            Some(all) => Ok(all),
            None => self.unfitting("a list of names"),
        }
    }

    /// Takes a name away from its segment. Nodes that are reading the segment can go on.
    pub fn delete(&self, name: &SegmentName) -> Result<(), CopyError> {
        match self.ask_of(name, Request::Delete { name: name.as_str().to_owned() })? {
            Reply::Done => Ok(()),
            _ => self.unfitting("an answer"),
        }
    }

    /// Waits until a piece has been moved, and returns its index.
    fn wait(&self, done_bytes: u64, progress: Progress<'_>) -> Result<u64, CopyError> {
        loop {
            let lost = |otherwise| match self.peer.loss() {
                Some(reason) => CopyError::Lost { address: self.address.clone(), reason },
                None => otherwise,
            };
            match self.events.wait(timing::STORE_PAUSE) {
                Some(NodeEvent::Completed { user, result: Ok(()) }) => return Ok(user),
                Some(NodeEvent::Completed { result: Err(source), .. }) => {
                    return Err(lost(CopyError::Transfer { address: self.address.clone(), source }));
                }
                // The transfers to and from the lost node fail, too.
                Some(NodeEvent::Lost { .. }) => {}
                None if progress(done_bytes) => {}
                None => return Err(CopyError::Interrupted),
            }
        }
    }

    fn post(&self, transfer: Transfer) -> Result<(), CopyError> {
        let posted = self.node.post(self.peer.id, transfer);
        if let (Err(_), Some(reason)) = (&posted, self.peer.loss()) {
            return Err(CopyError::Lost { address: self.address.clone(), reason });
        }
        posted?;
        self.node.pump();
        Ok(())
    }

    /// Copies `length_bytes`, all that `source` has, into the node, and gives them this name. A segment that has the
    /// name keeps it until all bytes have arrived and have the right checksum.
    pub fn write(
        &mut self,
        name: &SegmentName,
        length_bytes: u64,
        source: &mut dyn Read,
        progress: Progress<'_>,
    ) -> Result<Checksum, CopyError> {
        let timeout = long_timeout(length_bytes);
        let segment = match self.ask(Request::Create { bytes: length_bytes }, timeout)? {
            Reply::Lent { segment } => segment,
            Reply::TooMuch { free_bytes } => {
                let address = self.address.clone();
                return Err(CopyError::NoRoom { address, asked_bytes: length_bytes, free_bytes });
            }
            _ => return self.unfitting("an answer"),
        };
        let sent = self.send(segment, length_bytes, source, progress)?;
        let since = Instant::now();
        // If a link was lost, the node may have published the segment all the same, or may do so soon.
        let mut unknown = false;
        loop {
            let publish = Request::Publish { segment, name: name.as_str().to_owned(), checksum: sent };
            match self.ask(publish, timeout) {
                Ok(Reply::Done) => return Ok(sent),
                Ok(Reply::Mismatch { checksum: arrived }) => {
                    return Err(CopyError::Mismatch { sent, arrived });
                }
                Ok(_) => return self.unfitting("an answer"),
                Err(CopyError::Ask { source: AskError::PathLost, .. }) => unknown = true,
                Err(CopyError::Refused { .. }) if unknown && since.elapsed() < timeout => {}
                Err(error) => return Err(error),
            }
            if self.find(name).is_ok_and(|found| found.checksum == sent) {
                return Ok(sent);
            }
            if !progress(length_bytes) {
                return Err(CopyError::Interrupted);
            }
            std::thread::sleep(timing::STORE_PAUSE);
        }
    }

    fn send(
        &self,
        segment: u16,
        length_bytes: u64,
        source: &mut dyn Read,
        progress: Progress<'_>,
    ) -> Result<Checksum, CopyError> {
        let (mut hasher, mut bytes) = (Hasher::default(), vec![0; PIECE_BYTES]);
        let mut window = Window::new(self, length_bytes);
        for index in 0.. {
            let Some((_, size)) = piece(index, length_bytes) else { break };
            let bytes = &mut bytes[..size];
            source.read_exact(bytes).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => CopyError::Changed(length_bytes),
                _ => CopyError::Read(error),
            })?;
            hasher.update(bytes);
            window.settle(index, progress)?;
            if !progress(window.moved_bytes) {
                return Err(CopyError::Interrupted);
            }
            let target = self.node.buffers().span_mut(buffer(index), size)?;
            target.copy_from(SharedSpan::from(&*bytes));
            window.post(Direction::Write, segment, index)?;
        }
        window.settle_all(progress)?;
        let mut more = Vec::new();
        source.take(1).read_to_end(&mut more).map_err(CopyError::Read)?;
        if !more.is_empty() {
            return Err(CopyError::Changed(length_bytes));
        }
        Ok(hasher.finish())
    }

    /// Begins to read the segment that has this name now. It stays as it is until [`Store::close`], even if the name is
    /// deleted or given to another segment.
    pub fn open(&mut self, name: &SegmentName) -> Result<Opened, CopyError> {
        match self.ask_of(name, Request::Open { name: name.as_str().to_owned() })? {
            Reply::Opened { segment, found } if found.name == name.as_str() => Ok(Opened { found, segment }),
            _ => self.unfitting("an answer"),
        }
    }

    /// Copies all bytes of an open segment out of the node. They are the right ones only if the result is no error.
    pub fn read(
        &mut self,
        opened: &Opened,
        target: &mut dyn Write,
        progress: Progress<'_>,
    ) -> Result<(), CopyError> {
        let length_bytes = opened.found.bytes;
        let (mut hasher, mut bytes) = (Hasher::default(), Vec::with_capacity(PIECE_BYTES));
        let mut window = Window::new(self, length_bytes);
        for index in 0..PIECES as u64 {
            window.post(Direction::Read, opened.segment, index)?;
        }
        for index in 0.. {
            let Some((start, size)) = piece(index, length_bytes) else { break };
            window.settle(index, progress)?;
            bytes.clear();
            self.node.buffers().span(buffer(index), size)?.append_to(&mut bytes);
            window.post(Direction::Read, opened.segment, index + PIECES as u64)?;
            hasher.update(&bytes);
            target.write_all(&bytes).map_err(CopyError::Write)?;
            if !progress(start + size as u64) {
                return Err(CopyError::Interrupted);
            }
        }
        target.flush().map_err(CopyError::Write)?;
        let (sent, arrived) = (opened.found.checksum, hasher.finish());
        if arrived == sent { Ok(()) } else { Err(CopyError::Mismatch { sent, arrived }) }
    }

    /// Ends the reading of a segment. The node gets the memory back if the segment has lost its name.
    pub fn close(&mut self, opened: Opened) -> Result<(), CopyError> {
        self.ask(Request::Release { segment: opened.segment }, timing::STORE_TIMEOUT).map(drop)
    }
}

/// The pieces that are being moved.
struct Window<'a> {
    store: &'a Store,
    length_bytes: u64,
    /// Which buffers are in use.
    open: [bool; PIECES],
    moved_bytes: u64,
}

impl<'a> Window<'a> {
    fn new(store: &'a Store, length_bytes: u64) -> Self {
        Self { store, length_bytes, open: [false; PIECES], moved_bytes: 0 }
    }

    /// Begins to move a piece, if there is one with that index. Its buffer must be free.
    fn post(&mut self, direction: Direction, segment: u16, index: u64) -> Result<(), CopyError> {
        let Some((start, size)) = piece(index, self.length_bytes) else { return Ok(()) };
        let buffer = buffer(index) as u64;
        let (source_address, destination_address) =
            if direction == Direction::Read { (start, buffer) } else { (buffer, start) };
        self.open[slot(index)] = true;
        self.store.post(Transfer {
            direction,
            domain: Domain(segment),
            own_domain: BUFFERS,
            source_address,
            destination_address,
            size_bytes: size as u32,
            notification: None,
            class: None,
            user: index,
        })
    }

    /// Waits until nothing is on its way to or from a piece's buffer.
    fn settle(&mut self, index: u64, progress: Progress<'_>) -> Result<(), CopyError> {
        while self.open[slot(index)] {
            let moved = self.store.wait(self.moved_bytes, progress)?;
            self.open[slot(moved)] = false;
            self.moved_bytes += piece(moved, self.length_bytes).map_or(0, |(_, size)| size as u64);
        }
        Ok(())
    }

    fn settle_all(&mut self, progress: Progress<'_>) -> Result<(), CopyError> {
        (0..PIECES as u64).try_for_each(|index| self.settle(index, progress))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_whole_and_no_more() {
        const PIECE: u64 = PIECE_BYTES as u64;
        for length_bytes in [0, 1, PIECE - 1, PIECE, PIECE + 1, 9 * PIECE + 5, u64::from(u32::MAX) * 3] {
            let mut end = 0;
            for index in 0.. {
                let Some((start, size)) = piece(index, length_bytes) else { break };
                assert_eq!(start, end);
                assert!((1..=PIECE_BYTES).contains(&size));
                end = start + size as u64;
            }
            assert_eq!(end, length_bytes);
        }
        assert_eq!(piece(u64::MAX, u64::MAX), None);
    }
}
