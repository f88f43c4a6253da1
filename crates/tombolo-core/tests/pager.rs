//! Random programs on a modelled kernel: whatever they do to their memory, and however late evictions and
//! fetches end, each page has the contents that it would have without a pager, no far page leaks, and the
//! count of resident pages is right: a page that forks share counts once.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::pager::batch::{At, Contents, Event, Victim, note_taken, sort_out, written};
use tombolo_core::pager::{
    AREAS, Access, Area, Decision, Entry, Frame, Frames, Outcome, Page, Remains, Saved, Seen, State, Table,
    UnderWay,
};
use tombolo_core::store::{Action, Config, Lent, Newcomer, Store};
use tombolo_random::{Random, Seeds};

/// Pages of the address space that programs use.
const PAGES: u64 = 40;
/// Address spaces at once.
const SPACES_MAX: usize = 5;

/// A present page, as the kernel has it.
#[derive(Clone, Copy)]
struct Present {
    contents: u64,
    protected: bool,
    /// Of its memory: forks share it.
    id: u64,
    /// A device may write to it, past any protection. The kernel does not move it, and a fork copies it at once.
    pinned: bool,
}

impl Present {
    fn new(contents: u64, protected: bool) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { contents, protected, id: NEXT.fetch_add(1, Ordering::Relaxed), pinned: false }
    }
}

/// A page on its way out, and what its agent has done with it.
struct Leaving {
    victim: Victim,
    /// The agent has done with it what it does.
    is_done: bool,
    /// What was read of it: where the agent has moved it to, or where it is kept.
    contents: Option<u64>,
}

impl Leaving {
    fn new(victim: Victim) -> Self {
        Self { victim, is_done: false, contents: None }
    }
}

/// Pages that leave together.
struct Batch {
    command: u32,
    area: Option<Area>,
    leaving: Vec<Leaving>,
    /// The agent has answered: their contents have been read, and are being saved.
    is_saving: bool,
    cancelled: bool,
}

#[derive(Clone, Default)]
struct Memory {
    present: BTreeMap<Page, Present>,
    /// What the program must find: a mapped page and its contents.
    expected: BTreeMap<Page, u64>,
    /// Pages with a guard, which no thread can reach.
    guards: BTreeSet<Page>,
    /// A range where the program has installed guards, and what is stored there has not been given up yet.
    guarding: Option<(Page, Page)>,
}

impl Memory {
    /// A page is copied to where none is: that takes a guard away, which only a call that installs guards, and is not over, puts back.
    fn copy(&mut self, page: Page, present: Present) {
        if self.guards.remove(&page) {
            let is_guarding = self.guarding.is_some_and(|(first, end)| (first..end).contains(&page));
            assert!(is_guarding, "the guard of page {page} is taken away");
        }
        self.present.entry(page).or_insert(present);
    }

    /// The kernel installs the guards.
    fn install(&mut self) {
        let (first, end) = self.guarding.expect("a range");
        for (page, expected) in self.expected.range_mut(first..end) {
            *expected = 0;
            self.present.remove(page);
            self.guards.insert(*page);
        }
    }
}

#[derive(Default)]
struct Space {
    memory: Memory,
    table: Table,
    under_way: UnderWay,
    /// The first one is saved first.
    batches: Vec<Batch>,
    /// What lies in the staging areas.
    areas: [BTreeMap<u32, u64>; AREAS],
    fetches: Vec<Page>,
    /// Faults that the kernel has reported, and nobody has read yet.
    unread: Vec<(Page, Access)>,
    /// Pages that threads wait for: somebody has to wake them.
    asleep: BTreeSet<Page>,
    resident: u64,
    /// A range to which a mapping was moved, while the kernel has not told of it yet: until then the kernel refuses each move (EAGAIN). A child of a fork
    /// may have an eviction under way there, where it has inherited no mapping.
    moved_to: Option<(Page, Page)>,
}

impl Space {
    /// What is left of the command that the agent has is void.
    fn cancel(&mut self) {
        let command = self.under_way.command();
        let commanded = self.batches.iter_mut().filter(|batch| batch.command == command);
        commanded.for_each(|batch| batch.cancelled = true);
    }

    /// The batch whose pages the agent is moving.
    fn moving(&self) -> Option<usize> {
        let command = self.under_way.command();
        self.batches.iter().position(|batch| batch.command == command && !batch.cancelled && !batch.is_saving)
    }

    fn is_saving(&self) -> bool {
        self.batches.iter().any(|batch| batch.is_saving)
    }
}

/// A store of this many slots, which are reached directly or not.
fn slots_of(slots_max: u32, is_direct: bool) -> Store {
    let mut store = Store::new(Config { slots_max, ..Config::default() });
    store.add_lender(Newcomer { host: 0, distance: 0, round_trip_ns: 0 });
    store.grow_all();
    let Some(Action::Borrow { lender, pages }) = store.poll(0) else { panic!("a lender is asked") };
    store.lent(0, lender, Ok(Lent { segment: 0, pages, direct: is_direct.then_some(1 << 32) }));
    store
}

fn slots(slots_max: u32) -> Store {
    slots_of(slots_max, true)
}

