//! The benches at small sizes: their processes work together, and every figure is there. Nothing here is about speed.

mod crowd;
mod forks;
mod net;
mod rdma;
mod reads;
