//! Decides where a frame goes (to ports, to the uplink), by its destination address, and what a port may send.
//!
//! The switch learns no addresses from frames. Each port has one hardware address, given to [`Switch::set`]. A frame from a
//! port to an address that no port has goes to the uplink. Such a frame from the uplink is dropped and counted. Broadcasts
//! and multicasts are copied. A frame whose source is not its port's own address is dropped, so that no port can pose as
//! another.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::lookup::Lookup;
use std::net::IpAddr;

use super::frame::{Frame, Mac};
use super::offload::{BadOffload, Wire};
use super::scheduler::PortId;

/// Where a frame came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The network outside.
    Uplink,
    /// A port.
    Port(PortId),
}

/// Whether ports reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Ports reach each other directly, without the uplink.
    #[default]
    Bridge,
    /// Ports reach the uplink only.
    Private,
}

/// The virtual networks to which a port belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlans {
    /// One virtual network, whose tag the port does not see. 0: the untagged network.
    Access(u16),
    /// Several virtual networks: the port sends and gets frames with these tags, and untagged frames if 0 is among them.
    Trunk(BTreeSet<u16>),
}

impl Default for Vlans {
    fn default() -> Self {
        Self::Access(0)
    }
}

/// A port's address and virtual networks, and what it may send and get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Its hardware address.
    pub mac: Mac,
    /// Its virtual networks.
    pub vlans: Vlans,
    /// If set, the only network addresses of the port, besides the link-local address of `mac`. The port can neither send from
    /// other addresses nor claim them (ARP, neighbour discovery), and it cannot hand out addresses or routes (DHCP, router
    /// advertisements). It can send ARP, IPv4 and IPv6 only.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// The port also gets the frames for other ports of its virtual networks.
    pub is_promiscuous: bool,
    /// The multicast groups whose frames the port gets. `None`: all groups.
    pub groups: Option<BTreeSet<Mac>>,
}

impl Rules {
    /// The rules of an ordinary port with this hardware address.
    pub fn new(mac: Mac) -> Self {
        Self { mac, vlans: Vlans::default(), addresses: None, is_promiscuous: false, groups: None }
    }

    /// Whether the port belongs to a virtual network.
    fn is_in(&self, vlan: u16) -> bool {
        match &self.vlans {
            Vlans::Access(own) => *own == vlan,
            Vlans::Trunk(all) => all.contains(&vlan),
        }
    }
}

/// Why the switch drops a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The frame is shorter than its headers, or a part that must be checked cannot be parsed.
    Malformed,
    /// The frame is longer than its port's MTU.
    TooLong,
    /// The offload header does not fit the frame.
    BadOffload,
    /// The frame's source, or a hardware address that it claims, is not its port's, or the source is not the address of a
    /// single interface.
    WrongSource,
    /// The frame speaks for a network address that is not its port's.
    WrongAddress,
    /// The frame hands out addresses or routes, which its port may not do.
    NotItsToOffer,
    /// The frame is not ARP, IPv4 or IPv6, and its port is restricted to its network addresses.
    OtherProtocol,
    /// The frame has a tag that its port may not use.
    WrongVlan,
    /// The frame has no receiver, for instance since it came from the uplink and no port has its destination address.
    Unknown,
    /// The frame is for another port, which its own port may not reach.
    Private,
    /// The frame came from the uplink with the source address of a port of its virtual network.
    CameBack,
    /// The frame is for a protocol between the two ends of one link, such as flow control.
    LinkLocal,
}

impl Refusal {
    /// All refusals, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Malformed,
        Self::TooLong,
        Self::BadOffload,
        Self::WrongSource,
        Self::WrongAddress,
        Self::NotItsToOffer,
        Self::OtherProtocol,
        Self::WrongVlan,
        Self::Unknown,
        Self::Private,
        Self::CameBack,
        Self::LinkLocal,
    ];

    /// The name of the refusal in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::TooLong => "too_long",
            Self::BadOffload => "bad_offload",
            Self::WrongSource => "wrong_source",
            Self::WrongAddress => "wrong_address",
            Self::NotItsToOffer => "not_its_to_offer",
            Self::OtherProtocol => "other_protocol",
            Self::WrongVlan => "wrong_vlan",
            Self::Unknown => "unknown_destination",
            Self::Private => "private",
            Self::CameBack => "came_back",
            Self::LinkLocal => "link_local",
        }
    }
}

impl From<BadOffload> for Refusal {
    fn from(bad: BadOffload) -> Self {
        match bad {
            BadOffload::Runt => Self::Malformed,
            BadOffload::Giant => Self::TooLong,
            BadOffload::Lies => Self::BadOffload,
        }
    }
}

