//! The bounds and times of an engine, with the documents' numbers as defaults.

use super::congestion::CongestionConfig;
use super::time::Time;
use super::transfer::Class;
use tombolo_wire::{GRANULE_BYTES, MAX_BLOCK_BYTES, READ_WINDOW};

/// How long an unanswered block waits before it is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retransmission {
    /// Always this long: QOS §4.2 measures with 20 ms.
    Fixed {
        /// The timeout.
        timeout_ns: u64,
    },
    /// This many ticks of a free-running clock (QOS §4.3). The first tick may come at once, so the timeout may
    /// be shorter by up to one tick.
    Ticks {
        /// Time between two ticks.
        tick_ns: u64,
        /// Number of ticks.
        ticks: u32,
    },
    /// Derived from the round trips measured to the peer (after RFC 6298), and doubled with each timeout in a
    /// row.
    Measured {
        /// The timeout before the first measurement.
        initial_ns: u64,
        /// The shortest timeout. Below the pauses that an ordinary scheduler makes (about a millisecond), a
        /// timer fires for nothing.
        min_ns: u64,
        /// The longest timeout.
        max_ns: u64,
    },
}

impl Retransmission {
    /// When the timeout of something sent at `sent_at` is over.
    pub(crate) fn due(self, sent_at: Time, timeout_ns: u64) -> Time {
        let counted_from = match self {
            Self::Ticks { tick_ns, .. } => Time(sent_at.0 - sent_at.0 % tick_ns.max(1)),
            Self::Fixed { .. } | Self::Measured { .. } => sent_at,
        };
        counted_from.after_ns(timeout_ns)
    }
}

/// Bounds and times of one engine. Out-of-range values are clamped by
/// [`crate::rdma::Engine::new`], not refused: a configuration never panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Slots of the table of pending transactions (QOS §3.2.4).
    pub transactions: u16,
    /// Slots that a peer's engine may use towards this one. This should be at least the peer's `transactions`:
    /// blocks in slots above the limit are dropped. Memory is allocated as slots come into use.
    pub peer_transactions: u16,
    /// Transfers posted and not yet completed (QOS §3.2.1: 1024 channels).
    pub transfers: u32,
    /// Length of a block; a power of two from 256 to 16 KiB (QOS §3.2.2).
    pub block_bytes: u32,
    /// Blocks of one transfer that may be unacknowledged (QOS §3.2.3: 2).
    pub outstanding_blocks: u32,
    /// As `outstanding_blocks`, for transfers of the medium and low classes while small transfers come: a small
    /// transfer waits for the blocks that are on the wire already.
    pub throttled_outstanding_blocks: u32,
    /// Length of the blocks of medium and low transfers while small transfers come. A power of two from 256 to
    /// `block_bytes`.
    pub throttled_block_bytes: u32,
    /// Allows more than `throttled_outstanding_blocks` on a path with a long round trip: as many as the
    /// shortest round trip holds, at one block in this time. Blocks that are spread over a long path do not
    /// delay a small transfer. 0: never more.
    pub throttled_block_ns: u64,
    /// How long after a small transfer another one is expected.
    pub small_transfer_memory_ns: u64,
    /// Blocks that a transfer issues before the next transfer of its class has its turn. A block longer than
    /// `block_bytes` counts for several.
    pub turn_blocks: u32,
    /// A class with work is served at the latest after this many blocks of higher classes (plus one, if two
    /// classes come due together). A block that is to be sent again is sent at the latest after this many
    /// packets and blocks that precede it.
    pub starvation_blocks: u32,
    /// Most bytes that a transfer of the high class has left to issue.
    pub high_max_bytes: u32,
    /// Most bytes that a transfer of the medium class has left to issue.
    pub medium_max_bytes: u32,
    /// Whether a small transfer skips the queue if no other of its class waits (QOS §3.3).
    pub bypass: bool,
    /// Whether the notification of a transfer of several blocks is sent right behind the last block, with a
    /// list of the earlier blocks that it has to be written after. Otherwise it is sent when those blocks are
    /// acknowledged (QOS §3.2.6), a round trip later.
    pub early_notification: bool,
    /// When an unanswered block is sent again.
    pub retransmission: Retransmission,
    /// Whether a block is sent again before its timeout, when a later block was acknowledged and one and a
    /// quarter round trips have passed. A block that was overtaken eight times in a row waits for the timeout.
    pub fast_retransmit: bool,
    /// Whether the latest block or read request is sent again, once, after two round trips without an answer:
    /// nothing follows whose answer could show that it is lost. Applies to [`Retransmission::Measured`] only.
    pub tail_probe: bool,
    /// Least time beyond a round trip before an overtaken block counts as lost, or the latest block is sent
    /// again as a probe. Reordering and scheduling alone may cost this long.
    pub reorder_ns: u64,
    /// Give a peer up after this long without any packet from it.
    pub give_up_ns: u64,
    /// Give a block or a read request up after this many unanswered attempts in a row,
    /// whether they timed out or were overtaken.
    pub max_attempts: u32,
    /// Give a block or a read up that was refused with transient codes (1, 4, 7) for this long, or a block that
    /// the receiver has not placed for this long.
    pub refused_give_up_ns: u64,
    /// Delay before a block or read that was refused with *destination buffer full* (7) is sent again.
    pub full_delay_ns: u64,
    /// A block that was refused so for this long is sent again less often.
    pub full_for_long_ns: u64,
    /// Delay before such a block is sent again.
    pub full_for_long_delay_ns: u64,
    /// Delay before a block that was refused with *slave error* (1), or whose source page is absent, is sent
    /// again if no resume comes (FAULT ch. 4 measures 1 to 25 ms).
    pub fault_pause_ns: u64,
    /// How long the receiver may place a block before it is asked whether the block is placed. The question is
    /// of use only if the acknowledgement was lost.
    pub placing_probe_ns: u64,
    /// Congestion control; `None` on a link that cannot be overrun.
    pub congestion: Option<CongestionConfig>,
    /// Read requests to one peer that may be open, at most [`tombolo_wire::READ_WINDOW`]. Of these, and of
    /// `read_channels`, `served_reads` and `pending_reads`, a quarter is kept free of lower classes for each
    /// class above them.
    pub outstanding_reads: u32,
    /// Least time before an unanswered read request is repeated: the target may have other requests to serve
    /// first.
    pub read_retry_ns: u64,
    /// Reads served at once, per peer and domain (QOS §3.2.1: 32 channels).
    pub read_channels: u32,
    /// Reads served at once per peer, over all domains.
    pub served_reads: u32,
    /// Read requests of a peer that wait for a channel (QOS §3.6.2).
    pub pending_reads: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            transactions: 1024,
            peer_transactions: 1024,
            transfers: 1024,
            block_bytes: MAX_BLOCK_BYTES,
            outstanding_blocks: 2,
            throttled_outstanding_blocks: 2,
            throttled_block_bytes: MAX_BLOCK_BYTES,
            throttled_block_ns: 0,
            small_transfer_memory_ns: 0,
            turn_blocks: 2,
            // A lower class gets at least one block in seventeen. A bound, not a measurement.
            starvation_blocks: 16,
            high_max_bytes: 16 * 1024,
            medium_max_bytes: 512 * 1024,
            bypass: true,
            early_notification: true,
            retransmission: Retransmission::Measured {
                // QOS §4.2 measures with 20 ms.
                initial_ns: 20_000_000,
                // Twice the pauses that an ordinary scheduler makes.
                min_ns: 2_000_000,
                // A fifth of `give_up_ns`, so that a silent peer is asked again before it is given up.
                max_ns: 1_000_000_000,
            },
            fast_retransmit: true,
            tail_probe: true,
            // Waking a thread on another processor takes 20 to 50 us (decision 3): twice that.
            reorder_ns: 100_000,
            // Five times the longest timeout.
            give_up_ns: 5_000_000_000,
            // At a loss of 80 %, 64 attempts all fail once in 1.6 million blocks (0.8^64).
            max_attempts: 64,
            // A bound, not a measurement: a receiver that is stopped or swaps for seconds is not given up.
            refused_give_up_ns: 30_000_000_000,
            // A bound, not a measurement: 2000 attempts a second for a block that finds no room.
            full_delay_ns: 500_000,
            // If room comes at all, it comes sooner than this. After that, 40 attempts a second.
            full_for_long_ns: 250_000_000,
            full_for_long_delay_ns: 25_000_000,
            // The shortest of the pauses of 1 to 25 ms that FAULT ch. 4 measures.
            fault_pause_ns: 1_000_000,
            // A bound, not a measurement: a copy of 16 KiB takes microseconds, one that takes 5 ms waits for a page.
            placing_probe_ns: 5_000_000,
            congestion: Some(CongestionConfig::default()),
            // Half of the 1024 transfers, so that reads alone do not fill the table; `served_reads` and `pending_reads`
            // bound what one peer can ask for by the same number.
            outstanding_reads: 512,
            // Twice the shortest timeout of a block: a request is answered only when its data comes.
            read_retry_ns: 4_000_000,
            read_channels: 32,
            served_reads: 512,
            pending_reads: 512,
        }
    }
}

