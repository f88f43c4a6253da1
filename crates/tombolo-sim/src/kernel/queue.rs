//! The queue of events, and the parts between which they go.

use super::trace::{Chains, Trace};
use super::{Span, Time};
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use tombolo_random::{Random, mix};

/// A part of a world: what handles events and sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u32);

impl PartId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a part is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due<M> {
    /// The moment has come for which the part had set its alarm.
    Alarm,
    /// What a part has sent to this one.
    Message(M),
}

/// An event that is to be handled now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<M> {
    /// The part that sent it: for an alarm, the part itself.
    pub from: PartId,
    /// The part that handles it.
    pub to: PartId,
    /// What it is.
    pub what: Due<M>,
}

/// Where an event stands among all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    time: Time,
    from: PartId,
    /// How many events the part had sent before.
    count: u64,
}

#[derive(Debug)]
struct Queued<M> {
    rank: Rank,
    to: PartId,
    what: Due<M>,
}

impl<M> PartialEq for Queued<M> {
    fn eq(&self, other: &Self) -> bool {
        self.rank == other.rank
    }
}

impl<M> Eq for Queued<M> {}

impl<M> PartialOrd for Queued<M> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<M> Ord for Queued<M> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank)
    }
}

/// A part, as far as the kernel knows it.
#[derive(Debug)]
struct Part {
    /// Events that it has sent.
    sent: u64,
    random: Random,
    /// When it wants to be woken, and where among its events that stands: as of when it said so.
    alarm: Option<Rank>,
    /// The alarm's event in the queue, which comes no later than the alarm. Other alarms of the part that are queued are stale.
    queued_alarm: Option<Rank>,
}

/// The clock of a world, and the events that wait in it. `M` is what parts send each other.
#[derive(Debug)]
pub struct Kernel<M> {
    seed: u64,
    now: Time,
    parts: Vec<Part>,
    queue: BinaryHeap<Reverse<Queued<M>>>,
    chains: Chains,
}

impl<M> Kernel<M> {
    /// A world without parts, at the start of time.
    pub fn new(seed: u64) -> Self {
        const {
            // What is larger lies in an arena: the queue moves events about.
            assert!(size_of::<M>() <= 64, "a message has 64 bytes at most");
        }
        Self { seed, now: Time::ZERO, parts: Vec::new(), queue: BinaryHeap::new(), chains: Chains::default() }
    }

    /// Adds a part, with a sequence of random numbers of its own.
    pub fn add_part(&mut self) -> PartId {
        let part = PartId(u32::try_from(self.parts.len()).expect("parts are numbered by 32 bits"));
        let random = Random::new(self.seed ^ mix(u64::from(part.0)));
        self.parts.push(Part { sent: 0, random, alarm: None, queued_alarm: None });
        self.chains.add();
        part
    }

    /// The present.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The random numbers of a part.
    pub fn random(&mut self, part: PartId) -> &mut Random {
        &mut self.parts[part.index()].random
    }

    /// Sends a message, which arrives after this time.
    pub fn send(&mut self, from: PartId, to: PartId, after: Span, message: M) {
        self.send_at(from, to, self.now.after(after), message);
    }

    /// Sends a message, which arrives at this moment; now, if that has passed.
    pub fn send_at(&mut self, from: PartId, to: PartId, time: Time, message: M) {
        assert!(to.index() < self.parts.len(), "a message to a part that is not there: {to:?}");
        let rank = self.rank(from, time.max(self.now));
        self.queue.push(Reverse(Queued { rank, to, what: Due::Message(message) }));
    }

    /// Sets the alarm of a part, in place of the one it had; now, if that has passed. `None`, or the end of time: it has none.
    pub fn set_alarm(&mut self, part: PartId, alarm: Option<Time>) {
        let alarm = alarm.filter(|time| *time < Time::END).map(|time| time.max(self.now));
        let its = &self.parts[part.index()];
        if its.alarm.map(|rank| rank.time) == alarm {
            return;
        }
        let alarm = alarm.map(|time| self.rank(part, time));
        let its = &mut self.parts[part.index()];
        its.alarm = alarm;
        let Some(rank) = alarm else { return };
        // An event that comes earlier is put off when it comes: a deadline that moves away with each packet queues nothing.
        if its.queued_alarm.is_none_or(|queued| rank.time < queued.time) {
            self.queue_alarm(part, rank);
        }
    }

    /// When the next event is, if one waits.
    pub fn next_time(&mut self) -> Option<Time> {
        self.skip_stale();
        self.queue.peek().map(|Reverse(queued)| queued.rank.time)
    }

    /// Takes the next event and moves the clock to it.
    pub fn next_event(&mut self) -> Option<Event<M>> {
        self.skip_stale();
        let Reverse(Queued { rank, to, what }) = self.queue.pop()?;
        self.now = self.now.max(rank.time);
        if matches!(what, Due::Alarm) {
            let part = &mut self.parts[to.index()];
            (part.alarm, part.queued_alarm) = (None, None);
        }
        self.chains.extend(to, &[self.now.picos(), u64::from(rank.from.0), rank.count]);
        Some(Event { from: rank.from, to, what })
    }

