//! One address space of the program's family: its page table, and the way to its agent.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tombolo_core::pager::{Area, PAGE_BYTES, Page, Prefetch, Table as States, Touches, UnderWay};
use tombolo_host::process::{self, Memory};
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::{UffdError, Userfaultfd};
use tombolo_host::{event, pagemap};

use crate::events::Fault;
use crate::locked::{Locked, Wakes};
use crate::room::{Account, Room, Staged};
use tombolo_pager_protocol::{
    AREA_PAGES, AREAS, ATTACH_PAGE, Answer, BEGUN_OFFSET, CANCELLED_OFFSET, CHANGES_OFFSET, CONTROL_PAGES,
    Command, Done, GATE_FREE, GATE_OFFSET, GATE_SUPERVISOR, GATE_WAITED_FOR, Hello, REQUESTS, STAGING_PAGE,
};

/// What the lock of a space guards: the page table and what goes with it.
///
/// The lock is held while events are read and while pages are mapped, so that the table and the kernel change in one step.
#[derive(Debug, Default)]
pub struct Table {
    /// The states of the pages.
    pub states: States,
    /// The fault history.
    pub prefetch: Prefetch,
    /// Chooses the pages that a first touch maps.
    pub touches: Touches,
    /// The evictions under way, and the agent's command.
    pub under_way: UnderWay,
    /// Pages that the agent's command makes the process's own by touching them: spans in order. They are in no operation.
    pub touching: Vec<(Page, u32)>,
    /// Ranges that the agent's command drops: the kernel will report each as if the program had dropped it.
    pub own_drops: Vec<(u64, u64)>,
    /// Pages that were lost while they were being fetched, counted since the last message that a lender is gone.
    pub lost_on_the_way: u64,
    /// Pages that are being saved: where the operation of each began, and the address of its contents in this process until
    /// it ends. Sorted.
    pub(crate) saving: Vec<(Page, u64)>,
    /// How many of this space's pages are counted in the number of pages of all spaces that may be copied unseen (see
    /// `crate::sharing`).
    pub(crate) unprotected: u64,
    /// When the space's program was first found to have ended, or to have executed another one.
    pub(crate) left_by_program: Option<Instant>,
    /// Pages on their way for which threads wait, each once, with the time at which the first thread began to wait.
    pub(crate) waits: Vec<(Page, Instant)>,
    /// For each place of a request: number and answer of the last request carried out there.
    pub answered: Vec<(u64, Answer)>,
    /// Whether far memory was asked for pages. The reads are sent when the lock is free, because sending may bring answers.
    pub to_send: bool,
    /// Faults that were read and are not served yet.
    pub(crate) faults: VecDeque<Fault>,
    /// Threads to be woken when the lock is free.
    pub(crate) wakes: Wakes,
    /// Whether the space is closed: its slots are free, and nothing may change any more.
    pub closed: bool,
}

/// What an agent is told to do, as spans of pages: the first page and the number of pages.
#[derive(Debug, Default)]
pub struct Order {
    /// Move these pages to a staging area.
    pub move_out: Vec<(Page, u32)>,
    /// The staging area to which they are moved.
    pub area: Option<Area>,
    /// Drop these pages.
    pub drop: Vec<(Page, u32)>,
    /// Make these pages the process's own.
    pub own: Vec<(Page, u32)>,
}

impl Table {
    /// Whether the agent's command has it touch pages of `[first, end)`.
    pub fn touches(&self, first: Page, end: Page) -> bool {
        let at = self.touching.partition_point(|&(from, count)| from + u64::from(count) <= first);
        self.touching.get(at).is_some_and(|&(from, _)| from < end)
    }
}

/// Adds a page to a list of spans, to the last span if the page directly follows it.
pub fn extend(spans: &mut Vec<(Page, u32)>, page: Page) {
    match spans.last_mut() {
        Some((first, count)) if *first + u64::from(*count) == page => *count += 1,
        _ => spans.push((page, 1)),
    }
}

/// A process named by its number and pidfd: a space's program or agent.
#[derive(Debug)]
pub struct Program {
    /// Its number, as this process sees it.
    pub pid: u32,
    /// Becomes readable when it ends.
    pub pidfd: OwnedFd,
}