/// Longest block to the node itself, to which no packets go.
pub(crate) const MAX_LOOPBACK_BLOCK_BYTES: u32 = 1 << 20;

/// The largest power of two that is at most `bytes`, within one granule and `most`.
pub(crate) fn power_of_two(bytes: u32, most: u32) -> u32 {
    match bytes.clamp(GRANULE_BYTES, most) {
        power if power.is_power_of_two() => power,
        other => other.next_power_of_two() / 2,
    }
}

impl Config {
    /// The class of a transfer by the bytes it still has to move (QOS §3.3).
    pub(crate) fn class_of(&self, left_bytes: u32) -> Class {
        if left_bytes <= self.high_max_bytes {
            Class::High
        } else if left_bytes <= self.medium_max_bytes {
            Class::Medium
        } else {
            Class::Low
        }
    }

    /// The nearest configuration that can work.
    pub(crate) fn clamped(mut self) -> Self {
        if let Retransmission::Ticks { tick_ns, ticks } = &mut self.retransmission {
            (*tick_ns, *ticks) = ((*tick_ns).max(1), (*ticks).max(1));
        }
        self.transactions = self.transactions.max(1);
        self.peer_transactions = self.peer_transactions.max(1);
        self.transfers = self.transfers.clamp(1, 1 << 20);
        self.block_bytes = power_of_two(self.block_bytes, MAX_BLOCK_BYTES);
        self.throttled_block_bytes = power_of_two(self.throttled_block_bytes, self.block_bytes);
        self.outstanding_blocks = self.outstanding_blocks.max(1);
        self.throttled_outstanding_blocks =
            self.throttled_outstanding_blocks.clamp(1, self.outstanding_blocks);
        self.turn_blocks = self.turn_blocks.max(1);
        self.starvation_blocks = self.starvation_blocks.max(1);
        self.outstanding_reads = self.outstanding_reads.clamp(1, READ_WINDOW);
        self.read_channels = self.read_channels.max(1);
        self.served_reads = self.served_reads.clamp(1, 1 << 16);
        self.pending_reads = self.pending_reads.min(1 << 16);
        self.max_attempts = self.max_attempts.max(1);
        self
    }
}
