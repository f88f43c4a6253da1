//! The part of `bench/RESULTS.md`, and `bench/rdma.json`.

use std::fmt::Write;

use serde_json::{Value, json};

use super::figures::{Best, Figures, What};
use super::ours::{self, HOWS, LINKS, MEMCPY, MEMCPY_HUGE, OPERATIONS, PING_PONG, RAW_PACKETS, RAW_UDP};
use super::targets::{self, Bound, LONE, Target, Verdict, link_text, size_text};
use super::{Facts, SIZES, SMALLEST, iperf, tcp};

/// A party's row: its title, and its name among the figures.
type Row = (String, String);

fn how_text(how: &str) -> &str {
    if how == "node" { "through nodes" } else { how }
}

fn judged(figures: &Figures) -> Vec<Target> {
    let mut judged = targets::all(figures);
    judged.extend(targets::races(figures));
    judged
}

/// Everything, for other programs.
pub fn json(facts: &Facts, figures: &Figures) -> Value {
    let judged: Vec<Value> = judged(figures)
        .into_iter()
        .map(|target| {
            let (kind, bound) = match target.bound {
                Bound::AtMost(bound) => ("at_most", bound),
                Bound::AtLeast(bound) => ("at_least", bound),
                Bound::MoreThan(bound) => ("more_than", bound),
            };
            let reached = match target.verdict() {
                Verdict::Reached => Some(true),
                Verdict::NotReached => Some(false),
                Verdict::NotMeasured => None,
            };
            json!({ "name": target.name, "how": target.how, "ratio": target.ratio, kind: bound, "reached": reached })
        })
        .collect();
    let missing: Vec<Value> = figures
        .missing()
        .into_iter()
        .map(|(who, reason, sizes)| json!({ "who": who, "sizes_bytes": sizes, "reason": reason }))
        .collect();
    json!({
        "processors": facts.processors,
        "kernel": facts.kernel,
        "runs": facts.runs,
        "own_network": facts.own_network,
        "default_congestion_control": facts.control,
        "figures": figures.json(),
        "not_measured": missing,
        "targets": judged,
    })
}

/// A table with a column for each size.
fn table(page: &mut String, title: &str, sizes: &[u64], rows: &[Row], cell: impl Fn(&str, u64) -> String) {
    let titles: Vec<String> = sizes.iter().map(|&size| size_text(size)).collect();
    let _ = writeln!(page, "| {title} | {} |", titles.join(" | "));
    let _ = writeln!(page, "| --- |{}", " ---: |".repeat(sizes.len()));
    for (title, who) in rows {
        let cells: Vec<String> = sizes.iter().map(|&size| cell(who, size)).collect();
        let _ = writeln!(page, "| {title} | {} |", cells.join(" | "));
    }
}

/// A figure with the first letter of its congestion control.
fn shown(best: Option<Best>, unit: f64) -> String {
    let Some(best) = best else { return "-".into() };
    let letter = best.control.and_then(|control| control.chars().next());
    format!("{:.2}{}", best.value / unit, letter.map_or_else(String::new, |letter| format!(" {letter}")))
}

fn latencies(page: &mut String, figures: &Figures, sizes: &[u64], rows: &[Row]) {
    table(page, "µs", sizes, rows, |who, size| shown(figures.best_latency(who, size), 1e3));
}

fn throughputs(page: &mut String, figures: &Figures, sizes: &[u64], rows: &[Row]) {
    table(page, "GB/s", sizes, rows, |who, size| shown(figures.best_throughput(who, size), 1e9));
}

/// Ours over these links, in each way.
fn ours(links: &[&str], operation: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for link in links {
        for &how in ours::hows(link) {
            let title = format!("**Tombolo**, {}, {}", link_text(link), how_text(how));
            rows.push((title, ours::who(link, how, operation)));
        }
    }
    rows
}

/// Parties that are called by their names.
fn named(names: &[&str]) -> Vec<Row> {
    names.iter().map(|&name| (name.to_owned(), name.to_owned())).collect()
}

fn all_sizes() -> Vec<u64> {
    std::iter::once(SMALLEST).chain(SIZES).collect()
}

