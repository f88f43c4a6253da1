//! Offloads: checksums and the cutting of long segments, which a port leaves to the receiver of a frame. The header before
//! each frame asks for them (virtio 1.2, §5.1.6; `struct virtio_net_hdr`). This module also computes the size of such a
//! segment on the wire.
//!
//! A header is accepted only if it agrees with the frame's bytes. A wrong header could make the kernel at the other end
//! read or write outside of the frame, overwrite bytes that the switch has checked, or cut the frame into empty pieces.
//! Requests for other checksums and segments than those of the frame's own TCP or UDP are carried out before this check, by
//! [`settle`](super::settle).

use super::frame::{TAG, TAG_BYTES};

/// Bytes of the header.
pub const OFFLOAD_BYTES: usize = 10;
/// An offload header, as it lies before a frame.
pub type OffloadHeader = [u8; OFFLOAD_BYTES];

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// Length to which a shorter frame is padded, without its checksum.
const LEAST_BYTES: u64 = 60;
/// Bytes on the wire besides a frame's own: preamble, frame checksum and gap (IEEE 802.3).
const OVERHEAD_BYTES: u64 = 24;
/// Bytes of the frame checksum.
const CHECKSUM_BYTES: u64 = 4;

pub(super) const NEEDS_CHECKSUM: u8 = 1;
pub(super) const GSO_NONE: u8 = 0;
pub(super) const GSO_TCP4: u8 = 1;
pub(super) const GSO_TCP6: u8 = 4;
pub(super) const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// Shortest payload per frame of a segment that a kernel is to cut. With a shorter one, the kernel would make thousands of
/// frames in one call.
pub(super) const SEGMENT_BYTES_MIN: usize = 16;

/// Size on the wire of a frame, or of all frames that a segment is cut into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// How many frames.
    pub frames: u64,
    /// Bytes that the frames occupy on the wire, with preambles and gaps.
    pub bytes: u64,
    /// Bytes of each frame but the last, with its checksum, as statistics count them.
    pub frame_bytes: u64,
    /// Bytes of the last one, with its checksum.
    pub last_bytes: u64,
}

/// Why an offload header does not fit its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffload {
    /// The frame is shorter than an Ethernet header.
    #[error("the frame is shorter than its header")]
    Runt,
    /// The frame, or a frame that it would be cut into, is longer than the MTU allows.
    #[error("the frame is longer than the MTU")]
    Giant,
    /// A place that the header names is outside of the frame, or the frame contradicts the header.
    #[error("the offload header does not fit the frame")]
    Lies,
}

fn word(header: &OffloadHeader, at: usize) -> usize {
    let mut bytes = [0; 2];
    bytes.copy_from_slice(header.get(at..at + 2).unwrap_or(&[0; 2]));
    usize::from(u16::from_ne_bytes(bytes))
}

/// What an offload header asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) needs_checksum: bool,
    /// How the frame is to be cut.
    pub(super) kind: u8,
    pub(super) segment_bytes: usize,
    /// Offset of the first byte that is summed.
    pub(super) start: usize,
    /// Where the sum is written, relative to `start`.
    pub(super) offset: usize,
}

impl From<&OffloadHeader> for Asked {
    fn from(header: &OffloadHeader) -> Self {
        let [flags, kind, ..] = *header;
        Self {
            needs_checksum: flags & NEEDS_CHECKSUM != 0,
            kind: kind & !GSO_ECN,
            segment_bytes: word(header, 4),
            start: word(header, 6),
            offset: word(header, 8),
        }
    }
}

impl Asked {
    /// Transport protocol of the segment. `None`: the frame is not a segment, or is of an unknown kind.
    pub(super) fn protocol(&self) -> Option<u8> {
        match self.kind {
            GSO_TCP4 | GSO_TCP6 => Some(TCP),
            GSO_UDP => Some(UDP),
            _ => None,
        }
    }

    /// Whether a segment of this kind can be a packet of this ethertype.
    pub(super) fn is_for(&self, ethertype: u16) -> bool {
        match self.kind {
            GSO_TCP4 => ethertype == IPV4,
            GSO_TCP6 => ethertype == IPV6,
            GSO_UDP => matches!(ethertype, IPV4 | IPV6),
            _ => false,
        }
    }

    /// Bytes of headers before the payload in each frame that a segment is cut into.
    fn headers(&self, frame: &[u8]) -> Option<usize> {
        let headers = self.start + self.transport_bytes(frame)?;
        (headers <= frame.len()).then_some(headers)
    }

    /// Size on the wire of the frames that a segment is cut into.
    pub(super) fn on_wire(&self, frame: &[u8]) -> Option<Wire> {
        let headers = self.headers(frame)?;
        (self.segment_bytes > 0).then(|| cut(frame.len() - headers, headers, self.segment_bytes))
    }

    /// Bytes of the transport header of a segment that is to be cut. `None`: the frame has no whole one.
    pub(super) fn transport_bytes(&self, frame: &[u8]) -> Option<usize> {
        let bytes = match self.protocol()? {
            UDP => 8,
            _ => usize::from(frame.get(self.start + 12)? >> 4) * 4,
        };
        (self.start + bytes <= frame.len() && (self.kind == GSO_UDP || bytes >= 20)).then_some(bytes)
    }
}

