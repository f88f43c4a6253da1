//! A mailbox: small messages from anybody who may, in the order in which they come (MICRO §3.1, mailbox).
//!
//! ```text
//! offset 0     written (the node's) │ offset 64  taken (the program's)
//! offset 4096  [node u32, domain u32, length u32, unused 52][1024 bytes]  one after the other
//! ```
//!
//! The node fills places and counts `written` up; the program empties them and counts `taken` up.
//! The node believes its own count only; a program that writes a wild `taken` harms itself. A full
//! mailbox refuses, and the sender's engine tries again (QOS Table 3.2, code 7).
//!
//! On a link a message is a write of one block to an address that no memory has: it says which
//! program of the sending node sent it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_host::passed::PassedDescriptor;
use tombolo_host::shared::{SharedMemory, SharedMemoryError, SharedSpan};

use crate::slot::Target;

/// The longest message (the shortest has one byte). It fits into one packet of every link, so it is never in pieces.
pub const MAX_MAIL_BYTES: usize = 1024;
/// The most messages of a mailbox.
pub const MAX_MAILS: u32 = 4096;

/// Where the addresses for messages begin. No program has memory there.
const MAIL_BASE: u64 = 1 << 63;
/// Between those of two senders: a block, so that no message is cut.
const MAIL_STRIDE: u64 = 16 * 1024;

const WRITTEN: usize = 0;
const TAKEN: usize = 64;
const FIRST_PLACE: usize = 4096;
const LENGTH: usize = 8;
const BYTES: usize = 64;
const PLACE_BYTES: usize = BYTES + MAX_MAIL_BYTES;

/// The address at which a message of that domain is written to another.
pub fn mail_address(sender: u16) -> u64 {
    MAIL_BASE + u64::from(sender) * MAIL_STRIDE
}

/// Whether bytes written from there on would reach addresses for messages.
pub fn reaches_mail(address: u64, size_bytes: u32) -> bool {
    address.checked_add(size_bytes.into()).is_none_or(|end| end > MAIL_BASE)
}

/// The domain whose message is written to this address, if it is one for messages.
pub fn mail_sender(address: u64) -> Option<u16> {
    let offset = address.checked_sub(MAIL_BASE)?;
    let sender = u16::try_from(offset / MAIL_STRIDE).ok()?;
    (offset.is_multiple_of(MAIL_STRIDE) && crate::DOMAINS.contains(&sender)).then_some(sender)
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// Who sent it: the node by its number here, and the domain there.
    pub from: Target,
    /// The bytes of the message.
    pub bytes: Vec<u8>,
}

/// Why a message was not put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MailError {
    /// There is no room until the program takes one out.
    #[error("the mailbox is full")]
    Full,
    /// The message is too long.
    #[error("a message has at most {MAX_MAIL_BYTES} bytes")]
    TooLong,
}

/// A mailbox, as the program and the node see it.
#[derive(Debug)]
pub struct Mailbox {
    memory: SharedMemory,
    places: u64,
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

fn shared_bytes(messages: u32) -> usize {
    (FIRST_PLACE + messages as usize * PLACE_BYTES).next_multiple_of(4096)
}

impl Mailbox {
    /// Whether a mailbox can have room for this many messages.
    pub fn is_size(messages: u32) -> bool {
        messages.is_power_of_two() && messages <= MAX_MAILS
    }

    /// An empty mailbox, for a number of messages that [`Mailbox::is_size`] accepts.
    pub fn create(messages: u32) -> Result<Self, SharedMemoryError> {
        let memory = SharedMemory::create("tombolo-mailbox", shared_bytes(messages))?;
        Ok(Self { memory, places: messages.into() })
    }

    /// A mailbox that the node made.
    pub fn open(descriptor: impl Into<PassedDescriptor>, messages: u32) -> Result<Self, SharedMemoryError> {
        let memory = SharedMemory::open(descriptor, shared_bytes(messages))?;
        Ok(Self { memory, places: messages.into() })
    }

    /// How many messages it has room for.
    pub fn messages(&self) -> u32 {
        self.places as u32
    }

