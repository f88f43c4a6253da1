//! Decides whether this node does what a peer asks for, in one place, before anything of it is done. The decision
//! depends on what the list of keys permits the peer, and on whether the node is about to end.
//!
//! Requests for the memory of programs are not decided here but by the grants of the programs.

use std::time::{Duration, Instant};

use tombolo_link::identity::{Permission, Permissions};
use tombolo_link::{Link, LossReason, Security};

use crate::fabric::connection::Connection;
use crate::fabric::messages::Request;
use crate::fabric::table::Fabric;

/// Whether a request makes this node hold memory for the peer, until it is released.
fn takes_memory(request: &Request) -> bool {
    match request {
        Request::Lend { .. } | Request::Create { .. } | Request::Open { .. } => true,
        Request::Introduce { .. }
        | Request::Join { .. }
        | Request::Identify
        | Request::Release { .. }
        | Request::Status { .. }
        | Request::Carry(_)
        | Request::Publish { .. }
        | Request::Find { .. }
        | Request::List { .. }
        | Request::Delete { .. }
        | Request::PathToken
        | Request::MapWindow { .. }
        | Request::LetCarry { .. }
        | Request::WriteFor { .. }
        | Request::IsEnding
        | Request::BePath { .. } => false,
    }
}

/// The permissions of which a request needs at least one. An empty list: it needs no permission.
fn needed(request: &Request) -> &'static [Permission] {
    match request {
        Request::Lend { .. } => &[Permission::Borrow],
        Request::Open { .. } => &[Permission::Read],
        Request::Create { .. } | Request::Publish { .. } | Request::Delete { .. } => &[Permission::Write],
        Request::List { .. } => &[Permission::List],
        // A peer may know that a segment exists if it may read or list segments. A peer that writes one must be able to
        // check that it has its name.
        Request::Find { .. } => &[Permission::Read, Permission::List, Permission::Write],
        Request::Status { .. } => &[Permission::Status],
        Request::Introduce { .. }
        | Request::Join { .. }
        | Request::Identify
        | Request::Release { .. }
        | Request::Carry(_)
        | Request::PathToken
        | Request::MapWindow { .. }
        | Request::LetCarry { .. }
        | Request::WriteFor { .. }
        | Request::IsEnding
        | Request::BePath { .. } => &[],
    }
}

impl Fabric {
    pub(crate) fn permit_by_list(&self, security: &Security) {
        if let Security::Secure(identity) = security {
            let _ = self.identity.set(identity.clone());
        }
    }

    /// What the node at the other end of this link may ask for, by the last reading of the list, and which reading that
    /// was. The list has been read, because the link's handshake has waited for that.
    pub(super) fn permissions_of(&self, link: &dyn Link) -> (Permissions, u64) {
        let Some(identity) = self.identity.get() else { return (Permissions::ALL, 0) };
        let (rights, reading) = identity.reader.latest();
        let Some(key) = link.peer_key() else { return (Permissions::ALL, reading) };
        let permissions = rights.and_then(|rights| rights.of(&key));
        if permissions.is_none() {
            // The key was taken off the list after the handshake.
            link.close(LossReason::KeyRemoved);
        }
        (permissions.unwrap_or(Permissions::NONE), reading)
    }

    /// Updates the permissions of a link that has just entered the table if the list was read again after `reading`:
    /// [`close_unlisted`](crate::Node::close_unlisted) may have run before the link was there.
    pub(super) fn permit_anew(&self, connection: &Connection, mut reading: u64) {
        let Some(identity) = self.identity.get() else { return };
        while identity.reader.latest().1 != reading {
            // Under the lock: an older reading must not come after a newer one.
            let mut permissions = connection.permissions.lock();
            (*permissions, reading) = self.permissions_of(&*connection.link);
        }
    }

    /// Notes that this node ends at that time at the latest. Only the first call counts.
    pub(crate) fn ends_at(&self, time: Instant) {
        let _ = self.ends_at.set(time);
    }

    /// After how long this node ends at the latest, if it is about to.
    pub(crate) fn ends_within(&self) -> Option<Duration> {
        self.ends_at.get().map(|time| time.saturating_duration_since(Instant::now()))
    }

    /// Whether this node is about to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.ends_at.get().is_some()
    }

    /// Why a request that came by this link is refused, if it is. `has_memory` says whether this node holds memory for
    /// the asking node already.
    pub(crate) fn refusal(
        &self,
        by: &Connection,
        request: &Request,
        has_memory: impl FnOnce() -> bool,
    ) -> Option<String> {
        if self.is_ending() && takes_memory(request) && !has_memory() {
            return Some("this node is about to end and lends to nobody new".into());
        }
        let permissions = *by.permissions.lock();
        let needed = needed(request);
        if needed.is_empty() || needed.iter().any(|permission| permissions.include(*permission)) {
            return None;
        }
        let missing = needed[0].word();
        Some(format!(
            "permission `{missing}` is missing: for the key of the node that asks, its list has `{permissions}`"
        ))
    }
}
