//! The IOMMU in virtual time, beside programs whose pages come late or never, go again, and whose mappings vanish;
//! answers that are late, doubled or invented; ranges and domains that are taken back in the middle. Every access ends
//! once, nothing touches a range that was released, and at the end nothing is left.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many.
#![expect(clippy::disallowed_types, reason = "this test only looks things up by key")]

use std::collections::{BTreeMap, HashMap, HashSet};

use tombolo_core::iommu::{
    Absence, Access, AccessId, Action, BeginError, Config, ContextId, End, FAULT_RECORDS, FaultMode,
    FaultPolicy, FaultSource, Iommu, Outcome, PAGE_BYTES, Reason, Released, RememberedRecords, Right,
    TouchId, TouchPolicy, Unreached,
};
use tombolo_core::rdma::Time;
use tombolo_random::{Random, Seeds};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
/// How long blocks come, pages go and ranges are taken back.
const STORM_NS: u64 = 200 * MS;
/// How long a sender waits before a block goes again that was refused for now.
const PAUSE_NS: u64 = MS;
/// How long an attempt takes, unless it is late.
const QUICK_NS: u64 = 20 * US;
/// Times that a block goes at most: as long as its sender lives.
const MAX_SENT: u32 = 20_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Page {
    #[default]
    Missing,
    Present,
    /// Present for reading only, until it is touched for writing.
    Shared,
    Protected,
    Unmapped,
}

impl Page {
    /// How an access finds it.
    fn seen(self, right: Right) -> Result<Option<Absence>, Reason> {
        match (self, right) {
            (Self::Missing, _) => Ok(Some(Absence::Missing)),
            (Self::Shared, Right::Write) => Ok(Some(Absence::CopyOnWrite)),
            (Self::Present | Self::Shared, _) | (Self::Protected, Right::Read) => Ok(None),
            (Self::Protected, Right::Write) => Err(Reason::Protected),
            (Self::Unmapped, _) => Err(Reason::NotMapped),
        }
    }
}

#[derive(Debug)]
struct Range {
    start: u64,
    end: u64,
    policy: FaultPolicy,
    is_released: bool,
}

/// A program: its pages, and how it behaves.
#[derive(Debug, Default)]
struct Program {
    pages: BTreeMap<u64, Page>,
    ranges: Vec<Range>,
    is_closed: bool,
    /// Touches of missing pages do not end while this is set.
    brings_nothing: bool,
    /// Pages go from time to time.
    is_restless: bool,
}

/// A block that some node sends again until it has an answer.
#[derive(Clone, Copy, Debug)]
struct Block {
    program: usize,
    range: usize,
    access: Access,
    sent: u32,
    over: bool,
}

#[derive(Debug)]
enum Doing {
    Attempt { program: usize, access: AccessId, is_forced: bool },
    Touch { program: usize, touch: TouchId, address: u64, length_bytes: u64, right: Right },
    Send(usize),
}

/// What is known of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Attempting,
    /// The machine was told this word.
    Done(u64),
    /// It was told that this cannot be.
    Denied,
    /// It was told of absent pages.
    Waiting,
    Paused,
}

