//! Signals of the threads that make accesses: a fault in a guarded copy must reach its handler.

use std::mem::MaybeUninit;

/// The signals that the kernel sends to a thread for what it does itself. Blocked, they end the process.
const OF_FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Starts a thread that takes the signals of faults, and none of the program's others, whose handlers expect the program's own
/// threads. A thread begins with the signals blocked that its starter has blocked: so they are blocked here meanwhile.
pub fn serving_faults_alone<T>(start: impl FnOnce() -> T) -> T {
    let (mut blocked, mut before) = (MaybeUninit::<libc::sigset_t>::uninit(), MaybeUninit::uninit());
    // SAFETY: each set is filled before it is read.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for signal in OF_FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), before.as_mut_ptr());
        let started = start();
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        started
    }
}

/// Whether a fault of this thread would reach a handler.
pub fn takes_faults() -> bool {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the call fills the set, or it is not read.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), blocked.as_mut_ptr()) == 0
            && [libc::SIGSEGV, libc::SIGBUS]
                .iter()
                .all(|signal| libc::sigismember(blocked.as_ptr(), *signal) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_takes_faults_whatever_its_parent_has_blocked() {
        std::thread::spawn(|| {
            let mut all = MaybeUninit::<libc::sigset_t>::uninit();
            // SAFETY: as above.
            unsafe {
                libc::sigfillset(all.as_mut_ptr());
                libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
            }
            assert!(!takes_faults());
            let is_blocked = |signal| {
                let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
                // SAFETY: the call fills the set.
                unsafe {
                    libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), blocked.as_mut_ptr());
                    libc::sigismember(blocked.as_ptr(), signal) == 1
                }
            };
            let child = serving_faults_alone(|| {
                std::thread::spawn(move || (takes_faults(), is_blocked(libc::SIGUSR1)))
            });
            assert_eq!(child.join().unwrap(), (true, true));
            assert!(!takes_faults(), "the starter's own are as before");
        })
        .join()
        .unwrap();
    }
}
