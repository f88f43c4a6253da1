//! The agent: the supervisor's hand inside the program.
//!
//! A process that shares the program's memory (`CLONE_VM`) and nothing else, because
//! only from inside an address space can its pages be moved and dropped. It is no
//! thread of the program's: a stopped program's pages can be evicted, `unshare` and
//! `setns` find a program with one thread, and a seccomp filter that a program sets for
//! all its threads does not reach it. It makes the userfaultfd, hands it over, and
//! keeps a duplicate. It ends the program when the supervisor is gone; the supervisor
//! ends it when the program has ended or executed another one.
//!
//! The program can write all of the agent's memory. So that a program which gives up
//! privileges cannot take them back through its agent, the agent's system calls are
//! limited to those that it needs (`limit_system_calls`).

use core::cell::UnsafeCell;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::protocol::{
    CANCELLED_OFFSET, Command, Done, GATE_AGENT, GATE_BYTES, GATE_FREE, GATE_OFFSET, GATE_WAITED_FOR, Hello,
    PAGE_BYTES, SPANS_MAX, STAGING_PAGES, VERSION, Welcome,
};
use crate::sys::{self, call};
use crate::{control, memory, start};

/// The agent's stack and buffers; one agent in an address space, and a forked child
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
/// The process whose memory this is, as its own namespace numbers it.
static PROGRAM: AtomicU32 = AtomicU32::new(0);
/// Where the gate is mapped; [`NO_AGENT`] in a child that could not start one.
static GATE: AtomicUsize = AtomicUsize::new(0);
const NO_AGENT: usize = usize::MAX;
/// Above every error number.
const READY: u32 = 1 << 16;

/// Whether this is a forked child for which nobody has tried to start an agent: it has not inherited the
/// gate. (After `vfork` the memory is the parent's, gate and all.)
pub fn is_missing() -> bool {
    let gate = GATE.load(Ordering::Acquire);
    // SAFETY: msync(2) with MS_ASYNC only looks whether the range is mapped.
    let mapped = || unsafe { call(libc::SYS_msync, [gate, PAGE_BYTES, libc::MS_ASYNC as usize, 0, 0, 0]) };
    gate != 0 && gate != NO_AGENT && mapped() == Err(libc::ENOMEM)
}

/// Starts the agent and waits until the supervisor has taken over.
pub fn start(token: u64) -> Result<(), i32> {
    GATE.store(NO_AGENT, Ordering::Release);
    STATUS.store(0, Ordering::Relaxed);
    TOKEN.store(token, Ordering::Relaxed);
    // SAFETY: getpid(2) takes nothing.
    let program = unsafe { call(libc::SYS_getpid, [0; 6]) }?;
    PROGRAM.store(program as u32, Ordering::Relaxed);
    let stack_top = ROOM.0.get() as usize + offset_of!(Room, stack) + 32 * 1024;
    // The agent must never run a signal handler of the program's: it inherits a full mask.
    let mask = sys::set_signal_mask(u64::MAX);
    // SAFETY: the stack is static and used by nothing else; `main` obeys the rules.
    let spawned = unsafe { sys::spawn(stack_top, main) };
    sys::set_signal_mask(mask);
    let agent = spawned?;
    loop {
        match STATUS.load(Ordering::Acquire) {
            0 => sys::futex_wait_briefly(&STATUS, 0),
            READY => return Ok(()),
            error => {
                let _ = wait_for(agent, 0);
                return Err(error as i32);
            }
        }
        if STATUS.load(Ordering::Acquire) == 0 && wait_for(agent, libc::WNOHANG) == Ok(agent) {
            // Killed before it could say anything.
            return Err(libc::ESRCH);
        }
    }
}

/// Waits for the end of an agent, which other calls of wait(2) do not see.
fn wait_for(agent: usize, flags: i32) -> sys::Result {
    // SAFETY: no status is asked for.
    unsafe { call(libc::SYS_wait4, [agent, 0, (flags | libc::__WCLONE) as usize, 0, 0, 0]) }
}

fn report(status: u32) {
    STATUS.store(status, Ordering::Release);
    sys::futex_wake(&STATUS, 64);
}

