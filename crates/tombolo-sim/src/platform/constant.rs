//! One constant of a platform.

use crate::kernel::{Rate, Span};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a constant is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The document gives it.
    Stated,
    /// It follows from what is stated by arithmetic that is written down.
    Derived,
    /// It was chosen so that one point of the document comes out, which is no prediction then.
    Fitted,
    /// Neither: a plausible value, with its reason.
    Assumed,
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stated => "stated",
            Self::Derived => "derived",
            Self::Fitted => "fitted",
            Self::Assumed => "assumed",
        })
    }
}

/// What a constant is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Picoseconds.
    #[serde(rename = "ps")]
    Picos,
    /// Nanoseconds.
    #[serde(rename = "ns")]
    Nanos,
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// 1024 bytes.
    #[serde(rename = "KiB")]
    Kibibytes,
    /// 10⁶ bytes a second.
    #[serde(rename = "MB/s")]
    MegabytesPerS,
    /// 10⁶ bits a second.
    #[serde(rename = "Mb/s")]
    MegabitsPerS,
    /// 10⁹ bits a second.
    #[serde(rename = "Gb/s")]
    GigabitsPerS,
    /// Thousandths of a number.
    #[serde(rename = "1/1000")]
    Thousandths,
    /// A number.
    #[serde(rename = "1")]
    Count,
}

impl Unit {
    /// Whether its values are whole numbers.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Bytes | Self::Kibibytes | Self::Count | Self::Thousandths)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Picos => "ps",
            Self::Nanos => "ns",
            Self::Micros => "us",
            Self::Millis => "ms",
            Self::Bytes => "B",
            Self::Kibibytes => "KiB",
            Self::MegabytesPerS => "MB/s",
            Self::MegabitsPerS => "Mb/s",
            Self::GigabitsPerS => "Gb/s",
            Self::Thousandths => "1/1000",
            Self::Count => "1",
        })
    }
}

/// A constant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Constant {
    /// How much, in its unit. It is the only fraction of a simulation, and read once: whole picoseconds, bits a second and bytes come of it.
    pub value: f64,
    /// What it is counted in.
    pub unit: Unit,
    /// Where it is from.
    pub kind: Kind,
    /// The section, table or figure that states it, or from which it is derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// How it is derived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub derivation: Option<String>,
    /// The point that a fitted one makes come out: the id of a figure, and its value there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Why an assumed one is plausible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub what: Option<String>,
}

impl Constant {
    /// The field that its kind demands, if it lacks that.
    pub(super) fn lacks(&self) -> Option<&'static str> {
        let is_empty = |field: &Option<String>| field.as_ref().is_none_or(|text| text.trim().is_empty());
        match self.kind {
            Kind::Stated | Kind::Derived if is_empty(&self.source) => Some("source"),
            Kind::Derived if is_empty(&self.derivation) => Some("derivation"),
            Kind::Fitted if is_empty(&self.target) => Some("target"),
            Kind::Assumed if is_empty(&self.reason) => Some("reason"),
            _ => None,
        }
    }

    /// Its value in picoseconds, bytes, bits a second, or as a number; `None` if it cannot be one.
    pub(super) fn scaled(&self) -> Option<u64> {
        let (factor, is_whole) = match self.unit {
            Unit::Picos => (1.0, true),
            Unit::Nanos => (1e3, true),
            Unit::Micros => (1e6, true),
            Unit::Millis => (1e9, true),
            Unit::Bytes | Unit::Count | Unit::Thousandths => (1.0, false),
            Unit::Kibibytes => (1024.0, false),
            Unit::MegabytesPerS => (8e6, true),
            Unit::MegabitsPerS => (1e6, true),
            Unit::GigabitsPerS => (1e9, true),
        };
        let scaled = self.value * factor;
        // Of times and rates a part of a picosecond, or of a bit a second, is nothing.
        let is_right = scaled >= 0.0 && scaled < 2_f64.powi(53) && (is_whole || scaled.fract() == 0.0);
        let is_rate = matches!(self.unit, Unit::MegabytesPerS | Unit::MegabitsPerS | Unit::GigabitsPerS);
        let scaled = is_right.then(|| scaled.round() as u64)?;
        (!is_rate || scaled > 0).then_some(scaled)
    }

    /// As a time.
    pub fn span(&self) -> Option<Span> {
        let is_time = matches!(self.unit, Unit::Picos | Unit::Nanos | Unit::Micros | Unit::Millis);
        self.scaled().filter(|_| is_time).map(Span::from_picos)
    }

    /// As a rate.
    pub fn rate(&self) -> Option<Rate> {
        let is_rate = matches!(self.unit, Unit::MegabytesPerS | Unit::MegabitsPerS | Unit::GigabitsPerS);
        self.scaled().filter(|_| is_rate).and_then(Rate::from_bits_per_s)
    }

    /// As a number.
    pub fn count(&self) -> Option<u64> {
        self.scaled().filter(|_| self.unit.is_whole())
    }
}
