//! What is known of one domain's memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::lookup::Lookup;

use super::job::{Access, AccessId, End, FaultSource, Right, TouchId, TouchPolicy, Unreached};
use super::patience::Patience;
use super::{Config, PAGE_BYTES};
use crate::rdma::Time;
use crate::wakes::Wake;

/// Pages that a run of faults brings in at once, at most: 256 KiB.
const MAX_AHEAD_PAGES: u64 = 64;
/// Refusals that are remembered, at most. Beyond, a page is touched once more.
const MAX_DENIED: usize = 64;
/// Slots whose blocks' pauses are counted, at most: those of four peers, at both ends. Beyond, those that had their pages at once are
/// forgotten, or all.
const MAX_PAUSED: usize = 8192;

/// The fault registers of a context, named as those of FAULT §3.2.1. They hold the first fault since they were cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultRegisters {
    /// FSR.TF: a page was not present, nothing is mapped there, or its page cannot be had.
    pub translation_fault: bool,
    /// FSR.PF: an access was not permitted.
    pub permission_fault: bool,
    /// FSR.MULTI: there was another fault after the one that the others tell of.
    pub multiple: bool,
    /// FAR: where.
    pub address: u64,
    /// FSYNR.WNR: by a write (at a destination), not a read (at a source).
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

/// Pages that are being brought in, or are to be.
#[derive(Debug)]
pub(super) struct Touch {
    pub(super) first_page: u64,
    pub(super) end_page: u64,
    /// Start and end of the range that they lie in: it need not begin or end with a page.
    pub(super) range: (u64, u64),
    pub(super) right: Right,
    pub(super) since: Time,
    /// It took too long: nobody waits for it any more.
    pub(super) is_overdue: bool,
    pub(super) patience: Patience,
    /// Nobody waited for it when it was begun.
    pub(super) is_ahead: bool,
    pub(super) waiting: Vec<AccessId>,
    /// Those of them that came while the caller carried it out already: where it fails, they look for themselves, since the memory may
    /// have changed.
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
    /// Which block of its slot.
    sequence: u32,
    /// The page of the latest one.
    page: u64,
    /// How many were at a page no higher than that of the pause before: it had been brought in and has left again, or did not come.
    gone: u32,
}

/// A translation context.
#[derive(Debug, Default)]
pub(super) struct Context {
    /// Accesses of it that are not over.
    pub(super) accesses: BTreeSet<AccessId>,
    /// Attempts that were given up and have not come back.
    pub(super) overdue: BTreeMap<AccessId, u64>,
    pub(super) touches: BTreeMap<TouchId, Touch>,
    /// Touches that the caller has not been asked for yet.
    pub(super) queued: VecDeque<TouchId>,
    /// Touches that the caller carries out.
    pub(super) running: usize,
    /// Bytes of accesses that stall.
    pub(super) held_bytes: u64,
    /// Bytes of accesses whose attempt may bring pages in.
    pub(super) bringing_bytes: u64,
    /// Ranges that are being taken back, by where they begin.
    pub(super) releasing: BTreeMap<u64, u64>,
    /// Lower bound of the times at which an attempt or a touch takes too long.
    pub(super) wake: Wake,
    pub(super) registers: FaultRegisters,
    /// Blocks whose pages could not be brought while their senders were refused, until when that is remembered. Others find
    /// out for themselves: the memory may have changed.
    denied: VecDeque<(FaultSource, End, Unreached, Time)>,
    /// Pauses of the blocks whose senders were refused because a page was absent, the latest block of each slot (node, number, end).
    paused: Lookup<(u32, u16, End), Pauses>,
    /// Where the last run of faults goes on, and how many pages it brings in.
    run: (u64, u64),
}

impl Context {
    /// What brings a page in, if something does. Not what goes ahead: its other pages may take longer.
    pub(super) fn touch_of(&self, page: u64, right: Right) -> Option<TouchId> {
        let mut touches = self.touches.iter().filter(|(_, touch)| !touch.is_ahead);
        touches.find(|(_, touch)| touch.covers(page, right)).map(|(id, _)| *id)
    }

    /// The pages to bring in for an access that met these absent ones, first and end: none that it does not need, since it
    /// waits for all of them. And those behind them that nobody waits for.
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
                // No page is touched that lies outside of what is registered.
                let end = (last + ahead).min(access.range_end.div_ceil(PAGE_BYTES)).max(last);
                self.run = (end, ahead.max(last - first));
                // One that does not come holds up one touch, and no more follow.
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

    /// Why a page of this block could not be brought a moment ago. It is said once.
    pub(super) fn take_denial(&mut self, now: Time, access: &Access) -> Option<Unreached> {
        while self.denied.front().is_some_and(|(.., until)| *until <= now) {
            self.denied.pop_front();
        }
        let known = self.denied.iter().position(|(by, end, refusal, _)| {
            (*by, *end) == (access.by, access.end) && access.touches(refusal.address)
        })?;
        self.denied.remove(known).map(|(.., refusal, _)| refusal)
    }

    /// An access of this block went well: its pages can be had.
    pub(super) fn went_well(&mut self, access: &Access) {
        self.denied.retain(|(by, end, ..)| (*by, *end) != (access.by, access.end));
        // Of a block that comes in packets, others may meet absent pages still.
        if access.copied_bytes >= access.length_bytes {
            self.paused.remove(&slot(access));
        }
    }

    /// A block is paused until this page has been brought in.
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

    /// How often pages that this block was paused for had gone again.
    pub(super) fn pages_gone(&self, access: &Access) -> u32 {
        let pauses = self.paused.get(&slot(access)).filter(|pauses| pauses.sequence == access.by.sequence);
        pauses.map_or(0, |pauses| pauses.gone)
    }

    /// Whether the context has as many touches as it may: then further accesses are sent away.
    pub(super) fn is_full(&self, config: &Config) -> bool {
        self.touches.len() >= config.max_touches
    }

    /// Whether no page comes any more: all touches that may run at once take too long.
    pub(super) fn is_stuck(&self, config: &Config) -> bool {
        let mut running = self.touches.iter().filter(|(id, _)| !self.queued.contains(id));
        self.running >= config.running_touches.min(config.max_touches)
            && running.all(|(_, touch)| touch.is_overdue)
    }

    pub(super) fn is_releasing(&self, access: &Access) -> bool {
        self.releasing.contains_key(&access.range_start)
    }
}

/// The slot of the block that an access is of.
fn slot(access: &Access) -> (u32, u16, End) {
    (access.by.node, access.by.transaction, access.end)
}
