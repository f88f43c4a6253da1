//! Nodes that want each other, in virtual time: seeds draw who wants whom, start orders, restarts, flaps, cuts
//! and lost answers. First safety: no neighbour is reached by a link that is over, no number is used twice, and
//! no pair keeps two links. Then liveness: when all is healed, every neighbour that is wanted is joined within a
//! bound, to its present life, and nothing moves any more.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SEEDS=5000` runs many.
#![expect(clippy::disallowed_types, reason = "this test only looks things up by key")]

mod cases;
mod world;

use tombolo_core::fabric::neighbour::Change;
use tombolo_random::Seeds;

use crate::world::{MS, Plant, SECOND, SETTLED, World};

fn run(seed: u64, plant: Plant) -> Result<(), String> {
    let mut world = World::new(seed, plant);
    // All open to each other at once, and nothing else happens.
    let is_calm = seed.is_multiple_of(4);
    if is_calm {
        world.loss = 0;
        // A node that is named twice may be joined twice at first.
        world.nodes.iter_mut().for_each(|node| node.wants.dedup());
        (0..world.nodes.len()).for_each(|node| world.start(node));
    }
    for _ in 0..if is_calm { 0 } else { world.random.below(30) } {
        world.disturb();
        let pause = match world.random.below(3) {
            0 => world.random.below(200 * MS),
            1 => world.random.below(3 * SECOND),
            _ => world.random.below(15 * SECOND),
        };
        world.run(pause);
    }
    world.cut.clear();
    world.loss = 0;
    for node in 0..world.nodes.len() {
        if world.nodes[node].machine.is_none() {
            world.start(node);
        }
    }
    world.run(SETTLED);
    world.settled();
    let before: Vec<_> = world.nodes.iter().map(|node| node.assigned.clone()).collect();
    world.run(30 * SECOND);
    world.settled();
    let after: Vec<_> = world.nodes.iter().map(|node| node.assigned.clone()).collect();
    if before != after {
        world.fail(format!("links move while nothing happens: {before:?}, {after:?}"));
    }
    if is_calm
        && world.nodes.iter().any(|node| node.reports.iter().any(|(_, change)| *change == Change::Lost))
    {
        world.fail("a neighbour was lost though nothing happened".into());
    }
    world.trouble.map_or(Ok(()), Err)
}

#[test]
fn nodes_that_want_each_other_are_joined_by_one_link() {
    Seeds::from_environment(500).run("cargo test -p tombolo-core --test neighbours", |seed| {
        if let Err(trouble) = run(seed, Plant::Nothing) {
            panic!("seed {seed}: {trouble}");
        }
    });
}

/// The seeds find what they are for.
#[test]
fn planted_faults_are_found() {
    for (plant, expected) in
        [(Plant::OwnDialsPreferred, "was lost though nothing"), (Plant::LossUnheard, "does not reach")]
    {
        let found: Vec<String> = (0..300).filter_map(|seed| run(seed, plant).err()).collect();
        assert!(found.iter().any(|trouble| trouble.contains(expected)), "{expected}: {found:?}");
        eprintln!("{} of 300: {found:?}", found.len());
    }
}
