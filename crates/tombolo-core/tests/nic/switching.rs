//! Frames between random ports by random rules, against a plain reading of the rules; and what a port may not say.

use std::collections::BTreeSet;
use std::net::IpAddr;

use etherparse::PacketBuilder;
use tombolo_core::nic::{BadRules, Mac, Mode, Origin, PortId, Refusal, Rules, Switch, Tag, Targets, Vlans};
use tombolo_random::{Random, Seeds};

fn mac(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, number])
}

const GROUP: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);

fn frame(destination: Mac, source: Mac, vlan: Option<u16>) -> Vec<u8> {
    frame_of(destination, source, vlan, 60)
}

/// A frame of `length` bytes, and of 60 at least.
pub fn frame_of(destination: Mac, source: Mac, vlan: Option<u16>, length: usize) -> Vec<u8> {
    let mut bytes = [destination.0, source.0].concat();
    if let Some(vlan) = vlan {
        bytes.extend([0x81, 0]);
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend([0x88, 0xb5]);
    bytes.resize(length.max(60), 0);
    bytes
}

fn some_rules(random: &mut Random, number: u8) -> Rules {
    let some_vlans = |random: &mut Random| (0..3).map(|_| random.below(4) as u16).collect::<BTreeSet<_>>();
    let vlans = match random.below(4) {
        0 => Vlans::Trunk(some_vlans(random)),
        1 => Vlans::Access(random.below(4) as u16),
        _ => Vlans::Access(0),
    };
    let groups =
        random.one_in(3).then(|| if random.one_in(2) { BTreeSet::from([GROUP]) } else { BTreeSet::new() });
    Rules { vlans, is_promiscuous: random.one_in(8), groups, ..Rules::new(mac(number)) }
}

fn is_in(rules: &Rules, vlan: u16) -> bool {
    match &rules.vlans {
        Vlans::Access(own) => *own == vlan,
        Vlans::Trunk(all) => all.contains(&vlan),
    }
}

#[test]
fn each_frame_comes_to_those_that_it_is_for_and_to_nobody_else() {
    Seeds::from_environment(300).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let mode = if random.one_in(3) { Mode::Private } else { Mode::Bridge };
        let mut switch = Switch::new(mode);
        let mut all: Vec<Option<Rules>> =
            (0..6).map(|number| Some(some_rules(&mut random, number))).collect();
        for (id, rules) in (0..).zip(&all) {
            switch.set(PortId(id), rules.clone().expect("rules")).expect("good rules");
        }
        let mut targets = Targets::default();
        for _ in 0..200 {
            if random.one_in(20) {
                let id = random.index(all.len());
                switch.remove(PortId(id as u16));
                all[id] = None;
            }
            let origin = random
                .one_in(4)
                .then_some(())
                .map_or_else(|| Origin::Port(PortId(random.index(6) as u16)), |()| Origin::Uplink);
            let mut own = |id: PortId| if random.one_in(10) { mac(9) } else { mac(id.0 as u8) };
            let (from, source) = match origin {
                Origin::Uplink => (None, mac(20)),
                Origin::Port(id) => (Some(id), own(id)),
            };
            let destination = match random.below(8) {
                0 => Mac::BROADCAST,
                1 => GROUP,
                2 => mac(30),
                _ => mac(random.below(6) as u8),
            };
            let tag = random.one_in(3).then(|| random.below(4) as u16);
            let result = switch.forward(origin, &frame(destination, source, tag), &mut targets);

            // The same by a plain reading.
            let sender = from.map(|id| all[usize::from(id.0)].as_ref());
            let vlan = match sender {
                None => Some(tag.unwrap_or(0)),
                Some(None) => None,
                Some(Some(rules)) if source != rules.mac => None,
                Some(Some(Rules { vlans: Vlans::Access(own), .. })) => {
                    tag.is_none_or(|tag| tag == 0).then_some(*own)
                }
                Some(Some(rules)) => Some(tag.unwrap_or(0)).filter(|vlan| is_in(rules, *vlan)),
            };
            let Some(vlan) = vlan else {
                assert!(matches!(result, Err(Refusal::WrongSource | Refusal::WrongVlan)), "{result:?}");
                continue;
            };
            let reaches_ports = from.is_none() || mode == Mode::Bridge;
            let others = (0u16..).zip(&all).filter(|(id, _)| Some(PortId(*id)) != from && reaches_ports);
            let gets = |rules: &Rules| {
                let is_for_it = destination == rules.mac
                    || destination == Mac::BROADCAST
                    || (destination == GROUP
                        && rules.groups.as_ref().is_none_or(|groups| groups.contains(&GROUP)));
                is_in(rules, vlan) && (is_for_it || rules.is_promiscuous)
            };
            let expected: Vec<PortId> = others
                .filter(|(_, rules)| rules.as_ref().is_some_and(gets))
                .map(|(id, _)| PortId(id))
                .collect();
            let is_of_a_port =
                all.iter().flatten().any(|rules| rules.mac == destination && is_in(rules, vlan));
            let goes_out = from.is_some() && !is_of_a_port;
            assert_eq!(
                (&targets.ports, targets.uplink),
                (&expected, goes_out),
                "{origin:?} to {destination}"
            );
            assert_eq!(result.is_ok(), goes_out || !expected.is_empty());
            assert_eq!(targets.vlan, vlan);
        }
    });
}

