//! Peers that take all they can get.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_client::{Grant, Who};
use tombolo_host::shared::SharedSpan;
use tombolo_link::SendError;
use tombolo_node::fuzzing::{Carriage, Life, Message, MessageV1, NodeIdentity, Reply, Request};
use tombolo_node::{Address, Node, Security};
use tombolo_wire::{Attempt, Checksums, Domain as WireDomain, Packet, ReadAccept, ReadRequest, RequestId};

use crate::harness::{Host, PATIENCE, shm, udp};
use crate::hostile::honest;

/// A peer that takes all it can, acknowledges nothing and takes no answers, over several links; it
/// says just enough not to be given up. Others have what they need.
fn greed_harms_nobody_else(listen: &Address) {
    let (victim, address) = Host::start_node(Node::new("victim", 64 << 20, 0).unwrap(), listen, &[]);
    let (other, _) = Host::start_named("honest", &shm(), &[&address]);
    let (near, far) = (other.domain(1), victim.domain(2));
    let (third, fourth) = (victim.domain(3), victim.domain(4));
    let mine = near.allocate(1 << 20, &[]).unwrap();
    let theirs = far.allocate(1 << 20, &[Grant::all(Who::Anyone)]).unwrap();
    let carried = third.allocate(1 << 20, &[Grant::all(Who::Anyone)]).unwrap();
    let _ = fourth.allocate(4096, &[]).unwrap();
    let links: Vec<_> =
        (0..3).map(|_| tombolo_link::connect(&address, &Security::Insecure, PATIENCE).unwrap()).collect();
    for (index, link) in links.iter().enumerate() {
        let checksums = if link.protects_integrity() { Checksums::Off } else { Checksums::On };
        let ask = |number, request| {
            let message = Message::V1(MessageV1::Ask { number, request }).encode();
            let since = Instant::now();
            while let Err(SendError::Full) = link.send_control(&message, &[]) {
                // Packets are taken and forgotten; answers are not even taken.
                let _ = link.receive(1000, &mut |_| {});
                link.tick(Instant::now());
                std::thread::yield_now();
                if since.elapsed() > Duration::from_secs(2) {
                    break;
                }
            }
        };
        let life = Life([index as u8 + 1; 16]);
        ask(0, Request::Introduce { name: format!("greedy-{index}"), life });
        for number in 0..600 {
            ask(1 + number, Request::Lend { bytes: 4096 });
        }
        for number in 0..200 {
            ask(1000 + number, Request::Create { bytes: 1 });
        }
        for number in 0..400 {
            // To itself, where no acknowledgement comes from.
            ask(
                2000 + number,
                Request::Carry(Box::new(Carriage {
                    to: Some(NodeIdentity { key: None, life }),
                    source_domain: 0x8002,
                    source_address: theirs.address(),
                    destination_domain: 0x8001,
                    destination_address: 0,
                    size_bytes: 64 * 1024,
                    notification: None,
                    class: Some(0),
                })),
            );
        }
        let mut bytes = [0; 256];
        for request in 0..512 {
            let packet = Packet::ReadRequest(ReadRequest {
                request: RequestId(request),
                watermark: RequestId(0),
                attempt: Attempt(0),
                // All channels of as many domains as there are.
                domain: WireDomain(if request % 2 == 0 { 0x8002 } else { 0x8003 }),
                size_bytes: 2,
                source_address: if request % 2 == 0 { theirs.address() } else { carried.address() },
                // Two blocks of a byte each.
                destination_address: 16 * 1024 - 1,
                notification: None,
                class: Some(0),
            });
            let length = packet.emit(&mut bytes, checksums).unwrap();
            let _ = link.send(&bytes[..length], SharedSpan::empty());
            let _ = link.flush();
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Life, and nothing else.
            while !stop.load(Ordering::Relaxed) {
                for link in &links {
                    let checksums = if link.protects_integrity() { Checksums::Off } else { Checksums::On };
                    let nonsense = Packet::ReadAccept(ReadAccept { request: RequestId(7) });
                    let mut bytes = [0; 64];
                    let length = nonsense.emit(&mut bytes, checksums).unwrap();
                    let _ = link.send(&bytes[..length], SharedSpan::empty());
                    let _ = link.flush();
                    let _ = link.receive(1000, &mut |_| {});
                    link.tick(Instant::now());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let stopped = AtomicBool::new(true);
        assert_eq!(honest(&near, &mine, &theirs, 1, &stopped), 10);
        let peer = other.node.peers().remove(0);
        let ask = |request| other.node.ask(&peer, request, PATIENCE).unwrap().0;
        assert!(matches!(ask(Request::Lend { bytes: 1 << 20 }), Reply::Lent { .. }));
        assert!(matches!(ask(Request::Create { bytes: 5 }), Reply::Lent { .. }));
        // The victim's program has its own carried as well: from one neighbour to the other.
        let carriage = Carriage {
            to: None,
            source_domain: 0x8002,
            source_address: theirs.address(),
            destination_domain: 0x8003,
            destination_address: carried.address(),
            size_bytes: 100_000,
            notification: None,
            class: None,
        };
        assert_eq!(ask(Request::Carry(Box::new(carriage))), Reply::Carried(None));
        stop.store(true, Ordering::Relaxed);
    });
    let borrowed = victim.node.status().borrowers;
    assert!(borrowed.iter().all(|borrower| borrower.segments <= 256), "{borrowed:?}");
}

#[test]
fn a_greedy_peer_over_shared_memory() {
    greed_harms_nobody_else(&shm());
}

#[test]
fn a_greedy_peer_over_udp() {
    greed_harms_nobody_else(&udp());
}
