//! Spans of time of the client library.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest that a node may take to answer a request, unless the program chooses otherwise. The longest
/// request allocates memory: a gibibyte takes 0.6 s, so this is enough for some 50.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause before a request goes again to a node that has too many waiting, or whose socket is full.
/// A hundred times what a message to another process and its answer take (8 µs), so that programs that ask do
/// not keep their node from answering.
pub const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// How often a program that polls checks whether its node has ended. A check is a system call of 0.3 µs. The
/// program's transfers fail this long after the node's end at the latest.
pub const NODE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The longest that a wait for a transfer spins without giving the processor to another thread: about what the
/// fastest transfers take (`bench/RESULTS.md`). A switch to another thread on the same processor takes 1.3 µs.
pub const SPIN: Duration = Duration::from_micros(2);

/// How long a wait polls before it sleeps, at least and at most: twice as long as waits took lately. A sleep and
/// the call that wakes the sleeper take 4 µs (half of a round trip between two threads by futex). So the
/// shortest polling is worth a dozen of them; the longest bounds what a program uses that waits for something slow.
pub const POLL_BEFORE_SLEEP: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(1);

/// The longest that a waiting thread drives a node in its own process before it leaves that to the node's
/// thread: five times the longest polling, so a thread that waits for something long sleeps.
pub const DRIVE_BEFORE_SLEEP: Duration = Duration::from_millis(5);

/// A waiting thread that drives a node and has found nothing to do for this long gives its processor to another thread
/// now and again: five round trips over UDP on loopback (10 µs). The other may be the peer's.
pub const DRIVE_QUIET: Duration = Duration::from_micros(50);

/// New transfers that are to be sent together go when no completion has come in for this long: a fifth of a
/// round trip over UDP on loopback (10 µs), so that a lone transfer loses little.
pub const GATHER_PAUSE: Duration = Duration::from_micros(2);

/// New transfers that are to be sent together go after this long at the latest: two bare
/// round trips over UDP on loopback, which take 10 µs each (`tombolo-bench paging`).
pub const MAX_GATHER: Duration = Duration::from_micros(20);

/// The longest sleep of a wait, so that the node's end is noticed; as [`NODE_CHECK_INTERVAL`].
pub const MAX_SLEEP: Duration = Duration::from_millis(100);

/// How long a thread that makes accesses for the node looks for the next order before it sleeps: blocks of one transfer
/// come one after the other.
pub const ACCESS_POLL: Duration = Duration::from_micros(50);

/// The longest sleep of that thread, though nobody wakes it. A bound, not a measurement.
pub const ACCESS_MAX_SLEEP: Duration = Duration::from_secs(1);

/// How long one that is woken for nothing sleeps while a thread of the program polls, before it looks whether that one still takes orders:
/// it may be in a signal handler. A bound, not a measurement.
pub const ACCESS_POLLER_PAUSE: Duration = Duration::from_millis(100);

/// How long no further thread is started after one could not be: the limit of a user or a cgroup seldom changes sooner.
pub const ACCESS_START_PAUSE: Duration = Duration::from_secs(1);

/// How long the end of a domain waits for a copy that is being made: a copy takes microseconds, unless its page went away under it. A
/// bound, not a measurement.
pub const ACCESS_CLOSE_WAIT: Duration = Duration::from_secs(1);
