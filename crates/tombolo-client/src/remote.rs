//! Handles of memory, for programs at other nodes: numbers of nodes mean something at one node alone.

use tombolo_channel::Target;

use crate::domain::Domain;
use crate::error::OpenError;

/// Memory of a domain, named so that a program at any node can find it: which life of which node, which domain,
/// where, and how much. It gives no rights: grants do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    life: [u8; 16],
    domain: u16,
    address: u64,
    length_bytes: u64,
}

/// Bytes that are no handle of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// There are more, or fewer.
    #[error("a handle of memory has {expected} bytes, not {0}", expected = Remote::BYTES)]
    Length(usize),
    /// They begin otherwise.
    #[error("these bytes are no handle of memory, or one of another version")]
    Version,
}

/// How the bytes of a handle begin: its kind, and its version.
const PREFIX: [u8; 6] = *b"TmbR\x00\x01";

impl Remote {
    /// The bytes of a handle: kind and version (6), domain (2), life (16), address (8) and length (8), little endian.
    pub const BYTES: usize = 40;

    /// Where the memory begins in its domain.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// How much it is.
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// The handle as bytes, to be told to others in whatever way.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let (head, rest) = bytes.split_at_mut(8);
        let (life, place) = rest.split_at_mut(16);
        head[..6].copy_from_slice(&PREFIX);
        head[6..].copy_from_slice(&self.domain.to_le_bytes());
        life.copy_from_slice(&self.life);
        place[..8].copy_from_slice(&self.address.to_le_bytes());
        place[8..].copy_from_slice(&self.length_bytes.to_le_bytes());
        bytes
    }

    /// The handle that these bytes are.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RemoteError> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| RemoteError::Length(bytes.len()))?;
        let part = |at: usize| <[u8; 8]>::try_from(&bytes[at..at + 8]).unwrap_or_default();
        if bytes[..6] != PREFIX {
            return Err(RemoteError::Version);
        }
        let mut life = [0; 16];
        life.copy_from_slice(&bytes[8..24]);
        Ok(Self {
            life,
            domain: u16::from_le_bytes([bytes[6], bytes[7]]),
            address: u64::from_le_bytes(part(24)),
            length_bytes: u64::from_le_bytes(part(32)),
        })
    }
}

impl Domain {
    /// A handle of memory of this domain, to be told to other programs: [`crate::Memory`] or
    /// [`crate::Registered`], or a part of one. It means this life of the node.
    pub fn export(&self, address: u64, length_bytes: u64) -> Result<Remote, OpenError> {
        let itself =
            self.lives()?.into_iter().find(|peer| peer.node == 0).ok_or(OpenError::UnexpectedMessage)?;
        Ok(Remote { life: itself.life, domain: self.number(), address, length_bytes })
    }

    /// Whose memory a handle means, for transfers of this domain. `None`: the node is not connected to this one now, or
    /// it was started again, and that memory is gone.
    pub fn find(&self, remote: &Remote) -> Result<Option<Target>, OpenError> {
        let peer = self.lives()?.into_iter().find(|peer| peer.life == remote.life);
        Ok(peer.map(|peer| Target { node: peer.node, domain: remote.domain }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_back_from_their_bytes_and_others_are_refused() {
        let remote = Remote {
            life: *b"0123456789abcdef",
            domain: 0x1234,
            address: 1 << 56 | 7,
            length_bytes: u64::MAX,
        };
        let bytes = remote.to_bytes();
        assert_eq!(Remote::from_bytes(&bytes), Ok(remote));
        assert_eq!(Remote::from_bytes(&bytes[1..]), Err(RemoteError::Length(39)));
        assert_eq!(Remote::from_bytes(&[]), Err(RemoteError::Length(0)));
        for at in 0..6 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Remote::from_bytes(&other), Err(RemoteError::Version));
        }
    }
}
