//! A memory cgroup for a comparison with the kernel's own swapping: version 1 or 2.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::event::timespec;
use crate::timing::host::{
    GROUP_REMOVAL_INTERVAL, GROUP_REMOVAL_TIMEOUT, RELIEF_CHECK_INTERVAL, RELIEF_LOWER_INTERVAL,
};

/// The names that the two versions have for the same things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A group of processes with a memory limit, removed when dropped.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    version: Version,
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Where the memory controller is mounted, and which version it is.
fn find_mount(mounts: &str) -> Option<(PathBuf, Version)> {
    let mut second = None;
    for line in mounts.lines() {
        let mut fields = line.split_whitespace().skip(1);
        let (Some(target), Some(kind), Some(options)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        match kind {
            "cgroup" if options.split(',').any(|option| option == "memory") => {
                return Some((target.into(), Version::One));
            }
            "cgroup2" => second = Some((PathBuf::from(target), Version::Two)),
            _ => {}
        }
    }
    second
}

impl MemoryGroup {
    /// Makes a group of this name with no limit yet.
    pub fn new(name: &str) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no memory cgroup is mounted");
        let (root, version) = find_mount(&mounts).ok_or_else(missing)?;
        if version == Version::Two {
            // Fails where the controller is not there at all; then the limit fails, too, and says so.
            let _ = fs::write(root.join("cgroup.subtree_control"), "+memory");
        }
        let folder = root.join(name);
        fs::create_dir(&folder)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot make a memory cgroup: {error}")))?;
        let group = Self { folder, version };
        if !group.file("memory.limit_in_bytes", "memory.max").exists() {
            return Err(missing());
        }
        // Swap on compressed RAM is cheap, and the program has hardly any file pages to drop instead.
        // Version 2 has no such setting for a group, and both work without.
        let _ = fs::write(group.folder.join("memory.swappiness"), "100");
        Ok(group)
    }

    fn file(&self, one: &str, two: &str) -> PathBuf {
        self.folder.join(if self.version == Version::One { one } else { two })
    }

    /// Limits the group's memory; what is beyond is swapped.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        write(&self.file("memory.limit_in_bytes", "memory.max"), &bytes.to_string())
    }

    /// The file that a process writes `0` to in order to join.
    pub fn procs(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Most bytes the group has used at once.
    pub fn peak_bytes(&self) -> io::Result<u64> {
        let text = fs::read_to_string(self.file("memory.max_usage_in_bytes", "memory.peak"))?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    }
}

/// Gives a group that is out of memory a little more, for moments, in place of
/// the kernel's killing it.
///
/// At a limit, reclaim now and then finds nothing to swap, although there is
/// plenty and swap is free, and the kernel ends a process. Here it waits instead
/// (version 1 only), and the limit is raised, by small steps at first, and lowered
/// again, step by step, as soon as the kernel can.
/// Lowering makes the kernel reclaim in the thread that lowers: as much of this work
/// as was let off the program.
#[derive(Debug)]
pub struct Relief {
    given: Arc<Given>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What a group was given beyond its limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Relieved {
    /// The most bytes at once.
    pub most_bytes: u64,
    /// Bytes on average, over the whole time.
    pub mean_bytes: u64,
}

/// How much the limit is lowered each time, and raised at most.
const RELIEF_STEP_BYTES: u64 = 256 << 10;

/// How much a limit is raised that was raised so often already since it was last lowered. Who waits reclaims again
/// when it is, and each attempt ages pages, so that the next one may take them: a page more is often enough.
fn step_bytes(in_vain: u32) -> u64 {
    (4096 << in_vain.min(20)).min(RELIEF_STEP_BYTES)
}

/// Written by the thread that raises the limit.
#[derive(Debug, Default)]
struct Given {
    most_bytes: AtomicU64,
    mean_bytes: AtomicU64,
}

/// How far the limit is raised, and for how long it was.
#[derive(Debug, Default)]
struct Raised {
    bytes: u64,
    byte_seconds: f64,
    seconds: f64,
}

impl Raised {
    /// Time has gone by.
    fn passed(&mut self, seconds: f64) {
        self.byte_seconds += self.bytes as f64 * seconds;
        self.seconds += seconds;
    }