#[test]
fn any_bytes_are_forwarded_or_refused() {
    let mut switch = Switch::new(Mode::Bridge);
    let guarded =
        Rules { addresses: Some(BTreeSet::from([IpAddr::from([10, 0, 0, 1])])), ..Rules::new(mac(1)) };
    switch.set(PortId(0), guarded).expect("good rules");
    Seeds::from_environment(2000).run("cargo test -p tombolo-core --test nic", |seed| {
        let mut random = Random::new(seed);
        let mut targets = Targets::default();
        let length = random.index(120);
        let mut bytes: Vec<u8> = (0..length).map(|_| random.below(256) as u8).collect();
        // Behind a header that is believed.
        let kinds = [[8, 0], [0x86, 0xdd], [8, 6], [0x81, 0]];
        for (place, byte) in
            bytes.iter_mut().zip([GROUP.0, mac(1).0].concat().into_iter().chain(kinds[random.index(4)]))
        {
            *place = byte;
        }
        let _ = switch.forward(Origin::Port(PortId(0)), &bytes, &mut targets);
        let _ = switch.forward(Origin::Uplink, &bytes, &mut targets);
    });
}

#[test]
fn a_port_speaks_for_itself_only() {
    let own = [IpAddr::from([10, 0, 0, 1]), "fd00::1".parse().expect("an address")];
    let mut switch = Switch::new(Mode::Bridge);
    switch.set(PortId(0), Rules { addresses: Some(own.into()), ..Rules::new(mac(1)) }).expect("good rules");
    let mut targets = Targets::default();
    let mut says = |bytes: Vec<u8>| switch.forward(Origin::Port(PortId(0)), &bytes, &mut targets);

    let udp4 = |source: [u8; 4], port: u16| {
        let builder =
            PacketBuilder::ethernet2(mac(1).0, [0xff; 6]).ipv4(source, [10, 0, 0, 9], 64).udp(port, 67);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &[0; 20]).expect("it is written");
        bytes
    };
    assert_eq!(says(udp4([10, 0, 0, 1], 1000)), Ok(()));
    assert_eq!(says(udp4([0, 0, 0, 0], 68)), Ok(()), "one asks for an address");
    assert_eq!(says(udp4([10, 0, 0, 2], 1000)), Err(Refusal::WrongAddress));
    assert_eq!(says(udp4([10, 0, 0, 1], 67)), Err(Refusal::NotItsToOffer));

    let arp = |sender: Mac, address: [u8; 4]| {
        let mut bytes = [[0xff; 6], mac(1).0].concat();
        bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        bytes.extend([&sender.0[..], &address, &[0xff; 6], &[10, 0, 0, 9]].concat());
        bytes
    };
    assert_eq!(says(arp(mac(1), [10, 0, 0, 1])), Ok(()));
    assert_eq!(says(arp(mac(1), [0, 0, 0, 0])), Ok(()), "one asks whether it is free");
    assert_eq!(says(arp(mac(1), [10, 0, 0, 2])), Err(Refusal::WrongAddress));
    assert_eq!(says(arp(mac(2), [10, 0, 0, 1])), Err(Refusal::WrongSource));
    assert_eq!(says(arp(mac(1), [10, 0, 0, 1])[..30].to_vec()), Err(Refusal::Malformed));

    let discovery = |source: &str, kind: u8, target: &str, linked: Mac| {
        let address = |text: &str| text.parse::<std::net::Ipv6Addr>().expect("an address").octets();
        let body = [&address(target)[..], &[2, 1], &linked.0].concat();
        let builder = PacketBuilder::ethernet2(mac(1).0, [0x33, 0x33, 0, 0, 0, 1])
            .ipv6(address(source), address("ff02::1"), 255)
            .icmpv6_raw(kind, 0, [0; 4]);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &body).expect("it is written");
        bytes
    };
    let local = mac(1).link_local_address().to_string();
    assert_eq!(local, "fe80::ff:fe00:1");
    assert_eq!(says(discovery(&local, 136, "fd00::1", mac(1))), Ok(()));
    assert_eq!(says(discovery("fd00::1", 135, "fd00::9", mac(1))), Ok(()), "one asks for another");
    assert_eq!(says(discovery("fd00::1", 136, "fd00::9", mac(1))), Err(Refusal::WrongAddress));
    assert_eq!(
        says(discovery("::", 135, "fd00::9", mac(1))),
        Err(Refusal::WrongAddress),
        "one wants another's"
    );
    assert_eq!(says(discovery("fd00::1", 136, "fd00::1", mac(2))), Err(Refusal::WrongSource));
    assert_eq!(says(discovery("fd00::2", 128, "fd00::9", mac(1))), Err(Refusal::WrongAddress));
    for kind in [134, 137] {
        assert_eq!(says(discovery(&local, kind, "fd00::1", mac(1))), Err(Refusal::NotItsToOffer));
    }
    // Its own by type, by length (802.2, with SNAP), RARP, PPPoE.
    for kind in
        [&[0x88, 0xb5][..], &[0, 38, 0x42, 0x42, 3], &[0, 38, 0xaa, 0xaa, 3], &[0x80, 0x35], &[0x88, 0x63]]
    {
        let bytes = [&[0xff; 6][..], &mac(1).0, kind, &[0; 46]].concat();
        assert_eq!(says(bytes), Err(Refusal::OtherProtocol), "{kind:x?}");
    }
}

