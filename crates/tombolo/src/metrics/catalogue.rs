//! What each counter of a node and of a run is called as a metric, of which kind it is, and what it says.

use super::Labels;

/// What a metric is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// How much there is.
    Gauge,
    /// How often something has happened, or how much has come together.
    Counter,
    /// A gauge in seconds, of a counter in parts of a second; the number of parts.
    Seconds(u32),
}

/// A counter as a metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Without the prefix.
    pub name: String,
    pub labels: Labels,
    pub kind: Kind,
    pub help: &'static str,
}

use Kind::{Counter, Gauge, Seconds};

const MICROSECONDS: Kind = Seconds(1_000_000);

/// Counters of a node's status, as the status calls them.
const OF_NODES: [(&str, Kind, &str); 100] = [
    ("acks", Counter, "Acknowledgements received that changed something"),
    ("atomics", Counter, "Atomic operations carried out for other nodes"),
    ("atomics_sent", Counter, "Atomic operations sent, repeats included"),
    ("bad_packets", Counter, "Data packets that contradict their block or name an unknown slot or peer"),
    ("block_bytes_sent", Counter, "Bytes of blocks sent, repeats included"),
    ("blocks_closed", Counter, "Blocks of failed transfers that the receiver was told to forget"),
    ("blocks_moved", Counter, "Blocks that were under way on a link when it was lost"),
    ("blocks_received", Counter, "Blocks received completely"),
    ("blocks_retransmitted", Counter, "Blocks sent again"),
    ("blocks_sent", Counter, "Blocks sent, repeats included"),
    ("busy_packets", Counter, "Data packets dropped while the previous block of their slot was being copied"),
    ("bypasses", Counter, "Small transfers sent at once, ahead of the queue"),
    (
        "closed_in_vain",
        Counter,
        "Failed transfers reported before the receiver confirmed that no byte can still arrive",
    ),
    ("damaged_packets", Counter, "Data packets with a damaged payload"),
    ("duplicates", Counter, "Data packets that had arrived before"),
    ("fast_retransmits", Counter, "Blocks taken for lost because later ones were acknowledged"),
    ("faults_brought", Counter, "Absent pages brought in by the access itself"),
    ("faults_busy", Counter, "Accesses sent back because too many pages were being brought in"),
    ("faults_denied", Counter, "Accesses to memory that is not mapped or not allowed"),
    ("faults_forced", Counter, "Accesses made without looking for absent pages"),
    ("faults_pages_touched", Counter, "Absent pages brought in"),
    ("faults_paused", Counter, "Accesses whose sender was told to wait for a page"),
    ("faults_records_lost", Counter, "Fault records dropped for lack of room"),
    (
        "faults_repeats_dropped",
        Counter,
        "Fault records dropped because the page was being brought in already",
    ),
    ("faults_stalled", Counter, "Accesses that waited with their bytes for a page"),
    ("faults_timed_out", Counter, "Accesses given up because a page did not come"),
    ("faults_touches", Counter, "Times that absent pages were brought in"),
    ("faults_touches_failed", Counter, "Times that absent pages could not be brought in"),
    ("faults_withdrawn", Counter, "Accesses withdrawn before their page came"),
    ("given_up", Counter, "Blocks and read requests abandoned after too many attempts"),
    (
        "illegal_transitions",
        Counter,
        "State changes that the table of the engine forbids; anything but 0 is a defect",
    ),
    ("links_bytes_received", Counter, "Bytes of packets received over all links"),
    ("links_bytes_sent", Counter, "Bytes of packets sent over all links"),
    ("links_control_received", Counter, "Control messages received"),
    ("links_control_retransmitted", Counter, "Parts of control messages sent again"),
    ("links_control_sent", Counter, "Control messages sent"),
    ("links_discarded", Counter, "Datagrams of another protocol, or malformed"),
    ("links_forged", Counter, "Datagrams that failed authentication"),
    ("links_full", Counter, "Times that a link had no room for a packet"),
    ("links_gone", Counter, "Links that have ended"),
    ("links_packets_received", Counter, "Packets received over all links"),
    ("links_packets_sent", Counter, "Packets sent over all links"),
    ("links_pings_sent", Counter, "Keep-alive requests sent"),
    ("links_replayed", Counter, "Datagrams of a session that came a second time"),
    ("links_send_failures", Counter, "Packets that the system refused to send"),
    ("links_size_lowered", Counter, "Times that datagrams of the size in use no longer passed"),
    ("links_size_probes_sent", Counter, "Datagrams sent to find the largest size that passes"),
    ("links_size_raised", Counter, "Times that a larger size of datagrams passed"),
    ("links_up", Gauge, "Links to other nodes that can be used"),
    ("links_wakes_sent", Counter, "System calls made to wake a sleeping peer"),
    ("nacks_spared", Counter, "Refusals for absent pages not sent because the sender knew already"),
    ("notifications", Counter, "Notifications written"),
    ("notifies_sent", Counter, "Notifications sent in packets of their own"),
    ("own_accesses", Counter, "Accesses to memory that programs have registered"),
    ("packets_dropped", Counter, "Packets and control messages that could not be understood"),
    ("packets_placed", Counter, "Data packets placed in memory"),
    ("probes_sent", Counter, "Questions sent whether an arrived block is placed by now"),
    ("programs_awake", Gauge, "Processes whose doorbells the engine polls"),
    ("programs_bells_dropped", Counter, "Doorbells that named no valid descriptor"),
    ("programs_descriptors_refused", Counter, "Transfer descriptors that were refused as invalid"),
    ("programs_domains", Gauge, "Processes of programs that have a domain open"),
    ("programs_helpers_started", Counter, "Helper processes started for programs that may have no threads"),
    ("programs_mails", Counter, "Messages put into mailboxes of programs"),
    ("programs_mails_refused", Counter, "Messages refused because the mailbox does not take them"),
    ("programs_memory_being_freed_bytes", Gauge, "Memory of programs that is not free yet"),
    ("programs_memory_bytes", Gauge, "Memory allocated for programs"),
    ("programs_transfers", Counter, "Transfers of programs that have ended"),
    ("programs_transfers_failed", Counter, "Transfers of programs that have failed"),
    ("programs_windows_mapped", Counter, "Windows mapped by programs"),
    ("programs_windows_revoked", Counter, "Windows revoked by their owners"),
    ("read_duplicates", Counter, "Read requests received again"),
    ("reads_queued", Counter, "Reads of other nodes that waited for a channel"),
    ("reads_retransmitted", Counter, "Read requests sent again"),
    ("reads_sent", Counter, "Read requests sent"),
    ("reads_served", Counter, "Reads served for other nodes"),
    ("reads_turned_away", Counter, "Reads of other nodes refused for lack of room"),
    ("receipts", Counter, "Answers received that a block has arrived and is still being placed"),
    ("receipts_sent", Counter, "Answers sent that a block has arrived and is still being placed"),
    ("resumes", Counter, "Messages that restarted a block which waited for a page"),
    ("sources_ready", Counter, "Blocks sent again because their source page became present"),
    ("stale_answers", Counter, "Answers received for blocks or reads that had ended"),
    ("stale_packets", Counter, "Data packets of an earlier block of their slot"),
    ("starvation_relief", Counter, "Blocks sent because their class had waited too long"),
    ("strangers_abandoned", Counter, "Sessions of strangers abandoned before they were accepted"),
    ("strangers_accepted", Counter, "Links of strangers accepted"),
    ("strangers_begun", Counter, "Sessions begun with strangers"),
    ("strangers_discarded", Counter, "Datagrams from strangers that made no sense"),
    ("strangers_hellos", Counter, "First messages received from strangers"),
    (
        "strangers_refused",
        Counter,
        "Strangers refused: for their version, without a key, or with one that is not on the list",
    ),
    ("strangers_turned_away", Counter, "Strangers turned away because too many were on their way"),
    ("tail_probes", Counter, "Last blocks or read requests repeated before their timeout"),
    ("timeouts", Counter, "Retransmission timeouts"),
    ("transfers_done", Counter, "Transfers completed"),
    ("transfers_failed", Counter, "Transfers that ended with an error"),
    ("transfers_posted", Counter, "Transfers accepted"),
    ("first_blocks", Counter, "Blocks sent for the first time, by class"),
    ("nacks", Counter, "Negative acknowledgements, by direction and code"),
    (
        "access_faults",
        Counter,
        "Accesses to registered memory that met an absent page, by what was accessed and why the page was absent",
    ),
    ("access_stall", MICROSECONDS, "Time from a fault to the end of its access: quantiles since the start"),
    ("page_touch", MICROSECONDS, "Time to bring absent pages in: quantiles since the start"),
];

