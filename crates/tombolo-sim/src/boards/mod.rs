//! The documents' hardware, put together: parts with the constants of a platform.

pub mod microzed;
pub mod pcie;
pub mod qfdb;
pub mod zcu102;
pub mod zedboard;
