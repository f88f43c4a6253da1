//! Page contents and orders that need no memory to be known again: every word
//! is a function of its place, so any page can be checked at any time.

use tombolo_random::mix;

/// The word at an index of memory filled from a seed: incompressible.
pub fn word(seed: u64, index: usize) -> u64 {
    mix(seed ^ mix(index as u64))
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
    /// The permutation of a seed.
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

    /// The position that goes there.
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
}