/// Counters of the pager, as reports call them.
const OF_RUNS: [(&str, &str); 30] = [
    ("faults", "Page faults served, of any kind"),
    ("zero_faults", "First touches of memory"),
    ("zero_pages", "Pages mapped for first touches"),
    ("far_faults", "Page faults on pages at lenders"),
    ("prefetched_pages", "Pages fetched because a neighbouring page was wanted"),
    ("write_faults", "First writes to pages that had been fetched for reading"),
    ("room_waits", "Page faults that waited for local memory"),
    ("eviction_waits", "Page faults that waited for the eviction of their page to end"),
    ("taken_back", "Pages that were wanted while they were being saved, and stayed"),
    ("handler_wakes", "Times that a fault handler was woken"),
    ("handler_reads", "System calls made to read page faults"),
    ("handler_switches", "Context switches of fault handlers that have ended"),
    ("pages_in", "Pages read from lenders"),
    ("pages_out", "Pages written to lenders"),
    ("clean_drops", "Pages evicted without a write because lenders had them already"),
    ("read_only_drops", "Pages evicted from mappings that are not writable"),
    ("zero_drops", "Pages evicted without a write because they held only zeroes"),
    ("evictions_undone", "Evictions given up"),
    ("moves_misreported", "Page moves that the kernel made although it reported an error"),
    ("batches", "Batches of evictions"),
    ("discarded_pages", "Pages that the program has freed"),
    ("unseen_drops", "Pages found freed that nobody had reported"),
    ("forks", "Forks followed"),
    ("fork_copies", "Pages shared by a fork and copied for a write"),
    ("shared_drops", "Pages shared by a fork that have left a process"),
    ("spaces", "Address spaces served"),
    ("lost_pages", "Pages lost with a lender"),
    ("unregistered_pages", "Pages of mappings that could not be served"),
    ("localised_pages", "Pages that became ordinary memory of the program"),
    ("without_agent", "Processes served without an agent, of which no page can be evicted"),
];

