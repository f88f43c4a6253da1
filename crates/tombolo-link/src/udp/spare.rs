//! Buffers of batches, which a link has while something lies in them: a link that is quiet needs none. Each thread keeps some for the
//! next batch.

use std::cell::RefCell;

/// Batches that a thread has under way at once, mostly: one for each of the links that it sends by.
const KEPT: usize = 8;

/// Buffers of one length that no batch uses.
#[derive(Debug)]
pub(super) struct Spare(RefCell<Vec<Box<[u8]>>>);

impl Spare {
    pub(super) const fn new() -> Self {
        Self(RefCell::new(Vec::new()))
    }

    /// A buffer of that length, with whatever was there before.
    pub(super) fn take(&self, bytes: usize) -> Box<[u8]> {
        self.0.borrow_mut().pop().unwrap_or_else(|| vec![0; bytes].into_boxed_slice())
    }

    /// It is not used any more.
    pub(super) fn give(&self, buffer: Box<[u8]>) {
        let mut kept = self.0.borrow_mut();
        if kept.len() < KEPT && !buffer.is_empty() {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let spare = Spare::new();
        let mut buffers: Vec<_> = (0..2 * KEPT).map(|_| spare.take(100)).collect();
        buffers[0][0] = 7;
        for buffer in buffers {
            spare.give(buffer);
        }
        spare.give(Box::default());
        let buffers: Vec<_> = (0..2 * KEPT).map(|_| spare.take(100)).collect();
        assert!(buffers.iter().all(|buffer| buffer.len() == 100));
        assert_eq!(buffers.iter().filter(|buffer| buffer[0] == 7).count(), 1);
    }
}
