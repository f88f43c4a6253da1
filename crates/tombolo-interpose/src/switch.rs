//! Whether a library does anything in a process: decided once, when that is first asked.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::{sys, thread};

/// Asked by each function that a library replaces. One static of a library.
pub struct Switch(AtomicU32);

/// Else: the number of the thread that decides.
const NOT_YET: u32 = 0;
const ON: u32 = u32::MAX;
const OFF: u32 = u32::MAX - 1;
/// A thread that waits for the decision looks that often whether the one that decides still lives.
const LOOK_MS: i64 = 1000;

impl Default for Switch {
    fn default() -> Self {
        Self::new()
    }
}

impl Switch {
    /// Not decided yet.
    pub const fn new() -> Self {
        Self(AtomicU32::new(NOT_YET))
    }

    /// Whether the library is on. The first call decides it by `start`; what that itself calls of the library finds it off. Threads that
    /// another library's constructor has started wait for the decision.
    #[inline]
    pub fn is_on(&self, start: fn() -> bool) -> bool {
        match self.0.load(Ordering::Acquire) {
            ON => true,
            OFF => false,
            _ => self.decide(start),
        }
    }

    #[cold]
    fn decide(&self, start: fn() -> bool) -> bool {
        let own = thread::ask_thread_id();
        loop {
            match self.0.compare_exchange(NOT_YET, own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let decision = if start() { ON } else { OFF };
                    self.0.store(decision, Ordering::Release);
                    sys::futex_wake(&self.0, i32::MAX as usize);
                    return decision == ON;
                }
                Err(ON) => return true,
                Err(OFF) => return false,
                Err(decider) if decider == own => return false,
                Err(decider) => {
                    if sys::futex_wait(&self.0, decider, LOOK_MS) && !thread::shares_memory(decider) {
                        // A fork has left it behind in its parent, or it was killed.
                        return false;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn it_is_decided_once_and_is_off_meanwhile() {
        static SWITCH: Switch = Switch::new();
        static CALLS: AtomicU32 = AtomicU32::new(0);
        fn start() -> bool {
            assert!(!SWITCH.is_on(start), "what it calls itself");
            CALLS.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(50));
            true
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert!(SWITCH.is_on(start), "it waits for the decision"));
            }
        });
        assert!(SWITCH.is_on(|| false));
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        let off = Switch::new();
        assert!(!off.is_on(|| false) && !off.is_on(|| true));
    }
}
