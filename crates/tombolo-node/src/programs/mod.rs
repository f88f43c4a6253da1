//! The programs of this node: their domains, channels and memory.
//!
//! A program trusts its node; the node trusts no program. What it reads from a
//! channel page is copied once and checked, a wild doorbell is a descriptor that
//! fails, and a program that dies takes its domain with it.

pub(crate) mod awake;
pub(crate) mod callers;
pub(crate) mod mover;
pub(crate) mod own;
mod requests;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use tombolo_channel::{
    ChannelPage, Failure, Fate, Grant, MAX_GRANTS, MailError, Mailbox, Message, Reply, SLOTS, Target, Who,
    encode, from_the_wire,
};
use tombolo_core::rdma::{PeerId, TransferError};
use tombolo_host::event::{EventFd, Poll};
use tombolo_host::pool::Pool;
use tombolo_host::shared::{SharedMemory, SharedSpan};
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_wire::{Domain, NackCode};

use crate::driver::node::{ITSELF, Limits};
use crate::fabric::life;
use crate::fabric::numbers::Numbers;
use crate::lending::ledger;
use crate::memory::blocking::Owner;
use crate::memory::reclaim::{Account, Room, Segment, TakeError};
use awake::Awake;
use mover::Outbox;
use own::OwnRanges;

/// Marks the transfers of programs among the user numbers of the engine.
const OF_A_PROGRAM: u64 = 1 << 62;
/// Marks those of them that stay here and are small.
pub(crate) const SMALL_AT_HOME: u64 = 1 << 61;
/// Marks the transfers that a peer asked for.
const OF_A_PEER: u64 = 1 << 60;
/// Between two pieces of memory: an address that runs off one is in none.
const GAP_BYTES: u64 = 1 << 21;

/// Memory of a domain. When it is dropped, it is freed in the pool.
#[derive(Debug)]
struct Region {
    segment: Segment,
    grants: Vec<Grant>,
}

/// What is to be done with memory, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// It belongs to this node, which does what it likes.
    Own,
    /// So does the domain it belongs to, if it is still that life of it.
    OwnOf(u32),
    /// Another reads it.
    Read(Accessor),
    /// Another writes it.
    Write(Accessor),
    /// Another reads and writes it, in one.
    Change(Accessor),
}

/// On whose behalf a transfer goes, by its user number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poster {
    /// The node itself.
    Node,
    /// The program of that domain, in that life of it.
    Program(u16, u32),
    /// A peer.
    Peer(PeerId),
}

impl Poster {
    pub(crate) fn of(user: u64) -> Self {
        if user & OF_A_PROGRAM != 0 {
            Self::Program((user >> 40) as u16 & 0x7FFF, (user >> 8) as u32)
        } else if user & OF_A_PEER != 0 {
            Self::Peer(PeerId((user >> 24) as u32))
        } else {
            Self::Node
        }
    }

    /// The user number of the transfer that a peer asked for, which is the `index`th of all peers'.
    pub(crate) fn user_of_peer(peer: PeerId, index: u32) -> u64 {
        OF_A_PEER | u64::from(peer.0) << 24 | u64::from(index & 0xFF_FFFF)
    }

    /// What its transfers may do with memory here: what they like with their own, what they were
    /// granted with that of others.
    fn using(self, domain: Domain, how: impl FnOnce(Accessor) -> Use) -> Use {
        match self {
            Self::Node => Use::Own,
            Self::Program(number, life) if from_the_wire(domain) == Some(number) => Use::OwnOf(life),
            Self::Program(number, _) => how(Accessor { peer: ITSELF, program: Some(number) }),
            Self::Peer(peer) => how(Accessor { peer, program: None }),
        }
    }

    pub(crate) fn reading(self, domain: Domain) -> Use {
        self.using(domain, Use::Read)
    }

    pub(crate) fn writing(self, domain: Domain) -> Use {
        self.using(domain, Use::Write)
    }

    pub(crate) fn changing(self, domain: Domain) -> Use {
        self.using(domain, Use::Change)
    }
}

/// Who reaches for another's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accessor {
    /// Which node.
    pub(crate) peer: PeerId,
    /// Which program, where that is known: at this node.
    pub(crate) program: Option<u16>,
}

impl Accessor {
    fn is_meant_by(self, who: Who, numbers: &Numbers) -> bool {
        match who {
            Who::Anyone => true,
            Who::Program(number) => self.peer == ITSELF && self.program == Some(number),
            Who::Node(number) => numbers.life_number(self.peer) == number,
        }
    }
}

