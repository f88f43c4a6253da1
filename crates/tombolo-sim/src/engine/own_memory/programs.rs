//! A program and its pages: which are absent, and what an attempt finds.

use super::{BASE, WORDS_BASE};
use std::collections::{BTreeMap, BTreeSet};
use tombolo_core::iommu::{Absence, AccessId, ContextId, PAGE_BYTES, Reason, Right, TouchId, Unreached};
use tombolo_core::rdma::Time;
use tombolo_random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Missing(Absence),
    Protected,
    Unmapped,
}

/// A program of a node, and its pages.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) context: ContextId,
    /// The pages that are not there.
    pub(super) pages: BTreeMap<u64, Page>,
    /// Pages beyond this one are not used.
    pub(super) end_page: u64,
    pub(super) hanging: BTreeSet<TouchId>,
    /// Accesses whose pages it brings in, and others that overlap with those, and when it makes them; in the order of the orders.
    pub(super) bringing: Vec<(AccessId, Time)>,
    /// It is stopped until then.
    pub(super) stopped_until: Time,
    /// When it takes the last order: it takes them in order.
    pub(super) last_order: Time,
    /// Orders that it has not answered.
    pub(super) orders: usize,
}

impl Program {
    /// When it goes on, if it is stopped.
    pub(super) fn stopped(&self, now: Time) -> Option<Time> {
        (now < self.stopped_until).then_some(self.stopped_until)
    }

    pub(super) fn seen(&self, page: u64, right: Right) -> Result<Option<Absence>, Reason> {
        match self.pages.get(&page) {
            Some(Page::Missing(Absence::CopyOnWrite | Absence::WriteProtected)) if right == Right::Read => {
                Ok(None)
            }
            Some(Page::Missing(kind)) => Ok(Some(*kind)),
            Some(Page::Protected) if right == Right::Write => Err(Reason::Protected),
            Some(Page::Unmapped) => Err(Reason::NotMapped),
            Some(Page::Protected) | None => Ok(None),
        }
    }

    /// How an attempt at a range goes, before anything is copied.
    pub(super) fn look(
        &self,
        (address, length_bytes): (u64, u32),
        right: Right,
    ) -> Result<Option<(u32, Absence)>, Unreached> {
        let (mut absent, mut first_kind) = (0, None);
        let first = address / PAGE_BYTES;
        for page in first..(address + u64::from(length_bytes)).div_ceil(PAGE_BYTES).max(first + 1) {
            match self.seen(page, right) {
                Err(reason) => {
                    return Err(Unreached { address: (page * PAGE_BYTES).max(address), reason });
                }
                Ok(Some(kind)) => {
                    first_kind.get_or_insert(kind);
                    absent |= 1 << (page - first);
                }
                Ok(None) => {}
            }
        }
        Ok(first_kind.map(|kind| (absent, kind)))
    }

    /// Pages come, as far as they are mapped.
    pub(super) fn bring(&mut self, address: u64, length_bytes: u32, right: Right) -> Result<(), Unreached> {
        for page in address / PAGE_BYTES..(address + u64::from(length_bytes)).div_ceil(PAGE_BYTES) {
            match self.seen(page, right) {
                Err(reason) => {
                    return Err(Unreached { address: (page * PAGE_BYTES).max(address), reason });
                }
                Ok(Some(_)) => drop(self.pages.remove(&page)),
                Ok(None) => {}
            }
        }
        Ok(())
    }

    /// Some pages in a row go, or their mapping does.
    pub(super) fn disturb(&mut self, random: &mut Random, kind: Page) {
        let first = if random.one_in(10) {
            WORDS_BASE / PAGE_BYTES
        } else {
            BASE / PAGE_BYTES + random.below(self.end_page - BASE / PAGE_BYTES)
        };
        for page in first..first + random.range(1, 20) {
            self.pages.entry(page).or_insert(kind);
        }
    }
}
