//! A DMA engine: it copies from one memory to another in bursts, of which several are under way.

use super::{Access, AccessKind, Cargo, Here, Input, Message, Part, RouteId};
use crate::kernel::{Span, Time};
use std::collections::VecDeque;

/// The constants of a DMA engine.
#[derive(Clone, Copy, Debug)]
pub struct DmaConfig {
    /// What a copy takes beside its bursts, all of it before the first one: a processor writes registers, and is told.
    pub setup: Span,
    /// The bytes of a burst.
    pub burst_bytes: u32,
    /// Bursts of one copy that may be read and not yet written.
    pub outstanding: u32,
    /// Copies that are made at once.
    pub channels: usize,
}

/// A way from a memory to another. What is read comes back at the engine's input 0, and what tells of writes at its input 1.
#[derive(Clone, Copy, Debug)]
pub struct DmaPath {
    /// To the memory that is read.
    pub read: RouteId,
    /// Back from there.
    pub read_back: RouteId,
    /// To the memory that is written.
    pub write: RouteId,
    /// Back from there.
    pub write_back: RouteId,
}

/// A copy. It comes back as [`Message::Copied`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DmaRequest {
    /// Which of the engine's paths.
    pub path: u16,
    /// Where the bytes are.
    pub source: u64,
    /// Where they go.
    pub destination: u64,
    /// How many.
    pub length_bytes: u32,
    /// The number by which its sender knows it.
    pub tag: u64,
    /// Who is told when it is made.
    pub reply_to: Input,
}

#[derive(Debug)]
struct Running {
    request: DmaRequest,
    /// When its first burst is read.
    starts_at: Time,
    read: u32,
    written: u32,
    /// Bursts that are read and not yet written.
    open: u32,
}

/// A DMA engine.
#[derive(Debug)]
pub struct Dma {
    config: DmaConfig,
    /// The ways between memories.
    paths: Vec<DmaPath>,
    waiting: VecDeque<DmaRequest>,
    channels: Vec<Option<Running>>,
    copies: u64,
    bytes: u64,
}

impl Dma {
    /// An idle engine; bursts, outstanding ones and channels are at least one.
    pub fn new(config: DmaConfig) -> Self {
        let config = DmaConfig {
            burst_bytes: config.burst_bytes.max(1),
            outstanding: config.outstanding.max(1),
            channels: config.channels.max(1),
            ..config
        };
        let channels = (0..config.channels).map(|_| None).collect();
        Self { config, paths: Vec::new(), waiting: VecDeque::new(), channels, copies: 0, bytes: 0 }
    }

    /// Another way between two memories; its number, for requests.
    pub fn add_path(&mut self, path: DmaPath) -> u16 {
        self.paths.push(path);
        (self.paths.len() - 1) as u16
    }

    /// Copies that were made.
    pub fn copies(&self) -> u64 {
        self.copies
    }

    /// Their bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Begins what waits, on channels that are free, and reads what may be read.
    fn go_on(&mut self, here: &mut Here<'_>) {
        let (now, setup) = (here.now(), self.config.setup);
        for channel in self.channels.iter_mut().filter(|channel| channel.is_none()) {
            let Some(request) = self.waiting.pop_front() else { break };
            let starts_at = now.after(setup);
            *channel = Some(Running { request, starts_at, read: 0, written: 0, open: 0 });
        }
        for number in 0..self.channels.len() {
            self.read(here, number);
        }
        let starts = self.channels.iter().flatten().map(|running| running.starts_at);
        here.set_alarm(starts.filter(|starts_at| *starts_at > now).min());
    }

    fn read(&mut self, here: &mut Here<'_>, channel: usize) {
        let Self { config, channels, paths, .. } = self;
        let Some(running) = channels[channel].as_mut().filter(|running| running.starts_at <= here.now())
        else {
            return;
        };
        let Some(path) = paths.get(usize::from(running.request.path)) else { return };
        while running.read < running.request.length_bytes && running.open < config.outstanding {
            let length_bytes = config.burst_bytes.min(running.request.length_bytes - running.read);
            let access = Access {
                kind: AccessKind::Read,
                address: running.request.source + u64::from(running.read),
                length_bytes,
                tag: channel as u64,
                back: path.read_back,
            };
            here.start(here.now(), path.read, Cargo::Access(access), access.request_bytes());
            running.read += length_bytes;
            running.open += 1;
        }
    }

    /// A burst was read: it is written.
    fn write(&self, here: &mut Here<'_>, access: &Access) {
        let Some(running) = &self.channels[access.tag as usize] else { return };
        let Some(path) = self.paths.get(usize::from(running.request.path)) else { return };
        let address = running.request.destination + (access.address - running.request.source);
        let access = Access { kind: AccessKind::Write, address, back: path.write_back, ..*access };
        here.start(here.now(), path.write, Cargo::Access(access), access.request_bytes());
    }

    /// A burst was written.
    fn written(&mut self, here: &mut Here<'_>, access: &Access) {
        let channel = &mut self.channels[access.tag as usize];
        let Some(running) = channel else { return };
        running.written += access.length_bytes;
        running.open = running.open.saturating_sub(1);
        let request = running.request;
        if running.written >= request.length_bytes {
            *channel = None;
            self.end(here, request);
        }
        self.go_on(here);
    }

    fn end(&mut self, here: &mut Here<'_>, request: DmaRequest) {
        self.copies += 1;
        self.bytes += u64::from(request.length_bytes);
        here.send(request.reply_to, here.now(), Message::Copied(request));
    }
}

