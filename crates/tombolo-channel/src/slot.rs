//! One channel: a descriptor of 64 bytes (QOS §2.3.3.2).
//!
//! | bytes | field |
//! | --- | --- |
//! | 0-7 | source address |
//! | 8-15 | destination address |
//! | 16-23 | notification address, in the destination's domain |
//! | 24-31 | first notification word; of an atomic operation the operand |
//! | 32-39 | last notification word; of a compare-and-swap what must be there |
//! | 40-43 | transfer size in bytes |
//! | 44-47 | done |
//! | 48-55 | reserved 0: node (4 bytes), domain (2), flags (2) of the other side |
//! | 56-63 | reserved 1: node (4 bytes) and domain (2) of the source, if it is another's; when the transfer is over: why it failed, or the word before an atomic operation |
//!
//! Flags: 1 there is a notification; 2 and 4 the class, and one; 8 and 16 the work (0 move, 1 mail,
//! 2 fetch-add, 3 compare-and-swap); 32 the source is another's.
//!
//! All little endian, addresses virtual ones of their domain.

use serde::{Deserialize, Serialize};
use tombolo_wire::{ATOMIC_BYTES, AtomicOperation, CLASSES, NackCode, Notification, Refusal};

/// Channels of a page.
pub const SLOTS: usize = 64;
/// The channels for writes.
pub const WRITE_SLOTS: std::ops::Range<usize> = 0..32;
/// The channels for reads.
pub const READ_SLOTS: std::ops::Range<usize> = 32..64;

/// Whether a channel is one for reads.
pub fn is_read(slot: usize) -> bool {
    READ_SLOTS.contains(&slot)
}

/// The other side of a transfer: the destination of a write, the source of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// Which node: 0 is the program's own, others are numbered by it.
    pub node: u32,
    /// Which domain there.
    pub domain: u16,
}

/// What is done with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// They are moved.
    Move,
    /// They become one message in the target's mailbox, 1 to [`crate::MAX_MAIL_BYTES`]; there is no destination address.
    Mail,
    /// The word at the destination address is changed, once. There is no source; the size is 8.
    Atomic(AtomicOperation),
}

/// What a program wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Where the bytes are.
    pub source_address: u64,
    /// Where they go.
    pub destination_address: u64,
    /// How many: up to 4 GiB - 1.
    pub size_bytes: u32,
    /// Two words to be written at the destination's side after the last byte.
    pub notification: Option<Notification>,
    /// The other side.
    pub target: Target,
    /// Whose memory the source is, if neither the program's own nor (of a read) the target's: then
    /// the bytes go from there to the target.
    pub source: Option<Target>,
    /// What is done with the bytes.
    pub work: Work,
    /// A class for the whole transfer: 0 high, 1 medium, 2 low; `None`: by what is left of it.
    pub class: Option<u8>,
}

const FLAG_NOTIFICATION: u16 = 1;
const CLASS_SHIFT: u16 = 1;
const CLASS_MASK: u16 = 3;
const WORK_SHIFT: u16 = 3;
const WORK_MASK: u16 = 3;
const FLAG_SOURCE: u16 = 1 << 5;
const KNOWN_FLAGS: u16 =
    FLAG_NOTIFICATION | CLASS_MASK << CLASS_SHIFT | WORK_MASK << WORK_SHIFT | FLAG_SOURCE;

/// A channel holds no descriptor that can be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the channel has flags that mean nothing, or nothing together: {0:#x}")]
pub struct SlotError(pub u16);

impl Target {
    fn word(self) -> u64 {
        u64::from(self.node) | u64::from(self.domain) << 32
    }

    fn from_word(word: u64) -> Self {
        Self { node: word as u32, domain: (word >> 32) as u16 }
    }
}

impl Descriptor {
    /// One that moves bytes.
    pub fn new(source_address: u64, destination_address: u64, size_bytes: u32, target: Target) -> Self {
        Self {
            source_address,
            destination_address,
            size_bytes,
            notification: None,
            target,
            source: None,
            work: Work::Move,
            class: None,
        }
    }

    /// The words of a channel but `done` (in the upper half of the sixth, zero here).
    pub fn encode(&self) -> [u64; 8] {
        let (work, address, first, last) = match (self.work, self.notification.unwrap_or_default()) {
            (Work::Move, words) => (0, words.address, words.first, words.last),
            (Work::Mail, words) => (1, words.address, words.first, words.last),
            (Work::Atomic(AtomicOperation::FetchAdd(operand)), _) => (2, 0, operand, 0),
            (Work::Atomic(AtomicOperation::CompareSwap { compare, swap }), _) => (3, 0, swap, compare),
        };
        let class = self.class.map_or(0, |class| u16::from(class.min(CLASSES - 1)) + 1);
        let mut flags = class << CLASS_SHIFT | work << WORK_SHIFT;
        if self.notification.is_some() {
            flags |= FLAG_NOTIFICATION;
        }
        if self.source.is_some() {
            flags |= FLAG_SOURCE;
        }
        [
            self.source_address,
            self.destination_address,
            address,
            first,
            last,
            u64::from(self.size_bytes),
            self.target.word() | u64::from(flags) << 48,
            self.source.map_or(0, Target::word),
        ]
    }

