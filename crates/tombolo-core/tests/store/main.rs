//! The far store over simulated lenders in virtual time: lenders are slow, silent, dead, drained and added, writes fail,
//! and each page that is read is the one that was written, as long as one lender of it lives. At the end the lenders
//! recover, every slot has all its copies, and nothing has leaked.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many, `TOMBOLO_SECONDS=1800` runs new ones for so long.
#![expect(clippy::disallowed_types, reason = "this test only looks things up by key")]

mod drains;
mod joined;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use tombolo_core::store::{
    Action, Config, Ended, Io, LenderId, LenderState, Lent, Location, Newcomer, NoRoom, Piece, Refused,
    SlotId, Source, Store, Ticket,
};
use tombolo_random::{Random, Seeds, mix};

const US: u64 = 1_000;
const MS: u64 = 1_000 * US;
const S: u64 = 1_000 * MS;

/// A lender is suspect when it has been silent for so long.
const SUSPECT_NS: u64 = 1_500 * MS;
/// And dead after so long.
const OUTAGE_NS: u64 = 6 * S;
/// Pages of staging memory.
const STAGING: u32 = 64;

/// A mistake in what carries the store's actions out, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// Other data is written over a stored slot.
    WrittenTwice,
    /// A write is reported to have failed, and its bytes come later.
    EndedEarly,
    /// A write's bytes come again after its end.
    LateDuplicate,
    /// A write is reported done and was not made.
    NotMade,
}

#[derive(Debug)]
enum Event {
    /// A write reaches its lender.
    Land {
        io: u64,
        again: bool,
    },
    /// A read or write ends.
    End {
        io: u64,
    },
    /// A lender answers.
    Answer {
        lender: u32,
        pages: u32,
    },
    /// What a lender was asked for has failed.
    NoAnswer {
        lender: u32,
    },
    /// A silent lender becomes suspect, is heard again, or is given up. The number says which silence is meant.
    Suspect {
        lender: u32,
        silence: u64,
    },
    Heard {
        lender: u32,
        silence: u64,
    },
    Dead {
        lender: u32,
        silence: u64,
    },
    /// A direct read ends.
    Unpin {
        slot: SlotId,
        address: u64,
        expected: u64,
    },
    /// The front end has used a buffer.
    BufferDone {
        buffer: u32,
    },
    Poll,
    Step,
}

/// A read or write under way.
#[derive(Clone, Copy)]
struct Doing {
    at: Location,
    pages: u32,
    from: Option<Source>,
    buffer: u32,
    fails: bool,
    /// Its bytes come after it has failed.
    is_late: bool,
    /// The number of further reads of the same message: they have the numbers behind this one, and end with it.
    further: u32,
}

#[derive(Default)]
struct Lender {
    capacity: u32,
    lent: BTreeMap<u64, u32>,
    next_segment: u64,
    is_direct: bool,
    is_dead: bool,
    is_readable: bool,
    /// Number of the silence that lasts, or 0.
    silence: u64,
    silent_until_ns: u64,
    drained: bool,
    memory: HashMap<(u64, u32), u64>,
}

struct Known {
    contents: u64,
    users: u32,
    stored: bool,
    /// A read is under way: it holds a user.
    reads: u32,
    /// Its checksum is known, so that a rotten copy is found.
    is_summed: bool,
    /// One copy of it was changed behind the store's back.
    is_rotten: bool,
    /// The lenders that have had it when that was looked at last.
    last: Vec<u32>,
}

struct World {
    random: Random,
    store: Store,
    config: Config,
    now_ns: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending: BTreeMap<u64, Event>,
    sequence: u64,
    lenders: Vec<Lender>,
    doing: BTreeMap<u64, Doing>,
    staging: Vec<u64>,
    staged_free: Vec<u32>,
    /// Which slot waits for which staging page.
    writing: BTreeMap<SlotId, u32>,
    buffers: HashMap<u32, u64>,
    slots: BTreeMap<SlotId, Known>,
    tickets: BTreeMap<u64, SlotId>,
    next_ticket: u64,
    next_contents: u64,
    planted: Planted,
    /// Copies rot.
    rots: bool,
    is_healed: bool,
    poll_at_ns: Option<u64>,
    lost: u64,
    /// Slots with too few copies when that was looked at last.
    degraded: u64,
    /// The lenders that were silent then.
    suspects: BTreeSet<u32>,
    /// Pages of each lender where late bytes were announced.
    never_free: HashMap<u32, u64>,
    /// Messages that read several pages.
    joined: u64,
}

fn checksum(contents: u64) -> u32 {
    mix(contents) as u32
}

