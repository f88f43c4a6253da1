//! The target's side of reads (QOS §3.6): a request becomes a write-back.
//!
//! Each domain of a peer has 32 read channels. A request that finds none free waits in a bounded buffer (QOS
//! §3.6.2). If that is full too, the request is rejected with *destination buffer full*, and its requester asks
//! again later. So a request never blocks the acknowledgements behind it that would free a channel: the
//! deadlock of QOS §3.6.2 cannot form, whatever the load.
//!
//! Reads have classes, too: a read has the class of its size, or the class that the requester asked for. Lower
//! classes leave channels and buffer places to higher ones (`Shares`). The scheduler's rule picks the next of
//! the waiting reads: strict order with a bound on starvation. Inside a class, domains take turns, and in a
//! domain the first request comes first.
//!
//! A repeated request is recognised by its id: each place of a window remembers its newest id and the state of
//! that request. The requester's watermark says which reads are over. Those of them that still wait are not
//! begun.

use super::config::Config;
use super::counters::Counters;
use super::scheduler::{ClassPicker, Shares};
use super::transfer::{Class, Direction, PathId, PeerId, Transfer};
use crate::list::{Chain, List, NONE};
use std::collections::VecDeque;
use tombolo_wire::{
    Domain, NackCode, Packet, READ_WINDOW, ReadAccept, ReadReject, ReadRequest, Refusal, RequestId,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// No request came with any id of this place.
    Never,
    /// The request counts as not received: a repeat of it is treated as new.
    Nothing,
    Waiting,
    Running,
    Served,
    Rejected(Refusal),
}

/// The channels of one domain that has reads open.
#[derive(Debug)]
struct Channels {
    domain: Domain,
    busy: Shares,
    waiting: [List; Class::COUNT],
}

#[derive(Debug)]
struct ServedPeer {
    /// The newest id of each place of the window, and what became of it.
    window: Box<[(RequestId, Known)]>,
    watermark: RequestId,
    channels: Vec<Channels>,
    pending: Box<[Option<ReadRequest>]>,
    pending_chain: Chain,
    free: Vec<u32>,
    /// Places in `pending` that are taken.
    waiting: Shares,
    /// Channels in use, of all domains.
    busy: Shares,
    picker: ClassPicker,
}

/// A read to be started, as a write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The peer that reads.
    pub peer: PeerId,
    /// Its read.
    pub request: RequestId,
    /// The write that answers it.
    pub transfer: Transfer,
}

/// The side of an engine that serves reads.
#[derive(Debug)]
pub struct ReadServer {
    config: Config,
    counters: Counters,
    /// `None`: not a peer. A peer has tables from its first request on.
    peers: Vec<Option<Tables>>,
    /// Short answers to be sent. When the queue is full, an answer is dropped, and the requester asks again
    /// after its timeout.
    replies: VecDeque<Reply>,
}

type Tables = Option<Box<ServedPeer>>;

const REPLIES: usize = 1024;

