//! What transfers are to reach, and whether they do. What was not measured is not
//! reached, and says so.

use std::fmt;

use super::figures::{Figures, What};
use super::ours::{self, CACHE_LINE, HOWS, MEMCPY, MEMCPY_HUGE, NO_SIZE, PING_PONG, RAW_UDP, who};
use super::{SIZES, SMALLEST};

/// Writes of which one is under way, where packets are lost: their sizes.
pub const LONE: [u64; 2] = [64, 4096];
/// Their 99th percentile is this many times the lossless one at most...
const LOSS_TIMES: f64 = 3.0;
/// ... or this long, in nanoseconds, where that is more.
const LOSS_NS: f64 = 200_000.0;

/// Sizes at which throughput is judged.
const LARGE: [u64; 2] = [64 << 10, 1 << 20];
/// What a latency over UDP has to be shorter than, and what they tell of theirs: like is compared with like.
const PEER_LATENCIES: [(&str, What); 4] = [
    ("libfabric tcp;ofi_rxm", What::MeanNs),
    ("libfabric udp;ofi_rxd", What::MeanNs),
    ("UCX tcp tag_lat", What::MedianNs),
    ("UCX tcp put_lat", What::MedianNs),
];
/// What throughput over UDP has to be higher than.
const PEER_THROUGHPUT: &str = "UCX tcp put_bw";

/// Whether a target is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Reached,
    NotReached,
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Self::Reached => "reached",
            Self::NotReached => "**not reached**",
            Self::NotMeasured => "not measured",
        })
    }
}

/// What a ratio has to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    AtMost(f64),
    AtLeast(f64),
    /// As [`Bound::AtLeast`], but equal is not enough.
    MoreThan(f64),
}

impl Bound {
    fn verdict(self, ratio: Option<f64>) -> Verdict {
        let reached = match (self, ratio) {
            (_, None) => return Verdict::NotMeasured,
            (Self::AtMost(bound), Some(ratio)) => ratio <= bound,
            (Self::AtLeast(bound), Some(ratio)) => ratio >= bound,
            (Self::MoreThan(bound), Some(ratio)) => ratio > bound,
        };
        if reached { Verdict::Reached } else { Verdict::NotReached }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(text, "≤ {bound}"),
            Self::AtLeast(bound) => write!(text, "≥ {bound}"),
            Self::MoreThan(bound) => write!(text, "> {bound}"),
        }
    }
}

/// A ratio and what it has to be.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub name: String,
    /// Of [`ours::HOWS`].
    pub how: &'static str,
    pub ratio: Option<f64>,
    pub bound: Bound,
}

impl Target {
    /// Whether it is reached.
    pub fn verdict(&self) -> Verdict {
        self.bound.verdict(self.ratio)
    }
}

fn ratio(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    Some(over? / under?).filter(|ratio| ratio.is_finite())
}

/// Every target within Tombolo and against the machine, for each way of running the engine.
pub fn all(figures: &Figures) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut add = |name: String, how, ratio, bound| targets.push(Target { name, how, ratio, bound });
    let rate = |link: &str, how: &str, size| figures.get(&who(link, how, "write"), What::BytesPerS, size);
    for &how in ours::hows("loopback") {
        let write = figures.get(&who("loopback", how, "write"), What::MedianNs, SMALLEST);
        let line = figures.get(CACHE_LINE, What::MeanNs, NO_SIZE);
        let name = "loopback, write of 16 B / cache line round trip".to_owned();
        add(name, how, ratio(write, line), Bound::AtMost(6.0));
    }
    for (link, name, floor, bound) in [
        ("loopback", "loopback", MEMCPY, 0.8),
        ("loopback", "loopback", MEMCPY_HUGE, 0.8),
        ("shm", "shm", MEMCPY, 0.4),
        ("shm", "shm", MEMCPY_HUGE, 0.4),
        ("udp", "UDP, unencrypted", RAW_UDP, 0.7),
    ] {
        for size in LARGE {
            for &how in ours::hows(link) {
                let name = format!("{name}, {} / {floor}", size_text(size));
                let best = figures.get(floor, What::BytesPerS, size);
                add(name, how, ratio(rate(link, how, size), best), Bound::AtLeast(bound));
            }
        }
    }
    for (link, name, bound) in [
        ("udp_sealed", "UDP, encrypted / unencrypted", 0.5),
        ("udp_loss", "UDP with 1 % loss / lossless", 0.8),
    ] {
        for size in LARGE {
            for &how in ours::hows(link) {
                let found = ratio(rate(link, how, size), rate("udp", how, size));
                add(format!("{name}, {}", size_text(size)), how, found, Bound::AtLeast(bound));
            }
        }
    }
    // Where a round trip takes microseconds, a wake-up decides what three times as long is.
    for size in LONE {
        for &how in ours::hows("udp_loss") {
            let p99 = |link| figures.get(&who(link, how, "write"), What::P99Ns, size);
            let lossless = p99("udp").map(|lossless| lossless.max(LOSS_NS / LOSS_TIMES));
            let name =
                format!("{}, a lone write of {}: 99 % / lossless", link_text("udp_loss"), size_text(size));
            add(name, how, ratio(p99("udp_loss"), lossless), Bound::AtMost(LOSS_TIMES));
        }
    }
    for link in ["loopback", "shm", "udp"] {
        for &how in ours::hows(link) {
            let p99 = |busy| figures.get(&ours::interference(link, how, busy), What::P99Ns, NO_SIZE);
            let name = format!("{}, 64 B writes' 99 % beside large transfers / alone", link_text(link));
            add(name, how, ratio(p99(true), p99(false)), Bound::AtMost(3.0));
        }
    }
    targets
}

