//! Numbers that look random, from a seed that a failing test has printed.

pub struct Random(u64);

impl Random {
    /// `TOMBOLO_SEED=n` takes the place of the seed.
    pub fn new(seed: u64) -> Self {
        let given = std::env::var("TOMBOLO_SEED").ok().and_then(|text| text.parse::<u64>().ok());
        let seed = given.unwrap_or(seed);
        eprintln!("TOMBOLO_SEED={seed}");
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    /// Some of these.
    pub fn among<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}
