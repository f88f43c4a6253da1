//! Builds the preloaded libraries, which the binary carries inside itself: one
//! file is all that has to be installed.
//!
//! Cargo cannot yet hand one package's `cdylib` to another, so this calls Cargo
//! again, with a target directory of its own (the outer one is locked). That Cargo says which files a library was made of, those of
//! other crates of this workspace among them: when one changes, the library is built again.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of libraries, and the variables by which the binary finds what was built.
const LIBRARIES: [(&str, &str); 2] =
    [("tombolo-preload", "TOMBOLO_PRELOAD"), ("tombolo-sockets-preload", "TOMBOLO_SOCKETS_PRELOAD")];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    for (package, variable) in LIBRARIES {
        build(package, variable);
    }
}

fn build(package: &str, told: &str) {
    let variable = |name: &str| env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"));
    let library = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..").join(package);
    let library = library.canonicalize().expect("the library's package is there");
    // `TARGET-DIRECTORY/PROFILE/build/PACKAGE/out`. Builds of several profiles, and those that only check, share one
    // directory, so that a library is built once for all of them that want the same.
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = out.ancestors().nth(4).expect("cargo's layout of directories").join("preload");
    let triple = env::var("TARGET").expect("cargo sets it");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--release", "--manifest-path"]).arg(library.join("Cargo.toml"));
    cargo.args(["--target", &triple]);
    // What the outer build checks while it runs, the library checks, too.
    let profile = if variable("PROFILE") == "debug" { "checked" } else { "release" };
    if profile == "checked" {
        for check in ["debug-assertions", "overflow-checks"] {
            cargo.args(["--config", &format!("profile.release.{check}=true")]);
        }
    }
    let target = target.join(profile);
    cargo.arg("--target-dir").arg(&target);
    // A lint or coverage run of the outer build must not leak into the library.
    for variable in
        ["RUSTC_WORKSPACE_WRAPPER", "RUSTC_WRAPPER", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET_DIR"]
    {
        cargo.env_remove(variable);
    }
    let status = cargo.status().expect("cargo can be started");
    assert!(status.success(), "{package} did not build");
    let name = format!("lib{}.so", package.replace('-', "_"));
    let made = target.join(triple).join("release").join(&name);
    let built = out.join(&name);
    std::fs::copy(&made, &built).expect("it was built");
    println!("cargo::rustc-env={told}={}", built.display());
    watch(&made.with_extension("d"), &library);
}

/// Watches all files of this workspace that the library was made of, as Cargo has noted them, and the manifests that say how.
fn watch(notes: &Path, library: &Path) {
    let workspace = library.ancestors().nth(2).expect("it is two directories below the workspace");
    let text = std::fs::read_to_string(notes).unwrap_or_else(|error| panic!("{}: {error}", notes.display()));
    let (_, sources) = text.split_once(": ").expect("what was made, and of what");
    // A space in a name has a backslash before it.
    let sources = sources.trim_end().replace("\\ ", "\0");
    let sources = sources.split(' ').map(|source| PathBuf::from(source.replace('\0', " ")));
    let own: Vec<PathBuf> = sources.filter(|source| source.starts_with(workspace)).collect();
    let mut watched: BTreeSet<PathBuf> =
        ["Cargo.toml", "Cargo.lock"].into_iter().map(|file| workspace.join(file)).collect();
    if !own.iter().any(|source| source.starts_with(library.join("src"))) {
        // Cargo was told to write other names (`build.dep-info-basedir`): then everything is watched.
        watched.insert(workspace.join("crates"));
    }
    for source in own {
        let manifests = source.ancestors().skip(1).map(|folder| folder.join("Cargo.toml"));
        watched.extend(manifests.take_while(|file| file.starts_with(workspace)).find(|file| file.exists()));
        watched.insert(source);
    }
    for file in watched {
        println!("cargo::rerun-if-changed={}", file.display());
    }
}
