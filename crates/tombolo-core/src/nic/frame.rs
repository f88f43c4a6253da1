//! What a switch reads of an Ethernet frame: addresses, the tag of a virtual network, and for which addresses the frame
//! *speaks*, that is, which ones its sender claims to have.

use std::net::{IpAddr, Ipv6Addr};

use etherparse::{
    ArpPacketSlice, Icmpv6Slice, IpNumber, Ipv6ExtensionSlice, LaxIpPayloadSlice, LaxIpv6Slice,
    LaxLinkExtSlice, LaxNetSlice, LaxSlicedPacket, TransportSlice,
};

/// A hardware address.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether the address is a broadcast or multicast address.
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether frames to the address go no further than the other end of a link (IEEE 802.1D, table 7-10), such as flow control
    /// and spanning tree.
    pub fn is_link_local(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0x00, 0x00, 0x00..=0x0f])
    }

    /// The link-local IPv6 address that is derived from this address (RFC 4291, appendix A).
    pub fn link_local_address(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
        Ipv6Addr::new(0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f))
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

impl std::fmt::Debug for Mac {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, formatter)
    }
}

/// A text is not a hardware address, which is six bytes in hexadecimal with colons between them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no hardware address such as 02:00:00:00:00:01")]
pub struct NoMac(String);

impl std::str::FromStr for Mac {
    type Err = NoMac;

    fn from_str(text: &str) -> Result<Self, NoMac> {
        let wrong = || NoMac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
            if !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
        }
        if parts.next().is_some() { Err(wrong()) } else { Ok(Self(bytes)) }
    }
}

/// The addresses for which a frame speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speaks {
    /// Network addresses that the sender claims to have.
    pub addresses: [Option<IpAddr>; 2],
    /// The hardware address that the sender claims to have, besides the frame's source.
    pub mac: Option<Mac>,
    /// The frame hands out addresses or routes: DHCP, router advertisements, redirects.
    pub is_offer: bool,
    /// The frame is not ARP, IPv4 or IPv6: the addresses for which it speaks are not known here.
    pub is_other: bool,
}

/// A frame as a switch sees it.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The destination address.
    pub destination: Mac,
    /// The source address.
    pub source: Mac,
    /// The number of the first tag, if there is one. 0: the tag has only a priority.
    pub vlan: Option<u16>,
    /// A second tag follows the first one.
    pub has_inner_tag: bool,
    /// The first tag is one of a provider's network (IEEE 802.1ad), whose numbers name other virtual networks.
    pub has_provider_tag: bool,
    bytes: &'a [u8],
}

/// Types of the tags of virtual networks (IEEE 802.1Q).
pub(super) const TAG: [u16; 3] = [CUSTOMER_TAG, 0x88a8, 0x9100];
/// The type of the tags that ports and the uplink use.
const CUSTOMER_TAG: u16 = 0x8100;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 4;

impl<'a> Frame<'a> {
    /// Reads a frame's addresses and tags. `None`: the frame is too short for its headers.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&destination, rest) = bytes.split_first_chunk()?;
        let (&source, rest) = rest.split_first_chunk()?;
        let (&kind, rest) = rest.split_first_chunk()?;
        let kind = u16::from_be_bytes(kind);
        let (mut vlan, mut has_inner_tag) = (None, false);
        if TAG.contains(&kind) {
            // The tag, and the type of what follows it.
            let &[high, low, inner @ ..] = rest.first_chunk::<4>()?;
            vlan = Some(u16::from_be_bytes([high, low]) & 0xfff);
            has_inner_tag = TAG.contains(&u16::from_be_bytes(inner));
        }
        let has_provider_tag = vlan.is_some() && kind != CUSTOMER_TAG;
        let (destination, source) = (Mac(destination), Mac(source));
        Some(Self { destination, source, vlan, has_inner_tag, has_provider_tag, bytes })
    }

    /// The addresses for which the frame speaks. `None`: they cannot be read.
    pub fn speaks(&self) -> Option<Speaks> {
        let packet = LaxSlicedPacket::from_ethernet(self.bytes).ok()?;
        // Anything could be behind a MACsec tag.
        let is_whole =
            packet.link_exts.iter().all(|extension| !matches!(extension, LaxLinkExtSlice::Macsec(_)));
        match packet.net {
            _ if !is_whole || (packet.stop_err.is_some() && packet.transport.is_none()) => None,
            // Anything could also be behind more tags than the parser reads.
            None if packet.link_exts.is_full() => None,
            None => Some(Speaks { is_other: true, ..Speaks::default() }),
            Some(LaxNetSlice::Arp(arp)) => arp_speaks(&arp),
            Some(LaxNetSlice::Ipv4(ip)) => {
                let source = ip.header().source_addr();
                Some(Speaks {
                    addresses: [Some(IpAddr::V4(source)).filter(|_| !source.is_unspecified()), None],
                    is_offer: ip.header().fragments_offset().value() == 0 && is_offer(ip.payload(), DHCP)?,
                    ..Speaks::default()
                })
            }
            Some(LaxNetSlice::Ipv6(ip)) => {
                let source = ip.header().source_addr();
                let mut speaks = match &packet.transport {
                    Some(TransportSlice::Icmpv6(icmp)) => neighbour_speaks(icmp, source)?,
                    // Without the first fragment, which is checked, a receiver cannot use this one.
                    _ if !is_first_fragment(&ip) => Speaks::default(),
                    // The first fragment of a neighbour discovery message: the rest of the message cannot be read.
                    None if is_discovery(ip.payload()) => return None,
                    _ => Speaks { is_offer: is_offer(ip.payload(), DHCP6)?, ..Speaks::default() },
                };
                speaks.addresses[0] = Some(IpAddr::V6(source)).filter(|_| !source.is_unspecified());
                Some(speaks)
            }
        }
    }
}

