//! The receiving side: puts transactions together from databeats.

use std::collections::BTreeMap;

use tombolo_wire::{BusTransaction, Databeat, DatabeatError, MAX_PARTS, TransactionKind};

/// What is wrong with a databeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IngressError {
    /// Its bits are not a valid databeat. They are dropped.
    #[error(transparent)]
    Unreadable(#[from] DatabeatError),
    /// Another part was due: a part was lost, or came twice. The incomplete transaction is dropped.
    #[error("part {came} of a {kind:?} of interface {interface} where part {due} was due")]
    OutOfOrder {
        /// The interface of the databeat.
        interface: u8,
        /// The kind of its transaction.
        kind: TransactionKind,
        /// The part that was due.
        due: u8,
        /// The one that came.
        came: u8,
    },
}

/// A transaction of which only some parts have come.
#[derive(Clone, Copy, Debug, Default)]
struct Partial {
    contents: [u64; MAX_PARTS],
    count: u8,
}

/// The receiving side of one link. Transactions of one interface come out in the order in which they were sent.
#[derive(Debug, Default)]
pub struct Ingress {
    partial: BTreeMap<(u8, TransactionKind), Partial>,
    dropped: u64,
}

impl Ingress {
    /// Takes a databeat that has come. Returns the transaction that is complete with it, and its interface, if any.
    ///
    /// # Errors
    /// [`IngressError`]. Later transactions are accepted as before.
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
            // If this is a first part, it begins the next transaction.
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
            // `lost` is `None` here: only a transaction of one part could be complete after a loss, and such a
            // transaction is never incomplete.
            (Some(transaction), _) => Ok(Some((interface, transaction))),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(None),
        }
    }

    /// Number of databeats that were dropped, or that showed that other databeats were lost.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether no transaction is incomplete.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.partial.is_empty()
    }
}
