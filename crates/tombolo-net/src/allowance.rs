//! The file of ports: what the uplink's owner says of ports before they are attached, with a line for each port.
//!
//! ```text
//! # name     who may attach it, and what it has
//! eth0@web   from=user:1000 mac=02:00:00:00:00:07 weight=2 rate=500M address=10.0.0.2
//! far        from=tombolo-public:9c... mac=02:00:00:00:00:08 guarantee=100M vlan=5
//! ```
//!
//! A port that other users or nodes attach has a hardware address that the file gives, which no other port has. With an address
//! of their choice, they could pose as the gateway, or as a port that is not attached yet. Without a file, the owner gives each
//! port of another machine an address of its own ([`given_mac`]). The owner looks at the file when a port is attached. So a
//! change applies to the next port, and an owner that restarts gives each port what it had.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;
use tombolo_core::nic::{Mac, Mode, PortId, Switch};
use tombolo_host::timing::net::FRESH_FILE;
use tombolo_node::identity::{KeyPair, PublicKey};

use crate::bits::BitRate;
use crate::control::config_of;
use crate::protocol::{Changes, Port, Vlans};

/// The longest file: some 10,000 lines.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A user or node that attaches ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Processes of this user of the owner's machine.
    User(u32),
    /// The node that has proved this key.
    Key(PublicKey),
}

impl fmt::Display for Whom {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(formatter, "user:{user}"),
            Self::Key(key) => key.fmt(formatter),
        }
    }
}

/// What the file says of one port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allowance {
    /// Only these attach the port, besides the owner's user and root.
    from: Vec<Whom>,
    mac: Option<Mac>,
    changes: Changes,
}

/// What the file says of ports, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allowances(BTreeMap<String, Allowance>);

fn list<T: std::str::FromStr<Err: fmt::Display>, C: FromIterator<T>>(text: &str) -> Result<C, String> {
    text.split(',').map(|part| part.parse().map_err(|error: T::Err| format!("{part}: {error}"))).collect()
}

fn number<T: std::str::FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|error: T::Err| format!("{text}: {error}"))
}

impl Allowance {
    fn parse(words: std::str::SplitWhitespace<'_>) -> Result<Self, String> {
        let mut found = Self::default();
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("`{word}` is no NAME=VALUE"))?;
            let changes = &mut found.changes;
            match name {
                "from" => {
                    let whom = match value.strip_prefix("user:") {
                        Some(user) => Whom::User(number(user)?),
                        None => Whom::Key(number(value)?),
                    };
                    found.from.push(whom);
                }
                "mac" => found.mac = Some(number(value)?),
                "weight" => changes.weight = Some(number(value)?),
                "rate" => changes.rate_bits = Some(number::<BitRate>(value)?.0),
                "guarantee" => changes.guaranteed_bits = Some(number::<BitRate>(value)?.0),
                "vlan" => {
                    changes.vlans = Some(match number(value)? {
                        0 => Vlans::Untagged,
                        vlan => Vlans::Access(vlan),
                    });
                }
                "trunk" => changes.vlans = Some(Vlans::Trunk(list(value)?)),
                "address" => changes.addresses = Some(Some(list(value)?)),
                "groups" => {
                    let groups: Vec<Mac> = list(value)?;
                    changes.groups = Some(Some(groups.iter().map(Mac::to_string).collect()));
                }
                "promiscuous" => changes.is_promiscuous = Some(number(value)?),
                _ => {
                    return Err(format!(
                        "`{name}` is none of from, mac, weight, rate, guarantee, vlan, trunk, address, groups and promiscuous"
                    ));
                }
            }
        }
        Ok(found)
    }

    /// Checks that a port can have these properties.
    fn check(&self, name: &str) -> Result<(), String> {
        if !self.from.is_empty() && self.mac.is_none() {
            return Err(
                "what others attach needs an address here (mac): else they could take anybody's".into()
            );
        }
        let mut port = Port {
            name: name.into(),
            tap: "eth0".into(),
            namespace: None,
            mac: self.mac.unwrap_or(Mac([2, 0, 0, 0, 0, 1])).to_string(),
            mtu: 1500,
            weight: 1,
            rate_bits: 0,
            guaranteed_bits: 0,
            vlans: Vlans::Untagged,
            addresses: None,
            is_promiscuous: false,
            groups: None,
        };
        self.changes.clone().apply(&mut port);
        let rules = config_of(&port)?.rules;
        Switch::new(Mode::Bridge).set(PortId(0), rules).map_err(|error| error.to_string())
    }
}

