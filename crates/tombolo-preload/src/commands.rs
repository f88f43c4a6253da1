//! Commands: moving and dropping pages, as the supervisor says.
//!
//! The supervisor may find that a command is overtaken by what the program does; it then cancels the
//! command. So a page is moved or dropped only while the agent holds the gate.

use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::agent::Held;
use crate::sys::{self, call};
use crate::timing::{GATE_SPINS, RECHECK_MS};
use crate::{agent, control, memory};
use tombolo_pager_protocol::{
    AREA_PAGES, AREAS, BEGUN_OFFSET, CANCELLED_OFFSET, Command, Done, GATE_AGENT, GATE_FREE, GATE_OFFSET,
    GATE_WAITED_FOR, PAGE_BYTES, SPANS_MAX,
};

const BUFFER_WORDS: usize = 2 * SPANS_MAX + size_of::<Command>() / 8;
struct Buffer(UnsafeCell<[u64; BUFFER_WORDS]>);
// SAFETY: used by the one agent of this address space only; a forked child's uses the copy.
unsafe impl Sync for Buffer {}
static BUFFER: Buffer = Buffer(UnsafeCell::new([0; BUFFER_WORDS]));

/// Why there are no more commands.
pub enum End {
    /// The last command, of number 0: there is no program left to serve.
    NothingToServe,
    /// The supervisor has hung up, or cannot be heard or answered for this error.
    NoSupervisor { error: i32 },
}

/// Carries out the supervisor's commands.
pub fn obey(held: &Held) -> End {
    // A forked child inherits the pages of its parent's staging areas. The supervisor does not count them.
    control::clear_staging();
    const HEADER: usize = size_of::<Command>();
    let buffer = BUFFER.0.get() as usize;
    let capacity = BUFFER_WORDS * 8;
    loop {
        // SAFETY: the buffer is static, of that capacity, and the agent's alone.
        let count = match unsafe { call(libc::SYS_read, [held.socket, buffer, capacity, 0, 0, 0]) } {
            Ok(count @ 1..) => count,
            Err(libc::EINTR) => continue,
            Ok(0) => return End::NoSupervisor { error: libc::ECONNRESET },
            Err(error) => return End::NoSupervisor { error },
        };
        // SAFETY: the buffer is aligned and large enough.
        let command = unsafe { core::ptr::read_volatile(buffer as *const Command) };
        if command.number == 0 {
            return End::NothingToServe;
        }
        let (move_out, drop, own) = (command.move_out as usize, command.drop as usize, command.own as usize);
        let mut done = Done { number: command.number, dropped: 0, moved: [libc::EINVAL as u8; AREA_PAGES] };
        let (area, emptied) = (command.area as usize, command.emptied as usize);
        let is_whole = count >= HEADER + (drop + move_out + own) * SPAN;
        if drop.max(move_out).max(own) <= SPANS_MAX && area + emptied <= AREAS && is_whole {
            if drop + move_out + own == 0 && control::clear_staging() {
                note(held, 1);
            }
            let spans = buffer + HEADER;
            move_pages(held, (command.number, area, emptied), spans, move_out, &mut done.moved);
            done.dropped = drop_pages(held, command.number, spans + move_out * SPAN, drop) as u32;
            own_pages(held, command.number, spans + (move_out + drop) * SPAN, own);
        }
        let pointer = core::ptr::from_ref(&done) as usize;
        let flags = libc::MSG_NOSIGNAL as usize;
        // SAFETY: `done` outlives the call.
        let sent = unsafe { call(libc::SYS_sendto, [held.socket, pointer, size_of::<Done>(), flags, 0, 0]) };
        if let Err(error) = sent {
            return End::NoSupervisor { error };
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
                through_gate(held, command, || note(held, 2 * index + 1)).is_some()
                    && sys::advise(start, length, libc::MADV_DONTNEED).is_ok()
                    && {
                        note(held, 2 * index + 2);
                        true
                    }
            }) == Some(true)
        })
        .count()
}

fn gate_word(held: &Held, offset: usize) -> &'static AtomicU32 {
    // SAFETY: the gate's memory stays mapped as long as the agent lives, and is accessed atomically only.
    unsafe { &*((held.gate + offset) as *const AtomicU32) }
}

/// Notes how far it is, for whoever finds this agent killed.
fn note(held: &Held, what: usize) {
    gate_word(held, BEGUN_OFFSET).store(what as u32, Ordering::Release);
}

