//! What is read and written: a memory with one queue before it.

use super::{Access, AccessKind, Cargo, Here, Message, Part};
use crate::kernel::{Rate, Span, Time};
use tombolo_random::Random;

/// How the time of an access varies about its mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Variation {
    /// It does not.
    #[default]
    None,
    /// By so much at most, up or down, each value as likely as another.
    Uniform(Span),
    /// Exponentially distributed, the usual assumption where only a mean is known.
    Exponential,
}

/// Random numbers are compared as fractions of this.
const FRACTION_BITS: u32 = 32;

impl Variation {
    fn draw(self, mean: Span, random: &mut Random) -> Span {
        match self {
            Self::None => mean,
            Self::Uniform(spread) => {
                let spread = spread.picos().min(mean.picos());
                Span::from_picos(mean.picos() - spread + random.below(2 * spread + 1))
            }
            Self::Exponential => {
                let parts = (u128::from(exponential(random)) * u128::from(mean.picos())) >> FRACTION_BITS;
                Span::from_picos(u64::try_from(parts).unwrap_or(u64::MAX))
            }
        }
    }
}

/// A number of mean 1, in fractions, by comparisons alone (von Neumann, "Various techniques used in connection with random digits", 1951): a run
/// of falling numbers is of odd length as often as the exponential of the first one says.
fn exponential(random: &mut Random) -> u64 {
    let mut draw = || random.below(1 << FRACTION_BITS);
    let mut whole = 0;
    loop {
        let first = draw();
        let (mut last, mut length) = (first, 1);
        loop {
            let next = draw();
            if next >= last {
                break;
            }
            (last, length) = (next, length + 1);
        }
        if length % 2 == 1 {
            return (whole << FRACTION_BITS) + first;
        }
        whole += 1;
    }
}

/// The constants of a memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryConfig {
    /// What each access takes of the memory's time, whatever its length.
    pub service: Span,
    /// How that varies.
    pub variation: Variation,
    /// How fast bytes are read, beside that.
    pub read: Option<Rate>,
    /// How fast they are written.
    pub write: Option<Rate>,
    /// From the end of that to the answer: others are served meanwhile.
    pub latency: Span,
}

/// A memory. Accesses are served one after the other, and answered on the way that they name.
#[derive(Debug, Default)]
pub struct Memory {
    config: MemoryConfig,
    free_at: Time,
    busy: Span,
    accesses: u64,
    bytes: u64,
}

impl Memory {
    /// An idle memory.
    pub fn new(config: MemoryConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// How long it was busy.
    pub fn busy(&self) -> Span {
        self.busy
    }

    /// How many accesses it has served.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn service(&self, here: &mut Here<'_>, access: &Access) -> Span {
        let MemoryConfig { service, variation, read, write, .. } = self.config;
        let rate = match access.kind {
            AccessKind::Read => read,
            AccessKind::Write => write,
        };
        let drawn = variation.draw(service, here.random());
        let bytes = rate.map_or(Span::ZERO, |rate| rate.span_of(access.length_bytes.into()));
        drawn.plus(bytes)
    }
}

impl Part for Memory {
    fn receive(&mut self, here: &mut Here<'_>, _port: u8, message: Message) {
        let Message::Traveller(traveller) = message else { return };
        let Cargo::Access(access) = traveller.cargo else { return here.discard(traveller.cargo) };
        let service = self.service(here, &access);
        self.free_at = self.free_at.max(here.now()).after(service);
        self.busy = self.busy.plus(service);
        self.accesses += 1;
        self.bytes += u64::from(access.length_bytes);
        let answered_at = self.free_at.after(self.config.latency);
        here.start(answered_at, access.back, Cargo::Access(access), access.answer_bytes());
    }

    /// Each access is answered in its time.
    fn open(&self) -> u64 {
        0
    }

    fn forwards(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean is kept; the mean of squares is 4/3 of its square if uniform up to twice the mean, and twice that if exponential.
    #[test]
    fn times_vary_as_they_are_said_to() {
        let mean = Span::from_ns(40);
        let moments = |variation: Variation| {
            let mut random = Random::new(3);
            let draws: Vec<f64> =
                (0..100_000).map(|_| variation.draw(mean, &mut random).picos() as f64 / 40_000.0).collect();
            let count = draws.len() as f64;
            (draws.iter().sum::<f64>() / count, draws.iter().map(|draw| draw * draw).sum::<f64>() / count)
        };
        for (variation, square) in
            [(Variation::None, 1.0), (Variation::Uniform(mean), 4.0 / 3.0), (Variation::Exponential, 2.0)]
        {
            let (first, second) = moments(variation);
            assert!(
                (first - 1.0).abs() < 0.01 && (second - square).abs() < 0.03,
                "{variation:?}: {first} {second}"
            );
        }
    }
}
