//! Sizes as people write them: `4096`, `512K`, `256M`, `1.5G`, `2GiB`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why parsing a size failed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a size: expected a number with K, M, G or T (powers of 1024), as in 512M")]
pub struct SizeError(String);

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.trim().to_ascii_uppercase();
        let shift = match unit.trim_end_matches('B').trim_end_matches('I') {
            "" if unit.len() <= 1 => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(error()),
        };
        let number: f64 = number.parse().map_err(|_| error())?;
        let bytes = number * (1u64 << shift) as f64;
        if !(0.0..=(1u64 << 62) as f64).contains(&bytes) {
            return Err(error());
        }
        Ok(Self(bytes as u64))
    }
}

/// A size as a length in memory, for options of the command line.
pub fn bytes(text: &str) -> Result<usize, SizeError> {
    usize::try_from(text.parse::<Size>()?.0).map_err(|_| SizeError(text.to_owned()))
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < units.len() {
            value /= 1024.0;
            unit += 1;
        }
        if unit == 0 || value >= 100.0 || value.fract() < 0.05 {
            write!(formatter, "{value:.0} {}", units[unit])
        } else {
            write!(formatter, "{value:.1} {}", units[unit])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("12B", 12),
            ("64k", 65536),
            ("256M", 256 << 20),
            ("1.5G", 3 << 29),
            ("2GiB", 2 << 30),
            ("1TB", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in ["", "M", "12X", "-1", "1..5M", "9999999999T", "1IB", "nan"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn and_written_back() {
        assert_eq!(Size(512).to_string(), "512 B");
        assert_eq!(Size(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Size(256 << 20).to_string(), "256 MiB");
    }
}
