//! Sums and cuts that an offload header asks for and that no kernel does, or does to bytes that the switch has read.
//!
//! A port could otherwise have a kernel write a "checksum" over an address after the switch has read it. So only the
//! checksum of the frame's own TCP or UDP is left to the kernel; [`settle`] writes any other before the switch reads the frame. Segments in
//! a tunnel (VXLAN, Geneve, IP in IP, GRE), those that would have more bytes on the wire than a port may send at once, and those of frames with a few
//! bytes each are cut by a [`Cut`]: each piece is an ordinary frame from then on. Left out, and refused: GRE with checksums or sequence numbers, UDP tunnels over IPv4 with options or over
//! IPv6 with extension headers, and tunnels in tunnels.

use etherparse::checksum::Sum16BitWords;

use super::offload::{
    Asked, BadOffload, GSO_NONE, GSO_UDP, IPV4, IPV6, OFFLOAD_BYTES, OffloadHeader, SEGMENT_BYTES_MIN,
    Transport, UDP, network, transport,
};

/// Bytes on the wire of one segment, where ports are told to send segments of this many bytes. Each of its frames has the headers again, so in very many
/// frames, or with long headers, a segment has many more bytes there than it has itself; and a port may send longer ones than it is told to. The wire
/// would be one port's for as long.
pub const fn wire_bytes_max(segment_bytes: u64) -> u64 {
    2 * segment_bytes
}

const SCTP: u8 = 132;
const IPV4_IN_IP: u8 = 4;
const IPV6_IN_IP: u8 = 41;
const GRE: u8 = 47;
/// In the first byte of GRE (RFC 2890).
const KEY_PRESENT: u8 = 0x20;

/// Does what a frame's offload header asks for, unless that is the checksum or the segmentation of the frame's own TCP or UDP, which is left to a
/// kernel. `Some`: the frame is to be cut, since no kernel does it right, or since it would have more than `wire_bytes_max` on the wire.
///
/// # Errors
/// [`BadOffload`]: the header names bytes that the frame does not have.
pub fn settle(
    header: &mut OffloadHeader,
    frame: &mut [u8],
    wire_bytes_max: u64,
) -> Result<Option<Cut>, BadOffload> {
    let asked = Asked::from(&*header);
    if !asked.needs_checksum {
        return Ok(None);
    }
    let (network_at, ethertype) = network(frame).ok_or(BadOffload::Runt)?;
    let own = transport(frame, network_at, ethertype);
    if asked.kind != GSO_NONE {
        let is_its = own.is_some_and(|own| own.at == asked.start && Some(own.protocol) == asked.protocol());
        let is_short = || asked.on_wire(frame).is_none_or(|wire| wire.bytes <= wire_bytes_max);
        return if is_its && asked.segment_bytes >= SEGMENT_BYTES_MIN && is_short() {
            Ok(None)
        } else {
            Cut::new(&asked, frame).map(Some).ok_or(BadOffload::Lies)
        };
    }
    if own.is_some_and(|own| own.has_checksum_at(&asked, frame)) {
        return Ok(None);
    }
    if asked.start < network_at || asked.start + asked.offset + 2 > frame.len() {
        return Err(BadOffload::Lies);
    }
    let is_sctp = own.is_some_and(|own| own.protocol == SCTP && own.at == asked.start) && asked.offset == 8;
    if is_sctp {
        sum_sctp(frame, network_at, asked.start).ok_or(BadOffload::Lies)?;
    } else {
        sum(frame, asked.start, asked.offset).ok_or(BadOffload::Lies)?;
    }
    *header = [0; OFFLOAD_BYTES];
    Ok(None)
}

/// Writes the sum of all bytes from `start` on, as the kernel does.
fn sum(frame: &mut [u8], start: usize, offset: usize) -> Option<()> {
    let sum = Sum16BitWords::new().add_slice(frame.get(start..)?).to_ones_complement_with_no_zero();
    put(frame, start + offset, sum.to_ne_bytes())
}

