//! What tests of virtual machines boot: the kernel of a Debian package, and some of its modules. Nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::run;

/// The package that depends on the newest kernel for virtual machines.
const PACKAGE: &str = "linux-image-cloud-amd64";
/// Modules of a network card, within the kernel's directory of them.
const MODULES: [&str; 8] = [
    "net/core/failover.ko",
    "drivers/net/net_failover.ko",
    "drivers/virtio/virtio_ring.ko",
    "drivers/virtio/virtio.ko",
    "drivers/virtio/virtio_pci_modern_dev.ko",
    "drivers/virtio/virtio_pci_legacy_dev.ko",
    "drivers/virtio/virtio_pci.ko",
    "drivers/net/virtio_net.ko",
];

/// The newest kernel's version, if the lists of packages are there.
fn newest() -> Result<Option<String>, String> {
    let found = Command::new("apt-cache").args(["depends", PACKAGE]).output();
    let found = found.map_err(|error| format!("apt-cache: {error}"))?;
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    let kernel = text.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
    Ok(kernel.map(str::to_owned))
}

/// Makes a directory with `vmlinuz` and the modules, unless there is one.
pub fn prepare(directory: &Path) -> Result<(), String> {
    if directory.join("vmlinuz").exists() {
        return Ok(());
    }
    if !cfg!(target_arch = "x86_64") {
        return Err("this is no amd64".into());
    }
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let new = directory.with_extension("new");
    let _ = fs::remove_dir_all(&new);
    fs::create_dir_all(&new).map_err(failed)?;
    let kernel = match newest()? {
        Some(kernel) => kernel,
        None => {
            // Nothing was installed here yet.
            run(Command::new("apt-get").args(["update", "--quiet"]))?;
            newest()?.ok_or_else(|| format!("apt-cache knows no {PACKAGE}"))?
        }
    };
    run(Command::new("apt-get")
        .args(["download", "--quiet", &format!("linux-image-{kernel}")])
        .current_dir(&new))?;
    let is_package = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "deb");
    let package = fs::read_dir(&new).map_err(failed)?.flatten().map(|entry| entry.path()).find(is_package);
    let package = package.ok_or("apt-get has downloaded nothing")?;
    let all = new.join("all");
    run(Command::new("dpkg-deb").arg("--extract").args([&package, &all]))?;
    fs::copy(all.join(format!("boot/vmlinuz-{kernel}")), new.join("vmlinuz")).map_err(failed)?;
    for module in MODULES {
        let from = all.join(format!("lib/modules/{kernel}/kernel")).join(module);
        let name = Path::new(module).file_name().unwrap_or_default();
        fs::copy(&from, new.join(name)).map_err(|error| format!("{}: {error}", from.display()))?;
    }
    fs::remove_dir_all(&all).map_err(failed)?;
    fs::remove_file(&package).map_err(failed)?;
    fs::rename(&new, directory).map_err(failed)
}
