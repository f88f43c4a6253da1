//! What an end of a pair is called: an abstract Unix address that holds both names of the TCP connection that it stands for.

use super::{Address, Reader, Writer};

/// What the names begin with, behind the zero that makes them abstract.
pub const PREFIX: &[u8] = b"tombolo/1/";
/// Bytes of a name behind that zero.
pub const BYTES: usize = PREFIX.len() + 1 + 8 + 8 + 2 * Address::BYTES;

/// An end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Whether it is the server's.
    pub is_server: bool,
    /// The number of the connection. The node gives none twice, and each is higher than those before.
    pub id: u64,
    /// The process that has asked for it, by the number that it has given itself.
    pub token: u64,
    /// The name of the TCP connection's end here.
    pub local: Address,
    /// The name of its other end.
    pub remote: Address,
}

impl End {
    /// Its name, behind the zero.
    pub fn encode(&self) -> [u8; BYTES] {
        let mut name = [0; BYTES];
        let mut writer = Writer::new(&mut name);
        writer.bytes(PREFIX);
        writer.bytes(&[u8::from(self.is_server)]);
        writer.bytes(&self.id.to_le_bytes());
        writer.bytes(&self.token.to_le_bytes());
        self.local.encode(&mut writer);
        self.remote.encode(&mut writer);
        name
    }

    /// Reads a name, behind the zero. `None`: it is none.
    pub fn decode(name: &[u8]) -> Option<Self> {
        let mut reader = Reader(name.strip_prefix(PREFIX)?);
        let [is_server] = reader.array()?;
        let (id, token) = (u64::from_le_bytes(reader.array()?), u64::from_le_bytes(reader.array()?));
        let (local, remote) = (Address::decode(&mut reader)?, Address::decode(&mut reader)?);
        let is_whole = reader.0.is_empty() && is_server <= 1;
        is_whole.then_some(Self { is_server: is_server == 1, id, token, local, remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_written() {
        let local = Address::v4([1, 2, 3, 4], 5);
        let remote = Address { is_v4: false, ip: [9; 16], port: 0xffff };
        let end = End { is_server: true, id: 7 << 40, token: u64::MAX, local, remote };
        let name = end.encode();
        assert_eq!(End::decode(&name), Some(end));
        for length in 0..BYTES {
            assert_eq!(End::decode(&name[..length]), None);
        }
        let mut longer = [0; BYTES + 1];
        longer[..BYTES].copy_from_slice(&name);
        assert_eq!(End::decode(&longer), None);
        for at in [0, PREFIX.len(), PREFIX.len() + 17] {
            let mut other = name;
            other[at] = 2;
            assert_eq!(End::decode(&other), None, "{at}");
        }
        // A Unix address takes it.
        const { assert!(BYTES < 107) };
    }
}
