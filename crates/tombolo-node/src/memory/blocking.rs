//! What takes long or blocks, and is done in a pool of threads: allocating and freeing memory, checking
//! published segments, looking at descriptors that programs pass.
//!
//! ```text
//!   engine's loop, programs' thread ── task ──► pool ── answer ──► peer, program
//! ```
//!
//! Nothing in here decides who may have what: a task has what it needs, was let in by whoever asked for it,
//! and answers when it is done.

use tombolo_core::rdma::PeerId;
use tombolo_host::pool::{Pool, PoolLimits};

/// For whom something is done. One of them never waits for the end of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A peer.
    Peer(PeerId),
    /// The program of that domain, in that life of it.
    Program(u16, u32),
    /// Whoever has this process: what it passes may make the kernel wait for it, in each of its domains.
    Process(u32),
}

/// Threads: enough that some wait in the kernel while others go on, and few enough that they leave the
/// processors to the engine.
const THREADS: usize = 4;
/// Tasks of one owner that wait. Twice as many as a peer may have asked for, or a program.
const TASKS_OF_OWNER: usize = 128;
/// Tasks that wait, of all of them.
const TASKS: usize = 8192;

/// A node's pool.
pub(crate) fn pool() -> Pool<Owner> {
    Pool::new("blocking", PoolLimits { threads: THREADS, tasks: TASKS, tasks_of_owner: TASKS_OF_OWNER })
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use tombolo_host::pool::{BlockingTask, Pool, Step};

    use super::Owner;

    struct Hanging(Sender<()>, Receiver<()>);

    impl BlockingTask for Hanging {
        fn step(&mut self) -> Step {
            let _ = self.0.send(());
            let _ = self.1.recv();
            Step::Over
        }
    }

    /// Makes an owner's work hang, as long as what is returned is there.
    pub(crate) fn hang(pool: &Pool<Owner>, owner: Owner) -> Sender<()> {
        let ((hangs, hung), (let_go, is_let_go)) = (channel(), channel());
        pool.offer(owner, Box::new(Hanging(hangs, is_let_go))).unwrap();
        hung.recv_timeout(Duration::from_secs(60)).unwrap();
        let_go
    }
}
