//! Bounds on the number of links that one holder has to this node. A node that may connect can connect again and again.
//! It must neither keep other nodes out nor use up this node's memory.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use smallvec::SmallVec;
use tombolo_link::udp::network;
use tombolo_link::{Address, Link, PublicKey};

/// The party that links are counted for, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Holder {
    Key(PublicKey),
    /// The process's number, and when it began.
    Process(u32, u64),
    User(u32),
    /// Without keys: an IPv4 address, or the first half of an IPv6 address.
    Host(u128),
}

/// As many links as a large cluster has nodes, behind one key or address. A quiet link takes some 16 KiB.
const MOST_OF_A_KEY: u32 = 1024;
const MOST_OF_A_HOST: u32 = 1280;
/// A process has one link for each of its domains, seldom more.
const MOST_OF_A_PROCESS: u32 = 512;
const MOST_OF_A_USER: u32 = 2048;

/// The refusal of a link: its holder has as many links as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany(Holder, u32);

impl fmt::Display for TooMany {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let most = self.1;
        match self.0 {
            Holder::Key(key) => write!(formatter, "the key {key} has {most} links, and no key may have more"),
            Holder::Process(number, _) => {
                write!(formatter, "process {number} has {most} links, and no process may have more")
            }
            Holder::User(number) => {
                write!(formatter, "user {number} has {most} links, and no user may have more")
            }
            Holder::Host(_) => {
                write!(formatter, "its address has {most} links without keys, and none may have more")
            }
        }
    }
}

impl Holder {
    fn most(self) -> u32 {
        match self {
            Self::Key(_) => MOST_OF_A_KEY,
            Self::Process(..) => MOST_OF_A_PROCESS,
            Self::User(_) => MOST_OF_A_USER,
            Self::Host(_) => MOST_OF_A_HOST,
        }
    }

    fn of(link: &dyn Link) -> SmallVec<[Self; 2]> {
        if let Some(key) = link.peer_key() {
            return [Self::Key(key)].into_iter().collect();
        }
        let process = link.peer_process_identity().map(|(number, began)| Self::Process(number, began));
        let user = link.peer_user().map(Self::User);
        let host = match link.peer_address() {
            Some(Address::Udp(address)) => Some(Self::Host(host(address.ip()))),
            _ => None,
        };
        [process, user, host].into_iter().flatten().collect()
    }
}

/// The host of an address. All loopback addresses are one host, because any process of this machine can use any of
/// them.
fn host(address: IpAddr) -> u128 {
    let address = address.to_canonical();
    if address.is_loopback() { 0 } else { network(address) }
}

/// Number of links of each holder.
#[derive(Debug, Default)]
pub(super) struct Shares(HashMap<Holder, u32>);

impl Shares {
    /// Checks that no holder of this link has too many links already.
    pub(super) fn admit(&self, link: &dyn Link) -> Result<(), TooMany> {
        for holder in Holder::of(link) {
            if self.0.get(&holder).is_some_and(|count| *count >= holder.most()) {
                return Err(TooMany(holder, holder.most()));
            }
        }
        Ok(())
    }

    /// Counts a new link.
    pub(super) fn add(&mut self, link: &dyn Link) {
        for holder in Holder::of(link) {
            *self.0.entry(holder).or_default() += 1;
        }
    }

    /// Stops counting a link that is gone.
    pub(super) fn remove(&mut self, link: &dyn Link) {
        for holder in Holder::of(link) {
            if let Some(count) = self.0.get_mut(&holder) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&holder);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_link::testing::memory_pair;

    use super::*;

    #[test]
    fn a_holder_has_its_share_and_others_theirs() {
        let (link, _other) = memory_pair().unwrap();
        let mut shares = Shares::default();
        for _ in 0..MOST_OF_A_PROCESS {
            assert_eq!(shares.admit(&*link), Ok(()));
            shares.add(&*link);
        }
        let refused = shares.admit(&*link).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "process {} has {MOST_OF_A_PROCESS} links, and no process may have more",
                std::process::id()
            )
        );
        shares.remove(&*link);
        assert_eq!(shares.admit(&*link), Ok(()));
        for _ in 1..MOST_OF_A_PROCESS {
            shares.remove(&*link);
        }
        assert!(shares.0.is_empty());
    }

    #[test]
    fn addresses_of_one_host_are_one() {
        let parsed = |text: &str| host(text.parse().unwrap());
        assert_eq!([parsed("127.0.0.1"), parsed("127.9.0.1")], [parsed("::ffff:127.0.0.1"), parsed("::1")]);
        assert_eq!(parsed("fe80::1"), parsed("fe80::2"));
        assert_ne!(parsed("10.0.0.1"), parsed("10.0.0.2"));
    }
}
