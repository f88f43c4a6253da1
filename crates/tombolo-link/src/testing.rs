//! Links for tests: one inside the process, links that alter another ([`Altered`]), two of which misbehave, and
//! random numbers with a seed.

mod altered;
mod faulty;
mod lossy;
mod memory;

pub use altered::{Admission, Alteration, Altered};
pub use faulty::{Faults, FaultyLink, Misbehaviour};
pub use lossy::{Loss, LossyLink};
pub use memory::{LinkPair, MemoryLink, memory_pair};
pub use tombolo_random::Random;
