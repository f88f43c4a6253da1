//! `tombolo bench`: what an access to far memory costs, beside what it could cost.
//!
//! Everything is measured in one run on one machine, because ratios travel and
//! absolute figures do not. What measures and what is measured are processes of
//! their own, as in real use: this binary starts itself with hidden subcommands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::Failure;

mod children;
mod contents;
mod echo;
mod floor;
mod paging;
mod probe;
mod rdma;
mod summary;
mod table;
mod zram;

/// Arguments of `tombolo bench`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Page faults and random reads, beside bare userfaultfd and kernel swap on zram.
    Paging(PagingArguments),
    /// Transfers between programs, beside a cache line's round trip and a copy.
    Rdma(rdma::Arguments),
    /// The measured program.
    #[command(hide = true)]
    Probe(probe::Arguments),
    /// Fault handlers of the bare userfaultfd.
    #[command(hide = true)]
    Handlers {
        /// Where the bench listens.
        socket: PathBuf,
    },
    /// The far end of the bare round trip.
    #[command(hide = true)]
    Echo,
    /// The other program of `rdma`.
    #[command(hide = true)]
    RdmaFar(rdma::far::Arguments),
    /// The far end of bare UDP.
    #[command(hide = true)]
    UdpSink(rdma::bare::Arguments),
}

/// Arguments of `tombolo bench paging`.
#[derive(Args)]
pub struct PagingArguments {
    /// Only this link; both unless given.
    #[arg(long)]
    link: Option<LinkKind>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Which link to the lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LinkKind {
    /// Shared memory.
    Shm,
    /// UDP over loopback.
    Udp,
}

/// Runs the bench, or the part of it that this process is.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    match &arguments.what {
        What::Paging(arguments) => paging::main(arguments.link, arguments.json),
        What::Rdma(arguments) => rdma::main(arguments),
        What::Probe(arguments) => probe::main(arguments),
        What::Handlers { socket } => floor::handlers(socket),
        What::Echo => echo::respond(),
        What::RdmaFar(arguments) => rdma::far::main(arguments),
        What::UdpSink(arguments) => rdma::bare::sink(arguments),
    }
}