/// Runs `work` while the supervisor reads no event. `None`: the command was cancelled.
fn through_gate<T>(held: &Held, command: u32, work: impl FnOnce() -> T) -> Option<T> {
    let gate = gate_word(held, GATE_OFFSET);
    let mut spins = 0;
    while let Err(holder) = gate.compare_exchange(GATE_FREE, GATE_AGENT, Ordering::Acquire, Ordering::Relaxed)
    {
        spins += 1;
        core::hint::spin_loop();
        // A holder that keeps it this long has lost its processor.
        let waited = holder | GATE_WAITED_FOR;
        if spins % GATE_SPINS == 0
            && (holder == waited
                || gate.compare_exchange(holder, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok())
        {
            let is_over = sys::futex_wait(gate, waited, RECHECK_MS);
            // A supervisor that was killed may have held it.
            if is_over && agent::has_lost_its_supervisor(held) {
                agent::end_program(held, libc::ECONNRESET);
            }
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
const PAGES_AT_ONCE: usize = 16;

/// Moves the pages of `count` spans to a staging area, one page after the
/// other. A page that the kernel has pinned (a device or io_uring writes to it)
/// does not move, and stays.
fn move_pages(
    held: &Held,
    (command, area, emptied): (u32, usize, usize),
    spans: usize,
    count: usize,
    moved: &mut [u8; AREA_PAGES],
) {
    if count == 0 {
        return;
    }
    if !control::clear_areas(area, emptied) {
        // Nothing can be moved there; the supervisor finds that no page was.
        return;
    }
    note(held, 1);
    let staging = control::staging() + area * AREA_PAGES * PAGE_BYTES;
    let mut index = 0;
    for (start, length) in (0..count).map(|index| span(spans, index)) {
        let end = (index + length / PAGE_BYTES).min(AREA_PAGES);
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
    move_others(held, (command, staging), spans, count, moved);
}

/// Moves the pages that were refused because their memory has other rights than the staging areas: it is executable, too, or is not. After that the
/// staging areas have the rights of the more.
fn move_others(
    held: &Held,
    (command, staging): (u32, usize),
    spans: usize,
    count: usize,
    moved: &mut [u8; AREA_PAGES],
) {
    const REFUSED: u8 = libc::EINVAL as u8;
    let pages = (0..count)
        .map(|index| span(spans, index))
        .flat_map(|(start, length)| (0..length / PAGE_BYTES).map(move |page| start + page * PAGE_BYTES));
    let first = moved.iter().filter(|status| **status == 0).count();
    if !pages.clone().zip(moved.iter()).any(|(_, status)| *status == REFUSED) || !control::turn_staging() {
        return;
    }
    let mut then = 0;
    for (index, (source, status)) in pages.zip(moved.iter_mut()).enumerate() {
        if *status == REFUSED {
            let target = staging + index * PAGE_BYTES;
            let done = through_gate(held, command, || move_some(held, target, source, 1));
            let (count, error) = done.unwrap_or((0, libc::ECANCELED));
            *status = if count == 1 { 0 } else { error as u8 };
            then += count;
        }
    }
    if then < first || then == 0 {
        control::turn_staging();
    }
}

/// `UFFDIO_MOVE`.
pub const MOVE: usize = 0xC028_AA05;

/// Moves up to `pages` pages; returns how many were moved, and why no more (0: all were).
fn move_some(held: &Held, target: usize, source: usize, pages: usize) -> (usize, i32) {
    let mut request = [target, source, pages * PAGE_BYTES, 0, 0];
    let pointer = core::ptr::from_mut(&mut request) as usize;
    // SAFETY: the target is a staging area, the source a range that the supervisor names; the
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

/// Pages that are made this process's own by one system call. Before each it is looked whether the command was cancelled: another mapping may
/// stand there by then.
const PAGES_OWNED_AT_ONCE: usize = 64;

/// Makes pages this process's own that a fork shares, or has shared: the kernel moves no other. It does so with a page that is pinned to be
/// read, and leaves its write protection as it is.
fn own_pages(held: &Held, command: u32, spans: usize, count: usize) {
    let mut bytes = [0u8; PAGES_OWNED_AT_ONCE];
    for (start, length) in (0..count).map(|index| span(spans, index)) {
        let end = start + length;
        let mut at = start;
        while at < end {
            if through_gate(held, command, || ()).is_none() {
                return;
            }
            let mut pages = [[0usize; 2]; PAGES_OWNED_AT_ONCE];
            let mut count = 0;
            for (page, address) in pages.iter_mut().zip((at..end).step_by(PAGE_BYTES)) {
                *page = [address, 1];
                count += 1;
            }
            let local = [core::ptr::from_mut(&mut bytes) as usize, count];
            let local = core::ptr::from_ref(&local) as usize;
            let remote = core::ptr::from_ref(&pages) as usize;
            // SAFETY: the bytes and both lists outlive the call; what it reads of the program, the kernel checks.
            let read = unsafe {
                call(libc::SYS_process_vm_readv, [held.own_number as usize, local, 1, remote, count, 0])
            };
            // One that cannot be read is skipped.
            let read = read.unwrap_or(0).min(count);
            at += (read + usize::from(read < count)) * PAGE_BYTES;
        }
    }
}
