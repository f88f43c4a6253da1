//! Where agents say hello and where their end is noticed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::epoll;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use tombolo_host::uffd::{self, PAGE_BYTES, UffdError, Userfaultfd};

use crate::pager::Pager;
use crate::protocol::{Hello, VERSION, Welcome};
use crate::space::Space;

const LISTENER: u64 = u64::MAX;
/// How often spaces without an agent are looked after.
const SWEEP: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// The features without which nothing can be served.
pub const FEATURES: u64 =
    uffd::FEATURE_WRITE_PROTECT | uffd::FEATURE_EVENT_FORK | uffd::FEATURE_THREAD_ID | uffd::FEATURE_POISON;

/// The socket that agents connect to.
pub struct Reception {
    listener: OwnedFd,
    epoll: OwnedFd,
    pager: Arc<Pager>,
}

impl Reception {
    /// Listens at `path`.
    pub fn new(path: &Path, pager: Arc<Pager>) -> io::Result<Self> {
        let listener = net::socket_with(
            net::AddressFamily::UNIX,
            net::SocketType::SEQPACKET,
            net::SocketFlags::CLOEXEC,
            None,
        )?;
        net::bind(&listener, &net::SocketAddrUnix::new(path)?)?;
        net::listen(&listener, 256)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
        Ok(Self { listener, epoll, pager })
    }

    /// Receives agents until the run is over.
    pub fn run(self) {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; 16];
        while !self.pager.stopping.load(Ordering::Relaxed) {
            let count = epoll::wait(&self.epoll, &mut events[..], Some(&SWEEP)).unwrap_or(0);
            for event in &events[..count] {
                match event.data.u64() {
                    LISTENER => self.receive(),
                    index => self.hang_up(index as u32),
                }
            }
            self.sweep();
        }
    }

    /// The agent's socket has hung up: its address space has ended.
    fn hang_up(&self, index: u32) {
        let Some(space) = self.pager.space(index) else { return };
        self.pager.close_space(&space);
        if let Some(socket) = space.agent.lock().take() {
            let _ = epoll::delete(&self.epoll, &*socket);
        }
    }

    /// Children that ended, or executed another program, before their agent said hello.
    fn sweep(&self) {
        for space in self.pager.all_spaces() {
            let attached = space.has_agent.load(Ordering::Relaxed);
            // Protecting the doorbell page, which is absent, changes nothing.
            if !attached
                && matches!(space.uffd.write_protect(space.arena, PAGE_BYTES, true), Err(UffdError::Gone))
            {
                self.pager.close_space(&space);
            }
        }
    }

    fn receive(&self) {
        let Ok(socket) = net::accept_with(&self.listener, net::SocketFlags::CLOEXEC) else { return };
        // An agent speaks at once; whoever does not must not keep the others waiting.
        let _ = net::sockopt::set_socket_timeout(
            &socket,
            net::sockopt::Timeout::Recv,
            Some(Duration::from_millis(500)),
        );
        let attached = self.attach(&socket);
        let error = match &attached {
            Ok(_) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EPROTO) as u32,
        };
        match attached {
            Ok(space) => {
                let _ = net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Recv, None);
                // An agent that is gone already: the sweep finds its space, or another agent comes for it.
                if self.welcome(&space, socket).is_err() {
                    *space.agent.lock() = None;
                }
            }
            Err(reason) if reason.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(reason) => {
                (self.pager.notify)(&format!("a process runs without far memory: {reason}"));
                let _ = net::send(&socket, &error.to_ne_bytes().repeat(2), SendFlags::NOSIGNAL);
            }
        }
    }

    fn attach(&self, socket: &OwnedFd) -> io::Result<Arc<Space>> {
        let mut bytes = [0u8; size_of::<Hello>()];
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let mut parts = [io::IoSliceMut::new(&mut bytes)];
        let received = net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.bytes == 0 {
            // It ended, or executed another program, before it said hello.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.bytes != size_of::<Hello>() {
            return Err(io::Error::other("a malformed hello"));
        }
        let descriptor = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let pid = net::sockopt::socket_peercred(socket)?.pid.as_raw_nonzero().get() as u32;
        let word =
            |index: usize| u32::from_ne_bytes(bytes[index * 4..index * 4 + 4].try_into().unwrap_or_default());
        let long =
            |index: usize| u64::from_ne_bytes(bytes[index * 8..index * 8 + 8].try_into().unwrap_or_default());
        let hello = Hello {
            version: word(0),
            error: word(1),
            arena: long(1),
            arena_bytes: long(2),
            request: long(3),
            token: long(4),
            thread: long(5),
        };
        if hello.version != VERSION {
            return Err(io::Error::other("its preloaded library is of another build"));
        }
        if hello.token != 0 {
            let space = u32::try_from(hello.token - 1).ok().and_then(|index| self.pager.space(index));
            let space = space.filter(|space| !space.has_agent.load(Ordering::Relaxed));
            let space = space.ok_or_else(|| io::Error::other("it names a fork that is not known"))?;
            space.attached(pid, hello.thread as u32);
            return Ok(space);
        }
        if hello.error != 0 {
            let reason = io::Error::from_raw_os_error(hello.error as i32);
            return Err(io::Error::new(
                reason.kind(),
                format!("userfaultfd: {reason} (see `tombolo doctor`)"),
            ));
        }
        let descriptor = descriptor.ok_or_else(|| io::Error::other("its hello brought no userfaultfd"))?;
        let uffd = Userfaultfd::from_descriptor(descriptor);
        uffd.enable(FEATURES)?;
        uffd.register(hello.arena, hello.arena_bytes)?;
        let made = self
            .pager
            .add_space(|index| Space::new(index, pid, uffd, hello.arena, hello.arena_bytes, hello.request))?;
        made.attached(pid, hello.thread as u32);
        Ok(made)
    }

    /// Answers an agent; a forked child's gets its userfaultfd to hold.
    fn welcome(&self, space: &Arc<Space>, socket: OwnedFd) -> io::Result<()> {
        let socket = Arc::new(socket);
        let data = epoll::EventData::new_u64(u64::from(space.index));
        // Hang-ups are reported without being asked for.
        epoll::add(&self.epoll, &*socket, data, epoll::EventFlags::empty())?;
        *space.agent.lock() = Some(socket.clone());
        let answer = [0u8; size_of::<Welcome>()];
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let descriptors = [space.uffd.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        net::sendmsg(&*socket, &[io::IoSlice::new(&answer)], &mut control, SendFlags::NOSIGNAL)?;
        space.has_agent.store(true, Ordering::Release);
        Ok(())
    }
}
