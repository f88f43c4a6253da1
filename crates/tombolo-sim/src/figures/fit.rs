//! Fitting: the value of a constant with which one point of a document comes out.

use super::{Target, targets};
use crate::platform::{Kind, Platform, PlatformError};

/// A constant that was fitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Which.
    pub constant: String,
    /// Its target: the id of a figure.
    pub target: &'static str,
    /// What the document states.
    pub stated: f64,
    /// In what.
    pub unit: &'static str,
    /// What the model gives with the constant's value in the file.
    pub found: f64,
    /// The value: with which the target comes out, or, where that was only checked, that of the file.
    pub value: f64,
}

impl Fit {
    /// By how much the model misses the target with the value in the file, in thousandths of it.
    pub fn missed_per_mille(&self) -> f64 {
        (self.found - self.stated).abs() * 1_000.0 / self.stated
    }

    /// Whether that is too much.
    pub fn misses(&self) -> bool {
        // What is no number misses, too.
        self.missed_per_mille().is_nan() || self.missed_per_mille() > MOST_PER_MILLE
    }
}

/// Why a constant cannot be fitted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// The platform.
    #[error(transparent)]
    Platform(#[from] PlatformError),
    /// No figure has that id.
    #[error("{constant} is fitted to {target}, which is no target")]
    NoTarget {
        /// The constant.
        constant: String,
        /// What it names.
        target: String,
    },
    /// No value makes the target come out.
    #[error("no value of {constant} gives {stated} for {target}: the model gives {least} to {most}")]
    OutOfReach {
        /// The constant.
        constant: String,
        /// The target.
        target: &'static str,
        /// What the document states.
        stated: f64,
        /// What the least value gives.
        least: f64,
        /// What the largest gives.
        most: f64,
    },
}

/// More than this is a miss.
const MOST_PER_MILLE: f64 = 10.0;
/// Halvings of the interval in which the value lies: less than a millionth of it is nothing.
const STEPS: u32 = 24;
/// The largest value that is tried, as a multiple of the one in the file, and the least is as small a part of it. A nearer one is tried where
/// the target is not between what these give: it may grow with the constant and then fall.
const REACHES: [f64; 3] = [16.0, 4.0, 1.5];

/// Fits every fitted constant of a platform to its target, in the order of the targets, each with those found before it. Twice: the first ones
/// may depend on the last.
///
/// # Errors
/// [`FitError`]
pub fn fit(platform: &Platform) -> Result<Vec<Fit>, FitError> {
    let order = fitted(platform);
    let (mut found, mut fits) = (platform.clone(), Vec::new());
    for _ in 0..2 {
        fits.clear();
        for (constant, target) in &order {
            let fit = one(platform, &found, constant, target)?;
            found = found.with(constant, fit.value)?;
            fits.push(fit);
        }
    }
    Ok(fits)
}

/// The constants in the order of their targets, each with its target's id.
fn fitted(platform: &Platform) -> Vec<(&str, &str)> {
    let place = |target: &str| targets().position(|known| known.id == target);
    let fitted = platform.constants().filter(|(_, constant)| constant.kind == Kind::Fitted);
    let mut order: Vec<(&str, &str)> =
        fitted.map(|(name, constant)| (name, constant.target.as_deref().unwrap_or_default())).collect();
    order.sort_by_key(|(_, target)| place(target));
    order
}

fn target_of(constant: &str, target: &str) -> Result<Target, FitError> {
    let no_target = || FitError::NoTarget { constant: constant.into(), target: target.into() };
    targets().find(|known| known.id == target).ok_or_else(no_target)
}

/// What the model gives for each fitted constant's target with the values of the file.
///
/// # Errors
/// [`FitError`]
pub fn check(platform: &Platform) -> Result<Vec<Fit>, FitError> {
    let order = fitted(platform).into_iter();
    let check = order.map(|(constant, target)| {
        let Target { id, stated, unit, measure, .. } = target_of(constant, target)?;
        let (found, value) = (measure(platform)?, platform.constant(constant)?.value);
        Ok(Fit { constant: constant.into(), target: id, stated, unit, found, value })
    });
    check.collect()
}

