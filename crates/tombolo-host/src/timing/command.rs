//! Spans of time of the command line.

use std::time::Duration;

/// The longest that a process waits at its end until all lines of its log are written. What a terminal that
/// is stopped has not taken by then is lost.
pub const LOG_END_TIMEOUT: Duration = Duration::from_secs(1);

/// How often a process that ends checks whether its log's queue has room.
pub const LOG_END_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// How long a client that reads metrics by HTTP may take for its request, which it sends at once, and for the answer. A bound, not a measurement.
pub const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// After a client could not be taken, before the next one is. A bound, not a measurement.
pub const CLIENT_ERROR_PAUSE: Duration = Duration::from_millis(50);

/// How often a node that drains checks who still borrows: users do not notice a tenth of a second.
pub const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// How often a node that drains says how far it is, if that has changed: a few lines in its 30 s.
pub const DRAIN_REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// The longest that `ping` waits for an answer unless `--timeout` says otherwise: twice the silence after which a
/// link is suspect.
pub const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest `--timeout` of `ping`. What takes longer than a minute, a user does not wait for.
pub const MAX_PING_TIMEOUT: Duration = Duration::from_secs(60);

/// After the list of keys has been read again, the node looks for links of keys that are no longer on it once
/// more after this time. A link whose handshake found its key on the list just before the list changed is
/// with the node by then.
pub const HANDSHAKE_SETTLE_TIME: Duration = Duration::from_secs(1);

/// How often `demo` checks its children and the signals: a user does not notice 10 ms, and its runs take seconds.
pub const DEMO_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The longest that one run of `demo` may take: its longest takes a hundredth of that on a machine with little to do.
pub const DEMO_RUN_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest wait of `demo` for another comparison that swaps on zram; then that is left out.
pub const DEMO_ZRAM_TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest that a child of `demo` may take to end after SIGTERM, before it is killed. A bound, not a
/// measurement: a user who ends `demo` does not wait longer without wondering.
pub const DEMO_END_TIMEOUT: Duration = Duration::from_secs(3);

/// How often a wait for a child process of a comparison or bench checks whether the command is to end: a user
/// who presses Ctrl-C waits half a second at most.
pub const CHILD_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The longest that a redis-server may take to start, or to answer a request. The slowest answer is that of a
/// server whose memory is swapped: a request touches some pages, of some milliseconds each.
pub const REDIS_ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Between two attempts to connect to a redis-server that is starting.
pub const REDIS_CONNECT_INTERVAL: Duration = Duration::from_millis(10);

/// How often a pause of `ping` checks whether a signal has come: users do not notice a tenth of a second.
pub const PING_CHECK_INTERVAL: Duration = Duration::from_millis(100);
