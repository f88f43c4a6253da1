//! Counters and fault latencies of one run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tombolo_core::pager::Page;

use crate::space::Table;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has happened so far. Pages are 4096 bytes.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Every counter by name.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Faults served, of any kind.
    faults,
    /// First touches, and the pages mapped for them.
    zero_faults,
    /// Pages mapped for first touches.
    zero_pages,
    /// Faults on pages in far memory.
    far_faults,
    /// Pages fetched because a neighbour was wanted.
    prefetched_pages,
    /// First writes to pages that had been fetched for reading.
    write_faults,
    /// Faults that had to wait for room.
    room_waits,
    /// Faults that waited for the end of an eviction of their page.
    eviction_waits,
    /// Pages that were wanted while they were being saved, and stayed.
    taken_back,
    /// Times that a fault handler slept and was woken for something to serve.
    handler_wakes,
    /// Calls by which faults and changes were asked for.
    handler_reads,
    /// Switches of fault handlers to and from their processors, when they have ended.
    handler_switches,
    /// Pages read from far memory.
    pages_in,
    /// Pages written to far memory.
    pages_out,
    /// Evicted pages that far memory already held.
    clean_drops,
    /// Evicted pages of mappings that are not writable: each was copied where it was, and dropped there.
    read_only_drops,
    /// Evicted pages that held only zeroes.
    zero_drops,
    /// Evictions given up (the page was wanted, a fork was under way, or the page could not be read).
    evictions_undone,
    /// Pages that the kernel has moved out although it reported an error (Linux 6.18 does that).
    moves_misreported,
    /// Eviction batches.
    batches,
    /// Pages given up by the program.
    discarded_pages,
    /// Pages that turned out not to be there when nobody had reported that they were dropped.
    unseen_drops,
    /// Forks followed.
    forks,
    /// Pages that a fork shared and a process wrote to.
    fork_copies,
    /// Pages that a fork shared and that left a process.
    shared_drops,
    /// Address spaces served.
    spaces,
    /// Pages lost with a lender.
    lost_pages,
    /// Pages of mappings that could not be made far.
    unregistered_pages,
    /// Pages of far memory that became ordinary memory.
    localised_pages,
    /// Processes that are served without an agent: nothing of theirs can be evicted.
    without_agent,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Buckets of [`Pauses`]: of up to 1 us, 2 us, 4 us and so on, the last one of all that are longer.
const PAUSE_BUCKETS: usize = 32;
/// A first touch that took less than this has not waited for anything: with the pages around it takes 30 us.
const LATE: Duration = Duration::from_micros(100);

/// How long threads of the program waited for pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseSummary {
    /// The longest pause, in nanoseconds.
    pub longest_ns: u64,
    /// All of them together, in nanoseconds.
    pub total_ns: u64,
    /// How many there were that took up to so many microseconds, and longer than those before: 1, 2, 4 and so on. The
    /// last ones are all the longer ones.
    pub by_length: Vec<(u64, u64)>,
}

/// How long threads waited for pages.
#[derive(Debug, Default)]
pub struct Pauses {
    buckets: [AtomicU64; PAUSE_BUCKETS],
    longest_ns: AtomicU64,
    total_ns: AtomicU64,
}

impl Pauses {
    fn record(&self, pause: Duration) {
        let ns = u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX);
        let microseconds = ns.div_ceil(1000).max(1);
        let bucket = microseconds.next_power_of_two().trailing_zeros() as usize;
        self.buckets[bucket.min(PAUSE_BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.total_ns.fetch_add(ns, Ordering::Relaxed);
        self.longest_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// As they are now.
    pub fn summary(&self) -> PauseSummary {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        PauseSummary {
            longest_ns: self.longest_ns.load(Ordering::Relaxed),
            total_ns: self.total_ns.load(Ordering::Relaxed),
            by_length: counts.enumerate().map(|(bucket, count)| (1 << bucket, count)).collect(),
        }
    }
}

/// Counters and latencies.
#[derive(Debug)]
pub struct Stats {
    /// The counters.
    pub counters: Counters,
    /// Nanoseconds from reading a far fault to its page being mapped.
    far_latency: Mutex<Histogram<u64>>,
    /// How long threads waited: for far pages, for room, for the end of evictions.
    pub pauses: Pauses,
}

impl Default for Stats {
    fn default() -> Self {
        // Bounded: recording never allocates.
        let histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3);
        Self {
            counters: Counters::default(),
            pauses: Pauses::default(),
            far_latency: Mutex::new(histogram.unwrap_or_else(|_| unreachable!("constant bounds"))),
        }
    }
}

impl Stats {
    /// A fault on a far page took this long to serve.
    pub fn far_fault(&self, elapsed: Duration) {
        self.far_latency.lock().saturating_record(elapsed.as_nanos() as u64);
        self.pauses.record(elapsed);
    }

    /// A thread has waited so long for a page that was not far.
    pub fn pause(&self, elapsed: Duration) {
        self.pauses.record(elapsed);
    }

    /// A first touch was served; it may have waited for room.
    pub fn late_fault(&self, since: Instant) {
        let elapsed = since.elapsed();
        if elapsed >= LATE {
            self.pauses.record(elapsed);
        }
    }

    /// A thread waits for a page that is on its way. Of several, the first one counts.
    pub(crate) fn waits(table: &mut Table, page: Page, since: Instant) {
        // One that is there already has woken whoever waited.
        if !table.states.is_taken_back(page) && !table.waits.iter().any(|(waited, _)| *waited == page) {
            table.waits.push((page, since));
        }
    }

    /// A page has come.
    pub(crate) fn waited(&self, table: &mut Table, page: Page) {
        if let Some(at) = table.waits.iter().position(|(waited, _)| *waited == page) {
            let (_, since) = table.waits.swap_remove(at);
            self.pauses.record(since.elapsed());
        }
    }

    /// Percentiles of the service time of far faults, in nanoseconds.
    pub fn far_latency_ns(&self, percentiles: &[f64]) -> Vec<u64> {
        let histogram = self.far_latency.lock();
        percentiles.iter().map(|&percentile| histogram.value_at_percentile(percentile)).collect()
    }
}
