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

/// Memory of a domain. When it is dropped, it is freed in the pool.
#[derive(Debug)]
pub(super) struct Region {
    /// The process that has allocated it, with which it goes.
    pub(super) life: u32,
    /// Whether others may map it. Told to be over before the memory is freed.
    pub(super) window: Option<Window>,
    pub(super) segment: Segment,
    pub(super) grants: Vec<Grant>,
    /// What it moves to, since it was revoked. No transfer reaches it meanwhile.
    pub(super) successor: Option<Segment>,
    /// It was a window, and has moved.
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

/// Those of one domain.
fn processes(domains: &Domains, number: u16) -> impl Iterator<Item = &Arc<ProgramDomain>> {
    domains.range((number, 0)..=(number, u8::MAX)).map(|(_, domain)| domain)
}

fn is_open(domains: &Domains, number: u16) -> bool {
    processes(domains, number).next().is_some()
}

/// What programs need of the system was refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetUpError {
    /// Descriptors.
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
    /// Copied when it changes, so that nobody holds the lock while doing something; locked before
    /// the regions.
    domains: RwLock<Arc<Domains>>,
    /// What they have allocated, by domain and address: found with one lock.
    pub(super) regions: RwLock<BTreeMap<(u16, u64), Region>>,
    /// Where the next will be.
    addresses: Mutex<Addresses>,
    /// What the thread that receives programs sleeps on.
    pub(super) poll: Poll,
    /// The domains whose doorbells are looked at.
    pub(crate) awake: Awake,
    /// What may be allocated for them.
    pub(crate) memory: Arc<Account>,
    pub(super) pools: Pools,
    lives: AtomicU32,
    /// The number that was given last to a program that chose none.
    last_chosen: AtomicU16,
    /// The engine's loop sleeps on this, too.
    pub(super) loop_wake: Arc<LoopWake>,
    /// Accesses to programs' own memory. Locked after what is known of a domain's own memory, and before the engine.
    pub(crate) own_memory: Mutex<OwnMemory<Ordered>>,
    /// The areas by which they are made.
    accesses: RwLock<Arc<Vec<Arc<OwnAccess>>>>,
    /// Orders to them that are not answered.
    pub(super) open_orders: Arc<AtomicU32>,
    /// Starts processes for programs that cannot have threads.
    pub(crate) helper: OnceLock<HelperCommand>,
    /// There are steps that do not follow from an answer.
    has_steps: AtomicBool,
    /// Small transfers under way between programs here.
    pub(crate) small_loopback: AtomicU32,
    /// Number of further copies during which a tiny one is expected.
    pub(crate) tiny_expected: AtomicU32,
    /// Whose bells are answered first.
    turn: AtomicU32,
    pub(crate) counts: Counts,
}

