//! Who reads and writes memory, word by word or line by line: a core that copies, the misses of a cache.

use super::{Access, AccessKind, Cargo, Here, Message, Part, RouteId};
use crate::kernel::{Span, Time};

const WHOLE: u32 = 1_000;

/// What a requester does.
#[derive(Clone, Copy, Debug)]
pub struct RequesterConfig {
    /// Reads or writes.
    pub kind: AccessKind,
    /// How many accesses.
    pub count: u64,
    /// Where the first one is; the others follow it.
    pub address: u64,
    /// Bytes of each.
    pub length_bytes: u32,
    /// The least time from one to the next.
    pub spacing: Span,
    /// Accesses that may be without an answer, in thousandths: 8200 is 8 or 9, drawn anew with each answer, and 8.2 on average. `None`: all
    /// of them, as of writes that nobody waits for.
    pub outstanding_thousandths: Option<u32>,
}

/// A requester. It begins when it is told ([`Requester::start`]).
#[derive(Debug)]
pub struct Requester {
    config: RequesterConfig,
    begun: u64,
    answered: u64,
    started_at: Time,
    next_at: Time,
    /// When the last answer came.
    ended_at: Time,
    /// The sum of the times from request to answer, and when each request without an answer was begun.
    waited: Span,
    open: Vec<(u64, Time)>,
    /// How many may be without an answer.
    window: u64,
    /// The ways to the memory and back, once it has begun.
    ways: Option<(RouteId, RouteId)>,
}

impl Requester {
    /// A requester that waits.
    pub fn new(config: RequesterConfig) -> Self {
        Self {
            config,
            begun: 0,
            answered: 0,
            started_at: Time::ZERO,
            next_at: Time::ZERO,
            ended_at: Time::ZERO,
            waited: Span::ZERO,
            open: Vec::new(),
            window: u64::MAX,
            ways: None,
        }
    }

    /// It begins, by this way to the memory; the answers come by `back`, which ends at this part.
    pub fn start(&mut self, here: &mut Here<'_>, route: RouteId, back: RouteId) {
        self.ways = Some((route, back));
        (self.started_at, self.next_at) = (here.now(), here.now());
        self.draw_window(here);
        self.request(here);
    }

    /// From the start to the last answer so far.
    pub fn took(&self) -> Span {
        self.ended_at.since(self.started_at)
    }

    /// Accesses that were answered.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// From a request to its answer, on average.
    pub fn latency(&self) -> Option<Span> {
        self.waited.picos().checked_div(self.answered).map(Span::from_picos)
    }

    /// Draws how many may be without an answer from now on.
    fn draw_window(&mut self, here: &mut Here<'_>) {
        let Some(thousandths) = self.config.outstanding_thousandths else { return };
        let (whole, part) = (u64::from(thousandths / WHOLE), thousandths % WHOLE);
        let is_over = part > 0 && here.random().below(u64::from(WHOLE)) < u64::from(part);
        self.window = (whole + u64::from(is_over)).max(1);
    }

    fn request(&mut self, here: &mut Here<'_>) {
        let Some((route, back)) = self.ways else { return };
        let now = here.now();
        while self.begun < self.config.count && (self.open.len() as u64) < self.window {
            if self.next_at > now {
                return here.set_alarm(Some(self.next_at));
            }
            let RequesterConfig { kind, length_bytes, spacing, .. } = self.config;
            let address = self.config.address.saturating_add(self.begun * u64::from(length_bytes));
            let access = Access { kind, address, length_bytes, tag: self.begun, back };
            here.start(now, route, Cargo::Access(access), access.request_bytes());
            self.open.push((self.begun, now));
            self.begun += 1;
            self.next_at = now.after(spacing);
        }
    }
}

impl Part for Requester {
    fn receive(&mut self, here: &mut Here<'_>, _port: u8, message: Message) {
        let Message::Traveller(traveller) = message else { return };
        let Cargo::Access(access) = traveller.cargo else { return here.discard(traveller.cargo) };
        // Answers come in order, or nearly.
        let Some(place) = self.open.iter().position(|(tag, _)| *tag == access.tag) else { return };
        let (_, begun_at) = self.open.remove(place);
        self.waited = self.waited.plus(here.now().since(begun_at));
        self.answered += 1;
        self.ended_at = here.now();
        self.draw_window(here);
        self.request(here);
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        self.request(here);
    }