    /// What these words say.
    pub fn decode(words: &[u64; 8]) -> Result<Self, SlotError> {
        let [source_address, destination_address, address, first, last, size, target, source] = *words;
        let flags = (target >> 48) as u16;
        let (notifies, carries) = (flags & FLAG_NOTIFICATION != 0, flags & FLAG_SOURCE != 0);
        let work = match flags >> WORK_SHIFT & WORK_MASK {
            0 => Work::Move,
            1 => Work::Mail,
            2 => Work::Atomic(AtomicOperation::FetchAdd(first)),
            _ => Work::Atomic(AtomicOperation::CompareSwap { compare: last, swap: first }),
        };
        let is_atomic = matches!(work, Work::Atomic(_));
        if flags & !KNOWN_FLAGS != 0
            || (work != Work::Move && (notifies || carries))
            || (is_atomic && size as u32 != ATOMIC_BYTES)
        {
            return Err(SlotError(flags));
        }
        let class = (flags >> CLASS_SHIFT & CLASS_MASK) as u8;
        Ok(Self {
            source_address,
            destination_address,
            size_bytes: size as u32,
            notification: notifies.then_some(Notification { address, first, last }),
            target: Target::from_word(target),
            source: carries.then(|| Target::from_word(source)),
            work,
            class: class.checked_sub(1),
        })
    }
}

/// How far a transfer is (QOS Table 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The transfer is under way.
    Ongoing,
    /// The transfer completed successfully.
    Finished,
    /// The transfer was not begun: the node has no room for it now. Post it again.
    Paused,
    /// The transfer completed unsuccessfully.
    FinishedWithError(Failure),
}

/// Why a transfer failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The other side refused (QOS Table 3.2).
    #[error("the other side refused the access: {}{}", why(*code), in_page(*page))]
    Refused {
        /// Why.
        code: NackCode,
        /// Where the page begins, of the other side's memory, that could not be reached; if that is known.
        page: Option<u64>,
    },
    /// This side's own memory is not there.
    #[error("the program's own memory refused the access: {}{}", why(*code), in_page(*page))]
    Local {
        /// Why.
        code: NackCode,
        /// Where the page begins, of this program's memory, that could not be reached; if that is known.
        page: Option<u64>,
    },
    /// The other node does not answer.
    #[error("the other node does not answer")]
    Unreachable,
    /// The other node is gone.
    #[error("the other node is gone")]
    Gone,
    /// There is no such node.
    #[error("this node has no neighbour of that number")]
    NoSuchNode,
    /// Several neighbours of the node that has the source say that they are the one that is meant.
    #[error("several neighbours of the node with the source say that they are the destination's node")]
    AmbiguousNode,
    /// The descriptor makes no sense.
    #[error("the descriptor makes no sense: an address passes the end, or flags mean nothing")]
    BadDescriptor,
    /// The program's own node is gone. The program's library says so; no node does, so it has no word
    /// of its own.
    #[error("the program's own node is gone")]
    NodeGone,
    /// A code that a newer node uses.
    #[error("failed for a reason that this version does not know ({0})")]
    Unknown(u64),
}

/// A code (QOS Table 3.2) in words.
fn why(code: NackCode) -> &'static str {
    match code {
        NackCode::SlaveError => "a page is absent, and was not brought in",
        NackCode::DecodeError => "nothing is registered or mapped there, or a page cannot be had",
        NackCode::NoContext => "that domain is not open",
        NackCode::PacketCorrupted => "what came was damaged",
        NackCode::DomainMismatch => "it is not granted, or it is protected",
        NackCode::BufferFull => "there was no room for too long",
    }
}

/// The low bits of a word that say why; the page is in the others, if [`HAS_PAGE`] is set.
const WHY_BITS: u64 = 0xFFF;
const HAS_PAGE: u64 = 0x800;

fn in_page(page: Option<u64>) -> String {
    page.map_or_else(String::new, |page| format!(" in the page at {page:#x}"))
}

fn page_bits(page: Option<u64>) -> u64 {
    page.map_or(0, |page| page & !WHY_BITS | HAS_PAGE)
}

impl Failure {
    /// The other side refused.
    pub fn refused(refusal: impl Into<Refusal>) -> Self {
        let refusal = refusal.into();
        Self::Refused { code: refusal.code, page: refusal.address.map(|address| address & !WHY_BITS) }
    }

    /// This side refused.
    pub fn local(refusal: impl Into<Refusal>) -> Self {
        let refusal = refusal.into();
        Self::Local { code: refusal.code, page: refusal.address.map(|address| address & !WHY_BITS) }
    }

    /// The page that could not be reached, if that is known: of the other side's memory or of own memory, as the
    /// variant says.
    pub fn page(self) -> Option<u64> {
        match self {
            Self::Refused { page, .. } | Self::Local { page, .. } => page,
            _ => None,
        }
    }

