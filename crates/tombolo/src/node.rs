//! `tombolo node`: lend memory until interrupted.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use tombolo_host::lines::Lines;
use tombolo_host::process::Hangups;
use tombolo_host::unix::SeqpacketListener;
use tombolo_node::{Address, Limits, Node, OpenError, PeerEvent, Security};

use crate::security::SecurityArguments;
use crate::size::Size;
use crate::ways::Ways;
use crate::{Failure, output};

/// Arguments of `tombolo node`.
#[derive(Args)]
pub struct Arguments {
    /// Where to listen: shm:PATH for this machine, udp:HOST:PORT for others, with keys.
    #[arg(long, value_name = "ADDR")]
    listen: Address,
    /// How much memory may be lent.
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    lend: Size,
    /// Where programs of this machine open domains, to use the RDMA engine: a path for a socket.
    #[arg(long, value_name = "PATH")]
    programs: Option<PathBuf>,
    /// How many domains programs may have open at once, 64 channels each: up to 32767.
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
    #[arg(long, value_name = "ADDR[+ADDR...]", value_delimiter = ',')]
    peer: Vec<Ways>,
    /// What others see this node as; the host's name unless given.
    #[arg(long)]
    name: Option<String>,
    #[command(flatten)]
    security: SecurityArguments,
}

/// How long another node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the terminal may take for the last lines.
const LAST_WORDS: Duration = Duration::from_secs(1);

static STOP: AtomicBool = AtomicBool::new(false);

/// This machine's name.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// A link whose handshake found its key on the list just before that changed is with the node by now.
const HANDSHAKE_TO_LINK: Duration = Duration::from_secs(1);

/// Reads the list of keys again at each SIGHUP, and ends the links of keys that are not on it any more.
fn reload_at_hangups(node: &Node, security: &Security, hangups: &Hangups, terminal: &Lines) {
    while hangups.wait().is_ok() {
        let Security::Secure(identity) = security else {
            let text = "tombolo: SIGHUP: no link of this node has keys, so there is no list to read again";
            terminal.say(text.into());
            continue;
        };
        let mut count = 0;
        for pause in [Duration::ZERO, HANDSHAKE_TO_LINK] {
            std::thread::sleep(pause);
            match node.close_disallowed(security) {
                Ok(closed) => {
                    for peer in &closed {
                        let list = &identity.allowed;
                        terminal
                            .say(format!("tombolo: a link is ended, its key is no longer on {list}: {peer}"));
                    }
                    count += closed.len();
                }
                Err(error) => {
                    terminal.say(format!(
                        "tombolo: SIGHUP: the list of keys cannot be used, all links stay: {error}"
                    ));
                }
            }
        }
        terminal.say(format!("tombolo: SIGHUP: read {} again, {count} link(s) ended", identity.allowed));
    }
}

/// Runs until SIGINT or SIGTERM.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    // Before any thread is started.
    let hangups = Hangups::take().map_err(|error| Failure::new(format!("cannot take SIGHUP: {error}")))?;
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
    let addresses: Vec<Address> = ways.chain([&arguments.listen]).cloned().collect();
    let security = arguments.security.of(&addresses)?;
    let listener = tombolo_node::listen(&arguments.listen, &security)
        .map_err(|error| cannot_listen(arguments, &error))?;
    let limits = Limits {
        domains: arguments.domains,
        program_memory_bytes: arguments.program_memory.0,
        transactions: arguments.transactions,
    };
    allow_descriptors();
    let node = Arc::new(Node::with_limits(&name, arguments.lend.0 / 4096 * 4096, 0, limits)?);
    // First all nodes, so that they are numbered in order.
    let mut several = Vec::new();
    for ways in &arguments.peer {
        several.push((node.join(&ways.first, &security, PATIENCE)?, ways));
    }
    let mut keepers = Vec::new();
    for (peer, ways) in several.into_iter().filter(|(_, ways)| ways.are_several()) {
        let mut paths = node.join_again(&peer, &ways.to_vec(), &security, PATIENCE)?;
        let (node, security) = (node.clone(), security.clone());
        keepers.push(std::thread::spawn(move || paths.keep(&node, &security, PATIENCE, &STOP)));
    }
    let programs = arguments.programs.as_deref().map(SeqpacketListener::bind).transpose()?;
    tombolo_host::process::stop_on_signals(&STOP);
    // The engine's loop must not wait for a terminal.
    let terminal = Lines::to(std::io::stderr());
    std::thread::spawn({
        let (node, security, terminal) = (node.clone(), security.clone(), terminal.clone());
        move || reload_at_hangups(&node, &security, &hangups, &terminal)
    });
    let programs = programs.map(|listener| {
        let node = node.clone();
        std::thread::spawn(move || tombolo_node::receive_programs(&node, &listener, &STOP))
    });
    output::line(&format!("node {name} lends {} at {}", arguments.lend, listener.address()));
    // Whoever started it waits for that line.
    output::finish()?;
    tombolo_node::serve(&node, &*listener, &STOP, &|event| match event {
        PeerEvent::Came(Some(process)) => terminal.say(format!("tombolo: process {process} connected")),
        PeerEvent::Came(None) => terminal.say("tombolo: a peer connected".into()),
        PeerEvent::PathGone(reason) => {
            terminal.say(format!("tombolo: a further link to a peer is gone: {reason}"))
        }
        PeerEvent::Refused(reason) => terminal.say(format!("tombolo: a peer was refused: {reason}")),
        PeerEvent::Gone(reason, 0) => terminal.say(format!("tombolo: a peer is gone: {reason}")),
        PeerEvent::Gone(reason, bytes) => {
            terminal.say(format!("tombolo: a borrower is gone ({reason}): {} came back", Size(bytes)));
        }
    });
    if programs.is_some_and(|thread| thread.join().is_err()) {
        return Err(Failure::new("the thread that receives programs failed"));
    }
    for keeper in keepers {
        if keeper.join().is_err() {
            return Err(Failure::new("a thread that keeps paths failed"));
        }
    }
    terminal.say("tombolo: stopped".into());
    terminal.flush(LAST_WORDS);
    Ok(0)
}

/// Says where the node cannot listen, which not every reason does.
fn cannot_listen(arguments: &Arguments, error: &OpenError) -> Failure {
    let (address, reason) = (arguments.listen.to_string(), error.to_string());
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

/// What the kernel says could be used without swapping.
fn available_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
