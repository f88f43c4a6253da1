//! One address space of the program's family: its arena, page table and agent.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tombolo_host::sparse::Pages;
use tombolo_host::uffd::{PAGE_BYTES, Userfaultfd};

use crate::page::{Entry, State};
use crate::prefetch::{Prefetch, Touches};
use crate::protocol::{Command, Done, STAGING_PAGES};

/// A doorbell request that waits for an eviction to end.
#[derive(Clone, Copy, Debug)]
pub enum Pending {
    /// Discard `count` pages from `first` on.
    Discard {
        /// First page.
        first: u32,
        /// Number of pages.
        count: u32,
    },
    /// Begin a fork.
    Fork,
}

/// What the lock of a space guards: the page table and what goes with it.
#[derive(Debug)]
pub struct Table {
    words: Pages,
    /// No page at or above this one was ever used.
    pub high_water: u32,
    /// The fault history.
    pub prefetch: Prefetch,
    /// Where first touches go on.
    pub touches: Touches,
    /// A request that could not be answered yet.
    pub pending: Option<Pending>,
    /// Forks that were announced and are not over: nothing is evicted meanwhile.
    pub forking: u32,
    /// Pages are on their way out.
    pub evicting: bool,
    /// The space is closed: its slots are free, nothing may change any more.
    pub closed: bool,
}

impl Table {
    /// The word of a page.
    pub fn get(&self, page: u32) -> Entry {
        Entry(self.words.words()[page as usize].load(Ordering::Relaxed))
    }

    /// Changes the word of a page.
    pub fn set(&mut self, page: u32, entry: Entry) {
        self.high_water = self.high_water.max(page + 1);
        self.words.words()[page as usize].store(entry.0, Ordering::Relaxed);
    }

    /// The word of a page that may lie outside the arena.
    pub fn find(&self, page: i64, pages: u32) -> Option<(u32, Entry)> {
        let page = u32::try_from(page).ok().filter(|&page| page < pages)?;
        Some((page, self.get(page)))
    }
}

/// What an agent is told to do: spans of pages, as first and count.
#[derive(Debug, Default)]
pub struct Order {
    /// Drop these.
    pub drop: Vec<(u32, u32)>,
    /// Move these to the staging area.
    pub move_out: Vec<(u32, u32)>,
    /// Undo the sharing of these.
    pub unshare: Vec<(u32, u32)>,
}

/// Adds a page to a list of spans, joining it to the last where they touch.
pub fn extend(spans: &mut Vec<(u32, u32)>, page: u32) {
    match spans.last_mut() {
        Some((first, count)) if *first + *count == page => *count += 1,
        _ => spans.push((page, 1)),
    }
}

/// One address space.
#[derive(Debug)]
pub struct Space {
    /// Its index among the spaces.
    pub index: u32,
    /// The process.
    pub pid: AtomicU32,
    /// Serves its faults.
    pub uffd: Userfaultfd,
    /// First address of the arena.
    pub arena: u64,
    /// Pages of the arena.
    pub pages: u32,
    /// Where the process puts doorbell requests.
    pub request: u64,
    /// The page table.
    pub table: Mutex<Table>,
    /// The agent's socket, once it has said hello. Commands go one at a time.
    pub agent: Mutex<Option<Arc<OwnedFd>>>,
    /// Whether evictions from here are possible at all.
    pub has_agent: AtomicBool,
    reader: AtomicU32,
    /// The agent's thread: its own faults never wait for an eviction, for which it would be needed.
    pub agent_thread: AtomicU32,
    /// Pages that are or are about to be resident.
    pub resident: AtomicU64,
}

/// How long the evictor polls for the agent's answer before it sleeps.
const SPIN: Duration = Duration::from_micros(400);

