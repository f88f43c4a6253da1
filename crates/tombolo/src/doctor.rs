//! `tombolo doctor`: what this kernel and these privileges allow.

use clap::Args;
use serde::Serialize;
use tombolo_host::uffd::{self, Userfaultfd};

use crate::failure::Failure;

use crate::output;

mod users;

/// Arguments of `tombolo doctor`.
#[derive(Args)]
pub struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Ok,
    /// It works, but less well.
    Limited,
    Missing,
}

impl Outcome {
    const fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "MISSING",
        }
    }
}

/// Below this limit of locked memory `doctor` advises a higher one.
const LOCK_BYTES_ENOUGH: u64 = 256 << 20;

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    outcome: Outcome,
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

const USERFAULTFD_ADVICE: &str = "run as root, or let this user's programs have their faults served: \
     `sudo chmod 666 /dev/userfaultfd` (or give a group access)";

/// What gives this very file the capability.
fn fork_advice() -> String {
    let own = std::env::current_exe().unwrap_or_else(|_| "tombolo".into());
    format!(
        "run as root, or `sudo setcap cap_sys_ptrace+ep {}`: without it a forked child would not keep its far memory",
        own.display()
    )
}

fn check_userfaultfd() -> (Check, Option<Userfaultfd>) {
    match Userfaultfd::as_an_executed_program() {
        Ok(made) => {
            let detail = "page faults of programs and of their system calls".into();
            (Check { name: "userfaultfd", outcome: Outcome::Ok, detail, advice: None }, Some(made))
        }
        Err(error) => {
            let advice = Some(USERFAULTFD_ADVICE.to_owned());
            (
                Check { name: "userfaultfd", outcome: Outcome::Missing, detail: error.to_string(), advice },
                None,
            )
        }
    }
}

/// Whether forks are reported; what was refused says why not.
fn check_forks(refused: Option<std::io::Error>) -> Check {
    let (outcome, detail, advice) = match refused {
        None => (Outcome::Ok, "forked children keep their memory".to_owned(), None),
        Some(error) => (Outcome::Missing, error.to_string(), Some(fork_advice())),
    };
    Check { name: "fork events", outcome, detail, advice }
}

fn check_features(made: Option<Userfaultfd>) -> Vec<Check> {
    let Some(made) = made else {
        // Both are said at once. The kernel reports forks to a process that has this capability.
        let refused = (!uffd::has_ptrace_capability()).then(|| std::io::ErrorKind::PermissionDenied.into());
        return vec![check_forks(refused)];
    };
    let fork = check_forks(made.enable(uffd::FEATURE_EVENT_FORK).err());
    // A descriptor is enabled once; the list of features needs a fresh one.
    let features = Userfaultfd::for_this_process().and_then(|made| made.enable(0)).unwrap_or(0);
    let needed = [
        ("write protection", uffd::FEATURE_WRITE_PROTECT),
        ("poison", uffd::FEATURE_POISON),
        ("thread ids", uffd::FEATURE_THREAD_ID),
    ];
    let mut checks = vec![fork];
    for (name, bit) in needed {
        let there = features & bit != 0;
        checks.push(Check {
            name,
            outcome: if there { Outcome::Ok } else { Outcome::Missing },
            detail: if there { "there" } else { "this kernel has not got it" }.into(),
            advice: (!there).then(|| "use Linux 6.6 or later".to_owned()),
        });
    }
    let there = features & uffd::FEATURE_MOVE != 0;
    checks.push(Check {
        name: "page moves",
        outcome: if there { Outcome::Ok } else { Outcome::Limited },
        detail: if there { "there" } else { "this kernel has not got them" }.into(),
        advice: (!there).then(|| {
            "use Linux 6.8 or later for programs that read into their memory with O_DIRECT or io_uring"
                .to_owned()
        }),
    });
    checks
}

fn check_processors() -> Check {
    let count = tombolo_host::process::processors().len();
    Check {
        name: "processors",
        outcome: if count > 1 { Outcome::Ok } else { Outcome::Limited },
        detail: format!("{count}: a fault handler on each"),
        advice: (count < 2).then(|| "with one processor eviction takes time from the program".to_owned()),
    }
}

fn check_lock() -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let root = rustix::process::geteuid().is_root();
    let enough = root || limit.is_none_or(|bytes| bytes >= LOCK_BYTES_ENOUGH);
    Check {
        name: "locked memory",
        outcome: if enough { Outcome::Ok } else { Outcome::Limited },
        detail: limit.map_or_else(|| "unlimited".into(), |bytes| format!("limit {} KiB", bytes / 1024)),
        advice: (!enough)
            .then(|| "raise `ulimit -l`: the supervisor should not be swapped out itself".to_owned()),
    }
}

fn checks() -> Vec<Check> {
    let (userfaultfd, made) = check_userfaultfd();
    let mut checks = vec![userfaultfd];
    checks.extend(check_features(made));
    checks.push(check_processors());
    checks.push(check_lock());
    checks
}

/// Prints what is there and what is missing; exit code 1 if programs cannot be run.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let checks = checks();
    let able = checks.iter().all(|check| check.outcome != Outcome::Missing);
    if arguments.json {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let users = users::needs();
        output::json(
            &serde_json::json!({ "kernel": kernel, "paging": able, "checks": checks, "users": users }),
        )?;
        return Ok(u8::from(!able));
    }
    for check in &checks {
        output::line(&format!("{:7}  {:18} {}", check.outcome.mark(), check.name, check.detail));
        if let Some(advice) = &check.advice {
            output::indented("         -> ", advice);
        }
    }
    output::line(if able {
        "programs can be run on far memory"
    } else {
        "programs cannot be run on far memory; lending works without any of this"
    });
    output::line("\nfor users other than root:");
    for need in users::needs() {
        output::line(&format!("{:7}  {:18} {}", need.outcome.mark(), need.name, need.detail));
        // To be copied: a command is one line.
        need.commands.iter().for_each(|command| output::line(&format!("           {command}")));
    }
    output::line("");
    output::paragraph(
        "not served: programs that cannot take a preloaded library (static, musl, 32 bits, set-user-id), and memory mapped without libc",
    );
    Ok(u8::from(!able))
}

/// Fails with advice where `tombolo run` could not serve a program.
pub fn require_paging() -> Result<(), Failure> {
    match checks().into_iter().find(|check| check.outcome == Outcome::Missing) {
        None => Ok(()),
        Some(check) => Err(Failure::new(format!(
            "{}: {}; {} (see `tombolo doctor`)",
            check.name,
            check.detail,
            check.advice.unwrap_or_else(|| "this kernel is too old".into())
        ))),
    }
}
