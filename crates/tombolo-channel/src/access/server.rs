//! Carrying out orders. No thread of its own: see [`super::AccessThreads`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_host::own::{Absent, Denied, PAGE_BYTES, ProcessMemory, Reason, Right};
use tombolo_host::timing::client as timing;

use super::area::AccessArea;
use super::look::{Look, Present};
use super::order::{Order, OrderKind, Outcome, RING_ORDERS};

/// Threads of an area, at most: while four bring in pages that take long, one is left for orders, and a fifth page waits.
const MAX_THREADS: u32 = 5;
/// Bytes of prefetched pages that a thread brings in with one call. Between two calls the thread serves the node's orders.
const AHEAD_BYTES: u64 = 1 << 20;
/// How often pages are brought in for an access that finds them gone again, before the copying itself brings them in, one after the other.
pub(super) const MAX_BRINGS: u32 = 8;
/// Orders carried out before the others that wait for the same thread get their turn.
const AT_ONCE: usize = 16;

/// For whom pages are brought in.
#[derive(Clone, Copy, Debug)]
enum For {
    /// The order with that number, which is answered.
    Touch(u64),
    /// The accesses that look at this, whose pages were absent: they are made then.
    Accesses(Look, Absent),
    /// The program itself.
    Program,
}

/// Pages to bring in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    whose: For,
    address: u64,
    length_bytes: u32,
    right: Right,
}

/// A range whose pages the program itself wants.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    address: u64,
    length_bytes: u64,
    right: Right,
}

impl Touch {
    fn is_of_program(&self) -> bool {
        matches!(self.whose, For::Program)
    }

    /// All absent pages of what accesses look at.
    fn of_accesses(look: Look, absent: Absent) -> Self {
        let (start, end) = (look.0.0, look.0.0 + u64::from(look.0.1));
        let page = |index: u32| start / PAGE_BYTES * PAGE_BYTES + u64::from(index) * PAGE_BYTES;
        let address = page(absent.pages.trailing_zeros()).max(start);
        let length = page(u32::BITS - absent.pages.leading_zeros()).min(end).saturating_sub(address);
        let whose = For::Accesses(look, absent);
        Self { whose, address, length_bytes: length.max(1) as u32, right: look.1 }
    }
}

/// An access that waits for pages.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    order: Order,
    /// Its place among all orders.
    place: u64,
    /// Absent pages that it has met. Of what kind the first was is told, also where other kinds follow: a fork shares
    /// pages that were just brought in.
    met: Option<Absent>,
    /// How often it has met some.
    times: u32,
}

impl Waiting {
    /// It meets absent pages.
    fn meets(self, absent: Absent) -> Self {
        let met = self.met.map_or(absent, |met| Absent { pages: met.pages | absent.pages, ..met });
        Self { met: Some(met), times: self.times + 1, ..self }
    }

    /// What is told where pages stay absent: those, and what was met first.
    fn tells(&self, absent: Absent) -> Outcome {
        Outcome::Absent(Absent { kind: self.met.map_or(absent.kind, |met| met.kind), ..absent })
    }
}

/// Accesses that wait for pages, in the order in which they were ordered.
#[derive(Debug)]
struct Group {
    /// What the first of them looks at, and those that look at the same: the packets of a block.
    look: Look,
    /// Those, and others that overlap with one of them, which are made after it. Empty: all were withdrawn, and the pages are still
    /// being brought in.
    orders: Vec<Waiting>,
}

/// Whether an access has to be made after another one, so that the bytes are those of the later one.
fn is_before(earlier: &Waiting, later: &Waiting) -> bool {
    let end = |order: &Order| order.address.saturating_add(order.length_bytes.into());
    let (first, second) = (&earlier.order, &later.order);
    earlier.place < later.place
        && first.address < end(second)
        && second.address < end(first)
        && (first.right() == Right::Write || second.right() == Right::Write)
}