const OF_CLASSES: [&str; 3] = ["high", "medium", "low"];

/// A counter of a node's status. `None`: it is not known here.
pub fn of_node(counter: &str) -> Option<Metric> {
    let mut labels = Labels::new();
    let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut name = counter;
    if let Some(class) = counter.strip_prefix("blocks_").filter(|class| OF_CLASSES.contains(class)) {
        (name, labels) = ("first_blocks", vec![label("class", class)]);
    } else if let Some((direction, code)) = nack(counter) {
        (name, labels) = ("nacks", vec![label("direction", direction), label("code", code)]);
    } else if let Some((what, quantile)) = quantile(counter) {
        let of_touch = what == "touch";
        name = if of_touch { "page_touch" } else { "access_stall" };
        labels = if of_touch { Vec::new() } else { access(what.strip_prefix("stall_")?)? };
        labels.push(label("quantile", quantile));
    } else if let Some(found) = counter.strip_prefix("faults_").and_then(access)
        && found.len() == 2
    {
        (name, labels) = ("access_faults", found);
    }
    let (_, kind, help) = *OF_NODES.iter().find(|(known, ..)| *known == name)?;
    let name = match kind {
        Seconds(_) => format!("{name}_seconds"),
        _ => name.to_owned(),
    };
    Some(Metric { name, labels, kind, help })
}

/// The counters of the pager that are described.
#[cfg(test)]
pub fn names_of_runs() -> impl Iterator<Item = &'static str> {
    OF_RUNS.iter().map(|(name, _)| *name)
}

