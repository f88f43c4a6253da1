//! A mailbox: what arrives waits in order until somebody reads it.

use std::collections::VecDeque;

/// There is no room in a mailbox; what did not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full<T>(pub T);

/// A queue of bounded length, of which only the front can be read (QOS §3.6.2): what nobody can take now keeps all behind it.
#[derive(Clone, Debug)]
pub struct Mailbox<T> {
    waiting: VecDeque<T>,
    capacity: usize,
    /// What came and did not fit.
    refused: u64,
    most_waiting: usize,
}

impl<T> Mailbox<T> {
    /// An empty one, with room for so many.
    pub fn new(capacity: usize) -> Self {
        Self { waiting: VecDeque::new(), capacity, refused: 0, most_waiting: 0 }
    }

    /// Something arrives.
    ///
    /// # Errors
    /// [`Full`]: it is given back.
    pub fn push(&mut self, item: T) -> Result<(), Full<T>> {
        if self.waiting.len() >= self.capacity {
            self.refused += 1;
            return Err(Full(item));
        }
        self.waiting.push_back(item);
        self.most_waiting = self.most_waiting.max(self.waiting.len());
        Ok(())
    }

    /// What is read next.
    pub fn front(&self) -> Option<&T> {
        self.waiting.front()
    }

    /// Takes what is read next.
    pub fn pop(&mut self) -> Option<T> {
        self.waiting.pop_front()
    }

    /// How much waits.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What did not fit so far.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// The most that waited.
    pub fn most_waiting(&self) -> usize {
        self.most_waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_order_and_gives_back_what_does_not_fit() {
        let mut mailbox = Mailbox::new(2);
        assert_eq!([1, 2, 3].map(|item| mailbox.push(item)), [Ok(()), Ok(()), Err(Full(3))]);
        assert_eq!(mailbox.front(), Some(&1));
        assert_eq!((mailbox.pop(), mailbox.push(4)), (Some(1), Ok(())));
        assert_eq!((mailbox.pop(), mailbox.pop(), mailbox.pop()), (Some(2), Some(4), None));
        assert_eq!((mailbox.len(), mailbox.refused(), mailbox.most_waiting()), (0, 1, 2));
        assert!(mailbox.is_empty());
    }
}