/// A short answer, and the path of the request that it answers, if it answers one.
pub(crate) type Reply = (PeerId, Option<PathId>, Packet<'static>);

impl ReadServer {
    pub(crate) fn new(config: Config) -> Self {
        let replies = VecDeque::with_capacity(REPLIES);
        Self { config, counters: Counters::default(), peers: Vec::new(), replies }
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn add_peer(&mut self, id: PeerId) {
        if self.peers.len() <= id.index() {
            self.peers.resize_with(id.index() + 1, || None);
        }
        self.replies.retain(|(peer, ..)| *peer != id);
        self.peers[id.index()] = Some(None);
    }

    pub(crate) fn mark_peer_lost(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id.index()) {
            *peer = None;
        }
        self.replies.retain(|(peer, ..)| *peer != id);
    }

    /// Whether a request would be taken now, to run or to wait (QOS §3.6.3: look for
    /// room before taking a request out of its queue).
    pub(crate) fn has_room(&self, id: PeerId, request: &ReadRequest) -> bool {
        let peer = match self.peers.get(id.index()) {
            Some(Some(Some(peer))) => peer,
            Some(Some(None)) => return true,
            _ => return false,
        };
        let class = self.class_of_request(request);
        peer.may_wait(&self.config, class) || peer.has_channel(&self.config, request.domain, class)
    }

    /// The class of a read, for as long as it waits or runs.
    fn class_of(&self, size_bytes: u32, class: Option<Class>) -> Class {
        class.unwrap_or_else(|| self.config.class_of(size_bytes))
    }

    fn class_of_request(&self, request: &ReadRequest) -> Class {
        self.class_of(request.size_bytes, request.class.map(Class::from_number))
    }

    fn answer(&mut self, id: PeerId, path: Option<PathId>, packet: Packet<'static>) {
        if self.replies.len() < REPLIES {
            self.replies.push_back((id, path, packet));
        }
    }

    /// Handles a request that came by `path`. Returns the read to start, if it can start now.
    pub(crate) fn request(&mut self, id: PeerId, path: PathId, request: &ReadRequest) -> Option<Start> {
        let class = self.class_of_request(request);
        let config = &self.config;
        let peer = self.peers.get_mut(id.index())?.as_mut()?;
        let peer = peer.get_or_insert_with(|| Box::new(ServedPeer::new(config)));
        // The watermark only rises; a late packet has an old one.
        if request.watermark.after(peer.watermark).is_some() {
            peer.watermark = request.watermark;
        }
        let name = request.request;
        let place = place_of(name);
        let (known, state) = peer.window[place];
        let is_over = state != Known::Never && name.after(known).is_none();
        if is_over || name.after(peer.watermark).is_none() {
            self.counters.stale_packets += 1;
            return None;
        }
        if known == name && !matches!(state, Known::Never | Known::Nothing) {
            self.counters.read_duplicates += 1;
            match state {
                Known::Waiting | Known::Running => {
                    self.answer(id, Some(path), Packet::ReadAccept(ReadAccept { request: name }));
                }
                Known::Rejected(refusal) => {
                    self.answer(id, Some(path), Packet::ReadReject(ReadReject { request: name, refusal }));
                }
                Known::Served | Known::Never | Known::Nothing => {}
            }
            return None;
        }
        if peer.has_channel(&self.config, request.domain, class) {
            peer.window[place] = (name, Known::Running);
            peer.occupy(request.domain, class);
            self.counters.reads_served += 1;
            return Some(start(id, request));
        }
        let slot = if peer.may_wait(&self.config, class) { peer.free.pop() } else { None };
        let Some(slot) = slot else {
            self.counters.reads_turned_away += 1;
            let refusal = NackCode::BufferFull.into();
            self.answer(id, Some(path), Packet::ReadReject(ReadReject { request: name, refusal }));
            return None;
        };
        peer.window[place] = (name, Known::Waiting);
        peer.pending[slot as usize] = Some(*request);
        let at = peer.channels_of(request.domain);
        peer.channels[at].waiting[class as usize].push_back(&mut peer.pending_chain, slot);
        peer.waiting.take(class);
        self.counters.reads_queued += 1;
        // Without this answer its requester would take the wait for a loss.
        self.answer(id, Some(path), Packet::ReadAccept(ReadAccept { request: name }));
        None
    }

    /// Frees the channel of a write-back that is over or could not start. Waiting reads may start then: call
    /// [`Self::next_start`].
    pub(crate) fn ended(
        &mut self,
        id: PeerId,
        request: RequestId,
        transfer: &Transfer,
        failure: Option<Refusal>,
    ) {
        let class = self.class_of(transfer.size_bytes, transfer.class);
        let Some(Some(Some(peer))) = self.peers.get_mut(id.index()) else { return };
        let place = place_of(request);
        if peer.window[place] == (request, Known::Running) {
            peer.window[place].1 = match failure {
                None => Known::Served,
                // The read never began. If it is requested again, it may.
                Some(refusal) if refusal.code.is_transient() => Known::Nothing,
                Some(refusal) => Known::Rejected(refusal),
            };
        }
        peer.vacate(transfer.domain, class);
        if let Some(refusal) = failure {
            self.answer(id, None, Packet::ReadReject(ReadReject { request, refusal }));
        }
    }

    /// Returns a read of this peer that has waited and can start now. Call until `None` whenever a channel
    /// became free.
    pub(crate) fn next_start(&mut self, id: PeerId) -> Option<Start> {
        let peer = self.peers.get_mut(id.index())?.as_mut()?.as_mut()?;
        while peer.waiting.total() > 0 {
            let mut may_start = [false; Class::COUNT];
            for class in Class::ALL {
                may_start[class as usize] = peer.startable(&self.config, class).is_some();
            }
            let (class, _) = peer.picker.pick(may_start)?;
            let at = peer.startable(&self.config, class)?;
            let slot = peer.channels[at].waiting[class as usize].pop_front(&mut peer.pending_chain)?;
            // The other domains have their turn before this one has another.
            let last = peer.channels.remove(at);
            peer.channels.push(last);
            peer.free.push(slot);
            peer.waiting.give_back(class);
            let request = peer.pending[slot as usize].take()?;
            let place = place_of(request.request);
            // The requester has given the read up while it waited.
            if peer.window[place] != (request.request, Known::Waiting)
                || request.request.after(peer.watermark).is_none()
            {
                peer.tidy(request.domain);
                continue;
            }
            peer.window[place].1 = Known::Running;
            peer.occupy(request.domain, class);
            self.counters.reads_served += 1;
            return Some(start(id, &request));
        }
        None
    }

    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    /// Sets the ids as they are shortly before 2³² reads.
    #[cfg(test)]
    pub(crate) fn age(&mut self, id: PeerId) {
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return;
        };
        let config = &self.config;
        let peer = peer.get_or_insert_with(|| Box::new(ServedPeer::new(config)));
        peer.watermark = RequestId(u32::MAX - 5);
    }

    /// Whether no read is being served or waits, and no answer is to be sent.
    pub(crate) fn is_idle(&self) -> bool {
        self.replies.is_empty()
            && self.peers.iter().flatten().flatten().all(|peer| {
                peer.busy.total() == 0 && peer.channels.is_empty() && peer.free.len() == peer.pending.len()
            })
    }
}

