//! Memory that a program writes while it is being sent.

use std::sync::atomic::{AtomicBool, Ordering};

use tombolo_client::{Grant, Spec, Target, Who};
use tombolo_node::Node;

use crate::harness::{Host, PATIENCE, pattern, shm, udp};

/// Blocks may be sent from where they lie, and somebody may write there meanwhile: each transfer ends well
/// all the same, with whatever was there at some moment, and when the writer rests, with what is there.
#[test]
fn what_changes_while_it_is_sent_arrives_all_the_same() {
    const LENGTH: usize = 256 * 1024;
    let (host, address) = Host::start_node(Node::new("far", 8 << 20, 0).unwrap(), &udp(), &[]);
    let (other, _) = Host::start_named("near", &shm(), &[&address]);
    let near = other.domain(1);
    let far = host.domain(2);
    let mine = near.allocate(LENGTH, &[]).unwrap();
    let theirs = far.allocate(LENGTH, &[Grant::all(Who::Node(1))]).unwrap();
    let there = Spec::new(mine.address(), theirs.address(), LENGTH as u32);
    let target = Target { node: 1, domain: 2 };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                for place in (0..LENGTH).step_by(1024) {
                    mine.write(place, &round.to_le_bytes()).unwrap();
                }
            }
        });
        for _ in 0..100 {
            near.write(target, there).unwrap().wait(PATIENCE).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let bytes = pattern(7, LENGTH);
    mine.write(0, &bytes).unwrap();
    near.write(target, there).unwrap().wait(PATIENCE).unwrap();
    let mut found = vec![0; LENGTH];
    theirs.read(0, &mut found).unwrap();
    assert!(found == bytes);
}
