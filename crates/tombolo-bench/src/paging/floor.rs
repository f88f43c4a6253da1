//! The floor: a fault served by bare userfaultfd and one copy of 4 KiB.
//!
//! As with Tombolo, the handlers live in another process than the faulting
//! thread, one on each processor, pinned, each with a poll set of its own and
//! non-blocking reads, and they copy from shared memory. Nothing else is done:
//! no table, no lock, no limit.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use tombolo_app::child;
use tombolo_host::probe::{Area, PAGE_BYTES, PAGE_WORDS};
use tombolo_host::shared::SharedMemory;
use tombolo_host::uffd::{Event, UffdError, Userfaultfd};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};
use tombolo_host::{event, process};
use tombolo_random::Random;

use super::contents;
use crate::summary::{Samples, Summary};
use crate::{Failure, this_binary};

const SEED: u64 = 11;
/// Pages touched in a round.
const PAGES: usize = 8192;
/// The first round finds cold caches and is not counted.
const ROUNDS: usize = 4;
/// How long either process waits for the other one to say something.
const START_TIMEOUT: Duration = Duration::from_secs(20);

fn wait(readable: &impl AsFd) -> Result<(), Failure> {
    if event::wait_readable(&[readable.as_fd()], Some(START_TIMEOUT))? {
        return Ok(());
    }
    Err(Failure::new("the other process of the bench does not answer"))
}

/// Measures it: touches pages from a thread on `processor`.
pub fn measure(socket: &Path, processor: usize) -> Result<Summary, Failure> {
    let listener = SeqpacketListener::bind(socket)?;
    let mut command = Command::new(this_binary()?);
    let _handlers = child::spawn(command.arg("handlers").arg(socket))?;
    wait(&listener)?;
    let connection = listener.accept()?.ok_or_else(|| Failure::new("the fault handlers did not connect"))?;

    let area = Area::new(PAGES)?;
    let uffd = Userfaultfd::for_this_process()?;
    uffd.enable(0)?;
    uffd.register_missing(area.address(), area.length() as u64)?;
    connection.send(&[&area.address().to_ne_bytes()], &[uffd.as_fd()])?;
    wait(&connection)?;
    connection.receive(&mut [0; 8])?;

    // A thread of its own: children must not inherit the pin.
    let touched = std::thread::spawn(move || {
        process::pin_thread(processor)?;
        touch(&area)
    });
    touched.join().map_err(|_| Failure::new("the faulting thread failed"))?
    // The handlers hold a duplicate of `uffd`; they go when the connection does.
}

fn touch(area: &Area) -> Result<Summary, Failure> {
    let mut samples = Samples::new(PAGES * (ROUNDS - 1))?;
    let mut random = Random::new(SEED);
    let mut order: Vec<usize> = (0..PAGES).collect();
    for round in 0..ROUNDS {
        random.shuffle(&mut order);
        for &page in &order {
            let index = page * PAGE_WORDS + random.index(PAGE_WORDS);
            let since = Instant::now();
            let found = area.read(index);
            let latency = since.elapsed();
            if found != contents::word(SEED, index) {
                return Err(Failure::new("a wrong byte over bare userfaultfd"));
            }
            if round > 0 {
                samples.note(latency.as_nanos() as u64);
            }
        }
        area.discard(0, PAGES)?;
    }
    samples.summary()
}

/// The handlers' process; ends when the bench hangs up.
pub fn handlers(socket: &Path) -> Result<(), Failure> {
    let connection = SeqpacketSocket::connect(socket)?;
    wait(&connection)?;
    let mut message = [0; 8];
    let received = connection.receive(&mut message)?;
    let start = u64::from_ne_bytes(message);
    let descriptor =
        received.descriptors.into_iter().next().ok_or_else(|| Failure::new("no descriptor came"))?;
    let uffd = Userfaultfd::from_descriptor(descriptor.into());

    // Shared memory, prefaulted by being filled, as a lent segment is.
    let source = SharedMemory::create("bench-source", PAGES * PAGE_BYTES)?;
    let mut page = [0u8; PAGE_BYTES];
    for number in 0..PAGES {
        for (at, bytes) in page.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&contents::word(SEED, number * PAGE_WORDS + at).to_ne_bytes());
        }
        source.span_mut(number * PAGE_BYTES, PAGE_BYTES)?.copy_from((&page[..]).into());
    }
    let offset = (source.as_mut_ptr() as u64).wrapping_sub(start);

    let uffd = &uffd;
    std::thread::scope(|scope| {
        for processor in process::processors() {
            scope.spawn(move || {
                let _ = process::pin_thread(processor);
                // An error here shows at the faulting side: nobody answers.
                let _ = serve(uffd, offset);
            });
        }
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

/// One handler. Page `address` comes from `address + source`, wrapping.
fn serve(uffd: &Userfaultfd, source: u64) -> Result<(), Failure> {
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, uffd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let mut events = [nothing; 4];
    loop {
        match epoll::wait(&set, &mut events[..], None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(Event::Fault { address, .. }) = uffd.read_event()? {
            let from = address.wrapping_add(source);
            while let Err(UffdError::Again(_)) = uffd.copy(address, from, PAGE_BYTES, false) {}
        }
    }
}