impl Group {
    /// Another one waits, too.
    fn push(&mut self, waiting: Waiting) {
        let index = self.orders.partition_point(|other| other.place < waiting.place);
        self.orders.insert(index, waiting);
    }

    /// One of these is not made. Takes those out that waited for it alone.
    fn remove(&mut self, index: usize) -> Vec<Waiting> {
        self.orders.remove(index);
        let mut freed = Vec::new();
        let mut kept: Vec<Waiting> = Vec::new();
        for waiting in std::mem::take(&mut self.orders) {
            let waits = (waiting.order.look, waiting.order.right()) == self.look
                || kept.iter().any(|earlier| is_before(earlier, &waiting));
            if waits { &mut kept } else { &mut freed }.push(waiting);
        }
        self.orders = kept;
        freed
    }
}

/// What becomes of an access that has met absent pages.
#[derive(Debug, PartialEq, Eq)]
enum Bring {
    /// Somebody brings them in already.
    Joined,
    /// It is the first: they are to be brought in.
    First,
    /// No thread is free for that.
    Refused,
}

/// The threads of an area, and what they are at.
#[derive(Debug, Default)]
pub(super) struct Crew {
    /// Touches that the node has ordered, or that accesses wait for, and that wait for a thread.
    queue: VecDeque<Touch>,
    /// Those that the program itself wants: when there are no others, and by one thread at a time.
    ahead: VecDeque<Ahead>,
    is_ahead: bool,
    /// Accesses that are made when their pages are there.
    groups: Vec<Group>,
    /// Threads that have started and not ended.
    threads: u32,
    /// Threads that are being started.
    starting: u32,
    /// No thread could be started then, and none was since.
    refused_at: Option<Instant>,
    /// Threads that are at nothing.
    idle: u32,
    /// One carries out orders, and looks for more.
    has_leader: bool,
}

impl Crew {
    /// Touches that may be begun.
    fn waiting(&self) -> usize {
        self.queue.len() + usize::from(!self.is_ahead && !self.ahead.is_empty())
    }

    /// Threads that could be started.
    fn startable(&self) -> u32 {
        let is_refused = self.refused_at.is_some_and(|at| at.elapsed() < timing::ACCESS_START_PAUSE);
        if is_refused { 0 } else { MAX_THREADS.saturating_sub(self.threads + self.starting) }
    }

    /// Whether there is one thread, and no other can be started: it brings pages in itself, and orders wait meanwhile.
    fn is_alone(&self) -> bool {
        self.threads + self.starting == 1 && self.refused_at.is_some()
    }

    /// Threads that bring in no pages now, but for the one that is left for orders, and those that more could be started of.
    fn free(&self, more: u32) -> usize {
        (self.idle + self.starting + u32::from(self.has_leader) + more).saturating_sub(1) as usize
    }

    /// Counts another thread, if a touch waits for which there is none: the caller starts it.
    pub(super) fn recruits(&mut self) -> bool {
        let is_needed = self.waiting() > self.free(0) && self.startable() > 0;
        self.starting += u32::from(is_needed);
        is_needed
    }

    /// One that was counted has started.
    pub(super) fn started(&mut self) {
        (self.starting, self.threads, self.idle) = (self.starting - 1, self.threads + 1, self.idle + 1);
        self.refused_at = None;
    }

    /// One that was counted could not be started. The accesses that wait for it are not made: what they met is told.
    fn not_started(&mut self) -> Vec<(Waiting, Absent)> {
        self.starting -= 1;
        self.refused_at = Some(Instant::now());
        let mut given_up = Vec::new();
        while self.waiting() > self.free(0) {
            let of_accesses = |touch: &Touch| matches!(touch.whose, For::Accesses(..));
            let Some(last) = self.queue.iter().rposition(of_accesses) else { break };
            if let Some(Touch { whose: For::Accesses(look, absent), .. }) = self.queue.remove(last) {
                given_up.extend(self.brought(look).into_iter().map(|waiting| (waiting, absent)));
            }
        }
        given_up
    }

