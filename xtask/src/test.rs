//! `cargo xtask test`: all tests of the workspace, with the programs they need.

use std::path::Path;

use crate::bench;
use crate::command::{cargo, run};
use crate::{guest, packages};

/// Programs and libraries of the end-to-end tests, and the Debian package of each.
const NEEDED: [(&str, &str); 28] = [
    ("sort", "coreutils"),
    ("cc", "gcc"),
    ("python3", "python3"),
    ("redis-server", "redis-server"),
    ("sqlite3", "sqlite3"),
    ("stress-ng", "stress-ng"),
    ("ip", "iproute2"),
    ("ping", "iputils-ping"),
    ("iperf3", "iperf3"),
    ("nginx", "nginx-light"),
    ("wget", "wget"),
    ("dnsmasq", "dnsmasq-base"),
    ("busybox", "busybox"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("ethtool", "ethtool"),
    ("tcpdump", "tcpdump"),
    ("tshark", "tshark"),
    ("memcached", "memcached"),
    ("xz", "xz-utils"),
    ("go", "golang-go"),
    ("java", "default-jre-headless"),
    ("javac", "default-jdk-headless"),
    ("node", "nodejs"),
    ("gdb", "gdb"),
    ("strace", "strace"),
    ("libjemalloc.so.2", "libjemalloc2"),
    ("libtcmalloc_minimal.so.4", "libtcmalloc-minimal4"),
    ("libmimalloc.so.2.0", "libmimalloc2.0"),
];

/// Runs everything; with `require_all`, what would be left out is a failure.
pub fn main(arguments: &[String], require_all: bool) -> Result<(), String> {
    packages::install_missing(&NEEDED, "some tests will be left out")?;
    let cargo = || {
        let mut command = cargo();
        if require_all {
            command.env("TOMBOLO_REQUIRE_ALL", "1");
        }
        command
    };
    // With debug assertions: overflow and broken invariants are found here. The tests of the benches need the
    // product, and need not build it once more.
    let mut workspace = cargo();
    let binary = bench::build("tombolo")?;
    // Beside the profile's directory, where the tests look for it.
    let target = binary.parent().and_then(Path::parent).unwrap_or(Path::new("target"));
    if let Err(reason) = guest::prepare(&target.join("guest")) {
        eprintln!("there are no virtual machines, so some tests will be left out: {reason}");
    }
    workspace.env("TOMBOLO_BINARY", binary);
    run(workspace.args(["test", "--workspace", "--exclude", "tombolo"]))?;
    // As users run it: the end-to-end tests are about the real thing, and its speed.
    run(cargo().args(["test", "--release", "--package", "tombolo", "--bins"]))?;
    // A program in C links it.
    run(cargo().args(["build", "--release", "--package", "tombolo-c"]))?;
    let mut end_to_end = cargo();
    end_to_end.args(["test", "--release", "--package", "tombolo", "--test", "end_to_end", "--"]);
    run(end_to_end.args(arguments))
}
