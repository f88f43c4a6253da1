//! Sums and segments of frames that no kernel is asked for: what comes out is what a sender would have sent without offloads.

use std::ops::Range;

use etherparse::{
    IpNumber, Ipv4Header, Ipv6Header, Ipv6RawExtHeader, PacketBuilder, SlicedPacket, TcpHeader,
    TransportSlice,
};
use tombolo_core::nic::offload::{BadOffload, OFFLOAD_BYTES, OffloadHeader, on_wire};
use tombolo_core::nic::{Cut, settle, wire_bytes_max};
use tombolo_random::{Random, Seeds};

/// Bytes on the wire of the longest segment at a fast interface.
const MOST: u64 = wire_bytes_max(65_536);
const MTU: usize = 1500;
const TCP4: u8 = 1;
const TCP6: u8 = 4;
const UDP: u8 = 5;

fn header(kind: u8, segment_bytes: usize, start: usize, offset: usize) -> OffloadHeader {
    let mut header = [0; OFFLOAD_BYTES];
    (header[0], header[1]) = (1, kind);
    for (at, value) in [(4, segment_bytes), (6, start), (8, offset)] {
        header[at..at + 2].copy_from_slice(&(value as u16).to_ne_bytes());
    }
    header
}

/// The sum of words in ones' complement, as RFC 1071 tells it.
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u64 =
        words.map(|word| u64::from(word[0]) << 8 | u64::from(word.get(1).copied().unwrap_or(0))).sum();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// How the packet that is cut is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tunnel {
    None,
    Vxlan { has_checksum: bool },
    InIp,
    Gre { has_key: bool },
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    is_v6: bool,
    is_udp: bool,
    tunnel: Tunnel,
    is_outer_v6: bool,
    tags: usize,
    segment_bytes: usize,
    payload_bytes: usize,
    flags: u8,
    sequence: u32,
    identification: u16,
}

const V4: ([u8; 4], [u8; 4]) = ([10, 0, 0, 2], [10, 0, 0, 3]);
const V6: ([u8; 16], [u8; 16]) = (
    [0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 2],
    [0xfd, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 3],
);
const ETHERNET: [u8; 12] = [2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 2];

impl Sample {
    fn random(random: &mut Random) -> Self {
        let tunnel = match random.below(5) {
            0 => Tunnel::None,
            1 => Tunnel::InIp,
            2 => Tunnel::Gre { has_key: random.one_in(2) },
            _ => Tunnel::Vxlan { has_checksum: random.one_in(2) },
        };
        let segment_bytes =
            if tunnel == Tunnel::None { 1 + random.index(15) } else { 1 + random.index(1300) };
        Self {
            is_v6: random.one_in(2),
            is_udp: random.one_in(2),
            tunnel,
            is_outer_v6: random.one_in(2),
            tags: random.index(3),
            segment_bytes,
            payload_bytes: random.index(segment_bytes * 20),
            flags: random.next() as u8,
            sequence: random.next() as u32,
            identification: random.next() as u16,
        }
    }

    fn ip(&self, is_v6: bool, protocol: u8, payload_bytes: usize) -> Vec<u8> {
        let (mut bytes, protocol) = (Vec::new(), IpNumber(protocol));
        if is_v6 {
            let header = Ipv6Header {
                payload_length: payload_bytes as u16,
                next_header: protocol,
                hop_limit: 64,
                source: V6.0,
                destination: V6.1,
                ..Ipv6Header::default()
            };
            header.write(&mut bytes).unwrap();
        } else {
            let mut header = Ipv4Header::new(payload_bytes as u16, 64, protocol, V4.0, V4.1).unwrap();
            header.identification = self.identification;
            header.write(&mut bytes).unwrap();
        }
        bytes
    }

