//! Programs that this one executes get this library again, even where the environment was replaced.

use core::cell::UnsafeCell;
use core::ffi::CStr;

use libc::{c_char, c_int, c_void, pid_t};

use crate::real::Real;
use crate::sys::{self, with_errno};
use crate::{forking, start, unwaited};

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
    if !start::far() {
        return;
    }
    remember_library();
    forking::install_handlers();
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
    let variable = crate::protocol::VARIABLE.as_bytes();
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
    let library = ours.preload.get(PRELOAD.len()..ours.preload_length).unwrap_or(&[]);
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
                complete = value.split(|&byte| byte == b':' || byte == b' ').any(|part| part == library);
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

fn room() -> Environment {
    Environment { entries: [core::ptr::null(); ENVIRONMENT_MAX + 3], preload: [0; 4096] }
}

unsafe extern "C" {
    static environ: *const *const c_char;
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
        let variables = environment(variables, &mut room);
        let call =
            sys::call(libc::SYS_execve, [path as usize, arguments as usize, variables as usize, 0, 0, 0]);
        with_errno(call) as c_int
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
        core::mem::transmute::<usize, Exec>(real)(file, arguments, environment(variables, &mut room))
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
    unsafe { spawn(&SPAWN, process, path, actions, attributes, arguments, variables) }
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
    unsafe { spawn(&SPAWN_BY_PATH, process, file, actions, attributes, arguments, variables) }
}

unsafe fn spawn(
    real: &Real,
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
        let variables = environment(variables, &mut room);
        core::mem::transmute::<usize, Spawn>(real)(process, file, actions, attributes, arguments, variables)
    }
}
