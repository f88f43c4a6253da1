//! Bursts of several interfaces over several links: every transaction arrives whole, in the order of its interface and link; and the cycles
//! that Table I of REMAP states.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tombolo_core::packetise::{
    Accesses, BurstError, Bursts, BusAccess, BusOperation, Cycle, Egress, Ingress, IngressError, Pacing,
};
use tombolo_wire::{BEAT_BYTES, BusAddress, BusTransaction, Databeat, TransactionKind};

fn written(id: u16, beats: u8) -> Vec<BusTransaction> {
    let address = BusAddress { id, address: u64::from(id) << 12, length: beats - 1, ..BusAddress::default() };
    let data = (0..beats).map(|number| BusTransaction::WriteData {
        data: u128::from(id) << 64 | u128::from(number),
        strobe: u16::MAX,
        is_last: number + 1 == beats,
    });
    std::iter::once(BusTransaction::WriteAddress(address)).chain(data).collect()
}

fn read(id: u16, beats: u16) -> Vec<BusTransaction> {
    let data = |number| BusTransaction::ReadData {
        id,
        data: number,
        response: 0,
        is_last: number + 1 == beats.into(),
    };
    (0..u128::from(beats)).map(data).collect()
}

fn cycles(egress: &mut Egress, link: u8) -> Vec<Cycle> {
    std::iter::from_fn(|| egress.poll(link)).collect()
}

/// Cycles of a burst, its address and its answer included.
fn count(pacing: Pacing, beats: u16, is_write: bool) -> usize {
    let alone = |burst: Vec<BusTransaction>| {
        let mut egress = Egress::new(1, 1, pacing);
        assert!(egress.push(0, &[0], burst));
        cycles(&mut egress, 0).len()
    };
    let address = BusAddress::default();
    if is_write {
        let mut burst = vec![BusTransaction::WriteAddress(address)];
        burst.extend((0..beats).map(|_| BusTransaction::WriteData { data: 0, strobe: 0, is_last: false }));
        alone(burst) + alone(vec![BusTransaction::WriteAnswer { id: 0, response: 0 }])
    } else {
        alone(vec![BusTransaction::ReadAddress(address)]) + alone(read(0, beats))
    }
}

/// REMAP Table I, but for the cycle in which the pipeline fills, which is the platform's.
#[test]
fn bursts_take_the_cycles_that_the_document_states() {
    for beats in 1..=256_u16 {
        let half = usize::from(3 * beats).div_ceil(2);
        assert_eq!(count(Pacing::Pipelined, beats, true), half + 2);
        assert_eq!(count(Pacing::Pipelined, beats, false), half + 1);
        assert_eq!(count(Pacing::BackToBack, beats, true), usize::from(2 * beats) + 2);
        assert_eq!(count(Pacing::BackToBack, beats, false), usize::from(2 * beats) + 1);
    }
}

