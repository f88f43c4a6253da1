//! `mmap` and its family: large anonymous private mappings are far.
//!
//! A mapping is made by the kernel, at the address and with the rights that the
//! kernel alone decides, and then registered with the supervisor. What happens to it
//! later, the supervisor hears from the kernel. So most of the family is not here at
//! all; these are the calls of which the kernel reports nothing, and those that must
//! not pass the agent while it drops pages ([`change`]).
//!
//! Each exported symbol (`no_mangle`) has the name, the arguments and the meaning of libc's, which it takes the place of.

use core::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_uint, c_void, off_t, size_t, ssize_t};

use crate::control::{GUARD_INSTALL, GUARD_REMOVE};
use crate::sys;
use crate::timing::{FORK_IDLE_LOOKS, FORK_LOOK_MS, LOCALISE_RETRY_US, LOCALISE_TRIES, RECHECK_MS};
use crate::{agent, control, forking, start};
use tombolo_interpose::errno::{self, with_errno};
use tombolo_interpose::real::Real;
use tombolo_interpose::thread;
use tombolo_pager_protocol::{
    CHANGES_OFFSET, GUARD, GUARDED, IS_PARTLY_UNKNOWN, LOCALISE, LOCALISE_ANONYMOUS, PAGE_BYTES, REGISTER,
};

/// Mappings with these flags stay local.
const UNFIT: c_int =
    libc::MAP_SHARED | libc::MAP_GROWSDOWN | libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_STACK;

/// The thread inside a call that unmaps or moves memory, or that forks; 0: none. One at a time: the kernel
/// reports such calls after they were made, and two of them perhaps in another order.
static CHANGING: AtomicU32 = AtomicU32::new(0);

/// Tells the supervisor that a call of libc's changes mappings, so that it takes the kernel's report for no change
/// of which nothing here knows. Only the thread in [`CHANGING`] calls it. A thread that was
/// killed there may have left an odd count or an even one.
fn announce() {
    if let Some(gate) = forking::gate() {
        let odd = (changes(gate).load(Ordering::SeqCst) | 1).wrapping_add(2);
        changes(gate).store(odd, Ordering::SeqCst);
    }
}

fn end_announcement() {
    if let Some(gate) = forking::gate() {
        let even = (changes(gate).load(Ordering::SeqCst) | 1).wrapping_add(1);
        changes(gate).store(even, Ordering::SeqCst);
    }
}

fn changes(gate: usize) -> &'static AtomicU32 {
    // SAFETY: a gate's memory stays mapped in the address space that it was made in, and is accessed atomically only.
    unsafe { &*((gate + CHANGES_OFFSET) as *const AtomicU32) }
}

/// 1: the thread in [`CHANGING`] forks, and may wait for locks of libc's and of the program's fork handlers.
static FORKING: AtomicU32 = AtomicU32::new(0);
/// The agent is dropping pages that cannot be moved (see `commands::drop_pages`).
static DROPPING: AtomicU32 = AtomicU32::new(0);

/// Runs a call that unmaps or moves memory while the agent drops nothing: a range
/// that the agent is about to drop must not become another mapping before it does.
fn change(work: impl FnOnce() -> sys::Result) -> sys::Result {
    let taken = take_changing();
    wait_for_drops();
    let result = work();
    if taken {
        release_changing();
    }
    result
}

/// Before a fork: no other thread unmaps or moves memory until [`release_after_fork`]. `false`: the fork does
/// not hold that right, and there is nothing to release.
pub fn hold_for_fork() -> bool {
    let taken = take_changing();
    wait_for_drops();
    taken
}

/// What holds for a fork goes on to libc, where it may wait for others. Until now it has waited for the supervisor alone, which takes as long as
/// it takes, and who waits for this thread must not think that it waits for a lock.
pub fn begin_fork() {
    FORKING.store(1, Ordering::SeqCst);
    // Those who wait already look more often from now on.
    sys::futex_wake(&CHANGING, i32::MAX as usize);
}

/// In the parent.
pub fn release_after_fork() {
    FORKING.store(0, Ordering::SeqCst);
    release_changing();
}

