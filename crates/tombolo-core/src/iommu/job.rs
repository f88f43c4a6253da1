//! Accesses to a program's memory, and how they can go.

use tombolo_wire::{NackCode, Refusal};

/// A translation context: the memory of one domain. The caller chooses the numbers, and uses none twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u64);

/// An access under way. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessId(pub u64);

/// Pages that are being brought in. Never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TouchId(pub u64);

/// What is done with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// They are read.
    Read,
    /// They are written.
    Write,
}

/// What an access is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The source of a block (FAULT §3.2.2).
    Source,
    /// The destination of a block (FAULT §3.2.3).
    Destination,
    /// The words of a notification.
    Notification,
    /// An atomic operation.
    Atomic,
}

impl End {
    /// Number of ends.
    pub const COUNT: usize = 4;
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [Self::Source, Self::Destination, Self::Notification, Self::Atomic];

    /// Its name in counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Notification => "notification",
            Self::Atomic => "atomic",
        }
    }
}

/// Why a page was absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absence {
    /// There was none: the program never touched it, or a pager (userfaultfd) has moved it away.
    Missing,
    /// The kernel had swapped it out.
    Swapped,
    /// It was shared after a fork, or the kernel's page of zeros.
    CopyOnWrite,
    /// A pager (userfaultfd) has protected it from writes.
    WriteProtected,
}

impl Absence {
    /// Number of kinds.
    pub const COUNT: usize = 4;
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Missing, Self::Swapped, Self::CopyOnWrite, Self::WriteProtected];

    /// Its name in counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Swapped => "swapped",
            Self::CopyOnWrite => "copy_on_write",
            Self::WriteProtected => "write_protected",
        }
    }
}

/// Whose block faults: the first fields of a fault record (FAULT Table 3.2), as wide as this engine has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FaultSource {
    /// The node that sends it.
    pub node: u32,
    /// Its transaction slot there.
    pub transaction: u16,
    /// Which block in that slot.
    pub sequence: u32,
}

/// Who decides which pages are brought in when one is absent (FAULT §3.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TouchPolicy {
    /// Touch-a-page: the page that faulted.
    Page,
    /// Touch-ahead: that many pages, from the one that faulted, but none behind the block: it waits for all of them.
    Ahead(u16),
    /// All absent pages of the block, and more along a run of faults, each time twice as many.
    #[default]
    Adaptive,
}

/// What becomes of an access that meets an absent page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultMode {
    /// It ends, and its sender is refused: the block comes again when the page is there.
    Terminate,
    /// It waits with its bytes, as long as not too many wait so.
    #[default]
    Stall,
}

/// How faults in a range are dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultPolicy {
    /// Which pages are brought in.
    pub touch: TouchPolicy,
    /// What the access does meanwhile.
    pub mode: FaultMode,
}

/// One access to registered memory. It lies within one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Whose memory.
    pub context: ContextId,
    /// Where.
    pub address: u64,
    /// How many bytes; at most [`super::MAX_ACCESS_BYTES`].
    pub length_bytes: u32,
    /// What is done with them.
    pub right: Right,
    /// What for.
    pub end: End,
    /// Whose block it is.
    pub by: FaultSource,
    /// Where the range begins that it lies in.
    pub range_start: u64,
    /// Where that range ends.
    pub range_end: u64,
    /// That range's policy.
    pub policy: FaultPolicy,
    /// How many of the bytes that are looked at are copied: a packet's, of its block.
    pub copied_bytes: u32,
    /// The sender has the bytes: pausing it costs nothing, so it never stalls here.
    pub is_free_to_pause: bool,
    /// It writes to the memory of the program that asked for it. What else takes too long is given up, and its sender told; of
    /// this one, the program is told when nobody copies any more: it may use that memory again then.
    pub is_of_asker: bool,
}

impl Access {
    /// The number of the page of its first byte.
    pub(super) fn first_page(&self) -> u64 {
        self.address / super::PAGE_BYTES
    }

