//! The agent: a process of the supervisor's inside the program's address space.
//!
//! A process that shares the program's memory (`CLONE_VM`) and nothing else, because
//! only from inside an address space can its pages be moved and dropped. It is no
//! thread of the program's: a stopped program's pages can be evicted, `unshare` and
//! `setns` find a program with one thread, and a seccomp filter that a program sets for
//! all its threads does not reach it. It makes the userfaultfd, hands it over, and
//! keeps a duplicate. It ends the program when the supervisor is gone; the supervisor
//! ends it when the program has ended or executed another one.
//!
//! It is no child of the program's either: a program that waits for all its children (`__WALL`, as strace
//! does) would wait for it. An intermediate process makes it and ends, and the kernel gives it to the reaper
//! of orphans: the supervisor, or the first process of another pid namespace. Only where the program itself
//! is that reaper would this make matters worse (an adopted child is seen by every `wait`), and there the agent
//! is its child, seen by `__WALL` and `__WCLONE` alone. No tracer of the program traces it.
//!
//! The program can write all of the agent's memory. So that a program which gives up
//! privileges cannot take them back through its agent, the agent gives up its own, and its system calls are
//! limited to those that it needs, on what it has (`limit_system_calls`).

use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::commands::{self, End};
use crate::sys::{self, call};
use crate::timing::RECHECK_MS;
use crate::{control, forking, start};
use tombolo_pager_protocol::{GATE_BYTES, Hello, VERSION, Welcome};

#[repr(C, align(4096))]
struct Stack<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);
// SAFETY: used by one process of this address space only; a forked child's uses the copy.
unsafe impl<const BYTES: usize> Sync for Stack<BYTES> {}
/// The agent's.
static STACK: Stack<{ 32 * 1024 }> = Stack::new();
/// The intermediate process's.
static INTERMEDIATE_STACK: Stack<{ 8 * 1024 }> = Stack::new();

impl<const BYTES: usize> Stack<BYTES> {
    const fn new() -> Self {
        Self(UnsafeCell::new([0; BYTES]))
    }

    fn top(&self) -> usize {
        self.0.get() as usize + BYTES
    }
}

/// Process id of the agent; 0 before it is made and when it has ended (the kernel writes both).
static AGENT: AtomicU32 = AtomicU32::new(0);
/// Process id of the intermediate process, likewise.
static INTERMEDIATE: AtomicU32 = AtomicU32::new(0);
/// Error number with which the intermediate process could make no agent, or 0.
static REFUSED: AtomicU32 = AtomicU32::new(0);

/// 0 while the agent introduces itself, then [`READY`] or an error number.
static STATUS: AtomicU32 = AtomicU32::new(0);
/// What a forked child's agent presents instead of a new userfaultfd.
static TOKEN: AtomicU64 = AtomicU64::new(0);
/// The process whose memory this is, as its own namespace numbers it.
static PROGRAM: AtomicU32 = AtomicU32::new(0);
/// Above every error number.
const READY: u32 = 1 << 16;

/// Starts the agent and waits until the supervisor has taken over.
pub fn start(token: u64) -> Result<(), i32> {
    STATUS.store(0, Ordering::Relaxed);
    // In a forked child, it has the number of the parent's.
    AGENT.store(0, Ordering::Relaxed);
    TOKEN.store(token, Ordering::Relaxed);
    // SAFETY: getpid(2) takes nothing.
    let program = unsafe { call(libc::SYS_getpid, [0; 6]) }?;
    PROGRAM.store(program as u32, Ordering::Relaxed);
    // The agent must never run a signal handler of the program's: it inherits a full mask.
    let mask = sys::set_signal_mask(u64::MAX);
    let made = if adopts_orphans() { spawn_agent().map(Some) } else { spawn_orphan().map(|()| None) };
    sys::set_signal_mask(mask);
    let child = made?;
    let error = loop {
        // Looked at first: an agent that has ended reports nothing any more.
        let agent = AGENT.load(Ordering::Acquire);
        match STATUS.load(Ordering::Acquire) {
            READY => return Ok(()),
            0 if agent == 0 => break libc::ESRCH,
            0 => {
                sys::futex_wait(&STATUS, 0, RECHECK_MS);
            }
            error => break error as i32,
        }
    };
    // Its stack may be used again.
    while let agent @ 1.. = AGENT.load(Ordering::Acquire) {
        sys::futex_wait(&AGENT, agent, RECHECK_MS);
    }
    if let Some(child) = child {
        reap(child);
    }
    Err(error)
}

