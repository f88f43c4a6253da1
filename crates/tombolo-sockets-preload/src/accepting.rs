//! Servers: `listen`, `accept`.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

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

/// Descriptors from this on are noted in `listen` alone.
const PLACES: usize = 4096;
/// By descriptor: the node that has noted the listener.
static NOTED_BY: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

/// Has the node note a listener that it does not know: one that was inherited or passed on, or that an earlier node knew.
fn note_anew(descriptor: i32) {
    let node = table::node();
    let place = usize::try_from(descriptor).ok().and_then(|place| NOTED_BY.get(place));
    if place.is_some_and(|place| node != 0 && place.load(Ordering::Relaxed) != node) {
        let before = errno();
        note(descriptor);
        set_errno(before);
    }
}

/// Has the node note a listener.
fn note(descriptor: i32) {
    let Some(address) = sys::address(descriptor) else { return };
    let is_tcp = sys::number(descriptor, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP);
    if is_tcp && start::decide(Role::Server, &address) != Use::Tcp && !start::is_paused() {
        table::prepare();
        let _ = node::ask(&Request::Listen, Some(descriptor));
        if let Some(place) = usize::try_from(descriptor).ok().and_then(|place| NOTED_BY.get(place)) {
            place.store(table::node(), Ordering::Relaxed);
        }
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
        if start::is_on() {
            note_anew(descriptor);
        }
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
        if start::is_on() {
            note_anew(descriptor);
        }
        accepted(next(descriptor, address, length, flags))
    }
}

/// Exchanges what was accepted, if a client has the other end of a pair.
fn accepted(descriptor: c_int) -> c_int {
    // Also while nothing else is asked: a client may have the other end of a pair already.
    if descriptor < 0 || !start::is_on() || !table::is_any_open() {
        return descriptor;
    }
    let before = errno();
    if sys::address(descriptor).is_some_and(|address| table::is_open(address.port)) {
        unconnected::forget(descriptor);
        let flags = sys::control(descriptor, libc::F_GETFL, 0).unwrap_or(0);
        exchange(&Request::Accept { token: start::token() }, descriptor, flags);
    }
    set_errno(before);
    descriptor
}
