//! `tombolo-bench`: races between Tombolo and its peers, on one machine, in one run.
//!
//! What measures and what is measured are processes of their own, as in real use: this binary
//! starts itself with hidden subcommands.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod crowd;
mod processes;
mod reads;
mod size;
mod start;
mod time;

#[derive(Parser)]
#[command(name = "tombolo-bench", version, about)]
struct Cli {
    #[command(subcommand)]
    race: Race,
}

#[derive(Subcommand)]
enum Race {
    /// Uniformly random reads of an area that is larger than local memory.
    Reads(reads::Arguments),
    /// How long `tombolo run` takes beyond what it borrows and what its program does.
    Start(start::Arguments),
    /// Run a program, and write its wall time and the machine's CPU time meanwhile to a file.
    Time(time::Arguments),
    /// Small writes to a node whose UDP port is flooded with hellos, beside the same flood to a port that nobody reads.
    Hellos(crowd::HelloArguments),
    /// Small writes to a node while it frees what a borrower had.
    Freeing(crowd::FreeingArguments),
    /// The measured program of `reads`.
    #[command(hide = true)]
    Reader(reads::reader::Arguments),
    /// The process with the fault handlers of the bare pager.
    #[command(hide = true)]
    BareHandlers(reads::bare::HandlerArguments),
}

/// Why a race, or one of its runs, has no result.
#[derive(Debug)]
pub struct Failure(pub String);

impl Failure {
    /// A failure with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

fn main() -> ExitCode {
    let done = match Cli::parse().race {
        Race::Reads(arguments) => reads::main(&arguments),
        Race::Start(arguments) => start::main(&arguments),
        Race::Time(arguments) => time::main(&arguments),
        Race::Hellos(arguments) => crowd::hellos(&arguments),
        Race::Freeing(arguments) => crowd::freeing(&arguments),
        Race::Reader(arguments) => reads::reader::main(&arguments),
        Race::BareHandlers(arguments) => reads::bare::handlers(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(reason)) => {
            eprintln!("tombolo-bench: {reason}");
            ExitCode::FAILURE
        }
    }
}