/// Whether this address space has no agent, or has none any more.
pub fn has_ended() -> bool {
    AGENT.load(Ordering::Acquire) == 0
}

/// Whether this process adopts the orphans among its descendants: it is the first one of its pid namespace,
/// or has made itself a subreaper.
fn adopts_orphans() -> bool {
    let mut subreaper = 0i32;
    let pointer = core::ptr::from_mut(&mut subreaper) as usize;
    // SAFETY: an integer for the kernel to write.
    let asked =
        unsafe { call(libc::SYS_prctl, [libc::PR_GET_CHILD_SUBREAPER as usize, pointer, 0, 0, 0, 0]) };
    // SAFETY: the kernel has written it; the compiler does not know.
    let subreaper = unsafe { core::ptr::read_volatile(&raw const subreaper) };
    PROGRAM.load(Ordering::Relaxed) == 1 || (asked.is_ok() && subreaper != 0)
}

/// Makes the agent, a child of the calling process.
fn spawn_agent() -> sys::Result {
    // SAFETY: the stack is static and used by nothing else; `main` obeys the rules.
    unsafe { sys::spawn(STACK.top(), main, &AGENT) }
}

/// Makes the agent through an intermediate process: no child of this one.
fn spawn_orphan() -> Result<(), i32> {
    REFUSED.store(0, Ordering::Relaxed);
    // SAFETY: as for the agent.
    let intermediate = unsafe { sys::spawn(INTERMEDIATE_STACK.top(), intermediate_main, &INTERMEDIATE) }?;
    reap(intermediate);
    match REFUSED.load(Ordering::Acquire) {
        0 => Ok(()),
        error => Err(error as i32),
    }
}

extern "C" fn intermediate_main() -> ! {
    if let Err(error) = spawn_agent() {
        REFUSED.store(error as u32, Ordering::Release);
    }
    exit(0)
}

/// Waits for the end of a child that was made by `sys::spawn`, which other calls of wait(2) do not see.
fn reap(child: usize) {
    // SAFETY: no status is asked for.
    while unsafe { call(libc::SYS_wait4, [child, 0, libc::__WCLONE as usize, 0, 0, 0]) } == Err(libc::EINTR) {
    }
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
        // It keeps no file system busy, and is not as patient as its program may be.
        let _ = call(libc::SYS_chdir, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]);
        let _ = call(libc::SYS_setpriority, [libc::PRIO_PROCESS as usize, 0, 0, 0, 0, 0]);
        // The supervisor accepts no other: it reads memory by the agent's number, and must read none of a program with more privileges.
        let _ = call(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]);
    }
    match introduce() {
        Ok(held) => {
            // The program could use what an agent keeps: there is none then.
            if let Err(error) = drop_privileges().and_then(|()| limit_system_calls(&held)) {
                report(error.max(1) as u32);
                exit(error);
            }
            report(READY);
            match commands::obey(&held) {
                End::NothingToServe => exit(0),
                End::NoSupervisor { error } => end_program(&held, error),
            }
        }
        Err(error) => {
            report(error.max(1) as u32);
            exit(error)
        }
    }
}

/// Ends the agent. Its exit code is for the supervisor's messages: 0, or the number of the error that made it end.
fn exit(code: i32) -> ! {
    loop {
        // SAFETY: exit(2) ends the calling thread, the agent's only one.
        let _ = unsafe { call(libc::SYS_exit, [code as usize, 0, 0, 0, 0, 0]) };
    }
}

fn make_userfaultfd() -> sys::Result {
    // SAFETY: no memory is passed but a constant path.
    unsafe {
        call(libc::SYS_userfaultfd, [USERFAULTFD_FLAGS, 0, 0, 0, 0, 0]).or_else(|refused| {
            let path = c"/dev/userfaultfd".as_ptr() as usize;
            let device =
                call(libc::SYS_openat, [libc::AT_FDCWD as usize, path, libc::O_RDWR as usize, 0, 0, 0])
                    .map_err(|_| refused)?;
            make_by_device(device)
        })
    }
}

const USERFAULTFD_FLAGS: usize = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;

/// Makes a userfaultfd by the device, which is closed.
fn make_by_device(device: usize) -> sys::Result {
    const NEW: usize = 0xAA00;
    // SAFETY: integers.
    unsafe {
        let made = call(libc::SYS_ioctl, [device, NEW, USERFAULTFD_FLAGS, 0, 0, 0]);
        let _ = call(libc::SYS_close, [device, 0, 0, 0, 0, 0]);
        made
    }
}

