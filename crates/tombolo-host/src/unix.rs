//! Unix SEQPACKET sockets: whole messages, in order, with descriptors, between local processes.
//!
//! The kernel says who the peer is ([`SeqpacketSocket::peer`]) and tells at once when it is gone,
//! which makes such a socket the life line of a shared-memory link. Every call is non-blocking;
//! a message that does not fit the caller's buffer or carries too many descriptors is an error, and
//! no descriptor leaks. Nor does any call wait for what is behind a descriptor that a peer passed: those
//! are closed elsewhere ([`PassedDescriptor`]), also when they are still in a socket that is dropped.
//!
//! A listener for processes of all users takes no descriptors of them until it lets them in
//! ([`SeqpacketSocket::let_in`]): what is behind those of somebody who is turned away would have to be closed.
//!
//! A listener that has no descriptor left for who connects uses one that it keeps in reserve to hang up on
//! them: otherwise its socket would stay readable, and a thread that polls it would never sleep.

use std::io::{IoSlice, IoSliceMut};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::passed::{self, PassedDescriptor};
use crate::timing::host::{BIND_LOCK_INTERVAL, BIND_LOCK_TIMEOUT};

/// The most descriptors one message carries.
pub const MAX_DESCRIPTORS: usize = 8;
/// The most that the kernel lets a message carry: all are taken, since the kernel would close the others
/// within our call.
const MAX_KERNEL_DESCRIPTORS: usize = 253;

/// Why a Unix socket operation failed.
#[derive(Debug, thiserror::Error)]
pub enum UnixError {
    /// Someone listens at the path already.
    #[error("another process listens at {}", path.display())]
    InUse {
        /// The path asked for.
        path: PathBuf,
    },
    /// The path names a file that is no socket; it is left alone.
    #[error("{} exists and is not a socket", path.display())]
    NotASocket {
        /// The path asked for.
        path: PathBuf,
    },
    /// A system call failed at a path.
    #[error("{operation} {}: {errno}", path.display())]
    Path {
        /// What was being done.
        operation: &'static str,
        /// The path asked for.
        path: PathBuf,
        /// What the kernel answered.
        errno: Errno,
    },
    /// The socket cannot take or give anything now.
    #[error("the socket would block")]
    WouldBlock,
    /// The peer takes no descriptors, or not yet: nothing was sent.
    #[error("the peer takes no file descriptors")]
    TakesNone,
    /// The peer has closed, or is dead.
    #[error("the peer has hung up")]
    Closed,
    /// No descriptors are left, of this process or of the system; who has connected was hung up on, if even
    /// that was possible.
    #[error("nobody more can connect, there are no file descriptors left ({errno}): raise `ulimit -n`")]
    NoDescriptors {
        /// What the kernel answered.
        errno: Errno,
    },
    /// The peer has passed descriptors that take long to close, and passes more.
    #[error("the peer passes file descriptors faster than they can be closed")]
    Overdue,
    /// The message was longer than the buffer, or had more descriptors than [`MAX_DESCRIPTORS`].
    #[error("the peer's message is too long or carries too many descriptors")]
    Truncated,
    /// The message came, `length_bytes` of it in the buffer, but without its descriptors: none were left for
    /// them in this process, and the kernel closed them.
    #[error("no file descriptors are left for those that the peer passes: raise `ulimit -n`")]
    DescriptorsCut {
        /// How many bytes of the buffer the message filled.
        length_bytes: usize,
    },
    /// A system call failed.
    #[error("{operation}: {errno}")]
    System {
        /// What was being done.
        operation: &'static str,
        /// What the kernel answered.
        errno: Errno,
    },
}

fn at<'a>(operation: &'static str, path: &'a Path) -> impl Fn(Errno) -> UnixError + 'a {
    move |errno| UnixError::Path { operation, path: path.to_owned(), errno }
}

/// The process at the other end, as the kernel saw it when the connection was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerIdentity {
    /// Its process, or None when it is in a process namespace we do not see.
    pub process_id: Option<u32>,
    /// Its user.
    pub user_id: u32,
}

