//! The state of the neighbours that this node is to be joined to. The neighbourhood updates it, and the node's status
//! shows it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_core::fabric::neighbour::NeighbourId;
use tombolo_link::Address;

use crate::fabric::label;

/// Length of the longest failure text that is kept.
const MAX_FAILURE_BYTES: usize = 300;

/// The state of each wanted neighbour, in the order in which they were named.
#[derive(Debug)]
pub(crate) struct WantedNeighbours(Mutex<Vec<Wanted>>);

/// The state of one wanted neighbour.
#[derive(Debug, Clone)]
struct Wanted {
    addresses: Vec<Address>,
    is_joined: bool,
    since: Instant,
    /// Why the neighbour could not be reached by an address the last time, by the index of the address. A failure is
    /// reported to people only if it differs from the last one of that address.
    failures: BTreeMap<usize, String>,
}

/// The state of a wanted neighbour, as the node's status shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedStatus {
    pub(crate) addresses: Vec<Address>,
    pub(crate) is_joined: bool,
    /// For how long it has been joined, or not joined.
    pub(crate) lasts: Duration,
    pub(crate) failure: Option<String>,
}

impl WantedNeighbours {
    /// Neighbours with these addresses, none of them joined yet.
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

    /// Notes why a neighbour cannot be reached by one of its addresses. Returns whether that is to be reported to
    /// people.
    pub(super) fn note_failure(&self, neighbour: NeighbourId, address: usize, reason: &str) -> bool {
        // Another node may have chosen this text, and it is shown among other text.
        let mut reason = label::reason(reason);
        reason.truncate(reason.floor_char_boundary(MAX_FAILURE_BYTES));
        let noted = self.change(neighbour, |wanted| {
            let before = wanted.failures.insert(address, reason.clone());
            before.is_none_or(|before| before != reason)
        });
        noted.unwrap_or(false)
    }

    /// Notes that a neighbour is joined, and drops the failures of its addresses.
    pub(super) fn joined(&self, neighbour: NeighbourId) {
        self.change(neighbour, |wanted| {
            wanted.failures.clear();
            (wanted.is_joined, wanted.since) = (true, Instant::now());
        });
    }

    /// Notes that the last link of a neighbour is lost.
    pub(super) fn lost(&self, neighbour: NeighbourId) {
        self.change(neighbour, |wanted| (wanted.is_joined, wanted.since) = (false, Instant::now()));
    }

    /// Drops the failure of an address, because a path by it is up or is not needed.
    pub(super) fn reached(&self, neighbour: NeighbourId, address: usize) {
        self.change(neighbour, |wanted| wanted.failures.remove(&address));
    }

    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// The state of the neighbour with that index.
    pub(crate) fn status(&self, place: usize) -> Option<WantedStatus> {
        let Wanted { addresses, is_joined, since, failures } = self.0.lock().get(place)?.clone();
        let failure = failures.into_values().next();
        Some(WantedStatus { addresses, is_joined, lasts: since.elapsed(), failure })
    }
}
