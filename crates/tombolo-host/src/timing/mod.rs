//! The spans of time that Tombolo's programs were built with, in one place.
//!
//! Each constant says what it bounds; most say which measurement or bound it follows from. What a user may set
//! (`--outage`, `--drain-timeout`) has its default here. Elsewhere are:
//!
//! - what a protocol prescribes (retransmission, congestion, redialing): in the configuration of the machine in
//!   `tombolo-core` that obeys it;
//! - the preloaded library, which links nothing of ours: `timing` there;
//! - child processes of benches and the demo, and their client of redis: `child` and `redis` of `tombolo-app`, the
//!   only users of these spans.

pub mod client;
pub mod command;
pub mod host;
pub mod link;
pub mod node;
pub mod pager;