/// The receivers of a frame, and its virtual network. The value is reused for the next frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// The ports that get the frame.
    pub ports: Vec<PortId>,
    /// Whether the uplink gets the frame.
    pub uplink: bool,
    /// The virtual network: 0, or the number of the frame's tag at the uplink and at trunks.
    pub vlan: u16,
    /// The number of the tag with which the frame came, if any.
    pub own_tag: Option<u16>,
    /// The frame's size on the wire, if the exchange has asked for the targets.
    pub wire: Wire,
}

/// What happens to a frame's tag on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tag {
    /// The tag, or its absence, stays as it is.
    #[default]
    Keep,
    /// A tag with this number is put in.
    Insert(u16),
    /// The tag's number is replaced by this one.
    Replace(u16),
    /// The tag is taken out.
    Remove,
}

impl Targets {
    /// What happens to the tag at a receiver that wants tags (`true`: the uplink, trunks) or does not.
    pub fn tag(&self, wants_tag: bool) -> Tag {
        match (self.own_tag, Some(self.vlan).filter(|vlan| wants_tag && *vlan != 0)) {
            (None, None) => Tag::Keep,
            (None, Some(vlan)) => Tag::Insert(vlan),
            (Some(own), Some(vlan)) if own == vlan => Tag::Keep,
            (Some(_), Some(vlan)) => Tag::Replace(vlan),
            (Some(_), None) => Tag::Remove,
        }
    }
}

/// The switch of an interface. See the module's documentation.
#[derive(Debug, Default)]
pub struct Switch {
    mode: Mode,
    ports: Vec<Option<Rules>>,
    by_mac: Lookup<Mac, PortId>,
    /// The ports that see no tags, by virtual network (`access`), and the ports that see tags (`trunks`).
    access: BTreeMap<u16, BTreeSet<PortId>>,
    trunks: BTreeSet<PortId>,
    /// The ports that get certain multicast groups, by group (`by_group`), the ports that get all groups (`all_groups`), and the
    /// ports that get all frames of their virtual networks (`promiscuous`).
    by_group: BTreeMap<Mac, BTreeSet<PortId>>,
    all_groups: BTreeSet<PortId>,
    promiscuous: BTreeSet<PortId>,
}

/// Puts a port into the set at `key`, or takes it out. A set that becomes empty is removed from the table.
fn put<Key: Ord>(table: &mut BTreeMap<Key, BTreeSet<PortId>>, key: Key, id: PortId, is_in: bool) {
    let ports = table.entry(key);
    match ports {
        Entry::Occupied(mut known) if !is_in => {
            known.get_mut().remove(&id);
            if known.get().is_empty() {
                known.remove();
            }
        }
        Entry::Vacant(_) if !is_in => {}
        ports => drop(ports.or_default().insert(id)),
    }
}

/// Why a port cannot have certain rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRules {
    /// Another port has the hardware address.
    #[error("another port has the address {0}")]
    MacInUse(Mac),
    /// The hardware address is not that of a single interface.
    #[error("{0} is no address of an interface: it is zero, or that of a group")]
    NotOne(Mac),
    /// There is no such virtual network.
    #[error("there is no VLAN {0}: they are numbered from 1 to 4094, and 0 is untagged")]
    NoVlan(u16),
}

impl Switch {
    /// A switch without ports.
    pub fn new(mode: Mode) -> Self {
        Self { mode, ..Self::default() }
    }

    /// Whether ports reach each other.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Adds a port, or changes what it may do.
    ///
    /// # Errors
    /// [`BadRules`]; nothing has changed then.
    pub fn set(&mut self, id: PortId, rules: Rules) -> Result<(), BadRules> {
        if rules.mac.is_group() || rules.mac == Mac::default() {
            return Err(BadRules::NotOne(rules.mac));
        }
        if self.by_mac.get(&rules.mac).is_some_and(|owner| *owner != id) {
            return Err(BadRules::MacInUse(rules.mac));
        }
        let wrong = match &rules.vlans {
            Vlans::Access(vlan) => Some(*vlan).filter(|vlan| *vlan > VLAN_MAX),
            Vlans::Trunk(all) => all.last().copied().filter(|vlan| *vlan > VLAN_MAX),
        };
        if let Some(vlan) = wrong {
            return Err(BadRules::NoVlan(vlan));
        }
        self.remove(id);
        let index = usize::from(id.0);
        if self.ports.len() <= index {
            self.ports.resize(index + 1, None);
        }
        if let Some(place) = self.ports.get_mut(index) {
            self.by_mac.insert(rules.mac, id);
            *place = Some(rules.clone());
        }
        self.file(id, &rules, true);
        Ok(())
    }