fn wait_for_drops() {
    while DROPPING.load(Ordering::SeqCst) != 0 {
        // In a child that was made by a raw system call, it is the parent's agent that was at it.
        forking::attach_if_forked();
        if agent::has_ended() {
            // It was killed at it.
            DROPPING.store(0, Ordering::SeqCst);
            sys::futex_wake(&DROPPING, i32::MAX as usize);
            return;
        }
        sys::futex_wait(&DROPPING, 1, RECHECK_MS);
    }
}

/// A waiting thread asks whether the holder lives when a wait has timed out, and after this number of waits that signals or wake-ups ended.
const WAITS_PER_LOOK: u32 = 256;

/// Waits until no other thread is in such a call. `false`: nothing is to be released, because this one is
/// already in one, which a signal handler has interrupted, or because a fork waits for this one.
fn take_changing() -> bool {
    let mut own = thread::thread_id();
    if CHANGING.load(Ordering::Relaxed) == own {
        // Or it is another one's, which shares libc's structure of a thread with this one.
        own = thread::ask_thread_id();
        if CHANGING.load(Ordering::Relaxed) == own {
            return false;
        }
    }
    let (mut used, mut idle_looks, mut waits) = (0, 0, 0u32);
    while let Err(holder) = CHANGING.compare_exchange(0, own, Ordering::SeqCst, Ordering::SeqCst) {
        // In a child that was made by a raw system call, it is a thread of the parent: forget it.
        forking::attach_if_forked();
        let is_look = if FORKING.load(Ordering::SeqCst) != 0 {
            let is_look = sys::futex_wait(&CHANGING, holder, FORK_LOOK_MS);
            let now = sys::processor_time_ns(holder);
            if now != used {
                (used, idle_looks) = (now, 0);
            } else if is_look {
                idle_looks += 1;
            }
            if idle_looks == FORK_IDLE_LOOKS {
                return false;
            }
            false
        } else {
            sys::futex_wait(&CHANGING, holder, RECHECK_MS)
        };
        waits += 1;
        // A holder that has died was killed inside the call. Asking takes system calls that libc does not make, and that a sandboxed
        // program may have forbidden itself: so it is done seldom.
        if (is_look || waits.is_multiple_of(WAITS_PER_LOOK))
            && !thread::shares_memory(holder)
            && CHANGING.compare_exchange(holder, own, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            break;
        }
    }
    announce();
    true
}

fn release_changing() {
    end_announcement();
    CHANGING.store(0, Ordering::SeqCst);
    sys::futex_wake(&CHANGING, 1);
}

/// For the agent: runs `work` while no libc call unmaps or moves memory. `None`: one does.
pub fn while_unchanged<T>(work: impl FnOnce() -> T) -> Option<T> {
    DROPPING.store(1, Ordering::SeqCst);
    let result = (CHANGING.load(Ordering::SeqCst) == 0).then(work);
    DROPPING.store(0, Ordering::SeqCst);
    sys::futex_wake(&DROPPING, i32::MAX as usize);
    result
}

/// In a forked child: the parent's other threads, and its agent, do not exist here.
pub fn forget_other_threads() {
    CHANGING.store(0, Ordering::Relaxed);
    FORKING.store(0, Ordering::Relaxed);
    DROPPING.store(0, Ordering::Relaxed);
}

fn as_pointer(result: sys::Result) -> *mut c_void {
    with_errno(result) as *mut c_void
}

#[unsafe(no_mangle)]
pub extern "C" fn mmap(
    hint: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let map = |flags| sys::map(hint as usize, length, protection, flags, descriptor, offset);
    let anonymous = flags & (ANONYMOUS | libc::MAP_SHARED) == ANONYMOUS;
    // Pages of code that nobody writes cannot be moved, only dropped.
    let is_code = protection & (libc::PROT_WRITE | libc::PROT_EXEC) == libc::PROT_EXEC;
    let far = anonymous && flags & UNFIT == 0 && !is_code && start::wants(length);
    // What can be larger than this machine's memory must not be counted against it; and pages that are
    // mapped at once would be so behind the supervisor's back.
    let flags = if far { flags & !libc::MAP_POPULATE | libc::MAP_NORESERVE } else { flags };
    let mapped = if flags & libc::MAP_FIXED != 0 { change(|| map(flags)) } else { map(flags) };
    if far && let Ok(address) = mapped {
        let bytes = length.next_multiple_of(PAGE_BYTES);
        forking::attach_if_forked();
        // Not served (a child without an agent): the mapping is local, and right.
        let _ = control::ask(REGISTER, address, bytes);
    }
    as_pointer(mapped)
}

