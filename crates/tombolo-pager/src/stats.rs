//! Counters and fault latencies of one run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tombolo_core::pager::Page;

use crate::space::Table;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Event counts of one run. A page has 4096 bytes.
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
    /// First touches served.
    zero_faults,
    /// Pages mapped for first touches.
    zero_pages,
    /// Faults on pages in far memory.
    far_faults,
    /// Pages fetched ahead because a page near them was asked for.
    prefetched_pages,
    /// First writes to pages that had been fetched for reading.
    write_faults,
    /// Faults that had to wait for room.
    room_waits,
    /// Faults that waited for the end of an eviction of their page.
    eviction_waits,
    /// Pages that a thread touched while they were being saved, and that stayed.
    taken_back,
    /// Times a fault handler was woken from sleep by an event.
    handler_wakes,
    /// Calls that read faults and changes from the kernel.
    handler_reads,
    /// Context switches of the fault handlers; added when a handler ends.
    handler_switches,
    /// Pages read from far memory.
    pages_in,
    /// Pages written to far memory.
    pages_out,
    /// Evicted pages that far memory already held.
    clean_drops,
    /// Evicted pages of mappings that are not writable: each was copied where it was mapped, and dropped there.
    read_only_drops,
    /// Evicted pages that held only zeroes.
    zero_drops,
    /// Evictions that were given up: a thread wanted the page, a fork was under way, or the page could not be read.
    evictions_undone,
    /// Pages that the kernel moved out although it reported an error (Linux 6.18 does that).
    moves_misreported,
    /// Eviction batches.
    batches,
    /// Pages given up by the program.
    discarded_pages,
    /// Pages found absent although no event had reported that they were dropped.
    unseen_drops,
    /// Forks followed.
    forks,
    /// Pages that were shared after a fork and copied because a process wrote to them.
    fork_copies,
    /// Pages that were shared after a fork and evicted from a process.
    shared_drops,
    /// Address spaces served.
    spaces,
    /// Pages lost with a lender.
    lost_pages,
    /// Pages of mappings that could not be registered as far memory.
    unregistered_pages,
    /// Pages of far memory that became ordinary memory.
    localised_pages,
    /// Processes that are served without an agent: none of their pages can be evicted.
    without_agent,
}

impl Counters {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }
}

/// Number of buckets of [`Pauses`]. They hold pauses of up to 1 us, 2 us, 4 us and so on; the last one also holds all
/// longer ones.
const PAUSE_BUCKETS: usize = 32;
/// A first touch that took less than this has not waited for room: mapping the page and its neighbours takes 30 us.
const LATE: Duration = Duration::from_micros(100);

/// How long threads of the program have waited for pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PauseSummary {
    /// The longest pause, in nanoseconds.
    pub longest_ns: u64,
    /// Sum of all pauses, in nanoseconds.
    pub total_ns: u64,
    /// Pairs of an upper bound in microseconds (1, 2, 4 and so on) and the number of pauses up to it that exceed the bound
    /// before. The last pair also counts all longer pauses.
    pub by_length: Vec<(u64, u64)>,
}

/// Histogram of how long threads waited for pages.
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

    /// The values as they are now.
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
    /// Records how long it took to serve a fault on a far page.
    pub fn far_fault(&self, elapsed: Duration) {
        self.far_latency.lock().saturating_record(elapsed.as_nanos() as u64);
        self.pauses.record(elapsed);
    }

    /// Records how long a thread has waited for a page that was not far.
    pub fn pause(&self, elapsed: Duration) {
        self.pauses.record(elapsed);
    }

    /// Records a first touch if it was late: it may have waited for room.
    pub fn late_fault(&self, since: Instant) {
        let elapsed = since.elapsed();
        if elapsed >= LATE {
            self.pauses.record(elapsed);
        }
    }

    /// Notes that a thread waits for a page that is on its way. If several threads wait for it, the first one counts.
    pub(crate) fn waits(table: &mut Table, page: Page, since: Instant) {
        // A page that was taken back is mapped already, and its waiting threads were woken.
        if !table.states.is_taken_back(page) && !table.waits.iter().any(|(waited, _)| *waited == page) {
            table.waits.push((page, since));
        }
    }

    /// Records the pause of the thread that has waited for this page, if there is one.
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
