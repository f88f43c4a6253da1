//! `tombolo sockets run`: a program with the library.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;
use tombolo_control::place::{self, Kind};
use tombolo_control::{Client, Trust};
use tombolo_sockets_protocol::{Setting, VARIABLE, rules};

use super::preloaded;
use super::serve::SYSTEM;
use crate::failure::Failure;

/// How long a node may take to begin.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
const BEGIN_PAUSE: Duration = Duration::from_millis(5);
/// Where root's node is.
const OF_SYSTEM: &str = "/run/tombolo";
/// A node that was started here ends when it was idle for so long.
const IDLE: &str = "10m";

/// Arguments of `tombolo sockets run`.
#[derive(Args)]
pub struct Arguments {
    /// Rules that say which sockets stay TCP, as libsdp.conf has them.
    #[arg(long, value_name = "FILE", env = "LIBSDP_CONFIG_FILE")]
    config: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Runs it.
pub fn main(arguments: Arguments) -> Result<u8, Failure> {
    let rules = arguments.config.as_deref().map(checked).transpose()?.unwrap_or_default();
    let library = preloaded::path()?;
    let node = node()?;
    let setting = Setting { socket: node.as_os_str().as_bytes(), rules: rules.as_os_str().as_bytes() };
    let text = setting.to_string();
    if Setting::parse(text.as_bytes()) != Some(setting) || text.len() > 250 {
        return Err(Failure::new(format!(
            "{} and the path of the rules are too long, or have a colon",
            node.display()
        )));
    }
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let (program, words) = arguments.program.split_first().ok_or_else(|| Failure::new("no program"))?;
    let error = Command::new(program).args(words).env("LD_PRELOAD", preload).env(VARIABLE, &text).exec();
    Err(Failure::new(format!("cannot run {}: {error}", Path::new(program).display())))
}

/// A file of rules that can be read, by a path that is right wherever the program goes.
fn checked(path: &Path) -> Result<PathBuf, Failure> {
    let failed = |what: String| Failure::new(format!("rules in {}: {what}", path.display()));
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    if text.len() >= rules::RULES_MAX {
        return Err(failed(format!("more than {} bytes", rules::RULES_MAX - 1)));
    }
    rules::check(&text).map_err(|wrong| failed(format!("line {}: {}", wrong.line, wrong.what)))?;
    path.canonicalize().map_err(|error| failed(error.to_string()))
}

/// Where root's node listens, which hands over connections of all users, or this user's own; one is started where there is none.
fn node() -> Result<PathBuf, Failure> {
    let of_system = Kind::HANDOVER.path(&Path::new(OF_SYSTEM).join(SYSTEM));
    let is_told_where = std::env::var_os(place::VARIABLE).is_some();
    if !is_told_where && Client::connect(&of_system, Trust::Own, BEGIN_PAUSE).is_ok() {
        return Ok(of_system);
    }
    let find = || place::find(Kind::HANDOVER).found.into_iter().next().map(|found| found.path);
    if let Some(path) = find() {
        return Ok(path);
    }
    let own =
        std::env::current_exe().map_err(|error| Failure::new(format!("where is this program? {error}")))?;
    // By a shell that ends at once: the program would find the node among its children.
    let mut command = Command::new("sh");
    command.args(["-c", "\"$0\" \"$@\" </dev/null >/dev/null 2>&1 &"]).arg(own);
    command.args(["sockets", "serve", "--idle", IDLE]).current_dir(OsStr::new("/"));
    command.env_remove("LD_PRELOAD").process_group(0);
    let started = command.status().map_err(|error| Failure::new(format!("cannot start a node: {error}")))?;
    if !started.success() {
        return Err(Failure::new(format!("cannot start a node: {started}")));
    }
    let since = Instant::now();
    loop {
        if let Some(path) = find() {
            return Ok(path);
        }
        if since.elapsed() > BEGIN_TIMEOUT {
            return Err(Failure::new(
                "the node that was started does not begin: `tombolo sockets serve` says why",
            ));
        }
        std::thread::sleep(BEGIN_PAUSE);
    }
}