    fn mean_bytes(&self) -> u64 {
        if self.seconds > 0.0 { (self.byte_seconds / self.seconds) as u64 } else { 0 }
    }
}

impl Relief {
    /// Begins for a group with this limit. `None`: this version of cgroups cannot do it.
    pub fn start(group: &MemoryGroup, limit_bytes: u64) -> io::Result<Option<Self>> {
        if group.version == Version::Two {
            return Ok(None);
        }
        let control = group.folder.join("memory.oom_control");
        write(&control, "1")?;
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let control = fs::File::open(&control)?;
        let wish = format!("{} {}", event.as_raw_fd(), control.as_raw_fd());
        write(&group.folder.join("cgroup.event_control"), &wish)?;
        let limit = group.folder.join("memory.limit_in_bytes");
        let (given, ended) = (Arc::new(Given::default()), Arc::new(AtomicBool::new(false)));
        let (told, stop) = (given.clone(), ended.clone());
        let thread = std::thread::spawn(move || {
            let (mut raised, mut since, mut in_vain, mut is_unheeded) =
                (Raised::default(), Instant::now(), 0, false);
            while !stop.load(Ordering::Relaxed) {
                let timeout = if raised.bytes > 0 { Duration::ZERO } else { RELIEF_CHECK_INTERVAL };
                let mut wait = [PollFd::new(&event, PollFlags::IN)];
                let timeout = if is_unheeded { Duration::ZERO } else { timeout };
                let is_told =
                    rustix::event::poll(&mut wait, Some(&timespec(timeout))).is_ok_and(|ready| ready > 0);
                if is_told {
                    let _ = rustix::io::read(&event, &mut [0u8; 8]);
                }
                let starved = is_told || is_unheeded;
                let wanted_bytes = match starved {
                    true => raised.bytes + step_bytes(in_vain),
                    false => raised.bytes.saturating_sub(RELIEF_STEP_BYTES),
                };
                let is_set = wanted_bytes == raised.bytes
                    || write(&limit, &(limit_bytes + wanted_bytes).to_string()).is_ok();
                raised.passed(std::mem::replace(&mut since, Instant::now()).elapsed().as_secs_f64());
                is_unheeded = starved && !is_set;
                match (is_set, starved) {
                    (true, true) => (raised.bytes, in_vain) = (wanted_bytes, in_vain + 1),
                    (true, false) => (raised.bytes, in_vain) = (wanted_bytes, 0),
                    (false, _) => std::thread::sleep(RELIEF_LOWER_INTERVAL),
                }
                told.most_bytes.fetch_max(raised.bytes, Ordering::Relaxed);
                told.mean_bytes.store(raised.mean_bytes(), Ordering::Relaxed);
            }
        });
        Ok(Some(Self { given, ended, thread: Some(thread) }))
    }

    /// What the group was given so far.
    pub fn relieved(&self) -> Relieved {
        Relieved {
            most_bytes: self.given.most_bytes.load(Ordering::Relaxed),
            mean_bytes: self.given.mean_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Relief {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Its processes have ended, but the kernel may not have removed them from the group yet.
        let since = Instant::now();
        while fs::remove_dir(&self.folder).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
            && since.elapsed() < GROUP_REMOVAL_TIMEOUT
        {
            std::thread::sleep(GROUP_REMOVAL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_by_a_page_at_first() {
        assert_eq!([0, 1, 6, 7, u32::MAX].map(step_bytes), [4096, 8192, 262_144, 262_144, 262_144]);
    }

    #[test]
    fn what_a_group_was_given_is_weighed_by_time() {
        let mut raised = Raised::default();
        assert_eq!(raised.mean_bytes(), 0);
        raised.passed(3.0);
        raised.bytes = 4000;
        raised.passed(1.0);
        assert_eq!(raised.mean_bytes(), 1000);
    }

    #[test]
    fn the_memory_controller_is_found_in_either_version() {
        let one = "tmpfs /s tmpfs rw 0 0\ncgroup /s/cpu cgroup rw,cpu 0 0\ncgroup /s/memory cgroup rw,memory 0 0\ncgroup2 /s/unified cgroup2 rw 0 0\n";
        assert_eq!(find_mount(one), Some(("/s/memory".into(), Version::One)));
        assert_eq!(find_mount("cgroup2 /s cgroup2 rw 0 0\n"), Some(("/s".into(), Version::Two)));
        assert_eq!(find_mount("tmpfs /s tmpfs rw 0 0\n"), None);
    }
}