impl World {
    fn new(seed: u64, planted: Planted) -> Self {
        let mut random = Random::new(seed);
        let config = Config {
            copies: 1 + random.below(2) as u8,
            slots_max: if random.one_in(4) { 100 } else { 100_000 },
            segment_least_pages: 16 << random.below(3),
            segment_most_pages: 256,
            stripe_pages: 1 << random.below(5),
            buffers: 4 << random.below(4),
            late_read_ns: 50 * MS,
            copies_in_flight: 1 + random.below(8) as u32,
            copies_per_s: 10_000,
            ask_again_ns: S,
            unused_ns: S,
            has_direct_writes: !random.one_in(4),
        };
        let mut world = Self {
            random,
            store: Store::new(config),
            config,
            now_ns: 0,
            events: BinaryHeap::new(),
            pending: BTreeMap::new(),
            sequence: 0,
            lenders: Vec::new(),
            doing: BTreeMap::new(),
            staging: vec![0; STAGING as usize],
            staged_free: (0..STAGING).collect(),
            writing: BTreeMap::new(),
            buffers: HashMap::new(),
            slots: BTreeMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            next_contents: 0,
            planted,
            rots: config.copies == 2 && planted == Planted::Nothing && seed.is_multiple_of(3),
            is_healed: false,
            poll_at_ns: None,
            lost: 0,
            degraded: 0,
            suspects: BTreeSet::new(),
            never_free: HashMap::new(),
            joined: 0,
        };
        for _ in 0..1 + world.random.below(4) {
            world.add_lender();
        }
        world
    }

    fn add_lender(&mut self) {
        let is_direct = self.random.one_in(3);
        let capacity = if self.is_healed { 100_000 } else { 64 + self.random.below(1024) as u32 };
        let host = self.random.below(3);
        let newcomer = Newcomer { host, distance: u32::from(!is_direct), round_trip_ns: 100 * US };
        let id = self.store.add_lender(newcomer);
        assert_eq!(id.0 as usize, self.lenders.len());
        let is_readable = is_direct && self.random.one_in(2);
        self.lenders.push(Lender { capacity, is_direct, is_readable, ..Lender::default() });
    }

