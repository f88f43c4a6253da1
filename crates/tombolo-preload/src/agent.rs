//! The agent: the supervisor's hand inside the program.
//!
//! A thread with its own descriptor table, unknown to libc (so the program's
//! last thread still ends the process, and `close_range` of the program's does
//! not reach the agent's descriptors). It makes the userfaultfd, hands it over,
//! keeps a duplicate (were every holder to go, blocked threads would resume
//! with zero pages), drops pages when told, and ends the program when the
//! supervisor is gone.

use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::protocol::{Command, DROP, Done, Hello, SPANS_MAX, VERSION, Welcome};
use crate::sys::{self, call};
use crate::{arena, doorbell, start};

/// The agent's stack and buffers; one agent a process, and a forked child
/// starts its own over the copy.
#[repr(C, align(4096))]
struct Room {
    stack: [u8; 32 * 1024],
    spans: [u64; 2 * SPANS_MAX + 1],
}
struct Shared(UnsafeCell<Room>);
// SAFETY: used by the one agent of this address space only.
unsafe impl Sync for Shared {}
static ROOM: Shared = Shared(UnsafeCell::new(Room { stack: [0; 32 * 1024], spans: [0; 2 * SPANS_MAX + 1] }));

/// 0 while the agent introduces itself, then [`READY`] or an error number.
static STATUS: AtomicU32 = AtomicU32::new(0);
/// What a forked child's agent presents instead of a new userfaultfd.
static TOKEN: AtomicU64 = AtomicU64::new(0);
/// Above every error number.
const READY: u32 = 1 << 16;

/// Starts the agent. With `token` 0 it makes a userfaultfd of its own, and this
/// waits until the supervisor has taken over; otherwise it returns at once.
pub fn start(token: u64) -> Result<(), i32> {
    STATUS.store(0, Ordering::Relaxed);
    TOKEN.store(token, Ordering::Relaxed);
    let stack_top = ROOM.0.get() as usize + core::mem::offset_of!(Room, stack) + 32 * 1024;
    // The agent must never run a signal handler of the program's: it inherits a full mask.
    let mask = sys::set_signal_mask(u64::MAX);
    // SAFETY: the stack is static and used by no other thread; `main` obeys the rules.
    let spawned = unsafe { sys::spawn(stack_top, main) };
    sys::set_signal_mask(mask);
    spawned?;
    if token != 0 {
        return Ok(());
    }
    loop {
        match STATUS.load(Ordering::Acquire) {
            0 => sys::futex_wait(&STATUS, 0),
            READY => return Ok(()),
            error => return Err(error as i32),
        }
    }
}

fn report(status: u32) {
    STATUS.store(status, Ordering::Release);
    sys::futex_wake(&STATUS, 64);
}

extern "C" fn main() -> ! {
    const NAME: &[u8] = b"tombolo-agent\0";
    // SAFETY: plain system calls on values of this function; the descriptor
    // table is the agent's own copy, so closing all of it harms nobody.
    unsafe {
        let _ = call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, NAME.as_ptr() as usize, 0, 0, 0, 0]);
        let _ = call(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0, 0]);
    }
    match introduce() {
        Ok((socket, itself)) => {
            report(READY);
            obey(socket, itself);
            end_program()
        }
        Err(error) => {
            report(error.max(1) as u32);
            if TOKEN.load(Ordering::Relaxed) != 0 {
                // A child whose pages are served but who cannot be told the
                // supervisor's fate: better an end than a hang later.
                end_program()
            }
            leave()
        }
    }
}

/// Ends this thread only.
fn leave() -> ! {
    loop {
        // SAFETY: exit(2) ends the calling thread.
        let _ = unsafe { call(libc::SYS_exit, [0; 6]) };
    }
}

fn make_userfaultfd() -> sys::Result {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: no memory is passed but a constant path.
    unsafe {
        call(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0]).or_else(|refused| {
            const NEW: usize = 0xAA00;
            let path = c"/dev/userfaultfd".as_ptr() as usize;
            let device = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, libc::O_RDWR as usize, 0, 0, 0])
                .map_err(|_| refused)?;
            let made = call(libc::SYS_ioctl, [device, NEW, flags, 0, 0, 0]);
            let _ = call(libc::SYS_close, [device, 0, 0, 0, 0, 0]);
            made
        })
    }
}

fn connect() -> sys::Result {
    let address = start::socket_address();
    // SAFETY: the address is a static sockaddr_un of the length given.
    unsafe {
        let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
        let socket = call(libc::SYS_socket, [libc::AF_UNIX as usize, kind, 0, 0, 0, 0])?;
        let size = size_of::<libc::sockaddr_un>();
        call(libc::SYS_connect, [socket, core::ptr::from_ref(address) as usize, size, 0, 0, 0])?;
        Ok(socket)
    }
}

/// One descriptor's worth of SCM_RIGHTS.
#[repr(C, align(8))]
struct Rights {
    length: usize,
    level: i32,
    kind: i32,
    descriptor: i32,
    padding: i32,
}