impl Use {
    fn is_granted(self, grants: &[Grant], numbers: &Numbers) -> bool {
        match self {
            Self::Own | Self::OwnOf(_) => true,
            Self::Read(by) => grants.iter().any(|grant| grant.read && by.is_meant_by(grant.who, numbers)),
            Self::Write(by) => grants.iter().any(|grant| grant.write && by.is_meant_by(grant.who, numbers)),
            Self::Change(by) => {
                let mut meant = grants.iter().filter(|grant| by.is_meant_by(grant.who, numbers));
                meant.clone().any(|grant| grant.read) && meant.any(|grant| grant.write)
            }
        }
    }
}

/// A domain's mailbox.
#[derive(Debug)]
struct Letterbox {
    mailbox: Mailbox,
    senders: Vec<Who>,
    /// Messages put in so far.
    written: Mutex<u64>,
    _room: Room,
}

/// An open domain.
#[derive(Debug)]
pub(crate) struct ProgramDomain {
    pub(crate) number: u16,
    /// Tells it from others that had this number before.
    life: u32,
    pub(crate) page: ChannelPage,
    socket: SeqpacketSocket,
    own: OwnRanges,
    letterbox: OnceLock<Letterbox>,
    /// Channels with a transfer under way.
    pub(crate) busy: AtomicU64,
    /// It has rung since the last look at that.
    pub(crate) rang: AtomicBool,
}

pub(crate) type Domains = BTreeMap<u16, Arc<ProgramDomain>>;

/// All of them.
#[derive(Debug)]
pub(crate) struct Programs {
    limits: Limits,
    /// Copied when it changes, so that nobody holds the lock while doing something; locked before
    /// the regions.
    domains: RwLock<Arc<Domains>>,
    /// What they have allocated, by domain and address: found with one lock.
    regions: RwLock<BTreeMap<(u16, u64), Region>>,
    /// Where the next will be: no address is given twice, so that what was meant for a domain that is
    /// closed finds nothing in the next one of its number. The first is random, so that what was meant for
    /// an earlier life of this node finds nothing, either.
    next_address: Mutex<u64>,
    /// What the thread that receives programs sleeps on.
    poll: Poll,
    /// Those whose bells are looked at.
    pub(crate) awake: Awake,
    /// What may be allocated for them.
    memory: Arc<Account>,
    pool: Pool<Owner>,
    lives: AtomicU32,
    /// What programs call other nodes.
    pub(crate) numbers: Numbers,
    /// The engine's loop sleeps on this, too.
    wake: EventFd,
    asleep: AtomicBool,
    /// What was moved to and from programs' own memory.
    pub(crate) moved: Arc<Outbox>,
    /// Small transfers under way between programs here.
    pub(crate) small_at_home: AtomicU32,
    /// For so many copies more, tiny ones are expected.
    pub(crate) tiny_expected: AtomicU32,
    /// Whose bells are answered first.
    pub(crate) turn: AtomicU16,
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
}

impl Programs {
    pub(crate) fn new(limits: Limits, pool: Pool<Owner>) -> Result<Self, ledger::LendError> {
        let wake = EventFd::new().map_err(|errno| ledger::LendError::System(errno.to_string()))?;
        let poll = Poll::new().map_err(|errno| ledger::LendError::System(errno.to_string()))?;
        let moved = Outbox::new(&wake).map_err(|error| ledger::LendError::System(error.to_string()))?;
        Ok(Self {
            moved: Arc::new(moved),
            limits,
            domains: RwLock::default(),
            regions: RwLock::default(),
            next_address: Mutex::new(life::first_address()?),
            awake: Awake::default(),
            poll,
            memory: Account::new(limits.program_memory_bytes),
            pool,
            lives: AtomicU32::new(0),
            numbers: Numbers::default(),
            wake,
            asleep: AtomicBool::new(false),
            small_at_home: AtomicU32::new(0),
            tiny_expected: AtomicU32::new(0),
            turn: AtomicU16::new(0),
            counts: Counts::default(),
        })
    }

