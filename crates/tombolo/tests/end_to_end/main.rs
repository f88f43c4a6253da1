//! End-to-end tests: the real binary, real programs nobody here wrote, real
//! processes that are killed.
//!
//! Every program runs twice, plainly and with at most a quarter of its memory
//! local, and must give the same bytes. What this machine lacks is left out
//! loudly; with `TOMBOLO_REQUIRE_ALL=1` that is a failure. `TOMBOLO_FULL=1`
//! runs the same tests at their full sizes.

mod common;

mod absent_pages;
mod allocators;
mod command_line;
mod copying;
mod crowds;
mod cuts;
mod databases;
mod demonstration;
mod failures;
mod guide;
mod kernel_truth;
mod limits;
mod memory_calls;
mod net;
mod network;
mod operating;
mod own_nodes;
mod packages;
mod paths;
mod programs;
mod rdma;
mod runtimes;
mod secure;
mod signals;
mod simulator;
mod sockets;
mod store;
mod survivors;
mod traced;
mod two_libraries;
mod unserved;
