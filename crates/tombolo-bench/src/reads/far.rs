//! The reader under `tombolo run`, with a lender over shm on the same machine.

use std::path::Path;
use std::process::Command;

use tombolo_app::child;
use tombolo_app::scratch::Scratch;

use super::{Run, reader};
use crate::{Failure, result, this_binary};

/// Far memory beside the area, for what else the reader allocates.
const EXTRA_BYTES: usize = 64 << 20;

/// One run with this binary.
pub fn measure(run: &Run<'_>, binary: &Path) -> Result<reader::Found, Failure> {
    let scratch = Scratch::new("bench-reads")?;
    let lent_bytes = run.arguments.bytes + EXTRA_BYTES;
    let listen = format!("shm:{}", scratch.file("lender").display());
    let mut command = Command::new(binary);
    command.args(["node", "--insecure", "--name", "bench", "--listen", &listen]);
    command.args(["--lend", &(lent_bytes + EXTRA_BYTES).to_string()]);
    let (_lender, address) = child::serve_node(&mut command)?;
    let mut command = Command::new(binary);
    command.args([
        "run",
        "--quiet",
        "--insecure",
        "--from",
        &address,
        "--local",
        &run.arguments.local.to_string(),
    ]);
    command.args(["--remote", &lent_bytes.to_string(), "--"]);
    command.arg(this_binary()?).args(run.reader(run.arguments.seconds));
    result(&mut command, run.limit())
}