    /// By name, for the node's status.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let open = self.domains.read().len() as u64;
        let Counts { transfers, failed, bells_dropped, descriptors_refused, mails, mails_refused } =
            &self.counts;
        let mut counters = vec![
            ("programs_domains".to_owned(), open),
            ("programs_memory_bytes".to_owned(), self.memory.in_use_bytes()),
            ("programs_memory_being_freed_bytes".to_owned(), self.memory.being_freed_bytes()),
            ("programs_awake".to_owned(), self.awake.domains().len() as u64),
            ("limit_domains".to_owned(), self.limits.domains.into()),
            ("limit_program_memory_bytes".to_owned(), self.limits.program_memory_bytes),
            ("limit_transactions".to_owned(), self.limits.transactions.into()),
        ];
        for (name, counter) in [
            ("programs_transfers", transfers),
            ("programs_transfers_failed", failed),
            ("programs_bells_dropped", bells_dropped),
            ("programs_descriptors_refused", descriptors_refused),
            ("programs_mails", mails),
            ("programs_mails_refused", mails_refused),
        ] {
            counters.push((name.to_owned(), counter.load(Ordering::Relaxed)));
        }
        counters
    }

    pub(crate) fn open_domains(&self) -> Arc<Domains> {
        self.domains.read().clone()
    }

    fn domain(&self, number: u16) -> Option<Arc<ProgramDomain>> {
        self.domains.read().get(&number).cloned()
    }

    /// Where an address of a program's domain is, if it may be used so.
    pub(crate) fn find(
        &self,
        domain: Domain,
        address: u64,
        length_bytes: u32,
        how: Use,
    ) -> Result<(Arc<SharedMemory>, usize), NackCode> {
        let number = from_the_wire(domain).ok_or(NackCode::NoContext)?;
        let regions = self.regions.read();
        let Some(((_, start), region)) = regions.range((number, 0)..=(number, address)).next_back() else {
            drop(regions);
            let is_open = self.domains.read().contains_key(&number);
            return Err(if is_open { NackCode::DecodeError } else { NackCode::NoContext });
        };
        let offset = address - start;
        let end = offset.checked_add(length_bytes.into()).ok_or(NackCode::DecodeError)?;
        let memory = region.segment.memory();
        if end > memory.len() as u64 {
            return Err(NackCode::DecodeError);
        }
        if how.is_granted(&region.grants, &self.numbers) {
            Ok((memory.clone(), offset as usize))
        } else {
            Err(NackCode::DomainMismatch)
        }
    }

    /// A program rang while its bell was not looked at.
    pub(crate) fn rouse(&self, domain: &Arc<ProgramDomain>) {
        self.awake.add(domain);
        // If the loop sleeps: it looks at that bell, too, from now on.
        let _ = self.wake.signal();
    }

    /// The descriptor that the engine's loop sleeps on beside its links.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The engine's loop is about to sleep. True: somebody rang, so it must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        if self.moved.fall_asleep() {
            return true;
        }
        self.awake.domains().values().filter(|domain| domain.page.fall_asleep()).count() > 0
    }

    /// It is awake.
    pub(crate) fn wake_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        self.moved.wake_up();
        let _ = self.wake.drain();
        for domain in self.awake.domains().values() {
            domain.page.wake_up();
        }
    }

    /// Puts a message into the mailbox of a domain. `from` is the domain at that peer.
    pub(crate) fn deliver(
        &self,
        domain: Domain,
        peer: PeerId,
        from: u16,
        bytes: SharedSpan<'_>,
    ) -> Result<(), NackCode> {
        let domain =
            from_the_wire(domain).and_then(|number| self.domain(number)).ok_or(NackCode::NoContext)?;
        let letterbox = domain.letterbox.get().ok_or(NackCode::DecodeError)?;
        let by = Accessor { peer, program: (peer == ITSELF).then_some(from) };
        if !letterbox.senders.iter().any(|who| by.is_meant_by(*who, &self.numbers)) {
            self.counts.mails_refused.fetch_add(1, Ordering::Relaxed);
            return Err(NackCode::DomainMismatch);
        }
        let sender = Target { node: self.numbers.number(peer), domain: from };
        letterbox.mailbox.put(&mut letterbox.written.lock(), sender, bytes).map_err(|error| match error {
            MailError::Full => NackCode::BufferFull,
            MailError::TooLong => NackCode::DecodeError,
        })?;
        self.counts.mails.fetch_add(1, Ordering::Relaxed);
        if domain.page.announce() {
            domain.send_ended();
        }
        Ok(())
    }

    /// A transfer has ended, with the word before it if it was an atomic operation. False: it is no
    /// program's.
    pub(crate) fn completed(&self, user: u64, result: Result<u64, Failure>) -> bool {
        let Poster::Program(number, life) = Poster::of(user) else { return false };
        if user & SMALL_AT_HOME != 0 {
            self.small_at_home.fetch_sub(1, Ordering::Relaxed);
        }
        let slot = user as usize % SLOTS;
        let Some(domain) = self.domain(number).filter(|domain| domain.life == life) else { return true };
        if result.is_err() {
            self.counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        domain.end(slot, result);
        true
    }

    fn open(
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
            Some(number) if domains.contains_key(&number) => {
                return Err((socket, format!("domain {number} belongs to another program")));
            }
            Some(number) => Some(number),
            None => tombolo_channel::DOMAINS.rev().find(|number| !domains.contains_key(number)),
        };
        let Some(number) = chosen.filter(|_| domains.len() < usize::from(self.limits.domains)) else {
            return Err((socket, format!("all {} domains of this node are open", self.limits.domains)));
        };
        let page = match ChannelPage::create() {
            Ok(page) => page,
            Err(error) => return Err((socket, error.to_string())),
        };
        let domain = Arc::new(ProgramDomain {
            number,
            life: self.lives.fetch_add(1, Ordering::Relaxed),
            page,
            socket,
            own: OwnRanges::default(),
            letterbox: OnceLock::new(),
            busy: AtomicU64::new(0),
            rang: AtomicBool::new(true),
        });
        Arc::make_mut(&mut domains).insert(number, domain.clone());
        drop(domains);
        self.rouse(&domain);
        Ok(domain)
    }

    fn close(&self, domain: &Arc<ProgramDomain>) {
        let mut domains = self.domains.write();
        let regions: Vec<Region> = self
            .regions
            .write()
            .extract_if((domain.number, 0)..=(domain.number, u64::MAX), |_, _| true)
            .map(|(_, region)| region)
            .collect();
        Arc::make_mut(&mut domains).remove(&domain.number);
        drop(domains);
        self.awake.remove(domain.number);
        domain.own.close();
        drop(regions);
        // Whoever lets it go last closes what is in it.
        self.pool.give_back(domain.owner(), Box::new(requests::LastHolder(domain.clone())));
    }

    /// Takes so many bytes of what programs may have.
    fn reserve(&self, bytes: u64) -> Result<Room, String> {
        self.memory.take(bytes).map_err(|error| match error {
            TakeError::TooMuch { free_bytes } => {
                format!("{bytes} bytes asked, and this node has {free_bytes} left for programs")
            }
            TakeError::BeingFreed => {
                format!("{bytes} bytes asked, and what programs gave back is not free yet: ask again")
            }
        })
    }

    /// What is granted to a neighbour is granted to the life of it that has its number, or has it first.
    fn noted_who(&self, who: Who) -> Who {
        match who {
            Who::Node(number) => Who::Node(self.numbers.life_called(number)),
            Who::Anyone | Who::Program(_) => who,
        }
    }

    fn noted(&self, mut grants: Vec<Grant>) -> Vec<Grant> {
        grants.iter_mut().for_each(|grant| grant.who = self.noted_who(grant.who));
        grants
    }

    fn open_mailbox<'a>(
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
        if domain.letterbox.get().is_some() {
            return Err("this domain has a mailbox already".into());
        }
        let mailbox = Mailbox::create(messages).map_err(|error| error.to_string())?;
        let room = self.reserve(mailbox.memory_bytes() as u64)?;
        let letterbox = Letterbox { mailbox, senders, written: Mutex::new(0), _room: room };
        Ok(&domain.letterbox.get_or_init(|| letterbox).mailbox)
    }

    /// Whether a domain of that life is open, and may have memory of that size with those grants.
    fn check_allocation(bytes: u64, grants: &[Grant]) -> Result<(), String> {
        if bytes == 0 || !bytes.is_multiple_of(4096) {
            return Err(format!("{bytes} bytes are not a whole number of pages"));
        }
        if grants.len() > MAX_GRANTS {
            return Err(format!("{} grants are more than {MAX_GRANTS}", grants.len()));
        }
        Ok(())
    }

    /// Enters memory that was allocated for a domain; its address.
    fn enter(&self, domain: &ProgramDomain, segment: Segment, grants: Vec<Grant>) -> Result<u64, String> {
        let bytes = segment.memory().len() as u64;
        let mut next = self.next_address.lock();
        let address = *next;
        let after = address.checked_add(bytes).and_then(|end| end.checked_next_multiple_of(GAP_BYTES));
        let Some(after) = after.and_then(|end| end.checked_add(GAP_BYTES)) else {
            return Err("this node has no addresses left; start it again".into());
        };
        *next = after;
        drop(next);
        // A domain that was closed meanwhile has been cleared already.
        let domains = self.domains.read();
        if domains.get(&domain.number).is_none_or(|open| open.life != domain.life) {
            return Err("the domain is closed".into());
        }
        self.regions.write().insert((domain.number, address), Region { segment, grants });
        Ok(address)
    }
}