struct World {
    random: Random,
    iommu: Iommu,
    config: Config,
    now: u64,
    programs: Vec<Program>,
    blocks: Vec<Block>,
    /// Blocks by the access that is made for them.
    accesses: HashMap<AccessId, (usize, Known)>,
    ended: HashSet<AccessId>,
    /// Threads that copy, whether or not the machine waits for them.
    copying: HashMap<AccessId, (usize, usize)>,
    releases: HashSet<(usize, u64)>,
    running: HashMap<TouchId, usize>,
    doing: BTreeMap<(u64, u64), Doing>,
    /// Touches of pages that nobody brings.
    hanging: Vec<(usize, TouchId)>,
    last: u64,
    is_calm: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let config = Config {
            max_accesses: random.among(&[4, 16, 256]),
            max_touches: random.among(&[1, 4, 64]),
            running_touches: random.among(&[1, 4]),
            max_held_bytes: random.among(&[0, 20_000, 2 << 20]),
            max_bringing_bytes: random.among(&[0, 20_000, 1 << 20]),
            attempt_timeout_ns: 20 * MS,
            touch_timeout_ns: 20 * MS,
            max_attempts: random.among(&[2, 32]),
            max_pages_gone: random.among(&[2, 32]),
            denied_ns: 10 * MS,
            handles_faults: !random.one_in(10),
            remembered_records: random.among(&[RememberedRecords::Last, RememberedRecords::LastTwo]),
        };
        let mut world = Self {
            iommu: Iommu::new(config),
            config,
            now: 0,
            programs: Vec::new(),
            blocks: Vec::new(),
            accesses: HashMap::new(),
            ended: HashSet::new(),
            copying: HashMap::new(),
            releases: HashSet::new(),
            running: HashMap::new(),
            doing: BTreeMap::new(),
            hanging: Vec::new(),
            last: 0,
            is_calm: false,
            random,
        };
        for _ in 0..world.random.range(1, 4) {
            world.open();
        }
        world
    }

    fn time(&self) -> Time {
        Time::default().after_ns(self.now)
    }

    fn id(program: usize) -> ContextId {
        ContextId(program as u64 + 1)
    }

    fn open(&mut self) {
        let program = self.programs.len();
        // The first one's pages are there, and no access to them is held up by what others do.
        let is_quiet = program == 0;
        let brings_nothing = !is_quiet && self.random.one_in(4);
        let is_restless = !is_quiet && self.random.one_in(2);
        self.programs.push(Program { brings_nothing, is_restless, ..Program::default() });
        self.iommu.open(Self::id(program));
        for number in 0..self.random.range(1, 3) {
            self.register(program, number);
        }
    }

    fn register(&mut self, program: usize, number: u64) {
        let start = (number + 1) * (1 << 30) + self.random.below(3) * 1000;
        let end = start + self.random.range(1, 200_000);
        let policy = FaultPolicy {
            touch: self.random.among(&[TouchPolicy::Page, TouchPolicy::Ahead(4), TouchPolicy::Adaptive]),
            mode: self.random.among(&[FaultMode::Stall, FaultMode::Terminate]),
        };
        let kinds: &[Page] = if program == 0 {
            &[Page::Present]
        } else if self.random.one_in(2) {
            &[Page::Missing, Page::Present, Page::Shared, Page::Protected, Page::Unmapped]
        } else {
            &[Page::Missing]
        };
        for page in start / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            let kind = self.random.among(kinds);
            self.programs[program].pages.insert(page, kind);
        }
        self.programs[program].ranges.push(Range { start, end, policy, is_released: false });
    }

    fn later(&mut self, ns: u64, doing: Doing) {
        self.last += 1;
        self.doing.insert((self.now + ns, self.last), doing);
    }

    /// A block of a random sender.
    fn add_block(&mut self) {
        let program = self.random.index(self.programs.len());
        let range = self.random.index(self.programs[program].ranges.len());
        let (number, whole) = (self.blocks.len(), &self.programs[program].ranges[range]);
        let (start, end, policy) = (whole.start, whole.end, whole.policy);
        let access_end = self.random.among(&End::ALL);
        let most = match access_end {
            End::Notification => 16,
            End::Atomic => 8,
            _ => self.random.among(&[1, 100, 4096, 16 << 10, 64 << 10]),
        };
        let length = most.min(end - start);
        let address = start + self.random.below(end - start - length + 1);
        let access = Access {
            context: Self::id(program),
            address,
            length_bytes: length as u32,
            right: if access_end == End::Source { Right::Read } else { Right::Write },
            end: access_end,
            by: FaultSource {
                node: number as u32 % 3,
                transaction: number as u16 % 50,
                sequence: number as u32,
            },
            range_start: start,
            range_end: end,
            policy,
            copied_bytes: (length as u32).min(if number % 4 == 0 { 1400 } else { u32::MAX }),
            is_free_to_pause: access_end == End::Source,
            is_of_asker: number % 5 == 0 && access_end != End::Source,
        };
        self.blocks.push(Block { program, range, access, sent: 0, over: false });
        self.later(0, Doing::Send(number));
    }

    fn send(&mut self, number: usize) {
        let block = &mut self.blocks[number];
        if block.over {
            return;
        }
        block.sent += 1;
        assert!(block.sent <= MAX_SENT, "a block is refused for now for ever: {block:?}");
        let (program, range, access) = (block.program, block.range, block.access);
        let owner = &self.programs[program];
        // The node looks up the range before.
        if owner.is_closed || owner.ranges[range].is_released {
            self.blocks[number].over = true;
            return;
        }
        match self.iommu.begin(self.time(), access) {
            Ok(id) => {
                assert!(self.accesses.insert(id, (number, Known::Attempting)).is_none(), "{id:?} twice");
                self.attempt(id, false);
            }
            Err(BeginError::Full) => self.later(PAUSE_NS, Doing::Send(number)),
            Err(BeginError::Stuck) => self.blocks[number].over = true,
            Err(BeginError::NoContext) => panic!("a domain that is open"),
        }
        // A sender that has lost the answer comes once more.
        if self.random.one_in(10) && !self.is_calm {
            let ns = self.random.below(3 * MS);
            self.later(ns, Doing::Send(number));
        }
    }

    /// A thread begins to copy.
    fn attempt(&mut self, access: AccessId, is_forced: bool) {
        let (number, _) = self.accesses[&access];
        let (program, range) = (self.blocks[number].program, self.blocks[number].range);
        assert!(!self.programs[program].ranges[range].is_released, "{access:?} touches a released range");
        assert!(
            self.copying.insert(access, (program, range)).is_none(),
            "{access:?} is attempted twice at once"
        );
        let is_late = program != 0 && !self.is_calm && self.random.one_in(200);
        let ns = if is_late { self.random.below(60 * MS) } else { self.random.below(QUICK_NS) };
        self.later(ns, Doing::Attempt { program, access, is_forced });
    }

    fn attempted(&mut self, program: usize, id: AccessId, is_forced: bool) {
        let context = Self::id(program);
        self.copying.remove(&id);
        let Some((number, _)) = self.accesses.get(&id).copied() else {
            // It was given up, or its domain is gone.
            self.iommu.attempted(self.time(), context, id, Outcome::Done(0));
            return;
        };
        let access = self.blocks[number].access;
        let (mut absent, mut kind) = (0, Absence::Missing);
        let first = access.address / PAGE_BYTES;
        let end = (access.address + u64::from(access.length_bytes)).div_ceil(PAGE_BYTES).max(first + 1);
        let mut outcome = Outcome::Done(number as u64);
        for page in first..end {
            match self.programs[program].pages[&page].seen(access.right) {
                Err(reason) => {
                    let address = (page * PAGE_BYTES).max(access.address);
                    outcome = Outcome::Denied(Unreached { address, reason });
                    break;
                }
                Ok(Some(seen)) if absent == 0 => (absent, kind) = (1 << (page - first), seen),
                Ok(Some(_)) => absent |= 1 << (page - first),
                Ok(None) => {}
            }
        }
        if absent != 0 && !is_forced && matches!(outcome, Outcome::Done(_)) {
            // Programs may say what they like.
            let lie = self.random.next() as u32;
            let has_brought = self.random.one_in(3);
            let pages = if self.random.one_in(10) { lie & self.random.next() as u32 } else { absent };
            outcome = match has_brought {
                true => Outcome::Brought { before: number as u64, pages, kind },
                false => Outcome::Absent(pages, kind),
            };
        }
        if let Outcome::Done(_) | Outcome::Brought { .. } = outcome {
            self.bring(program, access.address, access.length_bytes.into(), access.right).unwrap();
        }
        let known = match outcome {
            Outcome::Done(word) | Outcome::Brought { before: word, .. } => Known::Done(word),
            Outcome::Denied(_) => Known::Denied,
            Outcome::Absent(..) => Known::Waiting,
        };
        assert!(
            program != 0 || known == Known::Done(number as u64),
            "{outcome:?} in memory that is all there"
        );
        self.accesses.insert(id, (number, known));
        self.iommu.attempted(self.time(), context, id, outcome);
        if self.random.one_in(20) {
            // Said twice, or by somebody who invents it.
            self.drain();
            let (other, lie) = (AccessId(self.random.below(1000) + (1 << 40)), Outcome::Done(7));
            self.iommu.attempted(self.time(), context, other, lie);
            if !self.copying.contains_key(&id) {
                self.iommu.attempted(self.time(), context, id, lie);
            }
        }
    }

    /// Pages come, as far as they are mapped.
    fn bring(&mut self, program: usize, address: u64, length: u64, right: Right) -> Result<(), Unreached> {
        for page in address / PAGE_BYTES..(address + length).div_ceil(PAGE_BYTES) {
            let page_address = (page * PAGE_BYTES).max(address);
            let Some(known) = self.programs[program].pages.get_mut(&page) else {
                panic!("page {page} lies outside of what is registered");
            };
            match known.seen(right) {
                Err(reason) => return Err(Unreached { address: page_address, reason }),
                Ok(Some(_)) => *known = if right == Right::Write { Page::Present } else { Page::Shared },
                Ok(None) => {}
            }
        }
        Ok(())
    }

    fn touched(&mut self, program: usize, touch: TouchId, address: u64, length: u64, right: Right) {
        let owner = &self.programs[program];
        let is_missing = |page| owner.pages.get(&page) == Some(&Page::Missing);
        let mut pages = address / PAGE_BYTES..(address + length).div_ceil(PAGE_BYTES);
        if owner.brings_nothing && pages.any(is_missing) {
            self.hanging.push((program, touch));
            return;
        }
        self.running.remove(&touch);
        let outcome = self.bring(program, address, length, right);
        self.iommu.touched(self.time(), Self::id(program), touch, outcome);
        if self.random.one_in(20) {
            self.iommu.touched(self.time(), Self::id(program), touch, Ok(()));
            let other = TouchId(self.random.below(10) + (1 << 40));
            self.iommu.touched(self.time(), Self::id(program), other, Ok(()));
        }
    }

    /// Something changes in a program.
    fn disturb(&mut self) {
        let program = self.random.index(self.programs.len());
        if self.random.one_in(300) && !self.programs[program].is_closed {
            self.programs[program].is_closed = true;
            self.iommu.close(Self::id(program));
            self.open();
            return;
        }
        if self.random.one_in(100) {
            let range = self.random.index(self.programs[program].ranges.len());
            let owner = &self.programs[program];
            let start = owner.ranges[range].start;
            if !owner.is_closed
                && !owner.ranges[range].is_released
                && !self.releases.contains(&(program, start))
            {
                match self.iommu.release(self.time(), Self::id(program), start) {
                    Released::Now => self.released(program, start),
                    Released::Later => drop(self.releases.insert((program, start))),
                    Released::Stuck => self.assert_copied(program, start, true),
                }
            }
            return;
        }
        let owner = &mut self.programs[program];
        if !owner.is_restless || owner.pages.is_empty() {
            return;
        }
        let page = *owner.pages.keys().nth(self.random.index(owner.pages.len())).unwrap();
        let becomes = [Page::Missing, Page::Shared, Page::Present, Page::Protected, Page::Unmapped];
        let kind = self.random.among(&becomes);
        owner.pages.insert(page, kind);
    }

    /// Whether a thread copies in that range.
    fn assert_copied(&self, program: usize, start: u64, expected: bool) {
        let in_range = |copy: &&(usize, usize)| {
            copy.0 == program && self.programs[program].ranges[copy.1].start == start
        };
        let is_copied = self.copying.values().any(|copy| in_range(&copy));
        assert_eq!(is_copied, expected, "whether {start:#x} of program {program} is copied from or to");
    }

    fn released(&mut self, program: usize, start: u64) {
        self.assert_copied(program, start, false);
        for range in &mut self.programs[program].ranges {
            range.is_released |= range.start == start;
        }
    }

    /// Carries out what the machine wants.
    fn drain(&mut self) {
        while let Some(action) = self.iommu.poll(self.time()) {
            match action {
                Action::Attempt { access, is_forced } => {
                    let known = &mut self.accesses.get_mut(&access).expect("an access that is not over").1;
                    assert_eq!(*known, Known::Waiting, "{action:?}");
                    *known = Known::Attempting;
                    self.attempt(access, is_forced);
                }
                Action::Touch { touch, context, address, length_bytes, right } => {
                    let program = context.0 as usize - 1;
                    let is_inside = |range: &Range| {
                        range.start <= address && address + u64::from(length_bytes) <= range.end
                    };
                    assert!(
                        length_bytes > 0 && self.programs[program].ranges.iter().any(is_inside),
                        "{action:?}"
                    );
                    assert!(self.running.insert(touch, program).is_none(), "{touch:?} runs twice");
                    let running = self.running.values().filter(|owner| **owner == program).count();
                    assert!(running <= self.config.running_touches, "{running} touches run");
                    let ns = self.random.below(200 * US);
                    let length_bytes = length_bytes.into();
                    self.later(ns, Doing::Touch { program, touch, address, length_bytes, right });
                }
                Action::Done(id, before) => {
                    let (number, known) = self.end(id);
                    assert_eq!((before, known), (number as u64, Known::Done(before)), "{action:?}");
                    self.blocks[number].over = true;
                }
                Action::Refuse(id, refusal) => {
                    let (number, known) = self.end(id);
                    let is_expected = match refusal.reason {
                        Reason::Gone | Reason::TimedOut => {
                            matches!(known, Known::Attempting | Known::Waiting)
                        }
                        _ => matches!(known, Known::Denied | Known::Waiting),
                    };
                    assert!(is_expected, "{action:?} after {known:?}");
                    let block = &mut self.blocks[number];
                    block.over = true;
                    let access = block.access;
                    let end = access.address + u64::from(access.length_bytes);
                    let page = refusal.address / PAGE_BYTES * PAGE_BYTES;
                    let is_inside = access.address / PAGE_BYTES * PAGE_BYTES <= page && page < end;
                    assert!(is_inside, "{refusal:?} for {access:?}");
                }
                Action::Busy(id) => {
                    let (number, known) = self.end(id);
                    assert_eq!(known, Known::Waiting, "{action:?}");
                    self.later(PAUSE_NS, Doing::Send(number));
                }
                Action::Pause { access: id, address, missing } => {
                    let access = self.blocks[self.accesses[&id].0].access;
                    let pages = (access.address + u64::from(access.length_bytes)).div_ceil(PAGE_BYTES);
                    let last = address / PAGE_BYTES + u64::from(missing.ilog2());
                    assert!(missing & 1 == 1 && last < pages && address + PAGE_BYTES > access.address);
                    let known = &mut self.accesses.get_mut(&id).expect("an access that is not over").1;
                    assert_eq!(*known, Known::Waiting, "{action:?}");
                    *known = Known::Paused;
                }
                Action::Withdraw(context, id) => {
                    // It is being made already.
                    self.iommu.withdrawn(self.time(), context, id, false);
                }
                Action::Ready(id) => {
                    let (number, known) = self.end(id);
                    assert_eq!(known, Known::Paused, "{action:?}");
                    self.later(0, Doing::Send(number));
                }
                Action::Forget(id) => {
                    let (number, known) = self.end(id);
                    assert_eq!(known, Known::Paused, "{action:?}");
                    self.later(PAUSE_NS, Doing::Send(number));
                }
                Action::Released(context, start, is_free) => {
                    let program = context.0 as usize - 1;
                    assert!(self.releases.remove(&(program, start)), "nobody asked for {action:?}");
                    if is_free {
                        self.released(program, start);
                    } else {
                        self.assert_copied(program, start, true);
                    }
                }
            }
        }
    }

    /// Not more bytes wait than may.
    fn check_held(&self) {
        let mut held = vec![0; self.programs.len()];
        for (number, known) in self.accesses.values() {
            let block = &self.blocks[*number];
            if *known == Known::Waiting && block.access.end == End::Destination {
                held[block.program] += u64::from(block.access.copied_bytes);
            }
        }
        assert!(held.iter().all(|bytes| *bytes <= self.config.max_held_bytes), "{held:?} wait");
    }

    fn end(&mut self, id: AccessId) -> (usize, Known) {
        assert!(self.ended.insert(id), "{id:?} ends twice");
        self.accesses.remove(&id).expect("an access that has begun")
    }

    /// The next thing that happens.
    fn step(&mut self) -> bool {
        let deadline = self.iommu.next_deadline().map(|time| time.since_ns(Time::default()));
        let next = self.doing.first_key_value().map(|((at, _), _)| *at);
        let Some(at) = next.into_iter().chain(deadline).min() else { return false };
        self.now = self.now.max(at);
        if deadline.is_some_and(|deadline| deadline <= self.now) {
            self.iommu.expire(self.time());
            self.drain();
            let again = self.iommu.next_deadline().map(|time| time.since_ns(Time::default()));
            assert!(
                again.is_none_or(|again| again > self.now),
                "a deadline stays: {again:?}, now {}",
                self.now
            );
        }
        if next.is_some_and(|next| next <= self.now)
            && let Some((_, doing)) = self.doing.pop_first()
        {
            self.carry_out(doing);
        }
        self.drain();
        self.check_held();
        true
    }

    fn carry_out(&mut self, doing: Doing) {
        match doing {
            Doing::Send(number) => self.send(number),
            Doing::Attempt { program, access, is_forced } => self.attempted(program, access, is_forced),
            Doing::Touch { program, touch, address, length_bytes, right } => {
                self.touched(program, touch, address, length_bytes, right);
            }
        }
    }

    /// Blocks come and go while programs are at their worst.
    fn storm(&mut self) {
        while self.now < STORM_NS {
            if self.random.one_in(3) && self.blocks.len() < 400 {
                self.add_block();
            }
            if self.random.one_in(2) {
                self.disturb();
            }
            self.drain();
            if self.random.one_in(4) || !self.step() {
                self.now += self.random.below(MS);
            }
        }
    }

    /// From now on pages come, and whatever has begun ends.
    fn calm(&mut self) {
        self.is_calm = true;
        if !self.config.handles_faults {
            for program in &mut self.programs {
                program.pages.values_mut().for_each(|page| *page = Page::Present);
            }
        }
        while self.step() {
            assert!(self.now < STORM_NS + 600_000 * MS, "it does not end");
        }
        let open = self.blocks.iter().find(|block| !block.over);
        assert!(open.is_none(), "{open:?}");
        // Of pages that never come, nothing is left but that somebody tries to bring them.
        while let Some((program, touch)) = self.hanging.pop() {
            if self.random.one_in(2) {
                self.iommu.close(Self::id(program));
            }
            self.running.remove(&touch);
            self.iommu.touched(self.time(), Self::id(program), touch, Ok(()));
            self.drain();
            while self.step() {}
        }
        assert!(self.accesses.is_empty() && self.copying.is_empty() && self.running.is_empty());
        assert!(self.releases.is_empty(), "never released: {:?}", self.releases);
        assert!(self.iommu.is_idle(), "{:?}", self.iommu);
    }
}

