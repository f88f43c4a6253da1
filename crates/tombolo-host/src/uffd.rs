//! userfaultfd: page faults of a range, served in user space.
//!
//! A [`Userfaultfd`] wraps a descriptor that the served process made (only it
//! can) and that was passed to the supervisor. All operations here work from
//! another process; `UFFDIO_MOVE` does not and is left out.
//!
//! Three return values need care and have a name each in [`UffdError`]:
//! *again* (a fork or remap is being reported: read events, then retry),
//! *exists* (somebody else has put the page there) and *gone* (the address
//! space has ended: exit or exec).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Size of the pages that faults are served in, in bytes.
pub const PAGE_BYTES: usize = 4096;

const UFFD_API: u64 = 0xAA;

/// `_IOWR(0xAA, number, size)`.
const fn iowr(number: u64, size: u64) -> u64 {
    (3 << 30) | (size << 16) | (UFFD_API << 8) | number
}
/// `_IOR(0xAA, number, size)`.
const fn ior(number: u64, size: u64) -> u64 {
    (2 << 30) | (size << 16) | (UFFD_API << 8) | number
}

const UFFDIO_API: u64 = iowr(0x3F, 24);
const UFFDIO_REGISTER: u64 = iowr(0x00, 32);
const UFFDIO_UNREGISTER: u64 = ior(0x01, 16);
const UFFDIO_WAKE: u64 = ior(0x02, 16);
const UFFDIO_COPY: u64 = iowr(0x03, 40);
const UFFDIO_ZEROPAGE: u64 = iowr(0x04, 32);
const UFFDIO_WRITEPROTECT: u64 = iowr(0x06, 24);
const UFFDIO_POISON: u64 = iowr(0x08, 32);

/// `UFFD_FEATURE_PAGEFAULT_FLAG_WP`.
pub const FEATURE_WRITE_PROTECT: u64 = 1;
/// `UFFD_FEATURE_EVENT_FORK`: a child gets a descriptor of its own (needs `CAP_SYS_PTRACE`).
pub const FEATURE_EVENT_FORK: u64 = 1 << 1;
/// `UFFD_FEATURE_EVENT_REMAP`: `mremap` of a registered range is reported.
pub const FEATURE_EVENT_REMAP: u64 = 1 << 2;
/// `UFFD_FEATURE_EVENT_REMOVE`: `madvise` that drops pages of a registered range is reported, before it drops them.
pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
/// `UFFD_FEATURE_EVENT_UNMAP`: unmapping a registered range, or mapping over it, is reported, after it was done.
pub const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
/// `UFFD_FEATURE_THREAD_ID`: faults name their thread.
pub const FEATURE_THREAD_ID: u64 = 1 << 8;
/// `UFFD_FEATURE_WP_HUGETLBFS_SHMEM`: writes to shared memory can be reported, too.
pub const FEATURE_WRITE_PROTECT_SHARED: u64 = 1 << 12;
/// `UFFD_FEATURE_POISON`: a range can be made to raise SIGBUS.
pub const FEATURE_POISON: u64 = 1 << 14;
/// `UFFD_FEATURE_MOVE`: a process can move pages inside itself (Linux 6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;

const REGISTER_MISSING: u64 = 1;
const REGISTER_WRITE_PROTECT: u64 = 2;
const COPY_DONT_WAKE: u64 = 1;
const COPY_WRITE_PROTECT: u64 = 2;
const ZEROES_DONT_WAKE: u64 = 1;
const PROTECT_ON: u64 = 1;
const PROTECT_DONT_WAKE: u64 = 2;

const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// Events read in one call at most.
pub const EVENTS_IN_A_CALL: usize = 64;
const FAULT_WRITE: u64 = 1;
const FAULT_WRITE_PROTECT: u64 = 2;

/// Whether a descriptor that somebody has passed is a userfaultfd.
pub fn is_userfaultfd(descriptor: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[userfaultfd]")
}

/// Why an operation on a userfaultfd did not happen.
#[derive(Debug, thiserror::Error)]
pub enum UffdError {
    /// The address space is changing (fork, remap); read events, then retry.
    /// Holds the bytes already done.
    #[error("the address space is changing")]
    Again(usize),
    /// A page is present already. Holds the bytes done before it.
    #[error("a page is already present")]
    Exists(usize),
    /// The range is not registered (unmapped in the meantime).
    #[error("the range is not registered any more")]
    NotMapped,
    /// The address space has ended.
    #[error("the address space has ended")]
    Gone,
    /// The source could not be read.
    #[error("the source of the copy cannot be read")]
    BadSource,
    /// Any other error of the kernel.
    #[error("userfaultfd: {0}")]
    Other(io::Error),
}

