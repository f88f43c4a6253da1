//! The paths to a peer: a link each, with a window, a round trip and losses of
//! its own. Blocks are sprayed over them, one decision a block.
//!
//! A block goes by the path where its answer is expected first. The expected time is the path's round trip plus
//! the time in which the bytes under way there drain, at a rate of one window per round trip. Full paths are
//! not considered, and equally fast paths take turns.
//!
//! A path becomes *suspect* when something sent by it gets no answer for a whole timeout. While another path
//! answers, a suspect path gets one block at a time, after pauses that double, until one of these blocks is
//! answered. So a path that swallows everything costs little before its link is found to be lost, and the
//! blocks themselves show when a path works again. The order of answers shows losses only within one path.

use super::Initiator;
use super::tables::{Place, SendPeer, Stuck};
use crate::list::List;
use crate::rdma::action::{Block, PathStatus};
use crate::rdma::config::Config;
use crate::rdma::congestion::Congestion;
use crate::rdma::round_trip::RoundTrip;
use crate::rdma::time::Time;
use crate::rdma::transfer::{MAX_PATHS, PathId, PeerId};

/// A block that a path has lost goes by another path, unless that is slower by this factor. A bound, not a
/// measurement: a loss by chance should not send blocks a much longer way.
const AVOIDED: u64 = 4;

/// Number of times that a stuck peer is looked at before it is given up: it is given up at most a quarter of
/// [`Config::give_up_ns`] late.
const STUCK_CHECKS_PER_GIVE_UP: u64 = 4;

/// What the initiator knows of one path.
#[derive(Debug)]
pub(super) struct Path {
    pub up: bool,
    /// Whether the path loses nothing while its link is up.
    pub is_reliable: bool,
    /// The path's link is full.
    pub full: bool,
    /// Whether something sent by this path was not answered for a whole timeout, and nothing sent by it has
    /// been answered since.
    pub suspect: bool,
    /// When the path became suspect the last time, and when it is tried again.
    pub suspect_at: Time,
    pub try_at: Time,
    pause_ns: u64,
    pub trip: RoundTrip,
    pub congestion: Congestion,
    pub in_flight_bytes: u64,
    /// Transmissions so far, and the latest one that was answered.
    pub order: u64,
    pub answered_order: u64,
    /// The number of the latest probe's transmission. No further probe is sent before a transmission of that number or a higher one, or the
    /// probe's block, is answered.
    pub probed_order: u64,
    pub timeouts: List,
    pub blocks_sent: u64,
    pub bytes_sent: u64,
}

impl Path {
    pub fn new(config: &Config, up: bool) -> Self {
        Self {
            up,
            is_reliable: false,
            full: false,
            suspect: false,
            suspect_at: Time(0),
            try_at: Time(0),
            pause_ns: 0,
            trip: RoundTrip::new(),
            congestion: Congestion::new(config.congestion),
            in_flight_bytes: 0,
            order: 0,
            answered_order: 0,
            probed_order: 0,
            timeouts: List::default(),
            blocks_sent: 0,
            bytes_sent: 0,
        }
    }

    /// Whether another block may be sent: there is always room for one, unless the link itself is full.
    pub fn is_open(&self) -> bool {
        self.up
            && !self.full
            && (self.in_flight_bytes == 0 || self.in_flight_bytes < self.congestion.window_bytes())
    }

    /// Counts a block's bytes as under way.
    pub fn count(&mut self, now: Time, bytes: u64) {
        self.congestion.sent(now, self.in_flight_bytes);
        self.in_flight_bytes += bytes;
    }

    /// Expected time until a block sent now is answered. `unknown_ns` is the round trip to assume if none was
    /// measured.
    fn expected_ns(&self, unknown_ns: u64) -> u64 {
        let trip_ns = self.trip.smoothed_ns().unwrap_or(unknown_ns).max(1);
        // Even without a limit, the bytes under way have to distinguish equal paths.
        let window_bytes = u128::from(self.congestion.window_bytes().clamp(1, 1 << 24));
        let waiting_ns = u128::from(trip_ns) * u128::from(self.in_flight_bytes) / window_bytes;
        trip_ns.saturating_add(u64::try_from(waiting_ns).unwrap_or(u64::MAX))
    }
}

impl SendPeer {
    /// Whether a block may be sent by any path.
    pub fn is_open(&self) -> bool {
        match &*self.paths {
            [only] => only.is_open(),
            paths => {
                let trusted = self.has_trusted();
                paths.iter().any(|path| path.is_open() && !(trusted && path.suspect))
            }
        }
    }

    /// Whether anything can be sent at all. Without a path all open transfers wait for one.
    pub fn has_path(&self) -> bool {
        self.paths.iter().any(|path| path.up)
    }