/// What a counter of the pager says.
pub fn of_run(counter: &str) -> Option<&'static str> {
    OF_RUNS.iter().find(|(known, _)| *known == counter).map(|(_, help)| *help)
}

/// `nacks_sent_CODE`, `nacks_received_CODE`.
fn nack(counter: &str) -> Option<(&str, &str)> {
    counter.strip_prefix("nacks_")?.split_once('_').filter(|(way, _)| ["sent", "received"].contains(way))
}

/// `faults_WHAT_p50_us`, `faults_WHAT_p99_us`.
fn quantile(counter: &str) -> Option<(&str, &'static str)> {
    let counter = counter.strip_prefix("faults_")?.strip_suffix("_us")?;
    let half = counter.strip_suffix("_p50").map(|what| (what, "0.5"));
    half.or_else(|| counter.strip_suffix("_p99").map(|what| (what, "0.99")))
}

/// `AT` or `AT_KIND`: what was accessed, and why its page was absent.
fn access(text: &str) -> Option<Labels> {
    let (at, kind) = text.split_once('_').map_or((text, None), |(at, kind)| (at, Some(kind)));
    if !["source", "destination", "notification", "atomic"].contains(&at) {
        return None;
    }
    let kind = kind.map(|kind| ("kind".to_owned(), kind.to_owned()));
    Some(std::iter::once(("at".to_owned(), at.to_owned())).chain(kind).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tombolo_node::Node;

    use super::*;

    fn labels(all: &[(&str, &str)]) -> Labels {
        all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_stands_in_a_counters_name_is_a_label() {
        for (counter, name, of, kind) in [
            ("blocks_sent", "blocks_sent", &[][..], Counter),
            ("blocks_high", "first_blocks", &[("class", "high")], Counter),
            ("nacks_sent_buffer_full", "nacks", &[("direction", "sent"), ("code", "buffer_full")], Counter),
            ("nacks_spared", "nacks_spared", &[], Counter),
            (
                "faults_atomic_copy_on_write",
                "access_faults",
                &[("at", "atomic"), ("kind", "copy_on_write")],
                Counter,
            ),
            (
                "faults_stall_source_p99_us",
                "access_stall_seconds",
                &[("at", "source"), ("quantile", "0.99")],
                MICROSECONDS,
            ),
            (
                "faults_stall_source_missing_p50_us",
                "access_stall_seconds",
                &[("at", "source"), ("kind", "missing"), ("quantile", "0.5")],
                MICROSECONDS,
            ),
            ("faults_touch_p50_us", "page_touch_seconds", &[("quantile", "0.5")], MICROSECONDS),
        ] {
            let found = of_node(counter).unwrap();
            assert_eq!(
                (found.name.as_str(), found.labels, found.kind),
                (name, labels(of), kind),
                "{counter}"
            );
        }
        assert_eq!(of_node("something_else"), None);
        assert_eq!(of_run("something_else"), None);
    }

    /// Each counter of a node is described, and nothing is that no node counts.
    #[test]
    fn all_counters_of_a_node_are_described() {
        let status = Node::new("described", 1 << 20, 0).unwrap().status();
        let mut unused: BTreeSet<_> = OF_NODES.iter().map(|(_, _, help)| *help).collect();
        assert_eq!(unused.len(), OF_NODES.len(), "two say the same");
        for counter in status.counters.keys() {
            let metric = of_node(counter).unwrap_or_else(|| panic!("{counter} is not described"));
            unused.remove(metric.help);
        }
        assert_eq!(unused, BTreeSet::new(), "no node counts these");
    }

    #[test]
    fn texts_are_sentences_without_marks() {
        let helps = OF_NODES.iter().map(|(_, _, help)| *help).chain(OF_RUNS.iter().map(|(_, help)| *help));
        for help in helps {
            assert!(help.starts_with(|first: char| first.is_uppercase() || first.is_ascii_digit()), "{help}");
            assert!(!help.ends_with('.') && !help.contains('`') && help.len() < 120, "{help}");
        }
    }
}