impl Program {
    /// A thread of the process by which its memory can be reached. If the process has ended, the number may be another
    /// process's.
    fn thread(&self) -> u32 {
        process::thread_with_memory(self.pid)
    }
}

/// The agent of a space.
#[derive(Debug)]
pub struct Agent {
    /// Its socket.
    pub socket: OwnedFd,
    /// Its process number, as this process sees it: names it only until it ends.
    pub pid: u32,
    /// Becomes readable when it ends.
    pidfd: OwnedFd,
    /// The agent's process number in its own pid namespace, as fault events give it.
    pub own_pid: u32,
    /// Shared memory with the gate and the words beside it.
    gate: SharedMemory,
    /// The program.
    pub program: Arc<Program>,
}

impl Agent {
    /// An agent that has said hello.
    pub fn new(
        socket: OwnedFd,
        process: Program,
        own_pid: u32,
        gate: SharedMemory,
        program: Program,
    ) -> Self {
        let Program { pid, pidfd } = process;
        Self { socket, pid, pidfd, own_pid, gate, program: Arc::new(program) }
    }

    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        self.gate.atomic_u32(offset).ok()
    }

    /// Number of times that libc's calls have begun, and have finished, changing mappings: odd while a call is under way.
    pub fn changes(&self) -> Option<u32> {
        Some(self.word(CHANGES_OFFSET)?.load(Ordering::SeqCst))
    }

    /// Whether the agent has ended. If so, what was read by its number may come from another process.
    pub fn has_ended(&self) -> bool {
        process::has_ended(&self.pidfd)
    }

    /// How much of its command the agent has begun (see `BEGUN_OFFSET`).
    pub fn begun(&self) -> u32 {
        self.word(BEGUN_OFFSET).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// How the agent ended, for a message.
    pub fn end(&self) -> String {
        match process::how_it_ended(self.pidfd.as_fd(), timing::AGENT_END) {
            Some(status) if status.code() == Some(0) => "it was dismissed".into(),
            Some(status) => match status.code() {
                Some(error) => format!("it gave up: {}", io::Error::from_raw_os_error(error)),
                None => status.to_string(),
            },
            None if self.has_ended() => "how is not known".into(),
            None => "it has not ended".into(),
        }
    }

    /// Whether the program still is the one for which the agent started: it has neither ended nor executed another program.
    pub fn serves_its_program(&self) -> bool {
        // An agent that is ending has released its memory, and so shares none. Its end is noticed by its socket.
        process::share_memory(self.pid, self.program.pid) != Some(false)
            || process::anonymous_bytes(self.pid).is_none()
            || self.has_ended()
    }
}

/// The process that has forked another one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parent {
    /// Its process number, as this process sees it, if an agent has named it.
    pub pid: Option<u32>,
    /// How many seccomp filters the first program of the family had.
    pub filters: u32,
}

/// One address space.
#[derive(Debug)]
pub struct Space {
    /// Index of the space, never used again.
    pub index: u32,
    /// The userfaultfd by which its faults are served.
    pub uffd: Userfaultfd,
    /// First address of the control area.
    pub control: u64,
    /// Where the program puts its requests.
    pub requests: u64,
    /// Whether the program also changes mappings by raw system calls.
    changes_unseen: AtomicBool,
    /// The number by which the agent of a forked child names this space.
    pub token: u64,
    /// The page table.
    table: Mutex<Table>,
    /// The agent, from its hello until it is gone.
    agent: Mutex<Option<Arc<Agent>>>,
    has_agent: AtomicBool,
    /// The program, as soon as an agent has named it. It may outlive its agent.
    program: Mutex<Option<Arc<Program>>>,
    /// The file of the memory, as soon as there was an agent. It stays valid whatever becomes of the processes.
    memory: Mutex<Option<Arc<Memory>>>,
    /// The agent, from the end of its program until its own end.
    retired: Mutex<Option<Arc<Agent>>>,
    /// The process that has forked this one.
    pub parent: Parent,
    /// Whether the program has more seccomp filters than the first program of its family. If so, it gets no agent, nor do
    /// the children that it forks. Filters never go away.
    pub agent_refused: AtomicBool,
    /// How many seccomp filters the program had when its agent was created. For a forked child: those of its parent.
    pub filters: AtomicU32,
    /// When the space was created.
    pub began: Instant,
    /// Whether the user was told that the space has no agent.
    pub told: AtomicBool,
    /// Whether the evictor is copying pages out of it.
    pub is_read: AtomicBool,
    /// Whether the address space, or its program, has ended.
    pub ending: AtomicBool,
    /// The pages that it has claimed of the room.
    pub account: Account,
    /// Pages in each of its staging areas.
    staged: [AtomicU32; AREAS],
}