fn targets_section(page: &mut String, figures: &Figures) {
    let _ = writeln!(page, "### Targets\n\n| ratio | engine | measured | target | |");
    let _ = writeln!(page, "| --- | --- | ---: | ---: | --- |");
    for target in targets::all(figures) {
        let measured = target.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}"));
        let (name, how, bound, verdict) =
            (&target.name, how_text(target.how), target.bound, target.verdict());
        let _ = writeln!(page, "| {name} | {how} | {measured} | {bound} | {verdict} |");
    }
    let races = targets::races(figures);
    let count =
        |how: &str, verdict| races.iter().filter(|race| race.how == how && race.verdict() == verdict).count();
    let _ = writeln!(
        page,
        "\nUnencrypted UDP against libraries over sockets: how many times as fast, target > 1.\n"
    );
    let sizes: Vec<String> = SIZES.into_iter().map(size_text).collect();
    let _ = writeln!(page, "| against | engine | {} |", sizes.join(" | "));
    let _ = writeln!(page, "| --- | --- |{}", " ---: |".repeat(SIZES.len()));
    for how in HOWS {
        for peer in targets::raced() {
            let _ = write!(page, "| {peer} | {} |", how_text(how));
            for size in SIZES {
                let name = targets::race_name(peer, size);
                let race = races.iter().find(|race| race.how == how && race.name == name);
                let cell = match race.and_then(|race| Some((race.ratio?, race.verdict()))) {
                    Some((ratio, Verdict::Reached)) => format!("{ratio:.2}"),
                    Some((ratio, _)) => format!("**{ratio:.2}**"),
                    None => "not measured".into(),
                };
                let _ = write!(page, " {cell} |");
            }
            page.push('\n');
        }
    }
    page.push('\n');
    for how in HOWS {
        let _ = writeln!(
            page,
            "- {}: {} reached, {} **not reached** (bold above), {} not measured.",
            how_text(how),
            count(how, Verdict::Reached),
            count(how, Verdict::NotReached),
            count(how, Verdict::NotMeasured)
        );
    }
}

fn floor_section(page: &mut String, figures: &Figures) {
    let nanoseconds = |who, what| {
        let found = figures.get(who, what, ours::NO_SIZE);
        found.map_or_else(|| "not measured".to_owned(), |value| format!("{value:.0} ns"))
    };
    let _ = writeln!(page, "\n### What the machine does at best\n");
    let _ = writeln!(
        page,
        "A cache line to another processor and back: {}.\n",
        nanoseconds(ours::CACHE_LINE, What::MeanNs),
    );
    let mut rows = named(&[MEMCPY, MEMCPY_HUGE, RAW_UDP, RAW_PACKETS]);
    rows.push(("kernel TCP stream".into(), iperf::WHO.into()));
    throughputs(page, figures, &all_sizes(), &rows);
    let _ = writeln!(page, "\nHalf of there and back:\n");
    latencies(page, figures, &SIZES, &named(&[RAW_UDP, RAW_PACKETS, tcp::WHO]));
}

/// What is left of raw UDP, and of that with packets, at sizes where bytes count for more than calls.
fn bounds_section(page: &mut String, figures: &Figures) {
    let _ = writeln!(page, "\n### What stops the others\n\n{BOUNDS}");
    let _ = writeln!(page, "| throughput, embedded | {} |", LARGER.map(size_text).join(" | "));
    let _ = writeln!(page, "| --- |{}", " ---: |".repeat(LARGER.len()));
    let udp = ours::who("udp", "embedded", "write");
    let rate = |who: &str, size| figures.get(who, What::BytesPerS, size);
    for (title, over, under) in [
        ("raw UDP with packets / raw UDP", RAW_PACKETS, RAW_UDP),
        ("Tombolo / raw UDP", &udp, RAW_UDP),
        ("Tombolo / raw UDP with packets", &udp, RAW_PACKETS),
    ] {
        let cells = LARGER.map(|size| match (rate(over, size), rate(under, size)) {
            (Some(over), Some(under)) => format!("{:.2}", over / under),
            _ => "-".to_owned(),
        });
        let _ = writeln!(page, "| {title} | {} |", cells.join(" | "));
    }
}

fn latency_section(page: &mut String, figures: &Figures) {
    let _ = writeln!(page, "\n### Latency: half of a round trip\n\nWithin the machine's memory:\n");
    let mut rows = ours(&["loopback", "shm"], PING_PONG);
    rows.extend(named(&["libfabric shm", "UCX posix tag_lat", "UCX posix put_lat"]));
    latencies(page, figures, &SIZES, &rows);
    let _ = writeln!(page, "\nOver sockets:\n");
    let mut rows = ours(&["udp", "udp_sealed"], PING_PONG);
    rows.extend(named(&["libfabric tcp", "libfabric tcp;ofi_rxm", "libfabric udp;ofi_rxd"]));
    rows.extend(named(&["UCX tcp tag_lat", "UCX tcp put_lat", tcp::WHO]));
    latencies(page, figures, &SIZES, &rows);
    let _ = writeln!(page, "\n![latency over size](rdma.svg)");
    let _ = writeln!(
        page,
        "\n### Tombolo's operations: from posting to done\n\nOf a message (mailbox), half of there and back.\n"
    );
    let mut rows = Vec::new();
    for operation in OPERATIONS {
        let named = ours(&LINKS, operation).into_iter();
        rows.extend(named.map(|(title, who)| (title.replace("**Tombolo**", operation), who)));
    }
    rows.retain(|(_, who)| all_sizes().iter().any(|&size| figures.best_latency(who, size).is_some()));
    latencies(page, figures, &all_sizes(), &rows);
    let _ = writeln!(
        page,
        "\nA lone write whose packet is lost goes again after a probe's time, not a timeout's (µs):\n\n| write, UDP, embedded | median | 99 % | median, 1 % loss | 99 %, 1 % loss |\n\
         | --- | ---: | ---: | ---: | ---: |"
    );
    for size in LONE {
        let cell = |link, what| {
            let found = figures.get(&ours::who(link, "embedded", "write"), what, size);
            found.map_or("-".to_owned(), |ns| format!("{:.1}", ns / 1e3))
        };
        let cells = ["udp", "udp_loss"].map(|link| [cell(link, What::MedianNs), cell(link, What::P99Ns)]);
        let _ = writeln!(page, "| {} | {} |", size_text(size), cells.concat().join(" | "));
    }
}

