//! The nodes of this machine, as their own user finds them: each `tombolo node` listens in a directory that everybody knows, wherever
//! else it listens, at two sockets: one for commands that ask how it is ([`crate::node_control`]), one for links.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use tombolo_control::place::{self, Bound, Finds, Kind};
use tombolo_control::{Client, Trust};
use tombolo_host::unix::SeqpacketListener;
use tombolo_node::{Address, Listener, NodeStatus, OpenError, ShmListener};

use crate::failure::Failure;
use crate::node_control::{self, StatusError};
use crate::{output, side_by_side};

/// How long a command waits for a node whose process it wants to name. A bound, not a measurement.
const NAMING_TIMEOUT: Duration = Duration::from_millis(200);

/// The sockets of a node, for this user's own commands.
pub struct Sockets {
    /// For questions.
    pub control: SeqpacketListener,
    /// For links.
    pub link: Box<dyn Listener>,
}

/// Listens for this user's own commands.
pub fn listen(name: &str) -> Result<Sockets, String> {
    place::listen(name, |stem| -> Result<_, OpenError> {
        let Bound::Listening(control) = place::bind(Kind::NODE, stem)? else { return Ok(Bound::Taken) };
        match ShmListener::bind_for_own_user(&Kind::LINK.path(stem)) {
            Ok(link) => Ok(Bound::Listening(Sockets { control, link: Box::new(link) })),
            Err(OpenError::InUse(_)) => Ok(Bound::Taken),
            Err(error) => Err(error),
        }
    })
}

/// Looks for services of a kind. Where it did not look, it says once.
pub fn find(kind: Kind) -> Vec<place::Found> {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let Finds { found, refused } = place::find(kind);
    for reason in refused {
        let is_new = SAID.lock().is_ok_and(|mut said| said.insert(reason.clone()));
        if is_new {
            output::say(&format!("what listens there is passed over: {reason}"));
        }
    }
    found
}

/// A node that is alive.
pub struct Found(place::Found);

impl Found {
    /// The name that commands take.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Where it takes links.
    pub fn address(&self) -> Address {
        Address::Shm(Kind::LINK.path(&self.0.stem))
    }

    /// How it is.
    pub fn status(&self, counters: bool, timeout: Duration) -> Result<NodeStatus, StatusError> {
        node_control::status(&self.0.path, counters, timeout)
    }

    /// Its name, and which process it is, where the kernel says.
    fn described(&self) -> String {
        let client = Client::connect(&self.0.path, Trust::Own, NAMING_TIMEOUT);
        let peer = client.and_then(|client| client.peer());
        let process = peer.ok().and_then(|peer| peer.process_id);
        let process = process.map(|process| format!(" (process {process})"));
        format!("{}{}", self.name(), process.unwrap_or_default())
    }
}

/// All nodes of this user that are alive, by name.
pub fn nodes() -> Vec<Found> {
    let found = find(Kind::NODE);
    // A node that was killed leaves both of its sockets.
    place::remove_dead_besides(Kind::LINK, &found);
    found.into_iter().map(Found).collect()
}

fn described(nodes: &[Found]) -> String {
    side_by_side::ask(nodes, Found::described).join(", ")
}

fn none(example: &str) -> Failure {
    let looked: Vec<String> = place::directories().iter().map(|path| path.display().to_string()).collect();
    Failure::new(format!(
        "no node of this user runs on this machine (looked in {}): say where one listens, as in `tombolo {example} shm:/tmp/lender`",
        looked.join(" and ")
    ))
}

/// The only node of this user on this machine. The example is what stands before a name on the command line.
pub fn only_node(example: &str) -> Result<Found, Failure> {
    let mut nodes = nodes();
    match (nodes.len(), nodes.pop()) {
        (_, None) => Err(none(example)),
        (1, Some(node)) => Ok(node),
        (count, Some(node)) => {
            let name = node.name().to_owned();
            nodes.push(node);
            Err(Failure::new(format!(
                "{count} nodes run on this machine: say which, as in `tombolo {example} {name}`: {}",
                described(&nodes)
            )))
        }
    }
}

/// The node of that name.
pub fn node_named(name: &str) -> Result<Found, Failure> {
    let mut nodes = nodes();
    let wanted = place::file_name(name);
    if let Some(index) = nodes.iter().position(|node| node.name() == wanted) {
        return Ok(nodes.swap_remove(index));
    }
    let others = if nodes.is_empty() { String::new() } else { format!(", but {}", described(&nodes)) };
    Err(Failure::new(format!(
        "no node `{name}` of this user runs on this machine{others}; an address is shm:PATH or udp:HOST:PORT"
    )))
}