#[unsafe(no_mangle)]
pub extern "C" fn mmap64(
    hint: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    mmap(hint, length, protection, flags, descriptor, offset)
}

#[unsafe(no_mangle)]
pub extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    with_errno(change(|| sys::unmap(address as usize, length))) as c_int
}

/// The variadic fifth argument arrives in its register whether it was passed or not.
#[unsafe(no_mangle)]
pub extern "C" fn mremap(
    address: *mut c_void,
    old_length: size_t,
    new_length: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let start = address as usize;
    let remap = || change(|| sys::remap(start, old_length, new_length, flags, target as usize));
    let mut remapped = remap();
    // The kernel takes a range for several mappings of which a part is local, and refuses to let that grow or move, before
    // anything has happened. What was to go to a given place may have gone there in part.
    if remapped == Err(libc::EFAULT) && flags & libc::MREMAP_FIXED == 0 && unite(start, old_length) {
        remapped = remap();
    }
    as_pointer(remapped)
}

/// A kernel that merges no pages (KSM) says this. One that does forgets the write protection of those that it merges: what the program
/// writes to them would be known to nobody.
const NO_MERGING: c_int = libc::EINVAL;

/// Gives advice. Of some, the kernel reports nothing: far memory becomes local before.
fn advise(start: usize, length: usize, advice: c_int) -> sys::Result {
    match advice {
        GUARD_INSTALL if start::far() => change(|| guard(start, length)),
        // Not between the steps of the other.
        GUARD_REMOVE if start::far() => change(|| sys::advise(start, length, advice)),
        // A forked child finds zeroes there: the kernel alone knows, so the range is local from now on, as far as the kernel takes the
        // advice.
        libc::MADV_WIPEONFORK if start::far() => {
            make_local(LOCALISE_ANONYMOUS, start, length)?;
            sys::advise(start, length, advice)
        }
        libc::MADV_MERGEABLE if start::far() => Err(NO_MERGING),
        _ => sys::advise(start, length, advice),
    }
}

/// Installs guards: the kernel drops the pages and reports nothing, and a page that is mapped takes a guard away. So the supervisor maps
/// none unasked there from now on; then the kernel does what it does alone; and what is stored of the pages that have guards now is
/// given up. A page that has come over a guard meanwhile goes by installing it again. A child that is forked between these steps would have
/// the guards and what is stored: so no fork comes between.
fn guard(start: usize, length: usize) -> sys::Result {
    let install = |bytes| sys::advise(start, bytes, GUARD_INSTALL);
    let whole = length.checked_next_multiple_of(PAGE_BYTES).filter(|whole| *whole > 0);
    let whole = whole.filter(|whole| is_whole_pages(start, *whole));
    // A kernel that has no guards refuses none, too.
    let Some(whole) = whole.filter(|_| install(0).is_ok()) else {
        // The kernel says what is wrong with it.
        return install(length);
    };
    forking::attach_if_forked();
    let ask = |operation, bytes| control::ask(operation, start, bytes).ok_or(libc::ENOMEM);
    ask(GUARD, whole)?;
    let installed = install(length);
    // It goes on behind a hole, and stops at a mapping that it refuses.
    let is_whole = |bytes, installed| match installed {
        Ok(_) => true,
        Err(error) => error == libc::ENOMEM && !sys::is_mapped(start, bytes),
    };
    let (mut guarded, mut refused) = if is_whole(whole, installed) { (whole, whole) } else { (0, whole) };
    // Where it stopped: what it has done before it does again.
    while refused - guarded > PAGE_BYTES {
        let middle = guarded + (refused - guarded) / PAGE_BYTES / 2 * PAGE_BYTES;
        if is_whole(middle, install(middle)) {
            guarded = middle;
        } else {
            refused = middle;
        }
    }
    if guarded > 0 && ask(GUARDED, guarded).is_ok() {
        let _ = install(guarded);
    }
    installed
}

