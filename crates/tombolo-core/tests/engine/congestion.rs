//! Flows that share a queue, packet by packet in virtual time: is the path full,
//! is the queue short, has each its part, and how soon.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use tombolo_core::rdma::Time;
use tombolo_core::rdma::congestion::{Congestion, CongestionConfig};
use tombolo_random::Random;

const BLOCK: u64 = 16 * 1024;
const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Picoseconds a byte.
const FORTY_GIGABIT: u64 = 200;
const TEN_GIGABIT: u64 = 800;
const GIGABIT: u64 = 8_000;

struct Flow {
    window: Congestion,
    /// Sequence number and time of what is under way.
    under_way: VecDeque<(u64, Time)>,
    next: u64,
    delay_ns: u64,
    trip_ns: u64,
    delivered: u64,
    lost: u64,
    wants: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Answer { flow: usize, block: u64, sent_at: Time },
    Timer { flow: usize, block: u64 },
}

/// One queue that everything goes through, with a rate and a buffer.
struct Net {
    now: Time,
    byte_picos: u64,
    buffer_bytes: u64,
    /// In millionths.
    loss: u64,
    /// The receivers stop for up to so long, that often (in millionths of the blocks).
    pause: (u64, u64),
    free_at: Time,
    paused_until: Time,
    longest_queue_ns: u64,
    flows: Vec<Flow>,
    events: BinaryHeap<Reverse<(Time, Event)>>,
    random: Random,
}

impl Net {
    fn new(byte_picos: u64, delay_ns: u64, flows: usize) -> Self {
        let flow = |_| Flow {
            window: Congestion::new(Some(CongestionConfig::default())),
            under_way: VecDeque::new(),
            next: 0,
            delay_ns,
            trip_ns: 0,
            delivered: 0,
            lost: 0,
            wants: true,
        };
        Self {
            now: Time(SECOND),
            byte_picos,
            buffer_bytes: 1 << 20,
            loss: 0,
            pause: (0, 0),
            free_at: Time(0),
            paused_until: Time(0),
            longest_queue_ns: 0,
            flows: (0..flows).map(flow).collect(),
            events: BinaryHeap::new(),
            random: Random::for_test(7),
        }
    }

    /// All flows send what they may for so long; what each delivered meanwhile.
    fn run(&mut self, ns: u64) -> Vec<u64> {
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.delivered).collect();
        let end = self.now.after_ns(ns);
        self.longest_queue_ns = 0;
        for flow in 0..self.flows.len() {
            self.send(flow);
        }
        while let Some(Reverse((time, _))) = self.events.peek() {
            if *time > end {
                break;
            }
            self.now = *time;
            match self.events.pop().expect("it was there").0.1 {
                Event::Answer { flow, block, sent_at } => self.answer(flow, block, sent_at),
                Event::Timer { flow, block } => self.time_out(flow, block),
            }
        }
        self.now = end;
        self.flows.iter().zip(before).map(|(flow, before)| flow.delivered - before).collect()
    }

    fn send(&mut self, at: usize) {
        let flow = &mut self.flows[at];
        loop {
            let in_flight = flow.under_way.len() as u64 * BLOCK;
            if !flow.wants || in_flight > 0 && in_flight >= flow.window.window_bytes() {
                return;
            }
            flow.window.sent(self.now, in_flight);
            let block = flow.next;
            flow.next += 1;
            flow.under_way.push_back((block, self.now));
            let timer = Event::Timer { flow: at, block };
            let patience_ns = 2 * MILLISECOND + 4 * flow.delay_ns.max(flow.trip_ns);
            self.events.push(Reverse((self.now.after_ns(patience_ns), timer)));
            let queue_ns = self.free_at.since_ns(self.now);
            if queue_ns * 1000 / self.byte_picos > self.buffer_bytes || self.random.per_million(self.loss) {
                continue;
            }
            self.longest_queue_ns = self.longest_queue_ns.max(queue_ns);
            self.free_at = self.now.max(self.free_at).after_ns(BLOCK * self.byte_picos / 1000);
            let mut arrives = self.free_at.after_ns(flow.delay_ns);
            if self.random.per_million(self.pause.0) {
                self.paused_until = self.paused_until.max(arrives.after_ns(self.random.below(self.pause.1)));
            }
            arrives = arrives.max(self.paused_until);
            let answer = Event::Answer { flow: at, block, sent_at: self.now };
            self.events.push(Reverse((arrives, answer)));
        }
    }

    fn answer(&mut self, at: usize, block: u64, sent_at: Time) {
        let flow = &mut self.flows[at];
        let in_flight = flow.under_way.len() as u64 * BLOCK;
        while flow.under_way.front().is_some_and(|(first, _)| *first < block) {
            let (_, lost_at) = flow.under_way.pop_front().expect("it was there");
            flow.lost += 1;
            flow.window.lost(self.now, lost_at);
        }
        if flow.under_way.front().is_some_and(|(first, _)| *first == block) {
            flow.under_way.pop_front();
        }
        flow.delivered += BLOCK;
        flow.trip_ns = self.now.since_ns(sent_at);
        flow.window.acknowledged(self.now, BLOCK, in_flight, Some(flow.trip_ns));
        self.send(at);
    }

    fn time_out(&mut self, at: usize, block: u64) {
        let flow = &mut self.flows[at];
        let Some(place) = flow.under_way.iter().position(|(waits, _)| *waits == block) else {
            return;
        };
        let (_, sent_at) = flow.under_way.remove(place).expect("it was there");
        flow.lost += 1;
        flow.window.timed_out(self.now, sent_at);
        self.send(at);
    }

    /// Percent of what the path carries in that time.
    fn utilisation(&self, delivered: &[u64], ns: u64) -> u64 {
        delivered.iter().sum::<u64>() * self.byte_picos / 10 / ns
    }

    fn lost(&self) -> u64 {
        self.flows.iter().map(|flow| flow.lost).sum()
    }
}

