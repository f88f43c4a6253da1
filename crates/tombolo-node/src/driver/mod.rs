//! The driver: the node, and the loop that runs it.
//!
//! It owns the node and receives packets, messages and requests, from links and from programs. It asks the other rooms
//! what to do about them, does it, and decides in [`address_space`] which memory each peer and program may reach. It
//! calls all rooms but `far`.

pub(crate) mod address_space;
mod arrive;
pub(crate) mod counters;
pub(crate) mod doorbell;
mod gather;
mod links;
pub(crate) mod loopback;
pub(crate) mod node;
pub(crate) mod own_accesses;
pub(crate) mod own_moves;
pub(crate) mod path_maintainer;
pub(crate) mod pump;
pub(crate) mod questions;
pub(crate) mod quiet;
pub(crate) mod serve;
mod shares;
pub(crate) mod status;
pub(crate) mod third_party;
