//! What the preloaded library and the supervisor say to each other.
//!
//! The kernel itself reports what a program does with far memory: faults, forks,
//! and (by userfaultfd's UNMAP, REMOVE and REMAP events) every `munmap`, `mmap`
//! over it, `madvise` and `mremap`, made by libc or by a raw system call. The two
//! sides talk about the rest, in two ways that take no file descriptor of the
//! program's:
//!
//! - **the agent**, a process that shares the program's memory and nothing else,
//!   holds a Unix socket and the userfaultfd. It sends [`Hello`], once more if it is lent the
//!   device that makes userfaultfds, then carries out [`Command`]s: only a process inside the address space can move and drop
//!   its pages.
//! - **the control area**, a registered mapping of [`CONTROL_PAGES`]. A thread that
//!   asks for something fills a [`Request`] and touches the request's page; the
//!   fault reaches the supervisor, which reads the request and fills the page with
//!   the [`Answer`].
//!
//! Both ends are built together, so there is one version and no negotiation;
//! a library of another build is refused by [`VERSION`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

use core::fmt;

/// Changed whenever anything here changes, or the numbers of `tombolo_interpose::fitness::Reason`, which requests have in them.
pub const VERSION: u32 = 15;

/// The environment variable that names the supervisor to the program: a [`Setting`].
pub const VARIABLE: &str = "TOMBOLO_PAGER";

/// What the program is told: `VERSION:MINIMUM_BYTES:NUMBER:SOCKET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting<'a> {
    /// Mappings of at least this many bytes are far.
    pub minimum_bytes: usize,
    /// The supervisor listens at [`ABSTRACT_NAME`] with these digits behind it.
    pub number: &'a [u8],
    /// And at this path.
    pub socket: &'a [u8],
}

impl<'a> Setting<'a> {
    /// The setting in a variable's value; `None`: it is of another build, or no setting.
    pub fn parse(text: &'a [u8]) -> Option<Self> {
        let (version, rest) = number(text)?;
        let (minimum_bytes, rest) = number(rest)?;
        let (_, socket) = number(rest)?;
        let number = rest.get(..rest.len() - socket.len() - 1)?;
        (version == VERSION as usize && !socket.is_empty()).then_some(Self { minimum_bytes, number, socket })
    }
}

/// As the variable has it, where the socket's path is text.
impl fmt::Display for Setting<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes| core::str::from_utf8(bytes).map_err(|_| fmt::Error);
        write!(formatter, "{VERSION}:{}:{}:{}", self.minimum_bytes, text(self.number)?, text(self.socket)?)
    }
}

/// Decimal digits up to a colon, and what follows it.
fn number(text: &[u8]) -> Option<(usize, &[u8])> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    let (digits, rest) = (text.get(..colon)?, text.get(colon + 1..)?);
    let mut value = 0usize;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add((digit - b'0') as usize)?;
    }
    (!digits.is_empty()).then_some((value, rest))
}

/// Begins the name of the abstract socket, which is reached where the path is not, as after `chroot`. A decimal number follows, which
/// cannot be guessed: others could take the name.
pub const ABSTRACT_NAME: &[u8] = b"tombolo-pager-";

/// Size of a page.
pub const PAGE_BYTES: usize = 4096;

/// First page of the control area: a forked child touches it to learn its token.
pub const ATTACH_PAGE: usize = 0;
/// Pages of requests follow, one for each [`Request`] that can be under way.
pub const REQUEST_PAGE: usize = 1;
/// Requests that can be under way at once in an address space.
pub const REQUESTS: usize = 64;
/// Then the staging areas, one behind the other, to which pages on their way out are moved.
pub const STAGING_PAGE: usize = REQUEST_PAGE + REQUESTS;
/// Staging areas.
pub const AREAS: usize = 2;
/// Pages of a staging area.
pub const AREA_PAGES: usize = 128;
/// Pages of all of them.
pub const STAGING_PAGES: usize = AREAS * AREA_PAGES;
/// Pages of the control area.
pub const CONTROL_PAGES: usize = STAGING_PAGE + STAGING_PAGES;

/// First message of an agent. Attached: a pidfd of its program, then, when `token` is 0,
/// the userfaultfd, and the memory of its [gate](GATE_FREE).
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Error number that making the userfaultfd gave, or 0.
    pub error: u32,
    /// First address of the control area.
    pub control: u64,
    /// Address of the [`Request`]s.
    pub requests: u64,
    /// 0 from a new program; from a forked child, what the attach page answered.
    pub token: u64,
    /// The agent's process id, as it sees it itself and as fault events name it.
    pub agent: u64,
}

/// The supervisor's answer; a forked child's userfaultfd is attached.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Welcome {
    /// 0, or an error number: the program then runs without far memory.
    pub error: u32,
    /// 1: the program may make no userfaultfd, and what is attached is `/dev/userfaultfd`, to make one by. The agent says hello again
    /// then.
    pub is_device: u32,
}

/// What a thread asks of the supervisor.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Request {
    /// Different for each request of an address space, never 0: a fault that is
    /// interrupted by a signal is reported twice, and its request carried out once.
    pub number: u64,
    /// [`REGISTER`] or one of the constants behind it.
    pub operation: u64,
    /// First address concerned.
    pub start: u64,
    /// Bytes concerned.
    pub length: u64,
}

