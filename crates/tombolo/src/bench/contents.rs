//! Page contents and orders that need no memory to be known again: every word
//! is a function of its place, so any page can be checked at any time.

/// A good mixer of 64 bits (the finaliser of SplitMix64).
pub fn mix(value: u64) -> u64 {
    let mut value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The word at an index of memory filled from a seed: incompressible.
pub fn word(seed: u64, index: usize) -> u64 {
    mix(seed ^ mix(index as u64))
}

/// Random numbers in a sequence.
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(1);
        ((u128::from(mix(self.0)) * end as u128) >> 64) as usize
    }

    /// Puts a list into random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }
}

/// A random permutation of `0..count` that takes no memory: a Feistel network
/// over the next even number of bits, walked on while it leaves the range.
pub struct Permutation {
    count: u64,
    half_bits: u32,
    seed: u64,
}

const ROUNDS: u64 = 4;

impl Permutation {
    /// One of them.
    pub fn new(seed: u64, count: usize) -> Self {
        let count = count.max(1) as u64;
        let bits = u64::BITS - (count - 1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), seed }
    }

    fn mask(&self) -> u64 {
        (1 << self.half_bits) - 1
    }

    fn round(&self, round: u64, half: u64) -> u64 {
        mix(self.seed ^ (round << 56) ^ half) & self.mask()
    }

    /// Where `position` goes.
    pub fn forward(&self, position: u64) -> u64 {
        let mut value = position;
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & self.mask());
            for round in 0..ROUNDS {
                (left, right) = (right, left ^ self.round(round, right));
            }
            value = (left << self.half_bits) | right;
            if value < self.count {
                return value;
            }
        }
    }

    /// Where it came from.
    pub fn backward(&self, position: u64) -> u64 {
        let mut value = position;
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & self.mask());
            for round in (0..ROUNDS).rev() {
                (left, right) = (right ^ self.round(round, left), left);
            }
            value = (left << self.half_bits) | right;
            if value < self.count {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_meets_every_number_once_and_can_be_undone() {
        for count in [1, 2, 3, 100, 1024, 1025] {
            let permutation = Permutation::new(7, count);
            let mut seen = vec![false; count];
            for position in 0..count as u64 {
                let image = permutation.forward(position);
                assert_eq!(permutation.backward(image), position);
                assert!(!std::mem::replace(&mut seen[image as usize], true));
            }
        }
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut list: Vec<usize> = (0..1000).collect();
        Random::new(3).shuffle(&mut list);
        assert_ne!(list, (0..1000).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..1000).collect::<Vec<_>>());
    }
}