/// Jain's index, in percent: 100 where all have the same.
fn fairness(delivered: &[u64]) -> u64 {
    let sum: u128 = delivered.iter().map(|bytes| u128::from(*bytes)).sum();
    let squares: u128 = delivered.iter().map(|bytes| u128::from(*bytes).pow(2)).sum();
    (sum * sum * 100 / (delivered.len() as u128 * squares).max(1)) as u64
}

#[test]
fn one_flow_fills_its_path_with_a_short_queue() {
    for byte_picos in [FORTY_GIGABIT, TEN_GIGABIT, GIGABIT, 10 * GIGABIT] {
        for delay_ns in [20 * MICROSECOND, 100 * MICROSECOND, MILLISECOND] {
            let mut net = Net::new(byte_picos, delay_ns, 1);
            net.run(SECOND);
            let lost = net.lost();
            let delivered = net.run(2 * SECOND);
            let percent = net.utilisation(&delivered, 2 * SECOND);
            let told = format!("{byte_picos} ps a byte, {delay_ns} ns: {percent} %");
            assert!(percent >= 90, "{told}");
            assert!(net.lost() == lost, "{told}, lost {}", net.lost() - lost);
            // Two blocks of its own, and what the targets allow.
            let queue_ns = 250 * MICROSECOND + delay_ns / 2 + 3 * BLOCK * byte_picos / 1000;
            assert!(net.longest_queue_ns < queue_ns, "{told}, queue {} ns", net.longest_queue_ns);
        }
    }
}

#[test]
fn a_long_path_is_full_after_some_seconds() {
    let mut net = Net::new(TEN_GIGABIT, 10 * MILLISECOND, 1);
    net.run(2 * SECOND);
    let delivered = net.run(SECOND);
    // Not more than the largest window a round trip.
    let most = CongestionConfig::default().max_bytes * SECOND / (10 * MILLISECOND);
    assert!(delivered[0] * 100 >= most.min(SECOND * 1000 / TEN_GIGABIT) * 90, "{delivered:?}");
}

#[test]
fn flows_have_equal_parts() {
    for byte_picos in [FORTY_GIGABIT, TEN_GIGABIT, GIGABIT] {
        for flows in [2, 4, 8] {
            let mut net = Net::new(byte_picos, 30 * MICROSECOND, flows);
            net.run(3 * SECOND);
            let lost = net.lost();
            let delivered = net.run(SECOND);
            let (fair, percent) = (fairness(&delivered), net.utilisation(&delivered, SECOND));
            let told = format!("{flows} flows, {byte_picos} ps a byte: {fair} % fair, {percent} % used");
            assert!(fair >= 95 && percent >= 95, "{told}");
            assert_eq!(net.lost(), lost, "{told}");
        }
    }
}

