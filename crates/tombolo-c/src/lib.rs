//! The client for programs in C. Documented for them: the comments become those
//! of `include/tombolo.h`, by `cargo xtask headers`.
//!
//! Every function checks its pointers for null and returns a code; the text
//! that goes with the last error of a thread is at [`tombolo_error`]. No panic
//! leaves this library.

// Blank lines between these keep their order, which is that of the functions in the header.
mod domain;
mod joining;

mod memory;

mod transfer;

mod atomic;

mod mailbox;

mod completion;

mod queue;

mod remote;

mod own;

mod window;

pub use atomic::{tombolo_compare_swap, tombolo_fetch_add, tombolo_wait_word};
pub use completion::{tombolo_poll, tombolo_release, tombolo_wait};
pub use domain::{tombolo_close, tombolo_number, tombolo_open, tombolo_open_of_user};
pub use joining::{tombolo_invite, tombolo_join, tombolo_join_of_user, tombolo_own_address};
pub use mailbox::{
    TOMBOLO_MAX_MAIL, tombolo_close_mailbox, tombolo_open_mailbox, tombolo_receive, tombolo_send,
};
pub use memory::{tombolo_address, tombolo_allocate, tombolo_data, tombolo_free};
pub use own::{tombolo_arm, tombolo_deregister, tombolo_descriptor, tombolo_drain, tombolo_register};
pub use queue::{
    tombolo_close_queue, tombolo_open_queue, tombolo_poll_queue, tombolo_post, tombolo_post_list,
    tombolo_queue_length, tombolo_wait_any,
};
pub use remote::{tombolo_export, tombolo_find};
pub use transfer::{tombolo_carry, tombolo_read, tombolo_write};
pub use window::{
    tombolo_allocate_window, tombolo_check_window, tombolo_map_window, tombolo_revoke_window,
    tombolo_unmap_window, tombolo_window_data, tombolo_window_has_owner, tombolo_window_is_writable,
    tombolo_window_length,
};

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tombolo_client::{OpenError, PostError, WaitError};

/// The outcome of a call. 0 is success.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    /// Done.
    Ok = 0,
    /// A null pointer, a path with no end, or a number out of range.
    BadArgument = 1,
    /// No node answers at the path.
    NoNode = 2,
    /// The connection to the node broke: all transfers are lost, and the memory of the domain with them.
    NodeGone = 3,
    /// It took too long. A transfer goes on. Memory may still become registered: see `tombolo_register`.
    TimedOut = 4,
    /// The node refused: the domain is taken, or there is not so much memory. Or own memory cannot be
    /// registered, or a copy of it hangs. Or this process has no file descriptor or no address space left
    /// for what the node passed. Or the node belongs to a user that is not trusted. Or this process is a child of the one that
    /// opened the domain, or the memory is another domain's.
    Refused = 5,
    /// All 32 channels of that direction are in use: release transfers that have ended.
    NoChannel = 6,
    /// The node has no room for more transfers now; nothing was done. Post it again.
    Paused = 7,
    /// The transfer ended with an error; tombolo_error says which.
    Failed = 8,
}

/// How far a transfer is (QOS Table 2.1).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Completed successfully.
    Finished = 0,
    /// Under way.
    Ongoing = 1,
    /// Not begun: the node had no room for it.
    Paused = 2,
    /// Completed unsuccessfully.
    FinishedWithError = 3,
}

/// Who a grant is for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Any program of any node that this node is connected to.
    Anyone = 0,
    /// The program of a domain at the same node.
    Program = 1,
    /// Any program at another node.
    Node = 2,
}

/// What others may do with memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// A `tombolo_who`.
    pub who: i32,
    /// The domain or the node, by `who`.
    pub number: u32,
    /// May read.
    pub read: bool,
    /// May write.
    pub write: bool,
}

/// The other side of a transfer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Which node; 0 is the program's own.
    pub node: u32,
    /// Which domain there.
    pub domain: u16,
}

impl From<Target> for tombolo_client::Target {
    fn from(target: Target) -> Self {
        Self { node: target.node, domain: target.domain }
    }
}

/// What is to be moved. All zero but the first three fields is the usual case.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Where the bytes are, in the domain they are in.
    pub source_address: u64,
    /// Where they go.
    pub destination_address: u64,
    /// How many bytes: up to 4 GiB - 1.
    pub size_bytes: u32,
    /// 0: class of service by what is left of the transfer; 1 high, 2 medium, 3 low.
    pub class_hint: u32,
    /// Whether two words are written at the destination's side after the last byte, the first before
    /// the last.
    pub notify: bool,
    /// Where the words are written, in the destination's domain.
    pub notification_address: u64,
    /// The first word.
    pub first: u64,
    /// The last word, 8 bytes behind it.
    pub last: u64,
}

