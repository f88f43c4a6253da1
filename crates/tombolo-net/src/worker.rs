//! The thread that moves frames. It carries out the steps of an [`Exchange`], and between two steps the calls of its
//! [`Handle`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use tombolo_core::nic::effort::Effort;
use tombolo_core::nic::{Exchange, Origin, Outward, PortId, Step, Tag, Targets, Vlans};
use tombolo_host::cpu;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::timing::net::SHAPED_WAIT_MIN;

use crate::aside::Aside;
use crate::frames::{End, FrameBuffer, Segment, is_gone};
use crate::station::{Kind, News, Station};
use crate::uplink::Uplink;

/// How a port is reached.
enum Way {
    /// By the queues of its device.
    Queues {
        /// When they are dropped, another thread closes them, since closing the last queue of a device takes long.
        queues: Vec<Arc<End<PassedDescriptor>>>,
        /// The user who attached it, unless that is the owner's user or root.
        other_user: Option<u32>,
        /// For each queue, whether it may have frames.
        ready: Vec<bool>,
        /// For each queue, whether it is not watched: it is known to have frames, and further ones would wake this thread
        /// for nothing.
        muted: Vec<bool>,
        /// The queue that is read next.
        next: usize,
    },
    /// By a pair of pipes to another node, with this key.
    Pipes(u64),
}

/// A port.
struct Queues {
    way: Way,
    /// The port's frames are read into this buffer, and wait in it for the uplink, with this tag. (Each port has a buffer of
    /// its own, since the kernel may leave bytes between header and frame as they were: the process that attaches a TAP device
    /// decides how long its headers are.)
    kept: FrameBuffer,
    kept_tag: Tag,
    /// The queue from which the frame in `kept` was read.
    kept_queue: usize,
    /// A segment of the port that is cut here. Its pieces are read before further frames of the port.
    segment: Option<Box<Segment>>,
}

/// The state of the thread that moves frames.
pub struct Worker {
    /// Decides what happens to each frame.
    pub exchange: Exchange,
    /// The network outside.
    pub uplink: Uplink,
    /// The pipes to ports at other nodes, if other nodes may have ports.
    pub station: Option<Station>,
    ports: Vec<Option<Queues>>,
    /// The port that has a pair of pipes, by the key of the pipes.
    pipes: BTreeMap<u64, PortId>,
    /// Keys of pipes that may have frames.
    came: Vec<u64>,
    epoll: OwnedFd,
    begin: Instant,
    buffer: FrameBuffer,
    /// A frame from the uplink that goes to many ports.
    uplink_kept: FrameBuffer,
    /// A segment from the uplink that is cut here.
    uplink_segment: Option<Box<Segment>>,
    /// A spare buffer for the next segment that is cut here.
    spare: Option<FrameBuffer>,
    targets: Targets,
    /// Decides which ports are written to aside.
    effort: Effort,
    aside: Aside,
    uplink_is_ready: bool,
    is_over: bool,
}

/// A function that the thread is to call between two steps.
type Call = Box<dyn FnOnce(&mut Worker) + Send>;

struct Shared {
    /// Calls that wait. `None`: the thread has ended.
    calls: Mutex<Option<VecDeque<Call>>>,
    event: Arc<OwnedFd>,
    /// Ports whose devices were found gone.
    gone: Mutex<Vec<PortId>>,
    /// The uplink was found gone.
    is_uplink_gone: AtomicBool,
    /// News from other nodes, other than frames.
    news: Mutex<Vec<News>>,
    /// Readable when there are news, or when ports or the uplink were found gone.
    told: OwnedFd,
}

impl Shared {
    /// Wakes the thread that asks for news.
    fn notify(&self) {
        // A full counter means that the descriptor is readable already.
        let _ = rustix::io::write(&self.told, &1u64.to_ne_bytes());
    }
}

/// Drops the calls that wait when the thread ends, for whatever reason, so that no caller waits for it any longer.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let calls = self.0.calls.lock().take();
        drop(calls);
    }
}

/// A handle of the thread that moves frames. Dropping it ends the thread.
pub struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The events that are watched at the uplink and at each queue.
const WITHOUT_ROOM: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ET);
const WITH_ROOM: epoll::EventFlags = WITHOUT_ROOM.union(epoll::EventFlags::OUT);

