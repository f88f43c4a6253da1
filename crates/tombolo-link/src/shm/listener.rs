//! Accepting shared-memory links.
//!
//! A connection becomes a link when it has said hello; until then it is pending, for a moment only,
//! and costs nothing but a descriptor. So strangers that are silent, slow or send too much do no harm to others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tombolo_host::event::{timespec, wait_readable};
use tombolo_host::ring::footprint_bytes;
use tombolo_host::shared::{SharedMemory, SharedMemoryError};
use tombolo_host::timing::link::{SHM_ACCEPT_BACK_OFF, SHM_INTRODUCTION_TIMEOUT};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

use super::handshake::{MESSAGE_BYTES, Malformed, Message, RING_BYTES};
use super::{DEFAULT_RING_BYTES, ShmLink, Side};
use crate::{AcceptError, Address, Link, Listener, OpenError, PROTOCOL_VERSION};

/// The most connections that have not said hello. When one more comes, the oldest that says nothing is closed;
/// those whose hello is here are read first, and the others wait in the kernel.
const MAX_PENDING: usize = 64;

#[derive(Debug)]
struct Pending {
    socket: SeqpacketSocket,
    deadline: Instant,
}

/// Who may link, of those whom the permissions of the path let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admitted {
    All,
    /// The user whose process this is, and root.
    OwnUserAndRoot,
}

/// Waits for shared-memory links at a path.
#[derive(Debug)]
pub struct ShmListener {
    listener: SeqpacketListener,
    admitted: Admitted,
    /// Readable when the listener or a pending connection is.
    poller: OwnedFd,
    /// Ends a back-off; it is in the poller.
    timer: OwnedFd,
    ring_bytes: usize,
    newcomers: Mutex<Newcomers>,
}

#[derive(Debug, Default)]
struct Newcomers {
    pending: Vec<Pending>,
    /// No descriptors were left: until the timer ends nobody is let in, and the listener is not in the
    /// poller, since it stays readable.
    backs_off: bool,
    /// The lack of descriptors has been reported.
    told_of_descriptors: bool,
    /// Who was refused last, and is to be reported.
    refused: Option<AcceptError>,
}

impl Newcomers {
    /// Closes the oldest connection that says nothing, if another one waits. False: nobody has to wait for a
    /// place, or all of them have something to read.
    fn make_room(&mut self, listener: &SeqpacketListener) -> bool {
        let is_readable = |fd| wait_readable(&[fd], Some(Duration::ZERO)).unwrap_or(true);
        if !is_readable(listener.as_fd()) {
            return false;
        }
        let silent = self.pending.iter().position(|pending| !is_readable(pending.socket.as_fd()));
        // Closing it takes it out of the poller too.
        silent.map(|index| drop(self.pending.remove(index))).is_some()
    }

    /// The error to report, if any: a lack of descriptors is reported once.
    fn say(&mut self, error: OpenError) -> Option<OpenError> {
        let error = match error {
            OpenError::Unix(UnixError::NoDescriptors { errno })
            | OpenError::Memory(SharedMemoryError::System {
                errno: errno @ (Errno::MFILE | Errno::NFILE),
                ..
            }) => OpenError::NoDescriptors { errno },
            other => return Some(other),
        };
        (!std::mem::replace(&mut self.told_of_descriptors, true)).then_some(error)
    }
}

impl ShmListener {
    /// Listens at a path; replaces a socket file that nobody listens at any more.
    pub fn bind(path: &Path) -> Result<Self, OpenError> {
        Self::bind_with_rings(path, DEFAULT_RING_BYTES)
    }

    /// Listens for processes of this process's own user and of root alone, whatever becomes of the permissions
    /// of the path.
    pub fn bind_for_own_user(path: &Path) -> Result<Self, OpenError> {
        let listener = Self::bind_with_rings(path, DEFAULT_RING_BYTES)?;
        Ok(Self { admitted: Admitted::OwnUserAndRoot, ..listener })
    }