fn is_whole_pages(start: usize, length: usize) -> bool {
    start.is_multiple_of(PAGE_BYTES) && start.checked_add(length).is_some()
}

#[unsafe(no_mangle)]
pub extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    let start = address as usize;
    let advised = advise(start, length, advice);
    if advice == libc::MADV_FREE && advised.is_ok() && start::far() {
        // Pages may be dropped at any time; at once is one of them, and counts as free at once.
        let _ = sys::advise(start, length, libc::MADV_DONTNEED);
    }
    with_errno(advised) as c_int
}

/// As [`madvise`] for pieces of this process. Of another process's memory the kernel takes no advice that [`advise`] prepares.
#[unsafe(no_mangle)]
pub extern "C" fn process_madvise(
    process: c_int,
    pieces: *const libc::iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    let call = |pieces: usize, count, advice: c_int| {
        let arguments = [process as usize, pieces, count, advice as usize, flags as usize, 0];
        // SAFETY: what a program may pass to process_madvise(2) is the program's business.
        unsafe { sys::call(libc::SYS_process_madvise, arguments) }
    };
    let pieces = pieces as usize;
    let is_prepared = start::far()
        && matches!(advice, GUARD_INSTALL | GUARD_REMOVE | libc::MADV_WIPEONFORK | libc::MADV_MERGEABLE);
    // Without pieces it does nothing, and is refused if it is not for this process.
    let advised = if is_prepared && call(0, 0, advice).is_ok() {
        // The kernel takes no more of the number.
        let count = count as u32 as usize;
        // It looks at the whole vector before it asks what the advice is.
        const NO_ADVICE: c_int = -1;
        match call(pieces, count, NO_ADVICE) {
            Err(libc::EINVAL) if count <= libc::UIO_MAXIOV as usize => advise_pieces(pieces, count, advice),
            refused => refused,
        }
    } else {
        call(pieces, count, advice)
    };
    with_errno(advised) as ssize_t
}

/// A process that has far memory has none of its memory merged (see [`NO_MERGING`]).
///
/// The variadic arguments arrive in their registers whether they were passed or not.
#[unsafe(no_mangle)]
pub extern "C" fn prctl(option: c_int, second: usize, third: usize, fourth: usize, fifth: usize) -> c_int {
    let result = if option == sys::SET_MEMORY_MERGE && second != 0 && start::far() {
        Err(NO_MERGING)
    } else {
        // SAFETY: what a program may pass to prctl(2) is the program's business.
        unsafe { sys::call(libc::SYS_prctl, [option as usize, second, third, fourth, fifth, 0]) }
    };
    with_errno(result) as c_int
}

/// `UFFDIO_REGISTER`.
const REGISTER_FOR_FAULTS: u32 = 0xc020_aa00;

/// A program that serves page faults of its own memory gets it back first: a range has one userfaultfd at most.
///
/// The variadic third argument arrives in its register whether it was passed or not.
///
/// # Safety
///
/// As the manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(descriptor: c_int, request: libc::c_ulong, argument: usize) -> c_int {
    let real = CONTROL.address();
    // SAFETY: what a program may pass to ioctl(2) is the program's business; the address is libc's function of that name, or that of
    // another library that replaces it.
    let call = || unsafe {
        if real == 0 {
            let arguments = [descriptor as usize, request as usize, argument, 0, 0, 0];
            return with_errno(sys::call(libc::SYS_ioctl, arguments)) as c_int;
        }
        core::mem::transmute::<usize, Control>(real)(descriptor, request, argument)
    };
    let result = call();
    // The kernel has found that the range is another userfaultfd's, and nothing else wrong.
    if result < 0 && request as u32 == REGISTER_FOR_FAULTS && errno::errno() == libc::EBUSY && start::far() {
        let mut range: Piece = [0; 2];
        if sys::read_own(argument, &mut range).is_err() {
            // A filter forbids that call.
            // SAFETY: the kernel has read it just now.
            range = unsafe { (argument as *const Piece).read_volatile() };
        }
        if localise(range[0], range[1]).is_ok() {
            return call();
        }
        errno::set_errno(libc::EBUSY);
    }
    result
}

pub static CONTROL: Real = Real::new(c"ioctl");
type Control = unsafe extern "C" fn(c_int, libc::c_ulong, ...) -> c_int;

