//! The nodes of this machine, as their own user finds them: each `tombolo node` listens in a directory that everybody knows, wherever
//! else it listens, at two sockets: one for commands that ask how it is ([`crate::node_control`]), one for links.

use std::time::Duration;

use tombolo_control::place::{self, Bound, Finds, Kind};
use tombolo_control::{AskError, Client, Trust};
use tombolo_host::unix::{SeqpacketListener, UnixError};
use tombolo_node::{Address, Listener, OpenError, ShmListener};

use crate::failure::Failure;
use crate::{output, side_by_side};

/// How long a command waits until a node has accepted its connection. A bound, not a measurement.
const TIMEOUT: Duration = Duration::from_secs(2);

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

/// Looks for services of a kind, and says where it did not look.
pub fn find(kind: Kind) -> Vec<place::Found> {
    let Finds { found, refused } = place::find(kind);
    for reason in refused {
        output::say(&format!("what listens there is passed over: {reason}"));
    }
    found
}

/// A node that is alive.
pub struct Found {
    place: place::Found,
    /// Which process it is, where the kernel says.
    process_id: Option<u32>,
    /// Nothing: its queue of connections is full.
    client: Option<Client>,
}

impl Found {
    /// The name that commands take.
    pub fn name(&self) -> &str {
        &self.place.name
    }

    /// Where it takes links.
    pub fn address(&self) -> Address {
        Address::Shm(Kind::LINK.path(&self.place.stem))
    }

    /// A connection for questions.
    pub fn client(&self) -> Result<&Client, AskError> {
        self.client.as_ref().ok_or(AskError::TimedOut(TIMEOUT))
    }

    fn described(&self) -> String {
        let process = self.process_id.map(|process| format!(" (process {process})"));
        format!("{}{}", self.name(), process.unwrap_or_default())
    }
}

/// All nodes of this user and root that are alive, by name.
pub fn nodes() -> Vec<Found> {
    let places = find(Kind::NODE);
    let clients = side_by_side::ask(&places, |place| Client::connect(&place.path, Trust::Own, TIMEOUT));
    let alive = places.into_iter().zip(clients).filter_map(|(place, client)| match client {
        Ok(client) => {
            let process_id = client.peer().ok().and_then(|peer| peer.process_id);
            Some(Found { place, process_id, client: Some(client) })
        }
        Err(AskError::TimedOut(_)) => Some(Found { place, process_id: None, client: None }),
        // It has ended just now.
        Err(AskError::Socket(UnixError::Path { errno, .. })) if is_gone(errno) => None,
        Err(error) => {
            output::say(&format!("the node at {} is left out: {error}", place.path.display()));
            None
        }
    });
    alive.collect()
}

/// Whether no process listens at a socket any more.
pub fn is_gone(errno: rustix::io::Errno) -> bool {
    matches!(errno, rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT)
}

fn described(nodes: &[Found]) -> String {
    nodes.iter().map(Found::described).collect::<Vec<_>>().join(", ")
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
