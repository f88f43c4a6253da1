//! `tombolo sockets`: TCP connections between programs of one machine, handed over to pairs of Unix sockets (SDP §4.1.1).

mod preloaded;
mod run;
mod serve;
mod status;

use clap::{Args, Subcommand};
pub use preloaded::library;

use crate::failure::Failure;

/// Arguments of `tombolo sockets`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program whose TCP connections to other such programs of this machine are handed over.
    Run(run::Arguments),
    /// Hand connections over until interrupted.
    Serve(serve::Arguments),
    /// List connections that are handed over, and say why others are not.
    Status(status::Arguments),
}

/// Runs it.
pub fn main(arguments: Arguments) -> Result<u8, Failure> {
    match arguments.command {
        Command::Run(arguments) => run::main(arguments),
        Command::Serve(arguments) => serve::main(&arguments),
        Command::Status(arguments) => status::main(&arguments),
    }
}
