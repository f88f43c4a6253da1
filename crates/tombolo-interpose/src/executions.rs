//! The functions that execute programs: each looks at the environment and goes on in the next function of its name, which may be another
//! library's.
//!
//! libc's own ones call each other by names that no library sees. Here it is the same: one that is written by another (`execl` by `execv`)
//! calls it directly, so that each library sees each execution once, whichever function the program calls. Where an environment has
//! to be changed, what takes the program's own goes on in the function that takes another (`execv` in `execve`, `execvp` in `execvpe`).

use core::ffi::{c_char, c_int, c_void};

use libc::pid_t;

use crate::errno::with_errno;
use crate::executable::File;
use crate::library::Library;
use crate::real::Real;
use crate::sys::call;
use crate::variables::{Variables, environ};

/// Arguments of a program: an array of C strings that ends in a null pointer.
pub type Arguments = *const *const c_char;

static BY_PATH: Real = Real::new(c"execve");
static BY_NAME: Real = Real::new(c"execvpe");
// These take the program's own environment: they are the next ones where that is complete.
static BY_PATH_ALONE: Real = Real::new(c"execv");
static BY_NAME_ALONE: Real = Real::new(c"execvp");
static BY_DESCRIPTOR: Real = Real::new(c"fexecve");
static FROM_FOLDER: Real = Real::new(c"execveat");
static SPAWN: Real = Real::new(c"posix_spawn");
static SPAWN_BY_NAME: Real = Real::new(c"posix_spawnp");
// Of glibc 2.39 and later. They write a pidfd where the others write a process number.
static SPAWN_DESCRIBED: Real = Real::new(c"pidfd_spawn");
static SPAWN_DESCRIBED_BY_NAME: Real = Real::new(c"pidfd_spawnp");

/// Looks up the next functions: a library's constructor does, since a child of `vfork` must not. Not those that libc may not have: to look in vain
/// allocates.
pub fn look_up() {
    let by_path = [&BY_PATH, &BY_PATH_ALONE, &BY_DESCRIPTOR, &FROM_FOLDER, &SPAWN];
    for real in by_path.into_iter().chain([&BY_NAME, &BY_NAME_ALONE, &SPAWN_BY_NAME]) {
        real.address();
    }
}

type ExecuteAlone = unsafe extern "C" fn(*const c_char, Arguments) -> c_int;
type Execute = unsafe extern "C" fn(*const c_char, Arguments, Variables) -> c_int;
type ExecuteOpen = unsafe extern "C" fn(c_int, Arguments, Variables) -> c_int;
type ExecuteFrom = unsafe extern "C" fn(c_int, *const c_char, Arguments, Variables, c_int) -> c_int;
type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    Arguments,
    Variables,
) -> c_int;