struct World {
    random: Random,
    spaces: BTreeMap<u32, Space>,
    next_space: u32,
    slots: Store,
    frames: Frames,
    /// Room that frames have.
    framed: u64,
    far: BTreeMap<u32, u64>,
    /// Far pages are reached by messages: fetches end later.
    slow: bool,
    age: u64,
    /// Pages taken back where their eviction began, and elsewhere; and of those, ones that were awaited.
    taken: [u64; 2],
    awaited: u64,
    /// Shared pages that were dropped, and pages that were found to be copies.
    dropped: u64,
    copied: u64,
    written_by_devices: u64,
    /// Pages that share frames and were made their process's own, to leave next. A fork may come before, and count them too low.
    owned: u64,
    /// Pages that were kept where they were and dropped, or stayed; and pages that went back because they could not be saved.
    kept: [u64; 2],
    returned: u64,
    /// The number of the last command, and batches that began while another one was being saved.
    command: u32,
    overlaps: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let slow = random.below(2) == 0;
        let mut spaces = BTreeMap::new();
        spaces.insert(0, Space::default());
        Self {
            random,
            spaces,
            next_space: 1,
            slots: slots_of(4096, !slow),
            frames: Frames::default(),
            framed: 0,
            far: BTreeMap::new(),
            slow,
            age: 0,
            taken: [0; 2],
            awaited: 0,
            dropped: 0,
            copied: 0,
            written_by_devices: 0,
            owned: 0,
            kept: [0; 2],
            returned: 0,
            command: 0,
            overlaps: 0,
        }
    }

    /// Whether no other space has a page's memory.
    fn is_exclusive(&self, id: u32, page: Page) -> bool {
        let Some(own) = self.spaces[&id].memory.present.get(&page) else { return true };
        let present = self.spaces.values().flat_map(|space| space.memory.present.values());
        present.filter(|present| present.id == own.id).count() == 1
    }

    /// What the kernel does with a write to a page that is there and not protected.
    fn write(&mut self, id: u32, page: Page, value: u64) {
        let exclusive = self.is_exclusive(id, page);
        let memory = &mut self.space(id).memory;
        memory.expected.insert(page, value);
        if let Some(present) = memory.present.get_mut(&page) {
            *present = if exclusive {
                Present { contents: value, ..*present }
            } else {
                Present::new(value, present.protected)
            };
        }
    }

    /// A device is about to write to a page, as a direct read from a disk does.
    fn pin(&mut self, id: u32, page: Page) {
        let value = 1 + self.random.next() % 1_000_000;
        self.access(id, page, Some(value));
        let is_exclusive = self.is_exclusive(id, page);
        let present = self.space(id).memory.present.get_mut(&page);
        if let Some(present) = present.filter(|present| is_exclusive && !present.protected) {
            present.pinned = true;
        }
    }

    /// Devices write to what is pinned, and are done with some of it.
    fn write_pinned(&mut self) {
        for space in self.spaces.values_mut() {
            for (page, present) in space.memory.present.iter_mut().filter(|(_, present)| present.pinned) {
                present.contents = 1 + self.random.next() % 1_000_000;
                present.pinned = self.random.below(2) == 0;
                space.memory.expected.insert(*page, present.contents);
                self.written_by_devices += 1;
            }
        }
    }

    /// Pages have left frames, perhaps.
    fn drain(&mut self, id: u32) {
        let left = self.space(id).table.take_left();
        for left in left {
            self.leave(left.frame);
        }
    }

    fn leave(&mut self, frame: Frame) {
        if let Remains::Nothing { .. } = self.frames.leave(frame, &mut self.slots) {
            self.framed -= 1;
        }
    }

    /// Pages of a range are protected, and it is seen which of them are shared.
    fn verify(&mut self, id: u32, first: Page, end: Page) {
        for page in first..end {
            if self.spaces[&id].table.get(page).frame().is_none() {
                continue;
            }
            let space = self.space(id);
            space.memory.present.entry(page).and_modify(|present| present.protected = true);
            space.table.protected(page);
            let seen = match self.is_exclusive(id, page) {
                _ if !self.spaces[&id].memory.present.contains_key(&page) => Seen::Absent,
                true => Seen::Exclusive,
                false => Seen::Shared,
            };
            let space = self.spaces.get_mut(&id).expect("a space");
            let is_own = space.table.verify(page, seen, &mut self.slots, &self.frames);
            space.resident += u64::from(is_own);
            self.copied += u64::from(is_own);
            self.drain(id);
        }
    }

    /// Pages whose frames have no other holder any more are ordinary again.
    fn collapse(&mut self, id: u32) {
        let (first, end) = self.range();
        let space = self.spaces.get_mut(&id).expect("a space");
        for page in first..end {
            let frame = space.table.get(page).frame();
            if frame.is_some_and(|frame| self.frames.holders(frame) == 1) {
                space.resident += 1;
                if space.table.collapse(page, &mut self.slots, &self.frames) {
                    space.memory.present.entry(page).and_modify(|present| present.protected = false);
                }
            }
        }
        self.drain(id);
    }

    /// A page that shares a frame begins to leave, if it is verified.
    fn begin_to_leave(&mut self, id: u32, page: Page) -> Option<Leaving> {
        if !self.spaces[&id].table.get(page).is_verified() {
            self.verify(id, page, page + 1);
        }
        let space = self.spaces.get_mut(&id).expect("a space");
        let entry = space.table.get(page);
        let (Some(frame), false) = (entry.frame(), space.table.is_name(page)) else { return None };
        let contents = space.memory.present.get(&page).map(|present| present.contents);
        let contents = match self.frames.saved(frame) {
            Saved::Slot(slot) if self.slots.share(slot) => {
                assert!(
                    contents.is_none_or(|contents| contents == self.far[&slot]),
                    "a frame is as its slot"
                );
                Contents::Stored(Some(slot))
            }
            Saved::Zero => {
                assert!(contents.is_none_or(|contents| contents == 0), "a frame is zeroes");
                Contents::Stored(None)
            }
            _ => match Contents::to_store(&mut self.slots) {
                Ok(contents) => contents,
                Err(_) => return None,
            },
        };
        let victim = Victim::new(page, contents).with_frame(frame);
        let (state, slot) =
            if victim.is_stored() { (State::EvictDrop, victim.slot()) } else { (State::EvictCopy, None) };
        space.table.set(page, entry.with_eviction(state, slot));
        Some(Leaving::new(victim))
    }

    fn range(&mut self) -> (Page, Page) {
        let first = self.random.below(PAGES);
        (first, (first + 1 + self.random.below(8)).min(PAGES))
    }

    fn space(&mut self, id: u32) -> &mut Space {
        self.spaces.get_mut(&id).expect("a space")
    }

    /// The program reads or writes a page. It gives up where it would have to wait.
    fn access(&mut self, id: u32, page: Page, write: Option<u64>) {
        for _ in 0..4 {
            let space = self.spaces.get_mut(&id).expect("a space");
            let Some(&expected) = space.memory.expected.get(&page) else { return };
            // While guards are being installed, what a thread finds there is either.
            let is_guarding = space.memory.guarding.is_some_and(|(first, end)| (first..end).contains(&page));
            if is_guarding || space.memory.guards.contains(&page) {
                return;
            }
            let present = space.memory.present.get(&page).copied();
            let reachable = present.is_some_and(|present| write.is_none() || !present.protected);
            if let Some(present) = present.filter(|_| reachable) {
                assert_eq!(present.contents, expected, "space {id} page {page}: {:?}", space.table.get(page));
                if let Some(value) = write {
                    self.write(id, page, value);
                }
                return;
            }
            let access = Access { write: write.is_some(), protected: present.is_some(), agent: false };
            if !self.serve(id, page, access) {
                return;
            }
        }
        panic!("space {id} page {page} is never served");
    }

    /// Serves a fault, which may be an old one: the page may have come, gone, or changed since. False: the
    /// thread has to wait.
    fn serve(&mut self, id: u32, page: Page, access: Access) -> bool {
        let served = self.try_serve(id, page, access);
        let asleep = &mut self.space(id).asleep;
        if served {
            asleep.remove(&page)
        } else {
            asleep.insert(page)
        };
        served
    }

    fn try_serve(&mut self, id: u32, page: Page, access: Access) -> bool {
        let served = self.serve_once(id, page, access);
        self.drain(id);
        served
    }

    fn serve_once(&mut self, id: u32, page: Page, access: Access) -> bool {
        let slow = self.slow;
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        let present = space.memory.present.contains_key(&page);
        match space.table.decide(page, access) {
            Decision::Wait => return false,
            // Nothing is mapped there: the kernel refuses.
            Decision::Zero
            | Decision::ZeroAgain
            | Decision::Fetch(_)
            | Decision::FetchAgain(_)
            | Decision::TakeBack(_)
                if !space.memory.expected.contains_key(&page) => {}
            Decision::Fetch(_) if slow => {
                space.resident += 1;
                let operation = space.table.fetching(page, access.write, true);
                space.fetches.push(operation);
                return false;
            }
            // A present page refuses the copy, too. What is there is the program's.
            Decision::Zero | Decision::Fetch(_) if present => {
                space.resident += 1;
                space.table.found_present(page, slots);
            }
            Decision::FetchAgain(_) if slow => {
                let operation = space.table.fetching(page, access.write, true);
                space.fetches.push(operation);
                return false;
            }
            Decision::ZeroAgain | Decision::FetchAgain(_) if present => {}
            // The call that maps zeroes there refuses.
            Decision::Zero | Decision::ZeroAgain
                if space.table.may_have_guard(page) && space.memory.guards.contains(&page) => {}
            decision @ (Decision::Zero | Decision::ZeroAgain) => {
                space.resident += u64::from(decision == Decision::Zero);
                let entry = space.table.get(page);
                if matches!(entry.state(), State::Resident | State::Untouched) {
                    space.table.mapped(page, false, slots);
                } else {
                    space.table.zeroed(page);
                }
                space.memory.copy(page, Present::new(0, entry.is_kept()));
            }
            Decision::SharedAgain if present => {}
            Decision::SharedAgain => {
                space.resident += 1;
                space.table.own(page, slots, &self.frames);
            }
            Decision::Copy(frame) => {
                assert!(self.frames.holders(frame) > 0);
                space.resident += 1;
                space.table.written(page, slots);
                space.memory.present.entry(page).and_modify(|present| present.protected = false);
            }
            decision @ (Decision::Fetch(slot) | Decision::FetchAgain(slot)) => {
                space.resident += u64::from(decision == Decision::Fetch(slot));
                let protect = !access.write;
                let contents = self.far[&slot];
                space.table.mapped(page, protect, slots);
                space.memory.copy(page, Present::new(contents, protect));
            }
            Decision::TakeBack(began) => {
                let mut leaving = space.batches.iter().flat_map(|batch| &batch.leaving);
                let leaving = leaving.find(|leaving| leaving.victim.page == began);
                let contents = leaving.expect("a victim").contents.expect("what has left");
                assert!(!present, "what has left the program is not there");
                self.taken[usize::from(page != began)] += 1;
                space.table.taken_back(began);
                assert!(space.table.is_taken_back(page));
                space.memory.copy(page, Present::new(contents, false));
            }
            Decision::Unprotect => {
                space.table.written(page, slots);
                space.memory.present.entry(page).and_modify(|present| present.protected = false);
            }
            Decision::Poison => panic!("nothing is lost here"),
        }
        true
    }

    /// The agent makes pages its process's own, when no eviction of its space is under way: it reads whatever has come to stand there. Write
    /// protection stays.
    fn make_own(&mut self, id: u32) {
        let (first, end) = self.range();
        self.command += 1;
        let command = self.command;
        if !self.space(id).under_way.begin_alone(command) {
            return;
        }
        for page in first..end {
            let exclusive = self.is_exclusive(id, page);
            let space = self.space(id);
            if !space.memory.expected.contains_key(&page) || space.memory.guards.contains(&page) {
                continue;
            }
            match space.memory.present.get_mut(&page) {
                Some(present) if !exclusive => {
                    *present = Present::new(present.contents, present.protected);
                    self.owned += 1;
                }
                Some(_) => {}
                None => {
                    self.serve(id, page, Access { write: false, protected: false, agent: true });
                }
            }
        }
        self.space(id).under_way.ended(command, None);
    }

    /// A thread meets a page that it cannot have; nobody reads of it yet.
    fn meet(&mut self, id: u32, page: Page, write: bool) {
        let space = self.space(id);
        if !space.memory.expected.contains_key(&page) || space.memory.guards.contains(&page) {
            return;
        }
        let present = space.memory.present.get(&page).copied();
        if present.is_none_or(|present| write && present.protected) {
            space.unread.push((page, Access { write, protected: present.is_some(), agent: false }));
        }
    }

    /// A handler reads of a thread that met a page some time ago.
    fn serve_unread(&mut self, id: u32) {
        let count = self.space(id).unread.len() as u64;
        if count > 0 {
            let which = self.random.below(count) as usize;
            let (page, access) = self.space(id).unread.swap_remove(which);
            self.serve(id, page, access);
        }
    }

    /// Pages are sent for ahead of need.
    fn prefetch(&mut self, id: u32) {
        let (first, end) = self.range();
        let slow = self.slow;
        let space = self.space(id);
        for page in first..end {
            let is_remote = space.table.get(page).state() == State::Remote && !space.table.is_name(page);
            if slow && is_remote && space.memory.expected.contains_key(&page) {
                space.resident += 1;
                let operation = space.table.fetching(page, false, false);
                space.fetches.push(operation);
            }
        }
    }

    /// Far memory is full: slots of pages that are also here are given up.
    fn release_clean(&mut self, id: u32) {
        let want = self.random.below(4);
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        let is_absent = |(page, entry): &(Page, Entry)| {
            entry.state() == State::Resident && !space.memory.present.contains_key(page)
        };
        if space.table.all().iter().any(is_absent) {
            // It would give up the slot of a misreported page.
            return;
        }
        let clean = |table: &Table| {
            let is_clean = |entry: Entry| entry.state() == State::Resident && entry.slot().is_some();
            table.all().iter().filter(|(_, entry)| is_clean(*entry)).count() as u64
        };
        let before = clean(&space.table);
        let freed = space.table.release_clean(want, slots);
        assert_eq!((freed, clean(&space.table)), (want.min(before), before - want.min(before)));
    }

    fn arrive(&mut self, id: u32) {
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        if space.fetches.is_empty() {
            return;
        }
        let began = space.fetches.swap_remove((self.random.next() % space.fetches.len() as u64) as usize);
        let (page, entry) = space.table.operation(began);
        let slot = entry.slot();
        let protect = !entry.is_writable();
        let found = space.memory.present.contains_key(&page);
        if !entry.is_discarded() {
            assert_eq!(entry.state(), State::Fetching);
            let contents = self.far[&slot.expect("a slot")];
            space.memory.copy(page, Present::new(contents, protect));
            if !found {
                // Mapping a page wakes those who wait for it.
                space.asleep.remove(&page);
            }
        }
        let keep = slot.filter(|&slot| {
            let keep = (protect && !found) || entry.is_discarded();
            if !keep {
                slots.release(slot);
            }
            keep
        });
        let finished = space.table.finish(began, Outcome::Stays(keep), 0, slots);
        space.asleep.retain(|page| !finished.wake.contains(page));
        space.resident -= u64::from(finished.freed);
    }

    fn begin_eviction(&mut self, id: u32) {
        let (first, end) = self.range();
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        if !space.under_way.can_move() {
            return;
        }
        let mut leaving = Vec::new();
        for page in first..end {
            let entry = space.table.get(page);
            if entry.state() != State::Resident || space.table.is_name(page) || entry.frame().is_some() {
                continue;
            }
            let Ok((victim, left)) = Victim::of_resident(page, entry, slots) else { continue };
            space.table.set(page, left);
            let is_retry = self.random.below(2) == 0;
            leaving.push(Leaving::new(Victim { is_retry, ..victim }));
        }
        // Pages that share frames were touched before: nothing else was under way then.
        if leaving.is_empty() && space.under_way.is_nothing() {
            leaving = (first..end).filter_map(|page| self.begin_to_leave(id, page)).collect();
        }
        if leaving.is_empty() {
            return;
        }
        self.command += 1;
        let command = self.command;
        let space = self.space(id);
        let area = space.under_way.begin(command);
        assert!(area.is_some(), "an agent that can move has an area for it");
        let is_apart = space
            .batches
            .iter()
            .all(|batch| batch.area.map(|area| area.number) != area.map(|area| area.number));
        assert!(is_apart, "two batches in one area");
        // The agent empties them before it moves anything.
        space.areas[area.expect("an area").all()].iter_mut().for_each(BTreeMap::clear);
        space.batches.push(Batch { command, area, leaving, is_saving: false, cancelled: false });
        self.overlaps += u64::from(self.spaces[&id].batches.len() > 1);
    }

    /// The agent moves the next page out, by its address, unless the command is cancelled.
    fn agent_step(&mut self, id: u32) {
        let (misreports, is_read_only) = (self.random.below(8) == 0, self.random.below(6) == 0);
        let Some(moving) = self.spaces[&id].moving() else { return };
        let leaving = &self.spaces[&id].batches[moving].leaving;
        let Some(index) = leaving.iter().position(|leaving| !leaving.is_done) else { return };
        let page = leaving[index].victim.page;
        let is_pinned = self.spaces[&id].memory.present.get(&page).is_some_and(|present| present.pinned);
        let is_moved = self.is_exclusive(id, page) && !is_pinned;
        let far = &self.far;
        let space = self.spaces.get_mut(&id).expect("a space");
        let found = space.memory.present.get(&page).map(|present| (present.contents, present.pinned));
        // The table keeps the slot of such a page but for a write fault from before, which gives it up (decision 2).
        let has_fault = space.unread.iter().any(|(other, _)| *other == page);
        let has_come = space.moved_to.is_some_and(|(first, end)| (first..end).contains(&page));
        let event = match found {
            Some(_) if has_come => Event::Changing,
            // The kernel looks at the mapping first.
            Some((_, false)) if is_read_only => Event::ReadOnly,
            Some(_) if !is_moved => Event::Busy,
            None => Event::NotThere,
            Some((contents, _)) => {
                space.memory.present.remove(&page);
                let area = space.batches[moving].area.expect("an area");
                space.areas[area.number].insert(index as u32, contents);
                let leaving = &space.batches[moving].leaving[index];
                if let (true, Some(slot)) = (leaving.victim.is_stored(), leaving.victim.slot()) {
                    assert_eq!(far[&slot], contents, "a clean page is as its slot");
                }
                if misreports && leaving.victim.is_stored() && leaving.victim.slot().is_some() && !has_fault {
                    Event::Changing
                } else {
                    Event::Moved(index as u32)
                }
            }
        };
        let leaving = &mut space.batches[moving].leaving[index];
        leaving.is_done = true;
        leaving.victim.happened(event);
    }

    /// The agent has done what it does. From now on, those that are kept are not written to.
    fn keep(&mut self, id: u32) {
        let space = self.spaces.get_mut(&id).expect("a space");
        for leaving in space.batches.first_mut().into_iter().flat_map(|batch| &mut batch.leaving) {
            let victim = &mut leaving.victim;
            let (now, entry) = space.table.operation(victim.page);
            let is_elsewhere = space.table.is_name(victim.page);
            match victim.at {
                // It was not moved in time.
                At::Ordered => victim.happened(Event::Changing),
                At::Absent if is_elsewhere => victim.happened(Event::Elsewhere),
                At::Kept if is_elsewhere || entry.is_discarded() => victim.happened(Event::Elsewhere),
                At::Kept => match space.memory.present.get_mut(&now) {
                    // The driver looks at the mapping: it has been made writable, or no device could write to the page.
                    Some(present) if present.pinned => victim.happened(Event::NotKept),
                    Some(present) => {
                        present.protected = true;
                        leaving.contents = Some(present.contents);
                        space.table.set(now, entry.with_kept(true));
                    }
                    None => victim.happened(Event::NotKept),
                },
                _ => {}
            }
        }
    }

    /// What has left the program is saved from now on, and can be taken back. The agent has answered: it may get the next command.
    fn begin_saving(&mut self, id: u32) {
        if self.spaces[&id].is_saving() || self.spaces[&id].batches.is_empty() {
            return;
        }
        self.keep(id);
        let is_next = self.random.below(2) == 0;
        let space = self.spaces.get_mut(&id).expect("a space");
        let batch = &mut space.batches[0];
        batch.is_saving = true;
        let area = &space.areas[batch.area.expect("an area").number];
        for leaving in &mut batch.leaving {
            if let At::Moved(index) = leaving.victim.at {
                leaving.contents = area.get(&index).copied();
            }
        }
        if is_next && !batch.leaving.iter().any(|leaving| leaving.victim.at == At::Kept) {
            space.under_way.answered(batch.command);
        }
        let (mut victims, contents): (Vec<Victim>, Vec<Option<u64>>) =
            batch.leaving.iter().map(|leaving| (leaving.victim, leaving.contents)).unzip();
        for (place, victim) in (0..).zip(&mut victims) {
            victim.stage(Some(place));
        }
        let pages: Vec<Page> = victims.iter().map(|victim| victim.page).collect();
        let contents_of = |page: Page| {
            let at = pages.iter().position(|other| *other == page).expect("a victim");
            contents[at].expect("what was read")
        };
        let to_write = sort_out(&mut victims, &mut self.slots, |victim| contents_of(victim.page) == 0);
        for victim in &victims {
            if let Contents::Saved(slot) = victim.contents {
                self.far.insert(slot, contents_of(victim.page));
            }
        }
        assert!(to_write.is_empty() || self.slow, "what is reached directly is written at once");
        let began: Vec<Page> =
            victims.iter().filter(|victim| victim.is_offered_back()).map(|victim| victim.page).collect();
        for (leaving, victim) in batch.leaving.iter_mut().zip(victims) {
            leaving.victim = victim;
        }
        space.table.offer(began.clone());
        for began in began {
            let space = self.space(id);
            if space.table.is_awaited(began) {
                let (page, _) = space.table.operation(began);
                let access = Access { write: false, protected: false, agent: false };
                assert_eq!(space.table.decide(page, access), Decision::TakeBack(began));
                self.awaited += u64::from(self.serve(id, page, access));
            }
        }
    }

    /// What is saved of kept pages is safe: they are dropped, unless that command is cancelled.
    fn drop_kept(&mut self, id: u32) {
        let is_cancelled = self.random.below(4) == 0;
        let space = self.spaces.get_mut(&id).expect("a space");
        let Some(batch) = space.batches.first_mut() else { return };
        if batch.leaving.iter().any(|leaving| leaving.victim.at == At::Kept) {
            assert_eq!(space.under_way.command(), batch.command, "the agent has another command");
            self.command += 1;
            space.under_way.follow(batch.command, self.command);
            batch.command = self.command;
        }
        let all = space.batches.first_mut().into_iter().flat_map(|batch| &mut batch.leaving);
        for leaving in all.filter(|leaving| leaving.victim.at == At::Kept) {
            let victim = &mut leaving.victim;
            let (now, entry) = space.table.operation(victim.page);
            if now != victim.page || entry.is_discarded() {
                victim.happened(Event::Elsewhere);
                continue;
            }
            if !victim.is_stored() {
                space.table.set(now, entry.with_state(State::EvictDrop).with_slot(victim.slot()));
            }
            self.kept[usize::from(is_cancelled)] += 1;
            if is_cancelled {
                victim.happened(Event::NotDropped);
            } else {
                space.memory.present.remove(&now);
                victim.happened(Event::Dropped);
            }
        }
    }

    /// A page that goes back is mapped in the children that share its end, too; and here, if it is away.
    fn copy_back(&mut self, id: u32, began: Page, contents: u64, is_away: bool) {
        let space = self.space(id);
        let (page, entry) = space.table.operation(began);
        if is_away && !entry.is_discarded() && space.memory.expected.contains_key(&page) {
            space.memory.copy(page, Present::new(contents, false));
        }
        for follower in self.spaces[&id].table.followers(began) {
            if self.spaces.contains_key(&follower.space) {
                self.copy_back(follower.space, follower.page, contents, true);
            }
        }
    }

    /// The oldest eviction ends, if there is one.
    fn end_eviction(&mut self, id: u32) {
        self.begin_saving(id);
        let space = self.spaces.get_mut(&id).expect("a space");
        let Some(batch) = space.batches.first_mut() else { return };
        let left = space.table.withdraw();
        let mut victims: Vec<Victim> = batch.leaving.iter().map(|leaving| leaving.victim).collect();
        note_taken(&mut victims, &left);
        let mut failed = Vec::new();
        for victim in victims.iter().filter(|victim| victim.staged().is_some()) {
            if self.random.below(8) == 0 {
                failed.extend(victim.slot());
            }
        }
        written(&mut victims, &failed);
        let mut back = Vec::new();
        for (leaving, victim) in batch.leaving.iter_mut().zip(victims) {
            leaving.victim = victim;
            if let Contents::Saved(slot) = victim.contents {
                self.far.insert(slot, leaving.contents.expect("what was read"));
            }
            if victim.goes_back() {
                back.push((victim.page, leaving.contents.expect("what was read"), victim.at == At::Back));
                leaving.victim.happened(Event::Returned);
            }
        }
        for (page, contents, is_away) in back {
            self.returned += u64::from(is_away);
            self.copy_back(id, page, contents, is_away);
        }
        self.drop_kept(id);
        self.age += 1;
        let (age, slots) = (self.age, &mut self.slots);
        let space = self.spaces.get_mut(&id).expect("a space");
        let (mut told, mut left) = (Vec::new(), Vec::new());
        let Batch { command, area, leaving, .. } = space.batches.remove(0);
        space.under_way.ended(command, area);
        for Leaving { victim, .. } in leaving {
            let outcome = victim.end(slots);
            if let Some(frame) = victim.frame {
                let (now, entry) = space.table.operation(victim.page);
                let is_whole = now == victim.page && !entry.is_discarded() && victim.is_newly_saved();
                match outcome {
                    Outcome::Saved(slot) if is_whole && slots.share(slot) => {
                        self.frames.set_saved(frame, Saved::Slot(slot), slots);
                    }
                    Outcome::Zero if is_whole => {
                        self.frames.set_saved(frame, Saved::Zero, slots);
                    }
                    _ => {}
                }
                self.dropped += u64::from(!outcome.stays());
                left.push(frame);
            }
            let finished = space.table.finish(victim.page, outcome, age, slots);
            space.asleep.retain(|page| !finished.wake.contains(page));
            space.resident -= u64::from(finished.freed);
            space.resident += u64::from(finished.gained);
            told.extend(finished.followers);
        }
        self.deliver(told);
        self.drain(id);
        for frame in left {
            self.leave(frame);
        }
    }

    fn deliver(&mut self, mut told: Vec<(tombolo_core::pager::Follower, Outcome)>) {
        while let Some((follower, outcome)) = told.pop() {
            let Some(space) = self.spaces.get_mut(&follower.space) else {
                if let Outcome::Saved(slot) = outcome {
                    self.slots.release(slot);
                }
                continue;
            };
            let finished = space.table.finish(follower.page, outcome, self.age, &mut self.slots);
            space.asleep.retain(|page| !finished.wake.contains(page));
            space.resident += u64::from(finished.gained);
            space.resident -= u64::from(finished.freed);
            told.extend(finished.followers);
        }
    }

    fn discard(&mut self, id: u32) {
        let (first, end) = self.range();
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        let mapped: Vec<Page> =
            (first..end).filter(|page| space.memory.expected.contains_key(page)).collect();
        // The kernel reports each mapping; here, each page.
        for page in mapped {
            space.resident -= space.table.discard(page, page + 1, slots).resident;
            space.memory.present.remove(&page);
            space.memory.expected.insert(page, 0);
        }
        self.drain(id);
    }

    /// The program drops pages in a way that the kernel does not report. Where something is stored, that may come back (decision 2).
    fn drop_unseen(&mut self, id: u32) {
        let (first, end) = self.range();
        let space = self.space(id);
        for page in first..end {
            let entry = space.table.get(page);
            let is_stored = entry.slot().is_some() || entry.frame().is_some();
            let is_there = match entry.state() {
                State::Resident => !is_stored,
                State::EvictCopy => {
                    !entry.is_follower() && !entry.is_counted_with_frame() && !space.is_saving()
                }
                _ => false,
            };
            let is_pinned = space.memory.present.get(&page).is_some_and(|present| present.pinned);
            if is_there && !is_pinned && space.memory.present.remove(&page).is_some() {
                space.memory.expected.insert(page, 0);
            }
        }
    }

    /// The program installs guards: the pager hears of it before, and, some time after, that it is done.
    fn guard(&mut self, id: u32) {
        self.end_guarding(id);
        let (first, end) = self.range();
        let space = self.space(id);
        space.table.guard(first, end);
        space.memory.guarding = Some((first, end));
        space.memory.install();
    }

    fn end_guarding(&mut self, id: u32) {
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        if let Some((first, end)) = space.memory.guarding {
            space.resident -= space.table.discard(first, end, slots).resident;
            space.memory.install();
            space.memory.guarding = None;
        }
        self.drain(id);
    }

    fn remove_guards(&mut self, id: u32) {
        self.end_guarding(id);
        let (first, end) = self.range();
        self.space(id).memory.guards.retain(|page| !(first..end).contains(page));
    }

    fn unmap(&mut self, id: u32, first: Page, end: Page) {
        self.end_guarding(id);
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        let mapped = (first..end).any(|page| space.memory.expected.contains_key(&page));
        for page in first..end {
            space.memory.present.remove(&page);
            space.memory.expected.remove(&page);
            space.memory.guards.remove(&page);
        }
        // Where nothing was mapped, nothing is reported.
        if mapped {
            let discarded = space.table.unmap(first, end, slots);
            space.resident -= discarded.resident;
            if discarded.in_operation {
                space.cancel();
            }
        }
        self.drain(id);
    }

    fn map(&mut self, id: u32) {
        let (first, end) = self.range();
        self.unmap(id, first, end);
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        for page in first..end {
            space.memory.expected.insert(page, 0);
        }
        space.resident -= space.table.register(first, end, slots).resident;
        self.drain(id);
    }

    fn remap(&mut self, id: u32) {
        let (from, end) = self.range();
        let count = end - from;
        let to = self.random.below(PAGES - count + 1);
        let all = (from..end).all(|page| self.spaces[&id].memory.expected.contains_key(&page));
        if !all || (to < end && from < to + count) {
            return;
        }
        // A misreported page that meets a write fault from before: that gives up its slot (decision 2).
        let space = &self.spaces[&id];
        let is_misreported = |page: Page| {
            let entry = space.table.get(page);
            matches!(entry.state(), State::Resident | State::EvictDrop)
                && entry.slot().is_some()
                && !space.memory.present.contains_key(&page)
        };
        let has_fault =
            |page: Page| space.unread.iter().any(|(other, access)| *other == page && access.protected);
        if (0..count).any(|step| is_misreported(from + step) && has_fault(to + step)) {
            return;
        }
        self.unmap(id, to, to + count);
        let space = self.spaces.get_mut(&id).expect("a space");
        for step in 0..count {
            if space.memory.guards.remove(&(from + step)) {
                space.memory.guards.insert(to + step);
            }
            if let Some(present) = space.memory.present.remove(&(from + step)) {
                space.memory.present.insert(to + step, present);
            }
            let expected = space.memory.expected.remove(&(from + step)).expect("mapped");
            space.memory.expected.insert(to + step, expected);
        }
        space.moved_to = Some((to, to + count));
        // Before the kernel tells of it, the agent may look for a page where it was.
        for _ in 0..self.random.below(4) {
            self.agent_step(id);
        }
        self.space(id).moved_to = None;
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        let remapped = space.table.remap(from, to, count, slots);
        space.asleep.retain(|page| !remapped.wake.contains(page));
        space.resident -= remapped.resident;
        if remapped.in_operation {
            space.cancel();
        }
        // The kernel reports the old place, too.
        space.resident -= space.table.unmap(from, end, slots).resident;
        self.drain(id);
    }

    /// Room is short: what is resident is protected before the fork.
    fn protect_for_fork(&mut self, id: u32) {
        let (first, end) = self.range();
        let space = self.space(id);
        let mut from = first;
        while let Some((page, count)) = space.table.writable_run(from, end) {
            from = page + count;
            for page in page..from {
                space.memory.present.entry(page).and_modify(|present| present.protected = true);
                space.table.protected(page);
            }
        }
    }

    fn fork(&mut self, id: u32) {
        if self.spaces.len() >= SPACES_MAX {
            return;
        }
        self.end_guarding(id);
        let child = self.next_space;
        self.next_space += 1;
        let without = if self.random.below(3) == 0 { Some(self.range()) } else { None };
        if self.random.below(2) == 0 {
            self.protect_for_fork(id);
        }
        let slots = &mut self.slots;
        let space = self.spaces.get_mut(&id).expect("a space");
        let forked = space.table.fork(child, |work| work(slots, &mut self.frames));
        space.resident -= forked.shared;
        self.framed += forked.shared + forked.frames;
        // Nobody there would say that what is stored is to be given up: libc's fork waits for the end of the call.
        let mut memory = Memory { guarding: None, ..space.memory.clone() };
        for present in memory.present.values_mut().filter(|present| present.pinned) {
            *present = Present::new(present.contents, present.protected);
        }
        // MADV_DONTFORK: a range that the child does not have, and of which it hears nothing.
        if let Some((first, end)) = without {
            memory.present.retain(|page, _| !(first..end).contains(page));
            memory.expected.retain(|page, _| !(first..end).contains(page));
            memory.guards.retain(|page| !(first..end).contains(page));
        }
        let forked = Space { memory, table: forked.table, resident: forked.resident, ..Space::default() };
        self.spaces.insert(child, forked);
        self.drain(id);
    }

    fn exit(&mut self, id: u32) {
        // As the driver does: what is under way ends first, for the sake of children.
        while !self.spaces[&id].batches.is_empty() {
            self.end_eviction(id);
        }
        if self.spaces[&id].table.is_followed() {
            // A child waits for an eviction that this space waits for itself.
            return;
        }
        let space = self.spaces.remove(&id).expect("a space");
        for (_, entry) in space.table.all() {
            if let Some(slot) = entry.slot() {
                self.slots.release(slot);
            }
            if let Some(frame) = entry.frame() {
                self.leave(frame);
            }
        }
    }

    fn check_count(&self) {
        for (id, space) in &self.spaces {
            let counted = |entry: &Entry| match entry.state() {
                State::Resident => entry.frame().is_none(),
                State::Fetching | State::EvictCopy | State::EvictDrop => {
                    !entry.is_follower() && !entry.is_counted_with_frame()
                }
                _ => false,
            };
            let resident = space.table.all().iter().filter(|(_, entry)| counted(entry)).count() as u64;
            // The mark of a moved page counts with it, and a page that is nowhere is in no entry.
            assert!(space.resident <= PAGES * 2 + resident, "space {id}: {} and {resident}", space.resident);
        }
    }

    fn step(&mut self) {
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        let id = ids[self.random.below(ids.len() as u64) as usize];
        let page = self.random.below(PAGES);
        match self.random.below(100) {
            0..=4 => {
                let write = self.random.below(2) == 0;
                self.meet(id, page, write);
            }
            5..=8 => self.serve_unread(id),
            9 if page == 0 => self.release_clean(id),
            9 => self.prefetch(id),
            10..=26 => {
                let value = 1 + self.random.next() % 1_000_000;
                self.access(id, page, Some(value));
            }
            27..=37 => self.access(id, page, None),
            38..=39 => self.make_own(id),
            40..=49 => self.begin_eviction(id),
            50..=65 => self.agent_step(id),
            66..=69 => self.begin_saving(id),
            70..=76 => self.end_eviction(id),
            77..=82 => self.arrive(id),
            83 => {
                let (first, end) = self.range();
                self.verify(id, first, end);
            }
            84 if page.is_multiple_of(2) => self.pin(id, page),
            84 if page.is_multiple_of(3) => self.drop_unseen(id),
            84 => self.discard(id),
            85 if page.is_multiple_of(2) => self.guard(id),
            85 => self.end_guarding(id),
            86 if page.is_multiple_of(2) => self.remove_guards(id),
            86 => self.collapse(id),
            87 if page.is_multiple_of(2) => self.protect_for_fork(id),
            87..=88 => {
                let (first, end) = self.range();
                self.unmap(id, first, end);
            }
            89..=91 => self.map(id),
            92..=95 => self.remap(id),
            96..=97 => self.fork(id),
            _ if self.spaces.len() > 1 && id != 0 => self.exit(id),
            _ => {}
        }
        if self.random.below(8) == 0 {
            self.write_pinned();
        }
        self.check_count();
    }

    /// When every page has been verified, what counts is at least what there is; and what is counted of frames is what they are.
    fn check_memory(&mut self) {
        let ids: Vec<u32> = self.spaces.keys().copied().collect();
        ids.iter().for_each(|&id| self.verify(id, 0, PAGES));
        for space in self.spaces.values_mut() {
            for page in space.table.doubtful() {
                if space.memory.present.contains_key(&page) {
                    space.table.found_present(page, &mut self.slots);
                    space.resident += 1;
                }
            }
        }
        assert_eq!(self.framed, self.frames.live());
        let counted = self.framed + self.spaces.values().map(|space| space.resident).sum::<u64>();
        let mut there = BTreeSet::new();
        for space in self.spaces.values() {
            for page in space.memory.present.keys() {
                assert_ne!(space.table.get(*page).state(), State::Untouched, "{page} is not counted");
            }
            let all = space.table.all().into_iter();
            let (shared, unverified): (Vec<Entry>, Vec<Entry>) = all
                .filter_map(|(page, entry)| {
                    let present = space.memory.present.get(&page);
                    assert!(present.is_none() || entry.state() != State::Remote, "{page} is not counted");
                    let present = present.filter(|_| entry.state() == State::Resident);
                    there.extend(present.map(|present| present.id));
                    entry.frame().map(|_| entry)
                })
                .partition(|entry| entry.is_verified());
            assert_eq!((space.table.shared_pages(), unverified.len()), (shared.len() as u64, 0));
            assert_eq!((space.table.unverified_pages(), space.table.unprotected_pages()), (0, 0));
            for (page, entry) in space.table.all() {
                let found = entry.frame().map(|frame| space.table.holder(frame, self.frames.page(frame)));
                assert!(found.is_none_or(|found| found == Some(page)), "{entry:?} is found at {found:?}");
            }
        }
        let there = there.len() as u64;
        assert!(there <= counted + self.owned, "{there} pages are there, {counted} are counted");
    }

    /// Everything under way ends; then every page is right, and nothing is left when all have ended.
    fn settle(&mut self) {
        for present in self.spaces.values_mut().flat_map(|space| space.memory.present.values_mut()) {
            present.pinned = false;
        }
        for id in self.spaces.keys().copied().collect::<Vec<_>>() {
            while !self.spaces[&id].batches.is_empty() {
                for _ in 0..PAGES {
                    self.agent_step(id);
                }
                self.end_eviction(id);
            }
            self.end_guarding(id);
        }
        for id in self.spaces.keys().copied().collect::<Vec<_>>() {
            while !self.spaces[&id].fetches.is_empty() {
                self.arrive(id);
            }
            let asleep = &self.spaces[&id].asleep;
            assert!(asleep.is_empty(), "space {id}: nobody wakes those who wait for {asleep:?}");
            for page in 0..PAGES {
                self.access(id, page, None);
                while !self.spaces[&id].fetches.is_empty() {
                    self.arrive(id);
                }
                let space = &self.spaces[&id];
                if space.memory.guards.contains(&page) {
                    assert!(
                        !space.memory.present.contains_key(&page),
                        "page {page} has come under its guard"
                    );
                } else if let Some(expected) = space.memory.expected.get(&page) {
                    let present = space.memory.present.get(&page).map(|present| present.contents);
                    assert_eq!(
                        present,
                        Some(*expected),
                        "space {id} page {page}: {:?}",
                        space.table.get(page)
                    );
                }
            }
            let space = &self.spaces[&id];
            let is_own = |entry: &Entry| entry.state() == State::Resident && entry.frame().is_none();
            let resident = space.table.all().iter().filter(|(_, entry)| is_own(entry)).count();
            assert_eq!(space.resident, resident as u64, "resident pages of space {id}");
        }
        self.check_memory();
        for id in self.spaces.keys().copied().collect::<Vec<_>>() {
            self.exit(id);
        }
        assert_eq!((self.framed, self.frames.live()), (0, 0), "frames leak");
        assert_eq!(self.slots.used(), 0, "far pages leak");
    }
}

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    world.map(0);
    for _ in 0..600 {
        world.step();
    }
    world.settle();
    world
}

