//! Spans of time of the client library.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest that a node may take to answer a request, unless the program chooses otherwise. To allocate
/// gigabytes may take the node seconds.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause before a request goes again to a node that has too many waiting, or whose socket is full.
/// Long beside what a node needs for a request, so that those that ask do not keep it from answering.
pub const BUSY_PAUSE: Duration = Duration::from_millis(1);

/// How often a program that polls checks whether its node has ended. A check is a system call; a node's end
/// is an error of the program's transfers within a tenth of a second.
pub const NODE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The longest that a wait for a transfer spins without giving the processor to anybody: about what the
/// fastest transfers take (`bench/RESULTS.md`), and about what a switch to another thread costs.
pub const SPIN: Duration = Duration::from_micros(2);

/// How long a wait polls before it sleeps, at least and at most: twice as long as waits took lately. To sleep
/// and to be woken costs both sides some ten microseconds.
pub const POLL_BEFORE_SLEEP: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_millis(1);

/// The longest that a waiting thread drives a node in its own process before it leaves that to the node's
/// thread: five times the longest polling, so a thread that waits for something long sleeps.
pub const DRIVE_BEFORE_SLEEP: Duration = Duration::from_millis(5);

/// New transfers that are to be sent together go when no completion has come in for this long. Short beside
/// a round trip, so that a lone transfer loses little.
pub const GATHER_PAUSE: Duration = Duration::from_micros(2);

/// New transfers that are to be sent together go after this long at the latest: two bare
/// round trips over UDP on loopback, which take 10 µs each (`tombolo-bench paging`).
pub const MAX_GATHER: Duration = Duration::from_micros(20);

/// The longest sleep of a wait, so that the node's end is noticed; as [`NODE_CHECK_INTERVAL`].
pub const MAX_SLEEP: Duration = Duration::from_millis(100);
