//! Counters and fault latencies of one run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;

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
    /// Faults on pages that were just being evicted.
    eviction_waits,
    /// Pages read from far memory.
    pages_in,
    /// Pages written to far memory.
    pages_out,
    /// Evicted pages that far memory already held.
    clean_drops,
    /// Evicted pages that held only zeroes.
    zero_drops,
    /// Evictions given up (a fork was under way, or the page could not be read).
    evictions_undone,
    /// Eviction batches.
    batches,
    /// Pages given up by the program.
    discarded_pages,
    /// Forks followed.
    forks,
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

/// Counters and latencies.
#[derive(Debug)]
pub struct Stats {
    /// The counters.
    pub counters: Counters,
    /// Nanoseconds from reading a far fault to its page being mapped.
    far_latency: Mutex<Histogram<u64>>,
}

impl Default for Stats {
    fn default() -> Self {
        // Bounded: recording never allocates.
        let histogram = Histogram::new_with_bounds(1, 10_000_000_000, 3);
        Self {
            counters: Counters::default(),
            far_latency: Mutex::new(histogram.unwrap_or_else(|_| unreachable!("constant bounds"))),
        }
    }
}

impl Stats {
    /// A fault on a far page took this long to serve.
    pub fn far_fault(&self, elapsed: Duration) {
        self.far_latency.lock().saturating_record(elapsed.as_nanos() as u64);
    }

    /// Percentiles of the service time of far faults, in nanoseconds.
    pub fn far_latency_ns(&self, percentiles: &[f64]) -> Vec<u64> {
        let histogram = self.far_latency.lock();
        percentiles.iter().map(|&percentile| histogram.value_at_percentile(percentile)).collect()
    }
}
