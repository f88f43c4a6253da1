//! A server: named operations, each with its price; several cores; several queues and an order among them.

use super::{Here, Input, Message, Part};
use crate::kernel::{Span, Time};
use std::collections::VecDeque;

/// Work for a server. It comes back as [`Message::Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Which of the server's operations.
    pub operation: u16,
    /// The number by which its sender knows it.
    pub tag: u64,
    /// Who is told when it is done.
    pub reply_to: Input,
}

/// Which of the queues is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The first one that is not empty: as a loop that begins anew after each piece of work.
    Strict,
    /// In turn: as a loop that looks at each queue once.
    Turns,
}

/// Who does work in time: a processor, a block of logic. The number of the input is that of the queue.
#[derive(Debug)]
pub struct Server {
    /// The name and the price of each operation.
    operations: Vec<(&'static str, Span)>,
    order: Order,
    queues: Vec<VecDeque<Work>>,
    /// The queue that was served last.
    last: usize,
    /// When each core that works has done, and what.
    running: Vec<(Time, Work)>,
    cores: usize,
    /// How long cores were busy, all together.
    busy: Span,
    /// How often each operation was done.
    counts: Vec<u64>,
    most_waiting: usize,
}

impl Server {
    /// A server with one core and one queue.
    pub fn new(operations: &[(&'static str, Span)]) -> Self {
        Self {
            operations: operations.to_vec(),
            order: Order::Strict,
            queues: vec![VecDeque::new()],
            last: 0,
            running: Vec::new(),
            cores: 1,
            busy: Span::ZERO,
            counts: vec![0; operations.len()],
            most_waiting: 0,
        }
    }

    /// With so many cores; at least one.
    #[must_use]
    pub fn with_cores(self, cores: usize) -> Self {
        Self { cores: cores.max(1), ..self }
    }

    /// With so many queues, served in this order; at least one.
    #[must_use]
    pub fn with_queues(self, queues: usize, order: Order) -> Self {
        Self { queues: vec![VecDeque::new(); queues.max(1)], order, ..self }
    }

    /// How long its cores were busy, all together.
    pub fn busy(&self) -> Span {
        self.busy
    }

    /// Each operation, and how often it was done.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.operations.iter().zip(&self.counts).map(|((name, _), count)| (*name, *count))
    }

    /// The most pieces of work that waited.
    pub fn most_waiting(&self) -> usize {
        self.most_waiting
    }

    fn next(&mut self) -> Option<Work> {
        let count = self.queues.len();
        let first = match self.order {
            Order::Strict => 0,
            Order::Turns => self.last + 1,
        };
        let mut queues = (0..count).map(|place| (first + place) % count);
        let queue = queues.find(|queue| !self.queues[*queue].is_empty())?;
        self.last = queue;
        self.queues[queue].pop_front()
    }

    fn begin(&mut self, here: &mut Here<'_>) {
        while self.running.len() < self.cores
            && let Some(work) = self.next()
        {
            // An operation that the server does not have costs nothing.
            let operation = usize::from(work.operation);
            let price = self.operations.get(operation).map_or(Span::ZERO, |(_, price)| *price);
            if let Some(count) = self.counts.get_mut(operation) {
                *count += 1;
            }
            self.busy = self.busy.plus(price);
            self.running.push((here.now().after(price), work));
        }
        here.set_alarm(self.running.iter().map(|(done_at, _)| *done_at).min());
    }
}

impl Part for Server {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        let Message::Work(work) = message else { return };
        let last = self.queues.len() - 1;
        self.queues[usize::from(port).min(last)].push_back(work);
        let waiting = self.queues.iter().map(VecDeque::len).sum();
        self.most_waiting = self.most_waiting.max(waiting);
        self.begin(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        let now = here.now();
        for (_, work) in self.running.extract_if(.., |(done_at, _)| *done_at <= now) {
            here.send(work.reply_to, now, Message::Done(work));
        }
        self.begin(here);
    }

    fn open(&self) -> u64 {
        (self.running.len() + self.queues.iter().map(VecDeque::len).sum::<usize>()) as u64
    }

    fn forwards(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::PartId;
    use crate::parts::{Probe, World};

    const PRICE_NS: u64 = 100;

    fn world(server: Server) -> (World, PartId, PartId) {
        let mut world = World::new(1);
        let server = world.add(server);
        let asker = world.add(Probe::default());
        (world, server, asker)
    }

    fn ask(world: &mut World, server: PartId, asker: PartId, port: u8, tag: u64) {
        let work = Work { operation: 0, tag, reply_to: Input::of(asker) };
        world.send(asker, Input { part: server, port }, Message::Work(work));
    }

    fn done(mut world: World, asker: PartId) -> Vec<(u64, u64)> {
        world.run();
        assert_eq!(world.stuck(), []);
        let seen = &world.part::<Probe>(asker).expect("a probe").seen;
        seen.iter().map(|seen| (seen.name, seen.time.picos() / 1_000)).collect()
    }

    #[test]
    fn c_cores_do_job_n_after_its_share_of_those_before() {
        for cores in 1..=4_u64 {
            let server = Server::new(&[("job", Span::from_ns(PRICE_NS))]).with_cores(cores as usize);
            let (mut world, server, asker) = world(server);
            (0..10).for_each(|tag| ask(&mut world, server, asker, 0, tag));
            let expected: Vec<_> = (0..10).map(|tag| (tag, (tag / cores + 1) * PRICE_NS)).collect();
            assert_eq!(done(world, asker), expected);
        }
    }

    #[test]
    fn queues_are_served_in_their_order() {
        let order = |order| {
            let server = Server::new(&[("job", Span::from_ns(PRICE_NS))]).with_queues(3, order);
            let (mut world, server, asker) = world(server);
            for tag in 0..9 {
                ask(&mut world, server, asker, 2 - (tag / 3) as u8, tag);
            }
            done(world, asker).iter().map(|(tag, _)| *tag).collect::<Vec<_>>()
        };
        // The first one comes alone.
        assert_eq!(order(Order::Strict), [0, 6, 7, 8, 3, 4, 5, 1, 2]);
        assert_eq!(order(Order::Turns), [0, 6, 3, 1, 7, 4, 2, 8, 5]);
    }

    #[test]
    fn it_counts_what_it_does() {
        let operations = [("read", Span::from_ns(5)), ("write", Span::from_ns(7))];
        let (mut world, server, asker) = world(Server::new(&operations));
        for (tag, operation) in [0, 1, 1, 9].into_iter().enumerate() {
            let work = Work { operation, tag: tag as u64, reply_to: Input::of(asker) };
            world.send(asker, Input::of(server), Message::Work(work));
        }
        world.run();
        let server = world.part::<Server>(server).expect("a server");
        assert!(server.counts().eq([("read", 1), ("write", 2)]));
        assert_eq!((server.busy(), server.most_waiting()), (Span::from_ns(19), 3));
    }
}
