//! What a port leaves to others: checksums and the cutting of long segments, as told by the header that goes before
//! each frame (virtio 1.2, §5.1.6; `struct virtio_net_hdr`), and what such a segment is on the wire.
//!
//! A header is believed only as far as the frame's bytes bear it out: one that lies would make the kernel at the other
//! end read or write beside the frame, or cut it into nothing.

use super::frame::{TAG, TAG_BYTES};

/// Bytes of the header.
pub const OFFLOAD_BYTES: usize = 10;
/// A header, as it lies before a frame.
pub type OffloadHeader = [u8; OFFLOAD_BYTES];

/// Bytes of an Ethernet header without tags.
pub const ETHERNET_BYTES: usize = 14;
/// Bytes that a frame is padded to, without its checksum.
const LEAST_BYTES: u64 = 60;
/// Bytes on the wire beside a frame's own: preamble, frame checksum and gap (IEEE 802.3).
const OVERHEAD_BYTES: u64 = 24;
/// Bytes of the frame checksum.
const CHECKSUM_BYTES: u64 = 4;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;
/// The shortest payload of a segment's frames: cutting a segment into shorter ones would cost the kernel thousands of
/// frames.
const SEGMENT_BYTES_MIN: usize = 16;

/// What a frame, or all frames that a segment becomes, are on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wire {
    /// How many frames.
    pub frames: u64,
    /// Bytes that they take of the wire's time, with preambles and gaps.
    pub bytes: u64,
    /// Bytes of each frame but the last, with its checksum, as statistics count them.
    pub frame_bytes: u64,
    /// Bytes of the last one, with its checksum.
    pub last_bytes: u64,
}

/// A header does not fit its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffload {
    /// The frame is shorter than an Ethernet header.
    #[error("the frame is shorter than its header")]
    Runt,
    /// It is longer than may be, or would be cut into such frames.
    #[error("the frame is longer than the MTU")]
    Giant,
    /// A place that the header names is not in the frame, or what it says of it is not so.
    #[error("the offload header does not fit the frame")]
    Lies,
}

fn word(header: &OffloadHeader, at: usize) -> usize {
    let mut bytes = [0; 2];
    bytes.copy_from_slice(header.get(at..at + 2).unwrap_or(&[0; 2]));
    usize::from(u16::from_ne_bytes(bytes))
}

/// Checks a header against its frame, and says what goes on the wire. `mtu`: the most bytes behind the Ethernet header.
///
/// # Errors
/// [`BadOffload`].
pub fn on_wire(header: &OffloadHeader, frame: &[u8], mtu: usize) -> Result<Wire, BadOffload> {
    let [flags, kind, ..] = *header;
    let (kind, segment_bytes) = (kind & !GSO_ECN, word(header, 4));
    let (start, offset) = (word(header, 6), word(header, 8));
    if frame.len() < ETHERNET_BYTES {
        return Err(BadOffload::Runt);
    }
    let (network_at, ethertype) = network(frame).ok_or(BadOffload::Runt)?;
    if flags & NEEDS_CHECKSUM != 0 && (start < network_at || start + offset + 2 > frame.len()) {
        return Err(BadOffload::Lies);
    }
    if kind == GSO_NONE {
        return if frame.len() > network_at + mtu { Err(BadOffload::Giant) } else { Ok(one(frame.len())) };
    }
    let is_for = match kind {
        GSO_TCP4 => ethertype == IPV4,
        GSO_TCP6 => ethertype == IPV6,
        GSO_UDP => matches!(ethertype, IPV4 | IPV6),
        _ => false,
    };
    if !is_for || flags & NEEDS_CHECKSUM == 0 || segment_bytes < SEGMENT_BYTES_MIN {
        return Err(BadOffload::Lies);
    }
    let transport_bytes = if kind == GSO_UDP {
        8
    } else {
        let offset = frame.get(start + 12).ok_or(BadOffload::Lies)?;
        usize::from(offset >> 4) * 4
    };
    let headers = start + transport_bytes;
    if headers > frame.len()
        || (kind != GSO_UDP && transport_bytes < 20)
        || !is_transport(frame, network_at, kind, ethertype, start)
    {
        return Err(BadOffload::Lies);
    }
    if headers + segment_bytes > network_at + mtu {
        return Err(BadOffload::Giant);
    }
    Ok(cut(frame.len() - headers, headers, segment_bytes))
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Where the network header begins behind at most two tags, and of what kind it is.
fn network(frame: &[u8]) -> Option<(usize, u16)> {
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

/// Whether the transport header begins where the offload header says, and is of that kind.
fn is_transport(frame: &[u8], network_at: usize, kind: u8, ethertype: u16, start: usize) -> bool {
    let protocol = if kind == GSO_UDP { 17 } else { 6 };
    let Some(network) = frame.get(network_at..) else { return false };
    match (ethertype, network.first().map(|first| first >> 4)) {
        (IPV4, Some(4)) => {
            let length = network.first().map_or(0, |first| usize::from(first & 0xf) * 4);
            length >= 20 && start == network_at + length && network.get(9) == Some(&protocol)
        }
        (IPV6, Some(6)) => {
            // Hop-by-hop options, routing and destination options may stand between.
            let (mut at, mut next) = (40, network.get(6).copied());
            while let Some(0 | 43 | 60) = next {
                let Some(&[following, length]) = network.get(at..).and_then(|rest| rest.first_chunk()) else {
                    return false;
                };
                next = Some(following);
                at += (usize::from(length) + 1) * 8;
            }
            next == Some(protocol) && start == network_at + at
        }
        _ => false,
    }
}

/// A frame of this length, without its checksum.
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

/// The header of a frame whose headers have become longer (a tag was put in) or shorter (one was taken out).
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
