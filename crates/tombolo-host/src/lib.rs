//! The floor with unsafe code: memory mappings, rings, userfaultfd and sockets of the Linux host.

pub mod cgroup;
mod copying;
pub mod cpu;
pub mod event;
pub mod event_queue;
pub mod family;
pub mod jobs;
pub mod life;
mod maps;
pub mod net;
pub mod own;
pub mod pagemap;
pub mod passed;
pub mod pool;
pub mod probe;
pub mod process;
pub mod ring;
pub mod service;
pub mod shared;
pub mod signals;
pub mod sockets;
pub mod sparse;
pub mod split;
pub mod stops;
mod sum;
#[cfg(feature = "testing")]
pub mod testing;
pub mod timing;
pub mod udp;
pub mod uffd;
pub mod unix;
pub mod yielding;
pub mod zram;
