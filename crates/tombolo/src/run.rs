//! `tombolo run`: a program with part of its memory at lenders.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use clap::Args;
use serde_json::Value;
use tombolo_host::split::InheritedDescriptors;
use tombolo_node::{Address, DeadWindows, FarMemory, FarOptions, FarStore};
use tombolo_pager::fitness::{self, Kind, Reason};
use tombolo_pager::front::{self, Side};
use tombolo_pager::{HANDLERS_MAX, LOCAL_LEAST_BYTES, Monitor, Options, RunError};

use crate::control::{self, Answer, Question};
use crate::failure::Failure;
use crate::outage::OutageArguments;
use crate::security::SecurityArguments;
use crate::size::Size;
use crate::ways::{self, Ways};
use crate::which::Which;
use crate::{doctor, library, local, log, metrics, output, report};

/// Arguments of `tombolo run`.
#[derive(Args)]
pub struct Arguments {
    /// Lenders: shm:PATH or udp:HOST:PORT, or the name of a node that this user runs on this machine, several
    /// separated by commas. Several UDP addresses of one
    /// lender, joined by +, are all used at once, and the others carry on when one fails. Not needed where only one node of this
    /// user runs on this machine.
    #[arg(long, value_name = "NAME|ADDR[+ADDR...][,...]", value_delimiter = ',')]
    from: Vec<Which>,
    /// Most memory of the program's heap and large mappings that stays local.
    #[arg(long, value_name = "SIZE")]
    local: Size,
    /// Most far memory that the program may use; unless given, as much as the lenders have. It is borrowed as it is
    /// needed.
    #[arg(long, value_name = "SIZE")]
    remote: Option<Size>,
    /// At how many lenders each far page is kept: with 2, the end of one lender loses nothing.
    #[arg(long, value_name = "1|2", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    /// What `tombolo ps` calls the run; unless given, the program's name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Give up the memory of a dead lender on this machine at once, instead of reading what it holds until that is
    /// copied elsewhere.
    #[arg(long)]
    give_up_dead: bool,
    /// Anonymous mappings of at least this size are far.
    #[arg(long, value_name = "SIZE", default_value = "128K")]
    minimum: Size,
    /// Write what happened to this file, as JSON.
    #[arg(long, value_name = "FILE.json")]
    report: Option<PathBuf>,
    /// Say nothing at the end; else one line tells what happened.
    #[arg(long)]
    quiet: bool,
    /// How many threads serve faults; unless given, one a processor. For tests and benches: it shows on few processors what many
    /// would pay.
    #[arg(long, hide = true, value_name = "COUNT", value_parser = clap::value_parser!(u8).range(2..=HANDLERS_MAX as i64))]
    handlers: Option<u8>,
    /// Serve metrics for Prometheus by HTTP there while the program runs; with port 0, at any free port. Nobody
    /// is asked for a password: whoever reaches that address sees names, addresses and figures.
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    outage: OutageArguments,
    #[command(flatten)]
    security: SecurityArguments,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs the program; its exit status is this command's.
pub fn main(arguments: Arguments) -> Result<u8, Failure> {
    let front = match front::split_off() {
        Ok(Side::Front(code)) => return Ok(code),
        Ok(Side::Supervisor(front)) => front,
        Err(error) => return Err(Failure::new(format!("cannot start the supervisor: {error}"))),
    };
    let mut command = arguments.command.into_iter();
    let program = command.next().ok_or_else(|| Failure::new("no program given"))?;
    check_program(&program)?;
    if arguments.local.0 < LOCAL_LEAST_BYTES {
        return Err(RunError::LimitTooSmall(arguments.local.0).into());
    }
    let from: Vec<Ways> = match arguments.from.is_empty() {
        true => vec![local::only_node("run --from")?.address().into()],
        false => arguments.from.iter().map(Which::ways).collect::<Result<_, _>>()?,
    };
    ways::check_lenders(&from)?;
    doctor::require_paging()?;
    let lenders: Vec<Vec<Address>> = from.iter().map(Ways::to_vec).collect();
    let security = arguments.security.of(&lenders.concat())?;
    if let Some(report) = &arguments.report {
        // A report that cannot be written fails the command now, and not after hours.
        fs::write(report, "{}\n").map_err(|error| {
            Failure::new(format!("cannot write the report {}: {error}", report.display()))
        })?;
    }
    let own_name = Path::new(&program).file_name().unwrap_or(&program).to_string_lossy().into_owned();
    let run_name = tombolo_node::harmless_name(&arguments.name.unwrap_or(own_name));
    let (name, said_name) = (format!("run {run_name}"), run_name.clone());
    let since = Instant::now();
    let far = FarStore::new(&FarOptions {
        name: &name,
        lenders: &lenders,
        security: &security,
        most_bytes: arguments.remote.map(|size| size.0),
        copies: arguments.copies,
        outage: arguments.outage.outage(),
        dead_windows: if arguments.give_up_dead { DeadWindows::GiveUp } else { DeadWindows::Read },
    })?;
    let connecting = since.elapsed();
    // The threads that serve the program say what happens, and the program waits for them.
    let (notify, notices) = log::notices()?;
    let say_last = notify.clone();
    let monitor: Arc<OnceLock<Monitor>> = Arc::default();
    if let Some(address) = arguments.metrics {
        let (monitor, far, name) = (monitor.clone(), far.clone(), run_name.clone());
        let at = metrics::serve(address, move || metrics::of_run(&name, monitor.get(), &far.status()))?;
        output::say(&format!("metrics are at http://{at}/metrics"));
    }
    let run_pid = front.pid();
    let options = Options {
        front,
        program,
        arguments: command.collect(),
        local_bytes: arguments.local.0,
        minimum_bytes: arguments.minimum.0,
        handlers: arguments.handlers.map(usize::from),
        library: library::library(),
        keeper: keeper()?,
        notify: Box::new(notify),
        started: Some(Box::new({
            let known = monitor.clone();
            move |monitor| {
                let _ = known.set(monitor);
            }
        })),
    };
    // Where nobody can ask, the program runs nevertheless.
    let served = match control::serve(run_pid, answering((run_name, run_pid), far.clone(), monitor)) {
        Ok(served) => Some(served),
        Err(reason) => {
            output::say(&format!("`tombolo ps` does not see this run: {reason}"));
            None
        }
    };
    let finished = tombolo_pager::run(options, far.clone());
    drop(served);
    far.release();
    if let Ok(finished) = &finished
        && !arguments.quiet
    {
        say_last(&report::summary(&said_name, finished));
    }
    drop(notices);
    let finished = finished?;
    if let Some(path) = arguments.report {
        let text = serde_json::to_string_pretty(&report::of_finished(&finished, connecting))?;
        // The program has run: its status is what is asked for, with a report or without.
        if let Err(error) = write_report(&path, &(text + "\n")) {
            let code = finished.exit_code();
            output::say(&format!(
                "cannot write the report {}: {error}; the program's exit status was {code}",
                path.display()
            ));
        }
    }
    Ok(finished.exit_code())
}

/// Writes a report as a whole: where the disk is full, what was there stays.
fn write_report(path: &Path, text: &str) -> io::Result<()> {
    let found = match fs::metadata(path) {
        Ok(found) if found.is_file() => found,
        // A pipe or a device; or the program has removed it.
        _ => return fs::write(path, text),
    };
    let meant = fs::canonicalize(path)?;
    let beside = meant.with_file_name(format!(".tombolo-report-{}", std::process::id()));
    let opened = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside);
    let Ok(mut file) = opened else {
        // The file may be written to, and its directory not.
        return fs::write(&meant, text);
    };
    let written = file
        .write_all(text.as_bytes())
        .and_then(|()| file.set_permissions(found.permissions()))
        .and_then(|()| fs::rename(&beside, &meant));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// The command that starts a keeper: this binary.
fn keeper() -> Result<std::process::Command, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this binary, to start its keeper: {error}")))?;
    let mut command = std::process::Command::new(own);
    command.arg("keep");
    Ok(command)
}