/// Where a piece begins, and its length.
type Piece = [usize; 2];

/// Gives advice on the pieces of a vector, read before the first is given: the vector may lie in one of them.
fn advise_pieces(pieces: usize, count: usize, advice: c_int) -> sys::Result {
    // A signal handler's stack may be small.
    const FEW: usize = 16;
    if count <= FEW {
        return read_and_advise(pieces, &mut [[0; 2]; FEW][..count], advice);
    }
    let (bytes, flags) = (count * size_of::<Piece>(), libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let room = sys::map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    // SAFETY: new memory of that size, aligned to pages, full of zeroes, which nobody else has.
    let known = unsafe { core::slice::from_raw_parts_mut(room as *mut Piece, count) };
    let advised = read_and_advise(pieces, known, advice);
    let _ = sys::unmap(room, bytes);
    advised
}

fn read_and_advise(pieces: usize, known: &mut [Piece], advice: c_int) -> sys::Result {
    for (index, piece) in known.iter_mut().enumerate() {
        let at = pieces.wrapping_add(index * size_of::<libc::iovec>());
        match sys::read_own(at, piece) {
            // A filter forbids that call.
            // SAFETY: the kernel has read the vector just now; a program that unmaps it meanwhile gets its SIGSEGV.
            Err(libc::EPERM | libc::ENOSYS) => *piece = unsafe { (at as *const Piece).read_volatile() },
            read => read?,
        }
        isize::try_from(piece[1]).map_err(|_| libc::EINVAL)?;
    }
    advise_each(known, advice)
}

/// Gives advice on one piece after the other, as the kernel does: it stops at the first that it refuses, and tells how many bytes lie
/// before.
fn advise_each(pieces: &[Piece], advice: c_int) -> sys::Result {
    /// What the kernel takes in one call.
    const MOST_BYTES: usize = (i32::MAX as usize) & !(PAGE_BYTES - 1);
    if pieces.iter().all(|[_, length]| *length == 0) {
        return Ok(0);
    }
    let mut done = 0;
    for (index, [start, length]) in pieces.iter().enumerate() {
        let length = (*length).min(MOST_BYTES - done);
        // It does not even look at an empty one, but for the first.
        if length == 0 && index > 0 {
            continue;
        }
        match advise(*start, length, advice) {
            Ok(_) => done += length,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Makes a range of whole pages one mapping again, if it may be several because a part of it is local, and a part is not: all of it
/// is local then.
fn unite(start: usize, length: usize) -> bool {
    let Some(length) = length.checked_next_multiple_of(PAGE_BYTES).filter(|length| *length > 0) else {
        return false;
    };
    let (own, own_length) = control::area();
    let own = own..own + own_length;
    let Some(end) = start.checked_add(length) else { return false };
    forking::attach_if_forked();
    start::far()
        && (end <= own.start || own.end <= start)
        && sys::is_mapped(start, length)
        && control::ask(IS_PARTLY_UNKNOWN, start, length) == Some(1)
        && localise(start, length).is_ok()
}

/// Makes a range of whole pages ordinary memory.
pub fn localise(start: usize, length: usize) -> Result<(), i32> {
    make_local(LOCALISE, start, length)
}

fn make_local(operation: u64, start: usize, length: usize) -> Result<(), i32> {
    let whole = length.checked_next_multiple_of(PAGE_BYTES).filter(|whole| *whole > 0);
    let Some(whole) = whole.filter(|whole| is_whole_pages(start, *whole)) else {
        // The kernel says what is wrong with it.
        return Ok(());
    };
    forking::attach_if_forked();
    let (mut next, end, mut tries) = (start, start + whole, 0);
    while next < end {
        match control::ask(operation, next, end - next) {
            Some(0) => return Ok(()),
            // Not all of it is here.
            Some(1) if tries < LOCALISE_TRIES => {
                tries += 1;
                sys::sleep_us(LOCALISE_RETRY_US);
            }
            Some(1) => return Err(libc::EAGAIN),
            Some(done) => (next, tries) = (next + (done as usize - 1) * PAGE_BYTES, 0),
            // The kernel says so, too, where it cannot split a mapping.
            None => return Err(libc::EAGAIN),
        }
    }
    Ok(())
}