    /// Puts a port into the sets that its rules name, or takes it out of them.
    fn file(&mut self, id: PortId, rules: &Rules, is_in: bool) {
        let put_in = |ports: &mut BTreeSet<PortId>| if is_in { ports.insert(id) } else { ports.remove(&id) };
        match &rules.vlans {
            Vlans::Access(vlan) => put(&mut self.access, *vlan, id, is_in),
            Vlans::Trunk(_) => drop(put_in(&mut self.trunks)),
        }
        match &rules.groups {
            Some(groups) => groups.iter().for_each(|group| put(&mut self.by_group, *group, id, is_in)),
            None => drop(put_in(&mut self.all_groups)),
        }
        if rules.is_promiscuous {
            put_in(&mut self.promiscuous);
        }
    }

    /// Removes a port.
    pub fn remove(&mut self, id: PortId) {
        if let Some(rules) = self.ports.get_mut(usize::from(id.0)).and_then(Option::take) {
            self.by_mac.remove(&rules.mac);
            self.file(id, &rules, false);
        }
    }

    /// What a port may do.
    pub fn rules(&self, id: PortId) -> Option<&Rules> {
        self.ports.get(usize::from(id.0))?.as_ref()
    }

    /// Decides where a frame goes. `targets` is overwritten.
    ///
    /// # Errors
    /// [`Refusal`]: the frame is dropped.
    pub fn forward(&self, from: Origin, bytes: &[u8], targets: &mut Targets) -> Result<(), Refusal> {
        targets.ports.clear();
        (targets.uplink, targets.vlan, targets.own_tag) = (false, 0, None);
        let frame = Frame::parse(bytes).ok_or(Refusal::Malformed)?;
        targets.own_tag = frame.vlan;
        // Taking out a tag that has only a priority must not expose an inner tag.
        let is_priority = frame.vlan == Some(0);
        if frame.has_provider_tag || (is_priority && frame.has_inner_tag) {
            return Err(Refusal::WrongVlan);
        }
        if frame.source.is_group() || frame.source == Mac::default() {
            return Err(Refusal::WrongSource);
        }
        if frame.destination.is_link_local() {
            return Err(Refusal::LinkLocal);
        }
        targets.vlan = match from {
            Origin::Uplink => {
                let vlan = frame.vlan.unwrap_or(0);
                let owner = self.by_mac.get(&frame.source).and_then(|id| self.rules(*id));
                // In another virtual network, the same address belongs to a different interface.
                if owner.is_some_and(|rules| rules.is_in(vlan)) {
                    return Err(Refusal::CameBack);
                }
                vlan
            }
            Origin::Port(id) => {
                let rules = self.rules(id).ok_or(Refusal::WrongSource)?;
                check_source(rules, &frame)?;
                vlan_of(rules, &frame)?
            }
        };
        self.find_targets(from, &frame, targets)
    }

    /// The ports that may get a frame to this address, without the port that has the address. Some of them may be in another
    /// virtual network or group, and a port may occur twice.
    fn candidates(&self, to: Mac, vlan: u16) -> impl Iterator<Item = PortId> {
        // The members of the group or those of the virtual network, whichever are fewer.
        let members = self.by_group.get(&to).map_or(0, BTreeSet::len) + self.all_groups.len();
        let in_network = self.access.get(&vlan).map_or(0, BTreeSet::len) + self.trunks.len();
        let is_multicast = to.is_group() && to != Mac::BROADCAST;
        let (by_network, by_group) =
            (is_multicast && in_network < members, is_multicast && in_network >= members);
        let of_all = (to == Mac::BROADCAST || by_network)
            .then(|| self.access.get(&vlan).into_iter().flatten().chain(&self.trunks));
        let of_group = by_group.then(|| self.by_group.get(&to).into_iter().flatten().chain(&self.all_groups));
        let known = of_all.into_iter().flatten().chain(of_group.into_iter().flatten());
        known.chain(&self.promiscuous).copied()
    }

