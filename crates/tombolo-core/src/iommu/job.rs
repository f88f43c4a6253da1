//! Accesses to a program's memory: their parameters, their outcomes, and the actions for the caller.

use tombolo_wire::{NackCode, Refusal};

/// Identifies a translation context: the memory of one domain. The caller chooses the numbers and never reuses one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u64);

/// Identifies an access. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccessId(pub u64);

/// Identifies a touch: pages that are being brought in. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TouchId(pub u64);

/// Whether an access reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// The bytes are read.
    Read,
    /// The bytes are written.
    Write,
}

/// The end of a block that an access reads or writes, or the other operation that it belongs to.
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
    /// All values, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [Self::Source, Self::Destination, Self::Notification, Self::Atomic];

    /// The end's name in counters.
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
    /// No page was there: the program never touched it, or a pager (userfaultfd) has moved it away.
    Missing,
    /// The kernel had swapped the page out.
    Swapped,
    /// The page was shared after a fork, or was the kernel's zero page.
    CopyOnWrite,
    /// A pager (userfaultfd) has protected the page from writes.
    WriteProtected,
}

impl Absence {
    /// Number of kinds of absence.
    pub const COUNT: usize = 4;
    /// All values, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Missing, Self::Swapped, Self::CopyOnWrite, Self::WriteProtected];

    /// The kind's name in counters.
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

/// Identifies the block that faults: the first fields of a fault record (FAULT Table 3.2), in the widths of this
/// engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FaultSource {
    /// The peer: the sender of an incoming block, the receiver of an outgoing one.
    pub node: u32,
    /// The block's transaction slot at its sender.
    pub transaction: u16,
    /// Distinguishes successive blocks in that slot.
    pub sequence: u32,
}

/// Which pages are brought in when one is absent (FAULT §3.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TouchPolicy {
    /// Touch-a-page: the page that faulted.
    Page,
    /// Touch-ahead: this many pages from the one that faulted, but none behind the block, because the block waits
    /// for all of them.
    Ahead(u16),
    /// All absent pages of the block, and further pages ahead along a run of faults, twice as many each time.
    #[default]
    Adaptive,
}

/// What becomes of an access that meets an absent page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultMode {
    /// The access ends and its sender is refused. The block comes again when the page is there.
    Terminate,
    /// The access waits and keeps its bytes, as long as all bytes that are kept so in its context stay within
    /// `Config::max_held_bytes`. Beyond that it pauses: its sender is told to come again.
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
    /// The context whose memory is accessed.
    pub context: ContextId,
    /// The first byte that is looked at for absent pages.
    pub address: u64,
    /// Number of bytes that are looked at, at most [`super::MAX_ACCESS_BYTES`].
    pub length_bytes: u32,
    /// Whether the bytes are read or written.
    pub right: Right,
    /// What the access is for.
    pub end: End,
    /// The block that it belongs to.
    pub by: FaultSource,
    /// Start of the range that the access lies in.
    pub range_start: u64,
    /// End of that range.
    pub range_end: u64,
    /// That range's policy.
    pub policy: FaultPolicy,
    /// How many of the bytes that are looked at are copied. An access for one packet looks at the packet's whole
    /// block.
    pub copied_bytes: u32,
    /// The bytes are still at their source. A pause costs nothing then, so the access pauses rather than stalls.
    pub is_free_to_pause: bool,
    /// The access writes to the memory of the program that asked for it. That program may use the memory again when
    /// it is told of the end. So if such an access takes too long, the program is told only when nobody copies any
    /// more. Any other access that takes too long is given up, and its sender is told at once.
    pub is_of_asker: bool,
}

impl Access {
    /// The number of the page that has the access's first byte.
    pub(super) fn first_page(&self) -> u64 {
        self.address / super::PAGE_BYTES
    }

    /// The number of the page after the one that has the access's last byte.
    pub(super) fn end_page(&self) -> u64 {
        (self.address + u64::from(self.length_bytes)).div_ceil(super::PAGE_BYTES).max(self.first_page() + 1)
    }

    /// Corrects a mask of absent pages that an attempt has reported: at least one page, and only pages of the
    /// access.
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
    /// The mapping does not allow the access: a permission fault.
    Protected,
    /// The mapping allows the access, but its page cannot be had.
    Unavailable,
    /// The page did not come in time, or the copy did not end.
    TimedOut,
    /// The range was released, or its program is gone.
    Gone,
}

/// Why an access failed, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// The first byte that could not be reached.
    pub address: u64,
    /// The reason.
    pub reason: Reason,
}

/// The refusal that the sender is told.
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
    /// The access was carried out. For an atomic operation: the word's previous value.
    Done(u64),
    /// Pages are absent, and nothing was done. Bit `i` stands for the page that lies `i` pages after that of the
    /// first byte.
    Absent(u32, Absence),
    /// Pages were absent, and the attempt has brought them in and carried the access out. Only for an access that
    /// may do so ([`super::Iommu::may_bring`]).
    Brought {
        /// For an atomic operation: the word's previous value.
        before: u64,
        /// The pages that were absent. Bit `i` stands for the page that lies `i` pages after that of the first
        /// byte.
        pages: u32,
        /// Why the first of them was absent.
        kind: Absence,
    },
    /// The access cannot be carried out. A part of it may have been.
    Denied(Unreached),
}

/// The next thing for the caller to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Attempt the access once more.
    Attempt {
        /// The access.
        access: AccessId,
        /// Do not look for absent pages first: the pages keep leaving, so the copying thread brings them in.
        is_forced: bool,
    },
    /// Bring pages in.
    Touch {
        /// The number to give to [`super::Iommu::touched`].
        touch: TouchId,
        /// The context whose pages they are.
        context: ContextId,
        /// Start of the first page, or of the range if that begins later.
        address: u64,
        /// Number of bytes to the end of the last page, or of the range if that ends earlier.
        length_bytes: u32,
        /// Whether the pages are to be read or written.
        right: Right,
    },
    /// Withdraw an attempt that may be waiting for pages that it brings in, unless it has begun to copy. Report
    /// with [`super::Iommu::withdrawn`] whether that succeeded.
    Withdraw(ContextId, AccessId),
    /// The access is over: it was carried out. For an atomic operation: the word's previous value.
    Done(AccessId, u64),
    /// The access is over: it cannot be carried out.
    Refuse(AccessId, Unreached),
    /// The access is over, because too many are under way: its sender is to come again later.
    Busy(AccessId),
    /// Pages are absent: refuse the sender, which is to come again. The access ends later, with [`Action::Ready`]
    /// or [`Action::Forget`].
    Pause {
        /// The access.
        access: AccessId,
        /// The first absent page.
        address: u64,
        /// All absent pages. Bit `i` stands for the page that lies `i` pages after the first absent one.
        missing: u32,
    },
    /// The access is over after an [`Action::Pause`]: tell its sender to come again at once.
    Ready(AccessId),
    /// The access is over after an [`Action::Pause`]: its sender comes again in its own time.
    Forget(AccessId),
    /// The release of the range that begins at this address is over. `true`: no access touches the range any more.
    /// `false`: an access to it was given up and has not ended.
    Released(ContextId, u64, bool),
}
