//! Memory that this node gives out, to peers or to programs: allocating it, counting it, freeing it.
//!
//! It owns the accounts of the memory that may be given out, and the pools of threads for work that takes long or
//! blocks. It calls no other room.

pub(crate) mod allocation;
pub(crate) mod blocking;
pub(crate) mod reclaim;
