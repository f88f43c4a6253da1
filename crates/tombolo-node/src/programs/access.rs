//! Access to one program's own memory: the area shared with the threads that make the accesses, and the staging in it
//! for their bytes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use tombolo_channel::access::{AccessArea, AccessThreads, Order, Outcome, RING_ORDERS, STAGING_BYTES};
use tombolo_channel::process_base;
use tombolo_core::iommu::ContextId;
use tombolo_host::event::EventFd;
use tombolo_host::own::ProgramMemory;
use tombolo_host::shared::{SharedMemoryError, SharedSpan, SharedSpanMut};

use super::domain::ProgramDomain;
use super::helper::{Helper, HelperCommand};

/// Size of the pieces in which the staging is given out.
const PIECE_BYTES: usize = 4096;
const PIECES: usize = STAGING_BYTES / PIECE_BYTES;

/// Wakes the engine's loop, if it sleeps.
#[derive(Debug)]
pub(crate) struct LoopWake {
    pub(super) is_asleep: AtomicBool,
    pub(super) event: EventFd,
}

impl LoopWake {
    /// Wakes the loop after a change that the loop checks for. The change must be stored with sequential consistency.
    pub(crate) fn wake(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            let _ = self.event.signal();
        }
    }
}

/// A bit for each piece of a staging: whether it is in use.
#[derive(Debug)]
struct Pieces([u64; PIECES / 64]);

impl Pieces {
    fn is_used(&self, piece: usize) -> bool {
        self.0[piece / 64] >> (piece % 64) & 1 != 0
    }

    fn set(&mut self, first: usize, count: usize, used: bool) {
        for piece in first..first + count {
            let bit = 1 << (piece % 64);
            if used {
                self.0[piece / 64] |= bit;
            } else {
                self.0[piece / 64] &= !bit;
            }
        }
    }

    /// Takes the first run of `count` free pieces. Low pieces come first because they are warm in the cache.
    fn take(&mut self, count: usize) -> Option<usize> {
        let (mut start, mut piece) = (0, 0);
        while piece < PIECES {
            if self.0[piece / 64] == u64::MAX && piece.is_multiple_of(64) {
                piece += 64;
                start = piece;
                continue;
            }
            if self.is_used(piece) {
                start = piece + 1;
            } else if piece + 1 - start == count {
                self.set(start, count, true);
                return Some(start);
            }
            piece += 1;
        }
        None
    }
}

#[derive(Debug)]
struct Books {
    posted: u64,
    taken: u64,
    /// No order or answer is taken any more.
    is_closed: bool,
    pieces: Pieces,
}

/// The threads that make the accesses.
#[derive(Debug)]
enum Maker {
    /// Threads of the program.
    Program,
    /// Threads of this process: the node is in the program, or it has no command for helpers.
    Node(#[expect(dead_code, reason = "they end when it is dropped")] AccessThreads),
    /// A helper process.
    Helper(Helper),
}

/// The process whose memory an area reaches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whose {
    context: ContextId,
    domain: u16,
    base: u64,
}

impl Whose {
    /// The identity for a new area of this process.
    pub(super) fn of(domain: &ProgramDomain) -> Self {
        let base = process_base(domain.process);
        Self { context: domain.new_context(), domain: domain.number, base }
    }
}

/// The node's access to one program's own memory: the area, its bookkeeping, and the threads that make the accesses.
#[derive(Debug)]
pub(crate) struct OwnAccess {
    pub(crate) context: ContextId,
    /// The domain's number.
    pub(crate) domain: u16,
    /// Address in the domain at which the memory of the process begins.
    base: u64,
    area: AccessArea,
    books: Mutex<Books>,
    maker: Maker,
    /// Number of orders that are not answered yet.
    open: AtomicU32,
    /// Number of such orders of all areas.
    open_altogether: Arc<AtomicU32>,
}

