//! A `tombolo node` that lends memory, in a process of its own, and programs that use that memory.

use std::path::{Path, PathBuf};
use std::process::Command;

use tombolo_app::child::{self, Guard};
use tombolo_host::process;

use super::LinkKind;
use crate::{Failure, this_binary};

/// A lender that runs.
pub struct Lender {
    _node: Guard,
    address: String,
    binary: PathBuf,
}

impl Lender {
    /// Starts a lender of `bytes` on the last processor, while programs are on the first. Over shared memory
    /// it listens at `socket`.
    pub fn start(binary: &Path, link: LinkKind, socket: &Path, bytes: u64) -> Result<Self, Failure> {
        let listen = match link {
            LinkKind::Shm => format!("shm:{}", socket.display()),
            LinkKind::Udp => "udp:127.0.0.1:0".to_owned(),
        };
        let mut command = Command::new(binary);
        command.args(["node", "--insecure", "--name", "bench", "--listen", &listen]);
        command.args(["--lend", &bytes.to_string()]);
        let started = std::thread::spawn(move || -> Result<_, Failure> {
            // Children inherit the pin of the thread that starts them.
            if let Some(&processor) = process::processors().last() {
                process::pin_thread(processor)?;
            }
            Ok(child::serve_node(&mut command)?)
        });
        let (node, address) =
            started.join().map_err(|_| Failure::new("the thread that starts the lender failed"))??;
        Ok(Self { _node: node, address, binary: binary.to_owned() })
    }
}

/// `tombolo run` of the probe, with a copy of each page at each of these lenders.
pub fn probe(
    lenders: &[Lender],
    local_bytes: u64,
    remote_bytes: u64,
    arguments: &[String],
) -> Result<Command, Failure> {
    let first = lenders.first().ok_or_else(|| Failure::new("no lender"))?;
    let from: Vec<&str> = lenders.iter().map(|lender| lender.address.as_str()).collect();
    let mut command = Command::new(&first.binary);
    command.args([
        "run",
        "--quiet",
        "--insecure",
        "--from",
        &from.join(","),
        "--local",
        &local_bytes.to_string(),
    ]);
    // Editions before had no copies: one is what they do.
    if lenders.len() > 1 {
        command.args(["--copies", &lenders.len().to_string()]);
    }
    command.args(["--remote", &remote_bytes.to_string(), "--"]);
    command.arg(this_binary()?).arg("probe").args(arguments);
    Ok(command)
}