impl Part for Dma {
    fn receive(&mut self, here: &mut Here<'_>, port: u8, message: Message) {
        match message {
            // Nothing to copy, or no way there: nothing is made.
            Message::Copy(request)
                if request.length_bytes == 0 || self.paths.len() <= usize::from(request.path) =>
            {
                here.send(request.reply_to, here.now(), Message::Copied(request));
            }
            Message::Copy(request) => {
                self.waiting.push_back(request);
                self.go_on(here);
            }
            Message::Traveller(traveller) => match (traveller.cargo, port) {
                (Cargo::Access(access), 0) => self.write(here, &access),
                (Cargo::Access(access), _) => self.written(here, &access),
                (cargo, _) => here.discard(cargo),
            },
            Message::Work(_) | Message::Done(_) | Message::Copied(_) => {}
        }
    }

    fn wake(&mut self, here: &mut Here<'_>) {
        self.go_on(here);
    }

    fn open(&self) -> u64 {
        (self.waiting.len() + self.channels.iter().flatten().count()) as u64
    }

    fn forwards(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{PartId, Rate};
    use crate::parts::{Link, LinkConfig, Memory, MemoryConfig, Probe, World};

    const SETUP: Span = Span::from_ns(3_360);

    struct Copier {
        world: World,
        dma: PartId,
        asker: PartId,
    }

    /// Reads at 701 MB/s and writes at 610, each by a port that takes 20 ns.
    fn copier(channels: usize) -> Copier {
        let mut world = World::new(1);
        let asker = world.add(Probe::default());
        let port = |rate: Option<u64>| {
            let line = rate.and_then(|mega| Rate::from_bits_per_s(mega * 8_000_000));
            LinkConfig { line, latency: Span::from_ns(20), ..LinkConfig::default() }
        };
        let [ask, read, write, told] =
            [None, Some(701), Some(610), None].map(|rate| Input::of(world.add(Link::new(port(rate)))));
        let [source, destination] =
            [(); 2].map(|()| Input::of(world.add(Memory::new(MemoryConfig::default()))));
        let config = DmaConfig { setup: SETUP, burst_bytes: 64, outstanding: 16, channels };
        let dma = world.add(Dma::new(config));
        let mut route = |inputs: &[Input]| world.add_route(inputs).expect("a route");
        let path = DmaPath {
            read: route(&[ask, source]),
            read_back: route(&[read, Input { part: dma, port: 0 }]),
            write: route(&[write, destination]),
            write_back: route(&[told, Input { part: dma, port: 1 }]),
        };
        world.with(dma, |part: &mut Dma, _| part.add_path(path));
        Copier { world, dma, asker }
    }

    impl Copier {
        fn copy(&mut self, tag: u64, length_bytes: u32) {
            let reply_to = Input::of(self.asker);
            let request =
                DmaRequest { path: 0, source: 0, destination: 1 << 20, length_bytes, tag, reply_to };
            self.world.send(self.asker, Input::of(self.dma), Message::Copy(request));
        }

        /// When each copy was made, in nanoseconds.
        fn run(&mut self) -> Vec<u64> {
            self.world.run();
            assert_eq!(self.world.stuck(), []);
            let seen = &self.world.part::<Probe>(self.asker).expect("a probe").seen;
            seen.iter().map(|seen| seen.time.picos() / 1_000).collect()
        }
    }

    #[test]
    fn a_copy_takes_its_setup_and_its_bytes_at_the_slower_rate() {
        for bytes in [64, 512, 4_096, 1 << 20] {
            let mut copier = copier(1);
            copier.copy(0, bytes);
            let took = copier.run()[0];
            // The first burst is read before any is written, and the way to and from each memory is 40 ns.
            let first_read = 64 * 1_000 / 701;
            let expected = 3_360 + first_read + 80 + u64::from(bytes) * 1_000 / 610;
            assert!(took.abs_diff(expected) <= 2 + expected / 200, "{bytes}: {took} for {expected}");
        }
    }

    #[test]
    fn copies_wait_for_a_channel_or_share_the_way() {
        let times = |channels| {
            let mut copier = copier(channels);
            (0..4).for_each(|tag| copier.copy(tag, 61_000));
            let times = copier.run();
            let dma = copier.world.part::<Dma>(copier.dma).expect("an engine");
            assert_eq!((dma.copies(), dma.bytes()), (4, 4 * 61_000));
            times
        };
        // 100 µs each at 610 MB/s. One after the other each has its setup.
        for (number, time) in times(1).into_iter().enumerate() {
            let expected = 103_500 * (number as u64 + 1);
            assert!(time.abs_diff(expected) < 1_000, "{number}: {time}");
        }
        // All four at once end together, but for the bursts that each of them has under way.
        let underway = 3 * 16 * 64 * 1_000 / 610;
        for time in times(4) {
            assert!(time.abs_diff(403_500) < 1_000 + underway, "{time}");
        }
    }

    #[test]
    fn what_is_empty_or_has_no_way_is_over_at_once() {
        let mut copier = copier(1);
        copier.copy(0, 0);
        let request = DmaRequest {
            path: 9,
            source: 0,
            destination: 0,
            length_bytes: 8,
            tag: 1,
            reply_to: Input::of(copier.asker),
        };
        copier.world.send(copier.asker, Input::of(copier.dma), Message::Copy(request));
        assert_eq!(copier.run(), [0, 0]);
    }
}
