//! Lines for standard error, written by a thread of their own: a terminal that is slow, or a pipe that nobody
//! reads, keeps nobody waiting who has something to say. What does not fit into the queue meanwhile is left
//! out, and where it is missing that is said.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::Instant;

use tombolo_host::timing::command::{LOG_END_CHECK_INTERVAL, LOG_END_TIMEOUT};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

/// The most lines that wait to be written.
const MAX_WAITING: usize = 1024;

/// How lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Text,
    /// For programs.
    Json,
}

enum Said {
    Line(Vec<u8>),
    End,
}

/// Takes lines, each in one call of `write`, and never waits.
#[derive(Clone)]
pub struct Lines {
    queue: SyncSender<Said>,
    /// Lines that found the queue full since the last line about that.
    lost: Arc<AtomicU64>,
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.queue.try_send(Said::Line(line.to_vec())).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits when it is dropped until what was said before is written, for a while.
pub struct Ending {
    queue: SyncSender<Said>,
    over: Receiver<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        let deadline = Instant::now() + LOG_END_TIMEOUT;
        let left = || deadline.saturating_duration_since(Instant::now());
        while let Err(TrySendError::Full(_)) = self.queue.try_send(Said::End) {
            if left().is_zero() {
                return;
            }
            std::thread::sleep(LOG_END_CHECK_INTERVAL);
        }
        let _ = self.over.recv_timeout(left());
    }
}

/// Lines that go to standard error.
pub fn to_standard_error(form: Form) -> io::Result<(Lines, Ending)> {
    // A descriptor of its own: other threads would wait for the standard library's lock.
    let file = File::from(rustix::io::dup(rustix::stdio::stderr())?);
    to(file, form)
}

fn to(mut file: impl Write + Send + 'static, form: Form) -> io::Result<(Lines, Ending)> {
    let (queue, waiting) = sync_channel(MAX_WAITING);
    let (told, over) = sync_channel(1);
    let lines = Lines { queue: queue.clone(), lost: Arc::default() };
    let lost = lines.lost.clone();
    std::thread::Builder::new().name("log".into()).spawn(move || {
        while let Ok(Said::Line(line)) = waiting.recv() {
            // The error cannot be reported: the log is where errors go.
            let _ = file.write_all(&line);
            let lost = lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let _ = file.write_all(missing(lost, form).as_bytes());
            }
        }
        let _ = told.send(());
    })?;
    Ok((lines, Ending { queue, over }))
}

/// The line that says how many lines are missing.
fn missing(count: u64, form: Form) -> String {
    let mut time = String::new();
    // A text takes whatever is written.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    let message = format!("{count} line(s) are missing here: nobody read them fast enough");
    match form {
        Form::Text => format!("{time}  WARN {message}\n"),
        Form::Json => {
            let line = serde_json::json!({
                "timestamp": time,
                "level": "WARN",
                "message": message,
                "lost_lines": count,
            });
            format!("{line}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Takes what is written once the gate is open.
    struct Gated {
        gate: Arc<Mutex<()>>,
        text: Arc<Mutex<String>>,
    }

    impl Write for Gated {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _open = self.gate.lock().unwrap();
            self.text.lock().unwrap().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_says_something_never_waits_and_what_is_lost_is_counted() {
        for form in [Form::Text, Form::Json] {
            let (gate, text) = (Arc::new(Mutex::new(())), Arc::new(Mutex::new(String::new())));
            let (mut lines, ending) = to(Gated { gate: gate.clone(), text: text.clone() }, form).unwrap();
            let closed = gate.lock().unwrap();
            let said = MAX_WAITING + 100;
            for number in 0..said {
                lines.write_all(format!("line {number}\n").as_bytes()).unwrap();
            }
            drop(closed);
            drop(ending);
            let text = text.lock().unwrap();
            let written = text.lines().filter(|line| line.starts_with("line ")).count();
            let missing: Vec<_> = text.lines().filter(|line| line.contains("are missing here")).collect();
            assert!(missing.len() == 1 && written >= MAX_WAITING, "{written} {missing:?}");
            assert!(missing[0].contains(&format!("{} line(s)", said - written)), "{missing:?}");
            if form == Form::Json {
                let line: serde_json::Value = serde_json::from_str(missing[0]).unwrap();
                assert_eq!(line["lost_lines"], said - written);
            }
        }
    }

    #[test]
    fn an_end_that_nobody_reads_is_an_end() {
        let gate = Arc::new(Mutex::new(()));
        let (mut lines, ending) = to(Gated { gate: gate.clone(), text: Arc::default() }, Form::Text).unwrap();
        let _closed = gate.lock().unwrap();
        for _ in 0..2 * MAX_WAITING {
            lines.write_all(b"line\n").unwrap();
        }
        drop(ending);
    }
}
