//! What a file that is to be executed is: whether the program could have a library, and why not.

use core::ffi::CStr;

use libc::{c_char, c_int};

use crate::fitness::{self, Kind, Reason};
use crate::library::Library;
use crate::sys::call;
use crate::variables::{Variables, entries, environ};

/// A file that is to be executed.
#[derive(Clone, Copy)]
pub enum File {
    /// The one at this path, a C string.
    At(*const c_char),
    /// The one that `execvp` finds by this name, a C string.
    Found(*const c_char),
    /// An open one.
    Open(c_int),
    /// The one at this path, a C string, from this folder on: what `execveat` executes with these flags.
    From(c_int, *const c_char, c_int),
}

/// Why the program cannot have the library, which the library's policy is told. What cannot be told is left to the kernel and the dynamic
/// linker, and so is everything that is wrong with the file.
///
/// Only such system calls are made as the dynamic linker makes, too: the program may have forbidden itself others.
///
/// # Safety
///
/// As [`entries`]; for a name that is to be found, as `execvp` says. What [`File`] names otherwise may be no good path.
#[inline(never)]
pub unsafe fn look(file: File, library: &Library, variables: Variables) -> Option<Reason> {
    match file {
        File::Found(name) => {
            // SAFETY: `execvp` reads the name, too.
            let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
            if name.contains(&b'/') {
                look_at(name.as_ptr() as usize, library, variables)
            } else {
                look_for(name, library, variables)
            }
        }
        File::At(path) => look_at(path as usize, library, variables),
        File::From(folder, path, flags) => {
            let opened = Opened::from(folder, path as usize, flags)?;
            look_into(opened, path as usize, library, variables)
        }
        File::Open(descriptor) => {
            let reason = Opened::of(descriptor)?.reason(library, variables);
            reason.inspect(|reason| library.tell_unserved(*reason, &[]))
        }
    }
}

/// As `execvp` looks for a name, with a zero behind it, which has no slash in it. The path is forgotten before the file is read: who
/// executes may have little stack.
fn look_for(name: &[u8], library: &Library, variables: Variables) -> Option<Reason> {
    let reason = with_found(name, &mut |_, opened| Some(opened))?.reason(library, variables)?;
    with_found(name, &mut |path, _| {
        library.tell_unserved(reason, path);
        None
    });
    Some(reason)
}

/// Opens the file that `execvp` finds, and gives it away with its path.
#[inline(never)]
fn with_found(name: &[u8], take: &mut dyn FnMut(&[u8], Opened) -> Option<Opened>) -> Option<Opened> {
    let mut folders: &[u8] = b"/bin:/usr/bin";
    // SAFETY: libc's environment.
    for (_, text) in unsafe { entries(environ) } {
        if let Some(found) = text.strip_prefix(b"PATH=") {
            folders = found;
            break;
        }
    }
    let mut path = [0u8; PATH_MAX];
    for folder in folders.split(|&byte| byte == b':') {
        let folder = if folder.is_empty() { b"." } else { folder };
        let mut length = 0;
        for part in [folder, b"/", name] {
            let Some(target) = path.get_mut(length..length + part.len()) else { break };
            target.copy_from_slice(part);
            length += part.len();
        }
        if length == folder.len() + 1 + name.len()
            && let Some(opened) = Opened::at(path.as_ptr() as usize)
        {
            return take(path.get(..length - 1).unwrap_or_default(), opened);
        }
    }
    None
}

const PATH_MAX: usize = 4096;

/// Looks at the file at a path: the address of a C string, or of nothing.
fn look_at(path: usize, library: &Library, variables: Variables) -> Option<Reason> {
    look_into(Opened::at(path)?, path, library, variables)
}

/// Looks at a file that was opened by this path.
fn look_into(opened: Opened, path: usize, library: &Library, variables: Variables) -> Option<Reason> {
    let reason = opened.reason(library, variables)?;
    // SAFETY: the kernel has read it.
    let path = unsafe { CStr::from_ptr(path as *const c_char) }.to_bytes();
    library.tell_unserved(reason, path);
    Some(reason)
}

/// A file that is being looked at: a regular one that may be executed.
struct Opened {
    /// None: it may not be read.
    descriptor: Option<usize>,
    /// The descriptor was made here.
    is_own: bool,
    mode: u32,
    owner: u32,
    group: u32,
}

impl Opened {
    /// The path: the address of a C string, or of nothing.
    fn at(path: usize) -> Option<Self> {
        Self::from(libc::AT_FDCWD, path, 0)
    }

    /// Opens a path relative to a folder, with flags of `execveat`.
    fn from(folder: c_int, path: usize, flags: c_int) -> Option<Self> {
        // A kernel may take that for the folder; what it says of the path is its own.
        if path == 0 {
            return None;
        }
        let mut opened = Self::status_of(folder as usize, path, flags as usize)?;
        opened.open(folder, path);
        Some(opened)
    }

