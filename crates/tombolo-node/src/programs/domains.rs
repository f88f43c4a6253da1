//! All domains of this node's programs, and the memory that they have allocated.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use tombolo_channel::{
    ChannelPage, Failure, Grant, MAX_GRANTS, MailError, Mailbox, PROCESSES, SLOTS, Secret, Target, Who,
    process_of,
};
use tombolo_core::iommu::ContextId;
use tombolo_core::own::OwnMemory;
use tombolo_host::event::{EventFd, Poll};
use tombolo_host::shared::{SharedMemory, SharedSpan};
use tombolo_host::unix::SeqpacketSocket;
use tombolo_wire::NackCode;

use super::access::{LoopWake, Ordered, OwnAccess};
use super::addresses::Addresses;
use super::awake::Awake;
use super::domain::{Family, MailboxState, ProgramDomain, Written};
use super::helper::HelperCommand;
use super::mail_shares::{MailShares, Party};
use super::own::OwnRanges;
use super::requests::{LastAccess, LastHolder};
use super::user::{Poster, SMALL_LOOPBACK};
use super::windows::Window;
use super::{Limits, Missing};
use crate::fabric::life::{NoRandomNumbers, random};
use crate::memory::blocking::{Owner, Pools};
use crate::memory::reclaim::{Account, Room, Segment, TakeError};

/// Memory allocated for a domain. When this is dropped, the memory is freed in the pool.
#[derive(Debug)]
pub(super) struct Region {
    /// Life of the process that allocated it. The memory is freed when that process leaves.
    pub(super) life: u32,
    /// Makes it a window. Declared before `segment`, so that the window's end is announced before the memory is freed.
    pub(super) window: Option<Window>,
    pub(super) segment: Segment,
    pub(super) grants: Vec<Grant>,
    /// Memory that its contents move to, if it is a revoked window. No transfer reaches this region meanwhile.
    pub(super) successor: Option<Segment>,
    /// It was a window that was revoked, and the owner has since moved its contents to the successor.
    pub(super) was_revoked: bool,
}

impl Region {
    pub(super) fn is_moving(&self) -> bool {
        self.successor.is_some()
    }
}

/// The number of a domain, and that of one of its processes in it.
pub(crate) type DomainKey = (u16, u8);

/// The processes of all domains.
pub(crate) type Domains = BTreeMap<DomainKey, Arc<ProgramDomain>>;

/// The processes of one domain.
fn processes(domains: &Domains, number: u16) -> impl Iterator<Item = &Arc<ProgramDomain>> {
    domains.range((number, 0)..=(number, u8::MAX)).map(|(_, domain)| domain)
}

fn is_open(domains: &Domains, number: u16) -> bool {
    processes(domains, number).next().is_some()
}

/// The system refused resources that programs need.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetUpError {
    /// File descriptors.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// Random addresses.
    #[error("{0}")]
    Random(#[from] NoRandomNumbers),
}

/// The domains of all programs.
#[derive(Debug)]
pub(crate) struct Programs {
    pub(super) limits: Limits,
    /// The processes of all domains. The table is copied when it changes, so that no thread holds the lock while it
    /// uses the table. This lock is taken before that of the regions.
    domains: RwLock<Arc<Domains>>,
    /// Memory allocated for programs, by domain and address, so that one lock suffices to find it.
    pub(super) regions: RwLock<BTreeMap<(u16, u64), Region>>,
    /// Addresses for further regions.
    addresses: Mutex<Addresses>,
    /// The poll that the thread that receives programs sleeps on.
    pub(super) poll: Poll,
    /// The domains whose doorbells the loop checks.
    pub(crate) awake: Awake,
    /// The account of the memory for programs.
    pub(crate) memory: Arc<Account>,
    pub(super) pools: Pools,
    lives: AtomicU32,
    /// The domain number last given to a program that chose none.
    last_chosen: AtomicU16,
    /// Wakes the engine's loop, which also sleeps on this.
    pub(super) loop_wake: Arc<LoopWake>,
    /// The machine for accesses to programs' own memory. Locked after the table of a domain's registered ranges, and
    /// before the engine.
    pub(crate) own_memory: Mutex<OwnMemory<Ordered>>,
    /// The areas by which programs' own memory is reached.
    accesses: RwLock<Arc<Vec<Arc<OwnAccess>>>>,
    /// Number of orders to these areas that are not answered yet.
    pub(super) open_orders: Arc<AtomicU32>,
    /// Starts processes for programs that cannot have threads.
    pub(crate) helper: OnceLock<HelperCommand>,
    /// The machine has steps that do not follow from an answer.
    has_steps: AtomicBool,
    /// Small transfers under way between programs here.
    pub(crate) small_loopback: AtomicU32,
    /// Number of further copies during which a tiny one is expected.
    pub(crate) tiny_expected: AtomicU32,
    /// The domain and process whose bells are served first.
    turn: AtomicU32,
    pub(crate) counts: Counts,
}