/// Which pages are brought in where one is absent.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// All of the block that are absent, and more along a run of them.
    Adaptive = 0,
    /// Touch-a-page: the one that is absent.
    Page = 1,
    /// Touch-ahead: `pages` of them, at most 64, from the one that is absent.
    Ahead = 2,
}

/// How absent pages of registered memory are dealt with. All zero is what `tombolo_register` does.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// A `tombolo_touch`.
    pub touch: i32,
    /// How many pages ahead, for `TOMBOLO_TOUCH_AHEAD`.
    pub pages: u16,
    /// The block is refused and comes again when its pages are there, in place of waiting with its bytes.
    pub terminates: bool,
}

/// The fault registers of a domain's process, named as those of FAULT 3.2.1.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FaultRegisters {
    /// FSR.TF: a page was not present, nothing is mapped there, or its page cannot be had.
    pub translation_fault: bool,
    /// FSR.PF: an access was not permitted.
    pub permission_fault: bool,
    /// FSR.MULTI: there was another fault after the one that the others tell of.
    pub multiple: bool,
    /// FSYNR.WNR: by a write (at a destination), not a read (at a source).
    pub write_not_read: bool,
    /// FAR: where.
    pub address: u64,
}

/// What an order of a queue does.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// As `tombolo_write`.
    Write = 0,
    /// As `tombolo_read`.
    Read = 1,
    /// As `tombolo_carry`, from `source`.
    Carry = 2,
    /// As `tombolo_fetch_add`, to the word at the destination address of `spec`.
    FetchAdd = 3,
    /// As `tombolo_compare_swap`, of the word at the destination address of `spec`.
    CompareSwap = 4,
}

/// Something for a queue to do.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// A `tombolo_order_kind`.
    pub kind: i32,
    /// It begins when all that was posted to its queue before it has ended.
    pub fenced: bool,
    /// The other side.
    pub target: Target,
    /// Of `CARRY`: where the bytes come from.
    pub source: Target,
    /// What is to be moved; of an atomic operation its destination address alone counts.
    pub spec: Spec,
    /// What is added, or put there.
    pub operand: u64,
    /// What has to be there.
    pub compare: u64,
    /// Comes back with the end.
    pub context: u64,
}

/// A piece of a domain's memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Where it begins.
    pub address: u64,
    /// How many bytes.
    pub length: u32,
}

/// One transfer between several pieces of memory at each end: the bytes of the sources, one after the other, fill the
/// destinations, one after the other, wherever each piece ends.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// `WRITE`, `READ` or `CARRY`, a `tombolo_order_kind`.
    pub kind: i32,
    /// It begins when all that was posted to its queue before it has ended.
    pub fenced: bool,
    /// The other side.
    pub target: Target,
    /// Of `CARRY`: where the bytes come from.
    pub source: Target,
    /// Where the bytes are.
    pub sources: *const Piece,
    /// How many pieces: one at least.
    pub source_count: usize,
    /// Where they go.
    pub destinations: *const Piece,
    /// How many pieces: one at least.
    pub destination_count: usize,
    /// As in a `tombolo_spec`.
    pub class_hint: u32,
    /// Whether two words are written at the destination's side when all bytes are there, the first before the last.
    pub notify: bool,
    /// Where the words are written, in the destination's domain.
    pub notification_address: u64,
    /// The first word.
    pub first: u64,
    /// The last word, 8 bytes behind it.
    pub last: u64,
    /// Comes back with the end.
    pub context: u64,
}

/// The end of an order, or of a list.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// As given when it was posted.
    pub context: u64,
    /// Of an atomic operation: the word as it was before.
    pub before: u64,
    /// How it ended: `OK`, `FAILED` or `NODE_GONE`.
    pub result: Result,
}

/// A handle of memory of a domain, for programs at any node. Its bytes may be passed on in whatever way.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Opaque; read by `tombolo_find`.
    pub bytes: [u8; 40],
}

/// What another process needs to join a domain. A secret is in it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Invitation {
    /// Opaque; read by `tombolo_join`.
    pub bytes: [u8; 24],
}

/// A protection domain. May be used by all threads.
pub struct Domain {
    domain: tombolo_client::Domain,
    /// Held while the node is asked to register or deregister something: who deregisters it meanwhile finds it.
    registering: Mutex<()>,
    /// The program's own memory that is registered, by the address at which it begins. Not locked while the node is asked.
    registered: Mutex<BTreeMap<usize, own::Own>>,
}

/// Memory that transfers reach.
pub struct Memory(tombolo_client::Memory);

/// Memory of another domain, mapped into this program.
pub struct Window(tombolo_client::Window);

/// A transfer or an atomic operation under way, or over.
pub struct Transfer(Started);

enum Started {
    Plain(tombolo_client::Transfer),
    Atomic(tombolo_client::Atomic),
}

