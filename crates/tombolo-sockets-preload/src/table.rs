//! What the node shows to all programs.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tombolo_interpose::sys;
use tombolo_sockets_protocol::messages::Request;
use tombolo_sockets_protocol::table::{self, BYTES, LAST_ID, MAGIC, NODE, OPEN};

use crate::{node, start};

/// Where it is mapped; 0: it is not yet.
static TABLE: AtomicUsize = AtomicUsize::new(0);

fn mapped() -> Option<usize> {
    Some(TABLE.load(Ordering::Acquire)).filter(|table| *table != 0)
}

fn word(base: usize, index: usize) -> u64 {
    // SAFETY: the indexes used here lie within the table, which stays mapped; it is accessed atomically only.
    unsafe { &*((base + index * 8) as *const AtomicU64) }.load(Ordering::Acquire)
}

/// The table; asks the node for it where that was not done yet.
fn get() -> Option<usize> {
    mapped().or_else(ask)
}

#[cold]
fn ask() -> Option<usize> {
    if start::is_paused() {
        return None;
    }
    let file = node::ask(&Request::Table, None)?.1?;
    let base = sys::map(0, BYTES, libc::PROT_READ, libc::MAP_SHARED, file, 0);
    crate::sys::close(file);
    let base = base.ok()?;
    if word(base, 0) != MAGIC {
        let _ = sys::unmap(base, BYTES);
        return None;
    }
    match TABLE.compare_exchange(0, base, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(base),
        Err(other) => {
            let _ = sys::unmap(base, BYTES);
            Some(other)
        }
    }
}

/// Whether a listener at that port gets offers.
pub fn is_offered(port: u16) -> bool {
    let (index, bit) = table::port(port);
    get().is_some_and(|base| word(base, index) & bit != 0)
}

/// Makes sure that it is mapped: who accepts needs it.
pub fn prepare() {
    get();
}

/// Whether any server may ask for a connection.
pub fn is_any_open() -> bool {
    mapped().is_some_and(|base| word(base, OPEN) != 0)
}

/// Whether a server at that port may ask for a connection.
pub fn is_open(port: u16) -> bool {
    mapped().is_some_and(|base| word(base, table::bucket(port)) != 0)
}

/// The node that there is; 0: there is none, or it has not been asked for its table. Asks.
pub fn node() -> u64 {
    get().map_or(0, |base| word(base, NODE))
}

/// The number of the last connection; 0: there was none.
pub fn last_id() -> u64 {
    mapped().map_or(0, |base| word(base, LAST_ID))
}
