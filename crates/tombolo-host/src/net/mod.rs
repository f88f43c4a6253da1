//! Network interfaces of the Linux host: TAP devices, packet sockets, and interfaces of any network namespace.

mod interface;
mod namespace;
mod packet;
mod tap;

pub use interface::Interface;
pub use namespace::{in_namespace, in_new_namespace, in_open_namespace, open_namespace, path_of_namespace};
pub use packet::{
    BUFFER_BYTES, PacketSocket, ReceivedFrame, is_bound, is_packet_socket, receive_frame, send_frame,
    take_overflows,
};
pub use tap::{TapQueues, is_tap, set_carrier};

use std::io;

/// An interface's name as the kernel takes it.
pub(crate) type Name = [libc::c_char; libc::IFNAMSIZ];

/// Checks a name: 1 to 15 bytes without `/`, whitespace, `%` and zeroes.
pub(crate) fn name_of(text: &str) -> io::Result<Name> {
    let is_good = !text.is_empty()
        && text.len() < libc::IFNAMSIZ
        && text != "."
        && text != ".."
        && text.bytes().all(|byte| byte > b' ' && !b"/%:\x7f".contains(&byte));
    if !is_good {
        let reason =
            format!("`{text}` is no name of an interface: 1 to 15 characters without spaces, /, : and %");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, reason));
    }
    let mut name = [0; libc::IFNAMSIZ];
    for (place, byte) in name.iter_mut().zip(text.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(name)
}

/// Adds what was being done to an error.
pub(crate) fn told(what: impl std::fmt::Display, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}
