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

use crate::protocol::{Command, Done, Hello, PAGE_BYTES, SPANS_MAX, STAGING_PAGES, VERSION, Welcome};
use crate::sys::{self, call};
use crate::{arena, doorbell, start};

/// The agent's stack and buffers; one agent a process, and a forked child
/// starts its own over the copy.
#[repr(C, align(4096))]
struct Room {
    stack: [u8; 32 * 1024],
    spans: [u64; 2 * SPANS_MAX + 2],
}
struct Shared(UnsafeCell<Room>);
// SAFETY: used by the one agent of this address space only.
unsafe impl Sync for Shared {}
static ROOM: Shared = Shared(UnsafeCell::new(Room { stack: [0; 32 * 1024], spans: [0; 2 * SPANS_MAX + 2] }));

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
        Ok(held) => {
            report(READY);
            obey(&held);
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
            let device =
                call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, libc::O_RDWR as usize, 0, 0, 0])
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

/// What the agent has in its own descriptor table.
struct Held {
    socket: usize,
    userfaultfd: usize,
    /// A pidfd of this process.
    itself: usize,
}

/// Sends or receives one message with room for one descriptor; returns the bytes.
fn transfer(
    number: libc::c_long,
    socket: usize,
    buffer: usize,
    length: usize,
    rights: &mut Rights,
) -> sys::Result {
    let mut part = libc::iovec { iov_base: buffer as *mut libc::c_void, iov_len: length };
    // SAFETY: an all-zero msghdr is an empty message.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if rights.descriptor >= 0 || number == libc::SYS_recvmsg {
        message.msg_control = core::ptr::from_mut(rights).cast();
        message.msg_controllen = size_of::<Rights>();
    }
    let pointer = core::ptr::from_mut(&mut message) as usize;
    let flags = if number == libc::SYS_sendmsg { libc::MSG_NOSIGNAL as usize } else { 0 };
    loop {
        // SAFETY: the message refers to the caller's buffer and locals that outlive the call.
        match unsafe { call(number, [socket, pointer, flags, 0, 0, 0]) } {
            Err(libc::EINTR) => {}
            other => return other,
        }
    }
}