    fn of(descriptor: c_int) -> Option<Self> {
        let flags = libc::AT_EMPTY_PATH as usize;
        let mut opened = Self::status_of(descriptor as usize, c"".as_ptr() as usize, flags)?;
        opened.descriptor = Some(descriptor as usize);
        if opened.read(0, &mut [0]) == 0 {
            // It is open for its path only.
            let mut path = *b"/proc/self/fd/0000000000\0";
            let (mut rest, mut at) = (descriptor, path.len() - 2);
            while rest > 0 {
                path[at] = b'0' + (rest % 10) as u8;
                rest /= 10;
                at -= 1;
            }
            // What are zeroes before it is moved away.
            const NUMBER_AT: usize = 14;
            let end = path.len();
            path.copy_within(at + 1..end, NUMBER_AT);
            opened.open(libc::AT_FDCWD, path.as_ptr() as usize);
        }
        Some(opened)
    }

    fn open(&mut self, folder: c_int, path: usize) {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK) as usize;
        // SAFETY: a path that the kernel reads.
        self.descriptor = unsafe { call(libc::SYS_openat, [folder as usize, path, flags, 0, 0, 0]) }.ok();
        self.is_own = self.descriptor.is_some();
    }

    fn status_of(folder: usize, path: usize, flags: usize) -> Option<Self> {
        const EXECUTABLE: u32 = 0o111;
        // SAFETY: a structure of ours for the kernel to fill, and a path that it reads.
        let (mode, owner, group) = unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            let pointer = core::ptr::from_mut(&mut status) as usize;
            call(libc::SYS_newfstatat, [folder, path, pointer, flags, 0, 0]).ok()?;
            (
                core::ptr::read_volatile(&raw const status.st_mode),
                core::ptr::read_volatile(&raw const status.st_uid),
                core::ptr::read_volatile(&raw const status.st_gid),
            )
        };
        let is_program = mode & libc::S_IFMT == libc::S_IFREG && mode & EXECUTABLE != 0;
        is_program.then_some(Self { descriptor: None, is_own: false, mode, owner, group })
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let Some(descriptor) = self.descriptor else { return 0 };
        let arguments = [descriptor, buffer.as_mut_ptr() as usize, buffer.len(), at as usize, 0, 0];
        // SAFETY: a buffer of the length given.
        unsafe { call(libc::SYS_pread64, arguments) }.unwrap_or(0)
    }

    fn reason(self, library: &Library, variables: Variables) -> Option<Reason> {
        /// Interpreters of interpreters, as many as Linux follows.
        const INTERPRETERS_MAX: u32 = 5;
        let mut opened = self;
        for _ in 0..INTERPRETERS_MAX {
            match fitness::examine(&mut |at, buffer| opened.read(at, buffer)) {
                Kind::Script(interpreter) => {
                    opened = Self::at(interpreter.path_with_zero().as_ptr() as usize)?;
                }
                // SAFETY: the caller's environment.
                Kind::Unfit(Reason::Static) if unsafe { is_valgrinds(variables) } => {
                    return Some(Reason::Valgrind);
                }
                Kind::Unfit(reason) => return Some(reason),
                Kind::Fit => break,
            }
        }
        if opened.gives_privileges() {
            return Some(Reason::Privileged);
        }
        // With a zero behind it.
        let library = library.path().as_ptr() as usize;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
        // SAFETY: a path that ends in a zero; what was opened here is closed.
        let found = unsafe {
            call(libc::SYS_openat, [libc::AT_FDCWD as usize, library, flags, 0, 0, 0])
                .map(|descriptor| call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]))
        };
        matches!(found, Err(libc::ENOENT | libc::ENOTDIR | libc::EACCES)).then_some(Reason::Unreachable)
    }

    /// Whether who executes it gets another user's rights, or another group's, by that.
    fn gives_privileges(&self) -> bool {
        let is_set = |bits: u32| self.mode & bits == bits;
        // SAFETY: these take nothing.
        unsafe {
            (is_set(libc::S_ISUID) && call(libc::SYS_geteuid, [0; 6]) != Ok(self.owner as usize))
                || (is_set(libc::S_ISGID | libc::S_IXGRP)
                    && call(libc::SYS_getegid, [0; 6]) != Ok(self.group as usize))
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(descriptor) = self.descriptor.filter(|_| self.is_own) {
            // SAFETY: opened here.
            let _ = unsafe { call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]) };
        }
    }
}

/// Whether this is the environment that valgrind gives its tools: they are static, and what they run loads libraries.
///
/// # Safety
///
/// As [`entries`].
unsafe fn is_valgrinds(variables: Variables) -> bool {
    // SAFETY: the caller's promise.
    unsafe { entries(variables) }.any(|(_, text)| text.starts_with(b"VALGRIND_LAUNCHER="))
}
