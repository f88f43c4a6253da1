//! Fault handlers: one thread for each processor, with a poll set of its own, so that a fault is mostly served on the
//! processor where it happened. Waking a thread on another processor costs several times as much as serving the fault.
//! Where many threads fault ([`crate::home`]), one handler serves all of them, and reads many faults in a call.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::EVENTS_IN_A_CALL;
use tombolo_host::{event, process};
use tombolo_node::FarMemory;

use crate::home::{Sampler, Seen};
use crate::pager::Pager;
use crate::space::Space;
use crate::stats::Counters;

/// Marks the descriptors of far memory in a poll set.
const FAR: u64 = u64::MAX;
/// Marks the descriptor that ends a handler.
const STOP: u64 = u64::MAX - 1;
/// One in this number of faults is sampled for where it happened. The longer that has not changed, the rarer the samples.
const SAMPLE_EVERY: std::ops::RangeInclusive<u32> = 8..=64;
/// How often a handler polls for a page before it looks for other faults.
const SPIN_ROUNDS: u32 = 8;
/// Number of wake-ups in a row that found the fault already served, after which a handler rests.
const MISSES_MAX: u32 = 8;

/// Up to this number of handlers, a fault wakes all sleeping handlers, and the first one serves it. A handler that has lost
/// its processor to other threads then delays no program. With more handlers, a fault wakes one of them, and the scheduler
/// places them, unless all faults are on one processor.
pub const FEW_HANDLERS: usize = 4;

/// What one handler sleeps on.
#[derive(Debug)]
pub struct PollSet {
    epoll: OwnedFd,
    /// An epoll instance with `stop` and `wake` only, for resting.
    resting: OwnedFd,
    stop: OwnedFd,
    wake: OwnedFd,
    /// Whether a fault wakes one of the sleeping handlers rather than all.
    is_one_of_many: bool,
}

impl PollSet {
    /// Creates a set with the events of far memory.
    pub fn new(far: &dyn FarMemory, is_one_of_many: bool) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let resting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for set in [&epoll, &resting] {
            epoll::add(set, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        }
        epoll::add(&epoll, far.events(), epoll::EventData::new_u64(FAR), epoll::EventFlags::IN)?;
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let wake = rustix::event::eventfd(0, flags)?;
        epoll::add(&resting, &wake, epoll::EventData::new_u64(FAR), epoll::EventFlags::IN)?;
        Ok(Self { epoll, resting, stop, wake, is_one_of_many })
    }

    /// Adds the descriptors of far memory's links, and removes those of lost lenders, which would stay ready for ever.
    pub fn set_far(&self, far: &dyn FarMemory) {
        for link in far.links() {
            let descriptor = link.peer.link.descriptor();
            // It does not matter if the descriptor was added or removed before.
            if link.is_alive {
                let data = epoll::EventData::new_u64(FAR);
                let _ = epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN);
            } else {
                let _ = epoll::delete(&self.epoll, descriptor);
            }
        }
    }

    /// Adds a space's userfaultfd.
    pub fn add_space(&self, space: &Space) -> io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(space.index));
        let flags = epoll::EventFlags::IN;
        let flags = if self.is_one_of_many { flags | epoll::EventFlags::EXCLUSIVE } else { flags };
        epoll::add(&self.epoll, space.uffd.as_fd(), data, flags)?;
        Ok(())
    }

    /// Removes a space's userfaultfd. Closing it would not do so: the agent and the keeper have duplicates.
    pub fn remove_space(&self, space: &Space) {
        let _ = epoll::delete(&self.epoll, space.uffd.as_fd());
    }

    /// Ends a rest.
    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Sleeps until woken or stopped, for at most `time`. Returns whether the time has passed.
    fn rest(&self, time: Duration) -> bool {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let count = epoll::wait(&self.resting, &mut [nothing][..], Some(&event::timespec(time)));
        let _ = rustix::io::read(&self.wake, &mut [0u8; 8]);
        count == Ok(0)
    }

    /// Ends the handler.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

