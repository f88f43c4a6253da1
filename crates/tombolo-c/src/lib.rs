//! The client for programs in C. Documented for them: the comments become those
//! of `include/tombolo.h`, by `cargo xtask headers`.
//!
//! Every function checks its pointers for null and returns a code; the text
//! that goes with the last error of a thread is at [`tombolo_error`]. No panic
//! leaves this library.

mod own;

pub use own::{tombolo_arm, tombolo_deregister, tombolo_descriptor, tombolo_drain, tombolo_register};

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tombolo_client::{CLASSES, MAX_MAIL_BYTES, Notification, OpenError, PostError, SendError, WaitError};

/// What became of a call. 0 is success.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Result {
    /// Done.
    Ok = 0,
    /// A null pointer, a path with no end, or a number out of range.
    BadArgument = 1,
    /// No node answers at the path.
    NoNode = 2,
    /// The connection to the node broke: all its transfers are lost, and the memory with it.
    NodeGone = 3,
    /// It took too long. A transfer goes on. Memory may still become registered: see `tombolo_register`.
    TimedOut = 4,
    /// The node refused: the domain is taken, or there is not so much memory. Or own memory cannot be
    /// registered, or a copy of it hangs. Or this process has no file descriptor or no address space left
    /// for what the node passed. Or the node belongs to a user that is not trusted.
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
    /// On its way.
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

/// What somebody else may do with memory.
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
    /// How many: up to 4 GiB - 1.
    pub size_bytes: u32,
    /// 0: class of service by what is left of the transfer; 1 high, 2 medium, 3 low.
    pub class_hint: u32,
    /// Whether two words are written at the destination's side after the last byte, the first before
    /// the last.
    pub notify: bool,
    /// Where, in the destination's domain.
    pub notification_address: u64,
    /// The first word.
    pub first: u64,
    /// The last word, 8 bytes behind it.
    pub last: u64,
}

/// A protection domain. May be used by all threads.
pub struct Domain {
    domain: tombolo_client::Domain,
    /// Own memory, by where it begins.
    registered: Mutex<HashMap<usize, own::Own>>,
}

/// Memory that transfers reach.
pub struct Memory(tombolo_client::Memory);

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

/// Where a domain's messages come.
pub struct Mailbox(tombolo_client::Mailbox);

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

fn say(result: Result, text: &str) -> Result {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    ERROR.with(|error| *error.borrow_mut() = text);
    result
}

fn bad(what: &str) -> Result {
    say(Result::BadArgument, what)
}

fn of_open(error: &OpenError) -> Result {
    let result = match error {
        OpenError::NoNode { .. } => Result::NoNode,
        OpenError::TimedOut(_) | OpenError::Unanswered(_) => Result::TimedOut,
        OpenError::Refused(_)
        | OpenError::OwnMemory(_)
        | OpenError::Memory(_)
        | OpenError::NoDescriptors
        | OpenError::UntrustedNode { .. } => Result::Refused,
        OpenError::Lost(_) | OpenError::UnexpectedMessage => Result::NodeGone,
    };
    say(result, &error.to_string())
}

fn of_wait(error: WaitError) -> Result {
    let result = match error {
        WaitError::Failed(_) => Result::Failed,
        WaitError::Paused => Result::Paused,
        WaitError::TimedOut(_) => Result::TimedOut,
        WaitError::NodeGone => Result::NodeGone,
    };
    say(result, &error.to_string())
}

/// The text of this thread's last error, until its next call. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn tombolo_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}

/// Opens a domain at the node whose programs' socket is at `path`: of this number (1 to 32767), or
/// of any (0). The node must run as this process's own user, or as root: otherwise `REFUSED`.
///
/// # Safety
/// `path` is a string, `domain` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open(path: *const c_char, number: u16, domain: *mut *mut Domain) -> Result {
    // SAFETY: as the caller promises.
    unsafe { open(path, number, None, domain) }
}

/// As `tombolo_open`, at a node that may also run as the user of this id, who is trusted with all memory
/// of this process.
///
/// # Safety
/// `path` is a string, `domain` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open_of_user(
    path: *const c_char,
    number: u16,
    user_id: u32,
    domain: *mut *mut Domain,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { open(path, number, Some(user_id), domain) }
}

