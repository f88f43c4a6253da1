//! Where a node listens, as people write it: `shm:/run/tombolo.sock`, `udp:127.0.0.1:7000`.
//!
//! A node on this machine is believed when this process's own user runs it, or root. To connect to a node
//! that another user runs, the address names that user's id: `shm:1000@/run/user/1000/tombolo.sock`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// On this machine: the path of its Unix socket.
    Shm(PathBuf),
    /// On this machine, at a node that another user may run.
    ShmOf {
        /// The user who may run the node, beside this process's own and root.
        user_id: u32,
        /// The path of its Unix socket.
        path: PathBuf,
    },
    /// A UDP address.
    Udp(SocketAddr),
}

/// Why parsing an address failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not begin with a known kind of link.
    #[error("expected shm:PATH or udp:HOST:PORT, got `{0}`")]
    UnknownKind(String),
    /// There is no path after `shm:`.
    #[error("expected a path after shm:, as in shm:/run/tombolo.sock")]
    NoPath,
    /// The number before the path is no user id.
    #[error("`{0}` is not a user id: expected shm:UID@PATH, or shm:./{0}@... for a path that begins so")]
    NoUser(String),
    /// What follows `udp:` has no port, or one that is no number up to 65535.
    #[error("expected HOST:PORT after udp:, as in udp:127.0.0.1:7000, got `{0}`")]
    NoHostPort(String),
    /// The host is of digits and dots, so it is no name, and no IPv4 address either.
    #[error("`{0}` is not an IPv4 address: expected four numbers up to 255, as in udp:127.0.0.1:7000")]
    NoIpv4(String),
    /// The host's name has no address.
    #[error("cannot find the address of `{host}`: {reason}")]
    UnknownHost {
        /// The name.
        host: String,
        /// What the resolver said.
        reason: String,
    },
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("shm", "")) => Err(AddressError::NoPath),
            Some(("shm", rest)) => parse_shm(rest),
            Some(("udp", rest)) => parse_udp(rest).map(Self::Udp),
            _ => Err(AddressError::UnknownKind(text.to_owned())),
        }
    }
}

fn parse_shm(text: &str) -> Result<Address, AddressError> {
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once('@').filter(|(user, _)| is_number(user)) {
        None => Ok(Address::Shm(PathBuf::from(text))),
        Some((_, "")) => Err(AddressError::NoPath),
        Some((user, path)) => {
            // The largest number is the kernel's "no user".
            let user_id = user.parse().ok().filter(|user_id| *user_id != u32::MAX);
            let user_id = user_id.ok_or_else(|| AddressError::NoUser(user.to_owned()))?;
            Ok(Address::ShmOf { user_id, path: PathBuf::from(path) })
        }
    }
}

impl Address {
    /// The path of the Unix socket, of an address on this machine.
    pub fn shm_path(&self) -> Option<&Path> {
        match self {
            Self::Shm(path) | Self::ShmOf { path, .. } => Some(path),
            Self::Udp(_) => None,
        }
    }
}

fn parse_udp(text: &str) -> Result<SocketAddr, AddressError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let no_host_port = || AddressError::NoHostPort(text.to_owned());
    let (host, port) = text.rsplit_once(':').ok_or_else(no_host_port)?;
    // What is left is a name; an IPv6 address without brackets has its last group for a port.
    if host.is_empty() || host.contains([':', '[', ']']) {
        return Err(no_host_port());
    }
    let port: u16 = port.parse().map_err(|_| no_host_port())?;
    // No name's last label is a number (RFC 1123, section 2.1), so no resolver is asked.
    if host.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(AddressError::NoIpv4(host.to_owned()));
    }
    let unknown = |reason: String| AddressError::UnknownHost { host: host.to_owned(), reason };
    let mut found = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("it has none".to_owned()))
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(formatter, "shm:{}", path.display()),
            Self::ShmOf { user_id, path } => write!(formatter, "shm:{user_id}@{}", path.display()),
            Self::Udp(address) => write!(formatter, "udp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in [
            "shm:/run/a b.sock",
            "shm:relative:colon",
            "shm:1000@/a@b",
            "shm:a@b",
            "shm:./7@b",
            "udp:127.0.0.1:7000",
            "udp:[::1]:1",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let expected = Address::ShmOf { user_id: 1000, path: "/a@b".into() };
        assert_eq!("shm:1000@/a@b".parse(), Ok(expected));
        let named: Address = "udp:localhost:7000".parse().unwrap();
        assert!(matches!(named, Address::Udp(address) if address.ip().is_loopback()));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Address>().unwrap_err().to_string();
        assert_eq!(error("tcp:1.2.3.4:5"), "expected shm:PATH or udp:HOST:PORT, got `tcp:1.2.3.4:5`");
        assert_eq!(error(""), "expected shm:PATH or udp:HOST:PORT, got ``");
        for text in ["shm:", "shm:7@"] {
            assert!(error(text).contains("path"), "{text}");
        }
        for text in ["shm:4294967295@/a", "shm:99999999999@/a"] {
            assert!(error(text).contains("is not a user id"), "{text}");
        }
        for text in ["udp:", "udp:7000", "udp:host:", "udp:host:99999", "udp:::1:5", "udp::5"] {
            assert!(error(text).contains("HOST:PORT"), "{text}");
        }
        for text in
            ["udp:1.2.3.4.5:7", "udp:256.0.0.1:7", "udp:127.1:7", "udp:7:7", "udp:.:7", "udp:01.2.3.4:7"]
        {
            assert!(error(text).contains("is not an IPv4 address"), "{text}");
        }
    }
}