/// Serves faults until the run is over. `number` names the poll set and the processor.
pub fn run(pager: &Arc<Pager>, number: usize, processor: Option<usize>) {
    serve(pager, number, processor);
    // The count is for the report only.
    Counters::add(&pager.stats.counters.handler_switches, process::thread_switches().unwrap_or(0));
}

fn serve(pager: &Arc<Pager>, number: usize, processor: Option<usize>) {
    if let Some(processor) = processor {
        // Not being pinned costs speed only.
        let _ = process::pin_thread(processor);
    }
    let Some(set) = pager.polls.get(number) else { return };
    let mut handler = Handler {
        pager,
        number,
        spin_until: None,
        latest: None,
        unfinished: None,
        processor,
        alone: false,
        misses: 0,
        faults_to_sample: 1,
        sample_every: *SAMPLE_EVERY.start(),
        sampler: Sampler::default(),
    };
    let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut events = [nothing; 16];
    let (mut put_off, mut helps) = (false, false);
    while !pager.stopping.load(Ordering::Relaxed) {
        if !put_off && !helps && handler.unfinished.is_none() {
            match handler.rests(set) {
                Rest::None => {}
                Rest::Woken => continue,
                // The handler that is to serve meanwhile may have no processor. An event wakes that handler only, so this
                // one's poll set would not report it.
                Rest::Over => helps = handler.help(),
            }
        }
        handler.settle();
        let spinning = handler.spin();
        let looks = spinning || put_off || helps || handler.unfinished.is_some();
        let sleep = if looks { Some(Duration::ZERO) } else { pager.far.sleep_time() };
        let timeout = sleep.map(event::timespec);
        let count = match epoll::wait(&set.epoll, &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => continue,
            // If handlers ended one by one, programs would wait for ever. So the run ends, as after any panic.
            Err(errno) => panic!("a fault handler cannot wait for faults: {errno}"),
        };
        let mut far = looks || (count == 0 && sleep.is_some());
        let mut served = false;
        if count > 0 && !looks {
            Counters::add(&pager.stats.counters.handler_wakes, 1);
        }
        for event in &events[..count] {
            match event.data.u64() {
                STOP => return,
                FAR => far = true,
                index => {
                    // Another holder of the descriptor has cleared O_NONBLOCK.
                    let flags = event.flags;
                    if flags.contains(epoll::EventFlags::ERR)
                        && let Some(space) = pager.space(index as u32)
                    {
                        let _ = space.uffd.set_nonblocking();
                    }
                    served |= handler.serve(index as u32, false);
                }
            }
        }
        // If a fault wakes only one handler, it may have woken the one without a processor. This handler's poll set does
        // not report it.
        helps = helps && (served || handler.help());
        // A handler that polls for a far page maps nothing meanwhile: the page would wait.
        if !served && !spinning {
            handler.go_on();
        }
        if far {
            pager.progress_far();
        }
        put_off = pager.serve_deferred();
        if put_off {
            // The thread that changes the address space may need this processor.
            std::thread::yield_now();
        }
    }
}

/// Result of a rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// The handler has not rested.
    None,
    /// It was woken or stopped, or has not slept because all other handlers rest.
    Woken,
    /// It has rested for the whole time.
    Over,
}

/// One handler thread.
struct Handler<'a> {
    pager: &'a Arc<Pager>,
    number: usize,
    /// The handler has sent for a page, and polls for it until this time.
    spin_until: Option<Instant>,
    /// The space of the previous fault, most likely that of the next one.
    latest: Option<Arc<Space>>,
    /// The space in which pages of first touches are put off, if there is one.
    unfinished: Option<u32>,
    /// Its processor.
    processor: Option<usize>,
    /// Whether the handler is not pinned: it runs where the scheduler places it.
    alone: bool,
    /// Wake-ups in a row that found the fault already served.
    misses: u32,
    faults_to_sample: u32,
    sample_every: u32,
    sampler: Sampler,
}

