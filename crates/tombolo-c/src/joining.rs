//! Several processes in one domain.

use std::ffi::{c_char, c_void};

use crate::domain::{path_of, write_domain};
use crate::{Domain, Invitation, Result, bad_argument, open_failure};

/// An invitation for other processes of this user, or of root, to join the domain. It is the same each time, and good as long as
/// a process is in the domain. Every process that has the invitation can join, so pass it only to those that are to, by a pipe for
/// example.
///
/// # Safety
/// `domain` is open, `invitation` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_invite(domain: *const Domain, invitation: *mut Invitation) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }).filter(|_| !invitation.is_null()) else {
        return bad_argument("tombolo_invite: a pointer is null");
    };
    match domain.domain.invite() {
        Ok(made) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { invitation.write(Invitation { bytes: made.to_bytes() }) };
            Result::Ok
        }
        Err(error) => open_failure(&error),
    }
}

/// Joins a domain of another process, at the node whose programs' socket is at `path`: at most 16 processes are in one. They
/// are one protection domain: transfers of each reach all its memory, that from the node and each process's own, without grants.
/// What a process has allocated or registered goes when it closes the domain; the domain goes with the last. Its own memory lies
/// in the domain where `tombolo_own_address` says.
///
/// # Safety
/// `path` is a string, `invitation` is valid, `domain` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_join(
    path: *const c_char,
    invitation: *const Invitation,
    domain: *mut *mut Domain,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { join(path, invitation, None, domain) }
}

/// As `tombolo_join`, at a node that may also run as the user of this id, who is trusted with all memory of this process.
///
/// # Safety
/// As for `tombolo_join`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_join_of_user(
    path: *const c_char,
    invitation: *const Invitation,
    user_id: u32,
    domain: *mut *mut Domain,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { join(path, invitation, Some(user_id), domain) }
}

/// # Safety
/// As for `tombolo_join`.
unsafe fn join(
    path: *const c_char,
    invitation: *const Invitation,
    user_id: Option<u32>,
    domain: *mut *mut Domain,
) -> Result {
    // SAFETY: null or valid, as the caller promises.
    let invitation = unsafe { invitation.as_ref() };
    let Some(invitation) = invitation.filter(|_| !path.is_null() && !domain.is_null()) else {
        return bad_argument("tombolo_join: a pointer is null");
    };
    let invitation = match tombolo_client::Invitation::from_bytes(&invitation.bytes) {
        Ok(invitation) => invitation,
        Err(error) => return bad_argument(&error.to_string()),
    };
    // SAFETY: a string, as the caller promises.
    let path = unsafe { path_of(path) };
    let joined = match user_id {
        Some(user_id) => tombolo_client::Domain::join_of_user(path, &invitation, user_id),
        None => tombolo_client::Domain::join(path, &invitation),
    };
    // SAFETY: can be written, as the caller promises.
    unsafe { write_domain(joined, domain) }
}

/// Where in the domain `at` is, in memory of this process that is registered: `at` itself in the process that has opened the
/// domain, another address in one that has joined it. 0 if `domain` is null, or no process of a domain can register that.
///
/// # Safety
/// `domain` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_own_address(domain: *const Domain, at: *const c_void) -> u64 {
    // SAFETY: null or open, as the caller promises.
    let domain = unsafe { domain.as_ref() };
    domain.and_then(|domain| domain.domain.own_address(at as usize as u64)).unwrap_or(0)
}
