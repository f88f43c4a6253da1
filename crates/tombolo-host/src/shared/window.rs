//! Windows: memory of one program that another one maps, until it is withdrawn.
//!
//! ```text
//!   owner ──► memory ◄── mapped by others      state word: live │ revoked │ freed
//!               │                                  ▲ written by the owner's node, read by the others
//!               └ revoke: the owner's bytes move to other memory, behind the same addresses
//! ```
//!
//! Nobody can take a mapping away from another process. So a window that is revoked is given up: its owner goes on
//! with a copy ([`SharedMemory::move_to`]), and what others still write goes to memory that nobody looks at.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use rustix::mm::{MremapFlags, ProtFlags};

use super::{SharedMemory, SharedMemoryError, SharedSpan, SharedSpanMut};
use crate::passed::PassedDescriptor;
use crate::uffd::{FEATURE_WRITE_PROTECT, FEATURE_WRITE_PROTECT_SHARED, Userfaultfd};

/// The size of the memory that holds a window's state.
const STATE_BYTES: usize = 4096;
const LIVE: u64 = 0;
const REVOKED: u64 = 1;
const FREED: u64 = 2;

/// Why a window cannot be used any more.
#[derive(Debug, thiserror::Error, Clone, Copy, PartialEq, Eq)]
pub enum WindowEnd {
    /// Its owner has withdrawn it.
    #[error("the owner of the window has revoked it")]
    Revoked,
    /// Its owner has freed it, or has closed its domain.
    #[error("the window was freed, or its domain was closed")]
    Freed,
}

/// Why memory was not moved.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The other memory has another size.
    #[error("memory of {0} bytes cannot move to memory of {1}")]
    Size(usize, usize),
    /// Its writers could not be held back.
    #[error("threads that write it cannot be held back meanwhile (userfaultfd): {0}")]
    Userfaultfd(std::io::Error),
    /// The system refused something else.
    #[error("{0}")]
    System(#[from] SharedMemoryError),
}

/// Memory that others are to map, with what tells them when that is over. Held by the owner's node.
#[derive(Debug)]
pub struct WindowState {
    state: SharedMemory,
}

impl WindowState {
    /// Of a new window.
    pub fn create() -> Result<Self, SharedMemoryError> {
        let state = SharedMemory::create_growing_seals("tombolo-window-state", STATE_BYTES)?;
        state.seal_for_readers()?;
        hold_lock(&state)?;
        Ok(Self { state })
    }

    /// A descriptor for those who map the window: it is for reading, and cannot be opened again for writing.
    pub fn reader(&self) -> Result<OwnedFd, SharedMemoryError> {
        self.state.read_only_descriptor()
    }

    /// The window is over. What was told first stays.
    pub fn end(&self, end: WindowEnd) {
        let told = match end {
            WindowEnd::Revoked => REVOKED,
            WindowEnd::Freed => FREED,
        };
        if let Ok(word) = self.state.atomic_u64(0) {
            let _ = word.compare_exchange(LIVE, told, Ordering::SeqCst, Ordering::SeqCst);
        }
    }
}

