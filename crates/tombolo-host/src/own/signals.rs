//! Signals of the threads that make accesses: a fault in a guarded copy must reach its handler.

use std::mem::MaybeUninit;

/// The signals that the kernel sends to a thread for what it does itself. Blocked, they end the process.
const OF_FAULTS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// This thread takes the signals of faults, and none of the program's others, whose handlers expect the program's own
/// threads. A thread begins with the signals blocked that whoever starts it has blocked.
pub fn serve_faults_alone() {
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is read.
    unsafe {
        libc::sigfillset(blocked.as_mut_ptr());
        for signal in OF_FAULTS {
            libc::sigdelset(blocked.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, blocked.as_ptr(), std::ptr::null_mut());
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
            let child = std::thread::spawn(|| {
                let before = takes_faults();
                serve_faults_alone();
                (before, takes_faults())
            });
            assert_eq!(child.join().unwrap(), (false, true));
        })
        .join()
        .unwrap();
    }
}
