//! Spans of time of waits for this machine's kernel.

use std::time::Duration;

/// The longest wait for the last process of a control group to be gone: its processes have ended, and the
/// kernel needs a moment to release their memory.
pub const GROUP_REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two attempts to remove a control group: a hundred system calls a second at most, and a user does not
/// notice 10 ms.
pub const GROUP_REMOVAL_INTERVAL: Duration = Duration::from_millis(10);

/// While all tasks of an owner in a pool wait, they are tried again after this long: each try is a look at a full
/// link or at memory that is being freed. A bound, not a measurement.
pub const POOL_WAIT_PAUSE: Duration = Duration::from_millis(1);

/// A thread of a pool with nothing to do ends after this long, thousands of times what starting one costs.
pub const POOL_THREAD_MAX_IDLE: Duration = Duration::from_secs(1);

/// The longest that binding a socket waits for others that bind in the same directory, which takes them
/// microseconds: whoever holds the lock for longer is somebody else, who must not stop us.
pub const BIND_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two attempts to get that lock, which others hold for microseconds: a user does not notice 5 ms.
pub const BIND_LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// The longest wait for the file of a zram device to appear, or for others that look at it to close it: udev
/// does either within tenths of a second.
pub const ZRAM_DEVICE_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two looks at a zram device's file: small beside the tenths of a second that udev takes.
pub const ZRAM_DEVICE_INTERVAL: Duration = Duration::from_millis(10);

/// The longest wait for the swap space of another comparison to go. Of two with one priority the kernel takes
/// pages by turns, so that each would hold pages of the other's programs. A run of the slowest comparison
/// ends in this time.
pub const ZRAM_TURN_TIMEOUT: Duration = Duration::from_secs(300);

/// Between two looks whether that swap space is gone: small beside the minutes of a run.
pub const ZRAM_TURN_INTERVAL: Duration = Duration::from_millis(50);

/// For this long ending a swap space is tried again: the programs that were swapped may not be quite gone.
pub const ZRAM_END_TIMEOUT: Duration = Duration::from_secs(10);

/// Between two attempts to end it: small beside the seconds that a comparison takes.
pub const ZRAM_END_INTERVAL: Duration = Duration::from_millis(100);

/// How often a group whose limit was raised for a moment tries to have its own limit again. Each attempt is one
/// write to a file of the group. A bound, not a measurement.
pub const RELIEF_RETRY_INTERVAL: Duration = Duration::from_micros(500);

/// How often the thread that raises the limit of a group checks, while the group has room, whether it is to end:
/// twenty times a second cost nothing, and ending it takes no longer than that.
pub const RELIEF_END_CHECK_INTERVAL: Duration = Duration::from_millis(50);