/// The lock that says that the process lives which holds the window.
fn lock(kind: libc::c_int) -> libc::flock {
    // SAFETY: all zero bits are a lock of the whole file, from its beginning.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

fn hold_lock(state: &SharedMemory) -> Result<(), SharedMemoryError> {
    let lock = lock(libc::F_WRLCK);
    // SAFETY: `fcntl` reads the lock.
    let outcome = unsafe { libc::fcntl(state.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
    if outcome == 0 { Ok(()) } else { Err(SharedMemoryError::system("locking")(super::last_error())) }
}

impl SharedMemory {
    /// New zeroed memory, sealed against resizing, to which seals can be added.
    pub fn create_growing_seals(name: &str, length_bytes: usize) -> Result<Self, SharedMemoryError> {
        let descriptor = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(SharedMemoryError::system("creation"))?;
        rustix::fs::ftruncate(&descriptor, length_bytes as u64)
            .map_err(SharedMemoryError::system("sizing"))?;
        rustix::fs::fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW)
            .map_err(SharedMemoryError::system("sealing"))?;
        Self::map(descriptor, length_bytes)
    }

    /// From now on nobody can map it for writing who has not done so, by whatever descriptor.
    pub fn seal_for_readers(&self) -> Result<(), SharedMemoryError> {
        rustix::fs::fcntl_add_seals(&self.descriptor, SealFlags::FUTURE_WRITE | SealFlags::SEAL)
            .map_err(SharedMemoryError::system("sealing"))
    }

    /// Whether that was done.
    pub fn is_sealed_for_readers(&self) -> bool {
        rustix::fs::fcntl_get_seals(&self.descriptor)
            .is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE | SealFlags::SEAL))
    }

    /// A descriptor for reading. It can be opened again for writing, unless the memory is sealed against that.
    pub fn read_only_descriptor(&self) -> Result<OwnedFd, SharedMemoryError> {
        let path = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(SharedMemoryError::system("opening"))
    }

    /// Moves what the memory holds to other memory of the same size, which takes the place of this one, behind the same
    /// addresses and the same descriptor number. Threads of this process that write meanwhile wait, and what they have
    /// written is there afterwards; a system call that writes there fails with `EFAULT` instead, where this process may not
    /// watch those. What other processes write may be moved or not, and from then on goes to the former memory, as does what
    /// a child made by `fork` writes, and what devices write to pages that were pinned before (`O_DIRECT`, buffers registered
    /// with io_uring). What was set for the mapping (`mprotect`, `mlock`, `mbind`) is not set for the new one.
    pub fn move_to(&self, other: Self) -> Result<(), MoveError> {
        let bytes = self.length_bytes;
        if other.length_bytes != bytes {
            return Err(MoveError::Size(bytes, other.length_bytes));
        }
        let (start, length) = (self.pointer.as_ptr() as u64, bytes.next_multiple_of(super::PAGE_BYTES));
        // Its pages are there before anybody waits.
        other.populate(0, bytes);
        // A handler of a signal that writes there would wait for this thread, on this thread.
        let _undisturbed = NoSignals::new();
        let watch = WriteWatch::new(start, length).map_err(MoveError::Userfaultfd)?;
        other.span_mut(0, bytes)?.copy_from(self.span(0, bytes)?);
        // SAFETY: the other mapping is whole, and nothing points into it: it was taken by value. It replaces this one, of the
        // same size, at once; spans of this one go on with bytes that are equal.
        let moved = unsafe {
            let flags = MremapFlags::MAYMOVE;
            let (from, to) = (other.pointer.as_ptr().cast(), self.pointer.as_ptr().cast());
            rustix::mm::mremap_fixed(from, length, length, flags, to)
        };
        if let Err(errno) = moved {
            self.map_again();
            return Err(SharedMemoryError::system("moving")(errno).into());
        }
        watch.release_after_move();
        // SAFETY: both are descriptors of ours; the number goes on meaning memory of this size.
        let outcome =
            unsafe { libc::dup3(other.descriptor.as_raw_fd(), self.descriptor.as_raw_fd(), libc::O_CLOEXEC) };
        let outcome = if outcome < 0 { Err(super::last_error()) } else { Ok(()) };
        other.forget_mapping();
        Ok(outcome.map_err(SharedMemoryError::system("replacing"))?)
    }

    /// Another mapping was to take the place of this one, which may be gone now.
    fn map_again(&self) {
        let flags = rustix::mm::MapFlags::SHARED | rustix::mm::MapFlags::FIXED;
        // SAFETY: the place is this mapping's, whether anything is left there or not.
        let mapped = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(
                self.pointer.as_ptr().cast(),
                self.length_bytes,
                access,
                flags,
                &self.descriptor,
                0,
            )
        };
        if mapped.is_err() {
            // Others of this process may use the place, and anything may be mapped there next.
            std::process::abort();
        }
    }

    /// Its mapping is another's now.
    fn forget_mapping(mut self) {
        self.length_bytes = 0;
    }
}

/// Whether [`SharedMemory::move_to`] can hold back those who write meanwhile.
pub fn can_hold_writers_back() -> Result<(), MoveError> {
    watch().map(drop).map_err(MoveError::Userfaultfd)
}

fn watch() -> std::io::Result<Userfaultfd> {
    let watch = Userfaultfd::for_this_process().or_else(|_| Userfaultfd::for_user_accesses())?;
    watch.enable(FEATURE_WRITE_PROTECT | FEATURE_WRITE_PROTECT_SHARED)?;
    Ok(watch)
}

/// Threads that write a range of shared memory wait until this is dropped, whatever is mapped there then.
struct WriteWatch {
    watch: Userfaultfd,
    start: u64,
    length: usize,
    is_registered: bool,
}

