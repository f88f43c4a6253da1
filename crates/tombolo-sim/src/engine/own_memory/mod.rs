//! Memory of programs whose pages may be absent, two programs a node: the world plays the programs, who look
//! for absent pages, copy, and bring pages in, and the runtime that orders that of them. What is decided is decided by the
//! machine ([`tombolo_core::own`]).

mod attempts;
mod moves;
mod programs;

use programs::{Page, Program};
use std::collections::{BTreeMap, BTreeSet};

use super::{BASE, Bench, Event, HERE, NODES, PROGRAMS, WORDS, WORDS_BASE, program_of};
use tombolo_core::iommu::{Absence, AccessId, Config, ContextId, FaultPolicy, PAGE_BYTES, Released, Right};
use tombolo_core::own::{Begun, OwnMemory, Purpose, Request, Step};
use tombolo_core::rdma::Time;
use tombolo_wire::{AtomicOperation, Domain, NackCode, Notification, Refusal};

/// The words of a notification.
const NOTIFICATION_BYTES: u32 = 16;
/// How long a page that does not come may take: longer than anybody waits for it.
const HANG_NS: u64 = 5_000_000_000;
/// How long a program may be stopped: longer than its peers bear.
const STOP_NS: u64 = 60_000_000_000;
/// How long a program waits before it asks again for what was refused for now.
const AGAIN_NS: u64 = 1_000_000_000;
/// Orders to a program that are not answered, at most: each access, its withdrawal, and each touch that is carried out.
const MOST_ORDERS: usize = 2 * 256 + 4;
/// How long what has vanished stays so.
const VANISHED_NS: u64 = 50_000_000;

/// What programs and their pages do; probabilities in millionths.
#[derive(Clone, Copy, Debug)]
pub struct OwnFaults {
    /// What becomes of an access to an absent page.
    pub policy: FaultPolicy,
    /// The bounds of the machine that decides it.
    pub iommu: Config,
    /// Chance that pages go, whenever something happens.
    pub going: u64,
    /// How long bringing pages in takes, at most.
    pub touch_ns: u64,
    /// Chance that bringing pages in takes longer than anybody waits.
    pub hanging: u64,
    /// Chance that a program is stopped, whenever something happens, for longer than anybody waits.
    pub freezing: u64,
    /// Chance that a mapping vanishes or becomes read-only for a while, whenever something happens.
    pub vanishing: u64,
    /// Chance that an answer is said twice, that one is invented, and that a page that is there is not told.
    pub lying: u64,
    /// Chance that a program dies and another takes its place, whenever something happens.
    pub dying: u64,
    /// Chance that a program deregisters memory, used or not, whenever something happens.
    pub releasing: u64,
    /// Chance that there is no room for the bytes of an access.
    pub full: u64,
    /// Chance that an end of a transfer lies in memory of the node.
    pub of_node: u64,
}

/// How a program attempts an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Plain,
    /// It may bring pages in itself.
    Bringing,
    /// It has brought in these.
    Brought(u32, Absence),
    /// It waited for another one that overlaps with it.
    Behind,
    /// It does not look for absent pages.
    Forced,
}

/// What the program is asked to do: it does so late, too.
#[derive(Clone, Copy, Debug)]
enum Order {
    Read,
    Write,
    /// In the transfer with that number.
    Words(usize, Notification),
    /// In the transfer with that number, if it stays here.
    Change(AtomicOperation),
}

/// What is left with an access until it is over.
#[derive(Debug)]
pub(super) struct Left {
    program: usize,
    /// Where the range begins.
    range: u64,
    /// What is copied.
    at: (u64, u32),
    /// What is looked at.
    look: (u64, u32),
    right: Right,
    /// What is written there, or what was read.
    bytes: Vec<u8>,
    order: Order,
}

/// Memory that a program has registered, or that lies in the node.
#[derive(Clone, Copy, Debug)]
struct Range {
    end: u64,
    program: usize,
    is_own: bool,
    /// It is deregistered.
    is_gone: bool,
    /// And its program was told so: it is its own again.
    is_free: bool,
}

/// The programs of one node, and what the node knows of their memory.
#[derive(Debug)]
pub(super) struct Host {
    own: OwnMemory<Left>,
    programs: [Program; PROGRAMS],
    ranges: BTreeMap<u64, Range>,
    last_context: u64,
}