/// Attempts to take a lock before the thread sleeps. They last about as long as serving a fault (10 us). Waking a thread on
/// another processor takes 20-50 us.
const LOCK_ATTEMPTS: u32 = 200;

const _: () = assert!(AREAS == tombolo_core::pager::AREAS, "the machine has the areas that programs have");

/// Takes a lock by spinning first: it is mostly held for less time than it takes to wake a thread.
fn lock_actively<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for _ in 0..LOCK_ATTEMPTS {
        if let Some(guard) = mutex.try_lock() {
            return guard;
        }
        std::hint::spin_loop();
    }
    mutex.lock()
}

/// The gate, held by the supervisor.
pub struct Gate<'a> {
    pub(crate) agent: Option<&'a Agent>,
}

impl Gate<'_> {
    /// Cancels a command: no part of it that has not begun is carried out any more.
    pub fn cancel(&self, command: u32) {
        if let Some(agent) = self.agent {
            Self::cancel_by(agent, command);
        }
    }

    /// Cancels the rest of a command; the part that has begun goes on.
    fn cancel_by(agent: &Agent, command: u32) {
        if let Some(word) = agent.word(CANCELLED_OFFSET) {
            word.store(command, Ordering::Release);
        }
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        if let Some(word) = self.agent.and_then(|agent| agent.word(GATE_OFFSET))
            && word.swap(GATE_FREE, Ordering::Release) & GATE_WAITED_FOR != 0
        {
            event::futex_wake(word, 1);
        }
    }
}

impl Space {
    /// Makes a token by which the agent of a forked child names its space, and which cannot be guessed.
    pub fn new_token() -> io::Result<u64> {
        let mut token = [0u8; 8];
        rustix::rand::getrandom(&mut token[..], rustix::rand::GetRandomFlags::empty())?;
        Ok(u64::from_ne_bytes(token) | 1)
    }

    /// The space of a program, with an empty page table.
    pub fn new(index: u32, uffd: Userfaultfd, hello: &Hello, token: u64) -> Self {
        Self::with_addresses(index, uffd, token, [hello.control, hello.requests], false)
    }

    /// The space of a forked child. Its addresses are those of its parent.
    pub fn child(&self, index: u32, uffd: Userfaultfd, token: u64) -> Self {
        let addresses = [self.control, self.requests];
        let parent = Parent {
            pid: self.named_program().map(|program| program.pid),
            filters: self.filters.load(Ordering::Relaxed),
        };
        let refused = self.agent_refused.load(Ordering::Relaxed);
        Self {
            parent,
            agent_refused: AtomicBool::new(refused),
            filters: AtomicU32::new(parent.filters),
            ..Self::with_addresses(index, uffd, token, addresses, self.changes_unseen())
        }
    }

    fn with_addresses(
        index: u32,
        uffd: Userfaultfd,
        token: u64,
        [control, requests]: [u64; 2],
        changes_unseen: bool,
    ) -> Self {
        Self {
            index,
            uffd,
            control,
            requests,
            changes_unseen: AtomicBool::new(changes_unseen),
            token,
            table: Mutex::new(Table { answered: vec![(0, Answer::default()); REQUESTS], ..Table::default() }),
            agent: Mutex::new(None),
            has_agent: AtomicBool::new(false),
            program: Mutex::new(None),
            memory: Mutex::new(None),
            retired: Mutex::new(None),
            parent: Parent::default(),
            agent_refused: AtomicBool::new(false),
            filters: AtomicU32::new(0),
            began: Instant::now(),
            told: AtomicBool::new(false),
            is_read: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            account: Account::default(),
            staged: Default::default(),
        }
    }

