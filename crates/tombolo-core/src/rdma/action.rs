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
    /// Read the block's bytes from memory and send them in packets. If its
    /// source cannot be read, say so with `source_refused`.
    SendBlock(Block),
    /// Send this packet; it has no payload.
    Send {
        /// To whom.
        peer: PeerId,
        /// By which link.
        path: PathId,
        /// What; see [`Packet::emit`].
        packet: Packet<'static>,
    },
    /// Write two words to memory, the first before the last, then call
    /// `notified` or `notification_refused`.
    WriteNotification(NotificationWrite),
    /// A transfer is over; tell the program.
    Complete(Completion),
}

/// A block to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// To whom.
    pub peer: PeerId,
    /// By which link.
    pub path: PathId,
    /// Whose memory at the peer.
    pub domain: Domain,
    /// Whose memory here.
    pub own_domain: Domain,
    /// Where the bytes are, here.
    pub source_address: u64,
    /// Where they go, at the peer.
    pub destination_address: u64,
    /// How many.
    pub length_bytes: u32,
    /// The slot that waits for the answer.
    pub transaction: TransactionId,
    /// Which block in that slot.
    pub generation: Generation,
    /// Which transmission.
    pub attempt: Attempt,
    /// The read it answers.
    pub in_reply_to: Option<RequestId>,
    /// On whose behalf it is written.
    pub asker: Asker,
    /// Given when its transfer was posted; of no meaning if it answers a read.
    pub user: u64,
    /// Its notification.
    pub notification: BlockNotification,
    pub(crate) session: u32,
}

/// How the notification of a block travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockNotification {
    /// The block has none: not the last one, or none was asked for.
    None,
    /// Apart: behind the block, with a list of those it has to come after, or when the other blocks of the
    /// transfer are acknowledged.
    Later,
    /// With the last packet of the block.
    Now(Notification),
}

impl Block {
    /// The headers of the packets this block is sent in, with at most
    /// `max_payload_bytes` of it each (rounded down to whole granules of 256
    /// bytes, and at least one). Packet `i` has the bytes at `source_address +
    /// header.offset_bytes`, `header.payload_bytes` of them. An empty block is
    /// one packet without payload.
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

/// Two words to be written. Hand it back when they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the sender waits until this is handed back to `notified` or `notification_refused`"]
pub struct NotificationWrite {
    /// Whose memory, here.
    pub domain: Domain,
    /// Where, and what.
    pub words: Notification,
    /// Whose transfer it ends.
    pub peer: PeerId,
    /// On whose behalf that peer writes.
    pub asker: Asker,
    /// The own read it ends, if any.
    pub read: Option<TransferId>,
    /// Given when that read was posted.
    pub user: u64,
    pub(crate) epoch: u32,
    pub(crate) slot: u16,
    pub(crate) generation: Generation,
}

/// Bytes to be placed. Hand it back, once, whatever happens: until then its
/// block cannot end and a failed read of it cannot complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the block waits until this is handed back to `placed` or `refused`"]
pub struct Placement {
    /// Whose memory, here.
    pub domain: Domain,
    /// Where the packet's payload goes.
    pub address: u64,
    /// How many bytes.
    pub length_bytes: u32,
    /// Who sends them.
    pub peer: PeerId,
    /// On whose behalf.
    pub asker: Asker,
    /// The own read they answer, if any.
    pub read: Option<TransferId>,
    /// Given when that read was posted.
    pub user: u64,
    /// Where its block goes, and how long that is.
    pub block: (u64, u32),
    pub(crate) epoch: u32,
    pub(crate) slot: u16,
    pub(crate) generation: Generation,
    pub(crate) attempt: Attempt,
    pub(crate) mask: u64,
}

/// A block that comes in parts. Equal for the parts of one alone, also where they are sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId {
    pub(crate) epoch: u32,
    pub(crate) slot: u16,
    pub(crate) generation: Generation,
}

impl Placement {
    /// Its block.
    #[must_use]
    pub fn block_id(&self) -> BlockId {
        BlockId { epoch: self.epoch, slot: self.slot, generation: self.generation }
    }

    /// Whose block it is, for fault records.
    #[must_use]
    pub fn fault_source(&self) -> FaultSource {
        FaultSource { node: self.peer.0, transaction: self.slot, sequence: self.generation.0 }
    }
}

impl NotificationWrite {
    /// Whose block it is, for fault records.
    #[must_use]
    pub fn fault_source(&self) -> FaultSource {
        FaultSource { node: self.peer.0, transaction: self.slot, sequence: self.generation.0 }
    }
}

impl Block {
    /// Whose block it is, for fault records.
    #[must_use]
    pub fn fault_source(&self) -> FaultSource {
        FaultSource { node: self.peer.0, transaction: self.transaction.0, sequence: self.generation.0 }
    }
}

/// A word to be changed. Hand it back, once, whatever happens: to `operated` with what the word was,
/// or to `refused`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "its sender waits until this is handed back to `operated` or `refused`"]
pub struct Operation {
    /// Where the word is, and who asks.
    pub placement: Placement,
    /// What to do to it.
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
    /// Its bytes are here already. Its sender gets the acknowledgement again.
    Duplicate,
    /// It belongs to a block, read or slot use that is over.
    Stale,
    /// Bytes of the slot's block before are being copied this moment; the
    /// sender will try again.
    Busy,
    /// Its payload is damaged; refused with code 4.
    Damaged,
    /// It answers a read that does not exist, or outside its range; refused.
    Unasked,
    /// It contradicts the block it names, or its slot does not exist.
    Bad,
    /// The peer is not connected.
    UnknownPeer,
}

/// How one of the links to a peer is, as the engine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// It was not lost.
    pub is_up: bool,
    /// Nothing is unanswered there while other paths answer.
    pub answers: bool,
    /// Bytes that may be under way there.
    pub window_bytes: u64,
    /// Bytes that are.
    pub in_flight_bytes: u64,
    /// The smoothed round trip, once there was one.
    pub round_trip_ns: Option<u64>,
    /// Blocks sent by it, the repeated ones too.
    pub blocks_sent: u64,
    /// Bytes of those blocks.
    pub bytes_sent: u64,
}

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which.
    pub transfer: TransferId,
    /// The number given when it was posted.
    pub user: u64,
    /// Who was at the other end.
    pub peer: PeerId,
    /// How it ended.
    pub status: Result<(), TransferError>,
    /// Of an atomic operation that succeeded: the word before it.
    pub before: u64,
}
