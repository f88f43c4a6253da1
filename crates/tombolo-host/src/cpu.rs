//! CPU time of the whole machine, so that nobody's share of a race is left out: not the kernel's
//! threads', not that of processes which serve the measured one. And that of one thread.

use std::io;
use std::time::{Duration, Instant};

/// Columns of /proc/stat that count: user, nice, system, irq and softirq. Idle, iowait and steal do
/// not; guest time is part of user time.
const COUNTED: [usize; 5] = [0, 1, 2, 5, 6];

/// Ticks in the first line of /proc/stat in which a processor was busy.
fn busy_ticks(stat: &str) -> Option<u64> {
    let mut words = stat.lines().next()?.split_whitespace();
    if words.next()? != "cpu" {
        return None;
    }
    let columns: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    COUNTED.iter().map(|&column| columns.get(column)).sum()
}

/// CPU seconds that all processors together have spent on anything since the start of the machine.
pub fn machine_seconds() -> io::Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "/proc/stat has no line of all processors");
    let ticks = busy_ticks(&stat).ok_or_else(missing)?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Wall time, and CPU time of the whole machine, since a moment.
#[derive(Debug)]
pub struct Stopwatch {
    start: Instant,
    start_cpu_s: f64,
}

impl Stopwatch {
    /// Starts measuring.
    pub fn start() -> io::Result<Self> {
        let start_cpu_s = machine_seconds()?;
        Ok(Self { start: Instant::now(), start_cpu_s })
    }

    /// Seconds of wall and of CPU time until now.
    pub fn elapsed(&self) -> io::Result<(f64, f64)> {
        let wall_s = self.start.elapsed().as_secs_f64();
        Ok((wall_s, machine_seconds()? - self.start_cpu_s))
    }
}

/// How many processors others keep busy, measured while we sleep.
pub fn busy_processors(sleep: Duration) -> io::Result<f64> {
    let watch = Stopwatch::start()?;
    std::thread::sleep(sleep);
    let (wall_s, cpu_s) = watch.elapsed()?;
    Ok(cpu_s / wall_s)
}

/// The processor time of the calling thread, in which that of interrupts is counted or not, as the kernel was built.
pub fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_waiting_and_stolen_time_are_not_counted() {
        let stat = "cpu  1 20 300 1000000 2000000 4000 50000 3000000 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(54_321));
        assert_eq!(busy_ticks("cpu 1 2 3"), None);
        assert_eq!(busy_ticks("cpu0 1 2 3 4 5 6 7 8"), None);
    }

    #[test]
    fn what_a_thread_burns_is_seen() {
        let watch = Stopwatch::start().unwrap();
        while watch.start.elapsed() < Duration::from_millis(300) {
            std::hint::spin_loop();
        }
        // At least something: a machine that is busy gives this thread a part of it only.
        assert!(watch.elapsed().unwrap().1 > 0.0);
    }
}
