//! Accepting shared-memory links.
//!
//! A connection becomes a link when it has said hello; until then it is pending, for a moment only,
//! and costs nothing but a descriptor. So silent, slow or babbling strangers do no harm to others.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::epoll;
use tombolo_host::ring::footprint_bytes;
use tombolo_host::shared::SharedMemory;
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

use super::handshake::{MESSAGE_BYTES, Malformed, Message, RING_BYTES};
use super::{DEFAULT_RING_BYTES, ShmLink, Side};
use crate::{AcceptError, Address, Link, Listener, OpenError, PROTOCOL_VERSION};

/// How long a connection may take to say hello.
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections that have not said hello; beyond, the oldest goes.
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
    ring_bytes: usize,
    pending: Mutex<Vec<Pending>>,
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
        let (admitted, pending) = (Admitted::All, Mutex::new(Vec::new()));
        Ok(Self { listener, admitted, poller, ring_bytes, pending })
    }

    /// Refuses a user who may not link, as the kernel names it.
    fn check(&self, socket: &SeqpacketSocket) -> Result<(), AcceptError> {
        if self.admitted == Admitted::All {
            return Ok(());
        }
        let user_id = socket.peer().map_err(OpenError::from)?.user_id;
        if [rustix::process::geteuid().as_raw(), 0].contains(&user_id) {
            return Ok(());
        }
        Err(AcceptError::Stranger { path: self.listener.path().to_owned(), user_id })
    }

    fn admit(&self, pending: &mut Vec<Pending>) -> Result<(), AcceptError> {
        for _ in 0..MAX_PENDING {
            let Some(socket) = self.listener.accept().map_err(OpenError::from)? else {
                break;
            };
            self.check(&socket)?;
            if pending.len() >= MAX_PENDING {
                // Closing it takes it out of the poller too.
                pending.remove(0);
            }
            let data = epoll::EventData::new_u64(1);
            epoll::add(&self.poller, &socket, data, epoll::EventFlags::IN)
                .map_err(|errno| OpenError::System { operation: "epoll", errno })?;
            pending.push(Pending { socket, deadline: Instant::now() + PATIENCE });
        }
        Ok(())
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
        let mut pending = self.pending.lock();
        self.admit(&mut pending)?;
        let now = Instant::now();
        let mut next = 0;
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
                                Ok(link) => Ok(Some(link)),
                                // It went away meanwhile.
                                Err(OpenError::Unix(UnixError::Closed)) => continue,
                                Err(error) => Err(error.into()),
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

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }

    fn address(&self) -> Address {
        Address::Shm(self.listener.path().to_owned())
    }
}