    /// Bytes of its memory.
    pub fn memory_bytes(&self) -> usize {
        self.memory.len()
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.memory.atomic_u64(offset).unwrap_or_else(|_| unreachable!("inside, by the size of the memory"))
    }

    fn place(&self, count: u64) -> usize {
        FIRST_PLACE + (count % self.places) as usize * PLACE_BYTES
    }

    /// The node's: how many messages of `written` the program has not taken out, as it says itself.
    pub fn not_taken(&self, written: u64) -> u64 {
        written.wrapping_sub(self.word(TAKEN).load(Ordering::Acquire))
    }

    /// The node's: puts a message in. `written` is how many it has put in so far.
    pub fn put(&self, written: &mut u64, from: Target, bytes: SharedSpan<'_>) -> Result<(), MailError> {
        if bytes.len() > MAX_MAIL_BYTES {
            return Err(MailError::TooLong);
        }
        // An impossible count of the program counts as a full mailbox.
        if self.not_taken(*written) >= self.places {
            return Err(MailError::Full);
        }
        let place = self.place(*written);
        if let Ok(room) = self.memory.span_mut(place + BYTES, bytes.len()) {
            room.copy_from(bytes);
        }
        self.word(place).store(u64::from(from.node) | u64::from(from.domain) << 32, Ordering::Relaxed);
        self.word(place + LENGTH).store(bytes.len() as u64, Ordering::Relaxed);
        *written += 1;
        self.word(WRITTEN).store(*written, Ordering::SeqCst);
        Ok(())
    }

    /// The program's: takes the next message out, if there is one. `taken` is how many it has taken.
    pub fn take(&self, taken: &mut u64) -> Option<Mail> {
        if self.word(WRITTEN).load(Ordering::SeqCst) == *taken {
            return None;
        }
        let place = self.place(*taken);
        let from = self.word(place).load(Ordering::Relaxed);
        let length = (self.word(place + LENGTH).load(Ordering::Relaxed) as usize).min(MAX_MAIL_BYTES);
        let bytes = self.memory.span(place + BYTES, length).map(|span| span.to_vec()).unwrap_or_default();
        *taken += 1;
        self.word(TAKEN).store(*taken, Ordering::Release);
        Some(Mail { from: Target { node: from as u32, domain: (from >> 32) as u16 }, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_name_senders() {
        for sender in crate::DOMAINS {
            assert_eq!(mail_sender(mail_address(sender)), Some(sender));
        }
        for wrong in [0, MAIL_BASE, mail_address(1) + 1, mail_address(0x7FFF) + MAIL_STRIDE, u64::MAX] {
            assert_eq!(mail_sender(wrong), None, "{wrong:#x}");
        }
    }

    #[test]
    fn messages_come_out_in_order_and_a_full_box_refuses() {
        let ours = Mailbox::create(4).unwrap();
        let theirs = Mailbox::open(ours.as_fd().try_clone_to_owned().unwrap(), 4).unwrap();
        let (mut written, mut taken) = (0, 0);
        let from = Target { node: 7, domain: 9 };
        for round in 0..10_u8 {
            for message in 0..4_u8 {
                let bytes = vec![message; usize::from(round) * 100];
                assert_eq!(ours.put(&mut written, from, SharedSpan::from(&bytes)), Ok(()));
            }
            assert_eq!(ours.put(&mut written, from, SharedSpan::empty()), Err(MailError::Full));
            for message in 0..4_u8 {
                let bytes = vec![message; usize::from(round) * 100];
                assert_eq!(theirs.take(&mut taken), Some(Mail { from, bytes }));
            }
            assert_eq!(theirs.take(&mut taken), None);
        }
        let long = vec![0; MAX_MAIL_BYTES + 1];
        assert_eq!(ours.put(&mut written, from, SharedSpan::from(&long)), Err(MailError::TooLong));
        // The program's side may say what it likes.
        for wild in [0, u64::MAX, written + 1, written.wrapping_sub(5)] {
            theirs.word(TAKEN).store(wild, Ordering::Relaxed);
            let outcome = ours.put(&mut written, from, SharedSpan::empty());
            assert_eq!(outcome, Err(MailError::Full), "{wild}");
        }
    }
}
