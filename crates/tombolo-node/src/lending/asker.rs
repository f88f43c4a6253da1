//! Answers of tasks that a peer waits for: sends the answer, and sends it again if the link is full or lost.

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

/// Maximum number of open tasks of one peer.
const MAX_OPEN_TASKS: u32 = 64;

/// The neighbour that waits for the end of a task, and the number of its question.
pub(crate) struct Asker {
    pub(crate) neighbour: Arc<Neighbour>,
    /// The link by which the question first came.
    by: Arc<Connection>,
    number: u32,
    /// Keeps the answer, in case it is lost with its link, and the link by which the question last came.
    answered: Answered,
    /// An answer that the link has not taken yet, the memory that goes with it, and until when to try.
    unsent: Option<(Vec<u8>, Option<Arc<SharedMemory>>, Instant)>,
}

impl Asker {
    /// Makes the asker for a question that came by this link, and counts an open task of its peer.
    ///
    /// # Errors
    /// The reply that refuses the question: the peer has too many open tasks.
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

    /// The processes that may map the memory that goes with the answer.
    pub(super) fn holder(&self) -> Holder {
        match self.by.link.peer_process() {
            _ if !self.by.link.supports_windows() => Holder::Nobody,
            Some(process) => Holder::Process(process),
            None => Holder::Anybody,
        }
    }

    /// Ends the task with this reply, which is sent now or in later steps.
    pub(crate) fn answer(&mut self, reply: Reply) -> Step {
        self.answer_with(reply, None)
    }

    /// As [`Self::answer`], with memory for a peer that can map it.
    pub(super) fn answer_with(&mut self, reply: Reply, memory: Option<Arc<SharedMemory>>) -> Step {
        self.answered.ended(&self.neighbour, self.number, &reply);
        let message = Message::V1(MessageV1::Answer { number: self.number, reply }).encode();
        self.unsent = Some((message, memory, Instant::now() + timing::ANSWER_TIMEOUT));
        self.send().unwrap_or(Step::Over)
    }

    /// The link for the answer: the one by which the question last came, because this node may not know yet that other
    /// links are lost. If that link is lost or suspect, another link of the peer.
    fn link(&self) -> Option<Arc<dyn Link>> {
        let by = self.answered.asked_by(&self.neighbour, self.number);
        let by = by.unwrap_or_else(|| self.by.clone());
        let is_of_use = by.has_link() && !by.link.is_suspect();
        if !is_of_use {
            return self.neighbour.control_link();
        }
        // The link's timers must run, because the answer may have to be sent again.
        by.tick_at_ns.store(0, Ordering::Relaxed);
        Some(by.link.clone())
    }

    /// Sends the answer, if there is one. `Some`: the task has no other work left.
    pub(crate) fn send(&mut self) -> Option<Step> {
        let (message, memory, deadline) = self.unsent.as_ref()?;
        let Some(link) = self.link() else { return Some(Step::Over) };
        // Pass the memory only if the question first came by such a link: otherwise no holder is recorded.
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
