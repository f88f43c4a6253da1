//! Compiles what is in C: what works on the allocator's own structures, with its headers.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=src/fork.c");
    let include = env::var("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys says where its headers are");
    // The loader runs this library's constructor before those of all others, so its fork handlers are
    // registered before theirs: what a fork holds, it takes last and releases first.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // These are called by the allocator alone.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap=prctl,--wrap=syscall");
    // As libmimalloc-sys compiles the allocator: the structures depend on it.
    cc::Build::new()
        .file("src/fork.c")
        .include(include)
        .define("MI_DEBUG", "0")
        .flag("-ftls-model=initial-exec")
        .warnings(false)
        .compile("tombolo_fork");
}
