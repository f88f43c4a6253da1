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

/// Joins `eth0` in two namespaces until it is ended.
pub fn main(namespaces: &[String]) -> Result<(), Failure> {
    let mut taps = Vec::new();
    for namespace in namespaces {
        let tap = in_namespace(Some(&path_of_namespace(namespace)), || {
            let tap = TapQueues::new("eth0", 1)?;
            Interface::open("eth0")?.set_up()?;
            Ok(tap)
        })?;
        taps.extend(tap.into_queues());
    }
    let [one, other]: [OwnedFd; 2] =
        taps.try_into().map_err(|_| Failure::new("two namespaces are joined"))?;
    // As `tombolo net serve` does.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -15);
    println!("joined");
    std::io::stdout().flush()?;
    let mut buffer = vec![0; 10 + 65_536 + 64];
    loop {
        let mut waits = [PollFd::new(&one, PollFlags::IN), PollFd::new(&other, PollFlags::IN)];
        match poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = waits.map(|wait| !wait.revents().is_empty());
        for ((from, to), ready) in [(&one, &other), (&other, &one)].into_iter().zip(ready) {
            // Neither direction waits for long.
            for _ in 0..if ready { BATCH } else { 0 } {
                let Ok(length) = rustix::io::read(from.as_fd(), &mut buffer) else { break };
                // What cannot be delivered is dropped.
                let _ = rustix::io::write(to.as_fd(), &buffer[..length]);
            }
        }
    }
}