#[test]
fn what_ends_at_a_link_and_what_came_back_goes_nowhere() {
    let mut switch = Switch::new(Mode::Bridge);
    switch.set(PortId(0), Rules::new(mac(1))).expect("good rules");
    let mut targets = Targets::default();
    let pause = Mac([1, 0x80, 0xc2, 0, 0, 1]);
    let result = switch.forward(Origin::Port(PortId(0)), &frame(pause, mac(1), None), &mut targets);
    assert_eq!(result, Err(Refusal::LinkLocal));
    let result = switch.forward(Origin::Uplink, &frame(Mac::BROADCAST, mac(1), None), &mut targets);
    assert_eq!(result, Err(Refusal::CameBack));
    // A machine of another virtual network may have the address of a port.
    switch.set(PortId(1), Rules { vlans: Vlans::Access(5), ..Rules::new(mac(2)) }).expect("good rules");
    let came = |switch: &Switch, vlan| {
        let mut targets = Targets::default();
        switch.forward(Origin::Uplink, &frame(Mac::BROADCAST, mac(2), vlan), &mut targets)
    };
    assert_eq!((came(&switch, None), came(&switch, Some(5))), (Ok(()), Err(Refusal::CameBack)));
    let result = switch.forward(Origin::Uplink, &frame(Mac::BROADCAST, GROUP, None), &mut targets);
    assert_eq!(result, Err(Refusal::WrongSource));
}

#[test]
fn rules_that_cannot_be_are_refused_and_change_nothing() {
    let mut switch = Switch::new(Mode::Bridge);
    switch.set(PortId(0), Rules::new(mac(1))).expect("good rules");
    assert_eq!(switch.set(PortId(1), Rules::new(mac(1))), Err(BadRules::MacInUse(mac(1))));
    assert_eq!(switch.set(PortId(0), Rules::new(GROUP)), Err(BadRules::NotOne(GROUP)));
    let rules = Rules { vlans: Vlans::Access(4095), ..Rules::new(mac(2)) };
    assert_eq!(switch.set(PortId(0), rules), Err(BadRules::NoVlan(4095)));
    assert_eq!(switch.rules(PortId(0)), Some(&Rules::new(mac(1))));
    switch.set(PortId(0), Rules::new(mac(3))).expect("good rules");
    switch.set(PortId(1), Rules::new(mac(1))).expect("the address is free");
    assert_eq!("02:00:00:00:00:0a".parse(), Ok(mac(10)));
    for wrong in [
        "",
        "02:00:00:00:00",
        "02:00:00:00:00:0a:00",
        "2:0:0:0:0:a",
        "02:00:00:00:00:+a",
        "zz:00:00:00:00:00",
    ] {
        assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
    }
}

