//! Reads, seen by who is asked (QOS §3.6): a request becomes a write-back.
//!
//! Each domain of a peer has 32 read channels. A request that finds them all
//! busy waits in a bounded buffer, first come first served in its domain (QOS
//! §3.6.2); if that is full too, it is turned away with *destination buffer
//! full*, and its requester comes back. So a request never stands in the way of
//! the acknowledgements behind it that would free a channel: the deadlock of QOS
//! §3.6.2 cannot form, whatever the load.
//!
//! A repeated request is recognised by its id: per peer the ids of one window
//! are remembered with what became of them; the requester's watermark says which
//! may be forgotten.

use super::config::Config;
use super::counters::Counters;
use super::list::{Chain, List, NONE};
use super::transfer::{Class, Direction, PathId, PeerId, Transfer};
use std::collections::VecDeque;
use tombolo_wire::{Domain, NackCode, Packet, READ_WINDOW, ReadAccept, ReadReject, ReadRequest, RequestId};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    Waiting,
    Running,
    Served,
    Rejected(NackCode),
}

/// The channels of one domain that has reads open.
#[derive(Debug)]
struct Channels {
    domain: Domain,
    busy: u32,
    waiting: List,
}

#[derive(Debug)]
struct ServedPeer {
    /// What became of each id of the window.
    window: Box<[(RequestId, Known)]>,
    watermark: RequestId,
    channels: Vec<Channels>,
    pending: Box<[Option<ReadRequest>]>,
    pending_chain: Chain,
    free: Vec<u32>,
    busy: u32,
}

/// A read to be started, as a write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Whose read.
    pub peer: PeerId,
    /// Which.
    pub request: RequestId,
    /// The write that answers it.
    pub transfer: Transfer,
}