/// UDP ports of servers and of clients.
const DHCP: [u16; 2] = [67, 68];
const DHCP6: [u16; 2] = [547, 546];

/// Whether a packet, or its first fragment, comes from a DHCP server or goes to a DHCP client, by its UDP ports. `None`: it is
/// cut off before the ports.
fn is_offer(payload: &LaxIpPayloadSlice<'_>, [server, client]: [u16; 2]) -> Option<bool> {
    if payload.ip_number != IpNumber::UDP {
        return Some(false);
    }
    let &[from_high, from_low, to_high, to_low, ..] = payload.payload.first_chunk::<8>()?;
    let (from, to) = (u16::from_be_bytes([from_high, from_low]), u16::from_be_bytes([to_high, to_low]));
    Some(from == server || to == client)
}

/// Whether a packet is whole, or is the first fragment of one.
fn is_first_fragment(ip: &LaxIpv6Slice<'_>) -> bool {
    ip.extensions().clone().into_iter().all(|extension| match extension {
        Ipv6ExtensionSlice::Fragment(fragment) => fragment.fragment_offset().value() == 0,
        _ => true,
    })
}

/// Whether the first fragment of a packet belongs to neighbour discovery, or is too short to rule that out.
fn is_discovery(payload: &LaxIpPayloadSlice<'_>) -> bool {
    payload.ip_number == IpNumber::IPV6_ICMP
        && payload.payload.first().is_none_or(|kind| matches!(kind, 133..=137))
}

fn arp_speaks(arp: &ArpPacketSlice<'_>) -> Option<Speaks> {
    let mac = Mac(arp.sender_hw_addr().try_into().ok()?);
    let address: [u8; 4] = arp.sender_protocol_addr().try_into().ok()?;
    // A sender that only asks whether an address is free has no address yet.
    let address = Some(IpAddr::from(address)).filter(|address| !address.is_unspecified());
    Some(Speaks { addresses: [None, address], mac: Some(mac), ..Speaks::default() })
}

/// The addresses for which an ICMPv6 packet speaks, if it belongs to neighbour discovery (RFC 4861, §4).
fn neighbour_speaks(icmp: &Icmpv6Slice<'_>, source: Ipv6Addr) -> Option<Speaks> {
    const ROUTER_SOLICITATION: u8 = 133;
    const SOLICITATION: u8 = 135;
    const ADVERTISEMENT: u8 = 136;
    const ROUTER_ADVERTISEMENT: u8 = 134;
    const REDIRECT: u8 = 137;
    let kind = icmp.type_u8();
    if matches!(kind, ROUTER_ADVERTISEMENT | REDIRECT) {
        return Some(Speaks { is_offer: true, ..Speaks::default() });
    }
    if !matches!(kind, ROUTER_SOLICITATION | SOLICITATION | ADVERTISEMENT) {
        return Some(Speaks::default());
    }
    // Type, code, checksum and flags come first, then the address in question (not in a router solicitation), then options.
    let body = icmp.slice().get(8..)?;
    let (target, mut options) = if kind == ROUTER_SOLICITATION {
        (None, body)
    } else {
        let (&target, options) = body.split_first_chunk::<16>()?;
        // A sender without an address that asks for this one wants to have it.
        let claims = kind == ADVERTISEMENT || source.is_unspecified();
        (claims.then(|| IpAddr::from(target)), options)
    };
    let mut mac = None;
    while let [kind, length, ..] = *options {
        let length = usize::from(length) * 8;
        let option = options.get(..length).filter(|_| length > 0)?;
        // The hardware address of the sender, or of the target.
        if matches!(kind, 1 | 2) {
            let address = Mac(option.get(2..8)?.try_into().ok()?);
            // Of two different addresses, it is not known which one a receiver takes.
            if mac.replace(address).is_some_and(|other| other != address) {
                return None;
            }
        }
        options = options.get(length..)?;
    }
    Some(Speaks { addresses: [None, target], mac, ..Speaks::default() })
}
