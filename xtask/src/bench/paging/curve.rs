//! One program's slowdown over the part of its working set that stays local.

use std::fs;
use std::time::{Duration, Instant};

use tombolo_host::cgroup::Relieved;

use super::surroundings::{Surroundings, Way, ample};
use super::workload::{Cost, Unit, Workload};
use super::{LOCAL_PERCENT, interrupted};
use crate::bench::median;

/// A program that takes longer than this is not run again at the same limit.
const LONG_RUN: Duration = Duration::from_secs(20);
/// The kernel now and then finds nothing to reclaim in a small cgroup although it
/// could swap, and has to be given more than the limit for a moment, or kills.
/// Runs that fail, or had more memory than allowed on average, are counted and made
/// again, this many times at most.
const RETRIES_MOST: u32 = 2;
/// A run is held to its limit if what it had beyond it, on average over the run, is at most this part of it.
const BEYOND_MOST: f64 = 0.01;

/// Costs at one limit: the median of the runs, or why there is none.
#[derive(Debug)]
pub struct Point {
    pub percent: u64,
    pub local_bytes: u64,
    pub tombolo: Result<Cost, String>,
    pub kernel: Result<Cost, String>,
    /// Runs in which the kernel found nothing to reclaim, and that were made again.
    pub kernel_retries: u32,
    /// The limit of the kernel's cgroup.
    pub kernel_limit_bytes: u64,
    /// What the kernel had beyond the limit in the runs that count: the most of all of them.
    pub kernel_relieved: Relieved,
}

/// A program's figures.
#[derive(Debug)]
pub struct Curve {
    pub name: &'static str,
    pub title: &'static str,
    pub unit: Unit,
    /// Most of its heap and large mappings that it used at once.
    pub working_set_bytes: u64,
    /// What it used beside them.
    pub base_bytes: u64,
    /// Its cost with all memory local and nobody in between.
    pub plain: Cost,
    /// The cost of a plain run while the kernel gives every program huge pages.
    pub huge: Result<Cost, String>,
    /// Its cost under Tombolo with a limit that it does not reach.
    pub within: Result<Cost, String>,
    /// Faults by which it got its fresh pages then, for each of these.
    pub faults_a_page: Option<f64>,
    pub points: Vec<Point>,
}

impl Curve {
    /// How many times as long as a plain run.
    pub fn slowdown(&self, cost: &Result<Cost, String>) -> Option<f64> {
        cost.as_ref().ok().map(|cost| cost.wall / self.plain.wall)
    }

    /// The processor time within its limit, by that of a plain run.
    pub fn cpu_within(&self) -> Option<f64> {
        self.within.as_ref().ok().map(|cost| cost.cpu / self.plain.cpu)
    }

    /// Wall time with a part of the working set local, by that with the kernel's swap.
    pub fn to_kernel(&self, percent: u64) -> Option<f64> {
        let point = self.points.iter().find(|point| point.percent == percent)?;
        Some(point.tombolo.as_ref().ok()?.wall / point.kernel.as_ref().ok()?.wall)
    }
}

/// The kernel's setting of huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// While it lives, every program has huge pages.
struct HugePages {
    before: String,
}

impl HugePages {
    fn for_all() -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{HUGE_PAGES}: {error}");
        let text = fs::read_to_string(HUGE_PAGES).map_err(failed)?;
        let before =
            text.split(['[', ']']).nth(1).ok_or("the setting of huge pages cannot be read")?.to_owned();
        fs::write(HUGE_PAGES, "always").map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if let Err(error) = fs::write(HUGE_PAGES, &self.before) {
            eprintln!("bench: the setting of huge pages is still \"always\": {error}");
        }
    }
}

/// Runs of one way, gathered over the passes.
struct Runs {
    way: Way,
    /// Faults for each fresh page.
    faults_a_page: Vec<f64>,
    /// Each run's cost, and what it had beyond its limit.
    runs: Vec<(Cost, Relieved)>,
    failure: Option<String>,
    retries: u32,
    done: bool,
}

