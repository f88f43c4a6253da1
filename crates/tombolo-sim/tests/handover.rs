//! Connections that are handed over: many seeds, and defects that they find.

use tombolo_sim::fuzz::{self, World};
use tombolo_sim::handover::Plant;

#[test]
fn seeds_show_nothing_wrong() {
    for seed in 1..=20_000 {
        let trace =
            World::Handover.run(seed).unwrap_or_else(|failure| panic!("{failure}\n{}", failure.options));
        if seed <= 20 {
            assert_eq!(World::Handover.run(seed), Ok(trace), "seed {seed} differs from run to run");
        }
    }
}

/// Each planted defect is found by one of many seeds, none of which fails without.
#[test]
fn planted_defects_are_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let find = |plant| (1..=2000).find_map(|seed| fuzz::run_handover(seed, Some(plant)).err());
    let found = Plant::ALL.map(|plant| (plant, find(plant)));
    let _ = std::panic::take_hook();
    for (plant, failure) in found {
        let failure = failure.unwrap_or_else(|| panic!("{plant:?} is not found"));
        println!("{plant:?}: seed {}", failure.seed);
    }
}