proptest! {
    /// R-MANY: any number of interfaces and links, in any order of cycles.
    #[test]
    fn every_transaction_arrives_whole(
        interfaces in 1..5_usize,
        links in 1..5_u8,
        bursts in prop::collection::vec((0..5_u8, 1..20_u8, any::<bool>()), 1..60),
        pipelined in any::<bool>(),
        order in prop::collection::vec(0..5_u8, 1..50),
    ) {
        let pacing = if pipelined { Pacing::Pipelined } else { Pacing::BackToBack };
        let mut egress = Egress::new(interfaces, links.into(), pacing);
        let mut ingress: Vec<_> = (0..links).map(|_| Ingress::default()).collect();
        let all: Vec<u8> = (0..links).collect();
        let mut sent = 0;
        for (number, (interface, beats, is_write)) in bursts.iter().enumerate() {
            let burst = if *is_write { written(number as u16, *beats) } else { read(number as u16, u16::from(*beats)) };
            let is_known = usize::from(*interface) < interfaces;
            sent += if is_known { burst.len() } else { 0 };
            prop_assert_eq!(egress.push(*interface, &all, burst), is_known);
        }
        let mut arrived = Vec::new();
        // Whatever the order, each link has its turn at times.
        let turns: Vec<u8> = order.iter().map(|turn| turn % links).chain(0..links).collect();
        for link in turns.into_iter().cycle() {
            if egress.is_idle() {
                break;
            }
            for databeat in egress.poll(link).into_iter().flatten().flatten() {
                let came = ingress[usize::from(link)].accept(databeat.to_bits()).expect("in order");
                arrived.extend(came.map(|(interface, transaction)| (link, interface, transaction)));
            }
        }
        prop_assert_eq!(arrived.len(), sent);
        prop_assert!(ingress.iter().all(Ingress::is_idle));
        // On each link the data of each interface follow their address.
        for link in 0..links {
            for interface in 0..interfaces as u8 {
                let mut open = None;
                for (_, _, transaction) in arrived.iter().filter(|(on, of, _)| (*on, *of) == (link, interface)) {
                    match transaction {
                        BusTransaction::WriteAddress(address) => {
                            prop_assert_eq!(open, None);
                            open = Some((address.id, 0));
                        }
                        BusTransaction::WriteData { data, is_last, .. } => {
                            let (id, number) = open.expect("an address before");
                            prop_assert_eq!((*data >> 64, *data as u64), (u128::from(id), number));
                            open = (!is_last).then_some((id, number + 1));
                        }
                        _ => {}
                    }
                }
                prop_assert_eq!(open, None);
            }
        }
    }

    /// Accesses of any length, at a memory that makes their bursts in any order.
    #[test]
    fn every_access_is_answered_once_and_for_all_of_its_bytes(
        links in 1..4_u8,
        accesses in prop::collection::vec((0..3_u8, 0..20_000_u32, 0..1_u64 << 41, any::<bool>()), 1..40),
        order in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let (mut out, mut back) = (Egress::new(2, links.into(), Pacing::Pipelined), Egress::new(2, links.into(), Pacing::Pipelined));
        let all: Vec<u8> = (0..links).collect();
        let (mut sent, mut served, mut open) = (Accesses::default(), Bursts::default(), BTreeMap::new());
        let mut written = BTreeMap::<u8, u64>::new();
        for (interface, bytes, address, is_write) in accesses {
            let operation = if is_write { BusOperation::Write } else { BusOperation::Read };
            let end = address + u64::from(bytes).next_multiple_of(BEAT_BYTES as u64);
            let is_possible = interface < 2 && bytes > 0 && end <= 1 << 40;
            let access = BusAccess { operation, address, length_bytes: bytes };
            let id = sent.begin(&mut out, interface, &all, access, u128::from);
            prop_assert_eq!(id.is_some(), is_possible);
            if let Some(id) = id {
                prop_assert_eq!(open.insert((interface, id), (operation, address, bytes)), None);
            }
        }
        prop_assert_eq!(sent.open(), open.len());
        let (mut bursts, mut got) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
        for link in 0..links {
            let mut ingress = Ingress::default();
            for databeat in cycles(&mut out, link).into_iter().flatten().flatten() {
                let came = ingress.accept(databeat.to_bits()).expect("in order");
                let Some((interface, transaction)) = came else { continue };
                if let BusTransaction::WriteData { data, strobe, .. } = transaction {
                    *written.entry(interface).or_insert(0) += u64::from(strobe.count_ones());
                    prop_assert!(data < 1 << 40);
                }
                bursts.extend(served.accept(link, interface, &transaction).expect("nothing is lost"));
            }
        }
        prop_assert_eq!(served.open(), 0);
        // As many bytes are written as were to be.
        for interface in 0..2 {
            let of = |(key, (operation, _, bytes)): (&(u8, u16), &(BusOperation, u64, u32))| {
                if key.0 == interface && *operation == BusOperation::Write { u64::from(*bytes) } else { 0 }
            };
            prop_assert_eq!(written.get(&interface).copied().unwrap_or(0), open.iter().map(of).sum::<u64>());
        }
        for place in order.iter().cycle() {
            if bursts.is_empty() {
                break;
            }
            let burst = bursts.swap_remove(place.index(bursts.len()));
            got.entry((burst.interface, burst.at.id)).or_default().push((burst.at.address, burst.length_bytes(), burst.operation));
            prop_assert!(burst.answer(&mut back, u128::from));
        }
        for link in 0..links {
            let mut ingress = Ingress::default();
            for databeat in cycles(&mut back, link).into_iter().flatten().flatten() {
                let Some((interface, transaction)) = ingress.accept(databeat.to_bits()).expect("in order") else { continue };
                let Some(id) = sent.answered(interface, &transaction) else { continue };
                let (operation, mut address, bytes) = open.remove(&(interface, id)).expect("it was open");
                let mut pieces = got.remove(&(interface, id)).expect("its bursts came");
                pieces.sort_unstable_by_key(|(at, ..)| *at);
                let end = address + u64::from(bytes).next_multiple_of(BEAT_BYTES as u64);
                for (at, length, done) in pieces {
                    prop_assert_eq!((at, done), (address, operation));
                    address += u64::from(length);
                }
                prop_assert_eq!(address, end);
            }
        }
        prop_assert!(open.is_empty() && sent.open() == 0 && got.is_empty());
    }

    #[test]
    fn no_bits_do_harm(bits in prop::collection::vec(any::<u64>(), 0..200)) {
        let mut ingress = Ingress::default();
        for bits in bits {
            let _ = ingress.accept(bits);
        }
    }
}

