//! Interrupt coalescing (MICRO §6.1.7): a port is notified after a number of frames, or a time after the first of them.
//!
//! Each notification costs the port a wakeup, and each delay costs latency. *Adaptive*: while frames are usually further
//! apart than the delay, the port is notified of each at once, since waiting would gather no further frames.

/// When a port is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// The port is notified after this many frames; at least 1.
    pub frames: u32,
    /// Longest delay of a notification after its first frame.
    pub after_ns: u64,
    /// The port is notified without delay of frames that come seldom.
    pub is_adaptive: bool,
}

impl Default for Coalescing {
    /// The port is notified of each frame without delay.
    fn default() -> Self {
        Self { frames: 1, after_ns: 0, is_adaptive: false }
    }
}

/// Gathers the frames of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Coalescer {
    how: Coalescing,
    waiting: u32,
    /// When the next notification is due.
    due_ns: Option<u64>,
    last_ns: Option<u64>,
    /// Running average of the time between two frames, over about eight of them.
    apart_ns: Option<u64>,
    /// Number of notifications so far.
    told: u64,
}

impl Coalescer {
    /// A coalescer for a queue without frames.
    pub fn new(how: Coalescing) -> Self {
        Self { how, ..Self::default() }
    }

    /// Changes when the port is notified. Returns true if it is to be notified of waiting frames now.
    #[must_use]
    pub fn set(&mut self, how: Coalescing) -> bool {
        self.how = how;
        self.interrupt_if(self.waiting > 0)
    }

    /// Records that a frame has come. Returns true if the port is to be notified of it and of waiting frames now.
    #[must_use]
    pub fn came(&mut self, now_ns: u64) -> bool {
        if let Some(last_ns) = self.last_ns.replace(now_ns) {
            let apart_ns = now_ns.saturating_sub(last_ns);
            self.apart_ns =
                Some(self.apart_ns.map_or(apart_ns, |usual_ns| usual_ns - usual_ns / 8 + apart_ns / 8));
        }
        self.waiting += 1;
        let due_ns = *self.due_ns.get_or_insert(now_ns.saturating_add(self.how.after_ns));
        let is_seldom =
            self.how.is_adaptive && self.apart_ns.is_none_or(|apart_ns| apart_ns >= self.how.after_ns);
        self.interrupt_if(is_seldom || self.waiting >= self.how.frames || now_ns >= due_ns)
    }

    /// When to call [`Coalescer::elapsed`].
    pub fn next_deadline(&self) -> Option<u64> {
        self.due_ns
    }

    /// Returns true if the notification of waiting frames is due: the port is to be notified now.
    #[must_use]
    pub fn elapsed(&mut self, now_ns: u64) -> bool {
        self.interrupt_if(self.due_ns.is_some_and(|due_ns| now_ns >= due_ns))
    }

    /// Number of notifications so far.
    pub fn told(&self) -> u64 {
        self.told
    }

    fn interrupt_if(&mut self, is_due: bool) -> bool {
        if is_due {
            (self.waiting, self.due_ns) = (0, None);
            self.told += 1;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_told_by_number_or_by_time() {
        let mut coalescer = Coalescer::new(Coalescing { frames: 3, after_ns: 100, is_adaptive: false });
        assert!(!coalescer.came(0) && !coalescer.came(1) && coalescer.came(2));
        assert!(!coalescer.came(10) && coalescer.next_deadline() == Some(110));
        assert!(!coalescer.elapsed(109) && coalescer.elapsed(110) && !coalescer.elapsed(1000));
        assert!(!coalescer.came(2000) && coalescer.set(Coalescing::default()), "what waits is told");
        assert!(coalescer.came(2001) && coalescer.next_deadline().is_none());
        assert_eq!(coalescer.told(), 4);
    }

    #[test]
    fn adaptive_reports_seldom_frames_at_once_and_gathers_others() {
        let how = Coalescing { frames: 32, after_ns: 50_000, is_adaptive: true };
        let mut coalescer = Coalescer::new(how);
        let seldom = (0..100u64).filter(|n| coalescer.came(n * 1_000_000)).count();
        assert_eq!(seldom, 100);
        let start = 100_000_000;
        let often = (0..10_000u64).filter(|n| coalescer.came(start + n * 1_000)).count();
        assert!((10_000 / 32..500).contains(&often), "{often}");
    }
}
