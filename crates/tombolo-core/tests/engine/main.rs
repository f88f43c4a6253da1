//! The engine on a bench: two nodes, the links between them and their faults, in virtual time.

mod congestion;
mod deadlock;
mod giving_up;
mod mesh;
mod paths;
mod random;
mod reads;
mod recovery;
mod scheduler;
mod timing;

use tombolo_sim::engine as bench;

/// Lets an engine's timers fire until none is armed, and says when the last one did: a deadline is a lower bound, so at the first one
/// there may be nothing to do. For engines with a timer or two: eight looks are more than these need.
fn after_all_timers(engine: &mut tombolo_core::rdma::Engine) -> Option<tombolo_core::rdma::Time> {
    let deadlines = std::iter::from_fn(|| engine.deadline().inspect(|at| engine.expire(*at)));
    deadlines.take(8).last()
}