impl UffdError {
    /// Whether the kernel had no memory for the page: nothing is wrong with the page itself.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Other(error) if error.raw_os_error() == Some(libc::ENOMEM))
    }
}

/// What the kernel reports.
#[derive(Debug)]
pub enum Event {
    /// A thread waits for a page.
    Fault {
        /// Page-aligned address.
        address: u64,
        /// The access was a write.
        write: bool,
        /// The page is present but write-protected.
        write_protected: bool,
        /// The thread that waits (0 where the feature is off).
        thread: u32,
    },
    /// The process forked; the descriptor serves the child.
    Fork(Userfaultfd),
    /// A registered range moved.
    Remap {
        /// Where it was.
        from: u64,
        /// Where it is.
        to: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// Pages of `[start, end)` are about to be dropped (`madvise`).
    Remove {
        /// First address.
        start: u64,
        /// First address behind.
        end: u64,
    },
    /// `[start, end)` was unmapped, or something else was mapped there.
    Unmap {
        /// First address.
        start: u64,
        /// First address behind.
        end: u64,
    },
    /// An event that this module does not ask for.
    Unknown(u8),
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Message {
    event: u8,
    reserved1: u8,
    reserved2: u16,
    reserved3: u32,
    argument: [u64; 3],
}

/// One address space's userfaultfd.
#[derive(Debug)]
pub struct Userfaultfd(OwnedFd);

impl Userfaultfd {
    /// Takes a descriptor that the served process made. Not yet usable:
    /// [`Userfaultfd::enable`] comes first.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Makes one for this process: by the system call, else by `/dev/userfaultfd`.
    pub fn for_this_process() -> io::Result<Self> {
        Self::by_call().or_else(Self::by_device)
    }

    /// Makes one as a program that this process executes can: it has the capabilities of root and ambient ones, but none
    /// that the file of this process's own program has given.
    pub fn as_an_executed_program() -> io::Result<Self> {
        const ANYBODY_MAY: &str = "/proc/sys/vm/unprivileged_userfaultfd";
        let anybody_may = std::fs::read_to_string(ANYBODY_MAY).is_ok_and(|text| text.trim() == "1");
        if anybody_may || rustix::process::geteuid().is_root() || has_ambient_ptrace() {
            return Self::for_this_process();
        }
        Self::by_device(io::Error::from_raw_os_error(libc::EPERM))
    }

    fn by_call() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: userfaultfd(2) takes flags only and returns a new descriptor.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has just returned this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made as i32) }))
    }

    /// Where the device cannot be opened, `refused` is the error: why there is none without it.
    fn by_device(refused: io::Error) -> io::Result<Self> {
        let Ok(device) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd") else {
            return Err(refused);
        };
        const USERFAULTFD_IOC_NEW: u64 = UFFD_API << 8;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: USERFAULTFD_IOC_NEW takes flags by value and returns a new descriptor.
        let made = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW as _, flags) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has just returned this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made) }))
    }

    /// Makes one for this process that any user may have: it does not see what the kernel accesses for a system call, which
    /// fails with `EFAULT` instead.
    pub fn for_user_accesses() -> io::Result<Self> {
        const USER_MODE_ONLY: i32 = 1;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: userfaultfd(2) takes flags only and returns a new descriptor.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has just returned this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made as i32) }))
    }

    /// Sets `O_NONBLOCK`: reading does not wait. Another holder of the descriptor can clear it.
    pub fn set_nonblocking(&self) -> io::Result<()> {
        Ok(rustix::io::ioctl_fionbio(&self.0, true)?)
    }

    /// A second descriptor of the same address space.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    fn ioctl<T>(&self, request: u64, argument: &mut T) -> io::Result<()> {
        // SAFETY: every request constant of this module encodes the size of the
        // structure that its only caller passes, and the kernel writes no further.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, std::ptr::from_mut(argument)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The handshake with the kernel; returns the features it has. A descriptor
    /// can be enabled once. EPERM: the feature needs a privilege.
    pub fn enable(&self, features: u64) -> io::Result<u64> {
        let mut api = [UFFD_API, features, 0];
        self.ioctl(UFFDIO_API, &mut api)?;
        Ok(api[1])
    }

    /// From now on missing and write-protected pages of the range are reported.
    pub fn register(&self, start: u64, length: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_REGISTER, &mut [start, length, REGISTER_MISSING | REGISTER_WRITE_PROTECT, 0])
    }

    /// From now on missing pages of the range are reported, and nothing else.
    pub fn register_missing(&self, start: u64, length: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_REGISTER, &mut [start, length, REGISTER_MISSING, 0])
    }

    /// From now on writes to write-protected pages of the range are reported, and nothing else.
    pub fn register_write_protect(&self, start: u64, length: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_REGISTER, &mut [start, length, REGISTER_WRITE_PROTECT, 0])
    }

    /// From now on nothing of the range is reported; threads that wait for its pages try again.
    pub fn unregister(&self, start: u64, length: u64) -> io::Result<()> {
        self.ioctl(UFFDIO_UNREGISTER, &mut [start, length])
    }

    /// Fills absent pages of `[target, target + length)` from `source` and wakes
    /// whoever waits for them. `protect`: the first write will be reported.
    /// Returns the bytes filled.
    ///
    /// `source` is only read by the kernel: a bad one is [`UffdError::BadSource`].
    pub fn copy(&self, target: u64, source: u64, length: usize, protect: bool) -> Result<usize, UffdError> {
        self.copy_in_mode(target, source, length, if protect { COPY_WRITE_PROTECT } else { 0 })
    }

    /// Maps pages as [`Userfaultfd::copy`] does, but wakes no thread: that is for [`Userfaultfd::wake`].
    pub fn copy_without_wake(
        &self,
        target: u64,
        source: u64,
        length: usize,
        protect: bool,
    ) -> Result<usize, UffdError> {
        let protect = if protect { COPY_WRITE_PROTECT } else { 0 };
        self.copy_in_mode(target, source, length, COPY_DONT_WAKE | protect)
    }

    /// Maps the kernel's page of zeroes where nothing is, not even a guard, and wakes no thread: that is for [`Userfaultfd::wake`].
    /// Returns the bytes mapped.
    pub fn zero_without_wake(&self, start: u64, length: usize) -> Result<usize, UffdError> {
        let mut request = [start, length as u64, ZEROES_DONT_WAKE, 0];
        match self.ioctl(UFFDIO_ZEROPAGE, &mut request) {
            Ok(()) => Ok(length),
            Err(error) => Err(classify(error, request[3] as i64)),
        }
    }

    fn copy_in_mode(&self, target: u64, source: u64, length: usize, mode: u64) -> Result<usize, UffdError> {
        let mut request = [target, source, length as u64, mode, 0];
        match self.ioctl(UFFDIO_COPY, &mut request) {
            Ok(()) => Ok(length),
            Err(error) => Err(classify(error, request[4] as i64)),
        }
    }

    /// Present pages of the range report their next write (`on`), or stop doing
    /// so and wake whoever waits (`!on`).
    pub fn write_protect(&self, start: u64, length: usize, on: bool) -> Result<(), UffdError> {
        let mut request = [start, length as u64, if on { PROTECT_ON } else { 0 }];
        self.ioctl(UFFDIO_WRITEPROTECT, &mut request).map_err(|error| classify(error, 0))
    }

    /// Present pages of the range can be written again; threads that wait for that are for
    /// [`Userfaultfd::wake`].
    pub fn unprotect_without_wake(&self, start: u64, length: usize) -> Result<(), UffdError> {
        let mut request = [start, length as u64, PROTECT_DONT_WAKE];
        self.ioctl(UFFDIO_WRITEPROTECT, &mut request).map_err(|error| classify(error, 0))
    }

    /// Wakes whoever waits for a page of the range; they try again.
    pub fn wake(&self, start: u64, length: usize) -> Result<(), UffdError> {
        self.ioctl(UFFDIO_WAKE, &mut [start, length as u64]).map_err(|error| classify(error, 0))
    }

    /// Absent pages of the range raise SIGBUS from now on (EFAULT in system calls).
    pub fn poison(&self, start: u64, length: usize) -> Result<(), UffdError> {
        let mut request = [start, length as u64, 0, 0];
        self.ioctl(UFFDIO_POISON, &mut request).map_err(|error| classify(error, request[3] as i64))
    }

    /// The next event, if there is one (the descriptor never blocks).
    pub fn read_event(&self) -> io::Result<Option<Event>> {
        let mut message = [Message::default()];
        let count = self.read_messages(&mut message)?;
        Ok((count == 1).then(|| Event::of(message[0])))
    }

    /// Reads up to `most` events in one call, faults first, and passes each to `handle`.
    pub fn read_events(&self, most: usize, mut handle: impl FnMut(Event)) -> io::Result<()> {
        if most <= 1 {
            self.read_event()?.into_iter().for_each(handle);
            return Ok(());
        }
        let mut messages = [Message::default(); EVENTS_IN_A_CALL];
        let count = self.read_messages(&mut messages[..most.min(EVENTS_IN_A_CALL)])?;
        messages[..count].iter().for_each(|&message| handle(Event::of(message)));
        Ok(())
    }

    /// Returns how many were read; 0 where there is none.
    fn read_messages(&self, messages: &mut [Message]) -> io::Result<usize> {
        // SAFETY: the buffer is a slice of plain structures, any content of which is valid, and its size
        // in bytes is what is passed.
        let count =
            unsafe { libc::read(self.0.as_raw_fd(), messages.as_mut_ptr().cast(), size_of_val(messages)) };
        if count < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        Ok(count as usize / size_of::<Message>())
    }
}