/// Unencrypted UDP against the libraries over sockets, at each size: how many times as fast.
pub fn races(figures: &Figures) -> Vec<Target> {
    let mut targets = Vec::new();
    for how in HOWS {
        for (peer, what) in PEER_LATENCIES {
            for size in SIZES {
                let mine = figures.best_of(&who("udp", how, PING_PONG), what, size);
                let found = ratio(figures.best_of(peer, what, size), mine);
                let name = race_name(peer, size);
                targets.push(Target { name, how, ratio: found, bound: Bound::MoreThan(1.0) });
            }
        }
        for size in SIZES {
            let mine = figures.get(&who("udp", how, "write"), What::BytesPerS, size);
            let theirs = figures.best_throughput(PEER_THROUGHPUT, size).map(|best| best.value);
            let name = race_name(PEER_THROUGHPUT, size);
            targets.push(Target { name, how, ratio: ratio(mine, theirs), bound: Bound::MoreThan(1.0) });
        }
    }
    targets
}

/// The peers that [`races`] compares with.
pub fn raced() -> impl Iterator<Item = &'static str> {
    PEER_LATENCIES.into_iter().map(|(peer, _)| peer).chain([PEER_THROUGHPUT])
}

/// The name of a race against a peer.
pub fn race_name(peer: &str, size_bytes: u64) -> String {
    format!("UDP, {} against {peer}", size_text(size_bytes))
}

/// A size, as short as it can be said exactly.
pub fn size_text(size_bytes: u64) -> String {
    match size_bytes {
        size if size >= 1 << 20 && size % (1 << 20) == 0 => format!("{} MiB", size >> 20),
        size if size >= 1 << 10 && size % (1 << 10) == 0 => format!("{} KiB", size >> 10),
        size => format!("{size} B"),
    }
}