    /// Whether the peer's links take everything that is to be sent, as far as is known.
    pub fn has_room(&self) -> bool {
        self.resend.is_empty() && !self.paths.iter().any(|path| path.up && path.full)
    }

    fn has_trusted(&self) -> bool {
        self.paths.iter().any(|path| path.up && !path.suspect)
    }

    /// How long a path waits for the answer to a block. For a suspect path, while another one answers, this
    /// time does not grow with each attempt.
    pub fn timeout_ns(&self, path: usize, config: &Config) -> u64 {
        let suspect = self.paths[path].suspect && self.has_trusted();
        let trip = &self.paths[path].trip;
        if suspect {
            trip.first_timeout_ns(config.retransmission)
        } else {
            trip.timeout_ns(config.retransmission)
        }
    }

    /// The shortest recent round trip by any path, if one was measured.
    pub fn shortest_trip_ns(&self) -> Option<u64> {
        self.paths.iter().filter(|path| path.up).filter_map(|path| path.congestion.shortest_ns()).min()
    }

    /// The path for a short packet.
    pub fn best_path(&self, avoid: Option<u8>) -> u8 {
        if self.paths.len() == 1 {
            return 0;
        }
        self.shortest(avoid, |path| path.up && !path.suspect)
            .or_else(|| self.with_shortest_pause(|path| path.up))
            .unwrap_or(0)
    }

    /// The path for a block.
    pub fn path_for_block(&mut self, now: Time, avoid: Option<u8>) -> u8 {
        if self.paths.len() == 1 {
            return 0;
        }
        if avoid.is_none()
            && let Some(trial) = self.trial(now)
        {
            return trial;
        }
        self.shortest(avoid, |path| path.is_open() && !path.suspect)
            .or_else(|| self.with_shortest_pause(Path::is_open).filter(|_| !self.has_trusted()))
            .unwrap_or_else(|| self.best_path(avoid))
    }

    /// The suspect path with the shortest pause, for use when no path answers. Each timeout doubles a path's
    /// pause, so that all paths have their turn. A path that has just lost something need not wait for paths
    /// that failed long ago.
    fn with_shortest_pause(&self, good: impl Fn(&Path) -> bool) -> Option<u8> {
        let places = self.paths.iter().enumerate().filter(|(_, path)| good(path) && path.suspect);
        places.min_by_key(|(_, path)| (path.pause_ns, path.suspect_at)).map(|(place, _)| place as u8)
    }

    /// The path for a read request.
    pub fn path_for_request(&mut self, now: Time, avoid: Option<u8>) -> u8 {
        if self.paths.len() == 1 {
            return 0;
        }
        let trial = if avoid.is_none() { self.trial(now) } else { None };
        trial.unwrap_or_else(|| self.best_path(avoid))
    }

    /// A suspect path whose pause is over: one packet may be sent by it.
    fn trial(&mut self, now: Time) -> Option<u8> {
        let due = |path: &Path| {
            path.up && !path.full && path.suspect && path.in_flight_bytes == 0 && path.try_at <= now
        };
        let trial = self.paths.iter().position(due).filter(|_| self.has_trusted())?;
        let path = &mut self.paths[trial];
        path.try_at = now.after_ns(path.pause_ns);
        Some(trial as u8)
    }

    /// The path with the shortest expected time among those that are `good`. The path to avoid is chosen only
    /// if the others are much slower.
    fn shortest(&self, avoid: Option<u8>, good: impl Fn(&Path) -> bool) -> Option<u8> {
        let known = self.paths.iter().filter(|path| path.up).filter_map(|path| path.trip.smoothed_ns());
        let unknown_ns = known.min().unwrap_or(1);
        let places = self.paths.iter().enumerate().filter(|(_, path)| good(path));
        places
            .min_by_key(|(place, path)| {
                let penalty = if avoid == Some(*place as u8) { AVOIDED } else { 1 };
                (path.expected_ns(unknown_ns).saturating_mul(penalty), path.in_flight_bytes)
            })
            .map(|(place, _)| place as u8)
    }

    /// Something that was sent by this path was answered. Returns whether timeouts may be shorter now.
    pub fn path_answers(&mut self, path: usize) -> bool {
        if !self.paths[path].suspect {
            return false;
        }
        if !self.has_trusted() {
            // No path was answering, so it was the peer that did not answer: no path is worse than another.
            self.paths.iter_mut().for_each(|path| path.try_at = Time(0));
        }
        self.paths[path].suspect = false;
        true
    }

