//! Where a node listens, as people write it: `shm:/run/tombolo.sock`, `udp:127.0.0.1:7000`.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// On this machine: the path of its Unix socket.
    Shm(PathBuf),
    /// A UDP address.
    Udp(SocketAddr),
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// It does not begin with a known kind of link.
    #[error("expected shm:PATH or udp:HOST:PORT, got `{0}`")]
    UnknownKind(String),
    /// There is no path after `shm:`.
    #[error("expected a path after shm:, as in shm:/run/tombolo.sock")]
    NoPath,
    /// What follows `udp:` has no port, or one that is no number up to 65535.
    #[error("expected HOST:PORT after udp:, as in udp:127.0.0.1:7000, got `{0}`")]
    NoHostPort(String),
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
            Some(("shm", path)) => Ok(Self::Shm(PathBuf::from(path))),
            Some(("udp", rest)) => parse_udp(rest).map(Self::Udp),
            _ => Err(AddressError::UnknownKind(text.to_owned())),
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
    let unknown = |reason: String| AddressError::UnknownHost { host: host.to_owned(), reason };
    let mut found = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
    found.next().ok_or_else(|| unknown("it has none".to_owned()))
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(path) => write!(formatter, "shm:{}", path.display()),
            Self::Udp(address) => write!(formatter, "udp:{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in ["shm:/run/a b.sock", "shm:relative:colon", "udp:127.0.0.1:7000", "udp:[::1]:1"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let named: Address = "udp:localhost:7000".parse().unwrap();
        assert!(matches!(named, Address::Udp(address) if address.ip().is_loopback()));
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text: &str| text.parse::<Address>().unwrap_err().to_string();
        assert_eq!(error("tcp:1.2.3.4:5"), "expected shm:PATH or udp:HOST:PORT, got `tcp:1.2.3.4:5`");
        assert_eq!(error(""), "expected shm:PATH or udp:HOST:PORT, got ``");
        assert!(error("shm:").contains("path"));
        for text in ["udp:", "udp:7000", "udp:host:", "udp:host:99999", "udp:::1:5", "udp::5"] {
            assert!(error(text).contains("HOST:PORT"), "{text}");
        }
    }
}