/// Frames with tags, of these types and numbers, one behind the other.
fn tagged(source: Mac, tags: &[(u16, u16)], rest: &[u8]) -> Vec<u8> {
    let mut bytes = [[0xff; 6], source.0].concat();
    for (kind, number) in tags {
        bytes.extend(kind.to_be_bytes());
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(rest);
    bytes.resize(bytes.len().max(60), 0);
    bytes
}

/// No tag brings a frame into a virtual network that is not its port's.
#[test]
fn tags_within_tags_and_of_other_kinds_lead_nowhere() {
    let mut switch = Switch::new(Mode::Bridge);
    let trunk = |all: &[u16]| Vlans::Trunk(all.iter().copied().collect());
    for (id, vlans) in
        [(0, Vlans::Access(0)), (1, Vlans::Access(10)), (2, trunk(&[10])), (3, trunk(&[0, 20]))]
    {
        switch.set(PortId(id), Rules { vlans, ..Rules::new(mac(id as u8)) }).expect("good rules");
    }
    let mut targets = Targets::default();
    let (plain, rest) = (0x8100, [0x88, 0xb5]);
    let mut says = |id: u16, tags: &[(u16, u16)]| {
        let bytes = tagged(mac(id as u8), tags, &rest);
        let result = switch.forward(Origin::Port(PortId(id)), &bytes, &mut targets);
        result.map(|()| (targets.vlan, targets.tag(true), targets.tag(false)))
    };
    // A priority only: it goes out with the port's own number, or without a tag.
    assert_eq!(says(1, &[(plain, 0)]), Ok((10, Tag::Replace(10), Tag::Remove)));
    assert_eq!(says(0, &[(plain, 0)]), Ok((0, Tag::Remove, Tag::Remove)));
    assert_eq!(says(1, &[]), Ok((10, Tag::Insert(10), Tag::Keep)));
    assert_eq!(says(2, &[(plain, 10)]), Ok((10, Tag::Keep, Tag::Remove)));
    for id in 0..4 {
        for tags in
            [&[(plain, 0), (plain, 20)][..], &[(plain, 0), (plain, 0)], &[(0x88a8, 10)], &[(0x9100, 0)]]
        {
            assert_eq!(says(id, tags), Err(Refusal::WrongVlan), "port {id}: {tags:x?}");
        }
    }
    let from_outside = tagged(mac(99), &[(0x88a8, 10)], &rest);
    assert_eq!(switch.forward(Origin::Uplink, &from_outside, &mut targets), Err(Refusal::WrongVlan));
}

/// What cannot be read to its end does not pass a port whose addresses are given.
#[test]
fn the_guard_is_not_to_be_hidden_from() {
    let own = [IpAddr::from([10, 0, 0, 1]), "fd00::1".parse().expect("an address")];
    let mut switch = Switch::new(Mode::Bridge);
    let vlans = Vlans::Trunk([0, 10].into());
    switch
        .set(PortId(0), Rules { addresses: Some(own.into()), vlans, ..Rules::new(mac(1)) })
        .expect("good rules");
    let mut targets = Targets::default();
    let mut says = |bytes: Vec<u8>| switch.forward(Origin::Port(PortId(0)), &bytes, &mut targets);

    // An answer of ARP for another, behind one tag to five.
    let arp =
        [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..], &mac(1).0, &[10, 0, 0, 2], &[0xff; 6], &[10, 0, 0, 9]].concat();
    for count in 1..=5 {
        let tags = vec![(0x8100, 10); count];
        assert!(says(tagged(mac(1), &tags, &arp)).is_err(), "behind {count} tags");
    }
    // An offer of DHCP from another port than its server's, whole and as a first fragment.
    let offer = |from: u16, to: u16, flags: [u8; 2]| {
        let mut bytes = Vec::new();
        let builder = PacketBuilder::ethernet2(mac(1).0, [0xff; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 9], 64);
        builder.udp(from, to).write(&mut bytes, &[0; 200]).expect("it is written");
        bytes[20..22].copy_from_slice(&flags);
        bytes
    };
    for flags in [[0, 0], [0x20, 0]] {
        assert_eq!(says(offer(1067, 68, flags)), Err(Refusal::NotItsToOffer), "{flags:?}");
        assert_eq!(says(offer(67, 1000, flags)), Err(Refusal::NotItsToOffer), "{flags:?}");
        assert_eq!(says(offer(68, 67, flags)), Ok(()), "{flags:?}");
    }
    // A router advertisement in fragments; an advertisement with two hardware addresses.
    let six = |extension: &[u8], next: u8, body: &[u8]| {
        let payload = [extension, body].concat();
        let mut bytes = [&[0x33, 0x33, 0, 0, 0, 1][..], &mac(1).0, &[0x86, 0xdd, 0x60, 0, 0, 0]].concat();
        bytes.extend((payload.len() as u16).to_be_bytes());
        bytes.extend([next, 255]);
        bytes.extend(mac(1).link_local_address().octets());
        bytes.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    };
    // Later fragments, however short, whatever their bytes are; and pieces of what is no neighbour discovery.
    let mut last = offer(67, 68, [0, 185]);
    last.truncate(14 + 20 + 3);
    last[17] = 23;
    assert_eq!(says(last), Ok(()));
    assert_eq!(says(offer(1067, 68, [0x20, 185])), Ok(()));
    assert_eq!(says(six(&[17, 0, 0, 8, 0, 0, 0, 7], 44, &[2, 35, 2, 34])), Ok(()));
    assert_eq!(says(six(&[58, 0, 0, 1, 0, 0, 0, 7], 44, &[128; 64])), Ok(()), "a long ping");
    assert_eq!(
        says(six(&[17, 0, 0, 1, 0, 0, 0, 7], 44, &[2, 35, 2, 34, 0, 9, 0, 0])),
        Err(Refusal::NotItsToOffer)
    );
    let advertisement = [&[134, 0, 0, 0][..], &[0; 12]].concat();
    assert_eq!(says(six(&[58, 0, 0, 1, 0, 0, 0, 7], 44, &advertisement)), Err(Refusal::Malformed));
    assert_eq!(says(six(&[], 58, &advertisement)), Err(Refusal::NotItsToOffer));
    let target = "fd00::1".parse::<std::net::Ipv6Addr>().expect("an address").octets();
    let neighbour =
        [&[136, 0, 0, 0, 0, 0, 0, 0][..], &target, &[2, 1], &mac(2).0, &[2, 1], &mac(1).0].concat();
    assert_eq!(says(six(&[], 58, &neighbour)), Err(Refusal::Malformed));
}

