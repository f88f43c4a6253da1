//! Reads of far pages that are under way: who waits for which buffer page.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

/// Who waits for a page: told when it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub(crate) ticket: u64,
    pub(crate) since: Option<Instant>,
}

#[derive(Debug)]
struct State {
    /// Buffer pages that are free.
    free: Vec<u32>,
    /// Who waits for what comes into each buffer page.
    waiters: Vec<Waiter>,
    /// Buffer pages whose read could not be posted.
    unposted: Vec<u32>,
    /// Reads that wait for a buffer page: far page and who waits for it.
    waiting: VecDeque<(u32, Waiter)>,
}

/// The reads under way, at most as many at once as there are buffer pages; the others wait their turn.
#[derive(Debug)]
pub(crate) struct Reads {
    state: Mutex<State>,
    in_flight: AtomicU64,
}

impl Reads {
    /// No reads yet, for this number of buffer pages.
    pub(crate) fn new(buffers: u32) -> Self {
        let state = State {
            free: (0..buffers).rev().collect(),
            waiters: vec![Waiter::default(); buffers as usize],
            unposted: Vec::with_capacity(buffers as usize),
            waiting: VecDeque::with_capacity(4096),
        };
        Self { state: Mutex::new(state), in_flight: AtomicU64::new(0) }
    }

    /// Reads begun and not yet ended.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Acquire)
    }

    /// A read begins: the buffer page for it, or None while it waits for one.
    pub(crate) fn begin(&self, page: u32, waiter: Waiter) -> Option<u32> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let Some(buffer) = state.free.pop() else {
            state.waiting.push_back((page, waiter));
            return None;
        };
        state.waiters[buffer as usize] = waiter;
        Some(buffer)
    }

    /// Who waits for what comes into a buffer page.
    pub(crate) fn waiter(&self, buffer: u32) -> Option<Waiter> {
        self.state.lock().waiters.get(buffer as usize).copied()
    }

    /// The read into a buffer page has ended, and the page's bytes are needed no more. Returns the
    /// far page that is to be read into it next.
    pub(crate) fn end(&self, buffer: u32) -> Option<u32> {
        self.in_flight.fetch_sub(1, Ordering::Release);
        let mut state = self.state.lock();
        let Some((page, waiter)) = state.waiting.pop_front() else {
            state.free.push(buffer);
            return None;
        };
        state.waiters[buffer as usize] = waiter;
        Some(page)
    }

    /// The read into a buffer page could not be posted.
    pub(crate) fn not_posted(&self, buffer: u32) {
        self.state.lock().unposted.push(buffer);
    }

    /// One for which that is still to be told.
    pub(crate) fn take_unposted(&self) -> Option<u32> {
        self.state.lock().unposted.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_beyond_the_buffers_wait_and_begin_in_order() {
        let reads = Reads::new(2);
        let waiter = |ticket| Waiter { ticket, since: None };
        let (one, two) = (reads.begin(10, waiter(110)).unwrap(), reads.begin(20, waiter(120)).unwrap());
        assert_ne!(one, two);
        assert_eq!([reads.begin(30, waiter(130)), reads.begin(40, waiter(140))], [None, None]);
        assert_eq!(reads.in_flight(), 4);
        assert_eq!(
            [one, two, 2].map(|buffer| reads.waiter(buffer)),
            [Some(waiter(110)), Some(waiter(120)), None]
        );
        assert_eq!(reads.end(two), Some(30));
        assert_eq!(reads.waiter(two), Some(waiter(130)));
        assert_eq!([reads.end(two), reads.end(two), reads.end(one)], [Some(40), None, None]);
        assert_eq!(reads.in_flight(), 0);
        reads.not_posted(one);
        assert_eq!([reads.take_unposted(), reads.take_unposted()], [Some(one), None]);
    }
}
