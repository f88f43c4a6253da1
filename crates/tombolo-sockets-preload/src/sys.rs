//! System calls on sockets, raw: they see what the kernel has, not what this library makes of it.

use tombolo_interpose::sys::{Result, call};
use tombolo_sockets_protocol::{Address, SOCKADDR_BYTES};

fn of(descriptor: i32) -> usize {
    descriptor as isize as usize
}

pub fn socket(family: i32, kind: i32) -> Result {
    // SAFETY: it takes integers.
    unsafe { call(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0, 0]) }
}

pub fn close(descriptor: i32) {
    // SAFETY: the descriptor is the caller's.
    let _ = unsafe { call(libc::SYS_close, [of(descriptor), 0, 0, 0, 0, 0]) };
}

/// Ends a connection for both sides, and for whoever else has this one.
pub fn shut_down(socket: i32) {
    const BOTH: usize = 2;
    // SAFETY: it takes integers.
    let _ = unsafe { call(libc::SYS_shutdown, [of(socket), BOTH, 0, 0, 0, 0]) };
}

/// As fcntl(2), for commands that take an integer.
pub fn control(descriptor: i32, command: i32, argument: usize) -> Result {
    // SAFETY: the commands used here take integers.
    unsafe { call(libc::SYS_fcntl, [of(descriptor), command as usize, argument, 0, 0, 0]) }
}

/// Fills `value`; how many bytes of it.
pub fn option(descriptor: i32, level: i32, name: i32, value: &mut [u8]) -> Result {
    let mut length = value.len() as u32;
    let arguments = [
        of(descriptor),
        level as usize,
        name as usize,
        value.as_mut_ptr() as usize,
        (&raw mut length) as usize,
        0,
    ];
    // SAFETY: the kernel writes as many bytes as the slice has, and the length.
    unsafe { call(libc::SYS_getsockopt, arguments) }?;
    Ok(length as usize)
}

/// An option that is an integer.
pub fn number(descriptor: i32, level: i32, name: i32) -> core::result::Result<i32, i32> {
    let mut value = [0; 4];
    option(descriptor, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

pub fn set_option(descriptor: i32, level: i32, name: i32, value: &[u8]) -> Result {
    let arguments = [of(descriptor), level as usize, name as usize, value.as_ptr() as usize, value.len(), 0];
    // SAFETY: the kernel reads as many bytes as the slice has.
    unsafe { call(libc::SYS_setsockopt, arguments) }
}

/// Bytes of the longest name of a socket.
pub const NAME_BYTES: usize = 128;

/// The name of a socket, as the kernel has it.
pub fn name(descriptor: i32, target: &mut [u8; NAME_BYTES]) -> core::result::Result<usize, i32> {
    let mut length = NAME_BYTES as u32;
    let arguments = [of(descriptor), target.as_mut_ptr() as usize, (&raw mut length) as usize, 0, 0, 0];
    // SAFETY: the kernel writes as many bytes as the array has, and the length.
    unsafe { call(libc::SYS_getsockname, arguments) }?;
    Ok(NAME_BYTES.min(length as usize))
}

/// The name of a socket of IPv4 or IPv6.
pub fn address(descriptor: i32) -> Option<Address> {
    let mut name_bytes = [0; NAME_BYTES];
    let length = name(descriptor, &mut name_bytes).ok()?;
    Address::of_sockaddr(name_bytes.get(..length.min(SOCKADDR_BYTES))?)
}

/// The inode of what a descriptor is of.
pub fn inode(descriptor: i32) -> Option<u64> {
    let mut status = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure where the call succeeds.
    unsafe {
        call(libc::SYS_fstat, [of(descriptor), status.as_mut_ptr() as usize, 0, 0, 0, 0]).ok()?;
        Some(status.assume_init().st_ino)
    }
}

/// Waits until a socket is readable, or has ended; `false`: it is neither within that time.
pub fn wait_readable(descriptor: i32, until_ns: u64) -> bool {
    loop {
        let left = until_ns.saturating_sub(now_ns());
        let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let time =
            libc::timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
        let arguments = [(&raw mut poll) as usize, 1, (&raw const time) as usize, 0, 8, 0];
        // SAFETY: one structure to fill, and a time.
        match unsafe { call(libc::SYS_ppoll, arguments) } {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(libc::EINTR) if left > 0 => {}
            Err(_) => return false,
        }
    }
}

/// Nanoseconds of a clock that only goes forward.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is filled.
    let _ = unsafe {
        call(libc::SYS_clock_gettime, [libc::CLOCK_MONOTONIC as usize, (&raw mut time) as usize, 0, 0, 0, 0])
    };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// Bytes to be read, or out-of-band ones, are waiting.
pub fn is_unread(descriptor: i32) -> bool {
    let mut count = 0i32;
    // SAFETY: an integer is filled.
    let asked = unsafe {
        call(libc::SYS_ioctl, [of(descriptor), libc::FIONREAD as usize, (&raw mut count) as usize, 0, 0, 0])
    };
    asked.is_ok() && count > 0
}

/// Sends bytes and perhaps a descriptor, without waiting and without a signal.
pub fn send(socket: i32, bytes: &[u8], descriptor: Option<i32>) -> Result {
    let piece = [bytes.as_ptr() as usize, bytes.len()];
    // As `CMSG_FIRSTHDR` would lay it out: a header of 16 bytes, the descriptor, and up to a multiple of 8.
    let mut rights = [0u64; 3];
    rights[0] = 16 + 4;
    rights[1] = libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
    rights[2] = u64::from(descriptor.unwrap_or(0) as u32);
    let control =
        if descriptor.is_some() { (rights.as_ptr() as usize, size_of_val(&rights)) } else { (0, 0) };
    // name, its length, pieces, their number, control, its length, flags.
    let message = [0, 0, piece.as_ptr() as usize, 1, control.0, control.1, 0];
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    // SAFETY: a message of these parts, as msghdr has them on this architecture.
    unsafe { call(libc::SYS_sendmsg, [of(socket), message.as_ptr() as usize, flags, 0, 0, 0]) }
}

/// Receives bytes and perhaps a descriptor, without waiting.
pub fn receive(socket: i32, bytes: &mut [u8]) -> core::result::Result<(usize, Option<i32>), i32> {
    let piece = [bytes.as_mut_ptr() as usize, bytes.len()];
    let mut rights = [0u64; 3];
    let mut message =
        [0, 0, piece.as_ptr() as usize, 1, rights.as_mut_ptr() as usize, size_of_val(&rights), 0];
    let flags = (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    // SAFETY: a message of these parts, as msghdr has them on this architecture.
    let length =
        unsafe { call(libc::SYS_recvmsg, [of(socket), message.as_mut_ptr() as usize, flags, 0, 0, 0]) }?;
    let is_descriptor = message[5] >= 20
        && rights[0] >= 20
        && rights[1] == libc::SOL_SOCKET as u64 | (libc::SCM_RIGHTS as u64) << 32;
    Ok((length, is_descriptor.then_some(rights[2] as u32 as i32)))
}
