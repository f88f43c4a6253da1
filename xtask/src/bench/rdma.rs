//! `cargo xtask bench rdma`: transfers of Tombolo's programs beside the libraries
//! that others use for the same, kernel TCP, and what the machine does at best.
//!
//! ```text
//! each run:  tombolo-bench rdma --json
//!            for cubic, bbr:  libfabric and UCX over TCP, at each size
//!            libfabric and UCX without TCP, at each size
//!            kernel TCP under cubic and bbr: ping-pong, stream
//! ```
//!
//! Runs follow each other, so ours and theirs take turns; figures are the medians
//! over the runs. Where it is possible, everything is in a network namespace that
//! ends with the bench: nobody else is there, and its route says which congestion
//! control is used, also by programs that do not let one choose.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tombolo_host::{process, stops};

use tombolo_app::child::{self, Trouble};

use super::{STOP, USAGE, build, folder, interrupted, median, page};
use figures::Figures;
use network::Network;
use pair::{Pair, Peer};

mod chart;
mod figures;
mod iperf;
mod libfabric;
mod network;
mod ours;
mod pair;
mod results;
mod targets;
mod tcp;
mod ucx;

/// Sizes at which all are measured.
pub const SIZES: [u64; 8] = [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// And the smallest, at which only Tombolo is.
pub const SMALLEST: u64 = 16;
/// The longest that `tombolo-bench rdma` may take: on two processors it takes about two minutes.
const OURS_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Programs that are raced, and the Debian package of each.
const NEEDED: [(&str, &str); 6] = [
    ("fi_pingpong", "libfabric-bin"),
    ("ucx_perftest", "ucx-utils"),
    ("iperf3", "iperf3"),
    ("taskset", "util-linux"),
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
];

/// What is measured, and what measures it.
#[derive(Debug)]
struct Binaries {
    tombolo: PathBuf,
    bench: PathBuf,
}

#[derive(Debug)]
struct Options {
    runs: usize,
    /// Where `tombolo` and `tombolo-bench` are: this is the bench itself, in its network namespace already.
    inside: Option<Binaries>,
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { runs: 3, inside: None };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or(USAGE)?;
        match word.as_str() {
            "--runs" => options.runs = value.parse().ok().filter(|&runs| runs > 0).ok_or(USAGE)?,
            // Not for users: see `main`.
            "--inside" => {
                let bench = words.next().ok_or(USAGE)?;
                options.inside = Some(Binaries { tombolo: value.into(), bench: bench.into() });
            }
            _ => return Err(USAGE.into()),
        }
    }
    Ok(options)
}

/// What a bench was made in.
#[derive(Debug)]
pub struct Facts {
    /// That it may use.
    pub processors: usize,
    /// Its release.
    pub kernel: String,
    pub runs: usize,
    /// Whether it was in a network namespace of its own.
    pub own_network: bool,
    /// The machine's default congestion control.
    pub control: String,
}

/// The libraries that are raced.
fn peers() -> Vec<Box<dyn Peer>> {
    let mut peers = libfabric::all();
    peers.extend(ucx::all());
    peers
}

fn measure_ours(binaries: &Binaries, figures: &mut Figures) -> Result<(), String> {
    let sizes: Vec<String> = std::iter::once(SMALLEST).chain(SIZES).map(|size| size.to_string()).collect();
    let mut command = Command::new(&binaries.bench);
    command.args(["rdma", "--json", "--sizes", &sizes.join(","), "--binary"]).arg(&binaries.tombolo);
    let text =
        child::run(&mut command, OURS_LIMIT).map_err(|trouble| format!("`tombolo-bench rdma`: {trouble}"))?;
    let found: Value = serde_json::from_str(&text)
        .map_err(|error| format!("`tombolo-bench rdma` printed no JSON: {error}"))?;
    ours::read(&found, figures)
}

/// One peer at every size.
fn race(
    pair: &Pair<'_>,
    peer: &dyn Peer,
    control: Option<&str>,
    figures: &mut Figures,
) -> Result<(), String> {
    let who = figures::under(&peer.who(), control);
    for size in SIZES {
        if figures.is_missing(&who, size) {
            continue;
        }
        match pair.race(peer, control, size) {
            Ok(found) => found.into_iter().for_each(|(what, value)| figures.note(&who, what, size, value)),
            Err(Trouble::Interrupted) => return Err("interrupted".into()),
            Err(trouble @ Trouble::TimedOut(_)) => {
                eprintln!("  {size} bytes: {trouble}; larger ones are left out");
                // It would hang at the next size, too, and each time for long.
                for size in SIZES.into_iter().filter(|&other| other >= size) {
                    figures.fail(&who, size, &trouble.to_string());
                }
            }
            Err(trouble) => {
                eprintln!("  {size} bytes: {trouble}");
                figures.fail(&who, size, &trouble.to_string());
            }
        }
    }
    Ok(())
}

