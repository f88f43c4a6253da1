//! Preloaded into programs whose TCP connections are handed over to pairs of Unix sockets.
//!
//! While a connection is being made, the program's socket is exchanged for one end of a pair that the node (`tombolo sockets serve`) gives. From then on
//! the program and the kernel have the connection for themselves: no call that moves bytes is replaced, and no table of connections is kept. What an end
//! stands for is in its own name.
//!
//! ```text
//!   listen  ──► the node notes the listener
//!   connect ──► the node connects the socket, and gives one end      (else: TCP)
//!   accept  ──► the node gives the other end                         (else: TCP)
//!   close   ──► writing ends, and the node keeps the end until the peer has closed, too
//! ```
//!
//! The rules of [`tombolo_interpose`] hold in here. Each wait for the node ends after 20 ms; then the connection is TCP, and nothing is asked for a second.
#![allow(missing_docs, reason = "exported symbols carry the names and meanings of POSIX")]

mod accepting;
mod closing;
mod connecting;
mod descriptors;
mod ends;
mod loaded;
mod names;
mod node;
mod options;
mod start;
mod sys;
mod table;
mod unconnected;
