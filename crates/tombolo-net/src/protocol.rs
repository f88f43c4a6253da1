//! What is said between an owner and those who attach ports or ask: JSON, a message each.
//!
//! A connection that has attached a port lives as long as the port does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
pub use tombolo_control::MESSAGE_BYTES_MAX;

/// How many ports are listed at once: their message is no longer than [`MESSAGE_BYTES_MAX`], unless they have very many
/// addresses.
pub const PORTS_AT_ONCE: usize = 8;
/// What the uplink is called where ports are named.
pub const UPLINK: &str = "uplink";
/// Of this file. An owner refuses what it does not know.
pub const VERSION: u16 = 1;

/// To an owner.
pub type Request = tombolo_control::Request<Ask>;

/// What is asked of an owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Take this port; the queues of its TAP device, or the packet socket of its interface, come with the message.
    Attach(Port),
    /// Show the ports whose names come after this one, up to [`PORTS_AT_ONCE`], as they are at one moment.
    List {
        /// The last one of the answer before.
        after: Option<String>,
    },
    /// Show one port.
    Show(String),
    /// Show the uplink.
    ShowUplink,
    /// Change a port.
    Set {
        /// Its name.
        port: String,
        /// What changes.
        changes: Changes,
    },
    /// Change what all share.
    SetUplink {
        /// Bits a second, on the wire; 0: as much as it takes.
        rate_bits: Option<u64>,
    },
}

/// Virtual networks of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vlans {
    /// The untagged one.
    #[default]
    Untagged,
    /// This one; the port sees no tags.
    Access(u16),
    /// These, with tags; 0: the untagged one.
    Trunk(BTreeSet<u16>),
}

/// A port, as who attaches it wants it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// What commands call it.
    pub name: String,
    /// Its TAP device or interface, or the path of a virtual machine's socket.
    pub tap: String,
    /// Where the device is, for people.
    pub namespace: Option<String>,
    /// The device's hardware address; nothing: the owner gives it one.
    pub mac: String,
    /// The most bytes behind an Ethernet header.
    pub mtu: u32,
    /// Its part, beside the weights of the others.
    pub weight: u32,
    /// Bits a second that it sends at most; 0: no limit.
    pub rate_bits: u64,
    /// Bits a second of the uplink that it gets before others get any.
    pub guaranteed_bits: u64,
    /// Its virtual networks.
    pub vlans: Vlans,
    /// Its network addresses, if it may have no others.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Whether it gets frames for others.
    pub is_promiscuous: bool,
    /// Groups whose multicasts it gets; `None`: all.
    pub groups: Option<BTreeSet<String>>,
}

/// Changes of a port; what is `None` stays.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Changes {
    /// As in [`Port`].
    pub weight: Option<u32>,
    /// As in [`Port`].
    pub rate_bits: Option<u64>,
    /// As in [`Port`].
    pub guaranteed_bits: Option<u64>,
    /// As in [`Port`].
    pub vlans: Option<Vlans>,
    /// As in [`Port`]; `Some(None)`: any.
    #[serde(with = "option_of_option", skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Option<BTreeSet<IpAddr>>>,
    /// As in [`Port`].
    pub is_promiscuous: Option<bool>,
    /// As in [`Port`]; `Some(None)`: all.
    #[serde(with = "option_of_option", skip_serializing_if = "Option::is_none")]
    pub groups: Option<Option<BTreeSet<String>>>,
}

impl Changes {
    /// Makes them.
    pub fn apply(self, port: &mut Port) {
        let Self { weight, rate_bits, guaranteed_bits, vlans, addresses, is_promiscuous, groups } = self;
        port.weight = weight.unwrap_or(port.weight);
        port.rate_bits = rate_bits.unwrap_or(port.rate_bits);
        port.guaranteed_bits = guaranteed_bits.unwrap_or(port.guaranteed_bits);
        port.is_promiscuous = is_promiscuous.unwrap_or(port.is_promiscuous);
        if let Some(vlans) = vlans {
            port.vlans = vlans;
        }
        if let Some(addresses) = addresses {
            port.addresses = addresses;
        }
        if let Some(groups) = groups {
            port.groups = groups;
        }
    }
}

