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
/// Bytes of an entry of libraries.
const PRELOAD_MAX: usize = 4096;

/// An environment with our two entries in it.
struct Environment {
    entries: [*const c_char; ENVIRONMENT_MAX + 3],
    preload: [u8; PRELOAD_MAX],
}

/// Fills `room` with an environment and what it lacks of our two entries, and returns it; or `original`, if that is too large.
///
/// # Safety
///
/// `original` is a null-terminated array of C strings, or null.
unsafe fn environment(original: *const *const c_char, room: &mut Environment) -> *const *const c_char {
    // SAFETY: written only while loading.
    let ours = unsafe { &*ENTRIES.0.get() };
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

/// The strings of an environment.
///
/// # Safety
///
/// `variables` is null, or a null-terminated array of C strings that stays as it is meanwhile.
unsafe fn entries<'a>(variables: *const *const c_char) -> impl Iterator<Item = (*const c_char, &'a [u8])> {
    let mut entry = variables;
    core::iter::from_fn(move || {
        // SAFETY: the caller's promise; the iteration ends at the null pointer.
        unsafe {
            if entry.is_null() || (*entry).is_null() {
                return None;
            }
            let text = *entry;
            entry = entry.add(1);
            Some((text, CStr::from_ptr(text).to_bytes()))
        }
    })
}

/// As [`environment`], without our two entries: fills `room` and returns it, or `original` where it is too large.
///
/// # Safety
///
/// As [`entries`].
unsafe fn environment_without(
    original: *const *const c_char,
    room: &mut Environment,
) -> *const *const c_char {
    // SAFETY: written only while loading.
    let library = unsafe { &*ENTRIES.0.get() }.library();
    let mut theirs: &[u8] = &[];
    let mut count = 0;
    // SAFETY: the caller's promise.
    for (pointer, text) in unsafe { entries(original) } {
        if start::value_of(text).is_some() {
            continue;
        }
        // Of several, the dynamic linker takes the last.
        if let Some(value) = text.strip_prefix(PRELOAD) {
            theirs = value;
            continue;
        }
        let Some(slot) = room.entries.get_mut(count).filter(|_| count < ENVIRONMENT_MAX) else {
            return original;
        };
        *slot = pointer;
        count += 1;
    }
    let mut length = 0;
    for other in theirs.split(is_separator).filter(|part| !part.is_empty() && *part != library) {
        let separator: &[u8] = if length == 0 { PRELOAD } else { b":" };
        for part in [separator, other] {
            // One byte is left for the zero behind it.
            let Some(target) = room
                .preload
                .get_mut(..PRELOAD_MAX - 1)
                .and_then(|room| room.get_mut(length..length + part.len()))
            else {
                return original;
            };
            target.copy_from_slice(part);
            length += part.len();
        }
    }
    if length > 0 {
        room.preload[length] = 0;
        room.entries[count] = room.preload.as_ptr().cast();
        count += 1;
    }
    room.entries[count] = core::ptr::null();
    room.entries.as_ptr()
}

/// Executes a program with the environment that it is to have: with our entries, or without, where the library would keep it from
/// running. The supervisor is told of a program that is not served.
///
/// The look and a new environment have frames of their own: who executes may have little stack, and mostly needs no new environment.
///
/// # Safety
///
/// As [`entries`], and for the file as [`File`] says.
unsafe fn execute(
    file: File,
    variables: *const *const c_char,
    go: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    // SAFETY: written only while loading.
    let ours = unsafe { &*ENTRIES.0.get() };
    if ours.preload_length == 0 {
        return go(variables);
    }
    // SAFETY: the caller's promise.
    unsafe {
        match look(file, ours, variables) {
            Some(reason) if reason.is_kept_from_it() => execute_without(variables, go),
            _ if !start::far() || is_complete(ours, variables) => go(variables),
            _ => execute_with(variables, go),
        }
    }
}

/// # Safety
///
/// As [`entries`].
#[inline(never)]
unsafe fn execute_with(
    variables: *const *const c_char,
    go: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    let mut room = room();
    // SAFETY: the caller's promise.
    go(unsafe { environment(variables, &mut room) })
}

/// # Safety
///
/// As [`entries`].
#[inline(never)]
unsafe fn execute_without(
    variables: *const *const c_char,
    go: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    let mut room = room();
    // SAFETY: the caller's promise.
    go(unsafe { environment_without(variables, &mut room) })
}

/// Whether an environment has our two entries.
///
/// # Safety
///
/// As [`entries`].
unsafe fn is_complete(ours: &Entries, variables: *const *const c_char) -> bool {
    let (mut complete, mut named) = (false, false);
    // SAFETY: the caller's promise.
    for (_, text) in unsafe { entries(variables) } {
        if let Some(value) = text.strip_prefix(PRELOAD) {
            complete = value.split(is_separator).any(|part| part == ours.library());
        }
        named |= start::value_of(text).is_some();
    }
    complete && named
}

/// A file that is to be executed.
#[derive(Clone, Copy)]
enum File {
    /// The one at this path, a C string.
    At(*const c_char),
    /// The one that `execvp` finds by this name, a C string.
    Found(*const c_char),
    /// An open one.
    Open(c_int),
}

