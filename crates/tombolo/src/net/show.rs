//! `tombolo net ls`, `show` and `stats`.

use clap::Args;
use serde_json::json;
use tombolo_net::bits::BitRate;
use tombolo_net::client::Client;
use tombolo_net::control::PORTS_MAX;
use tombolo_net::protocol::{Answer, Ask, Counters, PortStatus, Traffic, UPLINK, UplinkStatus, Vlans};

use super::{From, ask, unexpected};
use crate::failure::Failure;
use crate::output;
use crate::size::Size;
use crate::table::{self, Column};

const COLUMNS: [Column; 7] = [
    Column::name("PORT"),
    Column::figure("WEIGHT"),
    Column::figure("RATE"),
    Column::figure("GUARANTEE"),
    Column::figure("SENT"),
    Column::figure("RECEIVED"),
    Column::figure("DROPPED"),
];

/// Arguments of `tombolo net ls`.
#[derive(Args)]
pub struct List {
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: From,
}

/// Arguments of `tombolo net show`.
#[derive(Args)]
pub struct Show {
    /// Which port, as `ls` shows it; `uplink`: what all share.
    #[arg(value_name = "PORT|uplink")]
    port: String,
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: From,
}

/// Arguments of `tombolo net stats`.
#[derive(Args)]
pub struct Stats {
    /// Which port, as `ls` shows it; `uplink`; all, unless given.
    #[arg(value_name = "PORT|uplink")]
    port: Option<String>,
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    from: From,
}

fn uplink(client: &Client) -> Result<UplinkStatus, Failure> {
    match ask(client, Ask::ShowUplink)? {
        Answer::Uplink(status) => Ok(*status),
        answer => Err(unexpected(&answer)),
    }
}

fn port(client: &Client, name: &str) -> Result<PortStatus, Failure> {
    match ask(client, Ask::Show(name.to_owned()))? {
        Answer::Port(status) => Ok(*status),
        answer => Err(unexpected(&answer)),
    }
}

fn ports(client: &Client) -> Result<Vec<PortStatus>, Failure> {
    let mut all: Vec<PortStatus> = Vec::new();
    loop {
        let after = all.last().map(|last| last.port.name.clone());
        match ask(client, Ask::List { after })? {
            Answer::Ports(more) if more.is_empty() => return Ok(all),
            Answer::Ports(more) => {
                all.extend(more);
                // Or one that lists the same ports again and again would never end.
                if all.len() > PORTS_MAX || !all.is_sorted_by(|one, next| one.port.name < next.port.name) {
                    return Err(Failure::new(
                        "the owner of the uplink lists ports that are out of order, or more than there can be",
                    ));
                }
            }
            answer => return Err(unexpected(&answer)),
        }
    }
}

/// The uplink and its ports.
pub fn all(client: &Client) -> Result<(UplinkStatus, Vec<PortStatus>), Failure> {
    Ok((uplink(client)?, ports(client)?))
}

/// Lists the ports.
pub fn list(arguments: &List) -> Result<u8, Failure> {
    let client = arguments.from.connect()?;
    let (uplink, ports) = all(&client)?;
    if arguments.json {
        output::json(&json!({ "uplink": uplink, "ports": ports }))?;
        return Ok(0);
    }
    let carrier = if uplink.has_carrier { "" } else { ", without carrier" };
    let rate = BitRate(uplink.rate_bits);
    let UplinkStatus { interface, kind, scheduler, .. } = &uplink;
    line(&format!("uplink {interface} ({kind}): {rate}, {scheduler}{carrier}"));
    let rows: Vec<_> = ports.iter().map(row).collect();
    table::lines(&COLUMNS, &rows, table::width()).iter().for_each(|line| output::line(line));
    Ok(0)
}

fn row(PortStatus { port, counters, .. }: &PortStatus) -> Vec<String> {
    vec![
        port.name.clone(),
        port.weight.to_string(),
        BitRate(port.rate_bits).to_string(),
        guarantee(port.guaranteed_bits),
        Size(counters.sent.bytes).to_string(),
        Size(counters.received.bytes).to_string(),
        dropped(counters).to_string(),
    ]
}

fn dropped(counters: &Counters) -> u64 {
    counters.undelivered + counters.overflowed + counters.refused.values().sum::<u64>()
}

fn guarantee(bits: u64) -> String {
    if bits == 0 { "none".to_owned() } else { BitRate(bits).to_string() }
}

/// Prints a line with what an owner has said, who may be of any user: it does nothing to a terminal.
fn line(text: &str) {
    output::line(&text.replace(char::is_control, "\u{FFFD}"));
}

fn pair(name: &str, value: &str) {
    line(&format!("{name}: {value}"));
}

