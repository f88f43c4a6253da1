//! For tests and fuzzers alone.

use std::net::IpAddr;

use super::offload::{Asked, OFFLOAD_BYTES, OffloadHeader};
use super::{
    Exchange, Frame, Limits, Mac, Mode, Origin, PortConfig, PortId, Rules, Share, Tag, Targets, Turns, Vlans,
    settle, wire_bytes_max,
};

/// The hardware address of a port of [`frame`].
pub const fn mac(id: u16) -> Mac {
    let [high, low] = id.to_be_bytes();
    Mac([2, 0, 0, 0, high, low])
}

/// Forwards an offload header and frame, or the pieces of such a segment, from each of four ports and from the uplink, and
/// checks that nothing panics. A frame that is forwarded from a port must have its port's address, go to ports of its
/// virtual network and not back, and leave with that network's tag. A checksum that is written later must not change the
/// addresses that the switch has checked.
#[allow(clippy::missing_panics_doc, reason = "that is what it is for")]
pub fn frame(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    let Some((header, frame)) = bytes.split_first_chunk_mut::<OFFLOAD_BYTES>() else { return };
    let length = frame.len();
    match settle(header, frame, wire_bytes_max(25_000)) {
        Ok(Some(cut)) => {
            assert!((1..=length.max(1)).contains(&cut.pieces()));
            let mut piece = vec![0; length];
            // The first four pieces and the last one: there is no time for all of them.
            for number in (0..cut.pieces()).take(4).chain([cut.pieces() - 1]) {
                let length = cut.write(number, frame, &mut piece).expect("each piece can be written");
                forward(&[0; OFFLOAD_BYTES], piece.get(..length).unwrap_or(&[]));
            }
        }
        Ok(None) | Err(_) => forward(header, frame),
    }
}

/// The range of a frame that a kernel writes when it carries out this header.
fn written_later(header: &OffloadHeader, frame: &[u8]) -> Option<std::ops::Range<usize>> {
    let asked = Asked::from(header);
    let at = asked.start + asked.offset;
    (asked.needs_checksum && at + 2 <= frame.len()).then_some(at..at + 2)
}

fn forward(header: &OffloadHeader, frame: &[u8]) {
    let limits = Limits { turns: Turns::Bytes, rate: None, wake_ns: 0, segment_bytes_max: 65_536, mtu: 1500 };
    let mut exchange = Exchange::new(Mode::Bridge, limits);
    let own: [IpAddr; 1] = [[10, 0, 0, 1].into()];
    let guarded = Some(own.into_iter().collect());
    let all = [
        (Vlans::Access(0), guarded.clone()),
        (Vlans::Access(5), None),
        (Vlans::Trunk([0, 5].into()), guarded),
        (Vlans::Trunk([5, 6].into()), None),
    ];
    for (id, (vlans, addresses)) in (0..).zip(&all) {
        let rules = Rules { vlans: vlans.clone(), addresses: addresses.clone(), ..Rules::new(mac(id)) };
        let config = PortConfig { rules, share: Share::default(), mtu: 1500 };
        assert_eq!(exchange.set(0, PortId(id), config), Ok(()));
    }
    let is_in = |id: PortId, vlan: u16| match all.get(usize::from(id.0)) {
        Some((Vlans::Access(own), _)) => *own == vlan,
        Some((Vlans::Trunk(all), _)) => all.contains(&vlan),
        None => false,
    };
    let mut targets = Targets::default();
    for origin in [Origin::Uplink].into_iter().chain((0..4).map(|id| Origin::Port(PortId(id)))) {
        let is_forwarded = match origin {
            Origin::Uplink => exchange.from_uplink(header, frame, &mut targets).is_ok(),
            Origin::Port(id) => exchange.from_port(0, id, header, frame, &mut targets).is_ok(),
        };
        if !is_forwarded {
            continue;
        }
        // Whatever checksum is written later, the frame must speak for the same addresses.
        if let Some(written) = written_later(header, frame) {
            let mut later = frame.to_vec();
            later.get_mut(written).into_iter().flatten().for_each(|byte| *byte = !*byte);
            let speaks = |bytes: &[u8]| Frame::parse(bytes).map(|frame| frame.speaks());
            assert_eq!(speaks(&later), speaks(frame), "{header:?}");
        }
        let parsed = Frame::parse(frame);
        assert!(targets.wire.frames > 0 && targets.wire.frame_bytes <= 1500 + 14 + 8 + 4, "{targets:?}");
        assert!(targets.ports.iter().all(|id| is_in(*id, targets.vlan)), "{targets:?}");
        if let Origin::Port(id) = origin {
            assert!(parsed.is_some_and(|frame| frame.source == mac(id.0)) && !targets.ports.contains(&id));
            assert!(is_in(id, targets.vlan), "{targets:?}");
            // A frame that leaves must have the tag of its virtual network.
            let leaves = match targets.tag(true) {
                Tag::Keep => parsed.and_then(|frame| frame.vlan).unwrap_or(0),
                Tag::Insert(vlan) | Tag::Replace(vlan) => vlan,
                Tag::Remove => 0,
            };
            assert_eq!(leaves, targets.vlan);
        }
    }
}