impl Runs {
    fn new(way: Way) -> Self {
        Self { way, faults_a_page: Vec::new(), runs: Vec::new(), failure: None, retries: 0, done: false }
    }

    /// Whether a run had no more memory than it was allowed.
    fn is_held(&self, relieved: &Relieved) -> bool {
        match self.way {
            Way::Kernel(limit_bytes) => relieved.mean_bytes as f64 <= limit_bytes as f64 * BEYOND_MOST,
            _ => true,
        }
    }

    fn once(&mut self, surroundings: &Surroundings, workload: &dyn Workload) {
        let mut attempts = 0;
        while !self.done {
            let since = Instant::now();
            let outcome = surroundings.place(self.way).and_then(|place| {
                let run = (workload.run(&place)?, place.relieved());
                self.faults_a_page.extend(place.faults_a_page());
                Ok(run)
            });
            attempts += 1;
            let is_long = since.elapsed() > LONG_RUN;
            let is_repeated = match &outcome {
                Ok((_, relieved)) => !self.is_held(relieved),
                Err(_) => matches!(self.way, Way::Kernel(_)),
            };
            match outcome {
                Ok(run) => {
                    self.runs.push(run);
                    self.done |= is_long;
                }
                Err(_) if is_repeated && attempts <= RETRIES_MOST && !interrupted() => {}
                // A run that fails may not be hidden by others that do not.
                Err(error) => {
                    let error = match attempts {
                        1 => error,
                        _ => format!(
                            "did not finish in {attempts} attempts ({})",
                            error.trim_end_matches([':', ' '])
                        ),
                    };
                    self.failure.get_or_insert(error);
                    self.done = true;
                }
            }
            if !is_repeated || attempts > RETRIES_MOST || interrupted() {
                return;
            }
            self.retries += 1;
        }
    }

    /// The runs that count: those that were held to their limit, or all where none was.
    fn counted(&self) -> Vec<(Cost, Relieved)> {
        let held = self.runs.iter().copied().filter(|(_, relieved)| self.is_held(relieved));
        let held: Vec<_> = held.collect();
        if held.is_empty() { self.runs.clone() } else { held }
    }

    /// The most that a run that counts had beyond its limit, and the most on average.
    fn relieved(&self) -> Relieved {
        let most = |of: fn(&Relieved) -> u64| {
            self.counted().iter().map(|(_, relieved)| of(relieved)).max().unwrap_or(0)
        };
        Relieved {
            most_bytes: most(|relieved| relieved.most_bytes),
            mean_bytes: most(|relieved| relieved.mean_bytes),
        }
    }

    fn cost(self) -> Result<Cost, String> {
        let costs: Vec<Cost> = self.counted().into_iter().map(|(cost, _)| cost).collect();
        match (self.failure, Cost::median(&costs)) {
            (Some(failure), _) => Err(failure),
            (None, Some(cost)) => Ok(cost),
            (None, None) => Err("not run".into()),
        }
    }
}

/// Most memory used with plenty of it.
fn peak(surroundings: &Surroundings, workload: &dyn Workload, way: Way) -> Result<u64, String> {
    let place = surroundings.place(way)?;
    workload.run(&place)?;
    place.peak_bytes().ok_or_else(|| "no peak was told".into())
}