/// `execve`, for a library.
///
/// # Safety
///
/// As POSIX says, here and below.
pub unsafe fn by_path(
    library: &Library,
    path: *const c_char,
    arguments: Arguments,
    variables: Variables,
) -> c_int {
    let next = BY_PATH.address();
    let mut go = |variables: Variables| {
        // SAFETY: the caller's promise; the address is that of the next function of this name.
        unsafe {
            if next == 0 {
                let arguments = [path as usize, arguments as usize, variables as usize, 0, 0, 0];
                return with_errno(call(libc::SYS_execve, arguments)) as c_int;
            }
            core::mem::transmute::<usize, Execute>(next)(path, arguments, variables)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { library.execute(File::At(path), variables, &mut go) }
}

/// `execv`, for a library: the next one if the program's environment is as it should be, else as [`by_path`].
///
/// # Safety
///
/// See [`by_path`].
pub unsafe fn by_path_alone(library: &Library, path: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe { alone(library, File::At(path), &BY_PATH_ALONE, &BY_PATH, path, arguments) }
}

/// `execvp`, for a library: as [`by_path_alone`].
///
/// # Safety
///
/// See [`by_path`].
pub unsafe fn by_name_alone(library: &Library, name: *const c_char, arguments: Arguments) -> c_int {
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe { alone(library, File::Found(name), &BY_NAME_ALONE, &BY_NAME, name, arguments) }
}

/// # Safety
///
/// See [`by_path`]; the two are functions with and without an environment.
unsafe fn alone(
    library: &Library,
    file: File,
    without: &Real,
    with: &Real,
    path: *const c_char,
    arguments: Arguments,
) -> c_int {
    let (own, without, with) = (own_variables(), without.address(), with.address());
    let mut go = |variables: Variables| {
        // SAFETY: the caller's promise; the addresses are those of the next functions of these names.
        unsafe {
            if core::ptr::eq(variables, own) && without != 0 {
                return core::mem::transmute::<usize, ExecuteAlone>(without)(path, arguments);
            }
            if with == 0 {
                let arguments = [path as usize, arguments as usize, variables as usize, 0, 0, 0];
                return with_errno(call(libc::SYS_execve, arguments)) as c_int;
            }
            core::mem::transmute::<usize, Execute>(with)(path, arguments, variables)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { library.execute(file, own, &mut go) }
}

/// `execvpe`, for a library.
///
/// # Safety
///
/// See [`by_path`].
pub unsafe fn by_name(
    library: &Library,
    name: *const c_char,
    arguments: Arguments,
    variables: Variables,
) -> c_int {
    let next = BY_NAME.address();
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe {
        if next == 0 {
            return by_path(library, name, arguments, variables);
        }
        let next = core::mem::transmute::<usize, Execute>(next);
        library.execute(File::Found(name), variables, &mut |variables| next(name, arguments, variables))
    }
}

/// `fexecve`, for a library.
///
/// # Safety
///
/// See [`by_path`].
pub unsafe fn by_descriptor(
    library: &Library,
    descriptor: c_int,
    arguments: Arguments,
    variables: Variables,
) -> c_int {
    if descriptor < 0 || arguments.is_null() || variables.is_null() {
        return with_errno(Err(libc::EINVAL)) as c_int;
    }
    let next = BY_DESCRIPTOR.address();
    let mut go = |variables: Variables| {
        // SAFETY: the caller's promise; the address is that of the next function of this name.
        unsafe {
            if next == 0 {
                let (empty, flags) = (c"".as_ptr() as usize, libc::AT_EMPTY_PATH as usize);
                let arguments =
                    [descriptor as usize, empty, arguments as usize, variables as usize, flags, 0];
                return with_errno(call(libc::SYS_execveat, arguments)) as c_int;
            }
            core::mem::transmute::<usize, ExecuteOpen>(next)(descriptor, arguments, variables)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { library.execute(File::Open(descriptor), variables, &mut go) }
}

/// `execveat`, for a library.
///
/// # Safety
///
/// See [`by_path`].
pub unsafe fn from_folder(
    library: &Library,
    folder: c_int,
    path: *const c_char,
    arguments: Arguments,
    variables: Variables,
    flags: c_int,
) -> c_int {
    let next = FROM_FOLDER.address();
    let mut go = |variables: Variables| {
        // SAFETY: the caller's promise; the address is that of the next function of this name.
        unsafe {
            if next == 0 {
                let (folder, path, flags) = (folder as usize, path as usize, flags as usize);
                let arguments = [folder, path, arguments as usize, variables as usize, flags, 0];
                return with_errno(call(libc::SYS_execveat, arguments)) as c_int;
            }
            core::mem::transmute::<usize, ExecuteFrom>(next)(folder, path, arguments, variables, flags)
        }
    };
    // SAFETY: the caller's promise; the kernel takes any path.
    let is_the_folder =
        flags & libc::AT_EMPTY_PATH != 0 && !path.is_null() && unsafe { *path } == 0 && folder >= 0;
    let file = if is_the_folder { File::Open(folder) } else { File::From(folder, path, flags) };
    // SAFETY: the caller's promise.
    unsafe { library.execute(file, variables, &mut go) }
}

/// Functions that start a process with a program.
#[derive(Clone, Copy)]
pub enum Spawning {
    /// `posix_spawn`.
    ByPath,
    /// `posix_spawnp`.
    ByName,
    /// `pidfd_spawn`.
    Described,
    /// `pidfd_spawnp`.
    DescribedByName,
}

/// One of these functions, for a library.
///
/// # Safety
///
/// See [`by_path`].
#[expect(clippy::too_many_arguments, reason = "those of libc's, and two more")]
pub unsafe fn spawn(
    library: &Library,
    how: Spawning,
    process: *mut pid_t,
    file: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: Arguments,
    variables: Variables,
) -> c_int {
    let (next, found) = match how {
        Spawning::ByPath => (&SPAWN, File::At(file)),
        Spawning::ByName => (&SPAWN_BY_NAME, File::Found(file)),
        Spawning::Described => (&SPAWN_DESCRIBED, File::At(file)),
        Spawning::DescribedByName => (&SPAWN_DESCRIBED_BY_NAME, File::Found(file)),
    };
    let next = next.address();
    if next == 0 {
        return libc::ENOSYS;
    }
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe {
        let next = core::mem::transmute::<usize, Spawn>(next);
        let mut go = |variables| next(process, file, actions, attributes, arguments, variables);
        library.execute(found, variables, &mut go)
    }
}

/// The program's own environment.
pub fn own_variables() -> Variables {
    // SAFETY: libc's; a program that changes it while it executes another one has to see to that itself.
    unsafe { environ }
}

/// The environment that stands behind the null pointer of a list of arguments.
///
/// # Safety
///
/// As `execle` has its arguments.
pub unsafe fn variables_behind(arguments: Arguments) -> Variables {
    let mut word = arguments;
    // SAFETY: the caller's promise: a null pointer comes, and one word behind it.
    unsafe {
        while !(*word).is_null() {
            word = word.add(1);
        }
        (*word.add(1)).cast()
    }
}

/// Defines all functions that execute programs, for a static [`Library`] of this cdylib.
#[macro_export]
macro_rules! define_executions {
    ($library:expr) => {
        const _: () = {
            use ::core::ffi::{c_char, c_int, c_void};

            use $crate::executions::{self, Arguments, Spawning};
            use $crate::variables::Variables;

            static INTERPOSED: &$crate::library::Library = &$library;

            // SAFETY of all: no other symbol of this library has the name, and each keeps what POSIX asks of its caller.

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execve(
                path: *const c_char,
                arguments: Arguments,
                variables: Variables,
            ) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { executions::by_path(INTERPOSED, path, arguments, variables) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execv(path: *const c_char, arguments: Arguments) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { executions::by_path_alone(INTERPOSED, path, arguments) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execvpe(
                name: *const c_char,
                arguments: Arguments,
                variables: Variables,
            ) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { executions::by_name(INTERPOSED, name, arguments, variables) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execvp(name: *const c_char, arguments: Arguments) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { executions::by_name_alone(INTERPOSED, name, arguments) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn fexecve(
                descriptor: c_int,
                arguments: Arguments,
                variables: Variables,
            ) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { executions::by_descriptor(INTERPOSED, descriptor, arguments, variables) }
            }

            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn execveat(
                folder: c_int,
                path: *const c_char,
                arguments: Arguments,
                variables: Variables,
                flags: c_int,
            ) -> c_int {
                // SAFETY: the caller's promise.
                unsafe { executions::from_folder(INTERPOSED, folder, path, arguments, variables, flags) }
            }

            extern "C" fn listed(path: *const c_char, arguments: Arguments) -> c_int {
                // SAFETY: the promise of who calls `execl`.
                unsafe { executions::by_path_alone(INTERPOSED, path, arguments) }
            }

            extern "C" fn listed_by_name(name: *const c_char, arguments: Arguments) -> c_int {
                // SAFETY: the promise of who calls `execlp`.
                unsafe { executions::by_name_alone(INTERPOSED, name, arguments) }
            }

            extern "C" fn listed_with_variables(path: *const c_char, arguments: Arguments) -> c_int {
                // SAFETY: the promise of who calls `execle`.
                unsafe {
                    executions::by_path(INTERPOSED, path, arguments, executions::variables_behind(arguments))
                }
            }

            $crate::define_list_function!(execl, listed);
            $crate::define_list_function!(execlp, listed_by_name);
            $crate::define_list_function!(execle, listed_with_variables);

            $crate::define_spawn_function!(posix_spawn, INTERPOSED, Spawning::ByPath);
            $crate::define_spawn_function!(posix_spawnp, INTERPOSED, Spawning::ByName);
            $crate::define_spawn_function!(pidfd_spawn, INTERPOSED, Spawning::Described);
            $crate::define_spawn_function!(pidfd_spawnp, INTERPOSED, Spawning::DescribedByName);
        };
    };
}

/// Defines a function with the arguments of `posix_spawn`.
#[doc(hidden)]
#[macro_export]
macro_rules! define_spawn_function {
    ($name:ident, $library:expr, $how:expr) => {
        // SAFETY: no other symbol of this library has the name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            process: *mut c_int,
            file: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: Arguments,
            variables: Variables,
        ) -> c_int {
            // SAFETY: the caller's promise.
            unsafe {
                executions::spawn($library, $how, process, file, actions, attributes, arguments, variables)
            }
        }
    };
}

/// Defines a function that takes its arguments one by one, and gives them to another one as an array.
///
/// Behind the path, in rdi, the first five are in registers, and the others on the stack behind the return address. Where that is taken away, and the
/// five are put there, all of them are an array. The stack is aligned at the call as the ABI wants it.
#[doc(hidden)]
#[macro_export]
macro_rules! define_list_function {
    ($name:ident, $function:ident) => {
        // SAFETY: no other symbol of this library has the name; the stack and the registers that are the caller's are as they were when it
        // returns.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            ::core::arch::naked_asm!(
                // Where the frame is, and where the return address (16), for debuggers: in rax (0), rbx (3), rcx (2), on the stack.
                ".cfi_startproc",
                "pop rax",
                ".cfi_def_cfa_offset 0",
                ".cfi_register 16, 0",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                ".cfi_def_cfa_offset 40",
                "mov rsi, rsp",
                "push rbx",
                ".cfi_def_cfa_offset 48",
                ".cfi_offset 3, -48",
                "mov rbx, rax",
                ".cfi_register 16, 3",
                "call {function}",
                "mov rcx, rbx",
                ".cfi_register 16, 2",
                "pop rbx",
                ".cfi_def_cfa_offset 40",
                ".cfi_restore 3",
                "add rsp, 40",
                ".cfi_def_cfa_offset 0",
                "push rcx",
                ".cfi_def_cfa_offset 8",
                ".cfi_offset 16, -8",
                "ret",
                ".cfi_endproc",
                function = sym $function,
            )
        }
    };
}
