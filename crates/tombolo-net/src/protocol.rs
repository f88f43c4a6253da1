//! The messages between an owner and the processes that attach ports or make requests. Each message is a JSON text.
//!
//! A connection that has attached a port lives as long as the port does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
pub use tombolo_control::MESSAGE_BYTES_MAX;

/// Most ports in one answer. The answer is no longer than [`MESSAGE_BYTES_MAX`], unless the ports have very many addresses.
pub const PORTS_AT_ONCE: usize = 8;
/// The uplink's name in places where ports are named.
pub const UPLINK: &str = "uplink";
/// Version of these messages. An owner refuses versions that it does not know.
pub const VERSION: u16 = 1;

/// A request to an owner.
pub type Request = tombolo_control::Request<Ask>;

/// What is asked of an owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Attach this port. The queues of its TAP device, or the packet socket of its interface, come with the message.
    Attach(Port),
    /// Show up to [`PORTS_AT_ONCE`] ports whose names come after a name, all at the same moment.
    List {
        /// The last name in the previous answer. `None`: begin with the first port.
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
    /// Change what all ports share.
    SetUplink {
        /// Bits a second on the wire. 0: no limit.
        rate_bits: Option<u64>,
    },
}

/// The virtual networks of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vlans {
    /// The untagged network.
    #[default]
    Untagged,
    /// This virtual network. The port sees no tags.
    Access(u16),
    /// These virtual networks, with their tags. 0: the untagged network.
    Trunk(BTreeSet<u16>),
}

/// A port, as the process that attaches it wants it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// Its name in commands.
    pub name: String,
    /// Its TAP device or interface, or the path of a virtual machine's socket.
    pub tap: String,
    /// Where the device is, for people.
    pub namespace: Option<String>,
    /// The device's hardware address. Empty: the owner gives it one.
    pub mac: String,
    /// Most bytes after an Ethernet header.
    pub mtu: u32,
    /// Its share of the uplink, relative to the weights of other ports.
    pub weight: u32,
    /// Most bits a second that it sends. 0: no limit.
    pub rate_bits: u64,
    /// Bits a second of the uplink that it gets before other ports get any.
    pub guaranteed_bits: u64,
    /// Its virtual networks.
    pub vlans: Vlans,
    /// If set, its only network addresses.
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Whether it also gets frames for other ports.
    pub is_promiscuous: bool,
    /// The multicast groups whose frames it gets. `None`: all groups.
    pub groups: Option<BTreeSet<String>>,
}

/// Changes of a port. Fields that are `None` stay as they are.
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
    /// As in [`Port`]. `Some(None)`: any addresses.
    #[serde(with = "option_of_option", skip_serializing_if = "Option::is_none")]
    pub addresses: Option<Option<BTreeSet<IpAddr>>>,
    /// As in [`Port`].
    pub is_promiscuous: Option<bool>,
    /// As in [`Port`]. `Some(None)`: all groups.
    #[serde(with = "option_of_option", skip_serializing_if = "Option::is_none")]
    pub groups: Option<Option<BTreeSet<String>>>,
}

impl Changes {
    /// Applies the changes to a port.
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

/// Serializes `Some(None)` as `{"to": null}`, since JSON has only one null.
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

/// An answer from an owner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The port is attached. More answers of this kind follow when the uplink changes.
    Attached {
        /// Whether the uplink has a carrier.
        has_carrier: bool,
        /// Bytes of the longest segment that the port is to send. They are fewer if the uplink is slow.
        segment_bytes_max: u32,
        /// Most bytes after an Ethernet header that the uplink takes.
        mtu: u32,
        /// The hardware address that the owner has given to the port. Empty: it stays as it is.
        #[serde(default)]
        mac: String,
    },
    /// The port was changed. It is to be attached with these changes when there is another owner.
    Changed(Box<Changes>),
    /// Some ports, in the order of their names. Empty: there are no more.
    Ports(Vec<PortStatus>),
    /// One port.
    Port(Box<PortStatus>),
    /// The uplink.
    Uplink(Box<UplinkStatus>),
    /// The request was carried out.
    Done,
    /// The request was not carried out, for this reason.
    Refused(String),
    /// The port is not attached, since another port has its name. That port may be about to go. The text is the reason for people.
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
    /// Frames by size in bytes: 64, 65-127, 128-255, 256-511, 512-1023, 1024-1518, longer.
    pub by_size: [u64; 7],
    /// Broadcast frames.
    pub broadcasts: u64,
    /// Multicast frames.
    pub multicasts: u64,
}

/// Counters of a port, or of the uplink.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Frames that it has sent.
    pub sent: Traffic,
    /// Frames that it has received.
    pub received: Traffic,
    /// Frames that came from it (sent by the port, or received by the uplink) and were dropped, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Frames for it that it could not take.
    pub undelivered: u64,
    /// Frames that came from it and were dropped before they were read, since there was no room for them. (A TAP device counts
    /// such frames itself.)
    #[serde(default)]
    pub overflowed: u64,
}

/// How a port's device is driven, in ethtool's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Driver {
    /// Whether the uplink has a carrier.
    pub link_detected: bool,
    /// The buffers that hold frames on their way: those of the kernel's device, or of a pipe.
    pub rings: String,
    /// Coalescing of frames to the port.
    pub coalescing: String,
    /// What the device's kernel leaves to the owner, which reads the frames: checksums, cutting segments.
    pub offloads: Vec<String>,
}

/// A configuration word of the shared interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: u32,
    /// The value in words.
    pub meaning: String,
}

/// A port and its present state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortStatus {
    /// Its properties.
    pub port: Port,
    /// How its device is driven.
    pub driver: Driver,
    /// Queues of its device.
    pub queues: usize,
    /// Whether one of its frames waits for the uplink.
    pub is_waiting: bool,
    /// Whether frames are written to it in a thread beside the one that moves frames, since it is another user's or writing to it
    /// takes long.
    #[serde(default)]
    pub is_written_aside: bool,
    /// The process that has attached it.
    pub process: Option<u32>,
    /// The user of that process.
    pub user: Option<u32>,
    /// The node of the port, if it is a port of another machine.
    pub node: Option<String>,
    /// Its counters.
    pub counters: Counters,
}

/// The uplink and its present state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// Its owner's process. 0: it has not said.
    #[serde(default)]
    pub process_id: u32,
    /// Its interface.
    pub interface: String,
    /// The kind of descriptor by which frames go to it.
    pub kind: String,
    /// Its MTU.
    pub mtu: u32,
    /// Whether it has a carrier.
    pub has_carrier: bool,
    /// Bits a second that it is shaped to. 0: no limit.
    pub rate_bits: u64,
    /// What ports take turns by: `rr` (frames) or `drr` (bytes).
    pub scheduler: String,
    /// Whether ports reach each other: `bridge` or `private`.
    pub mode: String,
    /// The nine configuration words that all share (MICRO Table 6.2).
    pub registers: Vec<Register>,
    /// Its counters. `sent` counts the frames that went out by the uplink.
    pub counters: Counters,
}
