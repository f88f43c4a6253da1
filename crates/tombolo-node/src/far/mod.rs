//! Far memory: what this node does with memory of other nodes. It stores pages there, copies bytes to and from named
//! segments, and pings.
//!
//! Each of these modules makes a node of its own, or is given one, and drives it. So this room lies above the driver.

pub(crate) mod asking;
pub(crate) mod copy;
pub(crate) mod front;
pub(crate) mod ping;
pub(crate) mod store;
