//! Spans of time of the pager.

use std::time::Duration;

/// How long a handler that has sent for a page polls before it sleeps. A page over UDP takes 20-40 us on one
/// machine; waking a thread on another processor takes 20-50 us.
pub const PAGE_POLL: Duration = Duration::from_micros(150);
/// How long a handler rests that found eight faults in a row taken: where handlers are few, each fault wakes all that do not rest. A
/// program that moves to another processor is served from afar for so long.
pub const HANDLER_REST: Duration = Duration::from_millis(4);
/// How long a handler rests while all faults are another handler's. It is woken when that changes; after this time it looks
/// once, in case the other one has no processor. A bound, not a measurement.
pub const HANDLER_LONG_REST: Duration = Duration::from_secs(1);
/// How long a handler waits for the agent to leave the gate before it serves other spaces. The agent moves at
/// most sixteen pages meanwhile (some 25 us, if they do not follow each other in memory): one that takes longer has lost its processor.
pub const GATE_TIMEOUT: Duration = Duration::from_millis(2);

/// After this time, what an address space put off by changing is looked at again. The change ends when its thread has
/// gone on: 50 us where it is woken on another processor, longer on a busy machine. A bound, not a measurement.
pub const CHANGE_PAUSE: Duration = Duration::from_millis(1);
/// Pause of the evictor where pages that it found could not be claimed: a third of what the agent needs for the batch
/// (0.3 ms) whose end frees them.
pub const CLAIM_PAUSE: Duration = Duration::from_micros(100);
/// Longest sleep of the evictor. It is woken when room is short; this bounds how long anything that was forgotten
/// would be. A bound, not a measurement.
pub const EVICTOR_MAX_SLEEP: Duration = Duration::from_millis(200);
/// An agent that has not answered for this long is late: its program is frozen, or the machine is very busy. A
/// batch of 128 pages takes 0.3 ms. Others go on, and it is looked after less often.
pub const AGENT_LATE: Duration = Duration::from_millis(20);
/// How long the evictor sleeps where it found only pages of late agents: what it spares, it would look at again
/// and again, on a processor that the agent may need.
pub const LATE_AGENT_PAUSE: Duration = Duration::from_millis(1);
/// An agent that has not answered for this long is not waited for: its program is frozen. Others may then exceed
/// the limit, if nothing else can leave. A bound, not a measurement: with one second, and an evictor that kept a
/// processor busy, agents were taken for frozen beside six busy threads on two processors.
pub const AGENT_FROZEN: Duration = Duration::from_secs(2);
/// For how long no page must have left before the limit gives way: hundreds of times what a batch takes on a
/// quiet machine. A bound, not a measurement.
pub const FRUITLESS_AFTER: Duration = Duration::from_millis(250);

/// How often it is looked whether programs still are what they were (one system call a program).
pub const PROGRAM_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How often it is looked how much memory programs have that is not served (one file a program).
pub const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// After this time without a hello, a forked child has no agent, and it is said: it says hello while it is being forked,
/// if it has a processor. A bound, not a measurement.
pub const AGENT_HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an attaching agent may take to say hello. Its program waits, and nobody else. A bound, not a measurement: on a
/// busy machine an agent may have no processor for a second.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause of the listener where no descriptor is left for another agent.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// How long a message about an agent that has ended waits for how it ended, which is known when its parent has asked. A
/// bound: a killed process needs a processor to end, and may have none for a second on a busy machine.
pub const AGENT_END: Duration = Duration::from_secs(2);
/// After this long, what an agent that has hung up had done of its command is not known any more. It ends within
/// microseconds, if it has a processor; then its program is looked at every [`CHANGE_PAUSE`] until it is not changing its
/// mappings at that moment. A bound, not a measurement.
pub const AGENT_GONE: Duration = Duration::from_secs(30);
/// How long after a fork nothing is done about the pages that parent and child share: many children execute another program or end
/// within a millisecond or two, and then nothing needs to be done.
pub const FORK_PAUSE: Duration = Duration::from_millis(5);
/// The thread that forks goes on within this time when its fork was told. A bound, not a measurement.
pub const FORK_END_PAUSE: Duration = Duration::from_micros(20);
/// How long after the end of a space that shared pages others look at theirs: several may end together.
pub const SHARING_PAUSE: Duration = Duration::from_millis(2);
/// While there is room for all copies that the holders of shared pages may make, the evictor looks this often whether there still is. A
/// bound, not a measurement: whoever takes the last of that room wakes it.
pub const SHARING_LONG_PAUSE: Duration = Duration::from_secs(1);
/// After this time without a hello, what a forked child shares is not expected to leave it. A bound, not a measurement.
pub const AGENT_HELLO_LATE: Duration = Duration::from_secs(1);
/// How often the keeper looks for faults of programs that it is ending.
pub const KEEPER_INTERVAL: Duration = Duration::from_millis(50);
/// How long a run waits for the end of its keeper, which it has killed. A bound, not a measurement: it takes a millisecond.
pub const KEEPER_END: Duration = Duration::from_secs(5);
/// How often it looks.
pub const KEEPER_END_INTERVAL: Duration = Duration::from_millis(1);
/// After this time, the user is told that descendants keep the run from ending.
pub const DESCENDANTS_NOTICE: Duration = Duration::from_secs(2);
/// How long processes that were killed may take to be gone before those that are left are the keeper's: freeing some GiB
/// takes a second.
pub const DESCENDANTS_END: Duration = Duration::from_secs(3);
/// A signal for the number and one for the group that come within this time are one.
pub const SAME_SIGNAL: Duration = Duration::from_secs(1);
/// How often it is looked whether descendants have ended.
pub const DESCENDANTS_INTERVAL: Duration = Duration::from_millis(5);
/// How long the front waits for an answer of its witness before it looks whether that is stopped. A bound, not a measurement: the answer
/// takes 10-50 us.
pub const WITNESS_PAUSE: Duration = Duration::from_millis(20);
/// Maximum time that the front waits for an answer of its witness, which a debugger may have halted.
pub const WITNESS_ANSWERS: Duration = Duration::from_secs(1);
/// How often the front looks whether its program has been stopped before it was executed.
pub const STARTING_INTERVAL: Duration = Duration::from_millis(10);
/// Within this time a signal for a group that has come to one process of it has mostly come to the next: the kernel sends it to one after
/// the other, and is held up only by interrupts. What comes later is taken for a signal for one process.
pub const GROUP_SETTLES: Duration = Duration::from_micros(100);
/// When no signal has come to the front for this long, what its witness has was sent to the witness alone.
pub const TWINS_KEPT: Duration = Duration::from_millis(20);
/// How often it is looked whether the front has gone on.
pub const FRONT_GOES_ON_INTERVAL: Duration = Duration::from_millis(1);
/// How long it is looked at most: a front that is frozen as it stops finds out itself that its program goes on.
pub const FRONT_GOES_ON: Duration = Duration::from_secs(1);
/// How often a program is told to go on that reads from a terminal, or writes to it, which it may not, and takes no notice.
pub const ORPHAN_STOP_INTERVAL: Duration = Duration::from_millis(10);
