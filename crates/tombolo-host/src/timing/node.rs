//! Spans of time of the node.

use std::time::Duration;

/// How long a thread that drives links polls after the last packet before it sleeps. Longer than the round trip of
/// a small transfer over loopback, so that the next packet of an exchange is met awake; far below a time slice.
pub const POLL: Duration = Duration::from_micros(60);
/// How long nothing may have come by one link before the loop leaves it alone while others are busy. Several time slices, so that a
/// peer which is slow because it shares a processor is still met awake; a link by which nothing comes but signs of life, three a
/// second, is looked at for less than a hundredth of the time.
pub const QUIET: Duration = Duration::from_millis(2);
/// Links that are left alone have their timers looked at together, if these are further away than twice this: a wake for each of a
/// thousand links would cost more than what it is for. Signs of life go that much later at most.
pub const QUIET_TIMERS: Duration = Duration::from_millis(16);
/// Rounds of a polling thread between two looks at the clock and the timers. Timers count milliseconds, and an
/// idle round takes about a microsecond, so a look every 16 rounds makes no timer noticeably late. A bound, not a
/// measurement.
pub const TIMER_CHECK_ROUNDS: u32 = 16;
/// The longest sleep of a thread that whoever it waits for can wake: after it, the thread sees that it is to stop.
/// Four rounds a second cost an idle node nothing that can be measured, and a quarter of a second is no delay to a
/// user who ends it.
pub const MAX_SLEEP: Duration = Duration::from_millis(250);
/// Between two looks for newcomers while the loop polls: a look is a system call, and costs as much as a packet.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(1);
/// Between two looks after newcomers and losses while a program drives the node. Each takes the processor from the
/// program, which shows in the 99th percentiles if it is frequent.
pub const STAND_BY_PAUSE: Duration = Duration::from_millis(10);
/// After this long, a message that a link did not take is offered again: a link over loopback empties its queue in
/// less, and a slower one is asked 200 times a second.
pub const SEND_PAUSE: Duration = Duration::from_millis(5);
/// As [`SEND_PAUSE`], of a thread that waits for an answer and has nothing else to do.
pub const ASK_SEND_PAUSE: Duration = Duration::from_millis(1);
/// The longest sleep of a thread that waits for an answer, which another thread may take off the link: so much is
/// lost then.
pub const ASK_MAX_SLEEP: Duration = Duration::from_millis(5);

/// How long a node that is dialed may take to answer, for each of the two steps: connecting, and the question.
/// Twice the silence after which a link is suspect.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(3);
/// Between two looks at the links of neighbours that have several addresses: a lost one is dialed again that much
/// later, beside the first pause of 100 ms.
pub const NEIGHBOUR_PATHS_PAUSE: Duration = Duration::from_millis(50);
/// As [`NEIGHBOUR_PATHS_PAUSE`], of a thread that looks after the links to one node alone.
pub const PATHS_PAUSE: Duration = Duration::from_millis(20);
/// How long SIGHUP waits for the list of keys to be read. A bound, not a measurement.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Before a lost path is tried again at first: those of the machine of neighbours.
pub const FIRST_PATH_PAUSE: Duration = Duration::from_millis(100);
/// Before a lost path is tried again at most, as there.
pub const LONGEST_PATH_PAUSE: Duration = Duration::from_secs(5);
/// How long one attempt to have a lost path back may take. Whoever ends waits for that, so it is no longer than a
/// user waits without wondering.
pub const PATH_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest sleep of the thread that drives further links: links may have come meanwhile, and timers of what
/// others have sent, which begin at 6 ms.
pub const PATHS_MAX_SLEEP: Duration = Duration::from_millis(10);