    /// The group of those that an access has to be made after.
    fn group_before(&mut self, waiting: &Waiting) -> Option<&mut Group> {
        self.groups.iter_mut().find(|group| group.orders.iter().any(|earlier| is_before(earlier, waiting)))
    }

    /// An access waits for its pages.
    fn bring(&mut self, waiting: Waiting) -> Bring {
        let look = (waiting.order.look, waiting.order.right());
        let count: usize = self.groups.iter().map(|group| group.orders.len().max(1)).sum();
        if count >= RING_ORDERS as usize {
            return Bring::Refused;
        }
        if let Some(group) = self.groups.iter_mut().find(|group| group.look == look) {
            group.push(waiting);
            return Bring::Joined;
        }
        if self.waiting() >= self.free(self.startable()) {
            return Bring::Refused;
        }
        self.groups.push(Group { look, orders: vec![waiting] });
        Bring::First
    }

    /// The pages are there that these accesses wait for.
    fn brought(&mut self, look: Look) -> Vec<Waiting> {
        let place = self.groups.iter().position(|group| group.look == look);
        place.map_or_else(Vec::new, |place| self.groups.remove(place).orders)
    }

    /// An access is not made; gives those that waited for it alone. `None`: it waits for no pages.
    fn withdraw(&mut self, id: u64) -> Option<Vec<Waiting>> {
        self.groups.iter_mut().find_map(|group| {
            let index = group.orders.iter().position(|waiting| waiting.order.id == id)?;
            Some(group.remove(index))
        })
    }

    /// A touch for an idle thread. One thread has to be left for orders.
    fn next(&mut self) -> Option<Touch> {
        if !self.has_leader && self.idle < 2 && !self.is_alone() {
            return None;
        }
        while let Some(touch) = self.queue.pop_front() {
            if let For::Accesses(look, _) = touch.whose
                && self.groups.iter().any(|group| group.look == look && group.orders.is_empty())
            {
                // All were withdrawn.
                self.brought(look);
                continue;
            }
            return Some(touch);
        }
        if self.is_ahead {
            return None;
        }
        let Ahead { address, length_bytes, right } = self.ahead.front_mut()?;
        let (start, right, piece) = (*address, *right, (*length_bytes).min(AHEAD_BYTES));
        (*address, *length_bytes) = (start + piece, *length_bytes - piece);
        if *length_bytes == 0 {
            self.ahead.pop_front();
        }
        self.is_ahead = true;
        Some(Touch { whose: For::Program, address: start, length_bytes: piece as u32, right })
    }
}

/// What an idle thread does.
enum Next {
    Lead,
    Touch(Touch),
    Rest,
    End,
}

/// What [`AccessServer::serve`] has done.
#[derive(Debug)]
pub(super) struct Served {
    /// Orders taken.
    pub(super) count: usize,
    /// What the thread that led is to do now, and does not lead any more.
    touch: Option<Touch>,
}

/// The orders of one area, carried out on one program's memory.
pub(super) struct AccessServer {
    pub(super) area: AccessArea,
    memory: Box<dyn ProcessMemory>,
    /// Held by the one thread that takes orders.
    turn: Mutex<()>,
    /// Orders taken. Changed by that thread.
    taken: AtomicU64,
    /// Held while bytes are copied: that is done in the order of the orders, but for what waits for pages and overlaps with nothing.
    /// Locked before the crew.
    copying: Mutex<()>,
    /// Answers given.
    answered: Mutex<u64>,
    pub(super) crew: Mutex<Crew>,
    is_closed: AtomicBool,
    /// Threads that wait for something else, and carry out orders meanwhile.
    pub(super) pollers: AtomicU32,
    /// Tells the node, if it sleeps.
    notify: Box<dyn Fn() + Send + Sync>,
}

