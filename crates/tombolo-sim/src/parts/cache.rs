//! A cache: which lines are there, and which have been written.

use super::AccessKind;

/// The size of a cache. Zeroes count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of a line.
    pub line_bytes: u32,
    /// Lines that share a place: any of them may be in any of these.
    pub ways: usize,
    /// Groups of such lines.
    pub sets: usize,
}

/// A line was not there. It is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMiss {
    /// Where the line begins that has to be written back first: it had been written, and had to go.
    pub written_back: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    number: u64,
    is_written: bool,
}

/// A cache that writes back, brings in what is written, and gives up the line that was used longest ago. It has the state of lines, and
/// not their bytes.
#[derive(Clone, Debug)]
pub struct Cache {
    config: CacheConfig,
    /// The lines of each set, the one that was used last at the end.
    sets: Vec<Vec<Line>>,
    hits: u64,
    misses: u64,
}

impl Cache {
    /// An empty cache.
    pub fn new(config: CacheConfig) -> Self {
        let CacheConfig { line_bytes, ways, sets } = config;
        let config = CacheConfig { line_bytes: line_bytes.max(1), ways: ways.max(1), sets: sets.max(1) };
        Self { config, sets: vec![Vec::new(); config.sets], hits: 0, misses: 0 }
    }

    /// An access within one line.
    pub fn access(&mut self, address: u64, kind: AccessKind) -> Result<(), CacheMiss> {
        let line_bytes = u64::from(self.config.line_bytes);
        let number = address / line_bytes;
        let set = &mut self.sets[(number % self.config.sets as u64) as usize];
        let is_write = kind == AccessKind::Write;
        if let Some(place) = set.iter().position(|line| line.number == number) {
            let mut line = set.remove(place);
            line.is_written |= is_write;
            set.push(line);
            self.hits += 1;
            return Ok(());
        }
        self.misses += 1;
        let given_up = (set.len() >= self.config.ways).then(|| set.remove(0));
        set.push(Line { number, is_written: is_write });
        let written_back = given_up.filter(|line| line.is_written).map(|line| line.number * line_bytes);
        Err(CacheMiss { written_back })
    }

    /// Somebody else has written there: what is here is stale. Whether a line had been written here, too, whose bytes are lost.
    pub fn invalidate(&mut self, address: u64) -> bool {
        let number = address / u64::from(self.config.line_bytes);
        let set = &mut self.sets[(number % self.config.sets as u64) as usize];
        let place = set.iter().position(|line| line.number == number);
        place.is_some_and(|place| set.remove(place).is_written)
    }

    /// Whether the line of an address is there.
    pub fn has(&self, address: u64) -> bool {
        let number = address / u64::from(self.config.line_bytes);
        self.sets[(number % self.config.sets as u64) as usize].iter().any(|line| line.number == number)
    }

    /// Accesses to lines that were there.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// And to others.
    pub fn misses(&self) -> u64 {
        self.misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_random::Random;

    fn cache(ways: usize, sets: usize) -> Cache {
        Cache::new(CacheConfig { line_bytes: 32, ways, sets })
    }

    #[test]
    fn what_fits_misses_once_and_one_line_more_misses_always() {
        for (ways, sets) in [(64, 1), (4, 16)] {
            for (lines, misses) in [(64, 64), (65, 65 + (ways as u64 + 1) * 9)] {
                let mut cache = cache(ways, sets);
                for _ in 0..10 {
                    for line in 0..lines {
                        let _ = cache.access(line * 32 + 5, AccessKind::Read);
                    }
                }
                // Of 65 lines, only those of the set that has one more than it holds go.
                assert_eq!((cache.misses(), cache.hits()), (misses, lines * 10 - misses), "{ways} ways");
            }
        }
    }

    #[test]
    fn of_random_lines_as_many_are_there_as_fit() {
        let mut random = Random::new(3);
        let mut cache = cache(4, 256);
        for _ in 0..200_000 {
            let _ = cache.access(random.below(4_096) * 32, AccessKind::Read);
        }
        // 1024 of 4096 lines: a quarter.
        let per_mille = cache.hits() * 1_000 / 200_000;
        assert!((240..=255).contains(&per_mille), "{per_mille}");
    }

    #[test]
    fn what_was_written_is_written_back_when_it_goes() {
        let mut cache = cache(2, 1);
        let clean = Err(CacheMiss { written_back: None });
        assert_eq!(cache.access(0, AccessKind::Write), clean);
        assert_eq!(cache.access(32, AccessKind::Read), clean);
        assert_eq!(cache.access(0, AccessKind::Read), Ok(()));
        assert_eq!(cache.access(64, AccessKind::Read), clean);
        assert_eq!(cache.access(96, AccessKind::Write), Err(CacheMiss { written_back: Some(0) }));
        assert!(cache.has(64) && cache.has(96) && !cache.has(0));
        assert_eq!([96, 96, 64].map(|address| cache.invalidate(address)), [true, false, false]);
    }
}
