//! Ends that programs have closed: each stays until the peer closes, too, so that the peer sees the end of the stream and not a hang-up, as with TCP.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tombolo_host::passed::PassedDescriptor;

/// How long an end is kept. Then the peer, which goes on without closing, sees a hang-up.
const KEPT: Duration = Duration::from_secs(60);
/// Most ends that are kept. A further one is closed.
const MOST: usize = 16 << 10;

/// All that are kept, by key.
#[derive(Debug, Default)]
pub struct Closing {
    all: BTreeMap<u64, (PassedDescriptor, Instant)>,
    by_time: BTreeSet<(Instant, u64)>,
}

impl Closing {
    /// Keeps an end, by its inode. `None`: there is no room, it is kept already, or the peer has closed.
    pub fn keep(&mut self, key: u64, end: PassedDescriptor) -> Option<&PassedDescriptor> {
        if self.all.len() >= MOST || self.all.contains_key(&key) || is_over(&end) {
            return None;
        }
        let since = Instant::now();
        self.by_time.insert((since, key));
        Some(&self.all.entry(key).or_insert((end, since)).0)
    }

    /// What to do with one of which something was heard: it is closed, if the peer has closed, or has sent bytes, which nobody will read.
    pub fn heard(&mut self, key: u64) -> Option<PassedDescriptor> {
        let (end, _) = self.all.get(&key)?;
        if !is_over(end) {
            return None;
        }
        let (end, since) = self.all.remove(&key)?;
        self.by_time.remove(&(since, key));
        Some(end)
    }

    /// Those that were kept for as long as they are.
    pub fn expired(&mut self, now: Instant) -> Vec<PassedDescriptor> {
        let mut expired = Vec::new();
        while let Some(&(since, key)) =
            self.by_time.first().filter(|(since, _)| now.duration_since(*since) >= KEPT)
        {
            self.by_time.remove(&(since, key));
            expired.extend(self.all.remove(&key).map(|(end, _)| end));
        }
        expired
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}

/// Whether the peer has ended its writing, is gone, or has sent something.
fn is_over(end: &PassedDescriptor) -> bool {
    let mut polled = [PollFd::from_borrowed_fd(end.as_fd(), PollFlags::IN | PollFlags::RDHUP)];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0)
}
