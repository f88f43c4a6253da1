//! Reads the list of keys for those who must not wait for a file: the file system that it is on may not answer.
//!
//! A caller gets a [`Ticket`] for a reading that begins afterwards, and polls for its answer ([`ListReader::answer`]) or
//! waits for it ([`ListReader::wait`]). One thread reads; callers that ask while it reads share the next reading.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tombolo_host::event::EventFd;

use super::allow::{AllowList, KeyRights};
use super::file::KeyFileError;

/// For the answer of a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// What a reading has found.
pub type Reading = Result<Arc<KeyRights>, KeyFileError>;

#[derive(Debug, Default)]
struct State {
    /// Readings that have begun, and those that have ended. The thread reads while they differ.
    begun: u64,
    ended: u64,
    /// Number of the last reading that was asked for.
    asked: u64,
    /// What the last reading that has ended has found.
    found: Option<Reading>,
    /// What the last one has found that succeeded, and how many have.
    latest: Option<Arc<KeyRights>>,
    successes: u64,
    /// Each is signalled when the reading of its ticket has ended.
    waiting: Vec<(Ticket, Arc<EventFd>)>,
    /// The process whose thread reads, if there is one: a process that has been forked has no threads of its parent's.
    thread_of: Option<u32>,
    is_over: bool,
}

impl State {
    fn answer(&self, ticket: Ticket) -> Option<Reading> {
        self.found.clone().filter(|_| self.ended >= ticket.0)
    }

    /// In a forked process: what the parent's thread was asked to read does not end here, and those who wait for that are signalled by the
    /// parent. Tickets from before the fork are answered by the next reading.
    fn leave_parent(&mut self) {
        (self.thread_of, self.found) = (None, None);
        self.begun = self.begun.max(self.asked);
        self.ended = self.begun;
        self.waiting.clear();
    }

