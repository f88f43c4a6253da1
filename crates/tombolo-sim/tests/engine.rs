//! The world of the engine repeats itself: in a run, in each build, and since it was written down.

use std::fmt::Write;
use std::path::Path;
use tombolo_sim::engine::Plant;
use tombolo_sim::fuzz::{self, World};

/// Written anew by `TOMBOLO_BLESS=1`, where a change of the engine or of the world is meant to change runs.
const HASHES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/hashes/engine.txt");

/// Each planted defect is found by one of a few seeds, none of which fails without.
#[test]
fn planted_defects_are_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let find = |plant| (1..=60).find_map(|seed| fuzz::run_engine(seed, Some(plant)).err());
    let found = Plant::ALL.map(|plant| (plant, find(plant)));
    let _ = std::panic::take_hook();
    for (plant, failure) in found {
        let failure = failure.unwrap_or_else(|| panic!("{plant:?} is not found"));
        println!("{plant:?}: {failure}");
    }
}

#[test]
fn a_seed_does_the_same_again_and_as_it_is_written_down() {
    let mut found = String::new();
    for seed in 1..=20 {
        let trace = World::Engine.run(seed).unwrap_or_else(|failure| panic!("{failure}"));
        assert_eq!(World::Engine.run(seed).as_ref(), Ok(&trace), "seed {seed} differs from run to run");
        writeln!(found, "{seed} {trace}").expect("a string takes it");
    }
    if tombolo_random::is_on("TOMBOLO_BLESS") {
        std::fs::create_dir_all(Path::new(HASHES).parent().expect("a folder")).expect("a folder");
        std::fs::write(HASHES, &found).expect("it can be written");
    }
    let known = std::fs::read_to_string(HASHES).unwrap_or_default();
    assert_eq!(found, known, "runs of seeds have changed: TOMBOLO_BLESS=1 if that is meant");
}
