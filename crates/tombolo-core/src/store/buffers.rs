//! Buffers that pages are read into.

/// The set of buffers, named by number. They are handed out in ascending order, cyclically, so that consecutive reads
/// mostly get adjacent buffers and can be joined.
#[derive(Debug)]
pub(super) struct Buffers {
    is_free: Vec<bool>,
    free: usize,
    /// The buffer where the search for a free one begins.
    next: usize,
}

impl Buffers {
    pub(super) fn new(count: u32) -> Self {
        Self { is_free: vec![true; count as usize], free: count as usize, next: 0 }
    }

    /// The number of free buffers.
    pub(super) fn free(&self) -> usize {
        self.free
    }

    /// The number of all buffers.
    pub(super) fn count(&self) -> usize {
        self.is_free.len()
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        let (before, behind) = self.is_free.split_at(self.next);
        let behind = behind.iter().position(|is_free| *is_free).map(|at| self.next + at);
        let found = behind.or_else(|| before.iter().position(|is_free| *is_free))?;
        self.is_free[found] = false;
        self.free -= 1;
        self.next = (found + 1) % self.is_free.len();
        Some(found as u32)
    }

    pub(super) fn give_back(&mut self, buffer: u32) {
        let Some(is_free) = self.is_free.get_mut(buffer as usize) else { return };
        debug_assert!(!*is_free, "buffer {buffer} is given back twice");
        self.free += usize::from(!*is_free);
        *is_free = true;
        if self.free == self.count() {
            // No buffer is in use: start again at 0, so that reads that come one at a time use the same buffer each
            // time.
            self.next = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_given_out_one_after_the_other() {
        let mut buffers = Buffers::new(4);
        assert_eq!([0; 3].map(|_| buffers.take()), [Some(0), Some(1), Some(2)]);
        buffers.give_back(0);
        buffers.give_back(1);
        assert_eq!(buffers.free(), 3);
        assert_eq!([0; 4].map(|_| buffers.take()), [Some(3), Some(0), Some(1), None]);
        buffers.give_back(2);
        assert_eq!((buffers.free(), buffers.count(), buffers.take()), (1, 4, Some(2)));
        assert_eq!(Buffers::new(0).take(), None);
        (0..4).for_each(|buffer| buffers.give_back(buffer));
        assert_eq!(buffers.take(), Some(0));
    }
}
