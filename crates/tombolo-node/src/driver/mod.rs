//! The driver: one node, and the loop that moves everything in it along.
//!
//! It owns the node, receives what comes by links and from programs, asks the other rooms what follows, carries
//! that out, and decides in [`address_space`] who reaches which memory. It calls all rooms but `far`.

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
