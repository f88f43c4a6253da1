//! A bare pager: fault, copy, evict. The least that any pager in user space has to do, so a limit to
//! measure others against, not one that programs could use: it serves clean pages only, of one area,
//! and keeps no table.
//!
//! - Handlers, in a process of their own as Tombolo's are, read events and copy pages
//!   (write-protected, as a pager that has to know what is written maps them) from shared memory that
//!   was filled before.
//! - Each page that was copied is noted in a ring. Near the limit a thread of the reader's process
//!   takes the oldest pages from the ring and drops them, many in one call.
//!
//! With a thread a processor or fewer, a handler on each processor is fastest. With more threads,
//! one handler that takes many events in a call is.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use clap::Args;
use rustix::event::epoll;
use tombolo_app::child::{self, Guard};
use tombolo_app::scratch::Scratch;
use tombolo_app::size;
use tombolo_host::probe::{Area, PAGE_BYTES, PAGE_WORDS};
use tombolo_host::shared::SharedMemory;
use tombolo_host::uffd::{self, Event, UffdError, Userfaultfd};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};
use tombolo_host::{event, process};

use super::reader::{Fill, word};
use crate::{Failure, this_binary};

/// Eviction begins when this many pages of the limit are left.
const SPARE_PAGES: u32 = 512;
/// Pages that are dropped in one call.
const EVICTION_BATCH: usize = 128;
/// A sleeping evictor looks around after this time: a wake-up may have come just before it slept.
const EVICTOR_SLEEP: Duration = Duration::from_millis(50);
/// How long either process waits for the other one to say something.
const START_LIMIT: Duration = Duration::from_secs(20);

/// How the bare pager works.
#[derive(Args, Clone, Copy)]
pub struct Options {
    /// Bytes of the area that may be resident; 0: there is no bare pager.
    #[arg(long, value_parser = size::bytes, default_value = "0")]
    pub local: usize,
    /// Fault handlers; 0: one a processor.
    #[arg(long, default_value_t = 0)]
    pub handlers: usize,
    /// Events that a handler reads in one call.
    #[arg(long, default_value_t = 1)]
    pub events: usize,
    /// Handlers are threads of the reader's process.
    #[arg(long)]
    pub in_process: bool,
}

/// Arguments of the handlers' process.
#[derive(Args)]
pub struct HandlerArguments {
    /// Where the reader listens.
    socket: PathBuf,
    /// Length of the area.
    #[arg(long)]
    bytes: usize,
    /// Fault handlers.
    #[arg(long)]
    handlers: usize,
    /// Events that a handler reads in one call.
    #[arg(long)]
    events: usize,
}

/// What both processes share: counters, the ring of resident pages, and the far copy of the area.
struct Shared {
    control: SharedMemory,
    far: SharedMemory,
    /// Entries of the ring less one. All pages of the area fit twice.
    mask: usize,
}

/// Counters lie in cache lines of their own.
const RESIDENT_AT: usize = 0;
const WANTED_AT: usize = 64;
const HEAD_AT: usize = 128;
/// Resident pages from which on some are evicted.
const THRESHOLD_AT: usize = 192;
const RING_AT: usize = 4096;

fn ring_entries(bytes: usize) -> usize {
    (bytes / PAGE_BYTES * 2).next_power_of_two()
}

fn control_bytes(bytes: usize) -> usize {
    RING_AT + (ring_entries(bytes) * 4).next_multiple_of(PAGE_BYTES)
}

impl Shared {
    fn create(bytes: usize, fill: Fill) -> Result<Self, Failure> {
        let control = SharedMemory::create("bare-control", control_bytes(bytes))?;
        control.populate(0, control.len());
        let far = SharedMemory::create("bare-far", bytes)?;
        let mut page = [0u8; PAGE_BYTES];
        for number in 0..bytes / PAGE_BYTES {
            for (at, out) in page.chunks_exact_mut(8).take(fill.words()).enumerate() {
                out.copy_from_slice(&word(number * PAGE_WORDS + at).to_ne_bytes());
            }
            far.span_mut(number * PAGE_BYTES, PAGE_BYTES)?.copy_from((&page[..]).into());
        }
        Ok(Self { control, far, mask: ring_entries(bytes) - 1 })
    }

    fn open(descriptors: [OwnedFd; 2], bytes: usize) -> Result<Self, Failure> {
        let [control, far] = descriptors;
        let control = SharedMemory::open(control, control_bytes(bytes))?;
        let far = SharedMemory::open(far, bytes)?;
        control.populate(0, control.len());
        far.populate(0, bytes);
        Ok(Self { control, far, mask: ring_entries(bytes) - 1 })
    }

