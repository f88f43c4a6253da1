//! Memory of the program's own, and waiting by a descriptor.

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

use tombolo_client::{DeregisterError, OpenError, OwnMemory, Registered, Right, Touch};

use crate::{
    Domain, FaultRegisters, Faults, Grant, Result, bad_argument, grants_of, open_failure, wait_failure,
};

/// Memory of the program that begins at one address.
#[derive(Default)]
pub(crate) struct Own {
    registered: Option<Registered>,
    /// A registration failed without the node's refusal: the node may still carry it out.
    is_unsettled: bool,
}

impl Own {
    /// Has nothing of it registered any more; or what is left to do, and why.
    pub(crate) fn take_back(
        self,
        domain: &tombolo_client::Domain,
        start: usize,
    ) -> std::result::Result<(), Box<(Self, OpenError)>> {
        let Self { registered, is_unsettled } = self;
        if let Some(memory) = registered
            && let Err(DeregisterError { memory, error }) = domain.deregister(memory)
        {
            return Err(Box::new((Self { registered: Some(*memory), is_unsettled }, error)));
        }
        if is_unsettled && let Err(error) = domain.settle(start as u64) {
            return Err(Box::new((Self { registered: None, is_unsettled }, error)));
        }
        Ok(())
    }
}

/// Makes memory of this program memory of the domain, with grants as for `tombolo_allocate`: `start`
/// itself is then its address in the domain, unless this process has joined it (`tombolo_own_address`). Its pages need not be there; transfers bring them in. What
/// the program may not do there itself (`mprotect`), a transfer may not either; what is not mapped when
/// a transfer comes fails it. It is registered until `tombolo_deregister` or `tombolo_close`.
///
/// After `TIMED_OUT` and `NODE_GONE` the memory may be registered, or become so when the node goes on: use it
/// for nothing else, and do not free it, before `tombolo_deregister` of `start` has returned 0, or
/// `tombolo_close` has. After any other error it is not registered.
///
/// # Safety
/// `domain` is open, `grants` has `grant_count` entries. The memory stays what it is while it is
/// registered: others write to whatever is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_register(
    domain: *const Domain,
    start: *mut c_void,
    bytes: usize,
    grants: *const Grant,
    grant_count: usize,
) -> Result {
    // SAFETY: as the caller promises.
    unsafe { tombolo_register_with(domain, start, bytes, grants, grant_count, std::ptr::null()) }
}

/// As `tombolo_register`, with a choice of how absent pages are dealt with; null is the default. To register all
/// memory of the program, whatever is mapped there when, begin at 4096 and end at 2^47.
///
/// # Safety
/// As for `tombolo_register`; `faults` is valid or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_register_with(
    domain: *const Domain,
    start: *mut c_void,
    bytes: usize,
    grants: *const Grant,
    grant_count: usize,
    faults: *const Faults,
) -> Result {
    // SAFETY: null or valid, as the caller promises.
    let Some(faults) = unsafe { faults.as_ref() }.map_or(Some(Default::default()), faults_of) else {
        return bad_argument("tombolo_register_with: `touch` is none of the values of tombolo_touch");
    };
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_register: domain is null");
    };
    let Some(address) = NonNull::new(start.cast()).filter(|_| !grants.is_null() || grant_count == 0) else {
        return bad_argument("tombolo_register: a pointer is null");
    };
    // SAFETY: there are as many entries as the caller promises.
    let Some(grants) = (unsafe { grants_of(grants, grant_count) }) else {
        return bad_argument("tombolo_register: the `who` of a grant is unknown, or its number too large");
    };
    // SAFETY: no reference is made to it here, and C has none that would mind.
    let memory = unsafe { OwnMemory::from_raw(address, bytes) };
    let Some(_alone) = domain.register_alone() else { return open_failure(&OpenError::Forked) };
    match domain.domain.register_with(memory, &grants, faults) {
        Ok(memory) => {
            domain.registered().entry(start as usize).or_default().registered = Some(memory);
            Result::Ok
        }
        Err(error) => {
            let result = open_failure(&error);
            if matches!(result, Result::TimedOut | Result::NodeGone) {
                domain.registered().entry(start as usize).or_default().is_unsettled = true;
            }
            result
        }
    }
}

fn faults_of(faults: &Faults) -> Option<tombolo_client::Faults> {
    let touch = match faults.touch {
        0 => Touch::Adaptive,
        1 => Touch::Page,
        2 => Touch::Ahead(faults.pages),
        _ => return None,
    };
    Some(tombolo_client::Faults { touch, terminates: faults.terminates })
}

