//! The other processes of a bench: a private directory, a lender, programs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde::de::DeserializeOwned;
use tombolo_host::process;

use super::LinkKind;
use crate::Failure;

/// A directory for sockets, removed when dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new one.
    pub fn new() -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("tombolo-bench-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A child that ends with its owner.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This binary, to be started again.
pub fn itself() -> Result<Command, Failure> {
    Ok(Command::new(std::env::current_exe()?))
}

/// Starts a child and reads the first line it prints.
pub fn start(command: &mut Command) -> Result<(Guard, String), Failure> {
    let mut child = Guard(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
    let mut line = String::new();
    if let Some(output) = child.0.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim().is_empty() {
        return Err(Failure::new(format!("{command:?} did not start")));
    }
    Ok((child, line.trim().to_owned()))
}

/// Runs a child to its end; it prints JSON.
pub fn result<T: DeserializeOwned>(command: &mut Command) -> Result<T, Failure> {
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(format!("a measured program failed ({}): {}", output.status, said.trim())));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// A `tombolo node` in a process of its own.
pub struct Lender {
    _child: Guard,
    address: String,
}

impl Lender {
    /// Starts one that lends so many bytes, on the last processor, while programs are on the first.
    pub fn start(link: LinkKind, scratch: &Path, bytes: u64) -> Result<Self, Failure> {
        let listen = match link {
            LinkKind::Shm => format!("shm:{}", scratch.display()),
            LinkKind::Udp => "udp:127.0.0.1:0".to_owned(),
        };
        let mut command = itself()?;
        command.args([
            "node",
            "--insecure",
            "--name",
            "bench",
            "--listen",
            &listen,
            "--lend",
            &bytes.to_string(),
        ]);
        let started = std::thread::spawn(move || {
            // Children inherit the pin.
            if let Some(&processor) = process::processors().last() {
                process::pin_thread(processor)?;
            }
            start(&mut command)
        });
        let (child, line) = started.join().map_err(|_| Failure::new("the lender's starter failed"))??;
        let address = line.rsplit(" at ").next().unwrap_or_default().to_owned();
        Ok(Self { _child: child, address })
    }

    /// `tombolo run` of this binary's probe, on this lender's memory.
    pub fn probe(
        &self,
        local_bytes: u64,
        remote_bytes: u64,
        arguments: &[String],
    ) -> Result<Command, Failure> {
        let mut command = itself()?;
        command.args(["run", "--insecure", "--from", &self.address, "--local", &local_bytes.to_string()]);
        command.args(["--remote", &remote_bytes.to_string(), "--"]);
        command.arg(std::env::current_exe()?).args(["bench", "probe"]).args(arguments);
        Ok(command)
    }
}
