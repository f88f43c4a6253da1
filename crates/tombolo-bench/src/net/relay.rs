//! The bare relay: two TAP devices with offload headers, and a loop that writes to each what the other one has. What any
//! program between two TAP devices does at least.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use tombolo_host::net::{Interface, TapQueues, in_namespace, path_of_namespace};

use crate::Failure;

/// Frames that are read from one device before the other one's turn.
const BATCH: u32 = 16;

/// Joins `eth0` in each two namespaces until it is ended.
pub fn main(namespaces: &[String]) -> Result<(), Failure> {
    let mut taps: Vec<OwnedFd> = Vec::new();
    for namespace in namespaces {
        let tap = in_namespace(Some(&path_of_namespace(namespace)), || {
            let tap = TapQueues::new("eth0", 1)?;
            Interface::open("eth0")?.set_up()?;
            Ok(tap)
        })?;
        taps.extend(tap.into_queues());
    }
    if taps.is_empty() || !taps.len().is_multiple_of(2) {
        return Err(Failure::new("namespaces are joined two by two"));
    }
    // As `tombolo net serve` does.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -15);
    println!("joined");
    std::io::stdout().flush()?;
    let mut buffer = vec![0; 10 + 65_536 + 64];
    loop {
        let mut waits: Vec<_> = taps.iter().map(|tap| PollFd::new(tap, PollFlags::IN)).collect();
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
        for (index, from) in taps.iter().enumerate().filter(|(index, _)| ready[*index]) {
            // The other one of the two.
            let to = &taps[index ^ 1];
            // Nobody waits for long.
            for _ in 0..BATCH {
                let Ok(length) = rustix::io::read(from.as_fd(), &mut buffer) else { break };
                // What cannot be delivered is dropped.
                let _ = rustix::io::write(to.as_fd(), &buffer[..length]);
            }
        }
    }
}
