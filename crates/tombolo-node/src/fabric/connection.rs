//! One link to another node, and its state: what waits to be sent by it, whether it is suspect or lost.
//!
//! Each link begins as the first one of a [`Neighbour`] of its own. If it turns out to lead to a neighbour that has a
//! link already, it becomes a further path of that neighbour ([`super::paths`]).

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
    /// Number of the link. The number of a neighbour's first link is also the neighbour's number in the engine.
    pub id: PeerId,
    /// The link itself.
    pub link: Arc<dyn Link>,
    pub(crate) checksums: Checksums,
    /// What the other end may ask for, by the key that it has proved.
    pub(crate) permissions: Mutex<Permissions>,
    /// How many packets are taken at once while `is_streaming`.
    pub(crate) receive_budget: usize,
    /// Several packets were received at once, or in each of the last two turns: more are expected.
    pub(crate) is_streaming: AtomicBool,
    /// The last `receive` returned no packets.
    pub(crate) is_drained: AtomicBool,
    /// Acknowledgements that go with the next packet, or when nothing else is left to do.
    pub(crate) waiting_acks: Mutex<Vec<Ack>>,
    /// The link did not take all packets. The rest is offered again when the link is driven. Set after the rest is
    /// noted.
    pub(crate) is_full: AtomicBool,
    /// Short packets that the link did not take, in the order in which they are to be sent.
    pub(crate) unsent: Mutex<VecDeque<Vec<u8>>>,
    /// The engine's loop does not look at the link until the link is stirred (`fabric::stirred`).
    pub(crate) is_quiet: AtomicBool,
    /// The epoll of the engine's loop watches the link's descriptor.
    pub(crate) is_watched: AtomicBool,
    /// When the link's timers are due, while the link is quiet, on the engine's clock.
    pub(crate) tick_at_ns: AtomicU64,
    /// The link is suspect: the engine does not use it until something is heard by it again.
    pub(crate) is_paused: AtomicBool,
    silence: Mutex<Silence>,
    /// When the link was added.
    came: Instant,
    /// Why this link is gone.
    pub(super) lost: OnceLock<LossReason>,
    /// The neighbour whose first link this is. Not used any more when `further_of` is set.
    own: Arc<Neighbour>,
    /// The neighbour that this is a further link to, and the number of the path.
    further_of: OnceLock<(Arc<Neighbour>, PathId)>,
}

/// Most packets that are taken from a link before other links get their turn. They are few for a link by shared memory:
/// an answer costs no system call there, and the sender waits for the answers.
fn receive_budget(link: &dyn Link) -> usize {
    if link.peer_process_id().is_some() { 4 } else { 64 }
}

impl Connection {
    /// A link with that number, as the first one of a new neighbour.
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

    /// Logs that the link does not answer, or answers again, if that is news.
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

    /// Time since the link was added.
    pub(crate) fn age(&self) -> Duration {
        self.came.elapsed()
    }

    /// The neighbour that this link leads to.
    pub(crate) fn neighbour(&self) -> &Arc<Neighbour> {
        self.further_of.get().map_or(&self.own, |(neighbour, _)| neighbour)
    }

    /// The neighbour that the link began with. Questions that are asked by the link before it becomes a further one are
    /// asked under the numbers of this neighbour.
    pub(crate) fn own(&self) -> &Neighbour {
        &self.own
    }

    /// Makes this a further link to that neighbour. False: it is a further link already.
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

    /// Why the link is gone for good. A further link counts by itself. A first link counts as gone only when all links
    /// of its neighbour are gone.
    pub fn loss(&self) -> Option<LossReason> {
        if self.is_part() { self.link_loss() } else { self.own.loss() }
    }

    /// Why this link itself is lost, whether or not its neighbour has others.
    pub(crate) fn link_loss(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }

    /// Which node is at the other end, if it has introduced itself.
    pub fn identity(&self) -> Option<NodeIdentity> {
        Some(NodeIdentity::new(self.link.peer_key(), self.neighbour().life()?))
    }

    /// The key that the node at its other end has proved, where the link asks for keys.
    pub fn key(&self) -> Option<PublicKey> {
        self.link.peer_key()
    }

    /// Whether the list of keys gives the node at the other end this permission.
    pub fn permits(&self, permission: Permission) -> bool {
        self.permissions.lock().include(permission)
    }

    /// What the node at the other end calls itself. The text is harmless to show.
    pub fn name(&self) -> String {
        self.neighbour().name()
    }

    /// The most bytes of a block that one packet holds now.
    pub(crate) fn max_payload_bytes(&self) -> u32 {
        self.link.max_packet_bytes().saturating_sub(MAX_HEADER_BYTES).min(MAX_BLOCK_BYTES as usize) as u32
    }

    /// The neighbour's link with that path number. To be called on the first link, which has number 0.
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

    /// The link that messages to its neighbour go by: this one, unless another link is better.
    pub(crate) fn control_link(&self) -> Arc<dyn Link> {
        let other = if self.is_part() { None } else { self.own.control_link() };
        other.unwrap_or_else(|| self.link.clone())
    }

    /// Whether messages to its neighbour wait because the link for them is suspect.
    pub(crate) fn is_waiting(&self) -> bool {
        self.loss().is_none() && self.control_link().is_suspect()
    }
}