#[test]
fn seeds() {
    let seeds = Seeds::from_environment(600);
    let (mut taken, mut awaited) = ([0; 2], 0);
    let (mut dropped, mut copied, mut pinned) = (0, 0, 0);
    let (mut kept, mut returned, mut overlaps) = ([0; 2], 0, 0);
    let count = seeds.run("cargo test -p tombolo-core --test pager", |seed| {
        let world = run(seed);
        awaited += world.awaited;
        dropped += world.dropped;
        copied += world.copied;
        pinned += world.written_by_devices;
        returned += world.returned;
        overlaps += world.overlaps;
        for (sum, count) in taken.iter_mut().zip(world.taken).chain(kept.iter_mut().zip(world.kept)) {
            *sum += count;
        }
    });
    println!(
        "{taken:?} pages taken back where their eviction began and elsewhere, {awaited} of them awaited; \
         {dropped} shared pages dropped, {copied} found to be copies, {pinned} writes by devices; {kept:?} kept pages dropped and not, \
         {returned} pages that could not be saved, {overlaps} batches that began while another was saved"
    );
    assert!(count < 60 || (dropped > 0 && copied > 0 && pinned > 0), "{dropped} {copied} {pinned}");
    assert!(count < 60 || (kept[0] > 0 && kept[1] > 0 && returned > 0), "{kept:?} {returned}");
    assert!(count < 60 || overlaps > 0);
    assert!(count < 60 || (taken[0] > 0 && awaited > 0), "{taken:?} {awaited}");
}

