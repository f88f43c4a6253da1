//! Sockets of this process that are not connected yet, and the sets of events that they are in.
//!
//! One place for each small descriptor. What has none, or was duplicated, inherited or passed on, connects by TCP.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use tombolo_interpose::sys::call;

use crate::{start, sys};

/// Descriptors from this on are not noted.
const PLACES: usize = 4096;
/// Sets of events that one is in. One in more connects by TCP.
const SETS: usize = 2;

struct Place {
    /// The inode of the socket; 0: none is noted.
    inode: AtomicU64,
    /// The process that has made it.
    token: AtomicU64,
    sets: [Set; SETS],
}

struct Set {
    /// The descriptor of the set plus 1; 0: none.
    descriptor: AtomicI32,
    events: AtomicU32,
    data: AtomicU64,
}

impl Place {
    const fn new() -> Self {
        let sets = [const {
            Set { descriptor: AtomicI32::new(0), events: AtomicU32::new(0), data: AtomicU64::new(0) }
        }; SETS];
        Self { inode: AtomicU64::new(0), token: AtomicU64::new(0), sets }
    }
}

static ALL: [Place; PLACES] = [const { Place::new() }; PLACES];

fn place(descriptor: i32) -> Option<&'static Place> {
    ALL.get(usize::try_from(descriptor).ok()?)
}

/// Notes a new socket.
pub fn note(descriptor: i32) {
    let (Some(place), Some(inode)) = (place(descriptor), sys::inode(descriptor)) else { return };
    for set in &place.sets {
        set.descriptor.store(0, Ordering::Relaxed);
    }
    place.token.store(start::token(), Ordering::Relaxed);
    place.inode.store(inode, Ordering::Release);
}

/// Its socket connects by TCP, or is gone.
pub fn forget(descriptor: i32) {
    if let Some(place) = place(descriptor)
        && place.inode.load(Ordering::Relaxed) != 0
    {
        place.inode.store(0, Ordering::Relaxed);
    }
}

/// All of them.
pub fn forget_all() {
    for place in &ALL {
        // Most pages are never written.
        if place.inode.load(Ordering::Relaxed) != 0 {
            place.inode.store(0, Ordering::Relaxed);
        }
    }
}

fn noted(descriptor: i32) -> Option<&'static Place> {
    let place = place(descriptor)?;
    let inode = place.inode.load(Ordering::Acquire);
    let is_own = inode != 0 && place.token.load(Ordering::Relaxed) == start::token();
    (is_own && sys::inode(descriptor) == Some(inode)).then_some(place)
}

/// Whether this process has made that socket and has it for itself.
pub fn is_noted(descriptor: i32) -> bool {
    noted(descriptor).is_some()
}

/// A set of events has got, changed or lost a descriptor.
pub fn in_set(set: i32, operation: i32, descriptor: i32, event: Option<&libc::epoll_event>) {
    let may_be = place(descriptor).is_some_and(|place| place.inode.load(Ordering::Relaxed) != 0);
    let Some(place) = may_be.then(|| noted(descriptor)).flatten() else { return };
    let key = set.saturating_add(1);
    let found = place.sets.iter().find(|one| one.descriptor.load(Ordering::Relaxed) == key);
    match (operation, event) {
        (libc::EPOLL_CTL_DEL, _) => {
            if let Some(found) = found {
                found.descriptor.store(0, Ordering::Relaxed);
            }
        }
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, Some(event)) => {
            let free = || place.sets.iter().find(|one| one.descriptor.load(Ordering::Relaxed) == 0);
            let Some(target) = found.or_else(free) else { return forget(descriptor) };
            target.events.store(event.events, Ordering::Relaxed);
            target.data.store(event.u64, Ordering::Relaxed);
            target.descriptor.store(key, Ordering::Relaxed);
        }
        _ => {}
    }
}

fn in_each_set(descriptor: i32, operation: i32) {
    let Some(place) = place(descriptor) else { return };
    for set in &place.sets {
        let key = set.descriptor.load(Ordering::Relaxed);
        if key == 0 {
            continue;
        }
        let mut event = libc::epoll_event {
            events: set.events.load(Ordering::Relaxed),
            u64: set.data.load(Ordering::Relaxed),
        };
        let arguments =
            [(key - 1) as usize, operation as usize, descriptor as usize, (&raw mut event) as usize, 0, 0];
        // SAFETY: the kernel reads the event.
        if unsafe { call(libc::SYS_epoll_ctl, arguments) }.is_err() {
            // The set is gone, or another one by now, which does not have the socket.
            set.descriptor.store(0, Ordering::Relaxed);
        }
    }
}

/// Takes the socket out of its sets: the node has it, too, so the kernel would go on reporting it.
pub fn leave_sets(descriptor: i32) {
    in_each_set(descriptor, libc::EPOLL_CTL_DEL);
}

/// Puts what has the descriptor now into the same sets, and forgets the socket.
pub fn enter_sets(descriptor: i32) {
    in_each_set(descriptor, libc::EPOLL_CTL_ADD);
    forget(descriptor);
}