    fn find_targets(&self, from: Origin, frame: &Frame<'_>, targets: &mut Targets) -> Result<(), Refusal> {
        let from_port = match from {
            Origin::Uplink => None,
            Origin::Port(id) => Some(id),
        };
        let may_reach_ports = from_port.is_none() || self.mode == Mode::Bridge;
        let owner = self.by_mac.get(&frame.destination).copied();
        let owner = owner.filter(|id| self.rules(*id).is_some_and(|rules| rules.is_in(targets.vlan)));
        // A frame to its own port's address is refused as `Unknown`, not as `Private`: it is not for another port.
        let is_private =
            owner.is_some_and(|owner| from_port.is_some() && !may_reach_ports && Some(owner) != from_port);
        if may_reach_ports {
            let gets_group = |rules: &Rules| {
                let is_member = |groups: &BTreeSet<Mac>| groups.contains(&frame.destination);
                let is_multicast = frame.destination.is_group() && frame.destination != Mac::BROADCAST;
                !is_multicast || rules.is_promiscuous || rules.groups.as_ref().is_none_or(is_member)
            };
            let is_in = |id: &PortId| {
                self.rules(*id).is_some_and(|rules| rules.is_in(targets.vlan) && gets_group(rules))
            };
            let known = self.candidates(frame.destination, targets.vlan).chain(owner);
            targets.ports.extend(known.filter(|id| Some(*id) != from_port && is_in(id)));
            targets.ports.sort_unstable();
            targets.ports.dedup();
        }
        targets.uplink = from_port.is_some() && owner.is_none();
        match (targets.ports.is_empty() && !targets.uplink, is_private) {
            (false, _) => Ok(()),
            (true, true) => Err(Refusal::Private),
            (true, false) => Err(Refusal::Unknown),
        }
    }
}

const VLAN_MAX: u16 = 4094;

/// The virtual network of a frame that a port has sent.
fn vlan_of(rules: &Rules, frame: &Frame<'_>) -> Result<u16, Refusal> {
    match (&rules.vlans, frame.vlan) {
        (Vlans::Access(own), None | Some(0)) => Ok(*own),
        (Vlans::Access(_), Some(_)) => Err(Refusal::WrongVlan),
        (Vlans::Trunk(all), vlan) => {
            let vlan = vlan.unwrap_or(0);
            all.contains(&vlan).then_some(vlan).ok_or(Refusal::WrongVlan)
        }
    }
}

/// Checks that a frame speaks only for the addresses of the port that sends it.
fn check_source(rules: &Rules, frame: &Frame<'_>) -> Result<(), Refusal> {
    if frame.source != rules.mac {
        return Err(Refusal::WrongSource);
    }
    let Some(own) = &rules.addresses else { return Ok(()) };
    let speaks = frame.speaks().ok_or(Refusal::Malformed)?;
    let link_local = IpAddr::V6(rules.mac.link_local_address());
    let is_own = |address: &IpAddr| own.contains(address) || *address == link_local;
    if speaks.is_other {
        Err(Refusal::OtherProtocol)
    } else if speaks.is_offer {
        Err(Refusal::NotItsToOffer)
    } else if speaks.mac.is_some_and(|mac| mac != rules.mac) {
        Err(Refusal::WrongSource)
    } else if !speaks.addresses.iter().flatten().all(is_own) {
        Err(Refusal::WrongAddress)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For a frame to one port or to a small group, the switch looks at few of a thousand ports.
    #[test]
    fn a_frame_looks_at_the_ports_that_may_get_it() {
        let mut switch = Switch::new(Mode::Bridge);
        let mac = |id: u16| Mac([2, 0, 0, 0, (id >> 8) as u8, id as u8]);
        let group = |id: u16| Mac([0x33, 0x33, 0xff, 0, (id >> 8) as u8, id as u8]);
        for id in 0..1000 {
            let vlans = if id < 20 { Vlans::Access(7) } else { Vlans::default() };
            let groups = Some(BTreeSet::from([group(id), group(1000)]));
            let rules = Rules { vlans, groups, is_promiscuous: id == 500, ..Rules::new(mac(id)) };
            switch.set(PortId(id), rules).expect("good rules");
        }
        let looks = |switch: &Switch, to, vlan| switch.candidates(to, vlan).count();
        assert_eq!(looks(&switch, mac(9), 0), 1);
        assert_eq!(looks(&switch, group(9), 0), 2);
        assert_eq!(looks(&switch, group(1000), 0), 981);
        assert_eq!(looks(&switch, Mac::BROADCAST, 7), 21);
        assert_eq!(looks(&switch, group(1000), 7), 21, "the ports of the network, not all members");
        assert_eq!(looks(&switch, Mac::BROADCAST, 0), 981);
        (0..1000).for_each(|id| switch.remove(PortId(id)));
        assert_eq!(looks(&switch, group(1000), 0) + looks(&switch, Mac::BROADCAST, 0), 0);
        assert!(switch.access.is_empty() && switch.by_group.is_empty());
    }
}
