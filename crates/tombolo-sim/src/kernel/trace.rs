//! What a run did, as one number.

use super::PartId;
use std::fmt;
use tombolo_random::mix;

/// A hash of a run: of each event, with its time, and of what parts noted. Equal runs have equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(u64);

impl Trace {
    /// Of no run.
    pub const NONE: Self = Self(0);

    /// Of a run whose hash is made elsewhere.
    pub(crate) fn of(hash: u64) -> Self {
        Self(hash)
    }

    /// Of this run and another one after it.
    #[must_use]
    pub fn then(self, next: Self) -> Self {
        Self(mix(self.0 ^ next.0))
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// A chain of hashes for each part, so that parts that do not meet may be run in any order.
#[derive(Debug, Default)]
pub(super) struct Chains(Vec<u64>);

impl Chains {
    pub(super) fn add(&mut self) {
        self.0.push(mix(self.0.len() as u64));
    }

    pub(super) fn extend(&mut self, part: PartId, words: &[u64]) {
        let chain = &mut self.0[part.0 as usize];
        for word in words {
            *chain = mix(*chain ^ *word);
        }
    }

    pub(super) fn joined(&self) -> Trace {
        Trace(self.0.iter().fold(0, |joined, chain| mix(joined ^ chain)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parts_do_counts_in_the_order_of_each_and_not_among_them() {
        let of = |events: &[(u32, u64)]| {
            let mut chains = Chains::default();
            (0..2).for_each(|_| chains.add());
            for (part, word) in events {
                chains.extend(PartId(*part), &[*word]);
            }
            chains.joined()
        };
        assert_eq!(of(&[(0, 1), (1, 2), (0, 3)]), of(&[(1, 2), (0, 1), (0, 3)]));
        assert_ne!(of(&[(0, 1), (0, 3)]), of(&[(0, 3), (0, 1)]));
        assert_ne!(of(&[(0, 1)]), of(&[(1, 1)]));
        assert_ne!(of(&[(0, 0)]), of(&[]));
        assert_eq!(of(&[]).to_string().len(), 16);
    }
}
