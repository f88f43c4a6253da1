//! `cargo xtask bench net`: namespaces joined by `tombolo net`, beside veth, a bridge, macvlan, a bare relay, VXLAN and HTB.
//! The figures are those of `tombolo-bench net`, medians over the rounds.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use plotters::prelude::*;
use serde_json::Value;
use tombolo_host::stops;

use super::{STOP, USAGE, build, folder, median, page};
use crate::packages;

/// What the ways are called on the page.
const WAYS: [(&str, &str); 5] = [
    ("veth", "veth pair"),
    ("bridge", "veth and bridge"),
    ("macvlan", "macvlan"),
    ("relay", "bare relay between two TAPs"),
    ("tombolo", "tombolo net"),
];
/// What the ways between two machines are called on the page.
const FAR: [(&str, &str); 5] = [
    ("vxlan", "VXLAN and bridge, not encrypted"),
    ("far", "port of another machine"),
    ("far-8", "the same, told after 8 frames or 100 µs"),
    ("far-64", "after 64 frames or 500 µs"),
    ("far-adaptive", "the same, adaptive"),
];
/// What the ways of the latency beside a flood are called.
const FLOODED: [(&str, &str); 2] = [("flood-relay", "bare relay"), ("flood-tombolo", "tombolo net")];
/// What the ways of a shaped uplink are called.
const SHARED: [(&str, &str); 2] = [("share-htb", "HTB on a bridge"), ("share-tombolo", "tombolo net")];
/// What the ways of four greedy ports alone are called.
const COUNTED: [(&str, &str); 3] = [
    ("share-bytes", "frames of four sizes, drr"),
    ("share-frames", "frames of four sizes, rr"),
    ("share-weights", "weights 1, 2, 3, 4, drr"),
];

/// What a shaped uplink is called by its rate, under HTB and ours.
const UPLINKS: [(&str, &str, &str); 3] = [
    ("100 Mb/s", "uplink-htb-100", "uplink-100"),
    ("500 Mb/s", "uplink-htb-500", "uplink-500"),
    ("2 Gb/s", "uplink-htb-2000", "uplink-2000"),
];

/// A figure that has a bound.
struct Target {
    title: &'static str,
    name: &'static str,
    way: &'static str,
    /// It is a multiple of what this way has.
    of: Option<&'static str>,
    bound: f64,
    more_is_better: bool,
    digits: usize,
}

const fn beside_relay(title: &'static str, name: &'static str, bound: f64, more_is_better: bool) -> Target {
    Target { title, name, way: "tombolo", of: Some("relay"), bound, more_is_better, digits: 2 }
}

const fn counted(
    way: &'static str,
    title: &'static str,
    name: &'static str,
    bound: f64,
    more_is_better: bool,
) -> Target {
    Target { title, name, way, of: None, bound, more_is_better, digits: 4 }
}

const fn used(way: &'static str, title: &'static str) -> Target {
    Target { title, name: "used", way, of: None, bound: 0.98, more_is_better: true, digits: 4 }
}

const fn beside_htb(way: &'static str, htb: &'static str, title: &'static str) -> Target {
    Target { title, name: "cpu_s", way, of: Some(htb), bound: 2.0, more_is_better: false, digits: 2 }
}

const fn asks_beside_htb(way: &'static str, htb: &'static str, title: &'static str) -> Target {
    Target { title, name: "one_way_ns", way, of: Some(htb), bound: 2.0, more_is_better: false, digits: 2 }
}

