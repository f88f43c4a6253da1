//! `tombolo-bench net`: network namespaces joined by `tombolo net`, beside what else joins them.
//!
//! Each way is measured in turn, several times. Two namespaces of one machine: by a veth pair, a bridge between two of
//! those, macvlan, a bare relay between two TAP devices, `tombolo net`: a TCP stream (iperf3) by two congestion controls,
//! small UDP packets there and back, and as many small UDP packets as go through. Two namespaces as two
//! machines, joined by VXLAN and by a port of another machine, are measured in the same way. Two more measurements are latency
//! beside a flood, and four greedy ports at a shaped uplink, beside HTB on a bridge, and by themselves with frames of different
//! sizes and with weights; and what a shaped uplink costs at several rates.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use tombolo_app::median;

use crate::{Failure, print_json};

pub mod packets;
mod pair;
pub mod relay;
mod room;
mod share;

/// Arguments of `tombolo-bench net`.
#[derive(Args)]
pub struct Arguments {
    /// The `tombolo` that is measured.
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// How often each is measured.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: u32,
    /// How long each stream lasts.
    #[arg(long, value_name = "S", default_value_t = 2)]
    seconds: u32,
    /// Only these, separated by commas; all of them unless given.
    #[arg(long, value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(ways()))]
    way: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn ways() -> Vec<&'static str> {
    let far = pair::FAR.iter().map(|(name, _)| *name);
    pair::NEAR
        .into_iter()
        .chain(far)
        .chain(share::FLOODED)
        .chain(share::SHARED)
        .chain(share::COUNTED)
        .chain(share::UPLINKS.iter().map(|(way, ..)| *way))
        .collect()
}

fn measure(way: &str, arguments: &Arguments) -> Result<Value, Failure> {
    let Arguments { binary, seconds, .. } = arguments;
    if share::FLOODED.contains(&way) {
        share::flooded(way, binary)
    } else if share::SHARED.contains(&way) {
        share::shared(way, binary, *seconds)
    } else if share::COUNTED.contains(&way) {
        share::counted(way, binary, *seconds)
    } else if let Some(uplink) = share::UPLINKS.iter().find(|(name, ..)| *name == way) {
        share::uplink(uplink, binary, *seconds)
    } else {
        pair::measure(way, binary, *seconds)
    }
}

/// Measures all.
pub fn main(arguments: &Arguments) -> Result<(), Failure> {
    let is_asked_for =
        |way: &&str| arguments.way.is_empty() || arguments.way.iter().any(|asked| asked == way);
    let ways: Vec<&str> = ways().into_iter().filter(is_asked_for).collect();
    let mut found: Map<String, Value> = ways.iter().map(|way| ((*way).to_owned(), json!([]))).collect();
    for round in 1..=arguments.rounds {
        for way in &ways {
            eprintln!("net: {way}, round {round} of {}", arguments.rounds);
            let figures = measure(way, arguments).map_err(|failure| failure.during(way))?;
            if let Some(rounds) = found.get_mut(*way).and_then(Value::as_array_mut) {
                rounds.push(figures);
            }
        }
    }
    if arguments.json {
        return print_json(&found);
    }
    for way in ways {
        let rounds = found[way].as_array().cloned().unwrap_or_default();
        let names =
            rounds.first().and_then(Value::as_object).map(|first| first.keys().cloned().collect::<Vec<_>>());
        let figures = names.unwrap_or_default().into_iter().filter_map(|name| {
            let all: Vec<_> = rounds.iter().filter_map(|round| round[&name].as_f64()).collect();
            let figure = median(&all)?;
            Some(if figure < 100.0 { format!("{name} {figure:.3}") } else { format!("{name} {figure:.0}") })
        });
        println!("{way:<14} {}", figures.collect::<Vec<_>>().join(", "));
    }
    Ok(())
}
