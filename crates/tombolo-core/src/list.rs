//! Doubly linked lists over table indices.
//!
//! The timeout list of QOS §4.1 (module `rdma`) must drop any entry in O(1) when its acknowledgement comes. So must the
//! queues when a transfer fails. The links live in a [`Chain`] beside the table, so that a list costs no allocation and
//! an entry can sit in as many lists as there are chains.

/// No entry.
pub(crate) const NONE: u32 = u32::MAX;

/// The links between the entries of lists: those of entry `i` of a table, to the entries before and behind it, are
/// `links[i]`.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    links: Vec<(u32, u32)>,
}

impl Chain {
    pub(crate) fn new(entries: usize) -> Self {
        Self { links: vec![(NONE, NONE); entries] }
    }

    /// The entry behind this one, in the list that it is in.
    pub(crate) fn after(&self, entry: u32) -> Option<u32> {
        Some(self.links[entry as usize].1).filter(|next| *next != NONE)
    }

    pub(crate) fn grow(&mut self, entries: usize) {
        if self.links.len() < entries {
            self.links.resize(entries, (NONE, NONE));
        }
    }
}

/// First and last entry of a list whose links are in a [`Chain`]. The caller knows which entries are in the list. An
/// entry is in at most one list of a chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl Default for List {
    fn default() -> Self {
        Self { head: NONE, tail: NONE }
    }
}

impl List {
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub(crate) fn back(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }

    pub(crate) fn iter(self, chain: &Chain) -> impl Iterator<Item = u32> {
        std::iter::successors(self.front(), |&entry| chain.after(entry))
    }

    pub(crate) fn push_back(&mut self, chain: &mut Chain, entry: u32) {
        chain.links[entry as usize] = (self.tail, NONE);
        match self.tail {
            NONE => self.head = entry,
            tail => chain.links[tail as usize].1 = entry,
        }
        self.tail = entry;
    }

    pub(crate) fn push_front(&mut self, chain: &mut Chain, entry: u32) {
        chain.links[entry as usize] = (NONE, self.head);
        match self.head {
            NONE => self.tail = entry,
            head => chain.links[head as usize].0 = entry,
        }
        self.head = entry;
    }

    pub(crate) fn remove(&mut self, chain: &mut Chain, entry: u32) {
        let (before, behind) = chain.links[entry as usize];
        match before {
            NONE => self.head = behind,
            _ => chain.links[before as usize].1 = behind,
        }
        match behind {
            NONE => self.tail = before,
            _ => chain.links[behind as usize].0 = before,
        }
        chain.links[entry as usize] = (NONE, NONE);
    }

    pub(crate) fn pop_front(&mut self, chain: &mut Chain) -> Option<u32> {
        let entry = self.front()?;
        self.remove(chain, entry);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_like_a_queue_with_removal(steps in proptest::collection::vec((0..4u8, 0..16u32), 0..200)) {
            let mut chain = Chain::new(16);
            let mut list = List::default();
            let mut oracle = VecDeque::new();
            for (step, entry) in steps {
                match step {
                    0 if !oracle.contains(&entry) => {
                        list.push_back(&mut chain, entry);
                        oracle.push_back(entry);
                    }
                    1 if oracle.contains(&entry) => {
                        list.remove(&mut chain, entry);
                        oracle.retain(|other| *other != entry);
                    }
                    2 if !oracle.contains(&entry) => {
                        list.push_front(&mut chain, entry);
                        oracle.push_front(entry);
                    }
                    3 => prop_assert_eq!(list.pop_front(&mut chain), oracle.pop_front()),
                    _ => {}
                }
                prop_assert_eq!(list.front(), oracle.front().copied());
                prop_assert_eq!(list.is_empty(), oracle.is_empty());
            }
            while let Some(entry) = oracle.pop_front() {
                prop_assert_eq!(list.pop_front(&mut chain), Some(entry));
            }
        }
    }
}