    fn end(&mut self, found: Reading) {
        self.ended = self.begun;
        if let Ok(rights) = &found {
            self.latest = Some(rights.clone());
            self.successes += 1;
        }
        self.found = Some(found);
        let ended = self.ended;
        self.waiting.retain(|(ticket, event)| {
            let has_ended = ticket.0 <= ended;
            if has_ended {
                // It cannot fail but for want of the descriptor, which is there.
                let _ = event.signal();
            }
            !has_ended
        });
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct ListReader {
    list: AllowList,
    shared: Arc<Shared>,
}

impl ListReader {
    /// A reader of this list. Its thread begins with the first question.
    pub(super) fn new(list: AllowList) -> Self {
        let shared = Arc::new(Shared::default());
        if let AllowList::Keys(_) = list {
            shared.state.lock().end(list.rights().map(Arc::new));
        }
        Self { list, shared }
    }

    /// Asks for a reading that begins from now on. `wake` is signalled when its answer is there.
    pub fn ask(&self, wake: Option<&Arc<EventFd>>) -> Ticket {
        let mut state = self.shared.state.lock();
        let AllowList::File(_) = &self.list else { return Ticket(state.ended) };
        let process = std::process::id();
        if state.thread_of.is_some_and(|known| known != process) {
            state.leave_parent();
        }
        let ticket = Ticket(state.begun + 1);
        state.asked = ticket.0;
        let is_known = |wake: &&Arc<EventFd>| {
            state.waiting.iter().any(|(known, event)| *known == ticket && Arc::ptr_eq(event, wake))
        };
        if let Some(wake) = wake.filter(|wake| !is_known(wake)) {
            state.waiting.push((ticket, wake.clone()));
        }
        if state.thread_of.is_none() {
            let (list, shared) = (self.list.clone(), self.shared.clone());
            let thread =
                std::thread::Builder::new().name("key list".into()).spawn(move || read(&list, &shared));
            match thread {
                Ok(_) => state.thread_of = Some(process),
                Err(reason) => {
                    state.begun += 1;
                    let path = self.list.to_string().into();
                    state.end(Err(KeyFileError::Unreadable { path, reason }));
                }
            }
        }
        drop(state);
        self.shared.changed.notify_all();
        ticket
    }

    /// What that reading has found, or a later one. `None`: it has not ended.
    #[must_use]
    pub fn answer(&self, ticket: Ticket) -> Option<Reading> {
        self.shared.state.lock().answer(ticket)
    }

    /// Asks for a reading, and waits for its answer.
    ///
    /// # Errors
    /// As the reading's; [`KeyFileError::Unreadable`] if it takes longer than `timeout`.
    pub fn wait(&self, timeout: Duration) -> Reading {
        let (ticket, deadline) = (self.ask(None), Instant::now() + timeout);
        let mut state = self.shared.state.lock();
        loop {
            if let Some(found) = state.answer(ticket) {
                return found;
            }
            if self.shared.changed.wait_until(&mut state, deadline).timed_out()
                && state.answer(ticket).is_none()
            {
                let reason = io::Error::new(io::ErrorKind::TimedOut, "the file system does not answer");
                return Err(KeyFileError::Unreadable { path: self.list.to_string().into(), reason });
            }
        }
    }

    /// What the last reading has found that succeeded, and its number. No file is read.
    #[must_use]
    pub fn latest(&self) -> (Option<Arc<KeyRights>>, u64) {
        let state = self.shared.state.lock();
        (state.latest.clone(), state.successes)
    }
}

impl Drop for ListReader {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
    }
}

/// The thread: reads the list each time it is asked for, until the reader is dropped.
fn read(list: &AllowList, shared: &Shared) {
    let mut state = shared.state.lock();
    loop {
        while state.asked <= state.begun && !state.is_over {
            shared.changed.wait(&mut state);
        }
        if state.is_over {
            return;
        }
        state.begun += 1;
        drop(state);
        let found = list.rights().map(Arc::new);
        state = shared.state.lock();
        state.end(found);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::super::file::tests::Scratch;
    use super::super::key::KeyPair;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_is_never_older_than_its_question() {
        let scratch = Scratch::new();
        let path = scratch.0.join("allow");
        let keys = [(); 20].map(|()| KeyPair::generate().unwrap().public());
        fs::write(&path, "").unwrap();
        let reader = ListReader::new(AllowList::from_file(&path).unwrap());
        assert!(reader.latest().0.is_none());
        for (number, key) in (1..).zip(keys) {
            fs::write(&path, format!("{key}")).unwrap();
            let found = reader.wait(TIMEOUT).unwrap();
            assert!(found.of(&key).is_some());
            assert_eq!(keys.iter().filter(|key| found.of(key).is_some()).count(), 1);
            assert_eq!(reader.latest().1, number);
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(reader.wait(TIMEOUT), Err(KeyFileError::Unreadable { .. })));
        // What was found last that made sense is still there.
        assert!(reader.latest().0.unwrap().of(&keys[19]).is_some());
    }

    /// A process that has been forked has the state of its parent's reader, and not the thread, which may have been reading.
    #[test]
    fn a_forked_process_reads_by_a_thread_of_its_own() {
        let scratch = Scratch::new();
        let path = scratch.0.join("allow");
        fs::write(&path, "").unwrap();
        let (reader, wake) = (ListReader::new(AllowList::from_file(&path).unwrap()), EventFd::new().unwrap());
        let (wake, before) = (Arc::new(wake), Ticket(3));
        let mut state = reader.shared.state.lock();
        (state.thread_of, state.begun, state.ended, state.asked) = (Some(u32::MAX), 2, 1, before.0);
        state.waiting.push((before, wake.clone()));
        drop(state);
        assert!(reader.answer(before).is_none());
        assert!(reader.wait(TIMEOUT).is_ok());
        assert!(reader.answer(before).is_some_and(|found| found.is_ok()));
        assert!(!wake.drain().unwrap(), "the parent's event was signalled");
    }

    #[test]
    fn a_file_system_that_hangs_keeps_nobody_else() {
        let scratch = Scratch::new();
        let path = scratch.0.join("allow");
        let key = KeyPair::generate().unwrap().public();
        fs::write(&path, "").unwrap();
        let list = AllowList::from_file(&path).unwrap();
        fs::remove_file(&path).unwrap();
        // To open a named pipe for reading waits for a writer.
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
            .unwrap();
        let (reader, wake) = (ListReader::new(list), Arc::new(EventFd::new().unwrap()));
        let first = reader.ask(Some(&wake));
        while reader.shared.state.lock().begun == 0 {
            std::thread::yield_now();
        }
        // Another one comes while the first waits: it has a reading, and a signal, of its own.
        let second = reader.ask(Some(&wake));
        assert!(first != second && reader.answer(first).is_none());
        assert!(matches!(reader.wait(Duration::from_millis(20)), Err(KeyFileError::Unreadable { .. })));
        assert!(reader.answer(first).is_none() && !wake.drain().unwrap());
        // A writer comes: the reading ends.
        let mut file = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        writeln!(file, "{key}").unwrap();
        drop(file);
        tombolo_host::event::wait_readable(&[wake.as_fd()], Some(TIMEOUT)).unwrap();
        assert!(reader.answer(first).unwrap().is_ok());
        // The second reading begins when the first has ended, and waits for a writer again: its asker is signalled when that has come.
        let _ = wake.drain();
        if reader.answer(second).is_none() {
            drop(fs::OpenOptions::new().read(true).write(true).open(&path).unwrap());
            assert!(tombolo_host::event::wait_readable(&[wake.as_fd()], Some(TIMEOUT)).unwrap());
            assert!(reader.answer(second).unwrap().is_ok());
        }
    }
}