/// Counters of what programs did.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) transfers: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) bells_dropped: AtomicU64,
    pub(crate) descriptors_refused: AtomicU64,
    mails: AtomicU64,
    mails_refused: AtomicU64,
    pub(super) windows_mapped: AtomicU64,
    pub(super) windows_revoked: AtomicU64,
    pub(super) helpers_started: AtomicU64,
}

impl Programs {
    pub(crate) fn new(limits: Limits, pools: Pools) -> Result<Self, SetUpError> {
        let wake = EventFd::new().map_err(std::io::Error::from)?;
        let poll = Poll::new().map_err(std::io::Error::from)?;
        let loop_wake = Arc::new(LoopWake { is_asleep: AtomicBool::new(false), event: wake });
        Ok(Self {
            loop_wake,
            own_memory: Mutex::new(OwnMemory::new(limits.faults)),
            accesses: RwLock::default(),
            open_orders: Arc::default(),
            helper: OnceLock::new(),
            has_steps: AtomicBool::new(false),
            limits,
            domains: RwLock::default(),
            regions: RwLock::default(),
            addresses: Mutex::new(Addresses::new()?),
            awake: Awake::default(),
            poll,
            memory: Account::new(limits.program_memory_bytes),
            pools,
            lives: AtomicU32::new(0),
            last_chosen: AtomicU16::new(u16::MAX),
            small_loopback: AtomicU32::new(0),
            tiny_expected: AtomicU32::new(0),
            turn: AtomicU32::new(0),
            counts: Counts::default(),
        })
    }

