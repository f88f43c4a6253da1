//! What a node asks for, and the answers, as words of shared memory.

use tombolo_host::own::{Absence, Absent, Denied, MAX_ACCESS_BYTES, Reason, Right, WordChange};

/// Orders that are not answered, at most; a power of two. Each access of a domain and its withdrawal, and each touch, have a
/// place (`tombolo_core::iommu::Config`).
pub const RING_ORDERS: u64 = 1024;
/// Words of an order, and of an outcome.
pub(super) const WORDS: usize = 8;
/// The most bytes of one touch.
const MAX_TOUCH_BYTES: u32 = 1 << 20;

const READ: u8 = 1;
const WRITE: u8 = 2;
const WORDS_OF_NOTIFICATION: u8 = 3;
const ADD: u8 = 4;
const COMPARE_SWAP: u8 = 5;
const TOUCH_TO_READ: u8 = 6;
const TOUCH_TO_WRITE: u8 = 7;
const WITHDRAW: u8 = 8;

const DONE: u8 = 1;
const ABSENT: u8 = 2;
const DENIED: u8 = 3;
const IMPOSSIBLE: u8 = 4;
const BROUGHT: u8 = 5;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// Copy bytes out, to this offset of the staging.
    Read(u64),
    /// Copy bytes in, from there.
    Write(u64),
    /// Write two words, the first before the last.
    Words([u64; 2]),
    /// Change a word.
    Change(WordChange),
    /// Bring pages in.
    Touch(Right),
    /// The order of that number, if nothing of it was copied yet, is not to be carried out. [`Outcome::Done`] says 1 if so.
    Withdraw(u64),
}

/// One order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The node's number for it.
    pub id: u64,
    /// Where in the program's memory.
    pub address: u64,
    /// How many bytes.
    pub length_bytes: u32,
    /// Whether absent pages are not looked for first.
    pub is_forced: bool,
    /// Whether absent pages may be brought in for it, where nothing is held up by that.
    pub brings: bool,
    /// Where they are looked for otherwise, and how many bytes of them: of the whole block, of which this may be a packet.
    pub look: (u64, u32),
    /// What.
    pub kind: OrderKind,
}

impl Order {
    /// What it is done for.
    pub fn right(&self) -> Right {
        match self.kind {
            OrderKind::Read(_) | OrderKind::Touch(Right::Read) => Right::Read,
            _ => Right::Write,
        }
    }

    pub(super) fn encode(&self) -> [u64; WORDS] {
        let (kind, first, second) = match self.kind {
            OrderKind::Read(offset) => (READ, offset, 0),
            OrderKind::Write(offset) => (WRITE, offset, 0),
            OrderKind::Words([first, last]) => (WORDS_OF_NOTIFICATION, first, last),
            OrderKind::Change(WordChange::Add(operand)) => (ADD, operand, 0),
            OrderKind::Change(WordChange::CompareSwap(compare, swap)) => (COMPARE_SWAP, compare, swap),
            OrderKind::Touch(Right::Read) => (TOUCH_TO_READ, 0, 0),
            OrderKind::Touch(Right::Write) => (TOUCH_TO_WRITE, 0, 0),
            OrderKind::Withdraw(id) => (WITHDRAW, id, 0),
        };
        let flags = u64::from(self.is_forced) << 8 | u64::from(self.brings) << 9;
        let head = u64::from(kind) | flags | u64::from(self.length_bytes) << 32;
        [self.id, head, self.address, first, second, self.look.0, self.look.1.into(), 0]
    }

