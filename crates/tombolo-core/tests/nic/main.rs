//! The parts of a shared network interface, over random loads, programs that misbehave, and random rules, in virtual
//! time.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many, `TOMBOLO_SECONDS=1800` runs new ones for so long.

mod connections;
mod cutting;
mod effort;
mod exchanging;
mod pipes;
mod rings;
mod scheduling;
mod sessions;
mod switching;