    fn open(&self) -> u64 {
        self.open.len() as u64
    }

    fn forwards(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Rate;
    use crate::parts::{Input, Link, LinkConfig, Memory, MemoryConfig, Variation, World};

    const LINE: u32 = 64;
    const COUNT: u64 = 2_000;

    /// Lines by a link, each way, to a memory: the rate in MB/s, and the latency in ns.
    fn run(
        kind: AccessKind,
        outstanding_thousandths: Option<u32>,
        spacing: Span,
        memory: MemoryConfig,
    ) -> (u64, u64) {
        let mut world = World::new(5);
        let rate = Rate::from_bits_per_s(20_000_000_000);
        let link = LinkConfig { line: rate, latency: Span::from_ns(200), ..LinkConfig::default() };
        let [to, from] = [(); 2].map(|()| Input::of(world.add(Link::new(link))));
        let memory = Input::of(world.add(Memory::new(memory)));
        let route = world.add_route(&[to, memory]).expect("a route");
        let config = RequesterConfig {
            kind,
            count: COUNT,
            address: 0,
            length_bytes: LINE,
            spacing,
            outstanding_thousandths,
        };
        let end = world.add(Requester::new(config));
        let back = world.add_route(&[from, Input::of(end)]).expect("a route");
        world.with(end, |part: &mut Requester, here| part.start(here, route, back));
        world.run();
        assert_eq!(world.stuck(), []);
        let part = world.part::<Requester>(end).expect("a requester");
        assert_eq!(part.answered(), COUNT);
        let rate = COUNT * u64::from(LINE) * 1_000_000 / part.took().picos();
        (rate, part.latency().expect("answers").picos() / 1_000)
    }

    /// A line takes 25.6 ns on the link, 10 ns of the memory, and 400 ns of latency: 435.6 ns if it is alone.
    #[test]
    fn the_rate_is_the_least_of_window_by_latency_service_and_spacing() {
        let memory = MemoryConfig { service: Span::from_ns(10), ..MemoryConfig::default() };
        let read = |outstanding, memory| run(AccessKind::Read, outstanding, Span::ZERO, memory);
        let is_near = |rate: u64, expected: u64| rate.abs_diff(expected) * 100 <= expected;
        // By the window: n × 64 B each 435.6 ns.
        for (thousandths, expected) in [(1_000, 147), (2_000, 294), (8_000, 1_175), (8_200, 1_205)] {
            let (rate, latency) = read(Some(thousandths), memory);
            assert!(
                rate.abs_diff(expected) * 50 <= expected && latency.abs_diff(435) < 10,
                "{thousandths}: {rate} {latency}"
            );
        }
        // By the link: 2500 MB/s; by the memory: 64 B each 40 ns.
        assert!(is_near(read(Some(100_000), memory).0, 2_500));
        let slow = MemoryConfig { service: Span::from_ns(40), ..memory };
        assert!(is_near(read(Some(100_000), slow).0, 1_600));
        let varied = MemoryConfig { variation: Variation::Uniform(Span::from_ns(40)), ..slow };
        assert!(read(Some(100_000), varied).0.abs_diff(1_600) < 64);
        let rated = MemoryConfig { read: Rate::from_bits_per_s(17_066_666_667), ..memory };
        assert!(is_near(read(Some(100_000), rated).0, 1_600));
        // By the spacing, of writes that nobody waits for.
        let (rate, _) = run(AccessKind::Write, None, Span::from_ns(128), memory);
        assert!(is_near(rate, 500));
    }

    /// A window that varies with a memory that does: fewer than all are in its queue at times.
    #[test]
    fn a_memory_that_varies_is_slower_behind_a_small_window() {
        let memory = MemoryConfig { service: Span::from_ns(40), ..MemoryConfig::default() };
        let varied = MemoryConfig { variation: Variation::Uniform(Span::from_ns(40)), ..memory };
        let rate = |memory| run(AccessKind::Read, Some(12_000), Span::ZERO, memory).0;
        assert!(rate(varied) < rate(memory));
    }
}
