//! Programs of a node: they post transfers, wait for their ends, and measure.

use std::collections::BTreeMap;

use crate::kernel::{Span, Time};
use tombolo_core::rdma::{PeerId, PostError, Transfer, TransferError};

/// What a program does: the same transfer again and again.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// To or from whom.
    pub peer: PeerId,
    /// What; `user` is overwritten.
    pub transfer: Transfer,
    /// How often.
    pub count: u64,
    /// How many may be open at once.
    pub outstanding: u64,
    /// From the end of one to the beginning of the next.
    pub gap: Span,
}

/// Why a transfer of a program ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The engine did not take it.
    #[error(transparent)]
    NotPosted(#[from] PostError),
    /// It was posted, and has failed.
    #[error(transparent)]
    Ended(#[from] TransferError),
}

/// How a transfer of a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which of the program's transfers: 0 is the first.
    pub number: u64,
    /// When the program rang.
    pub begun_at: Time,
    /// When it saw the end.
    pub ended_at: Time,
    /// How it ended.
    pub status: Result<(), Failure>,
}

impl Ended {
    /// From ring to end.
    pub fn took(&self) -> Span {
        self.ended_at.since(self.begun_at)
    }
}

/// A program that runs.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) program: Program,
    begun: u64,
    /// Transfers without an end, with their beginnings.
    open: BTreeMap<u64, Time>,
    /// A transfer was not posted: no other one is.
    is_refused: bool,
    pub(super) ended: Vec<Ended>,
}

impl Running {
    pub(super) fn new(program: Program) -> Self {
        Self { program, begun: 0, open: BTreeMap::new(), is_refused: false, ended: Vec::new() }
    }

    /// The next transfer, if the program posts one now: its number.
    pub(super) fn begin(&mut self, at: Time) -> Option<u64> {
        let has_room = (self.open.len() as u64) < self.program.outstanding.max(1);
        let may = self.begun < self.program.count && has_room && !self.is_refused;
        may.then(|| {
            self.begun += 1;
            self.open.insert(self.begun - 1, at);
            self.begun - 1
        })
    }

    /// A transfer has ended: `None` if it was none of those that are open.
    pub(super) fn end(&mut self, number: u64, ended_at: Time, status: Result<(), Failure>) -> Option<Ended> {
        let begun_at = self.open.remove(&number)?;
        self.is_refused |= matches!(status, Err(Failure::NotPosted(_)));
        let ended = Ended { number, begun_at, ended_at, status };
        self.ended.push(ended);
        Some(ended)
    }

    pub(super) fn open(&self) -> u64 {
        self.open.len() as u64
    }
}
