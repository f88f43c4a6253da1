//! A mutex of one futex word: needs no allocation, and a forked child can reset it.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

pub struct Lock(AtomicU32);

pub struct Guard<'a>(&'a Lock);

impl Lock {
    pub const fn new() -> Self {
        Self(AtomicU32::new(FREE))
    }

    pub fn lock(&self) -> Guard<'_> {
        if self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(CONTENDED, Ordering::Acquire) != FREE {
                sys::futex_wait(&self.0, CONTENDED);
            }
        }
        Guard(self)
    }

    /// Unlocks what another stack frame holds: after `core::mem::forget` of the guard.
    pub fn release(&self) {
        if self.0.swap(FREE, Ordering::Release) == CONTENDED {
            sys::futex_wake(&self.0, 1);
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
