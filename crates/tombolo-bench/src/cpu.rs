//! CPU time of the whole machine, so that nobody's share of a race is left out: not the kernel's
//! threads', not that of processes which serve the measured one.

use std::time::{Duration, Instant};

use crate::Failure;

/// Columns of /proc/stat that count: user, nice, system, irq and softirq. Idle, iowait and steal do
/// not; guest time is part of user time.
const COUNTED: [usize; 5] = [0, 1, 2, 5, 6];

/// Ticks in the first line of /proc/stat that somebody used.
fn busy_ticks(stat: &str) -> Option<u64> {
    let mut words = stat.lines().next()?.split_whitespace();
    if words.next()? != "cpu" {
        return None;
    }
    let columns: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
    COUNTED.iter().map(|&column| columns.get(column)).sum()
}

/// CPU seconds that all processors together have spent on anything since the start of the machine.
pub fn machine_seconds() -> Result<f64, Failure> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let ticks = busy_ticks(&stat).ok_or_else(|| Failure::new("/proc/stat has no line of all processors"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Wall and CPU time since a moment.
pub struct Stopwatch {
    start: Instant,
    start_cpu_s: f64,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Result<Self, Failure> {
        let start_cpu_s = machine_seconds()?;
        Ok(Self { start: Instant::now(), start_cpu_s })
    }

    /// Seconds of wall and of CPU time until now.
    pub fn elapsed(&self) -> Result<(f64, f64), Failure> {
        let wall_s = self.start.elapsed().as_secs_f64();
        Ok((wall_s, machine_seconds()? - self.start_cpu_s))
    }
}

/// How many processors others keep busy, measured while we sleep.
pub fn busy_processors(sleep: Duration) -> Result<f64, Failure> {
    let watch = Stopwatch::start()?;
    std::thread::sleep(sleep);
    let (wall_s, cpu_s) = watch.elapsed()?;
    Ok(cpu_s / wall_s)
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