/// A page of a read-only mapping is copied from where it is. If it has gone by then in a way that the kernel does not
/// report, the evictor, which copies it, must not be told to wait for the end of the eviction: it is the one to end it.
#[test]
fn a_kept_page_that_has_gone_unreported_reads_as_zero() {
    let (mut slots, mut table) = (slots(4), Table::default());
    table.register(0, 4, &mut slots);
    let resident = table.mapped(1, false, &mut slots).0;
    table.set(1, resident.with_state(State::EvictCopy).with_slot(None).with_kept(true));
    let evictor = Access { write: false, protected: false, agent: true };
    assert_eq!(table.decide(1, evictor), Decision::ZeroAgain);
    assert_eq!(table.decide(1, Access { agent: false, ..evictor }), Decision::Wait, "others can wait");
    let writer = Access { write: true, protected: true, agent: false };
    assert_eq!(table.decide(1, writer), Decision::Wait, "what is being copied is not written to");
}

/// The table says that the page is resident, the kernel that it is not.
#[test]
fn a_clean_page_that_is_absent_is_fetched_from_its_slot() {
    let (mut slots, mut table) = (slots(4), Table::default());
    table.register(0, 4, &mut slots);
    let (slot, _) = slots.take().unwrap();
    slots.commit(slot, None).unwrap();
    table.set(1, Entry(0).with_state(State::Resident).with_slot(Some(slot)));
    let absent = Access { write: false, protected: false, agent: false };
    assert_eq!(table.decide(1, absent), Decision::FetchAgain(slot));
    assert_eq!(table.decide(1, Access { write: true, ..absent }), Decision::FetchAgain(slot));
    assert_eq!(table.decide(1, Access { write: true, protected: true, agent: false }), Decision::Unprotect);
}

