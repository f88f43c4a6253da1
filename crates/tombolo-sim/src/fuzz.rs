//! Many seeds of a world, each a scenario.
//!
//! ```
//! use tombolo_sim::fuzz::World;
//!
//! let trace = World::Engine.run(7).expect("nothing goes wrong");
//! assert_eq!(World::Engine.run(7).expect("nothing goes wrong"), trace);
//! ```

use crate::engine;
use crate::kernel::Trace;
use std::any::Any;
use std::panic::catch_unwind;

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// Two engines, wires with faults, and an oracle ([`engine`]).
    Engine,
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
    /// Runs the scenario of a seed. The hook for panics is called where it fails.
    pub fn run(self, seed: u64) -> Result<Trace, Failure> {
        self.run_with(seed, None)
    }

    /// As [`Self::run`], with a defect planted: a seed that shows it fails.
    pub fn run_with(self, seed: u64, plant: Option<engine::Plant>) -> Result<Trace, Failure> {
        let Self::Engine = self;
        let options = engine::scenario::options(seed);
        let run = || engine::scenario::run_with(seed, &options, plant);
        catch_unwind(run).map_err(|panic| Failure {
            seed,
            what: message(&*panic),
            options: format!("{options:#?}"),
        })
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without words").to_owned()
}
