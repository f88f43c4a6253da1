//! How the commands `ps`, `top` and `lenders` reach a `tombolo run` of this user: each run listens at a Unix socket in a
//! private directory, and answers by [`tombolo_control`].
//!
//! The socket is called after the process that the shell has started. A command that finds the socket of a run that is gone removes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tombolo_control::place::{self, Kind};
use tombolo_control::{AskError, Server, Service, Trust, ask_once};
use tombolo_host::unix::UnixError;

use crate::failure::Failure;
use crate::{local, side_by_side};

/// Of what a run can be asked. The first version was a line of text.
const VERSION: u16 = 2;
/// How long a command waits for an answer. A bound, not a measurement: a lender that is added is dialed first,
/// which may take 3 s for each of its addresses.
const TIMEOUT: Duration = Duration::from_secs(20);
/// As [`TIMEOUT`], where nobody is dialed: a run that takes longer is stopped, or answers somebody else.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

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

/// What answers for a run.
struct Answering<F>(F);

impl<F: Fn(Question) -> Answer + Send + Sync + 'static> Service for Answering<F> {
    type Ask = Question;
    type Answer = Answer;
    const VERSION: u16 = VERSION;

    fn answer(&self, ask: Question) -> Answer {
        (self.0)(ask)
    }

    fn refuse(&self, reason: String) -> Answer {
        Answer::Failed(reason)
    }
}

/// Answers questions by `answer`, as long as what is returned lives.
pub fn serve(
    run_pid: u32,
    answer: impl Fn(Question) -> Answer + Send + Sync + 'static,
) -> Result<Server, String> {
    // Runs in different pid namespaces may have the same number.
    let listener = place::listen(&run_pid.to_string(), |stem| place::bind(Kind::RUN, stem))?;
    let path = listener.path().to_owned();
    Server::start(listener, Answering(answer))
        .map_err(|error| format!("cannot listen at {}: {error}", path.display()))
}

/// A run of this user's, or root's, on this machine.
#[derive(Debug, Clone)]
pub struct Run {
    /// The process that the shell has started.
    pub pid: u32,
    path: PathBuf,
}

impl Run {
    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Asks it something.
    pub fn ask(&self, question: &Question) -> Result<Value, String> {
        // How it is, it says at once.
        let timeout = if *question == Question::Status { STATUS_TIMEOUT } else { TIMEOUT };
        self.ask_within(question, timeout)
            .unwrap_or_else(|| Err(format!("the run of process {} has ended", self.pid)))
    }

    /// As [`Run::ask`]. `None`: it has ended.
    pub fn ask_within(&self, question: &Question, timeout: Duration) -> Option<Result<Value, String>> {
        let pid = self.pid;
        Some(match ask_once(&self.path, Trust::Own, VERSION, question, timeout) {
            Ok(Answer::Done(value)) => Ok(value),
            Ok(Answer::Failed(reason)) => Err(reason),
            Err(error) if error.is_gone() => return None,
            // A socket of another kind.
            Err(AskError::Socket(UnixError::Path { errno: Errno::PROTOTYPE, .. })) => {
                Err(format!("the run of process {pid} is of another build of tombolo"))
            }
            Err(error) => Err(format!("the run of process {pid} does not answer: {error}")),
        })
    }
}

/// All runs that are alive, by process.
pub fn runs() -> Vec<Run> {
    let of_place = |place: place::Found| Some(Run { pid: number_before(&place.name)?, path: place.path });
    let mut runs: Vec<_> = local::find(Kind::RUN).into_iter().filter_map(of_place).collect();
    runs.sort_by_key(|run| run.pid);
    runs
}

/// The number that a name begins with: NUMBER or NUMBER-N.
fn number_before(name: &str) -> Option<u32> {
    name.split_once('-').map_or(name, |(pid, _)| pid).parse().ok()
}

/// The run of that name, or whose program has that process number, or which itself has.
pub fn find(named: &str) -> Result<Run, Failure> {
    let mut found = Vec::new();
    let (mut names, mut silent) = (Vec::new(), Vec::new());
    let runs = runs();
    let answers = side_by_side::ask(&runs, |run| run.ask(&Question::Status));
    for (run, answer) in runs.into_iter().zip(answers) {
        let status = match answer {
            Ok(status) => status,
            // Its number is in the name of its socket.
            Err(reason) if named.parse() == Ok(run.pid) => return Err(Failure::new(reason)),
            Err(reason) => {
                silent.push(reason);
                continue;
            }
        };
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
        (0, _) if names.is_empty() && !silent.is_empty() => Err(Failure::new(silent.join("; "))),
        (0, _) if names.is_empty() => Err(Failure::new("no program of this user runs on far memory here")),
        (0, _) => Err(Failure::new(format!(
            "no program on far memory is called `{named}` or has that process number, but {}{}",
            names.join(", "),
            silent.iter().map(|reason| format!("; {reason}")).collect::<String>()
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
    fn a_run_has_the_number_that_its_socket_is_called_after() {
        assert_eq!(["7", "7-2", "x", "7x", ""].map(number_before), [Some(7), Some(7), None, None, None]);
    }

    #[test]
    fn questions_are_as_scripts_know_them() {
        let text = |question| serde_json::to_string(&question).unwrap();
        assert_eq!(text(Question::Status), "\"status\"");
        assert_eq!(text(Question::Add("udp:127.0.0.1:7".into())), r#"{"add":"udp:127.0.0.1:7"}"#);
    }
}