#[test]
fn every_access_ends_once_whatever_programs_do() {
    let (mut faults, mut touches, mut stalled, mut paused, mut timed_out, mut forced) = (0, 0, 0, 0, 0, 0);
    let count = Seeds::from_environment(300).run("cargo test -p tombolo-core --test iommu", |seed| {
        let mut world = World::new(seed);
        world.storm();
        world.calm();
        let counters = world.iommu.counters();
        faults += counters.faults.iter().flatten().sum::<u64>();
        touches += counters.touches;
        stalled += counters.stalled;
        paused += counters.paused;
        timed_out += counters.timed_out;
        forced += counters.forced;
    });
    let met = [faults, touches, stalled, paused, timed_out, forced];
    assert!(count < 30 || met.iter().all(|count| *count > 0), "{met:?}");
}

/// What takes too long is given up; but not a write to the memory of the program that asked for it: it is told when nobody
/// writes any more, and that it went well, if it did.
#[test]
fn a_program_is_not_told_of_its_own_memory_while_it_may_be_written() {
    let config = Config { max_bringing_bytes: 0, ..Config::default() };
    let (mut iommu, context) = (Iommu::new(config), ContextId(1));
    iommu.open(context);
    let start = Time::default();
    let begin = |iommu: &mut Iommu, is_of_asker| {
        let access = Access {
            context,
            address: 1 << 20,
            length_bytes: 100,
            right: Right::Write,
            end: End::Destination,
            by: FaultSource::default(),
            range_start: 1 << 20,
            range_end: 1 << 21,
            policy: FaultPolicy::default(),
            copied_bytes: 100,
            is_free_to_pause: false,
            is_of_asker,
        };
        iommu.begin(start, access)
    };
    let [others, own] = [false, true].map(|is_of_asker| begin(&mut iommu, is_of_asker).unwrap());
    // Who takes its memory back hears in time that it cannot be had.
    assert_eq!(iommu.release(start, context, 1 << 20), Released::Later);
    let mut told = Vec::new();
    let mut late = start;
    while let Some(deadline) = iommu.next_deadline() {
        late = deadline;
        iommu.expire(late);
        told.extend(std::iter::from_fn(|| iommu.poll(late)));
    }
    let [
        Action::Refuse(refused, Unreached { reason: Reason::TimedOut, .. }),
        Action::Released(_, range_start, false),
    ] = told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((refused, range_start), (others, 1 << 20));
    assert_eq!(begin(&mut iommu, false), Err(BeginError::Stuck));
    assert_eq!(iommu.release(start, context, 1 << 20), Released::Stuck);
    for access in [others, own] {
        iommu.attempted(late, context, access, Outcome::Done(7));
    }
    assert_eq!(iommu.poll(late), Some(Action::Done(own, 7)));
    assert_eq!(iommu.poll(late), None);
    assert!(iommu.is_idle());
    assert!(begin(&mut iommu, false).is_ok());
}

