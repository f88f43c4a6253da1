//! Links: how two nodes pass packets and control messages to each other.
//!
//! Everything above (the RDMA engine, the node) sees one trait, [`Link`], and says where the peer
//! is with one [`Address`]; what lies between is shared memory on one machine ([`shm`]) or UDP
//! between machines ([`udp`]), encrypted between nodes that know each other's keys ([`identity`]). A link makes no promise about packets except that one arrives whole
//! and unchanged or not at all: it may lose, repeat and reorder them, and the engine above recovers.
//! Control messages are the other way round: few, small, and each delivered once and in order.
//!
//! ```text
//! listen(address, security) ─► Listener ─ accept ─► Link ◄─► Link ◄─ connect(address, security, timeout)
//!
//!   send, send, … flush ─────────── packets ───────────► receive(budget, sink)
//!   send_control(message, fds) ──── control ───────────► receive_control
//!   arm, poll(descriptor) or wait ─ sleep;   tick ─ timers;   state ─ is the peer still there?
//! ```
//!
//! One suite, `tests/conformance/`, runs over every link, and over every link made faulty by
//! [`testing::FaultyLink`].

#![forbid(unsafe_code)]

use std::sync::Arc;
use std::time::Duration;

mod address;
mod counters;
mod error;
#[doc(hidden)]
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod identity;
mod link;
mod listeners;
pub mod shm;
#[cfg(feature = "testing")]
pub mod testing;
pub mod udp;

pub use address::{Address, AddressError};
pub use counters::{LinkCounters, ListenerCounters};
pub use error::{AcceptError, LinkError, LossReason, OpenError, SendError};
pub use identity::{AllowList, Identity, KeyPair, PublicKey, Security};
pub use link::{ControlMessage, Link, LinkState, Listener, MAX_CONTROL_BYTES, PACKET_HEAD_BYTES, Packet};
pub use listeners::Listeners;
/// Bytes to send that another process may write meanwhile.
pub use tombolo_host::shared::SharedSpan;
/// The largest number of descriptors that one control message carries.
pub use tombolo_host::unix::MAX_DESCRIPTORS;

/// The version of what links say to each other before anything else.
///
/// Both sides must have the same; a mismatch is an error that names both.
pub const PROTOCOL_VERSION: u8 = 9;

/// Waits for nodes that connect to an address. `security` is for UDP alone.
pub fn listen(address: &Address, security: &Security) -> Result<Box<dyn Listener>, OpenError> {
    Ok(match address {
        Address::Shm(path) => Box::new(shm::ShmListener::bind(path)?),
        Address::ShmOf { .. } => return Err(OpenError::ListenForUser(address.clone())),
        Address::Udp(socket_address) => Box::new(udp::UdpListener::bind(*socket_address, security)?),
    })
}

/// Connects to the node that listens at an address, and keeps trying until nothing has been heard for so long.
///
/// A node over UDP that answers, but has no place for one more handshake yet, is asked for up to ten times as long.
///
/// `security` is for UDP alone. On this machine the node must be run by this process's own user, by root,
/// or by the user that the address names.
pub fn connect(
    address: &Address,
    security: &Security,
    timeout: Duration,
) -> Result<Arc<dyn Link>, OpenError> {
    Ok(match address {
        Address::Shm(path) => Arc::new(shm::ShmLink::connect(path, timeout)?),
        Address::ShmOf { user_id, path } => {
            Arc::new(shm::ShmLink::connect_to_user(path, Some(*user_id), timeout)?)
        }
        Address::Udp(socket_address) => Arc::new(udp::UdpLink::connect(*socket_address, security, timeout)?),
    })
}
