//! A line: rate, coding, latency, a queue before it, and what it does wrong.

use super::{Cargo, Here, Message, Part, Traveller};
use crate::kernel::{Rate, Span, Time};
use std::collections::VecDeque;

/// The constants of a line.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkConfig {
    /// How fast bytes follow each other, coding included; `None`: at once.
    pub line: Option<Rate>,
    /// Bytes that go with each traveller beside its own: header, preamble, gap.
    pub overhead_bytes: u32,
    /// From the last byte's departure to its arrival.
    pub latency: Span,
    /// What waits before the line at most, the one that is being sent included; more is lost. `None`: everything, as where who sends is
    /// held up.
    pub queue_bytes: Option<u64>,
    /// What it does wrong.
    pub faults: LinkFaults,
}

/// What a line does wrong, each to so many travellers of a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkFaults {
    /// They do not arrive.
    pub loss: u32,
    /// They arrive with changed bytes.
    pub corruption: u32,
    /// They arrive twice.
    pub duplication: u32,
    /// They arrive later by up to `delay`, so that others overtake them.
    pub reordering: u32,
    /// How much later.
    pub delay: Span,
}

/// What a line has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Travellers that were sent.
    pub sent: u64,
    /// Their bytes, without those that go beside.
    pub bytes: u64,
    /// Lost because the queue was full.
    pub overrun: u64,
    /// Lost on the line.
    pub lost: u64,
    /// Changed on the line.
    pub damaged: u64,
    /// Repeated by the line.
    pub repeated: u64,
    /// How long the line was busy.
    pub busy: Span,
    /// The most that waited, in bytes.
    pub most_waiting: u64,
}

/// A line. What comes leaves in the order in which it came.
#[derive(Debug, Default)]
pub struct Link {
    config: LinkConfig,
    /// When the last byte of all that waits has left.
    free_at: Time,
    /// What waits: when it has left, and its bytes.
    waiting: VecDeque<(Time, u64)>,
    waiting_bytes: u64,
    counters: LinkCounters,
    /// After so many more, one is lost.
    loses_after: Option<u64>,
}

