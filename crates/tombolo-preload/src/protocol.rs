//! What the preloaded library and the supervisor say to each other.
//!
//! Two ways lead from a program to its supervisor, and neither takes a file
//! descriptor of the program's:
//!
//! - **the agent**, a thread of the program with a descriptor table of its own,
//!   holds a Unix socket and the userfaultfd. It says [`Hello`] once, then obeys
//!   [`Command`]s. It notices the supervisor's death, and its hang-up
//!   tells the supervisor that the address space has ended.
//! - **the doorbell**, the first page of the arena, which is always missing. A
//!   thread that wants something fills a [`Request`] and touches the page; the
//!   fault reaches the supervisor, which reads the request and fills the page
//!   with the answer. Nothing overtakes it, it works in a forked child at once,
//!   and costs one page fault.
//!
//! Both ends are built together, so there is one version and no negotiation;
//! a library of another build is refused by [`VERSION`].

/// Changed whenever anything here changes.
pub const VERSION: u32 = 2;

/// Names the supervisor to the program: `VERSION:ARENA_BYTES:MINIMUM_BYTES:SOCKET`.
pub const VARIABLE: &str = "TOMBOLO_PAGER";

/// Size of a page.
pub const PAGE_BYTES: usize = 4096;

/// Pages on their way out are moved to the staging area, which follows the doorbell.
pub const STAGING_PAGES: usize = 128;

/// Pages at the start of the arena that are never given to the program: the
/// doorbell and the staging area.
pub const RESERVED_PAGES: usize = 1 + STAGING_PAGES;

/// First message of an agent, with the userfaultfd attached when `token` is 0.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// Error number that making the userfaultfd gave, or 0.
    pub error: u32,
    /// First address of the arena.
    pub arena: u64,
    /// Length of the arena in bytes.
    pub arena_bytes: u64,
    /// Address of the [`Request`] that a doorbell refers to.
    pub request: u64,
    /// 0 from a new program; from a forked child, what [`ATTACH`] answered.
    pub token: u64,
    /// The agent's own thread number.
    pub thread: u64,
}

/// The supervisor's answer; a forked child's userfaultfd is attached.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Welcome {
    /// 0, or an error number: the program then runs without far memory.
    pub error: u32,
    /// Unused.
    pub reserved: u32,
}

/// A doorbell request.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Request {
    /// [`DISCARD`], [`ATTACH`], [`FORK`] or [`FORKED`].
    pub operation: u64,
    /// First address concerned.
    pub start: u64,
    /// Bytes concerned.
    pub length: u64,
}

/// Doorbell: the contents of a range are not wanted any more; it reads as zero.
pub const DISCARD: u64 = 1;
/// Doorbell: a forked child asks for the token that its agent will name.
pub const ATTACH: u64 = 2;

/// Doorbell: a fork is about to begin; answered when no page is in between.
pub const FORK: u64 = 3;
/// Doorbell: the fork is over, in the parent, whether it succeeded or not.
pub const FORKED: u64 = 4;

/// The answer, at the start of the doorbell page.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Answer {
    /// 1 when served.
    pub served: u64,
    /// What was asked for.
    pub value: u64,
}

/// Header of a message to the agent. Spans follow, each a start address and a
/// length in bytes (two u64): first those to drop, then to move, then to unshare.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Command {
    /// Ranges to drop.
    pub drop: u32,
    /// Ranges to move to the staging area, page after page, at most
    /// [`STAGING_PAGES`] pages; what lay there is dropped first.
    pub move_out: u32,
    /// Ranges to make this process's own (copy-on-write sharing is undone).
    pub unshare: u32,
    /// Unused.
    pub reserved: u32,
}

/// Most spans in one command.
pub const SPANS_MAX: usize = 512;

/// The agent's answer to a command.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Done {
    /// 0, or the error number that dropping gave.
    pub drop_error: u32,
    /// Unused.
    pub reserved: u32,
    /// For each page to be moved: 0, or the error number.
    pub moved: [u8; STAGING_PAGES],
}
