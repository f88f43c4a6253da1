//! Carrying out orders. No thread of its own: see [`super::AccessThreads`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use tombolo_host::own::{Absent, Denied, PAGE_BYTES, ProcessMemory, Reason, Right};
use tombolo_host::timing::client as timing;

use super::area::AccessArea;
use super::order::{Order, OrderKind, Outcome, RING_ORDERS};

/// Threads of an area, at most: while four bring in pages that take long, one is left for orders, and a fifth page waits.
const MAX_THREADS: u32 = 5;
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

/// What an access looks at, and to do what.
type Look = ((u64, u32), Right);

/// Pages to bring in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    whose: For,
    address: u64,
    length_bytes: u32,
    right: Right,
}

impl Touch {
    /// The program itself wants these pages.
    pub(super) fn of_program(address: u64, length_bytes: u32, right: Right) -> Self {
        Self { whose: For::Program, address, length_bytes, right }
    }

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

/// An access whose pages are brought in.
#[derive(Debug)]
struct Bringing {
    order: Order,
    /// It is not made then, but answered.
    is_withdrawn: bool,
}

/// The threads of an area, and what they are at.
#[derive(Debug, Default)]
pub(super) struct Crew {
    /// Touches that the node has ordered, and that wait for a thread.
    queue: VecDeque<Touch>,
    /// Those that the program itself wants: when there are no others, and by one thread at a time.
    ahead: VecDeque<Touch>,
    is_ahead: bool,
    /// Accesses that are made when their pages are there, by what they look at: the packets of a block look at the same.
    bringing: Vec<(Look, Vec<Bringing>)>,
    threads: u32,
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

    /// Whether a touch waits for which there is no thread: one is always left for orders.
    fn is_short(&self) -> bool {
        self.waiting() > (self.idle as usize + usize::from(self.has_leader)).saturating_sub(1)
    }

    /// Counts another thread, if one is needed: the caller starts it.
    pub(super) fn recruits(&mut self) -> bool {
        let is_needed = self.threads < MAX_THREADS && self.is_short();
        (self.threads, self.idle) = (self.threads + u32::from(is_needed), self.idle + u32::from(is_needed));
        is_needed
    }

    /// One that was counted could not be started.
    pub(super) fn lost_one(&mut self) {
        (self.threads, self.idle) = (self.threads - 1, self.idle - 1);
    }

    /// An access waits for its pages. Returns whether it is the first that looks at them.
    fn bring(&mut self, order: &Order) -> bool {
        let look = (order.look, order.right());
        if let Some((_, orders)) = self.bringing.iter_mut().find(|(known, _)| *known == look) {
            orders.push(Bringing { order: *order, is_withdrawn: false });
            return false;
        }
        self.bringing.push((look, vec![Bringing { order: *order, is_withdrawn: false }]));
        true
    }

    /// The accesses that wait for what they look at.
    fn brought(&mut self, look: Look) -> Vec<Bringing> {
        let place = self.bringing.iter().position(|(known, _)| *known == look);
        place.map_or_else(Vec::new, |place| self.bringing.swap_remove(place).1)
    }

    /// An access is not made. False: it waits for no pages.
    fn withdraw(&mut self, id: u64) -> bool {
        let mut all = self.bringing.iter_mut().flat_map(|(_, accesses)| accesses);
        let found = all.find(|access| access.order.id == id);
        found.is_some_and(|access| !std::mem::replace(&mut access.is_withdrawn, true))
    }

    /// A touch for an idle thread. Somebody has to be left for orders.
    fn next(&mut self) -> Option<Touch> {
        if !self.has_leader && self.idle < 2 {
            return None;
        }
        if let Some(touch) = self.queue.pop_front() {
            return Some(touch);
        }
        if self.is_ahead {
            return None;
        }
        let touch = self.ahead.pop_front()?;
        self.is_ahead = true;
        Some(touch)
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
    /// Orders taken. Locked by the one thread that carries them out.
    taken: Mutex<u64>,
    /// Answers given.
    answered: Mutex<u64>,
    pub(super) crew: Mutex<Crew>,
    pub(super) is_closed: AtomicBool,
    /// Threads that wait for something else, and carry out orders meanwhile.
    pub(super) pollers: AtomicU32,
    /// Tells the node, if it sleeps.
    notify: Box<dyn Fn() + Send + Sync>,
}

impl AccessServer {
    pub(super) fn new(
        area: AccessArea,
        memory: Box<dyn ProcessMemory>,
        notify: Box<dyn Fn() + Send + Sync>,
    ) -> Self {
        Self {
            area,
            memory,
            taken: Mutex::new(0),
            answered: Mutex::new(0),
            // The first one, which its caller starts.
            crew: Mutex::new(Crew { threads: 1, idle: 1, ..Crew::default() }),
            is_closed: AtomicBool::new(false),
            pollers: AtomicU32::new(0),
            notify,
        }
    }

