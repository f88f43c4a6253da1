//! `tombolo node`: lend memory until interrupted.

use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use tombolo_control::Server;
use tombolo_host::service;
use tombolo_host::stops::Signals;
use tombolo_host::timing::command::HANDSHAKE_SETTLE_TIME;
use tombolo_host::unix::SeqpacketListener;
use tombolo_node::{
    Address, Limits, Listener, Listeners, NeighbourEvent, Neighbourhood, Node, OpenError, PeerEvent,
    PeerLabel, Security,
};
use tracing::{debug, error, info, warn};

use crate::failure::Failure;
use crate::log::LogArguments;
use crate::node_control::Answering;
use crate::outage::OutageArguments;
use crate::security::SecurityArguments;
use crate::size::Size;
use crate::ways::{self, Ways};
use crate::{drain, duration, local, metrics, output};

/// Arguments of `tombolo node`.
#[derive(Args)]
pub struct Arguments {
    /// Where to listen: shm:PATH for this machine, udp:HOST:PORT for others, with keys. Several are separated
    /// by commas, or given one by one.
    #[arg(long, value_name = "ADDR", value_delimiter = ',', required = true)]
    listen: Vec<Address>,
    /// How much memory may be lent.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    lend: Size,
    /// Where programs of this machine open domains, to use the RDMA engine: a path for a socket.
    #[arg(long, value_name = "PATH")]
    programs: Option<PathBuf>,
    /// How many domains programs may have open at once, 64 channels each: up to 32767. Each process of a domain counts.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=32767))]
    domains: u16,
    /// How much memory may be allocated for programs, all together. What they register of their own
    /// does not count.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    program_memory: Size,
    /// How many blocks of transfers may be under way at once: up to 32768.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..=32768))]
    transactions: u16,
    /// Other nodes to connect to, which programs can then reach; several separated by commas. They are
    /// numbered from 1, in this order. Several addresses of one node, joined by +, are all used at once.
    /// Those that are not there are joined when they come, and joined again when they were lost.
    #[arg(long, value_name = "ADDR[+ADDR...]", value_delimiter = ',')]
    peer: Vec<Ways>,
    /// How long the node stays for its borrowers, and for the transfers of its programs, when it is to end (SIGTERM,
    /// SIGINT), lending to nobody new.
    /// Another signal ends it at once.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration::parse)]
    drain_timeout: Duration,
    /// Serve metrics for Prometheus by HTTP there; with port 0, at any free port. Nobody
    /// is asked for a password: whoever reaches that address sees names, addresses and figures.
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// What others see this node as; the host's name unless given.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    outage: OutageArguments,
    #[command(flatten)]
    security: SecurityArguments,
    #[command(flatten)]
    log: LogArguments,
}

static STOP: AtomicBool = AtomicBool::new(false);

/// This machine's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Reads the list of keys again at each SIGHUP, and ends the links of keys that are not on it any more.
fn reload_at_hangups(node: &Node, security: &Security, hangups: &Signals) {
    'hangups: while hangups.next(None).is_ok() {
        let Security::Secure(identity) = security else {
            warn!("SIGHUP: no link of this node has keys, so there is no list to read again");
            continue;
        };
        let mut count = 0;
        for pause in [Duration::ZERO, HANDSHAKE_SETTLE_TIME] {
            std::thread::sleep(pause);
            match node.close_disallowed(security) {
                Ok(closed) => {
                    for peer in &closed {
                        let list = &identity.allowed;
                        warn!("a link is ended, its key is no longer on {list}: {peer}");
                    }
                    count += closed.len();
                }
                Err(error) => {
                    error!("SIGHUP: the list of keys cannot be used, all links stay: {error}");
                    continue 'hangups;
                }
            }
        }
        info!("SIGHUP: read {} again, {count} link(s) ended", identity.allowed);
    }
}