    /// As a word of the channel.
    pub fn code(self) -> u64 {
        match self {
            Self::Refused { code, page } => 0x100 | code as u64 | page_bits(page),
            Self::Local { code, page } => 0x200 | code as u64 | page_bits(page),
            Self::Unreachable => 0x300,
            Self::Gone => 0x301,
            Self::NoSuchNode => 0x302,
            Self::BadDescriptor => 0x303,
            Self::AmbiguousNode => 0x304,
            Self::NodeGone => 0x301,
            Self::Unknown(code) => code,
        }
    }

    /// From a word of the channel.
    pub fn from_code(code: u64) -> Self {
        let page = (code & HAS_PAGE != 0).then_some(code & !WHY_BITS);
        // Without a page there are no bits where it would be.
        let why = if page.is_some() { code & WHY_BITS & !HAS_PAGE } else { code };
        match (why & !0xFF, code, NackCode::try_from(code as u8)) {
            (0x100, _, Ok(code)) => Self::Refused { code, page },
            (0x200, _, Ok(code)) => Self::Local { code, page },
            (_, 0x300, _) => Self::Unreachable,
            (_, 0x301, _) => Self::Gone,
            (_, 0x302, _) => Self::NoSuchNode,
            (_, 0x303, _) => Self::BadDescriptor,
            (_, 0x304, _) => Self::AmbiguousNode,
            _ => Self::Unknown(code),
        }
    }
}

/// What the word `done` of a slot says; [`Status`] is what the library makes of it. A page that nobody has used yet is all ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferStatus {
    /// Posted, and not seen by the node yet.
    Initialised,
    /// On its way.
    Ongoing,
    /// Over.
    Complete,
    /// Over, with an error.
    Failed,
    /// Not begun.
    Paused,
}

impl TransferStatus {
    /// As it is written: writes and reads have the first two the other way round (QOS Table 2.2, 3.4).
    pub fn word(self, read: bool) -> u32 {
        match (self, read) {
            (Self::Initialised, false) | (Self::Ongoing, true) => 0,
            (Self::Ongoing, false) | (Self::Initialised, true) => 2,
            (Self::Complete, _) => 1,
            (Self::Failed, _) => 3,
            (Self::Paused, _) => 4,
        }
    }

    /// What a word says; `None`: nothing known, as in a page that was never used.
    pub fn from_word(word: u32, read: bool) -> Option<Self> {
        [Self::Initialised, Self::Ongoing, Self::Complete, Self::Failed, Self::Paused]
            .into_iter()
            .find(|status| status.word(read) == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn descriptors_read_back(
            addresses in any::<[u64; 2]>(),
            size_bytes: u32,
            words in proptest::option::of(any::<[u64; 3]>()),
            target in any::<(u32, u16)>(),
            source in proptest::option::of(any::<(u32, u16)>()),
            work in 0..4_u8,
            class in proptest::option::of(0..CLASSES),
        ) {
            let [first, last] = addresses;
            let work = match work {
                0 => Work::Move,
                1 => Work::Mail,
                2 => Work::Atomic(AtomicOperation::FetchAdd(first)),
                _ => Work::Atomic(AtomicOperation::CompareSwap { compare: last, swap: first }),
            };
            let moves = work == Work::Move;
            let notification = words.map(|[address, first, last]| Notification { address, first, last });
            let source = source.map(|(node, domain)| Target { node, domain });
            let descriptor = Descriptor {
                source_address: addresses[0],
                destination_address: addresses[1],
                size_bytes: if matches!(work, Work::Atomic(_)) { 8 } else { size_bytes },
                notification: notification.filter(|_| moves),
                target: Target { node: target.0, domain: target.1 },
                source: source.filter(|_| moves),
                work,
                class,
            };
            prop_assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
        }

        #[test]
        fn any_words_are_read_or_refused(words in any::<[u64; 8]>()) {
            if let Ok(descriptor) = Descriptor::decode(&words) {
                prop_assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
            }
        }

        #[test]
        fn failures_read_back(code: u64) {
            prop_assert_eq!(Failure::from_code(Failure::from_code(code).code()), Failure::from_code(code));
        }
    }

    #[test]
    fn done_has_the_values_of_the_document() {
        use TransferStatus::{Complete, Initialised, Ongoing};
        assert_eq!([Initialised, Ongoing, Complete].map(|status| status.word(false)), [0, 2, 1]);
        assert_eq!([Initialised, Ongoing, Complete].map(|status| status.word(true)), [2, 0, 1]);
        assert_eq!(TransferStatus::from_word(u32::MAX, false), None);
        for code in NackCode::ALL {
            for page in [None, Some(0), Some(0x7fff_ffff_f000), Some(!WHY_BITS)] {
                for failure in [Failure::Refused { code, page }, Failure::Local { code, page }] {
                    assert_eq!(Failure::from_code(failure.code()), failure);
                    assert_eq!(failure.page(), page);
                }
            }
        }
        for unknown in [0x305, 0x100, 0x106, 0x1102, 0x12_0102] {
            assert_eq!(Failure::from_code(unknown), Failure::Unknown(unknown));
        }
    }
}
