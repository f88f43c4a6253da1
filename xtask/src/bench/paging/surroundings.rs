//! What a program runs in: nothing special, Tombolo, or a limited cgroup.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tombolo_app::child::{self, Guard};
use tombolo_app::scratch::Scratch;
use tombolo_app::swap::LimitedMemory;
use tombolo_host::cgroup::Relieved;
use tombolo_host::timing::host::ZRAM_TURN_TIMEOUT;

/// More than any program here uses.
const AMPLE_BYTES: u64 = 2 << 30;
/// Before compression.
const SWAP_BYTES: u64 = 2 << 30;

/// What all runs share.
pub struct Surroundings {
    pub tombolo: PathBuf,
    /// `tombolo-bench`.
    pub races: PathBuf,
    scratch: Scratch,
    no_swap: Option<String>,
}

/// In what to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    /// Under Tombolo with this many bytes local.
    Tombolo(u64),
    /// Under the kernel's swap with this many bytes in the cgroup.
    Kernel(u64),
}

/// One run's surroundings, standing.
pub struct Place<'a> {
    surroundings: &'a Surroundings,
    way: Way,
    lender: Option<(Guard, String)>,
    group: Option<LimitedMemory>,
}

/// A cgroup that may use `limit_bytes`, and swap on zram behind it.
fn swap(limit_bytes: u64) -> Result<LimitedMemory, String> {
    LimitedMemory::new("tombolo-xtask-bench", limit_bytes, SWAP_BYTES, ZRAM_TURN_TIMEOUT)
        .map_err(|error| error.to_string())
}

impl Surroundings {
    pub fn new(tombolo: &Path, races: &Path) -> Result<Self, String> {
        let scratch = Scratch::new("xtask-bench").map_err(|error| format!("a directory: {error}"))?;
        let no_swap = swap(AMPLE_BYTES).err();
        Ok(Self { tombolo: tombolo.to_owned(), races: races.to_owned(), scratch, no_swap })
    }

    /// A file in the private directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.file(name)
    }

    /// Why there is no kernel swap to compare with, if so.
    pub fn no_swap(&self) -> Option<&str> {
        self.no_swap.as_deref()
    }

    /// Prepares a run.
    pub fn place(&self, way: Way) -> Result<Place<'_>, String> {
        let mut place = Place { surroundings: self, way, lender: None, group: None };
        match way {
            Way::Plain => {}
            Way::Tombolo(_) => place.lender = Some(self.lender()?),
            Way::Kernel(limit) => place.group = Some(swap(limit)?),
        }
        Ok(place)
    }

    fn lender(&self) -> Result<(Guard, String), String> {
        let listen = format!("shm:{}", self.file("lender").display());
        let mut command = Command::new(&self.tombolo);
        command.args([
            "node",
            "--name",
            "bench",
            "--listen",
            &listen,
            "--lend",
            &(AMPLE_BYTES * 3 / 2).to_string(),
        ]);
        child::serve_node(&mut command).map_err(|trouble| format!("the lender: {trouble}"))
    }
}

impl Place<'_> {
    /// A command that runs a program here.
    pub fn command(&self, program: &str) -> Command {
        match (&self.way, &self.lender, &self.group) {
            (Way::Tombolo(local), Some((_, address)), _) => {
                let mut command = Command::new(&self.surroundings.tombolo);
                command.args(["run", "--from", address, "--local", &local.to_string()]);
                command.args(["--remote", &AMPLE_BYTES.to_string(), "--report"]).arg(self.report_file());
                command.args(["--", program]);
                command
            }
            (_, _, Some(group)) => {
                let mut command = Command::new("sh");
                command.args(["-c", "echo 0 >\"$0\" && exec \"$@\""]).arg(group.procs()).arg(program);
                command
            }
            _ => Command::new(program),
        }
    }

    fn report_file(&self) -> PathBuf {
        self.surroundings.file("report.json")
    }

    /// What Tombolo reported of the run that has ended.
    pub fn report(&self) -> Option<Value> {
        self.lender.as_ref()?;
        serde_json::from_str(&fs::read_to_string(self.report_file()).ok()?).ok()
    }

    /// Faults by which the program got its fresh pages under Tombolo, for each of these.
    pub fn faults_a_page(&self) -> Option<f64> {
        let report = self.report()?;
        let count = |name: &str| report["counters"][name].as_f64();
        count("zero_pages").filter(|pages| *pages > 0.0).and_then(|pages| Some(count("zero_faults")? / pages))
    }

    /// What a cgroup had to be given beyond its limit.
    pub fn relieved(&self) -> Relieved {
        self.group.as_ref().map_or_else(Relieved::default, LimitedMemory::relieved)
    }

    /// Most memory that was used: of the heap under Tombolo, of everything in a cgroup.
    pub fn peak_bytes(&self) -> Option<u64> {
        match &self.group {
            Some(group) => group.peak_bytes().ok(),
            None => self.report()?["resident_peak_bytes"].as_u64(),
        }
    }
}

/// A limit that no program here reaches.
pub fn ample(way: fn(u64) -> Way) -> Way {
    way(AMPLE_BYTES)
}