/// Checks a header against its frame, and returns the size on the wire. `mtu`: most bytes after the Ethernet header.
///
/// # Errors
/// [`BadOffload`].
pub fn on_wire(header: &OffloadHeader, frame: &[u8], mtu: usize) -> Result<Wire, BadOffload> {
    if frame.len() < ETHERNET_BYTES {
        return Err(BadOffload::Runt);
    }
    let asked = Asked::from(header);
    let (network_at, ethertype) = network(frame).ok_or(BadOffload::Runt)?;
    let own = transport(frame, network_at, ethertype);
    if asked.needs_checksum && !own.is_some_and(|own| own.has_checksum_at(&asked, frame)) {
        return Err(BadOffload::Lies);
    }
    if asked.kind == GSO_NONE {
        return if frame.len() > network_at + mtu { Err(BadOffload::Giant) } else { Ok(one(frame.len())) };
    }
    let is_its = own.is_some_and(|own| Some(own.protocol) == asked.protocol() && own.at == asked.start);
    if !is_its || !asked.is_for(ethertype) || !asked.needs_checksum || asked.segment_bytes < SEGMENT_BYTES_MIN
    {
        return Err(BadOffload::Lies);
    }
    let headers = asked.headers(frame).ok_or(BadOffload::Lies)?;
    if headers + asked.segment_bytes > network_at + mtu {
        return Err(BadOffload::Giant);
    }
    asked.on_wire(frame).ok_or(BadOffload::Lies)
}

pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
pub(super) const TCP: u8 = 6;
pub(super) const UDP: u8 = 17;

/// Offset of the network header, after at most two tags, and its ethertype.
pub(super) fn network(frame: &[u8]) -> Option<(usize, u16)> {
    let mut at = ETHERNET_BYTES;
    for _ in 0..2 {
        let kind = u16::from_be_bytes(frame.get(at - 2..at)?.try_into().ok()?);
        if !TAG.contains(&kind) {
            return Some((at, kind));
        }
        at += TAG_BYTES;
    }
    Some((at, u16::from_be_bytes(frame.get(at - 2..at)?.try_into().ok()?)))
}

/// Most IPv6 extension headers that are walked. A packet should have one of each kind, or two of destination options (RFC
/// 8200, §4.1). This allows some more.
const EXTENSIONS_MAX: usize = 8;

/// Transport protocol of an IP packet, and the offset of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transport {
    pub(super) at: usize,
    pub(super) protocol: u8,
}

impl Transport {
    /// Whether this is TCP or UDP, and the checksum that the offload header asks for is its own.
    pub(super) fn has_checksum_at(&self, asked: &Asked, frame: &[u8]) -> bool {
        let is_its = matches!((self.protocol, asked.offset), (TCP, 16) | (UDP, 6));
        is_its && self.at == asked.start && asked.start + asked.offset + 2 <= frame.len()
    }
}

/// Transport protocol of the packet whose network header is at `network_at`. `None`: it cannot be found, or the packet is an
/// IPv4 fragment.
pub(super) fn transport(frame: &[u8], network_at: usize, ethertype: u16) -> Option<Transport> {
    let network = frame.get(network_at..)?;
    match (ethertype, network.first()? >> 4) {
        (IPV4, 4) => {
            let length = usize::from(network.first()? & 0xf) * 4;
            // The packet is not a fragment: it has no fragment offset, and no further fragments follow.
            let is_whole = u16::from_be_bytes(*network.get(6..)?.first_chunk()?) & 0x3fff == 0;
            (length >= 20 && is_whole)
                .then_some(Transport { at: network_at + length, protocol: *network.get(9)? })
        }
        (IPV6, 6) => {
            // Hop-by-hop options, routing and destination options may precede the transport header.
            let (mut at, mut protocol) = (40, *network.get(6)?);
            for _ in 0..EXTENSIONS_MAX {
                if !matches!(protocol, 0 | 43 | 60) {
                    break;
                }
                let &[following, length] = network.get(at..)?.first_chunk()?;
                protocol = following;
                at += (usize::from(length) + 1) * 8;
            }
            Some(Transport { at: network_at + at, protocol })
        }
        _ => None,
    }
}

/// Size on the wire of a frame. `length` excludes the frame checksum.
pub(super) fn one(length: usize) -> Wire {
    let length = (length as u64).max(LEAST_BYTES);
    let counted = length + CHECKSUM_BYTES;
    Wire { frames: 1, bytes: length + OVERHEAD_BYTES, frame_bytes: counted, last_bytes: counted }
}

fn cut(payload: usize, headers: usize, segment_bytes: usize) -> Wire {
    let frames = payload.div_ceil(segment_bytes).max(1);
    let full = one(headers + segment_bytes);
    let last = one(headers + payload - (frames - 1) * segment_bytes);
    let before = frames as u64 - 1;
    Wire {
        frames: frames as u64,
        bytes: before * full.bytes + last.bytes,
        frame_bytes: if before == 0 { last.frame_bytes } else { full.frame_bytes },
        last_bytes: last.last_bytes,
    }
}

/// The offload header of a frame after its headers became longer by `by_bytes` (a tag was put in) or shorter (a tag was
/// taken out).
#[must_use]
pub fn shifted(header: &OffloadHeader, by_bytes: i16) -> OffloadHeader {
    let mut shifted = *header;
    let [flags, kind, ..] = *header;
    let mut shift = |at: usize| {
        let moved = (word(header, at) as u16).wrapping_add_signed(by_bytes);
        if let Some(place) = shifted.get_mut(at..at + 2) {
            place.copy_from_slice(&moved.to_ne_bytes());
        }
    };
    if kind != GSO_NONE {
        shift(2);
    }
    if flags & NEEDS_CHECKSUM != 0 {
        shift(6);
    }
    shifted
}