/// A range that was moved leaves one behind that is as far, until it is reported to be unmapped; nothing is known of a mapping's growth.
#[test]
fn a_move_leaves_a_far_range_behind() {
    let (mut slots, mut table) = (slots(4), Table::default());
    let _ = table.register(10, 20, &mut slots);
    let _ = table.remap(12, 100, 4, &mut slots);
    assert_eq!(table.ranges_within(0, 200), [(10, 20), (100, 104)]);
    let _ = table.unmap(12, 16, &mut slots);
    assert_eq!(table.ranges_within(0, 200), [(10, 12), (16, 20), (100, 104)]);
    table.grow(104, 108);
    assert_eq!((table.ranges_within(0, 200).len(), table.far_pages()), (3, 14));
}

/// A page that may have a guard is mapped alone, wherever its mapping goes, until another one lies there.
#[test]
fn no_page_is_mapped_unasked_where_guards_may_be() {
    let (mut slots, mut table) = (slots(4), Table::default());
    let _ = table.register(0, 64, &mut slots);
    assert_eq!(table.touched_with(8, 0, 32), (0, 32));
    assert_eq!(table.touched_with(8, 4, 100), (4, 60));
    table.guard(16, 18);
    assert_eq!(table.touched_with(8, 0, 32), (0, 16));
    assert_eq!(table.touched_with(16, 8, 32), (16, 1));
    assert_eq!(table.touched_with(20, 0, 32), (18, 14));
    table.mapped(20, false, &mut slots);
    assert_eq!(table.touched_with(19, 0, 32), (18, 2));
    let forked = table.fork(1, |work| work(&mut slots, &mut Frames::default())).table;
    assert!(forked.may_have_guard(17) && !forked.may_have_guard(18));
    let _ = table.remap(17, 200, 8, &mut slots);
    let guarded: Vec<Page> = (0..300).filter(|page| table.may_have_guard(*page)).collect();
    assert_eq!(guarded, [16, 200]);
    // Beyond what is known to be far: a mapping may have grown.
    assert_eq!(table.touched_with(300, 290, 32), (300, 22));
    let _ = table.register(0, 64, &mut slots);
    let _ = table.unmap(200, 201, &mut slots);
    assert!(!table.may_have_guard(16) && !table.may_have_guard(200));
}