extern "C" fn main() -> ! {
    const NAME: &[u8] = b"tombolo-agent\0";
    // SAFETY: plain system calls on values of this function; the descriptor
    // table is the agent's own copy, so closing all of it harms nobody. A session of
    // its own keeps signals to the program's process group away from it.
    unsafe {
        let _ = call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, NAME.as_ptr() as usize, 0, 0, 0, 0]);
        let _ = call(libc::SYS_close_range, [0, u32::MAX as usize, 0, 0, 0, 0]);
        let _ = call(libc::SYS_setsid, [0; 6]);
    }
    match introduce() {
        Ok(held) => {
            limit_system_calls();
            report(READY);
            obey(&held);
            end_program(&held)
        }
        Err(error) => {
            report(error.max(1) as u32);
            leave()
        }
    }
}

/// Ends the agent.
fn leave() -> ! {
    loop {
        // SAFETY: exit(2) ends the calling thread, the agent's only one.
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

/// Makes the gate's memory; returns its descriptor and its address. A forked child
/// does not inherit it.
fn make_gate() -> Result<(usize, usize), i32> {
    const CLOEXEC_AND_SEALING: usize = 1 | 2;
    // SAFETY: a constant name; a new mapping at an address of the kernel's choice.
    unsafe {
        let name = c"tombolo-gate".as_ptr() as usize;
        let file = call(libc::SYS_memfd_create, [name, CLOEXEC_AND_SEALING, 0, 0, 0, 0])?;
        call(libc::SYS_ftruncate, [file, GATE_BYTES, 0, 0, 0, 0])?;
        // The supervisor maps it, and must not meet its end.
        let seals = (libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL) as usize;
        call(libc::SYS_fcntl, [file, libc::F_ADD_SEALS as usize, seals, 0, 0, 0])?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let address = sys::mmap(0, GATE_BYTES, protection, libc::MAP_SHARED, file as i32, 0)?;
        sys::madvise(address, GATE_BYTES, libc::MADV_DONTFORK)?;
        GATE.store(address, Ordering::Release);
        Ok((file, address))
    }
}

/// Up to two descriptors' worth of SCM_RIGHTS.
#[repr(C, align(8))]
struct Rights {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; 2],
}

impl Rights {
    fn new(descriptors: &[usize]) -> Self {
        let mut rights = Self {
            length: 16 + 4 * descriptors.len(),
            level: libc::SOL_SOCKET,
            kind: libc::SCM_RIGHTS,
            descriptors: [-1; 2],
        };
        for (target, &descriptor) in rights.descriptors.iter_mut().zip(descriptors) {
            *target = descriptor as i32;
        }
        rights
    }
}

/// What the agent has in its own descriptor table.
struct Held {
    socket: usize,
    userfaultfd: usize,
    /// A pidfd of the program.
    program: usize,
    /// Address of the gate.
    gate: usize,
}

/// Sends or receives one message with descriptors; returns the bytes.
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
    message.msg_controllen =
        if number == libc::SYS_sendmsg { rights.length.next_multiple_of(8) } else { size_of::<Rights>() };
    message.msg_control = core::ptr::from_mut(rights).cast();
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
    // SAFETY: two integers in, a descriptor out.
    let program =
        unsafe { call(libc::SYS_pidfd_open, [PROGRAM.load(Ordering::Relaxed) as usize, 0, 0, 0, 0, 0])? };
    let socket = connect()?;
    let (file, gate) = make_gate()?;
    let made = if token == 0 { make_userfaultfd() } else { Err(0) };
    let mut rights = match made {
        Ok(userfaultfd) => Rights::new(&[userfaultfd, file]),
        Err(_) => Rights::new(&[file]),
    };
    let hello = Hello {
        version: VERSION,
        error: made.err().unwrap_or(0) as u32,
        control: control::base() as u64,
        requests: control::requests_address() as u64,
        token,
        // SAFETY: getpid(2) takes nothing.
        agent: unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u64,
    };
    let pointer = core::ptr::from_ref(&hello) as usize;
    transfer(libc::SYS_sendmsg, socket, pointer, size_of::<Hello>(), &mut rights)?;
    rights = Rights::new(&[]);
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
    // SAFETY: as above.
    let received = unsafe { core::ptr::read_volatile(&raw const rights.descriptors[0]) };
    // The supervisor sends the descriptor back to an agent that did not make it.
    let userfaultfd = made.or_else(|_| usize::try_from(received).map_err(|_| libc::EBADF))?;
    // SAFETY: the gate's own descriptor is not needed once it is mapped and sent.
    let _ = unsafe { call(libc::SYS_close, [file, 0, 0, 0, 0, 0]) };
    Ok(Held { socket, userfaultfd, program, gate })
}

