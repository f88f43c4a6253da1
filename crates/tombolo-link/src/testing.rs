//! Links for tests: one inside the process, two that misbehave, and randomness with a seed.

mod faulty;
mod lossy;
mod memory;

pub use faulty::{Faults, FaultyLink};
pub use lossy::LossyLink;
pub use memory::{LinkPair, MemoryLink, memory_pair};

/// Randomness that a seed repeats (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random {
    state: u64,
}

impl Random {
    /// A sequence of its own for each seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, or 0 when that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The remainder's slight preference for small numbers does not matter in a test.
        self.next_u64().checked_rem(bound).unwrap_or(0)
    }

    /// True so many times out of a thousand.
    pub fn per_mille(&mut self, chance: u32) -> bool {
        self.below(1000) < u64::from(chance)
    }
}