    /// The packet that is cut, and where its transport header and payload lie.
    fn packet(&self, payload: &[u8]) -> (Vec<u8>, usize, Range<usize>) {
        let protocol = if self.is_udp { 17 } else { 6 };
        let mut transport = if self.is_udp {
            let length = (8 + payload.len()) as u16;
            [&[1, 2, 3, 4][..], &length.to_be_bytes(), &[0, 0]].concat()
        } else {
            let [a, b, c, d] = self.sequence.to_be_bytes();
            vec![1, 2, 3, 4, a, b, c, d, 9, 9, 9, 9, 6 << 4, self.flags, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]
        };
        let length = ((transport.len() + payload.len()) as u32).to_be_bytes();
        let (source, destination): (&[u8], &[u8]) = if self.is_v6 { (&V6.0, &V6.1) } else { (&V4.0, &V4.1) };
        // What a kernel leaves there: the sum of the addresses, the protocol and the length.
        let pseudo = sum(&[source, destination, &length, &[0, protocol]]);
        let checksum_at = if self.is_udp { 6 } else { 16 };
        transport[checksum_at..checksum_at + 2].copy_from_slice(&pseudo.to_be_bytes());
        let ip = self.ip(self.is_v6, protocol, transport.len() + payload.len());
        let (start, from) = (ip.len(), ip.len() + transport.len());
        ([&ip, &transport[..], payload].concat(), start, from..from + payload.len())
    }

    /// The segment, its offload header, and where the packet lies that is cut.
    fn segment(&self, payload: &[u8]) -> (OffloadHeader, Vec<u8>, usize) {
        let (packet, start, _) = self.packet(payload);
        let ethertype = |is_v6: bool| if is_v6 { [0x86, 0xdd] } else { [8, 0] };
        let own_protocol = if self.is_v6 { 41 } else { 4 };
        let (outer, is_v6) = match self.tunnel {
            Tunnel::None => (Vec::new(), self.is_v6),
            Tunnel::InIp => (self.ip(self.is_outer_v6, own_protocol, packet.len()), self.is_outer_v6),
            Tunnel::Gre { has_key } => {
                let key: &[u8] = if has_key { &[1, 2, 3, 4] } else { &[] };
                let gre = [&[u8::from(has_key) << 5, 0], &ethertype(self.is_v6)[..], key].concat();
                let ip = self.ip(self.is_outer_v6, 47, gre.len() + packet.len());
                ([ip, gre].concat(), self.is_outer_v6)
            }
            Tunnel::Vxlan { has_checksum } => {
                let length = (8 + 8 + 14 + packet.len()) as u16;
                let checksum = if has_checksum { [7, 7] } else { [0, 0] };
                let udp = [&[200, 1, 18, 181][..], &length.to_be_bytes(), &checksum].concat();
                let vxlan = [8, 0, 0, 0, 0, 0, 42, 0];
                let ethernet = [&ETHERNET[..], &ethertype(self.is_v6)].concat();
                let ip = self.ip(self.is_outer_v6, 17, usize::from(length));
                ([&ip, &udp, &vxlan[..], &ethernet].concat(), self.is_outer_v6)
            }
        };
        let tags = [0x81, 0, 0, 5].repeat(self.tags);
        let before = [&ETHERNET[..], &tags, &ethertype(is_v6), &outer].concat();
        let kind = match (self.is_udp, self.is_v6) {
            (true, _) => UDP,
            (false, false) => TCP4,
            (false, true) => TCP6,
        };
        let at = before.len();
        let offset = if self.is_udp { 6 } else { 16 };
        (header(kind, self.segment_bytes, at + start, offset), [before, packet].concat(), at)
    }
}