    /// The order that these words are, if they are one.
    pub(super) fn decode(words: &[u64; WORDS]) -> Option<Self> {
        let [id, head, address, first, second, look, look_bytes, _] = *words;
        let length_bytes = (head >> 32) as u32;
        let (kind, most, least) = match head as u8 {
            READ => (OrderKind::Read(first), MAX_ACCESS_BYTES, 0),
            WRITE => (OrderKind::Write(first), MAX_ACCESS_BYTES, 0),
            WORDS_OF_NOTIFICATION => (OrderKind::Words([first, second]), 16, 16),
            ADD => (OrderKind::Change(WordChange::Add(first)), 8, 8),
            COMPARE_SWAP => (OrderKind::Change(WordChange::CompareSwap(first, second)), 8, 8),
            TOUCH_TO_READ => (OrderKind::Touch(Right::Read), MAX_TOUCH_BYTES, 1),
            TOUCH_TO_WRITE => (OrderKind::Touch(Right::Write), MAX_TOUCH_BYTES, 1),
            WITHDRAW => (OrderKind::Withdraw(first), 0, 0),
            _ => return None,
        };
        let is_length = (least..=most).contains(&length_bytes);
        let is_inside = address.checked_add(length_bytes.into()).is_some();
        let is_look = look.checked_add(look_bytes).is_some() && look_bytes <= MAX_ACCESS_BYTES.into();
        let (is_forced, brings) = (head >> 8 & 1 != 0, head >> 9 & 1 != 0);
        let look = (look, look_bytes as u32);
        let order = Self { id, address, length_bytes, is_forced, brings, look, kind };
        (is_length && is_inside && is_look).then_some(order)
    }
}

fn absent_bits(absent: Absent) -> u64 {
    let kind = Absence::ALL.iter().position(|known| Some(*known) == absent.kind).unwrap_or(0);
    (kind as u64) << 8 | u64::from(absent.pages) << 32
}

/// How an order went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was carried out; the word before, if one was changed.
    Done(u64),
    /// Pages are absent, and nothing was done.
    Absent(Absent),
    /// Pages were absent; they were brought in, and the order carried out: the word before, if one was changed.
    Brought(u64, Absent),
    /// The memory cannot be reached so; the order may have been carried out in part.
    Denied(Denied),
    /// Words of this memory cannot be changed in one step.
    Impossible,
}

impl Outcome {
    pub(super) fn encode(self, id: u64) -> [u64; WORDS] {
        let (head, value) = match self {
            Self::Done(before) => (DONE.into(), before),
            Self::Absent(absent) => (u64::from(ABSENT) | absent_bits(absent), 0),
            Self::Brought(before, absent) => (u64::from(BROUGHT) | absent_bits(absent), before),
            Self::Denied(Denied { address, reason }) => {
                let reason = match reason {
                    Reason::NotMapped => 0,
                    Reason::Protected => 1,
                    Reason::Unavailable => 2,
                };
                (u64::from(DENIED) | reason << 8, address)
            }
            Self::Impossible => (IMPOSSIBLE.into(), 0),
        };
        [id, head, value, 0, 0, 0, 0, 0]
    }

    /// The order's number and its outcome, if these words are that.
    pub(super) fn decode(words: &[u64; WORDS]) -> Option<(u64, Self)> {
        let [id, head, value, ..] = *words;
        let detail = (head >> 8) as u8;
        let absent = || {
            let kind = *Absence::ALL.get(usize::from(detail))?;
            Some(Absent { pages: (head >> 32) as u32, kind: Some(kind) })
        };
        let outcome = match head as u8 {
            DONE => Self::Done(value),
            ABSENT => Self::Absent(absent()?),
            BROUGHT => Self::Brought(value, absent()?),
            DENIED => {
                let reason = match detail {
                    0 => Reason::NotMapped,
                    1 => Reason::Protected,
                    2 => Reason::Unavailable,
                    _ => return None,
                };
                Self::Denied(Denied { address: value, reason })
            }
            IMPOSSIBLE => Self::Impossible,
            _ => return None,
        };
        Some((id, outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_words_are_read_or_refused(words in any::<[u64; WORDS]>(), head in 0_u64..10, high in any::<u32>()) {
            let mut words = words;
            for head in [words[1], head | u64::from(high) << 32, head | u64::from(high & 0xFFFF) << 32] {
                words[1] = head;
                if let Some(order) = Order::decode(&words) {
                    prop_assert_eq!(Order::decode(&order.encode()), Some(order));
                }
                if let Some((id, outcome)) = Outcome::decode(&words) {
                    prop_assert_eq!(Outcome::decode(&outcome.encode(id)), Some((id, outcome)));
                }
            }
        }
    }
}
