//! What nodes are to each other.

mod back_off;
mod events;
pub mod neighbour;
