//! Random numbers that a seed repeats, for simulations, tests and benches.
//!
//! The product has two small generators of its own: `tombolo_core::fabric` has SplitMix64 again for the jitter of its
//! pauses, because the core depends on nothing, and the demo draws its input's letters by xorshift.
//!
//! A test that draws one sequence takes it from [`Random::for_test`]. A test that draws many
//! scenarios, one a seed, takes the seeds from [`Seeds`]. Both print the seed, and
//! `TOMBOLO_SEED=n` repeats it. Nothing here is fit for secrets.

#![forbid(unsafe_code)]

mod seeds;

pub use seeds::{FULL_TIME, Seeds, USUAL_TIME, amount, is_full, is_on};

/// A step of SplitMix64: every bit of the result depends on every bit of the value.
#[inline]
pub fn mix(value: u64) -> u64 {
    let mut value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A sequence of random numbers (SplitMix64), the same on every machine.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        // Without this, the sequences of neighbouring seeds overlap.
        Self { state: mix(seed) }
    }

    /// The sequence of `TOMBOLO_SEED`, or of this seed unless that is set. Prints the seed, which
    /// the test harness shows when the test fails.
    pub fn for_test(default_seed: u64) -> Self {
        let seed = seeds::number("TOMBOLO_SEED").unwrap_or(default_seed);
        println!("random numbers: TOMBOLO_SEED={seed} repeats this test");
        Self::new(seed)
    }

    /// The next 64 bits.
    #[inline]
    #[expect(clippy::should_implement_trait, reason = "a sequence without an end needs no Option")]
    pub fn next(&mut self) -> u64 {
        let number = mix(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        number
    }

    /// A number below this one; 0 if that is 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// An index below this length; 0 if that is 0.
    #[inline]
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number from the first to the last, both included.
    pub fn range(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in this many times, on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// True this many times in a thousand, on average.
    pub fn per_mille(&mut self, times: u32) -> bool {
        self.below(1_000) < u64::from(times)
    }

    /// True this many times in a million, on average.
    pub fn per_million(&mut self, times: u64) -> bool {
        self.below(1_000_000) < times
    }

    /// One of these.
    ///
    /// # Panics
    ///
    /// If there are none.
    pub fn among<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Fills a buffer.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next().to_le_bytes()[..part.len()]);
        }
    }

    /// Puts a list into random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_sequence_and_another_has_another() {
        let sequence = |seed| {
            let mut random = Random::new(seed);
            (0..100).map(|_| random.next()).collect::<Vec<_>>()
        };
        assert_eq!(sequence(1), sequence(1));
        let (one, other) = (sequence(1), sequence(2));
        assert!(one.iter().all(|number| !other.contains(number)), "neighbouring seeds overlap");
        // The reference implementation's first number; and seeds that were written down stay good.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(Random::new(0).next(), 0xa706_dd2f_4d19_7e6f);
    }

    #[test]
    fn numbers_stay_in_their_bounds_and_reach_them() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[random.index(5)] = true;
            assert!((3..=5).contains(&random.range(3, 5)));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.range(4, 4), 4);
        assert!(random.one_in(1) && random.per_mille(1_000) && random.per_million(1_000_000));
        assert!(!random.per_mille(0) && !random.per_million(0));
        assert_eq!(random.among(&[9]), 9);
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut list: Vec<usize> = (0..1000).collect();
        Random::new(3).shuffle(&mut list);
        assert_ne!(list, (0..1000).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_buffer_of_any_length_is_filled() {
        let mut bytes = [0; 21];
        Random::new(5).fill(&mut bytes);
        assert!(bytes.chunks(7).all(|part| part.iter().any(|&byte| byte != 0)));
    }
}
