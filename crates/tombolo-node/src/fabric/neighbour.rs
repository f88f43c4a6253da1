//! A node at the other end of one link or several: who it is, and what was asked of it and by it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, RwLock};
use ring::rand::{SecureRandom, SystemRandom};
use tombolo_core::rdma::PeerId;
use tombolo_host::passed::PassedDescriptor;
use tombolo_link::{Link, LossReason};

use crate::fabric::connection::Connection;
use crate::fabric::label;
use crate::fabric::life::Life;
use crate::fabric::messages::Reply;
use crate::fabric::paths::Token;

/// A reply, and the descriptors that came with it.
pub(crate) type Answer = (Reply, Vec<PassedDescriptor>);

/// A peer: the node at the other end of one connection or several, wanted or not ([`Self::is_wanted`]).
#[derive(Debug)]
pub(crate) struct Neighbour {
    /// Its number in the engine.
    pub(crate) id: PeerId,
    /// What it is called, for people: any node can choose any name.
    name: Mutex<String>,
    /// Which life of a node it is, as soon as it has introduced itself.
    life: OnceLock<Life>,
    /// Open questions to it by number, with the answers that have come.
    answers: Mutex<HashMap<u32, Option<Answer>>>,
    next_number: AtomicU32,
    /// Number of tasks that the thread pool carries out for it, each with an answer at its end.
    pub(crate) open_tasks: AtomicU32,
    /// Why all of its links are gone.
    lost: OnceLock<LossReason>,
    /// Bytes that were lent to it and came back when it was forgotten.
    pub(crate) returned_bytes: AtomicU64,
    /// The token that further links to it must show.
    token: OnceLock<Token>,
    /// The neighbourhood dials it, and reports on it to people.
    pub(crate) is_wanted: AtomicBool,
    first: Weak<Connection>,
    /// Its links besides the first one.
    pub(crate) further: RwLock<Vec<Arc<Connection>>>,
}

impl Neighbour {
    pub(super) fn new(id: PeerId, first: Weak<Connection>) -> Arc<Self> {
        Arc::new(Self {
            id,
            name: Mutex::default(),
            life: OnceLock::new(),
            answers: Mutex::default(),
            next_number: AtomicU32::new(1),
            open_tasks: AtomicU32::new(0),
            lost: OnceLock::new(),
            returned_bytes: AtomicU64::new(0),
            token: OnceLock::new(),
            is_wanted: AtomicBool::new(false),
            first,
            further: RwLock::default(),
        })
    }

    /// Notes the name and the life with which it introduces itself. If it introduces itself again, both must be the
    /// same.
    pub(super) fn introduce(&self, name: &str, life: Life) -> Result<(), String> {
        let name = label::name(name);
        let mut known = self.name.lock();
        let known_life = *self.life.get_or_init(|| {
            known.clone_from(&name);
            life
        });
        if (known_life, &*known) == (life, &name) {
            return Ok(());
        }
        Err(format!("you have introduced yourself as `{known}`: a node stays who it is while it is linked"))
    }

    /// What it is called; empty before it has introduced itself.
    pub(crate) fn name(&self) -> String {
        self.name.lock().clone()
    }

    /// Which life of a node it is, if it has introduced itself.
    pub(crate) fn life(&self) -> Option<Life> {
        self.life.get().copied()
    }

    /// Why all of its links are gone, if they are.
    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }

    /// Notes that all of its links are gone. False: that was noted before.
    pub(super) fn set_lost(&self, reason: LossReason) -> bool {
        self.lost.set(reason).is_ok()
    }

    /// Its first link, whatever became of it.
    pub(crate) fn first(&self) -> Option<Arc<Connection>> {
        self.first.upgrade()
    }

    /// Its first link, if that can be used.
    pub(super) fn first_if_up(&self) -> Option<Arc<Connection>> {
        self.first().filter(|first| first.has_link())
    }

    /// Whether it has other links than its first one, or had before that was lost.
    pub(crate) fn has_several(&self) -> bool {
        self.loss().is_none() && !self.further.read().is_empty()
    }

    /// The link that messages are sent by: the first one that is up and not suspect, or else the first one that is up.
    /// `None` if all are lost.
    pub(crate) fn control_link(&self) -> Option<Arc<dyn Link>> {
        let chosen = self.control_connection()?;
        // The message may have to be sent again, so the link's timers must be looked at soon.
        chosen.tick_at_ns.store(0, Ordering::Relaxed);
        Some(chosen.link.clone())
    }

    fn control_connection(&self) -> Option<Arc<Connection>> {
        let first = self.first_if_up();
        if let Some(first) = first.as_ref().filter(|first| !first.link.is_suspect()) {
            return Some(first.clone());
        }
        let further = self.further.read();
        let good = further.iter().find(|further| !further.link.is_suspect()).cloned();
        good.or(first).or_else(|| further.first().cloned())
    }

    /// Its links that are not lost.
    pub(crate) fn links(&self) -> Vec<Arc<Connection>> {
        self.first_if_up().into_iter().chain(self.further.read().iter().cloned()).collect()
    }

    /// Whether all of its links are suspect.
    pub(crate) fn is_suspect(&self) -> bool {
        self.first_if_up().is_none_or(|first| first.link.is_suspect())
            && self.further.read().iter().all(|further| further.link.is_suspect())
    }

    /// The token that further links to it must show, if there is one yet.
    pub(super) fn known_token(&self) -> Option<&Token> {
        self.token.get()
    }

    /// The token that further links to it must show, which the first call makes. `None`: there are no random numbers.
    pub(super) fn token(&self) -> Option<Token> {
        if let Some(token) = self.token.get() {
            return Some(*token);
        }
        let mut token = Token::default();
        SystemRandom::new().fill(&mut token).ok()?;
        Some(*self.token.get_or_init(|| token))
    }

    #[cfg(test)]
    pub(crate) fn set_token(&self, token: Token) {
        let _ = self.token.set(token);
    }

    /// The number of the next question to it.
    pub(crate) fn next_number(&self) -> u32 {
        self.next_number.fetch_add(1, Ordering::Relaxed)
    }

    /// Notes a question as open, until [`Neighbour::close_question`].
    pub(crate) fn open_question(&self, number: u32) {
        self.answers.lock().insert(number, None);
    }

    pub(crate) fn close_question(&self, number: u32) {
        self.answers.lock().remove(&number);
    }

    /// The answer to an open question, if it has come.
    pub(crate) fn take_answer(&self, number: u32) -> Option<Answer> {
        self.answers.lock().get_mut(&number)?.take()
    }

    /// Stores the answer to an open question. False: no question with that number is open. The answer is dropped then,
    /// or a peer could fill this node's memory.
    pub(crate) fn answered(&self, number: u32, reply: impl FnOnce() -> Answer) -> bool {
        let mut answers = self.answers.lock();
        let Some(open) = answers.get_mut(&number) else { return false };
        *open = Some(reply());
        true
    }
}
