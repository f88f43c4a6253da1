//! Handles of memory, for programs at other nodes.

use crate::{Domain, Remote, Result, Target, bad_argument, fail, open_failure};

/// A handle of memory of the domain, to be told to programs at any node: of what begins at `address` there
/// (`tombolo_address`, or `tombolo_own_address` of memory that is registered), `length` bytes. It gives no rights: grants do.
///
/// # Safety
/// `domain` is open, `remote` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_export(
    domain: *const Domain,
    address: u64,
    length: u64,
    remote: *mut Remote,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_export: domain is null");
    };
    if remote.is_null() {
        return bad_argument("tombolo_export: remote is null");
    }
    match domain.domain.export(address, length) {
        Ok(made) => {
            // SAFETY: can be written, as the caller promises.
            unsafe { remote.write(Remote { bytes: made.to_bytes() }) };
            Result::Ok
        }
        Err(error) => open_failure(&error),
    }
}

/// Whose memory a handle means, for transfers of this domain, where it begins there, and how long it is. `NO_NODE`: that
/// node is not connected to this one now, or it was started again, and the memory is gone.
///
/// # Safety
/// `domain` is open, `remote` is valid, the others can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_find(
    domain: *const Domain,
    remote: *const Remote,
    target: *mut Target,
    address: *mut u64,
    length: *mut u64,
) -> Result {
    // SAFETY: null or valid, as the caller promises.
    let (Some(domain), Some(remote)) = (unsafe { domain.as_ref() }, unsafe { remote.as_ref() }) else {
        return bad_argument("tombolo_find: domain or remote is null");
    };
    if target.is_null() || address.is_null() || length.is_null() {
        return bad_argument("tombolo_find: a place for the answer is null");
    }
    let remote = match tombolo_client::Remote::from_bytes(&remote.bytes) {
        Ok(remote) => remote,
        Err(error) => return bad_argument(&error.to_string()),
    };
    match domain.domain.find(&remote) {
        Ok(Some(found)) => {
            // SAFETY: these can be written, as the caller promises.
            unsafe {
                target.write(Target { node: found.node, domain: found.domain });
                address.write(remote.address());
                length.write(remote.length_bytes());
            }
            Result::Ok
        }
        Ok(None) => fail(
            Result::NoNode,
            "the node of that memory is not connected to this one, or was started again, and the memory is gone",
        ),
        Err(error) => open_failure(&error),
    }
}