/// The kernel tells of a range that is given up before it is done: until a thread asks for a page there, none comes unasked.
#[test]
fn what_was_given_up_comes_when_it_is_asked_for() {
    let (mut slots, mut table) = (slots(4), Table::default());
    let _ = table.register(0, 4096, &mut slots);
    table.give_up(8, 16);
    assert_eq!((table.touched_with(4, 0, 64), table.touched_with(20, 0, 64)), ((0, 8), (16, 48)));
    assert_eq!(table.touched_with(12, 0, 64), (12, 1));
    // No range at all, which is at an end of it or inside, changes nothing.
    let _ = table.unregister(8, 8, &mut slots);
    let _ = table.unregister(12, 12, &mut slots);
    table.give_up(12, 12);
    assert_eq!((table.touched_with(4, 0, 64), table.touched_with(20, 0, 64)), ((0, 8), (16, 48)));
    table.asked_for(20);
    assert_eq!(table.touched_with(4, 0, 64), (0, 8));
    table.asked_for(12);
    assert_eq!((table.touched_with(12, 0, 64), table.touched_with(4, 0, 64)), ((0, 64), (0, 64)));
    // Nothing of it is left where another mapping lies.
    table.give_up(8, 16);
    let _ = table.register(0, 64, &mut slots);
    assert_eq!(table.touched_with(4, 0, 64), (0, 64));
    // As many ranges are known as there may be, and those are the last ones, wherever they are.
    let places = || (0..65).rev().map(|number| 80 + 16 * number);
    places().for_each(|page| table.give_up(page, page + 1));
    let is_known = |table: &Table, page: Page| table.touched_with(page - 1, page - 1, 2) == (page - 1, 1);
    assert_eq!(places().filter(|page| is_known(&table, *page)).count(), 64);
    assert!(!is_known(&table, 80 + 16 * 64) && is_known(&table, 80));
    let _ = table.unmap(2000, 2010, &mut slots);
    assert_eq!(places().filter(|page| is_known(&table, *page)).count(), 64);
}