/// The events that are watched at a queue that is known to have frames: none. If its device is gone, that is seen when the
/// queue is read.
const MUTED: epoll::EventFlags = epoll::EventFlags::ET;

const UPLINK: u64 = u64::MAX;
const CALLS: u64 = u64::MAX - 1;
const STATION: u64 = u64::MAX - 2;
/// Number of steps after which the kernel is asked what else is ready. A step takes 2 to 30 µs.
const STEPS_BETWEEN: u32 = 16;

/// The niceness of the thread.
const NICENESS: i32 = -15;

pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn key(id: PortId, queue: usize) -> u64 {
    u64::from(id.0) << 16 | queue as u64
}

impl Handle {
    /// Starts the thread.
    ///
    /// # Errors
    /// No descriptors or threads are left.
    pub fn start(exchange: Exchange, uplink: Uplink, station: Option<Station>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &event, epoll::EventData::new_u64(CALLS), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &uplink, epoll::EventData::new_u64(UPLINK), WITHOUT_ROOM)?;
        if let Some(station) = &station {
            epoll::add(&epoll, station, epoll::EventData::new_u64(STATION), epoll::EventFlags::IN)?;
        }
        let shared = Arc::new(Shared {
            calls: Mutex::new(Some(VecDeque::new())),
            event,
            gone: Mutex::default(),
            is_uplink_gone: AtomicBool::new(false),
            news: Mutex::default(),
            told: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let mut worker = Worker {
            exchange,
            uplink,
            station,
            ports: Vec::new(),
            pipes: BTreeMap::new(),
            came: Vec::new(),
            epoll,
            begin: Instant::now(),
            buffer: FrameBuffer::new(),
            uplink_kept: FrameBuffer::new(),
            uplink_segment: None,
            spare: None,
            targets: Targets::default(),
            effort: Effort::default(),
            aside: Aside::new(shared.event.clone()),
            uplink_is_ready: true,
            is_over: false,
        };
        let others = shared.clone();
        let thread = std::thread::Builder::new().name("frames".into()).spawn(move || worker.run(&others))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Calls a function in the thread, and waits for its result. `None`: the thread has ended.
    pub fn call<T: Send + 'static>(&self, what: impl FnOnce(&mut Worker) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver): (_, Receiver<T>) = sync_channel(1);
        let call = move |worker: &mut Worker| {
            // This fails if the caller has gone.
            let _ = sender.send(what(worker));
        };
        self.shared.calls.lock().as_mut()?.push_back(Box::new(call));
        self.wake();
        receiver.recv().ok()
    }

    /// Whether the thread has ended.
    pub fn is_of_no_use(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether the uplink was found gone.
    pub fn is_uplink_gone(&self) -> bool {
        self.shared.is_uplink_gone.load(Ordering::Relaxed)
    }

    /// Replaces the uplink: frames go to the new one from now on.
    ///
    /// # Errors
    /// The kernel cannot watch it, or the thread has ended.
    pub fn replace_uplink(&self, uplink: Uplink) -> io::Result<()> {
        let shared = self.shared.clone();
        let replaced = self.call(move |worker| {
            shared.is_uplink_gone.store(false, Ordering::Relaxed);
            worker.replace_uplink(uplink)
        });
        replaced.unwrap_or(Err(io::ErrorKind::NotFound.into())).map(drop)
    }

    /// The ports whose devices were found gone since the last call.
    pub fn take_gone(&self) -> Vec<PortId> {
        std::mem::take(&mut *self.shared.gone.lock())
    }

    /// Forgets that the device of a removed port was found gone. The next port of its number has another device.
    pub fn forget_gone(&self, id: PortId) {
        self.shared.gone.lock().retain(|gone| *gone != id);
    }

    /// News from other nodes since the last call, other than frames.
    pub fn take_news(&self) -> Vec<News> {
        let _ = rustix::io::read(&self.shared.told, &mut [0; 8]);
        std::mem::take(&mut *self.shared.news.lock())
    }

    /// Readable when there is something for [`Handle::take_news`] or [`Handle::take_gone`].
    pub fn told(&self) -> BorrowedFd<'_> {
        self.shared.told.as_fd()
    }

    fn wake(&self) {
        // A full counter means that the thread is awake.
        let _ = rustix::io::write(&self.shared.event, &1u64.to_ne_bytes());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(calls) = self.shared.calls.lock().as_mut() {
            calls.push_back(Box::new(|worker| worker.is_over = true));
        }
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Puts the next piece of a segment into a buffer, and returns the queue that the segment came from. `None`: there is no
/// further piece, and the segment is removed.
fn next_piece(
    segment: &mut Option<Box<Segment>>,
    buffer: &mut FrameBuffer,
    spare: &mut Option<FrameBuffer>,
) -> Option<usize> {
    let queue = segment.as_mut().and_then(|segment| segment.next(buffer).then_some(segment.queue));
    if queue.is_none()
        && let Some(segment) = segment.take()
    {
        *spare = Some(segment.into_buffer());
    }
    queue
}

impl Worker {
    /// The time since the worker was made.
    pub fn now_ns(&self) -> u64 {
        nanoseconds(self.begin.elapsed())
    }

    /// Adds a port with its queues.
    ///
    /// # Errors
    /// The kernel cannot watch them.
    pub fn add(
        &mut self,
        id: PortId,
        queues: Vec<End<PassedDescriptor>>,
        other_user: Option<u32>,
    ) -> io::Result<()> {
        for (index, queue) in queues.iter().enumerate() {
            let data = epoll::EventData::new_u64(key(id, index));
            if let Err(errno) = epoll::add(&self.epoll, queue, data, WITHOUT_ROOM) {
                for queue in &queues[..index] {
                    let _ = epoll::delete(&self.epoll, queue);
                }
                return Err(errno.into());
            }
        }
        let (ready, muted) = (vec![true; queues.len()], vec![false; queues.len()]);
        let queues = queues.into_iter().map(Arc::new).collect();
        self.enter(id, Way::Queues { queues, other_user, ready, muted, next: 0 });
        Ok(())
    }

    /// Adds a port with its pipes, which the station has.
    pub fn add_pipes(&mut self, id: PortId, key: u64) {
        self.pipes.insert(key, id);
        self.enter(id, Way::Pipes(key));
    }

    fn enter(&mut self, id: PortId, way: Way) {
        let index = usize::from(id.0);
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, || None);
        }
        self.ports[index] =
            Some(Queues { way, kept: FrameBuffer::new(), kept_tag: Tag::Keep, kept_queue: 0, segment: None });
        self.exchange.has_frames(id);
    }

    /// Removes a port. (The station keeps its pipes until they are removed there.)
    pub fn remove(&mut self, id: PortId) {
        match self.ports.get_mut(usize::from(id.0)).and_then(Option::take).map(|port| port.way) {
            Some(Way::Queues { queues, .. }) => {
                for queue in &queues {
                    // The process that attached the port has copies of its queues, so closing these would not end the watch.
                    let _ = epoll::delete(&self.epoll, queue);
                }
            }
            Some(Way::Pipes(key)) => drop(self.pipes.remove(&key)),
            None => {}
        }
        self.exchange.remove(id);
        self.effort.remove(id);
        self.aside.remove(id);
    }

    /// Whether a port is written to aside.
    pub fn is_written_aside(&self, id: PortId) -> bool {
        let port = self.ports.get(usize::from(id.0)).and_then(Option::as_ref);
        let is_of_another = port
            .is_some_and(|port| matches!(port.way, Way::Queues { other_user, .. } if other_user.is_some()));
        is_of_another || self.aside.has(id) || self.effort.is_aside(self.now_ns(), id)
    }

    /// Adds to the counters the frames that the kernel has dropped for lack of room.
    pub fn count_overflows(&mut self) {
        self.exchange.overflowed(None, self.uplink.take_overflows());
        for (id, port) in (0..).map(PortId).zip(&self.ports) {
            if let Some(Way::Queues { queues, .. }) = port.as_ref().map(|port| &port.way) {
                let count = queues.iter().map(|queue| queue.take_overflows()).sum();
                self.exchange.overflowed(Some(id), count);
            }
        }
    }

    /// How many queues a port has.
    pub fn queues(&self, id: PortId) -> usize {
        match self.ports.get(usize::from(id.0)).and_then(Option::as_ref).map(|port| &port.way) {
            Some(Way::Queues { queues, .. }) => queues.len(),
            Some(Way::Pipes(_)) => 1,
            None => 0,
        }
    }

    fn run(&mut self, shared: &Shared) {
        let _closing = Closing(shared);
        // Like the kernel's own forwarding, the thread takes precedence over programs, if this process may set that.
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICENESS);
        let mut steps = 0;
        while !self.is_over {
            if self.uplink_is_ready && !self.exchange.is_spreading(Origin::Uplink) {
                self.read_uplink(shared);
            }
            let now_ns = self.now_ns();
            let timeout_ns = match self.exchange.next(now_ns) {
                Step::Read(id) => {
                    self.read_port(now_ns, id, shared);
                    Some(0)
                }
                Step::Send(id) => {
                    self.send_kept(now_ns, id);
                    Some(0)
                }
                Step::Spread(from) => {
                    self.spread(from);
                    Some(0)
                }
                Step::Wait(at_ns) => Some(at_ns.saturating_sub(now_ns).max(nanoseconds(SHAPED_WAIT_MIN))),
                Step::Idle => None,
            };
            let timeout_ns = if self.uplink_is_ready { Some(0) } else { timeout_ns };
            steps += 1;
            if timeout_ns != Some(0) || steps >= STEPS_BETWEEN {
                steps = 0;
                self.wait(timeout_ns, shared);
            }
        }
    }

