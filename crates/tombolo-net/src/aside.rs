//! Writes frames to ports that take long over them ([`tombolo_core::nic::effort`]), beside the thread that moves frames.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tombolo_core::nic::offload::{OFFLOAD_BYTES, Wire};
use tombolo_core::nic::{PortId, Tag};
use tombolo_host::cpu;
use tombolo_host::passed::PassedDescriptor;

use crate::frames::{End, FrameBuffer};
use crate::worker::nanoseconds;

/// What waits for one port at most, in frames and bytes: as much as a TAP device's own queue, or some segments.
const FRAMES_OF_PORT_MAX: usize = 512;
const BYTES_OF_PORT_MAX: usize = 1 << 20;
/// What waits for all ports.
const BYTES_MAX: usize = 64 << 20;

/// A frame that is to be written.
struct Job {
    to: Arc<End<PassedDescriptor>>,
    /// With its offload header, and with the tag that it is to have.
    bytes: Vec<u8>,
    wire: Wire,
}

/// A frame that was written, or that its port has not taken.
pub struct Written {
    /// Whose.
    pub id: PortId,
    /// As it came to the port, with its offload header.
    bytes: Vec<u8>,
    /// What it is on the wire.
    pub wire: Wire,
    /// What that has cost of the processor's time.
    pub cost_ns: u64,
    /// Whether it was taken.
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
    /// The port that is written to, if it has not gone meanwhile.
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

/// What waits to be written aside, and the thread that does it.
pub struct Aside {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Frames of each port that were not heard of since.
    under_way: BTreeMap<PortId, usize>,
}

impl Aside {
    /// Without a thread, until there is something to write. `event` is written to when frames were written.
    pub fn new(event: Arc<OwnedFd>) -> Self {
        let shared = Shared { state: Mutex::default(), work: Condvar::new(), event };
        Self { shared: Arc::new(shared), thread: None, under_way: BTreeMap::new() }
    }

    /// Whether frames of this port are under way: what comes later must not overtake them.
    pub fn has(&self, id: PortId) -> bool {
        self.under_way.contains_key(&id)
    }

    /// Takes a frame on. False: there is no room.
    pub fn push(
        &mut self,
        id: PortId,
        to: &Arc<End<PassedDescriptor>>,
        frame: &FrameBuffer,
        tag: Tag,
        wire: Wire,
    ) -> bool {
        let joined = frame.with_parts(tag, |parts| {
            let mut bytes = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
            parts.iter().for_each(|part| bytes.extend_from_slice(part));
            Ok(bytes)
        });
        let Ok(bytes) = joined else { return false };
        let job = Job { to: to.clone(), bytes, wire };
        if self.thread.is_none() && self.start().is_err() {
            return false;
        }
        let mut state = self.shared.state.lock();
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
        self.shared.work.notify_one();
        true
    }

    fn start(&mut self) -> io::Result<()> {
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("frames aside".into()).spawn(move || shared.run())?;
        self.thread = Some(thread);
        Ok(())
    }

    /// What was written since the last call.
    pub fn take_written(&mut self) -> Vec<Written> {
        if self.under_way.is_empty() {
            return Vec::new();
        }
        let written = std::mem::take(&mut self.shared.state.lock().written);
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

    /// A port has gone, and what waits for it.
    pub fn remove(&mut self, id: PortId) {
        if self.under_way.remove(&id).is_none() {
            return;
        }
        let mut state = self.shared.state.lock();
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

impl Drop for Aside {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
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
            // It may be the last one.
            drop(to);
            state = self.state.lock();
            if state.current.take() == Some(id) {
                state.written.push(Written { id, bytes, wire, cost_ns, was_taken });
                // Full means that it is awake.
                let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
            }
        }
    }
}

/// The frame whose turn it is.
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