impl Host {
    fn new(config: Config, memory_bytes: usize) -> Self {
        let end_page = (BASE + memory_bytes as u64).div_ceil(PAGE_BYTES);
        let mut last_context = 0;
        let mut own = OwnMemory::new(config);
        let programs = [0; PROGRAMS].map(|_| {
            last_context += 1;
            let context = ContextId(last_context);
            own.open(context);
            let (pages, hanging, bringing) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
            let (stopped_until, last_order) = (Time(0), Time(0));
            Program { context, pages, end_page, hanging, bringing, stopped_until, last_order, orders: 0 }
        });
        let words = Range {
            end: WORDS_BASE + 8 * WORDS as u64,
            program: 0,
            is_own: true,
            is_gone: false,
            is_free: false,
        };
        Self { own, programs, ranges: BTreeMap::from([(WORDS_BASE, words)]), last_context }
    }

    /// Where an address lies: the start of its range and its program, or `None` if it is memory of the node.
    fn resolve(&self, domain: Domain, at: (u64, u32)) -> Result<Option<(u64, usize)>, Refusal> {
        let (start, range) = self.ranges.range(..=at.0).next_back().expect("memory that is used");
        assert!(at.0 + u64::from(at.1) <= range.end, "{at:x?} lies in no range");
        assert_eq!(program_of(domain), range.program, "memory of another program");
        match (range.is_own, range.is_gone) {
            (false, _) => Ok(None),
            (true, false) => Ok(Some((*start, range.program))),
            (true, true) => Err(Refusal::at(NackCode::DecodeError, at.0)),
        }
    }
}

impl Bench {
    /// From now on transfers are between memories of programs.
    pub fn use_own_memory(&mut self, faults: OwnFaults) {
        let bytes = self.memory[0].len();
        let mut hosts = [0; 2].map(|_| Host::new(faults.iommu, bytes));
        for program in hosts.iter_mut().flat_map(|host| &mut host.programs) {
            for page in BASE / PAGE_BYTES..program.end_page {
                if self.random.one_in(3) {
                    program.pages.insert(page, Page::Missing(self.random.among(&Absence::ALL)));
                }
            }
        }
        self.own_faults = Some(faults);
        self.programs_stop = faults.freezing + faults.hanging + faults.dying > 0;
        self.hosts = Some(hosts);
        let now = self.now();
        for engine in &mut self.engines {
            engine.add_loopback_peer(now, HERE, 16 * 1024);
        }
    }

    /// From now on pages come, and none goes.
    pub fn calm_programs(&mut self) {
        if let Some(faults) = &mut self.own_faults {
            *faults = OwnFaults {
                going: 0,
                hanging: 0,
                freezing: 0,
                vanishing: 0,
                lying: 0,
                dying: 0,
                releasing: 0,
                full: 0,
                ..*faults
            };
        }
    }

    fn host(&mut self, node: usize) -> &mut Host {
        &mut self.hosts.as_mut().expect("programs' own memory")[node]
    }

    fn program(&mut self, node: usize, context: ContextId) -> Option<&mut Program> {
        self.host(node).programs.iter_mut().find(|program| program.context == context)
    }

    /// A program registers memory, or is given some of the node.
    pub(super) fn register(&mut self, node: usize, domain: Domain, start: u64, bytes: u32) {
        let Some(faults) = self.own_faults else { return };
        let is_own = !self.kernel.random(NODES[node]).per_million(faults.of_node);
        let (end, program) = (start + u64::from(bytes).max(1), program_of(domain));
        let range = Range { end, program, is_own, is_gone: false, is_free: false };
        let before = self.host(node).ranges.insert(start, range);
        assert!(before.is_none(), "registered twice at {start:#x}");
    }

    /// Whether memory is its program's again, who has written to it since.
    pub(super) fn is_free(&self, node: usize, start: u64) -> bool {
        let Some(hosts) = &self.hosts else { return false };
        let before = hosts[node].ranges.range(..=start).next_back();
        before.is_some_and(|(_, range)| range.is_free && start < range.end)
    }

    /// A node and its programs start afresh.
    pub(super) fn restart_programs(&mut self, node: usize) {
        let bytes = self.memory[node].len();
        let Some((hosts, faults)) = self.hosts.as_mut().zip(self.own_faults) else { return };
        let mut fresh = Host::new(faults.iommu, bytes);
        fresh.ranges = std::mem::take(&mut hosts[node].ranges);
        hosts[node] = fresh;
        self.engines[node].add_loopback_peer(self.now(), HERE, 16 * 1024);
    }

