//! Sleeping, waking, and noticing the end.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::harness::{PATIENCE, Pair, check, send, try_send};
use tombolo_link::udp::DEFAULT_OUTAGE;
use tombolo_link::{Link, LinkError, LinkState, LossReason, SendError, SharedSpan};

/// An end that is noticed must not be taken for a silence, which is borne for twice as long. A thread may be without
/// a processor for seconds, so no shorter time says anything.
pub const SOONER_THAN_SILENCE: Duration = Duration::from_secs(DEFAULT_OUTAGE.as_secs() / 2);

/// Sends until the other side, asleep most of the time, has been woken so many times.
pub fn a_packet_wakes_a_sleeper(pair: &Pair) {
    const ROUNDS: u64 = 300;
    let echo = |link: &dyn Link, first: bool| {
        let mut next = 0;
        let mut last_sent = Instant::now();
        let deadline = Instant::now() + 3 * PATIENCE;
        if first {
            send(link, 0, 64);
            link.flush().unwrap();
        }
        while next < ROUNDS {
            assert!(Instant::now() < deadline, "stuck at {next}");
            if pair.lossless {
                // The next packet comes, and nothing else wakes: no timer runs on these links.
                assert!(link.wait(PATIENCE).unwrap(), "a lost wake at {next}");
            } else {
                link.wait(Duration::from_millis(20)).unwrap();
            }
            let mut arrived = None;
            let received = link.receive(16, &mut |bytes| arrived = Some(check(bytes)));
            match received {
                Err(LinkError::Lost(_)) if next + 2 >= ROUNDS => return,
                other => other.unwrap(),
            };
            let repeat = !pair.lossless && last_sent.elapsed() > Duration::from_millis(20);
            if let Some(number) = arrived.filter(|number| *number >= next) {
                next = number + 1;
            } else if !repeat {
                continue;
            }
            last_sent = Instant::now();
            match try_send(link, next, 64) {
                Ok(()) | Err(SendError::Full) => {}
                Err(_) => return,
            }
            let _ = link.flush();
        }
        // In case the last word was lost.
        for _ in 0..if pair.lossless { 0 } else { 20 } {
            let _ = try_send(link, next, 64);
            let _ = link.flush();
            link.tick(Instant::now());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| echo(&*pair.one, true));
        scope.spawn(|| echo(&*pair.other, false));
    });
}

pub fn a_control_message_wakes_a_sleeper(pair: &Pair) {
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                if let Some(message) = pair.other.receive_control().unwrap() {
                    return message.bytes;
                }
                assert!(Instant::now() < deadline);
                pair.other.wait(PATIENCE).unwrap();
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let sent = Instant::now();
        pair.one.send_control(b"wake up", &[]).unwrap();
        assert_eq!(sleeper.join().unwrap(), b"wake up");
        // A lost wake costs all of it.
        assert!(sent.elapsed() < PATIENCE / 2, "{:?}", sent.elapsed());
    });
}

/// Timers that run between [`Link::arm`] and the sleep, in this thread or another, leave the news for the sleeper.
pub fn timers_take_no_wake(pair: &Pair) {
    for number in 0..3 {
        let deadline = Instant::now() + PATIENCE;
        while pair.other.arm().unwrap() {
            assert!(Instant::now() < deadline, "never asleep");
            pair.other.receive(16, &mut |_| {}).unwrap();
            let _ = pair.other.receive_control().unwrap();
        }
        if number == 2 {
            pair.one.send_control(b"wake up", &[]).unwrap();
        } else {
            send(&*pair.one, number, 64);
            pair.one.flush().unwrap();
        }
        // Long enough for whatever reads at times only, which would have taken it.
        std::thread::sleep(Duration::from_millis(5));
        pair.other.tick(Instant::now());
        let ready = tombolo_host::event::wait_readable(&[pair.other.descriptor()], Some(PATIENCE));
        assert_eq!(ready, Ok(true), "no wake for {number}");
    }
}

pub fn room_wakes_a_sleeper(pair: &Pair) {
    const PACKETS: u64 = 20_000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..PACKETS {
                while let Err(error) = try_send(&*pair.one, number, 1000) {
                    assert_eq!(error, SendError::Full);
                    assert!(pair.one.wait(PATIENCE).unwrap(), "no wake for room");
                }
                pair.one.flush().unwrap();
            }
        });
        let mut next = 0;
        while next < PACKETS {
            assert!(pair.other.wait(PATIENCE).unwrap(), "no wake for a packet");
            // Slow at times, so that the sender fills the link.
            if next % 1000 < 10 {
                std::thread::sleep(Duration::from_millis(1));
            }
            pair.other
                .receive(200, &mut |bytes| {
                    assert_eq!(check(bytes), next);
                    next += 1;
                })
                .unwrap();
        }
    });
}

/// Waits until the link is lost, as a node does that only sleeps on it.
pub fn await_loss(link: &dyn Link, patience: Duration) -> LossReason {
    let deadline = Instant::now() + patience;
    loop {
        if let LinkState::Lost(reason) = link.state() {
            return reason;
        }
        assert!(Instant::now() < deadline, "the loss was not noticed");
        let _ = link.wait(Duration::from_millis(100));
        if let (Err(LinkError::Lost(reason)), _) | (_, Err(LinkError::Lost(reason))) =
            (link.receive(16, &mut |_| {}), link.receive_control())
        {
            return reason;
        }
    }
}

