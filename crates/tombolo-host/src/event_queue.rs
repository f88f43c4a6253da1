//! A queue of events between threads, most of which look for events anyway.
//!
//! A thread that drives a link takes what came of that itself. So an event costs a system call only if no thread attends to the
//! queue: then the queue's descriptor becomes readable.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::event::{EventFd, wait_readable};

/// See the module.
#[derive(Debug)]
pub struct EventQueue<T> {
    list: Mutex<List<T>>,
    /// As long as the list.
    length: AtomicUsize,
    /// Threads that will look before they sleep.
    attending: AtomicUsize,
    ready: EventFd,
}

#[derive(Debug)]
struct List<T> {
    events: VecDeque<T>,
    is_signalled: bool,
}

impl<T> EventQueue<T> {
    /// An empty queue.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            list: Mutex::new(List { events: VecDeque::new(), is_signalled: false }),
            length: AtomicUsize::new(0),
            attending: AtomicUsize::new(0),
            ready: EventFd::new()?,
        })
    }

    /// Adds an event. If no thread attends to the queue, its descriptor becomes readable.
    pub fn push(&self, event: T) {
        let mut list = self.list.lock();
        list.events.push_back(event);
        self.length.store(list.events.len(), Ordering::SeqCst);
        // Either this sees who attends, or that thread sees the event when it stops (`attend`).
        if self.attending.load(Ordering::SeqCst) == 0 && !list.is_signalled {
            list.is_signalled = self.ready.signal().is_ok();
        }
    }

    /// Takes the first event.
    pub fn take(&self) -> Option<T> {
        let mut list = self.list.lock();
        let event = list.events.pop_front();
        self.note_length(&mut list);
        event
    }

    /// The list has become shorter.
    fn note_length(&self, list: &mut List<T>) {
        self.length.store(list.events.len(), Ordering::SeqCst);
        if list.events.is_empty() && std::mem::take(&mut list.is_signalled) {
            let _ = self.ready.drain();
        }
    }

    /// Whether there is no event. The descriptor is not readable then.
    pub fn is_empty(&self) -> bool {
        self.length.load(Ordering::SeqCst) == 0
    }

    /// Keeps the events for which this is true, and drops the others.
    pub fn retain(&self, is_kept: impl FnMut(&T) -> bool) {
        let mut list = self.list.lock();
        list.events.retain(is_kept);
        self.note_length(&mut list);
    }

    /// Does some work that may add events, and has `take_all` take those that are there when it is done. The work must not
    /// sleep: events of other threads wait meanwhile.
    pub fn attend(&self, work: impl FnOnce(), mut take_all: impl FnMut(&Self)) {
        self.attending.fetch_add(1, Ordering::SeqCst);
        work();
        loop {
            take_all(self);
            self.attending.fetch_sub(1, Ordering::SeqCst);
            if self.is_empty() {
                return;
            }
            self.attending.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// From now on one thread attends that never sleeps.
    pub fn attend_always(&self) {
        self.attending.fetch_add(1, Ordering::SeqCst);
    }

    /// The next event, if one comes in time.
    pub fn wait(&self, timeout: Duration) -> Option<T> {
        self.take().or_else(|| {
            let _ = wait_readable(&[self.ready.as_fd()], Some(timeout));
            self.take()
        })
    }
}

/// Readable from the moment an event comes while no thread attends until the last event is taken.
impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ready.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn is_readable(queue: &EventQueue<u32>) -> bool {
        let mut polled = [rustix::event::PollFd::new(queue, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default())).unwrap() > 0
    }

    #[test]
    fn the_descriptor_is_readable_only_for_what_nobody_attends_to() {
        let queue = EventQueue::new().unwrap();
        let mut taken = Vec::new();
        queue.attend(
            || {
                queue.push(1);
                queue.push(2);
                assert!(!is_readable(&queue));
            },
            |queue| taken.extend(std::iter::from_fn(|| queue.take())),
        );
        assert_eq!(taken, [1, 2]);
        queue.push(3);
        queue.push(4);
        assert!(is_readable(&queue) && !queue.is_empty());
        assert_eq!(queue.take(), Some(3));
        assert!(is_readable(&queue));
        assert_eq!(queue.take(), Some(4));
        assert!(!is_readable(&queue) && queue.is_empty());
        queue.push(5);
        queue.push(6);
        queue.retain(|event| *event == 6);
        assert!(is_readable(&queue));
        queue.retain(|_| false);
        assert!(!is_readable(&queue) && queue.is_empty());
        queue.push(5);
        assert_eq!(queue.wait(Duration::from_secs(60)), Some(5));
        queue.attend_always();
        queue.push(6);
        assert!(!is_readable(&queue));
    }

    /// Threads attend for moments, and sleep between them: every event is taken, once.
    #[test]
    fn no_event_is_left_behind() {
        const EVENTS: u64 = 20_000;
        let queue = EventQueue::new().unwrap();
        let [sum, count, ended] = [(); 3].map(|()| AtomicU64::new(0));
        let take_all = |queue: &EventQueue<u64>| {
            for event in std::iter::from_fn(|| queue.take()).filter(|event| *event > 0) {
                sum.fetch_add(event, Ordering::SeqCst);
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            let (queue, count, ended, take_all) = (&queue, &count, &ended, &take_all);
            for first in 1..=2 {
                scope.spawn(move || (first..=EVENTS).step_by(2).for_each(|event| queue.push(event)));
                scope.spawn(move || {
                    while count.load(Ordering::SeqCst) < EVENTS {
                        assert!(
                            wait_readable(&[queue.as_fd()], Some(Duration::from_secs(60))).unwrap(),
                            "left behind"
                        );
                        queue.attend(|| {}, take_all);
                    }
                    ended.fetch_add(1, Ordering::SeqCst);
                });
            }
            // Both hear of the end.
            while ended.load(Ordering::SeqCst) < 2 {
                if count.load(Ordering::SeqCst) == EVENTS {
                    queue.push(0);
                }
                std::thread::yield_now();
            }
        });
        assert_eq!((count.into_inner(), sum.into_inner()), (EVENTS, EVENTS * (EVENTS + 1) / 2));
    }
}