const TARGETS: [Target; 18] = [
    beside_relay("a TCP stream (cubic), as a multiple of the bare relay's", "cubic_bytes_per_s", 0.9, true),
    beside_relay("a TCP stream (bbr), as a multiple of the bare relay's", "bbr_bytes_per_s", 0.9, true),
    beside_relay("64 bytes one way, as a multiple of the bare relay's", "one_way_ns", 1.2, false),
    beside_relay(
        "packets of 64 bytes a second, as a multiple of the bare relay's",
        "packets_per_s",
        0.9,
        true,
    ),
    Target {
        title: "64 bytes one way beside a flood, 99 %, as a multiple of the bare relay's",
        name: "one_way_p99_ns",
        way: "flood-tombolo",
        of: Some("flood-relay"),
        bound: 1.5,
        more_is_better: false,
        digits: 2,
    },
    counted(
        "share-bytes",
        "fairness of bytes at 2 Gb/s, frames of four sizes, drr (Jain's index)",
        "jain_bytes",
        0.999,
        true,
    ),
    counted("share-bytes", "use of 2 Gb/s by these", "used", 0.98, true),
    counted(
        "share-frames",
        "fairness of frames at 2 Gb/s, frames of four sizes, rr",
        "jain_frames",
        0.999,
        true,
    ),
    counted(
        "share-weights",
        "weights 1, 2, 3, 4 at 2 Gb/s: how far off a share is, at most",
        "off_by",
        0.02,
        false,
    ),
    used("uplink-100", "use of 100 Mb/s by four greedy ports"),
    used("uplink-500", "use of 500 Mb/s"),
    used("uplink-2000", "use of 2 Gb/s"),
    beside_htb("uplink-100", "uplink-htb-100", "CPU time at 100 Mb/s, as a multiple of HTB's on a bridge"),
    beside_htb("uplink-500", "uplink-htb-500", "CPU time at 500 Mb/s"),
    beside_htb("uplink-2000", "uplink-htb-2000", "CPU time at 2 Gb/s"),
    asks_beside_htb(
        "uplink-100",
        "uplink-htb-100",
        "64 bytes one way beside these four at 100 Mb/s, as a multiple of HTB's",
    ),
    asks_beside_htb("uplink-500", "uplink-htb-500", "64 bytes one way at 500 Mb/s"),
    asks_beside_htb("uplink-2000", "uplink-htb-2000", "64 bytes one way at 2 Gb/s"),
];
const NEEDED: [(&str, &str); 4] =
    [("ip", "iproute2"), ("taskset", "util-linux"), ("iperf3", "iperf3"), ("ping", "iputils-ping")];

fn rounds(arguments: &[String]) -> Result<u32, String> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(5),
        ["--runs", runs] => runs.parse().ok().filter(|&runs| runs > 0).ok_or(USAGE.into()),
        _ => Err(USAGE.into()),
    }
}

fn measure(bench: &Path, tombolo: &Path, rounds: u32) -> Result<Value, String> {
    let mut command = Command::new(bench);
    command.args(["net", "--json", "--rounds", &rounds.to_string(), "--binary"]).arg(tombolo);
    let output =
        command.stderr(Stdio::inherit()).output().map_err(|error| format!("`tombolo-bench net`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`tombolo-bench net` failed ({})", output.status));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("`tombolo-bench net` printed no JSON: {error}"))
}

/// The median of a figure of a way.
fn figure(found: &Value, way: &str, name: &str) -> Option<f64> {
    let rounds = found[way].as_array()?;
    median(&rounds.iter().filter_map(|round| round[name].as_f64()).collect::<Vec<_>>())
}

/// Each target: title, figure, bound, whether it is reached.
fn targets(found: &Value) -> Vec<(&'static str, Option<String>, String, bool)> {
    let of = |target: &Target| {
        let Target { title, name, way, of, bound, more_is_better, digits } = *target;
        let base = of.map_or(Some(1.0), |other| figure(found, other, name));
        let found = figure(found, way, name).zip(base).map(|(ours, base)| ours / base);
        let is_reached =
            found.is_some_and(|found| if more_is_better { found >= bound } else { found <= bound });
        let found = found.map(|found| format!("{found:.digits$}"));
        (title, found, format!("{} {bound}", if more_is_better { "≥" } else { "≤" }), is_reached)
    };
    TARGETS.iter().map(of).collect()
}

