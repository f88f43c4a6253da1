//! What a program runs in: nothing special, Tombolo, or a limited cgroup.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tombolo_host::cgroup::{MemoryGroup, Relief};
use tombolo_host::zram::ZramSwap;

/// More than any program here uses.
const AMPLE_BYTES: u64 = 1 << 30;
/// Before compression.
const SWAP_BYTES: u64 = 1 << 30;

/// A child that ends with its owner.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What all runs share.
pub struct Surroundings {
    pub tombolo: PathBuf,
    /// `tombolo-bench`.
    pub races: PathBuf,
    /// A private directory, removed at the end.
    scratch: PathBuf,
    no_swap: Option<String>,
}

/// In what to run a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Plain,
    /// Under Tombolo with so many bytes local.
    Tombolo(u64),
    /// Under the kernel's swap with so many bytes in the cgroup.
    Kernel(u64),
}

/// One run's surroundings, standing.
pub struct Place<'a> {
    surroundings: &'a Surroundings,
    way: Way,
    lender: Option<(Guard, String)>,
    // Dropped before the group.
    relief: Option<Relief>,
    group: Option<MemoryGroup>,
    /// On only while it is needed: nothing of the other runs may get swapped.
    _swap: Option<ZramSwap>,
}

impl Surroundings {
    pub fn new(tombolo: &Path, races: &Path) -> Result<Self, String> {
        let scratch = std::env::temp_dir().join(format!("tombolo-xtask-bench-{}", std::process::id()));
        fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
        let no_swap = ZramSwap::new(SWAP_BYTES).err().map(|error| error.to_string());
        Ok(Self { tombolo: tombolo.to_owned(), races: races.to_owned(), scratch, no_swap })
    }

    /// A file in the private directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }

    /// Why there is no kernel swap to compare with, if so.
    pub fn no_swap(&self) -> Option<&str> {
        self.no_swap.as_deref()
    }

    /// Prepares a run.
    pub fn place(&self, way: Way) -> Result<Place<'_>, String> {
        let mut place =
            Place { surroundings: self, way, lender: None, relief: None, group: None, _swap: None };
        match way {
            Way::Plain => {}
            Way::Tombolo(_) => place.lender = Some(self.lender()?),
            Way::Kernel(limit) => {
                place._swap = Some(ZramSwap::new(SWAP_BYTES).map_err(|error| error.to_string())?);
                let group = MemoryGroup::new(&format!("tombolo-xtask-bench-{}", std::process::id()));
                let group = group.map_err(|error| error.to_string())?;
                group.limit(limit).map_err(|error| error.to_string())?;
                place.relief = Relief::start(&group, limit).map_err(|error| error.to_string())?;
                place.group = Some(group);
            }
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
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = Guard(child.map_err(|error| format!("the lender: {error}"))?);
        let mut line = String::new();
        if let Some(output) = child.0.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(|error| format!("the lender: {error}"))?;
        }
        match line.trim().rsplit_once(" at ") {
            Some((_, address)) => Ok((child, address.to_owned())),
            None => Err("the lender did not start".into()),
        }
    }
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
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

    /// Most that a cgroup had to be given beyond its limit, in bytes.
    pub fn relieved_bytes(&self) -> u64 {
        self.relief.as_ref().map_or(0, Relief::most_bytes)
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