impl PeerIdentity {
    /// Whether it is a process of this one's user, or of root.
    #[must_use]
    pub fn is_own_or_root(&self) -> bool {
        [rustix::process::geteuid().as_raw(), 0].contains(&self.user_id)
    }
}

/// Opens any file, to have a descriptor in reserve.
fn reserve_descriptor() -> Option<OwnedFd> {
    rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// `SO_PASSRIGHTS` of the kernel's `asm-generic/socket.h`. Accepted sockets have it as their listener has.
const PASS_RIGHTS: libc::c_int = 83;

/// Says whether descriptors can be passed to a socket. False: this kernel cannot be told.
fn set_takes_descriptors(socket: BorrowedFd<'_>, takes: bool) -> Result<bool, UnixError> {
    let value = libc::c_int::from(takes);
    let length = size_of_val(&value) as libc::socklen_t;
    let (socket, value) = (socket.as_raw_fd(), (&raw const value).cast());
    // SAFETY: the kernel reads so many bytes of the value.
    if unsafe { libc::setsockopt(socket, libc::SOL_SOCKET, PASS_RIGHTS, value, length) } == 0 {
        return Ok(true);
    }
    match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL) {
        Errno::NOPROTOOPT => Ok(false),
        errno => Err(UnixError::System { operation: "keep descriptors away", errno }),
    }
}

fn new_socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// A listening socket at a path, which it removes when dropped.
#[derive(Debug)]
struct Listener {
    descriptor: OwnedFd,
    path: PathBuf,
    /// Device and inode of our socket file: a file that replaced it is not ours to remove.
    file: (u64, u64),
    /// A descriptor in reserve: closed for a moment when none are left, so that a connection can be accepted and
    /// hung up on.
    reserve: Mutex<Option<OwnedFd>>,
    /// Who connects passes no descriptors before they are let in.
    keeps_descriptors_away: AtomicBool,
}

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

impl Listener {
    fn bind(path: &Path, kind: SocketType) -> Result<Self, UnixError> {
        let address = SocketAddrUnix::new(path).map_err(at("cannot listen at", path))?;
        // Two processes that both find a stale file must not remove each other's new one.
        let _lock = lock_directory(path);
        let descriptor = new_socket(kind).map_err(at("cannot listen at", path))?;
        match rustix::net::bind(&descriptor, &address) {
            Ok(()) => {}
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, &address, kind)?;
                rustix::net::bind(&descriptor, &address).map_err(at("cannot listen at", path))?;
            }
            Err(errno) => return Err(at("cannot listen at", path)(errno)),
        }
        // Nobody can connect before `listen`, so the mode is right from the first connection on.
        rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(at("cannot restrict", path))?;
        let status = rustix::fs::lstat(path).map_err(at("cannot inspect", path))?;
        rustix::net::listen(&descriptor, BACKLOG).map_err(at("cannot listen at", path))?;
        let reserve = Mutex::new(reserve_descriptor());
        let (file, keeps_descriptors_away) = ((status.st_dev, status.st_ino), AtomicBool::new(false));
        Ok(Self { descriptor, path: path.to_owned(), file, reserve, keeps_descriptors_away })
    }

    /// The next connection, or None when nobody is waiting. `close` closes one that is hung up on.
    fn accept(&self, close: impl FnOnce(OwnedFd)) -> Result<Option<OwnedFd>, UnixError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(&self.descriptor, flags) {
            Ok(descriptor) => Ok(Some(descriptor)),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(errno @ (Errno::MFILE | Errno::NFILE)) => {
                self.hang_up(close);
                Err(UnixError::NoDescriptors { errno })
            }
            Err(errno) => Err(UnixError::System { operation: "accept", errno }),
        }
    }

    /// Accepts the first connection in the queue with the descriptor in reserve, and closes it.
    fn hang_up(&self, close: impl FnOnce(OwnedFd)) {
        let mut reserve = self.reserve.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reserve.take());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let _ = rustix::net::accept_with(&self.descriptor, flags).map(close);
        // If another thread has taken the number meanwhile, the next call takes a new reserve.
        *reserve = reserve_descriptor();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _lock = lock_directory(&self.path);
        if let Ok(status) = rustix::fs::lstat(&self.path)
            && (status.st_dev, status.st_ino) == self.file
        {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// A listening socket of whole messages at a path, which it removes when dropped.
#[derive(Debug)]
pub struct SeqpacketListener(Listener);

/// What [`remove_dead`] has found at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Somebody listens there, as far as can be said.
    MayLive,
    /// Nobody did: it is removed.
    Removed,
    /// There is no socket (any more).
    Absent,
}