    /// The number of the page behind that of its last byte.
    pub(super) fn end_page(&self) -> u64 {
        (self.address + u64::from(self.length_bytes)).div_ceil(super::PAGE_BYTES).max(self.first_page() + 1)
    }

    /// What the one who attempts says may be wrong: at least one page, and none that is not of the access.
    pub(super) fn pages_of(&self, pages: u32) -> u32 {
        let count = (self.end_page() - self.first_page()).min(u32::BITS.into());
        (pages & ((1_u64 << count) - 1) as u32).max(1)
    }

    pub(super) fn touches(&self, address: u64) -> bool {
        (self.first_page()..self.end_page()).contains(&(address / super::PAGE_BYTES))
    }
}

/// Why memory cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing is mapped there.
    NotMapped,
    /// The mapping does not allow it: a permission fault.
    Protected,
    /// The mapping allows it, and its page cannot be had.
    Unavailable,
    /// The page did not come in time, or the copy did not end.
    TimedOut,
    /// The range was taken back, or its program is gone.
    Gone,
}

/// An access ends without success, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// The first byte that could not be reached.
    pub address: u64,
    /// Why.
    pub reason: Reason,
}

/// What the sender is told.
impl From<Unreached> for Refusal {
    fn from(unreached: Unreached) -> Self {
        let code = match unreached.reason {
            Reason::Protected => NackCode::DomainMismatch,
            Reason::NotMapped | Reason::Unavailable | Reason::TimedOut | Reason::Gone => {
                NackCode::DecodeError
            }
        };
        Self::at(code, unreached.address)
    }
}

/// How an attempt at an access went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out; the word before, if it was an atomic operation.
    Done(u64),
    /// Pages are absent, and nothing was done. Bit `i`: the page `i` behind that of the first byte.
    Absent(u32, Absence),
    /// Pages were absent, and who attempted it has brought them in and carried it out: only where it may
    /// ([`super::Iommu::may_bring`]).
    Brought {
        /// The word before, if it was an atomic operation.
        before: u64,
        /// The pages that were absent. Bit `i`: the page `i` behind that of the first byte.
        pages: u32,
        /// Why the first of them was.
        kind: Absence,
    },
    /// It cannot be carried out; it may have been in part.
    Denied(Unreached),
}

/// The next thing for the caller to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Attempt the access once more. If `is_forced`, without looking for absent pages first.
    Attempt {
        /// Which.
        access: AccessId,
        /// The thread that copies brings the pages in, since they keep going away.
        is_forced: bool,
    },
    /// Bring pages in.
    Touch {
        /// To be said at the end.
        touch: TouchId,
        /// Whose.
        context: ContextId,
        /// Where the first page begins, or the range.
        address: u64,
        /// To the end of the last page, or of the range.
        length_bytes: u32,
        /// What they are for.
        right: Right,
    },
    /// An attempt that may bring pages in takes long: if nothing was copied yet, nothing is to be. Say which it is
    /// ([`super::Iommu::withdrawn`]).
    Withdraw(ContextId, AccessId),
    /// The access is over: it was carried out.
    Done(AccessId, u64),
    /// The access is over: it cannot be carried out.
    Refuse(AccessId, Unreached),
    /// The access is over, for now: there are too many. Its sender is to come again later.
    Busy(AccessId),
    /// Pages are absent: the sender is refused, and is to come again. [`Action::Ready`] may follow.
    Pause {
        /// Which.
        access: AccessId,
        /// The first absent page.
        address: u64,
        /// All of them. Bit `i`: the page `i` behind the first.
        missing: u32,
    },
    /// The access is over, after an [`Action::Pause`]: its sender may come again at once.
    Ready(AccessId),
    /// The access is over, after an [`Action::Pause`]: its sender comes again in its own time.
    Forget(AccessId),
    /// A range that was taken back is not touched any more (true), or an access to it does not end.
    Released(ContextId, u64, bool),
}
