//! Rates on the command line, in bits a second, as other tools for networks write them: 10G, 250Mbit, 64k.

use std::fmt;
use std::str::FromStr;

/// A rate in bits a second. 0: no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitRate(pub u64);

/// A text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no rate in bits a second, such as 10G, 250Mbit or 64k (or 0: no limit)")]
pub struct NoRate(String);

const UNITS: [(&str, u64); 4] =
    [("T", 1_000_000_000_000), ("G", 1_000_000_000), ("M", 1_000_000), ("k", 1000)];

impl FromStr for BitRate {
    type Err = NoRate;

    fn from_str(text: &str) -> Result<Self, NoRate> {
        let wrong = || NoRate(text.to_owned());
        let short = text.strip_suffix("bit/s").or_else(|| text.strip_suffix("bit")).unwrap_or(text);
        let unit = UNITS.iter().find(|(letter, _)| {
            short.len() > 1
                && short
                    .as_bytes()
                    .last()
                    .is_some_and(|last| last.eq_ignore_ascii_case(&letter.as_bytes()[0]))
        });
        let (number, factor) = match unit {
            Some((_, factor)) => (short.get(..short.len() - 1).ok_or_else(wrong)?, *factor),
            None => (short, 1),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let is_number = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
        if whole.is_empty() || !is_number(whole) || !is_number(part) || part.len() > 9 {
            return Err(wrong());
        }
        let whole =
            whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(factor)).ok_or_else(wrong)?;
        let part = if part.is_empty() {
            0
        } else {
            let digits = part.parse::<u64>().map_err(|_| wrong())?;
            let scaled = u128::from(digits) * u128::from(factor) / 10u128.pow(part.len() as u32);
            u64::try_from(scaled).map_err(|_| wrong())?
        };
        // Less than 8 bits a second would become 0 bytes a second, which means no limit.
        whole.checked_add(part).filter(|bits| !(1..8).contains(bits)).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return formatter.write_str("no limit");
        }
        match UNITS.iter().find(|(_, factor)| self.0 >= *factor) {
            Some((letter, factor)) => {
                let tenths = self.0 / (factor / 10);
                let (whole, tenth) = (tenths / 10, tenths % 10);
                if tenth == 0 {
                    write!(formatter, "{whole}{letter}bit/s")
                } else {
                    write!(formatter, "{whole}.{tenth}{letter}bit/s")
                }
            }
            None => write!(formatter, "{}bit/s", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_other_tools_write_them() {
        for (text, bits, shown) in [
            ("10G", 10_000_000_000, "10Gbit/s"),
            ("2.5Gbit", 2_500_000_000, "2.5Gbit/s"),
            ("250mbit/s", 250_000_000, "250Mbit/s"),
            ("64k", 64_000, "64kbit/s"),
            ("9", 9, "9bit/s"),
            ("0", 0, "no limit"),
        ] {
            let rate: BitRate = text.parse().unwrap();
            assert_eq!((rate.0, rate.to_string().as_str()), (bits, shown), "{text}");
        }
        for text in ["", "G", "-1", "7", "1..2", "1.5x", "1e9", "99999999999999999999", "999999999T", "1é"] {
            assert!(text.parse::<BitRate>().is_err(), "{text}");
        }
    }
}
