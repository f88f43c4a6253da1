//! Figures of many measured accesses.

use serde::{Deserialize, Serialize};
use tombolo_app::median;
use tombolo_host::probe::{Area, PAGE_WORDS};

use crate::Failure;

/// The figures of a set of latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many accesses.
    pub count: u64,
    /// Half of them took no longer.
    pub median_ns: f64,
    /// 99 of 100 took no longer.
    pub p99_ns: f64,
    /// Their sum by their number.
    pub mean_ns: f64,
    /// CPU time of the whole machine meanwhile, by their number; where it was measured.
    #[serde(default)]
    pub cpu_ns: Option<f64>,
}

impl Summary {
    /// The summary of latencies in any order; `None` if there are none.
    pub fn of(mut latencies_ns: Vec<u64>) -> Option<Self> {
        latencies_ns.sort_unstable();
        let last = latencies_ns.len().checked_sub(1)?;
        let at = |part: f64| latencies_ns[((last as f64) * part).round() as usize] as f64;
        let mean_ns = latencies_ns.iter().sum::<u64>() as f64 / latencies_ns.len() as f64;
        let count = latencies_ns.len() as u64;
        Some(Self { count, median_ns: at(0.5), p99_ns: at(0.99), mean_ns, cpu_ns: None })
    }

    /// With the CPU seconds that the machine spent on these accesses.
    pub fn with_cpu_seconds(self, cpu_s: f64) -> Self {
        Self { cpu_ns: Some(cpu_s * 1e9 / self.count as f64), ..self }
    }

    /// Of several passes: the median of each figure, so that one disturbed pass does not show.
    pub fn of_passes(passes: &[Self]) -> Option<Self> {
        let figure = |pick: fn(&Self) -> f64| median(&passes.iter().map(pick).collect::<Vec<_>>());
        Some(Self {
            count: passes.iter().map(|pass| pass.count).sum(),
            median_ns: figure(|pass| pass.median_ns)?,
            p99_ns: figure(|pass| pass.p99_ns)?,
            mean_ns: figure(|pass| pass.mean_ns)?,
            cpu_ns: median(&passes.iter().filter_map(|pass| pass.cpu_ns).collect::<Vec<_>>()),
        })
    }
}

/// Where latencies are noted while measuring: memory that is never paged, or
/// noting one would disturb the next.
pub struct Samples {
    area: Area,
    count: usize,
}

impl Samples {
    /// Makes room for `most` samples.
    pub fn new(most: usize) -> Result<Self, Failure> {
        let area = Area::for_results(most.div_ceil(PAGE_WORDS))?;
        (0..area.pages()).for_each(|page| area.write(page * PAGE_WORDS, 0));
        Ok(Self { area, count: 0 })
    }

    /// Notes one; beyond the room nothing is noted.
    #[inline]
    pub fn note(&mut self, latency_ns: u64) {
        if self.count < self.area.pages() * PAGE_WORDS {
            self.area.write(self.count, latency_ns);
            self.count += 1;
        }
    }

    /// What they come to.
    pub fn summary(&self) -> Result<Summary, Failure> {
        let latencies = (0..self.count).map(|index| self.area.read(index)).collect();
        Summary::of(latencies).ok_or_else(|| Failure::new("nothing was measured"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_hundred_and_one() {
        let summary = Summary::of((0..=100).rev().collect()).unwrap();
        assert_eq!(
            summary,
            Summary { count: 101, median_ns: 50.0, p99_ns: 99.0, mean_ns: 50.0, cpu_ns: None }
        );
        assert_eq!(summary.with_cpu_seconds(101e-6).cpu_ns, Some(1000.0));
        assert_eq!(Summary::of(Vec::new()), None);
    }

    #[test]
    fn one_disturbed_pass_does_not_show() {
        let pass = |value: f64| Summary {
            count: 10,
            median_ns: value,
            p99_ns: value,
            mean_ns: value,
            cpu_ns: Some(value),
        };
        let whole = Summary::of_passes(&[pass(5.0), pass(900.0), pass(6.0)]).unwrap();
        assert_eq!(whole, Summary { count: 30, ..pass(6.0) });
    }
}