pub(crate) fn failure_of(error: TransferError) -> Failure {
    match error {
        TransferError::PeerUnreachable | TransferError::Undeliverable | TransferError::Incomplete => {
            Failure::Unreachable
        }
        TransferError::Refused(code) => Failure::Refused(code),
        TransferError::Local(code) => Failure::Local(code),
        _ => Failure::Gone,
    }
}

impl ProgramDomain {
    /// The user number of a channel's transfer.
    pub(crate) fn user(&self, slot: usize) -> u64 {
        OF_A_PROGRAM | u64::from(self.number) << 40 | u64::from(self.life) << 8 | slot as u64
    }

    /// For whom the pool works when it works for this program.
    fn owner(&self) -> Owner {
        Owner::Program(self.number, self.life)
    }

    /// For what takes descriptors of the program.
    fn process_owner(&self) -> Owner {
        let process = self.socket.peer().ok().and_then(|peer| peer.process_id);
        process.map_or_else(|| self.owner(), Owner::Process)
    }

    /// Tells the program that a transfer is over.
    pub(crate) fn end(&self, slot: usize, result: Result<u64, Failure>) {
        self.busy.fetch_and(!(1 << slot), Ordering::Relaxed);
        if self.page.tell_end(slot, result) {
            self.send_ended();
        }
    }

