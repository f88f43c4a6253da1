//! The fabric: links to other nodes, and who is at their other ends.
//!
//! It owns every link with its state, the neighbours, their identities and permissions, and what nodes say to
//! each other. It calls no other room but `memory`.

pub(crate) mod admission;
pub(crate) mod label;
pub(crate) mod life;
pub(crate) mod messages;
pub(crate) mod neighbourhood;
pub(crate) mod numbers;
pub(crate) mod paths;
