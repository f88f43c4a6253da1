//! Platforms: the constants of the documents' hardware, each with its kind, its unit and where it is from.
//!
//! A platform is a TOML file. Each constant is a table; the loader refuses one that does not say what it is:
//!
//! ```
//! use tombolo_sim::kernel::Span;
//! use tombolo_sim::platform::Platform;
//!
//! let platform = Platform::parse(
//!     "example",
//!     r#"
//!     [hop]
//!     value = 0.1
//!     unit = "us"
//!     kind = "stated"
//!     source = "FAULT ch. 4"
//!     "#,
//! )?;
//! assert_eq!(platform.span("hop")?, Span::from_ns(100));
//! # Ok::<(), tombolo_sim::platform::PlatformError>(())
//! ```

mod constant;

pub use constant::{Constant, Kind, Unit};

use crate::kernel::{Rate, Span};
use std::collections::BTreeMap;

/// Why a platform is none, or lacks what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlatformError {
    /// The file is no TOML, or a constant of it lacks a field, or has one that nobody knows.
    #[error("platform {platform}: {what}")]
    Unreadable {
        /// The platform.
        platform: String,
        /// What the parser says.
        what: String,
    },
    /// A constant does not say what its kind demands.
    #[error("platform {platform}: {constant} is {kind}, and has no {lacks}")]
    Unexplained {
        /// The platform.
        platform: String,
        /// The constant.
        constant: String,
        /// What it is said to be.
        kind: Kind,
        /// The field that it has to have.
        lacks: &'static str,
    },
    /// A value is negative, too large, or not a whole number where it has to be one.
    #[error("platform {platform}: {constant} is {value} {unit}, which cannot be")]
    Value {
        /// The platform.
        platform: String,
        /// The constant.
        constant: String,
        /// Its value.
        value: String,
        /// Its unit.
        unit: Unit,
    },
    /// There is no such constant.
    #[error("platform {platform} has no constant {constant}")]
    Missing {
        /// The platform.
        platform: String,
        /// The constant.
        constant: String,
    },
    /// With these constants transfers do not end, or fail.
    #[error("platform {platform}: transfers do not come to an end")]
    Endless {
        /// The platform.
        platform: String,
    },
    /// The constant is something else than it is used for.
    #[error("platform {platform}: {constant} is in {unit}, which is no {wanted}")]
    Unit {
        /// The platform.
        platform: String,
        /// The constant.
        constant: String,
        /// Its unit.
        unit: Unit,
        /// What is wanted.
        wanted: &'static str,
    },
}

/// A platform.
#[derive(Clone, Debug, PartialEq)]
pub struct Platform {
    name: String,
    constants: BTreeMap<String, Constant>,
}

/// The platforms that come with the simulator: their names and files.
pub const PLATFORMS: [(&str, &str); 5] = [
    ("exanest-qfdb", include_str!("exanest-qfdb.toml")),
    ("microzed-gen2", include_str!("microzed-gen2.toml")),
    ("pcie-ntb", include_str!("pcie-ntb.toml")),
    ("remap-zcu102", include_str!("remap-zcu102.toml")),
    ("zedboard-gen1", include_str!("zedboard-gen1.toml")),
];