/// An attempt that brings pages in, which do not come, is withdrawn in time.
#[test]
fn an_attempt_whose_pages_do_not_come_is_withdrawn() {
    let (mut iommu, context) = (Iommu::new(Config::default()), ContextId(1));
    iommu.open(context);
    let access = bringing(context);
    let id = iommu.begin(Time::default(), access).unwrap();
    let mut now = Time::default();
    while iommu.poll(now) != Some(Action::Withdraw(context, id)) {
        now = iommu.next_deadline().expect("it is not given up yet");
        iommu.expire(now);
    }
    assert!((2_000_000_000..3_000_000_000).contains(&now.0), "{now:?}");
    iommu.withdrawn(now, context, id, true);
    let refused = Unreached { address: 1 << 20, reason: Reason::TimedOut };
    assert_eq!(iommu.poll(now), Some(Action::Refuse(id, refused)));
    assert!(iommu.is_idle());
    // What is left to do of a domain that closes is not done.
    let id = iommu.begin(now, access).unwrap();
    iommu.withdraw(now, id, Reason::Gone);
    iommu.close(context);
    let told: Vec<_> = std::iter::from_fn(|| iommu.poll(now)).collect();
    assert_eq!(told, [Action::Refuse(id, Unreached { address: 1 << 20, reason: Reason::Gone })]);
}

