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