    /// Takes what other nodes have sent, and continues what is being sent to them. Returns whether there was anything to do.
    fn turn_station(&mut self, shared: &Shared) -> bool {
        let now_ns = self.now_ns();
        let Some(station) = &mut self.station else { return false };
        let mut is_busy = station.turn(now_ns, &mut self.came);
        let news = station.take_news();
        if !news.is_empty() {
            is_busy = true;
            shared.news.lock().extend(news);
            shared.notify();
        }
        for key in self.came.drain(..) {
            match self.pipes.get(&key) {
                Some(id) => self.exchange.has_frames(*id),
                // No port is attached by these pipes yet: only control messages are taken.
                None => drop(station.take(key, &mut self.buffer)),
            }
        }
        is_busy
    }

    /// Prepares the thread to be woken by other nodes. Returns how long it may sleep.
    fn prepare_sleep(&mut self, timeout_ns: Option<u64>, shared: &Shared) -> Option<u64> {
        if self.turn_station(shared) {
            return Some(0);
        }
        let Some(station) = self.station.as_ref().filter(|_| timeout_ns != Some(0)) else {
            return timeout_ns;
        };
        station.arm();
        if self.turn_station(shared) {
            return Some(0);
        }
        let now_ns = self.now_ns();
        let longest = self.station.as_ref()?.longest_sleep(now_ns).map(nanoseconds);
        timeout_ns.into_iter().chain(longest).min()
    }

