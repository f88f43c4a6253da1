//! Who is connected to an owner from its own machine, from the first moment until they have gone.
//!
//! ```text
//!   caller ─► refused
//!      └────► connected ─► has attached a port ─► gone: it says so, or its device is gone
//!                 └──────► ended, if it is of another user and has attached none in time
//! ```
//!
//! The owner's user and root attach ports and ask. Others attach those that the file of ports gives them: whatever they do, half
//! of all connections is left to the owner, and one user takes a bounded part of the other half.

use std::collections::{BTreeMap, BTreeSet};

/// The most connections.
pub const CONNECTIONS_MAX: usize = 4096;
/// The most of all other users.
pub const CONNECTIONS_MAX_OF_OTHERS: usize = CONNECTIONS_MAX / 2;
/// The most of one of them.
pub const CONNECTIONS_MAX_OF_USER: usize = 256;
/// How long another user may take to attach a port: it is asked for with the first message.
pub const ATTACH_TIMEOUT_NS: u64 = 5_000_000_000;

/// Who a user is to the owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// The owner's user, or root.
    Owner,
    /// One that the file of ports names.
    Listed,
    /// Anybody.
    Unlisted,
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its user.
    pub user: u32,
    /// Who that is.
    pub rank: Rank,
    /// It has passed more descriptors than could be closed.
    pub is_overdue: bool,
}

/// Why a caller is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is nobody who has ports here.
    #[error(
        "the owner lets in its own user, root, and whom its file of ports names: user:{0} is none of them"
    )]
    Unlisted(u32),
    /// What it has passed is to be closed first.
    #[error("user:{0} has passed file descriptors that take long to close")]
    Overdue(u32),
    /// There are too many.
    #[error("there are {CONNECTIONS_MAX} connections already")]
    Full,
    /// Other users have too many.
    #[error("other users have {CONNECTIONS_MAX_OF_OTHERS} connections already")]
    OthersFull,
    /// It has too many.
    #[error("a user has at most {CONNECTIONS_MAX_OF_USER} connections")]
    UserFull,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    /// Its user, if it is another one than the owner's.
    other: Option<u32>,
    since_ns: u64,
}

/// All of an owner, by numbers that grow and are given once.
#[derive(Debug, Default)]
pub struct Connections {
    all: BTreeMap<u64, Connection>,
    /// How many each other user has.
    others: BTreeMap<u32, usize>,
    /// Those of other users that have attached nothing, the oldest first.
    idle: BTreeSet<u64>,
}

impl Connections {
    fn of_others(&self) -> usize {
        self.others.values().sum()
    }

    /// A caller connects, and has this number.
    ///
    /// # Errors
    /// Why it is not let in.
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

    /// A port is attached by this one.
    pub fn attached(&mut self, number: u64) {
        self.idle.remove(&number);
    }

    /// It has gone.
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

    /// Those that are to be ended now.
    pub fn overdue(&self, now_ns: u64) -> Vec<u64> {
        let is_late = |number: &&u64| {
            let since = self.all.get(number).map_or(0, |connection| connection.since_ns);
            now_ns.saturating_sub(since) > ATTACH_TIMEOUT_NS
        };
        self.idle.iter().take_while(is_late).copied().collect()
    }
}