/// What first touches have put off is brought as long as nothing else becomes of it.
#[test]
fn what_was_put_off_comes_unless_it_has_changed() {
    let (mut slots, mut table) = (slots(4), Table::default());
    let all = |table: &mut Table| std::iter::from_fn(|| table.next_put_off(16)).collect::<Vec<_>>();
    let _ = table.register(0, 64, &mut slots);
    table.put_off(8, 0, 512);
    assert!(table.has_put_off());
    assert_eq!(all(&mut table), [(0, 16), (16, 16), (32, 16), (48, 16)]);
    assert!(!table.has_put_off());
    // What was put off last comes first.
    for first in [0, 32, 16] {
        table.put_off(8, first, first + 8);
    }
    assert_eq!(all(&mut table), [(16, 8), (32, 8), (0, 8)]);
    // Of an unknown range nothing is put off.
    table.put_off(100, 64, 128);
    assert_eq!(all(&mut table), []);
    for change in 0..6 {
        let mut table = Table::default();
        let _ = table.register(0, 64, &mut slots);
        table.put_off(0, 0, 24);
        match change {
            0 => table.guard(4, 20),
            1 => _ = table.discard(4, 20, &mut slots),
            2 => _ = table.unmap(4, 20, &mut slots),
            3 => _ = table.register(4, 20, &mut slots),
            4 => _ = table.remap(4, 200, 16, &mut slots),
            _ => (4..20).for_each(|page| _ = table.mapped(page, false, &mut slots)),
        }
        assert_eq!(all(&mut table), [(0, 4), (20, 4)], "{change}");
    }
    table.put_off(8, 0, 64);
    table.forget_put_off();
    assert!(!table.has_put_off());
    // A child has nothing put off.
    table.put_off(8, 0, 64);
    let mut forked = table.fork(1, |work| work(&mut slots, &mut Frames::default())).table;
    assert_eq!(forked.next_put_off(16), None);
}

