//! What moves along routes.

use crate::kernel::{HeaderId, PacketId};

/// A route of a [`super::World`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(pub u32);

/// Something on its way along a route.
#[derive(Debug, PartialEq, Eq)]
pub struct Traveller {
    /// What it is.
    pub cargo: Cargo,
    /// How long it is on a line.
    pub bytes: u32,
    /// Its way.
    pub route: RouteId,
    /// How many inputs of the route it has reached.
    pub(super) hop: u16,
    /// What it is part of, for a timeline; 0: nothing.
    pub flow: u32,
    /// A line has changed some of its bytes.
    pub is_damaged: bool,
}

/// What a traveller carries.
#[derive(Debug, PartialEq, Eq)]
pub enum Cargo {
    /// A packet whose bytes are in the world's arena.
    Packet(PacketId),
    /// A packet of an engine whose bytes are only named: its header is in the world's arena.
    Header(HeaderId),
    /// A packet of which only a name is simulated.
    Blank(u64),
    /// An access to memory, or the answer to one.
    Access(Access),
}

/// What is done to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Its bytes come back with the answer.
    Read,
    /// Its bytes go with the request.
    Write,
}

/// An access to memory. The same one comes back as its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// What is done.
    pub kind: AccessKind,
    /// Where.
    pub address: u64,
    /// How many bytes.
    pub length_bytes: u32,
    /// The number by which its requester knows it.
    pub tag: u64,
    /// The way of its answer.
    pub back: RouteId,
}

impl Access {
    /// The bytes of its request on a line that carries addresses beside data: those that are written.
    pub fn request_bytes(&self) -> u32 {
        match self.kind {
            AccessKind::Read => 0,
            AccessKind::Write => self.length_bytes,
        }
    }

    /// The bytes of its answer: those that are read.
    pub fn answer_bytes(&self) -> u32 {
        match self.kind {
            AccessKind::Read => self.length_bytes,
            AccessKind::Write => 0,
        }
    }
}
