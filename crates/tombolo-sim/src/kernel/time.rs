//! Virtual time in picoseconds: a packet of 256 bytes at 100 Gb/s lasts 20.48 ns.

use tombolo_core::rdma;

const PICOS_PER_NANO: u64 = 1_000;

/// A moment, in picoseconds since the start of a run. The longest run lasts 213 days.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// A span of time, in picoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Time {
    /// The start of a run.
    pub const ZERO: Self = Self(0);

    /// The last moment, which never comes.
    pub const END: Self = Self(u64::MAX);

    /// Picoseconds since the start.
    pub fn picos(self) -> u64 {
        self.0
    }

    /// The moment this much later; the last one that can be told if that is later than it.
    #[must_use]
    pub fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The moment this much earlier; the start if there is none.
    #[must_use]
    pub fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// The time from an earlier moment to this one; none if that was not earlier.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// This moment as machines of the core are told it: in nanoseconds, rounded down. A machine that is called at its
    /// deadline is told that deadline.
    pub fn of_core(self) -> rdma::Time {
        rdma::Time(self.0 / PICOS_PER_NANO)
    }
}

impl From<rdma::Time> for Time {
    /// A deadline of a machine. One beyond the last moment never comes.
    fn from(time: rdma::Time) -> Self {
        Self(time.0.saturating_mul(PICOS_PER_NANO))
    }
}

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// A span of this many picoseconds.
    pub const fn from_picos(picos: u64) -> Self {
        Self(picos)
    }

    /// A span of this many nanoseconds.
    pub const fn from_ns(nanos: u64) -> Self {
        Self(nanos.saturating_mul(PICOS_PER_NANO))
    }

    /// Its picoseconds.
    pub const fn picos(self) -> u64 {
        self.0
    }

    /// Both spans, one after the other.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This many such spans.
    #[must_use]
    pub const fn times(self, count: u64) -> Self {
        Self(self.0.saturating_mul(count))
    }
}

/// How fast bytes follow each other on a line, with the bits that its coding adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    bits_per_s: u64,
    /// Of `line` bits, `data` are data.
    data: u32,
    line: u32,
}

impl Rate {
    /// A line without coding. `None` for 0, at which nothing would ever arrive.
    pub fn from_bits_per_s(bits_per_s: u64) -> Option<Self> {
        (bits_per_s > 0).then_some(Self { bits_per_s, data: 1, line: 1 })
    }

    /// Adds a coding to the line: of each `line` bits, `data` are data (64 of 66, 8 of 10). `None` unless 0 < `data` <= `line`.
    pub fn coded(self, data: u32, line: u32) -> Option<Self> {
        (0 < data && data <= line).then_some(Self { data, line, ..self })
    }

    /// How long this many bytes last, rounded up to the picosecond: a line never carries more than its rate.
    pub fn span_of(self, bytes: u64) -> Span {
        // The largest product is below 2⁶⁴ × 2³² × 2³ × 10¹², which may pass 2¹²⁸: then the span is the longest.
        let bits = u128::from(bytes) * 8 * u128::from(self.line);
        let picos = bits
            .checked_mul(1_000_000_000_000)
            .map(|product| product.div_ceil(u128::from(self.bits_per_s) * u128::from(self.data)));
        Span(picos.and_then(|picos| u64::try_from(picos).ok()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_at_100_gigabits_lasts_20_48_ns() {
        let rate = Rate::from_bits_per_s(100_000_000_000).unwrap();
        assert_eq!(rate.span_of(256), Span::from_picos(20_480));
        assert_eq!(rate.span_of(0), Span::ZERO);
        assert_eq!(rate.span_of(u64::MAX), Span::from_picos(u64::MAX));
        assert_eq!(Rate::from_bits_per_s(0), None);
    }

    #[test]
    fn a_coding_takes_its_share_of_the_line() {
        let line = Rate::from_bits_per_s(20_000_000_000).unwrap();
        let aurora = line.coded(64, 66).unwrap();
        assert_eq!(line.span_of(64), Span::from_picos(25_600));
        assert_eq!(aurora.span_of(64), Span::from_picos(26_400));
        assert_eq!(line.coded(66, 64), None);
        assert_eq!(line.coded(0, 64), None);
    }

    #[test]
    fn a_line_never_carries_more_than_its_rate() {
        // A bit lasts 333.3… ps.
        let rate = Rate::from_bits_per_s(3_000_000_000).unwrap();
        assert_eq!(rate.span_of(1), Span::from_picos(2_667));
    }

    #[test]
    fn a_machine_that_is_called_at_its_deadline_is_told_its_deadline() {
        for nanos in [0, 1, 999, 1_000_000_007] {
            assert_eq!(Time::from(rdma::Time(nanos)).of_core(), rdma::Time(nanos));
        }
        assert_eq!(Time(1_999).of_core(), rdma::Time(1));
        assert_eq!(Time::from(rdma::Time(u64::MAX)), Time(u64::MAX));
    }

    #[test]
    fn the_end_of_time_is_not_passed() {
        assert_eq!(Time(u64::MAX - 1).after(Span::from_ns(1)), Time(u64::MAX));
        assert_eq!(Time::ZERO.since(Time(5)), Span::ZERO);
        assert_eq!(Span::from_ns(u64::MAX).plus(Span::from_picos(1)).times(3), Span::from_picos(u64::MAX));
    }
}