fn bringing(context: ContextId) -> Access {
    Access {
        context,
        address: 1 << 20,
        length_bytes: 100,
        right: Right::Write,
        end: End::Destination,
        by: FaultSource::default(),
        range_start: 1 << 20,
        range_end: 1 << 21,
        policy: FaultPolicy::default(),
        copied_bytes: 100,
        is_free_to_pause: false,
        is_of_asker: false,
    }
}

/// Whoever takes the memory back does not wait for pages that an attempt brings in, and others go on. If it copies already, or nobody
/// answers, it is as with any other.
#[test]
fn who_takes_memory_back_waits_for_no_page() {
    let (context, start) = (ContextId(1), Time::default());
    let access = bringing(context);
    for is_withdrawn in [Some(true), Some(false), None] {
        let mut iommu = Iommu::new(Config::default());
        iommu.open(context);
        let id = iommu.begin(start, access).unwrap();
        assert!(iommu.may_bring(id));
        // Who takes the memory back waits for no page.
        assert_eq!(iommu.release(start, context, 1 << 20), Released::Later);
        assert_eq!(iommu.poll(start), Some(Action::Withdraw(context, id)));
        let mut now = start;
        if let Some(is_withdrawn) = is_withdrawn {
            iommu.withdrawn(now, context, id, is_withdrawn);
        }
        let mut told: Vec<_> = std::iter::from_fn(|| iommu.poll(now)).collect();
        while let Some(deadline) = iommu.next_deadline() {
            now = deadline;
            iommu.expire(now);
            told.extend(std::iter::from_fn(|| iommu.poll(now)));
        }
        let reason = if is_withdrawn == Some(true) { Reason::Gone } else { Reason::TimedOut };
        let refused = Unreached { address: 1 << 20, reason };
        let has_ended = is_withdrawn == Some(true);
        let released = Action::Released(context, 1 << 20, has_ended);
        assert_eq!(told, [Action::Refuse(id, refused), released], "{is_withdrawn:?}");
        assert_eq!(iommu.begin(now, access).is_ok(), has_ended, "{is_withdrawn:?}");
        // It was said late that it could be.
        iommu.withdrawn(now, context, id, true);
        assert!(iommu.begin(now, access).is_ok(), "{is_withdrawn:?}");
    }
}

