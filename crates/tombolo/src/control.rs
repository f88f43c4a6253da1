//! How the commands `ps`, `top` and `lenders` reach a `tombolo run` of this user: each run listens at a Unix socket in a
//! private directory, and answers a line of JSON with one.
//!
//! The socket is called after the process that the shell has started. A command that finds the socket of a run that is gone removes it.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tombolo_host::timing::command as timing;

use crate::failure::Failure;

use crate::local;

/// How long one side waits for the other's line. A bound, not a measurement: a lender that is added is dialed first,
/// which may take 3 s for each of its addresses.
const TIMEOUT: Duration = Duration::from_secs(20);
/// As [`TIMEOUT`], where nobody is dialed: a run that takes longer is stopped, or answers somebody else.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest line.
const LINE_BYTES: u64 = 1 << 20;
const SUFFIX: &str = ".run";

/// What a run can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Question {
    /// How are you?
    Status,
    /// Borrow from this lender, too: the addresses of one node, joined by +.
    Add(String),
    /// Move everything away from this lender.
    Drain(String),
}

/// What it answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// What was asked for.
    Done(Value),
    /// Why not.
    Failed(String),
}

/// The end that answers; it ends with this value.
pub struct Served {
    path: PathBuf,
    stop: Arc<AtomicBool>,
}

impl Served {
    /// Answers questions by `answer`.
    pub fn start(run_pid: u32, answer: impl Fn(Question) -> Answer + Send + 'static) -> Result<Self, String> {
        let directory = local::usable_directory()?;
        let path = directory.join(format!("{run_pid}{SUFFIX}"));
        // Of an earlier process of this number.
        let _ = fs::remove_file(&path);
        let failed = |error: io::Error| format!("cannot listen at {}: {error}", path.display());
        // It has its name when it listens: before, who finds it would take it for that of a dead process.
        let unnamed = path.with_extension("new");
        let _ = fs::remove_file(&unnamed);
        let listener = UnixListener::bind(&unnamed).map_err(failed)?;
        fs::rename(&unnamed, &path).map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("control".into()).spawn(move || {
            for stream in listener.incoming() {
                match stream {
                    _ if stopped.load(Ordering::Relaxed) => return,
                    Ok(stream) => {
                        // The client is told, or has gone.
                        let _ = serve(&stream, &answer);
                    }
                    // No descriptor is left, for instance.
                    Err(_) => std::thread::sleep(timing::CLIENT_ERROR_PAUSE),
                }
            }
        });
        thread.map_err(failed)?;
        Ok(Self { path, stop })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // It waits for a client: this is the last one.
        let _ = UnixStream::connect(&self.path);
        let _ = fs::remove_file(&self.path);
        // The thread is not waited for: a client may be slow.
    }
}

fn serve(stream: &UnixStream, answer: &impl Fn(Question) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(timing::CLIENT_TIMEOUT))?;
    stream.set_write_timeout(Some(timing::CLIENT_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(question) => answer(question),
        Err(error) => Answer::Failed(format!("not a question: {error}")),
    };
    let mut writer = stream;
    writeln!(writer, "{}", serde_json::to_string(&answer)?)
}

/// A run of this user's, or root's, on this machine.
#[derive(Debug, Clone)]
pub struct Run {
    /// The process that the shell has started.
    pub pid: u32,
    path: PathBuf,
}

impl Run {
    /// Asks it something.
    pub fn ask(&self, question: &Question) -> Result<Value, String> {
        // How it is, it says at once.
        let timeout = if *question == Question::Status { STATUS_TIMEOUT } else { TIMEOUT };
        let asked = || -> io::Result<Answer> {
            let mut stream = UnixStream::connect(&self.path)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            writeln!(stream, "{}", serde_json::to_string(question)?)?;
            let mut line = String::new();
            BufReader::new(stream.take(LINE_BYTES)).read_line(&mut line)?;
            Ok(serde_json::from_str(&line)?)
        };
        match asked() {
            Ok(Answer::Done(value)) => Ok(value),
            Ok(Answer::Failed(reason)) => Err(reason),
            Err(error) => Err(format!("the run of process {} does not answer: {error}", self.pid)),
        }
    }
}

/// All runs that are alive, by process.
pub fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for path in local::entries() {
        let pid = path.file_name().and_then(|name| name.to_str()?.strip_suffix(SUFFIX)?.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        match UnixStream::connect(&path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            // It may be busy with another client.
            _ => runs.push(Run { pid, path }),
        }
    }
    runs.sort_by_key(|run| run.pid);
    runs
}

/// The run of that name, or whose program has that process number, or which itself has.
pub fn find(named: &str) -> Result<Run, Failure> {
    let mut found = Vec::new();
    let mut names = Vec::new();
    for run in runs() {
        let Ok(status) = run.ask(&Question::Status) else { continue };
        let (name, pid) = (status["name"].as_str().unwrap_or_default(), status["pid"].as_u64());
        names.push(format!("{name} ({})", pid.unwrap_or_default()));
        let is_meant = name == named
            || named.parse::<u64>().is_ok_and(|number| pid == Some(number) || u64::from(run.pid) == number);
        if is_meant {
            found.push(run);
        }
    }
    match (found.len(), found.pop()) {
        (1, Some(run)) => Ok(run),
        (0, _) if names.is_empty() => Err(Failure::new("no program of this user runs on far memory here")),
        (0, _) => Err(Failure::new(format!(
            "no program on far memory is called `{named}` or has that process number, but {}",
            names.join(", ")
        ))),
        (count, _) => Err(Failure::new(format!(
            "{count} programs on far memory are called `{named}`: give the process number of one of {}",
            names.join(", ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_line_and_rubbish_is_answered() {
        let text = serde_json::to_string(&Question::Add("udp:127.0.0.1:7".into())).unwrap();
        assert_eq!(text, r#"{"add":"udp:127.0.0.1:7"}"#);
        let (client, server) = UnixStream::pair().unwrap();
        let answering = std::thread::spawn(move || {
            serve(&server, &|question| Answer::Done(serde_json::json!({ "asked": question })))
        });
        let mut writer = &client;
        writeln!(writer, "rubbish").unwrap();
        let mut line = String::new();
        BufReader::new(&client).read_line(&mut line).unwrap();
        answering.join().unwrap().unwrap();
        assert!(line.contains("not a question"), "{line}");
    }
}
