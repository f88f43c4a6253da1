//! The processor that runs the initiator half of an engine: one task at a time, in the order of its main loop (QOS §3.5).

use crate::kernel::{Span, Time};
use crate::parts::Cargo;
use tombolo_core::rdma::{Action, PathId, PeerId, PostError};

/// What each task takes. The accesses of which the document tells (QOS Fig 3.8) are summed up by task.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prices {
    /// From a program's ring until the processor sees it: it polls meanwhile, and is not kept from other work.
    pub seen: Span,
    /// A transfer enters the scheduler's queue: nothing, if it passes that by.
    pub queue: Span,
    /// A block begins: its slot is found, written, put into the list of timeouts, and the sender told.
    pub block: Span,
    /// A notification or any other message is sent.
    pub message: Span,
    /// An answer is read from the mailbox, and its block taken out of the list of timeouts.
    pub answer: Span,
    /// A request is read from there, word by word.
    pub request: Span,
    /// The head of the list of timeouts is due.
    pub timeout: Span,
    /// A program is told of an end.
    pub completion: Span,
}

/// What the processor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKind {
    /// A program's ring.
    Doorbell,
    /// A block.
    Block,
    /// A message without bytes.
    Message,
    /// A program is told.
    Completion,
    /// An answer from the mailbox.
    Answer,
    /// A request from the mailbox.
    Request,
    /// A timeout.
    Timeout,
}

impl TaskKind {
    /// How many kinds there are.
    pub const COUNT: usize = 7;

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Doorbell => "doorbell",
            Self::Block => "block",
            Self::Message => "message",
            Self::Completion => "completion",
            Self::Answer => "answer",
            Self::Request => "request",
            Self::Timeout => "timeout",
        }
    }
}

/// What waits in the mailbox.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) from: (PeerId, PathId),
    pub(super) cargo: Cargo,
    pub(super) is_request: bool,
}

/// What happens when a task is done.
#[derive(Debug)]
pub(super) enum Task {
    /// A program's transfer has been given to the engine, which takes it or not.
    Posted {
        program: usize,
        number: u64,
        status: Result<(), PostError>,
    },
    Act(Action),
    Read(Mail),
    Expire,
}

/// The steps of the main loop, in their order.
pub(super) const STEPS: usize = 4;

/// The processor.
#[derive(Debug, Default)]
pub(super) struct Processor {
    pub(super) running: Option<(Time, Task)>,
    /// The step of the loop that comes next.
    pub(super) step: usize,
    busy: Span,
    counts: [u64; TaskKind::COUNT],
}

impl Processor {
    /// Begins a task.
    pub(super) fn begin(&mut self, now: Time, price: Span, kind: TaskKind, task: Task) {
        self.running = Some((now.after(price), task));
        self.busy = self.busy.plus(price);
        self.counts[kind as usize] += 1;
    }

    /// The task that is done now, if one is.
    pub(super) fn take_done(&mut self, now: Time) -> Option<Task> {
        self.running.take_if(|(done_at, _)| *done_at <= now).map(|(_, task)| task)
    }

    pub(super) fn busy(&self) -> Span {
        self.busy
    }

    pub(super) fn count(&self, kind: TaskKind) -> u64 {
        self.counts[kind as usize]
    }
}
