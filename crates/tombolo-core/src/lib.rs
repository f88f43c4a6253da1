//! The protocol state machines: no input or output, no clock, no threads.