impl Space {
    /// A space with an empty page table.
    pub fn new(
        index: u32,
        pid: u32,
        uffd: Userfaultfd,
        arena: u64,
        arena_bytes: u64,
        request: u64,
    ) -> io::Result<Self> {
        let pages = u32::try_from(arena_bytes / PAGE_BYTES as u64)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "the arena is too large"))?;
        Ok(Self {
            index,
            pid: AtomicU32::new(pid),
            uffd,
            arena,
            pages,
            request,
            table: Mutex::new(Table {
                words: Pages::new(pages as usize * 8)?,
                high_water: 0,
                prefetch: Prefetch::default(),
                touches: Touches::default(),
                pending: None,
                forking: 0,
                evicting: false,
                closed: false,
            }),
            agent: Mutex::new(None),
            has_agent: AtomicBool::new(false),
            reader: AtomicU32::new(0),
            agent_thread: AtomicU32::new(0),
            resident: AtomicU64::new(0),
        })
    }

    /// The address of a page.
    pub fn address(&self, page: u32) -> u64 {
        self.arena + u64::from(page) * PAGE_BYTES as u64
    }

    /// The page at an address, if it is of the arena.
    pub fn page_at(&self, address: u64) -> Option<u32> {
        let offset = address.checked_sub(self.arena)?;
        u32::try_from(offset / PAGE_BYTES as u64).ok().filter(|&page| page < self.pages)
    }

    /// Has the agent carry out an order; returns its answer.
    pub fn command(&self, order: &Order, buffer: &mut Vec<u8>) -> io::Result<Done> {
        let agent = self.agent.lock();
        let Some(socket) = agent.as_ref() else { return Err(io::ErrorKind::NotConnected.into()) };
        buffer.clear();
        for count in [order.drop.len(), order.move_out.len(), order.unshare.len(), 0] {
            buffer.extend_from_slice(&(count as u32).to_ne_bytes());
        }
        for &(first, count) in order.drop.iter().chain(&order.move_out).chain(&order.unshare) {
            buffer.extend_from_slice(&self.address(first).to_ne_bytes());
            buffer.extend_from_slice(&(u64::from(count) * PAGE_BYTES as u64).to_ne_bytes());
        }
        debug_assert_eq!(size_of::<Command>(), 16);
        rustix::net::send(socket, buffer, rustix::net::SendFlags::NOSIGNAL)?;
        let mut answer = [0u8; size_of::<Done>()];
        let (mut flags, since) = (RecvFlags::DONTWAIT, Instant::now());
        let count = loop {
            match rustix::net::recv(socket, &mut answer[..], flags) {
                Ok((count, _)) => break count,
                Err(Errno::AGAIN) if since.elapsed() > SPIN => flags = RecvFlags::empty(),
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if count != answer.len() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let mut done = Done { drop_error: 0, reserved: 0, moved: [0; STAGING_PAGES] };
        done.drop_error = u32::from_ne_bytes([answer[0], answer[1], answer[2], answer[3]]);
        done.moved.copy_from_slice(&answer[8..8 + STAGING_PAGES]);
        Ok(done)
    }

    /// A thread whose memory is this space's, for reading it: the agent, which
    /// lives as long as the space (the process's first thread may end before). 0: not known yet.
    pub fn reader(&self) -> u32 {
        self.reader.load(Ordering::Relaxed)
    }

    /// The agent's thread, if it is known here by its own number.
    pub fn agent(&self) -> Option<u32> {
        let thread = self.agent_thread.load(Ordering::Relaxed);
        (thread != 0 && thread == self.reader()).then_some(thread)
    }

    /// An agent has said hello: `pid` as the kernel says, `thread` as it says itself.
    pub fn attached(&self, pid: u32, thread: u32) {
        self.pid.store(pid, Ordering::Relaxed);
        self.agent_thread.store(thread, Ordering::Relaxed);
        // In another pid namespace its number means somebody else here.
        let known = std::path::Path::new(&format!("/proc/{pid}/task/{thread}")).exists();
        self.reader.store(if known { thread } else { pid }, Ordering::Relaxed);
    }

    /// Whether a present page is mapped more than once, as after a fork. A page
    /// that is cannot be pinned for writing.
    pub fn is_shared(&self, page: u32) -> Option<bool> {
        const PRESENT: u64 = 1 << 63;
        const MAPPED_ONCE: u64 = 1 << 56;
        let pid = self.reader();
        let mut word = [0u8; 8];
        let file = std::fs::File::open(format!("/proc/{pid}/pagemap")).ok()?;
        std::os::unix::fs::FileExt::read_exact_at(
            &file,
            &mut word,
            self.address(page) / PAGE_BYTES as u64 * 8,
        )
        .ok()?;
        let word = u64::from_ne_bytes(word);
        (word & PRESENT != 0).then_some(word & MAPPED_ONCE == 0)
    }

    /// Address of a page of the staging area.
    pub fn staging_address(&self, index: u32) -> u64 {
        self.address(1 + index)
    }

    /// Copies the parent's page table into this new space of its forked child.
    /// `share` adds a user to a slot; the count of resident pages is returned.
    ///
    /// The parent's table is locked, and the fork event was read under that
    /// same lock: no page was mapped in the parent since the kernel copied its
    /// page tables. So *Resident* is present in the child, and whatever has a
    /// slot has its contents of that moment there.
    pub fn inherit(&self, parent: &Table, mut share: impl FnMut(u32) -> bool) -> u64 {
        let mut table = self.table.lock();
        let mut resident = 0;
        for page in 0..parent.high_water {
            let entry = parent.get(page);
            let (state, slot) = match entry.state() {
                State::Untouched => continue,
                State::Resident => (State::Resident, entry.slot()),
                State::EvictCopy if entry.is_kept() => (State::Resident, None),
                // Somewhere in between: `fork` waits for such pages, but a bare
                // clone(2) does not. Better no byte than a wrong one.
                State::EvictCopy => (State::Lost, None),
                State::Remote | State::Fetching | State::Installing | State::EvictDrop => {
                    (if entry.slot().is_some() { State::Remote } else { State::Untouched }, entry.slot())
                }
                State::Lost => (State::Lost, None),
            };
            // A slot that cannot be shared any further: the page is poisoned when it is touched.
            let (state, slot) = match slot {
                Some(slot) if !share(slot) => (State::Lost, None),
                _ => (state, slot),
            };
            resident += u64::from(state == State::Resident);
            table.set(page, Entry(0).with_state(state).with_slot(slot).with_age(entry.age()));
        }
        self.resident.store(resident, Ordering::Relaxed);
        resident
    }
}
