//! Ids and bit-exact formats of everything that crosses a link.
//!
//! **What.** One [`Packet`] is one datagram of a link: a header of 16 to 64
//! bytes, little-endian, and for [`Packet::Data`] a payload behind it. The kinds
//! are those of the engine of QOS ch. 3: data and completion notifications of a
//! block, acknowledgements, negative acknowledgements, read requests and their
//! answers.
//!
//! **Why.** The engine (`tombolo-core`) reasons about *meaning*: it must not be
//! possible to hand it a packet whose bytes were never checked. So bytes become a
//! checked [`View`] first (magic, kind, length, header checksum), and only a view
//! becomes a [`Packet`] (ranges, reserved fields, alignment). Whatever the bytes
//! are, the answer is a packet or a [`WireError`], never a panic.
//!
//! **How.** Receiving: [`Packet::parse`]. Sending control packets:
//! [`Packet::emit`]. Sending data without a second copy: put the payload at
//! [`DataHeader::header_bytes`] of the datagram and call [`DataHeader::seal`].
//!
//! ```text
//!  0       1      2       3         4            8
//!  +-------+------+-------+---------+------------+--------------------------+
//!  | magic | kind | flags | attempt | header CRC | fields of the kind ...   |
//!  +-------+------+-------+---------+------------+--------------------------+
//! ```
//!
//! Two checksums, because they have two consequences: a damaged header names
//! nobody to complain to and the packet is dropped; a damaged payload under an
//! intact header is answered with [`NackCode::PacketCorrupted`] (QOS Table 3.2),
//! which repairs the block without waiting for a timeout. A link that cannot
//! damage bytes (shared memory) agrees on [`Checksums::Off`].

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod acks;
mod atomic;
mod checksum;
mod data;
mod databeat;
mod earlier;
mod error;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod ids;
mod nack;
mod packet;
mod reading;
mod view;

pub use acks::{Acks, MAX_ACKS};
pub use atomic::{ATOMIC_BYTES, Atomic, AtomicAck, AtomicOperation};
pub use checksum::Checksums;
pub use data::{DataHeader, Notification, NotificationMark, NotifyHeader, Payload};
pub use databeat::{
    BEAT_BYTES, BusAddress, BusTransaction, Databeat, DatabeatError, MAX_PARTS, TransactionKind,
};
pub use earlier::{EarlierBlocks, MAX_EARLIER_BLOCKS};
pub use error::WireError;
pub use ids::{Asker, Attempt, Domain, Generation, RequestId, TransactionId};
pub use nack::{NackCode, Refusal};
pub use packet::{Ack, Nack, Packet, Receipt, Resume};
pub use reading::{ReadAccept, ReadReject, ReadRequest};
pub use view::{Kind, View};

/// The first byte of every packet: it names the protocol and its version. A
/// packet of another version is dropped, not guessed at.
pub const MAGIC: u8 = 0xb1;

/// The longest header of any kind, in bytes.
pub const MAX_HEADER_BYTES: usize = 64;

/// The longest packet without payload, in bytes.
pub const MAX_BARE_PACKET_BYTES: usize = MAX_HEADER_BYTES + earlier::MAX_LIST_BYTES;

/// The longest block, in bytes (QOS §3.2.2: 16 KB).
pub const MAX_BLOCK_BYTES: u32 = 16 * 1024;

/// The unit in which a receiver remembers which bytes of a block it has: 64
/// units make a block (QOS §4.4: 64 packets of 256 B), so one 64-bit word is the
/// whole memory of a block. A packet starts on a unit and ends on one, or at the
/// end of its block; so packets cut for different path MTUs still merge.
pub const GRANULE_BYTES: u32 = 256;

/// Number of classes of service (QOS §3.2.3).
pub const CLASSES: u8 = 3;

/// How many reads of one peer can be open at once. Both sides have a table of this many
/// places, and the id of a read modulo this number is its place. Ids grow: of two ids of
/// one place the later one is the open read, and the earlier one is over. The requester
/// skips ids whose place is taken, so that one long read holds up none that come after it.
pub const READ_WINDOW: u32 = 1024;

/// The most ids between the oldest open read of a peer and the next: beyond, comparisons of
/// ids would wrap.
pub const READ_SPAN: u32 = 1 << 30;