/// # Safety
/// `path` is null or a string, `domain` is null or can be written.
unsafe fn open(path: *const c_char, number: u16, user_id: Option<u32>, domain: *mut *mut Domain) -> Result {
    if path.is_null() || domain.is_null() {
        return bad("tombolo_open: a pointer is null");
    }
    // SAFETY: a string, as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    let number = (number != 0).then_some(number);
    let opened = match user_id {
        Some(user_id) => tombolo_client::Domain::open_of_user(path, number, user_id),
        None => tombolo_client::Domain::open(path, number),
    };
    match opened {
        Ok(opened) => {
            // SAFETY: can be written, as the caller promises.
            unsafe {
                domain.write(Box::into_raw(Box::new(Domain { domain: opened, registered: Mutex::default() })))
            };
            Result::Ok
        }
        Err(error) => of_open(&error),
    }
}

/// Closes a domain. Its own memory that is registered still, or may be, is deregistered first: when this
/// returns 0, no transfer touches it any more. Transfers and mailboxes that are not released keep the rest of
/// the domain open until they are. The domain is not to be used any more whatever this returns;
/// otherwise a transfer may still touch own memory until the last of them is released, and for
/// `REFUSED` (a copy hangs, because nobody brings a page) until the page comes. Null is nothing.
///
/// # Safety
/// `domain` came from `tombolo_open` and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_close(domain: *mut Domain) -> Result {
    if domain.is_null() {
        return Result::Ok;
    }
    // SAFETY: from `Box::into_raw`, and the caller's last use.
    let domain = unsafe { Box::from_raw(domain) };
    let mut closed = Result::Ok;
    for (start, own) in domain.registered().drain() {
        let Err((_, error)) = own.take_back(&domain.domain, start) else { continue };
        closed = of_open(&error);
        // One that does not answer is not asked a thousand times.
        if closed != Result::Refused {
            break;
        }
    }
    closed
}

/// The domain's number; 0 for null.
///
/// # Safety
/// `domain` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_number(domain: *const Domain) -> u16 {
    // SAFETY: null or open, as the caller promises.
    unsafe { domain.as_ref() }.map_or(0, |domain| domain.domain.number())
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

/// The grants of a list, if all are for somebody.
///
/// # Safety
/// `grants` has `count` entries.
unsafe fn list(grants: *const Grant, count: usize) -> Option<Vec<tombolo_client::Grant>> {
    let grants = match count {
        0 => &[],
        // SAFETY: there are as many entries as the caller promises.
        count => unsafe { std::slice::from_raw_parts(grants, count) },
    };
    grants.iter().map(grant).collect()
}

impl Domain {
    fn registered(&self) -> MutexGuard<'_, HashMap<usize, own::Own>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Allocates `bytes` of zeroed memory (whole pages of 4096); `grants` says what others may do with it.
///
/// # Safety
/// `domain` is open, `grants` has `grant_count` entries, `memory` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_allocate(
    domain: *const Domain,
    bytes: usize,
    grants: *const Grant,
    grant_count: usize,
    memory: *mut *mut Memory,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else { return bad("tombolo_allocate: domain is null") };
    if memory.is_null() || (grants.is_null() && grant_count > 0) {
        return bad("tombolo_allocate: a pointer is null");
    }
    // SAFETY: there are as many entries as the caller promises.
    let Some(grants) = (unsafe { list(grants, grant_count) }) else {
        return bad("tombolo_allocate: a grant is for nobody");
    };
    match domain.domain.allocate(bytes, &grants) {
        Ok(made) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { memory.write(Box::into_raw(Box::new(Memory(made)))) };
            Result::Ok
        }
        Err(error) => of_open(&error),
    }
}

/// Gives memory back: from now on no transfer reaches it, and its bytes are not mapped any more. The handle
/// is released whatever this returns; after `TIMED_OUT` the node frees the memory when it goes on.
///
/// # Safety
/// `domain` is open, `memory` came from `tombolo_allocate` of it and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_free(domain: *const Domain, memory: *mut Memory) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else { return bad("tombolo_free: domain is null") };
    if memory.is_null() {
        return Result::Ok;
    }
    // SAFETY: from `Box::into_raw`, and the caller's last use.
    let memory = unsafe { Box::from_raw(memory) };
    domain.domain.free(memory.0).map_or_else(|error| of_open(&error), |()| Result::Ok)
}

