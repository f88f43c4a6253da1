//! Spans of time of waits for this machine's kernel.

use std::ops::RangeInclusive;
use std::time::Duration;

/// The longest wait for the last process of a control group to be gone: its processes have ended, and the
/// kernel needs a moment to release their memory.
pub const GROUP_REMOVAL_TIMEOUT: Duration = Duration::from_secs(2);

/// Between two attempts to remove a control group: at most so much is added to the end of a run.
pub const GROUP_REMOVAL_INTERVAL: Duration = Duration::from_millis(10);

/// While all tasks of an owner in a pool wait, they are tried again after this long: one owner's tasks cost a
/// thread at most a thousand switches of 1.3 µs a second.
pub const POOL_WAIT_PAUSE: Duration = Duration::from_millis(1);

/// As [`POOL_WAIT_PAUSE`], while they wait for what takes long. An owner may have hundreds of them, each of which takes
/// 0.3 µs: in a hundredth of a second that is no load.
pub const POOL_REST_PAUSE: Duration = Duration::from_millis(10);

/// A thread of a pool with nothing to do ends after this long: to start and join another takes 20 µs, a
/// fifty-thousandth of this.
pub const POOL_THREAD_MAX_IDLE: Duration = Duration::from_secs(1);

/// The longest that binding a socket waits for others that bind in the same directory. To bind and to listen
/// take 8 µs: a process that holds the lock for longer is no node, or is stopped, and must not stop us.
pub const BIND_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Between two attempts to get that lock: a node that finds it taken starts this much later.
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

/// After an attempt to lower the limit of a control group failed: until the next. Short beside a run, so that hardly
/// any of it has more memory than its limit says.
pub const RELIEF_LOWER_INTERVAL: Duration = Duration::from_micros(500);

/// How often the thread that raises a control group's limit checks whether it is to end: the end of a run is
/// delayed by this at most.
pub const RELIEF_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A yield that takes longer has let another thread run: one with nobody else there takes 0.4 µs, a switch to another
/// thread and back 2.6.
pub const SHARED_YIELD: Duration = Duration::from_micros(2);

/// Between two moves of a thread that shares its processor, at first and at last, where they do not help: a move takes
/// 60 µs, so that they cost 3 % of the time at most, and then nothing that can be measured.
pub const MOVE_PAUSE: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(160);