/// `platform` is as in the file, `others` has what was found of others.
fn one(platform: &Platform, others: &Platform, constant: &str, target: &str) -> Result<Fit, FitError> {
    let Target { id, stated, unit, measure, .. } = target_of(constant, target)?;
    let (now, is_whole) = (platform.constant(constant)?.value, platform.constant(constant)?.unit.is_whole());
    let whole = |value: f64| if is_whole { value.round() } else { value };
    let with = |value: f64| measure(&others.with(constant, whole(value))?);
    let bounds = |reach: f64| {
        // A whole number is at least one: 0 of something is nothing to fit.
        let least = if is_whole { 1.0 } else { 0.0 };
        let (low, mut high) = ((now / reach).max(least), now * reach);
        // A value that cannot be is out of reach.
        while let Err(PlatformError::Value { .. }) = with(high) {
            high = if high > now * 1.001 { f64::midpoint(now, high) } else { now };
            if high <= now {
                break;
            }
        }
        Ok::<_, PlatformError>((low, high, with(low)?, with(high)?))
    };
    let is_between = |(_, _, least, most): &(f64, f64, f64, f64)| (stated - least) * (stated - most) <= 0.0;
    let (low, high, least, most) = bounds(REACHES[0])?;
    let mut found = Some((low, high, least, most)).filter(is_between);
    for reach in &REACHES[1..] {
        if found.is_none() {
            found = Some(bounds(*reach)?).filter(is_between);
        }
    }
    let Some((mut low, mut high, least, most)) = found else {
        return Err(FitError::OutOfReach { constant: constant.into(), target: id, stated, least, most });
    };
    let grows = most > least;
    for _ in 0..STEPS {
        let middle = f64::midpoint(low, high);
        if (with(middle)? < stated) == grows {
            low = middle;
        } else {
            high = middle;
        }
    }
    let value = whole(f64::midpoint(low, high));
    Ok(Fit { constant: constant.into(), target: id, stated, unit, found: measure(platform)?, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::PLATFORMS;

    /// What every file says is what its target demands, and every target is one of a constant.
    #[test]
    fn fitted_constants_hit_their_targets() {
        let mut used = Vec::new();
        for (name, _) in PLATFORMS {
            for fit in check(&Platform::named(name).expect("it is listed")).expect(name) {
                assert!(!fit.misses(), "{name}: {fit:?}");
                used.push(fit.target);
            }
        }
        used.sort_unstable();
        let mut all: Vec<_> = targets().map(|target| target.id).collect();
        all.sort_unstable();
        assert_eq!(used, all);
    }

    #[test]
    fn a_constant_that_is_off_is_seen_and_found_again() {
        let platform = Platform::named("exanest-qfdb").expect("it is listed");
        let of_logic = |platform: &Platform| one(platform, platform, "logic", "Q-16B").expect("it fits");
        let right = of_logic(&platform);
        let off = platform.with("logic", right.value * 1.2).expect("a value");
        let again = of_logic(&off);
        assert!(again.misses() && !right.misses(), "{again:?}");
        assert!((again.value - right.value).abs() < right.value / 1_000.0, "{again:?}");
    }

    /// A constant with a bound is sought below that.
    #[test]
    fn a_share_is_never_more_than_all() {
        let platform = Platform::named("zedboard-gen1").expect("it is listed");
        let share = one(&platform, &platform, "snoop_share", "M-DMA.9").expect("it fits");
        assert!((share.value - 806.0).abs() < 5.0, "{share:?}");
    }

    #[test]
    fn what_cannot_be_is_an_error() {
        let file = |target: &str| {
            let text = include_str!("../platform/exanest-qfdb.toml");
            Platform::parse("other", &text.replace("target = \"Q-16B\"", &format!("target = \"{target}\"")))
                .expect("a platform")
        };
        let error = fit(&file("Q-NONE")).expect_err("no target").to_string();
        assert_eq!(error, "logic is fitted to Q-NONE, which is no target");
        let slow = file("Q-16B").with("seen", 9_000.0).expect("a value");
        assert!(matches!(fit(&slow), Err(FitError::OutOfReach { .. })), "{:?}", fit(&slow));
    }
}
