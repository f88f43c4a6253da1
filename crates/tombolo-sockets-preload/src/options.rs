//! Options of sockets: an end answers those of TCP and IP as the connection would that it stands for. The node has that, and is asked.

use core::ffi::{c_int, c_void};

use libc::socklen_t;
use tombolo_interpose::errno::with_errno;
use tombolo_interpose::real::Real;
use tombolo_interpose::sys::{read_bytes, write_bytes};
use tombolo_sockets_protocol::messages::{Answer, Request, SET_BYTES, VALUE_BYTES};
use tombolo_sockets_protocol::name::End;

use crate::{ends, node, start, sys};

pub static GET: Real = Real::new(c"getsockopt");
pub static SET: Real = Real::new(c"setsockopt");

/// Whether an option is one that TCP answers otherwise than a Unix socket does.
fn is_of_tcp(level: c_int, name: c_int) -> bool {
    const OF_SOCKETS: [c_int; 7] = [
        libc::SO_DOMAIN,
        libc::SO_PROTOCOL,
        libc::SO_PEERCRED,
        libc::SO_SNDBUF,
        libc::SO_RCVBUF,
        libc::SO_INCOMING_CPU,
        libc::SO_RCVLOWAT,
    ];
    match level {
        libc::IPPROTO_TCP | libc::IPPROTO_IP | libc::IPPROTO_IPV6 => true,
        libc::SOL_SOCKET => OF_SOCKETS.contains(&name),
        _ => false,
    }
}

/// # Safety
///
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe {
        if is_of_tcp(level, name)
            && start::is_on()
            && let Some(end) = ends::of(descriptor)
        {
            return get(descriptor, &end, level, name, value as usize, length as usize);
        }
        let next: unsafe extern "C" fn(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int =
            core::mem::transmute(GET.address());
        next(descriptor, level, name, value, length)
    }
}

/// A socket of TCP that is not connected: it knows which options there are and what they are at first.
fn fresh_socket(end: &End) -> Result<i32, i32> {
    let family = if end.local.is_v4 { libc::AF_INET } else { libc::AF_INET6 };
    sys::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).map(|socket| socket as i32)
}

/// # Safety
///
/// What lies at `value` and `length` is the program's to have changed.
unsafe fn get(descriptor: c_int, end: &End, level: c_int, name: c_int, value: usize, length: usize) -> c_int {
    let mut room = [0; 4];
    if read_bytes(length, &mut room) != Ok(4) {
        return with_errno(Err(libc::EFAULT)) as c_int;
    }
    let Ok(room) = usize::try_from(i32::from_ne_bytes(room)) else {
        return with_errno(Err(libc::EINVAL)) as c_int;
    };
    let mut bytes = [0; VALUE_BYTES];
    let found = bytes.get_mut(..room.min(VALUE_BYTES)).ok_or(libc::EINVAL);
    let found = found.and_then(|bytes| known(descriptor, end, level, name, bytes));
    let length_found = match found {
        Ok(length) => length,
        Err(error) => return with_errno(Err(error)) as c_int,
    };
    let bytes = bytes.get(..length_found).unwrap_or(&[]);
    // SAFETY: the caller's promise.
    let is_written = unsafe {
        (bytes.is_empty() || write_bytes(value, bytes) == Ok(bytes.len()))
            && write_bytes(length, &(bytes.len() as u32).to_ne_bytes()) == Ok(4)
    };
    if is_written { 0 } else { with_errno(Err(libc::EFAULT)) as c_int }
}

/// Fills the value of an option; how many bytes of it.
fn known(descriptor: c_int, end: &End, level: c_int, name: c_int, bytes: &mut [u8]) -> Result<usize, i32> {
    let fill = |bytes: &mut [u8], words: &[i32]| {
        let all = words.iter().flat_map(|word| word.to_ne_bytes());
        bytes.iter_mut().zip(all).map(|(target, byte)| *target = byte).count()
    };
    if level == libc::SOL_SOCKET {
        match name {
            libc::SO_DOMAIN => {
                return Ok(fill(bytes, &[if end.local.is_v4 { libc::AF_INET } else { libc::AF_INET6 }]));
            }
            libc::SO_PROTOCOL => return Ok(fill(bytes, &[libc::IPPROTO_TCP])),
            libc::SO_PEERCRED => return Ok(fill(bytes, &[0, -1, -1])),
            _ => {}
        }
    }
    let request = Request::Get { level, name, length: bytes.len() as u32 };
    let answer = if start::is_paused() { None } else { node::ask(&request, Some(descriptor)) };
    if let Some((Answer::Value { error, length, value }, _)) = answer {
        // Another node than the one that has it.
        let is_unknown = error == libc::ENOTCONN;
        if error != 0 && !is_unknown {
            return Err(error);
        }
        if !is_unknown {
            let value = value.get(..length as usize).unwrap_or(&[]);
            return Ok(bytes.iter_mut().zip(value).map(|(target, byte)| *target = *byte).count());
        }
    }
    let socket = fresh_socket(end)?;
    let found = sys::option(socket, level, name, bytes);
    sys::close(socket);
    found
}

/// # Safety
///
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    descriptor: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if is_of_tcp(level, name)
        && start::is_on()
        && let Some(end) = ends::of(descriptor)
    {
        return with_errno(set(descriptor, &end, level, name, value as usize, length)) as c_int;
    }
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe {
        let next: unsafe extern "C" fn(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int =
            core::mem::transmute(SET.address());
        next(descriptor, level, name, value, length)
    }
}

/// A fresh socket says whether it can be set so; then the node sets it.
fn set(
    descriptor: c_int,
    end: &End,
    level: c_int,
    name: c_int,
    value: usize,
    length: u32,
) -> Result<usize, i32> {
    let socket = fresh_socket(end)?;
    let arguments = [socket as usize, level as usize, name as usize, value, length as usize, 0];
    // SAFETY: the kernel reads what the program has passed, and says if it cannot.
    let is_set = unsafe { tombolo_interpose::sys::call(libc::SYS_setsockopt, arguments) };
    sys::close(socket);
    is_set?;
    let mut bytes = [0; SET_BYTES];
    let kept = bytes.get_mut(..length as usize);
    if let Some(kept) = kept.filter(|_| !start::is_paused()) {
        let wanted = kept.len();
        if read_bytes(value, kept) == Ok(wanted) {
            node::tell(&Request::Set { level, name, length, value: bytes }, Some(descriptor));
        }
    }
    Ok(0)
}