/// From now on this process can make only the system calls that an agent makes. Where
/// the kernel has no seccomp, it goes on without.
fn limit_system_calls() {
    const ALLOWED: [libc::c_long; 9] = [
        libc::SYS_ioctl,
        libc::SYS_madvise,
        libc::SYS_read,
        libc::SYS_sendto,
        libc::SYS_sched_yield,
        libc::SYS_futex,
        libc::SYS_pidfd_send_signal,
        libc::SYS_exit,
        libc::SYS_exit_group,
    ];
    const LOAD_WORD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const ARCHITECTURE_X86_64: u32 = 0xC000_003E;
    const ERRNO: u32 = 0x0005_0000;
    const ALLOW: u32 = 0x7fff_0000;
    let step = |code: u16, k: u32, yes: u8, no: u8| libc::sock_filter { code, jt: yes, jf: no, k };
    let count = ALLOWED.len();
    let mut filter = [step(RETURN, ERRNO | libc::EPERM as u32, 0, 0); 16];
    filter[0] = step(LOAD_WORD, 4, 0, 0);
    filter[1] = step(JUMP_EQUAL, ARCHITECTURE_X86_64, 0, count as u8 + 1);
    filter[2] = step(LOAD_WORD, 0, 0, 0);
    for (index, &number) in ALLOWED.iter().enumerate() {
        // Past the other comparisons and the refusal.
        filter[3 + index] = step(JUMP_EQUAL, number as u32, (count - index) as u8, 0);
    }
    filter[3 + count] = step(RETURN, ERRNO | libc::EPERM as u32, 0, 0);
    filter[4 + count] = step(RETURN, ALLOW, 0, 0);
    let program = libc::sock_fprog { len: 5 + count as u16, filter: filter.as_mut_ptr() };
    const SET_MODE_FILTER: usize = 1;
    // SAFETY: a filter of the length given, copied by the kernel.
    unsafe {
        let _ = call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]);
        let _ =
            call(libc::SYS_seccomp, [SET_MODE_FILTER, 0, core::ptr::from_ref(&program) as usize, 0, 0, 0]);
    }
}

