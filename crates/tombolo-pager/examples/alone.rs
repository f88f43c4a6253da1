//! The pager with no lender: "far" memory is this process's own. For work on
//! the pager itself: `alone LIBRARY LOCAL_MIB FAR_MIB PROGRAM [ARGUMENT...]`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tombolo_core::store::{Action, Config, Lent, Newcomer, Refused, SlotId, Store};
use tombolo_host::event_queue::EventQueue;
use tombolo_host::sparse::Pages;
use tombolo_node::{Arrived, FarEvent, FarLink, FarMemory, FarStatus, Staging, Written};
use tombolo_pager::front::{self, Side};
use tombolo_pager::{Library, Options, run};

/// This process as a lender of its own memory.
struct Own {
    memory: Pages,
    store: Mutex<Store>,
    lent_pages: AtomicU64,
    events: EventQueue<FarEvent>,
    /// There is no way to write but by the window.
    failed: Mutex<Vec<SlotId>>,
}

impl Own {
    fn new(memory: Pages, events: EventQueue<FarEvent>) -> Self {
        let mut store = Store::new(Config { unused_ns: u64::MAX, ..Config::default() });
        store.add_lender(Newcomer { host: 0, distance: 0, round_trip_ns: 0 });
        Self {
            memory,
            store: Mutex::new(store),
            lent_pages: AtomicU64::new(0),
            events,
            failed: Mutex::default(),
        }
    }
}

impl FarMemory for Own {
    fn events(&self) -> &EventQueue<FarEvent> {
        &self.events
    }
    fn done(&self, _arrived: Arrived) {}
    fn slots(&self) -> MutexGuard<'_, Store> {
        self.store.lock()
    }
    fn prepare(&self) {
        self.store.lock().grow_all();
        self.flush();
    }
    fn is_windowed(&self) -> bool {
        true
    }
    fn warm(&self, _address: u64) {}
    fn staging(&self) -> Staging {
        Staging { address: 0, pages: 0 }
    }
    fn write(&self, slots: &[(SlotId, u32)]) {
        self.failed.lock().extend(slots.iter().map(|(slot, _)| *slot));
    }
    fn write_on(&self) -> Written {
        Written::All(std::mem::take(&mut self.failed.lock()))
    }
    fn wait_written(&self, _timeout: Duration) {}
    fn read(&self, _slot: SlotId, _ticket: u64, _since: Option<std::time::Instant>) {}
    fn flush(&self) {
        let mut store = self.store.lock();
        while let Some(action) = store.poll(0) {
            let Action::Borrow { lender, pages } = action else { continue };
            let first = self.lent_pages.load(Ordering::Relaxed);
            let free = self.memory.length() as u64 / 4096 - first;
            let answer = if free < u64::from(pages) {
                Err(Refused::HasOnly(free as u32))
            } else {
                self.lent_pages.store(first + u64::from(pages), Ordering::Relaxed);
                Ok(Lent { segment: first, pages, direct: Some(self.memory.address() + first * 4096) })
            };
            store.lent(0, lender, answer);
        }
    }
    fn progress(&self) {}
    fn in_flight(&self) -> u64 {
        0
    }
    fn links(&self) -> Vec<FarLink> {
        Vec::new()
    }
    fn sleep_time(&self) -> Option<Duration> {
        None
    }
    fn status(&self) -> FarStatus {
        let used_pages = u64::from(self.store.lock().used());
        FarStatus { used_pages, most_pages: self.memory.length() as u64 / 4096, ..FarStatus::default() }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "keep") {
        return Ok(tombolo_pager::keep(&std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned()?)?);
    }
    let front = match front::split_off()? {
        Side::Front(code) => std::process::exit(code.into()),
        Side::Supervisor(front) => front,
    };
    let mut keeper = std::process::Command::new(std::env::current_exe()?);
    keeper.arg("keep");
    let [_, library, local, far, program, rest @ ..] = arguments.as_slice() else {
        return Err("usage: alone LIBRARY LOCAL_MIB FAR_MIB PROGRAM [ARGUMENT...]".into());
    };
    let library: &'static [u8] = std::fs::read(library)?.leak();
    let far = Own::new(Pages::new(far.parse::<usize>()? << 20)?, EventQueue::new()?);
    let options = Options {
        front,
        program: program.into(),
        arguments: rest.iter().map(Into::into).collect(),
        local_bytes: local.parse::<u64>()? << 20,
        minimum_bytes: 128 << 10,
        handlers: None,
        library: Library { bytes: library, installed: None },
        keeper,
        notify: Box::new(|text| eprintln!("tombolo: {text}")),
        started: None,
    };
    let finished = run(options, Arc::new(far))?;
    eprintln!("{:?} in {:?}; far faults {:?} ns", finished.status, finished.elapsed, finished.far_fault_ns);
    for (name, value) in &finished.counters {
        eprintln!("{name} {value}");
    }
    std::process::exit(finished.exit_code().into());
}