    /// The counters by name, for the node's status.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let open = self.domains.read().len() as u64;
        let Counts {
            transfers,
            failed,
            bells_dropped,
            descriptors_refused,
            mails,
            mails_refused,
            windows_mapped,
            windows_revoked,
            helpers_started,
        } = &self.counts;
        let mut counters = vec![
            ("programs_domains".to_owned(), open),
            ("programs_memory_bytes".to_owned(), self.memory.in_use_bytes()),
            ("programs_memory_being_freed_bytes".to_owned(), self.memory.being_freed_bytes()),
            ("programs_awake".to_owned(), self.awake.domains().len() as u64),
        ];
        for (name, counter) in [
            ("programs_transfers", transfers),
            ("programs_transfers_failed", failed),
            ("programs_bells_dropped", bells_dropped),
            ("programs_descriptors_refused", descriptors_refused),
            ("programs_mails", mails),
            ("programs_mails_refused", mails_refused),
            ("programs_windows_mapped", windows_mapped),
            ("programs_windows_revoked", windows_revoked),
            ("programs_helpers_started", helpers_started),
        ] {
            counters.push((name.to_owned(), counter.load(Ordering::Relaxed)));
        }
        counters
    }

    pub(crate) fn open_domains(&self) -> Arc<Domains> {
        self.domains.read().clone()
    }

    /// One process of a domain.
    #[cfg(test)]
    pub(super) fn process(&self, key: DomainKey) -> Option<Arc<ProgramDomain>> {
        self.domains.read().get(&key).cloned()
    }

    /// The process of a domain with this life.
    fn of_life(&self, number: u16, life: u32) -> Option<Arc<ProgramDomain>> {
        processes(&self.domains.read(), number).find(|domain| domain.life == life).cloned()
    }

    /// Whether a domain with this number is open.
    pub(super) fn is_open(&self, number: u16) -> bool {
        is_open(&self.domains.read(), number)
    }

    /// The process whose own memory an address in a domain belongs to. If `life` is given, the process with that life
    /// must still be in the domain.
    pub(super) fn owner_of(
        &self,
        number: u16,
        life: Option<u32>,
        address: u64,
    ) -> Result<Arc<ProgramDomain>, Missing> {
        let domains = self.domains.read();
        let is_there = |life: u32| processes(&domains, number).any(|domain| domain.life == life);
        match domains.get(&(number, process_of(address))) {
            _ if life.is_some_and(|life| !is_there(life)) => Err(Missing::Domain),
            Some(owner) => Ok(owner.clone()),
            None if is_open(&domains, number) => Err(Missing::Range),
            None => Err(Missing::Domain),
        }
    }

    /// The process whose own memory an area reaches.
    pub(super) fn of_context(&self, context: ContextId) -> Option<Arc<ProgramDomain>> {
        self.domains.read().values().find(|domain| domain.has_context(context)).cloned()
    }

    /// Finds the allocated memory of a domain at an address, and the offset in it, if `is_granted` accepts its grants.
    /// If `life` is given, the process with that life must still be in the domain.
    pub(crate) fn find(
        &self,
        number: u16,
        life: Option<u32>,
        address: u64,
        length_bytes: u32,
        is_granted: impl FnOnce(&[Grant]) -> bool,
    ) -> Result<(Arc<SharedMemory>, usize), Missing> {
        let regions = self.regions.read();
        let Some(((_, start), region)) = regions.range((number, 0)..=(number, address)).next_back() else {
            drop(regions);
            return Err(if self.is_open(number) { Missing::Range } else { Missing::Domain });
        };
        if region.is_moving() {
            return Err(Missing::Range);
        }
        let offset = address - start;
        let end = offset.checked_add(length_bytes.into()).ok_or(Missing::Range)?;
        let memory = region.segment.memory();
        if end > memory.len() as u64 {
            return Err(Missing::Range);
        }
        if !is_granted(&region.grants) {
            return Err(Missing::Grant);
        }
        let (memory, owner) = (memory.clone(), region.life);
        drop(regions);
        // Memory of the poster itself needs no check: it goes when the poster leaves.
        if life.is_some_and(|life| life != owner && self.of_life(number, life).is_none()) {
            return Err(Missing::Domain);
        }
        Ok((memory, offset as usize))
    }

    /// The process of a domain that has its mailbox, if `is_sender` accepts the mailbox's senders.
    pub(crate) fn find_mailbox(
        &self,
        number: u16,
        is_sender: impl FnOnce(&[Who]) -> bool,
    ) -> Result<Arc<ProgramDomain>, Missing> {
        let domains = self.open_domains();
        let domain = processes(&domains, number).find(|domain| domain.mailbox_state.get().is_some());
        let Some(domain) = domain else {
            return Err(if is_open(&domains, number) { Missing::Range } else { Missing::Domain });
        };
        let mailbox_state = domain.mailbox_state.get().ok_or(Missing::Range)?;
        if !is_sender(&mailbox_state.senders) {
            self.counts.mails_refused.fetch_add(1, Ordering::Relaxed);
            return Err(Missing::Grant);
        }
        Ok(domain.clone())
    }

    /// Makes a domain awake after its program rang while the loop did not check its bell.
    pub(crate) fn wake_domain(&self, domain: &Arc<ProgramDomain>) {
        self.awake.add(domain);
        // Wakes the loop if it sleeps, so that it checks this bell from now on.
        let _ = self.loop_wake.event.signal();
    }

    /// The descriptor that the engine's loop sleeps on besides its links.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.loop_wake.event.as_fd()
    }

    /// To be called when the engine's loop is about to sleep. True: there is work already, so it must not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.loop_wake.is_asleep.store(true, Ordering::SeqCst);
        let has_rung = self.awake.domains().values().filter(|domain| domain.page.fall_asleep()).count() > 0;
        has_rung || self.has_steps.load(Ordering::SeqCst) || self.answers_waiting()
    }

    /// Number of orders for accesses to programs' own memory that are not answered yet.
    pub(crate) fn accesses_underway(&self) -> u32 {
        self.open_orders.load(Ordering::Relaxed)
    }

    /// Whether answers to such orders are waiting.
    pub(crate) fn answers_waiting(&self) -> bool {
        self.accesses_underway() > 0 && self.accesses.read().iter().any(|access| access.has_answers())
    }

    /// The areas by which programs' own memory is reached.
    pub(crate) fn accesses(&self) -> Arc<Vec<Arc<OwnAccess>>> {
        self.accesses.read().clone()
    }

    pub(super) fn add_access(&self, access: &Arc<OwnAccess>) {
        self.own_memory.lock().open(access.context);
        Arc::make_mut(&mut self.accesses.write()).push(access.clone());
    }

    /// Removes an area, and ends all of its accesses.
    pub(crate) fn remove_access(&self, access: &Arc<OwnAccess>) {
        let mut accesses = self.accesses.write();
        let Some(place) = accesses.iter().position(|known| Arc::ptr_eq(known, access)) else { return };
        Arc::make_mut(&mut accesses).swap_remove(place);
        drop(accesses);
        self.own_memory.lock().close(access.context);
        access.close();
        self.has_steps();
        // Unmapping the area takes time, and so does the end of a helper.
        let owner = Owner::Program(access.domain, (access.context.0 >> 32) as u32);
        self.pools.blocking.give_back(owner, Box::new(LastAccess(access.clone())));
    }

    /// Makes the engine's loop poll [`Self::own_memory`] for steps.
    pub(crate) fn has_steps(&self) {
        self.has_steps.store(true, Ordering::SeqCst);
        self.loop_wake.wake();
    }

    /// Whether there may be steps. Called by the loop, this clears the mark.
    pub(crate) fn take_has_steps(&self) -> bool {
        self.has_steps.load(Ordering::Relaxed) && self.has_steps.swap(false, Ordering::SeqCst)
    }

    /// To be called when the engine's loop has woken up.
    pub(crate) fn wake_up(&self) {
        self.loop_wake.is_asleep.store(false, Ordering::SeqCst);
        let _ = self.loop_wake.event.drain();
        for domain in self.awake.domains().values() {
            domain.page.wake_up();
        }
    }

    /// The domain and process whose bells are served first.
    pub(crate) fn turn(&self) -> DomainKey {
        let turn = self.turn.load(Ordering::Relaxed);
        ((turn >> 8) as u16, turn as u8)
    }

    /// Serves this process's bells first next time, because some were left for later.
    pub(crate) fn turn_is_of(&self, (number, process): DomainKey) {
        self.turn.store(u32::from(number) << 8 | u32::from(process), Ordering::Relaxed);
    }

    /// Puts a message into the mailbox of a domain that has one.
    pub(crate) fn deliver(
        &self,
        domain: &ProgramDomain,
        sender: Target,
        party: impl FnOnce() -> Party,
        bytes: SharedSpan<'_>,
    ) -> Result<(), NackCode> {
        let mailbox_state = domain.mailbox_state.get().ok_or(NackCode::DecodeError)?;
        let mut written = mailbox_state.written.lock();
        let not_taken = mailbox_state.mailbox.not_taken(written.messages);
        let party = written.shares.is_some().then(party);
        if let Some((shares, party)) = written.shares.as_mut().zip(party)
            && !shares.admits(party, not_taken)
        {
            return Err(NackCode::BufferFull);
        }
        mailbox_state.mailbox.put(&mut written.messages, sender, bytes).map_err(|error| match error {
            MailError::Full => NackCode::BufferFull,
            MailError::TooLong => NackCode::DecodeError,
        })?;
        if let Some((shares, party)) = written.shares.as_mut().zip(party) {
            shares.put(party);
        }
        drop(written);
        self.counts.mails.fetch_add(1, Ordering::Relaxed);
        if domain.page.announce() {
            domain.send_ended();
        }
        Ok(())
    }

    /// Tells a program that its transfer was not begun for want of room.
    pub(crate) fn not_begun(&self, user: u64) {
        let Poster::Program(number, life) = Poster::of(user) else { return };
        if let Some(domain) = self.of_life(number, life) {
            domain.pause(user as usize % SLOTS);
        }
    }

    /// Tells a program that its transfer has ended. For an atomic operation, the result is the previous value of the
    /// word. False: the transfer is not one of a program.
    pub(crate) fn completed(&self, user: u64, result: Result<u64, Failure>) -> bool {
        let Poster::Program(number, life) = Poster::of(user) else { return false };
        if user & SMALL_LOOPBACK != 0 {
            self.small_loopback.fetch_sub(1, Ordering::Relaxed);
        }
        let slot = user as usize % SLOTS;
        let Some(domain) = self.of_life(number, life) else { return true };
        if result.is_err() {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        domain.end(slot, result);
        true
    }

    /// A number for a program that chooses none. Numbers are reused as late as possible, because other programs may
    /// have granted something to an earlier domain of the number.
    fn unused_number(&self, open: &Domains) -> Option<u16> {
        let (first, last) = (*tombolo_channel::DOMAINS.start(), *tombolo_channel::DOMAINS.end());
        let before = self.last_chosen.load(Ordering::Relaxed).clamp(first, last);
        let mut numbers = (first..before).rev().chain((before..=last).rev());
        let number = numbers.find(|number| !is_open(open, *number))?;
        self.last_chosen.store(number, Ordering::Relaxed);
        Some(number)
    }

    pub(crate) fn open(
        &self,
        number: Option<u16>,
        socket: SeqpacketSocket,
    ) -> Result<Arc<ProgramDomain>, (SeqpacketSocket, String)> {
        let mut domains = self.domains.write();
        let chosen = match number {
            Some(number) if !tombolo_channel::DOMAINS.contains(&number) => {
                return Err((
                    socket,
                    format!("domain {number} is none: they go from 1 to {}", tombolo_channel::DOMAINS.end()),
                ));
            }
            Some(number) if is_open(&domains, number) => {
                return Err((
                    socket,
                    format!(
                        "domain {number} belongs to another program, or to processes that have joined it"
                    ),
                ));
            }
            Some(number) => Some(number),
            None => self.unused_number(&domains),
        };
        let Some(number) = chosen else { return Err((socket, self.is_full())) };
        let entered = self.enter_process(&mut domains, (number, 0), Arc::default(), socket)?;
        drop(domains);
        self.wake_domain(&entered);
        Ok(entered)
    }

    fn is_full(&self) -> String {
        format!("all {} domains of this node are open, each process of one counted", self.limits.domains)
    }

    /// The secret by which another process can join this domain.
    pub(crate) fn invite(domain: &ProgramDomain) -> Result<Secret, String> {
        if let Some(secret) = domain.family.secret.get() {
            return Ok(*secret);
        }
        let secret = Secret(random().map_err(|error| error.to_string())?);
        Ok(*domain.family.secret.get_or_init(|| secret))
    }

    /// Lets another process join a domain.
    pub(crate) fn join(
        &self,
        number: u16,
        secret: &Secret,
        socket: SeqpacketSocket,
    ) -> Result<Arc<ProgramDomain>, (SeqpacketSocket, String)> {
        let mut domains = self.domains.write();
        // A process without the secret must not learn whether the domain exists.
        let family = processes(&domains, number).next().map(|domain| domain.family.clone());
        let Some(family) = family.filter(|family| family.secret.get() == Some(secret)) else {
            return Err((socket, format!("this is no invitation to domain {number}, or it has ended")));
        };
        // The number of a process that has left is reused as late as possible: other programs may not have heard of its
        // end.
        let last = family.last_process.load(Ordering::Relaxed);
        let free = (1..=PROCESSES)
            .map(|distance| (last + distance) % PROCESSES)
            .find(|process| !domains.contains_key(&(number, *process)));
        let Some(process) = free else {
            return Err((socket, format!("domain {number} has {PROCESSES} processes already")));
        };
        let entered = self.enter_process(&mut domains, (number, process), family, socket)?;
        entered.family.last_process.store(process, Ordering::Relaxed);
        drop(domains);
        self.wake_domain(&entered);
        Ok(entered)
    }

    /// Enters a new process into a domain.
    fn enter_process(
        &self,
        domains: &mut Arc<Domains>,
        (number, process): DomainKey,
        family: Arc<Family>,
        socket: SeqpacketSocket,
    ) -> Result<Arc<ProgramDomain>, (SeqpacketSocket, String)> {
        if domains.len() >= usize::from(self.limits.domains) {
            return Err((socket, self.is_full()));
        }
        let page = match ChannelPage::create() {
            Ok(page) => page,
            Err(error) => return Err((socket, error.to_string())),
        };
        let domain = Arc::new(ProgramDomain {
            number,
            process,
            family,
            life: self.lives.fetch_add(1, Ordering::Relaxed),
            page,
            socket,
            own: OwnRanges::default(),
            areas: AtomicU32::new(0),
            mailbox_state: OnceLock::new(),
            busy: AtomicU64::new(0),
            rang: AtomicBool::new(true),
            has_left: AtomicBool::new(false),
        });
        Arc::make_mut(domains).insert(domain.key(), domain.clone());
        Ok(domain)
    }

    /// Removes a process that has left its domain. The domain ends with its last process.
    pub(crate) fn close(&self, domain: &Arc<ProgramDomain>) {
        let mut domains = self.domains.write();
        let regions: Vec<Region> = self
            .regions
            .write()
            .extract_if((domain.number, 0)..=(domain.number, u64::MAX), |_, region| {
                region.life == domain.life
            })
            .map(|(_, region)| region)
            .collect();
        Arc::make_mut(&mut domains).remove(&domain.key());
        drop(domains);
        self.awake.remove(domain);
        if let Some(access) = domain.own.close() {
            self.remove_access(&access);
        }
        drop(regions);
        // The last holder would close its files and mappings: leave that to the pool.
        self.pools.blocking.give_back(domain.owner(), Box::new(LastHolder(domain.clone())));
    }

    /// Takes room for `bytes` from the account for programs.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Room, String> {
        self.memory.take(bytes).map_err(|error| match error {
            TakeError::TooMuch { free_bytes } => {
                format!("{bytes} bytes asked, and this node has {free_bytes} left for programs")
            }
            TakeError::BeingFreed => {
                format!("{bytes} bytes asked, and what programs gave back is not free yet: ask again")
            }
        })
    }

    pub(crate) fn open_mailbox<'a>(
        &self,
        domain: &'a ProgramDomain,
        messages: u32,
        senders: Vec<Who>,
    ) -> Result<&'a Mailbox, String> {
        if !Mailbox::is_size(messages) {
            return Err(format!(
                "a mailbox is for 1 to {} messages, a power of two, not {messages}",
                tombolo_channel::MAX_MAILS
            ));
        }
        if senders.len() > MAX_GRANTS {
            return Err(format!("{} senders are more than {MAX_GRANTS}", senders.len()));
        }
        if let Some(mailbox_state) = domain.mailbox_state.get() {
            // A program repeats the request if it could not receive the descriptor, or stopped waiting for the answer.
            if mailbox_state.mailbox.messages() == messages && mailbox_state.senders == senders {
                return Ok(&mailbox_state.mailbox);
            }
            return Err(format!(
                "this domain has a mailbox already, for {} messages; it cannot be opened with another number \
                 of messages or for other senders",
                mailbox_state.mailbox.messages()
            ));
        }
        let domains = self.open_domains();
        if processes(&domains, domain.number).any(|other| other.mailbox_state.get().is_some()) {
            return Err("another process of this domain has its mailbox".into());
        }
        let mailbox = Mailbox::create(messages).map_err(|error| error.to_string())?;
        let room = self.reserve(mailbox.memory_bytes() as u64)?;
        let written = Written { messages: 0, shares: MailShares::of(messages, &senders) };
        let mailbox_state = MailboxState { mailbox, senders, written: Mutex::new(written), _room: room };
        Ok(&domain.mailbox_state.get_or_init(|| mailbox_state).mailbox)
    }

    /// The memory that this process has allocated and that begins at this address.
    pub(super) fn of_process<'a>(
        regions: &'a BTreeMap<(u16, u64), Region>,
        domain: &ProgramDomain,
        address: u64,
    ) -> Option<&'a Region> {
        regions.get(&(domain.number, address)).filter(|region| region.life == domain.life)
    }

    /// As [`Self::of_process`], for changing it.
    pub(super) fn of_process_mut<'a>(
        regions: &'a mut BTreeMap<(u16, u64), Region>,
        domain: &ProgramDomain,
        address: u64,
    ) -> Option<&'a mut Region> {
        regions.get_mut(&(domain.number, address)).filter(|region| region.life == domain.life)
    }

    /// Checks the size and the number of grants of an allocation.
    pub(super) fn check_allocation(bytes: u64, grants: &[Grant]) -> Result<(), String> {
        if bytes == 0 || !bytes.is_multiple_of(4096) {
            return Err(format!("{bytes} bytes are not a whole number of pages"));
        }
        if grants.len() > MAX_GRANTS {
            return Err(format!("{} grants are more than {MAX_GRANTS}", grants.len()));
        }
        Ok(())
    }

    /// Enters memory that was allocated for a domain. Returns its address.
    pub(crate) fn enter(
        &self,
        domain: &ProgramDomain,
        segment: Segment,
        grants: Vec<Grant>,
        window: Option<Window>,
    ) -> Result<u64, String> {
        let address = self.addresses.lock().take(segment.memory().len() as u64);
        let address = address.ok_or("this node has no addresses left; start it again")?;
        // If the process has left meanwhile, its memory was removed already.
        let domains = self.domains.read();
        if domains.get(&domain.key()).is_none_or(|open| open.life != domain.life) {
            return Err("the domain is closed".into());
        }
        let life = domain.life;
        let region = Region { life, segment, grants, window, successor: None, was_revoked: false };
        self.regions.write().insert((domain.number, address), region);
        Ok(address)
    }
}