    /// Tells the program that a transfer was not begun.
    pub(crate) fn pause(&self, slot: usize) {
        self.busy.fetch_and(!(1 << slot), Ordering::Relaxed);
        if self.page.tell(slot, Fate::Paused) {
            self.send_ended();
        }
    }

    fn send_ended(&self) {
        // A full socket tells the program the same.
        let _ = self.socket.send(&[&encode(&Message::EndedV1)], &[]);
    }

    /// Answers the request of that number.
    fn reply(&self, number: u32, reply: Reply, descriptors: &[BorrowedFd<'_>]) -> Result<(), UnixError> {
        self.socket.send(&[&encode(&Message::AnswerV2 { number, reply })], descriptors)
    }
}

#[cfg(test)]
mod tests {
    use tombolo_channel::on_the_wire;

    use super::*;
    use crate::memory::reclaim::Reclaimer;

    /// A program dies while its transfers go on, and another opens a domain of the same number.
    #[test]
    fn transfers_of_a_closed_domain_find_nothing_in_the_next_of_its_number() {
        let programs = Programs::new(Limits::default(), crate::memory::blocking::pool()).unwrap();
        let allocate = |domain: &ProgramDomain| {
            let memory = Arc::new(ledger::allocate(4096).unwrap());
            let reclaimer = Reclaimer::new(programs.pool.clone(), domain.owner());
            let segment = Segment::new(memory, programs.reserve(4096).unwrap(), reclaimer);
            programs.enter(domain, segment, Vec::new())
        };
        let open = || {
            let (socket, _theirs) = SeqpacketSocket::pair().unwrap();
            programs.open(Some(5), socket).map_err(|(_, reason)| reason).unwrap()
        };
        let domain = on_the_wire(5);
        let old = open();
        let by_old = Poster::of(old.user(3));
        let address = allocate(&old).unwrap();
        assert!(programs.find(domain, address, 4096, by_old.reading(domain)).is_ok());
        programs.close(&old);
        let found = |address, by: Poster| programs.find(domain, address, 64, by.writing(domain)).err();
        assert_eq!(found(address, by_old), Some(NackCode::NoContext));
        let new = open();
        let by_new = Poster::of(new.user(3));
        let other = allocate(&new).unwrap();
        assert!(allocate(&old).is_err(), "memory that comes late for a closed domain");
        assert_eq!(found(address, by_old), Some(NackCode::DecodeError));
        assert_eq!((found(other, by_new), programs.memory.in_use_bytes()), (None, 4096));
        // Memory of their own is at addresses of their choice, which may be the same.
        let own = |by: Poster| programs.find_own(domain, 4096, 64, by.writing(domain)).err();
        assert_eq!((own(by_old), own(by_new)), (Some(NackCode::NoContext), Some(NackCode::DecodeError)));
    }
}
