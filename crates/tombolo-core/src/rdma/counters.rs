//! What an engine has done, in plain numbers.

use super::transfer::Class;
use tombolo_wire::NackCode;

/// Counters since the engine was made; they only grow (and wrap).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transfers taken.
    pub transfers_posted: u64,
    /// Transfers completed with success.
    pub transfers_done: u64,
    /// Transfers completed with an error.
    pub transfers_failed: u64,
    /// Small transfers that skipped the queue.
    pub bypasses: u64,
    /// Blocks handed out to be sent, the repeated ones too.
    pub blocks_sent: u64,
    /// Bytes of those blocks.
    pub block_bytes_sent: u64,
    /// First transmissions by class: high, medium, low.
    pub blocks_by_class: [u64; Class::COUNT],
    /// Blocks a class got because it had waited too long.
    pub starvation_relief: u64,
    /// Blocks sent again, for any reason.
    pub blocks_retransmitted: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Blocks taken for lost because later ones were acknowledged.
    pub fast_retransmits: u64,
    /// Blocks and read requests sent again as probes: nothing showed that they were lost, and nothing later was
    /// sent whose answer could show it.
    pub tail_probes: u64,
    /// Blocks and read requests given up after too many attempts, though the peer was there.
    pub given_up: u64,
    /// Blocks that were under way by a link when it was lost.
    pub blocks_moved: u64,
    /// Blocks of failed transfers that were closed by an empty block.
    pub blocks_closed: u64,
    /// Failed transfers that were reported although the peer had not confirmed that no byte of them may still
    /// come.
    pub closed_in_vain: u64,
    /// Atomic operations sent, the repeated ones too.
    pub atomics_sent: u64,
    /// Atomic operations of peers, handed out to be carried out.
    pub atomics: u64,
    /// Notifications sent apart from their block.
    pub notifies_sent: u64,
    /// Receipts received: answers that a block has arrived and is still being placed.
    pub receipts: u64,
    /// Receipts sent: answers that a block has arrived here and is still being placed.
    pub receipts_sent: u64,
    /// Packets sent to ask whether a block is placed that the receiver has.
    pub probes_sent: u64,
    /// Acknowledgements that changed something.
    pub acks: u64,
    /// Answers to a block or read that is over.
    pub stale_answers: u64,
    /// Negative acknowledgements received, by code (0 and 6 stay 0).
    pub nacks_received: [u64; 8],
    /// Negative acknowledgements sent, by code.
    pub nacks_sent: [u64; 8],
    /// Refusals for absent pages that were not sent, because the sender had been told of absent pages of the
    /// block already.
    pub nacks_spared: u64,
    /// Resumes obeyed.
    pub resumes: u64,
    /// Blocks sent again because the caller said that their source page is there.
    pub sources_ready: u64,
    /// Transitions that the state table does not have: must stay 0.
    pub illegal_transitions: u64,
    /// Data packets handed out to be placed.
    pub packets_placed: u64,
    /// Data packets of a block or granule that was already there.
    pub duplicates: u64,
    /// Packets of an older block than the slot's newest.
    pub stale_packets: u64,
    /// Packets dropped because bytes of the slot's previous block were still being copied.
    pub busy_packets: u64,
    /// Packets with an intact header and a damaged payload.
    pub damaged_packets: u64,
    /// Packets that contradict earlier ones of their block, name a slot that
    /// does not exist or come from an unknown peer.
    pub bad_packets: u64,
    /// Blocks received whole.
    pub blocks_received: u64,
    /// Notifications handed out to be written.
    pub notifications: u64,
    /// Read requests sent, the repeated ones too.
    pub reads_sent: u64,
    /// Read requests sent again.
    pub reads_retransmitted: u64,
    /// Reads served to peers.
    pub reads_served: u64,
    /// Read requests that had to wait for a channel.
    pub reads_queued: u64,
    /// Read requests turned away for lack of room.
    pub reads_turned_away: u64,
    /// Repeated read requests.
    pub read_duplicates: u64,
}

impl Counters {
    /// Every counter by name.
    #[must_use]
    pub fn named(&self) -> Vec<(String, u64)> {
        // Destructured, so that the compiler reports a counter that is missing here.
        let Self {
            transfers_posted,
            transfers_done,
            transfers_failed,
            bypasses,
            blocks_sent,
            block_bytes_sent,
            blocks_by_class: [blocks_high, blocks_medium, blocks_low],
            starvation_relief,
            blocks_retransmitted,
            blocks_moved,
            blocks_closed,
            closed_in_vain,
            timeouts,
            fast_retransmits,
            tail_probes,
            given_up,
            atomics_sent,
            atomics,
            notifies_sent,
            receipts,
            receipts_sent,
            probes_sent,
            acks,
            stale_answers,
            nacks_received,
            nacks_sent,
            nacks_spared,
            resumes,
            sources_ready,
            illegal_transitions,
            packets_placed,
            duplicates,
            stale_packets,
            busy_packets,
            damaged_packets,
            bad_packets,
            blocks_received,
            notifications,
            reads_sent,
            reads_retransmitted,
            reads_served,
            reads_queued,
            reads_turned_away,
            read_duplicates,
        } = *self;
        macro_rules! named {
        ($($name:ident),* $(,)?) => { vec![$((stringify!($name).to_owned(), $name)),*] };
    }
        let mut named = named![
            transfers_posted,
            transfers_done,
            transfers_failed,
            bypasses,
            blocks_sent,
            block_bytes_sent,
            blocks_high,
            blocks_medium,
            blocks_low,
            starvation_relief,
            blocks_retransmitted,
            blocks_moved,
            blocks_closed,
            closed_in_vain,
            timeouts,
            fast_retransmits,
            tail_probes,
            given_up,
            atomics_sent,
            atomics,
            notifies_sent,
            receipts,
            receipts_sent,
            probes_sent,
            acks,
            stale_answers,
            nacks_spared,
            resumes,
            sources_ready,
            illegal_transitions,
            packets_placed,
            duplicates,
            stale_packets,
            busy_packets,
            damaged_packets,
            bad_packets,
            blocks_received,
            notifications,
            reads_sent,
            reads_retransmitted,
            reads_served,
            reads_queued,
            reads_turned_away,
            read_duplicates,
        ];
        for (way, counts) in [("sent", nacks_sent), ("received", nacks_received)] {
            for code in NackCode::ALL {
                let count = counts.get(code as usize).copied().unwrap_or(0);
                named.push((format!("nacks_{way}_{}", code.name()), count));
            }
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_a_refusal_is_counted_both_ways() {
        let mut counters = Counters::default();
        counters.nacks_sent[5] = 7;
        counters.nacks_received[1] = 8;
        let named = counters.named();
        let nacks: Vec<_> = named.iter().filter(|(name, _)| name.starts_with("nacks_")).collect();
        assert_eq!(nacks.len(), 13);
        let count = |name: &str| named.iter().find(|(known, _)| known == name).map(|(_, count)| *count);
        assert_eq!(count("nacks_sent_domain_mismatch"), Some(7));
        assert_eq!(count("nacks_received_slave_error"), Some(8));
    }
}
