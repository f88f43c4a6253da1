//! Under which licences dependencies are, and where they come from: what `deny.toml` allows, checked without the network.

use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::command::{cargo, root};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Crates come from there alone.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The error names each package that is not allowed.
pub fn check() -> Result<(), String> {
    let file = root().join("deny.toml");
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let rules: toml::Table = text.parse().map_err(|error| format!("{}: {error}", file.display()))?;
    let allowed = allowed(&rules).ok_or("deny.toml allows no licences")?;
    let output = cargo()
        .args([
            "metadata",
            "--format-version",
            "1",
            "--all-features",
            "--locked",
            "--offline",
            "--filter-platform",
            TARGET,
        ])
        .output();
    let output = output.map_err(|error| format!("cargo metadata: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let found: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = found["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let wrong: Vec<String> = packages.iter().filter_map(|package| trouble_of(package, &allowed)).collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// The licences that may be.
struct Allowed {
    licences: Vec<String>,
    /// Others that one package may be under.
    exceptions: Vec<(String, Vec<String>)>,
}

fn allowed(rules: &toml::Table) -> Option<Allowed> {
    let names = |table: &toml::Value| -> Option<Vec<String>> {
        let names = table.get("allow")?.as_array()?;
        Some(names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    };
    let licenses = rules.get("licenses")?;
    let exceptions = licenses.get("exceptions").and_then(toml::Value::as_array).into_iter().flatten();
    let exception = |one: &toml::Value| Some((one.get("crate")?.as_str()?.to_owned(), names(one)?));
    let exceptions = exceptions.filter_map(exception).collect();
    let licences = names(licenses)?;
    if licences.is_empty() { None } else { Some(Allowed { licences, exceptions }) }
}

/// What is wrong with a package.
fn trouble_of(package: &Value, allowed: &Allowed) -> Option<String> {
    let package_name = package["name"].as_str()?;
    let name = format!("{package_name} {}", package["version"].as_str()?);
    // Those without a source are this workspace's.
    let source = package["source"].as_str()?;
    if source != REGISTRY {
        return Some(format!("{name} comes from {source}"));
    }
    let Some(licence) = package["license"].as_str() else { return Some(format!("{name} names no licence")) };
    match Expression::parse_mode(licence, ParseMode::LAX) {
        Ok(licences) if licences.evaluate(|one| allowed.has(package_name, one)) => None,
        Ok(_) => Some(format!("{name} is under {licence}, which deny.toml does not allow")),
        Err(error) => Some(format!("{name} has the licence `{licence}`: {error}")),
    }
}

impl Allowed {
    fn has(&self, package: &str, licence: &LicenseReq) -> bool {
        let licence = licence.to_string();
        let mut exceptions = self.exceptions.iter();
        self.licences.contains(&licence)
            || exceptions.any(|(name, licences)| name == package && licences.contains(&licence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_licence_counts() {
        let rules: toml::Table =
            "[licenses]\nallow = ['MIT', 'Apache-2.0']\nexceptions = [{ allow = ['NCSA'], crate = 'b' }]"
                .parse()
                .unwrap();
        let allowed = allowed(&rules).unwrap();
        let trouble_with = |name: &str, licence: Option<&str>, source: &str| {
            let package = serde_json::json!({
                "name": name, "version": "1.0.0", "source": source, "license": licence,
            });
            trouble_of(&package, &allowed)
        };
        let trouble = |licence: Option<&str>, source: &str| trouble_with("a", licence, source);
        assert_eq!(trouble_with("b", Some("MIT AND NCSA"), REGISTRY), None);
        for good in ["MIT", "MIT OR GPL-3.0-only", "Apache-2.0/MIT", "MIT AND Apache-2.0"] {
            assert_eq!(trouble(Some(good), REGISTRY), None);
        }
        for bad in ["GPL-3.0-only", "MIT AND GPL-3.0-only", "MIT AND NCSA", "no licence"] {
            assert!(trouble(Some(bad), REGISTRY).unwrap().starts_with("a 1.0.0 "), "{bad}");
        }
        assert!(trouble(None, REGISTRY).is_some());
        assert!(trouble(Some("MIT"), "git+https://example.org").is_some());
        assert!(super::allowed(&toml::Table::new()).is_none());
    }
}
