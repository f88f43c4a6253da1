//! The programs of this node: their domains, channels and memory, and what they ask for.
//!
//! A program trusts its node; the node trusts no program. What it reads from a
//! channel page is copied once and checked, a wild doorbell is a descriptor that
//! fails, and a program that dies takes with it what it has, and its domain if no other process is in that.
//!
//! It owns the domains with all that belongs to them. It calls the rooms `fabric` and `memory`. Whether somebody
//! may reach a domain's memory is decided above, by the grants that are kept here.

pub(crate) mod access;
mod addresses;
pub(crate) mod awake;
pub(crate) mod callers;
pub(crate) mod domain;
pub(crate) mod domains;
pub(crate) mod helper;
pub(crate) mod mail_shares;
pub(crate) mod own;
mod requests;
mod status;
pub(crate) mod user;
pub(crate) mod windows;

/// The most blocks that an engine may have under way.
pub const MAX_TRANSACTIONS: u16 = 1 << 15;

/// What a node has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Programs' domains open at once (QOS §3.2.1: 16), with 64 channels each; each process of a domain counts.
    pub domains: u16,
    /// Memory allocated for all of them, in bytes.
    pub program_memory_bytes: u64,
    /// Blocks under way (QOS §3.2.4: 1024), at most [`MAX_TRANSACTIONS`].
    pub transactions: u16,
    /// How absent pages of programs' own memory are dealt with.
    pub faults: tombolo_core::iommu::Config,
}

impl Default for Limits {
    fn default() -> Self {
        let faults = tombolo_core::iommu::Config::default();
        Self { domains: 16, program_memory_bytes: 1 << 30, transactions: 1024, faults }
    }
}

/// Why memory of a domain was not found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// There is no such domain, or it is another life of it.
    Domain,
    /// The domain has nothing there.
    Range,
    /// The memory is granted to others.
    Grant,
}