/// Where the memory is in this program; null for null. Others may change it, as far as its grants go.
///
/// # Safety
/// `memory` is null or allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_data(memory: *const Memory) -> *mut c_void {
    // SAFETY: null or allocated, as the caller promises.
    unsafe { memory.as_ref() }.map_or(std::ptr::null_mut(), |memory| memory.0.as_mut_ptr().cast())
}

/// Where the memory begins in the domain: for a `tombolo_spec`, and to tell others. 0 for null.
///
/// # Safety
/// `memory` is null or allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_address(memory: *const Memory) -> u64 {
    // SAFETY: null or allocated, as the caller promises.
    unsafe { memory.as_ref() }.map_or(0, |memory| memory.0.address())
}

unsafe fn start(
    domain: *const Domain,
    target: Target,
    spec: *const Spec,
    transfer: *mut *mut Transfer,
    post: impl FnOnce(
        &tombolo_client::Domain,
        tombolo_client::Target,
        tombolo_client::Spec,
    ) -> std::result::Result<tombolo_client::Transfer, PostError>,
) -> Result {
    // SAFETY: null or valid, as the callers' callers promise.
    let (Some(domain), Some(spec)) = (unsafe { domain.as_ref() }, unsafe { spec.as_ref() }) else {
        return bad("a transfer without a domain or a spec");
    };
    if transfer.is_null() || spec.class_hint > u32::from(CLASSES) {
        return bad("a transfer without a place for its handle, or of a class that is none");
    }
    let words = Notification { address: spec.notification_address, first: spec.first, last: spec.last };
    let wanted = tombolo_client::Spec {
        source_address: spec.source_address,
        destination_address: spec.destination_address,
        size_bytes: spec.size_bytes,
        notification: spec.notify.then_some(words),
        class: spec.class_hint.checked_sub(1).map(|class| class as u8),
    };
    let started = post(&domain.domain, target.into(), wanted).map(Started::Plain);
    // SAFETY: can be written, as the callers' callers promise.
    unsafe { hand_out(started, transfer) }
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
        Err(error) => say(Result::NoChannel, &error.to_string()),
    }
}

/// Starts a write, from own memory to the target's. No system call while the node is awake.
///
/// # Safety
/// `domain` is open, `spec` is valid, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_write(
    domain: *const Domain,
    target: Target,
    spec: *const Spec,
    transfer: *mut *mut Transfer,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { start(domain, target, spec, transfer, tombolo_client::Domain::write) }
}

/// Starts a read, from the target's memory to own.
///
/// # Safety
/// `domain` is open, `spec` is valid, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_read(
    domain: *const Domain,
    target: Target,
    spec: *const Spec,
    transfer: *mut *mut Transfer,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { start(domain, target, spec, transfer, tombolo_client::Domain::read) }
}

/// Starts a transfer between two other domains, of any nodes; one may be own. The bytes go straight
/// from the one to the other. The source must grant that this program (or, seen from another node, any
/// program of this node) reads it; the destination, that the source's node writes it, or this program
/// if the source is at this node.
///
/// # Safety
/// `domain` is open, `spec` is valid, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_carry(
    domain: *const Domain,
    from: Target,
    to: Target,
    spec: *const Spec,
    transfer: *mut *mut Transfer,
) -> Result {
    let carry = |domain: &tombolo_client::Domain, to, spec| domain.carry(from.into(), to, spec);
    // SAFETY: as the caller promises.
    unsafe { start(domain, to, spec, transfer, carry) }
}

unsafe fn change(
    domain: *const Domain,
    transfer: *mut *mut Transfer,
    post: impl FnOnce(&tombolo_client::Domain) -> std::result::Result<tombolo_client::Atomic, PostError>,
) -> Result {
    // SAFETY: null or valid, as the callers' callers promise.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad("an atomic operation without a domain");
    };
    if transfer.is_null() {
        return bad("an atomic operation without a place for its handle");
    }
    // SAFETY: can be written, as the callers' callers promise.
    unsafe { hand_out(post(&domain.domain).map(Started::Atomic), transfer) }
}

