//! How the neighbours are that a node is to be joined to: what the neighbourhood knows of each, for whoever asks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_core::fabric::neighbour::NeighbourId;
use tombolo_link::Address;

use crate::fabric::label;

/// The longest failure that is kept.
const MAX_FAILURE_BYTES: usize = 300;

/// What is known of each of them, in the order in which they were named.
#[derive(Debug)]
pub(crate) struct WantedNeighbours(Mutex<Vec<Wanted>>);

/// A neighbour that is wanted.
#[derive(Debug, Clone)]
struct Wanted {
    addresses: Vec<Address>,
    is_joined: bool,
    since: Instant,
    /// What was last said of the addresses by which it could not be reached. Each is told once, until it is over or
    /// another.
    failures: BTreeMap<usize, String>,
}

/// How such a neighbour is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedStatus {
    pub(crate) addresses: Vec<Address>,
    pub(crate) is_joined: bool,
    /// For how long it has been so.
    pub(crate) lasts: Duration,
    pub(crate) failure: Option<String>,
}

impl WantedNeighbours {
    /// None of them is joined yet.
    pub(crate) fn new(addresses: &[Vec<Address>]) -> Self {
        let wanted = |addresses: &Vec<Address>| Wanted {
            addresses: addresses.clone(),
            is_joined: false,
            since: Instant::now(),
            failures: BTreeMap::new(),
        };
        Self(Mutex::new(addresses.iter().map(wanted).collect()))
    }

    fn change<R>(&self, neighbour: NeighbourId, change: impl FnOnce(&mut Wanted) -> R) -> Option<R> {
        self.0.lock().get_mut(neighbour.0 as usize).map(change)
    }

    /// It cannot be reached by that address of it: whether that is to be told.
    pub(super) fn note_failure(&self, neighbour: NeighbourId, address: usize, reason: &str) -> bool {
        // It may be what another node has said, and is shown beside others.
        let mut reason = label::reason(reason);
        reason.truncate(reason.floor_char_boundary(MAX_FAILURE_BYTES));
        let noted = self.change(neighbour, |wanted| {
            let before = wanted.failures.insert(address, reason.clone());
            before.is_none_or(|before| before != reason)
        });
        noted.unwrap_or(false)
    }

    /// It is joined: what was said of its addresses is over.
    pub(super) fn joined(&self, neighbour: NeighbourId) {
        self.change(neighbour, |wanted| {
            wanted.failures.clear();
            (wanted.is_joined, wanted.since) = (true, Instant::now());
        });
    }

    /// Its last link is lost.
    pub(super) fn lost(&self, neighbour: NeighbourId) {
        self.change(neighbour, |wanted| (wanted.is_joined, wanted.since) = (false, Instant::now()));
    }

    /// A further address leads to it.
    pub(super) fn reached(&self, neighbour: NeighbourId, address: usize) {
        self.change(neighbour, |wanted| wanted.failures.remove(&address));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// How the one of that place is.
    pub(crate) fn status(&self, place: usize) -> Option<WantedStatus> {
        let Wanted { addresses, is_joined, since, failures } = self.0.lock().get(place)?.clone();
        let failure = failures.into_values().next();
        Some(WantedStatus { addresses, is_joined, lasts: since.elapsed(), failure })
    }
}
