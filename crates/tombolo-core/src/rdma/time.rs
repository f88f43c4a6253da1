//! Time, as the caller tells it.

/// Nanoseconds since an instant of the caller's choice. The engine never asks
/// for it; it may stand still, and if it runs backwards nothing worse happens
/// than a timer that fires late.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The instant `ns` nanoseconds later.
    #[must_use]
    pub fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since `earlier`; 0 if that lies ahead.
    #[must_use]
    pub fn since_ns(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}
