//! Who has pipes to an owner: ports of other machines, from their first word until they have gone.
//!
//! ```text
//!   greeting ─► refused
//!       └─────► session ─► has attached a port ─► ended: its node has gone, may not any more, or says so
//!                  └─────► ended: has attached none in time
//! ```
//!
//! One node has at most [`SESSIONS_MAX_OF_NODE`], and all nodes of one key [`SESSIONS_MAX_OF_KEY`], so that the others are let
//! in as long as there are any. A process that attaches a port is a node of its own: one machine, or one key, may have several.

use std::collections::BTreeMap;

/// Of what is said between owner and port.
pub const VERSION: u16 = 1;
/// The most sessions, each of which has two rings at the owner.
pub const SESSIONS_MAX: usize = 256;
/// Of those of one node.
pub const SESSIONS_MAX_OF_NODE: usize = 16;
/// Of those of one key.
pub const SESSIONS_MAX_OF_KEY: usize = 64;
/// How long one may take to say which port it is.
pub const ATTACH_TIMEOUT_NS: u64 = 5_000_000_000;
/// How often it is looked which nodes are still there.
pub const CHECK_INTERVAL_NS: u64 = 1_000_000_000;

/// The first word of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Whose it is.
    pub node: u32,
    /// The key that its node has proved.
    pub proved: Option<[u8; 32]>,
    /// Of what it says.
    pub version: u16,
    /// Of its ring.
    pub ring_bytes: u32,
    /// Whether the ring can be where it says.
    pub has_place: bool,
}

/// How a node stands now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// It is heard.
    pub is_there: bool,
    /// The list of keys permits it to attach ports.
    pub is_permitted: bool,
}

/// Why there is no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unwelcome {
    /// It speaks otherwise.
    #[error("this is version {VERSION} of the letters, not {0}")]
    Version(u16),
    /// Its ring is none, or of another size.
    #[error("a ring has {0} bytes")]
    Ring(u32),
    /// It has gone meanwhile.
    #[error("its node has gone")]
    Gone,
    /// It may not.
    #[error("the list of keys does not permit it to attach ports: add may=port to its line")]
    NotPermitted,
    /// There are too many.
    #[error("there are {SESSIONS_MAX} ports of other machines already")]
    Full,
    /// It has too many.
    #[error("a node has at most {SESSIONS_MAX_OF_NODE} ports")]
    NodeFull,
    /// All nodes of its key together do.
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

/// All of an owner.
#[derive(Debug)]
pub struct Sessions {
    ring_bytes: u32,
    all: BTreeMap<u64, Session>,
    checked_ns: u64,
}

impl Sessions {
    /// None yet; rings have that size.
    pub fn new(ring_bytes: u32) -> Self {
        Self { ring_bytes, all: BTreeMap::new(), checked_ns: 0 }
    }

    /// A port greets: it has a session by this key, which no other one has had.
    ///
    /// # Errors
    /// Why not.
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

    /// The port of this session is attached.
    pub fn attached(&mut self, key: u64) {
        if let Some(session) = self.all.get_mut(&key) {
            session.has_attached = true;
        }
    }

    /// The session has ended. False: there is none of this key.
    pub fn ended(&mut self, key: u64) -> bool {
        self.all.remove(&key).is_some()
    }

    /// Whose it is.
    pub fn node(&self, key: u64) -> Option<u32> {
        self.all.get(&key).map(|session| session.node)
    }

    /// Whether it is time for [`Sessions::overdue`].
    pub fn is_due(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.checked_ns) >= CHECK_INTERVAL_NS
    }

    /// Those that are to be ended now, as the nodes stand with which they began, by their keys: one that has come back since
    /// is another one.
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
