//! `tombolo sim platforms` and `tombolo sim fit`: the constants of the documents' hardware.

use std::path::Path;

use clap::Args;
use serde_json::json;
use tombolo_sim::figures::{self, Fit};
use tombolo_sim::platform::{Constant, PLATFORMS, Platform};

use crate::failure::Failure;

use crate::output;

/// Arguments of `tombolo sim platforms`.
#[derive(Args)]
pub struct Arguments {
    /// The name of one, or the path of a TOML file.
    platform: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Arguments of `tombolo sim fit`.
#[derive(Args)]
pub struct FitArguments {
    /// The name of a platform, or the path of a TOML file.
    platform: String,
    /// Change nothing: say what the file's values give, and fail if one misses its target by more than 1 %.
    #[arg(long)]
    check: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A platform by its name, or from a file.
fn platform(name: &str) -> Result<Platform, Failure> {
    if let Some(platform) = Platform::named(name) {
        return Ok(platform);
    }
    let known = PLATFORMS.map(|(name, _)| name).join(", ");
    let text = std::fs::read_to_string(name).map_err(|error| {
        Failure::new(format!("{name} is no platform ({known}), and cannot be read as a file: {error}"))
    })?;
    let stem = Path::new(name).file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy());
    Platform::parse(&stem, &text).map_err(|error| Failure::new(error.to_string()))
}

/// Where a constant is from, in words.
fn origin(constant: &Constant) -> String {
    let words = [&constant.source, &constant.derivation, &constant.reason].into_iter().flatten();
    let target = constant.target.iter().map(|target| format!("to {target}"));
    words.cloned().chain(target).collect::<Vec<_>>().join("; ")
}

/// Lists platforms, or constants.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let Some(name) = &arguments.platform else {
        let names = PLATFORMS.map(|(name, _)| name);
        if arguments.json {
            output::json(&json!(names))?;
        } else {
            names.iter().for_each(|name| output::line(name));
        }
        return Ok(0);
    };
    let platform = platform(name)?;
    if arguments.json {
        let constants: serde_json::Map<_, _> =
            platform.constants().map(|(name, constant)| (name.to_owned(), json!(constant))).collect();
        output::json(&json!({ "platform": platform.name(), "constants": constants }))?;
        return Ok(0);
    }
    for (name, constant) in platform.constants() {
        let value = format!("{} {}", constant.value, constant.unit);
        output::line(&format!(
            "{name:<16} {value:<10} {:<8} {}",
            constant.kind.to_string(),
            origin(constant)
        ));
    }
    Ok(0)
}

/// Fits constants, or checks them.
pub fn fit(arguments: &FitArguments) -> Result<u8, Failure> {
    let platform = platform(&arguments.platform)?;
    let find = if arguments.check { figures::check } else { figures::fit };
    let fits = find(&platform).map_err(|error| Failure::new(error.to_string()))?;
    if arguments.json {
        let fits = fits.iter().map(|fit| {
            json!({
                "constant": fit.constant,
                "target": fit.target,
                "unit": fit.unit,
                "stated": fit.stated,
                "found": fit.found,
                "missed_per_mille": fit.missed_per_mille(),
                "value": fit.value,
            })
        });
        output::json(&json!({ "platform": platform.name(), "fits": fits.collect::<Vec<_>>() }))?;
    } else {
        for fit in &fits {
            let unit =
                platform.constant(&fit.constant).map_or_else(|_| String::new(), |is| is.unit.to_string());
            let Fit { constant, value, stated, found, target, .. } = fit;
            output::line(&match arguments.check {
                true => format!(
                    "{constant} = {value} {unit} gives {found:.4} {} for {target}, which is {stated}",
                    fit.unit
                ),
                false => format!(
                    "{constant} = {value:.4} {unit} gives {stated} {} for {target} (in the file: {found:.4})",
                    fit.unit
                ),
            });
        }
    }
    let misses = fits.iter().any(Fit::misses);
    Ok(u8::from(arguments.check && misses))
}
