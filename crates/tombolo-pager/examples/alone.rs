//! The pager with no lender: "far" memory is this process's own. For work on
//! the pager itself: `alone LIBRARY LOCAL_MIB FAR_MIB PROGRAM [ARGUMENT...]`.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use tombolo_host::sparse::Pages;
use tombolo_node::{FarMemory, FarSink, LenderGone, Staging, Window};
use tombolo_pager::{Options, run};

struct Own(Pages);

impl FarMemory for Own {
    fn start(&self, _sink: FarSink) {}
    fn pages(&self) -> u32 {
        (self.0.length() / 4096) as u32
    }
    fn window(&self, page: u32) -> Option<Window> {
        Some(Window { address: self.0.address() + u64::from(page) * 4096, pages: self.pages() - page })
    }
    fn warm(&self, _page: u32) {}
    fn is_lost(&self, _page: u32) -> bool {
        false
    }
    fn staging(&self) -> Staging {
        Staging { address: 0, pages: 0 }
    }
    fn write(&self, _pages: &[(u32, u32)]) -> Result<(), LenderGone> {
        Ok(())
    }
    fn read(&self, _page: u32, _ticket: u64, _since: Option<std::time::Instant>) {}
    fn flush(&self) {}
    fn progress(&self) {}
    fn in_flight(&self) -> u64 {
        0
    }
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, bool)> {
        Vec::new()
    }
    fn sleep_time(&self) -> Option<Duration> {
        None
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "keep") {
        return Ok(tombolo_pager::keep(&std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned()?)?);
    }
    let mut keeper = std::process::Command::new(std::env::current_exe()?);
    keeper.arg("keep");
    let [_, library, local, far, program, rest @ ..] = arguments.as_slice() else {
        return Err("usage: alone LIBRARY LOCAL_MIB FAR_MIB PROGRAM [ARGUMENT...]".into());
    };
    let library: &'static [u8] = std::fs::read(library)?.leak();
    let far = Own(Pages::new(far.parse::<usize>()? << 20)?);
    let options = Options {
        program: program.into(),
        arguments: rest.iter().map(Into::into).collect(),
        local_bytes: local.parse::<u64>()? << 20,
        minimum_bytes: 128 << 10,
        library,
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
