//! Reads side by side: long ones hold up no short ones, neither at the requester nor at
//! the target, and domains take turns.

use crate::bench::{BASE, Bench, OTHER};
use tombolo_core::rdma::{Action, Class, Config, Direction, Engine, Time};
use tombolo_wire::{Ack, Attempt, Domain, Packet, ReadRequest, RequestId};

const SECOND: u64 = 1_000_000_000;

/// Post one read.
fn read(bench: &mut Bench, size_bytes: u32) {
    bench.post(0, Direction::Read, size_bytes, false, None).expect("memory").expect("room");
}

/// Run until every short read is over.
fn run_short(bench: &mut Bench, longest_short: u32) {
    while bench
        .watched
        .iter()
        .any(|watched| watched.spec.size_bytes <= longest_short && watched.status.is_none())
    {
        assert!(bench.step(), "nothing happens and short reads are open");
    }
}

fn open_long(bench: &Bench, longest_short: u32) -> usize {
    let long = bench.watched.iter().filter(|watched| watched.spec.size_bytes > longest_short);
    long.filter(|watched| watched.status.is_none()).count()
}

/// More short reads than there are places in the window of ids come after one long read.
#[test]
fn a_long_read_holds_up_none_that_come_after_it() {
    let mut bench = Bench::new(Config { transfers: 4096, ..Config::default() }, 1, 24 << 20);
    bench.payload_bytes = 16384;
    // A nanosecond a byte: the long read takes 16 ms.
    bench.faults.byte_picos = 1000;
    read(&mut bench, 16 << 20);
    bench.drain();
    for _ in 0..1500 {
        read(&mut bench, 64);
    }
    run_short(&mut bench, 64);
    assert_eq!(open_long(&bench, 64), 1, "the long read is over before the short ones");
    bench.settle(10 * SECOND);
    bench.check_memory();
    assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
}

/// Long reads could fill the requester's ids, the channels, and the places of those that wait.
#[test]
fn many_long_reads_leave_room_to_short_ones() {
    let config = Config {
        outstanding_reads: 16,
        read_channels: 8,
        served_reads: 16,
        pending_reads: 8,
        ..Config::default()
    };
    let mut bench = Bench::new(config, 1, 40 << 20);
    bench.payload_bytes = 16384;
    bench.faults.byte_picos = 1000;
    for _ in 0..30 {
        read(&mut bench, 1 << 20);
    }
    for _ in 0..20 {
        bench.step();
    }
    for _ in 0..30 {
        read(&mut bench, 64);
    }
    run_short(&mut bench, 64);
    assert_eq!(open_long(&bench, 64), 30, "short reads have waited for long ones");
    bench.settle(10 * SECOND);
    bench.check_memory();
    assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))));
}

/// In which order a target that serves one read at a time serves these.
fn order_of_service(requests: &[(Domain, u32, Option<Class>)]) -> Vec<u32> {
    let config = Config { served_reads: 1, bypass: false, congestion: None, ..Config::default() };
    let mut target = Engine::new(config);
    let now = Time(1);
    target.add_peer(now, OTHER);
    for (number, (domain, size_bytes, class)) in requests.iter().enumerate() {
        let request = ReadRequest {
            request: RequestId(number as u32),
            watermark: RequestId(0),
            attempt: Attempt(0),
            domain: *domain,
            size_bytes: *size_bytes,
            source_address: BASE,
            destination_address: BASE,
            notification: None,
            class: class.map(|class| class as u8),
        };
        let _ = target.handle(now, OTHER, &Packet::ReadRequest(request));
    }
    let mut order = Vec::new();
    while let Some(action) = target.poll(now) {
        let Action::SendBlock(block) = action else { continue };
        let number = block.in_reply_to.expect("it answers a read").0;
        if order.last() != Some(&number) {
            order.push(number);
        }
        let (transaction, generation, attempt) = (block.transaction, block.generation, block.attempt);
        let ack = Ack { transaction, generation, attempt, bytes_only: false };
        let _ = target.handle(now, OTHER, &Packet::Ack(ack));
    }
    assert!(target.is_idle());
    order
}

#[test]
fn domains_take_turns() {
    let [one, other] = [Domain(1), Domain(2)];
    let requests = [one, one, one, one, other, other].map(|domain| (domain, 100, None));
    assert_eq!(order_of_service(&requests), [0, 1, 4, 2, 5, 3]);
}

#[test]
fn of_waiting_reads_higher_classes_go_first_and_lower_ones_do_not_starve() {
    let long = (Domain(1), 1 << 20, None);
    let short = (Domain(1), 100, None);
    let asked_for = (Domain(1), 1 << 20, Some(Class::High));
    assert_eq!(order_of_service(&[long, long, short, short, asked_for]), [0, 2, 3, 4, 1]);
    let mut many = vec![long, long];
    many.extend([short; 40]);
    let order = order_of_service(&many);
    let at = order.iter().position(|number| *number == 1).expect("it is served");
    assert_eq!(at as u32, 1 + Config::default().starvation_blocks);
}
