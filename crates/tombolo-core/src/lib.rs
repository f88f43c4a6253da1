//! The protocol state machines: no input or output, no clock, no threads.
//!
//! **What.** [`rdma`] is the engine that moves bytes between the memories of two nodes (QOS ch. 3-4). [`fabric`]
//! keeps track of the nodes that this one is to be joined to. [`iommu`] deals with absent pages of registered
//! memory (FAULT ch. 3), and [`own`] tells the engine how accesses to that memory ended. [`pager`] keeps track of
//! the pages of programs. [`store`] says which lenders have which page of far memory, and makes copies. [`segment`]
//! says where a borrowed byte lies (REMAP §III), and [`packetise`] cuts transactions of a memory bus into pieces
//! for links (REMAP §V). [`nic`] shares one network interface among many users (MICRO §3.2). [`sdp`] is a stream of
//! bytes through a buffer that the receiver empties (SDP §4.2).
//!
//! **Why.** A machine that only receives events and the time, and only answers with actions, behaves the same on a
//! real link and on a simulated one. So a failure that a simulation finds from a random seed is a failure of the
//! code that runs.
//!
//! **How.** The caller owns the clock, the links, the memory and the lock. It hands packets and posts to a machine,
//! polls for actions until there are none, and comes back at the deadline that the machine gives it.

#![forbid(unsafe_code)]

pub mod fabric;
pub mod iommu;
mod list;
mod lookup;
pub mod nic;
pub mod own;
pub mod packetise;
pub mod pager;
pub mod rdma;
pub mod sdp;
pub mod segment;
pub mod store;
mod wakes;