impl OwnAccess {
    fn new(whose: Whose, area: AccessArea, maker: Maker, open_altogether: &Arc<AtomicU32>) -> Self {
        let books = Books { posted: 0, taken: 0, is_closed: false, pieces: Pieces([0; PIECES / 64]) };
        Self {
            context: whose.context,
            domain: whose.domain,
            base: whose.base,
            area,
            books: Mutex::new(books),
            maker,
            open: AtomicU32::new(0),
            open_altogether: open_altogether.clone(),
        }
    }

    /// An access whose orders the program carries out itself.
    pub(super) fn by_program(
        whose: Whose,
        open_altogether: &Arc<AtomicU32>,
    ) -> Result<Self, SharedMemoryError> {
        Ok(Self::new(whose, AccessArea::create()?, Maker::Program, open_altogether))
    }

    /// An access for a program that cannot carry out orders: a helper does, or threads of this process.
    pub(super) fn by_node(
        whose: Whose,
        memory: ProgramMemory,
        wake: &Arc<LoopWake>,
        helper: Option<HelperCommand>,
        open_altogether: &Arc<AtomicU32>,
    ) -> Result<Self, String> {
        let area = AccessArea::create().map_err(|error| error.to_string())?;
        if let Some(command) = helper {
            if !memory.has_page_map() {
                return Err("the program's /proc/PID/pagemap is needed, too: its library is older".into());
            }
            let helper = Helper::start(command, &area, &memory, &wake.event);
            let maker = Maker::Helper(helper.map_err(|error| error.to_string())?);
            return Ok(Self::new(whose, area, maker, open_altogether));
        }
        let twin = area.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let twin = AccessArea::open(twin).map_err(|error| error.to_string())?;
        let wake = wake.clone();
        let threads = AccessThreads::start(twin, Box::new(memory), Box::new(move || wake.wake()));
        let maker = Maker::Node(threads.map_err(|error| error.to_string())?);
        Ok(Self::new(whose, area, maker, open_altogether))
    }

    /// Whether this reaches the memory of the process with this life.
    pub(crate) fn is_of(&self, life: u32) -> bool {
        self.context.0 >> 32 == u64::from(life)
    }

    pub(super) fn is_by_program(&self) -> bool {
        matches!(self.maker, Maker::Program)
    }

