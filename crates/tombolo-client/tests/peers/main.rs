//! Nodes under pressure from other nodes: peers that do their
//! worst, networks that do, all channels both ways at once,
//! and classes that want everything for themselves.

mod changing;
mod greedy;
#[allow(dead_code, reason = "shared with the tests of programs, which need more of it")]
#[path = "../programs/harness.rs"]
mod harness;
mod hostile;
mod impostor;
mod lenders;
mod lives;
mod load;
mod neighbours;
mod network;
#[allow(dead_code, reason = "shared with the tests of commands, which ask how much has passed")]
mod relay;
