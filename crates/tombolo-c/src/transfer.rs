//! Starting transfers.

use tombolo_client::{CLASSES, Notification, PostError};

use crate::{Domain, Result, Spec, Started, Target, Transfer, bad_argument, hand_out};

/// What a program in C wants moved; `None` if the class is none.
pub(crate) fn wanted(spec: &Spec) -> Option<tombolo_client::Spec> {
    if spec.class_hint > u32::from(CLASSES) {
        return None;
    }
    let words = Notification { address: spec.notification_address, first: spec.first, last: spec.last };
    Some(tombolo_client::Spec {
        source_address: spec.source_address,
        destination_address: spec.destination_address,
        size_bytes: spec.size_bytes,
        notification: spec.notify.then_some(words),
        class: spec.class_hint.checked_sub(1).map(|class| class as u8),
    })
}

// SAFETY: whoever calls passes pointers that are null or valid, as the exported functions ask of the program.
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
        return bad_argument("a transfer without a domain or a spec");
    };
    let Some(wanted) = wanted(spec).filter(|_| !transfer.is_null()) else {
        return bad_argument("a transfer without a place for its handle, or of a class that is none");
    };
    let started = post(&domain.domain, target.into(), wanted).map(Started::Plain);
    // SAFETY: can be written, as the callers' callers promise.
    unsafe { hand_out(started, transfer) }
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
/// program of this node) reads it; the destination, that it writes it.
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