    /// Moves the clock on. Events that are due before are late then, and come in their order: as for a machine that is stopped and goes on.
    pub fn advance(&mut self, time: Time) {
        self.now = self.now.max(time);
    }

    /// Takes the messages of which this says so out of the queue, in no order: to be dropped, never to act on each in turn. Alarms stay.
    pub fn remove_messages(&mut self, mut is_removed: impl FnMut(PartId, &M) -> bool) -> Vec<M> {
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        for Reverse(queued) in std::mem::take(&mut self.queue).into_vec() {
            match queued.what {
                Due::Message(message) if is_removed(queued.to, &message) => removed.push(message),
                what => kept.push(Reverse(Queued { what, ..queued })),
            }
        }
        self.queue = kept.into();
        removed
    }

    /// The messages that wait, in no order: to be counted or looked for, never to act on each in turn.
    pub fn messages(&self) -> impl Iterator<Item = (PartId, &M)> {
        self.queue.iter().filter_map(|Reverse(queued)| match &queued.what {
            Due::Alarm => None,
            Due::Message(message) => Some((queued.to, message)),
        })
    }

    /// Adds to the trace what a part did: bytes that it wrote, a decision that it took.
    pub fn note(&mut self, part: PartId, words: &[u64]) {
        self.chains.extend(part, words);
    }

    /// What has happened so far, as one number: equal for equal runs.
    pub fn trace(&self) -> Trace {
        self.chains.joined()
    }

    fn rank(&mut self, from: PartId, time: Time) -> Rank {
        let part = &mut self.parts[from.index()];
        part.sent += 1;
        Rank { time, from, count: part.sent }
    }

    fn queue_alarm(&mut self, part: PartId, rank: Rank) {
        self.parts[part.index()].queued_alarm = Some(rank);
        self.queue.push(Reverse(Queued { rank, to: part, what: Due::Alarm }));
    }