/// Says hello.
fn introduce() -> Result<Held, i32> {
    let token = TOKEN.load(Ordering::Relaxed);
    let socket = connect()?;
    let made = if token == 0 { make_userfaultfd() } else { Err(0) };
    let mut rights = Rights {
        length: 20,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        descriptor: made.map_or(-1, |descriptor| descriptor as i32),
        padding: 0,
    };
    let hello = Hello {
        version: VERSION,
        error: made.err().unwrap_or(0) as u32,
        arena: arena::base() as u64,
        arena_bytes: arena::length() as u64,
        request: doorbell::request_address() as u64,
        token,
        // SAFETY: gettid(2) takes nothing.
        thread: unsafe { call(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u64,
    };
    transfer(
        libc::SYS_sendmsg,
        socket,
        core::ptr::from_ref(&hello) as usize,
        size_of::<Hello>(),
        &mut rights,
    )?;
    rights.descriptor = -1;
    let mut welcome = Welcome { error: u32::MAX, reserved: 0 };
    let pointer = core::ptr::from_mut(&mut welcome) as usize;
    if transfer(libc::SYS_recvmsg, socket, pointer, size_of::<Welcome>(), &mut rights)? < size_of::<Welcome>()
    {
        return Err(libc::ECONNRESET);
    }
    // SAFETY: the kernel has written it; the compiler does not know.
    let error = unsafe { core::ptr::read_volatile(&raw const welcome.error) };
    if error != 0 {
        return Err(error as i32);
    }
    // The supervisor sends the descriptor back to whoever did not make it.
    let userfaultfd = made.or_else(|_| usize::try_from(rights.descriptor).map_err(|_| libc::EBADF))?;
    // SAFETY: two integers in, a descriptor out.
    let itself = unsafe {
        let process = call(libc::SYS_getpid, [0; 6])?;
        call(libc::SYS_pidfd_open, [process, 0, 0, 0, 0, 0])?
    };
    Ok(Held { socket, userfaultfd, itself })
}

/// Obeys commands until the supervisor hangs up.
fn obey(held: &Held) {
    const HEADER: usize = size_of::<Command>();
    let buffer = ROOM.0.get() as usize + core::mem::offset_of!(Room, spans);
    let capacity = (2 * SPANS_MAX + 2) * 8;
    loop {
        // SAFETY: the buffer is static, of that capacity, and the agent's alone.
        let count = match unsafe { call(libc::SYS_read, [held.socket, buffer, capacity, 0, 0, 0]) } {
            Ok(0) => return,
            Ok(count) => count,
            Err(libc::EINTR) => continue,
            Err(_) => return,
        };
        // SAFETY: the buffer is aligned and large enough.
        let command = unsafe { core::ptr::read_volatile(buffer as *const Command) };
        let (drop, move_out, unshare) =
            (command.drop as usize, command.move_out as usize, command.unshare as usize);
        let mut done =
            Done { drop_error: libc::EINVAL as u32, reserved: 0, moved: [libc::EINVAL as u8; STAGING_PAGES] };
        if drop.max(move_out).max(unshare) <= SPANS_MAX
            && count >= HEADER + (drop + move_out + unshare) * SPAN
        {
            let spans = buffer + HEADER;
            done.drop_error = drop_pages(held, spans, drop);
            move_pages(held, spans + drop * SPAN, move_out, &mut done.moved);
            unshare_pages(spans + (drop + move_out) * SPAN, unshare);
        }
        let pointer = core::ptr::from_ref(&done) as usize;
        let flags = libc::MSG_NOSIGNAL as usize;
        // SAFETY: `done` outlives the call.
        if unsafe { call(libc::SYS_sendto, [held.socket, pointer, size_of::<Done>(), flags, 0, 0]) }.is_err()
        {
            return;
        }
    }
}

/// Bytes of a span in a command.
const SPAN: usize = 16;

/// A span of a command: start and length.
fn span(spans: usize, index: usize) -> (usize, usize) {
    // SAFETY: inside the buffer, checked by `obey`.
    let [start, length] = unsafe { core::ptr::read_volatile((spans + index * SPAN) as *const [usize; 2]) };
    (start, length)
}

/// Drops the pages of `count` spans. Returns an error number, or 0.
fn drop_pages(held: &Held, spans: usize, count: usize) -> u32 {
    if count == 0 {
        return 0;
    }
    // SAFETY: only ranges that the supervisor names are dropped, and it names
    // only pages of the arena whose contents it has.
    let all = unsafe {
        call(libc::SYS_process_madvise, [held.itself, spans, count, libc::MADV_DONTNEED as usize, 0, 0])
    };
    let mut dropped = all.unwrap_or(0);
    let mut error = 0;
    for (start, length) in (0..count).map(|index| span(spans, index)) {
        if dropped >= length {
            dropped -= length;
            continue;
        }
        // Kernels before 6.13 refuse the vectored call; a hole stops it.
        dropped = 0;
        if let Err(refused) = sys::madvise(start, length, libc::MADV_DONTNEED) {
            error = refused as u32;
        }
    }
    error
}

/// Moves the pages of `count` spans to the staging area, one page after the
/// other. A page that the kernel has pinned (a device or io_uring writes to it)
/// does not move: that is the point.
fn move_pages(held: &Held, spans: usize, count: usize, moved: &mut [u8; STAGING_PAGES]) {
    const MOVE: usize = 0xC028_AA05;
    if count == 0 {
        return;
    }
    let staging = arena::base() + PAGE_BYTES;
    let _ = sys::madvise(staging, STAGING_PAGES * PAGE_BYTES, libc::MADV_DONTNEED);
    let mut index = 0;
    for (start, length) in (0..count).map(|index| span(spans, index)) {
        let end = (index + length / PAGE_BYTES).min(STAGING_PAGES);
        let mut source = start;
        while index < end {
            let mut request = [staging + index * PAGE_BYTES, source, (end - index) * PAGE_BYTES, 0, 0];
            let pointer = core::ptr::from_mut(&mut request) as usize;
            // SAFETY: both ranges are of the arena; the request outlives the call.
            let result = unsafe { call(libc::SYS_ioctl, [held.userfaultfd, MOVE, pointer, 0, 0, 0]) };
            // SAFETY: the kernel has written the count; the compiler does not know.
            let bytes = unsafe { core::ptr::read_volatile(&raw const request[4]) } as isize;
            let pages = if result.is_ok() { end - index } else { bytes.max(0) as usize / PAGE_BYTES };
            for status in moved.iter_mut().skip(index).take(pages) {
                *status = 0;
            }
            index += pages;
            source += pages * PAGE_BYTES;
            if let Err(error) = result
                && let Some(status) = moved.get_mut(index)
                && index < end
            {
                // The kernel says EAGAIN too when it moved less than all of it:
                // the next round shows the reason.
                if error == libc::EAGAIN && pages > 0 {
                    continue;
                }
                *status = error as u8;
                index += 1;
                source += PAGE_BYTES;
            }
        }
    }
}

/// Makes pages this process's own that a fork left shared.
fn unshare_pages(spans: usize, count: usize) {
    for (start, length) in (0..count).map(|index| span(spans, index)) {
        let _ = sys::madvise(start, length, libc::MADV_POPULATE_WRITE);
    }
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
