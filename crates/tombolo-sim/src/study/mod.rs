//! Studies: platforms under a workload, and what comes of it.
//!
//! A [`Scenario`] names a platform, who is connected to whom, what they do and what goes wrong. [`run`] gives an [`Outcome`]: every value
//! under a name. Equal scenarios have equal outcomes.
//!
//! ```
//! use tombolo_sim::study::{Scenario, run};
//!
//! let scenario = Scenario::parse(
//!     r#"
//!     platform = "exanest-qfdb"
//!     [topology]
//!     kind = "ring"
//!     nodes = 4
//!     [workload]
//!     kind = "incast"
//!     bytes = 4096
//!     "#,
//!     &[],
//! )?;
//! let outcome = run(&scenario, false)?;
//! assert_eq!(outcome.value("transfers"), Some(3.0));
//! # Ok::<(), tombolo_sim::study::StudyError>(())
//! ```

mod network;
mod outcome;
mod scenario;
mod sharing;

pub use outcome::{Outcome, Track};
pub use scenario::{EXAMPLES, Interface, Pages, Scenario, TopologyKind, Workload, WorkloadKind};

use crate::platform::PlatformError;

/// Why a scenario cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StudyError {
    /// The file is no TOML, or has a field that nobody knows.
    #[error("the scenario: {0}")]
    Unreadable(String),
    /// A key that is to be set is none.
    #[error("{key} = {value}: {what}")]
    Key {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What is wrong.
        what: String,
    },
    /// There is no such platform: its name, and those that there are.
    #[error("there is no platform {0}: there are {1}")]
    NoPlatform(String, String),
    /// Something in it cannot be.
    #[error("{0}")]
    Impossible(String),
    /// The platform.
    #[error(transparent)]
    Platform(#[from] PlatformError),
}

/// Runs a scenario. `keeps_timeline`: what parts do when is kept as well.
///
/// # Errors
/// [`StudyError`]
pub fn run(scenario: &Scenario, keeps_timeline: bool) -> Result<Outcome, StudyError> {
    let platform = scenario.platform()?;
    match (&scenario.topology, &scenario.workload, &scenario.interface) {
        (Some(topology), Some(workload), None) => {
            network::run(&platform, scenario, topology, workload, keeps_timeline)
        }
        (None, None, Some(_)) if keeps_timeline => {
            Err(StudyError::Impossible("a timeline is kept of scenarios with [topology] only".into()))
        }
        (None, None, Some(interface)) => sharing::run(&platform, interface),
        // `Scenario::parse` has refused it.
        _ => {
            Err(StudyError::Impossible("a scenario without [topology] and [workload], or [interface]".into()))
        }
    }
}