impl WriteWatch {
    fn new(start: u64, length: usize) -> std::io::Result<Self> {
        let watch = watch()?;
        watch.register_write_protect(start, length as u64)?;
        // Only now: what somebody else watches stays watched.
        let held = Self { watch, start, length, is_registered: true };
        held.watch.write_protect(start, length, true).map_err(std::io::Error::other)?;
        Ok(held)
    }

    /// The window's addresses map other memory now, which this userfaultfd does not watch: threads that it held back try again.
    fn release_after_move(mut self) {
        // Not left to the last descriptor: a child that another thread has forked meanwhile may have one.
        let _ = self.watch.wake(self.start, self.length);
        self.is_registered = false;
    }
}

impl Drop for WriteWatch {
    fn drop(&mut self) {
        if self.is_registered {
            let _ = self.watch.unregister(self.start, self.length as u64);
            let _ = self.watch.wake(self.start, self.length);
        }
    }
}

/// Signals that others send wait while a thread has this.
struct NoSignals(libc::sigset_t);

impl NoSignals {
    fn new() -> Self {
        // SAFETY: all zero is a valid set; the calls write the two.
        unsafe {
            let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            // What the thread itself does cannot wait.
            for signal in
                [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS]
            {
                libc::sigdelset(&raw mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for NoSignals {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

/// A window, as mapped by others than its owner.
#[derive(Debug)]
pub struct MappedWindow {
    memory: SharedMemory,
    state: SharedMemory,
    is_writable: bool,
}

impl MappedWindow {
    /// Maps a window of that size, and its state.
    pub fn open(
        memory: PassedDescriptor,
        state: PassedDescriptor,
        length_bytes: usize,
        is_writable: bool,
    ) -> Result<Self, SharedMemoryError> {
        let protection = if is_writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        Ok(Self {
            memory: SharedMemory::open_as(memory, length_bytes, protection)?,
            state: SharedMemory::open_as(state, STATE_BYTES, ProtFlags::READ)?,
            is_writable,
        })
    }

    /// How many bytes there are.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never true: there is no empty window.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// Whether it can be written.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Where it is in this program, while `self` lives. Where it is for reading only, to write there is a fault. Loads and
    /// stores do not tell that the window is over; [`Self::check`] does.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }

    /// `Ok`: all that was loaded before came from the owner's memory, and all that was stored before is there.
    pub fn check(&self) -> Result<(), WindowEnd> {
        // This load overtakes no load or store before it. Of memory for reading only, relaxed loads alone are allowed.
        fence(Ordering::SeqCst);
        let state = self.state.atomic_u64(0).map_or(FREED, |word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        match state {
            LIVE => Ok(()),
            REVOKED => Err(WindowEnd::Revoked),
            _ => Err(WindowEnd::Freed),
        }
    }

    /// Whether the owner's node lives, or a child that it has forked: one that was killed could tell nothing. A system call.
    pub fn has_owner(&self) -> bool {
        let mut lock = lock(libc::F_RDLCK);
        // SAFETY: `fcntl` reads and writes the lock.
        let outcome =
            unsafe { libc::fcntl(self.state.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        outcome == 0 && libc::c_int::from(lock.l_type) != libc::F_UNLCK
    }

    /// The word at an offset that is a multiple of eight.
    pub fn load(&self, offset_bytes: usize) -> Result<u64, SharedMemoryError> {
        // The memory may be for reading only: see `check`.
        let word = self.memory.atomic_u64(offset_bytes)?.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        Ok(word)
    }

    /// A word, to be changed; `None` where the window is for reading only.
    pub fn word(&self, offset_bytes: usize) -> Option<Result<&AtomicU64, SharedMemoryError>> {
        self.is_writable.then(|| self.memory.atomic_u64(offset_bytes))
    }

    /// Bytes, to be copied out.
    pub fn span(
        &self,
        offset_bytes: usize,
        length_bytes: usize,
    ) -> Result<SharedSpan<'_>, SharedMemoryError> {
        self.memory.span(offset_bytes, length_bytes)
    }

    /// Bytes, to be copied in; `None` where the window is for reading only.
    pub fn span_mut(
        &self,
        offset_bytes: usize,
        length_bytes: usize,
    ) -> Option<Result<SharedSpanMut<'_>, SharedMemoryError>> {
        self.is_writable.then(|| self.memory.span_mut(offset_bytes, length_bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicPtr};
    use std::time::Duration;

    use rustix::io::Errno;

    use super::*;
    use crate::shared::map_aligned;

    const BYTES: usize = 64 * 4096;

    fn mapped(memory: &SharedMemory, state: &WindowState, is_writable: bool) -> MappedWindow {
        let descriptor = match is_writable {
            true => memory.as_fd().try_clone_to_owned().unwrap(),
            false => memory.read_only_descriptor().unwrap(),
        };
        MappedWindow::open(descriptor.into(), state.reader().unwrap().into(), BYTES, is_writable).unwrap()
    }

    #[test]
    fn others_load_and_store_until_it_is_over() {
        let memory = SharedMemory::create_growing_seals("test", BYTES).unwrap();
        let state = WindowState::create().unwrap();
        let window = mapped(&memory, &state, true);
        window.word(8).unwrap().unwrap().store(7, Ordering::Release);
        assert_eq!(memory.atomic_u64(8).unwrap().load(Ordering::Acquire), 7);
        memory.span_mut(100, 3).unwrap().copy_from(SharedSpan::from(&b"abc"[..]));
        assert_eq!(window.span(100, 3).unwrap().to_vec(), b"abc");
        assert!(window.word(BYTES).unwrap().is_err() && window.load(4).is_err());
        assert_eq!((window.check(), window.has_owner()), (Ok(()), true));
        state.end(WindowEnd::Revoked);
        state.end(WindowEnd::Freed);
        assert_eq!(window.check(), Err(WindowEnd::Revoked));
        // As when its process is killed.
        drop(state);
        // Children that another test forks have the descriptor for a while.
        let since = std::time::Instant::now();
        while window.has_owner() {
            assert!(since.elapsed() < Duration::from_secs(60), "it has an owner still");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_for_reading_cannot_be_written_by_whatever_descriptor() {
        let memory = SharedMemory::create_growing_seals("test", BYTES).unwrap();
        memory.seal_for_readers().unwrap();
        let state = WindowState::create().unwrap();
        let window = mapped(&memory, &state, false);
        assert!(window.word(0).is_none() && window.span_mut(0, 1).is_none());
        memory.atomic_u64(0).unwrap().store(9, Ordering::Release);
        assert_eq!(window.load(0), Ok(9));
        for reader in [memory.read_only_descriptor().unwrap(), state.reader().unwrap()] {
            let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
            let again = rustix::fs::open(path, OFlags::RDWR, Mode::empty()).unwrap();
            assert_eq!(rustix::io::pwrite(&again, b"x", 0), Err(Errno::PERM));
            assert_eq!(rustix::fs::ftruncate(&again, 0), Err(Errno::PERM));
            let bytes = rustix::fs::fstat(&again).unwrap().st_size as usize;
            assert!(map_aligned(&again, bytes, ProtFlags::READ | ProtFlags::WRITE).is_err());
            let empty = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            assert_eq!(rustix::fs::fallocate(&again, empty, 0, 4096), Err(Errno::PERM));
        }
        assert_eq!((window.load(0), window.check()), (Ok(9), Ok(())));
    }

    /// Threads count in words of their own, without a pause, while the memory moves again and again: a store that went to the
    /// former memory would be missing.
    #[test]
    fn memory_moves_beneath_its_writers_and_no_store_is_lost() {
        const WRITERS: usize = 3;
        const MOVES: usize = 20;
        let memory = SharedMemory::create_growing_seals("test", BYTES).unwrap();
        let stop = AtomicBool::new(false);
        let mut formers = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    let (memory, stop) = (&memory, &stop);
                    scope.spawn(move || {
                        let mut count = 0;
                        while !stop.load(Ordering::Relaxed) {
                            count += 1;
                            for page in 0..BYTES / 4096 {
                                let word = memory.atomic_u64(page * 4096 + writer * 8).unwrap();
                                assert_eq!(word.load(Ordering::Relaxed), count - 1, "page {page}");
                                word.store(count, Ordering::Relaxed);
                            }
                        }
                        count
                    })
                })
                .collect();
            for _ in 0..MOVES {
                let former = memory.read_only_descriptor().unwrap();
                let state = WindowState::create().unwrap().reader().unwrap();
                formers.push(MappedWindow::open(former.into(), state.into(), BYTES, false).unwrap());
                memory.move_to(SharedMemory::create("next", BYTES).unwrap()).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
            stop.store(true, Ordering::Relaxed);
            for (writer, handle) in writers.into_iter().enumerate() {
                let count = handle.join().unwrap();
                let word = memory.atomic_u64(4096 + writer * 8).unwrap();
                assert_eq!(word.load(Ordering::Relaxed), count);
                // Who maps the former memory sees what was there when it was left.
                let seen: Vec<u64> =
                    formers.iter().map(|former| former.load(4096 + writer * 8).unwrap()).collect();
                assert!(seen.is_sorted() && seen[MOVES - 1] <= count, "{seen:?}, {count}");
            }
        });
        let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
        let name = std::fs::read_link(path).unwrap();
        assert!(name.to_str().unwrap().contains("next"), "{name:?}: the descriptor is the former one's");
    }

    /// Where the handler of a signal counts.
    static COUNTED: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());

    extern "C" fn count(_signal: libc::c_int) {
        // SAFETY: an aligned word of a mapping that outlives the signals.
        unsafe { AtomicU64::from_ptr(COUNTED.load(Ordering::Relaxed)) }.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends the process if a test takes too long: a thread that waits for a page for ever cannot be joined.
    fn ends_within(limit: Duration, work: impl FnOnce()) {
        let (over, ended) = std::sync::mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            if ended.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("a thread waits for ever");
                std::process::abort();
            }
        });
        work();
        drop(over);
        watch.join().unwrap();
    }

    /// The thread that moves has signals whose handler writes there, and others fork meanwhile: their children have all
    /// descriptors, for as long as they live.
    #[test]
    fn neither_signals_nor_children_hold_up_who_writes() {
        // To copy so large a window takes milliseconds.
        const LARGE: usize = 32 << 20;
        let memory = SharedMemory::create("test", LARGE).unwrap();
        let (signals, writes) = (memory.atomic_u64(0).unwrap(), memory.atomic_u64(LARGE - 8).unwrap());
        COUNTED.store(signals.as_ptr(), Ordering::Relaxed);
        // SAFETY: the handler makes no call.
        unsafe { libc::signal(libc::SIGUSR1, count as *const () as usize) };
        // SAFETY: names this thread.
        let mover = unsafe { libc::pthread_self() };
        let stop = AtomicBool::new(false);
        let goes_on = || !stop.load(Ordering::Relaxed);
        ends_within(Duration::from_secs(60), || {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while goes_on() {
                        // SAFETY: that thread waits for this one.
                        unsafe { libc::pthread_kill(mover, libc::SIGUSR1) };
                        std::thread::sleep(Duration::from_micros(100));
                    }
                });
                scope.spawn(|| {
                    let mut children = std::collections::VecDeque::new();
                    while goes_on() {
                        children.push_back(crate::testing::Fork::new());
                        // Each lives for some moves.
                        if children.len() > 50 {
                            children.pop_front();
                        }
                        std::thread::sleep(Duration::from_micros(500));
                    }
                });
                let writer = scope.spawn(|| {
                    let mut count = 0;
                    while goes_on() {
                        writes.fetch_add(1, Ordering::Relaxed);
                        count += 1;
                    }
                    count
                });
                for _ in 0..20 {
                    memory.move_to(SharedMemory::create("next", LARGE).unwrap()).unwrap();
                    let before = writes.load(Ordering::Relaxed);
                    while writes.load(Ordering::Relaxed) == before {
                        std::thread::yield_now();
                    }
                }
                stop.store(true, Ordering::Relaxed);
                let written = writer.join().unwrap();
                assert_eq!(writes.load(Ordering::Relaxed), written);
            });
        });
        assert!(signals.load(Ordering::Relaxed) > 0, "no signal came");
    }

    #[test]
    fn memory_of_another_size_is_refused_and_all_is_as_it_was() {
        let memory = SharedMemory::create("test", BYTES).unwrap();
        memory.atomic_u64(0).unwrap().store(3, Ordering::Relaxed);
        let moved = memory.move_to(SharedMemory::create("next", 2 * BYTES).unwrap());
        assert!(matches!(moved, Err(MoveError::Size(..))), "{moved:?}");
        assert_eq!(memory.atomic_u64(0).unwrap().load(Ordering::Relaxed), 3);
    }
}
