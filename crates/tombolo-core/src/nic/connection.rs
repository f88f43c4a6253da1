//! The connections of an owner with processes of its own machine, from the first call until the process has gone.
//!
//! ```text
//!   caller ─► refused
//!      └────► connected ─► has attached a port ─► gone: it says so, or its device is gone
//!                 └──────► ended, if it is of another user and has attached none in time
//! ```
//!
//! The owner's user and root attach ports and make requests. Other users attach the ports that the file of ports gives them.
//! Half of all connections is reserved for the owner's user and root, and each other user has at most a part of the other
//! half.

use std::collections::{BTreeMap, BTreeSet};

/// Most connections of an owner.
pub const CONNECTIONS_MAX: usize = 4096;
/// Most connections of all other users together.
pub const CONNECTIONS_MAX_OF_OTHERS: usize = CONNECTIONS_MAX / 2;
/// Most connections of one other user.
pub const CONNECTIONS_MAX_OF_USER: usize = 256;
/// How long a process of another user may take to attach a port, which it does with its first message.
pub const ATTACH_TIMEOUT_NS: u64 = 5_000_000_000;

/// The rank of a user, by which the owner admits its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The owner's user, or root.
    Owner,
    /// A user that the file of ports names.
    Listed,
    /// Any other user.
    Unlisted,
}

/// A process that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its user's number.
    pub user: u32,
    /// The rank of that user.
    pub rank: Rank,
    /// Its user's processes have passed more descriptors than could be closed.
    pub is_overdue: bool,
}

/// Why a caller is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its user is not the owner's, not root, and not in the file of ports.
    #[error(
        "the owner lets in its own user, root, and whom its file of ports names: user:{0} is none of them"
    )]
    Unlisted(u32),
    /// Descriptors that its user's processes have passed must be closed first.
    #[error("user:{0} has passed file descriptors that take long to close")]
    Overdue(u32),
    /// There are too many connections.
    #[error("there are {CONNECTIONS_MAX} connections already")]
    Full,
    /// Other users together have too many connections.
    #[error("other users have {CONNECTIONS_MAX_OF_OTHERS} connections already")]
    OthersFull,
    /// Its user has too many connections.
    #[error("a user has at most {CONNECTIONS_MAX_OF_USER} connections")]
    UserFull,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Its user, unless that is the owner's user or root.
    other: Option<u32>,
    since_ns: u64,
}

/// All connections of an owner, by number. Numbers grow and are not reused.
#[derive(Debug, Default)]
pub struct Connections {
    all: BTreeMap<u64, Connection>,
    /// Number of connections of each other user.
    others: BTreeMap<u32, usize>,
    /// Connections of other users that have attached no port yet, the oldest first.
    idle: BTreeSet<u64>,
}

impl Connections {
    fn of_others(&self) -> usize {
        self.others.values().sum()
    }

    /// Admits a caller as the connection of this number.
    ///
    /// # Errors
    /// Why the caller is not let in.
    pub fn enter(&mut self, now_ns: u64, number: u64, caller: Caller) -> Result<(), Refused> {
        let Caller { user, rank, is_overdue } = caller;
        let other = match rank {
            Rank::Owner => None,
            Rank::Listed => Some(user),
            Rank::Unlisted => return Err(Refused::Unlisted(user)),
        };
        if is_overdue {
            return Err(Refused::Overdue(user));
        }
        if self.all.len() >= CONNECTIONS_MAX {
            return Err(Refused::Full);
        }
        if other.is_some() {
            if self.others.get(&user).is_some_and(|count| *count >= CONNECTIONS_MAX_OF_USER) {
                return Err(Refused::UserFull);
            }
            if self.of_others() >= CONNECTIONS_MAX_OF_OTHERS {
                return Err(Refused::OthersFull);
            }
            *self.others.entry(user).or_default() += 1;
            self.idle.insert(number);
        }
        self.all.insert(number, Connection { other, since_ns: now_ns });
        Ok(())
    }

    /// Records that a connection has attached a port.
    pub fn attached(&mut self, number: u64) {
        self.idle.remove(&number);
    }

    /// Removes a connection that has ended.
    pub fn left(&mut self, number: u64) {
        self.idle.remove(&number);
        let Some(user) = self.all.remove(&number).and_then(|connection| connection.other) else { return };
        if let Some(count) = self.others.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.others.remove(&user);
            }
        }
    }

    /// Connections that are to be ended now, since they have not attached a port in time.
    pub fn overdue(&self, now_ns: u64) -> Vec<u64> {
        let is_late = |number: &&u64| {
            let since = self.all.get(number).map_or(0, |connection| connection.since_ns);
            now_ns.saturating_sub(since) > ATTACH_TIMEOUT_NS
        };
        self.idle.iter().take_while(is_late).copied().collect()
    }
}