/// Ours over links on which several operations are measured, and links on which only writes are.
fn both_ways(links: &[&str], written: &[&str]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (links, operation) in [(links, "write"), (written, "write"), (links, "read")] {
        let way = ours(links, operation).into_iter();
        rows.extend(way.map(|(title, who)| (format!("{title}, {operation}"), who)));
    }
    rows
}

fn throughput_section(page: &mut String, figures: &Figures) {
    let _ = writeln!(page, "\n### Throughput: several under way\n\nWithin the machine's memory:\n");
    let mut rows = both_ways(&["loopback", "shm"], &[]);
    rows.extend(named(&["UCX posix put_bw", MEMCPY, MEMCPY_HUGE]));
    throughputs(page, figures, &SIZES, &rows);
    let _ = writeln!(page, "\nOver sockets:\n");
    let mut rows = both_ways(&["udp"], &["udp_sealed", "udp_loss"]);
    rows.extend(named(&["UCX tcp put_bw", iperf::WHO, RAW_UDP]));
    throughputs(page, figures, &SIZES, &rows);
}

fn missing_section(page: &mut String, figures: &Figures) {
    for (who, reason, sizes) in figures.missing() {
        let sizes: Vec<String> = sizes.into_iter().map(size_text).collect();
        let reason = reason.replace(['\n', '|'], " ");
        let _ = writeln!(page, "\nNot measured: {who}, {}: {reason}.", sizes.join(", "));
    }
}

/// The part.
pub fn page(facts: &Facts, figures: &Figures) -> String {
    let mut page = String::from("## Transfers\n\nWritten by `cargo xtask bench rdma`.\n\n");
    let _ = writeln!(
        page,
        "A virtual machine with {} processors, Linux {}. Medians of {} run(s), in which ours and theirs take turns.\n",
        facts.processors, facts.kernel, facts.runs
    );
    if facts.processors < 4 {
        let _ = writeln!(
            page,
            "Parties outnumber processors here: through nodes, shm and UDP keep two programs and two nodes busy, loopback \
             two programs\nand a node, and they share {} processors. Embedded, and with the other libraries, there are \
             two busy parties.\n",
            facts.processors
        );
    }
    if facts.own_network {
        let _ = writeln!(
            page,
            "TCP was raced under cubic (c) and under bbr (b), whatever the machine's default ({}); the better of both \
             counts,\nfor each party and size.\n",
            facts.control
        );
    } else {
        let _ = writeln!(
            page,
            "Without a network namespace of its own (that needs root), libraries over TCP ran under the machine's \
             congestion control,\n{}; kernel TCP under cubic (c) and bbr (b), of which the better counts.\n",
            facts.control
        );
    }
    targets_section(&mut page, figures);
    floor_section(&mut page, figures);
    bounds_section(&mut page, figures);
    latency_section(&mut page, figures);
    throughput_section(&mut page, figures);
    missing_section(&mut page, figures);
    page.push_str(HOW);
    page
}

/// Sizes at which bytes count for more than calls.
const LARGER: [u64; 4] = [16 << 10, 64 << 10, 256 << 10, 1 << 20];

const BOUNDS: &str = "\
*Raw UDP with packets* copies a block into a packet with a CRC32C, checks it at the other end, and only then copies it to
its place, and nothing else: no engine, nothing acknowledged but whole transfers, nothing repeated. Tombolo spares the first
copy where the processor has a quick way to sum memory that others may write (decision 15). Large transfers are hardly
faster than that; of small ones, for which it makes a call each, Tombolo puts several into one. TCP's stream, on which the other
libraries send large messages, is copied once at each end, is not checked on loopback, and goes in larger pieces than
datagrams can be: compare kernel TCP's half of there and back with raw UDP's.