/// More than the smallest windows that the buffer holds: then loss decides, and still all have something.
#[test]
fn very_many_flows_share_too() {
    let mut net = Net::new(TEN_GIGABIT, 30 * MICROSECOND, 64);
    net.run(SECOND);
    let delivered = net.run(SECOND);
    assert!(fairness(&delivered) >= 90, "{delivered:?}");
    assert!(net.utilisation(&delivered, SECOND) >= 95, "{delivered:?}");
}

#[test]
fn who_comes_late_gets_as_much_as_the_others() {
    for byte_picos in [FORTY_GIGABIT, TEN_GIGABIT, GIGABIT] {
        let mut net = Net::new(byte_picos, 30 * MICROSECOND, 4);
        net.flows[1..].iter_mut().for_each(|flow| flow.wants = false);
        net.run(SECOND);
        for late in 1..4 {
            // What it takes for the shortest round trip is queue, until all look together.
            net.flows[late].wants = true;
            net.run(SECOND);
            let delivered = net.run(SECOND);
            let fair = fairness(&delivered[..=late]);
            assert!(fair >= 95, "{late} late, {byte_picos} ps a byte: {fair} % fair, {delivered:?}");
        }
        for gone in 0..3 {
            net.flows[gone].wants = false;
            net.run(SECOND / 10);
            let delivered = net.run(SECOND / 10);
            let percent = net.utilisation(&delivered, SECOND / 10);
            assert!(percent >= 90, "{gone} gone, {byte_picos} ps a byte: {percent} % used");
        }
    }
}

#[test]
fn after_a_pause_it_is_quick() {
    for pause_ns in [MILLISECOND, SECOND, 9 * SECOND, 60 * SECOND] {
        let mut net = Net::new(TEN_GIGABIT, 100 * MICROSECOND, 1);
        net.run(SECOND);
        net.flows[0].wants = false;
        net.run(pause_ns);
        net.flows[0].wants = true;
        let lost = net.lost();
        let delivered = net.run(5 * MILLISECOND);
        let percent = net.utilisation(&delivered, 5 * MILLISECOND);
        assert!(percent >= 85, "{percent} % of 5 ms used, after {pause_ns} ns");
        assert_eq!(net.lost(), lost, "after {pause_ns} ns");
    }
}

#[test]
fn random_loss_is_not_taken_for_congestion() {
    for (loss, least_percent) in [(1_000, 98), (10_000, 97), (20_000, 95), (50_000, 80)] {
        let mut net = Net::new(TEN_GIGABIT, 100 * MICROSECOND, 2);
        net.loss = loss;
        net.run(SECOND);
        let delivered = net.run(SECOND);
        let (fair, percent) = (fairness(&delivered), net.utilisation(&delivered, SECOND));
        assert!(
            percent >= least_percent && fair >= 90,
            "{loss} of a million lost: {percent} %, {fair} % fair"
        );
    }
}

#[test]
fn a_buffer_that_is_too_small_costs_little() {
    for buffer_bytes in [2, 4, 8].map(|blocks| blocks * BLOCK) {
        for flows in [1, 2] {
            let mut net = Net::new(TEN_GIGABIT, 100 * MICROSECOND, flows);
            net.buffer_bytes = buffer_bytes;
            net.run(SECOND);
            let lost = net.lost();
            let delivered = net.run(SECOND);
            let percent = net.utilisation(&delivered, SECOND);
            let blocks = delivered.iter().sum::<u64>() / BLOCK;
            let told = format!(
                "{flows} flows, {buffer_bytes} bytes: {percent} %, {} of {blocks}",
                net.lost() - lost
            );
            assert!(percent >= 95 && fairness(&delivered) >= 90, "{told}");
            assert!((net.lost() - lost) * 100 < blocks * 5, "{told}");
        }
    }
}

/// A receiver that a scheduler stops is no queue: its pauses cost what they take.
#[test]
fn pauses_of_the_receiver_do_not_close_the_window() {
    let mut net = Net::new(FORTY_GIGABIT, 20 * MICROSECOND, 1);
    net.buffer_bytes = 4 << 20;
    // Of 4.1 ms (a thousand blocks and two milliseconds' pause), half.
    net.pause = (1_000, 4 * MILLISECOND);
    net.run(SECOND);
    let delivered = net.run(SECOND);
    let percent = net.utilisation(&delivered, SECOND);
    assert!(percent >= 55, "{percent} %");
    assert!(net.flows[0].window.window_bytes() >= 64 * 1024, "{}", net.flows[0].window.window_bytes());
}