/// Writes the checksum of SCTP, which is another one (RFC 9260, §6.8).
fn sum_sctp(frame: &mut [u8], network_at: usize, start: usize) -> Option<()> {
    put(frame, start + 8, [0; 4])?;
    // Short frames are padded.
    let end = packet_end(frame, network_at).unwrap_or(frame.len()).min(frame.len());
    let sum = crc_fast::crc32_iscsi(frame.get(start..end)?);
    put(frame, start + 8, sum.to_le_bytes())
}

/// Where the packet ends whose header begins there, as that says.
fn packet_end(frame: &[u8], network_at: usize) -> Option<usize> {
    match frame.get(network_at)? >> 4 {
        4 => Some(network_at + usize::from(get(frame, network_at + 2)?)),
        6 => Some(network_at + 40 + usize::from(get(frame, network_at + 4)?)),
        _ => None,
    }
}

fn get(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn put<const COUNT: usize>(frame: &mut [u8], at: usize, bytes: [u8; COUNT]) -> Option<()> {
    *frame.get_mut(at..)?.first_chunk_mut()? = bytes;
    Some(())
}

/// How a segment is cut into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Where the packet begins that is cut, or the tunnel that it is in.
    outer_at: usize,
    /// The tunnel's UDP header, if it has one.
    outer_udp_at: Option<usize>,
    /// Where the packet that is cut begins.
    network_at: usize,
    transport_at: usize,
    is_udp: bool,
    /// Bytes before the payload.
    headers: usize,
    segment_bytes: usize,
    length: usize,
}

impl Cut {
    fn new(asked: &Asked, frame: &[u8]) -> Option<Self> {
        let (outer_at, ethertype) = network(frame)?;
        let outer = transport(frame, outer_at, ethertype)?;
        let protocol = asked.protocol()?;
        let is_direct = outer == Transport { at: asked.start, protocol };
        let network_at = if is_direct {
            asked.is_for(ethertype).then_some(outer_at)?
        } else {
            find_packet(asked, frame, outer, protocol)?
        };
        // A sum over the tunnel's own addresses is written only where these are what the header begins with.
        let has_options = outer.at != outer_at + if ethertype == IPV4 { 20 } else { 40 };
        let outer_udp_at = (!is_direct && outer.protocol == UDP).then_some(outer.at);
        if outer_udp_at.is_some() && has_options {
            return None;
        }
        let headers = asked.start + asked.transport_bytes(frame)?;
        (asked.segment_bytes > 0).then_some(Self {
            outer_at,
            outer_udp_at,
            network_at,
            transport_at: asked.start,
            is_udp: asked.kind == GSO_UDP,
            headers,
            segment_bytes: asked.segment_bytes,
            length: frame.len(),
        })
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        (self.length - self.headers).div_ceil(self.segment_bytes).max(1)
    }

    /// Writes a piece of the segment to a buffer. Returns its length; `None`: there is no such piece, or no room for it.
    pub fn write(&self, number: usize, segment: &[u8], into: &mut [u8]) -> Option<usize> {
        if number >= self.pieces() || segment.len() != self.length {
            return None;
        }
        let from = self.headers + number * self.segment_bytes;
        let payload = segment.get(from..self.length.min(from + self.segment_bytes))?;
        let length = self.headers + payload.len();
        let piece = into.get_mut(..length)?;
        let (headers, rest) = piece.split_at_mut(self.headers);
        headers.copy_from_slice(segment.get(..self.headers)?);
        rest.copy_from_slice(payload);
        self.write_transport(number, piece)?;
        number_packet(piece, self.network_at, number as u16)?;
        if self.network_at != self.outer_at {
            number_packet(piece, self.outer_at, number as u16)?;
        }
        if let Some(at) = self.outer_udp_at {
            put(piece, at + 4, ((length - at) as u16).to_be_bytes())?;
            if get(piece, at + 6)? != 0 {
                let addresses = if piece.get(self.outer_at)? >> 4 == 4 { 12..20 } else { 8..40 };
                let addresses = piece.get(self.outer_at + addresses.start..self.outer_at + addresses.end)?;
                let pseudo = Sum16BitWords::new()
                    .add_slice(addresses)
                    .add_2bytes(u16::from(UDP).to_be_bytes())
                    .add_2bytes(((length - at) as u16).to_be_bytes());
                put(piece, at + 6, [0; 2])?;
                let sum = pseudo.add_slice(piece.get(at..)?).to_ones_complement_with_no_zero();
                put(piece, at + 6, sum.to_ne_bytes())?;
            }
        }
        Some(length)
    }

