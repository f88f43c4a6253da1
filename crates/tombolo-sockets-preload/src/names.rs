//! Names of sockets: an end has those of the TCP connection that it stands for.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use tombolo_interpose::errno::with_errno;
use tombolo_interpose::real::Real;
use tombolo_interpose::sys::{read_bytes, write_bytes};
use tombolo_sockets_protocol::name::End;
use tombolo_sockets_protocol::{Address, SOCKADDR_BYTES};

use crate::{ends, start};

pub static LOCAL: Real = Real::new(c"getsockname");
pub static REMOTE: Real = Real::new(c"getpeername");

type GetName = unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int;

/// # Safety
///
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { name(&LOCAL, |end| end.local, descriptor, address, length) }
}

/// # Safety
///
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { name(&REMOTE, |end| end.remote, descriptor, address, length) }
}

/// The name of an end, or what the next function says.
///
/// # Safety
///
/// As POSIX says; `next` has the arguments of `getsockname`.
unsafe fn name(
    next: &Real,
    of_end: fn(&End) -> Address,
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        match start::is_on().then(|| ends::of(descriptor)).flatten() {
            Some(end) => write(&of_end(&end), address, length),
            None => core::mem::transmute::<usize, GetName>(next.address())(descriptor, address, length),
        }
    }
}

/// Writes a name to where a program wants it, which may be anywhere.
///
/// # Safety
///
/// What lies there is the program's to have changed.
unsafe fn write(name: &Address, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let mut room = [0; 4];
    if read_bytes(length as usize, &mut room) != Ok(4) {
        return with_errno(Err(libc::EFAULT)) as c_int;
    }
    let Ok(room) = usize::try_from(i32::from_ne_bytes(room)) else {
        return with_errno(Err(libc::EINVAL)) as c_int;
    };
    let mut bytes = [0; SOCKADDR_BYTES];
    let whole = name.to_sockaddr(&mut bytes);
    let written = bytes.get(..whole.min(room)).unwrap_or(&[]);
    // SAFETY: the caller's promise.
    let is_written = unsafe {
        (written.is_empty() || write_bytes(address as usize, written) == Ok(written.len()))
            && write_bytes(length as usize, &(whole as u32).to_ne_bytes()) == Ok(4)
    };
    if is_written { 0 } else { with_errno(Err(libc::EFAULT)) as c_int }
}