    fn counter(&self, at: usize) -> Result<&AtomicU32, Failure> {
        Ok(self.control.atomic_u32(at)?)
    }

    /// Entry of the ring: a page's number and one, or 0.
    fn entry(&self, position: u32) -> Result<&AtomicU32, Failure> {
        self.counter(RING_AT + (position as usize & self.mask) * 4)
    }
}

/// The bare pager as the reader's process has it.
pub struct BarePager {
    shared: Shared,
    stopped: AtomicU32,
    // Handlers end when these are closed.
    _handlers: Option<Guard>,
    _connection: Option<SeqpacketSocket>,
    _uffd: Userfaultfd,
}

impl BarePager {
    /// Fills the far copy, starts handlers, and lets them serve the area.
    pub fn start(area: &Area, options: &Options, fill: Fill) -> Result<Self, Failure> {
        let bytes = area.length();
        let limit_pages = u32::try_from(options.local / PAGE_BYTES)?;
        if limit_pages <= 2 * SPARE_PAGES {
            return Err(Failure::new("the bare pager needs more local memory"));
        }
        let shared = Shared::create(bytes, fill)?;
        shared.counter(THRESHOLD_AT)?.store(limit_pages - SPARE_PAGES, Ordering::Relaxed);
        let uffd = Userfaultfd::for_this_process()?;
        uffd.enable(uffd::FEATURE_WRITE_PROTECT)?;
        uffd.register(area.address(), bytes as u64)?;
        let processors = process::processors();
        let count = if options.handlers == 0 { processors.len() } else { options.handlers };
        let mut pager = Self {
            shared,
            stopped: AtomicU32::new(0),
            _handlers: None,
            _connection: None,
            _uffd: uffd.try_clone()?,
        };
        let descriptors = [pager.shared.control.as_fd(), pager.shared.far.as_fd()];
        if options.in_process {
            let [control, far] = descriptors;
            let copies = [control.try_clone_to_owned()?, far.try_clone_to_owned()?];
            let (start, events) = (area.address(), options.events);
            std::thread::spawn(move || {
                // The handlers end with the process.
                let _ = Shared::open(copies, bytes)
                    .and_then(|shared| serve_all(&uffd, &shared, start, count, events, || Ok(())));
            });
            return Ok(pager);
        }
        let scratch = Scratch::new("bench-bare")?;
        let listener = SeqpacketListener::bind(&scratch.file("bare"))?;
        let mut command = Command::new(this_binary()?);
        command.arg("bare-handlers").arg(scratch.file("bare"));
        command.args(["--bytes", &bytes.to_string(), "--handlers", &count.to_string()]);
        command.args(["--events", &options.events.to_string()]);
        let handlers = child::spawn(&mut command)?;
        wait(&listener)?;
        let connection =
            listener.accept()?.ok_or_else(|| Failure::new("the fault handlers did not connect"))?;
        let [control, far] = descriptors;
        connection.send(&[&area.address().to_ne_bytes()], &[uffd.as_fd(), control, far])?;
        wait(&connection)?;
        connection.receive(&mut [0; 8])?;
        pager._handlers = Some(handlers);
        pager._connection = Some(connection);
        Ok(pager)
    }

    /// Drops the oldest pages while too many are resident, until [`BarePager::stop`].
    pub fn evict(&self, area: &Area) {
        // An error here shows at once: the reader's threads stop, or read on beyond the limit.
        let outcome = self.evict_until_stopped(area);
        if let Err(Failure(reason)) = outcome {
            eprintln!("tombolo-bench: the bare pager's evictor: {reason}");
            std::process::exit(1);
        }
    }

