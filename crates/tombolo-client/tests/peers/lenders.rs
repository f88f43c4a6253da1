//! Lenders that do not keep to what was agreed.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use tombolo_host::process;
use tombolo_host::shared::SharedMemory;
use tombolo_link::{Link, LinkState, Security};
use tombolo_node::fuzzing::{Life, Message, MessageV1, Reply, Request};
use tombolo_node::{DeadWindows, FarEvent, FarMemory, FarOptions, FarStore};

use crate::harness::{PATIENCE, shm};

const LEND_BYTES: u64 = 64 << 20;

fn status() -> Reply {
    Reply::Status { part: format!("{{\"name\": \"forgetful\", \"lend_bytes\": {LEND_BYTES}}}"), next: None }
}

/// Lends each time as segment 1, which is filled with how many times that was. Returns the segments.
fn lend_as_one(link: &Arc<dyn Link>, lent: &mpsc::Sender<u8>, stop: &AtomicBool) -> Vec<SharedMemory> {
    let mut segments = Vec::new();
    while !stop.load(Ordering::Relaxed) && link.state() == LinkState::Up {
        let _ = link.receive(16, &mut |_| {});
        link.tick(Instant::now());
        let Ok(Some(message)) = link.receive_control() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let Ok(Message::V1(MessageV1::Ask { number, request })) = Message::decode(&message.bytes) else {
            continue;
        };
        let mut descriptor = None;
        let reply = match request {
            Request::Introduce { .. } => Reply::Introduced { name: "forgetful".into(), life: Life([7; 16]) },
            Request::Status { .. } => status(),
            Request::Lend { bytes } => {
                let memory = SharedMemory::create("forgetful", bytes as usize).unwrap();
                let times = segments.len() as u8 + 1;
                memory.span_mut(0, memory.len()).unwrap().fill(times);
                segments.push(memory);
                descriptor = segments.last().map(AsFd::as_fd);
                Reply::Lent { segment: 1 }
            }
            _ => Reply::Done,
        };
        let is_lent = descriptor.is_some();
        let descriptors: Vec<_> = descriptor.into_iter().collect();
        let bytes = Message::V1(MessageV1::Answer { number, reply }).encode();
        link.send_control(&bytes, &descriptors).unwrap();
        if is_lent {
            lent.send(segments.len() as u8).unwrap();
        }
    }
    segments
}

/// The first window stays where it is, with pages in it; what comes under its name is refused, and that is said.
#[test]
fn a_segment_that_is_lent_twice_is_refused_the_second_time() {
    let listener = tombolo_link::listen(&shm(), &Security::Insecure).unwrap();
    let address = listener.address();
    let (stop, (lent, times)) = (AtomicBool::new(false), mpsc::channel());
    /// The lender ends with the test, however that ends.
    struct Stopping<'a>(&'a AtomicBool);
    impl Drop for Stopping<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let stopping = Stopping(&stop);
        let lender = scope.spawn(|| {
            let link = listener.accept_within(PATIENCE).unwrap().expect("a borrower");
            lend_as_one(&link, &lent, &stop)
        });
        let far = FarStore::new(&FarOptions {
            name: "borrower",
            lenders: &[vec![address]],
            security: &Security::Insecure,
            most_bytes: None,
            copies: 1,
            outage: PATIENCE,
            dead_windows: DeadWindows::Read,
        })
        .unwrap();
        let since = Instant::now();
        let mut slots = Vec::new();
        // As much as there is in the first segment, and then more.
        let mut said = Vec::new();
        while !said.iter().any(|text: &String| text.contains("has lent segment 1 already")) {
            assert!(since.elapsed() < PATIENCE, "it is not said: {said:?}");
            loop {
                let taken = far.slots().take();
                let Ok((slot, direct)) = taken else { break };
                let direct = direct.expect("a window");
                far.slots().commit(slot, None).unwrap();
                slots.push((slot, direct));
            }
            far.prepare();
            if let Some(FarEvent::Notice(text)) = far.events().wait(Duration::from_millis(10)) {
                said.push(text);
            }
        }
        assert!(times.iter().take(2).eq([1, 2]), "it has lent twice");
        assert!(!slots.is_empty());
        for (slot, direct) in slots {
            assert_eq!(far.slots().pin(slot).unwrap(), Some(direct), "it is where it was");
            let mut found = [0; 8];
            process::read_exactly(std::process::id(), direct, &mut found).unwrap();
            assert_eq!(found, [1; 8], "another segment is mapped there");
            far.slots().unpin(slot);
        }
        far.release();
        drop(stopping);
        assert!(lender.join().unwrap().len() >= 2);
    });
}