/// What programs did.
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

    /// By name, for the node's status.
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

    /// The process of a domain that has that life.
    fn of_life(&self, number: u16, life: u32) -> Option<Arc<ProgramDomain>> {
        processes(&self.domains.read(), number).find(|domain| domain.life == life).cloned()
    }

    /// Whether there is a domain of that number.
    pub(super) fn is_open(&self, number: u16) -> bool {
        is_open(&self.domains.read(), number)
    }

    /// The process whose own memory an address of a domain is in; with a life, if that one's process has not left the domain.
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

    /// Where an address of a domain is, among what was allocated for it; and if `is_granted` says so of its grants. With a life,
    /// if that one's process has not left the domain.
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
        // What the process has allocated itself is gone with it.
        if life.is_some_and(|life| life != owner && self.of_life(number, life).is_none()) {
            return Err(Missing::Domain);
        }
        Ok((memory, offset as usize))
    }

    /// The process of a domain that has its mailbox, if `is_sender` says that those are meant who write to it.
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

    /// A program rang while its bell was not looked at.
    pub(crate) fn wake_domain(&self, domain: &Arc<ProgramDomain>) {
        self.awake.add(domain);
        // If the loop sleeps: it looks at that bell, too, from now on.
        let _ = self.loop_wake.event.signal();
    }

    /// The descriptor that the engine's loop sleeps on beside its links.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.loop_wake.event.as_fd()
    }

    /// The engine's loop is about to sleep. True: somebody rang, so it must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.loop_wake.is_asleep.store(true, Ordering::SeqCst);
        let has_rung = self.awake.domains().values().filter(|domain| domain.page.fall_asleep()).count() > 0;
        has_rung || self.has_steps.load(Ordering::SeqCst) || self.answers_waiting()
    }

    /// Accesses to their own memory that programs were told to make, and have not answered.
    pub(crate) fn accesses_underway(&self) -> u32 {
        self.open_orders.load(Ordering::Relaxed)
    }

    /// Whether answers of programs about accesses to their own memory wait.
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

    /// All accesses of an area end.
    pub(crate) fn remove_access(&self, access: &Arc<OwnAccess>) {
        let mut accesses = self.accesses.write();
        let Some(place) = accesses.iter().position(|known| Arc::ptr_eq(known, access)) else { return };
        Arc::make_mut(&mut accesses).swap_remove(place);
        drop(accesses);
        self.own_memory.lock().close(access.context);
        access.close();
        self.has_steps();
        // To unmap its memory takes time, and to wait for the end of a helper.
        let owner = Owner::Program(access.domain, (access.context.0 >> 32) as u32);
        self.pools.blocking.give_back(owner, Box::new(LastAccess(access.clone())));
    }

    /// The engine's loop is to look at the steps of [`Self::own_memory`].
    pub(crate) fn has_steps(&self) {
        self.has_steps.store(true, Ordering::SeqCst);
        self.loop_wake.wake();
    }

    /// The loop's: whether there may be steps.
    pub(crate) fn take_has_steps(&self) -> bool {
        self.has_steps.load(Ordering::Relaxed) && self.has_steps.swap(false, Ordering::SeqCst)
    }

    /// The engine's loop is awake.
    pub(crate) fn wake_up(&self) {
        self.loop_wake.is_asleep.store(false, Ordering::SeqCst);
        let _ = self.loop_wake.event.drain();
        for domain in self.awake.domains().values() {
            domain.page.wake_up();
        }
    }

    /// Whose bells are answered first.
    pub(crate) fn turn(&self) -> DomainKey {
        let turn = self.turn.load(Ordering::Relaxed);
        ((turn >> 8) as u16, turn as u8)
    }

    /// The bells of this one were left for later.
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

    /// A program's transfer was not begun: there is no room now.
    pub(crate) fn not_begun(&self, user: u64) {
        let Poster::Program(number, life) = Poster::of(user) else { return };
        if let Some(domain) = self.of_life(number, life) {
            domain.pause(user as usize % SLOTS);
        }
    }

    /// A transfer has ended, with the word before it if it was an atomic operation. False: it is no
    /// program's.
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

    /// A number for a program that chooses none: one that was given out is the last to be given again, as others may have
    /// granted something to it.
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

    /// What another process needs to join the domain of this one.
    pub(crate) fn invite(domain: &ProgramDomain) -> Result<Secret, String> {
        if let Some(secret) = domain.family.secret.get() {
            return Ok(*secret);
        }
        let secret = Secret(random().map_err(|error| error.to_string())?);
        Ok(*domain.family.secret.get_or_init(|| secret))
    }

    /// Another process joins a domain.
    pub(crate) fn join(
        &self,
        number: u16,
        secret: &Secret,
        socket: SeqpacketSocket,
    ) -> Result<Arc<ProgramDomain>, (SeqpacketSocket, String)> {
        let mut domains = self.domains.write();
        // Who does not know the secret is not told whether there is such a domain.
        let family = processes(&domains, number).next().map(|domain| domain.family.clone());
        let Some(family) = family.filter(|family| family.secret.get() == Some(secret)) else {
            return Err((socket, format!("this is no invitation to domain {number}, or it has ended")));
        };
        // That of a process that has left is the last to be given again: others may not have heard of its end.
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

    /// Makes what a process of a domain has.
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

    /// A process has left its domain, which ends with the last.
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
        // Whoever lets it go last closes what is in it.
        self.pools.blocking.give_back(domain.owner(), Box::new(LastHolder(domain.clone())));
    }

    /// Takes `bytes` of what programs may have.
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
            // A program asks again where it had no descriptor left for the answer, or did not wait for it.
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

    /// Memory that this process has allocated, where it begins.
    pub(super) fn of_process<'a>(
        regions: &'a BTreeMap<(u16, u64), Region>,
        domain: &ProgramDomain,
        address: u64,
    ) -> Option<&'a Region> {
        regions.get(&(domain.number, address)).filter(|region| region.life == domain.life)
    }

    /// As [`Self::of_process`].
    pub(super) fn of_process_mut<'a>(
        regions: &'a mut BTreeMap<(u16, u64), Region>,
        domain: &ProgramDomain,
        address: u64,
    ) -> Option<&'a mut Region> {
        regions.get_mut(&(domain.number, address)).filter(|region| region.life == domain.life)
    }

    /// Whether memory of that size may be had with those grants.
    pub(super) fn check_allocation(bytes: u64, grants: &[Grant]) -> Result<(), String> {
        if bytes == 0 || !bytes.is_multiple_of(4096) {
            return Err(format!("{bytes} bytes are not a whole number of pages"));
        }
        if grants.len() > MAX_GRANTS {
            return Err(format!("{} grants are more than {MAX_GRANTS}", grants.len()));
        }
        Ok(())
    }

    /// Enters memory that was allocated for a domain; its address.
    pub(crate) fn enter(
        &self,
        domain: &ProgramDomain,
        segment: Segment,
        grants: Vec<Grant>,
        window: Option<Window>,
    ) -> Result<u64, String> {
        let address = self.addresses.lock().take(segment.memory().len() as u64);
        let address = address.ok_or("this node has no addresses left; start it again")?;
        // A domain that was closed meanwhile has been cleared already.
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
