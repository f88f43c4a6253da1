//! What the engine asks its caller to do.

use super::transfer::{PathId, PeerId, TransferError, TransferId};
use crate::iommu::FaultSource;
use tombolo_wire::{
    Asker, AtomicOperation, Attempt, DataHeader, Domain, GRANULE_BYTES, Generation, Notification,
    NotificationMark, Packet, RequestId, TransactionId,
};

/// One thing to do, from [`crate::rdma::Engine::poll`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read the block's bytes from memory and send them in packets. If its source cannot be read, call
    /// `source_refused`.
    SendBlock(Block),
    /// Send this packet; it has no payload.
    Send {
        /// The peer to send it to.
        peer: PeerId,
        /// The path to send it by.
        path: PathId,
        /// The packet, see [`Packet::emit`].
        packet: Packet<'static>,
    },
    /// Write two words to memory, the first before the second, then call `notified` or `notification_refused`.
    WriteNotification(NotificationWrite),
    /// A transfer has ended: tell the program.
    Complete(Completion),
}

/// A block to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The peer to send it to.
    pub peer: PeerId,
    /// The path to send it by.
    pub path: PathId,
    /// Domain of the memory at the peer. In an answer to a read: the domain that the read names.
    pub domain: Domain,
    /// Domain of the memory here.
    pub own_domain: Domain,
    /// Address of its bytes here.
    pub source_address: u64,
    /// Address at the peer that its bytes go to.
    pub destination_address: u64,
    /// Its length.
    pub length_bytes: u32,
    /// The transaction slot that waits for the answer.
    pub transaction: TransactionId,
    /// Distinguishes successive blocks in that slot.
    pub generation: Generation,
    /// Distinguishes the block's transmissions.
    pub attempt: Attempt,
    /// The peer's read that it answers, if any.
    pub in_reply_to: Option<RequestId>,
    /// The node on whose behalf it is written.
    pub asker: Asker,
    /// The number given when its transfer was posted. Meaningless if the block answers a read.
    pub user: u64,
    /// Its notification.
    pub notification: BlockNotification,
    pub(crate) session: u32,
}

/// How the notification of a block travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockNotification {
    /// The block has none: it is not its transfer's last, or the transfer has no notification.
    None,
    /// Sent separately: behind the block, with a list of the earlier blocks that it has to be written after, or
    /// when the other blocks of the transfer are acknowledged.
    Later,
    /// In the last packet of the block.
    Now(Notification),
}

impl Block {
    /// Headers of the packets that carry this block. A packet has at most `max_payload_bytes` of the block,
    /// rounded down to whole granules of 256 bytes, but at least one granule. Its payload is the
    /// `header.payload_bytes` bytes at `source_address + header.offset_bytes`. An empty block is one packet
    /// without payload.
    #[must_use]
    pub fn packets(&self, max_payload_bytes: u32) -> Packets {
        let payload_bytes = (max_payload_bytes / GRANULE_BYTES * GRANULE_BYTES).max(GRANULE_BYTES);
        Packets { block: *self, payload_bytes, offset_bytes: 0, over: false }
    }
}

/// Iterator over the packet headers of a block, from [`Block::packets`].
#[derive(Clone, Debug)]
pub struct Packets {
    block: Block,
    payload_bytes: u32,
    offset_bytes: u32,
    over: bool,
}

impl Iterator for Packets {
    type Item = DataHeader;

    fn next(&mut self) -> Option<DataHeader> {
        if self.over {
            return None;
        }
        let block = &self.block;
        let payload_bytes = self.payload_bytes.min(block.length_bytes - self.offset_bytes);
        let offset_bytes = self.offset_bytes;
        self.offset_bytes += payload_bytes;
        self.over = self.offset_bytes == block.length_bytes;
        Some(DataHeader {
            domain: block.domain,
            transaction: block.transaction,
            generation: block.generation,
            attempt: block.attempt,
            block_address: block.destination_address,
            block_bytes: block.length_bytes,
            offset_bytes,
            payload_bytes,
            in_reply_to: block.in_reply_to,
            asker: block.asker,
            notification: match block.notification {
                BlockNotification::None => NotificationMark::None,
                // In the last packet only: it is the one most likely to
                // complete the block, and 24 bytes in each would be waste.
                BlockNotification::Now(words) if self.over => NotificationMark::Here(words),
                BlockNotification::Now(_) | BlockNotification::Later => NotificationMark::Elsewhere,
            },
        })
    }
}

