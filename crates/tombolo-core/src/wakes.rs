//! Timers of many owners (peers, domains): which owners are due, without a pass over all of them.
//!
//! Each owner keeps a *wake*, a lower bound of all its timers, in a field of its own. Arming a timer lowers the wake.
//! Cancelling one changes nothing. When the wake has passed, the owner fires what is due and computes its wake anew. So
//! an early wake happens at most once per timeout, and arming costs one comparison unless the new timer is the owner's
//! first.

use std::collections::BTreeSet;

use crate::rdma::Time;

/// When an owner's timers are looked at: a field of the owner, which only [`Wakes`] and [`Wake::fired`] change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wake(Time);

impl Wake {
    /// Resets the wake of an owner that [`Wakes::take_due`] has returned. The owner fires its timers now and is filed
    /// anew.
    pub(crate) fn fired(&mut self) {
        *self = Self::default();
    }
}

impl Default for Wake {
    /// The wake of an owner without timers.
    fn default() -> Self {
        Self(NEVER)
    }
}

/// The time of an owner without timers.
pub(crate) const NEVER: Time = Time(u64::MAX);

/// The wakes of all owners, in the order of their times.
#[derive(Debug)]
pub(crate) struct Wakes<Owner> {
    by_time: BTreeSet<(Time, Owner)>,
}

impl<Owner> Default for Wakes<Owner> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new() }
    }
}

impl<Owner: Copy + Ord> Wakes<Owner> {
    /// Lowers the owner's wake to the time at which a timer of it is due.
    pub(crate) fn lower(&mut self, owner: Owner, wake: &mut Wake, due: Time) {
        if due < wake.0 {
            self.forget(owner, wake);
            self.by_time.insert((due, owner));
            *wake = Wake(due);
        }
    }

    /// Drops the owner's wake: it has no timers, or is gone.
    pub(crate) fn forget(&mut self, owner: Owner, wake: &mut Wake) {
        if wake.0 != NEVER {
            self.by_time.remove(&(wake.0, owner));
            *wake = Wake::default();
        }
    }

    /// Number of owners with a wake.
    pub(crate) fn len(&self) -> usize {
        self.by_time.len()
    }

    /// The earliest wake.
    pub(crate) fn first(&self) -> Option<Time> {
        self.by_time.first().map(|(time, _)| *time)
    }

    /// Takes out an owner whose wake has passed. The caller calls [`Wake::fired`], fires the owner's timers and lowers
    /// its wake again.
    pub(crate) fn take_due(&mut self, now: Time) -> Option<Owner> {
        let first = self.by_time.first().filter(|(time, _)| *time <= now)?;
        let (_, owner) = *first;
        self.by_time.pop_first();
        Some(owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn due_owners_come_in_the_order_of_their_wakes(steps in proptest::collection::vec((0..3u8, 0..8usize, 0..50u64), 0..200)) {
            let mut wakes = Wakes::default();
            let mut fields = [Wake::default(); 8];
            let mut oracle = [None; 8];
            for (step, owner, time) in steps {
                match step {
                    0 => {
                        wakes.lower(owner, &mut fields[owner], Time(time));
                        oracle[owner] = Some(oracle[owner].unwrap_or(u64::MAX).min(time));
                    }
                    1 => {
                        wakes.forget(owner, &mut fields[owner]);
                        oracle[owner] = None;
                    }
                    _ => {
                        let due = (0..8).filter_map(|owner| Some((oracle[owner]?, owner))).min();
                        let due = due.filter(|(due, _)| *due <= time).map(|(_, owner)| owner);
                        prop_assert_eq!(wakes.take_due(Time(time)), due);
                        if let Some(owner) = due {
                            (fields[owner], oracle[owner]) = (Wake::default(), None);
                        }
                    }
                }
                prop_assert_eq!(wakes.first().map(|time| time.0), oracle.iter().flatten().min().copied());
            }
        }
    }
}
