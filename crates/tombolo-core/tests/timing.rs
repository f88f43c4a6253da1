//! How long a repair takes, and how much is lost where the path is narrow. In
//! virtual time: exact, and the same on every machine.

mod bench;

use bench::{Bench, Faults};
use tombolo_core::rdma::{Config, Direction, Retransmission};

const SECOND: u64 = 1_000_000_000;

/// Writes of 16 KiB, one lost; returns how long it took to repair.
fn repair_ns(config: Config) -> u64 {
    let mut bench = Bench::new(config, 1, 1 << 20);
    bench.payload_bytes = 16384;
    for _ in 0..20 {
        bench.post(0, Direction::Write, 16384, false, None).expect("memory").expect("room");
        bench.settle(SECOND);
    }
    let start = bench.now;
    for number in 0..8 {
        if number == 2 {
            bench.faults.loss = 1_000_000;
        }
        bench.post(0, Direction::Write, 4096, true, None).expect("memory").expect("room");
        bench.drain();
        bench.faults = Faults::default();
    }
    bench.settle(SECOND);
    bench.check_memory();
    bench.watched.iter().for_each(|watched| assert_eq!(watched.status, Some(Ok(()))));
    bench.now.since_ns(start)
}

#[test]
fn a_loss_that_others_overtake_does_not_wait_for_the_timeout() {
    let fast = repair_ns(Config::default());
    let slow = repair_ns(Config { fast_retransmit: false, ..Config::default() });
    assert!(fast < 500_000, "{fast} ns");
    assert!(slow >= 2_000_000, "{slow} ns");
    let retransmission = Retransmission::Fixed { timeout_ns: 20_000_000 };
    let document = repair_ns(Config { fast_retransmit: false, retransmission, ..Config::default() });
    assert!((20_000_000..20_100_000).contains(&document), "{document} ns");
}

/// The same for a read whose request is lost.
#[test]
fn a_lost_request_that_others_overtake_is_repeated_soon() {
    let repair_ns = |fast_retransmit| {
        let config = Config { fast_retransmit, ..Config::default() };
        let mut bench = Bench::new(config, 1, 1 << 20);
        for number in 0..28 {
            if number == 22 {
                bench.faults.loss = 1_000_000;
            }
            let posted = bench.post(0, Direction::Read, 4096, true, None);
            posted.expect("memory").expect("room");
            if number < 20 {
                bench.settle(SECOND);
            }
            bench.drain();
            bench.faults = Faults::default();
        }
        let start = bench.now;
        bench.settle(SECOND);
        bench.check_memory();
        bench.now.since_ns(start)
    };
    let (fast, slow) = (repair_ns(true), repair_ns(false));
    assert!(fast < 500_000, "{fast} ns");
    assert!(slow >= 4_000_000, "{slow} ns");
}

/// Much to send through a small buffer: returns the share of packets lost, in
/// thousandths, and the time.
fn overrun(congestion: bool) -> (u64, u64) {
    let mut config = Config { outstanding_blocks: 64, ..Config::default() };
    if !congestion {
        config.congestion = None;
    }
    let mut bench = Bench::new(config, 1, 40 << 20);
    bench.payload_bytes = 8192;
    // 8 Gb/s and a socket's usual buffer.
    bench.faults = Faults { byte_picos: 1000, buffer_bytes: Some(200_000), ..Faults::default() };
    for _ in 0..32 {
        bench.post(0, Direction::Write, 1 << 20, true, None).expect("memory").expect("room");
    }
    let start = bench.now;
    bench.settle(20 * SECOND);
    bench.check_memory();
    let sent = bench.report()[0].block_bytes_sent / 8192;
    (bench.dropped * 1000 / sent, bench.now.since_ns(start))
}

#[test]
fn congestion_control_keeps_loss_near_zero() {
    let (loss, time_ns) = overrun(true);
    assert!(loss < 10, "{loss} in a thousand lost");
    // 32 MiB at 1 B/ns take 34 ms.
    assert!(time_ns < 45_000_000, "{time_ns} ns");
    let (without, _) = overrun(false);
    assert!(without > 100, "the twin loses only {without} in a thousand");
}
