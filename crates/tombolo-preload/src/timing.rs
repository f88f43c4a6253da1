//! Spans of time in the program's side, each with what it bounds.

/// How long a thread sleeps at most before it looks again whether what it waits for is still to come: the
/// one to wake it may have been killed. (Waking is the rule, and takes microseconds.)
pub const RECHECK_MS: i64 = 1000;

/// Number of tries to get the gate before the agent sleeps: some microseconds, which is what the supervisor needs for an
/// event. A supervisor that holds it longer has lost its processor.
pub const GATE_SPINS: u32 = 1000;

/// Between two looks at a thread that forks while others wait to change memory. Copying the page tables
/// of 64 MiB takes a millisecond.
pub const FORK_LOOK_MS: i64 = 10;

/// Number of looks, one after the other, at which a forking thread has used no processor time: then it waits for
/// a lock, perhaps of the thread that looks, or the kernel has reported the fork. Several, since a busy
/// machine may have it wait for a processor.
pub const FORK_IDLE_LOOKS: u32 = 10;

/// Between two requests to make a range local while some of it is on its way: about what an eviction or a fetch
/// takes.
pub const LOCALISE_RETRY_US: i64 = 100;

/// Number of such requests before the call fails with EAGAIN: 5 to 10 s, where moving a batch takes milliseconds.
pub const LOCALISE_TRIES: u32 = 50_000;