/// Removes the socket of whole messages at a path if nobody listens there any more.
///
/// # Errors
/// It cannot be removed, or is no socket.
pub fn remove_dead(path: &Path) -> Result<Life, UnixError> {
    let address = SocketAddrUnix::new(path).map_err(at("cannot name", path))?;
    let probe = new_socket(SocketType::SEQPACKET).map_err(at("cannot probe", path))?;
    match rustix::net::connect(&probe, &address) {
        Err(Errno::CONNREFUSED) => {}
        Err(Errno::NOENT) => return Ok(Life::Absent),
        _ => return Ok(Life::MayLive),
    }
    // Who binds it meanwhile has the lock; without that, the file may be a new one by now.
    let Some(_lock) = lock_directory(path) else { return Ok(Life::MayLive) };
    match remove_stale(path, &address, SocketType::SEQPACKET) {
        Ok(()) => Ok(Life::Removed),
        Err(UnixError::InUse { .. }) => Ok(Life::MayLive),
        Err(UnixError::Path { errno: Errno::NOENT, .. }) => Ok(Life::Absent),
        Err(error) => Err(error),
    }
}

impl SeqpacketListener {
    /// Listens at a path, for processes of the same user.
    ///
    /// A socket file that nobody listens at any more is replaced; a live one is
    /// [`UnixError::InUse`].
    pub fn bind(path: &Path) -> Result<Self, UnixError> {
        Listener::bind(path, SocketType::SEQPACKET).map(Self)
    }

    /// Lets processes of all users connect: who they are is to be asked of each connection. They pass no descriptors
    /// before [`SeqpacketSocket::let_in`].
    ///
    /// False: this kernel has no way to say that (Linux 6.16 has), and only the same user connects, as before.
    pub fn let_all_connect(&self) -> Result<bool, UnixError> {
        let path = &self.0.path;
        if !set_takes_descriptors(self.as_fd(), false)? {
            return Ok(false);
        }
        self.0.keeps_descriptors_away.store(true, Ordering::Relaxed);
        rustix::fs::chmod(path, Mode::from_raw_mode(0o666)).map_err(at("cannot open to all", path))?;
        Ok(true)
    }

    /// Lets processes of all users connect, who may pass descriptors with their first message: what they pass is closed by other
    /// threads, whatever becomes of the connection.
    pub fn let_all_connect_and_pass(&self) -> Result<(), UnixError> {
        let path = &self.0.path;
        rustix::fs::chmod(path, Mode::from_raw_mode(0o666)).map_err(at("cannot open to all", path))
    }

    /// The next connection, or None when nobody is waiting.
    pub fn accept(&self) -> Result<Option<SeqpacketSocket>, UnixError> {
        let may_hold_descriptors = !self.0.keeps_descriptors_away.load(Ordering::Relaxed);
        let accepted = |descriptor| SeqpacketSocket::new(descriptor, may_hold_descriptors);
        Ok(self.0.accept(|descriptor| drop(accepted(descriptor)))?.map(accepted))
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

impl AsFd for SeqpacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

/// A listening socket of streams of bytes at a path, which it removes when dropped.
#[derive(Debug)]
pub struct StreamListener(Listener);

impl StreamListener {
    /// As [`SeqpacketListener::bind`].
    pub fn bind(path: &Path) -> Result<Self, UnixError> {
        Listener::bind(path, SocketType::STREAM).map(Self)
    }

    /// The next connection, whose reads and writes do not wait, or None when nobody is waiting.
    pub fn accept(&self) -> Result<Option<OwnedFd>, UnixError> {
        self.0.accept(drop)
    }
}

impl AsFd for StreamListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.descriptor.as_fd()
    }
}

