//! Sockets Direct (SDP ch. 4): a stream of bytes through a buffer at the sender, which the receiver empties.
//!
//! **What.** Each side of a connection has a *send buffer* that the other side can read, and a *receive buffer* of
//! its own. A send buffer has three fields: a sequence number, a size, and data. The sender fills in the data and
//! the size, and then writes a number. The receiver reads number and size, takes the data (by loads if they are
//! few, otherwise by DMA), and writes [`FREE`] in place of the number. After its part, each side signals the other,
//! which may be asleep.
//!
//! **Why.** The sender copies its bytes once, into memory that was registered once. The receiver drives the
//! transfer, so nothing is transferred for which it has no room.
//!
//! **How.** [`Connection`] is a plain state machine, like the others in this crate: calls of the program and of the
//! driver go in, [`Action`]s come out, and the driver moves the bytes. [`Accept`] and [`Connect`] are the two sides
//! of the nine steps by which a connection begins.
//!
//! [`handover`] is for programs of one machine, whose kernel carries the bytes.
//!
//! ```text
//!   sender                                   receiver
//!   copies into its send buffer
//!   publishes: size, number   ── signal ──►  looks: number, size
//!        (asleep)                            takes data into its receive buffer
//!   fills the next            ◄── signal ──  releases: FREE
//!                                            copies to the program
//! ```

mod connection;
pub mod handover;
mod handshake;

pub use connection::{Action, Config, Connection, Method, Received, SdpError, Wake};
pub use handshake::{Accept, Connect, Established, HandshakeError, Hello, MAILBOXES, Mail, Step};

/// The sequence number of a buffer whose data were taken.
pub const FREE: u32 = 0;
/// The sequence number of a buffer whose sender has nothing more to send.
pub const OUT_OF_DATA: u32 = u32::MAX;

/// The sequence number after this one, without [`FREE`] and [`OUT_OF_DATA`].
fn after(sequence: u32) -> u32 {
    match sequence.wrapping_add(1) {
        FREE | OUT_OF_DATA => 1,
        next => next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_skip_those_that_mean_something_else() {
        assert_eq!([after(1), after(u32::MAX - 1), after(FREE)], [2, 1, 1]);
    }
}
