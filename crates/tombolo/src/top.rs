//! `tombolo top`: what runs here of this user, again and again: programs on far memory with their lenders, nodes, ports.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use crate::failure::Failure;
use crate::table::{self, Column};
use crate::watch::{Seen, Watch, What, number, size, word};
use crate::{cells, duration, output};

const LENDERS: [Column; 7] = [
    Column::name("LENDER"),
    Column::name("STATE"),
    Column::figure("BORROWED"),
    Column::figure("USED"),
    Column::figure("READ/S"),
    Column::figure("WRITTEN/S"),
    Column::rest("ADDRESS"),
];
const NODES: [Column; 9] = [
    Column::name("NODE"),
    Column::figure("PID"),
    Column::figure("UP"),
    Column::figure("LENT"),
    Column::figure("FREE"),
    Column::figure("BORROWERS"),
    Column::figure("NEIGHBOURS"),
    Column::figure("IN/S"),
    Column::figure("OUT/S"),
];
const PORTS: [Column; 6] = [
    Column::name("UPLINK"),
    Column::name("PORT"),
    Column::figure("SENT/S"),
    Column::figure("RECEIVED/S"),
    Column::figure("DROPPED/S"),
    Column::rest("STATE"),
];
/// The first look shows no rates; the second one comes soon.
const FIRST_INTERVAL: Duration = Duration::from_millis(300);

/// Arguments of `tombolo top`.
#[derive(Args)]
pub struct Arguments {
    /// How long between two looks, as 2s or 500ms.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// How many looks; until interrupted unless given.
    #[arg(long, short, value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print each look as JSON, on a line of its own, and nothing else.
    #[arg(long)]
    json: bool,
    /// Only these kinds; all of them unless given.
    #[arg(value_name = "KIND")]
    kinds: Vec<What>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text)?;
    if time < Duration::from_millis(10) {
        return Err(format!("{text} is too short: at least 10ms"));
    }
    Ok(time)
}

/// Shows what runs until interrupted.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let is_screen = std::io::stdout().is_terminal() && !arguments.json;
    let mut watch = Watch::new(&arguments.kinds, false);
    watch.look();
    std::thread::sleep(FIRST_INTERVAL.min(arguments.interval));
    let mut looks = 0;
    while !output::failed() {
        let seen = watch.look();
        output::line(&match (arguments.json, is_screen) {
            (true, _) => seen.in_json().to_string(),
            (false, true) => on_screen(&text_of(&seen, table::width()), looks == 0),
            (false, false) => text_of(&seen, table::width()),
        });
        output::flush();
        looks += 1;
        if arguments.count.is_some_and(|count| looks >= count) {
            break;
        }
        std::thread::sleep(arguments.interval);
    }
    Ok(0)
}

/// The text where the last one stood, without flicker: each line is written over, and what is left is erased.
fn on_screen(text: &str, is_first: bool) -> String {
    let start = if is_first { "\x1b[2J\x1b[H" } else { "\x1b[H" };
    format!("{start}{}\x1b[K\n\x1b[J", text.replace('\n', "\x1b[K\n"))
}

/// A length of time in the unit that fits.
pub fn shown(ns: u64) -> String {
    if ns == 0 {
        return "-".into();
    }
    format!("{:.1?}", Duration::from_nanos(ns))
}

fn text_of(seen: &Seen, width: usize) -> String {
    if seen.is_empty() {
        return format!("{}\n", seen.nothing());
    }
    let node = |node: &Value| {
        let rate = |name: &str| size(&node["per_s"][name]);
        [cells::node(node), vec![rate("received_bytes"), rate("sent_bytes")]].concat()
    };
    let port = |port: &Value| {
        let rates = &port["per_s"];
        vec![
            size(&rates["sent_bytes"]),
            size(&rates["received_bytes"]),
            number(&rates["dropped"]).to_string(),
        ]
    };
    let sections = [
        (&NODES[..], seen.of(What::Nodes).iter().map(node).collect::<Vec<_>>()),
        (&PORTS[..], seen.of(What::Uplinks).iter().flat_map(|uplink| cells::ports(uplink, port)).collect()),
    ];
    let mut text = text_of_programs(seen.of(What::Programs), width);
    let lines = table::sections(&sections, width);
    if !text.is_empty() && !lines.is_empty() {
        text.push('\n');
    }
    for line in lines {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn text_of_programs(programs: &[Value], width: usize) -> String {
    let mut text = String::new();
    for program in programs {
        let (far, per_s, pauses) = (&program["far"], &program["per_s"], &program["pauses"]);
        let _ = writeln!(
            text,
            "{} ({})  local {}  far {}",
            word(program, "name"),
            number(&program["pid"]),
            size(&program["resident_bytes"]),
            size(&far["used_bytes"]),
        );
        let _ = writeln!(
            text,
            "  {} far faults/s, 99 % of pauses within {}, the longest {}",
            number(&per_s["far_faults"]),
            shown(number(&per_s["p99_us"]) * 1000),
            shown(number(&pauses["longest_ns"])),
        );
        let _ = writeln!(text, "  in {}/s, out {}/s", size(&per_s["bytes_in"]), size(&per_s["bytes_out"]));
        if number(&far["copies"]) > 1 {
            let _ = writeln!(
                text,
                "  copies {}: {} pages with one, {} copies to make, {} made/s",
                number(&far["copies"]),
                number(&far["one_copy_pages"]),
                number(&far["copies_waiting"]),
                number(&per_s["copies"]),
            );
        }
        let rows: Vec<_> = cells::present_lenders(program).map(row).collect();
        for line in table::lines(&LENDERS, &rows, width.saturating_sub(2)) {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

fn row(lender: &Value) -> Vec<String> {
    let mut cells = cells::lender(lender);
    cells.extend(["read_bytes", "written_bytes"].map(|rate| size(&lender["per_s"][rate])));
    cells.push(word(lender, "address").to_owned());
    cells
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_screen_is_written_over() {
        assert_eq!(on_screen("a\nb\n", false), "\x1b[Ha\x1b[K\nb\x1b[K\n\x1b[K\n\x1b[J");
        assert!(on_screen("a", true).starts_with("\x1b[2J"));
    }

    #[test]
    fn lenders_that_are_gone_are_left_out() {
        let lender = |state: &str| json!({ "name": format!("{state} one"), "state": state });
        let program =
            json!({ "name": "sort", "pid": 7, "far": { "lenders": [lender("active"), lender("gone")] } });
        let text = text_of_programs(&[program], 80);
        assert!(text.starts_with("sort (7)  local 0 B") && text.contains("active one"), "{text}");
        assert!(!text.contains("gone one"), "{text}");
    }
}
