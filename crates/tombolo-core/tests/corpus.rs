//! Frames with their offload headers, as ports and the network bring them, fed with the fuzzers' corpus and random bytes.

use tombolo_core::nic::fuzzing;

#[path = "../../../fuzz/replay.rs"]
mod replay;

const TCP: u8 = 6;
const UDP: u8 = 17;
const NO_OFFLOAD: [u8; 10] = [0; 10];

/// From port 0 to port 1, with this type and what follows.
fn ethernet(kind: u16, rest: &[u8]) -> Vec<u8> {
    let [to, from] = [1, 0].map(|id| fuzzing::mac(id).0);
    [&to, &from, &kind.to_be_bytes()[..], rest].concat()
}

fn ipv4(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let length = (20 + rest.len() as u16).to_be_bytes();
    let header =
        [&[0x45, 0], &length[..], &[0, 7, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
    [header, rest.to_vec()].concat()
}

fn ipv6(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let length = (rest.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0], &length[..], &[protocol, 255], &[0xfe; 32], rest].concat()
}

fn tcp(payload: usize) -> Vec<u8> {
    let header = [0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0, 9, 0, 0, 0, 0];
    [&header[..], &vec![7; payload]].concat()
}

fn udp(payload: usize) -> Vec<u8> {
    let length = (8 + payload as u16).to_be_bytes();
    [&[0, 67, 0, 68], &length[..], &[0, 0], &vec![7; payload]].concat()
}

/// `virtio_net_hdr`: a checksum to be added, and segments of so many bytes behind a header of so many.
fn segments(kind: u8, header: u16, size: u16, start: u16, offset: u16) -> [u8; 10] {
    let mut bytes = [1, kind, 0, 0, 0, 0, 0, 0, 0, 0];
    for (at, value) in [(2, header), (4, size), (6, start), (8, offset)] {
        bytes[at..at + 2].copy_from_slice(&value.to_ne_bytes());
    }
    bytes
}

#[test]
fn frames() {
    let arp =
        [&[0, 1, 8, 0, 6, 4, 0, 1][..], &fuzzing::mac(0).0, &[10, 0, 0, 1], &[0; 6], &[10, 0, 0, 2]].concat();
    let neighbour =
        ipv6(58, &[&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &[0xfe; 16], &[2, 1], &fuzzing::mac(0).0].concat());
    let tagged = |rest: &[u8]| [&[0, 5, 8, 0][..], rest].concat();
    for (name, header, frame) in [
        ("tcp", NO_OFFLOAD, ethernet(0x800, &ipv4(TCP, &tcp(10)))),
        ("tcp-checksum", segments(0, 0, 0, 34, 16), ethernet(0x800, &ipv4(TCP, &tcp(10)))),
        ("tcp-segments", segments(1, 54, 20, 34, 16), ethernet(0x800, &ipv4(TCP, &tcp(70)))),
        ("tcp-segments-ecn", segments(0x81, 54, 20, 34, 16), ethernet(0x800, &ipv4(TCP, &tcp(70)))),
        ("tcp-segments-tagged", segments(1, 58, 20, 38, 16), ethernet(0x8100, &tagged(&ipv4(TCP, &tcp(70))))),
        ("tcp-segments-ipv6", segments(4, 74, 20, 54, 16), ethernet(0x86dd, &ipv6(TCP, &tcp(70)))),
        ("udp-segments", segments(5, 42, 20, 34, 6), ethernet(0x800, &ipv4(UDP, &udp(70)))),
        ("udp-segments-ipv6", segments(5, 62, 20, 54, 6), ethernet(0x86dd, &ipv6(UDP, &udp(70)))),
        ("udp-fragments", segments(3, 42, 20, 34, 6), ethernet(0x800, &ipv4(UDP, &udp(70)))),
        ("dhcp", NO_OFFLOAD, ethernet(0x800, &ipv4(UDP, &udp(40)))),
        ("arp", NO_OFFLOAD, ethernet(0x806, &arp)),
        ("neighbour", NO_OFFLOAD, ethernet(0x86dd, &neighbour)),
        (
            "extensions",
            NO_OFFLOAD,
            ethernet(
                0x86dd,
                &ipv6(0, &[&[60, 0, 0, 0, 0, 0, 0, 0, 44, 0, 0, 0, 0, 0, 0, 0][..], &[6; 40]].concat()),
            ),
        ),
        (
            "two-tags",
            NO_OFFLOAD,
            ethernet(0x88a8, &[&[0, 5, 0x81, 0, 0, 6, 8, 0][..], &ipv4(UDP, &udp(4))].concat()),
        ),
        ("runt", NO_OFFLOAD, ethernet(0x800, &[])[..13].to_vec()),
        ("giant", NO_OFFLOAD, ethernet(0x800, &ipv4(UDP, &udp(1600)))),
    ] {
        replay::sample("frame", name, &[&header[..], &frame].concat());
    }
    replay::corpus("frame", fuzzing::frame);
    replay::random("frame", fuzzing::frame);
}
