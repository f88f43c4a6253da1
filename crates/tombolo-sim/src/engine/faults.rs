//! What goes wrong with packets and pages, by chance.

/// What the wire and the memories do wrong; probabilities in millionths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Chance that a packet is lost.
    pub loss: u64,
    /// Chance that a packet comes twice.
    pub duplication: u64,
    /// Chance that a bit of a packet is changed.
    pub corruption: u64,
    /// What a packet is late by, at most.
    pub jitter_ns: u64,
    /// Chance that a packet is held back for up to 50 ms.
    pub stall: u64,
    /// Chance that a copy is slow, by up to `slow_ns`.
    pub slow_copy: u64,
    /// How slow a slow copy is, at most.
    pub slow_ns: u64,
    /// Chance that a destination page is absent for a while.
    pub absent_page: u64,
    /// Chance that the destination is full for now.
    pub full: u64,
    /// Chance that a source page is absent for a while.
    pub absent_source: u64,
    /// The wire drops what is beyond this many bytes under way, each direction.
    pub buffer_bytes: Option<u64>,
    /// Picoseconds that a byte takes.
    pub byte_picos: u64,
}