/// Runs as the keeper until the supervisor at the other end of standard input is gone.
pub fn keep() -> Result<u8, Failure> {
    let inherited = InheritedDescriptors::new()?;
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0)
        .map_err(|error| Failure::new(format!("cannot use standard input: {error}")))?;
    inherited.give_up(true)?;
    tombolo_pager::keep(&socket)
        .map_err(|error| Failure::new(format!("only `tombolo run` starts a keeper ({error})")))?;
    Ok(0)
}

/// Answers what `ps`, `top` and `lenders` ask of a run.
fn answering(
    (name, run_pid): (String, u32),
    far: Arc<FarStore>,
    monitor: Arc<OnceLock<Monitor>>,
) -> impl Fn(Question) -> Answer + Send + Sync + 'static {
    move |question| {
        let failed = |error: &dyn std::fmt::Display| Answer::Failed(error.to_string());
        match question {
            Question::Status => {
                Answer::Done(report::of_running(&name, run_pid, monitor.get(), &far.status()))
            }
            Question::Add(ways) => match ways.parse::<Ways>() {
                Ok(ways) => match far.add_lender(&ways.to_vec()) {
                    Ok(()) => Answer::Done(Value::Null),
                    Err(error) => failed(&error),
                },
                Err(error) => failed(&error),
            },
            Question::Drain(named) => match far.drain_lender(&named) {
                Ok(()) => Answer::Done(Value::Null),
                Err(error) => failed(&error),
            },
        }
    }
}