/// Connects to the supervisor: by its socket's path, or without, where the path leads nowhere (after `chroot`) or other users may not
/// follow it.
fn connect() -> sys::Result {
    let mut result = Err(libc::ENOENT);
    for (address, size) in start::socket_addresses() {
        // SAFETY: the address is a static sockaddr_un; `size` is at most its size.
        result = unsafe {
            let kind = (libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC) as usize;
            let socket = call(libc::SYS_socket, [libc::AF_UNIX as usize, kind, 0, 0, 0, 0])?;
            let address = core::ptr::from_ref(address) as usize;
            call(libc::SYS_connect, [socket, address, size, 0, 0, 0]).map(|_| socket)
        };
        if result.is_ok() {
            break;
        }
    }
    result
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
        let address = sys::map(0, GATE_BYTES, protection, libc::MAP_SHARED, file as i32, 0)?;
        sys::advise(address, GATE_BYTES, libc::MADV_DONTFORK)?;
        Ok((file, address))
    }
}

/// Up to three descriptors' worth of SCM_RIGHTS.
#[repr(C, align(8))]
struct Rights {
    length: usize,
    level: i32,
    kind: i32,
    descriptors: [i32; 3],
}

impl Rights {
    fn new(descriptors: &[usize]) -> Self {
        let mut rights = Self {
            length: 16 + 4 * descriptors.len(),
            level: libc::SOL_SOCKET,
            kind: libc::SCM_RIGHTS,
            descriptors: [-1; 3],
        };
        for (target, &descriptor) in rights.descriptors.iter_mut().zip(descriptors) {
            *target = descriptor as i32;
        }
        rights
    }
}

