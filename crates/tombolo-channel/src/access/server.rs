//! Carrying out orders. No thread of its own: see [`super::AccessThreads`].

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Condvar, Mutex};
use tombolo_host::own::{Denied, ProcessMemory, Reason, Right};

use super::area::AccessArea;
use super::order::{Order, OrderKind, Outcome, RING_ORDERS};

/// Orders carried out before the others that wait for the same thread get their turn.
const AT_ONCE: usize = 16;

/// Pages to bring in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    /// The order, which is answered. `None`: the program itself wants the pages.
    pub(super) order: Option<u64>,
    pub(super) address: u64,
    pub(super) length_bytes: u32,
    pub(super) right: Right,
}

/// Touches that wait for a thread.
#[derive(Debug, Default)]
pub(super) struct Touches {
    /// Those that the node has ordered.
    pub(super) queue: VecDeque<Touch>,
    /// Those that the program itself wants: when there are no others, and by one thread at a time.
    ahead: VecDeque<Touch>,
    is_ahead: bool,
    pub(super) threads: u32,
    pub(super) idle: u32,
}

impl Touches {
    /// How many may be begun.
    pub(super) fn waiting(&self) -> usize {
        self.queue.len() + usize::from(!self.is_ahead && !self.ahead.is_empty())
    }
}

/// The orders of one area, carried out on one program's memory.
pub(super) struct AccessServer {
    pub(super) area: AccessArea,
    memory: Box<dyn ProcessMemory>,
    /// Orders taken. Locked by the one thread that carries them out.
    taken: Mutex<u64>,
    /// Answers given.
    answered: Mutex<u64>,
    pub(super) touches: Mutex<Touches>,
    pub(super) touch: Condvar,
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
            touches: Mutex::default(),
            touch: Condvar::new(),
            is_closed: AtomicBool::new(false),
            pollers: AtomicU32::new(0),
            notify,
        }
    }

    /// Carries out orders that are there, unless another thread does. Returns how many; `None`: another thread is at it.
    pub(super) fn serve(&self) -> Option<usize> {
        let mut taken = self.taken.try_lock()?;
        let posted = self.area.posted();
        // A node that says more has lost its count: what is in the ring is all there can be.
        let waiting = posted.wrapping_sub(*taken).min(RING_ORDERS) as usize;
        // The packets of a block come together: it is looked at once. Nothing is remembered for longer.
        let mut present = None;
        for _ in 0..waiting.min(AT_ONCE) {
            if self.is_closed.load(Ordering::Relaxed) {
                break;
            }
            let order = self.area.order(*taken);
            *taken += 1;
            match order {
                Ok(Order { id, address, length_bytes, kind: OrderKind::Touch(right), .. }) => {
                    // One that finds no room is given up by the node in time.
                    self.queue_touch(Touch { order: Some(id), address, length_bytes, right });
                }
                Ok(order) => self.answer(order.id, self.access(&order, &mut present)),
                Err(id) => self.answer(id, Outcome::Impossible),
            }
        }
        Some(waiting.min(AT_ONCE))
    }

    /// False: too many wait.
    pub(super) fn queue_touch(&self, touch: Touch) -> bool {
        let mut touches = self.touches.lock();
        let queue = if touch.order.is_some() { &mut touches.queue } else { &mut touches.ahead };
        if queue.len() >= RING_ORDERS as usize {
            return false;
        }
        queue.push_back(touch);
        drop(touches);
        self.touch.notify_one();
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
            OrderKind::Touch(_) => return Outcome::Impossible,
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

    /// Brings pages in, until it is closed.
    pub(super) fn serve_touches(&self) {
        let mut touches = self.touches.lock();
        touches.idle += 1;
        loop {
            if self.is_closed.load(Ordering::Relaxed) {
                touches.idle -= 1;
                touches.threads -= 1;
                return;
            }
            let mut next = touches.queue.pop_front();
            if next.is_none() && !touches.is_ahead {
                next = touches.ahead.pop_front();
                touches.is_ahead = next.is_some();
            }
            let Some(touch) = next else {
                self.touch.wait(&mut touches);
                continue;
            };
            touches.idle -= 1;
            drop(touches);
            let outcome = match self.memory.touch(touch.address, touch.length_bytes, touch.right) {
                Ok(()) => Outcome::Done(0),
                Err(denied) => Outcome::Denied(denied),
            };
            if let Some(order) = touch.order {
                self.answer(order, outcome);
            }
            touches = self.touches.lock();
            touches.is_ahead &= touch.order.is_some();
            touches.idle += 1;
        }
    }
}
