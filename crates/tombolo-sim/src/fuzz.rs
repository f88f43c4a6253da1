//! Many seeds of a world, each a scenario.
//!
//! ```
//! use tombolo_sim::fuzz::World;
//!
//! let trace = World::Engine.run(7).expect("nothing goes wrong");
//! assert_eq!(World::Engine.run(7).expect("nothing goes wrong"), trace);
//! ```

use crate::kernel::Trace;
use crate::{engine, handover};
use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// Two engines, wires with faults, and an oracle ([`engine`]).
    Engine,
    /// Connections that a node hands over ([`handover`]).
    Handover,
}

/// A seed that shows a defect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed} fails: {what}")]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What is wrong.
    pub what: String,
    /// What the seed has drawn.
    pub options: String,
}

impl World {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Engine, Self::Handover];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Handover => "handover",
        }
    }

    /// Runs the scenario of a seed. The hook for panics is called where it fails.
    pub fn run(self, seed: u64) -> Result<Trace, Failure> {
        match self {
            Self::Engine => run_engine(seed, None),
            Self::Handover => run_handover(seed, None),
        }
    }
}

/// As [`World::run`] of [`World::Engine`], with a defect planted: a seed that shows it fails.
pub fn run_engine(seed: u64, plant: Option<engine::Plant>) -> Result<Trace, Failure> {
    let options = engine::scenario::options(seed);
    caught(seed, &options, || engine::scenario::run_with(seed, &options, plant))
}

/// The same of [`World::Handover`].
pub fn run_handover(seed: u64, plant: Option<handover::Plant>) -> Result<Trace, Failure> {
    caught(seed, &handover::options(seed), || handover::run(seed, plant))
}

fn caught(seed: u64, options: &impl Debug, run: impl FnOnce() -> Trace) -> Result<Trace, Failure> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| Failure {
        seed,
        what: message(&*panic),
        options: format!("{options:#?}"),
    })
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
