//! The deadlock of QOS §3.6.2: read requests that wait for a channel stand in
//! one queue before the acknowledgements that would free it. Provoked with
//! separate queues, where it cannot form, and with one queue, where it must.

use crate::bench::{BASE, Bench, OTHER, domain_of};
use std::collections::VecDeque;
use tombolo_core::rdma::{Action, Config, Direction, Transfer};
use tombolo_wire::{Checksums, MAX_BARE_PACKET_BYTES, Packet};

/// What came in and was not yet handed to an engine.
#[derive(Default)]
struct Mailbox {
    requests: VecDeque<Vec<u8>>,
    others: VecDeque<Vec<u8>>,
}

#[derive(Clone, Copy, PartialEq)]
enum Queues {
    Separate,
    /// As in the document's first implementation: all in `requests`.
    Shared,
}

/// 64 reads from each end at once, 32 channels, no buffer for pending reads.
/// Requests are taken out of their queue only if there is room. Returns how many
/// transfers completed before nothing moved any more (no timer ever helps: the
/// clock stands still).
fn run(queues: Queues) -> usize {
    let config = Config { pending_reads: 0, congestion: None, ..Config::default() };
    let mut bench = Bench::new(config, 1, 1 << 20);
    for node in 0..2 {
        for number in 0..64u64 {
            let spec = Transfer {
                direction: Direction::Read,
                domain: domain_of(1 - node),
                own_domain: domain_of(node),
                source_address: BASE + number * 4096,
                destination_address: BASE + (128 + number) * 4096,
                size_bytes: 4096,
                notification: None,
                class: None,
                user: number,
            };
            bench.engines[node].post(bench.now(), OTHER, spec).expect("room for 64");
        }
    }
    let mut boxes = [Mailbox::default(), Mailbox::default()];
    let mut completed = 0;
    loop {
        let mut moved = false;
        for node in 0..2 {
            while let Some(action) = bench.engines[node].poll(bench.now()) {
                moved = true;
                let mut packets = Vec::new();
                match action {
                    Action::Complete(completion) => {
                        assert_eq!(completion.status, Ok(()));
                        completed += 1;
                    }
                    Action::WriteNotification(_) => unreachable!("none was asked for"),
                    Action::Send { packet, .. } => {
                        let mut bytes = vec![0; MAX_BARE_PACKET_BYTES];
                        let length = packet.emit(&mut bytes, Checksums::On).expect("a packet");
                        bytes.truncate(length);
                        packets.push(bytes);
                    }
                    Action::SendBlock(block) => {
                        for header in block.packets(16384) {
                            let mut bytes = vec![0; 64 + 16384];
                            let length = header.seal(&mut bytes, Checksums::On).expect("a packet");
                            bytes.truncate(length);
                            packets.push(bytes);
                        }
                    }
                }
                for bytes in packets {
                    let packet = Packet::parse(&bytes, Checksums::On).expect("undamaged");
                    let mailbox = &mut boxes[1 - node];
                    if queues == Queues::Shared || matches!(packet, Packet::ReadRequest(_)) {
                        mailbox.requests.push_back(bytes);
                    } else {
                        mailbox.others.push_back(bytes);
                    }
                }
            }
        }
        for (node, mailbox) in boxes.iter_mut().enumerate() {
            while let Some(bytes) = mailbox.others.pop_front() {
                moved = true;
                bench.arrive(node, 0, &bytes);
            }
            while let Some(bytes) = mailbox.requests.front() {
                let packet = Packet::parse(bytes, Checksums::On).expect("undamaged");
                if let Packet::ReadRequest(request) = packet
                    && !bench.engines[node].has_read_room(OTHER, &request)
                {
                    // It waits here, and what is behind it waits too.
                    break;
                }
                moved = true;
                let bytes = mailbox.requests.pop_front().expect("the front is there");
                bench.arrive(node, 0, &bytes);
            }
        }
        if !moved {
            return completed;
        }
    }
}

#[test]
fn separate_queues_do_not_lock_up() {
    assert_eq!(run(Queues::Separate), 128);
}

/// The twin that must fail: if it does not, the test above proves nothing.
#[test]
fn one_shared_queue_locks_up() {
    assert!(run(Queues::Shared) < 128);
}

/// Without a caller that looks for room: what finds none is turned away, comes
/// back, and everything completes.
#[test]
fn turned_away_reads_come_back() {
    let config = Config { pending_reads: 1, read_channels: 2, ..Config::default() };
    let mut bench = Bench::new(config, 3, 1 << 20);
    for node in [0, 1].repeat(40) {
        bench.post(node, Direction::Read, 5000, true, None).expect("memory").expect("room");
    }
    bench.settle(2_000_000_000);
    bench.check_memory();
    assert!(bench.report()[0].reads_turned_away > 0);
    assert!(bench.report()[0].reads_queued > 0);
}
