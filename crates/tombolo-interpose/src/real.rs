//! Functions that a library replaces and calls all the same: those of the next library of a program that has the name, and libc's in the end.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::errno::{errno, set_errno};

/// A function that is replaced.
pub struct Real {
    name: &'static CStr,
    /// [`UNKNOWN`], [`ABSENT`], or where it is.
    address: AtomicUsize,
}

const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

impl Real {
    /// The function of that name.
    pub const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicUsize::new(UNKNOWN) }
    }

    /// Its address; 0 if there is none. The first time it is looked up, which may lock and allocate: a library does that where it is
    /// loaded, for what may be called in a child of `vfork` or in a signal handler.
    pub fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            UNKNOWN => self.look_up(),
            ABSENT => 0,
            known => known,
        }
    }

    #[cold]
    fn look_up(&self) -> usize {
        let before = errno();
        // SAFETY: a constant name. The dynamic linker takes "next" from where the call comes from: the library that this code is in.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) } as usize;
        self.address.store(if found == 0 { ABSENT } else { found }, Ordering::Relaxed);
        set_errno(before);
        found
    }
}
