//! The end of a task that a peer waits for: the answer is sent, and goes again if the link is full or lost.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;
use tombolo_host::pool::Step;
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::node as timing;
use tombolo_link::{Link, SendError};

use crate::fabric::answered::Answered;
use crate::fabric::connection::Connection;
use crate::fabric::messages::{Message, MessageV1, Reply};
use crate::fabric::neighbour::Neighbour;
use crate::memory::reclaim::Holder;

/// Tasks of one peer at once.
const MAX_OPEN_TASKS: u32 = 64;

/// The neighbour that waits for the end of a task, and the number of its question.
pub(crate) struct Asker {
    pub(crate) neighbour: Arc<Neighbour>,
    /// The link that it asked by first.
    by: Arc<Connection>,
    number: u32,
    /// Where the answer is kept, in case it is lost with its link, and the link that was asked by last.
    answered: Answered,
    /// An answer that the link has not taken yet, what goes with it, and until when it is tried.
    unsent: Option<(Vec<u8>, Option<Arc<SharedMemory>>, Instant)>,
}

impl Asker {
    /// The refusal: the peer has too many open tasks.
    pub(super) fn new(by: &Arc<Connection>, number: u32, answered: Answered) -> Result<Self, Reply> {
        let (neighbour, by) = (by.neighbour().clone(), by.clone());
        let asker = Self { neighbour, by, number, answered, unsent: None };
        let before = asker.neighbour.open_tasks.fetch_add(1, Ordering::Relaxed);
        if before < MAX_OPEN_TASKS {
            return Ok(asker);
        }
        Err(Reply::Failed(format!(
            "{MAX_OPEN_TASKS} requests of yours are being carried out: wait for the end of one"
        )))
    }

    /// Who will have mapped what is answered with.
    pub(super) fn holder(&self) -> Holder {
        match self.by.link.peer_process() {
            _ if !self.by.link.supports_windows() => Holder::Nobody,
            Some(process) => Holder::Process(process),
            None => Holder::Anybody,
        }
    }

    /// The task has ended so; the answer is sent now, or in later steps.
    pub(crate) fn answer(&mut self, reply: Reply) -> Step {
        self.answer_with(reply, None)
    }

    /// As [`Self::answer`], with memory for peers that can map it.
    pub(super) fn answer_with(&mut self, reply: Reply, memory: Option<Arc<SharedMemory>>) -> Step {
        self.answered.ended(&self.neighbour, self.number, &reply);
        let message = Message::V1(MessageV1::Answer { number: self.number, reply }).encode();
        self.unsent = Some((message, memory, Instant::now() + timing::ANSWER_TIMEOUT));
        self.send().unwrap_or(Step::Over)
    }

    /// The link that the answer goes by: the one that was asked by last, as others may be lost without this node
    /// knowing it yet.
    fn link(&self) -> Option<Arc<dyn Link>> {
        let by = self.answered.asked_by(&self.neighbour, self.number);
        let by = by.unwrap_or_else(|| self.by.clone());
        let is_of_use = by.has_link() && !by.link.is_suspect();
        if !is_of_use {
            return self.neighbour.control_link();
        }
        // The answer may have to be sent again.
        by.tick_at_ns.store(0, Ordering::Relaxed);
        Some(by.link.clone())
    }

    /// Sends the answer, if there is one. Some: nothing else is left to be done.
    pub(crate) fn send(&mut self) -> Option<Step> {
        let (message, memory, deadline) = self.unsent.as_ref()?;
        let Some(link) = self.link() else { return Some(Step::Over) };
        // Only who has asked by such a link counts as a holder.
        let memory = memory.as_ref().filter(|_| link.supports_windows() && self.by.link.supports_windows());
        let descriptors: SmallVec<[_; 1]> = memory.iter().map(|memory| memory.as_fd()).collect();
        let sent = link.send_control(message, &descriptors);
        let waits = matches!(sent, Err(SendError::Full)) && Instant::now() < *deadline;
        Some(if waits { Step::Waits } else { Step::Over })
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        self.neighbour.open_tasks.fetch_sub(1, Ordering::Relaxed);
    }
}
