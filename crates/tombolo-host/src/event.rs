//! Ways to sleep until another thread or process has something: eventfd, futex, poll.
//!
//! An [`EventFd`] can be polled together with sockets, so it suits a thread with many things to
//! wait for. A futex is one word of shared memory, cheaper, for a thread that waits for one thing;
//! a wake of it cannot block, whatever the other process does to the word. Both are only the last
//! step of a sleep: who sleeps first announces it in shared memory and looks once more (see
//! `ring`), so that nobody pays a system call to wake someone who is awake.

use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::thread::futex;

/// A counter that can be polled: [`EventFd::signal`] makes it readable, [`EventFd::drain`] not.
///
/// It is for the threads of one process, or processes that trust each other: whoever holds the
/// descriptor can make it blocking, and a later signal would then wait.
#[derive(Debug)]
pub struct EventFd {
    descriptor: OwnedFd,
}

impl EventFd {
    /// A new event, not signalled.
    pub fn new() -> Result<Self, Errno> {
        let descriptor = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor })
    }

    /// An event that another process passed to this one.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self { descriptor }
    }

    /// Makes the descriptor readable.
    pub fn signal(&self) -> Result<(), Errno> {
        match rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes()) {
            // A full counter is readable already, which is all a signal has to bring about.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Takes all signals; true when there were any.
    pub fn drain(&self) -> Result<bool, Errno> {
        let mut counter = [0_u8; 8];
        match rustix::io::read(&self.descriptor, &mut counter) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl From<EventFd> for OwnedFd {
    fn from(event: EventFd) -> Self {
        event.descriptor
    }
}

/// Sleeps until the word no longer has the expected value, a wake, or the time is over.
///
/// Returns at once when the word already differs. May return early; look at the word again.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    let timeout = timeout.map(timespec);
    // Every outcome (woken, differs, interrupted, timed out) means the same to the caller: look.
    let _ = futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref());
}

/// Wakes up to `count` sleepers on the word, in any process that maps it; returns how many.
pub fn futex_wake(word: &AtomicU32, count: u32) -> usize {
    futex::wake(word, futex::Flags::empty(), count).unwrap_or(0)
}

/// As [`futex_wait`], of one who is woken only for one of these reasons, a bit each.
pub fn futex_wait_for(word: &AtomicU32, expected: u32, timeout: Duration, reasons: NonZeroU32) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let nanoseconds = now.tv_nsec as u64 + u64::from(timeout.subsec_nanos());
    let seconds = now.tv_sec as u64 + nanoseconds / 1_000_000_000;
    let seconds = seconds.saturating_add(timeout.as_secs());
    let until = Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or(i64::MAX),
        tv_nsec: (nanoseconds % 1_000_000_000) as _,
    };
    // As in `futex_wait`, every outcome means the same.
    let _ = futex::wait_bitset(word, futex::Flags::empty(), expected, Some(&until), reasons);
}

/// As [`futex_wake`], of those who sleep for one of these reasons, a bit each, or for any.
pub fn futex_wake_for(word: &AtomicU32, count: u32, reasons: NonZeroU32) -> usize {
    futex::wake_bitset(word, futex::Flags::empty(), count, reasons).unwrap_or(0)
}

/// Sleeps until one of the descriptors is readable or hung up, or the time is over.
///
/// True when one is. A signal does not cut the sleep short.
pub fn wait_readable(descriptors: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool, Errno> {
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut polled: Vec<PollFd<'_>> =
        descriptors.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = deadline.map(|deadline| timespec(deadline.saturating_duration_since(Instant::now())));
        match rustix::event::poll(&mut polled, left.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Many descriptors to wait for, of which few are ready: an epoll.
#[derive(Debug)]
pub struct Poll {
    descriptor: OwnedFd,
}

impl Poll {
    /// An epoll without descriptors.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { descriptor: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a descriptor; [`Self::wait`] calls it `key`.
    pub fn add(&self, descriptor: BorrowedFd<'_>, key: u64) -> Result<(), Errno> {
        epoll::add(&self.descriptor, descriptor, epoll::EventData::new_u64(key), epoll::EventFlags::IN)
    }

    /// As [`Self::add`], but it is named once for all that comes at one time, whether that is read or not.
    pub fn add_edges(&self, descriptor: BorrowedFd<'_>, key: u64) -> Result<(), Errno> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&self.descriptor, descriptor, epoll::EventData::new_u64(key), flags)
    }

    /// Removes a descriptor.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) {
        // If it was not there, nothing is left to do.
        let _ = epoll::delete(&self.descriptor, descriptor);
    }

    /// Sleeps until one is readable or hung up, or the time is over; the keys of those that are, as far
    /// as there is room in `keys`, which is filled up to its capacity.
    pub fn wait(&self, keys: &mut Vec<u64>, timeout: Duration) -> Result<(), Errno> {
        let mut events = Vec::with_capacity(keys.capacity().max(1));
        keys.clear();
        match epoll::wait(&self.descriptor, spare_capacity(&mut events), Some(&timespec(timeout))) {
            Ok(_) => keys.extend(events.iter().map(|event: &epoll::Event| event.data.u64())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }
}

/// A span of time as system calls take it; one that does not fit is the longest.
pub fn timespec(duration: Duration) -> Timespec {
    // More than i64 seconds is for ever.
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[test]
    fn eventfd_signals_once_however_often() {
        let event = EventFd::new().unwrap();
        assert!(!wait_readable(&[event.as_fd()], Some(Duration::ZERO)).unwrap());
        event.signal().unwrap();
        event.signal().unwrap();
        assert!(wait_readable(&[event.as_fd()], None).unwrap());
        assert!(event.drain().unwrap());
        assert!(!event.drain().unwrap());
    }

    #[test]
    fn a_poll_names_those_that_are_ready() {
        let (poll, events) = (Poll::new().unwrap(), [EventFd::new().unwrap(), EventFd::new().unwrap()]);
        for (event, key) in events.iter().zip([7, 9]) {
            poll.add(event.as_fd(), key).unwrap();
        }
        let mut keys = Vec::with_capacity(8);
        poll.wait(&mut keys, Duration::ZERO).unwrap();
        assert!(keys.is_empty());
        events[1].signal().unwrap();
        poll.wait(&mut keys, Duration::from_secs(10)).unwrap();
        assert_eq!(keys, [9]);
        events[0].signal().unwrap();
        poll.remove(events[1].as_fd());
        poll.wait(&mut keys, Duration::from_secs(10)).unwrap();
        assert_eq!(keys, [7]);
    }

    #[test]
    fn futex_wakes_a_thread() {
        let word = Arc::new(AtomicU32::new(0));
        let sleeper = Arc::clone(&word);
        let thread = std::thread::spawn(move || {
            while sleeper.load(Ordering::Acquire) == 0 {
                futex_wait(&sleeper, 0, Some(Duration::from_secs(10)));
            }
        });
        word.store(1, Ordering::Release);
        futex_wake(&word, 1);
        thread.join().unwrap();
        futex_wait(&word, 1, Some(Duration::from_millis(1)));
    }
}