/// The contents of the file of ports when it was looked at last.
#[derive(Clone, Debug)]
pub struct Listed {
    path: PathBuf,
    all: Allowances,
    /// The stamp of those contents. `None` if the file was so new then that changed contents could have the same stamp.
    stamp: Option<Stamp>,
}

/// Identifies the contents of a file: device, inode, length, and the times of the last changes.
type Stamp = [i64; 7];

fn stamp(file: &Metadata) -> Option<Stamp> {
    let is_fresh = file
        .modified()
        .is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < FRESH_FILE));
    let place = [file.dev().cast_signed(), file.ino().cast_signed(), file.len().cast_signed()];
    let [device, inode, length] = place;
    (!is_fresh)
        .then(|| [device, inode, length, file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()])
}

impl Listed {
    /// Reads a file.
    ///
    /// # Errors
    /// The file cannot be read, or a line is invalid. The text names the line.
    pub fn open(path: &Path) -> Result<Self, String> {
        let mut listed = Self { path: path.to_owned(), all: Allowances::default(), stamp: None };
        listed.now()?;
        Ok(listed)
    }

    /// What the file says now. It is read only if it has changed.
    ///
    /// # Errors
    /// As [`Listed::open`].
    pub fn now(&mut self) -> Result<&Allowances, String> {
        let named = |error: io::Error| format!("{}: {error}", self.path.display());
        let is_known = self.stamp.is_some()
            && std::fs::metadata(&self.path).is_ok_and(|file| stamp(&file) == self.stamp);
        if !is_known {
            self.stamp = None;
            // Opening a named pipe must not wait for a process at its other end.
            let flags = OFlags::NONBLOCK.bits().cast_signed();
            let file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path).map_err(named)?;
            let about = file.metadata().map_err(named)?;
            if !about.is_file() || about.len() > FILE_BYTES_MAX {
                return Err(format!(
                    "{} is no file of ports: one is an ordinary file of up to {FILE_BYTES_MAX} bytes",
                    self.path.display()
                ));
            }
            let mut text = String::new();
            file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(named)?;
            self.all =
                Allowances::parse(&text).map_err(|reason| format!("{}, {reason}", self.path.display()))?;
            self.stamp = stamp(&about);
        }
        Ok(&self.all)
    }
}

impl Allowances {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        let mut macs = BTreeMap::new();
        for (line, number) in text.lines().zip(1..) {
            let line = line.split_once('#').map_or(line, |(line, _)| line);
            let mut words = line.split_whitespace();
            let Some(name) = words.next() else { continue };
            let at = |reason: String| format!("line {number}: {reason}");
            let allowance = Allowance::parse(words).map_err(at)?;
            allowance.check(name).map_err(at)?;
            if let Some(mac) = allowance.mac
                && let Some(other) = macs.insert(mac, name)
            {
                return Err(at(format!("{other} has the address {mac} already")));
            }
            if all.insert(name.to_owned(), allowance).is_some() {
                return Err(at(format!("{name} stands there twice")));
            }
        }
        Ok(Self(all))
    }

    /// Whether a hardware address is that of a port in the file.
    pub fn has_mac(&self, mac: Mac) -> bool {
        self.0.values().any(|allowance| allowance.mac == Some(mac))
    }

    /// Whether the file lets this user or node attach any port.
    pub fn include(&self, whom: Whom) -> bool {
        self.0.values().any(|allowance| allowance.from.contains(&whom))
    }

    /// Applies the file to a port that is to be attached. `whom`: the attacher, if that is neither the owner's user nor root.
    ///
    /// # Errors
    /// The attacher may not attach the port, or claims what only the owner gives, or the port's hardware address disagrees with
    /// the file.
    pub fn apply(&self, mut port: Port, whom: Option<Whom>) -> Result<Port, String> {
        let found = self.0.get(&port.name);
        if let Some(whom) = whom {
            let is_allowed = found.is_some_and(|allowance| allowance.from.contains(&whom));
            if !is_allowed {
                return Err(format!(
                    "{whom} may not attach a port that is called {name}: the owner's file of ports needs a line `{name} from={whom} mac=...`",
                    name = port.name
                ));
            }
            claims_nothing(&port)?;
        }
        let mac = port.mac.parse().ok();
        let others = self.0.iter().filter(|(name, _)| **name != port.name);
        if let Some((name, _)) = others.into_iter().find(|(_, other)| other.mac.is_some() && other.mac == mac)
        {
            return Err(format!("the address {} is that of the port {name}", port.mac));
        }
        let Some(allowance) = found else { return Ok(port) };
        if let Some(mac) = allowance.mac {
            if port.mac.is_empty() {
                port.mac = mac.to_string();
            } else if port.mac.parse() != Ok(mac) {
                return Err(format!("the port {} has the address {mac}, and no other (--mac)", port.name));
            }
        }
        allowance.changes.clone().apply(&mut port);
        Ok(port)
    }
}

