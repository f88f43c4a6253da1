//! Programs that this one executes get this library again, even where the environment was replaced; and those that it would
//! keep from running do not get it. The supervisor is told of every program whose memory is not served.

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::ffi::CStr;

use libc::{c_char, c_int, c_void, pid_t};

use crate::fitness::{self, Kind, Reason};
use crate::real::Real;
use crate::sys::{call, with_errno};
use crate::{control, forking, protocol, start, unwaited};

/// Run when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    // Looked up now: dlsym may lock and allocate, which a vfork child must not. A program in local memory
    // needs the real functions, too.
    for real in [&SPAWN, &SPAWN_BY_PATH, &EXEC_BY_PATH, &crate::loading::LOAD, &crate::memory::CONTROL] {
        real.address();
    }
    unwaited::find_real_functions();
    let is_far = start::far();
    remember_library();
    if is_far {
        forking::install_handlers();
    }
}

static SPAWN: Real = Real::new(c"posix_spawn");
static SPAWN_BY_PATH: Real = Real::new(c"posix_spawnp");
static EXEC_BY_PATH: Real = Real::new(c"execvpe");

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Exec = unsafe extern "C" fn(*const c_char, *const *const c_char, *const *const c_char) -> c_int;

const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// `LD_PRELOAD=<this library>` and `TOMBOLO_PAGER=<value>`, each ending in a zero.
struct Entries {
    preload: [u8; 512],
    preload_length: usize,
    pager: [u8; 320],
}
impl Entries {
    /// The library's path.
    fn library(&self) -> &[u8] {
        self.preload.get(PRELOAD.len()..self.preload_length).unwrap_or(&[])
    }
}
struct Shared(UnsafeCell<Entries>);
// SAFETY: written once while the library is loaded, before the program's first thread starts.
unsafe impl Sync for Shared {}
static ENTRIES: Shared =
    Shared(UnsafeCell::new(Entries { preload: [0; 512], preload_length: 0, pager: [0; 320] }));

fn remember_library() {
    // SAFETY: see ENTRIES; dladdr fills a structure of ours.
    let (entries, path) = unsafe {
        let mut information: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(loaded as *const c_void, &raw mut information) == 0 || information.dli_fname.is_null()
        {
            return;
        }
        (&mut *ENTRIES.0.get(), CStr::from_ptr(information.dli_fname).to_bytes())
    };
    let length = PRELOAD.len() + path.len();
    let variable = protocol::VARIABLE.as_bytes();
    let value = start::variable_value();
    if length + 1 > entries.preload.len() || variable.len() + value.len() + 2 > entries.pager.len() {
        return;
    }
    let copy = |target: &mut [u8], parts: &[&[u8]]| {
        for (target, &byte) in target.iter_mut().zip(parts.iter().flat_map(|part| part.iter())) {
            *target = byte;
        }
    };
    copy(&mut entries.preload, &[PRELOAD, path]);
    copy(&mut entries.pager, &[variable, b"=", value]);
    entries.preload_length = length;
}

/// Most environment entries that are passed on with ours added.
const ENVIRONMENT_MAX: usize = 2048;

/// An environment with our two entries in it.
struct Environment {
    entries: [*const c_char; ENVIRONMENT_MAX + 3],
    preload: [u8; 4096],
}

/// Fills `room` and returns it, or `original` where nothing needs adding (or it is too large).
///
/// # Safety
///
/// `original` is a null-terminated array of C strings, or null.
unsafe fn environment(original: *const *const c_char, room: &mut Environment) -> *const *const c_char {
    // SAFETY: written only while loading.
    let ours = unsafe { &*ENTRIES.0.get() };
    if ours.preload_length == 0 || !start::far() {
        return original;
    }
    let library = ours.library();
    let (mut count, mut complete, mut named) = (0, false, false);
    let mut theirs: &[u8] = &[];
    let mut entry = original;
    // SAFETY: the caller's promise.
    unsafe {
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            entry = entry.add(1);
            if let Some(value) = text.strip_prefix(PRELOAD) {
                theirs = value;
                complete = value.split(is_separator).any(|part| part == library);
                if !complete {
                    continue;
                }
            } else if start::value_of(text).is_some() {
                named = true;
            }
            let Some(slot) = room.entries.get_mut(count).filter(|_| count < ENVIRONMENT_MAX) else {
                return original;
            };
            *slot = *entry.sub(1);
            count += 1;
        }
    }
    if complete && named {
        return original;
    }
    if !complete {
        let mut length = ours.preload_length;
        let separator = usize::from(!theirs.is_empty());
        let Some(target) = room.preload.get_mut(..length + separator + theirs.len() + 1) else {
            return original;
        };
        target[..length].copy_from_slice(&ours.preload[..length]);
        if !theirs.is_empty() {
            target[length] = b':';
            length += 1;
            target[length..length + theirs.len()].copy_from_slice(theirs);
            length += theirs.len();
        }
        target[length] = 0;
        room.entries[count] = room.preload.as_ptr().cast();
        count += 1;
    }
    if !named {
        room.entries[count] = ours.pager.as_ptr().cast();
        count += 1;
    }
    room.entries[count] = core::ptr::null();
    room.entries.as_ptr()
}