    /// Whether the timeout of something that was sent at `sent_at` says anything new about the path.
    pub fn is_news(&self, path: usize, sent_at: Time) -> bool {
        let Path { suspect, suspect_at, .. } = self.paths[path];
        !suspect || sent_at >= suspect_at || !self.has_trusted()
    }

    /// Marks a path as suspect, because something sent by it was not answered for a whole timeout.
    pub fn mark_path_suspect(&mut self, now: Time, path: usize, config: &Config) {
        let pause_ns = self.paths[path].trip.timeout_ns(config.retransmission);
        let path = &mut self.paths[path];
        path.suspect = true;
        path.suspect_at = now;
        path.pause_ns = pause_ns;
        path.try_at = now.after_ns(pause_ns);
    }
}

impl Initiator {
    pub(crate) fn set_reliable(&mut self, id: PeerId, path: PathId, is_reliable: bool) {
        let peer = self.peers.get_mut(id.index()).and_then(Option::as_mut);
        if let Some(path) = peer.and_then(|peer| peer.paths.get_mut(path.index())) {
            path.is_reliable = is_reliable;
        }
    }

    /// Adds a path: another link to a peer is up, or a lost one is up again. Returns `false` if there is no
    /// such peer, or if it has too many paths.
    pub(crate) fn add_path(&mut self, now: Time, id: PeerId, path: PathId) -> bool {
        if path.index() >= MAX_PATHS {
            return false;
        }
        self.leave_path(now, id, path);
        self.leave_out_time_without_path(now, id);
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else {
            return false;
        };
        while peer.paths.len() <= path.index() {
            peer.paths.push(Path::new(&self.config, false));
        }
        let path = &mut peer.paths[path.index()];
        let Path { order, is_reliable, blocks_sent, bytes_sent, .. } = *path;
        // Late answers may name earlier transmissions, so the numbering goes on.
        *path = Path {
            order,
            is_reliable,
            answered_order: order,
            probed_order: order,
            blocks_sent,
            bytes_sent,
            ..Path::new(&self.config, true)
        };
        self.lower_wake(id);
        self.refresh(id);
        true
    }

    /// Marks a path as lost. What is under way by it is sent again by other paths.
    pub(crate) fn path_lost(&mut self, now: Time, id: PeerId, path: PathId) {
        if self.path_status(id, path).is_some_and(|status| status.is_up) {
            self.leave_path(now, id, path);
        }
    }

    fn leave_path(&mut self, now: Time, id: PeerId, path: PathId) {
        self.attended.look(now, self.deadline());
        let left = self.peers.get_mut(id.index()).and_then(Option::as_mut);
        let Some(left) = left.and_then(|peer| peer.paths.get_mut(path.index())) else {
            return;
        };
        left.up = false;
        for slot in 0..self.table.entries.len() as u32 {
            let transaction = &self.table.entries[slot as usize];
            if transaction.peer != id || usize::from(transaction.path) != path.index() {
                continue;
            }
            let (place, reading) = (transaction.place, transaction.reading);
            self.uncount(slot);
            if matches!(place, Place::Timeout | Place::Bypass) || (reading && place == Place::Late) {
                self.unplace(slot);
                self.table.entries[slot as usize].reading = false;
                self.queue_resend(slot);
            }
            if place == Place::Timeout && !reading {
                self.counters.blocks_moved += 1;
                self.lost_with_its_path(slot);
            }
        }
        self.ask_by_others(id);
        if let Some(peer) = self.peers[id.index()].as_mut().filter(|peer| !peer.has_path()) {
            peer.pathless_since.get_or_insert(self.attended.at(now));
            self.clear_stuck(id);
        }
        self.refresh(id);
    }

    /// Takes back a block that its link did not take, or only in part. The block waits among those to be sent
    /// again. Nothing is handed out for the path until its link has room.
    pub(crate) fn link_full(&mut self, now: Time, block: &Block) {
        let Some(Some(peer)) = self.peers.get_mut(block.peer.index()) else { return };
        if (peer.id, peer.session) != (block.peer, block.session) {
            return;
        }
        if let Some(path) = peer.paths.get_mut(block.path.index()).filter(|path| path.up) {
            path.full = true;
            self.mark_stuck(now, block.peer);
        }
        let slot = self.slot_of(block).filter(|slot| {
            let transaction = &self.table.entries[*slot as usize];
            transaction.place == Place::Timeout
                && transaction.attempt == block.attempt
                && usize::from(transaction.path) == block.path.index()
        });
        if let Some(slot) = slot {
            self.unplace(slot);
            self.uncount(slot);
            let transaction = &mut self.table.entries[slot as usize];
            // The block counts as not handed out: it comes again as the same attempt.
            transaction.unsent = true;
            if let Some(before) = transaction.sent_before_at {
                transaction.sent_at = before;
                transaction.order = transaction.order_before;
                transaction.path = transaction.path_before;
            }
            self.queue_resend(slot);
        }
        self.refresh(block.peer);
    }

