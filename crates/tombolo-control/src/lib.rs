//! How commands ask what runs on this machine (`tombolo run`, `tombolo node`, `tombolo net serve`), and who is answered.
//!
//! A service listens at a Unix socket of whole messages. A question is `{"version": N, "ask": …}` in one message of JSON, an answer another. What
//! can be asked, and the version of that, each service says itself.
//!
//! Who is answered is the same everywhere: processes of the service's own user, and of root, as the kernel names them. (`net serve` lets in others
//! besides, for what its file of ports says.) Commands believe only who is of their own user or root, too, where they found the socket themselves;
//! at a path that they were given they believe a process of any user ([`Trust`]).
#![forbid(unsafe_code)]

mod client;
mod message;
pub mod place;
mod server;

pub use client::{AskError, Client, Trust, ask_once, is_gone};
pub use message::{MESSAGE_BYTES_MAX, Request, question};
pub use server::{Server, Service};
