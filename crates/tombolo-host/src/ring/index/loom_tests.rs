//! Every interleaving of one producer and one consumer, by loom: `cargo xtask test` runs those with four preemptions at most, in a second, and
//! `--full` all of them, in a few minutes. By hand:
//! `RUSTFLAGS="--cfg loom" cargo test -p tombolo-host --lib loom_tests`
//!
//! The "bytes" are loom cells, which fail the test if both sides touch one at the same time; a
//! "system call" that wakes is a counter that the sleeper waits on.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::{ConsumerIndex, Indexes, ProducerIndex};

const RECORD_BYTES: u64 = 8;

struct Shared {
    indexes: Indexes,
    slots: Vec<UnsafeCell<u64>>,
    wakes: Mutex<usize>,
    woken: Condvar,
    room_wakes: Mutex<usize>,
    room_woken: Condvar,
}

// SAFETY: the cells are what the protocol under test must guard; loom fails the test if it doesn't.
unsafe impl Sync for Shared {}
// SAFETY: as for Sync.
unsafe impl Send for Shared {}

impl Shared {
    fn new(slots: u64) -> Arc<Self> {
        Arc::new(Self {
            indexes: Indexes::default(),
            slots: (0..slots).map(|_| UnsafeCell::new(0)).collect(),
            wakes: Mutex::new(0),
            woken: Condvar::new(),
            room_wakes: Mutex::new(0),
            room_woken: Condvar::new(),
        })
    }

    fn slot(&self, index: u64) -> &UnsafeCell<u64> {
        &self.slots[(index / RECORD_BYTES) as usize % self.slots.len()]
    }
}

fn wake(count: &Mutex<usize>, condition: &Condvar) {
    *count.lock().unwrap() += 1;
    condition.notify_one();
}

fn sleep(count: &Mutex<usize>, condition: &Condvar) {
    let mut wakes = count.lock().unwrap();
    // A lost wake is a deadlock here, which loom reports.
    while *wakes == 0 {
        wakes = condition.wait(wakes).unwrap();
    }
    *wakes -= 1;
}

fn explore(slots: u64, packets: u64) {
    loom::model(move || {
        let shared = Shared::new(slots);
        let capacity = slots * RECORD_BYTES;
        let theirs = Arc::clone(&shared);
        let producer = thread::spawn(move || {
            let mut index = ProducerIndex::new(capacity);
            for value in 1..=packets {
                while !index.has_room(&theirs.indexes, RECORD_BYTES).unwrap() {
                    if !index.arm_for_room(&theirs.indexes, RECORD_BYTES).unwrap() {
                        sleep(&theirs.room_wakes, &theirs.room_woken);
                    }
                }
                // SAFETY: loom checks that nobody else is in this cell.
                theirs.slot(index.tail()).with_mut(|slot| unsafe { *slot = value });
                index.advance(RECORD_BYTES);
                index.publish(&theirs.indexes);
                if theirs.indexes.take_sleeping() {
                    wake(&theirs.wakes, &theirs.woken);
                }
            }
        });
        let mut index = ConsumerIndex::new(capacity);
        for value in 1..=packets {
            while index.available(&shared.indexes).unwrap() == 0 {
                if !index.arm(&shared.indexes).unwrap() {
                    sleep(&shared.wakes, &shared.woken);
                    index.disarm(&shared.indexes);
                }
            }
            // SAFETY: loom checks that nobody else is in this cell.
            let found = shared.slot(index.head()).with(|slot| unsafe { *slot });
            assert_eq!(found, value);
            index.advance(RECORD_BYTES);
            index.release(&shared.indexes);
            if shared.indexes.take_waiting() {
                wake(&shared.room_wakes, &shared.room_woken);
            }
        }
        producer.join().unwrap();
    });
}

#[test]
fn one_slot_wraps_and_loses_no_wake() {
    explore(1, 2);
}

#[test]
fn two_slots_lose_no_wake() {
    explore(2, 2);
}
