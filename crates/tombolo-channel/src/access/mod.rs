//! Accesses to a program's own memory that the program makes for its node: the shared area with the orders, their outcomes
//! and the bytes ([`AccessArea`]), and the threads that carry them out ([`AccessThreads`]).
//!
//! ```text
//!  node                          shared area                         program
//!   │ bytes ──────────────────► staging                                 │
//!   │ order ──────────────────► orders ───► access thread: looks for absent pages, copies
//!   │                                   └──► touch threads: bring pages in, for as long as that takes
//!   │ ◄──────────────────────── outcomes ◄──────────────────────────────│
//! ```
//!
//! Neither side trusts the other. The node believes an outcome only of an order that it waits for, and a program that lies harms
//! its own memory and transfers. The program makes accesses only to ranges that it has registered.

mod area;
mod order;
mod server;
mod threads;

pub use area::{AccessArea, STAGING_BYTES};
pub use order::{Order, OrderKind, Outcome, RING_ORDERS};
pub use threads::AccessThreads;