    /// Carries out orders that are there, unless another thread does (`None`). A thread that leads may be the one to bring pages
    /// in: nobody needs to be woken for it.
    pub(super) fn serve(&self, leads: bool) -> Option<Served> {
        let mut taken = self.taken.try_lock()?;
        let posted = self.area.posted();
        // A node that says more has lost its count: what is in the ring is all there can be.
        let waiting = posted.wrapping_sub(*taken).min(RING_ORDERS) as usize;
        // The packets of a block come together: it is looked at once. Nothing is remembered for longer.
        let mut present = None;
        let mut served = Served { count: waiting.min(AT_ONCE), touch: None };
        for _ in 0..served.count {
            if self.is_closed.load(Ordering::Relaxed) {
                break;
            }
            let order = self.area.order(*taken);
            *taken += 1;
            match order {
                Ok(Order { id, address, length_bytes, kind: OrderKind::Touch(right), .. }) => {
                    let touch = Touch { whose: For::Touch(id), address, length_bytes, right };
                    // One that finds no room is given up by the node in time.
                    self.begin(touch, leads, &mut served);
                }
                Ok(Order { id, kind: OrderKind::Withdraw(order), .. }) => {
                    let is_withdrawn = self.crew.lock().withdraw(order);
                    self.answer(id, Outcome::Done(is_withdrawn.into()));
                }
                Ok(order) => match self.access(&order, &mut present) {
                    Outcome::Absent(absent) if order.brings => {
                        let look = (order.look, order.right());
                        let is_first = self.crew.lock().bring(&order);
                        if is_first && !self.begin(Touch::of_accesses(look, absent), leads, &mut served) {
                            for access in self.crew.lock().brought(look) {
                                self.answer(access.order.id, Outcome::Absent(absent));
                            }
                        }
                    }
                    outcome => self.answer(order.id, outcome),
                },
                Err(id) => self.answer(id, Outcome::Impossible),
            }
        }
        Some(served)
    }

    /// Pages are brought in by the thread that leads, if it does not need to any more, or by others. False: too many wait.
    fn begin(&self, touch: Touch, leads: bool, served: &mut Served) -> bool {
        if leads && served.touch.is_none() && self.may_step_down() {
            served.touch = Some(touch);
            return true;
        }
        self.queue_touch(touch)
    }

    /// The thread that leads does so no more, if another can.
    fn may_step_down(&self) -> bool {
        let mut crew = self.crew.lock();
        if crew.idle == 0 {
            return false;
        }
        crew.has_leader = false;
        true
    }

    /// False: too many wait.
    pub(super) fn queue_touch(&self, touch: Touch) -> bool {
        let mut crew = self.crew.lock();
        let queue = if touch.is_of_program() { &mut crew.ahead } else { &mut crew.queue };
        if queue.len() >= RING_ORDERS as usize {
            return false;
        }
        queue.push_back(touch);
        drop(crew);
        self.area.wake();
        true
    }

    /// Whether there are orders.
    pub(super) fn has_orders(&self) -> bool {
        // The thread that holds the lock carries out orders, and looks again after it.
        self.taken.try_lock().is_some_and(|taken| self.area.posted() != *taken)
    }

    fn answer(&self, id: u64, outcome: Outcome) {
        let mut answered = self.answered.lock();
        self.area.answer(*answered, id, outcome);
        *answered += 1;
        drop(answered);
        (self.notify)();
    }

    fn access(&self, order: &Order, present: &mut Option<((u64, u32), Right)>) -> Outcome {
        let &Order { address, length_bytes, look, .. } = order;
        let right = order.right();
        if !order.is_forced && *present != Some((look, right)) {
            let absent = self.memory.absent(look.0, look.1, right);
            if absent.pages != 0 {
                return match self.memory.check(look.0, look.1, right) {
                    Ok(()) => Outcome::Absent(absent),
                    Err(denied) => Outcome::Denied(denied),
                };
            }
            *present = Some((look, right));
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
                if !self.is_closed.load(Ordering::SeqCst) {
                    self.area.sleep(woken, timing::ACCESS_MAX_SLEEP);
                }
            }
        }
    }

    /// What an idle thread does.
    fn next(&self) -> Next {
        let mut crew = self.crew.lock();
        if self.is_closed.load(Ordering::SeqCst) {
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
        while !self.is_closed.load(Ordering::SeqCst) {
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

    /// Brings pages in. Returns whether this thread leads then, as nobody else does.
    fn touch(&self, touch: Touch) -> bool {
        let touched = self.memory.touch(touch.address, touch.length_bytes, touch.right);
        let mut crew = self.crew.lock();
        let made = match touch.whose {
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
            (For::Accesses(_, absent), touched) => self.make(made, absent, touched),
        }
        self.crew.lock().idle += u32::from(!leads);
        leads
    }

    /// Makes accesses whose pages have come. The first of them says which those were.
    fn make(&self, accesses: Vec<Bringing>, absent: Absent, touched: Result<(), Denied>) {
        let (mut present, mut said) = (None, false);
        for Bringing { order, is_withdrawn } in accesses {
            let outcome = match touched {
                _ if is_withdrawn => Outcome::Impossible,
                Err(denied) => Outcome::Denied(denied),
                Ok(()) => match self.access(&order, &mut present) {
                    Outcome::Done(before) if !std::mem::replace(&mut said, true) => {
                        Outcome::Brought(before, absent)
                    }
                    outcome => outcome,
                },
            };
            self.answer(order.id, outcome);
        }
    }
}