/// Runs of known pages go on over the ends of the table's blocks.
#[test]
fn known_pages_beside_a_page_are_counted() {
    let (mut slots, mut table) = (slots(4), Table::default());
    let _ = table.register(0, 4096, &mut slots);
    for page in (500..520).chain([600]) {
        table.mapped(page, false, &mut slots);
    }
    let found = [499, 520, 521, 530, 599, 601, 0].map(|page| table.known_beside(page));
    assert_eq!(found, [20, 20, 0, 0, 1, 1, 0]);
}

/// A handler that reads an old fault fetches a page again that is present already. A child that is forked meanwhile inherits the present
/// page, while its table says that the page is far: the driver has to look for it.
#[test]
fn a_page_that_is_fetched_again_though_it_is_there_is_doubted_in_a_fork() {
    let (mut slots, mut table, mut frames) = (slots(4), Table::default(), Frames::default());
    table.register(0, 4, &mut slots);
    let (slot, _) = slots.take().expect("a slot");
    let resident = table.mapped(1, false, &mut slots).0;
    table.set(1, resident.with_slot(Some(slot)));
    let stale = Access { write: false, protected: false, agent: false };
    assert_eq!(table.decide(1, stale), Decision::FetchAgain(slot));
    table.fetching(1, false, true);
    let mut forked = table.fork(1, |work| work(&mut slots, &mut frames));
    assert_eq!(forked.table.get(1).state(), State::Remote);
    assert_eq!(forked.table.doubtful(), [1]);
}
