//! `tombolo status`: ask a node how it is.

use clap::Args;
use tombolo_node::Address;

use crate::security::SecurityArguments;
use crate::size::Size;
use crate::{Failure, output};

/// Arguments of `tombolo status`.
#[derive(Args)]
pub struct Arguments {
    /// Where the node listens: shm:PATH or udp:HOST:PORT.
    #[arg(value_name = "ADDR")]
    address: Address,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    security: SecurityArguments,
}

/// Prints the node's status.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let security = arguments.security.of(std::slice::from_ref(&arguments.address))?;
    let status = tombolo_node::status_of(&arguments.address, &security)?;
    if arguments.json {
        output::json(&status)?;
        return Ok(0);
    }
    output::line(&format!(
        "node {} (version {}, process {}), up {} s",
        status.name, status.version, status.process_id, status.uptime_s
    ));
    output::line(&format!("lent {} of {}", Size(status.lent_bytes), Size(status.lend_bytes)));
    for borrower in &status.borrowers {
        let process = borrower.process_id.map_or_else(String::new, |process| format!(" (process {process})"));
        output::line(&format!(
            "  {}{process}: {} in {} segment(s)",
            borrower.name,
            Size(borrower.bytes),
            borrower.segments
        ));
    }
    for (name, value) in status.counters.iter().filter(|(_, value)| *value > 0) {
        output::line(&format!("{name:24} {value}"));
    }
    Ok(0)
}
