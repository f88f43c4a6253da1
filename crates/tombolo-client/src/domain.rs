//! A program's domain at its node.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use tombolo_channel::{
    ChannelPage, Descriptor, FaultRegisters, Faults, Grant, MAX_MAIL_BYTES, PROCESS_BYTES, PeerLife,
    PeerStatus, READ_SLOTS, Reply, Request, SLOTS, Target, WRITE_SLOTS, Waiting, Who, Work, process_base,
};
use tombolo_host::life::ProcessLife;
use tombolo_host::own::{OwnMemory, Right, ThisProcess};
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::client::{BUSY_PAUSE, DEFAULT_REQUEST_TIMEOUT};
use tombolo_host::unix::{SeqpacketSocket, UnixError, UntrustedUser};
use tombolo_wire::{ATOMIC_BYTES, AtomicOperation};

use crate::asking::{Answer, Asking, TimeLimit};
use crate::channels::Channels;
use crate::error::{DeregisterError, OpenError, PostError, SendError, WaitError};
use crate::inner::{AccessEnd, Inner, Progress};
use crate::invitation::Invitation;
use crate::mailbox::Mailbox;
use crate::memory::{Memory, Registered};
use crate::own_access;
use crate::queue::Queue;
use crate::readiness::Readiness;
use crate::requests::GivenUp;
use crate::transfer::{Atomic, Spec, Transfer};

/// A protection domain of this program at its node, and the channels that go with it. All threads
/// may use it at once; a clone is the same domain. When the last clone, and the last transfer, queue and mailbox of it are
/// dropped, or the program ends, the node takes all of it back. A child made by fork cannot use it, and opens a domain of its own,
/// or joins this one ([`Domain::join`]).
#[derive(Clone, Debug)]
pub struct Domain(Arc<Inner>);

/// How a process gets into a domain.
#[derive(Clone, Copy)]
pub(crate) enum Entry {
    /// It opens one, of that number or any.
    Open(Option<u16>),
    /// It joins that of another process.
    Join(Invitation),
}

/// Numbers the domains that this process opens.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// The bits of these channels.
pub(crate) fn mask(slots: Range<usize>) -> u64 {
    slots.fold(0, |mask, slot| mask | 1 << slot)
}

/// Refuses a listener that a stranger runs: memory that is registered there is all the program's memory.
fn check_listener(
    path: &Path,
    socket: &SeqpacketSocket,
    trusted_user_id: Option<u32>,
) -> Result<(), OpenError> {
    let checked = socket.check_listener(trusted_user_id).map_err(OpenError::Lost)?;
    checked.map_err(|UntrustedUser { user_id, own_user_id }| OpenError::UntrustedNode {
        path: path.to_owned(),
        user_id,
        own_user_id,
    })
}

impl Domain {
    /// Opens a domain at the node whose socket for programs is at `path`. Other programs name the domain by its
    /// number (1 to 32767); with `None` the node chooses one.
    ///
    /// The node must run as this process's own user, or as root: memory that the program registers is
    /// reached through its whole address space.
    pub fn open(path: &Path, number: Option<u16>) -> Result<Self, OpenError> {
        Self::enter(path, Entry::Open(number), None, None)
    }

    /// As [`Domain::open`], at a node that may also run as the user of this id, who is trusted with all
    /// memory of this process.
    pub fn open_of_user(path: &Path, number: Option<u16>, user_id: u32) -> Result<Self, OpenError> {
        Self::enter(path, Entry::Open(number), Some(user_id), None)
    }

