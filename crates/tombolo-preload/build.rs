//! Compiles what works on the allocator's own structures, with its headers.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=src/fork.c");
    let include = env::var("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys says where its headers are");
    // As libmimalloc-sys compiles the allocator: the structures depend on it.
    cc::Build::new()
        .file("src/fork.c")
        .include(include)
        .define("MI_DEBUG", "0")
        .flag("-ftls-model=initial-exec")
        .warnings(false)
        .compile("tombolo_fork");
}