/// Obeys commands until the supervisor hangs up. Its last command, of number 0, says
/// that there is no program left to serve.
fn obey(held: &Held) {
    const HEADER: usize = size_of::<Command>();
    let buffer = ROOM.0.get() as usize + offset_of!(Room, spans);
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
        if command.number == 0 {
            leave();
        }
        let (move_out, drop, unshare) =
            (command.move_out as usize, command.drop as usize, command.unshare as usize);
        let mut done =
            Done { number: command.number, dropped: 0, moved: [libc::EINVAL as u8; STAGING_PAGES] };
        if drop.max(move_out).max(unshare) <= SPANS_MAX
            && count >= HEADER + (drop + move_out + unshare) * SPAN
        {
            let spans = buffer + HEADER;
            move_pages(held, command.number, spans, move_out, &mut done.moved);
            done.dropped = drop_pages(held, command.number, spans + move_out * SPAN, drop) as u32;
            unshare_pages(held, command.number, spans + (move_out + drop) * SPAN, unshare);
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

/// Drops the pages of `count` spans, which cannot be moved; returns how many spans
/// were dropped. The supervisor hears of each from the kernel, and knows that it is ours.
fn drop_pages(held: &Held, command: u32, spans: usize, count: usize) -> usize {
    (0..count)
        .take_while(|&index| {
            let (start, length) = span(spans, index);
            // A change of libc's that was before this drop has cancelled the command by now.
            memory::while_unchanged(|| {
                through_gate(held, command, || ()).is_some()
                    && sys::madvise(start, length, libc::MADV_DONTNEED).is_ok()
            }) == Some(true)
        })
        .count()
}

fn gate_word(held: &Held, offset: usize) -> &'static AtomicU32 {
    // SAFETY: the gate's memory stays mapped as long as the agent lives, and is accessed atomically only.
    unsafe { &*((held.gate + offset) as *const AtomicU32) }
}

/// Runs `work` while the supervisor reads no event. `None`: the command was cancelled.
fn through_gate<T>(held: &Held, command: u32, work: impl FnOnce() -> T) -> Option<T> {
    const SPIN: u32 = 1000;
    let gate = gate_word(held, GATE_OFFSET);
    let mut spins = 0;
    while let Err(holder) = gate.compare_exchange(GATE_FREE, GATE_AGENT, Ordering::Acquire, Ordering::Relaxed)
    {
        spins += 1;
        core::hint::spin_loop();
        // Whoever holds it this long has lost its processor.
        let waited = holder | GATE_WAITED_FOR;
        if spins % SPIN == 0
            && (holder == waited
                || gate.compare_exchange(holder, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok())
        {
            sys::futex_wait_briefly(gate, waited);
        }
    }
    let cancelled = gate_word(held, CANCELLED_OFFSET).load(Ordering::Acquire) == command;
    let result = (!cancelled).then(work);
    if gate.swap(GATE_FREE, Ordering::Release) & GATE_WAITED_FOR != 0 {
        sys::futex_wake(gate, 1);
    }
    result
}

/// Pages moved by one system call while the gate is held: a fault waits for them.
const PAGES_AT_ONCE: usize = 4;

/// Moves the pages of `count` spans to the staging area, one page after the
/// other. A page that the kernel has pinned (a device or io_uring writes to it)
/// does not move: that is the point.
fn move_pages(held: &Held, command: u32, spans: usize, count: usize, moved: &mut [u8; STAGING_PAGES]) {
    if count == 0 {
        return;
    }
    control::clear_staging();
    let staging = control::staging();
    let mut index = 0;
    for (start, length) in (0..count).map(|index| span(spans, index)) {
        let end = (index + length / PAGE_BYTES).min(STAGING_PAGES);
        let mut source = start;
        // Alone after a refusal, so that each page gets its own reason.
        let mut at_once = PAGES_AT_ONCE;
        while index < end {
            let pages = at_once.min(end - index);
            let target = staging + index * PAGE_BYTES;
            let done = through_gate(held, command, || move_some(held, target, source, pages));
            let (count, error) = done.unwrap_or((0, libc::ECANCELED));
            for status in moved.iter_mut().skip(index).take(count) {
                *status = 0;
            }
            index += count;
            source += count * PAGE_BYTES;
            if error == 0 {
                at_once = PAGES_AT_ONCE;
                continue;
            }
            // After a part, the kernel says EAGAIN whatever the reason is.
            if (pages > 1 || count > 0) && error != libc::ECANCELED {
                at_once = 1;
                continue;
            }
            if let Some(status) = moved.get_mut(index) {
                *status = error as u8;
            }
            index += 1;
            source += PAGE_BYTES;
        }
    }
}

/// Moves up to `pages` pages; returns how many were moved, and why no more (0: all were).
fn move_some(held: &Held, target: usize, source: usize, pages: usize) -> (usize, i32) {
    const MOVE: usize = 0xC028_AA05;
    let mut request = [target, source, pages * PAGE_BYTES, 0, 0];
    let pointer = core::ptr::from_mut(&mut request) as usize;
    // SAFETY: the target is the staging area, the source a range that the supervisor names; the
    // request outlives the call.
    let result = unsafe { call(libc::SYS_ioctl, [held.userfaultfd, MOVE, pointer, 0, 0, 0]) };
    match result {
        Ok(_) => (pages, 0),
        Err(error) => {
            // SAFETY: the kernel has written the count; the compiler does not know.
            let bytes = unsafe { core::ptr::read_volatile(&raw const request[4]) } as isize;
            (bytes.max(0) as usize / PAGE_BYTES, error)
        }
    }
}

/// Makes pages this process's own that a fork left shared.
fn unshare_pages(held: &Held, command: u32, spans: usize, count: usize) {
    for (start, length) in (0..count).map(|index| span(spans, index)) {
        if through_gate(held, command, || ()).is_some() {
            let _ = sys::madvise(start, length, libc::MADV_POPULATE_WRITE);
        }
    }
}

/// The supervisor is gone and with it the memory that it kept: no thread may go on.
fn end_program(held: &Held) -> ! {
    loop {
        // SAFETY: a descriptor and integers.
        let sent =
            unsafe { call(libc::SYS_pidfd_send_signal, [held.program, libc::SIGKILL as usize, 0, 0, 0, 0]) };
        if sent.is_err() {
            leave();
        }
        // SAFETY: sched_yield(2) takes nothing.
        let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
    }
}
