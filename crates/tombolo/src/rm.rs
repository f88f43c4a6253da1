//! `tombolo rm`: takes names away from segments of a node, and with them the segments.

use clap::Args;
use tombolo_node::Store;

use crate::failure::Failure;
use crate::place::{self, SegmentPlace};
use crate::security::SecurityArguments;

/// Arguments of `tombolo rm`.
#[derive(Args)]
pub struct Arguments {
    /// What to remove. Who reads it at this moment can read on.
    #[arg(value_name = "NODE|ADDR[+ADDR...]:NAME", required = true)]
    places: Vec<SegmentPlace>,
    #[command(flatten)]
    security: SecurityArguments,
}

/// Removes one after the other, up to the first that fails.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    for SegmentPlace { node, name } in &arguments.places {
        let ways = node.ways()?;
        let security = arguments.security.of(&ways.to_vec())?;
        let store = ways.ask(|address| Store::connect("rm", std::slice::from_ref(address), &security));
        let store = store.map_err(|error| place::failure(error, None, None))?;
        store.delete(name).map_err(|error| place::failure(error, Some(&store), None))?;
    }
    Ok(0)
}
