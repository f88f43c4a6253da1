//! The arena: which of its pages are given out.
//!
//! One bit per page, first fit from the lowest free one, so that what is in use
//! stays dense and the supervisor's tables stay small.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::lock::{Guard, Lock};
use crate::protocol::{PAGE_BYTES, RESERVED_PAGES};
use crate::sys;

/// First address and length in bytes; 0 while there is none.
static BASE: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// Guards [`BITMAP`]; held across fork, so that the child's copy is whole.
pub static LOCK: Lock = Lock::new();

struct Bitmap {
    words: *mut u64,
    pages: usize,
    /// No page below this one is free.
    lowest_free: usize,
}

struct Shared(UnsafeCell<Bitmap>);
// SAFETY: the cell is only entered through `with`, under LOCK.
unsafe impl Sync for Shared {}
static BITMAP: Shared =
    Shared(UnsafeCell::new(Bitmap { words: core::ptr::null_mut(), pages: 0, lowest_free: 0 }));

/// Runs `work` on the bitmap. `_guard` shows that LOCK is held.
fn with<T>(_guard: &Guard<'_>, work: impl FnOnce(&mut Bitmap) -> T) -> T {
    // SAFETY: LOCK is held, so this is the only reference.
    work(unsafe { &mut *BITMAP.0.get() })
}

impl Bitmap {
    fn word(&mut self, index: usize) -> &mut u64 {
        debug_assert!(index <= self.pages / 64);
        // SAFETY: the bitmap was mapped with a word for every 64 pages; callers stay below `pages`.
        unsafe { &mut *self.words.add(index) }
    }

    fn set(&mut self, first: usize, count: usize, used: bool) {
        let mut page = first;
        let end = first + count;
        while page < end {
            let bits = (64 - page % 64).min(end - page);
            let mask = (u64::MAX >> (64 - bits)) << (page % 64);
            let word = self.word(page / 64);
            if used {
                *word |= mask
            } else {
                *word &= !mask
            }
            page += bits;
        }
        if !used {
            self.lowest_free = self.lowest_free.min(first);
        } else if self.lowest_free >= first && self.lowest_free < end {
            self.lowest_free = end;
        }
    }

    /// The first used page in a range.
    fn first_used(&mut self, first: usize, count: usize) -> Option<usize> {
        let mut page = first;
        let end = first + count;
        while page < end {
            let rest = *self.word(page / 64) >> (page % 64);
            if rest == 0 {
                page += 64 - page % 64;
                continue;
            }
            page += rest.trailing_zeros() as usize;
            return (page < end).then_some(page);
        }
        None
    }

    fn first_free(&mut self, from: usize) -> usize {
        let mut page = from;
        while page < self.pages {
            let rest = !*self.word(page / 64) >> (page % 64);
            if rest == 0 {
                page += 64 - page % 64;
                continue;
            }
            return page + rest.trailing_zeros() as usize;
        }
        self.pages
    }

    fn find(&mut self, count: usize, align: usize, phase: usize) -> Option<usize> {
        self.lowest_free = self.first_free(self.lowest_free);
        let mut page = self.lowest_free;
        loop {
            // `phase` (below `align`): pages between the base and the first aligned address.
            page += (phase + align - page % align) % align;
            if page.checked_add(count)? > self.pages {
                return None;
            }
            match self.first_used(page, count) {
                None => return Some(page),
                Some(used) => page = self.first_free(used),
            }
        }
    }
}

/// Takes over a reserved range. Called once, before any other thread exists.
pub fn establish(base: usize, length: usize) -> Result<(), i32> {
    let pages = length / PAGE_BYTES;
    let bytes = (pages / 64 + 1) * 8;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let words = sys::mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    let guard = LOCK.lock();
    with(&guard, |bitmap| {
        *bitmap = Bitmap { words: words as *mut u64, pages, lowest_free: 0 };
        bitmap.set(0, RESERVED_PAGES, true);
    });
    LENGTH.store(length, Ordering::Relaxed);
    BASE.store(base, Ordering::Release);
    Ok(())
}

/// Forgets the arena: nothing is taken from it any more.
pub fn abandon() {
    BASE.store(0, Ordering::Release);
    LENGTH.store(0, Ordering::Relaxed);
}

pub fn base() -> usize {
    BASE.load(Ordering::Acquire)
}

pub fn length() -> usize {
    LENGTH.load(Ordering::Relaxed)
}

/// The part of a range that lies in the arena.
pub fn intersection(address: usize, length: usize) -> Option<(usize, usize)> {
    let base = base();
    if base == 0 {
        return None;
    }
    let start = address.max(base);
    let end = address.saturating_add(length).min(base + self::length());
    (start < end).then(|| (start, end - start))
}

/// Large blocks start where huge alignments are satisfied at once (allocators
/// otherwise over-allocate and trim).
fn alignment_pages(length: usize) -> usize {
    match length {
        0x200_0000.. => 0x200_0000 / PAGE_BYTES,
        0x40_0000.. => 0x40_0000 / PAGE_BYTES,
        _ => 1,
    }
}

/// Gives out `length` bytes (a multiple of the page size) of address space.
pub fn take(length: usize) -> Option<usize> {
    let base = base();
    let align = alignment_pages(length);
    let phase = (base / PAGE_BYTES).next_multiple_of(align) - base / PAGE_BYTES;
    let guard = LOCK.lock();
    with(&guard, |bitmap| {
        let count = length / PAGE_BYTES;
        let page = bitmap.find(count, align, phase % align).or_else(|| bitmap.find(count, 1, 0))?;
        bitmap.set(page, count, true);
        Some(base + page * PAGE_BYTES)
    })
}

/// Gives out exactly the range `[address, address + length)`, if all of it is free.
pub fn take_at(address: usize, length: usize) -> bool {
    let Some((start, inside)) = intersection(address, length) else { return false };
    if (start, inside) != (address, length) {
        return false;
    }
    let guard = LOCK.lock();
    with(&guard, |bitmap| {
        let (page, count) = ((address - base()) / PAGE_BYTES, length / PAGE_BYTES);
        if bitmap.first_used(page, count).is_some() {
            return false;
        }
        bitmap.set(page, count, true);
        true
    })
}

/// Takes a range of the arena back.
pub fn give_back(address: usize, length: usize) {
    let guard = LOCK.lock();
    with(&guard, |bitmap| bitmap.set((address - base()) / PAGE_BYTES, length / PAGE_BYTES, false));
}
