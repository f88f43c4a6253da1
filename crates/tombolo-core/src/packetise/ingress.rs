//! Databeats arrive.

use std::collections::BTreeMap;

use tombolo_wire::{BusTransaction, Databeat, DatabeatError, MAX_PARTS, TransactionKind};

/// Why a databeat was dropped. What it would have been a part of is dropped with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngressError {
    /// Its bits are none.
    #[error(transparent)]
    Unreadable(#[from] DatabeatError),
    /// Another part was due: one was lost, or came twice.
    #[error("part {came} of a {kind:?} of interface {interface} where part {due} was due")]
    OutOfOrder {
        /// Whose.
        interface: u8,
        /// Of what.
        kind: TransactionKind,
        /// The part that was due.
        due: u8,
        /// The one that came.
        came: u8,
    },
}

/// A transaction of which parts have come.
#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    contents: [u64; MAX_PARTS],
    count: u8,
}

/// The side that receives, for one link. Transactions of an interface come out in the order in which they were sent.
#[derive(Debug, Default)]
pub struct Ingress {
    partial: BTreeMap<(u8, TransactionKind), Partial>,
    dropped: u64,
}

impl Ingress {
    /// A databeat has come: the transaction that is whole with it, and its interface.
    ///
    /// # Errors
    /// [`IngressError`]; the transactions behind it are taken again.
    pub fn accept(&mut self, bits: u64) -> Result<Option<(u8, BusTransaction)>, IngressError> {
        let result = self.take(bits);
        self.dropped += u64::from(result.is_err());
        result
    }

    fn take(&mut self, bits: u64) -> Result<Option<(u8, BusTransaction)>, IngressError> {
        let Databeat { interface, kind, part, content } = Databeat::from_bits(bits)?;
        let key = (interface, kind);
        let partial = self.partial.entry(key).or_default();
        let due = partial.count;
        if part != due {
            // The first part of the next one may be this one.
            *partial = Partial::default();
            if part != 0 {
                self.partial.remove(&key);
                return Err(IngressError::OutOfOrder { interface, kind, due, came: part });
            }
        }
        let partial = self.partial.entry(key).or_default();
        partial.contents[usize::from(part)] = content;
        partial.count = part + 1;
        let is_whole = usize::from(partial.count) == kind.parts();
        let lost = (part != due).then_some(IngressError::OutOfOrder { interface, kind, due, came: part });
        let whole = is_whole.then(|| BusTransaction::of(kind, &partial.contents));
        if is_whole {
            self.partial.remove(&key);
        }
        match (whole, lost) {
            // A transaction of one part that comes while another of its kind is not whole: there is none.
            (Some(transaction), _) => Ok(Some((interface, transaction))),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// Databeats that were dropped, or that showed that others were.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether no transaction has come in part.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.partial.is_empty()
    }
}
