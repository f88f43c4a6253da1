//! What nodes are to each other.

mod back_off;
pub mod neighbour;
