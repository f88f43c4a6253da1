//! `tombolo lenders`: the lenders of a program that runs on far memory, which come and go while it runs.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::control::{self, Question};
use crate::failure::Failure;
use crate::table::{self, Column};
use crate::watch::word;
use crate::which::Which;
use crate::{cells, output};

const COLUMNS: [Column; 5] = [
    Column::name("NAME"),
    Column::name("STATE"),
    Column::figure("BORROWED"),
    Column::figure("USED"),
    Column::rest("ADDRESS"),
];

/// Arguments of `tombolo lenders`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// Which program is meant.
#[derive(Args)]
struct Program {
    /// The name of the run (`tombolo run --name`; unless given, that of the program), or the number of its process.
    #[arg(value_name = "NAME|PID")]
    program: String,
    /// Print JSON, and nothing else.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// List them, and what each has.
    Ls(Program),
    /// Borrow from another node, too.
    Add {
        #[command(flatten)]
        program: Program,
        /// Where it listens, or its name on this machine; several addresses of it are joined by +.
        #[arg(value_name = "NAME|ADDR[+ADDR...]")]
        lender: Which,
    },
    /// Move everything away from a lender. It goes on while the program runs; `ls` shows how far it is. One that is away is
    /// given up: it is not dialed any more.
    Drain {
        #[command(flatten)]
        program: Program,
        /// The lender's name or address, as `ls` shows them.
        #[arg(value_name = "NAME|ADDR")]
        lender: String,
    },
}

/// Lists, adds or drains.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let (program, question) = match &arguments.command {
        Command::Ls(program) => (program, Question::Status),
        Command::Add { program, lender } => (program, Question::Add(lender.ways()?.to_string())),
        Command::Drain { program, lender } => (program, Question::Drain(lender.clone())),
    };
    let run = control::find(&program.program)?;
    let answer = run.ask(&question).map_err(Failure::new)?;
    let lenders = if question == Question::Status {
        answer["far"]["lenders"].clone()
    } else {
        run.ask(&Question::Status).map_err(Failure::new)?["far"]["lenders"].clone()
    };
    if program.json {
        output::json(&json!({ "lenders": lenders }))?;
        return Ok(0);
    }
    let row = |lender| [cells::lender(lender), vec![word(lender, "address").to_owned()]].concat();
    let rows: Vec<Vec<String>> = lenders.as_array().into_iter().flatten().map(row).collect();
    table::lines(&COLUMNS, &rows, table::width()).iter().for_each(|line| output::line(line));
    Ok(0)
}
