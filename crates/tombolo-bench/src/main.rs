//! `tombolo-bench`: Tombolo beside its peers, on one machine, in one run, because ratios travel and
//! absolute figures do not.
//!
//! What measures and what is measured are processes of their own, as in real use: this binary
//! starts itself with hidden subcommands, and the `tombolo` that it is given for nodes and `run`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tombolo_app::child;

mod crowd;
mod faults;
mod forks;
mod net;
mod paging;
mod rdma;
mod reads;
mod sim;
mod start;
mod summary;
mod time;

#[derive(Parser)]
#[command(name = "tombolo-bench", version, about)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Bench {
    /// Page faults and random reads, beside bare userfaultfd and kernel swap on zram.
    Paging(paging::Arguments),
    /// Transfers between programs, beside a cache line's round trip, a copy and bare UDP.
    Rdma(rdma::Arguments),
    /// Transfers to and from memory of programs' own whose pages are absent, beside pinning and touching them before.
    Faults(faults::Arguments),
    /// Two namespaces joined by `tombolo net`, beside veth, a bridge, macvlan and a bare relay.
    Net(net::Arguments),
    /// Uniformly random reads of an area that is larger than local memory.
    Reads(reads::Arguments),
    /// A store whose child writes its contents down while it goes on writing, and one whose child sleeps.
    Forks(forks::Arguments),
    /// Packets and seeds that the simulator runs in a second.
    Sim(sim::Arguments),
    /// How long `tombolo run` takes beyond what it borrows and what its program does.
    Start(start::Arguments),
    /// Run a program, and write its wall time and the machine's CPU time meanwhile to a file.
    Time(time::Arguments),
    /// Small writes to a node whose UDP port is flooded with hellos, beside the same flood to a port that nobody reads.
    Hellos(crowd::HelloArguments),
    /// Small writes to a node while it frees what a borrower had.
    Freeing(crowd::FreeingArguments),
    /// The measured program of `paging`.
    #[command(hide = true)]
    Probe(paging::probe::Arguments),
    /// The process with the fault handlers of bare userfaultfd.
    #[command(hide = true)]
    Handlers {
        /// Where the bench listens.
        socket: PathBuf,
    },
    /// The far end of the bare round trip of `paging`.
    #[command(hide = true)]
    Echo,
    /// The other program of `rdma`.
    #[command(hide = true)]
    RdmaFar(rdma::far::Arguments),
    /// The other program of `faults`.
    #[command(hide = true)]
    FaultsFar(faults::far::Arguments),
    /// The far end of the bare UDP of `rdma`.
    #[command(hide = true)]
    UdpSink(rdma::bare::Arguments),
    /// The bare relay of `net`.
    #[command(hide = true)]
    NetRelay {
        /// The two namespaces.
        namespaces: Vec<String>,
    },
    /// Packets of `net`.
    #[command(hide = true)]
    NetPackets {
        #[command(subcommand)]
        end: net::packets::End,
    },
    /// The measured program of `reads`.
    #[command(hide = true)]
    Reader(reads::reader::Arguments),
    /// The measured program of `forks`.
    #[command(hide = true)]
    ForkingStore(forks::store::Arguments),
    /// Whose memory is freed in `freeing`.
    #[command(hide = true)]
    Borrower(crowd::BorrowerArguments),
    /// The process with the fault handlers of the bare pager of `reads`.
    #[command(hide = true)]
    BareHandlers(reads::bare::HandlerArguments),
}

/// Why a bench, or one of its runs, has no result.
#[derive(Debug)]
pub struct Failure(pub String);

impl Failure {
    /// A failure with this reason.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    /// An error of the bench, with the part of the bench that it ended.
    pub fn during(self, part: &str) -> Self {
        Self(format!("{part}: {}", self.0))
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// This binary, to be started again.
pub fn this_binary() -> Result<PathBuf, Failure> {
    Ok(std::env::current_exe()?)
}

/// Runs a program to its end; it prints one JSON value.
pub fn result<T: DeserializeOwned>(command: &mut Command, limit: Duration) -> Result<T, Failure> {
    serde_json::from_str(&child::run(command, limit)?)
        .map_err(|error| Failure::new(format!("it printed no result: {error}")))
}

/// Prints a value as JSON.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Makes the calling process a member of a control group.
pub fn join_group(procs: &std::path::Path) -> Result<(), Failure> {
    std::fs::write(procs, "0")
        .map_err(|error| Failure::new(format!("cannot join {}: {error}", procs.display())))
}

/// A value as the command line has it.
pub fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn main() -> ExitCode {
    let done = match Cli::parse().bench {
        Bench::Paging(arguments) => paging::main(&arguments),
        Bench::Rdma(arguments) => rdma::main(&arguments),
        Bench::Faults(arguments) => faults::main(&arguments),
        Bench::FaultsFar(arguments) => faults::far::main(&arguments),
        Bench::Reads(arguments) => reads::main(&arguments),
        Bench::Forks(arguments) => forks::main(&arguments),
        Bench::ForkingStore(arguments) => forks::store::main(&arguments),
        Bench::Sim(arguments) => sim::main(&arguments),
        Bench::Start(arguments) => start::main(&arguments),
        Bench::Time(arguments) => time::main(&arguments),
        Bench::Hellos(arguments) => crowd::hellos(&arguments),
        Bench::Freeing(arguments) => crowd::freeing(&arguments),
        Bench::Borrower(arguments) => crowd::borrow(&arguments),
        Bench::Probe(arguments) => paging::probe::main(&arguments),
        Bench::Handlers { socket } => paging::floor::handlers(&socket),
        Bench::Echo => paging::echo::respond(),
        Bench::RdmaFar(arguments) => rdma::far::main(&arguments),
        Bench::UdpSink(arguments) => rdma::bare::sink(&arguments),
        Bench::Net(arguments) => net::main(&arguments),
        Bench::NetRelay { namespaces } => net::relay::main(&namespaces),
        Bench::NetPackets { end } => net::packets::main(&end),
        Bench::Reader(arguments) => reads::reader::main(&arguments),
        Bench::BareHandlers(arguments) => reads::bare::handlers(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(reason)) => {
            eprintln!("tombolo-bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_gives_a_result_or_a_reason() {
        let shell = |script: &str, limit| {
            result::<u32>(Command::new("sh").args(["-c", script]), limit).map_err(|Failure(reason)| reason)
        };
        let limit = Duration::from_secs(60);
        assert_eq!(shell("echo 7", limit), Ok(7));
        let reason = |script, limit| shell(script, limit).unwrap_err();
        assert!(reason("echo one >&2; echo broken >&2; exit 3", limit).contains("broken"));
        assert!(reason("echo words", limit).contains("no result"));
        assert!(reason("sleep 600 & sleep 600", Duration::ZERO).contains("not ended"));
    }
}
