//! What nodes tell each other of frames: letters, each a message to a mailbox of the other's domain.

use serde::{Deserialize, Serialize};
use tombolo_core::nic::pipe::is_ring;

/// The most bytes of records that travel within a letter: what a message holds, less the rest of the letter.
pub const INLINE_BYTES_MAX: usize = 928;

/// Where the other side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ring {
    /// In the domain of who says so.
    pub address: u64,
    /// A power of two.
    pub bytes: u32,
}

impl Ring {
    /// Whether transfers can go there.
    pub fn is_possible(&self) -> bool {
        is_ring(self.bytes) && self.address.checked_add(u64::from(self.bytes)).is_some()
    }
}

/// Between an owner and a port of another node. The session is a random number of the port's, for each time that it
/// connects: letters of an earlier time mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Letter<'a> {
    /// A port wants to be connected.
    Hello {
        /// [`tombolo_core::nic::session::VERSION`].
        version: u16,
        /// Of the port.
        session: u64,
        /// For frames to the port.
        ring: Ring,
    },
    /// It is.
    Welcome {
        /// Of the port.
        session: u64,
        /// For frames from the port.
        ring: Ring,
    },
    /// It is not.
    Refused {
        /// Of the port.
        session: u64,
        /// Why.
        reason: &'a str,
    },
    /// Some records are in the ring of who gets this.
    Batch {
        /// Of the port.
        session: u64,
        /// [`tombolo_core::nic::pipe::Batch::from`].
        from: u64,
        /// [`tombolo_core::nic::pipe::Batch::start`].
        start: u64,
        /// [`tombolo_core::nic::pipe::Batch::length`].
        length: u32,
        /// What was consumed of the other direction.
        credit: u64,
        /// The records themselves, if they are not in the ring.
        inline: Option<&'a [u8]>,
    },
    /// The receiver of a ring has consumed what is before `head`: the sender may write over it.
    Credit {
        /// Of the port.
        session: u64,
        /// Up to here.
        head: u64,
    },
    /// The port has ended, or its owner.
    Bye {
        /// Of the port.
        session: u64,
    },
}

impl<'a> Letter<'a> {
    /// As a message.
    pub fn to_bytes(self) -> Vec<u8> {
        postcard::to_stdvec(&self).unwrap_or_default()
    }

    /// From a message.
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
