//! Work that takes long or blocks, for pools of threads: allocating and freeing memory, checking published segments,
//! looking at descriptors that programs pass.
//!
//! ```text
//!   engine's loop, programs' thread ── task ──► pool ── answer ──► peer, program
//! ```
//!
//! Pools make no decisions about rights: the caller checks a request before it makes a task. The task has all that it
//! needs, and answers when it is done.

use tombolo_core::rdma::PeerId;
use tombolo_host::pool::{Pool, PoolLimits, PoolOwner, Urgency};

/// The party that a task works for. An owner never waits for the end of another owner's task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A peer.
    Peer(PeerId),
    /// The program with this domain and this life.
    Program(u16, u32),
    /// A process, for tasks with descriptors that it passes, in any of its domains: a descriptor may make the kernel
    /// wait for the process.
    Process {
        /// Its number. 0 if the number is not known: all such processes of a user count as one.
        id: u32,
        /// Its user.
        user: u32,
    },
}

impl PoolOwner for Owner {
    /// All processes of a user are one group, because a user can have any number of processes.
    fn group(&self) -> Option<u32> {
        match self {
            Self::Process { user, .. } => Some(*user),
            Self::Peer(_) | Self::Program(..) => None,
        }
    }
}

/// Number of threads: enough that some can wait in the kernel while others go on, and few enough to leave processors to
/// the engine.
const THREADS: usize = 4;
/// Maximum number of threads that work for the processes of one user. Descriptors that they pass may keep these threads
/// busy for any time. The remaining threads lend, allocate and free.
const THREADS_OF_USER: usize = 2;
/// Maximum number of waiting tasks of one owner: twice as many as a peer or a program may have asked for.
const TASKS_OF_OWNER: usize = 128;
/// Maximum number of waiting tasks of all owners.
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
    /// For tasks that a peer or a program waits for.
    pub(crate) blocking: Pool<Owner>,
    /// For freeing memory: no thread waits for these tasks, or a thread that does helps with them (decision 20).
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

    /// A task that hangs until the returned ends are dropped. The returned receiver gets a message when the task hangs.
    pub(crate) fn hanging() -> ((Receiver<()>, Sender<()>), Box<Hanging>) {
        let ((hangs, hung), (let_go, is_let_go)) = (channel(), channel());
        ((hung, let_go), Box::new(Hanging(hangs, is_let_go)))
    }

    /// Makes an owner's tasks hang until the returned sender is dropped.
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
        // Each call returns when a thread works for the peer.
        let _peers = [1, 2].map(|peer| testing::hang(&pool, Owner::Peer(PeerId(peer))));
        assert!((3..=8).all(|id| pool.waiting_of(process(id)) == 1));
    }
}
