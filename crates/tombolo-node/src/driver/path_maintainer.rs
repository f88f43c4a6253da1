//! Further links to a peer, for a thread that drives only the first link itself: starts threads that drive the further
//! links and restore lost ones.
//!
//! A thread that serves a node ([`crate::serve()`]) drives all of its links and needs none of this.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use tombolo_host::event;
use tombolo_host::timing::node as timing;
use tombolo_link::{Address, LossReason, Security};

use crate::driver::node::Node;
use crate::fabric::connection::Connection;
use crate::fabric::joining::Paths;

/// Called for each link that is lost while another link to the same node is left.
pub(crate) type PathLossSink = Arc<dyn Fn(&Address, LossReason) + Send + Sync>;

/// The threads for further links. They end when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct PathMaintainer {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl PathMaintainer {
    /// Starts the threads for the further links of these peers.
    pub(crate) fn start(
        node: &Arc<Node>,
        paths: Vec<Paths>,
        security: &Security,
        told: &PathLossSink,
    ) -> io::Result<Self> {
        let mut maintainer = Self::default();
        if paths.is_empty() {
            return Ok(maintainer);
        }
        let (driven, stop) = (node.clone(), maintainer.stop.clone());
        maintainer.spawn("paths", move || drive(&driven, &stop))?;
        for mut paths in paths {
            let (node, stop) = (node.clone(), maintainer.stop.clone());
            let (security, told) = (security.clone(), told.clone());
            maintainer.spawn("mend", move || {
                paths.maintain(&*node, &security, timing::PATH_TIMEOUT, &stop, &*told)
            })?;
        }
        Ok(maintainer)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(work)?);
        Ok(())
    }
}

impl Drop for PathMaintainer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // This may run on one of these threads, if it held the last reference to the owner of this value.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

/// Drives the further links of all peers.
fn drive(node: &Node, stop: &AtomicBool) {
    let (mut parts, mut arrivals): (Vec<Arc<Connection>>, Option<u32>) = (Vec::new(), None);
    let mut last_packet = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let arrivals_now = node.fabric.arrivals.load(Ordering::Acquire);
        if arrivals.replace(arrivals_now) != Some(arrivals_now) {
            parts = node.peers();
            parts.retain(|connection| connection.is_part());
        }
        let busy: usize = parts.iter().map(|part| node.drive(part)).sum();
        parts.retain(|part| {
            let lost = part.loss().is_some();
            if lost {
                node.forget(part);
            }
            !lost
        });
        if busy > 0 {
            last_packet = Instant::now();
            continue;
        }
        if last_packet.elapsed() < timing::POLL {
            std::thread::yield_now();
            continue;
        }
        let sleep = node.expire().unwrap_or(timing::PATHS_MAX_SLEEP).min(timing::PATHS_MAX_SLEEP);
        if !parts.iter().any(|part| node.arm(part).unwrap_or(true)) {
            let descriptors: Vec<_> = parts.iter().map(|part| part.link.descriptor()).collect();
            let _ = event::wait_readable(&descriptors, Some(sleep));
        }
        node.tick();
    }
}
