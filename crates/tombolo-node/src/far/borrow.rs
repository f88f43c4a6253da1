//! The borrowing side: far memory made of segments from several lenders.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_core::rdma::{Direction, PeerId, Transfer, TransferError};
use tombolo_core::segment::{DEFAULT_STRIPE_BYTES, LenderId, Segment, SegmentId, SegmentTable};
use tombolo_host::event;
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::node as timing;
use tombolo_link::{Address, Link, LossReason, Security};
use tombolo_wire::Domain;

use crate::driver::address_space::BUFFERS;
use crate::driver::node::Node;
use crate::driver::path_maintainer::{PathLossSink, PathMaintainer};
use crate::fabric::connection::Connection;
use crate::fabric::messages::{Reply, Request};
use crate::fabric::neighbourhood;
use crate::far::asking::{BorrowError, ask, ask_status, refused};
use crate::far::front::{FarEvent, FarSink};
use crate::far::reads::{Reads, Waiter};
use crate::lending::ledger::LendError;

mod pages;

const PAGE_BYTES: u64 = 4096;
/// Segments are whole stripes.
const STRIPE_BYTES: u64 = DEFAULT_STRIPE_BYTES;
/// Pages that can be read at once without a window.
const READ_PAGES: u32 = 512;
/// Pages that can be written at once without a window.
const STAGING_PAGES: u32 = 256;
/// How much of a window is mapped at once.
const WARM_BYTES: usize = 1 << 20;
/// Marks a completed write among the user numbers of transfers.
const WRITE: u64 = 1 << 63;

#[derive(Debug)]
struct Lender {
    address: Address,
    peer: Arc<Connection>,
    segment: u16,
    /// Its memory, where the link has windows.
    window: Option<SharedMemory>,
    /// Pieces of the window that are mapped, of [`WARM_BYTES`] each.
    warm: Vec<AtomicBool>,
    lost: AtomicBool,
}

/// Where a far page is.
#[derive(Clone, Copy, Debug)]
struct Place {
    lender: u32,
    offset_bytes: u64,
    /// Bytes from there to the end of the piece.
    length_bytes: u64,
}

/// Memory borrowed from one or more nodes, as one range of pages.
pub struct Borrowed {
    node: Arc<Node>,
    lenders: Vec<Lender>,
    table: SegmentTable,
    reads: Reads,
    /// Rounds of progress, for what need not be done in each.
    rounds: AtomicU32,
    writes_open: AtomicU64,
    writes_failed: AtomicBool,
    writer: Mutex<()>,
    sink: OnceLock<FarSink>,
    stop: AtomicBool,
    /// Becomes readable then.
    ended: OwnedFd,
    service: Mutex<Option<JoinHandle<()>>>,
    /// Lenders' further links.
    path_maintainer: Mutex<PathMaintainer>,
    /// How lenders are asked whether they were started again, where they may be.
    security: OnceLock<Security>,
    /// One of them is being asked.
    is_asking: Arc<AtomicBool>,
}

impl std::fmt::Debug for Borrowed {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Borrowed").field("lenders", &self.lenders).finish_non_exhaustive()
    }
}

/// What to borrow, and where.
#[derive(Debug, Clone, Copy)]
pub struct Borrowing<'a> {
    /// Introduces this node.
    pub name: &'a str,
    /// The nodes to borrow from: of each one address or several, all of which are used at once.
    pub lenders: &'a [Vec<Address>],
    /// How links to those at UDP addresses are protected.
    pub security: &'a Security,
    /// How much altogether; `None`: up to `wish_bytes`, as much as they have.
    pub bytes: Option<u64>,
    /// Counts where `bytes` does not.
    pub wish_bytes: u64,
    /// How long a lender over UDP may be silent before it is lost; meanwhile what is asked of it waits.
    pub outage: Duration,
}

fn no_thread(error: std::io::Error) -> LendError {
    LendError::System(format!("cannot start a thread: {error}"))
}

/// How `total` is divided among lenders that have `free` each: evenly, as far as they have it.
fn shares(free: &[u64], total: u64) -> Option<Vec<u64>> {
    let mut given = vec![0u64; free.len()];
    let mut left = total.div_ceil(STRIPE_BYTES);
    while left > 0 {
        let open: Vec<usize> =
            (0..free.len()).filter(|&index| free[index] / STRIPE_BYTES > given[index]).collect();
        let each = (left / open.len().max(1) as u64).max(1);
        if open.is_empty() {
            return None;
        }
        for index in open {
            let more = each.min(free[index] / STRIPE_BYTES - given[index]).min(left);
            given[index] += more;
            left -= more;
        }
    }
    Some(given.into_iter().map(|stripes| stripes * STRIPE_BYTES).collect())
}

