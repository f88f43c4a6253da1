//! Whether a library does anything in a process: decided once, when that is first asked.

use core::sync::atomic::{AtomicU32, Ordering};

/// Asked by each function that a library replaces. One static of a library.
pub struct Switch(AtomicU32);

const NOT_YET: u32 = 0;
const DECIDING: u32 = 1;
const ON: u32 = 2;
const OFF: u32 = 3;

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

    /// Whether the library is on. The first call decides it by `start`; what that itself calls of the library finds it off.
    ///
    /// The first call comes from the program's first function that the library replaces, or from its constructor: no other thread
    /// exists then.
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
        if self.0.compare_exchange(NOT_YET, DECIDING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return self.0.load(Ordering::Acquire) == ON;
        }
        let is_on = start();
        self.0.store(if is_on { ON } else { OFF }, Ordering::Release);
        is_on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_decided_once_and_is_off_meanwhile() {
        static SWITCH: Switch = Switch::new();
        static CALLS: AtomicU32 = AtomicU32::new(0);
        fn start() -> bool {
            assert!(!SWITCH.is_on(start));
            CALLS.fetch_add(1, Ordering::Relaxed);
            true
        }
        assert!(SWITCH.is_on(start) && SWITCH.is_on(|| false));
        assert_eq!(CALLS.load(Ordering::Relaxed), 1);
        let off = Switch::new();
        assert!(!off.is_on(|| false) && !off.is_on(|| true));
    }
}
