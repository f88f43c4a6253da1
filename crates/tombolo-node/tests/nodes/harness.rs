//! Work on far memory, every byte checked.

use std::time::{Duration, Instant};

use tombolo_core::store::{NoRoom, SlotId};
use tombolo_host::process::{Span, read_memory};
use tombolo_node::{Address, FarEvent, FarMemory, FarStore, Listener, Security, Written, listen};
use tombolo_random::Random;

/// No progress for so long is a lock-up.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn udp_listener(security: &Security) -> (Box<dyn Listener>, Address) {
    let listener = listen(&"udp:127.0.0.1:0".parse().unwrap(), security).unwrap();
    let address = listener.address();
    (listener, address)
}

/// Copies a page between this process's own addresses by way of the kernel: far
/// memory is never a Rust reference.
fn copy_page(target: u64, source: u64) {
    let span = |address| [Span { address, length: 4096 }];
    // SAFETY: both are pages of far windows, staging memory or of a local array that outlives the call.
    let copied = unsafe { read_memory(std::process::id(), &span(target), &span(source)) };
    assert_eq!(copied.unwrap(), 4096);
}

fn contents(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    Random::new(number).fill(&mut bytes);
    bytes
}

/// Slots that are stored at once, at most.
const SLOTS_MAX: usize = 1000;

/// Stores, reads and releases pages of far memory in random order, checking every byte.
pub fn work(far: &FarStore, seed: u64, goes_on: impl Fn() -> bool) -> u64 {
    // Whether a page that has arrived is the right one, and how many have.
    let arrived = std::cell::Cell::new(0);
    let attend = |work: &mut dyn FnMut()| {
        far.events().attend(work, |events| {
            while let Some(event) = events.take() {
                match event {
                    FarEvent::Arrived(page) => {
                        let mut bytes = vec![0u8; 4096];
                        copy_page(bytes.as_mut_ptr() as u64, page.address.expect("no lender is lost here"));
                        assert!(bytes == contents(page.ticket), "page {}", page.ticket);
                        far.done(page);
                        arrived.set(arrived.get() + 1);
                    }
                    // What comes after the work is over is nobody's concern here.
                    FarEvent::LenderLost { lender, reason } => panic!("a lender is lost: {lender}: {reason}"),
                    _ => {}
                }
            }
        });
    };
    // What each slot holds.
    let mut stored: Vec<(SlotId, u64)> = Vec::new();
    let mut numbers = Random::for_test(seed);
    let mut done = 0;
    let mut next = seed << 40;
    while goes_on() {
        let staging = far.staging();
        let (mut batch, mut directly) = (Vec::new(), Vec::new());
        let since = Instant::now();
        for step in 0..1 + numbers.below(64) as u32 {
            let (slot, direct) = loop {
                let taken = far.slots().take();
                match taken {
                    Ok(taken) => break taken,
                    Err(NoRoom::NotYet) => attend(&mut || far.flush()),
                    Err(NoRoom::Full) => panic!("far memory is full with {} slots", stored.len()),
                }
                attend(&mut || far.progress());
                assert!(since.elapsed() < PATIENCE, "nothing is borrowed");
            };
            next += 1;
            let bytes = contents(next);
            match direct {
                Some(address) => {
                    copy_page(address, bytes.as_ptr() as u64);
                    directly.push(slot);
                }
                None => {
                    copy_page(staging.address + u64::from(step) * 4096, bytes.as_ptr() as u64);
                    batch.push((slot, step));
                }
            }
            stored.push((slot, next));
            done += 1;
        }
        for slot in directly {
            far.slots().commit(slot, None).expect("its lender is alive");
        }
        attend(&mut || far.write(&batch));
        let mut written = Written::Soon;
        let failed = loop {
            attend(&mut || written = far.write_on());
            match written {
                Written::All(failed) => break failed,
                Written::Soon => {}
                Written::Later(timeout) => far.wait_written(timeout),
            }
        };
        assert_eq!(failed, [] as [SlotId; 0]);
        let wanted: Vec<(SlotId, u64)> = (0..32).map(|_| stored[numbers.index(stored.len())]).collect();
        let mut open = 0;
        for &(slot, number) in &wanted {
            let pinned = far.slots().pin(slot).unwrap_or(None);
            match pinned {
                Some(address) => {
                    let mut bytes = vec![0u8; 4096];
                    copy_page(bytes.as_mut_ptr() as u64, address);
                    far.slots().unpin(slot);
                    assert!(bytes == contents(number), "slot {slot}");
                }
                None => {
                    far.read(slot, number, None);
                    open += 1;
                }
            }
        }
        attend(&mut || far.flush());
        let since = Instant::now();
        while arrived.get() < open {
            attend(&mut || far.progress());
            assert!(since.elapsed() < PATIENCE, "locked up: {} of {open} reads have arrived", arrived.get());
        }
        arrived.set(0);
        while stored.len() > SLOTS_MAX {
            let (slot, _) = stored.swap_remove(numbers.index(stored.len()));
            far.slots().release(slot);
        }
        done += wanted.len() as u64;
    }
    for (slot, _) in stored {
        far.slots().release(slot);
    }
    done
}