#[test]
fn several_links_to_one_place_take_bursts_in_turn() {
    let mut egress = Egress::new(2, 3, Pacing::Pipelined);
    for id in 0..8 {
        assert!(egress.push((id % 2) as u8, &[0, 2], written(id, 4)));
    }
    assert!(!egress.push(0, &[7], written(9, 1)) && !egress.push(2, &[0], written(9, 1)));
    let counts = [0, 1, 2].map(|link| cycles(&mut egress, link).len());
    assert_eq!(counts, [4 * 7, 0, 4 * 7], "two links have half of it each");
    assert!(egress.is_idle());
}

#[test]
fn a_part_that_is_lost_costs_its_transaction_and_no_other() {
    let mut ingress = Ingress::default();
    let parts = |burst: Vec<BusTransaction>| -> Vec<Databeat> {
        burst.iter().flat_map(|transaction| transaction.parts(3)).collect()
    };
    let mut databeats = parts(read(1, 3));
    databeats.remove(4);
    let results: Vec<_> = databeats.iter().map(|databeat| ingress.accept(databeat.to_bits())).collect();
    let whole = results.iter().filter(|result| matches!(result, Ok(Some(_)))).count();
    assert_eq!((whole, ingress.dropped()), (2, 1));
    let error = results.iter().find_map(|result| result.as_ref().err()).expect("one was lost");
    let kind = TransactionKind::ReadData;
    assert_eq!(*error, IngressError::OutOfOrder { interface: 3, kind, due: 1, came: 2 });
    assert!(ingress.is_idle());
}

/// What is lost costs its own burst: the next one is whole.
#[test]
fn a_burst_of_which_a_part_is_lost_is_dropped_alone() {
    let mut bursts = Bursts::default();
    let mut accept = |transactions: &[BusTransaction]| -> Vec<_> {
        transactions.iter().map(|transaction| bursts.accept(0, 3, transaction)).collect()
    };
    let error = Err(BurstError { interface: 3 });
    let first_of = |results: &[Result<Option<_>, _>]| results.iter().position(|result| *result == error);
    // Data without an address; the last data; data before the last.
    assert_eq!(first_of(&accept(&written(1, 3)[1..])), Some(0));
    assert_eq!(first_of(&accept(&written(2, 3)[..3])), None);
    let again = accept(&written(3, 3));
    assert_eq!((first_of(&again), again[3].is_ok_and(|burst| burst.is_some())), (Some(0), true));
    let mut short = written(4, 3);
    short.remove(2);
    assert_eq!(first_of(&accept(&short)), Some(2));
    let whole = accept(&written(5, 3)).pop().expect("a result").expect("nothing is lost");
    assert_eq!(whole.map(|burst| (burst.at.id, burst.length_bytes())), Some((5, 48)));
}
