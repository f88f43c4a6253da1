//! Starts a program under the pager and waits for it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::WaitOptions;
use tombolo_host::timing::pager as timing;
use tombolo_host::{family, jobs, process};
use tombolo_node::{FarMemory, FarStatus};

use crate::attach::Reception;
use crate::evict::Evictor;
use crate::front::{self, Front, LeftSignal};
use crate::handler;
use crate::keeper::Keeper;
use crate::pager::{Notify, Pager};
use crate::run_directory::{Library, RunDirectory};
use crate::space::Space;
use crate::stats::PauseSummary;
use crate::unserved::UnservedSummary;
use tombolo_pager_protocol::{Setting, VARIABLE};

/// Least `local_bytes` of [`Options`].
pub const LOCAL_LEAST_BYTES: u64 = 4 << 20;

/// Most fault handlers.
pub const HANDLERS_MAX: usize = 16;

/// What to run, and within which limits.
pub struct Options {
    /// The process that stands for the program where this command was started.
    pub front: Front,
    /// Name or path of the program, looked up as by a shell.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Most bytes of far ranges resident at once.
    pub local_bytes: u64,
    /// Anonymous mappings of at least this many bytes are far.
    pub minimum_bytes: u64,
    /// How many threads serve faults, at most [`HANDLERS_MAX`]. By default one for each processor.
    pub handlers: Option<usize>,
    /// The preloaded library.
    pub library: Library,
    /// A command that calls [`crate::keep`] with its standard input.
    pub keeper: Command,
    /// Gets messages for the user. It is called by threads for which the program waits, so it must neither wait nor panic.
    pub notify: Notify,
    /// Called once, when the program was started, with a [`Monitor`] to follow the run.
    pub started: Option<Box<dyn FnOnce(Monitor) + Send>>,
}

/// Follows a run from outside.
#[derive(Clone)]
pub struct Monitor {
    pager: Arc<Pager>,
    pid: u32,
}

impl Monitor {
    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// All counters, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.pager.stats.counters.all()
    }

    /// How long threads of the program have waited for pages.
    pub fn pauses(&self) -> PauseSummary {
        self.pager.stats.pauses.summary()
    }

    /// Pages that may be resident.
    pub fn limit_pages(&self) -> u64 {
        self.pager.room.limit_pages()
    }

    /// Pages resident now.
    pub fn resident_pages(&self) -> u64 {
        self.pager.room.resident()
    }

    /// Programs that were not served.
    pub fn unserved(&self) -> UnservedSummary {
        self.pager.unserved_programs.summary()
    }

    /// Far pages in use now.
    pub fn far_pages(&self) -> u64 {
        u64::from(self.pager.far.slots().used())
    }
}

/// How a run ended.
#[derive(Debug)]
pub struct Finished {
    /// The program's own status.
    pub status: ExitStatus,
    /// Wall-clock time of the program.
    pub elapsed: Duration,
    /// All counters, by name.
    pub counters: Vec<(&'static str, u64)>,
    /// Service time of far faults in nanoseconds: median, 99th percentile, maximum.
    pub far_fault_ns: [u64; 3],
    /// How long threads of the program waited for pages.
    pub pauses: PauseSummary,
    /// Limit on resident pages.
    pub limit_pages: u64,
    /// Far memory at the end.
    pub far: FarStatus,
    /// Programs that were not served.
    pub unserved: UnservedSummary,
}

impl Finished {
    /// The program's exit code, or 128 and its signal, as a shell reports it.
    pub fn exit_code(&self) -> u8 {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => code as u8,
            (None, Some(signal)) => 128u8.wrapping_add(signal as u8),
            (None, None) => 125,
        }
    }

    /// A counter.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| *known == name).map_or(0, |&(_, value)| value)
    }
}

