//! Chance, and what it does to packets and pages.

/// A small generator of our own: the same numbers on every machine, for ever.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// The number that `TOMBOLO_SEED` says, or this one: chance in every test comes from a seed that can be said.
/// It is printed, so that a failing test shows it.
fn seed_or(usual: u64) -> u64 {
    let said = std::env::var("TOMBOLO_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = said.unwrap_or(usual);
    println!("TOMBOLO_SEED={seed}");
    seed
}

impl Rng {
    /// As [`seed_or`] says.
    pub fn usual(usual: u64) -> Self {
        Self::new(seed_or(usual))
    }

    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit.max(1)
    }

    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    /// With a probability in millionths.
    pub fn chance(&mut self, millionths: u64) -> bool {
        self.below(1_000_000) < millionths
    }
}

/// What the wire and the memories do wrong; probabilities in millionths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplication: u64,
    pub corruption: u64,
    pub jitter_ns: u64,
    /// Chance that a packet is held back for up to 50 ms.
    pub stall: u64,
    /// Chance that a copy is slow, by up to `slow_ns`.
    pub slow_copy: u64,
    pub slow_ns: u64,
    /// Chance that a destination page is absent for a while.
    pub absent_page: u64,
    /// Chance that the destination is full for now.
    pub full: u64,
    /// Chance that a source page is absent for a while.
    pub absent_source: u64,
    /// The wire drops what is beyond this many bytes under way, each direction.
    pub buffer_bytes: Option<u64>,
    /// Nanoseconds a byte takes, in thousandths; 0 = none.
    pub byte_picos: u64,
}