impl Borrowed {
    /// Borrows memory from other nodes.
    pub fn new(borrowing: &Borrowing<'_>) -> Result<Arc<Self>, BorrowError> {
        let Borrowing { name, lenders, security, bytes, wish_bytes, outage } = *borrowing;
        let firsts: Vec<Address> = lenders.iter().filter_map(|ways| ways.first().cloned()).collect();
        let links = firsts
            .iter()
            .map(|address| Ok(tombolo_link::connect(address, security, timing::BORROW_TIMEOUT)?))
            .collect::<Result<Vec<_>, BorrowError>>()?;
        let node = Node::new(name, 0, (READ_PAGES + STAGING_PAGES) as usize * PAGE_BYTES as usize)?;
        node.set_outage(outage);
        let node = Arc::new(node);
        let peers: Vec<_> = links.into_iter().map(|link| node.add_peer(link)).collect();
        let mut paths = Vec::new();
        for (peer, ways) in peers.iter().zip(lenders.iter().filter(|ways| !ways.is_empty())) {
            if ways.len() > 1 {
                paths.push(node.join_again(peer, ways, security, timing::BORROW_TIMEOUT)?);
            }
        }
        let borrowed = Self::from_peers(node, &firsts, peers, bytes, wish_bytes)?;
        let _ = borrowed.security.set(security.clone());
        let weak = Arc::downgrade(&borrowed);
        let told: PathLossSink = Arc::new(move |address, reason| {
            if let Some(borrowed) = weak.upgrade()
                && let Some(sink) = borrowed.sink.get()
            {
                sink(FarEvent::PathLost { address: address.to_string(), reason: reason.to_string() });
            }
        });
        let path_maintainer = PathMaintainer::start(&borrowed.node, paths, security, &told);
        *borrowed.path_maintainer.lock() = path_maintainer.map_err(no_thread)?;
        Ok(borrowed)
    }

    /// Borrows over links that are up, for a node that may lend as well.
    pub fn over(
        node: Arc<Node>,
        addresses: &[Address],
        links: Vec<Arc<dyn Link>>,
        bytes: Option<u64>,
        wish_bytes: u64,
    ) -> Result<Arc<Self>, BorrowError> {
        let peers = links.into_iter().map(|link| node.add_peer(link)).collect();
        Self::from_peers(node, addresses, peers, bytes, wish_bytes)
    }

    /// Borrows from peers that the node has joined already, one for each address. If a peer has several paths,
    /// another thread must serve the node.
    pub fn from_peers(
        node: Arc<Node>,
        addresses: &[Address],
        peers: Vec<Arc<Connection>>,
        bytes: Option<u64>,
        wish_bytes: u64,
    ) -> Result<Arc<Self>, BorrowError> {
        let mut free = Vec::new();
        for (peer, address) in peers.iter().zip(addresses) {
            match ask(&node, peer, address, node.fabric.introduction(), timing::BORROW_TIMEOUT)?.0 {
                Reply::Introduced { name, life } => node
                    .fabric
                    .introduced(peer, &name, life)
                    .map_err(|reason| BorrowError::Refused { lender: address.clone(), reason })?,
                other => return Err(refused(address, other)),
            }
            let (status, _) = ask_status(&node, peer, address, 0)?;
            free.push(status.lend_bytes.saturating_sub(status.lent_bytes) / STRIPE_BYTES * STRIPE_BYTES);
        }
        let total_free: u64 = free.iter().sum();
        let wanted = bytes.unwrap_or_else(|| wish_bytes.min(total_free));
        if wanted == 0 || total_free == 0 {
            return Err(BorrowError::Nothing);
        }
        let Some(shares) = shares(&free, wanted) else {
            // Name the lender that is shortest of its even share.
            let each = wanted / addresses.len() as u64;
            let index = (0..free.len()).min_by_key(|&index| free[index]).unwrap_or(0);
            return Err(BorrowError::TooMuch {
                lender: addresses[index].clone(),
                asked_bytes: each,
                free_bytes: free[index],
            });
        };
        let mut lenders = Vec::new();
        for ((peer, address), share) in peers.into_iter().zip(addresses).zip(shares) {
            if share > 0 {
                lenders.push(borrow_segment(&node, peer, address, share)?);
            }
        }
        let segments: Vec<Segment> = lenders
            .iter()
            .enumerate()
            .map(|(index, (lender, bytes))| Segment {
                lender: LenderId(index as u32),
                segment: SegmentId(u64::from(lender.segment)),
                length_bytes: *bytes,
            })
            .collect();
        let table = SegmentTable::new(&segments, STRIPE_BYTES).map_err(|error| {
            BorrowError::WrongSegment { lender: addresses[0].clone(), reason: error.to_string() }
        })?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let ended = rustix::event::eventfd(0, flags).map_err(|errno| no_thread(errno.into()))?;
        let borrowed = Arc::new(Self {
            node,
            lenders: lenders.into_iter().map(|(lender, _)| lender).collect(),
            table,
            reads: Reads::new(READ_PAGES),
            rounds: AtomicU32::new(0),
            writes_open: AtomicU64::new(0),
            writes_failed: AtomicBool::new(false),
            writer: Mutex::new(()),
            sink: OnceLock::new(),
            stop: AtomicBool::new(false),
            ended,
            service: Mutex::new(None),
            path_maintainer: Mutex::default(),
            security: OnceLock::new(),
            is_asking: Arc::default(),
        });
        let weak = Arc::downgrade(&borrowed);
        borrowed.node.on_completion(Box::new(move |user, result| {
            if let Some(borrowed) = weak.upgrade() {
                borrowed.completed(user, result);
            }
        }));
        let weak = Arc::downgrade(&borrowed);
        borrowed.node.on_loss(Box::new(move |peer, reason| {
            if let Some(borrowed) = weak.upgrade() {
                borrowed.lender_lost(peer, reason);
            }
        }));
        let weak = Arc::downgrade(&borrowed);
        let service = std::thread::Builder::new()
            .name("far".into())
            .spawn(move || while weak.upgrade().is_some_and(|borrowed| borrowed.look_after()) {});
        *borrowed.service.lock() = Some(service.map_err(no_thread)?);
        Ok(borrowed)
    }

