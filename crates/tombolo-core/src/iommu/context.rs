//! The accesses and touches of one domain's memory, and what is remembered of its faults.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::lookup::Lookup;

use super::job::{Access, AccessId, End, FaultSource, Right, TouchId, TouchPolicy, Unreached};
use super::patience::Patience;
use super::{Config, PAGE_BYTES};
use crate::rdma::Time;
use crate::wakes::Wake;

/// Most pages that a run of faults brings in at once: 256 KiB.
const MAX_AHEAD_PAGES: u64 = 64;
/// Most refusals that are remembered. If one is forgotten, its page is touched once more.
const MAX_DENIED: usize = 64;
/// Most slots whose blocks' pauses are counted: the slots of four peers, at both ends. Beyond this, slots whose
/// pages have never left again are forgotten, and all slots if that is not enough.
const MAX_PAUSED: usize = 8192;

/// The fault registers of a context, named as in FAULT §3.2.1. They describe the first fault since they were
/// cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRegisters {
    /// FSR.TF: a page was not present, was not mapped, or could not be had.
    pub translation_fault: bool,
    /// FSR.PF: an access was not permitted.
    pub permission_fault: bool,
    /// FSR.MULTI: there was another fault after the one that the other registers describe.
    pub multiple: bool,
    /// FAR: the address of the fault.
    pub address: u64,
    /// FSYNR.WNR: the fault was by a write (at a destination), not by a read (at a source).
    pub write_not_read: bool,
}

impl FaultRegisters {
    pub(super) fn note(&mut self, address: u64, right: Right, is_permission: bool) {
        if self.translation_fault || self.permission_fault {
            self.multiple = true;
            return;
        }
        *self = Self {
            translation_fault: !is_permission,
            permission_fault: is_permission,
            multiple: false,
            address,
            write_not_read: right == Right::Write,
        };
    }
}

/// A touch: pages that are being brought in, or are to be.
#[derive(Debug)]
pub(super) struct Touch {
    pub(super) first_page: u64,
    pub(super) end_page: u64,
    /// Start and end of the range that the pages lie in. The range need not begin or end at a page boundary.
    pub(super) range: (u64, u64),
    pub(super) right: Right,
    pub(super) since: Time,
    /// The touch took too long: no access waits for it any more.
    pub(super) is_overdue: bool,
    pub(super) patience: Patience,
    /// No access waited for the touch when it was begun.
    pub(super) is_ahead: bool,
    pub(super) waiting: Vec<AccessId>,
    /// Those waiting accesses that came while the caller was carrying the touch out. If the touch fails, they look
    /// for absent pages themselves, since the memory may have changed.
    pub(super) late: Vec<AccessId>,
}

impl Touch {
    fn covers(&self, page: u64, right: Right) -> bool {
        (self.first_page..self.end_page).contains(&page)
            && (self.right == right || self.right == Right::Write)
    }
}

/// Pauses of one block.
#[derive(Debug)]
struct Pauses {
    /// Distinguishes successive blocks of the slot.
    sequence: u32,
    /// The page of the latest pause.
    page: u64,
    /// Number of pauses at a page no higher than that of the pause before. That page had been brought in and has
    /// left again, or did not come.
    gone: u32,
}

/// A translation context: the state of one domain's memory.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// Accesses of this context that are not over.
    pub(super) accesses: BTreeSet<AccessId>,
    /// Attempts that were given up and have not ended, each with the start of its range.
    pub(super) overdue: BTreeMap<AccessId, u64>,
    pub(super) touches: BTreeMap<TouchId, Touch>,
    /// Touches that the caller has not been asked for yet.
    pub(super) queued: VecDeque<TouchId>,
    /// Touches that the caller carries out.
    pub(super) running: usize,
    /// Bytes of accesses that stall or are forced.
    pub(super) held_bytes: u64,
    /// Bytes of accesses whose attempts may bring pages in.
    pub(super) bringing_bytes: u64,
    /// Ranges that are being released, by their start.
    pub(super) releasing: BTreeMap<u64, u64>,
    /// Lower bound of the times at which an attempt or a touch takes too long.
    pub(super) wake: Wake,
    pub(super) registers: FaultRegisters,
    /// Paused blocks whose pages could not be brought in, why not, and until when that is remembered. Other blocks
    /// find out for themselves, since the memory may have changed.
    denied: VecDeque<(FaultSource, End, Unreached, Time)>,
    /// Pauses of blocks whose senders were refused because a page was absent. Each slot (node, number, end) has the
    /// pauses of its latest block.
    paused: Lookup<(u32, u16, End), Pauses>,
    /// The page at which the last run of faults is expected to go on, and the number of pages that it brings in.
    run: (u64, u64),
}

impl Context {
    /// The touch that brings a page in, if any. Touches ahead do not count: their other pages may take longer.
    pub(super) fn touch_of(&self, page: u64, right: Right) -> Option<TouchId> {
        let mut touches = self.touches.iter().filter(|(_, touch)| !touch.is_ahead);
        touches.find(|(_, touch)| touch.covers(page, right)).map(|(id, _)| *id)
    }

