//! `tombolo sockets serve`: the node.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use tombolo_control::place::{self, Bound, Kind};
use tombolo_control::{Server, Service};
use tombolo_host::service;
use tombolo_host::stops::stop_on_signals;
use tombolo_host::unix::UnixError;
use tombolo_sockets::Node;
use tombolo_sockets::node::Shared;
use tombolo_sockets::status::Status;

use crate::duration;
use crate::failure::Failure;
use crate::log::LogArguments;

/// Of what a node can be asked.
pub const VERSION: u16 = 1;

/// What root's node is called, which hands over connections of all users' programs.
pub const SYSTEM: &str = "system";
/// What another user's is called.
const USER: &str = "user";

/// What it can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// How are you?
    Status,
}

/// What it answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// How it is.
    Status(Box<Status>),
    /// Why it does not answer.
    Failed(String),
}

/// Arguments of `tombolo sockets serve`.
#[derive(Args)]
pub struct Arguments {
    /// End when no program has listened or been connected for so long, as in 1m.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    idle: Option<Duration>,
    /// Hand over connections of all users' programs, those of servers that give up root's rights among them. (They can make this node busy.)
    #[arg(long)]
    all_users: bool,
    #[command(flatten)]
    log: LogArguments,
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Whether a signal has come. It is asked again and again, which shows the service manager that this process is alive.
fn is_over() -> bool {
    service::alive();
    STOP.load(Ordering::Relaxed)
}

struct Answering(std::sync::Arc<Shared>);

impl Service for Answering {
    type Ask = Question;
    type Answer = Answer;
    const VERSION: u16 = VERSION;

    fn answer(&self, ask: Question) -> Answer {
        match ask {
            Question::Status => match self.0.status() {
                Some(status) => Answer::Status(Box::new(status)),
                None => Answer::Failed("the node does not answer within a second".into()),
            },
        }
    }

    fn refuse(&self, reason: String) -> Answer {
        Answer::Failed(reason)
    }
}

/// Runs it.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let _log = arguments.log.begin()?;
    // Each connection that is handed over has two descriptors here. Where more are not allowed, further ones stay TCP.
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let is_root = rustix::process::geteuid().is_root();
    let bound = place::listen(if is_root { SYSTEM } else { USER }, |stem| -> Result<_, UnixError> {
        let Bound::Listening(commands) = place::bind(Kind::SOCKETS, stem)? else { return Ok(Bound::Taken) };
        let Bound::Listening(programs) = place::bind(Kind::HANDOVER, stem)? else { return Ok(Bound::Taken) };
        Ok(Bound::Listening((commands, programs, stem.to_owned())))
    });
    let (commands, programs, stem) = bound.map_err(Failure::new)?;
    let at = programs.path().display().to_string();
    if arguments.all_users {
        programs.let_all_connect_and_pass().map_err(|error| Failure::new(error.to_string()))?;
    }
    let table = Kind::HANDOVER_TABLE.path(&stem);
    let node = Node::new(programs, &table).map_err(|error| Failure::new(error.to_string()))?;
    let shared = node.shared();
    let _server = Server::start(commands, Answering(shared.clone()))
        .map_err(|error| Failure::new(format!("cannot answer commands: {error}")))?;
    stop_on_signals(&STOP);
    tracing::info!("connections are handed over at {at}");
    service::ready();
    let served = node.run(arguments.idle, is_over);
    service::stopping();
    served.map_err(|error| Failure::new(format!("cannot wait for programs: {error}")))?;
    Ok(0)
}