    /// Listens, and gives its links rings of this size: a power of two from 64 KiB to 256 MiB.
    pub fn bind_with_rings(path: &Path, ring_bytes: usize) -> Result<Self, OpenError> {
        if !ring_bytes.is_power_of_two() || !RING_BYTES.contains(&ring_bytes) {
            return Err(tombolo_host::ring::RingError::Capacity(ring_bytes).into());
        }
        let listener = SeqpacketListener::bind(path).map_err(|error| match error {
            UnixError::InUse { path } => OpenError::InUse(Address::Shm(path)),
            other => other.into(),
        })?;
        let system = |errno| OpenError::System { operation: "epoll", errno };
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?;
        epoll::add(&poller, &listener, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(system)?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(system)?;
        epoll::add(&poller, &timer, epoll::EventData::new_u64(2), epoll::EventFlags::IN).map_err(system)?;
        let (admitted, newcomers) = (Admitted::All, Mutex::default());
        Ok(Self { listener, admitted, poller, timer, ring_bytes, newcomers })
    }

    /// Refuses a user who may not link, as the kernel names it.
    fn check(&self, socket: &SeqpacketSocket) -> Result<(), AcceptError> {
        if self.admitted == Admitted::All {
            return Ok(());
        }
        let peer = socket.peer().map_err(OpenError::from)?;
        if peer.is_own_or_root() {
            return Ok(());
        }
        Err(AcceptError::Stranger { path: self.listener.path().to_owned(), user_id: peer.user_id })
    }

    fn admit(&self, newcomers: &mut Newcomers) -> Result<(), AcceptError> {
        let system = |errno| OpenError::System { operation: "epoll", errno };
        if newcomers.backs_off {
            if rustix::io::read(&self.timer, &mut [0_u8; 8]).is_err() {
                return Ok(());
            }
            epoll::add(&self.poller, &self.listener, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(system)?;
            newcomers.backs_off = false;
        }
        for _ in 0..MAX_PENDING {
            if newcomers.pending.len() >= MAX_PENDING && !newcomers.make_room(&self.listener) {
                break;
            }
            let accepted = self.listener.accept().inspect_err(|error| {
                if matches!(error, UnixError::NoDescriptors { .. }) && self.begin_back_off().is_ok() {
                    newcomers.backs_off = true;
                }
            });
            let Some(socket) = accepted.map_err(OpenError::from)? else { break };
            self.check(&socket)?;
            let data = epoll::EventData::new_u64(1);
            epoll::add(&self.poller, &socket, data, epoll::EventFlags::IN).map_err(system)?;
            newcomers.pending.push(Pending { socket, deadline: Instant::now() + SHM_INTRODUCTION_TIMEOUT });
        }
        Ok(())
    }

    fn begin_back_off(&self) -> Result<(), Errno> {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timer = Itimerspec { it_interval: zero, it_value: timespec(SHM_ACCEPT_BACK_OFF) };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        epoll::delete(&self.poller, &self.listener)
    }

    /// Hears who is pending, and links the first that said hello.
    fn look(&self, newcomers: &mut Newcomers) -> Result<Option<Arc<dyn Link>>, AcceptError> {
        let now = Instant::now();
        let mut next = 0;
        let Newcomers { pending, .. } = &mut *newcomers;
        while next < pending.len() {
            let mut buffer = [0; MESSAGE_BYTES];
            match pending[next].socket.receive(&mut buffer) {
                Err(UnixError::WouldBlock) if now < pending[next].deadline => next += 1,
                Err(_) => {
                    pending.remove(next);
                }
                Ok(received) => {
                    let socket = pending.remove(next).socket;
                    // Descriptors that came along are closed with `received`.
                    match Message::decode(&buffer[..received.length_bytes]) {
                        Ok(Message::Hello) => {
                            let _ = epoll::delete(&self.poller, &socket);
                            return match self.welcome(socket) {
                                Ok(link) => {
                                    newcomers.told_of_descriptors = false;
                                    Ok(Some(link))
                                }
                                // It went away meanwhile.
                                Err(OpenError::Unix(UnixError::Closed)) => continue,
                                Err(error) => {
                                    newcomers.say(error).map_or(Ok(None), |error| Err(error.into()))
                                }
                            };
                        }
                        Err(Malformed::Version(theirs)) => {
                            let _ = socket.send(&[&Message::Reject.encode()], &[]);
                            let ours = PROTOCOL_VERSION;
                            return Err(AcceptError::VersionMismatch { ours, theirs });
                        }
                        Ok(_) | Err(Malformed::Garbage) => {}
                    }
                }
            }
        }
        Ok(None)
    }

    fn welcome(&self, socket: SeqpacketSocket) -> Result<Arc<dyn Link>, OpenError> {
        let memory_bytes = 2 * footprint_bytes(self.ring_bytes);
        let memory = SharedMemory::create("tombolo-link", memory_bytes)?;
        let message = Message::Welcome { ring_bytes: self.ring_bytes as u64 };
        socket.send(&[&message.encode()], &[memory.as_fd()])?;
        Ok(Arc::new(ShmLink::new(socket, memory, self.ring_bytes, Side::Listener)?))
    }
}

impl Listener for ShmListener {
    fn accept(&self) -> Result<Option<Arc<dyn Link>>, AcceptError> {
        let mut newcomers = self.newcomers.lock();
        match self.admit(&mut newcomers) {
            Ok(()) => {}
            Err(AcceptError::Open(error)) => {
                if let Some(error) = newcomers.say(error) {
                    return Err(error.into());
                }
            }
            // Who is refused keeps nobody waiting who came before.
            Err(refused) => newcomers.refused = Some(refused),
        }
        match self.look(&mut newcomers)? {
            Some(link) => Ok(Some(link)),
            None => newcomers.refused.take().map_or(Ok(None), Err),
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn address(&self) -> Address {
        Address::Shm(self.listener.path().to_owned())
    }
}
