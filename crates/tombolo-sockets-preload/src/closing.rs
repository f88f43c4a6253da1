//! The end of a connection. A Unix socket that is closed raises a hang-up at its peer, which TCP does not: there the peer reads what was sent and then the
//! end of the stream, and may go on writing. So who closes an end that nobody else has ends its writing, and leaves the end to the node, which closes it
//! when the peer has closed, too.

use core::ffi::c_int;

use tombolo_interpose::real::Real;
use tombolo_interpose::sys::call;
use tombolo_sockets_protocol::messages::Request;

use crate::{ends, node, start, sys, unconnected};

pub static CLOSE: Real = Real::new(c"close");

#[unsafe(no_mangle)]
pub extern "C" fn close(descriptor: c_int) -> c_int {
    before_close(descriptor);
    // SAFETY: the address is that of the next function of this name.
    unsafe { core::mem::transmute::<usize, extern "C" fn(c_int) -> c_int>(CLOSE.address())(descriptor) }
}

/// What a descriptor is, is about to be closed.
pub fn before_close(descriptor: c_int) {
    unconnected::forget(descriptor);
    if ends::may_have() && start::is_on() {
        let before = tombolo_interpose::errno::errno();
        leave_to_node(descriptor);
        tombolo_interpose::errno::set_errno(before);
    }
}

/// Whether it is an end that nobody else has, and whose close is no reset: with bytes that were not read the kernel makes it one.
fn is_to_be_left(descriptor: c_int) -> bool {
    ends::of(descriptor).is_some_and(|end| ends::is_own(&end))
        && !sys::is_unread(descriptor)
        && !lingers_for_nothing(descriptor)
}

fn leave_to_node(descriptor: c_int) {
    if !is_to_be_left(descriptor) {
        return;
    }
    const SHUT_WR: usize = 1;
    // SAFETY: it takes integers. The peer may be gone already: then there is nothing to leave.
    let ended = unsafe { call(libc::SYS_shutdown, [descriptor as usize, SHUT_WR, 0, 0, 0, 0]) };
    if ended.is_ok() && !start::is_paused() {
        node::tell(&Request::Close, Some(descriptor));
    }
}

/// `SO_LINGER` with no time: a reset.
fn lingers_for_nothing(descriptor: c_int) -> bool {
    let mut value = [0; 8];
    let [1, 0, 0, 0, a, b, c, d] =
        (match sys::option(descriptor, libc::SOL_SOCKET, libc::SO_LINGER, &mut value) {
            Ok(8) => value,
            _ => return false,
        })
    else {
        return false;
    };
    [a, b, c, d] == [0; 4]
}

/// The process ends. What it still writes, from other threads or out of buffers of libc's, is to arrive: so the node closes its ends once it is gone.
pub fn close_all() {
    if !ends::may_have() {
        return;
    }
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    // SAFETY: a constant path, and a buffer of the length passed.
    unsafe {
        let path = c"/proc/self/fd".as_ptr() as usize;
        let Ok(folder) = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) else {
            return;
        };
        let mut buffer = [0u8; 4096];
        while let Ok(length @ 1..) =
            call(libc::SYS_getdents64, [folder, buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0])
        {
            let mut at = 0;
            // Inode and offset (16 bytes), length (2), type (1), name.
            while let Some(entry) = buffer.get(at..length).filter(|entry| entry.len() > 19) {
                let size = usize::from(u16::from_ne_bytes([entry[16], entry[17]]));
                let name = entry.get(19..size).unwrap_or(&[]).split(|byte| *byte == 0).next().unwrap_or(&[]);
                if let Some(descriptor) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok())
                    && is_to_be_left(descriptor)
                    && !start::is_paused()
                {
                    node::tell_at_end(descriptor);
                }
                at += size.max(1);
            }
        }
        sys::close(folder as i32);
    }
}
