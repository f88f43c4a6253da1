//! Programs that this one executes get this library again, even where the environment was replaced; and those that it would
//! keep from running do not get it. The supervisor is told of every program whose memory is not served.

use core::arch::naked_asm;
use core::cell::UnsafeCell;
use core::ffi::CStr;

use libc::{c_char, c_int, c_void, pid_t};

use crate::executable::{File, look};
use crate::real::Real;
use crate::sys::{call, with_errno};
use crate::{forking, protocol, start, unwaited};

/// Run when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    // Looked up now: dlsym may lock and allocate, which a vfork child must not. A program in local memory
    // needs the real functions, too.
    let memory = [&crate::loading::LOAD, &crate::memory::CONTROL];
    // Not those that libc may not have: a look in vain allocates.
    let programs = [&SPAWN, &SPAWN_BY_PATH, &EXEC_BY_PATH];
    for real in memory.into_iter().chain(programs) {
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
// Of glibc 2.39 and later. They write a pidfd where the others write a process number.
static SPAWN_DESCRIBED: Real = Real::new(c"pidfd_spawn");
static SPAWN_DESCRIBED_BY_PATH: Real = Real::new(c"pidfd_spawnp");
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

pub const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// `LD_PRELOAD=<this library>` and `TOMBOLO_PAGER=<value>`, each ending in a zero.
pub struct Entries {
    pub preload: [u8; 512],
    preload_length: usize,
    pager: [u8; 320],
}
impl Entries {
    /// The library's path.
    pub fn library(&self) -> &[u8] {
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
pub unsafe fn entries<'a>(
    variables: *const *const c_char,
) -> impl Iterator<Item = (*const c_char, &'a [u8])> {
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

fn room() -> Environment {
    Environment { entries: [core::ptr::null(); ENVIRONMENT_MAX + 3], preload: [0; PRELOAD_MAX] }
}

// SAFETY: `environ` is declared as POSIX has it; the functions are those of exec.c, which are jumped to and never called.
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
pub unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    variables: *const *const c_char,
    flags: c_int,
) -> c_int {
    let go = |variables: *const *const c_char| {
        let arguments =
            [folder as usize, path as usize, arguments as usize, variables as usize, flags as usize, 0];
        // SAFETY: the caller's promise.
        with_errno(unsafe { call(libc::SYS_execveat, arguments) }) as c_int
    };
    // SAFETY: the caller's promise; the kernel takes any path.
    let is_the_folder =
        flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && unsafe { *path } == 0 && folder >= 0;
    let file = if is_the_folder { File::Open(folder) } else { File::From(folder, path, flags) };
    // SAFETY: the caller's promise.
    unsafe { execute(file, variables, go) }
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

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pidfd_spawn(
    pidfd: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { spawn(&SPAWN_DESCRIBED, File::At(path), pidfd, path, actions, attributes, arguments, variables) }
}

/// # Safety
///
/// See [`execve`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pidfd_spawnp(
    pidfd: *mut c_int,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *const c_char,
    variables: *const *const c_char,
) -> c_int {
    let (real, found) = (&SPAWN_DESCRIBED_BY_PATH, File::Found(file));
    // SAFETY: the caller's promise.
    unsafe { spawn(real, found, pidfd, file, actions, attributes, arguments, variables) }
}

/// # Safety
///
/// See [`execve`]; `real` is a function of libc's with the arguments of `posix_spawn`.
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