    /// Sequence numbers, lengths and the checksum, in whose place the sum of addresses, protocol and the segment's length stands.
    fn write_transport(&self, number: usize, piece: &mut [u8]) -> Option<()> {
        const FIN_AND_PUSH: u8 = 0x09;
        const WINDOW_REDUCED: u8 = 0x80;
        let at = self.transport_at;
        let length = (piece.len() - at) as u16;
        let was = (self.length - at) as u16;
        let checksum_at = at + if self.is_udp { 6 } else { 16 };
        if self.is_udp {
            put(piece, at + 4, length.to_be_bytes())?;
        } else {
            let sequence = u32::from_be_bytes(*piece.get(at + 4..)?.first_chunk()?);
            let sequence = sequence.wrapping_add((number * self.segment_bytes) as u32);
            put(piece, at + 4, sequence.to_be_bytes())?;
            let is_last = number + 1 == self.pieces();
            let flags = piece.get_mut(at + 13)?;
            *flags &=
                !(if is_last { 0 } else { FIN_AND_PUSH } | if number == 0 { 0 } else { WINDOW_REDUCED });
        }
        let sum = Sum16BitWords::new()
            .add_2bytes((!was).to_be_bytes())
            .add_2bytes(length.to_be_bytes())
            .add_slice(piece.get(at..)?)
            .to_ones_complement_with_no_zero();
        put(piece, checksum_at, sum.to_ne_bytes())
    }
}

/// Bytes of the longest headers between a tunnel and the transport header of the packet in it: an Ethernet header with two tags, one of
/// Geneve with options, and one of IPv6 with extensions.
const WITHIN_BYTES_MAX: usize = 512;

/// Finds the inner IP header whose transport header begins at `asked.start`, and whose packet ends with the frame.
fn find_packet(asked: &Asked, frame: &[u8], outer: Transport, protocol: u8) -> Option<usize> {
    let last = asked.start.checked_sub(20)?;
    let is_it = |at: &usize| {
        [IPV4, IPV6].into_iter().any(|ethertype| {
            asked.is_for(ethertype)
                && transport(frame, *at, ethertype) == Some(Transport { at: asked.start, protocol })
                && packet_end(frame, *at) == Some(frame.len())
        })
    };
    match outer.protocol {
        IPV4_IN_IP | IPV6_IN_IP => Some(outer.at).filter(is_it),
        GRE => {
            let flags = *frame.get(outer.at)?;
            // A checksum or a number of its own would be wrong in the pieces. A key is 4 bytes more.
            let has_others = flags & !KEY_PRESENT != 0;
            Some(outer.at + if flags & KEY_PRESENT == 0 { 4 } else { 8 })
                .filter(|_| !has_others)
                .filter(is_it)
        }
        // It most likely has no options.
        UDP if last.saturating_sub(outer.at) <= WITHIN_BYTES_MAX => (outer.at + 8..=last).rev().find(is_it),
        _ => None,
    }
}

/// Gives a packet that ends with its frame its length, and one of IPv4 its number.
fn number_packet(frame: &mut [u8], at: usize, number: u16) -> Option<()> {
    let length = (frame.len() - at) as u16;
    match frame.get(at)? >> 4 {
        4 => {
            put(frame, at + 2, length.to_be_bytes())?;
            let identification = get(frame, at + 4)?.wrapping_add(number);
            put(frame, at + 4, identification.to_be_bytes())?;
            put(frame, at + 10, [0; 2])?;
            let header = frame.get(at..at + usize::from(frame.get(at)? & 0xf) * 4)?;
            let sum = Sum16BitWords::new().add_slice(header).ones_complement();
            put(frame, at + 10, sum.to_ne_bytes())
        }
        6 => put(frame, at + 4, length.saturating_sub(40).to_be_bytes()),
        _ => None,
    }
}