/// `Some(None)` as `{"to": null}`: JSON has one null only.
mod option_of_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct To<T> {
        to: Option<T>,
    }

    pub fn serialize<T: Serialize, S: Serializer>(
        value: &Option<Option<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(|to| To { to: to.as_ref() }).serialize(serializer)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<T>>, D::Error> {
        Ok(Option::<To<T>>::deserialize(deserializer)?.map(|to| to.to))
    }
}

/// From an owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The port is attached. More answers of this kind follow when it changes.
    Attached {
        /// Whether the uplink has a carrier.
        has_carrier: bool,
        /// Bytes of the longest segment that it is to send, since the uplink is slow.
        segment_bytes_max: u32,
        /// The most bytes behind an Ethernet header that the uplink takes.
        mtu: u32,
        /// The hardware address that the port has been given; nothing: it stays as it is.
        #[serde(default)]
        mac: String,
    },
    /// This port was changed: it is to be attached so when there is another owner.
    Changed(Box<Changes>),
    /// Some ports, by name; none: there are no more.
    Ports(Vec<PortStatus>),
    /// One port.
    Port(Box<PortStatus>),
    /// The uplink.
    Uplink(Box<UplinkStatus>),
    /// It is done.
    Done,
    /// It is not done, for this reason.
    Refused(String),
    /// A port is not attached, since another one has its name, which may be about to go: what to say of that.
    NameTaken(String),
}

/// Frames of one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames on the wire.
    pub frames: u64,
    /// Their bytes, with checksums.
    pub bytes: u64,
    /// Segments, or frames that were not part of one.
    pub segments: u64,
    /// Frames by size: 64, 65-127, 128-255, 256-511, 512-1023, 1024-1518, longer.
    pub by_size: [u64; 7],
    /// Frames to all.
    pub broadcasts: u64,
    /// Frames to groups.
    pub multicasts: u64,
}

/// What is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// What it has sent.
    pub sent: Traffic,
    /// What it has received.
    pub received: Traffic,
    /// What came from it and was dropped, by reason: of what a port has sent, and of what the uplink has received.
    pub refused: BTreeMap<String, u64>,
    /// Frames for it that it could not take.
    pub undelivered: u64,
    /// What came from it and was dropped before it was read, since there was no room for it. (A TAP device counts its own.)
    #[serde(default)]
    pub overflowed: u64,
}

/// What a device is driven by and how, in ethtool's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Whether the uplink has a carrier.
    pub link_detected: bool,
    /// What holds frames on their way: of the kernel's device, or a pipe's.
    pub rings: String,
    /// Of frames to the port.
    pub coalescing: String,
    /// What the kernel leaves to the owner, which reads the frames: checksums, cutting segments.
    pub offloads: Vec<String>,
}

/// A configuration word of the shared interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u32,
    /// What it says.
    pub meaning: String,
}

/// A port as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// What it is and may do.
    pub port: Port,
    /// What drives it.
    pub driver: Driver,
    /// Queues of its device.
    pub queues: usize,
    /// Whether a frame of it waits for the uplink.
    pub is_waiting: bool,
    /// Whether frames are written to it by a thread of their own, since they take long there.
    #[serde(default)]
    pub is_written_aside: bool,
    /// The process that has attached it.
    pub process: Option<u32>,
    /// The user of that process.
    pub user: Option<u32>,
    /// The node of the port, if it is not this machine's.
    pub node: Option<String>,
    /// What was counted.
    pub counters: Counters,
}

/// The uplink as it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// Its interface.
    pub interface: String,
    /// How it is reached.
    pub kind: String,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it has a carrier.
    pub has_carrier: bool,
    /// Bits a second that it is shaped to; 0: as much as it takes.
    pub rate_bits: u64,
    /// What ports take turns by: `rr` (frames) or `drr` (bytes).
    pub scheduler: String,
    /// Whether ports reach each other: `bridge` or `private`.
    pub mode: String,
    /// The nine configuration words that all share (MICRO Table 6.2).
    pub registers: Vec<Register>,
    /// What was counted: sent is what went out there.
    pub counters: Counters,
}