/// Whether a packet is whole, and its checksums and lengths are right; its transport header and payload.
fn checked(packet: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let sliced = SlicedPacket::from_ip(packet).unwrap();
    let net = sliced.net.unwrap();
    if let Some(ipv4) = net.ipv4_ref() {
        assert_eq!(ipv4.header().header_checksum(), ipv4.header().to_header().calc_header_checksum());
        assert_eq!(usize::from(ipv4.header().total_len()), packet.len());
    } else {
        assert_eq!(usize::from(net.ipv6_ref().unwrap().header().payload_length()) + 40, packet.len());
    }
    match sliced.transport.unwrap() {
        TransportSlice::Tcp(tcp) => {
            let sum = match (net.ipv4_ref(), net.ipv6_ref()) {
                (Some(ip), _) => tcp.calc_checksum_ipv4(ip.header().source(), ip.header().destination()),
                (_, Some(ip)) => tcp.calc_checksum_ipv6(ip.header().source(), ip.header().destination()),
                _ => unreachable!(),
            };
            // Zero and all ones are the same sum.
            assert_eq!(tcp.checksum() % 0xffff, sum.unwrap() % 0xffff);
            (tcp.header_slice().to_vec(), tcp.payload().to_vec())
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            assert_eq!(usize::from(udp.length()), 8 + udp.payload().len());
            let sum = match (net.ipv4_ref(), net.ipv6_ref()) {
                (Some(ip), _) => header.calc_checksum_ipv4_raw(
                    ip.header().source(),
                    ip.header().destination(),
                    udp.payload(),
                ),
                (_, Some(ip)) => header.calc_checksum_ipv6_raw(
                    ip.header().source(),
                    ip.header().destination(),
                    udp.payload(),
                ),
                _ => unreachable!(),
            };
            assert_eq!(udp.checksum(), sum.unwrap());
            (udp.header_slice().to_vec(), udp.payload().to_vec())
        }
        other => panic!("{other:?}"),
    }
}

fn cut(seed: u64) {
    let mut random = Random::new(seed);
    let sample = Sample::random(&mut random);
    let payload: Vec<u8> = (0..sample.payload_bytes).map(|_| random.next() as u8).collect();
    let (mut header, mut segment, network_at) = sample.segment(&payload);
    assert_eq!(on_wire(&header, &segment, 65_535), Err(BadOffload::Lies), "it is for no kernel: {sample:?}");
    let cut: Cut = settle(&mut header, &mut segment, MOST).unwrap().unwrap();
    let mut whole = Vec::new();
    let count = payload.len().div_ceil(sample.segment_bytes).max(1);
    assert_eq!(cut.pieces(), count);
    for number in 0..count {
        let mut piece = vec![0xee; 2000];
        let length = cut.write(number, &segment, &mut piece).unwrap();
        piece.truncate(length);
        let mut untouched = piece.clone();
        assert_eq!(settle(&mut [0; OFFLOAD_BYTES], &mut untouched, MOST), Ok(None));
        assert_eq!(untouched, piece);
        assert!(on_wire(&[0; OFFLOAD_BYTES], &piece, MTU).is_ok());
        let own_at = segment.len() - payload.len() - network_at;
        let (transport, part) = checked(&piece[network_at..]);
        assert_eq!(part.len(), piece.len() - network_at - own_at);
        if !sample.is_udp {
            let sequence = u32::from_be_bytes(transport[4..8].try_into().unwrap());
            assert_eq!(sequence, sample.sequence.wrapping_add(whole.len() as u32));
            let (is_first, is_last) = (number == 0, number + 1 == count);
            let lost = if is_last { 0 } else { 0x09 } | if is_first { 0 } else { 0x80 };
            assert_eq!(transport[13], sample.flags & !lost);
        }
        whole.extend(part);
        let ethernet_bytes = 14 + 4 * sample.tags;
        if sample.tunnel != Tunnel::None {
            check_outer(&sample, &piece[ethernet_bytes..]);
            // What lies between is as it was.
            let tunnel_at = ethernet_bytes + if sample.is_outer_v6 { 40 } else { 20 } + 8;
            if let Tunnel::Vxlan { .. } = sample.tunnel {
                assert_eq!(piece[tunnel_at..network_at], segment[tunnel_at..network_at]);
            }
        }
        assert_eq!(piece[..ethernet_bytes], segment[..ethernet_bytes]);
        for at in [network_at, ethernet_bytes] {
            if piece[at] >> 4 == 4 {
                let identification = u16::from_be_bytes(piece[at + 4..at + 6].try_into().unwrap());
                assert_eq!(identification, sample.identification.wrapping_add(number as u16));
            }
        }
        assert_eq!(cut.write(number, &segment, &mut vec![0; length - 1]), None, "no room");
    }
    assert_eq!(whole, payload);
    assert_eq!(cut.write(count, &segment, &mut [0; 2000]), None, "no such piece");
    assert_eq!(cut.write(0, &segment[1..], &mut [0; 2000]), None, "another segment");
}

