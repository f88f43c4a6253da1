//! The programs of this node: their domains, channels, memory and requests.
//!
//! A program trusts its node. The node trusts no program: it copies a descriptor from a channel page once and checks
//! the copy, and a doorbell without a valid descriptor is a transfer that fails. When a program dies, its memory goes
//! with it, and so does its domain unless another process is in it.
//!
//! It owns the domains with all that belongs to them. It calls the rooms `fabric` and `memory`. The room `driver`
//! decides who may reach a domain's memory, by the grants that are kept here.

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

/// Maximum number of blocks that an engine may have under way.
pub const MAX_TRANSACTIONS: u16 = 1 << 15;

/// Limits of a node for its programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Domains open at once (QOS §3.2.1: 16), with 64 channels each. Each process of a domain counts.
    pub domains: u16,
    /// Memory allocated for all programs, in bytes.
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
    /// There is no such domain, or it now belongs to another life.
    Domain,
    /// The domain has no memory at this address.
    Range,
    /// The memory is not granted to this poster.
    Grant,
}
