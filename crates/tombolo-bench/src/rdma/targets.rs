//! What is to be reached, and whether it was.

use std::fmt;

use serde::Serialize;
use tombolo_app::size::Size;

use super::floor::{Floor, Rate};
use super::interference::Interference;
use super::{Engine, Operation, Route, Row};
use crate::name;

/// A ratio and its bound.
#[derive(Debug, Serialize)]
pub struct Target {
    name: String,
    ratio: f64,
    target: f64,
    /// Whether the bound is a lower one.
    at_least: bool,
    reached: bool,
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, ratio, target, at_least, reached } = self;
        let sign = if *at_least { '≥' } else { '≤' };
        let verdict = if *reached { "reached" } else { "NOT reached" };
        write!(formatter, "{name}: {ratio:.2} (to be {sign} {target}): {verdict}")
    }
}

fn target(name: String, ratio: f64, bound: f64, at_least: bool) -> Target {
    let reached = if at_least { ratio >= bound } else { ratio <= bound };
    Target { name, ratio, target: bound, at_least, reached }
}

/// The targets that these figures decide.
pub fn judge(floor: &Floor, rows: &[Row], interference: &[Interference]) -> Vec<Target> {
    let row = |link, how, op, size| {
        rows.iter().find(|row| row.link == link && row.how == how && row.op == op && row.size_bytes == size)
    };
    let write = |link, how, size| row(link, how, Operation::Write, size).map(|row| row.bytes_per_s);
    let rate =
        |rates: &[Rate], size| rates.iter().find(|rate| rate.size_bytes == size).map(|rate| rate.bytes_per_s);
    let mut targets = Vec::new();
    if let Some(row) = row(Route::Loopback, Engine::Node, Operation::Write, 16) {
        let ratio = row.latency.median_ns / floor.cache_line_round_trip_ns;
        targets.push(target("loopback write of 16 B / a cache line's round trip".into(), ratio, 6.0, false));
    }
    for size in [64 << 10, 1 << 20] {
        let bounds = [
            (Route::Loopback, Engine::Node, &floor.copies, 0.8, "a copy"),
            (Route::Loopback, Engine::Node, &floor.copies_huge, 0.8, "a copy in huge pages"),
            (Route::Shm, Engine::Embedded, &floor.copies, 0.4, "a copy"),
            (Route::Shm, Engine::Embedded, &floor.copies_huge, 0.4, "a copy in huge pages"),
            (Route::Udp, Engine::Embedded, &floor.udp, 0.7, "bare UDP"),
        ];
        for (link, how, rates, bound, what) in bounds {
            if let Some((ours, best)) = write(link, how, size).zip(rate(rates, size)) {
                let title = format!("{} at {} / {what}", name(&link), Size(size));
                targets.push(target(title, ours / best, bound, true));
            }
        }
        let plain = write(Route::Udp, Engine::Embedded, size);
        for (link, bound) in [(Route::UdpSealed, 0.5), (Route::UdpLoss, 0.8)] {
            if let Some((ours, plain)) = write(link, Engine::Embedded, size).zip(plain) {
                let title = format!("{} at {} / udp", name(&link), Size(size));
                targets.push(target(title, ours / plain, bound, true));
            }
        }
    }
    for Interference { link, how, idle, busy } in interference {
        let title =
            format!("99 % of small writes beside a large transfer / alone, {}, {}", name(link), name(how));
        targets.push(target(title, busy.p99_ns / idle.p99_ns, 3.0, false));
    }
    targets
}
