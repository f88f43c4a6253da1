//! Which class is served next (QOS §3.2.3), and which peer of it.
//!
//! Strict order alone starves: under a steady load of small transfers a large one would never end. So each
//! class counts the blocks that other classes were given while it had work, and it is given a block when the
//! count reaches the bound. If two classes have reached it, low goes before medium. So low never waits for more
//! than `bound` blocks, and medium for at most `bound + 1`.
//!
//! Inside a class, peers take turns, and so do the transfers of each peer. A peer whose congestion window is
//! full leaves the rings until the window opens. Meanwhile its transfers cost nothing and delay no other peer.

use super::transfer::Class;
use crate::list::{Chain, List};

/// Strict order with a bound on starvation, over anything that has work by class.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClassPicker {
    bound: u32,
    /// For each class, blocks given to other classes while it had work.
    passed_over: [u32; Class::COUNT],
}

impl ClassPicker {
    pub(crate) fn new(bound: u32) -> Self {
        Self { bound, passed_over: [0; Class::COUNT] }
    }

    /// The class to serve now, and whether it is chosen only because it had waited too long.
    pub(crate) fn pick(&mut self, has_work: [bool; Class::COUNT]) -> Option<(Class, bool)> {
        let strict = (0..Class::COUNT).find(|class| has_work[*class])?;
        let due = (strict + 1..Class::COUNT)
            .rev()
            .find(|class| has_work[*class] && self.passed_over[*class] >= self.bound);
        let chosen = due.unwrap_or(strict);
        for (class, has_work) in has_work.into_iter().enumerate() {
            if class == chosen || !has_work {
                self.passed_over[class] = 0;
            } else if class > chosen || due.is_some() {
                self.passed_over[class] = self.passed_over[class].saturating_add(1);
            }
        }
        Some((Class::ALL[chosen], due.is_some()))
    }

    /// A block of the highest class is about to skip the queue: counts, for each lower class with work, that it is
    /// passed over once more. Returns `false`, and counts nothing, if one of these classes was passed over as often
    /// as the bound allows.
    pub(crate) fn pass_over_lower(&mut self, has_work: [bool; Class::COUNT]) -> bool {
        let waiting = |class: &usize| has_work[*class];
        if (1..Class::COUNT).filter(waiting).any(|class| self.passed_over[class] >= self.bound) {
            return false;
        }
        for class in (1..Class::COUNT).filter(waiting) {
            self.passed_over[class] += 1;
        }
        true
    }
}

/// Places that the reads of all classes share. A quarter of them (at least one, if there are several) is kept
/// free of lower classes for each class above. So long reads, however many there are, never make a short read
/// wait until one of them ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    held: [u32; Class::COUNT],
}

impl Shares {
    /// Whether a read of this class may take another one of `places` places.
    pub(crate) fn admits(&self, places: u32, class: Class) -> bool {
        let kept = (places / 4).max(1);
        (0..=class as u32).all(|limited| {
            let limit = places.saturating_sub(kept.saturating_mul(limited)).max(1);
            self.held[limited as usize..].iter().sum::<u32>() < limit
        })
    }

    pub(crate) fn take(&mut self, class: Class) {
        self.held[class as usize] += 1;
    }

    pub(crate) fn give_back(&mut self, class: Class) {
        let held = &mut self.held[class as usize];
        *held = held.saturating_sub(1);
    }

    /// Places held by all classes together.
    pub(crate) fn total(&self) -> u32 {
        self.held.iter().sum()
    }
}

/// The rings of peers with something to send: one for blocks to be sent again, one for each class, and one for
/// read requests.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    rings: [Ring; RINGS],
    /// For each peer the rings it is in, a bit each.
    members: Vec<u8>,
}

/// The ring of peers with blocks to be sent again.
pub(crate) const RESEND: usize = 0;

/// The ring of peers with reads to be asked for.
pub(crate) const ASK: usize = 1 + Class::COUNT;

/// Number of rings.
const RINGS: usize = ASK + 1;

