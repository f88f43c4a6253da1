//! The client for programs in C. Documented for them: the comments become those
//! of `include/tombolo.h`, by `cargo xtask headers`.
//!
//! Every function checks its pointers for null and returns a code; the text
//! that goes with the last error of a thread is at [`tombolo_error`]. No panic
//! leaves this library.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tombolo_client::{Notification, OpenError, PostError, WaitError};

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
    /// It took too long. A transfer goes on.
    TimedOut = 4,
    /// The node refused: the domain is taken, or there is not so much memory.
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
pub struct Domain(tombolo_client::Domain);

/// Memory that transfers reach.
pub struct Memory(tombolo_client::Memory);

/// A transfer under way, or over.
pub struct Transfer(tombolo_client::Transfer);

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
        OpenError::TimedOut(_) => Result::TimedOut,
        OpenError::Refused(_) => Result::Refused,
        OpenError::Lost(_) | OpenError::Nonsense | OpenError::Memory(_) => Result::NodeGone,
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
/// of any (0).
///
/// # Safety
/// `path` is a string, `domain` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_open(path: *const c_char, number: u16, domain: *mut *mut Domain) -> Result {
    if path.is_null() || domain.is_null() {
        return bad("tombolo_open: a pointer is null");
    }
    // SAFETY: a string, as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    let path = Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()));
    match tombolo_client::Domain::open(path, (number != 0).then_some(number)) {
        Ok(opened) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { domain.write(Box::into_raw(Box::new(Domain(opened)))) };
            Result::Ok
        }
        Err(error) => of_open(&error),
    }
}

/// Closes a domain when the last transfer of it is released, too. Null is nothing.
///
/// # Safety
/// `domain` came from `tombolo_open` and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_close(domain: *mut Domain) {
    if !domain.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(domain) });
    }
}

/// The domain's number; 0 for null.
///
/// # Safety
/// `domain` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_number(domain: *const Domain) -> u16 {
    // SAFETY: null or open, as the caller promises.
    unsafe { domain.as_ref() }.map_or(0, |domain| domain.0.number())
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

/// Memory of so many bytes (whole pages of 4096), zeroed, and what others may do with it.
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
    let grants = match grant_count {
        0 => &[],
        // SAFETY: so many entries, as the caller promises.
        count => unsafe { std::slice::from_raw_parts(grants, count) },
    };
    let Some(grants) = grants.iter().map(grant).collect::<Option<Vec<_>>>() else {
        return bad("tombolo_allocate: a grant is for nobody");
    };
    match domain.0.allocate(bytes, &grants) {
        Ok(made) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { memory.write(Box::into_raw(Box::new(Memory(made)))) };
            Result::Ok
        }
        Err(error) => of_open(&error),
    }
}

/// Gives memory back: from now on no transfer reaches it, and its bytes are not mapped any more.
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
    domain.0.free(memory.0).map_or_else(|error| of_open(&error), |()| Result::Ok)
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
    post: fn(
        &tombolo_client::Domain,
        tombolo_client::Target,
        tombolo_client::Spec,
    ) -> std::result::Result<tombolo_client::Transfer, PostError>,
) -> Result {
    // SAFETY: null or valid, as the callers' callers promise.
    let (Some(domain), Some(spec)) = (unsafe { domain.as_ref() }, unsafe { spec.as_ref() }) else {
        return bad("a transfer without a domain or a spec");
    };
    if transfer.is_null() || spec.class_hint > 3 {
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
    match post(&domain.0, tombolo_client::Target { node: target.node, domain: target.domain }, wanted) {
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

/// How far a transfer is. No system call. Null is finished with error.
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

/// Waits for the end of a transfer, at most so many milliseconds: polls for a moment, then sleeps. It
/// may be called again after `TIMED_OUT`.
///
/// # Safety
/// `transfer` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_wait(transfer: *const Transfer, milliseconds: u32) -> Result {
    // SAFETY: null or not released, as the caller promises.
    let Some(transfer) = (unsafe { transfer.as_ref() }) else { return bad("tombolo_wait: transfer is null") };
    let patience = Duration::from_millis(milliseconds.into());
    transfer.0.wait(patience).map_or_else(of_wait, |()| Result::Ok)
}

/// Releases a transfer's handle; one that is on its way goes on. Null is nothing.
///
/// # Safety
/// `transfer` came from `tombolo_write` or `tombolo_read` and is not used after this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_release(transfer: *mut Transfer) {
    if !transfer.is_null() {
        // SAFETY: from `Box::into_raw`, and the caller's last use.
        drop(unsafe { Box::from_raw(transfer) });
    }
}