/// Why a program was not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// `--local` is too small to run a program.
    #[error("--local {0} bytes is too little: give at least 4 MiB")]
    LimitTooSmall(u64),
    /// The program could not be started.
    #[error("cannot run {program}: {source}")]
    Program {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The supervisor could not be set up.
    #[error("cannot set the pager up ({what}): {source}")]
    SetUp {
        /// What failed.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

fn set_up<T>(what: &'static str, result: io::Result<T>) -> Result<T, RunError> {
    result.map_err(|source| RunError::SetUp { what, source })
}

/// Runs a program whose memory beyond `local_bytes` lives in `far`.
pub fn run(mut options: Options, far: Arc<dyn FarMemory>) -> Result<Finished, RunError> {
    if options.local_bytes < LOCAL_LEAST_BYTES {
        return Err(RunError::LimitTooSmall(options.local_bytes));
    }
    // A supervisor that lacks a thread would leave programs waiting for ever. If it is gone as a whole, the keeper ends
    // them.
    process::abort_on_panic();
    let directory = Arc::new(set_up("its directory", RunDirectory::new(options.library))?);
    // The parent of each agent ends at once, so the kernel gives the agent another parent. The first process of a container
    // may never call wait (`sleep infinity`), and agents would stay zombies. So this process adopts them, and the
    // descendants that the program leaves behind.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let processors = process::processors();
    // At least two handlers: one may wait for an event that the other has to read.
    let handlers = options.handlers.unwrap_or(processors.len().max(2)).clamp(2, HANDLERS_MAX);
    let keeper = set_up("its keeper", Keeper::start(&mut options.keeper))?;
    let made = Pager::new(options.local_bytes, handlers, &processors, far, keeper, options.notify);
    let pager = set_up("tables", made)?;
    let pager = Arc::new(pager);
    let name = set_up("its socket", Space::new_token())?;
    let reception = set_up("its socket", Reception::new(directory.clone(), name, pager.clone()))?;
    let stopper = reception.stopper();
    let evictor = Evictor::new(pager.clone());

    let mut threads = Vec::new();
    let mut start = |name: &str, work: Box<dyn FnOnce() + Send>| -> Result<(), RunError> {
        threads.push(set_up("threads", thread::Builder::new().name(name.into()).spawn(work))?);
        Ok(())
    };
    for number in 0..handlers {
        let (pager, processor) = (pager.clone(), processors.get(number).copied());
        start("fault", Box::new(move || handler::run(&pager, number, processor)))?;
    }
    start("evict", Box::new(move || evictor.run()))?;
    start("reception", Box::new(move || reception.run()))?;
    if let Err(error) = process::lock_memory() {
        pager.say_once(
            "lock",
            &format!(
                "the supervisor's memory cannot be locked ({error}): under memory pressure it may be slow"
            ),
        );
    }

    pager.unserved_programs.leave_out(family::descendants(std::process::id()));
    let (number, socket) = (name.to_string(), directory.socket());
    let setting = Setting {
        minimum_bytes: usize::try_from(options.minimum_bytes).unwrap_or(usize::MAX),
        number: number.as_bytes(),
        socket: socket.as_os_str().as_bytes(),
    };
    let mut preload = directory.library().into_os_string();
    if let Some(others) = front::users_preload() {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&options.program);
    command.args(&options.arguments).env("LD_PRELOAD", preload).env(VARIABLE, setting.to_string());
    front::hide_handed_preload(&mut command);
    let mut front = options.front;
    let since = Instant::now();
    let started = front.starting(&mut command).and_then(|()| Started::new(command.spawn()?, &mut front));
    let mut left = Left::Nobody;
    let result = match started {
        Ok(Started(child)) => {
            // Only after the program was started, so that it does not inherit this limit.
            process::raise_descriptor_limit();
            if let Some(started) = options.started {
                started(Monitor { pager: pager.clone(), pid: child.id() });
            }
            let status = wait_for(&child, &mut front);
            let elapsed = since.elapsed();
            if let Ok(status) = &status {
                front.ended(status.into_raw());
            }
            left = wait_for_descendants(&pager, &front);
            status.map(|status| (status, elapsed))
        }
        Err(error) => Err(error),
    };
    pager.stopping.store(true, Ordering::Relaxed);
    pager.evictor.ring();
    let _ = rustix::io::write(&*stopper, &1u64.to_ne_bytes());
    for poll in &pager.polls {
        poll.stop();
    }
    for thread in threads {
        let _ = thread.join();
    }
    // The program may have ended because a lender was lost and no thread has reported that yet.
    pager.far.finish_losses();
    pager.progress_far();
    if left == Left::Nobody {
        pager.keeper.end();
    }
    reap(front.group());
    let (status, elapsed) = result.map_err(|source| RunError::Program {
        program: options.program.to_string_lossy().into_owned(),
        source,
    })?;
    let latencies = pager.stats.far_latency_ns(&[50.0, 99.0, 100.0]);
    Ok(Finished {
        status,
        elapsed,
        counters: {
            let mut counters = pager.stats.counters.all();
            for (name, peak) in [
                ("foreign_pages", &pager.foreign_peak_pages),
                ("shared_memory_pages", &pager.shared_peak_pages),
                ("locked_pages", &pager.locked_peak_pages),
            ] {
                counters.push((name, peak.load(Ordering::Relaxed)));
            }
            counters.push(("resident_peak", pager.room.peak()));
            counters.push(("overdraft_pages", pager.room.peak().saturating_sub(pager.room.limit_pages())));
            counters
        },
        far_fault_ns: [latencies[0], latencies[1], latencies[2]],
        pauses: pager.stats.pauses.summary(),
        limit_pages: options.local_bytes / 4096,
        far: pager.far.status(),
        unserved: pager.unserved_programs.summary(),
    })
}

/// The started program.
struct Started(Child);

impl Started {
    fn new(mut child: Child, front: &mut Front) -> io::Result<Self> {
        match process::pidfd(child.id()).and_then(|pidfd| front.started(&pidfd)) {
            Ok(()) => Ok(Self(child)),
            Err(error) => {
                // The front could not pass signals to the program.
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }
}

/// Waits for the end of the program. This process gets the orphans among its descendants, among them the agents; they are
/// reaped meanwhile. (So is a keeper that was ended.)
fn wait_for(program: &Child, front: &mut Front) -> io::Result<ExitStatus> {
    loop {
        match rustix::process::wait(WaitOptions::UNTRACED | WaitOptions::CONTINUED) {
            Ok(Some((pid, status))) => {
                let pid = pid.as_raw_pid().cast_unsigned();
                let has_ended = status.exited() || status.signaled();
                match (pid == program.id(), has_ended) {
                    (true, true) => return Ok(ExitStatus::from_raw(status.as_raw())),
                    (true, false) => front.changed(pid, status),
                    (false, _) if status.stopped() => jobs::end_stop_of_orphans(pid, front.group()),
                    (false, _) => {}
                }
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reaps all children that have ended, and ends the stop of jobs whose shell has ended.
fn reap(front_group: u32) {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        if status.stopped() {
            jobs::end_stop_of_orphans(pid.as_raw_pid().cast_unsigned(), front_group);
        }
    }
}

/// Whether processes still have memory of this run when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Nobody,
    /// Some processes do, which the supervisor could not end, mostly because no agent has named them. The keeper looks
    /// after their memory.
    Somebody,
}

/// Waits for descendants that outlive the program: they need the supervisor as long as they live. The first signal is
/// passed on to all of them. The next one ends them, or at least the wait for them.
fn wait_for_descendants(pager: &Pager, front: &Front) -> Left {
    let since = Instant::now();
    let mut told = false;
    // The signal that was passed on, and the spaces whose programs still have to get it.
    let mut passed: Option<(LeftSignal, Vec<u32>)> = None;
    let mut passed_at = since;
    let mut ended_at: Option<Instant> = None;
    loop {
        let spaces = pager.all_spaces();
        if spaces.is_empty() {
            return Left::Nobody;
        }
        if ended_at.is_some_and(|ended| ended.elapsed() > timing::DESCENDANTS_END) {
            (pager.notify)(&format!(
                "{} process(es) that the program left behind cannot be ended from here; where their memory is far, \
                 they get SIGBUS",
                spaces.len()
            ));
            return Left::Somebody;
        }
        // A signal to the front's process and one to its group, as `timeout` sends them, count as one.
        let is_again = |signal: &LeftSignal, passed: &Option<(LeftSignal, Vec<u32>)>| {
            passed.as_ref().is_some_and(|(first, _)| {
                first.number == signal.number && first.is_for_group != signal.is_for_group
            })
        };
        if let Some(signal) = front.take_signal()
            && !(is_again(&signal, &passed) && passed_at.elapsed() < timing::SAME_SIGNAL)
        {
            if passed.is_some() {
                ended_at.get_or_insert_with(Instant::now);
            } else {
                passed_at = Instant::now();
                passed = Some((signal, spaces.iter().map(|space| space.index).collect()));
                (pager.notify)(&format!(
                    "passed signal {} on to what the program left behind; the next one ends it",
                    signal.number
                ));
            }
        }
        for space in &spaces {
            // A child that is just being forked has no agent yet. It gets the signal later.
            let Some(program) = space.program() else { continue };
            // Its shell may have taken the status of its stop, so that this process does not get it.
            jobs::end_stop_of_orphans(program.pid, front.group());
            if ended_at.is_some() {
                let _ = process::signal(&program.pidfd, libc::SIGKILL);
            } else if let Some((signal, due)) = &mut passed
                && let Some(place) = due.iter().position(|index| *index == space.index)
            {
                due.swap_remove(place);
                // Processes of the front's group have the signal already.
                if !(signal.is_for_group && front.has_in_its_group(program.pid)) {
                    let _ = process::signal(&program.pidfd, signal.number);
                }
            }
        }
        if !told && since.elapsed() > timing::DESCENDANTS_NOTICE {
            told = true;
            (pager.notify)(&format!(
                "the program has ended; waiting for {} process(es) that it left behind, which get the \
                 signal that this one gets",
                spaces.len()
            ));
        }
        drop(spaces);
        reap(front.group());
        thread::sleep(timing::DESCENDANTS_INTERVAL);
    }
}
