//! Work on far memory, every byte checked.

#![allow(dead_code, reason = "each test file uses a part")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use tombolo_host::process::{Span, read_memory};
use tombolo_node::{Address, Borrowed, FarEvent, FarMemory, Listener, Security, listen};
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

fn contents(page: u32, version: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    Random::new(u64::from(page) << 32 | u64::from(version)).fill(&mut bytes);
    bytes
}

/// Writes and reads pages of far memory in random order, checking every byte.
pub fn work(far: &Borrowed, seed: u64, goes_on: impl Fn() -> bool) -> u64 {
    let (sender, arrivals) = mpsc::channel();
    let sender = Mutex::new(sender);
    // What comes after the work is over is nobody's concern here.
    let lost: Arc<Mutex<Option<String>>> = Arc::default();
    let told = lost.clone();
    far.start(Box::new(move |event| match event {
        FarEvent::Arrived { ticket, address, .. } => {
            let mut page = vec![0u8; 4096];
            let address = address.expect("no lender is lost here");
            copy_page(page.as_mut_ptr() as u64, address);
            let _ = sender.lock().unwrap().send((ticket, page));
        }
        FarEvent::PathLost { .. } => {}
        FarEvent::LenderLost { lender, reason } => {
            *told.lock().unwrap() = Some(format!("{lender}: {reason}"))
        }
    }));
    let mut versions: HashMap<u32, u32> = HashMap::new();
    let mut numbers = Random::for_test(seed);
    let mut random = |below: u32| numbers.below(below.into()) as u32;
    let mut done = 0;
    while goes_on() {
        let first = random(far.pages() - 64);
        let count = 1 + random(64);
        let staging = far.staging();
        let mut batch = Vec::new();
        for step in 0..count {
            let version = versions.entry(first + step).or_insert(0);
            *version += 1;
            let bytes = contents(first + step, *version);
            match far.window(first + step) {
                Some(window) => copy_page(window.address, bytes.as_ptr() as u64),
                None => {
                    copy_page(staging.address + u64::from(step) * 4096, bytes.as_ptr() as u64);
                    batch.push((first + step, step));
                }
            }
        }
        far.write(&batch).unwrap();
        let known: Vec<u32> = versions.keys().copied().collect();
        let wanted: Vec<u32> = (0..32).map(|_| known[random(known.len() as u32) as usize]).collect();
        let mut open = 0;
        for &page in &wanted {
            match far.window(page) {
                Some(window) => {
                    let mut bytes = vec![0u8; 4096];
                    copy_page(bytes.as_mut_ptr() as u64, window.address);
                    assert!(bytes == contents(page, versions[&page]), "page {page}");
                }
                None => {
                    far.read(page, u64::from(page), None);
                    open += 1;
                }
            }
        }
        far.flush();
        let since = Instant::now();
        while open > 0 {
            far.progress();
            while let Ok((ticket, bytes)) = arrivals.try_recv() {
                let page = ticket as u32;
                assert!(bytes == contents(page, versions[&page]), "page {page}");
                open -= 1;
            }
            assert_eq!(*lost.lock().unwrap(), None, "a lender is lost");
            assert!(since.elapsed() < PATIENCE, "locked up with {open} reads open");
        }
        done += u64::from(count) + wanted.len() as u64;
    }
    done
}