/// Holds the directory of a socket path for the moment of binding or removing.
///
/// None when that is not possible in time: then the operation goes on without, since a stranger's
/// lock on a public directory must not stop us, and the race it guards against is narrow.
fn lock_directory(path: &Path) -> Option<OwnedFd> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let descriptor = rustix::fs::open(directory, flags, Mode::empty()).ok()?;
    let deadline = Instant::now() + BIND_LOCK_TIMEOUT;
    while rustix::fs::flock(&descriptor, FlockOperation::NonBlockingLockExclusive).is_err() {
        if Instant::now() >= deadline {
            return None;
        }
        std::thread::sleep(BIND_LOCK_INTERVAL);
    }
    Some(descriptor)
}

fn remove_stale(path: &Path, address: &SocketAddrUnix, kind: SocketType) -> Result<(), UnixError> {
    let status = rustix::fs::lstat(path).map_err(at("cannot inspect", path))?;
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        return Err(UnixError::NotASocket { path: path.to_owned() });
    }
    let probe = new_socket(kind).map_err(at("cannot probe", path))?;
    match rustix::net::connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            rustix::fs::unlink(path).map_err(at("cannot replace the stale socket", path))
        }
        // Connected, its queue is full, or it is a socket of another type: someone is there.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(UnixError::InUse { path: path.to_owned() }),
        Err(errno) => Err(at("cannot probe", path)(errno)),
    }
}

/// One received message.
#[derive(Debug, Default)]
pub struct Received {
    /// How many bytes of the buffer it filled.
    pub length_bytes: usize,
    /// The descriptors that came with it, closed on exec.
    pub descriptors: Vec<PassedDescriptor>,
}

/// One end of a connection.
#[derive(Debug)]
pub struct SeqpacketSocket {
    descriptor: ManuallyDrop<OwnedFd>,
    /// It was accepted, so the process at the other end may be any that the socket's file lets in; and that process may
    /// have passed descriptors here which nobody has taken out.
    may_hold_descriptors: AtomicBool,
    /// The sender of the descriptors that are received here, once it was asked for.
    sender: OnceLock<passed::Sender>,
}

/// A listener runs as a user who is not to be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("who listens there is user {user_id}, neither this one ({own_user_id}) nor root")]
pub struct UntrustedUser {
    /// Who that is.
    pub user_id: u32,
    /// The user of this process.
    pub own_user_id: u32,
}

impl SeqpacketSocket {
    /// Connects to the listener at a path; does not wait.
    ///
    /// [`UnixError::WouldBlock`] means that the listener's queue is full: try again.
    pub fn connect(path: &Path) -> Result<Self, UnixError> {
        let address = SocketAddrUnix::new(path).map_err(at("cannot connect to", path))?;
        let descriptor = new_socket(SocketType::SEQPACKET).map_err(at("cannot connect to", path))?;
        match rustix::net::connect(&descriptor, &address) {
            Ok(()) => Ok(Self::from_descriptor(descriptor)),
            Err(Errno::AGAIN) => Err(UnixError::WouldBlock),
            Err(errno) => Err(at("cannot connect to", path)(errno)),
        }
    }

    /// Whether the peer has messages in the socket that it has not read.
    pub fn is_unread(&self) -> Result<bool, UnixError> {
        let mut bytes: libc::c_int = 0;
        // SAFETY: an integer for the kernel to write.
        let asked = unsafe { libc::ioctl(self.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
        match asked {
            0 => Ok(bytes > 0),
            _ => Err(UnixError::System {
                operation: "ioctl(SIOCOUTQ)",
                errno: Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO),
            }),
        }
    }

    /// Two ends of one connection.
    pub fn pair() -> Result<(Self, Self), UnixError> {
        let (one, other) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )
        .map_err(|errno| UnixError::System { operation: "socketpair", errno })?;
        Ok((Self::from_descriptor(one), Self::from_descriptor(other)))
    }

