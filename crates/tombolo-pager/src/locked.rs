//! The lock of a page table, which wakes threads after it is released.
//!
//! Pages are mapped under the lock. If the threads that wait for them were woken under the lock, too, the scheduler would
//! often run such a thread at once in place of the thread that holds the lock, and the other handlers would wait until the
//! program faults again. So mapping wakes no thread. The ranges to wake are noted, and woken when the lock is free.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use parking_lot::MutexGuard;
use smallvec::SmallVec;
use tombolo_core::pager::{PAGE_BYTES, Page};
use tombolo_host::uffd::UffdError;

use crate::space::{Space, Table};

/// Ranges that are noted without an allocation: a fault maps one or two. A handler that serves a crowd reads up to 64
/// faults in a call.
const RANGES: usize = 4;

/// Ranges of pages whose waiting threads are to be woken: first page and number of pages.
#[derive(Debug, Default)]
pub struct Wakes(SmallVec<[(Page, u64); RANGES]>);

impl Wakes {
    /// Adds a range, joined to the last one if it directly follows it.
    fn add(&mut self, first: Page, pages: u64) {
        match self.0.last_mut() {
            Some((last, count)) if *last + *count == first => *count += pages,
            _ => self.0.push((first, pages)),
        }
    }
}

/// The table of a space, locked.
pub struct Locked<'a> {
    table: ManuallyDrop<MutexGuard<'a, Table>>,
    space: &'a Space,
}

impl<'a> Locked<'a> {
    /// The table of this space.
    pub(crate) fn new(space: &'a Space, table: MutexGuard<'a, Table>) -> Self {
        Self { table: ManuallyDrop::new(table), space }
    }
}

impl Locked<'_> {
    /// Unlocks the table. If a thread waits for it, that thread gets the lock before this one can lock it again.
    pub(crate) fn unlock_fairly(self) {
        let mut this = ManuallyDrop::new(self);
        let wakes = std::mem::take(&mut this.table.wakes);
        // SAFETY: `this` is not used again, nor dropped.
        MutexGuard::unlock_fair(unsafe { ManuallyDrop::take(&mut this.table) });
        this.space.wake_all(&wakes);
    }
}

impl Deref for Locked<'_> {
    type Target = Table;
    fn deref(&self) -> &Table {
        &self.table
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Table {
        &mut self.table
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        debug_assert!(!self.table.states.has_left() || std::thread::panicking(), "frames were left unsaid");
        let wakes = std::mem::take(&mut self.table.wakes);
        // SAFETY: the guard is not used again: this is the end of `self`.
        unsafe { ManuallyDrop::drop(&mut self.table) };
        self.space.wake_all(&wakes);
    }
}

impl Space {
    /// Wakes the threads that wait for these pages.
    pub(crate) fn wake_all(&self, wakes: &Wakes) {
        wakes.0.iter().for_each(|&range| self.wake(range));
    }

    fn wake(&self, (first, pages): (Page, u64)) {
        let _ = self.uffd.wake(Space::address(first), (pages * PAGE_BYTES) as usize);
    }

    /// Maps `count` pages with these contents; threads that wait for them go on when the table is unlocked.
    pub(crate) fn map(
        &self,
        table: &mut Table,
        first: Page,
        source: u64,
        count: u32,
        protect: bool,
    ) -> Result<usize, UffdError> {
        let length = count as usize * PAGE_BYTES as usize;
        self.note_mapped(
            table,
            first,
            self.uffd.copy_without_wake(Space::address(first), source, length, protect),
        )
    }

    /// Maps a page of zeroes, which a guard refuses; threads that wait for it go on when the table is unlocked.
    pub(crate) fn map_zero(&self, table: &mut Table, page: Page) -> Result<usize, UffdError> {
        self.note_mapped(table, page, self.uffd.zero_without_wake(Space::address(page), PAGE_BYTES as usize))
    }

    fn note_mapped(
        &self,
        table: &mut Table,
        first: Page,
        mapped: Result<usize, UffdError>,
    ) -> Result<usize, UffdError> {
        let mapped = self.at_rest(mapped);
        let bytes = match mapped {
            Ok(bytes) | Err(UffdError::Again(bytes) | UffdError::Exists(bytes)) => bytes,
            Err(_) => 0,
        };
        if bytes > 0 {
            self.wake_later(table, first, bytes as u64 / PAGE_BYTES);
        }
        mapped
    }

    /// Removes the write protection of a page. Threads that wait for that go on when the table is unlocked.
    pub(crate) fn unprotect(&self, table: &mut Table, page: Page) -> Result<(), UffdError> {
        self.uffd.unprotect_without_wake(Space::address(page), PAGE_BYTES as usize)?;
        self.wake_later(table, page, 1);
        Ok(())
    }

    /// Wakes the threads that wait for these pages when the table is unlocked.
    pub(crate) fn wake_later(&self, table: &mut Table, first: Page, pages: u64) {
        table.wakes.add(first, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut wakes = Wakes::default();
        for (first, pages) in [(5, 1), (6, 2), (100, 1), (8, 1)] {
            wakes.add(first, pages);
        }
        assert_eq!(wakes.0[..], [(5, 3), (100, 1), (8, 1)]);
    }
}
