//! Which descriptors are ends of pairs, and which of them this process has for itself alone.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tombolo_sockets_protocol::name::End;

use crate::sys::{self, NAME_BYTES};
use crate::{start, table};

/// This process, or one that it was forked from, has taken an end.
static HAS_SOME: AtomicBool = AtomicBool::new(false);
/// Ends up to this number may be shared: with a child, with another process, or with another descriptor of this one.
static SHARED_UP_TO: AtomicU64 = AtomicU64::new(0);

/// The highest number of those that were taken.
static TAKEN_UP_TO: AtomicU64 = AtomicU64::new(0);

/// An end is about to be taken.
pub fn taken(id: u64) {
    TAKEN_UP_TO.fetch_max(id, Ordering::Relaxed);
    HAS_SOME.store(true, Ordering::Relaxed);
}

/// Whether there may be some that this process has taken.
pub fn may_have() -> bool {
    HAS_SOME.load(Ordering::Relaxed)
}

/// All that there are now may be shared from now on.
pub fn all_are_shared() {
    if may_have() {
        let last = table::last_id().max(TAKEN_UP_TO.load(Ordering::Relaxed));
        SHARED_UP_TO.fetch_max(last, Ordering::Relaxed);
    }
}

/// The end that a descriptor is; `None`: it is none. The node has made it, or a process of root's or of this user's has.
pub fn of(descriptor: i32) -> Option<End> {
    let mut name = [0; NAME_BYTES];
    let length = sys::name(descriptor, &mut name).ok()?;
    let [a, b, 0, ..] = name else { return None };
    if u16::from_ne_bytes([a, b]) != libc::AF_UNIX as u16 {
        return None;
    }
    let end = End::decode(name.get(3..length)?)?;
    let mut credentials = [0; 12];
    sys::option(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials).ok()?;
    let [.., a, b, c, d, _, _, _, _] = credentials;
    is_trusted(u32::from_ne_bytes([a, b, c, d])).then_some(end)
}

/// Whether a node of that user is believed.
pub fn is_trusted(user: u32) -> bool {
    // SAFETY: geteuid(2) takes nothing.
    user == 0 || unsafe { tombolo_interpose::sys::call(libc::SYS_geteuid, [0; 6]) } == Ok(user as usize)
}

/// Whether nobody else has it, as far as this process knows.
pub fn is_own(end: &End) -> bool {
    end.token != 0
        && end.token == start::token()
        && end.id > SHARED_UP_TO.load(Ordering::Relaxed)
        && start::is_its_own()
}