    fn at(&mut self, after_ns: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now_ns + after_ns, self.sequence)));
        self.pending.insert(self.sequence, event);
    }

    /// How long a lender takes for something.
    fn delay(&mut self, lender: usize) -> u64 {
        let usual = if self.random.one_in(50) { 200 * MS } else { 50 * US };
        let silent = self.lenders[lender].silent_until_ns.saturating_sub(self.now_ns);
        silent + 1 + self.random.below(usual)
    }

    fn by_address(address: u64) -> (usize, (u64, u32)) {
        ((address >> 48) as usize - 1, (address >> 32 & 0xffff, (address as u32) >> 12))
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Borrow { lender, pages } => {
                let delay = self.delay(lender.0 as usize);
                self.at(delay, Event::Answer { lender: lender.0, pages });
            }
            Action::GiveBack { lender: id, segment } => {
                let lender = &mut self.lenders[id.0 as usize];
                let pages = lender.lent.remove(&segment).expect("it was lent");
                let is_there = |doing: &&Doing| doing.at.lender == id && doing.at.segment == segment;
                let left = self.doing.values().find(is_there).filter(|doing| !doing.is_late);
                assert!(left.is_none(), "a segment is given back in which something is under way");
                lender.capacity += pages;
                lender.memory.retain(|(of, _), _| *of != segment);
            }
            Action::Write { io, to, from, pages } => {
                let at = to.lender.0 as usize;
                self.check_write(to, pages);
                let fails = self.lenders[at].is_dead || (!self.is_healed && self.random.one_in(100));
                let io = io.into_word();
                let (land, end) = (self.delay(at), self.delay(at));
                let is_late = fails && !self.lenders[at].is_dead && self.random.one_in(2);
                let is_early = self.planted == Planted::EndedEarly && self.random.one_in(10);
                self.doing.insert(
                    io,
                    Doing {
                        at: to,
                        pages,
                        from: Some(from),
                        buffer: 0,
                        fails: fails || is_early,
                        is_late,
                        further: 0,
                    },
                );
                if is_late {
                    *self.never_free.entry(to.lender.0).or_default() += u64::from(pages);
                    self.at(land, Event::End { io });
                    self.at(land + 300 * MS, Event::Land { io, again: true });
                } else if is_early {
                    self.at(1, Event::End { io });
                    self.at(land + 300 * MS, Event::Land { io, again: true });
                } else {
                    if !fails {
                        self.at(land, Event::Land { io, again: false });
                    }
                    self.at(land + end, Event::End { io });
                }
            }
            Action::Read { io, from, buffer, pages } => {
                let at = from.lender.0 as usize;
                let lender = &self.lenders[at];
                let fails = lender.is_dead && !lender.is_readable;
                let is_live = !lender.is_dead;
                let fails = fails || (is_live && !self.is_healed && self.random.one_in(50));
                let delay = if lender.is_dead { 1 } else { self.delay(at) };
                self.joined += u64::from(pages > 1);
                for page in 0..pages {
                    self.check_read(from.offset(page));
                    let (io, at) = (io.offset(page).into_word(), from.offset(page));
                    let further = if page == 0 { pages - 1 } else { 0 };
                    let buffer = buffer + page;
                    let doing = Doing { at, pages: 1, from: None, buffer, fails, is_late: false, further };
                    self.doing.insert(io, doing);
                }
                self.at(delay, Event::End { io: io.into_word() });
            }
            Action::Written { slot, result } => {
                let staged = self.writing.remove(&slot).expect("it was being written");
                self.staged_free.push(staged);
                if result.is_ok() {
                    self.slots.get_mut(&slot).expect("a slot").stored = true;
                    self.check_apart(slot);
                } else {
                    self.slots.remove(&slot);
                    self.store.release(slot);
                }
            }
            Action::Arrived { ticket, buffer } => {
                let slot = self.tickets.remove(&ticket.name).expect("a ticket");
                let known = self.slots.get_mut(&slot).expect("a slot");
                known.reads -= 1;
                let expected = known.contents;
                match buffer {
                    Ok(buffer) => {
                        assert_eq!(self.buffers[&buffer], expected, "slot {slot} is not what was written");
                        let delay = self.random.below(MS);
                        self.at(delay, Event::BufferDone { buffer });
                    }
                    Err(_) => assert!(
                        self.store.is_lost(slot) || self.slots[&slot].is_rotten,
                        "slot {slot} is not lost: {:?}",
                        self.store.places(slot)
                    ),
                }
                self.release_one(slot);
            }
            Action::Drained { lender } => {
                let lender = &mut self.lenders[lender.0 as usize];
                assert!(
                    lender.lent.is_empty() || lender.is_dead,
                    "drained, and it still lends {:?}",
                    lender.lent
                );
                lender.drained = true;
            }
        }
    }

    /// Two copies are at two lenders.
    fn check_apart(&self, slot: SlotId) {
        if let [Some(one), Some(other)] = self.store.places(slot) {
            assert_ne!(one.lender(), other.lender(), "both copies of slot {slot} are at one lender");
        }
    }

    /// Nothing else uses the pages that are to be written.
    fn check_write(&self, to: Location, pages: u32) {
        let lender = &self.lenders[to.lender.0 as usize];
        assert!(lender.lent[&to.segment] >= to.page + pages, "a write behind the end of a segment");
        for doing in self.doing.values() {
            let is_apart = doing.at.lender != to.lender
                || doing.at.segment != to.segment
                || doing.at.page + doing.pages <= to.page
                || to.page + pages <= doing.at.page;
            assert!(is_apart, "a page is used again before what was under way there has ended: {to:?}");
        }
    }

    fn check_read(&self, from: Location) {
        let lender = &self.lenders[from.lender.0 as usize];
        let is_lent = lender.lent.get(&from.segment).is_some_and(|pages| from.page < *pages);
        assert!(is_lent, "a read of a segment that was given back, or beyond its end");
    }

    fn contents_of(&self, location: Location) -> u64 {
        let memory = &self.lenders[location.lender.0 as usize].memory;
        memory.get(&(location.segment, location.page)).copied().unwrap_or(0)
    }

    fn land(&mut self, io: u64, again: bool) {
        let Some(doing) = self.doing.get(&io).copied() else { return };
        for page in 0..doing.pages {
            let contents = match doing.from {
                Some(Source::Staged(from)) => self.staging[(from + page) as usize],
                Some(Source::Buffer(buffer)) => self.buffers[&buffer],
                None => unreachable!("a write"),
            };
            let skipped = self.planted == Planted::NotMade && self.random.one_in(20);
            let lender = &mut self.lenders[doing.at.lender.0 as usize];
            if !lender.is_dead && !skipped {
                lender.memory.insert((doing.at.segment, doing.at.page + page), contents);
            }
        }
        if again {
            self.doing.remove(&io);
        }
    }

    fn ended(&mut self, io: u64) {
        let Some(doing) = self.doing.get(&io).copied() else { return };
        let is_late_planted = self.planted == Planted::EndedEarly && doing.from.is_some() && doing.fails;
        if self.planted == Planted::LateDuplicate && doing.from.is_some() && self.random.one_in(4) {
            self.at(300 * MS, Event::Land { io, again: true });
        } else if !is_late_planted && !doing.is_late {
            self.doing.remove(&io);
        }
        let lender = &self.lenders[doing.at.lender.0 as usize];
        let is_gone = lender.is_dead && (doing.from.is_some() || !lender.is_readable);
        let ended = if doing.is_late {
            Ended::MayStillArrive
        } else if doing.fails || is_gone {
            Ended::Failed
        } else {
            let contents = self.contents_of(doing.at);
            if doing.from.is_none() {
                self.buffers.insert(doing.buffer, contents);
            }
            // Half of the time nobody computes checksums, and the checks here have to find what is wrong.
            Ended::Done { checksum: checksum(contents) }
        };
        self.store.completed(self.now_ns, Io::from_word(io), ended);
        if self.random.one_in(20) && self.planted == Planted::Nothing {
            self.store.completed(self.now_ns, Io::from_word(io), Ended::Failed);
        }
    }

    /// A lender says nothing for a while.
    fn silence(&mut self, lender: u32, length_ns: u64) {
        self.sequence += 1;
        let silence = self.sequence;
        let until_ns = self.now_ns + length_ns;
        let state = &mut self.lenders[lender as usize];
        (state.silence, state.silent_until_ns) = (silence, until_ns);
        // What was under way there waits, too.
        let held: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, event)| match event {
                Event::Land { io, .. } | Event::End { io } => {
                    self.doing.get(io).is_some_and(|doing| doing.at.lender.0 == lender)
                }
                Event::Answer { lender: of, .. } => *of == lender,
                _ => false,
            })
            .map(|(sequence, _)| *sequence)
            .collect();
        let held: BTreeSet<u64> = held.into_iter().collect();
        let events = std::mem::take(&mut self.events);
        self.events = events
            .into_iter()
            .map(|Reverse((at_ns, sequence))| {
                Reverse((if held.contains(&sequence) { at_ns + length_ns } else { at_ns }, sequence))
            })
            .collect();
        // What it was asked for is given up by one that hears of a lost path before it suspects anything.
        let asked: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, event)| matches!(event, Event::Answer { lender: of, .. } if *of == lender))
            .map(|(sequence, _)| *sequence)
            .collect();
        if self.random.one_in(2) {
            for sequence in asked {
                self.pending.remove(&sequence);
                let soon = SUSPECT_NS - self.random.below(S);
                self.at(soon, Event::NoAnswer { lender });
            }
        }
        self.at(SUSPECT_NS, Event::Suspect { lender, silence });
        self.at(length_ns, Event::Heard { lender, silence });
        self.at(OUTAGE_NS, Event::Dead { lender, silence });
    }

    fn kill(&mut self, lender: u32) {
        let state = &mut self.lenders[lender as usize];
        if state.is_dead {
            return;
        }
        state.is_dead = true;
        state.silent_until_ns = 0;
        let is_readable = state.is_readable;
        self.check_places();
        // What was under way there fails soon.
        for sequence in self.pending.keys().copied().collect::<Vec<_>>() {
            let is_there = match &self.pending[&sequence] {
                Event::End { io } => self.doing.get(io).is_some_and(|doing| doing.at.lender.0 == lender),
                _ => false,
            };
            if is_there {
                let Some(event) = self.pending.remove(&sequence) else { continue };
                let delay = 1 + self.random.below(MS);
                self.at(delay, event);
            }
        }
        self.store.set_dead(self.now_ns, LenderId(lender), is_readable);
        self.check_losses();
    }

    /// No copy is given up that was the only one at a lender that lives and is heard.
    fn check_places(&mut self) {
        let lenders = &self.lenders;
        let store = &self.store;
        let is_suspect =
            |lender: &u32| store.lender(LenderId(*lender)).is_some_and(|lender| lender.is_suspect);
        let is_gone =
            |lender: &u32| lenders[*lender as usize].is_dead && !lenders[*lender as usize].is_readable;
        for (slot, known) in self.slots.iter_mut().filter(|(_, known)| known.stored && !known.is_rotten) {
            let now: Vec<u32> =
                store.places(*slot).into_iter().flatten().map(|place| place.lender().0).collect();
            if let [only] = now[..]
                && let [_, _] = known.last[..]
                && known.last.contains(&only)
            {
                let given_up = known.last.iter().find(|lender| **lender != only);
                // It was so already when this was looked at last, and so when the copy was given up.
                let was_suspect = self.suspects.contains(&only) && is_suspect(&only);
                assert!(
                    given_up.is_none_or(is_gone) || !was_suspect,
                    "slot {slot}: a copy is given up, and the other lender is silent"
                );
            }
            assert!(
                !now.is_empty() || known.last.iter().all(is_gone),
                "slot {slot} is discarded: {:?}",
                known.last
            );
            if !now.is_empty() {
                known.last = now;
            }
        }
        self.suspects = (0..self.lenders.len() as u32).filter(is_suspect).collect();
    }

    /// A slot is lost only if no lender has its contents any more.
    fn check_losses(&mut self) {
        let mut lost = Vec::new();
        for (&slot, known) in self.slots.iter().filter(|(_, known)| known.stored) {
            let is_lost = self.store.is_lost(slot);
            let is_there = self.store.places(slot).into_iter().flatten().any(|place| {
                let lender = &self.lenders[place.lender().0 as usize];
                !lender.is_dead || lender.is_readable
            });
            assert_eq!(is_lost, !is_there, "slot {slot}: {:?}", self.store.places(slot));
            if is_lost && known.reads == 0 {
                lost.push(slot);
            }
        }
        // The front end gives up what is lost.
        for slot in lost {
            self.lost += 1;
            let users = self.slots[&slot].users;
            for _ in 0..users {
                self.release_one(slot);
            }
        }
    }

    fn release_one(&mut self, slot: SlotId) {
        let known = self.slots.get_mut(&slot).expect("a slot");
        known.users -= 1;
        if known.users == 0 {
            self.slots.remove(&slot);
        }
        self.store.release(slot);
    }

    fn some_stored(&mut self) -> Option<SlotId> {
        let stored: Vec<SlotId> =
            self.slots.iter().filter(|(_, known)| known.stored).map(|(slot, _)| *slot).collect();
        (!stored.is_empty()).then(|| stored[self.random.index(stored.len())])
    }

    fn new_slots(&mut self) {
        let mut pieces = Vec::new();
        for _ in 0..1 + self.random.below(16) {
            let Some(&staged) = self.staged_free.last() else { break };
            let (slot, direct) = match self.store.take() {
                Ok(taken) => taken,
                Err(NoRoom::NotYet | NoRoom::Full) => break,
            };
            self.next_contents += 1;
            let contents = self.next_contents;
            assert!(!self.slots.contains_key(&slot), "slot {slot} is taken twice");
            if let Some(address) = direct {
                let (lender, page) = Self::by_address(address);
                self.check_direct(lender, page);
                self.lenders[lender].memory.insert(page, contents);
                if self.random.one_in(8) {
                    // It was a zero page.
                    self.store.release(slot);
                } else if self.store.commit(slot, Some(checksum(contents))).is_ok() {
                    self.slots.insert(
                        slot,
                        Known {
                            contents,
                            users: 1,
                            stored: true,
                            reads: 0,
                            is_summed: true,
                            is_rotten: false,
                            last: Vec::new(),
                        },
                    );
                } else {
                    self.store.release(slot);
                }
                continue;
            }
            let checksum = self.random.one_in(2).then(|| checksum(contents));
            let is_summed = checksum.is_some();
            self.slots.insert(
                slot,
                Known {
                    contents,
                    users: 1,
                    stored: false,
                    reads: 0,
                    is_summed,
                    is_rotten: false,
                    last: Vec::new(),
                },
            );
            self.staged_free.pop();
            self.staging[staged as usize] = contents;
            self.writing.insert(slot, staged);
            pieces.push(Piece { slot, staged, checksum });
        }
        // Checksums may come while lenders are at work.
        let late: Vec<_> = pieces
            .iter_mut()
            .filter(|_| self.random.one_in(2))
            .filter_map(|piece| Some((piece.slot, piece.checksum.take()?)))
            .collect();
        self.store.write(&pieces);
        for (slot, checksum) in late {
            self.store.set_checksum(slot, checksum);
        }
    }

    /// Nothing else uses a page that the front end writes directly.
    fn check_direct(&self, lender: usize, (segment, page): (u64, u32)) {
        for doing in self.doing.values() {
            let is_there = doing.at.lender.0 as usize == lender
                && doing.at.segment == segment
                && (doing.at.page..doing.at.page + doing.pages).contains(&page);
            assert!(!is_there, "a page is used again before what was under way there has ended");
        }
    }

    fn read(&mut self, slot: SlotId, is_awaited: bool) {
        let known = self.slots.get_mut(&slot).expect("a slot");
        if !self.store.share(slot) {
            return;
        }
        known.users += 1;
        known.reads += 1;
        self.next_ticket += 1;
        self.tickets.insert(self.next_ticket, slot);
        let waited_since_ns = is_awaited.then_some(self.now_ns);
        self.store.read(self.now_ns, slot, Ticket { name: self.next_ticket, waited_since_ns });
    }

    /// What the front end or a lender does next.
    fn step(&mut self) {
        let what = self.random.below(100);
        self.do_step(what);
    }

    /// Below 88 it is the front end that does something.
    fn do_step(&mut self, what: u64) {
        match what {
            0..40 => self.new_slots(),
            40..65 => {
                if let Some(slot) = self.some_stored() {
                    let is_awaited = self.random.one_in(2);
                    self.read(slot, is_awaited);
                    let is_ahead = self.random.one_in(2);
                    for next in (slot + 1..slot + 6).filter(|_| is_ahead) {
                        if self.slots.get(&next).is_some_and(|slot| slot.stored) {
                            self.read(next, false);
                        }
                    }
                }
            }
            65..70 => {
                if let Some(slot) = self.some_stored()
                    && let Ok(Some(address)) = self.store.pin(slot)
                {
                    let expected = self.slots[&slot].contents;
                    let delay = self.random.below(20 * MS);
                    self.at(delay, Event::Unpin { slot, address, expected });
                }
            }
            70..85 => {
                if let Some(slot) = self.some_stored()
                    && self.slots[&slot].users > self.slots[&slot].reads
                {
                    self.release_one(slot);
                }
            }
            85..88 => {
                if let Some(slot) = self.some_stored()
                    && self.store.share(slot)
                {
                    self.slots.get_mut(&slot).expect("a slot").users += 1;
                }
            }
            88..94 => {
                let lender = self.random.below(self.lenders.len() as u64) as u32;
                let state = &self.lenders[lender as usize];
                if !state.is_dead && state.silence == 0 {
                    let length_ns = if self.random.one_in(4) { 10 * S } else { 1 + self.random.below(4 * S) };
                    self.silence(lender, length_ns);
                }
            }
            94..95 => {
                let lender = self.random.below(self.lenders.len() as u64) as u32;
                if self.random.one_in(2) {
                    self.kill(lender);
                }
            }
            95..96 => {
                let lender = self.random.below(self.lenders.len() as u64) as u32;
                if self.random.one_in(2) {
                    let _ = self.store.drain(LenderId(lender));
                }
            }
            97 if self.rots => self.rot(),
            96..98 if self.lenders.len() < 12 => self.add_lender(),
            98 if self.planted == Planted::WrittenTwice => {
                if let Some(slot) = self.some_stored()
                    && let Some(address) = self.store.direct(slot)
                {
                    let (lender, page) = Self::by_address(address);
                    self.lenders[lender].memory.insert(page, 0);
                }
            }
            _ => {}
        }
    }

    /// One of two copies of a slot is not any more what was written, and the store is not told.
    fn rot(&mut self) {
        let Some(slot) = self.some_stored() else { return };
        let known = self.slots.get_mut(&slot).expect("a slot");
        // While it is read directly, nobody looks at checksums.
        let [Some(one), Some(other)] = self.store.places(slot) else { return };
        if !known.is_summed || known.is_rotten || self.store.direct(slot).is_some() {
            return;
        }
        let place = if self.random.one_in(2) { one } else { other };
        let Some(location) = self.store.location(place) else { return };
        known.is_rotten = true;
        let lender = &mut self.lenders[location.lender.0 as usize];
        lender.memory.insert((location.segment, location.page), u64::MAX);
    }

    fn event(&mut self, event: Event) {
        let is_step = matches!(event, Event::Step);
        match event {
            Event::Land { io, again } => self.land(io, again),
            Event::End { io } => {
                let further = self.doing.get(&io).map_or(0, |doing| doing.further);
                // As a node does: all of a message ends before the store is asked what to do.
                (0..=u64::from(further)).for_each(|page| self.ended(io + page));
            }
            Event::Answer { lender, pages } => {
                let state = &mut self.lenders[lender as usize];
                if state.is_dead {
                    return;
                }
                if !self.is_healed && self.random.one_in(20) {
                    return self.store.lent(self.now_ns, LenderId(lender), Err(Refused::Failed));
                }
                let state = &mut self.lenders[lender as usize];
                if state.capacity < pages {
                    let refused = Refused::HasOnly(state.capacity);
                    return self.store.lent(self.now_ns, LenderId(lender), Err(refused));
                }
                state.capacity -= pages;
                state.next_segment += 1;
                let segment = state.next_segment;
                state.lent.insert(segment, pages);
                let direct = state.is_direct.then_some((u64::from(lender) + 1) << 48 | segment << 32);
                self.store.lent(self.now_ns, LenderId(lender), Ok(Lent { segment, pages, direct }));
            }
            Event::NoAnswer { lender } => {
                if !self.lenders[lender as usize].is_dead {
                    self.store.lent(self.now_ns, LenderId(lender), Err(Refused::Failed));
                }
            }
            Event::Suspect { lender, silence } => {
                if self.lenders[lender as usize].silence == silence {
                    self.store.set_suspect(self.now_ns, LenderId(lender), true);
                }
            }
            Event::Heard { lender, silence } => {
                let state = &mut self.lenders[lender as usize];
                if state.silence == silence {
                    state.silence = 0;
                    self.store.set_suspect(self.now_ns, LenderId(lender), false);
                }
            }
            Event::Dead { lender, silence } => {
                if self.lenders[lender as usize].silence == silence {
                    self.kill(lender);
                }
            }
            Event::Unpin { slot, address, expected } => {
                let (lender, page) = Self::by_address(address);
                let state = &self.lenders[lender];
                if !state.is_dead || state.is_readable {
                    assert_eq!(
                        state.memory.get(&page),
                        Some(&expected),
                        "slot {slot} changed while it was read"
                    );
                }
                self.store.unpin(slot);
            }
            Event::BufferDone { buffer } => self.store.buffer_done(self.now_ns, buffer),
            Event::Poll => {}
            Event::Step => self.step(),
        }
        while let Some(action) = self.store.poll(self.now_ns) {
            self.carry_out(action);
        }
        // A copy that was given up shows in their number.
        let degraded = self.store.degraded();
        if std::mem::replace(&mut self.degraded, degraded) < degraded || is_step {
            self.check_places();
        }
        if let Some(at_ns) = self.store.next_deadline() {
            let at_ns = at_ns.max(self.now_ns + 1);
            if self.poll_at_ns.is_none_or(|known| at_ns < known || known <= self.now_ns) {
                self.poll_at_ns = Some(at_ns);
                self.at(at_ns - self.now_ns, Event::Poll);
            }
        }
    }

    /// The next event. False: there is none.
    fn run_one(&mut self) -> bool {
        let Some(Reverse((at_ns, sequence))) = self.events.pop() else { return false };
        if let Some(event) = self.pending.remove(&sequence) {
            self.now_ns = at_ns;
            self.event(event);
        }
        true
    }

    fn run_for(&mut self, length_ns: u64) {
        let end_ns = self.now_ns + length_ns;
        while self.events.peek().is_some_and(|Reverse((at_ns, _))| *at_ns <= end_ns) {
            self.run_one();
        }
        self.now_ns = end_ns;
    }

    fn run(mut self) -> Self {
        for _ in 0..400 {
            let pause = if self.random.one_in(20) { 500 * MS } else { 2 * MS };
            let pause = self.random.below(pause);
            self.run_for(pause);
            self.event(Event::Step);
        }
        if self.random.one_in(2) {
            self.drain_all_but_one();
        }
        self.heal();
        self
    }

    /// A drain ends under load also when only one lender is left. That one has room, and neither fails.
    fn drain_all_but_one(&mut self) {
        self.is_healed = true;
        let first = self.lenders.len();
        for _ in 0..2 {
            self.add_lender();
        }
        self.store.grow_all();
        for drained in 0..=first {
            if self.lenders[drained].is_dead {
                continue;
            }
            let _ = self.store.drain(LenderId(drained as u32));
            for _ in 0..if drained + 1 < first { 1 } else { 30 } {
                let pause = self.random.below(2 * MS);
                self.run_for(pause);
                let what = self.random.below(88);
                self.do_step(what);
                self.event(Event::Poll);
            }
        }
        // It goes on under load.
        let waits = |world: &Self| {
            let lenders = world.lenders[..=first].iter().enumerate();
            let open = lenders.filter(|(_, lender)| !lender.is_dead && !lender.drained);
            // A page whose only copy is rotten is never moved, one where a write may still arrive never free.
            let ends = |id: usize| !world.rots && !world.never_free.contains_key(&(id as u32));
            open.map(|(id, _)| id).find(|id| ends(*id))
        };
        for _ in 0..2000 {
            let Some(id) = waits(self) else { break };
            // It was refused while the others were silent.
            let _ = self.store.drain(LenderId(id as u32));
            let pause = self.random.below(10 * MS);
            self.run_for(pause);
            // What there is stays about as much.
            let first = if self.slots.len() > 300 { 40 } else { 0 };
            let what = self.random.range(first, 87);
            self.do_step(what);
            self.event(Event::Poll);
        }
        // With few copies at once, and lenders that are slow, that takes long.
        self.run_for(60 * S);
        if let Some(id) = waits(self) {
            panic!("the drain of {id} has no end: {}", self.store.under_way());
        }
        self.is_healed = false;
    }

    /// No lender fails any more, and there is room: every slot gets its copies, and every read ends.
    fn heal(&mut self) {
        self.is_healed = true;
        self.planted = Planted::Nothing;
        for _ in 0..2 {
            self.add_lender();
        }
        self.store.grow_all();
        self.event(Event::Poll);
        self.run_for(60 * S);
        // A rotten page that is to be moved is read again now and then.
        for _ in 0..100 {
            if self.rots && !self.store.is_idle() {
                self.run_for(7 * MS);
            }
        }
        assert!(
            self.store.is_idle(),
            "something is still under way a minute later: {}",
            self.store.under_way()
        );
        // Of a slot whose good copy died with its lender, nothing can be copied.
        let rotten = self.slots.values().filter(|known| known.is_rotten).count() as u64;
        let (degraded, waiting) = (self.store.degraded(), self.store.copies_waiting());
        assert!(
            degraded <= rotten && waiting <= 2 * rotten,
            "{degraded} with too few copies, {waiting} to be made, {rotten} rotten: {}",
            self.store.under_way()
        );
        assert_eq!((self.writing.len(), self.tickets.len()), (0, 0));
        self.check_losses();
        for (&slot, known) in &self.slots {
            self.check_apart(slot);
            let places: Vec<_> = self.store.places(slot).into_iter().flatten().collect();
            if known.is_rotten {
                continue;
            }
            assert_eq!(places.len(), usize::from(self.config.copies), "slot {slot}");
            for place in places {
                assert_eq!(
                    self.store.lender(place.lender()).map(|lender| lender.state),
                    Some(LenderState::Active)
                );
            }
            assert!(known.users > 0 && known.reads == 0);
        }
        for slot in self.slots.keys().copied().collect::<Vec<_>>() {
            self.read(slot, true);
            self.event(Event::Poll);
        }
        self.run_for(60 * S);
        for slot in self.slots.keys().copied().collect::<Vec<_>>() {
            while self.slots.contains_key(&slot) {
                self.release_one(slot);
            }
        }
        self.event(Event::Poll);
        self.run_for(60 * S);
        assert_eq!(self.store.used(), 0);
        for (id, lender) in (0u32..).zip(&self.lenders) {
            let status = self.store.lender(LenderId(id)).expect("a lender");
            let never_free = self.never_free.get(&id).copied().unwrap_or(0);
            assert!(
                status.used_pages == 0
                    || (status.state == LenderState::Active && status.used_pages == never_free),
                "{} pages of lender {id} have leaked, beside {never_free}",
                status.used_pages
            );
            if !lender.is_dead && status.state == LenderState::Active {
                let lent: u64 = lender.lent.values().map(|&pages| u64::from(pages)).sum();
                assert_eq!(status.borrowed_pages, lent, "lender {id}");
            }
            assert_ne!(status.state, LenderState::DeadReadable, "lender {id} is dead, and its memory stays");
            if status.state == LenderState::Gone && !lender.is_dead {
                assert!(lender.drained && lender.lent.is_empty());
            }
        }
    }
}

