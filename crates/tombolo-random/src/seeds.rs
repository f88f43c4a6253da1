//! Tests that draw a scenario from each of many seeds.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant, SystemTime};

/// Which seeds such a test runs. The environment decides:
///
/// - `TOMBOLO_SEED=n`: only this seed.
/// - `TOMBOLO_SECONDS=n`: seeds that no run has had before, for this long.
/// - `TOMBOLO_SEEDS=n`: the first n seeds.
/// - `TOMBOLO_FULL=1`: the test's own number of seeds, and new ones for [`FULL_TIME`].
///
/// Otherwise the test's own number of seeds, from 1 on, as far as [`USUAL_TIME`] goes, and a tenth of them, and ten, in any
/// case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// One, to repeat a failure.
    One(u64),
    /// This many, from 1 on.
    First(u64),
    /// New ones for this long.
    Lasting(Duration),
    /// This many, or fewer on a slow machine.
    Usual(u64),
    /// This many, and new ones.
    Full(u64),
}

/// How long a test of many seeds goes on where nothing else is said: all of them together are run at each change.
pub const USUAL_TIME: Duration = Duration::from_secs(2);

/// How long a full test goes on with new seeds.
pub const FULL_TIME: Duration = Duration::from_secs(30);

/// What the environment says of seeds.
#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    seed: Option<u64>,
    seconds: Option<u64>,
    seeds: Option<u64>,
    is_full: bool,
}

impl Wish {
    fn from_environment() -> Self {
        Self {
            seed: number("TOMBOLO_SEED"),
            seconds: amount("TOMBOLO_SECONDS"),
            seeds: amount("TOMBOLO_SEEDS"),
            is_full: is_full(),
        }
    }
}

/// Whether tests are to run at their full sizes: `TOMBOLO_FULL=1`, which `cargo xtask test --full` sets.
pub fn is_full() -> bool {
    is_on("TOMBOLO_FULL")
}

/// Whether a variable of the environment is 1; it may also be 0, or not be there.
///
/// # Panics
///
/// If it is anything else: who writes `true` is not to get less than was meant.
pub fn is_on(variable: &str) -> bool {
    match std::env::var_os(variable) {
        None => false,
        Some(value) if value.is_empty() || value == "0" => false,
        Some(value) if value == "1" => true,
        Some(value) => panic!("{variable}=`{}` is neither 1 nor 0", value.to_string_lossy()),
    }
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

/// A variable of the environment that says how much is to be run.
///
/// # Panics
///
/// If it is set and no number, or 0: a test that runs nothing shows nothing.
pub fn amount(variable: &str) -> Option<u64> {
    let number = number(variable)?;
    assert!(number > 0, "{variable}=0: nothing would be run");
    Some(number)
}

impl Seeds {
    /// As the environment says; otherwise this many.
    pub fn from_environment(usual_count: u64) -> Self {
        Self::choose(Wish::from_environment(), usual_count)
    }

    fn choose(wish: Wish, usual_count: u64) -> Self {
        match wish {
            Wish { seed: Some(seed), .. } => Self::One(seed),
            Wish { seconds: Some(seconds), .. } => Self::Lasting(Duration::from_secs(seconds)),
            Wish { seeds: Some(count), .. } => Self::First(count),
            Wish { is_full: true, .. } => Self::Full(usual_count),
            _ => Self::Usual(usual_count),
        }
    }

    /// Runs the scenario of each seed. Where one panics, prints how to repeat it: `test` is the
    /// command that runs this test, without the seed. Returns how many seeds there were: what many seeds show together, a
    /// few need not.
    pub fn run(self, test: &str, mut scenario: impl FnMut(u64)) -> u64 {
        let mut scenario = |seed| {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| scenario(seed))) {
                eprintln!("seed {seed} failed; to repeat it: TOMBOLO_SEED={seed} {test}");
                resume_unwind(panic);
            }
        };
        match self {
            Self::One(seed) => {
                scenario(seed);
                1
            }
            Self::First(count) => run_first(count, count, Duration::ZERO, &mut scenario),
            Self::Usual(count) => {
                let ran = run_first(count, least_of(count), USUAL_TIME, &mut scenario);
                if ran < count {
                    note(&format!("{ran} of {count}"));
                }
                ran
            }
            Self::Lasting(time) => run_new(time, &mut scenario),
            Self::Full(count) => {
                run_first(count, count, Duration::ZERO, &mut scenario) + run_new(FULL_TIME, &mut scenario)
            }
        }
    }
}

/// The least number of a test's seeds that is run on a slow machine.
fn least_of(count: u64) -> u64 {
    count.div_ceil(10).max(count.min(10))
}

/// A runner shows nothing of a test that passes: it is said in the file that `TOMBOLO_SEEDS_RUN` names.
fn note(ran: &str) {
    let Some(path) = std::env::var_os("TOMBOLO_SEEDS_RUN") else { return };
    let test = std::env::var("NEXTEST_TEST_NAME").unwrap_or_else(|_| "a test".into());
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    // One write a line: others append, too.
    let written = file.and_then(|mut file| file.write_all(format!("{test}\t{ran}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// Seeds from 1 on: `least` of them, and up to `most` while there is time.
fn run_first(most: u64, least: u64, time: Duration, scenario: &mut impl FnMut(u64)) -> u64 {
    let since = Instant::now();
    let seeds = (1..=most).take_while(|seed| *seed <= least || since.elapsed() < time);
    let count = seeds.map(scenario).count() as u64;
    println!("{count} seeds, from 1 on");
    count
}

/// Seeds that no run has had before.
fn run_new(time: Duration, scenario: &mut impl FnMut(u64)) -> u64 {
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
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_exact_wish_counts() {
        let mut wish = Wish { seed: Some(3), seconds: Some(1), seeds: Some(9), is_full: true };
        assert_eq!(Seeds::choose(wish, 5), Seeds::One(3));
        wish.seed = None;
        assert_eq!(Seeds::choose(wish, 5), Seeds::Lasting(Duration::from_secs(1)));
        wish.seconds = None;
        assert_eq!(Seeds::choose(wish, 5), Seeds::First(9));
        wish.seeds = None;
        assert_eq!(Seeds::choose(wish, 5), Seeds::Full(5));
        assert_eq!(Seeds::choose(Wish::default(), 5), Seeds::Usual(5));
    }

    #[test]
    fn on_a_slow_machine_a_tenth_of_the_seeds_is_run() {
        let mut seen = Vec::new();
        run_first(25, 3, Duration::ZERO, &mut |seed| seen.push(seed));
        assert_eq!(seen, [1, 2, 3]);
        run_first(25, 3, Duration::MAX, &mut |seed| seen.push(seed));
        assert_eq!(seen.len(), 3 + 25);
        assert_eq!([1, 4, 10, 25, 300].map(least_of), [1, 4, 10, 10, 30]);
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