/// Starts adding to the word of 8 bytes at an address (a multiple of 8) of the target. It is carried out
/// once, atomically with other such operations and with atomic instructions of the programs there;
/// overflow wraps. The memory must be granted for reading and writing.
///
/// # Safety
/// `domain` is open, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_fetch_add(
    domain: *const Domain,
    target: Target,
    address: u64,
    operand: u64,
    transfer: *mut *mut Transfer,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { change(domain, transfer, |domain| domain.fetch_add(target.into(), address, operand)) }
}

/// As `tombolo_fetch_add`: puts `swap` there if `compare` is there.
///
/// # Safety
/// `domain` is open, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_compare_swap(
    domain: *const Domain,
    target: Target,
    address: u64,
    compare: u64,
    swap: u64,
    transfer: *mut *mut Transfer,
) -> Result {
    let post = |domain: &tombolo_client::Domain| domain.compare_swap(target.into(), address, compare, swap);
    // SAFETY: as the caller promises.
    unsafe { change(domain, transfer, post) }
}

/// Waits, as `tombolo_wait`, for the end of an atomic operation, and says what the word was before.
///
/// # Safety
/// `transfer` is null or not released, `before` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_wait_word(
    transfer: *const Transfer,
    milliseconds: u32,
    before: *mut u64,
) -> Result {
    // SAFETY: null or not released, as the caller promises.
    let Some(Transfer(Started::Atomic(atomic))) = (unsafe { transfer.as_ref() }) else {
        return bad("tombolo_wait_word: transfer is null, or no atomic operation");
    };
    if before.is_null() {
        return bad("tombolo_wait_word: before is null");
    }
    match atomic.wait(Duration::from_millis(milliseconds.into())) {
        Ok(word) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { before.write(word) };
            Result::Ok
        }
        Err(error) => of_wait(error),
    }
}

/// The longest message of a mailbox, in bytes.
pub const TOMBOLO_MAX_MAIL: usize = 1024;

const _: () = assert!(TOMBOLO_MAX_MAIL == MAX_MAIL_BYTES);

/// Opens the domain's mailbox (it has one at most), with room for this many messages that are not taken yet: a power
/// of two, at most 4096. `senders` are grants of which only `who` and `number` count.
///
/// # Safety
/// `domain` is open, `senders` has `sender_count` entries, `mailbox` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open_mailbox(
    domain: *const Domain,
    messages: u32,
    senders: *const Grant,
    sender_count: usize,
    mailbox: *mut *mut Mailbox,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad("tombolo_open_mailbox: domain is null");
    };
    if mailbox.is_null() || (senders.is_null() && sender_count > 0) {
        return bad("tombolo_open_mailbox: a pointer is null");
    }
    let senders = match sender_count {
        0 => &[],
        // SAFETY: there are as many entries as the caller promises.
        count => unsafe { std::slice::from_raw_parts(senders, count) },
    };
    let who = |sender: &Grant| grant(sender).map(|grant| grant.who);
    let Some(senders) = senders.iter().map(who).collect::<Option<Vec<_>>>() else {
        return bad("tombolo_open_mailbox: a sender is nobody");
    };
    match domain.domain.open_mailbox(messages, &senders) {
        Ok(opened) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { mailbox.write(Box::into_raw(Box::new(Mailbox(opened)))) };
            Result::Ok
        }
        Err(error) => of_open(&error),
    }
}

