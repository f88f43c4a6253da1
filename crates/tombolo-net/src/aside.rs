//! Writes frames to ports in threads beside the one that moves frames: to the ports of other users, and to those ports of the
//! owner's user and root to which writing takes long ([`tombolo_core::nic::effort`]).
//!
//! When a frame is written to a TAP device, the kernel does with it whatever the device's user has set up, in the thread that
//! writes. So the ports of each other user have a thread of their own, and the slow ports of the owner's user and root share
//! one thread.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use tombolo_core::nic::offload::{OFFLOAD_BYTES, Wire};
use tombolo_core::nic::{PortId, Tag};
use tombolo_host::cpu;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::timing::net::START_PAUSE;

use crate::frames::{End, FrameBuffer};
use crate::worker::nanoseconds;

/// Most frames and bytes that wait for one port: as much as a TAP device's own queue holds, or some segments.
const FRAMES_OF_PORT_MAX: usize = 512;
const BYTES_OF_PORT_MAX: usize = 1 << 20;
/// Most bytes that wait for all ports of a user.
const BYTES_MAX: usize = 16 << 20;

/// A frame that is to be written.
struct Job {
    to: Arc<End<PassedDescriptor>>,
    /// The frame with its offload header, and with the tag that it is to have.
    bytes: Vec<u8>,
    wire: Wire,
}

/// A frame that was written, or that its port has not taken.
pub struct Written {
    /// Its port.
    pub id: PortId,
    /// The frame as it was written, with its offload header.
    bytes: Vec<u8>,
    /// Its size on the wire.
    pub wire: Wire,
    /// The processor time that the write has cost.
    pub cost_ns: u64,
    /// Whether the port has taken the frame.
    pub was_taken: bool,
}

impl Written {
    /// The frame.
    pub fn frame(&self) -> &[u8] {
        self.bytes.get(OFFLOAD_BYTES..).unwrap_or_default()
    }
}

#[derive(Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    bytes: usize,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<PortId, Waiting>,
    /// Ports with frames that wait, in the order of their turns.
    turns: VecDeque<PortId>,
    bytes: usize,
    /// The port that is being written to, if it has not gone meanwhile.
    current: Option<PortId>,
    written: Vec<Written>,
    is_over: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Wakes the thread that moves frames.
    event: Arc<OwnedFd>,
}

/// The frames that wait for the ports of one user, and the thread that writes them. Dropping the lane makes the thread end
/// after the frame that it is writing, without waiting for that.
struct Lane {
    shared: Arc<Shared>,
    ports: BTreeSet<PortId>,
}

/// All frames that wait to be written aside, and the threads that write them.
pub struct Aside {
    event: Arc<OwnedFd>,
    /// By user. `None`: the owner's user and root.
    lanes: BTreeMap<Option<u32>, Lane>,
    /// Number of frames of each port that were pushed and that [`Aside::take_written`] has not returned yet.
    under_way: BTreeMap<PortId, usize>,
    /// When starting a thread failed last.
    failed: Option<Instant>,
}

impl Aside {
    /// Threads are started as soon as there are frames for them. `event` is written to when frames were written.
    pub fn new(event: Arc<OwnedFd>) -> Self {
        Self { event, lanes: BTreeMap::new(), under_way: BTreeMap::new(), failed: None }
    }

    /// Whether frames of this port are under way. Later frames must not overtake them.
    pub fn has(&self, id: PortId) -> bool {
        self.under_way.contains_key(&id)
    }