impl Started {
    fn status(&self) -> tombolo_client::Status {
        match self {
            Self::Plain(plain) => plain.status(),
            Self::Atomic(atomic) => atomic.status(),
        }
    }
}

/// A queue of transfers.
pub struct Queue(tombolo_client::Queue);

/// The mailbox of a domain, to which messages come.
pub struct Mailbox(tombolo_client::Mailbox);

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
    static ERROR_PAGE: Cell<Option<u64>> = const { Cell::new(None) };
}

fn fail(result: Result, text: &str) -> Result {
    ERROR_PAGE.set(None);
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    ERROR.with(|error| *error.borrow_mut() = text);
    result
}

fn bad_argument(what: &str) -> Result {
    fail(Result::BadArgument, what)
}

fn open_failure(error: &OpenError) -> Result {
    let result = match error {
        OpenError::NoNode { .. } => Result::NoNode,
        OpenError::TimedOut(_) | OpenError::Unanswered(_) => Result::TimedOut,
        OpenError::Refused(_)
        | OpenError::OwnMemory(_)
        | OpenError::Memory(_)
        | OpenError::Window(_)
        | OpenError::NoDescriptors
        | OpenError::Forked
        | OpenError::OtherDomain
        | OpenError::AccessHangs
        | OpenError::UntrustedNode { .. } => Result::Refused,
        OpenError::Lost(_) | OpenError::UnexpectedMessage => Result::NodeGone,
    };
    fail(result, &error.to_string())
}

fn wait_failure(error: WaitError) -> Result {
    let result = match error {
        WaitError::Failed(_) => Result::Failed,
        WaitError::Paused => Result::Paused,
        WaitError::TimedOut(_) | WaitError::NoMessage(_) => Result::TimedOut,
        WaitError::NodeGone => Result::NodeGone,
    };
    fail(result, &error.to_string());
    if let WaitError::Failed(failure) = error {
        ERROR_PAGE.set(failure.page());
    }
    result
}

/// Where the page begins that could not be reached, if this thread's last error was a transfer that failed so:
/// of the other domain's memory, or of own memory, as `tombolo_error` says. False: there is none, and
/// nothing is written.
///
/// # Safety
/// `page` can be written, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_error_page(page: *mut u64) -> bool {
    let Some(known) = ERROR_PAGE.get() else { return false };
    if !page.is_null() {
        // SAFETY: can be written, as the caller promises.
        unsafe { page.write(known) };
    }
    true
}

/// The text of this thread's last error, until its next call. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn tombolo_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

fn grant(grant: &Grant) -> Option<tombolo_client::Grant> {
    let who = match grant.who {
        0 => tombolo_client::Who::Anyone,
        1 => tombolo_client::Who::Program(u16::try_from(grant.number).ok()?),
        2 => tombolo_client::Who::Node(grant.number),
        _ => return None,
    };
    Some(tombolo_client::Grant { who, read: grant.read, write: grant.write })
}

/// The grants of a list; `None` if one of them names nobody.
///
/// # Safety
/// `grants` has `count` entries.
unsafe fn grants_of(grants: *const Grant, count: usize) -> Option<Vec<tombolo_client::Grant>> {
    let grants = match count {
        0 => &[],
        // SAFETY: there are as many entries as the caller promises.
        count => unsafe { std::slice::from_raw_parts(grants, count) },
    };
    grants.iter().map(grant).collect()
}

impl Domain {
    fn registered(&self) -> MutexGuard<'_, BTreeMap<usize, own::Own>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` in a child made by fork, where a thread of the parent may seem to hold the lock for ever.
    fn register_alone(&self) -> Option<MutexGuard<'_, ()>> {
        let is_here = self.domain.is_of_this_process();
        is_here.then(|| self.registering.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// # Safety
/// `memory` can be written.
unsafe fn hand_out_memory(
    allocated: std::result::Result<tombolo_client::Memory, OpenError>,
    memory: *mut *mut Memory,
) -> Result {
    match allocated {
        Ok(made) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { memory.write(Box::into_raw(Box::new(Memory(made)))) };
            Result::Ok
        }
        Err(error) => open_failure(&error),
    }
}

/// # Safety
/// `transfer` can be written.
unsafe fn hand_out(started: std::result::Result<Started, PostError>, transfer: *mut *mut Transfer) -> Result {
    match started {
        Ok(started) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { transfer.write(Box::into_raw(Box::new(Transfer(started)))) };
            Result::Ok
        }
        Err(error) => post_failure(error),
    }
}

fn post_failure(error: PostError) -> Result {
    let result = match error {
        PostError::NoChannel(_) | PostError::QueueFull(_) => Result::NoChannel,
        PostError::Forked => Result::Refused,
    };
    fail(result, &error.to_string())
}
