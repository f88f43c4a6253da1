//! The lives of nodes: a random number for each.
//!
//! A node that is started again has the name, the address and the key that it had before, but none of its memory and
//! none of its grants. So each life has a random number. Nodes tell each other this number when they introduce
//! themselves, over links of every kind. The number also tells two nodes of one user on one machine apart.

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use tombolo_link::PublicKey;

/// The system gave no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random numbers")]
pub(crate) struct NoRandomNumbers;

/// The random number that identifies one life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Life(pub [u8; 16]);

/// Bytes that nobody can guess.
pub(crate) fn random<const BYTES: usize>() -> Result<[u8; BYTES], NoRandomNumbers> {
    let mut bytes = [0; BYTES];
    // From the kernel: the encryption library takes 37 ms for its first random bytes.
    if getrandom(&mut bytes[..], GetRandomFlags::empty()) != Ok(BYTES) {
        return Err(NoRandomNumbers);
    }
    Ok(bytes)
}

impl Life {
    pub(crate) fn new() -> Result<Self, NoRandomNumbers> {
        random().map(Self)
    }
}

/// Identifies a node in a message to a third node. A name would not do, because any node can choose any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// The key that it has proved, where the link asks for keys.
    pub key: Option<[u8; 32]>,
    /// Its life.
    pub life: Life,
}

impl NodeIdentity {
    pub(crate) fn new(key: Option<PublicKey>, life: Life) -> Self {
        Self { key: key.map(|key| key.to_bytes()), life }
    }

    /// Whether both may be the same node: the same life, and no two different keys. A key is missing if one of two
    /// nodes knows the node over shared memory.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        self.life == other.life && (self.key == other.key || self.key.is_none() || other.key.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_differ() {
        assert_ne!(Life::new().unwrap(), Life::new().unwrap());
    }

    #[test]
    fn a_node_is_known_by_life_and_key() {
        let (one, other) = (Life([1; 16]), Life([2; 16]));
        let identity = |key: Option<u8>, life| NodeIdentity { key: key.map(|byte| [byte; 32]), life };
        assert!(identity(Some(5), one).may_be(&identity(Some(5), one)));
        assert!(identity(Some(5), one).may_be(&identity(None, one)));
        assert!(!identity(Some(5), one).may_be(&identity(Some(6), one)), "it claims another's life");
        assert!(!identity(Some(5), one).may_be(&identity(Some(5), other)), "it was started again");
        assert!(!identity(None, one).may_be(&identity(None, other)));
    }
}