    /// Adds a frame for a port of this user (`None`: the owner's user or root). Returns false if there is no room or no thread.
    pub fn push(
        &mut self,
        user: Option<u32>,
        id: PortId,
        to: &Arc<End<PassedDescriptor>>,
        frame: &FrameBuffer,
        tag: Tag,
        wire: Wire,
    ) -> bool {
        if !self.lanes.contains_key(&user) && self.failed.is_some_and(|at| at.elapsed() < START_PAUSE) {
            return false;
        }
        let joined = frame.with_parts(tag, |parts| {
            let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            Ok(bytes)
        });
        let Ok(bytes) = joined else { return false };
        let job = Job { to: to.clone(), bytes, wire };
        let lane = match self.lanes.entry(user) {
            Entry::Occupied(lane) => lane.into_mut(),
            Entry::Vacant(place) => match Lane::start(self.event.clone()) {
                Ok(lane) => place.insert(lane),
                Err(error) => {
                    self.failed = Some(Instant::now());
                    tracing::warn!(%error, "no thread can be had for a port that is written to aside");
                    return false;
                }
            },
        };
        lane.ports.insert(id);
        let mut state = lane.shared.state.lock();
        let State { waiting, turns, bytes, .. } = &mut *state;
        let length = job.bytes.len();
        let of_port = waiting.entry(id).or_default();
        if of_port.jobs.len() >= FRAMES_OF_PORT_MAX
            || of_port.bytes + length > BYTES_OF_PORT_MAX
            || *bytes + length > BYTES_MAX
        {
            return false;
        }
        if of_port.jobs.is_empty() {
            turns.push_back(id);
        }
        of_port.jobs.push_back(job);
        of_port.bytes += length;
        *bytes += length;
        drop(state);
        *self.under_way.entry(id).or_default() += 1;
        lane.shared.work.notify_one();
        true
    }

    /// The frames that were written, or that their ports have not taken, since the last call.
    pub fn take_written(&mut self) -> Vec<Written> {
        if self.under_way.is_empty() {
            return Vec::new();
        }
        let taken = |lane: &Lane| std::mem::take(&mut lane.shared.state.lock().written);
        let written: Vec<Written> = self.lanes.values().flat_map(taken).collect();
        for Written { id, .. } in &written {
            if let Some(count) = self.under_way.get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.under_way.remove(id);
                }
            }
        }
        written
    }

    /// Removes a port that has gone, and the frames that wait for it.
    pub fn remove(&mut self, id: PortId) {
        let Some((user, lane)) = self.lanes.iter_mut().find(|(_, lane)| lane.ports.contains(&id)) else {
            return;
        };
        lane.ports.remove(&id);
        self.under_way.remove(&id);
        if lane.ports.is_empty() {
            let user = *user;
            self.lanes.remove(&user);
            return;
        }
        let mut state = lane.shared.state.lock();
        if let Some(gone) = state.waiting.remove(&id) {
            state.bytes -= gone.bytes;
        }
        state.turns.retain(|waiting| *waiting != id);
        state.written.retain(|written| written.id != id);
        if state.current == Some(id) {
            state.current = None;
        }
    }
}

impl Lane {
    fn start(event: Arc<OwnedFd>) -> io::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), event });
        let of_thread = shared.clone();
        std::thread::Builder::new().name("frames aside".into()).spawn(move || of_thread.run())?;
        Ok(Self { shared, ports: BTreeSet::new() })
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.work.notify_one();
    }
}

impl Shared {
    fn run(&self) {
        // The thread that started this one has a higher priority than programs, which this one has inherited.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 0);
        let mut state = self.state.lock();
        while !state.is_over {
            let Some((id, job)) = next(&mut state) else {
                self.work.wait(&mut state);
                continue;
            };
            state.current = Some(id);
            drop(state);
            let Job { to, bytes, wire } = job;
            let begin = cpu::thread_time();
            let was_taken = to.write(&[io::IoSlice::new(&bytes)]).is_ok();
            let cost_ns = nanoseconds(cpu::thread_time().saturating_sub(begin));
            // This may be the last reference. It is dropped before the lock is taken, since closing a device takes long.
            drop(to);
            state = self.state.lock();
            if state.current.take() == Some(id) {
                state.written.push(Written { id, bytes, wire, cost_ns, was_taken });
                // A full counter means that the thread that moves frames is awake.
                let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            }
        }
    }
}

/// The next frame of the port whose turn it is.
fn next(state: &mut State) -> Option<(PortId, Job)> {
    let id = state.turns.pop_front()?;
    let of_port = state.waiting.get_mut(&id)?;
    let job = of_port.jobs.pop_front()?;
    of_port.bytes -= job.bytes.len();
    state.bytes -= job.bytes.len();
    if of_port.jobs.is_empty() {
        state.waiting.remove(&id);
    } else {
        state.turns.push_back(id);
    }
    Some((id, job))
}