fn check_outer(sample: &Sample, outer: &[u8]) {
    if sample.is_outer_v6 {
        assert_eq!(usize::from(u16::from_be_bytes([outer[4], outer[5]])) + 40, outer.len());
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([outer[2], outer[3]])), outer.len());
        assert_eq!(sum(&[&outer[..20]]), 0xffff);
    }
    if let Tunnel::Vxlan { has_checksum } = sample.tunnel {
        let (at, addresses) = if sample.is_outer_v6 { (40, 8..40) } else { (20, 12..20) };
        let udp = &outer[at..];
        assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len());
        if has_checksum {
            let length = (udp.len() as u16).to_be_bytes();
            assert_eq!(sum(&[&outer[addresses], &[0, 17], &length, udp]), 0xffff);
        } else {
            assert_eq!(udp[6..8], [0, 0]);
        }
    }
}

#[test]
fn segments_that_no_kernel_cuts_become_what_their_senders_would_have_sent() {
    Seeds::from_environment(2000).run("cargo test -p tombolo-core --test nic", cut);
}

/// A segment that would be far more bytes on the wire than it has is cut here, so that each of its frames has its turn.
#[test]
fn a_segment_of_very_many_frames_is_no_longer_one() {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
    let mut segment = Vec::new();
    builder.ipv4(V4.0, V4.1, 64).tcp(1000, 9, 1, 1).write(&mut segment, &[7; 65_000]).unwrap();
    for (segment_bytes, pieces) in [(1448, None), (536, None), (80, None), (76, Some(856)), (16, Some(4063))]
    {
        let mut asked = header(1, segment_bytes, 34, 16);
        let on_the_wire = on_wire(&asked, &segment, MTU).unwrap().bytes;
        let cut = settle(&mut asked, &mut segment.clone(), MOST).unwrap();
        assert_eq!(cut.map(|cut: Cut| cut.pieces()), pieces, "{on_the_wire} bytes on the wire");
        assert!(cut.is_some() || on_the_wire <= 2 * 65_536, "{on_the_wire} bytes");
    }
    // As is one that is longer than what the port was told to send: at 100 Mb/s this is 25 kB.
    let mut asked = header(1, 1448, 34, 16);
    let cut = settle(&mut asked, &mut segment.clone(), wire_bytes_max(25_000)).unwrap();
    assert_eq!(cut.map(|cut: Cut| cut.pieces()), Some(45));
    // With long headers few frames are much on the wire.
    let options = Ipv6RawExtHeader::new_raw(IpNumber::TCP, &[0; 1342]).unwrap();
    let long = TcpHeader::new(1000, 9, 1, 1);
    let payload = [7; 60_000];
    let length = options.header_len() + long.header_len() + payload.len();
    let ip = Ipv6Header {
        payload_length: length as u16,
        next_header: IpNumber::IPV6_DESTINATION_OPTIONS,
        hop_limit: 64,
        source: V6.0,
        destination: V6.1,
        ..Ipv6Header::default()
    };
    let mut segment = vec![2, 0, 0, 0, 0, 3, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
    ip.write(&mut segment).unwrap();
    options.write(&mut segment).unwrap();
    long.write(&mut segment).unwrap();
    segment.extend(payload);
    let start = 14 + 40 + options.header_len();
    let mut asked = header(TCP6, 90, start, 16);
    assert!(on_wire(&asked, &segment, MTU).unwrap().bytes > 900_000);
    assert_eq!(settle(&mut asked, &mut segment, MOST).unwrap().map(|cut: Cut| cut.pieces()), Some(667));
}

/// `settle` writes a checksum that is not the frame's own. So the switch reads the bytes that are sent.
#[test]
fn a_checksum_that_is_not_the_frames_own_is_written_before_anybody_reads_the_frame() {
    let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]);
    let mut udp = Vec::new();
    builder.ipv4(V4.0, V4.1, 64).udp(1000, 9).write(&mut udp, b"fifteen bytes..").unwrap();
    // Its own is left to the kernel, behind tags, too.
    let own = header(0, 0, 34, 6);
    let (mut asked, mut frame) = (own, udp.clone());
    assert_eq!(settle(&mut asked, &mut frame, MOST), Ok(None));
    assert_eq!((asked, &frame), (own, &udp));
    assert!(on_wire(&asked, &frame, MTU).is_ok());
    // Every other place.
    for start in 0..udp.len() + 4 {
        for offset in 0..udp.len() + 4 {
            if (start, offset) == (34, 6) {
                continue;
            }
            let (mut asked, mut frame) = (header(0, 0, start, offset), udp.clone());
            assert!(on_wire(&asked, &frame, MTU).is_err());
            let settled = settle(&mut asked, &mut frame, MOST);
            if start < 14 || start + offset + 2 > udp.len() {
                assert_eq!((settled, &frame), (Err(BadOffload::Lies), &udp));
                continue;
            }
            assert_eq!((settled, asked), (Ok(None), [0; OFFLOAD_BYTES]));
            let mut expected = udp.clone();
            let written = match !sum(&[&udp[start..]]) {
                0 => 0xffff,
                sum => sum,
            };
            expected[start + offset..start + offset + 2].copy_from_slice(&written.to_be_bytes());
            assert_eq!(frame, expected, "from {start} on, at {offset}");
        }
    }
    // A fragment has no transport header of its own.
    let mut fragment = udp.clone();
    fragment[21] = 1;
    let mut asked = own;
    assert_eq!(settle(&mut asked, &mut fragment, MOST), Ok(None));
    assert_eq!(asked, [0; OFFLOAD_BYTES]);
}

