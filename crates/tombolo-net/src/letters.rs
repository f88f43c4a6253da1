//! Letters: what the nodes of an owner and of a port send each other about frames. Each is a message to a mailbox of the
//! other's domain.

use serde::{Deserialize, Serialize};
use tombolo_core::nic::pipe::is_ring;

/// Most bytes of records within a letter: the length of a message less the rest of the letter.
pub const INLINE_BYTES_MAX: usize = 928;

/// A ring of the node that sends a letter, to which the other side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// Its address in the sender's domain.
    pub address: u64,
    /// Its length, a power of two.
    pub bytes: u32,
}

impl Ring {
    /// Whether the ring has a valid length and lies within the address space.
    pub fn is_possible(&self) -> bool {
        is_ring(self.bytes) && self.address.checked_add(u64::from(self.bytes)).is_some()
    }
}

/// A letter between an owner and a port of another node. A port chooses a random number for each of its connections, the
/// session. Letters of an earlier session are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Letter<'a> {
    /// A port wants to be connected.
    Hello {
        /// [`tombolo_core::nic::session::VERSION`].
        version: u16,
        /// The port's session.
        session: u64,
        /// The port's ring, for frames to the port.
        ring: Ring,
    },
    /// The owner has connected the port.
    Welcome {
        /// The port's session.
        session: u64,
        /// The owner's ring, for frames from the port.
        ring: Ring,
    },
    /// The owner does not connect the port.
    Refused {
        /// The port's session.
        session: u64,
        /// Why.
        reason: &'a str,
    },
    /// A batch of records is in the receiver's ring, or in this letter.
    Batch {
        /// The port's session.
        session: u64,
        /// [`tombolo_core::nic::pipe::Batch::from`].
        from: u64,
        /// [`tombolo_core::nic::pipe::Batch::start`].
        start: u64,
        /// [`tombolo_core::nic::pipe::Batch::length`].
        length: u32,
        /// The place up to which the sender has consumed the other direction.
        credit: u64,
        /// The records themselves, if they are not in the ring.
        inline: Option<&'a [u8]>,
    },
    /// The sender of this letter has consumed everything before `head` in its ring: the other side may write over it.
    Credit {
        /// The port's session.
        session: u64,
        /// The place up to which the ring was consumed.
        head: u64,
    },
    /// The port or the owner has ended the session.
    Bye {
        /// The port's session.
        session: u64,
    },
}

impl<'a> Letter<'a> {
    /// The letter as a message.
    pub fn to_bytes(self) -> Vec<u8> {
        postcard::to_stdvec(&self).unwrap_or_default()
    }

    /// The letter of a message. `None`: the message is not a letter.
    pub fn from_bytes(bytes: &'a [u8]) -> Option<Self> {
        postcard::from_bytes(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_letter_is_a_message() {
        let inline = vec![7; INLINE_BYTES_MAX];
        let letter = Letter::Batch {
            session: u64::MAX,
            from: u64::MAX,
            start: u64::MAX,
            length: u32::MAX,
            credit: u64::MAX,
            inline: Some(&inline),
        };
        let bytes = letter.to_bytes();
        assert!(bytes.len() <= tombolo_client::MAX_MAIL_BYTES, "{}", bytes.len());
        assert_eq!(Letter::from_bytes(&bytes), Some(letter));
        assert_eq!(Letter::from_bytes(&[]), None);
    }
}