    /// Something changes in a program.
    pub(super) fn disturb_programs(&mut self) {
        let Some(faults) = self.own_faults else { return };
        let node = self.random.below(2) as usize;
        let which = self.random.below(PROGRAMS as u64) as usize;
        let now = self.now();
        let Some(hosts) = &mut self.hosts else { return };
        let program = &mut hosts[node].programs[which];
        if self.random.per_million(faults.going) {
            let kind = Page::Missing(self.random.among(&Absence::ALL));
            program.disturb(&mut self.random, kind);
        }
        if self.random.per_million(faults.freezing) {
            let most_ns = self.random.among(&[HANG_NS, STOP_NS]);
            let until = now.after_ns(self.random.below(most_ns));
            program.stopped_until = program.stopped_until.max(until);
        }
        if self.random.per_million(faults.vanishing) {
            let kind = self.random.among(&[Page::Protected, Page::Unmapped]);
            program.disturb(&mut self.random, kind);
            let delay_ns = self.random.below(VANISHED_NS);
            self.at(node, self.now().after_ns(delay_ns), Event::Mapped);
        }
        if self.random.per_million(faults.dying) {
            let host = self.host(node);
            host.own.close(host.programs[which].context);
            host.last_context += 1;
            host.programs[which].context = ContextId(host.last_context);
            host.programs[which].hanging.clear();
            host.programs[which].bringing.clear();
            host.programs[which].orders = 0;
            host.own.open(ContextId(host.last_context));
        }
        if self.random.per_million(faults.releasing) {
            let host = &self.hosts.as_ref().expect("programs' own memory")[node];
            let used = host.ranges.iter().filter(|(start, range)| {
                **start != WORDS_BASE && range.is_own && !range.is_gone && range.program == which
            });
            let starts: Vec<u64> = used.map(|(start, _)| *start).collect();
            if !starts.is_empty() {
                let start = self.random.among(&starts);
                self.release(node, start);
            }
        }
    }

    /// A program deregisters memory, or tries so once more.
    pub(super) fn release(&mut self, node: usize, start: u64) {
        let now = self.now();
        let host = self.host(node);
        let range = host.ranges.get_mut(&start).expect("a range");
        range.is_gone = true;
        let context = host.programs[range.program].context;
        match host.own.release(now, context, start) {
            Released::Now => self.released(node, context, start, true),
            Released::Later => {}
            Released::Stuck => self.at(node, self.now().after_ns(AGAIN_NS), Event::Release { start }),
        }
    }

    /// The program hears that its memory is its own again, and uses it.
    fn released(&mut self, node: usize, context: ContextId, start: u64, has_ended: bool) {
        let value = self.kernel.random(NODES[node]).next() as u8;
        let host = self.host(node);
        let Some(range) = host.ranges.get_mut(&start) else { panic!("nobody has taken back {start:#x}") };
        assert!(range.is_gone && !range.is_free, "released twice at {start:#x}");
        if host.programs[range.program].context != context {
            return;
        }
        if !has_ended {
            return self.at(node, self.now().after_ns(AGAIN_NS), Event::Release { start });
        }
        range.is_free = true;
        let bytes = (start - BASE) as usize..(range.end - BASE) as usize;
        self.memory[node][bytes.clone()].fill(value);
        self.expected[node][bytes].fill(value);
    }

    /// What had vanished is mapped again; its pages are to be brought in.
    pub(super) fn map_again(&mut self, node: usize) {
        for page in self.host(node).programs.iter_mut().flat_map(|program| program.pages.values_mut()) {
            if matches!(page, Page::Protected | Page::Unmapped) {
                *page = Page::Missing(Absence::Missing);
            }
        }
    }

    /// Begins an access. On an error nothing more is heard of it.
    fn begin(
        &mut self,
        node: usize,
        (range, program): (u64, usize),
        at: (u64, u32),
        (purpose, is_by_owner): (Purpose, bool),
        (order, bytes): (Order, Vec<u8>),
    ) -> Result<(), Refusal> {
        let faults = self.own_faults.expect("programs' own memory");
        let has_no_room = self.kernel.random(NODES[node]).per_million(faults.full);
        let now = self.now();
        let host = self.host(node);
        let context = host.programs[program].context;
        let end = host.ranges[&range].end;
        let policy = faults.policy;
        let request = Request { context, range: (range, end), policy, at, purpose, is_by_owner };
        if has_no_room {
            return Err(host.own.no_room(&request));
        }
        let right = if matches!(order, Order::Read) { Right::Read } else { Right::Write };
        let left = Left { program, range, at, look: at, right, bytes, order };
        let Begun { access: id, look, may_bring } = host.own.begin(now, &request, left)?;
        assert!(range <= look.0 && look.0 + u64::from(look.1) <= end, "looks beyond its range");
        host.own.with_mut(id).expect("an access that has begun").look = look;
        self.order(node, context, id, if may_bring { Attempt::Bringing } else { Attempt::Plain });
        Ok(())
    }