    /// Gives everything back, politely.
    pub fn release(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.ended, &1u64.to_ne_bytes());
        if let Some(service) = self.service.lock().take()
            && service.thread().id() != std::thread::current().id()
        {
            let _ = service.join();
        }
        for lender in &self.lenders {
            if !lender.lost.load(Ordering::Relaxed) {
                let request = Request::Release { segment: lender.segment };
                let _ = self.node.ask(&lender.peer, request, timing::RELEASE_TIMEOUT);
            }
        }
        *self.path_maintainer.lock() = PathMaintainer::default();
    }

    /// The borrowing node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// A lender is gone.
    fn lender_lost(&self, peer: PeerId, reason: LossReason) {
        for lender in self.lenders.iter().filter(|lender| lender.peer.id == peer) {
            if !lender.lost.swap(true, Ordering::SeqCst)
                && let Some(sink) = self.sink.get()
            {
                sink(FarEvent::LenderLost { lender: lender.address.to_string(), reason: reason.to_string() });
            }
        }
    }

    /// A lender that was started again answers at its address while its old link is silent: what it lent is
    /// gone, and nothing is waited for.
    fn ask_silent_lenders(&self) {
        let Some(security) = self.security.get() else { return };
        let is_silent = |lender: &&Lender| !lender.is_lost() && lender.peer.is_waiting();
        let silent: Vec<_> = self.lenders.iter().filter(is_silent).collect();
        if silent.is_empty() || self.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let asked: Vec<_> =
            silent.into_iter().map(|lender| (lender.peer.clone(), lender.address.clone())).collect();
        let (node, security, is_asking) = (self.node.clone(), security.clone(), self.is_asking.clone());
        let started = std::thread::Builder::new().name("probe".into()).spawn(move || {
            for (peer, address) in asked {
                neighbourhood::close_if_restarted(&*node, &peer, &address, &security);
            }
            std::thread::sleep(timing::PROBE_PAUSE);
            is_asking.store(false, Ordering::Release);
        });
        if started.is_err() {
            self.is_asking.store(false, Ordering::Release);
        }
    }

    /// One round of keeping the links alive and noticing those that are not.
    fn look_after(&self) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            return false;
        }
        self.node.tick();
        self.ask_silent_lenders();
        // Nobody polls the links with windows for packets: there are none.
        let windowed: Vec<&Lender> =
            self.lenders.iter().filter(|lender| lender.window.is_some() && !lender.is_lost()).collect();
        for lender in &windowed {
            if self.node.arm(&lender.peer).unwrap_or(true) {
                self.node.drive(&lender.peer);
            }
        }
        let links = windowed.iter().map(|lender| lender.peer.link.descriptor());
        let descriptors: Vec<_> = links.chain([self.ended.as_fd()]).collect();
        let _ = event::wait_readable(&descriptors, Some(timing::WINDOWS_MAX_SLEEP));
        true
    }

    fn place(&self, page: u32) -> Option<Place> {
        let address = u64::from(page) * PAGE_BYTES;
        let piece = self.table.resolve(address, PAGE_BYTES).ok()?.next()?;
        // The table's stripes say how far the piece reaches.
        let rest = STRIPE_BYTES - piece.offset_bytes % STRIPE_BYTES;
        let end = self.table.length_bytes() - address;
        Some(Place { lender: piece.lender.0, offset_bytes: piece.offset_bytes, length_bytes: rest.min(end) })
    }

    fn lender(&self, page: u32) -> Option<(&Lender, Place)> {
        let place = self.place(page)?;
        Some((self.lenders.get(place.lender as usize)?, place))
    }

    /// Posts the read of a far page into a buffer page. False: it cannot be.
    fn post_read(&self, page: u32, buffer: u32) -> bool {
        let user = u64::from(buffer);
        let Some((lender, place)) = self.lender(page) else { return false };
        let transfer = Transfer {
            direction: Direction::Read,
            domain: Domain(lender.segment),
            own_domain: BUFFERS,
            source_address: place.offset_bytes,
            destination_address: user * PAGE_BYTES,
            size_bytes: PAGE_BYTES as u32,
            notification: None,
            class: None,
            user,
        };
        self.node.post(lender.peer.id, transfer).is_ok()
    }

    fn completed(&self, user: u64, result: Result<(), TransferError>) {
        if user & WRITE != 0 {
            if result.is_err() {
                self.writes_failed.store(true, Ordering::Relaxed);
            }
            self.writes_open.fetch_sub(1, Ordering::Release);
            return;
        }
        self.read_ended(user as u32, result.is_ok());
    }

    /// Reports the end of a read, and starts the next that waits for its buffer page.
    fn read_ended(&self, buffer: u32, mut good: bool) {
        loop {
            let Some(Waiter { ticket, since }) = self.reads.waiter(buffer) else { return };
            let address =
                good.then(|| self.node.buffers().as_mut_ptr() as u64 + u64::from(buffer) * PAGE_BYTES);
            if let Some(sink) = self.sink.get() {
                sink(FarEvent::Arrived { ticket, address, since });
            }
            let Some(page) = self.reads.end(buffer) else { return };
            good = self.post_read(page, buffer);
            if good {
                return;
            }
        }
    }

    /// Reports reads that could not even be posted. Not done at once: whoever
    /// asked for them holds locks that the report needs.
    fn report_unposted(&self) {
        while let Some(buffer) = self.reads.take_unposted() {
            self.read_ended(buffer, false);
        }
    }
}