/// Brings pages of registered memory in before a transfer needs them: `bytes` from `at` on, for being read, or
/// also written. Returns at once; pages that cannot be had are left out. `PAUSED`: too much is waiting to be brought in
/// already, or this process could not start threads for it. `at` need not be where the memory begins.
///
/// # Safety
/// `domain` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_prefetch(
    domain: *const Domain,
    at: *const c_void,
    bytes: usize,
    for_writing: bool,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_prefetch: domain is null");
    };
    if !domain.domain.is_of_this_process() {
        return open_failure(&OpenError::Forked);
    }
    let registered = domain.registered();
    let mut before = registered.range(..=at as usize).rev();
    let memory = before.find_map(|(start, own)| Some((start, own.registered.as_ref()?)));
    let Some((start, memory)) = memory else {
        return bad_argument("tombolo_prefetch: no memory is registered there");
    };
    let first = at as usize - start;
    let Some(end) = first.checked_add(bytes).filter(|end| *end <= memory.len()) else {
        return bad_argument("tombolo_prefetch: the bytes do not lie in memory that is registered");
    };
    let right = if for_writing { Right::Write } else { Right::Read };
    match domain.domain.prefetch(memory, first..end, right) {
        true => Result::Ok,
        false => crate::fail(Result::Paused, "too much is waiting to be brought in, or nobody brings it"),
    }
}

/// The fault registers of a domain, which are clear then: they tell of the first access to its registered memory whose page
/// was absent, or that was not permitted, whoever made it.
///
/// # Safety
/// `domain` is open, `registers` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_take_fault_registers(
    domain: *const Domain,
    registers: *mut FaultRegisters,
) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = unsafe { domain.as_ref() }.filter(|_| !registers.is_null()) else {
        return bad_argument("tombolo_take_fault_registers: a pointer is null");
    };
    match domain.domain.take_fault_registers() {
        Ok(taken) => {
            let taken = FaultRegisters {
                translation_fault: taken.translation_fault,
                permission_fault: taken.permission_fault,
                multiple: taken.multiple,
                write_not_read: taken.write_not_read,
                address: taken.address,
            };
            // SAFETY: can be written, as the caller promises.
            unsafe { registers.write(taken) };
            Result::Ok
        }
        Err(error) => open_failure(&error),
    }
}

/// Takes own memory back: when this returns 0, no transfer touches it any more. Transfers that are
/// under way end first, or fail. On any other result it stays registered, and this can be tried again:
/// `REFUSED` within seconds if a copy of it hangs, because nobody brings a page. Then nothing new
/// reaches it, but that copy may still touch it until the page comes. Also for memory whose registration
/// failed with `TIMED_OUT` or `NODE_GONE`: 0 means that it is not registered, and will not be.
///
/// # Safety
/// `domain` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_deregister(domain: *const Domain, start: *mut c_void) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_deregister: domain is null");
    };
    let Some(_alone) = domain.register_alone() else { return open_failure(&OpenError::Forked) };
    let own = domain.registered().remove(&(start as usize));
    let Some(own) = own else {
        return bad_argument("tombolo_deregister: no memory is registered there");
    };
    match own.take_back(&domain.domain, start as usize) {
        Ok(()) => Result::Ok,
        Err(left) => {
            let (own, error) = *left;
            let result = open_failure(&error);
            domain.registered().insert(start as usize, own);
            result
        }
    }
}

/// A descriptor for poll or epoll, of the domain and closed with it; -1 for null. It is readable when a
/// transfer has ended after `tombolo_arm`, or the node is gone, and perhaps without either. So:
/// `tombolo_arm`, look at the transfers (`tombolo_poll`), `epoll_wait`, `tombolo_drain`, and again.
///
/// # Safety
/// `domain` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_descriptor(domain: *const Domain) -> i32 {
    // SAFETY: null or open, as the caller promises.
    unsafe { domain.as_ref() }.map_or(-1, |domain| domain.domain.as_fd().as_raw_fd())
}

/// Asks for the descriptor to become readable when the next transfer ends. Look at the transfers after
/// this and before waiting: one may have ended before. Null is nothing.
///
/// # Safety
/// `domain` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_arm(domain: *const Domain) {
    // SAFETY: null or open, as the caller promises.
    if let Some(domain) = unsafe { domain.as_ref() } {
        domain.domain.arm();
    }
}

/// Makes the descriptor unreadable until the next armed end. `NODE_GONE` when the node is.
///
/// # Safety
/// `domain` is null or open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tombolo_drain(domain: *const Domain) -> Result {
    // SAFETY: null or open, as the caller promises.
    let Some(domain) = (unsafe { domain.as_ref() }) else {
        return bad_argument("tombolo_drain: domain is null");
    };
    domain.domain.drain().map_or_else(wait_failure, |()| Result::Ok)
}