/// SCTP's is no sum, though headers cannot say so.
#[test]
fn the_checksum_of_sctp_is_its_own() {
    let sctp = [&[1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff, 0xff, 0xff][..], b"a chunk of SCTP."].concat();
    let ip = Ipv4Header::new(sctp.len() as u16, 64, IpNumber(132), V4.0, V4.1).unwrap();
    let mut frame = [&ETHERNET[..], &[8, 0]].concat();
    ip.write(&mut frame).unwrap();
    frame.extend(&sctp);
    let mut cleared = sctp.clone();
    cleared[8..12].fill(0);
    // Short frames are padded, which does not count.
    frame.resize(80, 0xaa);
    let mut asked = header(0, 0, 34, 8);
    assert_eq!(settle(&mut asked, &mut frame, MOST), Ok(None));
    assert_eq!(frame[42..46], crc_fast::crc32_iscsi(&cleared).to_le_bytes());
    assert_eq!(asked, [0; OFFLOAD_BYTES]);
    // The check value of this checksum (RFC 9260, appendix A, names the polynomial).
    assert_eq!(crc_fast::crc32_iscsi(b"123456789"), 0xe306_9283);
}

/// A frame that says that of the bytes behind its network header.
fn frame(tags: usize, ethertype: [u8; 2], packet: &[u8]) -> Vec<u8> {
    [&ETHERNET[..], &[0x81, 0, 0, 5].repeat(tags), &ethertype, packet].concat()
}