impl Platform {
    /// One of those that come with the simulator.
    pub fn named(name: &str) -> Option<Self> {
        let (name, text) = PLATFORMS.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text).expect("a platform that a test has loaded"))
    }

    /// Reads a platform.
    ///
    /// # Errors
    /// [`PlatformError`], if something in it is not explained.
    pub fn parse(name: &str, text: &str) -> Result<Self, PlatformError> {
        let constants: BTreeMap<String, Constant> = toml::from_str(text)
            .map_err(|error| PlatformError::Unreadable { platform: name.into(), what: error.to_string() })?;
        for (constant, is) in &constants {
            if let Some(lacks) = is.lacks() {
                return Err(PlatformError::Unexplained {
                    platform: name.into(),
                    constant: constant.clone(),
                    kind: is.kind,
                    lacks,
                });
            }
            if is.scaled().is_none() {
                return Err(PlatformError::Value {
                    platform: name.into(),
                    constant: constant.clone(),
                    value: is.value.to_string(),
                    unit: is.unit,
                });
            }
        }
        Ok(Self { name: name.into(), constants })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its constants, by name.
    pub fn constants(&self) -> impl Iterator<Item = (&str, &Constant)> {
        self.constants.iter().map(|(name, constant)| (name.as_str(), constant))
    }

    /// The same platform with another value of a constant, in the constant's unit: to ask what if.
    ///
    /// # Errors
    /// [`PlatformError::Missing`], [`PlatformError::Value`].
    pub fn with(&self, constant: &str, value: f64) -> Result<Self, PlatformError> {
        let mut other = self.clone();
        let is = other.constants.get_mut(constant).ok_or_else(|| self.missing(constant))?;
        is.value = value;
        match is.scaled() {
            Some(_) => Ok(other),
            None => Err(PlatformError::Value {
                platform: self.name.clone(),
                constant: constant.into(),
                value: value.to_string(),
                unit: is.unit,
            }),
        }
    }

    /// A constant.
    ///
    /// # Errors
    /// [`PlatformError::Missing`].
    pub fn constant(&self, name: &str) -> Result<&Constant, PlatformError> {
        self.constants.get(name).ok_or_else(|| self.missing(name))
    }

    /// A time.
    ///
    /// # Errors
    /// [`PlatformError::Missing`], [`PlatformError::Unit`]; so for all that follow.
    pub fn span(&self, name: &str) -> Result<Span, PlatformError> {
        self.read(name, "time", Constant::span)
    }

    /// A rate.
    ///
    /// # Errors
    /// As [`Self::span`].
    pub fn rate(&self, name: &str) -> Result<Rate, PlatformError> {
        self.read(name, "rate", Constant::rate)
    }

    /// A number, of bytes or of anything.
    ///
    /// # Errors
    /// As [`Self::span`].
    pub fn count(&self, name: &str) -> Result<u64, PlatformError> {
        self.read(name, "number", Constant::count)
    }

    /// A number of at least one that fits its use.
    ///
    /// # Errors
    /// As [`Self::span`], and [`PlatformError::Value`].
    pub fn number<T: TryFrom<u64>>(&self, name: &str) -> Result<T, PlatformError> {
        let count = self.count(name)?;
        let number = T::try_from(count).ok().filter(|_| count > 0);
        number.ok_or_else(|| self.wrong(name))
    }

    /// A rate with a coding: of so many bits of the line so many are data.
    ///
    /// # Errors
    /// As [`Self::number`].
    pub fn coded(&self, rate: Rate, data: &str, line: u32) -> Result<Rate, PlatformError> {
        rate.coded(self.number(data)?, line).ok_or_else(|| self.wrong(data))
    }

    /// What a constant says cannot be.
    fn wrong(&self, constant: &str) -> PlatformError {
        let (value, unit) = self.constants.get(constant).map_or_else(
            || (String::new(), Unit::Count),
            |constant| (constant.value.to_string(), constant.unit),
        );
        PlatformError::Value { platform: self.name.clone(), constant: constant.into(), value, unit }
    }

    fn missing(&self, constant: &str) -> PlatformError {
        PlatformError::Missing { platform: self.name.clone(), constant: constant.into() }
    }

    fn read<T>(
        &self,
        name: &str,
        wanted: &'static str,
        read: impl Fn(&Constant) -> Option<T>,
    ) -> Result<T, PlatformError> {
        let constant = self.constant(name)?;
        read(constant).ok_or_else(|| PlatformError::Unit {
            platform: self.name.clone(),
            constant: name.into(),
            unit: constant.unit,
            wanted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(fields: &str) -> Result<Platform, String> {
        Platform::parse("test", &format!("[x]\n{fields}")).map_err(|error| error.to_string())
    }

    #[test]
    fn every_platform_loads() {
        for (name, _) in PLATFORMS {
            let platform = Platform::named(name).expect("it is listed");
            assert!(platform.constants().count() > 5, "{name}");
        }
        assert_eq!(Platform::named("nothing"), None);
    }

    #[test]
    fn a_constant_has_to_say_what_it_is() {
        let refused = [
            ("value = 1\nunit = \"ns\"\nkind = \"stated\"", "x is stated, and has no source"),
            (
                "value = 1\nunit = \"ns\"\nkind = \"derived\"\nsource = \"Q\"",
                "x is derived, and has no derivation",
            ),
            ("value = 1\nunit = \"ns\"\nkind = \"fitted\"\nsource = \"Q\"", "x is fitted, and has no target"),
            ("value = 1\nunit = \"ns\"\nkind = \"assumed\"", "x is assumed, and has no reason"),
            ("value = -1\nunit = \"ns\"\nkind = \"stated\"\nsource = \"Q\"", "x is -1 ns, which cannot be"),
            ("value = 1.5\nunit = \"B\"\nkind = \"stated\"\nsource = \"Q\"", "x is 1.5 B, which cannot be"),
            ("value = 0\nunit = \"Gb/s\"\nkind = \"stated\"\nsource = \"Q\"", "x is 0 Gb/s, which cannot be"),
            ("value = 1\nunit = \"miles\"\nkind = \"stated\"\nsource = \"Q\"", "unknown variant `miles`"),
            ("value = 1\nunit = \"ns\"\nkind = \"guessed\"\nsource = \"Q\"", "unknown variant `guessed`"),
            ("value = 1\nunit = \"ns\"\nkind = \"stated\"\nsuorce = \"Q\"", "unknown field `suorce`"),
            ("unit = \"ns\"\nkind = \"stated\"\nsource = \"Q\"", "missing field `value`"),
        ];
        for (fields, error) in refused {
            let said = parse(fields).expect_err(fields);
            assert!(said.contains(error) && said.contains("platform test"), "{said}");
        }
    }

    #[test]
    fn values_have_their_units() {
        let is = |value: &str, unit: &str| {
            let text = format!("value = {value}\nunit = \"{unit}\"\nkind = \"stated\"\nsource = \"Q\"");
            parse(&text).expect("a platform")
        };
        assert_eq!(is("20.48", "ns").span("x"), Ok(Span::from_picos(20_480)));
        assert_eq!(is("20", "ms").span("x"), Ok(Span::from_ns(20_000_000)));
        assert_eq!(is("10", "Gb/s").rate("x").ok(), Rate::from_bits_per_s(10_000_000_000));
        assert_eq!(is("610", "MB/s").rate("x").ok(), Rate::from_bits_per_s(4_880_000_000));
        assert_eq!(is("16", "KiB").count("x"), Ok(16_384));
        assert_eq!(is("2", "1").count("x"), Ok(2));
        assert_eq!(is("2", "1").number::<u8>("x"), Ok(2));
        for value in ["0", "256"] {
            let error = is(value, "1").number::<u8>("x").expect_err(value).to_string();
            assert_eq!(error, format!("platform test: x is {value} 1, which cannot be"));
        }
        let error = is("2", "1").span("x").expect_err("a number").to_string();
        assert_eq!(error, "platform test: x is in 1, which is no time");
        assert_eq!(is("2", "1").count("y").expect_err("none").to_string(), "platform test has no constant y");
        let more = is("2", "ns").with("x", 3.0).expect("a value");
        assert_eq!(more.span("x"), Ok(Span::from_ns(3)));
        assert!(is("2", "ns").with("x", -3.0).is_err() && is("2", "ns").with("z", 1.0).is_err());
    }
}