impl AccessServer {
    /// For a first thread, which the caller starts.
    pub(super) fn new(
        area: AccessArea,
        memory: Box<dyn ProcessMemory>,
        notify: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            area,
            memory,
            turn: Mutex::new(()),
            taken: AtomicU64::new(0),
            copying: Mutex::new(()),
            answered: Mutex::new(0),
            crew: Mutex::new(Crew { starting: 1, ..Crew::default() }),
            is_closed: AtomicBool::new(false),
            pollers: AtomicU32::new(0),
            notify,
        }
    }

    /// No access is begun any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.area.wake_all();
    }

    /// After [`Self::close`]: waits until none is being made. False: one does not end in time.
    pub(super) fn await_end(&self, timeout: Duration) -> bool {
        self.copying.try_lock_for(timeout).is_some()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Carries out orders that are there, unless another thread does (`None`). A thread that leads may be the one to bring pages
    /// in: nobody needs to be woken for it.
    pub(super) fn serve(&self, leads: bool) -> Option<Served> {
        let _turn = self.turn.try_lock()?;
        let first = self.taken.load(Ordering::Relaxed);
        // A node that says more has lost its count: what is in the ring is all there can be.
        let waiting = self.area.posted().wrapping_sub(first).min(RING_ORDERS) as usize;
        let mut served = Served { count: waiting.min(AT_ONCE), touch: None };
        if served.count == 0 {
            return Some(served);
        }
        let _copying = if leads {
            self.copying.lock()
        } else {
            // A thread of the program has something else to wait for.
            self.copying.try_lock()?
        };
        let orders: [_; AT_ONCE] = std::array::from_fn(|place| match place < served.count {
            true => self.area.order(first + place as u64),
            false => Err(0),
        });
        let orders = &orders[..served.count];
        self.memory.in_one_go(&mut || self.carry_out(first, orders, leads, &mut served.touch));
        Some(served)
    }

    /// Carries out orders that came together, the first of which has that place among all.
    fn carry_out(&self, first: u64, orders: &[Result<Order, u64>], leads: bool, begun: &mut Option<Touch>) {
        let (mut present, mut looked) = (Present::default(), 0);
        for (place, index) in (first..).take(orders.len()).enumerate() {
            if self.is_closed() {
                break;
            }
            self.taken.store(index + 1, Ordering::SeqCst);
            if place >= looked {
                looked = place + present.look_ahead(&orders[place..], &*self.memory);
            }
            match orders[place] {
                Ok(Order { id, address, length_bytes, kind: OrderKind::Touch(right), .. }) => {
                    let touch = Touch { whose: For::Touch(id), address, length_bytes, right };
                    if !self.begin(touch, leads, begun) {
                        self.answer(id, Outcome::Denied(Denied { address, reason: Reason::Unavailable }));
                    }
                }
                Ok(Order { id, kind: OrderKind::Withdraw(order), .. }) => {
                    let withdrawn = self.crew.lock().withdraw(order);
                    self.answer(id, Outcome::Done(withdrawn.is_some().into()));
                    if let Some(freed) = withdrawn {
                        self.answer(order, Outcome::Impossible);
                        for waiting in freed {
                            self.begin_access(waiting, &mut present, leads, begun);
                        }
                    }
                }
                Ok(order) => {
                    let waiting = Waiting { order, place: index, met: None, times: 0 };
                    self.begin_access(waiting, &mut present, leads, begun);
                }
                Err(id) => self.answer(id, Outcome::Impossible),
            }
        }
    }

    /// An access that overlaps with one that waits for pages is made after that one, if its own pages are there, may be brought in
    /// for it, or are not looked for. True: it is, or nothing is left to do.
    fn waits_for_earlier(&self, waiting: Waiting) -> bool {
        let (mut crew, order) = (self.crew.lock(), &waiting.order);
        let Some(group) = crew.group_before(&waiting) else { return false };
        let absent = self.memory.absent(order.look.0, order.look.1, order.right());
        if order.brings || order.is_forced || absent.pages == 0 {
            group.push(waiting);
            return true;
        }
        drop(crew);
        let outcome = match self.memory.check(order.look.0, order.look.1, order.right()) {
            Ok(()) => Outcome::Absent(absent),
            Err(denied) => Outcome::Denied(denied),
        };
        self.answer(order.id, outcome);
        true
    }

    /// Makes an access, or has its pages brought in.
    fn begin_access(&self, waiting: Waiting, present: &mut Present, leads: bool, begun: &mut Option<Touch>) {
        let order = &waiting.order;
        if self.is_closed() || self.waits_for_earlier(waiting) {
            return;
        }
        let absent = match self.access(order, present) {
            Outcome::Absent(absent) if order.brings => absent,
            outcome => return self.answer(order.id, outcome),
        };
        let waiting = waiting.meets(absent);
        if waiting.times > MAX_BRINGS {
            let outcome = match self.access(&Order { is_forced: true, ..*order }, present) {
                Outcome::Done(before) => Outcome::Brought(before, waiting.met.unwrap_or(absent)),
                outcome => outcome,
            };
            return self.answer(waiting.order.id, outcome);
        }
        let bring = self.crew.lock().bring(waiting);
        let look = (order.look, order.right());
        match bring {
            Bring::Joined => {}
            Bring::First if self.begin(Touch::of_accesses(look, absent), leads, begun) => {}
            Bring::First => {
                let refused = self.crew.lock().brought(look);
                refused.iter().for_each(|refused| self.answer(refused.order.id, refused.tells(absent)));
            }
            Bring::Refused => self.answer(waiting.order.id, waiting.tells(absent)),
        }
    }

    /// Pages are brought in by the thread that leads, if it does not need to any more, or by others. False: too many wait.
    fn begin(&self, touch: Touch, leads: bool, begun: &mut Option<Touch>) -> bool {
        if leads && begun.is_none() && self.may_step_down() {
            *begun = Some(touch);
            return true;
        }
        self.queue_touch(touch)
    }

    /// The thread that leads does so no more, if another can.
    fn may_step_down(&self) -> bool {
        let mut crew = self.crew.lock();
        if crew.idle == 0 && !crew.is_alone() {
            return false;
        }
        crew.has_leader = false;
        true
    }

    /// False: too many wait.
    fn queue_touch(&self, touch: Touch) -> bool {
        let mut crew = self.crew.lock();
        if crew.queue.len() >= RING_ORDERS as usize {
            return false;
        }
        crew.queue.push_back(touch);
        drop(crew);
        self.area.wake();
        true
    }

    /// The program itself wants these pages. False: too many ranges wait.
    pub(super) fn queue_ahead(&self, address: u64, length_bytes: u64, right: Right) -> bool {
        let mut crew = self.crew.lock();
        if crew.ahead.len() >= RING_ORDERS as usize {
            return false;
        }
        crew.ahead.push_back(Ahead { address, length_bytes: length_bytes.max(1), right });
        drop(crew);
        self.area.wake();
        true
    }

    /// Whether there are orders that nobody has taken.
    pub(super) fn has_orders(&self) -> bool {
        self.area.posted() != self.taken.load(Ordering::SeqCst)
    }

    /// A thread could not be started: see [`Crew::not_started`].
    pub(super) fn not_started(&self) {
        let _copying = self.copying.lock();
        let given_up = self.crew.lock().not_started();
        for (waiting, absent) in given_up {
            match waiting.order.is_forced {
                // It looks for no pages.
                true => self.begin_access(waiting, &mut Present::default(), false, &mut None),
                false => self.answer(waiting.order.id, waiting.tells(absent)),
            }
        }
        // A thread that is alone does it all.
        self.area.wake();
    }

    fn answer(&self, id: u64, outcome: Outcome) {
        let mut answered = self.answered.lock();
        self.area.answer(*answered, id, outcome);
        *answered += 1;
        drop(answered);
        (self.notify)();
    }

    fn access(&self, order: &Order, present: &mut Present) -> Outcome {
        let &Order { address, length_bytes, look, .. } = order;
        let right = order.right();
        if !order.is_forced && !present.covers((look, right)) {
            let absent = self.memory.absent(look.0, look.1, right);
            if absent.pages != 0 {
                return match self.memory.check(look.0, look.1, right) {
                    Ok(()) => Outcome::Absent(absent),
                    Err(denied) => Outcome::Denied(denied),
                };
            }
            present.note((look, right));
        }
        let nothing = Denied { address, reason: Reason::NotMapped };
        let outcome = match order.kind {
            OrderKind::Read(offset) => match self.area.span_mut(offset, length_bytes) {
                Some(into) => self.memory.read(address, into),
                None => return Outcome::Denied(nothing),
            },
            OrderKind::Write(offset) => match self.area.span(offset, length_bytes) {
                Some(bytes) => self.memory.write(address, bytes),
                None => return Outcome::Denied(nothing),
            },
            OrderKind::Words(words) => self.memory.write_words(address, words),
            OrderKind::Change(change) => match self.memory.change_word(address, change) {
                Ok(before) => return Outcome::Done(before),
                Err(Some(address)) => Err(address),
                Err(None) => return Outcome::Impossible,
            },
            OrderKind::Touch(_) | OrderKind::Withdraw(_) => return Outcome::Impossible,
        };
        match outcome {
            Ok(()) => Outcome::Done(0),
            // Not there any more, or never allowed.
            Err(address) => match self.memory.check(order.address, length_bytes, right) {
                Err(denied) => Outcome::Denied(denied),
                Ok(()) => Outcome::Denied(Denied { address, reason: Reason::Unavailable }),
            },
        }
    }

    /// What a thread of the crew does until the area is closed: it leads, brings pages in, or is idle.
    pub(super) fn work(&self, recruit: &dyn Fn()) {
        self.crew.lock().started();
        let mut leads = false;
        loop {
            let woken = self.area.woken();
            let next = if leads { Next::Lead } else { self.next() };
            let touch = match next {
                Next::End => return,
                Next::Touch(touch) => Some(touch),
                Next::Lead => self.lead(recruit),
                Next::Rest => None,
            };
            if let Some(touch) = touch {
                leads = self.touch(touch);
                recruit();
            } else {
                leads = false;
                self.sleep(woken, recruit);
            }
        }
    }

    /// An idle thread sleeps until it is woken. Where a thread that polls has taken no order of those that were there before, this one
    /// carries them out.
    fn sleep(&self, woken: u32, recruit: &dyn Fn()) {
        if self.is_closed() {
            return;
        }
        recruit();
        let taken = self.has_orders().then(|| self.taken.load(Ordering::SeqCst));
        let is_polled = self.pollers.load(Ordering::SeqCst) > 0;
        let longest = if is_polled { timing::ACCESS_POLLER_PAUSE } else { timing::ACCESS_MAX_SLEEP };
        self.area.sleep(woken, longest);
        if is_polled && taken == Some(self.taken.load(Ordering::SeqCst)) && self.serve(false).is_some() {
            recruit();
        }
    }

    /// What an idle thread does.
    fn next(&self) -> Next {
        let mut crew = self.crew.lock();
        if self.is_closed() {
            (crew.threads, crew.idle) = (crew.threads - 1, crew.idle - 1);
            Next::End
        } else if let Some(touch) = crew.next() {
            crew.idle -= 1;
            // It may have been woken for an order.
            if !crew.has_leader && self.has_orders() {
                self.area.wake();
            }
            Next::Touch(touch)
        } else if !crew.has_leader && self.pollers.load(Ordering::SeqCst) == 0 {
            (crew.has_leader, crew.idle) = (true, crew.idle - 1);
            Next::Lead
        } else {
            Next::Rest
        }
    }

    /// Carries out orders while they come. Gives the touch for which this thread does not lead any more, or nothing when no order
    /// has come for a while: then it is idle.
    fn lead(&self, recruit: &dyn Fn()) -> Option<Touch> {
        self.area.stay_awake();
        let mut idle: Option<Instant> = None;
        while !self.is_closed() {
            if let Some(Served { count: 1.., touch }) = self.serve(true) {
                recruit();
                if touch.is_some() {
                    self.rest();
                    return touch;
                }
                idle = None;
                continue;
            }
            let is_polled = self.pollers.load(Ordering::SeqCst) > 0;
            if is_polled || idle.get_or_insert_with(Instant::now).elapsed() >= timing::ACCESS_POLL {
                break;
            }
            // The node may need this processor.
            std::thread::yield_now();
        }
        let mut crew = self.crew.lock();
        (crew.has_leader, crew.idle) = (false, crew.idle + 1);
        drop(crew);
        self.rest();
        None
    }

    /// Nobody of the crew looks for orders now: whoever gives one wakes somebody.
    fn rest(&self) {
        if self.pollers.load(Ordering::SeqCst) == 0 {
            self.area.fall_asleep();
            if self.has_orders() {
                self.area.wake();
            }
        }
    }

    /// Brings pages in. Returns whether this thread leads then, as no other does.
    fn touch(&self, touch: Touch) -> bool {
        let begun_at = self.taken.load(Ordering::SeqCst);
        let touched = self.memory.touch(touch.address, touch.length_bytes, touch.right);
        let copying = matches!(touch.whose, For::Accesses(..)).then(|| self.copying.lock());
        let mut crew = self.crew.lock();
        let orders = match touch.whose {
            For::Accesses(look, _) => crew.brought(look),
            For::Touch(_) | For::Program => Vec::new(),
        };
        crew.is_ahead &= !touch.is_of_program();
        // Other pages that wait come first: whoever is idle leads when there is an order.
        let is_free = crew.waiting() == 0 && self.pollers.load(Ordering::SeqCst) == 0;
        let leads = is_free && !crew.has_leader;
        crew.has_leader |= leads;
        drop(crew);
        if leads {
            // Before the answers: the next orders follow from them.
            self.area.stay_awake();
        }
        match (touch.whose, touched) {
            (For::Program, _) => {}
            (For::Touch(id), Ok(())) => self.answer(id, Outcome::Done(0)),
            (For::Touch(id), Err(denied)) => self.answer(id, Outcome::Denied(denied)),
            (For::Accesses(look, absent), touched) => self.make(&orders, look, absent, touched, begun_at),
        }
        drop(copying);
        self.crew.lock().idle += u32::from(!leads);
        leads
    }

    /// Makes accesses whose pages have come. The first of them says which those were. The caller holds `copying`. A page that could not be
    /// had is told to those that were ordered before it was asked for (`begun_at`): for later ones the memory may have
    /// changed.
    fn make(
        &self,
        orders: &[Waiting],
        look: Look,
        absent: Absent,
        touched: Result<(), Denied>,
        begun_at: u64,
    ) {
        let (mut present, mut has_said) = (Present::default(), false);
        for waiting in orders {
            if self.is_closed() {
                return;
            }
            let order = &waiting.order;
            // It may have waited for others, too, of which these are not made yet.
            if let Some(group) = self.crew.lock().group_before(waiting) {
                group.push(*waiting);
                continue;
            }
            let looks_there = (order.look, order.right()) == look;
            if touched.is_err() && looks_there && waiting.place >= begun_at {
                self.begin_access(*waiting, &mut present, false, &mut None);
                continue;
            }
            let outcome = match touched {
                Err(denied) if looks_there => Outcome::Denied(denied),
                Err(_) | Ok(()) => match self.access(order, &mut present) {
                    Outcome::Done(before)
                        if order.brings && looks_there && !std::mem::replace(&mut has_said, true) =>
                    {
                        Outcome::Brought(before, waiting.met.unwrap_or(absent))
                    }
                    Outcome::Absent(_) if order.brings => {
                        // Those that overlap with it and came later wait for it still.
                        self.begin_access(*waiting, &mut present, false, &mut None);
                        continue;
                    }
                    outcome => outcome,
                },
            };
            self.answer(order.id, outcome);
        }
    }
}