impl ServedPeer {
    fn new(config: &Config) -> Self {
        let pending = config.pending_reads as usize;
        Self {
            window: vec![(RequestId(0), Known::Never); READ_WINDOW as usize].into(),
            watermark: RequestId(0),
            channels: Vec::with_capacity(16),
            pending: vec![None; pending].into(),
            pending_chain: Chain::new(pending),
            free: (0..pending as u32).rev().collect(),
            waiting: Shares::default(),
            busy: Shares::default(),
            picker: ClassPicker::new(config.starvation_blocks),
        }
    }

    /// The entry of a domain, made if there is none. There are as many entries
    /// as domains with reads open, few enough to look through.
    fn channels_of(&mut self, domain: Domain) -> usize {
        match self.channels.iter().position(|channels| channels.domain == domain) {
            Some(at) => at,
            None => {
                self.channels.push(Channels { domain, busy: Shares::default(), waiting: Default::default() });
                self.channels.len() - 1
            }
        }
    }

    fn has_channel(&self, config: &Config, domain: Domain, class: Class) -> bool {
        let channels = self.channels.iter().find(|channels| channels.domain == domain);
        self.busy.admits(config.served_reads, class)
            && channels.is_none_or(|channels| channels.busy.admits(config.read_channels, class))
    }

    fn may_wait(&self, config: &Config, class: Class) -> bool {
        !self.free.is_empty() && self.waiting.admits(config.pending_reads, class)
    }

    /// The first domain with a read of this class that waits and may start.
    fn startable(&self, config: &Config, class: Class) -> Option<usize> {
        if !self.busy.admits(config.served_reads, class) {
            return None;
        }
        self.channels.iter().position(|channels| {
            !channels.waiting[class as usize].is_empty() && channels.busy.admits(config.read_channels, class)
        })
    }

    fn occupy(&mut self, domain: Domain, class: Class) {
        let at = self.channels_of(domain);
        self.channels[at].busy.take(class);
        self.busy.take(class);
    }

    fn vacate(&mut self, domain: Domain, class: Class) {
        let at = self.channels_of(domain);
        self.channels[at].busy.give_back(class);
        self.busy.give_back(class);
        self.tidy(domain);
    }

    /// Forgets a domain if it has no reads.
    fn tidy(&mut self, domain: Domain) {
        self.channels.retain(|channels| {
            channels.domain != domain
                || channels.busy.total() > 0
                || channels.waiting.iter().any(|waiting| !waiting.is_empty())
        });
    }
}

/// The place of an id in the window.
fn place_of(request: RequestId) -> usize {
    (request.0 % READ_WINDOW) as usize
}

fn start(peer: PeerId, request: &ReadRequest) -> Start {
    Start {
        peer,
        request: request.request,
        transfer: Transfer {
            direction: Direction::Write,
            domain: request.domain,
            own_domain: request.domain,
            source_address: request.source_address,
            destination_address: request.destination_address,
            size_bytes: request.size_bytes,
            notification: request.notification,
            class: request.class.map(Class::from_number),
            user: u64::from(NONE),
        },
    }
}