/// The two words of a notification, to be written to memory. Hand this back when they are written or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the sender waits until this is handed back to `notified` or `notification_refused`"]
pub struct NotificationWrite {
    /// Domain of the memory here.
    pub domain: Domain,
    /// The words and their address.
    pub words: Notification,
    /// The peer that sends the notification.
    pub peer: PeerId,
    /// The node on whose behalf that peer writes.
    pub asker: Asker,
    /// This node's read that it ends, if any.
    pub read: Option<TransferId>,
    /// The number given when that read was posted.
    pub user: u64,
    pub(crate) epoch: u32,
    pub(crate) slot: u16,
    pub(crate) generation: Generation,
}

/// Bytes of a packet, to be copied to memory. Hand this back exactly once, whatever happens: until then its
/// block cannot end, and a read that it answers cannot complete, even if the read has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the block waits until this is handed back to `placed` or `refused`"]
pub struct Placement {
    /// Domain of the memory here.
    pub domain: Domain,
    /// Where the packet's payload goes.
    pub address: u64,
    /// How many bytes.
    pub length_bytes: u32,
    /// The peer that sends them.
    pub peer: PeerId,
    /// The node on whose behalf the peer sends them.
    pub asker: Asker,
    /// This node's read that they answer, if any.
    pub read: Option<TransferId>,
    /// The number given when that read was posted.
    pub user: u64,
    /// Address and length of the block that the bytes are part of.
    pub block: (u64, u32),
    pub(crate) epoch: u32,
    pub(crate) slot: u16,
    pub(crate) generation: Generation,
    pub(crate) attempt: Attempt,
    pub(crate) mask: u64,
}

/// Identifies a block that is being received. It is equal for all packets of the block, also for those that are
/// sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId {
    pub(crate) epoch: u32,
    pub(crate) slot: u16,
    pub(crate) generation: Generation,
}

impl Placement {
    /// The block that the bytes are part of.
    #[must_use]
    pub fn block_id(&self) -> BlockId {
        BlockId { epoch: self.epoch, slot: self.slot, generation: self.generation }
    }

    /// Identifies the block in fault records.
    #[must_use]
    pub fn fault_source(&self) -> FaultSource {
        FaultSource { node: self.peer.0, transaction: self.slot, sequence: self.generation.0 }
    }
}

impl NotificationWrite {
    /// Identifies the block in fault records.
    #[must_use]
    pub fn fault_source(&self) -> FaultSource {
        FaultSource { node: self.peer.0, transaction: self.slot, sequence: self.generation.0 }
    }
}

impl Block {
    /// Identifies the block in fault records.
    #[must_use]
    pub fn fault_source(&self) -> FaultSource {
        FaultSource { node: self.peer.0, transaction: self.transaction.0, sequence: self.generation.0 }
    }
}

/// An atomic operation, to be carried out on a word. Hand it back exactly once, whatever happens: to `operated`
/// with the word's previous value, or its placement to `refused`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "its sender waits until this is handed back to `operated` or `refused`"]
pub struct Operation {
    /// The word's address and length, and the peer that asks.
    pub placement: Placement,
    /// What to do to the word.
    pub operation: AtomicOperation,
}

/// What to do with a packet that was handed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a placement must be carried out and handed back"]
pub enum Verdict {
    /// Copy the payload to memory, then hand the placement back.
    Place(Placement),
    /// Change a word, then hand the operation back.
    Operate(Operation),
    /// Nothing to copy; the packet did its work.
    Taken,
    /// Nothing to copy; the packet was dropped.
    Dropped(DropReason),
}

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Its bytes were received already, or its block was refused for good. The block's answer, if there is one
    /// yet, is sent again.
    Duplicate,
    /// It belongs to an earlier block of its slot.
    Stale,
    /// Bytes of the slot's previous block are still being copied. The sender is told to try again later.
    Busy,
    /// Its payload is damaged. The block is refused with code 4.
    Damaged,
    /// It answers a read that is not open, or lies outside the read's range. The block is refused.
    Unasked,
    /// It contradicts earlier packets of its block, or its slot does not exist.
    Bad,
    /// The peer is not connected.
    UnknownPeer,
}

/// State of one path to a peer, as the engine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// Whether its link is up.
    pub is_up: bool,
    /// False after something sent by this path was not answered for a whole timeout, until something sent by it
    /// is answered.
    pub answers: bool,
    /// Bytes that may be under way by this path.
    pub window_bytes: u64,
    /// Bytes that are under way by this path.
    pub in_flight_bytes: u64,
    /// Smoothed round trip, if one was measured.
    pub round_trip_ns: Option<u64>,
    /// Blocks sent by this path, retransmissions included.
    pub blocks_sent: u64,
    /// Bytes of those blocks.
    pub bytes_sent: u64,
}

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The transfer that has ended.
    pub transfer: TransferId,
    /// The number given when it was posted.
    pub user: u64,
    /// The peer at the other end.
    pub peer: PeerId,
    /// How it ended.
    pub status: Result<(), TransferError>,
    /// For an atomic operation that succeeded: the word before it.
    pub before: u64,
}
