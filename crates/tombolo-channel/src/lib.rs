//! What a program and its node share: the page of channels, the doorbell, and
//! the messages of the socket over which a domain is opened.
//!
//! ```text
//!  program                                              node
//!    │ ── Open ─────────── Unix socket ────────────────► │ credentials from the kernel
//!    │ ◄─ Opened: channel page, doorbell ─────────────── │
//!    │ ── Allocate ────────────────────────────────────► │
//!    │ ◄─ Allocated: memory and its address in the domain │
//!    │                                                    │
//!    │   slot ◄── descriptor      (shared memory)         │
//!    │   doorbell |= 1 << slot ─────────────────────────► │ polled by the engine's loop
//!    │   slot.done ◄───────────────────────────────────── │
//! ```
//!
//! Neither side trusts what the other writes: the node copies a descriptor out
//! once and checks the copy, and a program believes nothing but its own books.
#![forbid(unsafe_code)]

pub mod access;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod mailbox;
mod message;
mod page;
mod slot;

pub use mailbox::{
    MAX_MAIL_BYTES, MAX_MAILS, Mail, MailError, Mailbox, mail_address, mail_sender, reaches_mail,
};
pub use message::{
    FaultRegisters, Faults, Grant, Message, PeerLife, PeerStatus, Reply, Request, Secret, Touch, Who, decode,
    encode,
};
pub use page::{ChannelPage, SHARED_BYTES, Waiting};
pub use slot::{
    Descriptor, Failure, READ_SLOTS, SLOTS, SlotError, Status, Target, TransferStatus, WRITE_SLOTS, Work,
    is_read,
};

/// The largest message of the socket.
pub const MAX_MESSAGE_BYTES: usize = 16 * 1024;

/// The most grants of one piece of memory.
pub const MAX_GRANTS: usize = 64;

/// Where the memory that a node allocates begins in a domain: no process has addresses of its own
/// from here on.
pub const NODE_ADDRESSES: u64 = 1 << 56;

/// The most processes of a domain: their numbers are the highest 4 bits of addresses below [`NODE_ADDRESSES`] (FAULT §1.3.2).
pub const PROCESSES: u8 = 16;

/// Where the own memory of a domain's process begins in the domain: its own addresses are counted from there.
pub fn process_base(process: u8) -> u64 {
    u64::from(process) * PROCESS_BYTES
}

/// The process whose own memory an address below [`NODE_ADDRESSES`] is in.
pub fn process_of(address: u64) -> u8 {
    (address / PROCESS_BYTES) as u8
}

/// Addresses that a process has for itself.
pub const PROCESS_BYTES: u64 = NODE_ADDRESSES / PROCESSES as u64;

/// The most ranges of its own memory that a process registers.
pub const MAX_OWN_RANGES: usize = 1024;

/// The numbers that a program's domain can have.
pub const DOMAINS: std::ops::RangeInclusive<u16> = 1..=0x7FFF;

/// A program's domain as it is called on a link, where lent segments have numbers, too.
pub fn on_the_wire(domain: u16) -> tombolo_wire::Domain {
    tombolo_wire::Domain(0x8000 | domain)
}

/// The program's domain that is called so on a link, if it is one.
pub fn from_the_wire(domain: tombolo_wire::Domain) -> Option<u16> {
    let number = domain.0 & 0x7FFF;
    (domain.0 & 0x8000 != 0 && number != 0).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_and_segments_have_different_numbers() {
        for domain in DOMAINS {
            assert_eq!(from_the_wire(on_the_wire(domain)), Some(domain));
        }
        assert_eq!(from_the_wire(tombolo_wire::Domain(5)), None);
        assert_eq!(from_the_wire(tombolo_wire::Domain(0x8000)), None);
    }
}