/// Shows a port or the uplink.
pub fn show(arguments: &Show) -> Result<u8, Failure> {
    let client = arguments.from.connect()?;
    if arguments.port == UPLINK {
        let status = uplink(&client)?;
        if arguments.json {
            output::json(&status)?;
            return Ok(0);
        }
        pair("interface", &status.interface);
        pair("opened as", &status.kind);
        pair("link detected", if status.has_carrier { "yes" } else { "no" });
        pair("mtu", &status.mtu.to_string());
        pair("rate", &BitRate(status.rate_bits).to_string());
        pair("scheduler", &status.scheduler);
        pair("mode", &status.mode);
        output::line("registers, which all ports share:");
        for register in &status.registers {
            line(&format!("     {}: {:#010x} ({})", register.name, register.value, register.meaning));
        }
        print_counters(&status.counters, ["tx", "rx"]);
        return Ok(0);
    }
    let status = port(&client, &arguments.port)?;
    if arguments.json {
        output::json(&status)?;
        return Ok(0);
    }
    let PortStatus { port, driver, queues, is_waiting, is_written_aside, process, user, node, counters } =
        &status;
    pair("driver", "tombolo");
    pair("version", env!("CARGO_PKG_VERSION"));
    pair("link detected", if driver.link_detected { "yes" } else { "no" });
    pair("rings", &driver.rings);
    pair("coalescing", &driver.coalescing);
    pair("offloads", &driver.offloads.join(", "));
    pair("device", &port.tap);
    pair("namespace", port.namespace.as_deref().unwrap_or("that of the process"));
    pair("permanent address", &port.mac);
    pair("mtu", &port.mtu.to_string());
    pair("queues", &queues.to_string());
    pair("weight", &port.weight.to_string());
    pair("rate", &BitRate(port.rate_bits).to_string());
    pair("guarantee", &guarantee(port.guaranteed_bits));
    pair(
        "vlans",
        &match &port.vlans {
            Vlans::Untagged => "untagged".to_owned(),
            Vlans::Access(vlan) => vlan.to_string(),
            Vlans::Trunk(all) => {
                format!("trunk {}", all.iter().map(u16::to_string).collect::<Vec<_>>().join(","))
            }
        },
    );
    pair(
        "addresses",
        &match &port.addresses {
            None => "any".to_owned(),
            Some(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        },
    );
    pair("promiscuous", if port.is_promiscuous { "on" } else { "off" });
    pair("has a frame waiting", if *is_waiting { "yes" } else { "no" });
    let aside = "aside, by another thread: the port is another user's, or its filters or firewall take long over frames";
    pair("frames are written", if *is_written_aside { aside } else { "at once" });
    match (node, user) {
        (Some(node), _) => pair("node", node),
        (None, user) => {
            let of_another = || "of another process namespace".to_owned();
            pair("process", &process.map_or_else(of_another, |process| process.to_string()));
            pair("user", &user.map_or_else(String::new, |user| user.to_string()));
        }
    }
    print_counters(counters, ["rx", "tx"]);
    Ok(0)
}

/// Shows what was counted.
pub fn stats(arguments: &Stats) -> Result<u8, Failure> {
    let client = arguments.from.connect()?;
    let mut all = Vec::new();
    match arguments.port.as_deref() {
        Some(UPLINK) => all.push((UPLINK.to_owned(), uplink(&client)?.counters)),
        Some(name) => all.push((name.to_owned(), port(&client, name)?.counters)),
        None => {
            all.push((UPLINK.to_owned(), uplink(&client)?.counters));
            all.extend(ports(&client)?.into_iter().map(|status| (status.port.name, status.counters)));
        }
    }
    if arguments.json {
        let map: serde_json::Map<_, _> = all
            .into_iter()
            .map(|(name, counters)| Ok((name, serde_json::to_value(counters)?)))
            .collect::<Result<_, serde_json::Error>>()?;
        output::json(&map)?;
        return Ok(0);
    }
    for (name, counters) in all {
        line(&format!("statistics of {name}:"));
        print_counters(&counters, if name == UPLINK { ["tx", "rx"] } else { ["rx", "tx"] });
    }
    Ok(0)
}

const SIZES: [&str; 7] =
    ["64", "65_to_127", "128_to_255", "256_to_511", "512_to_1023", "1024_to_1518", "over_1518"];

/// As `ethtool -S` does: a name and a number a line. `drops`: the direction in which frames that could not be delivered
/// were going, as the device sees it, and that of frames that were refused.
fn print_counters(counters: &Counters, drops: [&str; 2]) {
    let counted = |name: &str, value: u64| line(&format!("     {name}: {value}"));
    for (direction, traffic) in [("tx", &counters.sent), ("rx", &counters.received)] {
        let Traffic { frames, bytes, segments, by_size, broadcasts, multicasts } = traffic;
        counted(&format!("{direction}_packets"), *frames);
        counted(&format!("{direction}_bytes"), *bytes);
        counted(&format!("{direction}_segments"), *segments);
        counted(&format!("{direction}_broadcast"), *broadcasts);
        counted(&format!("{direction}_multicast"), *multicasts);
        for (size, count) in SIZES.iter().zip(by_size) {
            counted(&format!("{direction}_size_{size}"), *count);
        }
    }
    for (reason, count) in &counters.refused {
        counted(&format!("{}_dropped_{reason}", drops[1]), *count);
    }
    counted(&format!("{}_dropped", drops[0]), counters.undelivered);
    counted(&format!("{}_missed", drops[1]), counters.overflowed);
}
