//! The `tombolo` command: one subcommand a module.
#![forbid(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use clap::{FromArgMatches, Parser, Subcommand};
use failure::Failure;
use tombolo_app::size;

mod asked;
mod cells;
mod control;
mod cp;
mod demo;
mod doctor;
mod drain;
mod duration;
mod failure;
mod help;
mod keygen;
mod lenders;
mod library;
mod local;
mod log;
mod ls;
mod manual;
mod metrics;
mod nearest;
mod net;
mod node;
mod node_control;
mod outage;
mod output;
mod ping;
mod place;
mod ps;
mod report;
mod reproduce;
mod rm;
mod run;
mod security;
mod side_by_side;
mod sim;
mod sockets;
mod status;
mod table;
mod top;
mod watch;
mod ways;
mod which;

/// Linux machines use each other's memory as if it were their own.
///
/// Start a lender, then run any dynamically linked program on its memory:
///
///     tombolo node --listen shm:/tmp/lender --lend 4G &
///     tombolo run --from shm:/tmp/lender --local 256M -- sort big.txt
#[derive(Parser)]
#[command(version, verbatim_doc_comment, arg_required_else_help = true)]
struct Cli {
    /// End when this process, the parent, does: for commands that start others.
    #[arg(long, hide = true, value_name = "PID")]
    end_with: Option<u32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a lender, and real programs on its memory, on this machine.
    Demo(demo::Arguments),
    /// Lend memory to others until interrupted.
    Node(node::Arguments),
    /// Run a program with part of its memory at lenders.
    Run(run::Arguments),
    /// List what runs here: programs on far memory, nodes, uplinks.
    Ps(ps::Arguments),
    /// Show what ps lists again and again, with rates.
    Top(top::Arguments),
    /// List, add or drain the lenders of a program while it runs.
    Lenders(lenders::Arguments),
    /// Ask a node how it is.
    Status(status::Arguments),
    /// Copy a file into a named segment of a node, or back.
    ///
    /// A file whose name begins with shm: or udp: is ./shm:… or ./udp:…. Exit codes: 0 copied, 1 nothing
    /// has that name, 130 interrupted, 125 any other failure.
    Cp(cp::Arguments),
    /// List the named segments of a node.
    Ls(ls::Arguments),
    /// Remove named segments of nodes.
    Rm(rm::Arguments),
    /// Measure round trips to a node.
    Ping(ping::Arguments),
    /// Share a network interface among namespaces, machines and VMs.
    Net(net::Arguments),
    /// Hand TCP connections of one machine over to Unix sockets.
    Sockets(sockets::Arguments),
    /// Simulate machines in virtual time.
    Sim(sim::Arguments),
    /// Reproduce the documents' figures on modelled hardware.
    ///
    /// Exit codes: 0 all is well, 1 a fit or an order fails, or a number is far off, and no note says why.
    Reproduce(reproduce::Arguments),
    /// Make this machine's key, for UDP links to other machines.
    Keygen(keygen::Arguments),
    /// Say what this kernel and these privileges allow.
    Doctor(doctor::Arguments),
    /// Write the manual pages of all commands to a directory.
    Man(manual::ManArguments),
    /// Print the completions of a shell.
    ///
    /// For bash: tombolo completions bash > /usr/share/bash-completion/completions/tombolo
    Completions(manual::CompletionArguments),
    /// Write the library that is loaded into programs to a directory (packages install it).
    #[command(hide = true)]
    Library(library::Arguments),
    /// Keep what a supervisor of programs holds (`run` starts this itself).
    #[command(hide = true)]
    Keep,
    /// Make accesses to the memory of a program that can have no threads (`node` starts this itself).
    #[command(hide = true)]
    HelpAccesses,
    /// Serve and ask a key-value store (`demo` starts this itself).
    #[command(hide = true)]
    DemoStore,
    /// Sum the columns of a table by group (`demo` starts this itself).
    #[command(hide = true)]
    DemoColumns,
}

/// Asks the kernel for SIGTERM at the parent's death, however it dies.
fn end_with(parent: u32) -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    // The parent may have died before the kernel was asked.
    match rustix::process::getppid().map(rustix::process::Pid::as_raw_nonzero) {
        Some(pid) if pid.get() as u32 == parent => Ok(()),
        _ => Err(Failure::new("the process that started this one is gone")),
    }
}

/// The command line; or the exit code, where that asks for help or is wrong.
fn parse() -> Result<Cli, ExitCode> {
    let words: Vec<_> = std::env::args_os().collect();
    let parsed = help::command().try_get_matches_from(&words);
    parsed.and_then(|matches| Cli::from_arg_matches(&matches)).map_err(|error| {
        let error = help::with_suggestion(error, &words);
        let printed = error.print().and_then(|()| std::io::stdout().flush());
        match printed {
            // What was asked for could not be printed.
            Err(reason) if !error.use_stderr() => output::failure(&reason).print(),
            _ => ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2)),
        }
    })
}

fn main() -> ExitCode {
    let cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if let Some(Err(failure)) = cli.end_with.map(end_with) {
        return failure.print();
    }
    let done = match cli.command {
        Command::Demo(arguments) => demo::main(&arguments),
        Command::Node(arguments) => node::main(&arguments),
        Command::Run(arguments) => run::main(arguments),
        Command::Ps(arguments) => ps::main(&arguments),
        Command::Top(arguments) => top::main(&arguments),
        Command::Lenders(arguments) => lenders::main(&arguments),
        Command::Status(arguments) => status::main(&arguments),
        Command::Cp(arguments) => cp::main(&arguments),
        Command::Ls(arguments) => ls::main(&arguments),
        Command::Rm(arguments) => rm::main(&arguments),
        Command::Ping(arguments) => ping::main(&arguments),
        Command::Net(arguments) => net::main(&arguments),
        Command::Sockets(arguments) => sockets::main(arguments),
        Command::Sim(arguments) => sim::main(&arguments),
        Command::Reproduce(arguments) => reproduce::main(&arguments),
        Command::Keygen(arguments) => keygen::main(&arguments),
        Command::Doctor(arguments) => doctor::main(&arguments),
        Command::Man(arguments) => manual::man(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments),
        Command::Library(arguments) => library::main(&arguments),
        Command::Keep => run::keep(),
        Command::HelpAccesses => node::help_accesses(),
        Command::DemoStore => demo::store(),
        Command::DemoColumns => demo::columns(),
    };
    match (done, output::finish()) {
        (Err(failure), _) | (Ok(_), Err(failure)) => failure.print(),
        (Ok(code), Ok(())) => ExitCode::from(code),
    }
}