/// What the agent holds: descriptors in its own table, and a mapping.
pub struct Held {
    /// To the supervisor.
    pub socket: usize,
    /// A duplicate of the supervisor's.
    pub userfaultfd: usize,
    /// A pidfd of the program.
    program: usize,
    /// Address of the gate.
    pub gate: usize,
    /// The agent's own process number, as it sees it.
    pub own_number: u32,
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

/// What the supervisor answers.
struct Welcomed {
    is_device: bool,
    /// A descriptor that came with the answer, or -1.
    received: i32,
}

/// Says hello and waits for the answer. `passed`: descriptors of the program and of the gate's memory.
fn say_hello(socket: usize, [program, file]: [usize; 2], userfaultfd: sys::Result) -> Result<Welcomed, i32> {
    let mut rights = match userfaultfd {
        Ok(userfaultfd) => Rights::new(&[program, userfaultfd, file]),
        Err(_) => Rights::new(&[program, file]),
    };
    let hello = Hello {
        version: VERSION,
        error: userfaultfd.err().unwrap_or(0) as u32,
        control: control::base() as u64,
        requests: control::requests_address() as u64,
        token: TOKEN.load(Ordering::Relaxed),
        // SAFETY: getpid(2) takes nothing.
        agent: unsafe { call(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as u64,
    };
    let pointer = core::ptr::from_ref(&hello) as usize;
    transfer(libc::SYS_sendmsg, socket, pointer, size_of::<Hello>(), &mut rights)?;
    rights = Rights::new(&[]);
    let mut welcome = Welcome { error: u32::MAX, is_device: 0 };
    let pointer = core::ptr::from_mut(&mut welcome) as usize;
    if transfer(libc::SYS_recvmsg, socket, pointer, size_of::<Welcome>(), &mut rights)? < size_of::<Welcome>()
    {
        return Err(libc::ECONNRESET);
    }
    // SAFETY: the kernel has written them; the compiler does not know.
    let (error, is_device, received) = unsafe {
        (
            core::ptr::read_volatile(&raw const welcome.error),
            core::ptr::read_volatile(&raw const welcome.is_device),
            core::ptr::read_volatile(&raw const rights.descriptors[0]),
        )
    };
    match error {
        0 => Ok(Welcomed { is_device: is_device != 0, received }),
        error => Err(error as i32),
    }
}

/// Introduces the agent to the supervisor; returns once that serves this address space.
fn introduce() -> Result<Held, i32> {
    let token = TOKEN.load(Ordering::Relaxed);
    // SAFETY: two integers in, a descriptor out.
    let program =
        unsafe { call(libc::SYS_pidfd_open, [PROGRAM.load(Ordering::Relaxed) as usize, 0, 0, 0, 0, 0])? };
    let socket = connect()?;
    let (file, gate) = make_gate()?;
    forking::set_gate(gate);
    let mut made = if token == 0 { make_userfaultfd() } else { Err(0) };
    let received = loop {
        match say_hello(socket, [program, file], made)? {
            // A program without privileges may make none by itself; the supervisor has lent it the device, once.
            Welcomed { is_device: true, received } if token == 0 && made.is_err() => {
                made = Ok(make_by_device(usize::try_from(received).map_err(|_| libc::EBADF)?)?);
            }
            Welcomed { is_device: true, .. } => return Err(libc::EPROTO),
            Welcomed { received, .. } => break received,
        }
    };
    // The supervisor sends the descriptor back to an agent that did not make it.
    let userfaultfd = made.or_else(|_| usize::try_from(received).map_err(|_| libc::EBADF))?;
    // SAFETY: the gate's own descriptor is not needed once it is mapped and sent.
    let _ = unsafe { call(libc::SYS_close, [file, 0, 0, 0, 0, 0]) };
    // SAFETY: takes nothing.
    let own_number = unsafe { call(libc::SYS_getpid, [0; 6]) }? as u32;
    Ok(Held { socket, userfaultfd, program, gate, own_number })
}

/// Of all privileges only that of ending the program remains, which may have another user by then. Taking another user itself would make the
/// program undumpable; this does not.
fn drop_privileges() -> Result<(), i32> {
    const VERSION_3: u32 = 0x2008_0522;
    const KILL: u32 = 1 << 5;
    let header = [VERSION_3, 0];
    // Effective, permitted and inheritable ones; those from the 32nd on behind them.
    let mut held = [0u32; 6];
    let (header, pointer) = (header.as_ptr() as usize, held.as_mut_ptr() as usize);
    // SAFETY: a header, and as much data as its version has.
    unsafe {
        call(libc::SYS_capget, [header, pointer, 0, 0, 0, 0])?;
        // The kernel has written it; the compiler does not know.
        let permitted = core::ptr::read_volatile(&raw const held[1]) & KILL;
        let kept = [permitted, permitted, 0, 0, 0, 0];
        call(libc::SYS_capset, [header, kept.as_ptr() as usize, 0, 0, 0, 0]).map(|_| ())
    }
}

/// What an argument of a system call has to be: 32 bits of it, from this offset on in what a filter sees.
#[derive(Clone, Copy)]
struct Is(u32, u32);

/// The low half of an argument, which is all that the kernel takes of descriptors, requests and signals.
const fn low(argument: u32) -> u32 {
    16 + 8 * argument
}

const fn high(argument: u32) -> u32 {
    low(argument) + 4
}

/// A filter of system calls that is being written.
struct Filter {
    steps: [libc::sock_filter; Self::STEPS_MAX],
    length: usize,
}

impl Filter {
    const STEPS_MAX: usize = 128;
    const LOAD_WORD: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const REFUSE: u32 = 0x0005_0000 | libc::EPERM as u32;
    const ALLOW: u32 = 0x7fff_0000;

    /// All calls of another architecture are refused.
    fn new() -> Self {
        const ARCHITECTURE_X86_64: u32 = 0xC000_003E;
        // What is not written refuses.
        let refusal = libc::sock_filter { code: Self::RETURN, jt: 0, jf: 0, k: Self::REFUSE };
        let mut filter = Self { steps: [refusal; Self::STEPS_MAX], length: 0 };
        filter.add(Self::LOAD_WORD, 4, 0);
        // Over the refusal behind it.
        filter.steps[1] = libc::sock_filter { code: Self::JUMP_EQUAL, jt: 1, jf: 0, k: ARCHITECTURE_X86_64 };
        filter.length = 3;
        filter
    }

    fn add(&mut self, code: u16, k: u32, otherwise: usize) {
        if let Some(step) = self.steps.get_mut(self.length) {
            *step = libc::sock_filter { code, jt: 0, jf: otherwise as u8, k };
        }
        self.length += 1;
    }

    /// Allows a call if all of that is so; else what is allowed after it counts.
    fn allow(&mut self, number: libc::c_long, conditions: &[Is]) {
        let end = self.length + 3 + 2 * conditions.len();
        self.add(Self::LOAD_WORD, 0, 0);
        self.add(Self::JUMP_EQUAL, number as u32, end - self.length - 1);
        for &Is(offset, value) in conditions {
            self.add(Self::LOAD_WORD, offset, 0);
            self.add(Self::JUMP_EQUAL, value, end - self.length - 1);
        }
        self.add(Self::RETURN, Self::ALLOW, 0);
    }

    /// Puts it in force for good. Where the kernel has no seccomp, there is none.
    fn install(&self) -> Result<(), i32> {
        const SET_MODE_FILTER: usize = 1;
        if self.length >= Self::STEPS_MAX {
            // The kernel would take what is behind it for a filter, or refuse it as if it had no filters.
            return Err(libc::E2BIG);
        }
        // With the refusal behind what was written.
        let program =
            libc::sock_fprog { len: self.length as u16 + 1, filter: self.steps.as_ptr().cast_mut() };
        let program = core::ptr::from_ref(&program) as usize;
        // SAFETY: a filter of the length given, copied by the kernel.
        match unsafe { call(libc::SYS_seccomp, [SET_MODE_FILTER, 0, program, 0, 0, 0]) } {
            Ok(_) | Err(libc::ENOSYS | libc::EINVAL) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// From now on this process can make only the system calls that an agent makes, on what an agent has. Where
/// the kernel has no seccomp, it goes on without.
fn limit_system_calls(held: &Held) -> Result<(), i32> {
    let mut filter = Filter::new();
    filter.allow(libc::SYS_ioctl, &[Is(low(0), held.userfaultfd as u32), Is(low(1), commands::MOVE as u32)]);
    for advice in [libc::MADV_DONTNEED, control::GUARD_INSTALL, control::GUARD_REMOVE] {
        filter.allow(libc::SYS_madvise, &[Is(low(2), advice as u32)]);
    }
    filter.allow(libc::SYS_process_vm_readv, &[Is(low(0), held.own_number)]);
    let (start, length) = control::area();
    let area = [Is(low(0), start as u32), Is(high(0), (start >> 32) as u32), Is(low(1), length as u32)];
    filter.allow(libc::SYS_munlock, &area);
    let staging = control::staging();
    for rights in control::STAGING_RIGHTS {
        let turned = [
            Is(low(0), staging as u32),
            Is(high(0), (staging >> 32) as u32),
            Is(low(1), control::STAGING_BYTES as u32),
            Is(high(1), 0),
            Is(low(2), rights as u32),
        ];
        filter.allow(libc::SYS_mprotect, &turned);
    }
    filter.allow(libc::SYS_read, &[Is(low(0), held.socket as u32)]);
    filter.allow(libc::SYS_sendto, &[Is(low(0), held.socket as u32), Is(low(4), 0), Is(high(4), 0)]);
    // Flags would send it to the program's group, where others may be.
    let kill = [
        Is(low(0), held.program as u32),
        Is(low(1), libc::SIGKILL as u32),
        Is(low(2), 0),
        Is(high(2), 0),
        Is(low(3), 0),
    ];
    filter.allow(libc::SYS_pidfd_send_signal, &kill);
    for harmless in
        [libc::SYS_sched_yield, libc::SYS_futex, libc::SYS_ppoll, libc::SYS_exit, libc::SYS_exit_group]
    {
        filter.allow(harmless, &[]);
    }
    filter.install()
}

/// Whether the supervisor has hung up.
pub fn has_lost_its_supervisor(held: &Held) -> bool {
    let mut socket = libc::pollfd { fd: held.socket as i32, events: 0, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let (pointer, time) = (core::ptr::from_mut(&mut socket) as usize, core::ptr::from_ref(&now) as usize);
    // SAFETY: one descriptor, and no wait.
    let polled = unsafe { call(libc::SYS_ppoll, [pointer, 1, time, 0, 0, 0]) };
    // SAFETY: the kernel has written it; the compiler does not know.
    let found = unsafe { core::ptr::read_volatile(&raw const socket.revents) };
    matches!(polled, Ok(1..)) && found & (libc::POLLHUP | libc::POLLERR) != 0
}

/// The supervisor is gone and with it the memory that it kept: no thread may go on. A program that has ended is there,
/// and takes signals, until its parent asks for its status, which may be never; its descriptor tells that it has.
pub fn end_program(held: &Held, error: i32) -> ! {
    loop {
        // SAFETY: a descriptor and integers.
        let sent =
            unsafe { call(libc::SYS_pidfd_send_signal, [held.program, libc::SIGKILL as usize, 0, 0, 0, 0]) };
        if sent.is_err() {
            exit(error);
        }
        let mut ended = libc::pollfd { fd: held.program as i32, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, for as long as it takes.
        let polled =
            unsafe { call(libc::SYS_ppoll, [core::ptr::from_mut(&mut ended) as usize, 1, 0, 0, 0, 0]) };
        match polled {
            Ok(1..) => exit(error),
            Ok(_) | Err(libc::EINTR) => {}
            Err(_) => {
                // SAFETY: sched_yield(2) takes nothing.
                let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
            }
        }
    }
}