/// Measures a program at every limit, in all ways in turn.
pub fn measure(surroundings: &Surroundings, workload: &dyn Workload, runs: usize) -> Result<Curve, String> {
    eprintln!("bench: {}", workload.title());
    let working_set_bytes = peak(surroundings, workload, ample(Way::Tombolo))?;
    let whole = match surroundings.no_swap() {
        None => peak(surroundings, workload, ample(Way::Kernel))?,
        Some(_) => 0,
    };
    let base_bytes = whole.saturating_sub(working_set_bytes);
    let mut plain = Runs::new(Way::Plain);
    let mut huge = Runs::new(Way::Plain);
    let mut within = Runs::new(Way::Tombolo(working_set_bytes * 2));
    let mut limited = Vec::new();
    for percent in LOCAL_PERCENT {
        let local_bytes = (working_set_bytes * percent / 100).next_multiple_of(4096);
        let tombolo = Runs::new(Way::Tombolo(local_bytes));
        let mut kernel = Runs::new(Way::Kernel(local_bytes + base_bytes));
        if let Some(reason) = surroundings.no_swap() {
            kernel.failure = Some(format!("not measured: {reason}"));
            kernel.done = true;
        }
        limited.push((percent, local_bytes, tombolo, kernel));
    }
    for _ in 0..runs {
        plain.once(surroundings, workload);
        match HugePages::for_all() {
            Ok(_while_it_runs) => huge.once(surroundings, workload),
            Err(error) => huge.failure = Some(error),
        }
        within.once(surroundings, workload);
        for (_, _, tombolo, kernel) in &mut limited {
            tombolo.once(surroundings, workload);
            kernel.once(surroundings, workload);
            if interrupted() {
                return Err("interrupted".into());
            }
        }
    }
    let faults_a_page = median(&within.faults_a_page);
    let (plain, huge, within) = (plain.cost()?, huge.cost(), within.cost());
    let show = |cost: &Result<Cost, String>| match cost {
        Ok(cost) => format!(
            "{} ({:.2} x), CPU {}",
            workload.unit().show(cost.wall),
            cost.wall / plain.wall,
            workload.unit().show(cost.cpu)
        ),
        Err(error) => error.clone(),
    };
    eprintln!(
        "  plain: {}; with huge pages: {}; Tombolo within its limit: {}, {:.3} faults a fresh page",
        show(&Ok(plain)),
        show(&huge),
        show(&within),
        faults_a_page.unwrap_or(0.0)
    );
    let mut points = Vec::new();
    for (percent, local_bytes, tombolo, kernel) in limited {
        let (kernel_retries, kernel_relieved) = (kernel.retries, kernel.relieved());
        let kernel_limit_bytes = local_bytes + base_bytes;
        let (tombolo, kernel) = (tombolo.cost(), kernel.cost());
        let point = Point {
            percent,
            local_bytes,
            tombolo,
            kernel,
            kernel_retries,
            kernel_limit_bytes,
            kernel_relieved,
        };
        eprintln!("  {percent:3} % local: Tombolo {}, zram {}", show(&point.tombolo), show(&point.kernel));
        points.push(point);
    }
    Ok(Curve {
        name: workload.name(),
        title: workload.title(),
        unit: workload.unit(),
        working_set_bytes,
        base_bytes,
        plain,
        huge,
        within,
        faults_a_page,
        points,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_run_is_not_hidden_by_good_ones() {
        let mut runs = Runs::new(Way::Plain);
        runs.runs = vec![(Cost { wall: 3.0, cpu: 1.0 }, Relieved::default())];
        runs.failure = Some("killed".into());
        assert_eq!(runs.cost(), Err("killed".into()));
    }

    #[test]
    fn runs_with_more_memory_than_allowed_count_only_where_there_is_no_other() {
        let run =
            |wall, mean_bytes| (Cost { wall, cpu: 1.0 }, Relieved { most_bytes: 4 * mean_bytes, mean_bytes });
        let mut runs = Runs::new(Way::Kernel(1000));
        runs.runs = vec![run(1.0, 11), run(1.1, 500)];
        assert_eq!((runs.counted().len(), runs.relieved().mean_bytes), (2, 500));
        runs.runs.extend([run(5.0, 10), run(6.0, 0), run(7.0, 0)]);
        assert_eq!((runs.relieved().most_bytes, runs.relieved().mean_bytes), (40, 10));
        assert_eq!(runs.cost().map(|cost| cost.wall), Ok(6.0));
    }
}