    fn evict_until_stopped(&self, area: &Area) -> Result<(), Failure> {
        let (resident, wanted) = (self.shared.counter(RESIDENT_AT)?, self.shared.counter(WANTED_AT)?);
        let threshold = self.shared.counter(THRESHOLD_AT)?.load(Ordering::Relaxed);
        let dropper = area.dropper()?;
        let mut batch = Vec::with_capacity(EVICTION_BATCH);
        let mut tail = 0u32;
        while self.stopped.load(Ordering::Relaxed) == 0 {
            if resident.load(Ordering::Relaxed) < threshold {
                wanted.store(0, Ordering::SeqCst);
                if resident.load(Ordering::SeqCst) < threshold {
                    event::futex_wait(wanted, 0, Some(EVICTOR_SLEEP));
                }
                continue;
            }
            batch.clear();
            while batch.len() < EVICTION_BATCH {
                match self.shared.entry(tail)?.swap(0, Ordering::Acquire) {
                    0 => break,
                    page => batch.push(page as usize - 1),
                }
                tail = tail.wrapping_add(1);
            }
            dropper.discard(&batch)?;
            resident.fetch_sub(batch.len() as u32, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Ends [`BarePager::evict`].
    pub fn stop(&self) {
        self.stopped.store(1, Ordering::Relaxed);
        if let Ok(wanted) = self.shared.counter(WANTED_AT) {
            wanted.store(1, Ordering::Relaxed);
            event::futex_wake(wanted, 1);
        }
    }
}

fn wait(readable: &impl AsFd) -> Result<(), Failure> {
    if event::wait_readable(&[readable.as_fd()], Some(START_LIMIT))? {
        return Ok(());
    }
    Err(Failure::new("the other process of the bare pager does not answer"))
}

/// The handlers' process; ends when the reader closes the connection.
pub fn handlers(arguments: &HandlerArguments) -> Result<(), Failure> {
    let connection = SeqpacketSocket::connect(&arguments.socket)?;
    wait(&connection)?;
    let mut start = [0; 8];
    let received = connection.receive(&mut start)?;
    let descriptors: [OwnedFd; 3] = received
        .descriptors
        .into_iter()
        .map(OwnedFd::from)
        .collect::<Vec<_>>()
        .try_into()
        .map_err(|_| Failure::new("the reader has not sent its descriptors"))?;
    let [uffd, control, far] = descriptors;
    let uffd = Userfaultfd::from_descriptor(uffd);
    let shared = Shared::open([control, far], arguments.bytes)?;
    serve_all(&uffd, &shared, u64::from_ne_bytes(start), arguments.handlers, arguments.events, || {
        connection.send(&[b"ready"], &[])?;
        loop {
            let _ = event::wait_readable(&[connection.as_fd()], None)?;
            if let Err(UnixError::Closed) = connection.receive(&mut [0; 8]) {
                // The handlers sleep for ever.
                std::process::exit(0);
            }
        }
    })
}

/// Runs handlers, and `meanwhile` beside them.
fn serve_all(
    uffd: &Userfaultfd,
    shared: &Shared,
    start: u64,
    count: usize,
    events: usize,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let processors = process::processors();
    std::thread::scope(|scope| {
        for number in 0..count {
            // A lone handler goes where the scheduler finds room.
            let processor = (count > 1).then(|| processors[number % processors.len()]);
            scope.spawn(move || {
                if let Some(processor) = processor {
                    let _ = process::pin_thread(processor);
                }
                if let Err(Failure(reason)) = serve(uffd, shared, start, events) {
                    eprintln!("tombolo-bench: a handler of the bare pager: {reason}");
                    std::process::exit(1);
                }
            });
        }
        meanwhile()
    })
}

/// One handler.
fn serve(uffd: &Userfaultfd, shared: &Shared, start: u64, events: usize) -> Result<(), Failure> {
    let (resident, wanted) = (shared.counter(RESIDENT_AT)?, shared.counter(WANTED_AT)?);
    let head = shared.counter(HEAD_AT)?;
    let threshold = shared.counter(THRESHOLD_AT)?.load(Ordering::Relaxed);
    let far = shared.far.as_mut_ptr() as u64;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, uffd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut ready = [nothing; 1];
    let mut faults = Vec::with_capacity(events);
    loop {
        match epoll::wait(&set, &mut ready[..], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        loop {
            faults.clear();
            uffd.read_events(events, |event| {
                if let Event::Fault { address, .. } = event {
                    faults.push(address);
                }
            })?;
            if faults.is_empty() {
                break;
            }
            for &address in &faults {
                match uffd.copy(address, far + (address - start), PAGE_BYTES, true) {
                    Ok(_) => {}
                    // Two threads waited for the page, and it came for the other one.
                    Err(UffdError::Exists(_)) => {
                        uffd.wake(address, PAGE_BYTES)?;
                        continue;
                    }
                    // The thread tries again.
                    Err(UffdError::Again(_)) => {
                        uffd.wake(address, PAGE_BYTES)?;
                        continue;
                    }
                    Err(UffdError::Gone) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
                let page = ((address - start) / PAGE_BYTES as u64) as u32;
                shared.entry(head.fetch_add(1, Ordering::Relaxed))?.store(page + 1, Ordering::Release);
                let now = resident.fetch_add(1, Ordering::SeqCst) + 1;
                if now > threshold && wanted.load(Ordering::SeqCst) == 0 {
                    wanted.store(1, Ordering::SeqCst);
                    event::futex_wake(wanted, 1);
                }
            }
        }
    }
}