/// What waits for its page in memory that is taken back is refused at once, though an access there hangs.
#[test]
fn what_waits_is_refused_also_where_an_access_hangs() {
    let config = Config { max_bringing_bytes: 0, ..Config::default() };
    let (mut iommu, context, start) = (Iommu::new(config), ContextId(1), Time::default());
    iommu.open(context);
    let hanging = iommu.begin(start, bringing(context)).unwrap();
    let mut now = start.after_ns(config.attempt_timeout_ns);
    let by = FaultSource { sequence: 1, ..FaultSource::default() };
    let waiting = iommu.begin(now, Access { by, ..bringing(context) }).unwrap();
    iommu.attempted(now, context, waiting, Outcome::Absent(1, Absence::Missing));
    assert!(matches!(told(&mut iommu, now)[..], [Action::Touch { .. }]));
    let mut heard = Vec::new();
    while heard.is_empty() {
        now = iommu.next_deadline().expect("a deadline");
        iommu.expire(now);
        heard = told(&mut iommu, now);
    }
    assert!(matches!(heard[..], [Action::Refuse(refused, _)] if refused == hanging), "{heard:?}");
    assert_eq!(iommu.release(now, context, 1 << 20), Released::Stuck);
    let gone = Unreached { address: 1 << 20, reason: Reason::Gone };
    assert_eq!(told(&mut iommu, now), [Action::Refuse(waiting, gone)]);
}

/// What could not be had when an access came is no reason to refuse a later one, for which it can.
#[test]
fn a_refusal_is_for_those_that_were_there_when_the_page_was_asked_for() {
    let config = Config { max_bringing_bytes: 0, running_touches: 1, ..Config::default() };
    let (mut iommu, context, now) = (Iommu::new(config), ContextId(1), Time::default());
    iommu.open(context);
    let absent = |iommu: &mut Iommu, sequence| {
        let by = FaultSource { sequence, ..FaultSource::default() };
        let id = iommu.begin(now, Access { by, ..bringing(context) }).unwrap();
        iommu.attempted(now, context, id, Outcome::Absent(1, Absence::Missing));
        let told: Vec<_> = std::iter::from_fn(|| iommu.poll(now)).collect();
        (id, told)
    };
    let (first, told) = absent(&mut iommu, 1);
    let [Action::Touch { touch, .. }] = told[..] else { panic!("{told:?}") };
    let (second, told) = absent(&mut iommu, 2);
    assert_eq!(told, []);
    let refused = Unreached { address: 1 << 20, reason: Reason::Protected };
    iommu.touched(now, context, touch, Err(refused));
    let told: Vec<_> = std::iter::from_fn(|| iommu.poll(now)).collect();
    assert_eq!(told, [Action::Refuse(first, refused), Action::Attempt { access: second, is_forced: false }]);
    iommu.attempted(now, context, second, Outcome::Done(0));
    assert_eq!(iommu.poll(now), Some(Action::Done(second, 0)));
    assert!(iommu.is_idle());
}

fn told(iommu: &mut Iommu, now: Time) -> Vec<Action> {
    std::iter::from_fn(|| iommu.poll(now)).collect()
}

/// Touches that nobody was asked for are not, once nobody waits for them; the next faults are served as any.
#[test]
fn what_waited_too_long_for_its_turn_is_not_touched() {
    let config = Config { max_bringing_bytes: 0, running_touches: 1, ..Config::default() };
    let (mut iommu, context, start) = (Iommu::new(config), ContextId(1), Time::default());
    iommu.open(context);
    let absent = |iommu: &mut Iommu, now, page: u64| {
        let by = FaultSource { sequence: page as u32, ..FaultSource::default() };
        let access = Access { by, address: (1 << 20) + page * 4096, ..bringing(context) };
        let id = iommu.begin(now, access).unwrap();
        iommu.attempted(now, context, id, Outcome::Absent(1, Absence::Missing));
        (id, told(iommu, now))
    };
    let (first, asked) = absent(&mut iommu, start, 0);
    let [Action::Touch { touch, .. }] = asked[..] else { panic!("{asked:?}") };
    let (second, asked) = absent(&mut iommu, start, 1);
    assert_eq!(asked, []);
    let (mut now, mut refused) = (start, Vec::new());
    while let Some(deadline) = iommu.next_deadline() {
        now = deadline;
        iommu.expire(now);
        refused.extend(told(&mut iommu, now));
    }
    let is_refused = |id| refused.iter().any(|action| matches!(action, Action::Refuse(of, _) if *of == id));
    assert!(is_refused(first) && is_refused(second), "{refused:?}");
    // The program goes on.
    iommu.touched(now, context, touch, Ok(()));
    assert_eq!(told(&mut iommu, now), []);
    let (third, asked) = absent(&mut iommu, now, 1);
    let [Action::Touch { touch, .. }] = asked[..] else { panic!("{asked:?}") };
    iommu.touched(now, context, touch, Ok(()));
    assert_eq!(told(&mut iommu, now), [Action::Attempt { access: third, is_forced: false }]);
}

