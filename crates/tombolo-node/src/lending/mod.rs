//! Lending: memory of this node that other nodes have, and segments that have names.
//!
//! It owns the ledger. It calls the rooms `fabric` and `memory`.

pub(crate) mod ledger;
pub(crate) mod named;
pub(crate) mod publish;
