//! The programs of the demo.

use std::io;

use clap::ValueEnum;
use serde::Serialize;
use tombolo_app::scratch::Scratch;

use super::compare::{Demo, Place};
use crate::failure::Failure;
use crate::size::Size;

mod columns;
mod python;
mod sort;
mod store;

pub use columns::columns;
pub use store::store;

/// A program of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Program {
    /// A key-value store; a client asks for some keys more often than for others.
    Store,
    /// Sums by group over columns of a table.
    Columns,
    /// Python: dictionaries of strings.
    Python,
    /// GNU sort, which is hard for any paging.
    Sort,
}

/// What a run came to.
pub struct Ran {
    /// How long its work took.
    pub seconds: f64,
    /// What it has computed; `None`: that was not kept.
    pub output: Option<String>,
}

/// A program that can be run in any place.
pub trait Workload {
    /// One word.
    fn name(&self) -> &'static str;
    /// What it does, in a few words.
    fn about(&self) -> &'static str;
    /// Whether the program writes its output elsewhere in a memory cgroup; then times there are compared with [`Place::PlainBesideGroup`].
    fn has_other_output_in_group(&self) -> bool {
        false
    }
    /// Runs it.
    fn run(&self, demo: &Demo<'_>, place: &Place<'_>) -> Result<Ran, Failure>;
}

impl Program {
    /// Makes what the program needs. The inner error: why it is left out.
    pub fn prepare(self, directory: &Scratch) -> Result<Result<Box<dyn Workload>, String>, Failure> {
        Ok(match self {
            Self::Store => Ok(Box::new(store::Store)),
            Self::Columns => Ok(Box::new(columns::Columns)),
            Self::Python => python::Python::find().map(|found| Box::new(found) as Box<dyn Workload>),
            Self::Sort => match sort::Sort::find() {
                Ok(()) => Ok(Box::new(sort::Sort::prepare(directory)?)),
                Err(reason) => Err(reason),
            },
        })
    }
}

/// A failure to write where the demo works.
fn disk(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::Interrupted {
        return super::child::interrupted();
    }
    let place = std::env::temp_dir();
    Failure::new(format!(
        "{}: {error}; the demo needs {} there (TMPDIR names another place)",
        place.display(),
        Size(3 * sort::INPUT_BYTES)
    ))
}

/// Runs a part of this binary, which prints how long its work took and what it has computed.
fn run_own(demo: &Demo<'_>, place: &Place<'_>, task: &'static str) -> Result<Ran, Failure> {
    let mut command = demo.command(place, demo.binary.as_os_str())?;
    let child = super::Child::start(command.arg(task), task, demo.directory)?;
    let text = child.output(&super::STOP, || demo.progress.tick(), io::read_to_string)?;
    let wrong = || Failure::new(format!("{task} printed `{}`", text.trim()));
    let (seconds, output) = text.trim().split_once(' ').ok_or_else(wrong)?;
    Ok(Ran { seconds: seconds.parse().map_err(|_| wrong())?, output: Some(output.to_owned()) })
}