/// The checksum of TCP and UDP is left to the kernel behind tags, options and extension headers; of a fragment there is none.
#[test]
fn the_frames_own_checksum_is_found_behind_other_headers() {
    let tcp = [&[1, 2, 3, 4, 0, 0, 0, 1, 0, 0, 0, 2, 5 << 4, 0x10, 1, 1, 0, 0, 0, 0][..], b"text"].concat();
    let udp = [&[1, 2, 3, 4, 0, 12, 0, 0][..], b"text"].concat();
    let v4 = |options: usize, protocol: u8, fragment: u16, rest: &[u8]| {
        let mut header = vec![0; 20 + options];
        (header[0], header[9]) = (0x45 + (options / 4) as u8, protocol);
        header[2..4].copy_from_slice(&((20 + options + rest.len()) as u16).to_be_bytes());
        header[6..8].copy_from_slice(&fragment.to_be_bytes());
        [&header, rest].concat()
    };
    // Each extension header: its own kind, and whether anything behind it is found.
    let v6 = |extensions: &[u8], protocol: u8, rest: &[u8]| {
        let mut kinds = extensions.iter().copied().chain([protocol]);
        let mut header = vec![0; 40];
        (header[0], header[6]) = (0x60, kinds.next().unwrap());
        header[4..6].copy_from_slice(&((8 * extensions.len() + rest.len()) as u16).to_be_bytes());
        let bodies = kinds.flat_map(|next| [next, 0, 0, 0, 0, 0, 0, 0]);
        [header, bodies.collect(), rest.to_vec()].concat()
    };
    let (ip4, ip6) = ([8, 0], [0x86, 0xdd]);
    for tags in 0..=2 {
        let cases = [
            (frame(tags, ip4, &v4(0, 6, 0x4000, &tcp)), 20, 16, true),
            (frame(tags, ip4, &v4(12, 17, 0, &udp)), 32, 6, true),
            (frame(tags, ip4, &v4(0, 17, 0x2000, &udp)), 20, 6, false),
            (frame(tags, ip4, &v4(0, 17, 7, &udp)), 20, 6, false),
            (frame(tags, ip4, &v4(0, 1, 0, &udp)), 20, 6, false),
            (frame(tags, ip4, &v4(0, 6, 0, &tcp)), 20, 6, false),
            (frame(tags, ip4, &v4(0, 17, 0, &tcp)), 20, 16, false),
            (frame(tags, ip6, &v6(&[], 17, &udp)), 40, 6, true),
            (frame(tags, ip6, &v6(&[0, 60, 43, 60], 6, &tcp)), 72, 16, true),
            (frame(tags, ip6, &v6(&[44], 17, &udp)), 48, 6, false),
            (frame(tags, ip6, &v6(&[60; 9], 17, &udp)), 112, 6, false),
            (frame(tags, ip4, &v6(&[], 17, &udp)), 40, 6, false),
        ];
        for (number, (bytes, behind, offset, is_its)) in cases.into_iter().enumerate() {
            let asked = header(0, 0, 14 + 4 * tags + behind, offset);
            let (mut settled, mut summed) = (asked, bytes.clone());
            assert_eq!(settle(&mut settled, &mut summed, MOST), Ok(None));
            assert_eq!((settled == asked, summed == bytes), (is_its, is_its), "case {number}, {tags} tags");
            assert_eq!(on_wire(&asked, &bytes, MTU).is_ok(), is_its, "case {number}, {tags} tags");
        }
    }
}

/// A sum of zero means that there is none, in UDP.
#[test]
fn a_sum_of_zero_is_written_as_its_other_form() {
    // Found by trial: the words sum up to all ones.
    for fill in 0..=u16::MAX {
        let mut frame = frame(0, [0x88, 0xb5], &[fill.to_be_bytes(), [0x12, 0x34], [0, 0]].concat());
        let is_zero = sum(&[&frame[14..]]) == 0xffff;
        assert_eq!(settle(&mut header(0, 0, 14, 4), &mut frame, MOST), Ok(None));
        assert_eq!(is_zero, frame[18..] == [0xff, 0xff], "{fill:x}");
    }
}

/// The packet in a tunnel is looked for near its transport header, and not beyond what any tunnel has between.
#[test]
fn headers_far_behind_those_of_a_tunnel_are_refused() {
    for (between, is_cut) in [(8, true), (8 + 14 + 124, true), (512, true), (520, false), (30_000, false)] {
        let sample = Sample {
            is_v6: false,
            is_udp: true,
            tunnel: Tunnel::None,
            is_outer_v6: false,
            tags: 0,
            segment_bytes: 100,
            payload_bytes: 1000,
            flags: 0,
            sequence: 0,
            identification: 0,
        };
        let (packet, start, _) = sample.packet(&[7; 1000]);
        let udp = [&[200, 1, 18, 181][..], &[0; 4], &vec![0; between - 8]].concat();
        let ip = sample.ip(false, 17, udp.len() + packet.len());
        let before = frame(0, [8, 0], &[ip, udp].concat());
        let asked = header(UDP, 100, before.len() + start, 6);
        let mut bytes = [before, packet].concat();
        let settled = settle(&mut asked.clone(), &mut bytes, MOST);
        assert_eq!(matches!(settled, Ok(Some(_))), is_cut, "{between} bytes between: {settled:?}");
    }
}