/// The side of an engine that serves reads.
#[derive(Debug)]
pub struct ReadServer {
    config: Config,
    counters: Counters,
    peers: Vec<Option<Box<ServedPeer>>>,
    /// Short answers to be sent. When it is full an answer is dropped, and the
    /// requester's timer brings the question again.
    replies: VecDeque<Reply>,
}

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
        let pending = self.config.pending_reads as usize;
        self.replies.retain(|(peer, ..)| *peer != id);
        self.peers[id.index()] = Some(Box::new(ServedPeer {
            window: vec![(RequestId(0), Known::Nothing); READ_WINDOW as usize].into(),
            watermark: RequestId(0),
            channels: Vec::with_capacity(16),
            pending: vec![None; pending].into(),
            pending_chain: Chain::new(pending),
            free: (0..pending as u32).rev().collect(),
            busy: 0,
        }));
    }

    pub(crate) fn lose_peer(&mut self, id: PeerId) {
        if let Some(peer) = self.peers.get_mut(id.index()) {
            *peer = None;
        }
        self.replies.retain(|(peer, ..)| *peer != id);
    }

    /// Whether a request of this domain would be taken now, to run or to wait
    /// (QOS §3.6.3: look for room before taking a request out of its queue).
    pub(crate) fn has_room(&self, id: PeerId, domain: Domain) -> bool {
        let Some(Some(peer)) = self.peers.get(id.index()) else {
            return false;
        };
        !peer.free.is_empty() || self.has_channel(peer, domain)
    }

    fn has_channel(&self, peer: &ServedPeer, domain: Domain) -> bool {
        let busy = peer.channels.iter().find(|channels| channels.domain == domain);
        peer.busy < self.config.served_reads
            && busy.is_none_or(|channels| channels.busy < self.config.read_channels)
    }

    fn answer(&mut self, id: PeerId, path: Option<PathId>, packet: Packet<'static>) {
        if self.replies.len() < REPLIES {
            self.replies.push_back((id, path, packet));
        }
    }

    /// A request came in by that path. Returns the read to start, if it can start now.
    pub(crate) fn request(&mut self, id: PeerId, path: PathId, request: &ReadRequest) -> Option<Start> {
        let Some(Some(peer)) = self.peers.get_mut(id.index()) else {
            return None;
        };
        // The watermark only rises; a late packet has an old one.
        if request.watermark.after(peer.watermark).is_some() {
            peer.watermark = request.watermark;
        }
        let name = request.request;
        let place = (name.0 % READ_WINDOW) as usize;
        if name.after(peer.watermark).is_none_or(|distance| distance >= READ_WINDOW) {
            self.counters.stale_packets += 1;
            return None;
        }
        let (known, state) = peer.window[place];
        if known == name && state != Known::Nothing {
            self.counters.read_duplicates += 1;
            match state {
                Known::Waiting | Known::Running => {
                    self.answer(id, Some(path), Packet::ReadAccept(ReadAccept { request: name }));
                }
                Known::Rejected(code) => {
                    self.answer(id, Some(path), Packet::ReadReject(ReadReject { request: name, code }));
                }
                Known::Served | Known::Nothing => {}
            }
            return None;
        }
        let has_channel =
            self.peers[id.index()].as_ref().is_some_and(|peer| self.has_channel(peer, request.domain));
        let peer = self.peers[id.index()].as_mut()?;
        if has_channel {
            peer.window[place] = (name, Known::Running);
            peer.occupy(request.domain);
            self.counters.reads_served += 1;
            return Some(start(id, request));
        }
        let Some(slot) = peer.free.pop() else {
            self.counters.reads_turned_away += 1;
            let code = NackCode::BufferFull;
            self.answer(id, Some(path), Packet::ReadReject(ReadReject { request: name, code }));
            return None;
        };
        peer.window[place] = (name, Known::Waiting);
        peer.pending[slot as usize] = Some(*request);
        let at = peer.channels_of(request.domain);
        peer.channels[at].waiting.push_back(&mut peer.pending_chain, slot);
        self.counters.reads_queued += 1;
        // Else its requester would take the waiting for a loss.
        self.answer(id, Some(path), Packet::ReadAccept(ReadAccept { request: name }));
        None
    }

    /// A write-back is over, or could not start: its channel is free. Returns a
    /// waiting read that may start now; call again for it when it ends.
    pub(crate) fn ended(
        &mut self,
        id: PeerId,
        request: RequestId,
        domain: Domain,
        failure: Option<NackCode>,
    ) -> Option<Start> {
        let peer = self.peers.get_mut(id.index())?.as_mut()?;
        let place = (request.0 % READ_WINDOW) as usize;
        if peer.window[place] == (request, Known::Running) {
            peer.window[place].1 = match failure {
                None => Known::Served,
                // It never began; asked again, it may.
                Some(code) if code.is_transient() => Known::Nothing,
                Some(code) => Known::Rejected(code),
            };
        }
        peer.vacate(domain);
        if let Some(code) = failure {
            self.answer(id, None, Packet::ReadReject(ReadReject { request, code }));
        }
        self.next_waiting(id, domain)
    }

    /// The next read of this peer that has a channel: of the domain that just
    /// freed one first, of any other if only the peer's total was the limit.
    fn next_waiting(&mut self, id: PeerId, domain: Domain) -> Option<Start> {
        let (channel_limit, total_limit) = (self.config.read_channels, self.config.served_reads);
        let peer = self.peers.get_mut(id.index())?.as_mut()?;
        loop {
            let may_start =
                |channels: &Channels| channels.busy < channel_limit && !channels.waiting.is_empty();
            let at = (peer.busy < total_limit).then(|| {
                let same = peer
                    .channels
                    .iter()
                    .position(|channels| channels.domain == domain && may_start(channels));
                same.or_else(|| peer.channels.iter().position(may_start))
            })??;
            let slot = peer.channels[at].waiting.pop_front(&mut peer.pending_chain)?;
            peer.free.push(slot);
            let request = peer.pending[slot as usize].take()?;
            let place = (request.request.0 % READ_WINDOW) as usize;
            // Given up by its requester while it waited.
            if peer.window[place] != (request.request, Known::Waiting)
                || request.request.after(peer.watermark).is_none()
            {
                peer.tidy(request.domain);
                continue;
            }
            peer.window[place].1 = Known::Running;
            peer.occupy(request.domain);
            self.counters.reads_served += 1;
            return Some(start(id, &request));
        }
    }

    pub(crate) fn poll_reply(&mut self) -> Option<Reply> {
        self.replies.pop_front()
    }

    /// As after 2³² reads, less a few.
    #[cfg(test)]
    pub(crate) fn age(&mut self, id: PeerId) {
        let Some(peer) = self.peers[id.index()].as_mut() else {
            return;
        };
        peer.watermark = RequestId(u32::MAX - 5);
    }

    /// Whether no read is being served or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.replies.is_empty()
            && self.peers.iter().flatten().all(|peer| {
                peer.busy == 0 && peer.channels.is_empty() && peer.free.len() == peer.pending.len()
            })
    }
}

impl ServedPeer {
    /// The entry of a domain, made if there is none. There are as many entries
    /// as domains with reads open, few enough to look through.
    fn channels_of(&mut self, domain: Domain) -> usize {
        match self.channels.iter().position(|channels| channels.domain == domain) {
            Some(at) => at,
            None => {
                self.channels.push(Channels { domain, busy: 0, waiting: List::default() });
                self.channels.len() - 1
            }
        }
    }

    fn occupy(&mut self, domain: Domain) {
        let at = self.channels_of(domain);
        self.channels[at].busy += 1;
        self.busy += 1;
    }

    fn vacate(&mut self, domain: Domain) {
        let at = self.channels_of(domain);
        self.channels[at].busy = self.channels[at].busy.saturating_sub(1);
        self.busy = self.busy.saturating_sub(1);
        self.tidy(domain);
    }

    /// Forget a domain without reads.
    fn tidy(&mut self, domain: Domain) {
        self.channels.retain(|channels| {
            channels.domain != domain || channels.busy > 0 || !channels.waiting.is_empty()
        });
    }
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
