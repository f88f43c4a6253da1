//! Spans of time of network ports.

use std::time::Duration;

/// How long the owner of an uplink may take to answer, here or at another machine. A bound, not a measurement: it answers
/// at once.
pub const OWNER_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the caller's wish to end, the uplink's carrier and a port's device are looked at. A look is a few system
/// calls of 1 µs.
pub const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// After an owner has gone, the next one is looked for so often; and so is a device or a name that is about to go. An
/// attempt takes 50 µs.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How often an owner is asked that has refused a port again and again.
pub const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The pause before descriptors are passed again to an owner that has not let this process in yet, which takes it 0.1 ms
/// unless it is busy.
pub const LET_IN_PAUSE: Duration = Duration::from_millis(1);

/// How long nothing may be heard of an owner at another machine before the port waits for its next life: little more than a
/// node takes to suspect that the other has gone (1.5 s). A restart is to be a short pause also for a port that sends nothing.
pub const OWNER_OUTAGE: Duration = Duration::from_secs(2);

/// How long the owner's node may take to answer the first word. A bound, not a measurement.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it is looked whether the owner's node is still there.
pub const NODE_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a port of the same name may take to go whose process at another machine was killed: until nothing was heard of
/// its node for [`OWNER_OUTAGE`], and it was looked at.
pub const NAME_TIMEOUT: Duration = Duration::from_secs(4);

/// How long a device of the same name may take to go: the owner has it until it sees that its port has ended.
pub const DEVICE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long it takes until a thread is asked for again that could not be had.
pub const START_PAUSE: Duration = Duration::from_secs(1);

/// How long a thread rests when nobody can be accepted, since no descriptors are left.
pub const ACCEPT_ERROR_PAUSE: Duration = Duration::from_millis(100);

/// What was written to a file so shortly before it was read may have been written again since, without another time: file
/// systems keep the time of the last tick, of which there are 100 a second or more.
pub const FRESH_FILE: Duration = Duration::from_millis(100);

/// How late the thread that moves frames is woken, 99th percentile: 20 to 50 µs from halt, and as much again on a busy
/// machine.
pub const WAKE: Duration = Duration::from_micros(100);

/// How long that thread waits for room for what is to be posted to another node, at most: ten round trips of 100 µs.
pub const POST_WAIT: Duration = Duration::from_millis(1);

/// The shortest wait for a shaped uplink: several frames are sent after it, and what could be sent meanwhile is not lost
/// (the bucket saves up more). What a port sends ends it.
pub const SHAPED_WAIT_MIN: Duration = Duration::from_micros(100);
