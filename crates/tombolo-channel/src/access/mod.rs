//! Accesses to a program's own memory that the program makes for its node: the shared area with the orders, their outcomes
//! and the bytes ([`AccessArea`]), and the threads that carry them out ([`AccessThreads`]).
//!
//! ```text
//!  node                          shared area                         program
//!   │ bytes ──────────────────► staging                                 │
//!   │ order ──────────────────► orders ───► the thread that leads: looks for absent pages, copies,
//!   │                                   │    and brings pages in, while another one leads
//!   │ ◄──────────────────────── outcomes ◄──────────────────────────────│
//! ```
//!
//! A page may take long, or for ever. So who brings one in leads no more, and one of the others does as soon as there is an order. There
//! is one, or the page waits in a queue. Most pages come at once: then nobody was woken.
//!
//! Neither side trusts the other. The node believes an outcome only of an order that it waits for, and a program that lies harms
//! its own memory and transfers. The program makes accesses only to ranges that it has registered.

mod area;
mod look;
mod order;
mod server;
mod threads;

pub use area::{AccessArea, STAGING_BYTES};
pub use order::{Order, OrderKind, Outcome, RING_ORDERS};
pub use threads::AccessThreads;