/// What the dynamic linker separates libraries by.
fn is_separator(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// As [`environment`], without our two entries: fills `room` and returns it, or `original` where neither is there (or it is too large).
///
/// # Safety
///
/// `original` is a null-terminated array of C strings, or null.
unsafe fn environment_without(
    original: *const *const c_char,
    room: &mut Environment,
) -> *const *const c_char {
    // SAFETY: written only while loading.
    let library = unsafe { &*ENTRIES.0.get() }.library();
    let (mut count, mut length) = (0, 0);
    let mut entry = original;
    // SAFETY: the caller's promise.
    unsafe {
        while !entry.is_null() && !(*entry).is_null() {
            let mut kept = *entry;
            let text = CStr::from_ptr(kept).to_bytes();
            entry = entry.add(1);
            if start::value_of(text).is_some() {
                continue;
            }
            // Of several, the dynamic linker takes the last; one is kept here.
            if let Some(value) = text.strip_prefix(PRELOAD).filter(|_| length == 0) {
                let others = value.split(is_separator).filter(|part| !part.is_empty() && *part != library);
                for other in others {
                    let separator: &[u8] = if length == 0 { PRELOAD } else { b":" };
                    for part in [separator, other] {
                        let Some(target) = room.preload.get_mut(length..length + part.len()) else {
                            return original;
                        };
                        target.copy_from_slice(part);
                        length += part.len();
                    }
                }
                if length == 0 {
                    continue;
                }
                let Some(end) = room.preload.get_mut(length) else { return original };
                *end = 0;
                kept = room.preload.as_ptr().cast();
            }
            let Some(slot) = room.entries.get_mut(count).filter(|_| count < ENVIRONMENT_MAX) else {
                return original;
            };
            *slot = kept;
            count += 1;
        }
    }
    room.entries[count] = core::ptr::null();
    room.entries.as_ptr()
}

/// The environment with which to execute a program: with our entries, or without, where the library would keep it from running.
/// The supervisor is told of a program that is not served.
///
/// # Safety
///
/// `variables` is a null-terminated array of C strings, or null.
unsafe fn prepared(
    file: &File,
    variables: *const *const c_char,
    room: &mut Environment,
) -> *const *const c_char {
    // SAFETY: written only while loading.
    let ours = unsafe { &*ENTRIES.0.get() };
    if ours.preload_length == 0 {
        return variables;
    }
    // SAFETY: the caller's promise.
    let reason = unsafe { file.reason(ours, variables) };
    if let Some(reason) = reason {
        file.tell(reason);
    }
    // SAFETY: the caller's promise.
    unsafe {
        match reason {
            Some(reason) if reason.is_kept_from_it() => environment_without(variables, room),
            _ => environment(variables, room),
        }
    }
}

const PATH_MAX: usize = 4096;

/// A file that is to be executed.
struct File {
    /// Where it is, with a zero behind it; empty if that is not known.
    path: [u8; PATH_MAX],
    /// An open file, in place of a path.
    descriptor: Option<c_int>,
}

impl File {
    const NONE: Self = Self { path: [0; PATH_MAX], descriptor: None };

    /// # Safety
    ///
    /// `path` is a C string, or null.
    unsafe fn at(path: *const c_char) -> Self {
        let mut file = Self::NONE;
        if !path.is_null() {
            // SAFETY: the caller's promise.
            file.set(&[unsafe { CStr::from_ptr(path) }.to_bytes()]);
        }
        file
    }

    /// As `execvp` finds it.
    ///
    /// # Safety
    ///
    /// As [`File::at`].
    unsafe fn found_by_path(name: *const c_char) -> Self {
        // SAFETY: the caller's promise.
        let file = unsafe { Self::at(name) };
        if file.path.contains(&b'/') || file.path.first() == Some(&0) {
            return file;
        }
        // SAFETY: libc's environment is a null-terminated array of C strings.
        let folders = unsafe {
            let mut entry = environ;
            loop {
                if entry.is_null() || (*entry).is_null() {
                    break &b"/bin:/usr/bin"[..];
                }
                if let Some(found) = CStr::from_ptr(*entry).to_bytes().strip_prefix(b"PATH=") {
                    break found;
                }
                entry = entry.add(1);
            }
        };
        // SAFETY: the caller's promise.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes();
        let mut candidate = Self::NONE;
        for folder in folders.split(|&byte| byte == b':') {
            let folder = if folder.is_empty() { b"." } else { folder };
            if candidate.set(&[folder, b"/", name]) && is_accessible(&candidate.path, libc::X_OK) {
                return candidate;
            }
        }
        Self::NONE
    }

    /// Whether these parts are short enough for a path.
    fn set(&mut self, parts: &[&[u8]]) -> bool {
        let mut length = 0;
        for part in parts {
            let Some(target) = self.path.get_mut(length..length + part.len()) else {
                self.path[0] = 0;
                return false;
            };
            target.copy_from_slice(part);
            length += part.len();
        }
        let is_short = length < PATH_MAX;
        self.path[if is_short { length } else { 0 }] = 0;
        is_short
    }

    /// Why the program cannot have the library. What cannot be told is left to the kernel and the dynamic linker.
    ///
    /// # Safety
    ///
    /// `variables` is a null-terminated array of C strings, or null.
    unsafe fn reason(&self, ours: &Entries, variables: *const *const c_char) -> Option<Reason> {
        /// Interpreters of interpreters, as many as Linux follows.
        const INTERPRETERS_MAX: u32 = 5;
        let mut opened = match self.descriptor {
            Some(descriptor) => Opened { descriptor: descriptor as usize, is_own: false },
            None => Opened::at(&self.path)?,
        };
        for _ in 0..INTERPRETERS_MAX {
            if opened.gives_privileges() {
                return Some(Reason::Privileged);
            }
            match fitness::examine(&mut |at, buffer| opened.read(at, buffer)) {
                Kind::Script(interpreter) => opened = Opened::at(interpreter.path_with_zero())?,
                // SAFETY: the caller's promise.
                Kind::Unfit(Reason::Static) if unsafe { is_valgrinds(variables) } => {
                    return Some(Reason::Valgrind);
                }
                Kind::Unfit(reason) => return Some(reason),
                Kind::Fit => break,
            }
        }
        let library = ours.preload.get(PRELOAD.len()..)?;
        (!is_accessible(library, libc::R_OK)).then_some(Reason::Unreachable)
    }

    /// Tells the supervisor that this program is not served.
    fn tell(&self, reason: Reason) {
        if start::far() {
            control::ask(protocol::UNSERVED, self.path.as_ptr() as usize, reason as usize);
        }
    }
}

/// Whether this is the environment that valgrind gives its tools: they are static, and what they run loads libraries.
///
/// # Safety
///
/// `variables` is a null-terminated array of C strings, or null.
unsafe fn is_valgrinds(variables: *const *const c_char) -> bool {
    let mut entry = variables;
    // SAFETY: the caller's promise.
    unsafe {
        while !entry.is_null() && !(*entry).is_null() {
            if CStr::from_ptr(*entry).to_bytes().starts_with(b"VALGRIND_LAUNCHER=") {
                return true;
            }
            entry = entry.add(1);
        }
    }
    false
}

/// Whether this process may do that with a file; its path ends in a zero.
fn is_accessible(path: &[u8], mode: c_int) -> bool {
    let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, mode as usize, 0, 0, 0];
    // SAFETY: a path that ends in a zero.
    path.contains(&0) && unsafe { call(libc::SYS_faccessat, arguments) }.is_ok()
}

