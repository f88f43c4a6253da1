//! Neighbours: which nodes are to be joined to this one, and by which links.

mod back_off;
mod events;
pub mod neighbour;
