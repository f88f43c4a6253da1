//! The sessions of an owner with ports of other machines, which have pipes to it: from the greeting of a port until it has
//! gone.
//!
//! ```text
//!   greeting ─► refused
//!       └─────► session ─► has attached a port ─► ended: its node has gone, may not any more, or says so
//!                  └─────► ended: has attached none in time
//! ```
//!
//! One node has at most [`SESSIONS_MAX_OF_NODE`] sessions, and all nodes of one key have at most [`SESSIONS_MAX_OF_KEY`], so
//! that one key cannot take all sessions. Each process that attaches a port is a node of its own, so one machine, or one key,
//! may have several nodes.

use std::collections::BTreeMap;

/// Version of the letters between owner and port.
pub const VERSION: u16 = 1;
/// Most sessions of an owner, which has two rings for each.
pub const SESSIONS_MAX: usize = 256;
/// Most sessions of one node.
pub const SESSIONS_MAX_OF_NODE: usize = 16;
/// Most sessions of all nodes of one key together.
pub const SESSIONS_MAX_OF_KEY: usize = 64;
/// How long a session may take until its port is attached.
pub const ATTACH_TIMEOUT_NS: u64 = 5_000_000_000;
/// How often an owner checks which nodes are still there.
pub const CHECK_INTERVAL_NS: u64 = 1_000_000_000;

/// The first message of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The port's node.
    pub node: u32,
    /// The key that its node has proved.
    pub proved: Option<[u8; 32]>,
    /// Version of the letters that the port sends.
    pub version: u16,
    /// Length of the port's ring.
    pub ring_bytes: u32,
    /// Whether the ring's address and length are possible.
    pub has_place: bool,
}

/// Whether a node is there, and may attach ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its link is not lost.
    pub is_there: bool,
    /// The list of keys permits it to attach ports.
    pub is_permitted: bool,
}

/// Why a port gets no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// The port uses another version of the letters.
    #[error("this is version {VERSION} of the letters, not {0}")]
    Version(u16),
    /// The port's ring has an impossible address or another size.
    #[error("a ring has {0} bytes")]
    Ring(u32),
    /// The port's node has gone meanwhile.
    #[error("its node has gone")]
    Gone,
    /// The port's node may not attach ports.
    #[error("the list of keys does not permit it to attach ports: add may=port to its line")]
    NotPermitted,
    /// There are too many sessions.
    #[error("there are {SESSIONS_MAX} ports of other machines already")]
    Full,
    /// The port's node has too many sessions.
    #[error("a node has at most {SESSIONS_MAX_OF_NODE} ports")]
    NodeFull,
    /// All nodes with the key of the port's node together have too many sessions.
    #[error("the nodes of one key have at most {SESSIONS_MAX_OF_KEY} ports")]
    KeyFull,
}

#[derive(Debug)]
struct Session {
    node: u32,
    proved: Option<[u8; 32]>,
    since_ns: u64,
    has_attached: bool,
}

/// All sessions of an owner.
#[derive(Debug)]
pub struct Sessions {
    ring_bytes: u32,
    all: BTreeMap<u64, Session>,
    checked_ns: u64,
}

impl Sessions {
    /// No sessions yet. All rings are to have this size.
    pub fn new(ring_bytes: u32) -> Self {
        Self { ring_bytes, all: BTreeMap::new(), checked_ns: 0 }
    }

    /// Begins a session for a port that greets. `key` names the session and must not have been used before.
    ///
    /// # Errors
    /// Why the port gets no session.
    pub fn greet(
        &mut self,
        now_ns: u64,
        key: u64,
        greeting: Greeting,
        standing: Standing,
    ) -> Result<(), Unwelcome> {
        let Greeting { node, proved, version, ring_bytes, has_place } = greeting;
        if version != VERSION {
            return Err(Unwelcome::Version(version));
        }
        if !has_place || ring_bytes != self.ring_bytes {
            return Err(Unwelcome::Ring(self.ring_bytes));
        }
        if !standing.is_there {
            return Err(Unwelcome::Gone);
        }
        if !standing.is_permitted {
            return Err(Unwelcome::NotPermitted);
        }
        if self.all.values().filter(|session| session.node == node).count() >= SESSIONS_MAX_OF_NODE {
            return Err(Unwelcome::NodeFull);
        }
        let of_key = || self.all.values().filter(|session| session.proved == proved).count();
        if proved.is_some() && of_key() >= SESSIONS_MAX_OF_KEY {
            return Err(Unwelcome::KeyFull);
        }
        if self.all.len() >= SESSIONS_MAX {
            return Err(Unwelcome::Full);
        }
        self.all.insert(key, Session { node, proved, since_ns: now_ns, has_attached: false });
        Ok(())
    }

    /// Records that the port of this session is attached.
    pub fn attached(&mut self, key: u64) {
        if let Some(session) = self.all.get_mut(&key) {
            session.has_attached = true;
        }
    }

    /// Removes a session that has ended. Returns false if there is none of this key.
    pub fn ended(&mut self, key: u64) -> bool {
        self.all.remove(&key).is_some()
    }

    /// The node of a session.
    pub fn node(&self, key: u64) -> Option<u32> {
        self.all.get(&key).map(|session| session.node)
    }

    /// Whether it is time for [`Sessions::overdue`].
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.checked_ns) >= CHECK_INTERVAL_NS
    }

    /// The keys of the sessions that are to be ended now. `standing` tells, by a session's key, the standing of the node with
    /// which the session began. A node that has come back since counts as a different one.
    pub fn overdue(&mut self, now_ns: u64, standing: impl Fn(u64) -> Standing) -> Vec<u64> {
        self.checked_ns = now_ns;
        let is_overdue = |(key, session): &(&u64, &Session)| {
            let is_idle =
                !session.has_attached && now_ns.saturating_sub(session.since_ns) > ATTACH_TIMEOUT_NS;
            let Standing { is_there, is_permitted } = standing(**key);
            is_idle || !is_there || !is_permitted
        };
        self.all.iter().filter(is_overdue).map(|(key, _)| *key).collect()
    }
}
