//! The send block: it reads blocks from memory and sends them in packets, a packet of each of several blocks in turn.

use crate::kernel::{Rate, Span, Time};
use std::collections::VecDeque;
use tombolo_core::rdma::{Block, Packets};
use tombolo_wire::DataHeader;

#[derive(Debug)]
struct Sending {
    block: Block,
    packets: std::iter::Peekable<Packets>,
}

/// A packet to be sent now.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) block: Block,
    pub(super) header: DataHeader,
    /// Whether it is the last of its block.
    pub(super) is_last: bool,
}

/// The send block.
#[derive(Debug)]
pub(super) struct Sender {
    packet_bytes: u32,
    interleaved: usize,
    rate: Option<Rate>,
    beside_bytes: u32,
    waiting: VecDeque<Block>,
    active: VecDeque<Sending>,
    /// When the next packet may leave.
    free_at: Time,
    busy: Span,
}

impl Sender {
    /// `rate`: how fast it reads and sends, with so many bytes beside those of a packet.
    pub(super) fn new(packet_bytes: u32, interleaved: usize, rate: Option<Rate>, beside_bytes: u32) -> Self {
        Self {
            packet_bytes,
            interleaved: interleaved.max(1),
            rate,
            beside_bytes,
            waiting: VecDeque::new(),
            active: VecDeque::new(),
            free_at: Time::ZERO,
            busy: Span::ZERO,
        }
    }

    /// A block is to be sent.
    pub(super) fn push(&mut self, block: Block) {
        self.waiting.push_back(block);
    }

    /// When the next packet leaves; `None`: nothing is to be sent.
    pub(super) fn next_at(&self, now: Time) -> Option<Time> {
        let has_work = !self.active.is_empty() || !self.waiting.is_empty();
        has_work.then(|| self.free_at.max(now))
    }

    /// The next packet, if one may leave now.
    pub(super) fn next(&mut self, now: Time) -> Option<Outgoing> {
        if self.free_at > now {
            return None;
        }
        while self.active.len() < self.interleaved
            && let Some(block) = self.waiting.pop_front()
        {
            self.active.push_back(Sending { block, packets: block.packets(self.packet_bytes).peekable() });
        }
        let mut sending = self.active.pop_front()?;
        let block = sending.block;
        let header = sending.packets.next()?;
        let is_last = sending.packets.peek().is_none();
        if !is_last {
            self.active.push_back(sending);
        }
        let bytes = u64::from(header.payload_bytes) + u64::from(self.beside_bytes);
        let span = self.rate.map_or(Span::ZERO, |rate| rate.span_of(bytes));
        self.free_at = now.after(span);
        self.busy = self.busy.plus(span);
        Some(Outgoing { block, header, is_last })
    }

    /// The rest of this transmission is not sent.
    pub(super) fn abort(&mut self, block: &Block) {
        self.active.retain(|sending| sending.block != *block);
    }

    pub(super) fn busy(&self) -> Span {
        self.busy
    }
}
