//! What a node says of itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Its number.
    pub id: u64,
    /// Who has connected.
    pub client: String,
    /// Who has accepted.
    pub server: String,
    /// `offered`, `handed-over` or `relayed`.
    pub mode: String,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// Where it listens.
    pub at: String,
    /// Its process, as the node sees it; 0: it does not.
    pub process: u32,
    /// Its user.
    pub user: u32,
    /// Whether connections to it are handed over.
    pub is_offered: bool,
}

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The node's process.
    pub process_id: u32,
    /// Connections.
    pub connections: Vec<Connection>,
    /// How many connections there are: more than are listed, if there are many.
    pub connections_count: usize,
    /// Listeners.
    pub listeners: Vec<Listener>,
    /// Connections handed over, relayed, cancelled and reset since the node began.
    pub counters: BTreeMap<String, u64>,
    /// Why connections stayed TCP, and how often.
    pub refused: BTreeMap<String, u64>,
}

/// Connections that are listed at most: the answer is one message.
pub const CONNECTIONS_MAX: usize = 500;
/// Listeners that are listed at most.
pub const LISTENERS_MAX: usize = 300;