/// Every prefix of some frames with their headers, and every byte of them changed.
#[test]
fn frames_that_are_cut_off_or_damaged_go_nowhere_wrong() {
    use tombolo_core::nic::fuzzing;
    let own = |id: u16| fuzzing::mac(id);
    let mut samples = Vec::new();
    for id in 0..4 {
        for tags in [&[][..], &[(0x8100, 5)], &[(0x8100, 0)], &[(0x8100, 6), (0x8100, 7)]] {
            let arp =
                [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2][..], &own(id).0, &[10, 0, 0, 1], &[0xff; 6], &[10, 0, 0, 9]];
            samples.push([&[0; 10][..], &tagged(own(id), tags, &arp.concat())].concat());
        }
        let builder =
            PacketBuilder::ethernet2(own(id).0, own(3 - id).0).ipv4([10, 0, 0, 1], [10, 0, 0, 9], 64);
        let mut segment = vec![1, 1, 54, 0, 0, 5, 34, 0, 16, 0];
        builder.tcp(1, 2, 3, 4).write(&mut segment, &[7; 300]).expect("it is written");
        segment[4..6].copy_from_slice(&100u16.to_ne_bytes());
        samples.push(segment);
    }
    for mut sample in samples {
        for end in 0..=sample.len() {
            fuzzing::frame(&sample[..end]);
        }
        for at in 0..sample.len().min(110) {
            let was = sample[at];
            for change in [0xff, 0x01, 0x80, was, was ^ 0x7f] {
                sample[at] = was ^ change;
                fuzzing::frame(&sample);
            }
            sample[at] = was;
        }
    }
}
