//! A deterministic simulator: the state machines of `tombolo-core`, and models of hardware around them, in virtual time.
//!
//! **What.** [`kernel`] is the clock: a queue of events between parts, in an order that a seed repeats on every machine. [`engine`] is
//! the first world: two engines, whose scenarios [`fuzz`] draws from seeds.
//!
//! [`handover`] is another: connections that a node hands over, between programs that may be late or dead at each step.
//!
//! [`parts`] and [`hosts`] are put together by [`boards`] with the constants of a [`platform`]; [`figures`] are those of the documents, and
//! [`study`] runs anybody's scenarios.
//!
//! **Why.** A machine of the core does no I/O and has no clock, so that what runs here is the code that runs on real links.
//! A failure is repeated by its seed.
//!
//! **How.** A world owns its parts and a [`kernel::Kernel`]. It takes the next event, has the part that the event is for
//! handle it, and that part sends events of its own, each for the present or the future.
//!
//! Integers only, no unsafe code, no operating system: two runs of a seed are equal, bit for bit, in every build.

#![forbid(unsafe_code)]

pub mod boards;
pub mod engine;
pub mod figures;
pub mod fuzz;
pub mod handover;
pub mod hosts;
pub mod kernel;
pub mod parts;
pub mod platform;
pub mod study;
