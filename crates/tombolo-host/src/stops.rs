//! Signals that ask this process to stop, and to look again: noted in a flag, or read from a descriptor.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::signals;

/// Where SIGINT and SIGTERM are noted.
static STOP_FLAG: AtomicPtr<AtomicBool> = AtomicPtr::new(std::ptr::null_mut());

extern "C" fn note_stop(_signal: i32) {
    let flag = STOP_FLAG.load(Ordering::Acquire);
    if !flag.is_null() {
        // SAFETY: the only pointer ever stored is of a 'static flag.
        unsafe { (*flag).store(true, Ordering::Release) };
    }
}

/// Notes it, and comes again every second: a call that began to wait when the first signal had come already
/// would not see it.
extern "C" fn note_stop_again(signal: libc::c_int) {
    note_stop(signal);
    // SAFETY: `alarm` is async-signal-safe.
    unsafe { libc::alarm(1) };
}

fn handle(signals: &[libc::c_int], handler: extern "C" fn(libc::c_int)) {
    for signal in signals {
        // SAFETY: an all-zero sigaction is valid; the handlers are async-signal-safe.
        // Without SA_RESTART: a system call that waits ends, and its caller may look at the flag. A sleep of
        // the standard library goes on.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(*signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// From now on SIGINT, SIGTERM, and SIGHUP where it is not ignored (`nohup`), set this flag instead of ending the process.
pub fn stop_on_signals(flag: &'static AtomicBool) {
    STOP_FLAG.store(std::ptr::from_ref(flag).cast_mut(), Ordering::Release);
    handle(&[libc::SIGINT, libc::SIGTERM], note_stop);
    if !signals::is_ignored(libc::SIGHUP) {
        handle(&[libc::SIGHUP], note_stop);
    }
}

/// Signals that are read from a descriptor, and no longer end the process.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Takes SIGHUP. To be called before other threads are started: they inherit that.
    pub fn take_hangups() -> io::Result<Self> {
        Self::take(&[libc::SIGHUP])
    }

    /// Takes SIGINT and SIGTERM. To be called before other threads are started: they inherit that.
    pub fn take_stops() -> io::Result<Self> {
        Self::take(&[libc::SIGINT, libc::SIGTERM])
    }

    /// Takes signals for this thread and those that it starts from now on: call it before there are others.
    fn take(numbers: &[libc::c_int]) -> io::Result<Self> {
        // SAFETY: an all-zero sigset_t may be initialised by sigemptyset.
        let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: both calls get a pointer to the set.
        unsafe {
            libc::sigemptyset(&raw mut signals);
            for number in numbers {
                libc::sigaddset(&raw mut signals, *number);
            }
        }
        // SAFETY: the set is initialised; the old one is not asked for.
        let error =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut()) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        // SAFETY: the set is initialised; a new descriptor is asked for.
        let made = unsafe { libc::signalfd(-1, &raw const signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above has just returned this descriptor to us alone.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(made) }))
    }

    /// Waits for the next one; several of a kind that came meanwhile are one. False: none has come in this
    /// time. `None` waits for as long as it takes.
    pub fn next(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let mut information = [0_u8; size_of::<libc::signalfd_siginfo>()];
        loop {
            match rustix::io::read(&self.0, &mut information) {
                Ok(_) => return Ok(true),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            crate::event::wait_readable(&[self.0.as_fd()], left)?;
        }
    }
}

/// As [`stop_on_signals`], also for SIGHUP, and whatever waits is interrupted again every second until the process ends: for those who wait in
/// calls that only a signal ends. Takes SIGALRM.
pub fn interrupt_on_signals(flag: &'static AtomicBool) {
    STOP_FLAG.store(std::ptr::from_ref(flag).cast_mut(), Ordering::Release);
    handle(&[libc::SIGINT, libc::SIGTERM, libc::SIGALRM], note_stop_again);
    // Not where the user has had it ignored, as nohup does.
    if !signals::is_ignored(libc::SIGHUP) {
        handle(&[libc::SIGHUP], note_stop_again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hangup_is_taken_and_does_not_end_the_process() {
        // The signal goes to this thread: others of the test process have not blocked it.
        std::thread::spawn(|| {
            let hangups = Signals::take_hangups().unwrap();
            assert!(!hangups.next(Some(Duration::ZERO)).unwrap());
            for _ in 0..2 {
                // SAFETY: raises a signal that this thread has blocked.
                assert_eq!(unsafe { libc::raise(libc::SIGHUP) }, 0);
                assert!(hangups.next(None).unwrap());
            }
        })
        .join()
        .unwrap();
    }
}
