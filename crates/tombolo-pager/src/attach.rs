//! The reception: agents say hello here, and their end is noticed here.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tombolo_core::pager::{PAGE_BYTES, Page};
use tombolo_host::process::{self, Memory};
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::{self, Userfaultfd};
use tombolo_host::{event, family};

use crate::pager::Pager;
use crate::run_directory::RunDirectory;
use crate::space::{Agent, Program, Space};
use crate::stats::Counters;
use tombolo_pager_protocol::{ABSTRACT_NAME, CONTROL_PAGES, GATE_BYTES, Hello, VERSION, Welcome};

/// Mark the listeners' events. Other events carry the index of a space.
const LISTENERS: [u64; 2] = [u64::MAX, u64::MAX - 2];
/// Marks events of the descriptor that ends the reception.
const STOP: u64 = u64::MAX - 1;
/// Marks events of the pidfd of a space's program; added to the space's index.
const PROGRAM: u64 = 1 << 32;
/// Marks events of a socket whose agent has not said hello; added to the socket's number.
const STRANGER: u64 = 1 << 33;
/// The features without which nothing can be served.
pub const FEATURES: u64 = uffd::FEATURE_WRITE_PROTECT
    | uffd::FEATURE_EVENT_FORK
    | uffd::FEATURE_EVENT_REMAP
    | uffd::FEATURE_EVENT_REMOVE
    | uffd::FEATURE_EVENT_UNMAP
    | uffd::FEATURE_THREAD_ID
    | uffd::FEATURE_POISON;

/// A connection whose agent has not said hello yet.
struct Stranger {
    socket: OwnedFd,
    until: Instant,
}

/// The thread with the sockets to which agents connect: one with a path, and one with an abstract name for agents that
/// cannot reach the path.
pub struct Reception {
    listeners: [OwnedFd; 2],
    epoll: OwnedFd,
    stop: Arc<OwnedFd>,
    pager: Arc<Pager>,
    directory: Arc<RunDirectory>,
    /// `/dev/userfaultfd`, if this process may open it: lent to descendants without the privilege to make userfaultfds.
    device: Option<OwnedFd>,
}

/// Result of an agent's hello.
enum Heard {
    /// Its address space is served.
    Attached,
    /// The agent was lent the device, and will say hello again on this socket.
    Again(OwnedFd),
}