    /// Waits for descriptors to become ready, for at most `timeout_ns`. Then makes the calls that wait, and counts the frames
    /// that were written aside.
    fn wait(&mut self, timeout_ns: Option<u64>, shared: &Shared) {
        let timeout_ns = self.prepare_sleep(timeout_ns, shared);
        let timeout = timeout_ns.map(|ns| Timespec {
            tv_sec: i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (ns % 1_000_000_000) as _,
        });
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); 64];
        let events = match epoll::wait(&self.epoll, &mut space, timeout.as_ref()) {
            Ok((events, _)) => &*events,
            // A signal has interrupted the call.
            Err(_) => &[],
        };
        let mut has_calls = false;
        for event in events {
            // The struct is packed: its fields must be copied.
            let (data, flags) = (event.data, event.flags);
            match data.u64() {
                CALLS => has_calls = true,
                STATION => {
                    if let Some(station) = &self.station {
                        station.drain();
                    }
                }
                UPLINK => {
                    self.uplink_is_ready |= flags.intersects(!epoll::EventFlags::OUT);
                    if flags.contains(epoll::EventFlags::OUT) {
                        self.exchange.uplink_has_room();
                        self.watch_uplink(WITHOUT_ROOM);
                    }
                }
                key => {
                    let (id, queue) = (PortId((key >> 16) as u16), (key & 0xffff) as usize);
                    let port = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut);
                    if let Some(Way::Queues { queues, ready, muted, .. }) = port.map(|port| &mut port.way)
                        && let (Some(queue), Some(ready), Some(muted)) =
                            (queues.get(queue), ready.get_mut(queue), muted.get_mut(queue))
                    {
                        if !std::mem::replace(ready, true) {
                            self.exchange.has_frames(id);
                        } else if !*muted {
                            *muted = epoll::modify(&self.epoll, queue, data, MUTED).is_ok();
                        }
                    }
                }
            }
        }
        if has_calls {
            let _ = rustix::io::read(&shared.event, &mut [0; 8]);
            loop {
                // The lock is not held during the call.
                let call = shared.calls.lock().as_mut().and_then(VecDeque::pop_front);
                let Some(call) = call else { break };
                call(self);
            }
        }
        for written in self.aside.take_written() {
            self.effort.spent_aside(self.now_ns(), written.id, written.frame().len(), written.cost_ns);
            self.exchange.delivered(written.id, written.frame(), &written.wire, written.was_taken);
        }
    }

    fn read_uplink(&mut self, shared: &Shared) {
        if next_piece(&mut self.uplink_segment, &mut self.buffer, &mut self.spare).is_some() {
            return self.pass_from_uplink();
        }
        match self.uplink.read(&mut self.buffer) {
            Ok(()) => {}
            Err(Errno::AGAIN) => {
                self.uplink_is_ready = false;
                return;
            }
            // The kernel cannot describe one frame (INVAL), or the interface is down, which is reported once (NETDOWN):
            // what comes after that is still to be read.
            Err(errno) => {
                self.uplink_is_ready = matches!(errno, Errno::INTR | Errno::INVAL | Errno::NETDOWN);
                if is_gone(errno) {
                    shared.is_uplink_gone.store(true, Ordering::Relaxed);
                    shared.notify();
                }
                return;
            }
        }
        if let Some(cut) = self.buffer.settle(self.exchange.wire_bytes_max(Origin::Uplink)) {
            // The pieces of the segment are read next.
            let spare = self.spare.take().unwrap_or_default();
            self.uplink_segment = Some(Box::new(Segment::new(&mut self.buffer, spare, cut, 0)));
            return;
        }
        self.pass_from_uplink();
    }

    fn pass_from_uplink(&mut self) {
        let header = self.buffer.header();
        if self.exchange.from_uplink(&header, self.buffer.frame(), &mut self.targets).is_ok() {
            self.deliver(0);
            if self.exchange.is_spreading(Origin::Uplink) {
                std::mem::swap(&mut self.uplink_kept, &mut self.buffer);
            }
        }
    }

    /// Writes a frame that is kept to further ports.
    fn spread(&mut self, from: Origin) {
        self.exchange.spread(from, &mut self.targets);
        match from {
            Origin::Uplink => {
                std::mem::swap(&mut self.uplink_kept, &mut self.buffer);
                self.deliver(0);
                std::mem::swap(&mut self.uplink_kept, &mut self.buffer);
            }
            Origin::Port(id) => {
                let port = self.ports.get(usize::from(id.0)).and_then(Option::as_ref);
                let queue = port.map_or(0, |port| port.kept_queue);
                self.swap_buffer(id);
                self.deliver(queue);
                self.swap_buffer(id);
            }
        }
    }

    fn read_port(&mut self, now_ns: u64, id: PortId, shared: &Shared) {
        self.swap_buffer(id);
        let is_kept = self.read_into_buffer(now_ns, id, shared);
        if !is_kept {
            self.swap_buffer(id);
        }
    }

    /// Swaps a port's buffer with that of this thread.
    fn swap_buffer(&mut self, id: PortId) {
        if let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut) {
            std::mem::swap(&mut port.kept, &mut self.buffer);
        }
    }

    /// Reads a frame of a port and sends it where it is to go. Returns whether the frame is kept in the port's buffer.
    fn read_into_buffer(&mut self, now_ns: u64, id: PortId, shared: &Shared) -> bool {
        let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut) else {
            self.exchange.was_empty(id);
            return false;
        };
        let piece_of = next_piece(&mut port.segment, &mut self.buffer, &mut self.spare);
        let queue = match &mut port.way {
            _ if piece_of.is_some() => piece_of.unwrap_or(0),
            Way::Queues { queues, ready, muted, next, .. } => {
                // Queues take turns.
                let count = queues.len();
                let queue = (0..count).map(|step| (*next + step) % count.max(1)).find(|queue| ready[*queue]);
                let Some(queue) = queue else {
                    self.exchange.was_empty(id);
                    return false;
                };
                match self.buffer.read(&queues[queue]) {
                    // The kernel has dropped a frame that it cannot describe. That frame takes the port's turn: the attacher can
                    // make the kernel drop all of its frames so.
                    Ok(()) | Err(Errno::INVAL) => *next = queue + 1,
                    // A signal came, or the interface of a socket is down, which is reported once.
                    Err(Errno::INTR | Errno::NETDOWN) => return false,
                    Err(errno) => {
                        // The queue is empty or down, and the kernel tells when it has frames again, or its device is gone.
                        ready[queue] = false;
                        if std::mem::take(&mut muted[queue]) {
                            let data = epoll::EventData::new_u64(key(id, queue));
                            let _ = epoll::modify(&self.epoll, &queues[queue], data, WITHOUT_ROOM);
                        }
                        if is_gone(errno) {
                            shared.gone.lock().push(id);
                            shared.notify();
                        }
                        if !ready.contains(&true) {
                            self.exchange.was_empty(id);
                        }
                        return false;
                    }
                }
                queue
            }
            Way::Pipes(key) => {
                let station = self.station.as_mut();
                match station.map_or(Err(Errno::AGAIN), |station| station.take(*key, &mut self.buffer)) {
                    // An invalid record is treated like a frame that the kernel cannot describe.
                    Ok(()) | Err(Errno::INVAL) => 0,
                    Err(_) => {
                        self.exchange.was_empty(id);
                        return false;
                    }
                }
            }
        };
        if piece_of.is_none()
            && let Some(cut) = self.buffer.settle(self.exchange.wire_bytes_max(Origin::Port(id)))
        {
            let spare = self.spare.take().unwrap_or_default();
            let segment = port.segment.insert(Box::new(Segment::new(&mut self.buffer, spare, cut, queue)));
            // A segment has at least one piece.
            segment.next(&mut self.buffer);
        }
        port.kept_queue = queue;
        let header = self.buffer.header();
        let outward = self.exchange.from_port(now_ns, id, &header, self.buffer.frame(), &mut self.targets);
        let Ok(outward) = outward else { return false };
        if !self.targets.ports.is_empty() {
            self.deliver(queue);
        }
        match outward {
            Outward::No => false,
            Outward::Now => self.send_now(id),
            Outward::Later => {
                self.keep(id);
                true
            }
        }
    }

    /// Writes the frame in the buffer to all ports that get it.
    fn deliver(&mut self, queue: usize) {
        let wire = self.targets.wire;
        let mut now_ns = self.now_ns();
        let targets = std::mem::take(&mut self.targets.ports);
        for id in &targets {
            let is_trunk =
                self.exchange.config(*id).is_some_and(|port| matches!(port.rules.vlans, Vlans::Trunk(_)));
            let tag = self.targets.tag(is_trunk);
            let port = self.ports.get(usize::from(id.0)).and_then(Option::as_ref);
            let was_taken = match port.map(|port| &port.way) {
                // Another user's kernel settings may make any write slow, even the first one: its ports are always written aside.
                Some(Way::Queues { queues, other_user, .. }) => match queues.get(queue % queues.len().max(1))
                {
                    Some(target)
                        if other_user.is_some()
                            || self.aside.has(*id)
                            || self.effort.is_aside(now_ns, *id) =>
                    {
                        let was_pushed = self.aside.push(*other_user, *id, target, &self.buffer, tag, wire);
                        now_ns = self.now_ns();
                        if was_pushed {
                            // The frame is counted after it is written.
                            continue;
                        }
                        false
                    }
                    Some(target) => {
                        let begin = self.effort.is_watched(now_ns, *id).then(cpu::thread_time);
                        let was_taken = self.buffer.write(target, tag).is_ok();
                        let begin_ns = std::mem::replace(&mut now_ns, self.now_ns());
                        let bytes = self.buffer.frame().len();
                        if let Some(begin) = begin {
                            let cost_ns = nanoseconds(cpu::thread_time().saturating_sub(begin));
                            if self.effort.spent(now_ns, *id, bytes, cost_ns) {
                                tracing::info!(port = id.0, "frames take long there: they are written aside");
                            }
                        } else {
                            self.effort.took(now_ns, *id, bytes, now_ns.saturating_sub(begin_ns));
                        }
                        was_taken
                    }
                    None => false,
                },
                Some(Way::Pipes(key)) => self.station.as_mut().is_some_and(|station| {
                    // The room that is left in a full pipe is for control messages.
                    let has_room = !station.is_full(*key);
                    let pushed = self.buffer.with_parts(tag, |parts| {
                        Ok(has_room && station.push(now_ns, *key, Kind::Frame, parts))
                    });
                    pushed == Ok(true)
                }),
                None => false,
            };
            // The time that a pipe takes is bounded, and must not count as that of the next port.
            if self.station.is_some() {
                now_ns = self.now_ns();
            }
            self.exchange.delivered(*id, self.buffer.frame(), &wire, was_taken);
        }
        self.targets.ports = targets;
    }

    /// Replaces the uplink. Returns the previous one, for another thread to close, since that takes long.
    fn replace_uplink(&mut self, uplink: Uplink) -> io::Result<Uplink> {
        epoll::add(&self.epoll, &uplink, epoll::EventData::new_u64(UPLINK), WITHOUT_ROOM)?;
        let _ = epoll::delete(&self.epoll, &self.uplink);
        (self.uplink_segment, self.uplink_is_ready) = (None, true);
        self.exchange.uplink_has_room();
        Ok(std::mem::replace(&mut self.uplink, uplink))
    }

    /// Sets the events that are watched at the uplink. Each frame that leaves it makes room, which is of interest only while it
    /// has none.
    fn watch_uplink(&self, flags: epoll::EventFlags) {
        if let Err(errno) = epoll::modify(&self.epoll, &self.uplink, epoll::EventData::new_u64(UPLINK), flags)
        {
            tracing::error!(%errno, "the uplink cannot be watched");
        }
    }

    /// Sends the frame in the buffer to the uplink. Returns whether the frame is kept at its port instead.
    fn send_now(&mut self, id: PortId) -> bool {
        match self.uplink.write(&self.buffer, self.targets.tag(true)) {
            Ok(()) => self.exchange.sent_now(self.buffer.frame(), &self.targets.wire),
            Err(Errno::AGAIN) => {
                self.watch_uplink(WITH_ROOM);
                self.exchange.keep(self.now_ns(), id, self.targets.wire);
                self.keep(id);
                return true;
            }
            Err(_) => self.exchange.lost_at_uplink(),
        }
        false
    }

    /// Keeps the frame in the buffer at its port until its turn at the uplink.
    fn keep(&mut self, id: PortId) {
        let tag = self.targets.tag(true);
        self.swap_buffer(id);
        if let Some(port) = self.ports.get_mut(usize::from(id.0)).and_then(Option::as_mut) {
            port.kept_tag = tag;
        }
    }

    fn send_kept(&mut self, now_ns: u64, id: PortId) {
        let Some(port) = self.ports.get(usize::from(id.0)).and_then(Option::as_ref) else {
            self.exchange.remove(id);
            return;
        };
        let written = self.uplink.write(&port.kept, port.kept_tag);
        if written == Err(Errno::AGAIN) {
            self.exchange.uplink_is_full();
            self.watch_uplink(WITH_ROOM);
            return;
        }
        self.exchange.sent(now_ns, id, port.kept.frame(), written.is_ok());
    }
}