/// Starts sending a message, of 1 to `TOMBOLO_MAX_MAIL` bytes, to the target's mailbox. While that is
/// full the node tries again, for some seconds; then it is refused.
///
/// # Safety
/// `domain` is open, `message` has `bytes` bytes, `transfer` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_send(
    domain: *const Domain,
    target: Target,
    message: *const c_void,
    bytes: usize,
    transfer: *mut *mut Transfer,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else { return bad("tombolo_send: domain is null") };
    if message.is_null() || transfer.is_null() || !(1..=MAX_MAIL_BYTES).contains(&bytes) {
        return bad("tombolo_send: a pointer is null, or the message is empty or too long");
    }
    // SAFETY: there are as many bytes as the caller promises.
    let message = unsafe { std::slice::from_raw_parts(message.cast(), bytes) };
    match domain.domain.send(target.into(), message) {
        // SAFETY: can be written, as the caller promises.
        Ok(started) => unsafe { hand_out(Ok(Started::Plain(started)), transfer) },
        Err(SendError::Post(error)) => say(Result::NoChannel, &error.to_string()),
        Err(SendError::Memory(error)) => of_open(&error),
        Err(error @ SendError::Length(_)) => bad(&error.to_string()),
    }
}

/// Waits for the next message, at most this many milliseconds (0: does not wait), and copies it to `message`, which
/// has room for `TOMBOLO_MAX_MAIL` bytes. Says how long it is and, unless null, who sent it.
///
/// # Safety
/// `mailbox` is null or open, `message` has that room, `bytes` can be written, `from` too or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_receive(
    mailbox: *const Mailbox,
    milliseconds: u32,
    message: *mut c_void,
    bytes: *mut usize,
    from: *mut Target,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(mailbox) = (unsafe { mailbox.as_ref() }) else {
        return bad("tombolo_receive: mailbox is null");
    };
    if message.is_null() || bytes.is_null() {
        return bad("tombolo_receive: a pointer is null");
    }
    match mailbox.0.receive(Duration::from_millis(milliseconds.into())) {
        Ok(mail) => {
            // SAFETY: a message is no longer than the room that the caller promises.
            unsafe {
                std::ptr::copy_nonoverlapping(mail.bytes.as_ptr(), message.cast(), mail.bytes.len());
                bytes.write(mail.bytes.len());
            }
            if !from.is_null() {
                // SAFETY: can be written, as the caller promises.
                unsafe { from.write(Target { node: mail.from.node, domain: mail.from.domain }) };
            }
            Result::Ok
        }
        Err(error) => of_wait(error),
    }
}

/// Releases the handle of a mailbox, which stays as long as its domain. Null is nothing.
///
/// # Safety
/// `mailbox` came from `tombolo_open_mailbox` and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_close_mailbox(mailbox: *mut Mailbox) {
    if !mailbox.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(mailbox) });
    }
}

/// How far a transfer is. No system call, but one some ten times a second that finds out whether the
/// node is gone: then a transfer that has not ended is finished with error, and `tombolo_wait` says
/// `NODE_GONE`. Null is finished with error.
///
/// # Safety
/// `transfer` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_poll(transfer: *const Transfer) -> Status {
    // SAFETY: null or not released, as the caller promises.
    match unsafe { transfer.as_ref() }.map(|transfer| transfer.0.status()) {
        Some(tombolo_client::Status::Finished) => Status::Finished,
        Some(tombolo_client::Status::Ongoing) => Status::Ongoing,
        Some(tombolo_client::Status::Paused) => Status::Paused,
        Some(tombolo_client::Status::FinishedWithError(_)) | None => Status::FinishedWithError,
    }
}

/// Waits for the end of a transfer, at most this many milliseconds: polls for a moment, then sleeps. It
/// may be called again after `TIMED_OUT`.
///
/// # Safety
/// `transfer` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_wait(transfer: *const Transfer, milliseconds: u32) -> Result {
    // SAFETY: null or not released, as the caller promises.
    let Some(transfer) = (unsafe { transfer.as_ref() }) else { return bad("tombolo_wait: transfer is null") };
    let patience = Duration::from_millis(milliseconds.into());
    let ended = match &transfer.0 {
        Started::Plain(plain) => plain.wait(patience),
        Started::Atomic(atomic) => atomic.wait(patience).map(|_| ()),
    };
    ended.map_or_else(of_wait, |()| Result::Ok)
}

/// Releases a transfer's handle; one that is on its way goes on. Null is nothing.
///
/// # Safety
/// `transfer` came from a function that starts one and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_release(transfer: *mut Transfer) {
    if !transfer.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(transfer) });
    }
}
