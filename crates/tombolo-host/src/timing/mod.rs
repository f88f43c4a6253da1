//! The spans of time that Tombolo's programs were built with, in one place.
//!
//! Each constant says what it bounds, and the measurement or the bound that it follows from. What a protocol
//! prescribes (retransmission, congestion) is in the configuration of the machine in `tombolo-core` that obeys
//! it; what a user may set (`--outage`, `--drain-timeout`) has its default here. A few that belong to one file alone stand there, with
//! what they are for: in `tombolo-node::{memory::reclaim, far::store::lender}`, `tombolo-pager::{events, stats}`, `tombolo-net::{client, far}`,
//! `tombolo::{control, ps, top}`, `tombolo-preload::timing` (which depends on nothing), and `process` of this crate.
//!
//! Figures without a source are medians of thousands of repetitions in a loop, on a virtual machine with two
//! processors (AMD EPYC, Linux 6.18).

pub mod client;
pub mod command;
pub mod host;
pub mod link;
pub mod net;
pub mod node;
pub mod pager;
