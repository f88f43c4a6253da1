//! Pauses between attempts, which grow up to a bound and vary at random.

/// Random numbers from a seed (SplitMix64). Not `tombolo-random`, which is for tests, benches and inputs: it reads
/// seeds from the environment and prints them, and the core does no I/O.
#[derive(Debug)]
pub(super) struct Jitter(u64);

impl Jitter {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A random time between three quarters and five quarters of a pause.
    pub(super) fn around(&mut self, pause_ns: u64) -> u64 {
        pause_ns - pause_ns / 4 + self.next() % (pause_ns / 2).max(1)
    }
}

/// Pauses between dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pauses {
    /// The first pause.
    pub first_ns: u64,
    /// The longest pause: each pause is twice the last one, up to this.
    pub longest_ns: u64,
    /// After the loss of a link that lasted this long, the pauses begin with the first again.
    pub lasting_ns: u64,
    /// Pause between two probes of the address of a suspect neighbour.
    pub probe_ns: u64,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            // A user does not notice a tenth of a second; ten dials a second are the most.
            first_ns: 100_000_000,
            // A node that comes back is joined 5 s later at most; one dial in 5 s costs nothing.
            longest_ns: 5_000_000_000,
            // The same as the longest pause: a link that fails sooner is no success.
            lasting_ns: 5_000_000_000,
            // A bound, not a measurement: below the 1.5 s of silence after which a link is suspect.
            probe_ns: 1_000_000_000,
        }
    }
}

/// Computes the next pause: twice the last one, within the bound.
#[derive(Debug)]
pub(super) struct BackOff {
    next_ns: u64,
}

impl BackOff {
    pub(super) fn new(pauses: &Pauses) -> Self {
        Self { next_ns: pauses.first_ns }
    }

    pub(super) fn reset(&mut self, pauses: &Pauses) {
        self.next_ns = pauses.first_ns;
    }

    pub(super) fn pause_ns(&mut self, pauses: &Pauses, jitter: &mut Jitter) -> u64 {
        let pause_ns = jitter.around(self.next_ns);
        self.next_ns = self.next_ns.saturating_mul(2).min(pauses.longest_ns);
        pause_ns
    }
}