/// Runs until SIGINT or SIGTERM, and then until its borrowers have gone.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    // Signals are blocked before any thread is started.
    let cannot_take = |error| Failure::new(format!("cannot take signals: {error}"));
    let hangups = Signals::take_hangups().map_err(cannot_take)?;
    let stops = Signals::take_stops().map_err(cannot_take)?;
    // Its thread must not take signals either.
    let _log = arguments.log.begin()?;
    let available = available_bytes().unwrap_or(u64::MAX);
    if arguments.lend.0 > available {
        return Err(Failure::new(format!(
            "--lend {} is more than the {} that this machine has available",
            arguments.lend,
            Size(available)
        )));
    }
    let name = arguments.name.clone().unwrap_or_else(host_name);
    let ways = arguments.peer.iter().flat_map(Ways::iter);
    let addresses: Vec<Address> = ways.chain(&arguments.listen).cloned().collect();
    let security = arguments.security.of(&addresses)?;
    let mut listeners = listen(&arguments.listen, &security)?;
    let addresses: Vec<String> = listeners.iter().map(|listener| listener.address().to_string()).collect();
    let mut control = None;
    match local::listen(&name) {
        Ok(local) => {
            listeners.push(local.link);
            control = Some(local.control);
        }
        Err(reason) => warn!("commands without an address do not find this node: {reason}"),
    }
    let listener = Listeners::new(listeners)?;
    let limits = Limits {
        domains: arguments.domains,
        program_memory_bytes: arguments.program_memory.0,
        transactions: arguments.transactions,
        ..Limits::default()
    };
    allow_descriptors();
    let node = Arc::new(Node::with_limits(&name, arguments.lend.0 / 4096 * 4096, 0, limits)?);
    node.listens_at(addresses.clone());
    node.set_outage(arguments.outage.outage());
    node.permit_by_list(&security);
    node.help_accesses_by(access_helper);
    let answering = |listener| Server::start(listener, Answering(Arc::downgrade(&node)));
    let _served = control.map(answering).transpose()?;
    if let Some(address) = arguments.metrics {
        let node = node.clone();
        let at = metrics::serve(address, move || metrics::of_node(&node.status()))?;
        info!("metrics are at http://{at}/metrics");
    }
    std::thread::spawn({
        let (node, timeout) = (node.clone(), arguments.drain_timeout);
        move || drain::end_at_signals(&node, &stops, timeout, &STOP, &|text| info!("{text}"))
    });
    let wanted = arguments.peer.iter().map(Ways::to_vec).collect();
    let neighbourhood = Neighbourhood::new(&node, wanted, &security)
        .map_err(|error| Failure::new(format!("cannot join others: {error}")))?;
    let programs = arguments.programs.as_deref().map(SeqpacketListener::bind).transpose()?;
    std::thread::spawn({
        let (node, security) = (node.clone(), security.clone());
        move || reload_at_hangups(&node, &security, &hangups)
    });
    let programs = programs.map(|listener| {
        let node = node.clone();
        std::thread::spawn(move || tombolo_node::receive_programs(&node, &listener, &STOP))
    });
    output::line(&format!("node {name} lends {} at {}", arguments.lend, addresses.join(", ")));
    // The process that started the node waits for that line.
    output::finish()?;
    service::ready();
    if let Some(interval) = service::watchdog_interval() {
        let node = node.clone();
        std::thread::spawn(move || say_alive(&node, interval));
    }
    let neighbourhood = std::thread::spawn(move || neighbourhood.keep(&STOP, &report_neighbour));
    tombolo_node::serve(&node, &listener, &STOP, &say);
    if programs.is_some_and(|thread| thread.join().is_err()) {
        return Err(Failure::new("the thread that receives programs failed"));
    }
    if neighbourhood.join().is_err() {
        return Err(Failure::new("the thread that keeps neighbours failed"));
    }
    node.leave();
    info!("stopped");
    Ok(0)
}