/// What faults at once waits for one touch, and hears how that ended.
#[test]
fn a_page_that_cannot_be_had_is_asked_for_once_for_all_that_fault_at_once() {
    let config = Config { max_bringing_bytes: 0, ..Config::default() };
    let (mut iommu, context, now) = (Iommu::new(config), ContextId(1), Time::default());
    iommu.open(context);
    let ids: Vec<_> = (0..8)
        .map(|sequence| {
            let by = FaultSource { sequence, ..FaultSource::default() };
            iommu.begin(now, Access { by, ..bringing(context) }).unwrap()
        })
        .collect();
    for id in &ids {
        iommu.attempted(now, context, *id, Outcome::Absent(1, Absence::Missing));
    }
    let asked = told(&mut iommu, now);
    let [Action::Touch { touch, .. }] = asked[..] else { panic!("{asked:?}") };
    let refused = Unreached { address: 1 << 20, reason: Reason::Unavailable };
    iommu.touched(now, context, touch, Err(refused));
    let expected: Vec<_> = ids.iter().map(|id| Action::Refuse(*id, refused)).collect();
    assert_eq!(told(&mut iommu, now), expected);
}

/// Of a block that comes in packets some find their pages, and others never: these are forced all the same. Neither blocks that end without
/// them nor later ones of the same slot change that.
#[test]
fn a_packet_whose_page_goes_as_fast_as_it_comes_is_forced() {
    let config = Config { max_bringing_bytes: 0, max_held_bytes: 20_000, ..Config::default() };
    let (mut iommu, context, now) = (Iommu::new(config), ContextId(1), Time::default());
    iommu.open(context);
    let policy = FaultPolicy { mode: FaultMode::Terminate, touch: TouchPolicy::Page };
    let packet = Access { policy, length_bytes: 16_384, copied_bytes: 1400, ..bringing(context) };
    let absent = |iommu: &mut Iommu, access| {
        let id = iommu.begin(now, access).unwrap();
        iommu.attempted(now, context, id, Outcome::Absent(1, Absence::Missing));
        match told(iommu, now)[..] {
            [Action::Attempt { access, is_forced: true }] if access == id => Some(id),
            [Action::Pause { .. }, Action::Touch { touch, .. }] => {
                iommu.touched(now, context, touch, Ok(()));
                assert_eq!(told(iommu, now), [Action::Ready(id)]);
                None
            }
            ref asked => panic!("{asked:?}"),
        }
    };
    let mut others = 0;
    let mut other = || {
        others += 1;
        let by = FaultSource { node: 1, transaction: (others % 1024) as u16, sequence: others };
        Access { by, ..packet }
    };
    let mut forced = Vec::new();
    for round in 0.. {
        let found = iommu.begin(now, packet).unwrap();
        iommu.attempted(now, context, found, Outcome::Done(0));
        assert_eq!(told(&mut iommu, now), [Action::Done(found, 0)]);
        for _ in 0..500 {
            assert_eq!(absent(&mut iommu, other()), None);
        }
        // While those that are forced hold all the bytes that may wait, others pause.
        if let Some(id) = absent(&mut iommu, packet) {
            forced.push(id);
            assert!(round >= config.max_pages_gone);
        } else if !forced.is_empty() {
            break;
        }
        assert!(round < 2 * config.max_pages_gone);
    }
    assert_eq!(forced.len() as u64, config.max_held_bytes / 1400);
    for id in forced {
        iommu.attempted(now, context, id, Outcome::Done(0));
        assert_eq!(told(&mut iommu, now), [Action::Done(id, 0)]);
    }
    assert!(iommu.is_idle());
}

/// Of two pages of a block one is always away, since a pager has room for few. The copying itself brings them in then, one after the other.
#[test]
fn a_block_whose_pages_go_as_fast_as_they_come_is_forced() {
    let config = Config { max_bringing_bytes: 0, ..Config::default() };
    let (mut iommu, context, now) = (Iommu::new(config), ContextId(1), Time::default());
    iommu.open(context);
    let policy = FaultPolicy { mode: FaultMode::Terminate, touch: TouchPolicy::Page };
    let block = Access { policy, length_bytes: 8192, copied_bytes: 8192, ..bringing(context) };
    let mut rounds = 0;
    let forced = loop {
        let id = iommu.begin(now, block).unwrap();
        iommu.attempted(now, context, id, Outcome::Absent(1 << (rounds % 2), Absence::Missing));
        match told(&mut iommu, now)[..] {
            [Action::Pause { .. }, Action::Touch { touch, .. }] => iommu.touched(now, context, touch, Ok(())),
            [Action::Attempt { access, is_forced: true }] if access == id => break id,
            ref asked => panic!("{asked:?}"),
        }
        assert_eq!(told(&mut iommu, now), [Action::Ready(id)]);
        rounds += 1;
    };
    // As many pages as a block has may be asked for one after the other.
    assert_eq!(rounds, 2 * config.max_pages_gone + 1);
    iommu.attempted(now, context, forced, Outcome::Done(0));
    assert_eq!(told(&mut iommu, now), [Action::Done(forced, 0)]);
    // The next one of that number is another block.
    let id = iommu.begin(now, block).unwrap();
    iommu.attempted(now, context, id, Outcome::Absent(1, Absence::Missing));
    let asked = told(&mut iommu, now);
    assert!(matches!(asked[..], [Action::Pause { .. }, Action::Touch { .. }]), "{asked:?}");
}