#[test]
fn every_page_is_what_was_written_while_a_lender_of_it_lives() {
    let (mut lost, mut moved, mut restored, mut doubled, mut other, mut corrupt) = (0, 0, 0, 0, 0, 0);
    let mut joined = 0;
    let count = Seeds::from_environment(400).run("cargo test -p tombolo-core --test store", |seed| {
        let world = World::new(seed, Planted::Nothing).run();
        let counters = world.store.counters();
        lost += world.lost;
        joined += world.joined;
        moved += counters.copies_moved + counters.writes_moved;
        restored += counters.copies_restored;
        doubled += counters.reads_doubled;
        other += counters.reads_by_other;
        assert!(counters.corrupt_pages == 0 || world.rots);
        corrupt += counters.corrupt_pages;
    });
    println!(
        "{lost} slots lost, {moved} copies moved, {restored} restored, {doubled} reads doubled, {other} by the other, \
         {corrupt} corrupt pages found, {joined} messages that read several pages"
    );
    assert!(count < 10 || joined > 0);
}

/// Seeds with which a planted mistake is found.
fn found(planted: Planted) -> usize {
    let seeds =
        (1..=60).filter(|&seed| std::panic::catch_unwind(|| World::new(seed, planted).run()).is_err());
    seeds.count()
}

#[test]
fn planted_mistakes_are_found() {
    let mistakes = [Planted::WrittenTwice, Planted::EndedEarly, Planted::LateDuplicate, Planted::NotMade];
    let counts: Vec<_> = mistakes.into_iter().map(|planted| (planted, found(planted))).collect();
    println!("{counts:?}");
    assert!(counts.iter().all(|(_, found)| *found > 0), "{counts:?}");
}
