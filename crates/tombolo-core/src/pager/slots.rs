//! Far slots: which pages of far memory are in use, and by how many.
//!
//! A slot is shared by a forked child and its parent until one of them writes.
//! Allocation is next-fit, so that pages evicted together lie together and come
//! back with one copy; and it begins anew where twice the slots in use end: far
//! pages used lately are warm in caches and page tables, others are not.

/// Fewer slots than this are not worth beginning anew for.
const ROUND_LEAST: usize = 4096;

/// Who uses which far page.
#[derive(Debug)]
pub struct Slots {
    users: Vec<u16>,
    cursor: usize,
    used: usize,
    /// Slots that must not be given out (their lender is gone).
    withdrawn: usize,
}

const WITHDRAWN: u16 = u16::MAX;

impl Slots {
    /// All free.
    pub fn new(capacity_pages: usize) -> Self {
        Self { users: vec![0; capacity_pages], cursor: 0, used: 0, withdrawn: 0 }
    }

    /// Slots in use, in pages.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Takes a free slot: the next one after the last taken, if that is free.
    pub fn take(&mut self) -> Option<u32> {
        if self.used + self.withdrawn >= self.users.len() {
            return None;
        }
        if self.cursor > ROUND_LEAST.max(2 * self.used) {
            self.cursor = 0;
        }
        let (before, after) = self.users.split_at(self.cursor);
        let offset = after.iter().position(|&users| users == 0).map(|index| index + self.cursor);
        let index = offset.or_else(|| before.iter().position(|&users| users == 0))?;
        self.users[index] = 1;
        self.used += 1;
        self.cursor = (index + 1) % self.users.len();
        u32::try_from(index).ok()
    }

    /// One more user of a slot in use. False: no further one can be counted.
    #[must_use]
    pub fn share(&mut self, slot: u32) -> bool {
        match self.users.get_mut(slot as usize) {
            Some(users) if *users > 0 && *users < WITHDRAWN - 1 => {
                *users += 1;
                true
            }
            _ => false,
        }
    }

    /// One user less; the last one frees the slot.
    pub fn release(&mut self, slot: u32) {
        if let Some(users) =
            self.users.get_mut(slot as usize).filter(|users| **users > 0 && **users < WITHDRAWN)
        {
            *users -= 1;
            if *users == 0 {
                self.used -= 1;
            }
        }
    }

    /// Takes a slot out of service for good. Returns whether it was in use.
    pub fn withdraw(&mut self, slot: u32) -> bool {
        let Some(users) = self.users.get_mut(slot as usize).filter(|users| **users != WITHDRAWN) else {
            return false;
        };
        let in_use = *users > 0;
        *users = WITHDRAWN;
        self.withdrawn += 1;
        self.used -= usize::from(in_use);
        in_use
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_consecutive_and_run_out_and_come_back() {
        let mut slots = Slots::new(3);
        assert_eq!(
            [slots.take(), slots.take(), slots.take(), slots.take()],
            [Some(0), Some(1), Some(2), None]
        );
        slots.release(1);
        assert_eq!(slots.take(), Some(1));
        assert_eq!(slots.used(), 3);
    }

    #[test]
    fn few_slots_in_use_stay_few() {
        let mut slots = Slots::new(100_000);
        let mut held = std::collections::VecDeque::new();
        for _ in 0..300_000 {
            held.push_back(slots.take().unwrap());
            if held.len() > 5_000 {
                slots.release(held.pop_front().unwrap());
            }
        }
        assert!(held.iter().all(|&slot| slot < 11_000));
    }

    #[test]
    fn a_shared_slot_is_freed_by_its_last_user() {
        let mut slots = Slots::new(1);
        let slot = slots.take().unwrap();
        assert!(slots.share(slot));
        slots.release(slot);
        assert_eq!(slots.take(), None);
        slots.release(slot);
        assert_eq!(slots.take(), Some(slot));
        slots.release(slot);
        slots.release(slot);
        assert_eq!(slots.used(), 0);
        assert!(!slots.share(slot));
    }

    #[test]
    fn withdrawn_slots_are_never_given_out() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.take(), Some(0));
        assert!(slots.withdraw(0));
        assert!(!slots.withdraw(1));
        assert_eq!((slots.take(), slots.used()), (None, 0));
        slots.release(0);
        assert_eq!(slots.take(), None);
    }
}