impl Handler<'_> {
    /// Pins the handler to its processor, or frees it if it serves a crowd, or if it is one of many and faults have no
    /// home.
    fn settle(&mut self) {
        let home = &self.pager.home;
        let is_many = self.pager.polls.len() > FEW_HANDLERS;
        let alone = home.is_crowded() || (is_many && home.processor().is_none());
        if alone == self.alone {
            return;
        }
        self.alone = alone;
        // Not being placed costs speed only.
        let _ = match self.processor.filter(|_| !alone) {
            Some(processor) => process::pin_thread(processor),
            None => process::place_thread(0, self.pager.home.processors()),
        };
    }

    /// Rests if faults are on another processor, or if other handlers are always quicker.
    fn rests(&mut self, set: &PollSet) -> Rest {
        let pager = self.pager;
        let elsewhere = pager.home.is_elsewhere(self.number);
        if !elsewhere && self.misses < MISSES_MAX {
            return Rest::None;
        }
        self.misses = 0;
        let others_awake = pager.awake.fetch_sub(1, Ordering::AcqRel) > 1;
        let is_over = if elsewhere {
            set.rest(timing::HANDLER_LONG_REST)
        } else {
            // At least one handler must stay awake.
            others_awake && set.rest(timing::HANDLER_REST)
        };
        pager.awake.fetch_add(1, Ordering::AcqRel);
        if is_over { Rest::Over } else { Rest::Woken }
    }

    /// Serves the next event of a space, if there is one.
    fn serve(&mut self, index: u32, goes_on: bool) -> bool {
        let pager = self.pager;
        let known = self.latest.take().filter(|space| space.index == index);
        let Some(space) = known.or_else(|| pager.space(index)) else { return false };
        let served =
            pager.serve_next(&space, if pager.home.is_crowded() { EVENTS_IN_A_CALL } else { 1 }, goes_on);
        let found_nothing = served.events == 0 && !served.has_more && !served.is_blocked;
        self.misses = if found_nothing { self.misses + 1 } else { 0 };
        if served.has_more {
            self.unfinished = Some(index);
        } else if self.unfinished == Some(index) && served.events > 0 {
            self.unfinished = None;
        }
        if served.faults > 0 {
            self.latest = Some(space);
            self.faults_to_sample = self.faults_to_sample.saturating_sub(served.faults);
            if self.faults_to_sample == 0 {
                self.faults_to_sample = self.sample(index, served.thread);
            }
        }
        if served.has_sent && pager.far.in_flight() > 0 {
            self.spin_until = Some(Instant::now() + timing::PAGE_POLL);
        }
        served.events > 0
    }

    /// Serves waiting events of all spaces. Returns whether there were any.
    fn help(&mut self) -> bool {
        let spaces = self.pager.all_spaces();
        spaces.iter().filter(|space| self.serve(space.index, false)).count() > 0
    }

    /// Maps further pages of first touches, if no fault waits.
    fn go_on(&mut self) {
        if let Some(index) = self.unfinished.take() {
            self.serve(index, true);
        }
    }

    /// Polls for a page if this handler has sent for one; the other handlers sleep. Returns whether to go on polling.
    fn spin(&mut self) -> bool {
        for _ in 0..SPIN_ROUNDS {
            let Some(end) = self.spin_until else { return false };
            self.pager.progress_far();
            if self.pager.far.in_flight() == 0 {
                self.spin_until = None;
                // The thread that waited is most likely on this processor: it goes
                // before our answers and book-keeping, and may wait again by now.
                std::thread::yield_now();
                if let Some(latest) = self.latest.as_ref().map(|space| space.index) {
                    self.serve(latest, false);
                    self.misses = 0;
                }
            } else if Instant::now() > end {
                self.spin_until = None;
            }
        }
        self.spin_until.is_some()
    }

    /// Samples where a faulting thread runs. Returns after how many faults to sample again.
    fn sample(&mut self, space: u32, thread: u32) -> u32 {
        let Some(processor) = self.sampler.processor_of(thread) else { return self.sample_every };
        let seen = Seen { space, thread, processor };
        if self.pager.home.observe(self.number, seen) {
            for (other, set) in self.pager.polls.iter().enumerate() {
                if other != self.number {
                    set.wake();
                }
            }
            // After a change, samples are taken more often.
            self.sample_every = *SAMPLE_EVERY.start();
            return 1;
        }
        self.sample_every = (self.sample_every * 2).min(*SAMPLE_EVERY.end());
        self.sample_every
    }
}