    /// Records that a path's link has room again.
    pub(crate) fn link_has_room(&mut self, id: PeerId, path: PathId) {
        if let Some(Some(peer)) = self.peers.get_mut(id.index())
            && let Some(path) = peer.paths.get_mut(path.index())
        {
            path.full = false;
            if peer.has_room() {
                self.clear_stuck(id);
            }
            self.refresh(id);
        }
    }

    /// Records that a link of the peer takes nothing, and arms a timer that checks the peer.
    fn mark_stuck(&mut self, now: Time, id: PeerId) {
        let look_at = self.next_look(now);
        if let Some(Some(peer)) = self.peers.get_mut(id.index())
            && peer.stuck.is_none()
        {
            peer.stuck = Some(Stuck { since: self.attended.at(now), look_at });
            self.arm(id, look_at);
        }
    }

    pub(super) fn clear_stuck(&mut self, id: PeerId) {
        if let Some(Some(peer)) = self.peers.get_mut(id.index())
            && peer.stuck.take().is_some()
        {
            self.armed -= 1;
        }
    }

    fn next_look(&self, now: Time) -> Time {
        now.after_ns(self.config.give_up_ns / STUCK_CHECKS_PER_GIVE_UP)
    }

    /// Checks a stuck peer. If its links take nothing and it has been silent for [`Config::give_up_ns`], its
    /// transfers end as `TransferError::PeerUnreachable`.
    pub(super) fn look_at_stuck(&mut self, now: Time, id: PeerId) {
        let look_at = self.next_look(now);
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else { return };
        let Some(stuck) = peer.stuck.filter(|stuck| stuck.look_at <= now) else { return };
        let waits_since = match peer.resend.front() {
            Some(slot) => Some(self.table.entries[slot as usize].issued_at),
            None => peer.paths.iter().all(|path| path.full || !path.up).then_some(stuck.since),
        };
        match waits_since {
            None => self.clear_stuck(id),
            Some(since) => {
                peer.stuck = Some(Stuck { look_at, ..stuck });
                if self.is_silent(now, id, since) {
                    self.end_unanswered(now, id);
                    self.look_on_if_open(now, id);
                }
            }
        }
    }

    /// Keeps checking a stuck peer that has open transfers left, as if it were stuck since now: the answers to
    /// its reads may wait on.
    fn look_on_if_open(&mut self, now: Time, id: PeerId) {
        let since = self.attended.at(now);
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else { return };
        match &mut peer.stuck {
            Some(stuck) if !peer.open.is_empty() => stuck.since = since,
            _ => self.clear_stuck(id),
        }
    }

    /// Repeats read requests after a path was lost, because they may have been under way by it: all requests of
    /// which nothing was heard yet. The target recognises those that it has. If the peer has no path left, no
    /// timer runs, and all its requests are repeated by the next path.
    fn ask_by_others(&mut self, id: PeerId) {
        let Some(Some(peer)) = self.peers.get(id.index()) else { return };
        let has_path = peer.has_path();
        let asked: Vec<u32> = peer.asked.iter(&self.transfers.chain).collect();
        for index in asked {
            if !has_path || !self.transfers.entries[index as usize].heard {
                self.ask_again(index);
                self.request_lost_with_its_path(index);
            }
        }
    }

    /// The path for a short packet that answers a packet from `path`.
    pub(crate) fn path_for_answer(&self, id: PeerId, path: PathId) -> PathId {
        let Some(Some(peer)) = self.peers.get(id.index()) else {
            return path;
        };
        match peer.paths.get(path.index()) {
            Some(same) if same.up => path,
            _ => PathId(peer.best_path(None)),
        }
    }

    /// The path for a short packet that answers no other packet.
    pub(crate) fn best_path(&self, id: PeerId) -> PathId {
        let peer = self.peers.get(id.index()).and_then(Option::as_ref);
        PathId(peer.map_or(0, |peer| peer.best_path(None)))
    }

    /// The state of a path.
    pub(crate) fn path_status(&self, id: PeerId, path: PathId) -> Option<PathStatus> {
        let path = self.peers.get(id.index())?.as_ref()?.paths.get(path.index())?;
        Some(PathStatus {
            is_up: path.up,
            answers: !path.suspect,
            window_bytes: path.congestion.window_bytes(),
            in_flight_bytes: path.in_flight_bytes,
            round_trip_ns: path.trip.smoothed_ns(),
            blocks_sent: path.blocks_sent,
            bytes_sent: path.bytes_sent,
        })
    }
}
