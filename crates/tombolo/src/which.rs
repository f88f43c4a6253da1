//! `NAME|ADDR[+ADDR...]`: a running node, as it is written on the command line: by where it listens, or by the name
//! that it has on this machine.

use std::fmt;
use std::str::FromStr;

use crate::failure::Failure;
use crate::local;
use crate::ways::{Ways, WaysError};

/// Which node is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one at these addresses.
    At(Ways),
    /// The one of this name that this user, or root, runs on this machine.
    Named(String),
}

impl Which {
    /// Where it listens. One that has a name is looked for now.
    pub fn ways(&self) -> Result<Ways, Failure> {
        match self {
            Self::At(ways) => Ok(ways.clone()),
            Self::Named(name) => Ok(local::node_named(name)?.address().into()),
        }
    }
}

impl FromStr for Which {
    type Err = WaysError;

    fn from_str(text: &str) -> Result<Self, WaysError> {
        match text.contains(':') || text.is_empty() {
            true => text.parse().map(Self::At),
            false => Ok(Self::Named(text.to_owned())),
        }
    }
}

impl fmt::Display for Which {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(ways) => ways.fmt(formatter),
            Self::Named(name) => name.fmt(formatter),
        }
    }
}
