//! Tests that draw a scenario from each of many seeds.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime};

/// Which seeds such a test runs. The environment decides:
///
/// - `TOMBOLO_SEED=n`: only this seed.
/// - `TOMBOLO_SECONDS=n`: seeds that no run has had before, for this long.
/// - `TOMBOLO_SEEDS=n`: the first n seeds.
///
/// Otherwise the test's own number of seeds, from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// One, to repeat a failure.
    One(u64),
    /// This many, from 1 on.
    First(u64),
    /// New ones for this long.
    Lasting(Duration),
}

/// A variable of the environment as a number.
///
/// # Panics
///
/// If it is set and no number: a test must not run other seeds than it is told to.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}=`{text}` is not a whole number")))
}

impl Seeds {
    /// As the environment says; otherwise this many.
    pub fn from_environment(default_count: u64) -> Self {
        Self::choose(
            number("TOMBOLO_SEED"),
            number("TOMBOLO_SECONDS"),
            number("TOMBOLO_SEEDS"),
            default_count,
        )
    }

    fn choose(seed: Option<u64>, seconds: Option<u64>, count: Option<u64>, default_count: u64) -> Self {
        match (seed, seconds) {
            (Some(seed), _) => Self::One(seed),
            (None, Some(seconds)) => Self::Lasting(Duration::from_secs(seconds)),
            (None, None) => Self::First(count.unwrap_or(default_count)),
        }
    }

    /// Runs the scenario of each seed. Where one panics, prints how to repeat it: `test` is the
    /// command that runs this test, without the seed.
    pub fn run(self, test: &str, mut scenario: impl FnMut(u64)) {
        let mut scenario = |seed| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
                eprintln!("seed {seed} failed; to repeat it: TOMBOLO_SEED={seed} {test}");
                resume_unwind(panic);
            }
        };
        match self {
            Self::One(seed) => scenario(seed),
            Self::First(count) => {
                (1..=count).for_each(scenario);
                println!("{count} seeds, from 1 on");
            }
            Self::Lasting(time) => {
                let since = Instant::now();
                // More seeds than a second can have lie between the first ones of two runs.
                let first = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_secs()) << 20;
                let mut count = 0;
                while since.elapsed() < time {
                    scenario(first + count);
                    count += 1;
                    if count.is_multiple_of(1000) {
                        println!("{count} seeds");
                    }
                }
                println!("{count} seeds, from {first} on");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_exact_wish_counts() {
        assert_eq!(Seeds::choose(Some(3), Some(1), Some(9), 5), Seeds::One(3));
        assert_eq!(Seeds::choose(None, Some(1), Some(9), 5), Seeds::Lasting(Duration::from_secs(1)));
        assert_eq!(Seeds::choose(None, None, Some(9), 5), Seeds::First(9));
        assert_eq!(Seeds::choose(None, None, None, 5), Seeds::First(5));
    }

    #[test]
    fn each_seed_is_run_and_a_failure_is_passed_on() {
        let mut seen = Vec::new();
        Seeds::First(3).run("true", |seed| seen.push(seed));
        Seeds::One(7).run("true", |seed| seen.push(seed));
        assert_eq!(seen, [1, 2, 3, 7]);
        let failed = catch_unwind(|| Seeds::First(9).run("true", |seed| assert!(seed < 4, "seed {seed}")));
        assert_eq!(failed.unwrap_err().downcast_ref::<String>().unwrap(), "seed 4");
    }
}
