//! Signals as the kernel keeps them: with which a process was started, which wait for it, taking them and passing them on.
//!
//! Sets are the kernel's own, of 64 signals: the C library's leave out two that are its own.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// The highest number.
pub const LAST: i32 = 64;
/// From this number on, signals wait one behind the other, each with its value; of a lower number one waits at most.
pub const FIRST_QUEUED: i32 = 32;

/// A set of signals, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// Every signal.
    pub const ALL: Self = Self(!0);

    const fn bit(number: i32) -> u64 {
        1 << (number - 1)
    }

    /// Whether it is one of them.
    pub const fn contains(self, number: i32) -> bool {
        self.0 & Self::bit(number) != 0
    }

    /// These, and this one.
    #[must_use]
    pub const fn with(self, number: i32) -> Self {
        Self(self.0 | Self::bit(number))
    }

    /// These, except this one.
    #[must_use]
    pub const fn without(self, number: i32) -> Self {
        Self(self.0 & !Self::bit(number))
    }

    /// All of them, from the lowest on.
    pub fn iter(self) -> impl Iterator<Item = i32> {
        (1..=LAST).filter(move |number| self.contains(*number))
    }

    /// The set as a number, a bit for each signal.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The set of these bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The lowest.
    pub const fn first(self) -> Option<i32> {
        if self.0 == 0 { None } else { Some(self.0.trailing_zeros() as i32 + 1) }
    }
}

/// A signal that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub number: i32,
    /// How it was sent: by `kill` (`SI_USER`), with a value (`SI_QUEUE`), by the kernel (more than 0).
    pub code: i32,
    /// Who sent it.
    pub sender: i32,
    /// As which user.
    pub user: u32,
    /// What was sent along.
    pub value: usize,
}

impl Taken {
    /// Whether one call may have sent both. (Signals below 32 need not be compared by value.)
    pub fn is_like(&self, other: &Self) -> bool {
        (self.number, self.code, self.sender, self.user)
            == (other.number, other.code, other.sender, other.user)
    }
}

/// The calling thread takes all signals later, with [`take`]. Returns those that it had blocked before.
pub fn block_all() -> SignalSet {
    change_mask(libc::SIG_SETMASK, SignalSet::ALL)
}

fn change_mask(how: i32, set: SignalSet) -> SignalSet {
    let mut before = SignalSet::default();
    // SAFETY: both sets are as large as the kernel is told; it reads one and writes the other.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set.0, &raw mut before.0, size_of::<u64>())
    };
    before
}

/// The signals that wait for this process.
pub fn pending() -> SignalSet {
    let mut set = SignalSet::default();
    // SAFETY: the kernel writes a set of the size that it is told.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set.0, size_of::<u64>()) };
    set
}

/// The signals that wait for another process as a whole.
pub fn pending_for(pid: u32) -> SignalSet {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let bits = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    SignalSet(bits.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0))
}

/// A descriptor that is readable while a signal waits for the process that asks.
pub fn readable_while_pending() -> io::Result<OwnedFd> {
    let (all, flags) = (SignalSet::ALL, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
    // SAFETY: the kernel reads a set of the size that it is told; a new descriptor is asked for.
    let made = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const all.0, size_of::<u64>(), flags) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has just returned this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

/// Takes a signal that is blocked, if it waits for this process.
pub fn take(number: i32) -> Option<Taken> {
    let set = SignalSet::default().with(number);
    let no_time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        // SAFETY: an all-zero siginfo is valid. The kernel reads a set of the size that it is told and the time, and writes the siginfo.
        let (taken, information) = unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            let taken = libc::syscall(
                libc::SYS_rt_sigtimedwait,
                &raw const set.0,
                &raw mut information,
                &raw const no_time,
                size_of::<u64>(),
            );
            (taken, information)
        };
        if taken == i64::from(number) {
            // SAFETY: fields of every signal's union are plain numbers, and all of it was zeroed.
            let (sender, user, value) =
                unsafe { (information.si_pid(), information.si_uid(), information.si_value().sival_ptr) };
            return Some(Taken { number, code: information.si_code, sender, user, value: value as usize });
        }
        // It was stopped and continued meanwhile.
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return None;
        }
    }
}

/// The kernel's siginfo of a signal that was sent with a value.
#[repr(C)]
struct Queued {
    number: i32,
    error: i32,
    code: i32,
    _pad: i32,
    sender: i32,
    user: u32,
    value: usize,
    _rest: [u64; 12],
}

const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

/// Sends a signal that was sent to this process to that of the pidfd. One with a value keeps it, and its sender; of others the sender
/// is this process.
pub fn pass_on(pidfd: BorrowedFd<'_>, taken: &Taken) -> io::Result<()> {
    let Taken { number, code, sender, user, value } = *taken;
    let queued = Queued { number, error: 0, code, _pad: 0, sender, user, value, _rest: [0; 12] };
    let information = if code == libc::SI_QUEUE { &raw const queued } else { std::ptr::null() };
    // SAFETY: the siginfo is as large as the kernel's, or none.
    let sent =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), number, information, 0) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has a signal do to this process what it does by default, now: ends it, or stops it until it is continued. Returns where it does neither:
/// the first process of a pid namespace is not ended by its own signals, nor one stopped that nobody could continue.
pub fn apply_default_action(number: i32) {
    // SAFETY: the default action may always be set; the process sends a signal to itself.
    unsafe {
        libc::signal(number, libc::SIG_DFL);
        libc::kill(libc::getpid(), number);
    }
    let blocked = change_mask(libc::SIG_UNBLOCK, SignalSet::default().with(number));
    change_mask(libc::SIG_SETMASK, blocked);
}

