//! Opening and closing a domain.

use std::ffi::{CStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Mutex;

use crate::{Domain, Result, bad_argument, open_failure};

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
        return bad_argument("tombolo_open: a pointer is null");
    }
    // SAFETY: a string, as the caller promises.
    let path = unsafe { path_of(path) };
    let number = (number != 0).then_some(number);
    let opened = match user_id {
        Some(user_id) => tombolo_client::Domain::open_of_user(path, number, user_id),
        None => tombolo_client::Domain::open(path, number),
    };
    // SAFETY: can be written, as the caller promises.
    unsafe { write_domain(opened, domain) }
}

/// # Safety
/// It is a string.
pub(crate) unsafe fn path_of<'a>(path: *const c_char) -> &'a Path {
    // SAFETY: as the caller promises.
    let path = unsafe { CStr::from_ptr(path) };
    Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()))
}

/// Hands an open domain to the caller, or tells why there is none.
///
/// # Safety
/// `domain` can be written.
pub(crate) unsafe fn write_domain(
    opened: std::result::Result<tombolo_client::Domain, tombolo_client::OpenError>,
    domain: *mut *mut Domain,
) -> Result {
    match opened {
        Ok(opened) => {
            // SAFETY: can be written, as the caller promises.
            unsafe {
                domain.write(Box::into_raw(Box::new(Domain {
                    domain: opened,
                    registering: Mutex::default(),
                    registered: Mutex::default(),
                })))
            };
            Result::Ok
        }
        Err(error) => open_failure(&error),
    }
}

/// Closes a domain. Its own memory that is registered still, or may be, is deregistered first: when this
/// returns 0, no transfer touches it any more. Transfers, queues and mailboxes that are not released keep the rest of
/// the domain open until they are. In a child made by fork it only releases the handle, and returns `REFUSED`: the domain is that of
/// the process that opened it. The domain is not to be used any more whatever this returns;
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
    if !domain.domain.is_of_this_process() {
        return open_failure(&tombolo_client::OpenError::Forked);
    }
    let mut closed = Result::Ok;
    for (start, own) in std::mem::take(&mut *domain.registered()) {
        let Err(left) = own.take_back(&domain.domain, start) else { continue };
        closed = open_failure(&left.1);
        // A node that does not answer is not asked again for each range.
        if closed != Result::Refused || matches!(left.1, tombolo_client::OpenError::AccessHangs) {
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