    /// Notes an event that a range was unmapped or moved. `before`: the agent's [`Agent::changes`] before the event was
    /// read. Returns whether this is the first such change that the preloaded library has not announced.
    pub fn note_change(&self, agent: Option<&Agent>, before: Option<u32>) -> bool {
        let Some(agent) = agent.filter(|_| !self.changes_unseen()) else { return false };
        // If one of libc's calls has ended since the event was read, the count has changed since.
        let is_unseen = before.is_some_and(|count| count.is_multiple_of(2)) && agent.changes() == before;
        self.changes_unseen.store(is_unseen, Ordering::Relaxed);
        is_unseen
    }

    /// Whether the program changes mappings by raw system calls. The preloaded library does not know of them, so they do
    /// not wait for the agent's drops.
    pub fn changes_unseen(&self) -> bool {
        self.changes_unseen.load(Ordering::Relaxed)
    }

    /// Whether the kernel is about to change mappings, or has changed some without an event that was read.
    pub fn is_changing(&self) -> bool {
        let page = self.control_address(ATTACH_PAGE);
        matches!(self.uffd.write_protect(page, PAGE_BYTES as usize, false), Err(UffdError::Again(_)))
    }

    /// Corrects the result of mapping a page while the table is locked. The kernel may report that nothing is mapped there
    /// before it reports that a change is under way: the page may be elsewhere now, and events tell where.
    pub fn at_rest<T>(&self, mapped: Result<T, UffdError>) -> Result<T, UffdError> {
        match mapped {
            Err(UffdError::NotMapped) if self.is_changing() => Err(UffdError::Again(0)),
            other => other,
        }
    }