/// This process ignores these from now on, and programs that it executes do, unless they are started with others
/// ([`Inherited::pass_on`]).
pub fn ignore(numbers: impl IntoIterator<Item = i32>) {
    for number in numbers {
        // SAFETY: no handler is set, so nothing runs at any time that may not.
        unsafe { libc::signal(number, libc::SIG_IGN) };
    }
}

/// A signal does again what it does by default.
pub fn take_by_default(number: i32) {
    // SAFETY: as above.
    unsafe { libc::signal(number, libc::SIG_DFL) };
}

/// SIGPIPE was ignored when this process was started. Rust's start ignores it in any case, before `main`.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

extern "C" fn note_pipe() {
    IGNORES_PIPE.store(is_ignored(libc::SIGPIPE), Ordering::Relaxed);
}

/// Run by the C library before Rust's start.
#[used]
// SAFETY: the function takes what the C library passes and does nothing that needs Rust to have started.
#[unsafe(link_section = ".init_array")]
static NOTE_PIPE: extern "C" fn() = note_pipe;

/// Whether this process ignores it.
pub fn is_ignored(number: i32) -> bool {
    // SAFETY: an all-zero sigaction is valid, and the call writes one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(number, std::ptr::null(), &raw mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    }
}

/// With which signals blocked and ignored this process was started.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    blocked: SignalSet,
    ignored: SignalSet,
}

impl Inherited {
    /// To be asked before anything is changed.
    pub fn new() -> Self {
        let is_ignored_now = |number: &i32| match *number {
            libc::SIGPIPE => IGNORES_PIPE.load(Ordering::Relaxed),
            number => is_ignored(number),
        };
        let ignored = (1..=LAST).filter(is_ignored_now).fold(SignalSet::default(), SignalSet::with);
        Self { blocked: change_mask(libc::SIG_BLOCK, SignalSet::default()), ignored }
    }

    /// Whether it was ignored.
    pub fn ignores(&self, number: i32) -> bool {
        self.ignored.contains(number)
    }

    /// The command starts with the same. In its process, `ready` is called when signals do to it what they will do to the program, but all
    /// of them wait.
    ///
    /// # Safety
    ///
    /// `ready` makes async-signal-safe calls only.
    pub unsafe fn pass_on(
        self,
        command: &mut Command,
        mut ready: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
    ) {
        let restore = move || {
            block_all();
            for number in 1..=LAST {
                let action = if self.ignores(number) { libc::SIG_IGN } else { libc::SIG_DFL };
                // SAFETY: signal(2) is async-signal-safe; no handler is set. The C library refuses its own two.
                unsafe { libc::signal(number, action) };
            }
            ready()?;
            change_mask(libc::SIG_SETMASK, self.blocked);
            Ok(())
        };
        // SAFETY: the closure makes async-signal-safe calls only; the caller vouches for `ready`.
        unsafe { command.pre_exec(restore) };
    }
}

impl Default for Inherited {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;
    use std::os::fd::AsFd;

    #[test]
    fn a_set_has_its_signals() {
        let set = SignalSet::default().with(64).with(10).with(1);
        assert_eq!((set.first(), set.without(1).first()), (Some(1), Some(10)));
        assert!(set.contains(64) && !set.contains(63) && SignalSet::ALL.contains(32));
        assert_eq!(set.without(1).without(10).without(64).first(), None);
    }

    /// In a process of its own, which nextest makes; elsewhere other threads may take them.
    #[test]
    fn a_signal_waits_until_it_is_taken_and_is_passed_on_with_its_value() {
        let (own, number) = (process::pidfd(std::process::id()).unwrap(), libc::SIGRTMIN() + 3);
        std::thread::spawn(move || {
            let before = block_all();
            assert!(!before.contains(number));
            let sent = Taken { number, code: libc::SI_QUEUE, sender: 77, user: 88, value: 99 };
            // To this thread: the process's others have not blocked it.
            let mut queued = Queued {
                number,
                error: 0,
                code: sent.code,
                _pad: 0,
                sender: sent.sender,
                user: sent.user,
                value: sent.value,
                _rest: [0; 12],
            };
            let to_this_thread = |queued: &mut Queued| {
                // SAFETY: the siginfo is as large as the kernel's; the signal is blocked.
                unsafe {
                    libc::syscall(
                        libc::SYS_rt_tgsigqueueinfo,
                        libc::getpid(),
                        libc::gettid(),
                        number,
                        std::ptr::from_mut(queued),
                    )
                }
            };
            assert_eq!(to_this_thread(&mut queued), 0);
            queued.value = 100;
            assert_eq!(to_this_thread(&mut queued), 0);
            let readable = readable_while_pending().unwrap();
            assert!(crate::event::wait_readable(&[readable.as_fd()], None).unwrap());
            assert!(pending().contains(number));
            // It waits for this thread, not for the process.
            assert!(!pending_for(std::process::id()).contains(number));
            assert_eq!(take(number), Some(sent));
            assert_eq!(take(number), Some(Taken { value: 100, ..sent }));
            assert_eq!((take(number), pending().contains(number)), (None, false));
            // Signal 0 is none: the kernel checks the call and sends nothing.
            assert!(pass_on(own.as_fd(), &Taken { number: 0, code: 0, ..sent }).is_ok());
        })
        .join()
        .unwrap();
    }
}