A message of 16 KiB is one datagram. Beside what bare packets take for it there is the engine's part, some 0.8 us, as much as
UCX's beside kernel TCP; but the packets have been summed at both ends and placed from where they were checked, and TCP's
bytes have not. UCX's *put_bw* counts a message when its socket has taken it, and its stream has many in one segment. A
write of Tombolo's counts when it has been acknowledged, and of 256 bytes, calls and acknowledgements cost more than bytes.
";

const HOW: &str = "
### How transfers are measured

- *Pinned*: clients on the first processor, servers on the last.
- *Half of a round trip*: ours is a write with a notification that the other side polls, and one back. `fi_pingpong` sends
  messages in turn, and tells their mean, so it is raced with our mean. `ucx_perftest` tells the median: `tag_lat` of
  messages in turn, `put_lat` of writes in turn that the other side polls for. Kernel TCP: two threads that poll
  non-blocking sockets with `TCP_NODELAY`; the median. Tables show medians where there are any.
- *Throughput*: ours has 16 transfers under way, and counts those that are done. `put_bw` posts writes one after another;
  kernel TCP is `iperf3` with writes of this size; memcpy and raw UDP are what `tombolo-bench rdma` finds.
- *memcpy* walks through as much memory as transfers do, of ordinary pages (4 KiB), as programs have them unless they ask
  for others. Memory that Tombolo allocates for programs is of huge pages where the kernel has them, so *memcpy in
  huge pages* compares like with like.
- *Raw UDP* sends with segmentation offload (GSO), and receives with receive offload (GRO), from one buffer and into one;
  *with packets*, blocks of 16 KiB from where transfers take them to where transfers put them, in huge pages.
- *Engine*: *embedded*, in the program itself; *through nodes*, in a process of its own on each side.
- *1 % loss*: of the packets, at random, unencrypted.
- *Beside large transfers*: 64 B writes, alone and while large transfers, 1 GiB in all, follow each other between the same
  domains.
- *Not measured*: without a figure on either side there is no ratio, and no target is reached. Each program has
  30 s, and one that fails or takes longer is run again once. A party that fails then has no figure at this size, whatever
  other runs found; one that took too long is not tried at larger sizes.
- *Repeat*: `cargo xtask bench rdma` on a quiet machine; every run's figures are in `rdma.json`.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(processors: usize, own_network: bool) -> Facts {
        Facts { processors, kernel: "6.1".into(), runs: 3, own_network, control: "bbr".into() }
    }

    #[test]
    fn a_page_of_nothing_reaches_nothing() {
        let page = page(&facts(2, true), &Figures::default());
        assert!(!page.contains("| reached |") && page.contains("| not measured |"));
        assert!(page.contains("embedded: 0 reached, 0 **not reached** (bold above), 40 not measured."));
        assert!(page.contains("Parties outnumber processors"));
    }

    #[test]
    fn figures_stand_where_they_belong() {
        let mut figures = Figures::default();
        figures.note(&ours::who("udp", "embedded", PING_PONG), What::MedianNs, 64, 2000.0);
        figures.note("UCX tcp tag_lat, cubic", What::MedianNs, 64, 3000.0);
        figures.note("UCX tcp tag_lat, bbr", What::MedianNs, 64, 3500.0);
        figures.fail("libfabric tcp;ofi_rxm, bbr", 64, "no end after 30 s");
        let page = page(&facts(8, true), &figures);
        for line in [
            "| UCX tcp tag_lat | embedded | 1.50 | not measured |",
            "| **Tombolo**, UDP, embedded | 2.00 | - |",
            "| UCX tcp tag_lat | 3.00 c | - |",
            "Not measured: libfabric tcp;ofi_rxm, bbr, 64 B: no end after 30 s.",
            "embedded: 1 reached, 0 **not reached**",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
        assert!(!page.contains("outnumber"));
    }

    #[test]
    fn one_congestion_control_is_said() {
        assert!(
            page(&facts(2, false), &Figures::default()).contains("under the machine's congestion control")
        );
    }

    #[test]
    fn the_json_has_figures_targets_and_what_is_missing() {
        let mut figures = Figures::default();
        figures.note(&ours::who("udp", "embedded", PING_PONG), What::MedianNs, 64, 2000.0);
        figures.fail("UCX tcp tag_lat, bbr", 64, "killed");
        let json = json(&facts(2, true), &figures);
        assert_eq!(json["figures"][0]["median"], 2000.0);
        assert_eq!(json["not_measured"][0]["reason"], "killed");
        let targets = json["targets"].as_array().unwrap();
        assert_eq!(targets.len(), 28 + 80);
        assert!(targets.iter().all(|target| target["reached"].is_null()));
        assert_eq!(targets[0]["at_most"], 6.0);
    }
}
