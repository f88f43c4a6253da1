//! The network of a bench: a namespace with nothing but its own loopback, whose
//! routes say which congestion control TCP uses, or else the machine's.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rustix::net::sockopt::tcp_congestion;

use crate::bench::child;

/// The congestion controls under which TCP is raced; the better of both counts.
pub const CONTROLS: [&str; 2] = ["cubic", "bbr"];

/// The longest that a command which sets the network up may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
/// Below those that the kernel gives to clients by itself.
const PORTS: std::ops::Range<u16> = 20_000..30_000;

/// Why this process may not have a network of its own.
pub fn may_have_own() -> Result<(), String> {
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "ip", "link", "set", "lo", "up"]);
    child::run(&mut command, COMMAND_LIMIT).map(drop).map_err(|trouble| format!("unshare --net: {trouble}"))
}

fn ip(words: &[&str]) -> Result<(), String> {
    let mut command = Command::new("ip");
    command.args(words);
    child::run(&mut command, COMMAND_LIMIT)
        .map(drop)
        .map_err(|trouble| format!("ip {}: {trouble}", words.join(" ")))
}

/// How often a port was asked for.
static TURN: AtomicU16 = AtomicU16::new(0);

/// The network.
pub struct Network {
    own: bool,
    controls: Vec<String>,
    default: String,
}

impl Network {
    /// The one that this process is in; `own`: nobody else is in it.
    pub fn new(own: bool) -> Result<Self, String> {
        let file = "/proc/sys/net/ipv4/tcp_congestion_control";
        let default = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?.trim().to_owned();
        if own {
            ip(&["link", "set", "lo", "up"])?;
        }
        let controls =
            if own { CONTROLS.iter().map(ToString::to_string).collect() } else { vec![default.clone()] };
        Ok(Self { own, controls, default })
    }

    /// Whether it is a namespace of the bench's own.
    pub fn is_own(&self) -> bool {
        self.own
    }

    /// The machine's congestion control.
    pub fn default_control(&self) -> &str {
        &self.default
    }

    /// The congestion controls under which programs can be raced that do not choose one themselves.
    pub fn controls(&self) -> &[String] {
        &self.controls
    }

    /// From now on connections use this one, and it is made sure that they do.
    pub fn choose(&self, control: &str) -> Result<(), String> {
        if self.own {
            for prefix in ["127.0.0.0/8", "127.0.0.1"] {
                let route = ["dev", "lo", "proto", "kernel", "scope", "host", "src", "127.0.0.1"];
                let words = ["route", "replace", "local", prefix];
                let end = ["table", "local", "congctl", control];
                ip(&[&words[..], &route, &end].concat())?;
            }
        }
        let used = self.used().map_err(|error| format!("a connection on loopback: {error}"))?;
        match used.iter().find(|used| *used != control) {
            None => Ok(()),
            Some(other) => Err(format!("{control} was asked for, and a connection uses {other}")),
        }
    }

    /// What both ends of a new connection use.
    fn used(&self) -> std::io::Result<[String; 2]> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        let (far, _) = listener.accept()?;
        Ok([tcp_congestion(near)?, tcp_congestion(far)?])
    }

    /// A port that nobody listens at, another one each time.
    pub fn port(&self) -> Result<u16, String> {
        let count = PORTS.end - PORTS.start;
        for _ in PORTS {
            // Two benches that find the same port free begin at different ports.
            let begin = std::process::id() % u32::from(count);
            let turn = u32::from(TURN.fetch_add(1, Ordering::Relaxed));
            let port = PORTS.start + ((begin + turn) % u32::from(count)) as u16;
            if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
                return Ok(port);
            }
        }
        Err(format!("no port of {} to {} is free", PORTS.start, PORTS.end))
    }
}

/// Whether somebody listens at a port.
pub fn is_listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|table| fs::read_to_string(table).is_ok_and(|table| listens(&table, port)))
}

/// Whether a table of sockets has one that listens at this port.
fn listens(table: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let end = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, state) = (words.next(), words.next(), words.next());
        local.is_some_and(|address| address.ends_with(&end)) && state == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_in_the_kernel_s_table() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
                     0: 00000000:4E21 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 287273 1\n   \
                     1: 0100007F:4E22 0100007F:D4C8 06 00000000:00000000 03:00001747 00000000     0        0 0 3\n";
        assert!(listens(table, 20_001));
        // A connection that has ended, and nobody.
        assert!(!listens(table, 20_002));
        assert!(!listens(table, 20_003));
        assert!(!listens("", 20_001));
    }

    #[test]
    fn a_listener_of_this_process_is_seen() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listening(port));
        drop(listener);
        // Another test may be starting a program, which has the socket until it is executed.
        let since = std::time::Instant::now();
        while is_listening(port) {
            assert!(since.elapsed() < Duration::from_secs(60), "it listens still");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_machine_s_network_is_left_as_it_is() {
        let network = Network::new(false).unwrap();
        assert!(!network.is_own());
        assert_eq!(network.controls(), [network.default_control()]);
        network.choose(network.default_control()).unwrap();
        let wrong = network.choose("none").unwrap_err();
        assert!(wrong.contains("none was asked for"), "{wrong}");
        let (one, other) = (network.port().unwrap(), network.port().unwrap());
        assert_ne!(one, other);
    }
}