impl Reception {
    /// Listens in the directory of the run, and at the abstract name with this number.
    pub fn new(directory: Arc<RunDirectory>, number: u64, pager: Arc<Pager>) -> io::Result<Self> {
        let path = &directory.socket();
        let listener = bind(&net::SocketAddrUnix::new(path)?)?;
        // Programs may change their user, so every user may connect. Each connection is checked (`accept`).
        let mode = if process::may_change_user() { 0o666 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        let name = [ABSTRACT_NAME, number.to_string().as_bytes()].concat();
        let listeners = [listener, bind(&net::SocketAddrUnix::new_abstract_name(&name)?)?];
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (listener, mark) in listeners.iter().zip(LISTENERS) {
            net::listen(listener, 256)?;
            epoll::add(&epoll, listener, epoll::EventData::new_u64(mark), epoll::EventFlags::IN)?;
        }
        let stop = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?);
        epoll::add(&epoll, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let device = rustix::fs::open("/dev/userfaultfd", flags, Mode::empty()).ok();
        Ok(Self { listeners, epoll, stop, pager, directory, device })
    }

    /// An eventfd. Adding to it wakes the reception, which ends if the run is over.
    pub fn stopper(&self) -> Arc<OwnedFd> {
        self.stop.clone()
    }

    /// Receives agents until the run is over.
    pub fn run(self) {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; 16];
        let (mut swept, mut watched, mut looked) = (Instant::now(), Instant::now(), Instant::now());
        let mut look_pause = timing::MEMORY_CHECK_INTERVAL;
        let (mut strangers, mut number) = (HashMap::new(), 0u32);
        while !self.pager.stopping.load(Ordering::Relaxed) {
            let pause = event::timespec(timing::PROGRAM_CHECK_INTERVAL);
            let count = match epoll::wait(&self.epoll, &mut events[..], Some(&pause)) {
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => 0,
                // Programs would wait for their agents for ever, so the run ends, as after any panic.
                Err(errno) => panic!("the reception cannot wait for agents: {errno}"),
            };
            for event in &events[..count] {
                match event.data.u64() {
                    STOP => return,
                    mark if let Some(which) = LISTENERS.iter().position(|listener| *listener == mark) => {
                        number = number.wrapping_add(1);
                        let stranger = self.accept(&self.listeners[which], number);
                        strangers.extend(stranger.map(|stranger| (number, stranger)));
                    }
                    data if data & STRANGER != 0 => {
                        if let Some(Stranger { socket, .. }) = strangers.remove(&(data as u32)) {
                            let _ = epoll::delete(&self.epoll, &socket);
                            let again = self.receive(socket).and_then(|socket| {
                                number = number.wrapping_add(1);
                                self.expect(number, socket)
                            });
                            strangers.extend(again.map(|stranger| (number, stranger)));
                        }
                    }
                    data if data & PROGRAM != 0 => self.program_ended(data as u32),
                    index => self.hang_up(index as u32),
                }
            }
            let now = Instant::now();
            // A hello that lies unread has come in time.
            let is_late = |stranger: &Stranger| {
                let socket = stranger.socket.as_fd();
                now >= stranger.until && event::wait_readable(&[socket], Some(Duration::ZERO)) == Ok(false)
            };
            for (_, stranger) in strangers.extract_if(|_, stranger| is_late(stranger)) {
                self.refuse(Some(stranger.socket), &io::Error::other("its agent said nothing"));
            }
            if swept.elapsed() >= timing::PROGRAM_CHECK_INTERVAL {
                swept = Instant::now();
                self.sweep();
            }
            if watched.elapsed() > timing::MEMORY_CHECK_INTERVAL {
                watched = Instant::now();
                self.pager.watch_foreign_memory();
                if let Err(error) = self.directory.keep_library() {
                    let text =
                        format!("the installed library has gone, and its copy cannot be written: {error}");
                    self.pager.say_once("library", &text);
                }
            }
            if looked.elapsed() > look_pause {
                let since = Instant::now();
                self.pager.look_for_unserved();
                looked = Instant::now();
                // With very many processes a search takes long. It is then made less often, so that agents need not wait
                // for it.
                look_pause = timing::MEMORY_CHECK_INTERVAL.max(50 * since.elapsed());
            }
        }
    }

    /// Called when the program of a space has ended.
    fn program_ended(&self, index: u32) {
        let Some(space) = self.pager.space(index) else { return };
        if let Some(agent) = space.agent().or_else(|| space.retired_agent()) {
            let _ = epoll::delete(&self.epoll, &agent.program.pidfd);
        }
        self.pager.close_space(&space);
    }

    /// Called when an agent's socket has hung up: the agent has released its memory.
    fn hang_up(&self, index: u32) {
        let Some(space) = self.pager.space(index) else { return };
        let Some(agent) = space.detach() else { return };
        let _ = epoll::delete(&self.epoll, &*agent);
        let _ = epoll::delete(&self.epoll, &agent.program.pidfd);
        if self.pager.close_if_unused(&space) {
            return;
        }
        self.pager.room.set_limited(&space.account, false);
        // The pages in its staging areas stay there. Like its other pages, they do not count against the limit any more.
        space.clear_all_staged(&self.pager.room);
        // There may be room now for faults that wait for it.
        self.pager.evictor.ring();
        if !space.is_unused() {
            // Either the agent was killed, and only the evictor knows what it was doing. Or its program has ended, and
            // another process has its memory.
            self.say_without_agent(&space, || format!("its agent ended: {}", agent.end()));
        }
    }

    fn say_without_agent(&self, space: &Space, why: impl FnOnce() -> String) {
        if space.told.swap(true, Ordering::Relaxed) {
            return;
        }
        Counters::add(&self.pager.stats.counters.without_agent, 1);
        self.pager.say_once_with("agent", || {
            format!("a process has no agent ({}): its memory is served, and stays local", why())
        });
    }

    /// Closes the spaces of children that ended without an agent, and of programs that executed another one: their agent
    /// keeps the old memory.
    fn sweep(&self) {
        for space in self.pager.all_spaces() {
            match space.agent() {
                Some(agent) if !agent.serves_its_program() => self.pager.close_space(&space),
                Some(_) => {}
                None if space.has_retired_agent() || self.pager.close_if_unused(&space) => {}
                None if space.began.elapsed() > timing::AGENT_HELLO_TIMEOUT && !space.is_unused() => {
                    self.say_without_agent(&space, || "it has made none, and may be forbidden to".into());
                }
                None => {}
            }
        }
    }

