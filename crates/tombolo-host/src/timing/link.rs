//! Spans of time of links between nodes.

use std::time::Duration;

/// A connection over shared memory that has not introduced itself by then is closed. The other side is a
/// process of this machine that sends its introduction at once, and a message to another process takes 4 µs:
/// only a process that is stopped takes longer.
pub const SHM_INTRODUCTION_TIMEOUT: Duration = Duration::from_secs(1);

/// While this process has no file descriptors left, a listener over shared memory accepts nothing for this long:
/// its socket stays readable meanwhile, and a shorter pause would only use a processor.
pub const SHM_ACCEPT_BACK_OFF: Duration = Duration::from_millis(100);

/// The first and the longest pause between two attempts to connect to a socket where nobody listens yet, or
/// whose queue is full. The first is short, for a node that starts together with us; the longest keeps those
/// that wait for one that does not come from using a processor.
pub const SHM_CONNECT_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// How often a link over shared memory reads its socket while nobody sleeps on that. Control messages wait
/// this long at most. Reading an empty socket takes 0.3 µs: 0.03 % of a processor.
pub const SHM_SOCKET_READ_INTERVAL: Duration = Duration::from_millis(1);

/// How often it is looked whether the other end of a link over shared memory reads its socket, which takes 0.3 µs. A peer that runs
/// reads within a quarter of a second, however busy its links are, so that one that is never seen to have read for [`SUSPECT_AFTER`], and from whom
/// nothing has come, does not run.
pub const SHM_LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// When as long as this passes between two looks, this process itself was stopped, or had no processor: what it saw before means
/// nothing.
pub const SHM_LOOKS_APART: Duration = Duration::from_millis(1000);

/// How long nothing may be heard of a peer before its link is lost, unless `--outage` says otherwise. Longer
/// than a switch takes to restart, so that this kills no program.
pub const DEFAULT_OUTAGE: Duration = Duration::from_secs(10);

/// The longest outage that a user may choose, and that the listening side of a link grants: longer ones are
/// mistakes, and would keep a dead peer's memory for ever.
pub const MAX_OUTAGE: Duration = Duration::from_secs(24 * 3600);

/// After this much silence, or this long after the last question, a peer is asked whether it is there. A
/// fifth of [`SUSPECT_AFTER`]: four questions have gone unanswered before a peer is suspect, and an idle link
/// costs some three datagrams a second.
pub const PING_AFTER: Duration = Duration::from_millis(300);

/// After this much silence a link is suspect, and pauses; other paths take over. Five times [`PING_AFTER`], so
/// that neither a lost question nor a peer that stalls for a second suspends a link. No outage is shorter.
pub const SUSPECT_AFTER: Duration = Duration::from_millis(1500);

/// How long the size of datagrams stays before larger ones are tried again: routes change seldom, and a
/// search that fails costs a few large datagrams.
pub const MTU_PROBE_INTERVAL: Duration = Duration::from_secs(300);

/// A probe that has not arrived this long after the small datagram that was sent with it is lost. The largest
/// datagram, of 16 KiB, takes half of this at 10 Mbit/s (13 ms).
pub const MTU_PROBE_LATENESS: Duration = Duration::from_millis(25);

/// The first and the longest wait for an answer to a probe or to the small datagram before both are sent
/// again. The first is more than a round trip across an ocean, so no probe is repeated that is on its way.
pub const MTU_PROBE_TIMEOUT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(1));

/// How often the present size of datagrams is checked while it is used: a path that has become smaller is
/// noticed soon, for a small and a large datagram four times a second.
pub const MTU_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// After the size has fallen, the first pause before larger sizes are tried again. Each next pause is twice
/// as long, up to [`MTU_PROBE_INTERVAL`].
pub const MTU_RECOVERY_PAUSE: Duration = Duration::from_secs(1);

/// The longest that two sides may take to agree on keys. With [`HANDSHAKE_RETRY_PAUSE`] between them, 25
/// attempts fit. At 40 % loss each way, which the conformance tests have, 36 % of all attempts succeed, so all 25
/// fail once in 70,000 times.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The first and the longest pause before a datagram of the handshake is sent again. The first is more than a
/// round trip within a building, the longest more than one across an ocean.
pub const HANDSHAKE_RETRY_PAUSE: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_millis(200));

/// A handshake that is under way for less than this gives its place to no newcomer, which is told to wait. Five of
/// the longest pauses of [`HANDSHAKE_RETRY_PAUSE`]: an honest peer has had time for a round trip although some
/// datagrams were lost. Those who only keep places cost a newcomer this; those of many hosts who begin again and again,
/// more, because they ask for the places that become free, too.
pub const GIVES_WAY_AFTER: Duration = Duration::from_secs(1);

/// Strangers whose datagrams do not fit are reported once in this time: anyone can send such datagrams, and
/// must not be able to fill a log.
pub const STRANGER_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// A cookie is good for this long at least, and twice as long at most: longer than [`HANDSHAKE_TIMEOUT`], and
/// too short to be worth collecting.
pub const COOKIE_PERIOD: Duration = Duration::from_secs(30);

/// The first and the longest wait before a fragment of a control message is sent again. As
/// [`HANDSHAKE_RETRY_PAUSE`], but the first is shorter: the link is known to work, and others wait for what
/// it carries.
pub const CONTROL_RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));

/// The longest that datagrams are sealed with one key, while any are sent. A key that leaks later opens no
/// more than this; a new one costs one key derivation.
pub const SEAL_EPOCH: Duration = Duration::from_secs(120);