fn text(found: &Value) -> Result<String, std::fmt::Error> {
    let mut page = String::new();
    writeln!(page, "## One interface for many namespaces\n\nWritten by `cargo xtask bench net`.\n")?;
    writeln!(page, "| compared | measured | target | |\n| --- | ---: | ---: | --- |")?;
    for (title, figure, bound, is_reached) in targets(found) {
        let figure = figure.as_deref().unwrap_or("-");
        writeln!(
            page,
            "| {title} | {figure} | {bound} | {} |",
            if is_reached { "reached" } else { "**not reached**" }
        )?;
    }
    writeln!(
        page,
        "\nTwo namespaces, one iperf3 stream from one to the other, then 18 bytes by UDP (64 on the wire) there and back, then\n\
         as many of these as go through; nothing is pinned. The bare relay is a loop that reads each of two TAP devices with\n\
         offload headers and writes to the other; it has the niceness of `tombolo net serve`, -15. One way is half a round\n\
         trip, median and 99th percentile; the target is of the medians. CPU time is that of the whole machine.\n"
    )?;
    pairs(&mut page, found, &WAYS)?;
    writeln!(
        page,
        "\nThe same from a namespace that is another machine, with a cable (veth) to this one, to the network outside this\n\
         one's uplink. Ports of other machines are encrypted, and go through user space at both ends; both machines have the\n\
         two processors of one.\n"
    )?;
    pairs(&mut page, found, &FAR)?;
    writeln!(page, "\n![CPU time by coalescing](coalescing.svg)\n")?;
    writeln!(
        page,
        "64 bytes one way between two ports, while a third one floods a fourth one with packets of 64 bytes. What moves the\n\
         frames of all four has one processor, the programs have the other one.\n"
    )?;
    writeln!(page, "| way | one way, µs | 99 %, µs |\n| --- | ---: | ---: |")?;
    for (way, title) in FLOODED {
        let cell = |name, factor, digits| cell(found, way, name, factor, digits);
        writeln!(
            page,
            "| {title} | {} | {} |",
            cell("one_way_ns", 1e-3, 1),
            cell("one_way_p99_ns", 1e-3, 1)
        )?;
    }
    writeln!(
        page,
        "\nFour ports with 1, 2, 4 and 8 flows (cubic) to an uplink shaped to 2 Gb/s; a fifth one asks for 64 bytes meanwhile.\n\
         Fairness is Jain's index of what the four got, use is what all got of 2 Gb/s, without headers (94 % are possible).\n"
    )?;
    writeln!(
        page,
        "| way | fairness | use | one way, µs | 99 %, µs | CPU s |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    )?;
    for (way, title) in SHARED {
        let cell = |name, factor, digits| cell(found, way, name, factor, digits);
        writeln!(
            page,
            "| {title} | {} | {} % | {} | {} | {} |",
            cell("jain", 1.0, 4),
            cell("used", 100.0, 1),
            cell("one_way_ns", 1e-3, 1),
            cell("one_way_p99_ns", 1e-3, 1),
            cell("cpu_s", 1.0, 1),
        )?;
    }
    writeln!(
        page,
        "\nFour such ports alone, by what the owner has counted on the wire in some seconds: headers, preambles and gaps are in the\n\
         use. TCP's segments are 1400, 500, 900 and 1200 bytes, or as long as they may be where there are weights.\n"
    )?;
    writeln!(
        page,
        "| way | fairness of bytes | of frames | off its weight, at most | use |\n| --- | ---: | ---: | ---: | ---: |"
    )?;
    for (way, title) in COUNTED {
        let cell = |name, factor, digits| cell(found, way, name, factor, digits);
        writeln!(
            page,
            "| {title} | {} | {} | {} | {} % |",
            cell("jain_bytes", 1.0, 4),
            cell("jain_frames", 1.0, 4),
            if way == "share-weights" { cell("off_by", 100.0, 1) + " %" } else { "-".to_owned() },
            cell("used", 100.0, 1),
        )?;
    }
    writeln!(
        page,
        "\nFour ports with 1, 2, 4 and 8 flows (cubic) at a shaped uplink, nothing pinned, nobody else there: the use is on the wire\n\
         (HTB's as the other end counts it, without preambles and gaps), CPU time is that of the whole machine, for a second. Then a\n\
         fifth port asks for 64 bytes beside them.\n"
    )?;
    writeln!(
        page,
        "| rate | HTB's use | CPU s | one way, µs | 99 %, µs | our use | CPU s | one way, µs | 99 %, µs |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    )?;
    for (rate, htb, ours) in UPLINKS {
        let cell = |way, name, factor, digits| cell(found, way, name, factor, digits);
        let cells = |way| {
            let (used, cpu_s) = (cell(way, "used", 100.0, 1), cell(way, "cpu_s", 1.0, 3));
            let (one_way, one_way_p99) =
                (cell(way, "one_way_ns", 1e-3, 1), cell(way, "one_way_p99_ns", 1e-3, 1));
            format!("{used} % | {cpu_s} | {one_way} | {one_way_p99}")
        };
        writeln!(page, "| {rate} | {} | {} |", cells(htb), cells(ours))?;
    }
    Ok(page)
}

fn cell(found: &Value, way: &str, name: &str, factor: f64, digits: usize) -> String {
    figure(found, way, name).map_or("-".into(), |figure| format!("{:.digits$}", figure * factor))
}

/// What joins two namespaces.
fn pairs(page: &mut String, found: &Value, ways: &[(&str, &str)]) -> std::fmt::Result {
    writeln!(
        page,
        "| way | cubic, Gb/s | CPU s/GB | bbr, Gb/s | CPU s/GB | one way, µs | 99 %, µs | packets/s |"
    )?;
    writeln!(page, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for (way, title) in ways {
        let cell = |name, factor, digits| cell(found, way, name, factor, digits);
        writeln!(
            page,
            "| {title} | {} | {} | {} | {} | {} | {} | {} |",
            cell("cubic_bytes_per_s", 8e-9, 1),
            cell("cubic_cpu_s_per_gb", 1.0, 2),
            cell("bbr_bytes_per_s", 8e-9, 1),
            cell("bbr_cpu_s_per_gb", 1.0, 2),
            cell("one_way_ns", 1e-3, 1),
            cell("one_way_p99_ns", 1e-3, 1),
            cell("packets_per_s", 1.0, 0),
        )?;
    }
    Ok(())
}

/// What coalescing does: CPU time for a GB, by how many frames one is told of.
fn draw(found: &Value, path: &Path) -> Result<(), String> {
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        let series = [("cubic", RGBColor(0, 95, 135)), ("bbr", RGBColor(200, 90, 20))];
        let points = |control: &str| -> Vec<(f64, f64)> {
            let name = format!("{control}_cpu_s_per_gb");
            let at = [("far", 1.0), ("far-8", 8.0), ("far-64", 64.0)];
            at.iter().filter_map(|(way, frames)| Some((*frames, figure(found, way, &name)?))).collect()
        };
        let all = series.iter().flat_map(|(control, _)| points(control));
        let most = all.map(|(_, cpu)| cpu).fold(0.1, f64::max) * 1.2;
        let root = SVGBackend::new(path, (640, 420)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption("A stream to a port of another machine", ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d((0.8..100.0).log_scale().base(2.0), 0.0..most)?;
        chart
            .configure_mesh()
            .x_desc("frames that one is told of at once, at most (log scale)")
            .y_desc("CPU seconds for a GB")
            .light_line_style(WHITE)
            .draw()?;
        for (control, color) in series {
            let points = points(control);
            chart
                .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))?
                .label(control)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], color.stroke_width(2)));
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        }
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
        Ok(())
    };
    draw().map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs it. The arguments are those after `net`.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let rounds = rounds(arguments)?;
    packages::install_missing(&NEEDED, "nothing can be measured")?;
    let (tombolo, bench) = (build("tombolo")?, build("tombolo-bench")?);
    stops::stop_on_signals(&STOP);
    let found = measure(&bench, &tombolo, rounds)?;
    let text = text(&found).map_err(|error| error.to_string())?;
    let figures = serde_json::to_string_pretty(&found).map_err(|error| error.to_string())?;
    draw(&found, &folder().join("coalescing.svg"))?;
    page::keep(&folder(), "net.json", &(figures + "\n"))?;
    page::write(&folder(), "net", &text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_shows_medians_and_verdicts() {
        let round = |rate: f64, ns: f64| json!({ "cubic_bytes_per_s": rate, "one_way_ns": ns });
        let found = json!({
            "relay": [round(1e9, 20_000.0), round(2e9, 20_000.0), round(9e9, 20_000.0)],
            "tombolo": [round(1.9e9, 30_000.0)],
            "flood-relay": [{ "one_way_p99_ns": 1e5 }],
            "flood-tombolo": [{ "one_way_p99_ns": 1.25e5 }],
            "far": [{ "cubic_cpu_s_per_gb": 3.0 }],
            "share-htb": [{ "jain": 0.999, "used": 0.935 }],
            "share-bytes": [{ "jain_bytes": 0.99951, "used": 0.97 }],
            "uplink-htb-500": [{ "used": 0.96, "cpu_s": 0.1, "one_way_ns": 30_000.0 }],
            "uplink-500": [{ "used": 0.999, "cpu_s": 0.21, "one_way_ns": 45_000.0, "one_way_p99_ns": 90_000.0 }],
        });
        let path = std::env::temp_dir().join(format!("tombolo-coalescing-{}.svg", std::process::id()));
        draw(&found, &path).unwrap();
        let drawn = std::fs::read_to_string(&path).unwrap();
        let _ = std::fs::remove_file(&path);
        assert!(drawn.contains("CPU seconds for a GB"));
        let page = text(&found).unwrap();
        for line in [
            "| a TCP stream (cubic), as a multiple of the bare relay's | 0.95 | ≥ 0.9 | reached |",
            "| a TCP stream (bbr), as a multiple of the bare relay's | - | ≥ 0.9 | **not reached** |",
            "| 64 bytes one way, as a multiple of the bare relay's | 1.50 | ≤ 1.2 | **not reached** |",
            "| bare relay between two TAPs | 16.0 | - | - | - | 20.0 | - | - |",
            "| 64 bytes one way beside a flood, 99 %, as a multiple of the bare relay's | 1.25 | ≤ 1.5 | reached |",
            "| port of another machine | - | 3.00 | - | - | - | - | - |",
            "| HTB on a bridge | 0.9990 | 93.5 % | - | - | - |",
            "| fairness of bytes at 2 Gb/s, frames of four sizes, drr (Jain's index) | 0.9995 | ≥ 0.999 | reached |",
            "| use of 2 Gb/s by these | 0.9700 | ≥ 0.98 | **not reached** |",
            "| frames of four sizes, drr | 0.9995 | - | - | 97.0 % |",
            "| use of 500 Mb/s | 0.9990 | ≥ 0.98 | reached |",
            "| CPU time at 500 Mb/s | 2.10 | ≤ 2 | **not reached** |",
            "| 64 bytes one way at 500 Mb/s | 1.50 | ≤ 2 | reached |",
            "| 500 Mb/s | 96.0 % | 0.100 | 30.0 | - | 99.9 % | 0.210 | 45.0 | 90.0 |",
        ] {
            assert!(page.contains(line), "no {line} in:\n{page}");
        }
        assert_eq!((rounds(&[]), rounds(&["--runs".into(), "2".into()])), (Ok(5), Ok(2)));
        assert!(rounds(&["2".into()]).is_err());
    }
}
