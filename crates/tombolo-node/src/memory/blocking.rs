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
use tombolo_host::pool::{Pool, PoolLimits, PoolOwner, Urgency};

/// For whom something is done. One of them never waits for the end of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A peer.
    Peer(PeerId),
    /// The program of that domain, in that life of it.
    Program(u16, u32),
    /// A process: what it passes may make the kernel wait for it, in each of its domains.
    Process {
        /// Its number; 0 for those whose number is not known, which together are one.
        id: u32,
        /// Its user.
        user: u32,
    },
}

impl PoolOwner for Owner {
    /// A user can have any number of processes, which are one group.
    fn group(&self) -> Option<u32> {
        match self {
            Self::Process { user, .. } => Some(*user),
            Self::Peer(_) | Self::Program(..) => None,
        }
    }
}

/// Threads: enough that some wait in the kernel while others go on, and few enough that they leave the
/// processors to the engine.
const THREADS: usize = 4;
/// Threads for the processes of one user. What they pass may keep these busy for as long as they like; the others
/// lend, allocate and free.
const THREADS_OF_USER: usize = 2;
/// Tasks of one owner that wait. Twice as many as a peer may have asked for, or a program.
const TASKS_OF_OWNER: usize = 128;
/// Tasks that wait, of all of them.
const TASKS: usize = 8192;

const LIMITS: PoolLimits = PoolLimits {
    threads: THREADS,
    threads_of_group: THREADS_OF_USER,
    tasks: TASKS,
    tasks_of_owner: TASKS_OF_OWNER,
};

/// A node's pools.
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    /// For what somebody waits for.
    pub(crate) blocking: Pool<Owner>,
    /// For freeing: nobody waits for that, or who does helps (decision 20).
    pub(crate) freeing: Pool<Owner>,
}

impl Pools {
    pub(crate) fn new() -> Self {
        Self {
            blocking: Pool::new("blocking", LIMITS, Urgency::Normal),
            freeing: Pool::new("freeing", LIMITS, Urgency::StandsBack),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use tombolo_host::pool::{BlockingTask, Pool, Step};

    use super::Owner;

    pub(crate) struct Hanging(Sender<()>, Receiver<()>);

    impl BlockingTask for Hanging {
        fn step(&mut self) -> Step {
            let _ = self.0.send(());
            let _ = self.1.recv();
            Step::Over
        }
    }

    /// A task that hangs as long as both ends are there: the first says that it hangs.
    pub(crate) fn hanging() -> ((Receiver<()>, Sender<()>), Box<Hanging>) {
        let ((hangs, hung), (let_go, is_let_go)) = (channel(), channel());
        ((hung, let_go), Box::new(Hanging(hangs, is_let_go)))
    }

    /// Makes an owner's work hang, as long as what is returned is there.
    pub(crate) fn hang(pool: &Pool<Owner>, owner: Owner) -> Sender<()> {
        let ((hung, let_go), task) = hanging();
        pool.offer(owner, task).unwrap();
        hung.recv_timeout(Duration::from_secs(60)).unwrap();
        let_go
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_user_that_hang_leave_threads_to_peers() {
        let pool = Pools::new().blocking;
        let process = |id| Owner::Process { id, user: 1000 };
        let _processes = [1, 2].map(|id| testing::hang(&pool, process(id)));
        let (_ends, waiting): (Vec<_>, Vec<_>) = (3..=8).map(|_| testing::hanging()).unzip();
        for (id, task) in (3..).zip(waiting) {
            pool.offer(process(id), task).unwrap();
        }
        // Each returns when a thread works for the peer.
        let _peers = [1, 2].map(|peer| testing::hang(&pool, Owner::Peer(PeerId(peer))));
        assert!((3..=8).all(|id| pool.waiting_of(process(id)) == 1));
    }
}
