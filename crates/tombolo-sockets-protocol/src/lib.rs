//! What the preloaded library and the node of Sockets Direct say to each other.
//!
//! A program asks by a connection of its own for each question: it sends one [`Request`](messages::Request), with a descriptor for most, and gets one [`Answer`](messages::Answer), with an
//! end of a pair for some. If it has that in place of its socket, it says so by [`TAKEN`](messages::TAKEN); then it closes the connection. So whatever becomes of it, the
//! node sees by the connection's end whether it has the end.
//!
//! An end carries in its own name what it stands for ([`name::End`]): that survives `fork`, `exec` and being passed on. And a [`table`], which the node
//! writes and programs read, says which ports are worth a question at all.
//!
//! Both ends are built together, so there is one version and no negotiation; a library of another build is refused by [`VERSION`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod messages;
pub mod name;
pub mod rules;
pub mod table;

use core::fmt;

/// Changed whenever anything here changes.
pub const VERSION: u32 = 1;

/// The environment variable that tells a program of the node: a [`Setting`].
pub const VARIABLE: &str = "TOMBOLO_SOCKETS";

/// How long a program waits for an answer. Then its connection is TCP.
pub const ANSWER_TIMEOUT_MS: i64 = 20;
/// How long a program asks nothing after it has waited in vain.
pub const PAUSE_MS: u64 = 1000;

/// What a program is told: `VERSION:SOCKET:RULES`. The path of the rules may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<'a> {
    /// Where the node listens.
    pub socket: &'a [u8],
    /// The file of rules.
    pub rules: &'a [u8],
}

impl<'a> Setting<'a> {
    /// Reads it. `None`: it is of another version, or damaged.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let mut parts = text.splitn(3, |byte| *byte == b':');
        let (version, socket, rules) = (parts.next()?, parts.next()?, parts.next()?);
        let version: u32 = core::str::from_utf8(version).ok()?.parse().ok()?;
        (version == VERSION && socket.first() == Some(&b'/')).then_some(Self { socket, rules })
    }
}

impl fmt::Display for Setting<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{VERSION}:{}:{}", self.socket.escape_ascii(), self.rules.escape_ascii())
    }
}

/// An address of the Internet and a port. An IPv4 address is mapped into IPv6, and `is_v4` says that the socket is one of IPv4.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// Whether the socket is one of IPv4.
    pub is_v4: bool,
    /// The address.
    pub ip: [u8; 16],
    /// The port.
    pub port: u16,
}

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
/// The longest address that the kernel has for it.
pub const SOCKADDR_BYTES: usize = 28;

impl Address {
    /// Bytes of an encoded address.
    pub const BYTES: usize = 19;

    /// Of an IPv4 address.
    pub fn v4(ip: [u8; 4], port: u16) -> Self {
        let mut mapped = [0; 16];
        for (target, byte) in mapped.iter_mut().zip(MAPPED.iter().chain(&ip)) {
            *target = *byte;
        }
        Self { is_v4: true, ip: mapped, port }
    }

    /// Reads an address as the kernel has it. `None`: it is of another family, or cut.
    pub fn of_sockaddr(bytes: &[u8]) -> Option<Self> {
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        match u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?) {
            AF_INET => Some(Self::v4(bytes.get(4..8)?.try_into().ok()?, port)),
            AF_INET6 => Some(Self { is_v4: false, ip: bytes.get(8..24)?.try_into().ok()?, port }),
            _ => None,
        }
    }

    /// Writes it as the kernel has it; its length.
    pub fn to_sockaddr(&self, target: &mut [u8; SOCKADDR_BYTES]) -> usize {
        *target = [0; SOCKADDR_BYTES];
        let family = if self.is_v4 { AF_INET } else { AF_INET6 };
        let [a, b] = family.to_ne_bytes();
        let [c, d] = self.port.to_be_bytes();
        let (at, ip, length) = if self.is_v4 { (4, &self.ip[12..], 16) } else { (8, &self.ip[..], 28) };
        for (target, byte) in target.iter_mut().zip([a, b, c, d]) {
            *target = byte;
        }
        for (target, byte) in target.iter_mut().skip(at).zip(ip) {
            *target = *byte;
        }
        length
    }

    fn encode(&self, writer: &mut Writer<'_>) {
        writer.bytes(&[u8::from(self.is_v4)]);
        writer.bytes(&self.ip);
        writer.bytes(&self.port.to_le_bytes());
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let [is_v4] = reader.array()?;
        let (ip, port) = (reader.array()?, u16::from_le_bytes(reader.array()?));
        (is_v4 <= 1).then_some(Self { is_v4: is_v4 == 1, ip, port })
    }
}

/// Writes bytes one after the other. What does not fit is left out: the buffers here are as long as what is written.
struct Writer<'a> {
    target: &'a mut [u8],
    length: usize,
}

impl<'a> Writer<'a> {
    fn new(target: &'a mut [u8]) -> Self {
        Self { target, length: 0 }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if let Some(target) = self.target.get_mut(self.length..self.length + bytes.len()) {
            target.copy_from_slice(bytes);
            self.length += bytes.len();
        }
    }
}

/// Reads bytes one after the other.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn a_setting_is_read_as_it_was_written() {
        let setting = Setting { socket: b"/run/tombolo/one.sockets", rules: b"/etc/libsdp.conf" };
        let text = format!("{setting}");
        assert_eq!(text, "1:/run/tombolo/one.sockets:/etc/libsdp.conf");
        assert_eq!(Setting::parse(text.as_bytes()), Some(setting));
        assert_eq!(Setting::parse(b"1:/s:"), Some(Setting { socket: b"/s", rules: b"" }));
        for other in [&b"2:/s:"[..], b"1:/s", b"1::", b"1:s:", b"", b"x:/s:", b":/s:"] {
            assert_eq!(Setting::parse(other), None, "{}", other.escape_ascii());
        }
    }

    #[test]
    fn addresses_are_as_the_kernel_has_them() {
        let mut sockaddr = [0; SOCKADDR_BYTES];
        let v4 = Address::v4([127, 0, 0, 1], 0x1234);
        assert_eq!(v4.to_sockaddr(&mut sockaddr), 16);
        assert_eq!(sockaddr[..8], [2, 0, 0x12, 0x34, 127, 0, 0, 1]);
        assert_eq!(Address::of_sockaddr(&sockaddr[..16]), Some(v4));
        assert_eq!(Address::of_sockaddr(&sockaddr[..7]), None);
        let v6 = Address { is_v4: false, ip: [7; 16], port: 1 };
        assert_eq!(v6.to_sockaddr(&mut sockaddr), 28);
        assert_eq!(Address::of_sockaddr(&sockaddr), Some(v6));
        assert_eq!(Address::of_sockaddr(&sockaddr[..23]), None);
        assert_eq!(Address::of_sockaddr(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Address::of_sockaddr(&[]), None);
    }
}
