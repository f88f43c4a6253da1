//! Clients: `socket`, `connect`, and sets of events with sockets that are not connected yet.

use core::ffi::c_int;

use libc::{sockaddr, socklen_t};
use tombolo_interpose::errno::with_errno;
use tombolo_interpose::real::Real;
use tombolo_interpose::sys::read_bytes;
use tombolo_sockets_protocol::messages::Request;
use tombolo_sockets_protocol::rules::{Role, Use};
use tombolo_sockets_protocol::{Address, SOCKADDR_BYTES};

use crate::node::{Exchanged, exchange};
use crate::{ends, start, sys, table, unconnected};

pub static SOCKET: Real = Real::new(c"socket");
pub static CONNECT: Real = Real::new(c"connect");
pub static CONTROL_EVENTS: Real = Real::new(c"epoll_ctl");

/// Whether that makes a socket of TCP.
fn is_tcp(family: c_int, kind: c_int, protocol: c_int) -> bool {
    let kind = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    matches!(family, libc::AF_INET | libc::AF_INET6)
        && kind == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP)
}

#[unsafe(no_mangle)]
pub extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the address is that of the next function of this name.
    let made = unsafe {
        core::mem::transmute::<usize, extern "C" fn(c_int, c_int, c_int) -> c_int>(SOCKET.address())(
            family, kind, protocol,
        )
    };
    if made >= 0 && is_tcp(family, kind, protocol) && start::is_on() {
        unconnected::note(made);
    }
    made
}

/// # Safety
///
/// As POSIX says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(descriptor: c_int, address: *const sockaddr, length: socklen_t) -> c_int {
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    let next = || unsafe {
        core::mem::transmute::<usize, unsafe extern "C" fn(c_int, *const sockaddr, socklen_t) -> c_int>(
            CONNECT.address(),
        )(descriptor, address, length)
    };
    if !start::is_on() {
        return next();
    }
    let Some(to) = read_address(address as usize, length as usize) else { return next() };
    if ends::may_have() && ends::of(descriptor).is_some() {
        return with_errno(Err(libc::EISCONN)) as c_int;
    }
    let is_worth_it = !start::is_paused()
        && table::is_offered(to.port)
        && start::decide(Role::Client, &to) != Use::Tcp
        && unconnected::is_noted(descriptor);
    if !is_worth_it {
        unconnected::forget(descriptor);
        return next();
    }
    let flags = sys::control(descriptor, libc::F_GETFL, 0).unwrap_or(0);
    let is_waited_for = flags & libc::O_NONBLOCK as usize == 0;
    // The node connects it without waiting.
    if is_waited_for {
        let _ = sys::control(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK as usize);
    }
    let exchanged = exchange(&Request::Connect { token: start::token(), to }, descriptor, flags);
    if is_waited_for && exchanged != Exchanged::End {
        let _ = sys::control(descriptor, libc::F_SETFL, flags);
    }
    match exchanged {
        Exchanged::End if is_waited_for => 0,
        // As TCP says, whose connections take a moment even on one machine.
        Exchanged::End => with_errno(Err(libc::EINPROGRESS)) as c_int,
        Exchanged::Socket { may_be_connected } => {
            unconnected::forget(descriptor);
            if !may_be_connected {
                return next();
            }
            let before = tombolo_interpose::errno::errno();
            let result = next();
            match (result, tombolo_interpose::errno::errno()) {
                // It was connected without waiting.
                (0, _) if !is_waited_for => with_errno(Err(libc::EINPROGRESS)) as c_int,
                (-1, libc::EALREADY) if !is_waited_for => with_errno(Err(libc::EINPROGRESS)) as c_int,
                (-1, libc::EISCONN) => {
                    tombolo_interpose::errno::set_errno(before);
                    0
                }
                _ => result,
            }
        }
    }
}

/// The address that a program passes, which may lie anywhere.
fn read_address(address: usize, length: usize) -> Option<Address> {
    let mut bytes = [0; SOCKADDR_BYTES];
    let target = bytes.get_mut(..length.min(SOCKADDR_BYTES))?;
    let wanted = target.len();
    (address != 0 && read_bytes(address, target) == Ok(wanted)).then(|| Address::of_sockaddr(target))?
}

/// # Safety
///
/// As Linux says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    descriptor: c_int,
    event: *mut libc::epoll_event,
) -> c_int {
    // SAFETY: the caller's promise; the address is that of the next function of this name.
    unsafe {
        let next: unsafe extern "C" fn(c_int, c_int, c_int, *mut libc::epoll_event) -> c_int =
            core::mem::transmute(CONTROL_EVENTS.address());
        let result = next(set, operation, descriptor, event);
        if result == 0 && start::is_on() {
            // The kernel has read the event, where the operation has one.
            let event = if operation == libc::EPOLL_CTL_DEL { None } else { event.as_ref() };
            unconnected::in_set(set, operation, descriptor, event);
        }
        result
    }
}
