//! The floor with unsafe code: memory mappings, rings, userfaultfd and sockets of the Linux host.

pub mod event;
pub mod process;
pub mod ring;
pub mod shared;
pub mod sparse;
pub mod udp;
pub mod uffd;
pub mod unix;
