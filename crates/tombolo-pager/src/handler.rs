//! Fault handlers: one thread a processor, each with a poll set of its own, so
//! that a fault is mostly served on the processor where it happened. Waking a
//! thread elsewhere costs several times as much as serving the fault.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use tombolo_host::process;
use tombolo_node::FarMemory;

use crate::pager::Pager;
use crate::space::Space;

/// Marks the descriptors of far memory in a poll set.
const FAR: u64 = u64::MAX;
/// Marks the descriptor that ends a handler.
const STOP: u64 = u64::MAX - 1;
/// How long a handler that has sent for a page polls before it sleeps.
const SPIN: Duration = Duration::from_micros(150);
/// How often it looks for the page before it looks for other faults.
const SPIN_ROUNDS: u32 = 8;
/// Wake-ups in a row that found the fault taken, after which a handler rests.
const MISSES_MAX: u32 = 8;
/// For how long. Every fault wakes all handlers that do not rest, and the one
/// on the wrong processor only disturbs; a program that moves is caught up with
/// after this time.
const REST: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 4_000_000 };

/// What one handler sleeps on.
#[derive(Debug)]
pub struct PollSet {
    epoll: OwnedFd,
    /// Holds `stop` only, for resting.
    resting: OwnedFd,
    stop: OwnedFd,
}

impl PollSet {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)?;
        let resting = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for set in [&epoll, &resting] {
            epoll::add(set, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        }
        Ok(Self { epoll, resting, stop })
    }

    /// Polls far memory's descriptors, and no longer those of lenders that are
    /// lost: they stay ready for ever.
    pub fn set_far(&self, far: &dyn FarMemory) {
        for (descriptor, alive) in far.descriptors() {
            // Present or absent already is fine.
            if alive {
                let data = epoll::EventData::new_u64(FAR);
                let _ = epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::IN);
            } else {
                let _ = epoll::delete(&self.epoll, descriptor);
            }
        }
    }

    /// Adds the faults of a space.
    pub fn add_space(&self, space: &Space) -> io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(space.index));
        epoll::add(&self.epoll, space.uffd.as_fd(), data, epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Removes them. Closing does not: the agent has a duplicate.
    pub fn remove_space(&self, space: &Space) {
        let _ = epoll::delete(&self.epoll, space.uffd.as_fd());
    }

    /// Ends the handler.
    pub fn stop(&self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

/// Serves faults until the run is over. `number` names the poll set and the processor.
pub fn run(pager: &Arc<Pager>, number: usize, processor: Option<usize>) {
    if let Some(processor) = processor {
        // Not being pinned costs speed only.
        let _ = process::pin_thread(processor);
    }
    let Some(set) = pager.polls.get(number) else { return };
    let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut events = [nothing; 16];
    let mut spin_until: Option<Instant> = None;
    let mut misses = 0;
    while !pager.stopping.load(Ordering::Relaxed) {
        if misses >= MISSES_MAX {
            misses = 0;
            rest(pager, set);
            continue;
        }
        // Whoever has sent for a page polls for it; the others sleep.
        let spinning = spin_until.is_some_and(|end| Instant::now() < end);
        if spinning {
            for _ in 0..SPIN_ROUNDS {
                pager.far.progress();
                if pager.far.in_flight() == 0 {
                    break;
                }
            }
        }
        let sleep = if spinning { Some(Duration::ZERO) } else { pager.far.sleep_time() };
        let timeout = sleep.map(|sleep| rustix::time::Timespec {
            tv_sec: sleep.as_secs() as i64,
            tv_nsec: i64::from(sleep.subsec_nanos()),
        });
        let count = match epoll::wait(&set.epoll, &mut events[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return,
        };
        let sent = pager.far.in_flight();
        let mut far = spinning || (count == 0 && sleep.is_some());
        for event in &events[..count] {
            match event.data.u64() {
                STOP => return,
                FAR => far = true,
                index => {
                    if let Some(space) = pager.space(index as u32) {
                        misses = if pager.serve_next(&space) { 0 } else { misses + 1 };
                    }
                }
            }
        }
        if far {
            pager.far.progress();
        }
        pager.serve_deferred();
        spin_until = match pager.far.in_flight() {
            0 => None,
            now if now > sent => Some(Instant::now() + SPIN),
            _ => spin_until,
        };
    }
}

/// Leaves the faults to the other handlers for a while, if there are others.
fn rest(pager: &Pager, set: &PollSet) {
    let last = pager.awake.fetch_sub(1, Ordering::AcqRel) == 1;
    if !last {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let _ = epoll::wait(&set.resting, &mut [nothing][..], Some(&REST));
    }
    pager.awake.fetch_add(1, Ordering::AcqRel);
}