/// A file that is being looked at.
struct Opened {
    descriptor: usize,
    /// It was opened here.
    is_own: bool,
}

impl Opened {
    /// The path ends in a zero.
    fn at(path: &[u8]) -> Option<Self> {
        // Anything but a file waits for nobody.
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK) as usize;
        let arguments = [libc::AT_FDCWD as usize, path.as_ptr() as usize, flags, 0, 0, 0];
        // SAFETY: a path that ends in a zero.
        let descriptor = unsafe { call(libc::SYS_openat, arguments) }.ok()?;
        Some(Self { descriptor, is_own: true })
    }

    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let arguments = [self.descriptor, buffer.as_mut_ptr() as usize, buffer.len(), at as usize, 0, 0];
        // SAFETY: a buffer of the length given.
        unsafe { call(libc::SYS_pread64, arguments) }.unwrap_or(0)
    }

    /// Whether who executes it gets another user's rights by that.
    fn gives_privileges(&self) -> bool {
        // SAFETY: integers and structures of ours for the kernel to fill.
        unsafe {
            let mut status: libc::stat = core::mem::zeroed();
            let arguments = [self.descriptor, core::ptr::from_mut(&mut status) as usize, 0, 0, 0, 0];
            if call(libc::SYS_fstat, arguments).is_err() {
                return false;
            }
            let mode = core::ptr::read_volatile(&raw const status.st_mode);
            let user = call(libc::SYS_geteuid, [0; 6]).unwrap_or(0) as u32;
            if mode & libc::S_ISUID != 0 && core::ptr::read_volatile(&raw const status.st_uid) != user {
                return true;
            }
            let group = call(libc::SYS_getegid, [0; 6]).unwrap_or(0) as u32;
            if mode & libc::S_ISGID != 0 && core::ptr::read_volatile(&raw const status.st_gid) != group {
                return true;
            }
            let name = c"security.capability".as_ptr() as usize;
            user != 0 && call(libc::SYS_fgetxattr, [self.descriptor, name, 0, 0, 0, 0]).is_ok()
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.is_own {
            // SAFETY: opened here.
            let _ = unsafe { call(libc::SYS_close, [self.descriptor, 0, 0, 0, 0, 0]) };
        }
    }
}

