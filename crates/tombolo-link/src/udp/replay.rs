//! Each datagram once: which of the counters seen lately have been seen.
//!
//! A ring of bits over the newest counters. Datagrams of one peer overtake each other by a batch or
//! two; what is further behind than the window counts as repeated.

const WORDS: usize = 64;
/// How far behind the newest a counter may be.
pub(super) const WINDOW: u64 = (WORDS as u64 - 1) * 64;

/// The counters that have been seen.
#[derive(Debug)]
pub(super) struct ReplayWindow {
    /// One more than the newest counter.
    next: u64,
    /// A bit for each counter, by the counter modulo the ring's size.
    ring: [u64; WORDS],
}

fn word_and_bit(counter: u64) -> (usize, u64) {
    ((counter / 64) as usize % WORDS, 1 << (counter % 64))
}

impl ReplayWindow {
    pub(super) fn new() -> Self {
        Self { next: 0, ring: [0; WORDS] }
    }

    /// Whether a counter has not been seen, as far as can be told.
    pub(super) fn is_fresh(&self, counter: u64) -> bool {
        if counter >= self.next {
            return counter < u64::MAX;
        }
        let (word, bit) = word_and_bit(counter);
        self.next - counter <= WINDOW && self.ring[word] & bit == 0
    }

    /// Notes a fresh counter. Only after its datagram has proved genuine: a forged counter would
    /// push the window past the true ones.
    pub(super) fn note(&mut self, counter: u64) {
        if counter >= self.next {
            // Words entered for the first time in this round of the ring still hold the last one.
            let entered = counter / 64 - self.next.saturating_sub(1) / 64;
            for ahead in 0..entered.min(WORDS as u64) {
                let (word, _) = word_and_bit(counter - ahead * 64);
                self.ring[word] = 0;
            }
            self.next = counter.saturating_add(1);
        }
        let (word, bit) = word_and_bit(counter);
        self.ring[word] |= bit;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn take(window: &mut ReplayWindow, counter: u64) -> bool {
        let fresh = window.is_fresh(counter);
        if fresh {
            window.note(counter);
        }
        fresh
    }

    #[test]
    fn each_counter_passes_once_in_any_order() {
        let mut window = ReplayWindow::new();
        for counter in [0, 1, 5, 3, 2, 64, 63, 4, 2048, 100] {
            assert!(take(&mut window, counter), "{counter}");
            assert!(!take(&mut window, counter), "{counter}");
        }
        assert!(take(&mut window, 2048 - 1500));
    }

    #[test]
    fn what_is_behind_the_window_has_been_seen() {
        let mut window = ReplayWindow::new();
        assert!(take(&mut window, 10 * WINDOW));
        assert!(take(&mut window, 9 * WINDOW + 1));
        assert!(!take(&mut window, 9 * WINDOW));
        assert!(!take(&mut window, 0));
    }

    #[test]
    fn jumps_forget_everything_and_the_end_is_no_panic() {
        let mut window = ReplayWindow::new();
        for counter in (0..5000).chain([1 << 40, u64::MAX - 1]) {
            assert!(take(&mut window, counter));
        }
        assert!(take(&mut window, u64::MAX - 2));
        assert!(!take(&mut window, u64::MAX));
    }

    proptest::proptest! {
        #[test]
        fn it_agrees_with_a_set(steps in proptest::collection::vec((0..3_u8, 0..9000_u64), 1..600)) {
            let (mut window, mut seen, mut newest) = (ReplayWindow::new(), HashSet::new(), 0_u64);
            for (kind, amount) in steps {
                let counter = match kind {
                    0 => newest + amount % 70,
                    1 => newest.saturating_sub(amount % 200),
                    _ => (newest + amount).saturating_sub(4500),
                };
                let expected = !seen.contains(&counter) && (counter > newest || newest + 1 - counter <= WINDOW);
                proptest::prop_assert_eq!(take(&mut window, counter), expected, "{} after {}", counter, newest);
                seen.insert(counter);
                newest = newest.max(counter);
            }
        }
    }
}
