//! `tombolo net`: one network interface for many namespaces, containers and virtual machines (MICRO ch. 3 and 6).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, Subcommand};
use tombolo_control::Trust;
use tombolo_control::place::Kind;
use tombolo_host::service;
use tombolo_link::Address;
use tombolo_net::client::{AskError, Client};
use tombolo_net::protocol::{Answer, Ask, PortStatus, UplinkStatus};

use crate::failure::Failure;
use crate::local;

mod attach;
mod coalesce;
mod serve;
mod set;
pub mod show;

/// Arguments of `tombolo net`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve an uplink to ports until interrupted.
    Serve(serve::Arguments),
    /// Make a network device in a namespace and attach it to an uplink, until interrupted.
    ///
    /// An owner must serve the uplink at first. While none does later, the device has no carrier; it is attached again when
    /// one comes.
    Attach(attach::Arguments),
    /// List the ports of an uplink.
    Ls(show::List),
    /// Show a port, or the uplink (`uplink`): what it is, may do, and has done.
    Show(show::Show),
    /// Change a port, or the uplink (`uplink`), while it runs.
    Set(Box<set::Arguments>),
    /// Show what was counted of a port, or of all.
    Stats(show::Stats),
}

/// Whose uplink is meant.
#[derive(Args)]
struct From {
    /// Where its owner listens: shm:PATH; `attach` also takes udp:HOST:PORT of another machine. The only one of this user's on
    /// this machine, unless given.
    #[arg(long, value_name = "ADDR")]
    from: Option<Address>,
}

impl From {
    fn connect(&self) -> Result<Client, Failure> {
        match &self.from {
            Some(address) => connect(&path_of(address)?, Trust::Anybody),
            None => connect(&only_owner()?, Trust::Own),
        }
    }

    /// Where the owner listens.
    fn address(&self) -> Result<Address, Failure> {
        match &self.from {
            Some(address) => Ok(address.clone()),
            None => Ok(Address::Shm(only_owner()?)),
        }
    }
}

/// Where the owners of uplinks listen that this user runs on this machine.
pub fn owners() -> Vec<PathBuf> {
    local::find(Kind::UPLINK).into_iter().map(|place| place.path).collect()
}

/// The uplink and the ports of the owner at a path. `None`: it has ended.
pub fn all_at(path: &Path, timeout: Duration) -> Option<Result<(UplinkStatus, Vec<PortStatus>), String>> {
    match Client::connect_within(path, Trust::Own, timeout) {
        Ok(client) => Some(show::all(&client).map_err(|failure| failure.text)),
        Err(error) if error.is_gone() => None,
        Err(error) => Some(Err(error.to_string())),
    }
}

/// Where the only owner of an uplink of this user's on this machine listens.
fn only_owner() -> Result<PathBuf, Failure> {
    let mut found = owners();
    match (found.len(), found.pop()) {
        (1, Some(owner)) => Ok(owner),
        (0, _) => {
            Err(Failure::new("no `tombolo net serve` of this user runs here: name it with --from ADDR"))
        }
        (_, last) => {
            let all = found.iter().chain(&last).map(|path| format!("shm:{}", path.display()));
            let all = all.collect::<Vec<_>>().join(", ");
            Err(Failure::new(format!("several uplinks are served here: choose one with --from: {all}")))
        }
    }
}

/// The path of an address on this machine.
fn path_of(address: &Address) -> Result<PathBuf, Failure> {
    match address {
        Address::Shm(path) => Ok(path.clone()),
        Address::ShmOf { .. } | Address::Udp(_) => {
            Err(Failure::new(format!("{address}: ports attach on their own machine, at shm:PATH")))
        }
    }
}

fn connect(path: &Path, trust: Trust) -> Result<Client, Failure> {
    Client::connect(path, trust).map_err(|error| {
        Failure::new(format!("no owner of an uplink answers at shm:{}: {error}", path.display()))
    })
}

/// Asks an owner for something.
fn ask(client: &Client, question: Ask) -> Result<Answer, Failure> {
    client.ask(question, &[]).map_err(|error| match error {
        AskError::Refused(reason) | AskError::NameTaken(reason) => Failure::new(reason),
        error => Failure::new(format!("the owner of the uplink does not answer: {error}")),
    })
}

/// Something else was answered than what was asked for.
fn unexpected(answer: &Answer) -> Failure {
    Failure::new(format!("the owner of the uplink answers something else than was asked: {answer:?}"))
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Whether a signal has come. It is asked again and again, which shows the service manager that this process is alive.
fn is_over() -> bool {
    let is_over = STOP.load(Ordering::Relaxed);
    if is_over {
        service::stopping()
    } else {
        service::alive()
    }
    is_over
}

/// Does what was asked for.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    match &arguments.command {
        Command::Serve(arguments) => serve::main(arguments),
        Command::Attach(arguments) => attach::main(arguments),
        Command::Ls(arguments) => show::list(arguments),
        Command::Show(arguments) => show::show(arguments),
        Command::Set(arguments) => set::main(arguments),
        Command::Stats(arguments) => show::stats(arguments),
    }
}
