//! The documents' hardware, put together: parts with the constants of a platform.

pub mod qfdb;
pub mod zedboard;
