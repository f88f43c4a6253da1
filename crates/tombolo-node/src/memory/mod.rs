//! Memory that this node gives out, to peers or to programs: allocating it, counting it, freeing it.
//!
//! It owns the accounts of what may be given out, and the pool of threads for all that takes long or blocks.
//! It calls no other room.

pub(crate) mod allocation;
pub(crate) mod blocking;
pub(crate) mod reclaim;
