//! A preloaded library, as programs that its program executes are to have it.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

use crate::environment::{self, PRELOAD, Room};
use crate::executable::{File, look};
use crate::fitness::Reason;
use crate::variables::{Variables, value_of};

/// How a library behaves towards programs that its program executes.
#[derive(Clone, Copy)]
pub struct Policy {
    /// Whether programs that are executed are to have the library.
    pub is_on: fn() -> bool,
    /// Whether the library must be kept from a program.
    pub is_kept_from: fn(Reason) -> bool,
    /// Called before a program is executed that cannot have the library, with its path without a zero, which may be empty.
    pub unserved: fn(Reason, &[u8]),
}

/// A preloaded library: its own path, and the variable that tells it what to do. One static of each cdylib.
pub struct Library {
    variable: &'static str,
    policy: Policy,
    entries: UnsafeCell<Entries>,
    is_loaded: AtomicBool,
}

// SAFETY: the entries are written once, before `is_loaded` says so, and read afterwards only.
unsafe impl Sync for Library {}

const PRELOAD_MAX: usize = 512;
const VARIABLE_MAX: usize = 320;

/// `LD_PRELOAD=<this library>` and `VARIABLE=value`, each with a zero behind it.
struct Entries {
    preload: [u8; PRELOAD_MAX],
    preload_length: usize,
    variable: [u8; VARIABLE_MAX],
}

impl Library {
    /// A library that takes what it is to do from that environment variable.
    pub const fn new(variable: &'static str, policy: Policy) -> Self {
        let entries = Entries { preload: [0; PRELOAD_MAX], preload_length: 0, variable: [0; VARIABLE_MAX] };
        Self { variable, policy, entries: UnsafeCell::new(entries), is_loaded: AtomicBool::new(false) }
    }

    /// Notes the library's path and its variable's value, with which programs that are executed have them. Called once, by the
    /// library's constructor. Until then, and where they are too long, programs are executed with what the program gives them.
    pub fn loaded(&'static self, value: &[u8]) {
        // SAFETY: dladdr fills a structure of ours, and says in which file this static is.
        let path = unsafe {
            let mut information: libc::Dl_info = core::mem::zeroed();
            let own = core::ptr::from_ref(self).cast::<c_void>();
            if libc::dladdr(own, &raw mut information) == 0 || information.dli_fname.is_null() {
                return;
            }
            CStr::from_ptr(information.dli_fname).to_bytes()
        };
        self.note(path, value);
    }

    fn note(&self, path: &[u8], value: &[u8]) {
        let length = PRELOAD.len() + path.len();
        let name = self.variable.as_bytes();
        let is_too_long = length + 1 > PRELOAD_MAX || name.len() + value.len() + 2 > VARIABLE_MAX;
        // Another path would lead elsewhere once the program has changed its directory.
        if is_too_long || !path.starts_with(b"/") || self.is_loaded.load(Ordering::Acquire) {
            return;
        }
        let copy = |target: &mut [u8], parts: &[&[u8]]| {
            for (target, &byte) in target.iter_mut().zip(parts.iter().flat_map(|part| part.iter())) {
                *target = byte;
            }
        };
        // SAFETY: nobody reads them before `is_loaded` says so, and nobody else writes them: the loader calls one constructor at a time.
        let entries = unsafe { &mut *self.entries.get() };
        copy(&mut entries.preload, &[PRELOAD, path]);
        copy(&mut entries.variable, &[name, b"=", value]);
        entries.preload_length = length;
        self.is_loaded.store(true, Ordering::Release);
    }

    fn entries(&self) -> Option<&Entries> {
        // SAFETY: written before this is set, and never again.
        self.is_loaded.load(Ordering::Acquire).then(|| unsafe { &*self.entries.get() })
    }

    /// `LD_PRELOAD=` and the library's path, with a zero behind it in memory; empty before [`Self::loaded`].
    pub(crate) fn preload(&self) -> &[u8] {
        self.entries().and_then(|entries| entries.preload.get(..entries.preload_length)).unwrap_or(&[])
    }

    /// The library's path, with a zero behind it in memory; empty before [`Self::loaded`].
    pub fn path(&self) -> &[u8] {
        self.preload().get(PRELOAD.len()..).unwrap_or(&[])
    }