/// The ring of a class.
pub(crate) fn ring_of(class: Class) -> usize {
    1 + class as usize
}

#[derive(Debug, Default)]
struct Ring {
    list: List,
    chain: Chain,
}

impl Rings {
    pub(crate) fn grow(&mut self, peers: usize) {
        for ring in &mut self.rings {
            ring.chain.grow(peers);
        }
        if self.members.len() < peers {
            self.members.resize(peers, 0);
        }
    }

    /// Puts a peer into the rings that have a bit in `members`, and takes it out of the others.
    pub(crate) fn set(&mut self, peer: u32, members: u8) {
        let before = std::mem::replace(&mut self.members[peer as usize], members);
        if before == members {
            return;
        }
        for (place, ring) in self.rings.iter_mut().enumerate() {
            match (before >> place & 1, members >> place & 1) {
                (0, 1) => ring.list.push_back(&mut ring.chain, peer),
                (1, 0) => ring.list.remove(&mut ring.chain, peer),
                _ => {}
            }
        }
    }

    pub(crate) fn is_in(&self, ring: usize, peer: u32) -> bool {
        self.members[peer as usize] >> ring & 1 == 1
    }

    pub(crate) fn front(&self, ring: usize) -> Option<u32> {
        self.rings[ring].list.front()
    }

    /// Moves a peer to the rear of a ring, so that another one has its turn.
    pub(crate) fn rotate(&mut self, ring: usize, peer: u32) {
        let is_member = self.members[peer as usize] >> ring & 1 == 1;
        let ring = &mut self.rings[ring];
        if is_member {
            ring.list.remove(&mut ring.chain, peer);
            ring.list.push_back(&mut ring.chain, peer);
        }
    }

    pub(crate) fn has_work(&self) -> [bool; Class::COUNT] {
        Class::ALL.map(|class| self.front(ring_of(class)).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_class_waits_longer_than_the_bound(bound in 1..20u32, work in proptest::collection::vec(any::<[bool; Class::COUNT]>(), 0..400)) {
            let mut picker = ClassPicker::new(bound);
            let mut waited = [0; Class::COUNT];
            for has_work in work {
                let picked = picker.pick(has_work);
                prop_assert_eq!(picked.is_some(), has_work.contains(&true));
                let Some((class, _)) = picked else { continue };
                prop_assert!(has_work[class as usize]);
                for other in 0..Class::COUNT {
                    let passed = has_work[other] && other != class as usize;
                    waited[other] = if passed { waited[other] + 1 } else { 0 };
                }
                prop_assert!(waited[1] <= bound + 1 && waited[2] <= bound, "{waited:?}");
            }
        }
    }

    #[test]
    fn lower_classes_leave_places_to_higher_ones() {
        for (places, limits) in [(32, [32, 24, 16]), (4, [4, 3, 2]), (2, [2, 1, 1]), (1, [1, 1, 1])] {
            for (class, limit) in Class::ALL.into_iter().zip(limits) {
                let mut shares = Shares::default();
                while shares.admits(places, class) {
                    shares.take(class);
                }
                assert_eq!(shares.total(), limit, "{class:?} of {places}");
                assert_eq!(shares.admits(places, Class::High), limit < places);
                shares.give_back(class);
                assert!(shares.admits(places, class));
            }
        }
        // A lower class is admitted as long as any place is free, however many places the high class holds.
        let mut shares = Shares::default();
        (0..20).for_each(|_| shares.take(Class::High));
        assert!(shares.admits(32, Class::Low));
        (0..12).for_each(|_| shares.take(Class::High));
        assert!(!shares.admits(32, Class::Low));
    }

    #[test]
    fn order_is_strict_until_the_bound() {
        let mut picker = ClassPicker::new(3);
        let picks: Vec<_> =
            (0..8).map(|_| picker.pick([true, false, true]).map(|(class, _)| class)).collect();
        let [high, low] = [Some(Class::High), Some(Class::Low)];
        assert_eq!(picks, [high, high, high, low, high, high, high, low]);
        assert_eq!(picker.pick([false; Class::COUNT]), None);
    }
}
