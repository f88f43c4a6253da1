//! Links for tests: one inside the process, two that misbehave, and random numbers with a seed.

mod faulty;
mod lossy;
mod memory;

pub use faulty::{Faults, FaultyLink};
pub use lossy::LossyLink;
pub use memory::{LinkPair, MemoryLink, memory_pair};
pub use tombolo_random::Random;
