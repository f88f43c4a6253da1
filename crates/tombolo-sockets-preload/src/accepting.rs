//! Servers: `listen`, `accept`.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use tombolo_interpose::errno::{errno, set_errno};
use tombolo_interpose::real::Real;
use tombolo_sockets_protocol::messages::Request;
use tombolo_sockets_protocol::rules::{Role, Use};

use crate::node::exchange;
use crate::{node, start, sys, table, unconnected};

pub static LISTEN: Real = Real::new(c"listen");
pub static ACCEPT: Real = Real::new(c"accept");
pub static ACCEPT_WITH: Real = Real::new(c"accept4");

#[unsafe(no_mangle)]
pub extern "C" fn listen(descriptor: c_int, backlog: c_int) -> c_int {
    // SAFETY: the address is that of the next function of this name.
    let listening = unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, c_int) -> c_int>(LISTEN.address())(
            descriptor, backlog,
        )
    };
    if listening == 0 && start::is_on() {
        unconnected::forget(descriptor);
        let before = errno();
        note(descriptor);
        set_errno(before);
    }
    listening
}

/// Has the node note a listener.
fn note(descriptor: i32) {
    let Some(address) = sys::address(descriptor) else { return };
    let is_tcp = sys::number(descriptor, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    if is_tcp && start::decide(Role::Server, &address) != Use::Tcp && !start::is_paused() {
        table::prepare();
        let _ = node::ask(&Request::Listen, Some(descriptor));
    }
}

/// # Safety
///
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(descriptor: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe {
        let next: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t) -> c_int =
            core::mem::transmute(ACCEPT.address());
        accepted(next(descriptor, address, length))
    }
}

/// # Safety
///
/// As Linux says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    descriptor: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe {
        let next: unsafe extern "C" fn(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int =
            core::mem::transmute(ACCEPT_WITH.address());
        accepted(next(descriptor, address, length, flags))
    }
}

/// Exchanges what was accepted, if a client has the other end of a pair.
fn accepted(descriptor: c_int) -> c_int {
    if descriptor < 0 || !start::is_on() || !table::is_any_open() || start::is_paused() {
        return descriptor;
    }
    let before = errno();
    if sys::address(descriptor).is_some_and(|address| table::is_open(address.port)) {
        unconnected::forget(descriptor);
        exchange(&Request::Accept { token: start::token() }, descriptor);
    }
    set_errno(before);
    descriptor
}