impl Link {
    /// An idle line.
    pub fn new(config: LinkConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// What it has done.
    pub fn counters(&self) -> &LinkCounters {
        &self.counters
    }

    /// What it does wrong from now on.
    pub fn set_faults(&mut self, faults: LinkFaults) {
        self.config.faults = faults;
    }

    /// One traveller will be lost, after so many others.
    pub fn lose_after(&mut self, count: u64) {
        self.loses_after = Some(count);
    }

    /// Puts something into the queue; when its last byte has left, or `None` if there is no room.
    fn queue(&mut self, now: Time, bytes: u32) -> Option<Time> {
        while let Some((_, bytes)) = self.waiting.pop_front_if(|(left_at, _)| *left_at <= now) {
            self.waiting_bytes -= bytes;
        }
        let bytes = u64::from(bytes) + u64::from(self.config.overhead_bytes);
        // A queue that is shorter than one traveller carries one at a time.
        let has_room = self.config.queue_bytes.is_none_or(|most| self.waiting_bytes + bytes <= most);
        if !has_room && !self.waiting.is_empty() {
            return None;
        }
        let span = self.config.line.map_or(Span::ZERO, |line| line.span_of(bytes));
        self.free_at = self.free_at.max(now).after(span);
        self.counters.busy = self.counters.busy.plus(span);
        self.waiting.push_back((self.free_at, bytes));
        self.waiting_bytes += bytes;
        self.counters.most_waiting = self.counters.most_waiting.max(self.waiting_bytes);
        Some(self.free_at)
    }

    fn damage(here: &mut Here<'_>, traveller: &mut Traveller) {
        traveller.is_damaged = true;
        if let Cargo::Packet(packet) = &traveller.cargo {
            let bits = here.packets.bytes(packet).len() as u64 * 8;
            if bits > 0 {
                let bit = here.random().below(bits) as usize;
                here.packets.change(packet, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            }
        }
    }

    fn copy(here: &mut Here<'_>, traveller: &Traveller) -> Traveller {
        let cargo = match &traveller.cargo {
            Cargo::Packet(packet) => Cargo::Packet(here.packets.copy(packet)),
            Cargo::Header(header) => Cargo::Header(here.headers.copy(header)),
            Cargo::Blank(name) => Cargo::Blank(*name),
            Cargo::Access(access) => Cargo::Access(*access),
        };
        Traveller { cargo, ..*traveller }
    }
}

impl Part for Link {
    fn receive(&mut self, here: &mut Here<'_>, _port: u8, message: Message) {
        let Message::Traveller(mut traveller) = message else { return };
        let Some(left_at) = self.queue(here.now(), traveller.bytes) else {
            self.counters.overrun += 1;
            return here.discard(traveller.cargo);
        };
        if let Some(line) = self.config.line {
            let bytes = u64::from(traveller.bytes) + u64::from(self.config.overhead_bytes);
            let from = left_at.before(line.span_of(bytes));
            here.slice("line", "sends", from, left_at, traveller.flow);
        }
        self.counters.sent += 1;
        self.counters.bytes += u64::from(traveller.bytes);
        let LinkFaults { loss, corruption, duplication, reordering, delay } = self.config.faults;
        let mut has_fault =
            |per_million: u32| per_million > 0 && here.random().per_million(per_million.into());
        let is_the_one = self.loses_after == Some(0);
        self.loses_after = self.loses_after.and_then(|count| count.checked_sub(1));
        if is_the_one || has_fault(loss) {
            self.counters.lost += 1;
            return here.discard(traveller.cargo);
        }
        let (is_damaged, is_repeated, is_late) =
            (has_fault(corruption), has_fault(duplication), has_fault(reordering));
        let mut arrives_at = left_at.after(self.config.latency);
        // A stage that has no rate is seen by its latency.
        if self.config.line.is_none() && arrives_at > left_at {
            here.slice("stage", "passes", left_at, arrives_at, traveller.flow);
        }
        if is_damaged {
            self.counters.damaged += 1;
            Self::damage(here, &mut traveller);
        }
        if is_repeated {
            self.counters.repeated += 1;
            let copy = Self::copy(here, &traveller);
            here.forward(arrives_at, copy);
        }
        if is_late {
            let late = here.random().below(delay.picos().max(1));
            arrives_at = arrives_at.after(Span::from_picos(late));
        }
        here.forward(arrives_at, traveller);
    }

    /// What is on the line arrives by itself.
    fn open(&self) -> u64 {
        0
    }

    fn forwards(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::PartId;
    use crate::parts::{Input, Probe, RouteId, World};

    struct Line {
        world: World,
        link: PartId,
        end: PartId,
        route: RouteId,
    }

    fn line(config: LinkConfig) -> Line {
        let mut world = World::new(3);
        let link = world.add(Link::new(config));
        let end = world.add(Probe::default());
        let route = world.add_route(&[Input::of(link), Input::of(end)]).expect("a route");
        Line { world, link, end, route }
    }

    impl Line {
        fn send(&mut self, count: u64, bytes: u32) {
            (0..count).for_each(|name| self.world.start(self.end, self.route, Cargo::Blank(name), bytes));
        }

        fn seen(&mut self) -> &[crate::parts::Seen] {
            self.world.run();
            &self.world.part::<Probe>(self.end).expect("a probe").seen
        }

        fn counters(&self) -> LinkCounters {
            *self.world.part::<Link>(self.link).expect("a link").counters()
        }
    }

    #[test]
    fn packet_n_arrives_after_n_times_its_length_and_the_latency() {
        // Aurora of REMAP §VII: 20 Gb/s, 64 of 66 bits; 64 bytes and 8 beside them.
        let rate = Rate::from_bits_per_s(20_000_000_000).and_then(|line| line.coded(64, 66));
        let latency = Span::from_ns(50);
        let mut line = line(LinkConfig { line: rate, overhead_bytes: 8, latency, ..LinkConfig::default() });
        line.send(100, 64);
        for (number, seen) in line.seen().iter().enumerate() {
            let span = Span::from_picos(29_700).times(number as u64 + 1).plus(latency);
            assert_eq!((seen.time, seen.name), (Time::ZERO.after(span), number as u64));
        }
        let counters = line.counters();
        assert_eq!((counters.sent, counters.bytes), (100, 6400));
        assert_eq!((counters.busy, counters.most_waiting), (Span::from_picos(2_970_000), 7200));
    }

    #[test]
    fn what_does_not_fit_the_queue_is_lost_and_room_comes_with_time() {
        let rate = Rate::from_bits_per_s(8_000_000_000);
        let mut line = line(LinkConfig { line: rate, queue_bytes: Some(3_000), ..LinkConfig::default() });
        line.send(5, 1_000);
        // One of the three has left by then.
        line.world.run_until(Time::ZERO.after(Span::from_ns(1_000)));
        line.send(2, 1_000);
        let names: Vec<_> = line.seen().iter().map(|seen| seen.name).collect();
        assert_eq!(names, [0, 1, 2, 0]);
        assert_eq!(line.counters().overrun, 3);
    }

    #[test]
    fn each_fault_comes_as_often_as_it_is_to() {
        const COUNT: u64 = 100_000;
        let faults = LinkFaults {
            loss: 100_000,
            corruption: 50_000,
            duplication: 20_000,
            reordering: 10_000,
            delay: Span::from_ns(1_000),
        };
        let rate = Rate::from_bits_per_s(8_000_000_000);
        let mut line = line(LinkConfig { line: rate, faults, ..LinkConfig::default() });
        line.send(COUNT, 10);
        let (count, damaged, overtaken) = {
            let seen = line.seen();
            let overtaken = seen.windows(2).filter(|pair| pair[1].name < pair[0].name).count();
            (seen.len() as u64, seen.iter().filter(|seen| seen.is_damaged).count() as u64, overtaken)
        };
        let counters = line.counters();
        assert_eq!(count, COUNT - counters.lost + counters.repeated);
        // Within five standard deviations of what is expected.
        let is_near = |counted: u64, of: u64, per_million: u64| {
            let expected = of * per_million / 1_000_000;
            counted.abs_diff(expected).pow(2) <= 25 * expected
        };
        let arrived = COUNT - counters.lost;
        assert!(is_near(counters.lost, COUNT, 100_000), "{counters:?}");
        assert!(is_near(counters.damaged, arrived, 50_000), "{counters:?}");
        assert!(is_near(counters.repeated, arrived, 20_000), "{counters:?}");
        assert!(damaged >= counters.damaged && overtaken > 500, "{damaged} {overtaken}");
    }

    #[test]
    fn a_damaged_packet_differs_by_one_bit_and_nothing_is_left_in_the_arena() {
        let faults = LinkFaults { corruption: 1_000_000, duplication: 1_000_000, ..LinkFaults::default() };
        let mut line = line(LinkConfig { faults, ..LinkConfig::default() });
        let packet = line.world.packets().add(|bytes| bytes.extend(0_u64.to_le_bytes()));
        line.world.start(line.end, line.route, Cargo::Packet(packet), 8);
        let names: Vec<_> = line.seen().iter().map(|seen| seen.name.count_ones()).collect();
        assert_eq!(names, [1, 1]);
        let faults = LinkFaults { loss: 1_000_000, ..LinkFaults::default() };
        line.world.with(line.link, |link: &mut Link, _| link.set_faults(faults));
        let packet = line.world.packets().add(|bytes| bytes.push(1));
        line.world.start(line.end, line.route, Cargo::Packet(packet), 1);
        assert_eq!(line.seen().len(), 2);
        assert_eq!(line.world.packets().count(), 0);
    }
}
