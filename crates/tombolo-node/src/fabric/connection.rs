//! One link to another node, and its state: what waits to be sent by it, whether it is suspect or lost.
//!
//! Each link begins as the first one of a [`Neighbour`] of its own. A link that turns out to lead to a neighbour
//! that has one already becomes a further path of that ([`super::paths`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_core::rdma::{PathId, PeerId};
use tombolo_link::identity::{Permission, Permissions};
use tombolo_link::{Link, LossReason, PublicKey};
use tombolo_wire::{Ack, Checksums, MAX_BLOCK_BYTES, MAX_HEADER_BYTES};

use crate::fabric::label::PeerLabel;
use crate::fabric::life::NodeIdentity;
use crate::fabric::neighbour::Neighbour;
use crate::fabric::silence::Silence;

/// A link to another node.
#[derive(Debug)]
pub struct Connection {
    /// Its number. That of a neighbour's first link is the neighbour's number in the engine.
    pub id: PeerId,
    /// The link itself.
    pub link: Arc<dyn Link>,
    pub(crate) checksums: Checksums,
    /// What the key that the other end has proved may ask for.
    pub(crate) permissions: Mutex<Permissions>,
    /// How many packets are taken at once of a stream.
    pub(crate) receive_budget: usize,
    /// Packets come one after the other.
    pub(crate) is_streaming: AtomicBool,
    /// The last `receive` returned no packets.
    pub(crate) is_drained: AtomicBool,
    /// Acknowledgements that go with the next packet, or when nothing else is left to do.
    pub(crate) waiting_acks: Mutex<Vec<Ack>>,
    /// The link did not take all: it is offered again when the link is driven. Set after the rest is noted.
    pub(crate) is_full: AtomicBool,
    /// Short packets that the link did not take, in the order in which they go.
    pub(crate) unsent: Mutex<VecDeque<Vec<u8>>>,
    /// The engine's loop does not look at it until it is stirred.
    pub(crate) is_quiet: AtomicBool,
    /// The loop is told what comes by it.
    pub(crate) is_watched: AtomicBool,
    /// When its timers are due, while it is quiet, on the engine's clock.
    pub(crate) tick_at_ns: AtomicU64,
    /// The link is suspect: the engine does without it until something is heard again.
    pub(crate) is_paused: AtomicBool,
    silence: Mutex<Silence>,
    /// When it was made.
    came: Instant,
    /// Why this link is gone.
    pub(super) lost: OnceLock<LossReason>,
    /// The neighbour whose first link this is, until another one is known.
    own: Arc<Neighbour>,
    /// The neighbour that this is a further link to, and which path.
    further_of: OnceLock<(Arc<Neighbour>, PathId)>,
}

/// Packets taken from a link before others get their turn: few where an answer costs no system call, since the
/// sender waits for the answers.
fn receive_budget(link: &dyn Link) -> usize {
    if link.peer_process_id().is_some() { 4 } else { 64 }
}

impl Connection {
    /// A link with that number, as the first one of a neighbour.
    pub(super) fn new(id: PeerId, link: Arc<dyn Link>, permissions: Permissions) -> Arc<Self> {
        Arc::new_cyclic(|first| Self {
            id,
            permissions: Mutex::new(permissions),
            checksums: if link.protects_integrity() { Checksums::Off } else { Checksums::On },
            receive_budget: receive_budget(&*link),
            link,
            is_streaming: AtomicBool::new(false),
            is_drained: AtomicBool::new(true),
            waiting_acks: Mutex::default(),
            is_full: AtomicBool::new(false),
            unsent: Mutex::default(),
            is_quiet: AtomicBool::new(false),
            is_watched: AtomicBool::new(false),
            tick_at_ns: AtomicU64::new(0),
            is_paused: AtomicBool::new(false),
            silence: Mutex::default(),
            came: Instant::now(),
            lost: OnceLock::new(),
            own: Neighbour::new(id, first.clone()),
            further_of: OnceLock::new(),
        })
    }