    /// Accepts the next connection. Its agent mostly says hello at once. An agent without a processor delays no other.
    fn accept(&self, listener: &OwnedFd, number: u32) -> Option<Stranger> {
        let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
        let socket = match net::accept_with(listener, flags) {
            Ok(socket) => socket,
            Err(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => {
                if !self.pager.use_spare_descriptor() {
                    // The agent waits; its program goes on when there is a descriptor again.
                    std::thread::sleep(timing::ACCEPT_PAUSE);
                }
                return None;
            }
            Err(_) => return None,
        };
        if !is_ours(&socket) {
            return None;
        }
        self.expect(number, socket)
    }

    /// Watches a connection for its agent's next hello.
    fn expect(&self, number: u32, socket: OwnedFd) -> Option<Stranger> {
        let data = epoll::EventData::new_u64(STRANGER | u64::from(number));
        match epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN) {
            Ok(()) => Some(Stranger { socket, until: Instant::now() + timing::HELLO_TIMEOUT }),
            Err(errno) => {
                self.refuse(Some(socket), &errno.into());
                None
            }
        }
    }

    /// Receives an agent's hello, or its hang-up. Returns its socket if it will say hello again.
    fn receive(&self, socket: OwnedFd) -> Option<OwnedFd> {
        match self.attach(socket) {
            Ok(Heard::Attached) => {}
            Ok(Heard::Again(socket)) => return Some(socket),
            Err((_, reason)) if reason.kind() == io::ErrorKind::UnexpectedEof => {}
            Err((socket, reason)) => self.refuse(socket, &reason),
        }
        None
    }

    fn refuse(&self, socket: Option<OwnedFd>, reason: &io::Error) {
        (self.pager.notify)(&format!("a process runs without far memory: {reason}"));
        let error = reason.raw_os_error().unwrap_or(libc::EPROTO) as u32;
        if let Some(socket) = socket {
            let _ = net::send(&socket, &error.to_ne_bytes().repeat(2), SendFlags::NOSIGNAL);
        }
    }

    fn attach(&self, socket: OwnedFd) -> Result<Heard, (Option<OwnedFd>, io::Error)> {
        let (hello, descriptors, process) = match hear(&socket) {
            Ok(heard) => heard,
            Err(error) => return Err((Some(socket), error)),
        };
        if self.lend_device(&socket, &hello, &process) {
            return Ok(Heard::Again(socket));
        }
        let found = memory_of(&process)
            .and_then(|memory| Ok((memory, self.space_of(&hello, descriptors, &process)?)));
        let (memory, (space, gate, program)) = match found {
            Ok(found) => found,
            Err(error) => return Err((Some(socket), error)),
        };
        self.pager.keeper.program(&space, &program.pidfd);
        let agent = Arc::new(Agent::new(socket, process, hello.agent as u32, gate, program));
        if !agent.has_ended() {
            // The agent was made by a thread that may be bound to one processor. If it cannot be moved, only speed is lost.
            let _ = process::place_thread(agent.pid, self.pager.home.processors());
        }
        self.welcome(&space, agent, Arc::new(memory)).map_err(|error| (None, error))?;
        Ok(Heard::Attached)
    }

    /// Lends the device to an agent that needs it. A program without privileges may make a userfaultfd that also serves the
    /// kernel's accesses only by the device. Returns whether the device was lent.
    fn lend_device(&self, socket: &OwnedFd, hello: &Hello, process: &Program) -> bool {
        let is_refused = matches!(hello.error as i32, libc::EPERM | libc::EACCES);
        if hello.version != VERSION || hello.token != 0 || !is_refused {
            return false;
        }
        let Some(device) = &self.device else { return false };
        // A process of this user may open the device itself.
        let own = rustix::process::geteuid().as_raw();
        let is_other = process::peer(socket.as_fd()).is_some_and(|(_, user)| user != own);
        if !is_other
            || !family::descends_from(process.pid, std::process::id())
            || process::has_ended(&process.pidfd)
        {
            return false;
        }
        send_welcome(socket, &Welcome { error: 0, is_device: 1 }, device).is_ok()
    }