/// A block that comes and one that goes may have the same numbers.
#[test]
fn what_was_refused_at_one_end_is_not_at_the_other() {
    let (mut iommu, context, now) = (Iommu::new(Config::default()), ContextId(1), Time::default());
    iommu.open(context);
    let policy = FaultPolicy { mode: FaultMode::Terminate, ..FaultPolicy::default() };
    let coming = Access { policy, ..bringing(context) };
    let id = iommu.begin(now, coming).unwrap();
    iommu.attempted(now, context, id, Outcome::Absent(1, Absence::Missing));
    let asked = told(&mut iommu, now);
    let [Action::Pause { .. }, Action::Touch { touch, .. }] = asked[..] else { panic!("{asked:?}") };
    iommu.touched(now, context, touch, Err(Unreached { address: 1 << 20, reason: Reason::Protected }));
    assert_eq!(told(&mut iommu, now), [Action::Ready(id)]);
    let going = Access { right: Right::Read, end: End::Source, ..coming };
    let id = iommu.begin(now, going).unwrap();
    iommu.attempted(now, context, id, Outcome::Absent(1, Absence::Missing));
    let asked = told(&mut iommu, now);
    assert!(matches!(asked[..], [Action::Pause { .. }, Action::Touch { .. }]), "{asked:?}");
}

/// What is withdrawn because nobody wants it has as long as it had, before the whole domain is taken for stuck.
#[test]
fn a_withdrawal_makes_nobody_impatient() {
    let (mut iommu, context, start) = (Iommu::new(Config::default()), ContextId(1), Time::default());
    iommu.open(context);
    let id = iommu.begin(start, bringing(context)).unwrap();
    iommu.withdraw(start, id, Reason::Gone);
    assert_eq!(told(&mut iommu, start), [Action::Withdraw(context, id)]);
    let later = start.after_ns(1_500_000_000);
    iommu.expire(later);
    assert!(!iommu.is_stuck(context));
    iommu.withdrawn(later, context, id, true);
    let refused = Unreached { address: 1 << 20, reason: Reason::Gone };
    assert_eq!(told(&mut iommu, later), [Action::Refuse(id, refused)]);
}

/// A block that is refused until its page is there and comes again meanwhile: one record is enough. Where the queue is full, the sender
/// comes again by itself, and what stalls is sent away.
#[test]
fn repeats_are_dropped_and_what_does_not_fit_the_queue_comes_again() {
    let (mut iommu, now) = (Iommu::new(Config::default()), Time::default());
    // One context may not have as many accesses as the queue has room for.
    let context_of = |page: u64| ContextId(page / 32);
    (0..=700 / 32).for_each(|number| iommu.open(ContextId(number)));
    let terminate = FaultPolicy { mode: FaultMode::Terminate, ..FaultPolicy::default() };
    let fault = |iommu: &mut Iommu, sequence: u32, page: u64, policy| {
        let by = FaultSource { sequence, ..FaultSource::default() };
        let address = (1 << 20) + page * PAGE_BYTES;
        let access = Access { by, policy, address, range_end: 1 << 32, ..bringing(context_of(page)) };
        let id = iommu.begin(now, access).unwrap();
        iommu.attempted(now, access.context, id, Outcome::Absent(1, Absence::Missing));
        id
    };
    let first = fault(&mut iommu, 1, 0, terminate);
    let again = fault(&mut iommu, 1, 0, terminate);
    assert_eq!(iommu.counters().repeats_dropped, 1);
    let asked = told(&mut iommu, now);
    let is_paused =
        |id| asked.iter().any(|action| matches!(action, Action::Pause { access, .. } if *access == id));
    assert!(is_paused(first) && is_paused(again) && asked.contains(&Action::Forget(again)), "{asked:?}");
    assert_eq!(asked.iter().filter(|action| matches!(action, Action::Touch { .. })).count(), 1);
    // Nobody takes records out meanwhile.
    for page in 1..=FAULT_RECORDS as u64 {
        fault(&mut iommu, page as u32, page, terminate);
    }
    assert_eq!(iommu.counters().records_lost, 0);
    let lost = fault(&mut iommu, 2, 600, terminate);
    let stalled = fault(&mut iommu, 3, 601, FaultPolicy { mode: FaultMode::Stall, ..terminate });
    assert_eq!((iommu.counters().records_lost, iommu.counters().repeats_dropped), (2, 1));
    let asked = told(&mut iommu, now);
    assert!(asked.contains(&Action::Forget(lost)) && asked.contains(&Action::Busy(stalled)), "{asked:?}");
}

/// A handler takes time for each record, and others come meanwhile: only what it has looked at is brought in.
#[test]
fn a_slow_handler_takes_one_record_at_a_time() {
    let config = Config { remembered_records: RememberedRecords::Last, ..Config::default() };
    let (mut iommu, context, now) = (Iommu::new(config), ContextId(1), Time::default());
    iommu.open(context);
    let policy = FaultPolicy { mode: FaultMode::Terminate, touch: TouchPolicy::Page };
    let mut fault = |sequence: u32, page: u64| {
        let by = FaultSource { sequence, ..FaultSource::default() };
        let address = (1 << 20) + page * PAGE_BYTES;
        let id = iommu.begin(now, Access { by, policy, address, ..bringing(context) }).unwrap();
        iommu.attempted(now, context, id, Outcome::Absent(1, Absence::Missing));
    };
    // Two blocks that come by turns fill a queue that knows the last record only (FAULT §3.2.3).
    [(1, 0), (2, 4), (1, 0), (1, 0)].into_iter().for_each(|(sequence, page)| fault(sequence, page));
    assert_eq!((iommu.waiting_faults(), iommu.counters().repeats_dropped), (3, 1));
    let touched = |iommu: &mut Iommu| {
        let actions = std::iter::from_fn(|| iommu.poll_action());
        actions.filter(|action| matches!(action, Action::Touch { .. })).count()
    };
    assert_eq!(touched(&mut iommu), 0);
    // The third is of a page that is being brought in by then.
    for (waiting, touches) in [(2, 1), (1, 1), (0, 0)] {
        assert!(iommu.handle_fault(now));
        assert_eq!((iommu.waiting_faults(), touched(&mut iommu)), (waiting, touches));
    }
    assert!(!iommu.handle_fault(now));
}
