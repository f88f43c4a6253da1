//! Names for the engine's counters, as status displays show them.

use tombolo_core::rdma::Counters;

/// Every counter of an engine by name.
pub fn engine(counters: &Counters) -> Vec<(String, u64)> {
    let [high, medium, low] = counters.blocks_by_class;
    let mut named = vec![
        ("transfers_posted", counters.transfers_posted),
        ("transfers_done", counters.transfers_done),
        ("transfers_failed", counters.transfers_failed),
        ("bypasses", counters.bypasses),
        ("blocks_sent", counters.blocks_sent),
        ("block_bytes_sent", counters.block_bytes_sent),
        ("blocks_high", high),
        ("blocks_medium", medium),
        ("blocks_low", low),
        ("starvation_relief", counters.starvation_relief),
        ("blocks_retransmitted", counters.blocks_retransmitted),
        ("timeouts", counters.timeouts),
        ("fast_retransmits", counters.fast_retransmits),
        ("atomics_sent", counters.atomics_sent),
        ("atomics", counters.atomics),
        ("acks", counters.acks),
        ("stale_answers", counters.stale_answers),
        ("illegal_transitions", counters.illegal_transitions),
        ("packets_placed", counters.packets_placed),
        ("duplicates", counters.duplicates),
        ("stale_packets", counters.stale_packets),
        ("damaged_packets", counters.damaged_packets),
        ("bad_packets", counters.bad_packets),
        ("blocks_received", counters.blocks_received),
        ("reads_sent", counters.reads_sent),
        ("reads_retransmitted", counters.reads_retransmitted),
        ("reads_served", counters.reads_served),
        ("reads_queued", counters.reads_queued),
        ("reads_turned_away", counters.reads_turned_away),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect::<Vec<_>>();
    // Codes of QOS Table 3.2.
    for code in [1, 2, 3, 4, 5, 7] {
        named.push((format!("nacks_received_{code}"), counters.nacks_received[code]));
        named.push((format!("nacks_sent_{code}"), counters.nacks_sent[code]));
    }
    named
}