    /// What its variable told it; empty before [`Self::loaded`].
    pub fn value(&self) -> &[u8] {
        let entry = self.variable_entry();
        let end = entry.iter().position(|byte| *byte == 0).unwrap_or(entry.len());
        entry.get(..end).and_then(|entry| value_of(self.variable, entry)).unwrap_or(&[])
    }

    /// `VARIABLE=value`, with a zero behind it in memory.
    pub(crate) fn variable_entry(&self) -> &[u8] {
        self.entries().map_or(&[], |entries| &entries.variable)
    }

    /// Whether that is the library's variable, whatever its value.
    pub(crate) fn is_variable(&self, entry: &[u8]) -> bool {
        value_of(self.variable, entry).is_some()
    }

    pub(crate) fn tell_unserved(&self, reason: Reason, path: &[u8]) {
        (self.policy.unserved)(reason, path);
    }

    /// Executes a program with the environment that it is to have: with the library and its variable; or without, where the library would keep
    /// it from running.
    ///
    /// The look and a new environment have frames of their own: who executes may have little stack, and mostly needs no new environment.
    ///
    /// # Safety
    ///
    /// As [`entries`](crate::variables::entries), and for the file as [`File`] says.
    pub unsafe fn execute(
        &self,
        file: File,
        variables: Variables,
        go: &mut dyn FnMut(Variables) -> c_int,
    ) -> c_int {
        if self.preload().is_empty() {
            return go(variables);
        }
        // SAFETY: the caller's promise.
        unsafe {
            let needs = match look(file, self, variables) {
                Some(reason) if (self.policy.is_kept_from)(reason) => Needs::Without,
                _ if !(self.policy.is_on)() || environment::is_complete(self, variables) => {
                    return go(variables);
                }
                _ => Needs::With,
            };
            if environment::is_small(self, variables) {
                self.execute_in::<{ environment::FEW }, { environment::SHORT }>(needs, variables, go)
            } else {
                self.execute_in::<{ environment::MANY }, { environment::LONG }>(needs, variables, go)
            }
        }
    }

    /// # Safety
    ///
    /// As [`entries`](crate::variables::entries).
    #[inline(never)]
    unsafe fn execute_in<const VARIABLES: usize, const BYTES: usize>(
        &self,
        needs: Needs,
        variables: Variables,
        go: &mut dyn FnMut(Variables) -> c_int,
    ) -> c_int {
        let mut room = Room::<VARIABLES, BYTES>::new();
        // SAFETY: the caller's promise.
        go(unsafe {
            match needs {
                Needs::With => room.with(self, variables),
                Needs::Without => room.without(self, variables),
            }
        })
    }
}

/// What an environment is to become.
#[derive(Clone, Copy)]
enum Needs {
    With,
    Without,
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A library at that path, told that value by `TEST`.
    pub(crate) fn library(path: &[u8], value: &[u8]) -> Library {
        let policy = Policy { is_on: || true, is_kept_from: Reason::is_kept_from_it, unserved: |_, _| {} };
        let library = Library::new("TEST", policy);
        library.note(path, value);
        library
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_relative_or_too_long_is_not_handed_on() {
        assert_eq!(testing::library(b"/a/lib.so", b"v").preload(), b"LD_PRELOAD=/a/lib.so");
        assert_eq!(testing::library(b"lib.so", b"v").path(), b"");
        assert_eq!(testing::library(&[b'/'; PRELOAD_MAX - PRELOAD.len()], b"v").path(), b"");
        assert_eq!(testing::library(b"/a", &[b'v'; VARIABLE_MAX]).path(), b"");
        let longest = [b'/'; PRELOAD_MAX - PRELOAD.len() - 1];
        assert_eq!(testing::library(&longest, b"v").path(), longest);
    }

    #[test]
    fn entries_are_as_they_were_noted_first() {
        let library = testing::library(b"/a", b"v");
        library.note(b"/b", b"w");
        assert_eq!((library.path(), library.value()), (&b"/a"[..], &b"v"[..]));
        assert_eq!(&library.variable_entry()[..7], b"TEST=v\0");
        assert!(library.is_variable(b"TEST=other") && !library.is_variable(b"TEST2=v"));
        // SAFETY: no environment.
        assert_eq!(unsafe { crate::variables::entries(core::ptr::null()) }.count(), 0);
    }
}