/// The file that a shell would execute.
fn find(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if program.to_string_lossy().contains('/') {
        return path.exists().then(|| path.to_owned());
    }
    let executable = |path: &Path| {
        fs::metadata(path)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(path))
        .find(|path| executable(path))
}

/// Says in one line what cannot be served, before anything is started.
pub(crate) fn check_program(program: &OsStr) -> Result<(), Failure> {
    let name = program.to_string_lossy();
    let failed = |code, text: String| Err(Failure { text, code });
    let Some(path) = find(program) else {
        return failed(127, format!("{name}: no such program"));
    };
    // Valgrind's own programs can take the library; what they run cannot.
    if path.file_name().is_some_and(|name| name == "valgrind") {
        return unserved(&path, Reason::Valgrind);
    }
    // For a script its interpreter counts, which may be a script, too.
    let mut path = path;
    for _ in 0..4 {
        let metadata = fs::metadata(&path)?;
        if metadata.is_dir() {
            return failed(126, format!("{}: is a directory", path.display()));
        }
        if metadata.permissions().mode() & 0o111 == 0 {
            return failed(126, format!("{}: is not executable: permission denied", path.display()));
        }
        let Ok(file) = fs::File::open(&path) else { return Ok(()) };
        let has_capabilities = rustix::fs::getxattr(&path, "security.capability", &mut [0u8; 64]).is_ok();
        if !rustix::process::geteuid().is_root() && (metadata.mode() & 0o6000 != 0 || has_capabilities) {
            return unserved(&path, Reason::Privileged);
        }
        match fitness::examine(&mut |at, buffer: &mut [u8]| file.read_at(buffer, at).unwrap_or(0)) {
            Kind::Fit => break,
            Kind::Unfit(reason) => return unserved(&path, reason),
            Kind::Script(interpreter) => {
                path = PathBuf::from(OsStr::from_bytes(interpreter.path()));
                if !path.exists() {
                    break;
                }
            }
        }
    }
    Ok(())
}

fn unserved(path: &Path, reason: Reason) -> Result<(), Failure> {
    let text = format!("{} {}: its memory cannot be served", path.display(), reason.text());
    Err(Failure { text, code: 126 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(bytes: &[u8]) -> Kind {
        fitness::examine(&mut |at, buffer: &mut [u8]| {
            let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[]);
            let length = buffer.len().min(rest.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            length
        })
    }

    #[test]
    fn programs_that_can_take_the_library_are_told_from_others() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(kind_of(&own), Kind::Fit));
        let linker = fs::read("/lib64/ld-linux-x86-64.so.2").unwrap();
        assert!(matches!(kind_of(&linker), Kind::Fit), "the dynamic linker is not static");
        let mut narrow = own[..4096].to_vec();
        narrow[4] = 1;
        assert!(matches!(kind_of(&narrow), Kind::Unfit(Reason::OtherMachine)));
        for (text, path) in [("#!/bin/sh\n", "/bin/sh"), ("#! /usr/bin/env python3\n", "/usr/bin/env")] {
            let Kind::Script(interpreter) = kind_of(text.as_bytes()) else { panic!("{text}") };
            assert_eq!(interpreter.path(), path.as_bytes());
            assert_eq!(interpreter.path_with_zero().last(), Some(&0));
        }
        assert!(matches!(kind_of(b"#!"), Kind::Fit) && matches!(kind_of(b""), Kind::Fit));
    }

    /// Cut off anywhere, or with any word of its beginning changed: an answer, and no panic.
    #[test]
    fn broken_programs_are_looked_at_without_harm() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        for length in (0..1024).chain([4095, 4096, 65_536]) {
            let _ = kind_of(&own[..length]);
        }
        let mut wild = own;
        for at in (4..1024).step_by(4) {
            let word: [u8; 4] = wild[at..at + 4].try_into().unwrap();
            for other in [[0xff; 4], [0; 4], [0xff, 0xff, 0xff, 0x7f]] {
                wild[at..at + 4].copy_from_slice(&other);
                let _ = kind_of(&wild);
            }
            wild[at..at + 4].copy_from_slice(&word);
        }
    }

    #[test]
    fn what_is_not_there_is_told_apart_from_what_cannot_run() {
        assert_eq!(check_program(OsStr::new("no-such-program-anywhere")).unwrap_err().code, 127);
        assert_eq!(check_program(OsStr::new("/tmp")).unwrap_err().code, 126);
        assert!(check_program(OsStr::new("sh")).is_ok());
    }
}
