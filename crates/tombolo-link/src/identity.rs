//! Who a node is, and who may link to it.
//!
//! A node has a [`KeyPair`]: the secret half stays in a file that only its owner can read, the public
//! half is handed to others, who put it on their [`AllowList`]. Two nodes link when each finds the
//! other on its list.
//!
//! ```text
//!   node a                                  node b
//!   key:    tombolo-secret:A                key:    tombolo-secret:B
//!   allow:  tombolo-public:B  b             allow:  tombolo-public:A  a
//! ```

use std::sync::Arc;

pub(crate) mod allow;
pub(crate) mod file;
mod key;
mod permissions;
mod reader;

pub use allow::{AllowList, KeyRights};
pub use file::{KeyFileError, read_key_file, write_key_file};
pub use key::{KeyError, KeyPair, PUBLIC_PREFIX, PublicKey, SECRET_PREFIX};
pub use permissions::{Permission, Permissions, PermissionsError};
pub use reader::{ListReader, Reading, Ticket};

/// This node's keys, and the peers it talks to.
#[derive(Debug)]
pub struct Identity {
    /// Its own key pair.
    pub keys: KeyPair,
    /// The public keys of the nodes that it accepts and connects to.
    pub allowed: AllowList,
    /// Reads that list on a thread of its own, for callers that must not block.
    pub reader: ListReader,
}

/// How UDP links are protected. Shared memory is protected by the permissions of its socket's path.
#[derive(Debug, Clone)]
pub enum Security {
    /// Not at all: loopback addresses only.
    Insecure,
    /// Both sides prove who they are, and every datagram is encrypted.
    Secure(Arc<Identity>),
}

impl Security {
    /// Links of this node, whoever may be on its list.
    pub fn secure(keys: KeyPair, allowed: AllowList) -> Self {
        let reader = ListReader::new(allowed.clone());
        Self::Secure(Arc::new(Identity { keys, allowed, reader }))
    }

    pub(crate) fn identity(&self) -> Option<&Arc<Identity>> {
        match self {
            Self::Insecure => None,
            Self::Secure(identity) => Some(identity),
        }
    }
}
