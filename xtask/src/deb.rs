//! `cargo xtask deb`: a Debian package of the product, made by cargo-deb.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{root, run};
use crate::{bench, packages, tools};

const PROGRAMS: [(&str, &str); 1] = [("dpkg-shlibdeps", "dpkg-dev")];
/// Shells, and how a file of completions for each is called.
const SHELLS: [(&str, &str); 3] = [("bash", "tombolo.bash"), ("zsh", "_tombolo"), ("fish", "tombolo.fish")];

/// Builds the product and its package, and says where that is.
pub fn main() -> Result<(), String> {
    packages::install_missing(&PROGRAMS, "there is no package")?;
    let package = build(&bench::build("tombolo")?)?;
    println!("{}", package.display());
    Ok(())
}

/// Packs a product that is built; where the package is.
pub fn build(product: &Path) -> Result<PathBuf, String> {
    let folder = root().join("target/package");
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    // What an earlier version had is not in this one's package.
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(failed)?;
    }
    fs::create_dir_all(folder.join("completions")).map_err(failed)?;
    run(Command::new(product).arg("man").arg(folder.join("man")))?;
    run(Command::new(product).arg("library").arg(folder.join("library")))?;
    for (shell, file) in SHELLS {
        let output = Command::new(product).args(["completions", shell]).stderr(Stdio::inherit()).output();
        let output = output.map_err(|error| format!("{}: {error}", product.display()))?;
        if !output.status.success() {
            return Err(format!("tombolo completions {shell}: {}", output.status));
        }
        fs::write(folder.join("completions").join(file), output.stdout).map_err(failed)?;
    }
    let package = folder.join("tombolo.deb");
    let mut deb = Command::new(tools::find(&tools::DEB)?);
    deb.current_dir(root())
        .args(["deb", "--no-build", "--strip", "--quiet", "--package", "tombolo", "--output"])
        .arg(&package);
    run(&mut deb)?;
    Ok(package)
}
