//! Several processes in one domain (FAULT §1.3.2).

use std::path::Path;

use tombolo_channel::{Reply, Request, Secret};

use crate::domain::{Domain, Entry};
use crate::error::OpenError;

/// What another process needs to join a domain: the domain's number and its secret. The node lets each process join that shows both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    pub(crate) domain: u16,
    pub(crate) secret: Secret,
}

/// Bytes that are no invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvitationError {
    /// There are more, or fewer.
    #[error("an invitation has {expected} bytes, not {0}", expected = Invitation::BYTES)]
    Length(usize),
    /// They begin otherwise.
    #[error("these bytes are no invitation to a domain, or one of another version")]
    Version,
}

/// How the bytes of an invitation begin: its kind, and its version.
const PREFIX: [u8; 6] = *b"TmbI\x00\x01";

impl Invitation {
    /// The bytes of an invitation: kind and version (6), domain (2, little endian), secret (16).
    pub const BYTES: usize = 24;

    /// The domain's number.
    pub fn domain(&self) -> u16 {
        self.domain
    }

    /// The invitation as bytes, to be told to the other process and to nobody else.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..6].copy_from_slice(&PREFIX);
        bytes[6..8].copy_from_slice(&self.domain.to_le_bytes());
        bytes[8..].copy_from_slice(&self.secret.0);
        bytes
    }

    /// The invitation that these bytes are.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, InvitationError> {
        let bytes: &[u8; Self::BYTES] = bytes.try_into().map_err(|_| InvitationError::Length(bytes.len()))?;
        if bytes[..6] != PREFIX {
            return Err(InvitationError::Version);
        }
        let mut secret = [0; 16];
        secret.copy_from_slice(&bytes[8..]);
        Ok(Self { domain: u16::from_le_bytes([bytes[6], bytes[7]]), secret: Secret(secret) })
    }
}

impl Domain {
    /// An invitation for other processes of this user, or of root, to join this domain ([`Self::join`]). It is the same each
    /// time, and good as long as a process is in the domain.
    pub fn invite(&self) -> Result<Invitation, OpenError> {
        let reply = self.ask(Request::Invite)?;
        let Reply::Invited { secret } = reply else { return Err(OpenError::UnexpectedMessage) };
        Ok(Invitation { domain: self.number(), secret })
    }

    /// Joins a domain of another process, at the node whose socket for programs is at `path`. A domain has at most
    /// [`crate::PROCESSES`] processes at once.
    ///
    /// The domain is one protection domain: transfers of each of its processes reach all its memory, that from the node and each
    /// process's own, without grants; and what others grant to the domain, they grant to all of them. Channels, queues and
    /// registered memory are each process's own, so is the mailbox, which only one of them can open. What a process has
    /// allocated or registered goes when it leaves; the domain goes with the last.
    ///
    /// Memory that a process registers lies in the domain behind the number of its process: use [`crate::Registered::address`].
    /// A transfer that is under way to the own memory of a process fails when that process leaves, unless another has joined by
    /// then that got its number, and registered the same addresses: the rest goes there. So a number is given again last.
    pub fn join(path: &Path, invitation: &Invitation) -> Result<Self, OpenError> {
        Self::enter(path, Entry::Join(*invitation), None, None)
    }

    /// As [`Self::join`], at a node that may also run as the user of this id: see [`Self::open_of_user`].
    pub fn join_of_user(path: &Path, invitation: &Invitation, user_id: u32) -> Result<Self, OpenError> {
        Self::enter(path, Entry::Join(*invitation), Some(user_id), None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invitations_come_back_from_their_bytes_and_others_are_refused() {
        let invitation = Invitation { domain: 0x1234, secret: Secret(*b"0123456789abcdef") };
        let bytes = invitation.to_bytes();
        assert_eq!(Invitation::from_bytes(&bytes), Ok(invitation));
        assert_eq!(Invitation::from_bytes(&bytes[1..]), Err(InvitationError::Length(23)));
        for at in 0..6 {
            let mut other = bytes;
            other[at] ^= 1;
            assert_eq!(Invitation::from_bytes(&other), Err(InvitationError::Version));
        }
        assert!(!format!("{invitation:?}").contains("48"), "the secret is shown");
    }
}