/// Why the program cannot have the library, which the supervisor is told. What cannot be told is left to the kernel and the dynamic
/// linker, and so is everything that is wrong with the file.
///
/// Only such system calls are made as the dynamic linker makes, too: the program may have forbidden itself others.
///
/// # Safety
///
/// As [`entries`]; what [`File`] names may be no good path.
#[inline(never)]
unsafe fn look(file: File, ours: &Entries, variables: *const *const c_char) -> Option<Reason> {
    match file {
        File::Found(name) => {
            // SAFETY: `execvp` reads the name, too.
            let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
            if name.contains(&b'/') {
                look_at(name.as_ptr() as usize, ours, variables)
            } else {
                look_for(name, ours, variables)
            }
        }
        File::At(path) => look_at(path as usize, ours, variables),
        File::Open(descriptor) => {
            let reason = Opened::of(descriptor)?.reason(ours, variables);
            if let Some(reason) = reason {
                tell(reason, &[]);
            }
            reason
        }
    }
}

/// As `execvp` looks for a name, with a zero behind it, which has no slash in it.
#[inline(never)]
fn look_for(name: &[u8], ours: &Entries, variables: *const *const c_char) -> Option<Reason> {
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
        if length == folder.len() + 1 + name.len() && Opened::at(path.as_ptr() as usize).is_some() {
            return look_at(path.as_ptr() as usize, ours, variables);
        }
    }
    None
}

const PATH_MAX: usize = 4096;

/// Looks at the file at a path: the address of a C string, or of nothing.
fn look_at(path: usize, ours: &Entries, variables: *const *const c_char) -> Option<Reason> {
    let reason = Opened::at(path)?.reason(ours, variables)?;
    // SAFETY: the kernel has read it.
    tell(reason, unsafe { CStr::from_ptr(path as *const c_char) }.to_bytes());
    Some(reason)
}

/// Tells the supervisor of a program that is not served.
fn tell(reason: Reason, path: &[u8]) {
    if start::far() {
        control::tell_unserved(reason as usize, path);
    }
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
        let mut opened = Self::status_of(libc::AT_FDCWD as usize, path, 0)?;
        opened.open(path);
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
            opened.open(path.as_ptr() as usize);
        }
        Some(opened)
    }

    fn open(&mut self, path: usize) {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK) as usize;
        // SAFETY: a path that the kernel reads.
        self.descriptor =
            unsafe { call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) }.ok();
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

    fn reason(self, ours: &Entries, variables: *const *const c_char) -> Option<Reason> {
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
        let library = ours.preload.get(PRELOAD.len()..)?.as_ptr() as usize;
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
unsafe fn is_valgrinds(variables: *const *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { entries(variables) }.any(|(_, text)| text.starts_with(b"VALGRIND_LAUNCHER="))
}

fn room() -> Environment {
    Environment { entries: [core::ptr::null(); ENVIRONMENT_MAX + 3], preload: [0; PRELOAD_MAX] }
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
    let go = |variables: *const *const c_char| {
        // SAFETY: the caller's promise.
        let called = unsafe {
            call(libc::SYS_execve, [path as usize, arguments as usize, variables as usize, 0, 0, 0])
        };
        with_errno(called) as c_int
    };
    // SAFETY: the caller's promise.
    unsafe { execute(File::At(path), variables, go) }
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
    let real = EXEC_BY_PATH.address();
    // SAFETY: the caller's promise; the address is libc's execvpe.
    unsafe {
        if real == 0 {
            return execve(file, arguments, variables);
        }
        let real = core::mem::transmute::<usize, Exec>(real);
        execute(File::Found(file), variables, |variables| real(file, arguments, variables))
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
    if descriptor < 0 || arguments.is_null() || variables.is_null() {
        return with_errno(Err(libc::EINVAL)) as c_int;
    }
    let go = |variables: *const *const c_char| {
        let (empty, flags) = (c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize);
        let arguments = [descriptor as usize, empty, arguments as usize, variables as usize, flags, 0];
        // SAFETY: the caller's promise.
        with_errno(unsafe { call(libc::SYS_execveat, arguments) }) as c_int
    };
    // SAFETY: the caller's promise.
    unsafe { execute(File::Open(descriptor), variables, go) }
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
    unsafe { spawn(&SPAWN, File::At(path), process, path, actions, attributes, arguments, variables) }
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
        spawn(&SPAWN_BY_PATH, File::Found(file), process, file, actions, attributes, arguments, variables)
    }
}

#[expect(clippy::too_many_arguments, reason = "those of libc's, and two more")]
unsafe fn spawn(
    real: &Real,
    found: File,
    process: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    let real = real.address();
    if real == 0 {
        return libc::ENOSYS;
    }
    // SAFETY: the caller's promise; the address is libc's function of that name.
    unsafe {
        let real = core::mem::transmute::<usize, Spawn>(real);
        execute(found, variables, |variables| real(process, file, actions, attributes, arguments, variables))
    }
}