fn pass(
    binaries: &Binaries,
    pair: &Pair<'_>,
    network: &Network,
    figures: &mut Figures,
) -> Result<(), String> {
    eprintln!("bench: Tombolo");
    measure_ours(binaries, figures)?;
    let peers = peers();
    for control in network.controls() {
        let chosen = network.choose(control);
        for peer in peers.iter().filter(|peer| peer.over_tcp()) {
            let who = figures::under(&peer.who(), Some(control));
            match &chosen {
                Ok(()) => {
                    eprintln!("bench: {who}");
                    race(pair, &**peer, Some(control), figures)?;
                }
                Err(reason) => SIZES.iter().for_each(|&size| figures.fail(&who, size, reason)),
            }
        }
    }
    for peer in peers.iter().filter(|peer| !peer.over_tcp()) {
        eprintln!("bench: {}", peer.who());
        race(pair, &**peer, None, figures)?;
    }
    // These choose for themselves.
    for control in network::CONTROLS {
        eprintln!("bench: kernel TCP, {control}");
        race(pair, &iperf::Stream, Some(control), figures)?;
        tcp::race(pair, control, figures)?;
    }
    Ok(())
}

/// The bench, where it is to be.
fn inside(options: &Options, binaries: &Binaries) -> Result<(), String> {
    stops::stop_on_signals(&STOP);
    let network = Network::new(options.inside.is_some())?;
    let processors = process::processors();
    let [first, .., last] = processors[..] else {
        return Err(
            "this bench needs two processors or more: client and server are pinned to one each".into()
        );
    };
    let pair = Pair { network: &network, first, last };
    let mut figures = Figures::default();
    for run in 1..=options.runs {
        eprintln!("bench: run {run} of {}", options.runs);
        pass(binaries, &pair, &network, &mut figures)?;
        if interrupted() {
            return Err("interrupted".into());
        }
    }
    let facts = Facts {
        processors: processors.len(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        runs: options.runs,
        own_network: network.is_own(),
        control: network.default_control().to_owned(),
    };
    let text =
        serde_json::to_string_pretty(&results::json(&facts, &figures)).map_err(|error| error.to_string())?;
    page::keep(&folder(), "rdma.json", &(text + "\n"))?;
    chart::draw(&figures, &folder().join("rdma.svg"))?;
    page::write(&folder(), "rdma", &results::page(&facts, &figures))
}

/// Runs it. The arguments are those after `rdma`.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let options = options(arguments)?;
    if let Some(binaries) = &options.inside {
        return inside(&options, binaries);
    }
    crate::packages::install_missing(&NEEDED, "not everything will be measured")?;
    let binaries = Binaries { tombolo: build("tombolo")?, bench: build("tombolo-bench")? };
    if let Err(reason) = network::may_have_own() {
        eprintln!("bench: in the machine's network, under its congestion control alone: {reason}");
        return inside(&options, &binaries);
    }
    // Replaces this process: the namespace ends with it, whatever happens.
    let itself = std::env::current_exe().map_err(|error| format!("the bench's own path: {error}"))?;
    let words: Vec<OsString> = vec![
        "--net".into(),
        "--".into(),
        itself.into(),
        "bench".into(),
        "rdma".into(),
        "--runs".into(),
        options.runs.to_string().into(),
        "--inside".into(),
        binaries.tombolo.into(),
        binaries.bench.into(),
    ];
    Err(format!("unshare: {}", Command::new("unshare").args(words).exec()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn arguments_are_understood_or_refused() {
        let parse = |text: &str| options(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("").unwrap().runs, 3);
        assert_eq!(parse("--runs 5").unwrap().runs, 5);
        let inside = parse("--inside a b --runs 2").unwrap();
        assert!(inside.runs == 2 && inside.inside.is_some_and(|binaries| binaries.bench == Path::new("b")));
        for wrong in ["other", "--runs", "--runs 0", "--runs x", "--only sort", "--inside tombolo"] {
            assert_eq!(parse(wrong).unwrap_err(), USAGE, "{wrong}");
        }
    }
}
