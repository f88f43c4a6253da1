//! The node: lends memory, borrows it, drives the engine.
