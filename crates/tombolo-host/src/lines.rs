//! Lines for a reader that may be slow: a terminal that is stopped, a pipe that nobody empties.
//!
//! Whoever has something to say puts it into a bounded queue and goes on; a thread writes. What does not
//! fit is dropped, and how much that was is said when the reader goes on.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Lines that wait.
const MAX_LINES: usize = 1024;

enum Item {
    Line(String),
    /// Says when everything before it has been written.
    Flush(SyncSender<()>),
}

/// The queue. Its thread ends with the last of these.
#[derive(Clone, Debug)]
pub struct Lines {
    queue: SyncSender<Item>,
    dropped: Arc<AtomicU64>,
}

impl Lines {
    /// A queue of lines for that writer. Where no thread can be started, all of them are dropped.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        let (queue, items) = sync_channel(MAX_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let count = dropped.clone();
        let started = std::thread::Builder::new().name("lines".into());
        // The queue is closed then, and what is said counts as dropped.
        drop(started.spawn(move || write(writer, &items, &count)));
        Self { queue, dropped }
    }

    /// Says a line, without waiting.
    pub fn say(&self, line: String) {
        if self.queue.try_send(Item::Line(line)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that were dropped and not said to be, yet.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, if the reader takes it within that time. False: it does not.
    pub fn flush(&self, timeout: Duration) -> bool {
        let (sender, written) = sync_channel(1);
        self.queue.try_send(Item::Flush(sender)).is_ok() && written.recv_timeout(timeout).is_ok()
    }
}

/// Writes until nobody has anything to say any more. Nobody could be told of an error.
fn write(mut writer: impl Write, items: &Receiver<Item>, dropped: &AtomicU64) {
    for item in items {
        let count = dropped.swap(0, Ordering::Relaxed);
        match item {
            Item::Line(line) => _ = writeln!(writer, "{line}"),
            Item::Flush(sender) => {
                let _ = writer.flush();
                let _ = sender.try_send(());
            }
        }
        if count > 0 {
            let _ = writeln!(writer, "({count} lines were dropped here, since they were not taken in time)");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Takes nothing before it is told to.
    struct Slow {
        opened: Receiver<()>,
        is_open: bool,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if !self.is_open {
                let _ = self.opened.recv();
                self.is_open = true;
            }
            self.written.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn slow() -> (Lines, Sender<()>, Arc<Mutex<Vec<u8>>>) {
        let ((open, opened), written) = (channel(), Arc::<Mutex<Vec<u8>>>::default());
        (Lines::to(Slow { opened, is_open: false, written: written.clone() }), open, written)
    }

    #[test]
    fn a_reader_that_takes_nothing_holds_up_nobody_and_hears_what_it_missed() {
        let (lines, open, written) = slow();
        for number in 0..10_000 {
            lines.say(format!("line {number}"));
        }
        let dropped = lines.dropped();
        // One more than fit may be in the thread's hands.
        assert!((10_000 - MAX_LINES as u64 - 1..=10_000 - MAX_LINES as u64).contains(&dropped), "{dropped}");
        assert!(!lines.flush(Duration::ZERO), "nothing is written");
        open.send(()).unwrap();
        while !lines.flush(Duration::from_secs(60)) {}
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        let kept: Vec<&str> = text.lines().filter(|line| line.starts_with("line")).collect();
        assert_eq!(kept.len() as u64 + dropped, 10_000);
        assert_eq!((kept[0], kept[1]), ("line 0", "line 1"), "in order");
        assert_eq!(text.matches(&format!("{dropped} lines were dropped")).count(), 1);
        assert_eq!(lines.dropped(), 0);
    }
}
