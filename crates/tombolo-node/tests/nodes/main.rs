//! Whole nodes in one process, over real sockets and shared memory.

mod full;
mod harness;
mod leaving;
mod mtu;
mod mutual;
mod paths;
mod revocation;