/// Tells the service manager for as long as the node serves.
fn say_alive(node: &Node, interval: Duration) {
    let mut last = None;
    loop {
        let rounds = node.rounds();
        if last.replace(rounds) != Some(rounds) {
            service::alive();
        }
        std::thread::sleep(interval);
    }
}

/// The command that starts a helper: this binary, also where another one lies at its path by now.
fn access_helper() -> std::process::Command {
    let mut command = std::process::Command::new("/proc/self/exe");
    command.arg0("tombolo").arg("help-accesses");
    command
}

/// Runs as a helper until the node at the other end of standard input is gone.
pub fn help_accesses() -> Result<u8, Failure> {
    let socket = rustix::io::dup(std::io::stdin())
        .map_err(|error| Failure::new(format!("cannot use standard input: {error}")))?;
    tombolo_node::help_accesses(socket)
        .map_err(|error| Failure::new(format!("only `tombolo node` starts this ({error})")))?;
    Ok(0)
}

/// Logs what has happened to a neighbour.
fn report_neighbour(event: NeighbourEvent<'_>) {
    match event {
        NeighbourEvent::Joined { address, name, again } => {
            info!("joined {address} (`{name}`){}", if again { " again" } else { "" });
        }
        NeighbourEvent::Lost { address, reason } => {
            warn!("lost {address}: {reason}; it is joined again when it is back");
        }
        NeighbourEvent::Failed { address, reason } => {
            warn!("cannot join {address} now, and goes on trying: {reason}");
        }
        NeighbourEvent::PathFailed { address, reason } => {
            warn!("cannot use {address} beside the other links now, and goes on trying: {reason}");
        }
    }
}

/// Logs what has happened to a peer. Links of peers that only ask for the status are not logged.
fn say(event: PeerEvent) {
    match event {
        PeerEvent::Came(label) => {
            let PeerLabel { name, key, process_id: process, address } = label;
            let (peer, key, address) = (name.as_deref(), key.as_deref(), address.as_deref());
            debug!(peer, key, process, address, "a link is there");
        }
        PeerEvent::Refused(reason) => warn!("a peer was refused: {reason}"),
        PeerEvent::PathGone(label, reason) => {
            let PeerLabel { name, key, process_id: process, address } = label;
            let (peer, key, address) = (name.as_deref(), key.as_deref(), address.as_deref());
            warn!(peer, key, process, address, "a further link to a neighbour is gone: {reason}");
        }
        PeerEvent::Gone(label, reason, bytes) => {
            let PeerLabel { name, key, process_id: process, address } = label;
            let (peer, key, address) = (name.as_deref(), key.as_deref(), address.as_deref());
            if bytes > 0 {
                info!(
                    peer,
                    key,
                    process,
                    address,
                    "a borrower is gone ({reason}): {} came back",
                    Size(bytes)
                );
            } else if peer.is_some() {
                info!(peer, key, process, address, "a neighbour is gone: {reason}");
            } else {
                debug!(peer, key, process, address, "a link is gone: {reason}");
            }
        }
    }
}

/// Listens at all of these addresses.
fn listen(addresses: &[Address], security: &Security) -> Result<Vec<Box<dyn Listener>>, Failure> {
    if let Some(address) = ways::twice(addresses.iter()) {
        return Err(Failure::new(format!("--listen names {address} twice")));
    }
    let listen =
        |address| tombolo_node::listen(address, security).map_err(|error| cannot_listen(address, &error));
    addresses.iter().map(listen).collect()
}

/// Says where the node cannot listen, which not every reason does.
fn cannot_listen(address: &Address, error: &OpenError) -> Failure {
    let (address, reason) = (address.to_string(), error.to_string());
    if reason.contains(&address) {
        return Failure::new(reason);
    }
    Failure::new(format!("cannot listen at {address}: {reason}"))
}

/// Each domain has a few descriptors, each link and each segment has one: as many as this process may
/// have. If they are not enough, those who come then are told so.
fn allow_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some() && current != maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// The memory that could be used without swapping, as the kernel says.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
