//! Chance, and what it does to packets and pages.

/// What the wire and the memories do wrong; probabilities in millionths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u64,
    pub duplication: u64,
    pub corruption: u64,
    pub jitter_ns: u64,
    /// Chance that a packet is held back for up to 50 ms.
    pub stall: u64,
    /// Chance that a copy is slow, by up to `slow_ns`.
    pub slow_copy: u64,
    pub slow_ns: u64,
    /// Chance that a destination page is absent for a while.
    pub absent_page: u64,
    /// Chance that the destination is full for now.
    pub full: u64,
    /// Chance that a source page is absent for a while.
    pub absent_source: u64,
    /// The wire drops what is beyond this many bytes under way, each direction.
    pub buffer_bytes: Option<u64>,
    /// Nanoseconds a byte takes, in thousandths; 0 = none.
    pub byte_picos: u64,
}