/// How long a full link or socket is tried again for an answer. Twice the silence after which a link is suspect: a
/// peer or program that takes nothing for so long is not going to.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// How long memory waits for threads that stand back, which on a busy machine may have no processor; then others free it.
/// A bound, not a measurement.
pub const STAND_BACK: Duration = Duration::from_secs(10);
/// How long it is waited for the end of a process whose link has ended: its descriptors are closed shortly before. A
/// bound, not a measurement.
pub const HOLDER_END: Duration = Duration::from_millis(100);
/// How long a peer that asks for memory waits for what others gave back to be freed: some tens of GiB, at the few
/// GiB a second that a kernel frees, and less than the peer waits for its answer ([`LEND_TIMEOUT`]).
pub const LEND_FREEING_TIMEOUT: Duration = Duration::from_secs(30);
/// As [`LEND_FREEING_TIMEOUT`], for a program, whose library waits 30 s for an answer.
pub const ALLOCATE_FREEING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long memory that is freed may be in use still before the program hears that it is freed: a block that is
/// being copied or sent is done in far less.
pub const IN_USE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long another node may take to pass a window, before the program that asks for it hears that it does not answer: a
/// third of what the program waits for (`client::DEFAULT_REQUEST_TIMEOUT`). A bound, not a measurement.
pub const MAP_WINDOW_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one huge page may take. Where it takes longer, the kernel has to move others for it, which costs more
/// than it is worth; zeroing 2 MiB takes a tenth of that.
pub const HUGE_PAGE_TIMEOUT: Duration = Duration::from_millis(2);
/// How much longer than [`HUGE_PAGE_TIMEOUT`] the huge pages of one allocation may take altogether, since a few are
/// slow without the rest being so.
pub const HUGE_PAGES_RESERVE: Duration = Duration::from_millis(20);

/// How long programs that cannot be received now wait: for a descriptor or a place to become free. Ten attempts a
/// second cost nothing.
pub const CROWDED_PAUSE: Duration = Duration::from_millis(100);

/// How long a lender or a node whose status is asked for may take to answer: as [`DIAL_TIMEOUT`].
pub const BORROW_TIMEOUT: Duration = Duration::from_secs(3);
/// How long allocating what is lent may take: some hundred GiB, at the few GiB a second that a kernel zeroes.
pub const LEND_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a lender may take to confirm that it has its memory back. A borrower that ends does not need to know.
pub const RELEASE_TIMEOUT: Duration = Duration::from_millis(500);
/// The longest sleep between two looks at the links to lenders whose memory is mapped: no packets come there.
pub const WINDOWS_MAX_SLEEP: Duration = Duration::from_millis(100);
/// The shortest sleep of the thread that looks after a far store: copies in the background are begun that often at
/// most, 16 at a time, which is as much as they may be in a second.
pub const FAR_STORE_MIN_SLEEP: Duration = Duration::from_micros(600);
/// How long pages that are being written are polled for after the last one has arrived, before the writer sleeps:
/// a few round trips over loopback.
pub const WRITE_POLL: Duration = Duration::from_micros(200);
/// The longest sleep of that writer: a thread that receives may have taken its completion.
pub const WRITE_MAX_SLEEP: Duration = Duration::from_millis(1);
/// The longest sleep while pages are being read, and the shortest: below, a sleep takes as long as a poll.
pub const READ_MAX_SLEEP: Duration = Duration::from_millis(10);
/// As [`READ_MAX_SLEEP`] says.
pub const READ_MIN_SLEEP: Duration = Duration::from_micros(50);
/// The longest that the whole status of a node may take, or the list of its named segments beside it: many parts, each of which takes
/// less than [`BORROW_TIMEOUT`]. A bound, not a measurement.
pub const STATUS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a node may take for an answer to one that copies: as [`DIAL_TIMEOUT`], and some for a busy one.
pub const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node may take to allocate or check the bytes of a copy, beside the time for their number.
pub const STORE_LONG_TIMEOUT: Duration = Duration::from_secs(120);
/// The longest sleep of the thread that drives the link of a copy: transfers may have been posted meanwhile, and
/// their timers, which begin at 6 ms, want to be looked at.
pub const STORE_MAX_SLEEP: Duration = Duration::from_millis(5);
/// How often one that waits for a transfer of a copy looks whether it is to go on: no delay to a user who ends it.
pub const STORE_PAUSE: Duration = Duration::from_millis(100);
/// How long a ping polls before it sleeps on the link: longer than a round trip over loopback.
pub const PING_POLL: Duration = Duration::from_micros(100);
/// How long a ping polls before it lets others that are ready have its processor between looks: longer than a round trip
/// over shared memory to a node that has one of its own.
pub const PING_SPIN: Duration = Duration::from_micros(5);

/// How long a helper waits for what its node passes right after starting it. A bound, not a measurement.
pub const HELPER_START_TIMEOUT: Duration = Duration::from_secs(30);
