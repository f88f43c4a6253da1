//! Scenarios of many seeds against the oracle.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many, `TOMBOLO_SECONDS=600` runs until the time is over.

use tombolo_random::Seeds;
use tombolo_sim::engine::scenario;

#[test]
fn seeds() {
    let seeds = Seeds::from_environment(300);
    seeds.run("cargo test -p tombolo-core --test engine random::", |seed| {
        let options = scenario::options(seed);
        let show = || eprintln!("seed {seed} is {options:#?}");
        if matches!(seeds, Seeds::One(_)) {
            show();
        }
        if let Err(panic) = std::panic::catch_unwind(|| scenario::run(seed, &options)) {
            show();
            std::panic::resume_unwind(panic);
        }
    });
}