    /// Chooses the pages to bring in for an access that has met the pages `absent`, as first and end. The first
    /// pair are the pages that the access waits for, so it has none that the access does not need. The second pair,
    /// if any, are the pages behind them, for which no access waits.
    pub(super) fn chosen(&mut self, access: &Access, absent: u32) -> ((u64, u64), Option<(u64, u64)>) {
        let first = access.first_page() + u64::from(absent.trailing_zeros());
        let last = access.first_page() + u64::from(u32::BITS - absent.leading_zeros());
        match access.policy.touch {
            TouchPolicy::Page => ((first, first + 1), None),
            TouchPolicy::Ahead(pages) => {
                let end = first + u64::from(pages).clamp(1, MAX_AHEAD_PAGES);
                ((first, end.min(access.end_page())), None)
            }
            TouchPolicy::Adaptive => {
                let (expected, ahead) = self.run;
                let goes_on = expected != 0 && (expected..expected + MAX_AHEAD_PAGES).contains(&first);
                let ahead = if goes_on { (ahead * 2).clamp(1, MAX_AHEAD_PAGES) } else { 0 };
                // No page outside the registered range is touched.
                let end = (last + ahead).min(access.range_end.div_ceil(PAGE_BYTES)).max(last);
                self.run = (end, ahead.max(last - first));
                // Only one touch ahead at a time: if its pages do not come, no further touch is held up.
                let may_go_ahead = end > last && self.touches.values().all(|touch| !touch.is_ahead);
                ((first, last), may_go_ahead.then_some((last, end)))
            }
        }
    }

    pub(super) fn deny(&mut self, access: &Access, refusal: Unreached, until: Time) {
        if self.denied.len() >= MAX_DENIED {
            self.denied.pop_front();
        }
        self.denied.push_back((access.by, access.end, refusal, until));
    }

    /// Takes out the reason why a page of this block could not be brought in a moment ago, if that is remembered.
    pub(super) fn take_denial(&mut self, now: Time, access: &Access) -> Option<Unreached> {
        while self.denied.front().is_some_and(|(.., until)| *until <= now) {
            self.denied.pop_front();
        }
        let known = self.denied.iter().position(|(by, end, refusal, _)| {
            (*by, *end) == (access.by, access.end) && access.touches(refusal.address)
        })?;
        self.denied.remove(known).map(|(.., refusal, _)| refusal)
    }

    /// Forgets the refusals of a block whose access has succeeded, because its pages can be had.
    pub(super) fn went_well(&mut self, access: &Access) {
        self.denied.retain(|(by, end, ..)| (*by, *end) != (access.by, access.end));
        // Other packets of the block may still meet absent pages: then its pauses stay counted.
        if access.copied_bytes >= access.length_bytes {
            self.paused.remove(&slot(access));
        }
    }

    /// Counts a pause of a block until this page has been brought in.
    pub(super) fn note_paused(&mut self, access: &Access, page: u64) {
        let slot = slot(access);
        if self.paused.len() >= MAX_PAUSED && !self.paused.contains_key(&slot) {
            self.paused.retain(|_, pauses| pauses.gone > 0);
            if self.paused.len() >= MAX_PAUSED {
                self.paused.clear();
            }
        }
        let sequence = access.by.sequence;
        let pauses = self.paused.get_or_insert(slot, Pauses { sequence, page: 0, gone: 0 });
        if pauses.sequence != sequence {
            *pauses = Pauses { sequence, page: 0, gone: 0 };
        }
        pauses.gone += u32::from(page <= pauses.page);
        pauses.page = page;
    }

    /// Number of this block's pauses for pages that had left again.
    pub(super) fn pages_gone(&self, access: &Access) -> u32 {
        let pauses = self.paused.get(&slot(access)).filter(|pauses| pauses.sequence == access.by.sequence);
        pauses.map_or(0, |pauses| pauses.gone)
    }

    /// Whether the context has as many touches as it may. If so, further accesses are turned away.
    pub(super) fn is_full(&self, config: &Config) -> bool {
        self.touches.len() >= config.max_touches
    }

    /// Whether no page is coming in any more: as many touches run as may, and all of them are overdue.
    pub(super) fn is_stuck(&self, config: &Config) -> bool {
        let mut running = self.touches.iter().filter(|(id, _)| !self.queued.contains(id));
        self.running >= config.running_touches.min(config.max_touches)
            && running.all(|(_, touch)| touch.is_overdue)
    }

    pub(super) fn is_releasing(&self, access: &Access) -> bool {
        self.releasing.contains_key(&access.range_start)
    }
}

/// The transaction slot and end of the block that an access belongs to.
fn slot(access: &Access) -> (u32, u16, End) {
    (access.by.node, access.by.transaction, access.end)
}