/// A new mapping is to be far from now on.
pub const REGISTER: u64 = 1;
/// A range is to be ordinary memory from now on. The answer's value: 0, all of it is ordinary; 1, pages at its beginning are still on
/// their way here, or mappings are changing, so ask again; n > 1, its first n - 1 pages are ordinary, so ask for the rest.
pub const LOCALISE: u64 = 2;
/// As [`LOCALISE`], up to the first mapping of a file or of shared memory: 0, all before it is ordinary. Where the supervisor may not look
/// at the mappings, it is as [`LOCALISE`].
pub const LOCALISE_ANONYMOUS: u64 = 6;
/// Whether a part of a range is not known to be far: it is ordinary memory, or has become far unsaid. The answer's value: 1, it is so.
pub const IS_PARTLY_UNKNOWN: u64 = 3;
/// A range is about to have guards: from now on, a page of it that reads as zeroes is mapped only when a thread asks for it, and never over
/// a guard.
pub const GUARD: u64 = 4;
/// Every page of a range has a guard: what is stored of it is given up, and is not mapped any more.
pub const GUARDED: u64 = 5;
/// A program is about to be executed that cannot be served. `start` is the address of its path, which ends in a zero and lies in the library's
/// own memory, or 0; `length` is the number of the reason (`tombolo_interpose::fitness::Reason`).
pub const UNSERVED: u64 = 7;
/// A fork begins. Where room is short, what the child is to share is write-protected when the answer comes.
pub const FORKING: u64 = 8;

/// The answer, at the start of a page of the control area.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Answer {
    /// 1 when served.
    pub served: u64,
    /// What was asked for.
    pub value: u64,
    /// The request's number; 0 if it was not read, [`NO_REQUEST`] if there was none.
    pub number: u64,
}

/// In an [`Answer`]: the page was touched when its place held no request, as by `mlockall`. Who finds it
/// there drops the page and touches it again.
pub const NO_REQUEST: u64 = u64::MAX;

/// The gate: a word of memory shared by agent and supervisor. The agent moves a
/// page, and the supervisor reads an event, only while it holds the gate. So when
/// the supervisor has read that a range was unmapped, no command that names the
/// range is being carried out, and it can cancel what is left of the command
/// before the program's thread, which waited for the event to be read, goes on and
/// maps something else there.
pub const GATE_FREE: u32 = 0;
/// The agent holds the gate.
pub const GATE_AGENT: u32 = 1;
/// The supervisor holds the gate.
pub const GATE_SUPERVISOR: u32 = 2;
/// Added while the other side sleeps until the gate is free: it is to be woken (futex).
pub const GATE_WAITED_FOR: u32 = 4;
/// Offset of the gate's word in its memory.
pub const GATE_OFFSET: usize = 0;
/// Offset of the number of the command that is cancelled.
pub const CANCELLED_OFFSET: usize = 64;
/// Offset of a count that grows when a call of libc's begins to change mappings, and when it has ended: so it is odd
/// meanwhile, also while it waits for the agent's drops. An event of a change that lies between two equal, even counts
/// was made by a raw system call.
pub const CHANGES_OFFSET: usize = 128;
/// Offset of what the agent has begun of a command: 0 when the supervisor sends it; then 1 once the areas that
/// it names are empty but for what this command moves there; of a command to drop, twice the number of ranges that are dropped, and one
/// more while it drops the next. It tells when the agent is killed.
pub const BEGUN_OFFSET: usize = 192;
/// Bytes of the gate's memory.
pub const GATE_BYTES: usize = 4096;

/// Header of a message to the agent. Spans follow, each a start address and a
/// length in bytes (two u64): first those to move, then to drop, then to make own. Without spans, the staging areas are emptied.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Command {
    /// Different from that of the command before.
    pub number: u32,
    /// Ranges to move to a staging area, page after page, at most [`AREA_PAGES`]
    /// pages; what lay there is dropped first.
    pub move_out: u32,
    /// Ranges to drop.
    pub drop: u32,
    /// Ranges to make this process's own, where a fork shares them.
    pub own: u32,
    /// The staging area to which they are moved.
    pub area: u32,
    /// How many areas are emptied, from that one on.
    pub emptied: u32,
}

/// Most spans in one command.
pub const SPANS_MAX: usize = 512;

/// The agent's answer to a command.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Done {
    /// The command's number.
    pub number: u32,
    /// How many of the ranges to drop were dropped, from the first on.
    pub dropped: u32,
    /// For each page to be moved: 0, or the error number.
    pub moved: [u8; AREA_PAGES],
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn a_setting_comes_back_as_it_was() {
        let setting = Setting { minimum_bytes: 131_072, number: b"184467", socket: b"/tmp/a:b/pager" };
        let text = setting.to_string();
        assert_eq!(text, format!("{VERSION}:131072:184467:/tmp/a:b/pager"));
        assert_eq!(Setting::parse(text.as_bytes()), Some(setting));
        for length in 0..text.len() - b"/tmp/a:b/pager".len() + 1 {
            assert_eq!(Setting::parse(&text.as_bytes()[..length]), None, "{length} bytes of it");
        }
        for wrong in [
            format!("{}:131072:1:/tmp/pager", VERSION + 1),
            format!("{VERSION}:x:1:/tmp/pager"),
            format!("{VERSION}:99999999999999999999:1:/tmp/pager"),
            format!("{VERSION}::1:/tmp/pager"),
        ] {
            assert_eq!(Setting::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