    pub(crate) fn enter(
        path: &Path,
        entry: Entry,
        trusted_user_id: Option<u32>,
        progress: Option<Progress>,
    ) -> Result<Self, OpenError> {
        let no_node = |source| match source {
            UnixError::Path { errno: Errno::MFILE | Errno::NFILE, .. } => OpenError::NoDescriptors,
            source => OpenError::NoNode { path: path.to_owned(), source },
        };
        let limit = TimeLimit::new(DEFAULT_REQUEST_TIMEOUT);
        let socket = loop {
            match SeqpacketSocket::connect(path) {
                // The queue of the listener is full: many programs connect at once.
                Err(UnixError::WouldBlock) if !limit.left().is_zero() => std::thread::sleep(BUSY_PAUSE),
                connected => break connected.map_err(no_node)?,
            }
        };
        check_listener(path, &socket, trusted_user_id)?;
        let mut asking = Asking::new();
        let request = match entry {
            Entry::Open(number) => Request::Open { domain: number },
            Entry::Join(Invitation { domain, secret }) => Request::Join { domain, secret },
        };
        // If the answer takes too long, the socket is closed, and the node closes the domain.
        let given_up = &mut || GivenUp::Nothing;
        let answer = asking.ask(&socket, request, &[], given_up, limit, &|| {})?;
        let (number, process) = match (&answer.reply, entry) {
            (Reply::Opened { domain }, Entry::Open(_)) => (*domain, 0),
            (Reply::Joined { process }, Entry::Join(invitation)) => (invitation.domain, *process),
            _ => return Err(OpenError::UnexpectedMessage),
        };
        let page = answer.descriptor()?;
        Ok(Self(Arc::new(Inner {
            number,
            base: process_base(process),
            page: ChannelPage::open(page)?,
            readiness: Readiness::of(&socket)?,
            socket,
            asking: Mutex::new(asking),
            to_free: Mutex::default(),
            request_timeout_ms: AtomicU64::new(DEFAULT_REQUEST_TIMEOUT.as_millis() as u64),
            channels: Channels::new(),
            sleepers: AtomicU32::new(0),
            poll_ns: AtomicU64::new(0),
            node_gone: AtomicBool::new(false),
            next_check_ms: AtomicU64::new(0),
            outgoing: OnceLock::new(),
            progress,
            this_process: ThisProcess::new().ok(),
            own_access: OnceLock::new(),
            held_by_helper: Mutex::default(),
            process: ProcessLife::now(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        })))
    }

    /// Among all domains that this process opens.
    pub(crate) fn serial(&self) -> u64 {
        self.0.serial
    }

    /// The domain's number.
    pub fn number(&self) -> u16 {
        self.0.number
    }

    /// Where in the domain this address of this process is, as [`Registered::address`] says it of the beginning of memory.
    /// `None`: it is above those that a process of a domain can register.
    pub fn own_address(&self, address: u64) -> Option<u64> {
        (address < PROCESS_BYTES).then_some(self.0.base + address)
    }

    /// How long the node may take to answer a request (30 s unless set): to allocate, free, register,
    /// deregister, open a mailbox, name its peers. What the node grants after that time is given back.
    pub fn set_request_timeout(&self, timeout: Duration) {
        let milliseconds = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        // At most a year: this much can be added to any point in time.
        const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;
        self.0.request_timeout_ms.store(milliseconds.min(YEAR_MS), Ordering::Relaxed);
    }

    /// Allocates zeroed memory at the node: `bytes` is a multiple of 4096, and `grants` says what others may do with
    /// it. Without grants only this domain's own transfers reach it.
    pub fn allocate(&self, bytes: usize, grants: &[Grant]) -> Result<Memory, OpenError> {
        self.allocated(Request::Allocate { bytes: bytes as u64, grants: grants.to_vec() }, bytes)
    }

    pub(crate) fn ask(&self, request: Request) -> Result<Reply, OpenError> {
        Ok(self.ask_for(request, &mut || GivenUp::Nothing)?.reply)
    }

    pub(crate) fn ask_for(
        &self,
        request: Request,
        given_up: &mut dyn FnMut() -> GivenUp,
    ) -> Result<Answer, OpenError> {
        self.0.ask(request, given_up)
    }

    /// The node frees this memory when it can be asked next.
    pub(crate) fn free_later(&self, memory: &Memory) {
        self.0.free_later(memory.address());
    }

    /// Asks for so many bytes of memory, and maps them.
    pub(crate) fn allocated(&self, request: Request, bytes: usize) -> Result<Memory, OpenError> {
        let answer = self.ask_for(request, &mut || GivenUp::Allocation)?;
        let Reply::Allocated { address } = answer.reply else { return Err(OpenError::UnexpectedMessage) };
        let opened = answer.descriptor().and_then(|descriptor| Ok(SharedMemory::open(descriptor, bytes)?));
        match opened {
            Ok(memory) => Ok(Memory::new(memory, address, self.0.serial)),
            Err(error) => {
                // The node has allocated it, and this process cannot map it.
                self.0.free_later(address);
                Err(error)
            }
        }
    }

    /// Frees memory: from now on no transfer reaches it, and one that is under way fails. If the node does not
    /// answer in time, the memory is freed when the node goes on.
    pub fn free(&self, memory: Memory) -> Result<(), OpenError> {
        let address = memory.address();
        let mut is_sent = false;
        let given_up = &mut || {
            is_sent = true;
            GivenUp::Nothing
        };
        match self.0.ask(Request::Free { address }, given_up) {
            Ok(Answer { reply: Reply::Done, .. }) => Ok(()),
            Ok(_) => Err(OpenError::UnexpectedMessage),
            Err(error) => {
                if !is_sent && matches!(error, OpenError::TimedOut(_) | OpenError::Unanswered(_)) {
                    self.0.free_later(address);
                }
                Err(error)
            }
        }
    }

    /// Makes a range of the program's own memory memory of this domain, at its own address
    /// ([`Registered::address`]), with grants as for [`Self::allocate`]. Nothing is pinned, and its pages need not be there:
    /// a transfer that meets an absent one waits until it is brought in, and no other transfer does. A transfer fails
    /// where no memory is mapped, or where the program itself could not access it so.
    ///
    /// The accesses are made by threads of this process, which are started with the first registration, and by those that wait
    /// for something of this domain. So a thread that itself brings pages of registered memory (userfaultfd, FUSE) does not
    /// wait for transfers: it might wait for itself. They survive faults by handlers of `SIGSEGV` and `SIGBUS`, installed then;
    /// a program that installs its own later calls the ones before for what it does not know.
    ///
    /// A child made by fork has this memory, but not as memory of the domain.
    pub fn register(&self, memory: OwnMemory, grants: &[Grant]) -> Result<Registered, OpenError> {
        self.register_with(memory, grants, Faults::default())
    }

    /// As [`Self::register`], with a choice of how absent pages are dealt with.
    pub fn register_with(
        &self,
        memory: OwnMemory,
        grants: &[Grant],
        faults: Faults,
    ) -> Result<Registered, OpenError> {
        let bytes = memory.len() as u64;
        let memory = Registered::new(memory, self.0.base);
        let address = memory.address();
        let request = Request::RegisterV2 { address, bytes, grants: grants.to_vec(), faults };
        let mut memory = Some(memory);
        let limit = self.0.time_limit();
        let answered = self.0.lock_asking(limit).and_then(|mut asking| {
            let access = own_access::open(&self.0, &mut asking, limit)?;
            let descriptors = match (access, memory.as_mut()) {
                (Some(access), Some(memory)) => {
                    memory.permit(&access.process);
                    Vec::new()
                }
                _ => own_access::descriptors(&self.0).map_err(OpenError::OwnMemory)?,
            };
            let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
            // The node may register the memory later: then it is deregistered, and unmapped only after that.
            let given_up = &mut || memory.take().map_or(GivenUp::Nothing, GivenUp::Registration);
            let answer = self.0.ask_with(&mut asking, request, &descriptors, given_up, limit)?;
            match (answer.reply, memory.take()) {
                (Reply::Done, Some(memory)) => {
                    asking.requests.registered(address);
                    Ok(memory)
                }
                (_, memory) => {
                    memory.into_iter().for_each(|memory| asking.requests.keep_unsettled(memory));
                    Err(OpenError::UnexpectedMessage)
                }
            }
        });
        // `given_up` did not take the memory: the request was never sent, or refused, so the node will not register it.
        drop(memory.map(Registered::take));
        answered
    }

    /// Brings pages of registered memory in before a transfer needs them, for bytes that will be read or written. Returns
    /// at once; pages that cannot be had are left out. False: no page of it is brought in, because too many ranges wait for that
    /// already, this process could not start the threads for it, or it is a child of the process that registered the memory.
    ///
    /// # Panics
    /// The range does not lie in the memory.
    #[must_use = "nobody may be bringing the pages in"]
    pub fn prefetch(&self, memory: &Registered, range: Range<usize>, right: Right) -> bool {
        assert!(range.start <= range.end && range.end <= memory.len(), "{range:?} of {} bytes", memory.len());
        let Some(Some(access)) = self.0.own_access.get() else { return false };
        let own: &OwnMemory = memory;
        access.threads.prefetch(own.address() + range.start as u64, range.len(), right)
    }

    /// Makes sure that memory whose registration failed, with [`OpenError::TimedOut`],
    /// [`OpenError::Lost`] or [`OpenError::UnexpectedMessage`], is not registered: when this returns `Ok`, no
    /// transfer touches it, and none will. An error means that the node may still register it, or has: try
    /// again. Memory that begins at another address than this one ([`OwnMemory::address`] or [`Registered::address`]) is not
    /// looked at.
    ///
    /// Memory of [`OwnMemory::map`] needs no call: it stays mapped until it is settled, which every request
    /// and every wait of the domain sees to. Memory of [`OwnMemory::from_raw`] must not be used for
    /// anything else before.
    pub fn settle(&self, address: u64) -> Result<(), OpenError> {
        let limit = self.0.time_limit();
        self.0.check_process()?;
        let mut asking = self.0.lock_asking(limit)?;
        // Of this process, or of the domain already.
        let address = self.own_address(address).unwrap_or(address);
        let settled = asking.settle(&self.0.socket, address, limit, &|| self.0.readiness.set());
        drop(asking);
        match settled {
            Err(error) if error.is_node_gone() => match self.0.end_accesses() {
                AccessEnd::Ended => Ok(()),
                AccessEnd::Hangs => Err(OpenError::AccessHangs),
            },
            settled => settled,
        }
    }

    /// Takes own memory back: when this returns, no transfer touches it. One that is under way ends
    /// first, or fails. That holds also where the node is gone. If it hangs, because the page it needs
    /// is not brought, this fails within seconds; then no new transfer reaches the memory, which stays registered:
    /// try again when the page has come.
    pub fn deregister(&self, memory: Registered) -> Result<OwnMemory, DeregisterError> {
        let address = memory.address();
        let limit = self.0.time_limit();
        let mut asking = match self.0.lock_asking(limit) {
            Ok(asking) => asking,
            Err(error) => return Err(DeregisterError { memory: memory.into(), error }),
        };
        let request = Request::Deregister { address };
        let given_up = &mut || GivenUp::Deregistration(address);
        let answered = self.0.ask_with(&mut asking, request, &[], given_up, limit);
        let is_done = matches!(answered, Ok(Answer { reply: Reply::Done, .. }));
        // A late answer to an earlier attempt may have confirmed it.
        if asking.requests.take_deregistered(address) || is_done {
            asking.requests.forget_deregistrations(address);
            return Ok(memory.take());
        }
        drop(asking);
        let error = answered.err().unwrap_or(OpenError::UnexpectedMessage);
        if error.is_node_gone() {
            // Nobody asks for accesses any more; those that were being made are to end.
            return match self.0.end_accesses() {
                AccessEnd::Ended => Ok(memory.take()),
                AccessEnd::Hangs => {
                    Err(DeregisterError { memory: memory.into(), error: OpenError::AccessHangs })
                }
            };
        }
        Err(DeregisterError { memory: memory.into(), error })
    }

    /// The nodes that transfers can go to; number 0 is the program's own.
    pub fn peers(&self) -> Result<Vec<PeerStatus>, OpenError> {
        match self.ask(Request::Peers)? {
            Reply::Peers(peers) => Ok(peers),
            _ => Err(OpenError::UnexpectedMessage),
        }
    }

    /// The fault registers of this domain (FAULT §3.2.1), which are clear then: they tell of the first access to memory that
    /// this program has registered whose page was absent, or that was not permitted, whoever made it. An absent page that comes is nothing bad;
    /// one that cannot be had, and what was not permitted, has failed a transfer.
    pub fn take_fault_registers(&self) -> Result<FaultRegisters, OpenError> {
        match self.ask(Request::TakeFaultRegisters)? {
            Reply::FaultRegisters(registers) => Ok(registers),
            _ => Err(OpenError::UnexpectedMessage),
        }
    }

    /// Which lives of nodes have which numbers.
    pub(crate) fn lives(&self) -> Result<Vec<PeerLife>, OpenError> {
        match self.ask(Request::Lives)? {
            Reply::Lives(lives) => Ok(lives),
            _ => Err(OpenError::UnexpectedMessage),
        }
    }

    /// Starts a write: from own memory to that of another domain.
    ///
    /// With a node inside this program ([`crate::Embedded`]), and eight or more transfers under way, it is
    /// sent together with the next few, and goes at the latest when the program waits for one that has not
    /// ended, polls, or asks for the status of one; if it does none of these, within some ten
    /// milliseconds. The same holds for every other kind of transfer.
    pub fn write(&self, to: Target, spec: Spec) -> Result<Transfer, PostError> {
        self.start(WRITE_SLOTS, "writes", &spec.descriptor(to))
    }

    /// Starts a read: from the memory of another domain to own memory.
    pub fn read(&self, from: Target, spec: Spec) -> Result<Transfer, PostError> {
        self.start(READ_SLOTS, "reads", &spec.descriptor(from))
    }

    /// Starts a transfer between two other domains, of any nodes; one may be own. The bytes go straight
    /// from the one to the other. The source must grant that this program (or, seen from another node,
    /// any program of this node) reads it; the destination, that it writes it.
    pub fn carry(&self, from: Target, to: Target, spec: Spec) -> Result<Transfer, PostError> {
        let descriptor = Descriptor { source: Some(from), ..spec.descriptor(to) };
        self.start(WRITE_SLOTS, "writes", &descriptor)
    }

    /// Starts adding to the word of eight bytes at an address (a multiple of eight) of another domain,
    /// or of the own one. It is carried out once, whatever the link does, and atomically with other
    /// such operations and with atomic instructions of the programs there. Overflow wraps. Its memory
    /// must be granted for reading and writing.
    pub fn fetch_add(&self, at: Target, address: u64, operand: u64) -> Result<Atomic, PostError> {
        self.change(at, address, AtomicOperation::FetchAdd(operand))
    }

    /// As [`Domain::fetch_add`]: puts `swap` there if `compare` is there.
    pub fn compare_swap(
        &self,
        at: Target,
        address: u64,
        compare: u64,
        swap: u64,
    ) -> Result<Atomic, PostError> {
        self.change(at, address, AtomicOperation::CompareSwap { compare, swap })
    }

    fn change(&self, at: Target, address: u64, operation: AtomicOperation) -> Result<Atomic, PostError> {
        let work = Work::Atomic(operation);
        let descriptor = Descriptor { work, ..Descriptor::new(0, address, ATOMIC_BYTES, at) };
        self.start(WRITE_SLOTS, "writes", &descriptor).map(Atomic::new)
    }

    /// A queue for any number of transfers: at most `capacity` whose end was not taken.
    pub fn queue(&self, capacity: usize) -> Queue {
        Queue::new(self.0.clone(), capacity)
    }

    /// Opens this domain's mailbox, with room for `messages` messages (a power of two, at most
    /// [`tombolo_channel::MAX_MAILS`]) that are not taken yet. Only `senders` can send to it. If these include
    /// [`Who::Anyone`] and `messages` is 1,024 or more, another node's waiting messages (those of all nodes with one key together)
    /// may not exceed the free places: a lone sender fills half of the mailbox. Make it twice as large as the
    /// largest burst of one sender.
    pub fn open_mailbox(&self, messages: u32, senders: &[Who]) -> Result<Mailbox, OpenError> {
        let request = Request::OpenMailbox { messages, senders: senders.to_vec() };
        let limit = self.0.time_limit();
        let mut asking = self.0.lock_asking(limit)?;
        asking.catch_up(&self.0.socket, &|| self.0.readiness.set())?;
        if asking.has_mailbox {
            return Err(OpenError::Refused("this domain has a mailbox already".into()));
        }
        let late = asking.requests.take_mailbox(messages, senders);
        let given_up = &mut || GivenUp::Mailbox(messages, senders.to_vec());
        let descriptor = match late {
            Some(descriptor) => descriptor,
            None => match self.0.ask_with(&mut asking, request, &[], given_up, limit) {
                Ok(answer) if answer.reply == Reply::Mailbox => answer.descriptor()?,
                Ok(_) => return Err(OpenError::UnexpectedMessage),
                // A late answer to an earlier attempt may have brought it.
                Err(error) => asking.requests.take_mailbox(messages, senders).ok_or(error)?,
            },
        };
        // If mapping fails, the node passes the same mailbox at the next attempt.
        let shared = tombolo_channel::Mailbox::open(descriptor, messages)?;
        asking.has_mailbox = true;
        Ok(Mailbox::new(self.0.clone(), shared))
    }

    /// Starts sending a message, of 1 to [`MAX_MAIL_BYTES`] bytes, to the mailbox of another domain. While
    /// that is full the node tries again, for some seconds; then it is refused.
    pub fn send(&self, to: Target, message: &[u8]) -> Result<Transfer, SendError> {
        if !(1..=MAX_MAIL_BYTES).contains(&message.len()) {
            return Err(SendError::Length(message.len()));
        }
        let outgoing = match self.0.outgoing.get() {
            Some(outgoing) => outgoing,
            None => {
                let made = self.allocate(SLOTS * MAX_MAIL_BYTES, &[])?;
                // Another thread may have been quicker; then this memory is freed with the domain.
                self.0.outgoing.get_or_init(|| made)
            }
        };
        self.0.check_process().map_err(|_| PostError::Forked)?;
        let slot = self.0.take(mask(WRITE_SLOTS)).ok_or(PostError::NoChannel("writes"))?;
        let place = slot * MAX_MAIL_BYTES;
        outgoing.write(place, message).map_err(OpenError::from)?;
        let source = outgoing.address() + place as u64;
        let descriptor =
            Descriptor { work: Work::Mail, ..Descriptor::new(source, 0, message.len() as u32, to) };
        Ok(self.post(slot, &descriptor))
    }

    /// Asks the node to make [`Self::as_fd`] readable when the next transfer ends. Check the
    /// transfers after this, and only then wait:
    ///
    /// ```text
    /// loop { arm; check the transfers; epoll_wait; drain }
    /// ```
    ///
    /// So no end is missed: a transfer that ended before `arm` is found by checking, one that ends after it makes
    /// the descriptor readable.
    pub fn arm(&self) {
        self.0.page.wait_by(Waiting::Message);
    }

    /// Makes the descriptor unreadable until the next armed end. Fails when the node is gone, whose
    /// descriptor is readable for ever.
    pub fn drain(&self) -> Result<(), WaitError> {
        self.0.readiness.clear();
        // Another thread asks the node: it reads the messages, and makes the descriptor readable for them.
        let Some(mut asking) = self.0.try_lock_asking() else { return Ok(()) };
        let caught_up = asking.catch_up(&self.0.socket, &|| {});
        drop(asking);
        caught_up.map_err(|_| {
            self.0.end_accesses();
            WaitError::NodeGone
        })
    }

    /// Whether this is the process that has opened it, and not a child made by fork, in which every call is refused.
    pub fn is_of_this_process(&self) -> bool {
        self.0.process.is_now()
    }

    fn start(
        &self,
        slots: Range<usize>,
        kind: &'static str,
        descriptor: &Descriptor,
    ) -> Result<Transfer, PostError> {
        self.0.check_process().map_err(|_| PostError::Forked)?;
        let slot = self.0.take(mask(slots)).ok_or(PostError::NoChannel(kind))?;
        Ok(self.post(slot, descriptor))
    }

    fn post(&self, slot: usize, descriptor: &Descriptor) -> Transfer {
        self.0.page.write(slot, descriptor);
        self.0.ring(1 << slot);
        Transfer::new(self.0.clone(), slot)
    }
}

impl AsFd for Domain {
    /// For poll or epoll: readable when a transfer has ended after [`Domain::arm`], or the node is
    /// gone. It may be readable without either.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.readiness.as_fd()
    }
}