    /// Whether no order is open and no byte of the staging is in use.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0 && self.books.lock().pieces.0.iter().all(|used| *used == 0)
    }

    /// Whether the accesses are made by a helper that has ended.
    pub(crate) fn has_lost_its_helper(&self) -> bool {
        matches!(&self.maker, Maker::Helper(helper) if helper.has_ended())
    }

    /// Whether no helper makes accesses any more, after [`Self::close`].
    pub(super) fn is_abandoned(&self) -> bool {
        match &self.maker {
            Maker::Helper(helper) => helper.has_ended(),
            Maker::Program | Maker::Node(_) => true,
        }
    }

    /// The descriptor of the area, for the program.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.area.as_fd()
    }

    /// Gives an order. False: the order is not carried out, because the area is closed or has no room. There is room
    /// for each access and each touch of an honest program.
    #[must_use]
    pub(crate) fn post(&self, order: &Order) -> bool {
        let mut books = self.books.lock();
        if books.is_closed || u64::from(self.open.load(Ordering::Relaxed)) >= RING_ORDERS {
            return false;
        }
        self.open.fetch_add(1, Ordering::Relaxed);
        self.open_altogether.fetch_add(1, Ordering::Relaxed);
        // Orders carry the process's own addresses.
        let (look, bytes) = order.look;
        let address = order.address.wrapping_sub(self.base);
        self.area
            .post(books.posted, &Order { address, look: (look.wrapping_sub(self.base), bytes), ..*order });
        books.posted += 1;
        true
    }

    /// Whether there may be answers.
    pub(crate) fn has_answers(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0 && self.area.answered() != self.books.lock().taken
    }

    /// Closes the area: from now on no order or answer is taken.
    pub(super) fn close(&self) {
        let mut books = self.books.lock();
        books.is_closed = true;
        if let Maker::Helper(helper) = &self.maker {
            helper.kill();
        }
        self.open_altogether.fetch_sub(self.open.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Takes the next answer.
    ///
    /// # Errors
    /// [`Lies`]: the program does not keep to the rules.
    pub(crate) fn next_answer(&self) -> Result<Option<(u64, Outcome)>, Lies> {
        let mut books = self.books.lock();
        let answered = self.area.answered();
        if books.is_closed || answered == books.taken {
            return Ok(None);
        }
        let more = answered.wrapping_sub(books.taken);
        if more > u64::from(self.open.load(Ordering::Relaxed)) {
            return Err(Lies);
        }
        let (id, mut answer) = self.area.outcome(books.taken).ok_or(Lies)?;
        if let Outcome::Denied(denied) = &mut answer {
            denied.address = denied.address.wrapping_add(self.base);
        }
        books.taken += 1;
        self.open.fetch_sub(1, Ordering::Relaxed);
        self.open_altogether.fetch_sub(1, Ordering::Relaxed);
        Ok(Some((id, answer)))
    }
}

/// What the node keeps for an access until no thread copies its bytes any more.
#[derive(Debug)]
pub(crate) struct Ordered {
    pub(crate) own: Arc<OwnAccess>,
    pub(crate) order: Order,
    pub(crate) staged: Option<Staged>,
}

impl Ordered {
    /// Gives the order, with these marks, as [`OwnAccess::post`].
    #[must_use]
    pub(crate) fn post(&self, is_forced: bool, brings: bool) -> bool {
        self.own.post(&Order { is_forced, brings, ..self.order })
    }
}

/// What a program says about its accesses cannot be true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lies;

/// Bytes in the staging of an area, until this is dropped.
#[derive(Debug)]
pub(crate) struct Staged {
    own: Arc<OwnAccess>,
    first: usize,
    length_bytes: u32,
}

impl Staged {
    /// Takes room for `length_bytes`, if there is some.
    pub(crate) fn new(own: &Arc<OwnAccess>, length_bytes: u32) -> Option<Self> {
        let count = (length_bytes as usize).div_ceil(PIECE_BYTES).max(1);
        let first = own.books.lock().pieces.take(count)?;
        Some(Self { own: own.clone(), first, length_bytes })
    }

    /// Whether the bytes lie in this area.
    pub(crate) fn is_of(&self, own: &Arc<OwnAccess>) -> bool {
        Arc::ptr_eq(&self.own, own)
    }

    /// Offset of the bytes in the staging.
    pub(crate) fn offset(&self) -> u64 {
        (self.first * PIECE_BYTES) as u64
    }

    /// The bytes, which the program may change at any moment.
    pub(crate) fn bytes(&self) -> SharedSpan<'_> {
        self.own.area.span(self.offset(), self.length_bytes).unwrap_or_else(SharedSpan::empty)
    }

    /// The bytes, to be written.
    pub(crate) fn room(&self) -> Option<SharedSpanMut<'_>> {
        self.own.area.span_mut(self.offset(), self.length_bytes)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let count = (self.length_bytes as usize).div_ceil(PIECE_BYTES).max(1);
        self.own.books.lock().pieces.set(self.first, count, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The core begins no more accesses and touches of a domain than there are places for their orders.
    #[test]
    fn each_access_its_withdrawal_and_each_touch_have_a_place() {
        let config = tombolo_core::iommu::Config::default();
        assert!((2 * config.max_accesses + config.running_touches) as u64 <= RING_ORDERS);
    }

    #[test]
    fn pieces_are_given_out_once_and_low_ones_first() {
        let mut pieces = Pieces([0; PIECES / 64]);
        assert_eq!([pieces.take(3), pieces.take(70), pieces.take(1)], [Some(0), Some(3), Some(73)]);
        pieces.set(3, 70, false);
        assert_eq!([pieces.take(71), pieces.take(64), pieces.take(6)], [Some(74), Some(3), Some(67)]);
        assert_eq!(pieces.take(PIECES), None);
        let mut count = 0;
        while pieces.take(1).is_some() {
            count += 1;
        }
        assert_eq!(count, PIECES - 145);
    }
}
