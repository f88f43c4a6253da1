//! `tombolo ls`: the named segments of a node.

use clap::Args;
use serde::Serialize;
use tombolo_node::Store;

use crate::asked::NodeArguments;
use crate::failure::Failure;
use crate::size::Size;
use crate::{duration, output, place};

/// Arguments of `tombolo ls`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    node: NodeArguments,
}

/// A named segment, in JSON.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    bytes: u64,
    sha256: String,
    age_s: u64,
}

/// Lists the named segments of a node in the order of their names.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let address = arguments.node.ways("ls")?;
    let ask = &arguments.node.ask;
    let security = ask.security(&address)?;
    let store = address.ask(|address| Store::connect("ls", std::slice::from_ref(address), &security));
    let store = store.map_err(|error| place::failure(error, None, None))?;
    let segments = store.list().map_err(|error| place::failure(error, None, None))?;
    let entries = segments.into_iter().map(|segment| Entry {
        name: segment.name,
        bytes: segment.bytes,
        sha256: segment.checksum.to_string(),
        age_s: segment.age_s,
    });
    if ask.json {
        output::json(&serde_json::json!({ "segments": entries.collect::<Vec<_>>() }))?;
        return Ok(0);
    }
    for entry in entries {
        // Enough of the checksum to tell one from the other; all of it is in the JSON.
        let checksum = entry.sha256.get(..12).unwrap_or_default();
        let size = Size(entry.bytes).to_string();
        output::line(&format!("{size:>10}  {:>12}  {checksum}  {}", ago(entry.age_s), entry.name));
    }
    Ok(0)
}

fn ago(seconds: u64) -> String {
    format!("{} ago", duration::shown_s(seconds))
}
