//! `tombolo cp`: files into named segments of a node, and back.
//!
//! What is copied is there as a whole or not at all: a name is given, and a file is renamed to
//! what it is to be called, when the last byte has come and the checksum is the right one.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;
use tombolo_node::{Checksum, CopyError, Security, Store};

use crate::asked::AskArguments;
use crate::failure::Failure;
use crate::outage::OutageArguments;
use crate::output;
use crate::place::{self, SegmentPlace, is_at_a_node};
use crate::size::Size;
use crate::ways::Ways;

mod source;
mod target;

use source::Source;
use target::Target;

/// Arguments of `tombolo cp`.
#[derive(Args)]
pub struct Arguments {
    /// What to copy: a file, - for standard input, or ADDR:NAME, a named segment of a node. Several UDP
    /// addresses of the node, ADDR+ADDR:NAME, are all used at once. A node that this user runs on this machine is
    /// called by its name, too: NODE:NAME. A file with a colon in its name is ./FILE.
    from: OsString,
    /// Where to: ADDR:NAME, a file or a directory, or - for standard output. What is there is replaced
    /// when the last byte has come and was found to be right, and not before.
    to: OsString,
    #[command(flatten)]
    outage: OutageArguments,
    #[command(flatten)]
    ask: AskArguments,
}

/// What was copied.
#[derive(Debug, Serialize)]
struct Outcome {
    from: String,
    to: String,
    bytes: u64,
    sha256: String,
    elapsed_s: f64,
}

static STOP: AtomicBool = AtomicBool::new(false);

/// Whether a signal has come.
fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// What lets a signal end a call that waits: the standard library would begin it again.
struct Interruptible<T>(T);

impl<T> Interruptible<T> {
    fn again<R>(&mut self, mut call: impl FnMut(&mut T) -> io::Result<R>) -> io::Result<R> {
        loop {
            match call(&mut self.0) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    if stopped() {
                        return Err(io::Error::other("interrupted"));
                    }
                }
                other => return other,
            }
        }
    }
}

impl<T: Read> Read for Interruptible<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.again(|inner| inner.read(buffer))
    }
}

impl<T: Write> Write for Interruptible<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.again(|inner| inner.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.again(Write::flush)
    }
}

/// Opens a file. One that is a pipe waits for its other end, until a signal comes.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    loop {
        match rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => return Ok(File::from(file)),
            Err(Errno::INTR) if !stopped() => {}
            Err(Errno::INTR) => return Err(io::Error::other("interrupted")),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// What a signal has ended, and how that is said.
fn interrupted_or(failure: Failure) -> Failure {
    if stopped() { Failure { text: CopyError::Interrupted.to_string(), code: 130 } } else { failure }
}

/// Copies; what it has copied is said at the end.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let place = |word: &OsString| -> Result<SegmentPlace, Failure> {
        let text = word.to_str().ok_or_else(|| Failure::new("the name of a segment is UTF-8"))?;
        Ok(text.parse()?)
    };
    tombolo_host::stops::interrupt_on_signals(&STOP);
    let since = Instant::now();
    let (bytes, checksum) = match (is_at_a_node(&arguments.from), is_at_a_node(&arguments.to)) {
        (false, true) => put(arguments, &place(&arguments.to)?)?,
        (true, false) => get(arguments, &place(&arguments.from)?)?,
        (true, true) => {
            return Err(Failure::new(
                "cannot copy from node to node: copy to a file, and that to the other node",
            ));
        }
        (false, false) => {
            return Err(Failure::new(
                "one of the two must be a segment of a node, ADDR:NAME, as in shm:/tmp/lender:NAME; `cp` copies files",
            ));
        }
    };
    let outcome = Outcome {
        from: arguments.from.to_string_lossy().into_owned(),
        to: arguments.to.to_string_lossy().into_owned(),
        bytes,
        sha256: checksum.to_string(),
        elapsed_s: since.elapsed().as_secs_f64(),
    };
    if arguments.ask.json {
        output::json(&outcome)?;
    } else if arguments.to != "-" {
        let rate = Size((bytes as f64 / outcome.elapsed_s.max(1e-9)) as u64);
        output::line(&format!(
            "{} in {:.2} s ({rate}/s), SHA-256 {}",
            Size(bytes),
            outcome.elapsed_s,
            outcome.sha256
        ));
    }
    Ok(0)
}

/// Hidden by itself where standard error is no terminal.
fn progress(length_bytes: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(length_bytes), ProgressDrawTarget::stderr());
    let style = "[{bar:20}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left {msg}";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar
}

/// Shows what is done; false when a signal has come.
fn advance(bar: &ProgressBar, done_bytes: u64) -> bool {
    bar.set_position(done_bytes);
    if bar.length() == Some(done_bytes) {
        bar.set_message("(checking)");
    }
    !stopped()
}

/// A failure that a signal has caused is no failure of the file.
fn interrupted(error: CopyError) -> CopyError {
    if stopped() { CopyError::Interrupted } else { error }
}

fn put(arguments: &Arguments, to: &SegmentPlace) -> Result<(u64, Checksum), Failure> {
    let ways = to.node.ways()?;
    ways.check_kind()?;
    let security = arguments.ask.security(&ways)?;
    let path = Path::new(&arguments.from);
    let mut source = Source::open(path)?;
    let failed = |error, store: Option<&Store>| place::failure(interrupted(error), store, Some(path));
    let mut store = connect(arguments, &ways, &security).map_err(|error| failed(error, None))?;
    let bar = progress(source.length_bytes);
    let written =
        store.write(&to.name, source.length_bytes, &mut source.file, &mut |done| advance(&bar, done));
    bar.finish_and_clear();
    Ok((source.length_bytes, written.map_err(|error| failed(error, Some(&store)))?))
}

fn connect(arguments: &Arguments, ways: &Ways, security: &Security) -> Result<Store, CopyError> {
    let mut store = Store::connect_with("cp", &ways.to_vec(), security, arguments.outage.outage())?;
    store.interrupt_when(stopped);
    Ok(store)
}

fn get(arguments: &Arguments, from: &SegmentPlace) -> Result<(u64, Checksum), Failure> {
    let ways = from.node.ways()?;
    ways.check_kind()?;
    let security = arguments.ask.security(&ways)?;
    let mut path = PathBuf::from(&arguments.to);
    if arguments.to == "-" && arguments.ask.json {
        return Err(Failure::new("with - the bytes go to standard output, and --json has no place there"));
    }
    if path.is_dir() && arguments.to != "-" {
        path.push(from.name.as_str());
    }
    let failed = |error, store: Option<&Store>| match interrupted(error) {
        CopyError::Write(error) if arguments.to == "-" => output::failure(&error),
        error => place::failure(error, store, Some(&path)),
    };
    let mut store = connect(arguments, &ways, &security).map_err(|error| failed(error, None))?;
    let opened = match store.open(&from.name) {
        Ok(opened) => opened,
        Err(error) => return Err(failed(error, Some(&store))),
    };
    let length_bytes = opened.found.bytes;
    let mut target =
        Target::open(&path, length_bytes).map_err(|error| failed(CopyError::Write(error), None))?;
    let bar = progress(length_bytes);
    let read = store.read(&opened, &mut target, &mut |done| advance(&bar, done));
    bar.finish_and_clear();
    read.map_err(|error| failed(error, Some(&store)))?;
    target.keep().map_err(|error| failed(CopyError::Write(error), None))?;
    // The link's end gives it back too.
    let checksum = opened.found.checksum;
    let _ = store.close(opened);
    Ok((length_bytes, checksum))
}