    /// Says that the link does not answer, or answers again.
    pub(crate) fn tell_of_silence(&self) {
        let (is_silent, now) = (self.is_paused.load(Ordering::Relaxed), Instant::now());
        let is_news = {
            let mut silence = self.silence.lock();
            silence.note(is_silent, now);
            silence.is_news(is_silent, now)
        };
        if !is_news {
            return;
        }
        let PeerLabel { name, address, .. } = self.label();
        let (peer, address) = (name.as_deref(), address.as_deref());
        if is_silent {
            tracing::info!(
                peer,
                address,
                "a link does not answer: what was to go by it waits, or goes by others"
            );
        } else {
            tracing::info!(peer, address, "a link answers again");
        }
    }

    /// For how long nothing has been heard by it, if it is suspect.
    pub(crate) fn silent_for(&self) -> Option<Duration> {
        self.silence.lock().lasts()
    }

    /// For how long it has been there.
    pub(crate) fn age(&self) -> Duration {
        self.came.elapsed()
    }

    /// The neighbour that this link leads to.
    pub(crate) fn neighbour(&self) -> &Arc<Neighbour> {
        self.further_of.get().map_or(&self.own, |(neighbour, _)| neighbour)
    }

    /// The neighbour that the link began with: what is asked by this link before it is a further one, is asked
    /// under its numbers.
    pub(crate) fn own(&self) -> &Neighbour {
        &self.own
    }

    /// From now on it is a further link to that neighbour. False: it is one already.
    pub(super) fn set_further(&self, neighbour: &Arc<Neighbour>, path: PathId) -> bool {
        self.further_of.set((neighbour.clone(), path)).is_ok()
    }

    /// The number of its neighbour in the engine, and which of the paths this link is.
    pub(crate) fn place(&self) -> (PeerId, PathId) {
        match self.further_of.get() {
            None => (self.id, PathId(0)),
            Some((neighbour, path)) => (neighbour.id, *path),
        }
    }

    /// Whether this is only a further link to a neighbour.
    pub fn is_part(&self) -> bool {
        self.further_of.get().is_some()
    }

    /// Whether this link can be used; its neighbour may have others.
    pub fn has_link(&self) -> bool {
        self.lost.get().is_none() && (self.is_part() || self.own.loss().is_none())
    }

    /// Why it is gone for good: of a first link, with all others of its neighbour.
    pub fn loss(&self) -> Option<LossReason> {
        if self.is_part() { self.link_loss() } else { self.own.loss() }
    }

    /// Why this link is gone, whatever others its neighbour has.
    pub(crate) fn link_loss(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }

    /// Which node is at its other end, once it has said so.
    pub fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(self.link.peer_key(), self.neighbour().life()?))
    }

    /// The key that the node at its other end has proved, where the link asks for keys.
    pub fn key(&self) -> Option<PublicKey> {
        self.link.peer_key()
    }

    /// Whether the list permits that to the node at its other end.
    pub fn permits(&self, permission: Permission) -> bool {
        self.permissions.lock().include(permission)
    }

    /// What that node calls itself; harmless to show.
    pub fn name(&self) -> String {
        self.neighbour().name()
    }

    /// The most bytes of a block that one packet holds now.
    pub(crate) fn max_payload_bytes(&self) -> u32 {
        self.link.max_packet_bytes().saturating_sub(MAX_HEADER_BYTES).min(MAX_BLOCK_BYTES as usize) as u32
    }

    /// The neighbour's link of that path, which may be this one.
    pub(crate) fn by(self: Arc<Self>, path: PathId) -> Option<Arc<Self>> {
        if path == PathId(0) {
            return self.has_link().then_some(self);
        }
        self.neighbour().further.read().iter().find(|further| further.place().1 == path).cloned()
    }

    /// Whether its neighbour has other links than its first one, or had before that was lost.
    pub(crate) fn has_several(&self) -> bool {
        !self.is_part() && self.own.has_several()
    }

    /// The link that messages to its neighbour go by, which is this one where no other is better.
    pub(crate) fn control_link(&self) -> Arc<dyn Link> {
        let other = if self.is_part() { None } else { self.own.control_link() };
        other.unwrap_or_else(|| self.link.clone())
    }

    /// Whether messages to its neighbour wait in a suspect link.
    pub(crate) fn is_waiting(&self) -> bool {
        self.loss().is_none() && self.control_link().is_suspect()
    }
}