/// The hardware address that an owner gives to a port. It depends on the owner's key, the attacher (`whom`), the port's name
/// and `before` alone. `before`: the number of such addresses, computed with 0 and up, that other ports have.
pub fn given_mac(owner: &KeyPair, whom: &str, name: &str, before: u32) -> Mac {
    let number = owner.number_of(format!("mac\0{whom}\0{name}\0{before}").as_bytes());
    let [first, second, third, fourth, fifth, sixth, ..] = number.to_le_bytes();
    // The bits say: not from a manufacturer, and of a single interface.
    Mac([first & 0xfc | 2, second, third, fourth, fifth, sixth])
}

/// Checks a port whose attacher is neither the owner's user nor root: it may not ask for a weight, a guarantee, virtual
/// networks or frames for others, since these change what other ports get.
///
/// # Errors
/// The port asks for one of these. The text names it.
pub fn claims_nothing(port: &Port) -> Result<(), String> {
    let claims = [
        (port.weight > 1, "a weight"),
        (port.guaranteed_bits > 0, "a guarantee"),
        (port.vlans != Vlans::Untagged, "virtual networks"),
        (port.is_promiscuous, "frames for others"),
    ];
    match claims.iter().find(|(is_claimed, _)| *is_claimed) {
        Some((_, what)) => Err(format!(
            "{what} only the uplink's owner gives, by `tombolo net set {}` there, or in its file of ports (--ports)",
            port.name
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str) -> Port {
        Port {
            name: name.into(),
            tap: "eth0".into(),
            namespace: None,
            mac: "02:00:00:00:00:01".into(),
            mtu: 1500,
            weight: 1,
            rate_bits: 7,
            guaranteed_bits: 0,
            vlans: Vlans::Untagged,
            addresses: None,
            is_promiscuous: false,
            groups: None,
        }
    }

    #[test]
    fn lines_say_who_may_attach_and_what_a_port_has() {
        let key = format!("tombolo-public:{}", "9c".repeat(32));
        let text = format!(
            "# ports\n\nweb from=user:1000 weight=2 rate=500M mac=02:00:00:00:00:01 address=10.0.0.2,fd00::2\n\
             far from={key} from=user:7 mac=02:00:00:00:00:03 guarantee=100M trunk=0,5 promiscuous=true groups=01:00:5e:00:00:01 # ours\n"
        );
        let all = Allowances::parse(&text).unwrap();
        assert!(all.include(Whom::User(1000)) && all.include(Whom::User(7)) && !all.include(Whom::User(8)));
        let key = Whom::Key(key.parse().unwrap());
        let mut far = port("far");
        far.mac = "02:00:00:00:00:03".into();
        let far = all.apply(far, Some(key)).unwrap();
        assert_eq!((far.guaranteed_bits, far.weight, far.is_promiscuous), (100_000_000, 1, true));
        assert_eq!(far.vlans, Vlans::Trunk([0, 5].into()));
        assert_eq!(far.rate_bits, 7, "of which the file says nothing");
        let web = all.apply(port("web"), Some(Whom::User(1000))).unwrap();
        assert_eq!((web.weight, web.rate_bits), (2, 500_000_000));
        assert_eq!(web.addresses.map(|all| all.len()), Some(2));
        // Attachers that the file does not name for the port.
        for (name, whom) in [("web", Whom::User(7)), ("web", key), ("other", Whom::User(1000))] {
            assert!(all.apply(port(name), Some(whom)).unwrap_err().contains("may not attach"));
        }
        let greedy = |change: fn(&mut Port)| {
            let mut port = port("web");
            change(&mut port);
            port
        };
        for (wanted, what) in [
            (greedy(|port| port.weight = 2), "a weight"),
            (greedy(|port| port.guaranteed_bits = 8), "a guarantee"),
            (greedy(|port| port.vlans = Vlans::Access(5)), "virtual networks"),
            (greedy(|port| port.is_promiscuous = true), "frames for others"),
        ] {
            let reason = all.apply(wanted.clone(), Some(Whom::User(1000))).unwrap_err();
            assert!(reason.starts_with(what) && reason.contains("tombolo net set web"), "{reason}");
            // `None`: the owner's user or root attaches the port, and may ask for any of these. But what the file
            // says of the port takes precedence.
            assert_eq!(all.apply(wanted, None).unwrap().weight, 2);
        }
        let mut spoofing = port("web");
        spoofing.mac = "02:00:00:00:00:02".into();
        assert!(all.apply(spoofing.clone(), None).unwrap_err().contains("and no other"));
        spoofing.mac = String::new();
        assert_eq!(all.apply(spoofing.clone(), None).unwrap().mac, "02:00:00:00:00:01", "the file gives it");
        spoofing.mac = "02:00:00:00:00:03".into();
        spoofing.name = "other".into();
        assert!(all.apply(spoofing.clone(), None).unwrap_err().contains("that of the port far"));
        spoofing.mac = "02:00:00:00:00:04".into();
        assert_eq!(all.apply(spoofing.clone(), None).unwrap(), spoofing);
    }

    #[test]
    fn owners_give_addresses_that_nobody_can_choose() {
        let [owner, other] = [(); 2].map(|()| KeyPair::generate().unwrap());
        let whom = "user:7";
        let mac = given_mac(&owner, whom, "web", 0);
        assert!(!mac.is_group() && mac.0[0] & 2 == 2, "{mac}");
        assert_eq!(mac, given_mac(&owner, whom, "web", 0));
        let others = [
            given_mac(&owner, whom, "web", 1),
            given_mac(&owner, whom, "wec", 0),
            given_mac(&owner, "user:8", "web", 0),
            given_mac(&owner, "owner", "web", 0),
            given_mac(&other, whom, "web", 0),
        ];
        assert!(!others.contains(&mac));
    }

    #[test]
    fn a_line_that_says_nothing_is_named() {
        for (text, reason) in [
            ("a\nb weight", "line 2: `weight` is no NAME=VALUE"),
            ("a weight=x", "line 1: x: invalid digit"),
            ("a wait=2", "line 1: `wait` is none of from"),
            ("a from=alice", "line 1: alice: "),
            ("a\n\na", "line 3: a stands there twice"),
            ("a rate=fast", "no rate in bits a second"),
            ("a address=10.0.0.2,x", "line 1: x: "),
            ("a from=user:7", "line 1: what others attach needs an address"),
            (
                "a mac=02:00:00:00:00:03\nb mac=02:00:00:00:00:03",
                "line 2: a has the address 02:00:00:00:00:03",
            ),
            ("a mac=01:00:00:00:00:03", "line 1: 01:00:00:00:00:03 is no address of an interface"),
            ("a weight=0", "line 1: a weight of 0"),
            ("a vlan=5000", "line 1: there is no VLAN 5000"),
            ("a/b weight=2", "line 1: `a/b` is no name of a port"),
        ] {
            let found = Allowances::parse(text).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
    }
    #[test]
    fn a_file_is_read_anew_when_it_has_changed_and_a_pipe_is_none() {
        let path = std::env::temp_dir().join(format!("tombolo-ports-{}", std::process::id()));
        std::fs::write(&path, "a weight=2\n").unwrap();
        let mut listed = Listed::open(&path).unwrap();
        for text in ["a weight=3\n", "b weight=3\n", ""] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(*listed.now().unwrap(), Allowances::parse(text).unwrap());
        }
        std::fs::write(&path, "a weight").unwrap();
        assert!(listed.now().unwrap_err().contains("line 1"));
        std::fs::remove_file(&path).unwrap();
        assert!(listed.now().is_err());
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(listed.now().unwrap_err().contains("no file of ports"));
        std::fs::remove_file(&path).unwrap();
    }
}