    /// Locks the page table.
    pub fn lock(&self) -> Locked<'_> {
        Locked::new(self, lock_actively(&self.table))
    }

    /// Locks the page table unless another thread has it locked.
    pub fn try_lock(&self) -> Option<Locked<'_>> {
        self.table.try_lock().map(|table| Locked::new(self, table))
    }

    /// The address of a page.
    pub fn address(page: Page) -> u64 {
        page * PAGE_BYTES
    }

    /// Index of a page in the control area, if it lies there.
    pub fn control_page(&self, page: Page) -> Option<usize> {
        let index = page.checked_sub(self.control / PAGE_BYTES)?;
        usize::try_from(index).ok().filter(|&index| index < CONTROL_PAGES)
    }

    /// Address of a page of the control area.
    pub fn control_address(&self, index: usize) -> u64 {
        self.control + index as u64 * PAGE_BYTES
    }

    /// Address of a page that was moved to a staging area.
    pub fn staging_address(&self, area: Option<Area>, index: u32) -> u64 {
        let number = area.map_or(0, |area| area.number);
        self.control_address(STAGING_PAGE + number * AREA_PAGES + index as usize)
    }

    /// The agent.
    pub fn agent(&self) -> Option<Arc<Agent>> {
        if self.has_agent.load(Ordering::Acquire) { self.agent.lock().clone() } else { None }
    }

    /// The program, if an agent has named it. `None` if it is known to have executed another program since its agent ended.
    pub fn program(&self) -> Option<Arc<Program>> {
        self.named_program().filter(|program| self.has_agent() || self.is_memory_of(program))
    }

    /// The program, if an agent has named it. It may have executed another one.
    pub fn named_program(&self) -> Option<Arc<Program>> {
        self.program.lock().clone()
    }

    /// Whether pages can leave now: the agent is free to move pages, and is not about to be dismissed.
    pub fn can_evict(&self, table: &Table) -> bool {
        self.has_agent() && table.under_way.can_move() && !self.ending.load(Ordering::Acquire)
    }

    /// Whether the space has an agent, without which nothing can be evicted from it.
    pub fn has_agent(&self) -> bool {
        self.has_agent.load(Ordering::Acquire)
    }

    /// Whether a space without an agent will never have one: it has lost its agent, or may have none.
    pub fn gets_no_agent(&self) -> bool {
        self.agent_refused.load(Ordering::Relaxed) || self.named_program().is_some()
    }

    /// Whether its first agent is still expected to say hello: the space was forked just now.
    pub fn awaits_agent(&self) -> bool {
        !self.has_agent()
            && !self.gets_no_agent()
            && !self.ending.load(Ordering::Relaxed)
            && self.began.elapsed() <= timing::AGENT_HELLO_LATE
    }

    /// Sets the agent that serves this space from now on, and the file of the space's memory.
    pub fn attach(&self, agent: Arc<Agent>, memory: Arc<Memory>) {
        *self.memory.lock() = Some(memory);
        *self.program.lock() = Some(agent.program.clone());
        *self.agent.lock() = Some(agent);
        self.has_agent.store(true, Ordering::Release);
    }

    /// Removes the agent, which is gone. Returns it.
    pub fn detach(&self) -> Option<Arc<Agent>> {
        self.has_agent.store(false, Ordering::Release);
        let agent = self.agent.lock().take();
        agent.or_else(|| self.retired.lock().take())
    }

    /// Retires the agent: from now on it gets no command. Returns it, the first time only.
    pub fn retire(&self) -> Option<Arc<Agent>> {
        self.has_agent.store(false, Ordering::Release);
        // Its program has ended, or has executed another one that does not belong to this space.
        *self.program.lock() = None;
        let agent = self.agent.lock().take()?;
        *self.retired.lock() = Some(agent.clone());
        Some(agent)
    }

    /// The retired agent, if it has not ended.
    pub fn retired_agent(&self) -> Option<Arc<Agent>> {
        self.retired.lock().clone()
    }

    /// Whether there is a retired agent that has not ended.
    pub fn has_retired_agent(&self) -> bool {
        self.retired.lock().is_some()
    }

    /// Whether no process has the memory of this space any more.
    pub fn is_unused(&self) -> bool {
        // Removing the protection of a page of the control area changes nothing.
        matches!(self.uffd.write_protect(self.control, PAGE_BYTES as usize, false), Err(UffdError::Gone))
    }

    /// Takes the gate. `None`: the agent holds it longer than it should; try again later.
    pub fn gate<'a>(&self, agent: Option<&'a Agent>) -> Option<Gate<'a>> {
        const SPIN: u32 = 1000;
        let Some(word) = agent.and_then(|agent| agent.word(GATE_OFFSET)) else {
            return Some(Gate { agent: None });
        };
        let mut spins = 0u32;
        let mut since = None;
        while let Err(holder) =
            word.compare_exchange(GATE_FREE, GATE_SUPERVISOR, Ordering::Acquire, Ordering::Relaxed)
        {
            spins += 1;
            std::hint::spin_loop();
            if !spins.is_multiple_of(SPIN) {
                continue;
            }
            // An agent that holds it this long has lost its processor.
            if since.get_or_insert_with(Instant::now).elapsed() > timing::GATE_TIMEOUT {
                // An agent that has ended does nothing any more, and never releases the gate.
                return agent.is_some_and(Agent::has_ended).then_some(Gate { agent: None });
            }
            let waited = holder | GATE_WAITED_FOR;
            if holder == waited
                || word.compare_exchange(holder, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                event::futex_wait(word, waited, Some(timing::GATE_TIMEOUT));
            }
        }
        Some(Gate { agent })
    }

    /// Stops the agent from touching further pages that are in no operation. A fork shares them, so that touching one would
    /// copy it.
    pub fn stop_touching(&self, table: &Table) {
        if !table.touching.is_empty()
            && let Some(agent) = self.agent()
        {
            Gate::cancel_by(&agent, table.under_way.command());
        }
    }

    /// Whether this space, or the program, has ended.
    pub fn has_ended(&self, program: &Program) -> bool {
        self.ending.load(Ordering::Acquire) || process::has_ended(&program.pidfd)
    }

    /// Whether a program whose agent has ended still has this memory and has executed no other program. Tells by the
    /// control area, which the kernel puts at a random address unless address randomisation is off.
    pub fn is_memory_of(&self, program: &Program) -> bool {
        // If that cannot be looked up now, it is taken to be so.
        !matches!(self.by_program(program, |_| ()), Ok(None))
    }

    /// Calls `work` with the number of a thread of this program. Returns `None` if the program, or its memory, has ended,
    /// or if it has executed another program.
    ///
    /// # Errors
    ///
    /// That cannot be checked now: `work` may have been done to another program.
    pub fn by_program<T>(&self, program: &Program, mut work: impl FnMut(u32) -> T) -> io::Result<Option<T>> {
        const THREADS_MAX: u32 = 4;
        for _ in 0..THREADS_MAX {
            let thread = program.thread();
            let done = work(thread);
            let looked = process::is_writable(thread, self.control);
            // In this order: a thread that is here now was here before.
            if process::has_thread(program.pid, thread) {
                if self.has_ended(program) {
                    return Ok(None);
                }
                return looked.map(|found| Some(done).filter(|_| found == Some(true)));
            }
        }
        // Threads come and go faster than they can be checked, or the program has ended.
        if self.has_ended(program) { Ok(None) } else { Err(io::ErrorKind::ResourceBusy.into()) }
    }

    /// Whether a page is present according to the page tables. `None` if they cannot be read now.
    pub fn holds(&self, page: Page) -> Option<bool> {
        let program = self.named_program()?;
        let held = self.by_program(&program, |thread| pagemap::hold_something(thread, [Self::address(page)]));
        held.ok()??.ok()?.first().copied()
    }

    /// The file of the memory, if there was an agent.
    pub fn memory(&self) -> Option<Arc<Memory>> {
        self.memory.lock().clone()
    }

    /// Reads bytes at an address of this memory. Returns whether they could be read.
    pub fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        self.memory().is_some_and(|memory| memory.read_exactly(address, buffer).is_ok())
    }

    /// Sends the agent an order. Its answer is read by [`Space::answer`].
    pub fn send(&self, agent: &Agent, number: u32, order: &Order, buffer: &mut Vec<u8>) -> io::Result<()> {
        const { assert!(size_of::<Command>() == 24) };
        if let Some(word) = agent.word(BEGUN_OFFSET) {
            word.store(0, Ordering::Release);
        }
        buffer.clear();
        buffer.extend_from_slice(&number.to_ne_bytes());
        for count in [order.move_out.len(), order.drop.len(), order.own.len()] {
            buffer.extend_from_slice(&(count as u32).to_ne_bytes());
        }
        let area = order.area.map_or((0, 0), |area| (area.number, area.emptied));
        for number in [area.0, area.1] {
            buffer.extend_from_slice(&(number as u32).to_ne_bytes());
        }
        for &(first, count) in order.move_out.iter().chain(&order.drop).chain(&order.own) {
            buffer.extend_from_slice(&Self::address(first).to_ne_bytes());
            buffer.extend_from_slice(&(u64::from(count) * PAGE_BYTES).to_ne_bytes());
        }
        rustix::net::send(
            &agent.socket,
            buffer,
            rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
        )?;
        Ok(())
    }

    /// Notes that nothing lies in these staging areas any more.
    pub fn clear_staged(&self, room: &Room, areas: std::ops::Range<usize>) {
        self.staged.get(areas).into_iter().flatten().for_each(|staged| room.clear_staged(staged));
    }

    /// Notes that nothing lies in any staging area any more.
    pub fn clear_all_staged(&self, room: &Room) {
        self.clear_staged(room, 0..AREAS);
    }

    /// The change of the room's count by `pages` more pages in an area.
    pub fn staged_in(&self, area: Area, pages: u32) -> Option<Staged<'_>> {
        Some(Staged { area: self.staged.get(area.number)?, pages, has_agent: &self.has_agent })
    }

    /// Whether pages lie in one of its staging areas.
    pub fn has_staged(&self) -> bool {
        self.staged.iter().any(|staged| staged.load(Ordering::Relaxed) > 0)
    }

    /// The agent's answer, if it has come.
    pub fn answer(&self, agent: &Agent) -> io::Result<Option<Done>> {
        let mut answer = [0u8; size_of::<Done>()];
        let count = loop {
            match rustix::net::recv(&agent.socket, &mut answer[..], RecvFlags::DONTWAIT) {
                Ok((count, _)) => break count,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        if count != answer.len() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let word =
            |at: usize| u32::from_ne_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]]);
        let mut done = Done { number: word(0), dropped: word(4), moved: [0; AREA_PAGES] };
        done.moved.copy_from_slice(&answer[8..8 + AREA_PAGES]);
        Ok(Some(done))
    }

    /// Tells the agent to end: there is no program left to serve.
    pub fn dismiss(&self, agent: &Agent) {
        let _ = rustix::net::send(
            &agent.socket,
            &[0u8; size_of::<Command>()],
            rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT,
        );
    }
}

impl AsFd for Agent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