    /// The program is asked to attempt an access.
    fn order(&mut self, node: usize, context: ContextId, access: AccessId, how: Attempt) {
        let mut delay_ns = self.kernel.random(NODES[node]).below(20_000);
        if self.kernel.random(NODES[node]).per_million(self.faults.slow_copy) {
            delay_ns += self.kernel.random(NODES[node]).below(self.faults.slow_ns);
        }
        let Some(time) = self.next_order(node, context, delay_ns) else { return };
        self.at(node, time, Event::Attempt { context, access, how });
    }

    /// When a program takes an order that is given now, so many ns later at the earliest.
    fn next_order(&mut self, node: usize, context: ContextId, delay_ns: u64) -> Option<Time> {
        let earliest = self.now().after_ns(delay_ns);
        let program = self.program(node, context)?;
        program.orders += 1;
        assert!(program.orders <= MOST_ORDERS, "more orders than a ring has places");
        program.last_order = program.last_order.max(earliest);
        Some(program.last_order)
    }

    /// A program has answered an order.
    fn order_answered(&mut self, node: usize, context: ContextId) {
        if let Some(program) = self.program(node, context) {
            program.orders -= 1;
        }
    }

    /// Does what the machine of a node wants done.
    pub(super) fn drain_own(&mut self, node: usize) -> bool {
        let now = self.now();
        let Some(hosts) = &mut self.hosts else { return false };
        let Some(step) = hosts[node].own.poll(now, &mut self.engines[node]) else { return false };
        match step {
            Step::Attempt { access, is_forced } => {
                let program = hosts[node].own.with(access).expect("what is to be copied").program;
                let context = hosts[node].programs[program].context;
                self.order(node, context, access, if is_forced { Attempt::Forced } else { Attempt::Plain });
            }
            Step::Withdraw(context, access) => {
                let delay_ns = self.kernel.random(NODES[node]).below(20_000);
                if let Some(time) = self.next_order(node, context, delay_ns) {
                    self.at(node, time, Event::Withdraw { context, access });
                }
            }
            Step::Touch { touch, context, address, length_bytes, right } => {
                assert!(length_bytes > 0, "{step:?}");
                let faults = self.own_faults.expect("programs' own memory");
                let mut delay_ns = self.kernel.random(NODES[node]).below(faults.touch_ns.max(1));
                if self.kernel.random(NODES[node]).per_million(faults.hanging) {
                    delay_ns += HANG_NS;
                    self.program(node, context).expect("a program").hanging.insert(touch);
                }
                let at = (address, length_bytes);
                self.at(node, now.after_ns(delay_ns), Event::Touch { context, touch, range: at, right });
            }
            Step::Send(block, left) => self.send_packets(node, &block, &left.bytes),
            Step::Go(id, block, part) => self.go_on_here(node, id, block, part),
            Step::Changed(user, before) => self.ended(node, user as usize, Ok(()), before),
            Step::NotBegun(user) => self.change_again(node, user as usize),
            Step::NotChanged(user, refused) => self.not_changed(node, user as usize, refused),
            Step::Released(context, start, has_ended) => self.released(node, context, start, has_ended),
        }
        true
    }

    /// What takes too long is given up.
    pub(super) fn expire_own(&mut self, node: usize) {
        let now = self.now();
        if let Some(hosts) = &mut self.hosts {
            let own = &mut hosts[node].own;
            if own.next_deadline().is_some_and(|deadline| deadline <= now) {
                own.expire(now);
            }
        }
    }

    pub(super) fn own_deadline(&self, node: usize) -> Option<Time> {
        self.hosts.as_ref().and_then(|hosts| hosts[node].own.next_deadline())
    }

    /// Nothing of any access is left.
    pub(super) fn check_programs(&self) {
        for host in self.hosts.iter().flatten() {
            assert!(host.own.is_idle(), "{:?}", host.own);
            let programs = &host.programs;
            assert!(programs.iter().all(|program| program.hanging.is_empty() && program.bringing.is_empty()));
        }
    }
}