/// A link, as it is called in tables.
pub fn link_text(link: &str) -> &str {
    match link {
        "udp" => "UDP",
        "udp_sealed" => "UDP, encrypted",
        "udp_loss" => "UDP, 1 % loss",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rdma::figures::under;

    #[test]
    fn what_is_missing_is_not_measured_and_never_reached() {
        let none = Figures::default();
        let (targets, races) = (all(&none), races(&none));
        assert_eq!(targets.len(), 1 + 16 + 4 + 2 + 5);
        assert_eq!(races.len(), 2 * 5 * 8);
        for target in targets.iter().chain(&races) {
            assert_eq!(target.verdict(), Verdict::NotMeasured, "{target:?}");
        }
    }

    #[test]
    fn half_of_a_ratio_is_none() {
        let mut figures = Figures::default();
        figures.note(&who("loopback", "embedded", "write"), What::MedianNs, SMALLEST, 500.0);
        figures.note(&who("udp", "embedded", PING_PONG), What::MedianNs, 64, 500.0);
        assert!(all(&figures).iter().chain(&races(&figures)).all(|target| target.ratio.is_none()));
    }

    #[test]
    fn verdicts_follow_the_bound() {
        for (bound, ratio, verdict) in [
            (Bound::AtMost(3.0), 3.0, Verdict::Reached),
            (Bound::AtMost(3.0), 3.01, Verdict::NotReached),
            (Bound::AtLeast(0.8), 0.8, Verdict::Reached),
            (Bound::AtLeast(0.8), 0.79, Verdict::NotReached),
            (Bound::MoreThan(1.0), 1.0, Verdict::NotReached),
            (Bound::MoreThan(1.0), 1.01, Verdict::Reached),
        ] {
            assert_eq!(bound.verdict(Some(ratio)), verdict, "{bound} {ratio}");
            assert_eq!(bound.verdict(None), Verdict::NotMeasured);
        }
    }

    fn found<'a>(targets: &'a [Target], name: &str, how: &str) -> &'a Target {
        targets.iter().find(|target| target.name == name && target.how == how).unwrap()
    }

    #[test]
    fn ratios_are_of_ours_and_the_floor() {
        let mut figures = Figures::default();
        figures.note(CACHE_LINE, What::MeanNs, NO_SIZE, 100.0);
        figures.note(&who("loopback", "node", "write"), What::MedianNs, SMALLEST, 700.0);
        figures.note(RAW_UDP, What::BytesPerS, 1 << 20, 5e9);
        figures.note(&who("udp", "embedded", "write"), What::BytesPerS, 1 << 20, 4e9);
        figures.note(&who("udp_sealed", "embedded", "write"), What::BytesPerS, 1 << 20, 1e9);
        figures.note(&ours::interference("shm", "node", false), What::P99Ns, NO_SIZE, 10.0);
        figures.note(&ours::interference("shm", "node", true), What::P99Ns, NO_SIZE, 20.0);
        figures.note(&who("udp", "embedded", "write"), What::P99Ns, 64, 9000.0);
        figures.note(&who("udp_loss", "embedded", "write"), What::P99Ns, 64, 100_000.0);
        let targets = all(&figures);
        let line = found(&targets, "loopback, write of 16 B / cache line round trip", "node");
        assert_eq!((line.ratio, line.verdict()), (Some(7.0), Verdict::NotReached));
        let udp = found(&targets, "UDP, unencrypted, 1 MiB / raw UDP, GSO and GRO", "embedded");
        assert_eq!((udp.ratio, udp.verdict()), (Some(0.8), Verdict::Reached));
        let sealed = found(&targets, "UDP, encrypted / unencrypted, 1 MiB", "embedded");
        assert_eq!((sealed.ratio, sealed.verdict()), (Some(0.25), Verdict::NotReached));
        let lone = found(&targets, "UDP, 1 % loss, a lone write of 64 B: 99 % / lossless", "embedded");
        assert_eq!((lone.ratio, lone.verdict()), (Some(1.5), Verdict::Reached));
        let busy = found(&targets, "shm, 64 B writes' 99 % beside large transfers / alone", "node");
        assert_eq!((busy.ratio, busy.verdict()), (Some(2.0), Verdict::Reached));
        assert_eq!(targets.iter().filter(|target| target.ratio.is_some()).count(), 5);
    }

    #[test]
    fn a_race_is_won_against_the_better_of_the_other_s_runs() {
        let mut figures = Figures::default();
        figures.note(&who("udp", "embedded", PING_PONG), What::MedianNs, 64, 4.0);
        for (control, latency) in [("cubic", 3.0), ("bbr", 5.0)] {
            figures.note(&under("UCX tcp tag_lat", Some(control)), What::MedianNs, 64, latency);
        }
        let races = races(&figures);
        let lost = found(&races, &race_name("UCX tcp tag_lat", 64), "embedded");
        assert_eq!((lost.ratio, lost.verdict()), (Some(0.75), Verdict::NotReached));
        assert_eq!(races.iter().filter(|race| race.ratio.is_some()).count(), 1);
    }

    #[test]
    fn means_are_compared_with_means() {
        let mut figures = Figures::default();
        figures.note(&who("udp", "node", PING_PONG), What::MedianNs, 64, 4.0);
        figures.note("libfabric udp;ofi_rxd", What::MeanNs, 64, 10.0);
        let name = race_name("libfabric udp;ofi_rxd", 64);
        assert_eq!(found(&races(&figures), &name, "node").verdict(), Verdict::NotMeasured);
        figures.note(&who("udp", "node", PING_PONG), What::MeanNs, 64, 5.0);
        assert_eq!(found(&races(&figures), &name, "node").ratio, Some(2.0));
    }

    #[test]
    fn sizes_are_short_and_exact() {
        let texts = [16, 1024, 1536, 65536, 1 << 20].map(size_text);
        assert_eq!(texts, ["16 B", "1 KiB", "1536 B", "64 KiB", "1 MiB"]);
    }
}