fn room() -> Environment {
    Environment { entries: [core::ptr::null(); ENVIRONMENT_MAX + 3], preload: [0; 4096] }
}

unsafe extern "C" {
    static environ: *const *const c_char;
    // See exec.c.
    fn tombolo_execl();
    fn tombolo_execlp();
    fn tombolo_execle();
}

/// Functions that take any number of arguments, which C alone can define.
macro_rules! of_any_number {
    ($($name:ident is $function:ident;)*) => {
        $(
            /// # Safety
            ///
            /// See [`execve`].
            // SAFETY: no other symbol of this library has the name; it goes on in the function with the caller's arguments.
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                naked_asm!("jmp {function}", function = sym $function)
            }
        )*
    };
}

of_any_number! {
    execl is tombolo_execl;
    execlp is tombolo_execlp;
    execle is tombolo_execle;
}

/// # Safety
///
/// As POSIX says, here and below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    let mut room = room();
    // SAFETY: the caller's promise.
    unsafe {
        let variables = prepared(&File::at(path), variables, &mut room);
        let called = call(libc::SYS_execve, [path as usize, arguments as usize, variables as usize, 0, 0, 0]);
        with_errno(called) as c_int
    }
}

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execve(path, arguments, environ) }
}

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvpe(
    file: *const c_char,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    let mut room = room();
    let real = EXEC_BY_PATH.address();
    // SAFETY: the caller's promise; the address is libc's execvpe.
    unsafe {
        if real == 0 {
            return execve(file, arguments, variables);
        }
        let variables = prepared(&File::found_by_path(file), variables, &mut room);
        core::mem::transmute::<usize, Exec>(real)(file, arguments, variables)
    }
}

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fexecve(
    descriptor: c_int,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    let mut room = room();
    let file = File { descriptor: Some(descriptor), ..File::NONE };
    // SAFETY: the caller's promise.
    unsafe {
        let variables = prepared(&file, variables, &mut room);
        let empty = c"".as_ptr() as usize;
        let flags = libc::AT_EMPTY_PATH as usize;
        let called = call(
            libc::SYS_execveat,
            [descriptor as usize, empty, arguments as usize, variables as usize, flags, 0],
        );
        with_errno(called) as c_int
    }
}

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { execvpe(file, arguments, environ) }
}

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let file = File::at(path);
        spawn(&SPAWN, &file, process, path, actions, attributes, arguments, variables)
    }
}

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawnp(
    process: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        let found = File::found_by_path(file);
        spawn(&SPAWN_BY_PATH, &found, process, file, actions, attributes, arguments, variables)
    }
}

#[allow(clippy::too_many_arguments, reason = "those of libc's, and two more")]
unsafe fn spawn(
    real: &Real,
    found: &File,
    process: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    let mut room = room();
    let real = real.address();
    // SAFETY: the caller's promise; the address is libc's function of that name.
    unsafe {
        if real == 0 {
            return libc::ENOSYS;
        }
        let variables = prepared(found, variables, &mut room);
        core::mem::transmute::<usize, Spawn>(real)(process, file, actions, attributes, arguments, variables)
    }
}