impl Lender {
    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }
}

fn borrow_segment(
    node: &Node,
    peer: Arc<Connection>,
    address: &Address,
    bytes: u64,
) -> Result<(Lender, u64), BorrowError> {
    let (reply, descriptors) = ask(node, &peer, address, Request::Lend { bytes }, timing::LEND_TIMEOUT)?;
    let segment = match reply {
        Reply::Lent { segment } => segment,
        Reply::TooMuch { free_bytes } => {
            return Err(BorrowError::TooMuch { lender: address.clone(), asked_bytes: bytes, free_bytes });
        }
        other => return Err(refused(address, other)),
    };
    let wrong = |reason: String| BorrowError::WrongSegment { lender: address.clone(), reason };
    let window = if peer.link.supports_windows() {
        let none_came =
            || wrong("no descriptor came with it: has this process one left (`ulimit -n`)?".into());
        let descriptor = descriptors.into_iter().next().ok_or_else(none_came)?;
        let length = usize::try_from(bytes).map_err(|error| wrong(error.to_string()))?;
        let window = SharedMemory::open(descriptor, length).map_err(|error| wrong(error.to_string()))?;
        // The lender frees it when this process has ended.
        window.keep_from_children();
        Some(window)
    } else {
        None
    };
    let pieces = window.as_ref().map_or(0, |window| window.len().div_ceil(WARM_BYTES));
    let warm = (0..pieces).map(|_| AtomicBool::new(false)).collect();
    let lost = AtomicBool::new(false);
    Ok((Lender { address: address.clone(), peer, segment, window, warm, lost }, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_asked_of_all_lenders_alike_as_far_as_they_have_it() {
        const S: u64 = STRIPE_BYTES;
        assert_eq!(shares(&[10 * S, 10 * S], 8 * S), Some(vec![4 * S, 4 * S]));
        assert_eq!(shares(&[2 * S, 10 * S], 8 * S), Some(vec![2 * S, 6 * S]));
        assert_eq!(shares(&[2 * S, 10 * S], 13 * S), None);
        assert_eq!(shares(&[10 * S, 10 * S], S + 1), Some(vec![S, S]));
        assert_eq!(shares(&[0, S], S), Some(vec![0, S]));
    }
}