    /// The space that an agent is for: a new one, or that of a forked child.
    fn space_of(
        &self,
        hello: &Hello,
        mut descriptors: Vec<OwnedFd>,
        agent: &Program,
    ) -> io::Result<(Arc<Space>, SharedMemory, Program)> {
        if hello.version != VERSION {
            return Err(io::Error::other("its preloaded library is of another build"));
        }
        if hello.error != 0 {
            let reason = io::Error::from_raw_os_error(hello.error as i32);
            return Err(io::Error::new(
                reason.kind(),
                format!("userfaultfd: {reason} (see `tombolo doctor`)"),
            ));
        }
        let gate = descriptors.pop().ok_or_else(|| io::Error::other("its hello brought no gate"))?;
        let gate = SharedMemory::open(gate, GATE_BYTES).map_err(io::Error::other)?;
        if descriptors.is_empty() {
            return Err(io::Error::other("its hello does not name its program"));
        }
        let program = program_of(agent, &descriptors.remove(0))?;
        // The program may have executed this one just now, in the same process.
        for other in self.pager.all_spaces() {
            if other
                .agent()
                .is_some_and(|agent| agent.program.pid == program.pid && !agent.serves_its_program())
            {
                self.pager.close_space(&other);
            }
        }
        if hello.token != 0 {
            let space = self.pager.all_spaces().into_iter().find(|space| space.token == hello.token);
            let space = space.filter(|space| !space.has_agent());
            let space = space.ok_or_else(|| io::Error::other("it names a fork that is not known"))?;
            self.forget_what_was_not_inherited(&space, agent)?;
            return Ok((space, gate, program));
        }
        let descriptor =
            descriptors.pop().ok_or_else(|| io::Error::other("its hello brought no userfaultfd"))?;
        if !uffd::is_userfaultfd(descriptor.as_fd()) {
            return Err(io::Error::other("its hello brought something else for a userfaultfd"));
        }
        let uffd = Userfaultfd::from_descriptor(descriptor);
        // Other threads and processes use the descriptor, too: a handler that waits in a read would keep every program
        // waiting.
        uffd.set_nonblocking()?;
        uffd.enable(FEATURES)?;
        uffd.register(hello.control, CONTROL_PAGES as u64 * PAGE_BYTES)?;
        let token = Space::new_token()?;
        let make = |index| Ok(Space::new(index, uffd, hello, token));
        let space = self.pager.add_space(make)?;
        let filters = process::seccomp_filters(program.pid).map_or(0, |filters| filters.count);
        space.filters.store(filters, Ordering::Relaxed);
        self.pager.poll_space(&space)?;
        Ok((space, gate, program))
    }

    /// Forgets ranges that a child did not inherit (`MADV_DONTFORK`): what the child maps there need not be far, and must
    /// not be moved.
    fn forget_what_was_not_inherited(&self, space: &Arc<Space>, agent: &Program) -> io::Result<()> {
        let (mut table, mapped) = self.pager.look_at_rest(space, |_| process::mappings(agent.pid))?;
        let mut mapped = mapped.into_iter().peekable();
        if table.closed || process::has_ended(&agent.pidfd) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (first, end) in table.states.ranges_within(0, Page::MAX) {
            let mut at = first;
            while at < end {
                // Mappings that end before this page do not matter for later pages, either.
                while mapped.next_if(|mapped| mapped.end / PAGE_BYTES <= at).is_some() {}
                let (start, stop) = mapped
                    .peek()
                    .map_or((end, end), |mapped| (mapped.start / PAGE_BYTES, mapped.end / PAGE_BYTES));
                let gap_end = start.clamp(at, end);
                if gap_end > at {
                    let discarded = table.states.unmap(at, gap_end, &mut self.pager.far.slots());
                    self.pager.unreserve(space, discarded.resident);
                    self.pager.leave_frames(&mut table);
                }
                at = stop.max(gap_end).min(end);
            }
        }
        Ok(())
    }

    /// Answers an agent, with the userfaultfd of its space.
    fn welcome(&self, space: &Arc<Space>, agent: Arc<Agent>, memory: Arc<Memory>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(space.index));
        // Hang-ups are reported without being asked for.
        epoll::add(&self.epoll, &*agent, data, epoll::EventFlags::ONESHOT)?;
        let data = epoll::EventData::new_u64(u64::from(space.index) | PROGRAM);
        epoll::add(
            &self.epoll,
            &agent.program.pidfd,
            data,
            epoll::EventFlags::IN | epoll::EventFlags::ONESHOT,
        )?;
        {
            // Under the table's lock, so that no command is sent before the answer: the agent would take it for the answer.
            let table = space.lock();
            if table.closed {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            space.attach(agent.clone(), memory);
            self.pager.room.set_limited(&space.account, true);
            if let Err(error) = send_welcome(&*agent, &Welcome::default(), &space.uffd) {
                space.detach();
                self.pager.room.set_limited(&space.account, false);
                return Err(error);
            }
        }
        self.pager.shares_with_agent(space);
        Ok(())
    }
}