/// Says hello; returns the socket and a pidfd of this process.
fn introduce() -> Result<(usize, usize), i32> {
    let token = TOKEN.load(Ordering::Relaxed);
    let socket = connect()?;
    let (userfaultfd, error) = match if token == 0 { make_userfaultfd() } else { Err(0) } {
        Ok(descriptor) => (descriptor as i32, 0),
        Err(error) => (-1, error as u32),
    };
    let mut hello = Hello {
        version: VERSION,
        error,
        arena: arena::base() as u64,
        arena_bytes: arena::length() as u64,
        request: doorbell::request_address() as u64,
        token,
    };
    let mut rights =
        Rights { length: 20, level: libc::SOL_SOCKET, kind: libc::SCM_RIGHTS, descriptor: userfaultfd, padding: 0 };
    let mut part =
        libc::iovec { iov_base: core::ptr::from_mut(&mut hello).cast(), iov_len: size_of::<Hello>() };
    // SAFETY: an all-zero msghdr is an empty message.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if userfaultfd >= 0 {
        message.msg_control = core::ptr::from_mut(&mut rights).cast();
        message.msg_controllen = size_of::<Rights>();
    }
    let pointer = core::ptr::from_mut(&mut message) as usize;
    // SAFETY: the message refers to locals that outlive the call.
    unsafe { call(libc::SYS_sendmsg, [socket, pointer, libc::MSG_NOSIGNAL as usize, 0, 0, 0])? };

    let mut welcome = Welcome { error: u32::MAX, reserved: 0 };
    part = libc::iovec { iov_base: core::ptr::from_mut(&mut welcome).cast(), iov_len: size_of::<Welcome>() };
    message.msg_control = core::ptr::from_mut(&mut rights).cast();
    message.msg_controllen = size_of::<Rights>();
    loop {
        // SAFETY: as above; a child's userfaultfd lands in this thread's table, where it stays.
        match unsafe { call(libc::SYS_recvmsg, [socket, pointer, 0, 0, 0, 0]) } {
            Err(libc::EINTR) => {}
            Err(error) => return Err(error),
            Ok(count) if count < size_of::<Welcome>() => return Err(libc::ECONNRESET),
            Ok(_) => break,
        }
    }
    if welcome.error != 0 {
        return Err(welcome.error as i32);
    }
    // SAFETY: two integers in, a descriptor out.
    let itself = unsafe {
        let process = call(libc::SYS_getpid, [0; 6])?;
        call(libc::SYS_pidfd_open, [process, 0, 0, 0, 0, 0])?
    };
    Ok((socket, itself))
}

/// Obeys commands until the supervisor hangs up.
fn obey(socket: usize, itself: usize) {
    let buffer = ROOM.0.get() as usize + core::mem::offset_of!(Room, spans);
    let capacity = (2 * SPANS_MAX + 1) * 8;
    loop {
        // SAFETY: the buffer is static, of that capacity, and the agent's alone.
        let count = match unsafe { call(libc::SYS_read, [socket, buffer, capacity, 0, 0, 0]) } {
            Ok(0) => return,
            Ok(count) => count,
            Err(libc::EINTR) => continue,
            Err(_) => return,
        };
        // SAFETY: the buffer is aligned and holds at least a header's bytes.
        let command = unsafe { core::ptr::read(buffer as *const Command) };
        let spans = command.count as usize;
        let mut done = Done { error: libc::EINVAL as u32, reserved: 0, bytes: 0 };
        if command.operation == DROP && spans <= SPANS_MAX && count >= 8 + spans * 16 {
            done = drop_pages(itself, buffer + 8, spans);
        }
        let pointer = core::ptr::from_ref(&done) as usize;
        let flags = libc::MSG_NOSIGNAL as usize;
        // SAFETY: `done` outlives the call.
        if unsafe { call(libc::SYS_sendto, [socket, pointer, size_of::<Done>(), flags, 0, 0]) }.is_err() {
            return;
        }
    }
}

/// Drops the pages of `count` spans at `spans`.
fn drop_pages(itself: usize, spans: usize, count: usize) -> Done {
    // SAFETY: only ranges that the supervisor names are dropped, and it names
    // only pages of the arena that it has saved and write-protected.
    let all = unsafe {
        call(libc::SYS_process_madvise, [itself, spans, count, libc::MADV_DONTNEED as usize, 0, 0])
    };
    let mut total = 0;
    let mut dropped = all.unwrap_or(0);
    let mut done = Done::default();
    for index in 0..count {
        // SAFETY: inside the buffer, checked by the caller.
        let [start, length] = unsafe { core::ptr::read((spans + index * 16) as *const [usize; 2]) };
        total += length;
        if dropped >= length {
            dropped -= length;
            continue;
        }
        // Kernels before 6.13 refuse the vectored call; a hole stops it.
        dropped = 0;
        if let Err(error) = sys::madvise(start, length, libc::MADV_DONTNEED) {
            done.error = error as u32;
            total -= length;
        }
    }
    done.bytes = total as u64;
    done
}

/// The supervisor is gone and with it the memory that it kept: no thread may go on.
fn end_program() -> ! {
    const MESSAGE: &[u8] = b"tombolo: the supervisor of this program is gone, and the program's far memory with it: ending the program\n";
    // SAFETY: constant strings and this process's own identity.
    unsafe {
        // The agent has no standard error of its own: it would keep a pipe open.
        let path = c"/proc/self/fd/2".as_ptr() as usize;
        let flags = (libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY) as usize;
        if let Ok(descriptor) = call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) {
            let _ = call(libc::SYS_write, [descriptor, MESSAGE.as_ptr() as usize, MESSAGE.len(), 0, 0, 0]);
        }
        loop {
            let process = call(libc::SYS_getpid, [0; 6]).unwrap_or(0);
            let _ = call(libc::SYS_kill, [process, libc::SIGKILL as usize, 0, 0, 0, 0]);
        }
    }
}
