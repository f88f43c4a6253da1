//! What the uplink's owner says of ports before they are attached: a file with a line for each.
//!
//! ```text
//! # name     who may attach it, and what it has
//! eth0@web   from=user:1000 weight=2 rate=500M address=10.0.0.2
//! far        from=tombolo-public:9c... guarantee=100M vlan=5
//! ```
//!
//! The file is read when a port is attached, so that a change counts for the next one, and an owner that restarts gives each
//! port what it had.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use tombolo_core::nic::Mac;
use tombolo_node::identity::PublicKey;

use crate::bits::BitRate;
use crate::protocol::{Changes, Port, Vlans};

/// Who attaches.
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

/// What is said of one port.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allowance {
    /// Only these attach it, and the owner's own user and root.
    from: Vec<Whom>,
    mac: Option<Mac>,
    changes: Changes,
}

/// What is said of ports, by name.
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
}

impl Allowances {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or a line of it says nothing: which one.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&text).map_err(|reason| format!("{}, {reason}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut all = BTreeMap::new();
        for (line, number) in text.lines().zip(1..) {
            let line = line.split_once('#').map_or(line, |(line, _)| line);
            let mut words = line.split_whitespace();
            let Some(name) = words.next() else { continue };
            let allowance = Allowance::parse(words).map_err(|reason| format!("line {number}: {reason}"))?;
            if all.insert(name.to_owned(), allowance).is_some() {
                return Err(format!("line {number}: {name} stands there twice"));
            }
        }
        Ok(Self(all))
    }

    /// Whether a port may be attached by them.
    pub fn include(&self, whom: Whom) -> bool {
        self.0.values().any(|allowance| allowance.from.contains(&whom))
    }

    /// The port as it may be. `whom`: somebody who is neither the owner's user nor root.
    ///
    /// # Errors
    /// They may not attach it, or say what the owner says.
    pub fn apply(&self, mut port: Port, whom: Option<Whom>) -> Result<Port, String> {
        let found = self.0.get(&port.name);
        if let Some(whom) = whom {
            let is_allowed = found.is_some_and(|allowance| allowance.from.contains(&whom));
            if !is_allowed {
                return Err(format!("{whom} may not attach a port that is called {}", port.name));
            }
            claims_nothing(&port)?;
        }
        let Some(allowance) = found else { return Ok(port) };
        if let Some(mac) = allowance.mac.filter(|mac| port.mac.parse() != Ok(*mac)) {
            return Err(format!("the port {} has the address {mac}, and no other (--mac)", port.name));
        }
        allowance.changes.clone().apply(&mut port);
        Ok(port)
    }
}

/// Checks what a port asks for whose attacher is neither the owner's user nor root: no weight, guarantee, virtual network or
/// frames for others, since these change what other ports get.
///
/// # Errors
/// The port asks for one of these: which one.
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
             far from={key} from=user:7 guarantee=100M trunk=0,5 promiscuous=true groups=01:00:5e:00:00:01 # ours\n"
        );
        let all = Allowances::parse(&text).unwrap();
        assert!(all.include(Whom::User(1000)) && all.include(Whom::User(7)) && !all.include(Whom::User(8)));
        let key = Whom::Key(key.parse().unwrap());
        let far = all.apply(port("far"), Some(key)).unwrap();
        assert_eq!((far.guaranteed_bits, far.weight, far.is_promiscuous), (100_000_000, 1, true));
        assert_eq!(far.vlans, Vlans::Trunk([0, 5].into()));
        assert_eq!(far.rate_bits, 7, "of which the file says nothing");
        let web = all.apply(port("web"), Some(Whom::User(1000))).unwrap();
        assert_eq!((web.weight, web.rate_bits), (2, 500_000_000));
        assert_eq!(web.addresses.map(|all| all.len()), Some(2));
        // Whose name it is not, and what only the owner gives.
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
            // The owner's own say what they like, but for what the file says.
            assert_eq!(all.apply(wanted, None).unwrap().weight, 2);
        }
        let mut spoofing = port("web");
        spoofing.mac = "02:00:00:00:00:02".into();
        assert!(all.apply(spoofing, None).unwrap_err().contains("and no other"));
        assert_eq!(all.apply(port("other"), None).unwrap(), port("other"));
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
        ] {
            let found = Allowances::parse(text).unwrap_err();
            assert!(found.contains(reason), "{text}: {found}");
        }
    }
}