impl Event {
    fn of(message: Message) -> Self {
        let [first, second, third] = message.argument;
        match message.event {
            EVENT_PAGEFAULT => Self::Fault {
                address: second & !(PAGE_BYTES as u64 - 1),
                write: first & FAULT_WRITE != 0,
                write_protected: first & FAULT_WRITE_PROTECT != 0,
                thread: third as u32,
            },
            // SAFETY: the kernel installed this descriptor for the reader of the event, and each message is
            // converted once.
            EVENT_FORK => Self::Fork(Userfaultfd(unsafe { OwnedFd::from_raw_fd(first as u32 as i32) })),
            EVENT_REMAP => Self::Remap { from: first, to: second, length: third },
            EVENT_REMOVE => Self::Remove { start: first, end: second },
            EVENT_UNMAP => Self::Unmap { start: first, end: second },
            other => Self::Unknown(other),
        }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `done`: the kernel's count field, negative where it holds an error number.
fn classify(error: io::Error, done: i64) -> UffdError {
    let done = usize::try_from(done).unwrap_or(0);
    match error.raw_os_error() {
        Some(libc::EAGAIN) => UffdError::Again(done),
        Some(libc::EEXIST) => UffdError::Exists(done),
        Some(libc::ENOENT) => UffdError::NotMapped,
        Some(libc::ESRCH) => UffdError::Gone,
        Some(libc::EFAULT) => UffdError::BadSource,
        _ => UffdError::Other(error),
    }
}

/// Whether this process has `CAP_SYS_PTRACE`.
pub fn has_ptrace_capability() -> bool {
    has_ptrace_in("CapEff:")
}

/// Whether programs that this process executes have `CAP_SYS_PTRACE` from it.
fn has_ambient_ptrace() -> bool {
    has_ptrace_in("CapAmb:")
}

fn has_ptrace_in(set: &str) -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix(set)?.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_SYS_PTRACE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_the_kernels() {
        assert_eq!(UFFDIO_API, 0xC018_AA3F);
        assert_eq!(UFFDIO_REGISTER, 0xC020_AA00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_AA01);
        assert_eq!(UFFDIO_WAKE, 0x8010_AA02);
        assert_eq!(UFFDIO_COPY, 0xC028_AA03);
        assert_eq!(UFFDIO_ZEROPAGE, 0xC020_AA04);
        assert_eq!(UFFDIO_WRITEPROTECT, 0xC018_AA06);
        assert_eq!(UFFDIO_POISON, 0xC020_AA08);
    }

    #[test]
    fn errors_are_told_apart() {
        let error = |code| io::Error::from_raw_os_error(code);
        assert!(matches!(classify(error(libc::EAGAIN), -(libc::EAGAIN as i64)), UffdError::Again(0)));
        assert!(matches!(classify(error(libc::EAGAIN), 8192), UffdError::Again(8192)));
        assert!(matches!(classify(error(libc::EEXIST), 4096), UffdError::Exists(4096)));
        assert!(matches!(classify(error(libc::ESRCH), 0), UffdError::Gone));
        assert!(matches!(classify(error(libc::EINVAL), 0), UffdError::Other(_)));
    }
}
