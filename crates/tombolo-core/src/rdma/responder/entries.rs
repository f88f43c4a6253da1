//! Table of the entries of a peer's slots, in pages that are allocated when one of their slots is first used. A
//! packet that names a high slot first thus costs one page, not all pages below it.

use super::entry::Entry;
use std::ops::{Index, IndexMut};

/// Number of entries in a page.
const PAGE_ENTRIES: usize = 256;

/// A table of entries by slot.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pages: Vec<Option<Box<[Entry]>>>,
}

impl Entries {
    /// An empty table for `slots` entries; their pages are allocated when an entry is first used.
    pub(super) fn new(slots: usize) -> Self {
        Self { pages: (0..slots.div_ceil(PAGE_ENTRIES)).map(|_| None).collect() }
    }

    /// The entry of a slot that is about to be used. Its page is allocated if it is not there yet. `None` if
    /// the slot is beyond the end of the table.
    pub(super) fn take(&mut self, slot: usize) -> Option<&mut Entry> {
        let page = self.pages.get_mut(slot / PAGE_ENTRIES)?;
        let page = page.get_or_insert_with(|| vec![Entry::empty(); PAGE_ENTRIES].into());
        page.get_mut(slot % PAGE_ENTRIES)
    }

    pub(super) fn get(&self, slot: usize) -> Option<&Entry> {
        self.pages.get(slot / PAGE_ENTRIES)?.as_ref()?.get(slot % PAGE_ENTRIES)
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut Entry> {
        self.pages.get_mut(slot / PAGE_ENTRIES)?.as_mut()?.get_mut(slot % PAGE_ENTRIES)
    }

    /// The entries that are allocated.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.pages.iter().flatten().flatten()
    }
}

impl Index<usize> for Entries {
    type Output = Entry;

    fn index(&self, slot: usize) -> &Entry {
        self.get(slot).expect("the entry of a slot that is used")
    }
}

impl IndexMut<usize> for Entries {
    fn index_mut(&mut self, slot: usize) -> &mut Entry {
        self.get_mut(slot).expect("the entry of a slot that is used")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_costs_its_page() {
        let mut entries = Entries::new(32_768);
        assert!(entries.take(32_768).is_none() && entries.get(32_767).is_none());
        for slot in [32_767, 0, 300] {
            entries.take(slot).expect("room").length_bytes = slot as u32;
        }
        assert_eq!(entries.iter().count(), 3 * PAGE_ENTRIES);
        assert_eq!((entries[300].length_bytes, entries[32_767].length_bytes), (300, 32_767));
        assert!(entries.iter().filter(|entry| entry.length_bytes != 0).count() == 2, "slot 0 has 0");
        assert!(entries.get(600).is_none() && entries.get_mut(600).is_none());
    }
}