/// The check owns only a borrow of the pair, so the drop is that of a second one's end.
pub fn a_dropped_peer_is_noticed(pair: &Pair) {
    // Up as long as both are there.
    assert_eq!((pair.one.state(), pair.other.state()), (LinkState::Up, LinkState::Up));
    let _ = pair.one.wait(Duration::from_millis(1)).unwrap();
    let doomed = crate::Kind::pair_like(pair);
    drop(doomed.one);
    let started = Instant::now();
    assert_eq!(await_loss(&*doomed.other, PATIENCE), LossReason::ClosedByPeer);
    assert!(started.elapsed() < SOONER_THAN_SILENCE, "{:?}", started.elapsed());
    let lost = SendError::Lost(LossReason::ClosedByPeer);
    assert_eq!(doomed.other.send(b"x", SharedSpan::empty()), Err(lost));
    assert_eq!(doomed.other.send_control(b"x", &[]), Err(lost));
    assert!(doomed.other.wait(Duration::from_secs(1)).unwrap_or(true));
    assert!(matches!(doomed.other.receive_control(), Err(LinkError::Lost(_))));
}

pub fn what_came_before_the_end_is_received(pair: &Pair) {
    let doomed = crate::Kind::pair_like(pair);
    for number in 0..30 {
        send(&*doomed.one, number, 500);
    }
    doomed.one.flush().unwrap();
    drop(doomed.one);
    let mut count = 0;
    let error = loop {
        match doomed.other.receive(7, &mut |bytes| count += u32::from(check(bytes) < 30)) {
            Ok(0) => {
                let _ = doomed.other.wait(Duration::from_millis(100));
            }
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, LinkError::Lost(LossReason::ClosedByPeer));
    assert!(count > 10, "{count}");
    if doomed.lossless {
        assert_eq!(count, 30);
    }
}

pub fn an_idle_link_uses_no_cpu(pair: &Pair) {
    let idle = |link: &dyn Link| {
        let begin = clock_gettime(ClockId::ThreadCPUTime);
        let started = Instant::now();
        while let Some(left) = Duration::from_secs(2).checked_sub(started.elapsed()) {
            link.wait(left).unwrap();
            link.receive(16, &mut |_| {}).unwrap();
        }
        let end = clock_gettime(ClockId::ThreadCPUTime);
        (end.tv_sec - begin.tv_sec) * 1_000_000 + (end.tv_nsec - begin.tv_nsec) / 1000
    };
    let window = || {
        std::thread::scope(|scope| {
            let one = scope.spawn(|| idle(&*pair.one));
            let other = scope.spawn(|| idle(&*pair.other));
            (one.join().unwrap(), other.join().unwrap())
        })
    };
    // One per cent of two seconds; a good link uses a tenth of that. What goes on after a link was made lasts longer
    // on a busy machine; a link that spins does so in all three windows.
    let is_idle = |(one_us, other_us): (i64, i64)| one_us < 20_000 && other_us < 20_000;
    let mut used = window();
    for _ in 0..2 {
        if !is_idle(used) {
            used = window();
        }
    }
    let (one_us, other_us) = used;
    assert!(is_idle(used), "{one_us} and {other_us} us in 2 s");
    println!("idle: {one_us} and {other_us} us of CPU in 2 s");
    assert_eq!((pair.one.state(), pair.other.state()), (LinkState::Up, LinkState::Up));
}

/// Lets both ends run as nodes do, until something is so.
pub fn run_until(what: &str, ends: [&dyn Link; 2], mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "still not: {what}");
        for link in ends {
            let _ = link.wait(Duration::from_millis(5));
            link.tick(Instant::now());
            let _ = link.receive(64, &mut |_| {});
        }
    }
}

/// Both ends give a silent peer up after that, and know it of each other.
pub fn agree_on_outage(ends: [&dyn Link; 2], outage: Duration) {
    ends.iter().for_each(|link| link.set_outage(outage));
    let begin = Instant::now();
    // A ping and its answer.
    run_until("the outage is said", ends, || begin.elapsed() > Duration::from_secs(1));
}

/// The network is down for longer than it takes to be noticed: both ends pause, and go on in the same session.
pub fn a_link_outlives_an_outage(ends: [&dyn Link; 2], cut: &dyn Fn(bool)) {
    let [one, other] = ends;
    cut(true);
    one.send_control(b"said meanwhile", &[]).unwrap();
    run_until("both ends are suspect", ends, || one.is_suspect() && other.is_suspect());
    // Twice as long as a link without a pause lived.
    let since = Instant::now();
    run_until("the time is over", ends, || since.elapsed() > Duration::from_millis(1500));
    assert_eq!((one.state(), other.state()), (LinkState::Up, LinkState::Up));
    cut(false);
    run_until("neither end is suspect", ends, || !one.is_suspect() && !other.is_suspect());
    let mut heard = None;
    run_until("what was said has come", ends, || {
        heard = heard.take().or(other.receive_control().unwrap());
        heard.is_some()
    });
    assert_eq!(heard.unwrap().bytes, b"said meanwhile");
    let mut arrived = None;
    run_until("packets pass", ends, || {
        let _ = try_send(one, 7, 100);
        let _ = one.flush();
        // Not left to `run_until`, which receives for nobody: a relay takes a while.
        let _ = other.wait(Duration::from_millis(500));
        other.receive(64, &mut |bytes| arrived = Some(check(bytes))).unwrap();
        arrived.is_some()
    });
    assert_eq!(arrived, Some(7));
}
