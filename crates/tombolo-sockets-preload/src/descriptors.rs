//! Descriptors that are duplicated or passed on: an end that several have is closed as the kernel closes it, and a socket that several have connects by TCP.

use core::ffi::{c_int, c_void};

use tombolo_interpose::real::Real;

use crate::{closing, ends, start, unconnected};

static DUP: Real = Real::new(c"dup");
static DUP_TO: Real = Real::new(c"dup2");
static DUP_TO_WITH: Real = Real::new(c"dup3");
static CONTROL: Real = Real::new(c"fcntl");
static CONTROL_64: Real = Real::new(c"fcntl64");
static SEND: Real = Real::new(c"sendmsg");

pub fn look_up() {
    for real in [&DUP, &DUP_TO, &DUP_TO_WITH, &CONTROL, &CONTROL_64, &SEND] {
        real.address();
    }
}

/// Another descriptor or another process is about to have it, too.
fn is_shared(descriptor: c_int) {
    if !start::is_on() {
        return;
    }
    unconnected::forget(descriptor);
    if ends::may_have() && ends::of(descriptor).is_some() {
        ends::all_are_shared();
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn dup(descriptor: c_int) -> c_int {
    is_shared(descriptor);
    // SAFETY: the address is that of the next function of this name.
    unsafe { core::mem::transmute::<usize, extern "C" fn(c_int) -> c_int>(DUP.address())(descriptor) }
}

#[unsafe(no_mangle)]
pub extern "C" fn dup2(descriptor: c_int, target: c_int) -> c_int {
    before_replacement(descriptor, target);
    // SAFETY: as in `dup`.
    unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, c_int) -> c_int>(DUP_TO.address())(
            descriptor, target,
        )
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn dup3(descriptor: c_int, target: c_int, flags: c_int) -> c_int {
    before_replacement(descriptor, target);
    // SAFETY: as in `dup`.
    unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, c_int, c_int) -> c_int>(DUP_TO_WITH.address())(
            descriptor, target, flags,
        )
    }
}

fn before_replacement(descriptor: c_int, target: c_int) {
    if descriptor != target && crate::sys::control(descriptor, libc::F_GETFD, 0).is_ok() {
        is_shared(descriptor);
        closing::before_close(target);
    }
}

fn before_control(descriptor: c_int, command: c_int) {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        is_shared(descriptor);
    }
}

type Control = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;

/// # Safety
///
/// As POSIX says. The third argument is passed on as it is, whatever it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(descriptor: c_int, command: c_int, argument: usize) -> c_int {
    before_control(descriptor, command);
    // SAFETY: the caller's promise.
    unsafe { core::mem::transmute::<usize, Control>(CONTROL.address())(descriptor, command, argument) }
}

/// # Safety
///
/// As [`fcntl`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(descriptor: c_int, command: c_int, argument: usize) -> c_int {
    before_control(descriptor, command);
    // SAFETY: the caller's promise.
    unsafe { core::mem::transmute::<usize, Control>(CONTROL_64.address())(descriptor, command, argument) }
}

/// # Safety
///
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(socket: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    // SAFETY: the caller's promise; what was sent was read by the kernel, so the message lies where it should.
    unsafe {
        let next: unsafe extern "C" fn(c_int, *const libc::msghdr, c_int) -> isize =
            core::mem::transmute(SEND.address());
        let sent = next(socket, message, flags);
        if sent >= 0 && (*message).msg_controllen >= size_of::<libc::cmsghdr>() && start::is_on() {
            for_each_passed(message, is_shared);
        }
        sent
    }
}

/// # Safety
///
/// The message is one that was sent.
unsafe fn for_each_passed(message: *const libc::msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = header.as_ref() {
            if (found.cmsg_level, found.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let data: *const c_void = libc::CMSG_DATA(header).cast();
                let length = found.cmsg_len.saturating_sub(size_of::<libc::cmsghdr>());
                for index in 0..length / size_of::<c_int>() {
                    each(data.cast::<c_int>().add(index).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}