    /// Drops alarms at the front that are none any more, and puts off those that have been moved away.
    fn skip_stale(&mut self) {
        while let Some(Reverse(Queued { rank, to, what: Due::Alarm })) = self.queue.peek() {
            let (rank, to) = (*rank, *to);
            let part = &mut self.parts[to.index()];
            let is_current = part.queued_alarm == Some(rank);
            match part.alarm {
                Some(alarm) if is_current && alarm == rank => return,
                Some(alarm) if is_current => {
                    self.queue.pop();
                    self.queue_alarm(to, alarm);
                }
                None if is_current => {
                    part.queued_alarm = None;
                    self.queue.pop();
                }
                _ => drop(self.queue.pop()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Numbers = Kernel<u32>;

    fn kernel(parts: u32) -> Numbers {
        let mut kernel = Kernel::new(1);
        for number in 0..parts {
            assert_eq!(kernel.add_part(), PartId(number));
        }
        kernel
    }

    /// What a test does to a kernel.
    #[derive(Clone, Copy, Debug)]
    enum Call {
        Send { from: u32, to: u32, after: u64 },
        Alarm { part: u32, after: Option<u64> },
        Next,
        Advance { by: u64 },
    }

    fn call() -> impl Strategy<Value = Call> {
        let part = 0..4_u32;
        prop_oneof![
            4 => (part.clone(), part.clone(), 0..20_u64)
                .prop_map(|(from, to, after)| Call::Send { from, to, after }),
            3 => (part, proptest::option::of(0..20_u64)).prop_map(|(part, after)| Call::Alarm { part, after }),
            3 => Just(Call::Next),
            1 => (0..10_u64).prop_map(|by| Call::Advance { by }),
        ]
    }

    /// A model of the kernel by a sorted list of messages. Alarms have no rank in it: at equal times, an alarm and a message may come in
    /// either order.
    #[derive(Debug, Default)]
    struct Model {
        now: u64,
        sent: [u64; 4],
        messages: Vec<(u64, u32, u64, u32, u32)>,
        alarms: [Option<u64>; 4],
    }

    impl Model {
        fn next_time(&self) -> Option<u64> {
            let alarms = self.alarms.iter().flatten().copied();
            self.messages.iter().map(|message| message.0).chain(alarms).min()
        }
    }

    proptest! {
        #[test]
        fn events_come_as_from_a_sorted_list(calls in prop::collection::vec(call(), 1..200)) {
            let (mut kernel, mut model) = (kernel(4), Model::default());
            let mut number = 0;
            for call in calls {
                match call {
                    Call::Send { from, to, after } => {
                        number += 1;
                        kernel.send(PartId(from), PartId(to), Span::from_picos(after), number);
                        let sent = &mut model.sent[from as usize];
                        *sent += 1;
                        model.messages.push((model.now + after, from, *sent, to, number));
                        model.messages.sort_unstable();
                    }
                    Call::Alarm { part, after } => {
                        let time = after.map(|after| model.now + after);
                        kernel.set_alarm(PartId(part), after.map(|after| kernel.now().after(Span::from_picos(after))));
                        model.alarms[part as usize] = time;
                    }
                    Call::Next => {
                        let next_time = model.next_time();
                        prop_assert_eq!(kernel.next_time().map(Time::picos), next_time);
                        let Some(event) = kernel.next_event() else {
                            prop_assert_eq!(next_time, None);
                            continue;
                        };
                        model.now = model.now.max(next_time.expect("an event"));
                        prop_assert_eq!(kernel.now().picos(), model.now);
                        match event.what {
                            Due::Alarm => {
                                prop_assert_eq!(event.from, event.to);
                                let alarm = model.alarms[event.to.index()].take();
                                prop_assert_eq!(alarm, next_time);
                            }
                            Due::Message(message) => {
                                let (time, from, _, to, expected) = model.messages.remove(0);
                                prop_assert_eq!(Some(time), next_time);
                                prop_assert_eq!((event.from, event.to, message), (PartId(from), PartId(to), expected));
                            }
                        }
                    }
                    Call::Advance { by } => {
                        model.now += by;
                        kernel.advance(Time::ZERO.after(Span::from_picos(model.now)));
                        prop_assert_eq!(kernel.now().picos(), model.now);
                    }
                }
            }
        }
    }

    #[test]
    fn events_of_one_moment_come_by_sender_and_count_whatever_the_order_of_sending() {
        let order = |senders: &[u32]| {
            let mut kernel = kernel(3);
            for &sender in senders {
                kernel.send(PartId(sender), PartId(0), Span::from_ns(1), sender);
            }
            let order: Vec<_> = std::iter::from_fn(|| kernel.next_event()).map(|event| event.what).collect();
            (order, kernel.trace())
        };
        assert_eq!(order(&[2, 1, 0, 1]), order(&[0, 1, 1, 2]));
        assert_ne!(order(&[2, 1, 0, 1]).1, order(&[2, 2, 0, 1]).1);
    }

    #[test]
    fn an_alarm_that_moves_away_all_the_time_queues_nothing() {
        let mut kernel = kernel(2);
        for nanos in 0..1_000 {
            kernel.set_alarm(PartId(0), Some(Time::ZERO.after(Span::from_ns(10 + nanos))));
            kernel.send(PartId(1), PartId(1), Span::from_ns(1), 0);
            kernel.next_event();
            assert!(kernel.queue.len() <= 1, "{} events wait", kernel.queue.len());
        }
        assert_eq!(kernel.next_time(), Some(Time::ZERO.after(Span::from_ns(1_009))));
        kernel.set_alarm(PartId(0), None);
        assert_eq!(kernel.next_event(), None);
    }

    #[test]
    fn messages_that_are_removed_do_not_come_and_alarms_do() {
        let mut kernel = kernel(1);
        let part = PartId(0);
        (1..=4).for_each(|number| kernel.send(part, part, Span::from_ns(number.into()), number));
        kernel.set_alarm(part, Some(Time::ZERO.after(Span::from_ns(9))));
        let mut removed = kernel.remove_messages(|to, number| to == part && number % 2 == 0);
        removed.sort_unstable();
        assert_eq!(removed, [2, 4]);
        assert_eq!(kernel.messages().count(), 2);
        let left: Vec<_> = std::iter::from_fn(|| kernel.next_event()).map(|event| event.what).collect();
        assert_eq!(left, [Due::Message(1), Due::Message(3), Due::Alarm]);
    }

    /// Whether somebody looks at the queue meanwhile, or another part has events, changes nothing for a part.
    #[test]
    fn an_alarm_has_its_place_from_when_it_was_set() {
        let order = |looks: bool| {
            let mut kernel = kernel(2);
            kernel.set_alarm(PartId(0), Some(Time::ZERO.after(Span::from_ns(5))));
            kernel.set_alarm(PartId(0), Some(Time::ZERO.after(Span::from_ns(9))));
            kernel.send(PartId(1), PartId(1), Span::from_ns(6), 1);
            kernel.next_event();
            if looks {
                kernel.next_time();
            }
            kernel.send_at(PartId(0), PartId(1), Time::ZERO.after(Span::from_ns(9)), 2);
            let order: Vec<_> = std::iter::from_fn(|| kernel.next_event()).map(|event| event.what).collect();
            (order, kernel.trace())
        };
        assert_eq!(order(true), order(false));
        assert_eq!(order(false).0, [Due::Alarm, Due::Message(2)]);
    }

    #[test]
    fn the_end_of_time_does_not_come() {
        let mut kernel = kernel(1);
        kernel.set_alarm(PartId(0), Some(Time::END));
        assert_eq!(kernel.next_event(), None);
    }

    #[test]
    fn each_part_has_random_numbers_of_its_own() {
        let mut kernel = kernel(2);
        let alone = kernel.random(PartId(1)).clone().next();
        for _ in 0..5 {
            kernel.random(PartId(0)).next();
        }
        assert_eq!(kernel.random(PartId(1)).next(), alone);
        assert_ne!(kernel.random(PartId(0)).next(), kernel.random(PartId(1)).next());
    }
}