/// Creates a socket for agents, bound and not listening yet.
fn bind(address: &net::SocketAddrUnix) -> io::Result<OwnedFd> {
    let (kind, flags) = (net::SocketType::SEQPACKET, net::SocketFlags::CLOEXEC);
    let socket = net::socket_with(net::AddressFamily::UNIX, kind, flags, None)?;
    net::bind(&socket, address)?;
    Ok(socket)
}

/// Answers a hello, with a descriptor.
fn send_welcome(socket: impl AsFd, welcome: &Welcome, descriptor: impl AsFd) -> io::Result<()> {
    let mut answer = [0u8; size_of::<Welcome>()];
    answer[..4].copy_from_slice(&welcome.error.to_ne_bytes());
    answer[4..].copy_from_slice(&welcome.is_device.to_ne_bytes());
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    let descriptors = [descriptor.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    net::sendmsg(socket, &[io::IoSlice::new(&answer)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Whether the process that has connected may be an agent of the run: it is a process of this user, or a descendant of this
/// process. The socket takes connections of all users, since programs of the run may have changed their user.
fn is_ours(socket: &OwnedFd) -> bool {
    let Some((pid, user)) = process::peer(socket.as_fd()) else { return false };
    if user == rustix::process::geteuid().as_raw() {
        return true;
    }
    let Ok(pidfd) = process::peer_pidfd(socket.as_fd(), pid) else { return false };
    // As long as the process has not ended, no other process has its number.
    family::descends_from(pid, std::process::id()) && !process::has_ended(&pidfd)
}

/// Opens the memory of an agent, which must be unable to gain privileges (`no_new_privs`). Its pages are read by its
/// number: if it executed a set-user-id program, that program's secrets would be read.
fn memory_of(agent: &Program) -> io::Result<Memory> {
    let gains_no_privileges = process::gains_no_privileges(agent.pid);
    let memory = Memory::of(agent.pid);
    if process::has_ended(&agent.pidfd) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if !gains_no_privileges {
        return Err(io::Error::other("its agent may gain privileges (no_new_privs is not set)"));
    }
    memory
}

/// The program whose memory an agent shares. The agent has passed a pidfd of it.
fn program_of(agent: &Program, named: &OwnedFd) -> io::Result<Program> {
    let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let pid = process::pid_of(named.as_fd())?.ok_or_else(gone)?;
    let pidfd = process::pidfd(pid).map_err(|_| gone())?;
    // With the pidfd held, the number is no other process's. It is the right process if it has the agent's memory.
    match process::share_memory(agent.pid, pid) {
        _ if process::has_ended(&agent.pidfd) => Err(gone()),
        Some(true) => Ok(Program { pid, pidfd }),
        Some(false) => Err(gone()),
        None => Err(io::Error::other("the kernel does not say whose memory it has (kcmp)")),
    }
}

/// Receives an agent's hello, with its descriptors and its process.
fn hear(socket: &OwnedFd) -> io::Result<(Hello, Vec<OwnedFd>, Program)> {
    let mut bytes = [0u8; size_of::<Hello>()];
    let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut parts = [io::IoSliceMut::new(&mut bytes)];
    let received = net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    if received.bytes == 0 {
        // The agent ended, or its program executed another one, before the hello.
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if received.bytes != size_of::<Hello>() {
        return Err(io::Error::other("a malformed hello"));
    }
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let (pid, _) = process::peer(socket.as_fd())
        .ok_or_else(|| io::Error::other("its agent is of another pid namespace, and has no number here"))?;
    let word =
        |index: usize| u32::from_ne_bytes(bytes[index * 4..index * 4 + 4].try_into().unwrap_or_default());
    let long =
        |index: usize| u64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap_or_default());
    let hello = Hello {
        version: word(0),
        error: word(1),
        control: long(1),
        requests: long(2),
        token: long(3),
        agent: long(4),
    };
    let pidfd = process::peer_pidfd(socket.as_fd(), pid)?;
    Ok((hello, descriptors, Program { pid, pidfd }))
}