    /// A connected socket received from elsewhere.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self::new(descriptor, false)
    }

    fn new(descriptor: OwnedFd, may_hold_descriptors: bool) -> Self {
        let (descriptor, may_hold) = (ManuallyDrop::new(descriptor), AtomicBool::new(may_hold_descriptors));
        Self { descriptor, may_hold_descriptors: may_hold, sender: OnceLock::new() }
    }

    /// Sends one whole message, gathered from parts, or nothing at all.
    ///
    /// An empty message could not be told from the end of the connection; send at least one byte.
    pub fn send(&self, parts: &[&[u8]], descriptors: &[BorrowedFd<'_>]) -> Result<(), UnixError> {
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(UnixError::System { operation: "send", errno: Errno::TOOMANYREFS });
        }
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match rustix::net::sendmsg(&*self.descriptor, &slices, &mut ancillary, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // Too many descriptors in flight passes when the peer takes some.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS) => {
                    return Err(UnixError::WouldBlock);
                }
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => {
                    return Err(UnixError::Closed);
                }
                Err(Errno::PERM) if !descriptors.is_empty() => return Err(UnixError::TakesNone),
                Err(errno) => {
                    return Err(UnixError::System { operation: "send", errno });
                }
            }
        }
    }

    /// Ends the connection for both sides. Messages that have arrived can still be read.
    pub fn hang_up(&self) {
        let _ = rustix::net::shutdown(&*self.descriptor, Shutdown::Both);
    }

    /// Takes the next message, if there is one.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received, UnixError> {
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(MAX_KERNEL_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut resets = 0;
        let message = loop {
            let mut slices = [IoSliceMut::new(buffer)];
            match rustix::net::recvmsg(&*self.descriptor, &mut slices, &mut ancillary, flags) {
                Ok(message) => break message,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Err(UnixError::WouldBlock),
                // Reported once, when the peer closed without reading all; what it sent before is
                // still to be read.
                Err(Errno::CONNRESET) if resets == 0 => resets += 1,
                Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(UnixError::Closed),
                Err(errno) => {
                    return Err(UnixError::System { operation: "receive", errno });
                }
            }
        };
        // Collected first, so that they are closed whatever follows.
        let descriptors: Vec<PassedDescriptor> = ancillary
            .drain()
            .filter_map(|part| match part {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .map(|descriptor| PassedDescriptor::new(descriptor, self.sender()))
            .collect();
        if !descriptors.is_empty() && self.is_overdue() {
            return Err(UnixError::Overdue);
        }
        if message.flags.contains(ReturnFlags::TRUNC) || descriptors.len() > MAX_DESCRIPTORS {
            return Err(UnixError::Truncated);
        }
        // There was room for as many as the kernel lets a message carry.
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(UnixError::DescriptorsCut { length_bytes: message.bytes });
        }
        if message.bytes == 0 {
            return Err(UnixError::Closed);
        }
        Ok(Received { length_bytes: message.bytes, descriptors })
    }

    /// The sender of the descriptors that are received here.
    fn sender(&self) -> passed::Sender {
        *self.sender.get_or_init(|| passed::Sender::of(self.peer().ok()))
    }

    /// Takes descriptors of who has connected to a listener for all ([`SeqpacketListener::let_all_connect`]).
    pub fn let_in(&self) -> Result<(), UnixError> {
        self.may_hold_descriptors.store(true, Ordering::Relaxed);
        set_takes_descriptors(self.as_fd(), true).map(drop)
    }

    /// Whether the peer, or others of its user, have passed more descriptors than could be closed.
    pub fn is_overdue(&self) -> bool {
        passed::is_overdue(self.sender())
    }

    /// Whether the listener that this socket is connected to is to be believed: it runs as this process's own user, as
    /// root, or as the user of this id. Anyone can make a socket in a directory like /tmp, before the node does.
    ///
    /// The kernel says which user called `listen` on that very socket, whatever the path has come to name since.
    pub fn check_listener(
        &self,
        trusted_user_id: Option<u32>,
    ) -> Result<Result<(), UntrustedUser>, UnixError> {
        let (peer, own_user_id) = (self.peer()?, rustix::process::geteuid().as_raw());
        let user_id = peer.user_id;
        let is_trusted = peer.is_own_or_root() || trusted_user_id == Some(user_id);
        Ok(if is_trusted { Ok(()) } else { Err(UntrustedUser { user_id, own_user_id }) })
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Result<PeerIdentity, UnixError> {
        let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
        // Not through rustix: it takes the process id for non-zero, and the kernel says 0 for a
        // peer in another process namespace.
        // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes into the
        // structure, all of whose values are valid.
        let result = unsafe {
            libc::getsockopt(
                self.descriptor.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            let errno = Errno::from_io_error(&std::io::Error::last_os_error());
            return Err(UnixError::System {
                operation: "peer credentials",
                errno: errno.unwrap_or(Errno::INVAL),
            });
        }
        let process_id = u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0);
        Ok(PeerIdentity { process_id, user_id: credentials.uid })
    }
}

impl Drop for SeqpacketSocket {
    fn drop(&mut self) {
        // What nobody has taken out may have descriptors with it, which are closed with the socket. (Whether there is
        // anything cannot be asked: a message may be empty, and the end of a connection looks the same.)
        let may_hold = *self.may_hold_descriptors.get_mut();
        let sender = may_hold.then(|| {
            self.hang_up();
            self.sender()
        });
        // SAFETY: nobody uses it after this.
        let descriptor = unsafe { ManuallyDrop::take(&mut self.descriptor) };
        if let Some(sender) = sender {
            passed::close(descriptor, sender);
        }
    }
}

impl AsFd for SeqpacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("tombolo-unix-{}-{name}", std::process::id()))
    }

    /// A socket whose last close waits for its peer to read, and that peer.
    fn lingering() -> (OwnedFd, std::net::TcpStream) {
        use std::io::Write;

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&ours, Some(Duration::from_secs(3600))).unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 65536]).is_ok() {}
        ours.set_nonblocking(false).unwrap();
        (ours.into(), theirs)
    }

    /// Does it on a thread of its own: the test fails where it would hang.
    fn within_reason(what: &str, work: impl FnOnce() + Send + 'static) {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            work();
            let _ = done.send(());
        });
        assert!(is_done.recv_timeout(Duration::from_secs(60)).is_ok(), "{what} waits for a peer");
    }

    fn drain(mut peer: std::net::TcpStream) {
        let mut sink = Vec::new();
        std::io::Read::read_to_end(&mut peer, &mut sink).unwrap();
        assert!(!sink.is_empty());
    }

    #[test]
    fn a_descriptor_that_blocks_when_it_is_closed_holds_up_nobody() {
        let (one, other) = SeqpacketSocket::pair().unwrap();
        let peers: Vec<_> = (0..3)
            .map(|_| {
                let (socket, peer) = lingering();
                one.send(&[b"take this"], &[socket.as_fd()]).unwrap();
                peer
            })
            .collect();
        within_reason("closing", move || {
            for _ in 0..3 {
                drop(other.receive(&mut [0; 16]).unwrap());
            }
        });
        // And they are closed when that is possible.
        peers.into_iter().for_each(drain);
    }

    #[test]
    fn what_is_left_in_a_socket_blocks_nobody_who_drops_it() {
        let path = scratch("left");
        let listener = SeqpacketListener::bind(&path).unwrap();
        let one = SeqpacketSocket::connect(&path).unwrap();
        let other = listener.accept().unwrap().unwrap();
        let (socket, peer) = lingering();
        one.send(&[b"take this"], &[socket.as_fd()]).unwrap();
        drop((socket, one));
        within_reason("dropping the socket", move || drop(other));
        drain(peer);
        // The first of two empty messages looks like the end of the connection.
        let one = SeqpacketSocket::connect(&path).unwrap();
        let other = listener.accept().unwrap().unwrap();
        let (socket, peer) = lingering();
        for descriptors in [&[][..], &[socket.as_fd()]] {
            one.send(&[], descriptors).unwrap();
        }
        drop((socket, one));
        within_reason("dropping the socket", move || {
            assert!(matches!(other.receive(&mut [0; 16]), Err(UnixError::Closed)));
            drop(other);
        });
        drain(peer);
    }

    #[test]
    fn who_is_not_let_in_passes_no_descriptors() {
        let path = scratch("let-in");
        let listener = SeqpacketListener::bind(&path).unwrap();
        let is_kept_away = listener.let_all_connect().unwrap();
        let one = SeqpacketSocket::connect(&path).unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        let pass = || one.send(&[b"take this"], &[file.as_fd()]);
        if !is_kept_away {
            return crate::testing::left_out("needs SO_PASSRIGHTS (Linux 6.16)");
        }
        assert!(matches!(pass(), Err(UnixError::TakesNone)), "before it is accepted");
        let other = listener.accept().unwrap().unwrap();
        assert!(matches!(pass(), Err(UnixError::TakesNone)), "before it is let in");
        one.send(&[b"words"], &[]).unwrap();
        assert_eq!(other.receive(&mut [0; 16]).unwrap().descriptors.len(), 0);
        other.let_in().unwrap();
        pass().unwrap();
        assert_eq!(other.receive(&mut [0; 16]).unwrap().descriptors.len(), 1);
    }

    #[test]
    fn too_many_descriptors_are_an_error_and_closed_elsewhere() {
        let (one, other) = SeqpacketSocket::pair().unwrap();
        let (socket, peer) = lingering();
        let copies: Vec<OwnedFd> = (0..200).map(|_| socket.try_clone().unwrap()).collect();
        let borrowed: Vec<_> = copies.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&borrowed)));
        let slices = [IoSlice::new(b"many")];
        rustix::net::sendmsg(&*one.descriptor, &slices, &mut ancillary, SendFlags::empty()).unwrap();
        drop((copies, socket));
        within_reason("refusing", move || {
            assert!(matches!(other.receive(&mut [0; 16]), Err(UnixError::Truncated)));
        });
        drain(peer);
    }

    #[test]
    fn messages_and_descriptors_arrive_whole() {
        let (one, other) = SeqpacketSocket::pair().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        one.send(&[b"ab", b"cd"], &[file.as_fd(), file.as_fd()]).unwrap();
        let mut buffer = [0_u8; 16];
        let received = other.receive(&mut buffer).unwrap();
        assert_eq!(&buffer[..received.length_bytes], b"abcd");
        assert_eq!(received.descriptors.len(), 2);
        assert!(matches!(other.receive(&mut buffer), Err(UnixError::WouldBlock)));
        one.send(&[&[0_u8; 32]], &[]).unwrap();
        assert!(matches!(other.receive(&mut buffer), Err(UnixError::Truncated)));
        assert_eq!(one.peer().unwrap().process_id, Some(std::process::id()));
        drop(one);
        assert!(matches!(other.receive(&mut buffer), Err(UnixError::Closed)));
        assert!(matches!(other.send(&[b"x"], &[]), Err(UnixError::Closed)));
    }

    #[test]
    fn stale_sockets_are_replaced_and_live_ones_are_not() {
        let path = scratch("stale");
        let listener = SeqpacketListener::bind(&path).unwrap();
        assert!(matches!(SeqpacketListener::bind(&path), Err(UnixError::InUse { .. })));
        // What a killed process leaves behind: the file without the listener.
        let kept = path.with_extension("kept");
        std::fs::hard_link(&path, &kept).unwrap();
        drop(listener);
        assert!(!path.exists());
        std::fs::rename(&kept, &path).unwrap();
        assert!(SeqpacketSocket::connect(&path).is_err());
        let listener = SeqpacketListener::bind(&path).unwrap();
        let client = SeqpacketSocket::connect(&path).unwrap();
        let server = listener.accept().unwrap().unwrap();
        client.send(&[b"hi"], &[]).unwrap();
        assert_eq!(server.receive(&mut [0; 8]).unwrap().length_bytes, 2);
        drop(listener);
        std::fs::write(&path, b"a file").unwrap();
        assert!(matches!(SeqpacketListener::bind(&path), Err(UnixError::NotASocket { .. })));
        std::fs::remove_file(&path).unwrap();
    }
}
