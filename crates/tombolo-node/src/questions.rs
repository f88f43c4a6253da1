//! What nodes ask each other over the control channel, and the answers.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_host::shared::SharedMemory;
use tombolo_link::{LinkState, SendError};

use crate::control::{Message, MessageV1, Reply, Request};
use crate::ledger::{self, LendError, Segment};
use crate::node::{Answer, AskError, Node, Peer};
use crate::status::MAX_STATUS_BYTES;

/// What is lent without holding up the engine.
const LENT_AT_ONCE_BYTES: u64 = 2 << 20;

impl Node {
    /// Asks a peer and waits for its answer, driving the link meanwhile. Where that is lost and others
    /// are left, it asks by one of them what may be asked twice.
    pub fn ask(&self, peer: &Arc<Peer>, request: Request, timeout: Duration) -> Result<Answer, AskError> {
        let number = peer.next_number.fetch_add(1, Ordering::Relaxed);
        peer.answers.lock().insert(number, None);
        let deadline = Instant::now() + timeout;
        let repeats = request.may_be_repeated();
        let message = Message::V1(MessageV1::Ask { number, request }).encode();
        let mut answer = self.ask_as(peer, number, &message, deadline, timeout);
        while repeats && matches!(answer, Err(AskError::PathLost)) {
            answer = self.ask_as(peer, number, &message, deadline, timeout);
        }
        peer.answers.lock().remove(&number);
        answer
    }

    fn ask_as(
        &self,
        peer: &Arc<Peer>,
        number: u32,
        message: &[u8],
        deadline: Instant,
        timeout: Duration,
    ) -> Result<Answer, AskError> {
        let mut link = peer.control_link();
        while let Err(error) = link.send_control(message, &[]) {
            // Of several, one that is lost will soon be left.
            let waits = matches!(error, SendError::Full) || self.has_several(peer);
            if !waits || Instant::now() > deadline {
                return Err(AskError::Send(error));
            }
            std::thread::sleep(Duration::from_millis(1));
            self.tick();
            link = peer.control_link();
        }
        loop {
            self.drive(peer);
            if !peer.has_link() {
                let others = peer.paths.read().clone();
                others.iter().for_each(|part| _ = self.drive(part));
            }
            if let Some(answer) = peer.answers.lock().get_mut(&number).and_then(Option::take) {
                return Ok(answer);
            }
            if let Some(reason) = peer.loss() {
                return Err(AskError::Lost(reason));
            }
            if Instant::now() > deadline {
                return Err(AskError::TimedOut(timeout));
            }
            if link.state() != LinkState::Up && self.has_several(peer) {
                return Err(AskError::PathLost);
            }
            // Another thread may take the answer off the link: not for long.
            let _ = peer.control_link().wait(Duration::from_millis(5));
            self.tick();
        }
    }

    /// Whether there are links to that peer besides its first one, or were before that was lost.
    fn has_several(&self, peer: &Peer) -> bool {
        peer.loss().is_none() && !(peer.is_part() || peer.paths.read().is_empty())
    }

    /// A control message has come.
    pub(crate) fn control(&self, peer: &Arc<Peer>, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        match Message::decode(bytes) {
            Ok(Message::V1(MessageV1::Answer { number, reply })) => {
                let whole = peer.whole();
                if self.carried_by(whole.id, number, &reply) {
                    return;
                }
                // An answer that nobody asked for is dropped, or a peer could fill our memory with them.
                let asker = if peer.answers.lock().contains_key(&number) { peer } else { whole };
                if let Some(open) = asker.answers.lock().get_mut(&number) {
                    *open = Some((reply, descriptors));
                }
            }
            Ok(Message::V1(MessageV1::Ask { number, request })) => {
                let (link, newcomer, peer) = (&peer.link, peer, peer.whole());
                let answer = match request {
                    Request::BePath { token } => Some((self.be_path(newcomer, &token), None)),
                    Request::Carry(carriage) => {
                        let known = self.carry_for(peer, number, &carriage);
                        // Otherwise the transfer's end is the answer.
                        known.map(|reply| (reply, None))
                    }
                    Request::Lend { bytes } if bytes > LENT_AT_ONCE_BYTES => {
                        self.lend_much(newcomer, number, bytes).map(|reply| (reply, None))
                    }
                    Request::Create { bytes } => {
                        self.create(newcomer, number, bytes).map(|reply| (reply, None))
                    }
                    Request::Publish { segment, name, checksum } => {
                        self.publish(newcomer, number, segment, &name, checksum).map(|reply| (reply, None))
                    }
                    request => Some(self.answer(peer, request)),
                };
                let Some((reply, memory)) = answer else { return };
                let message = Message::V1(MessageV1::Answer { number, reply }).encode();
                let memory = memory.filter(|_| link.supports_windows());
                let descriptors: Vec<_> = memory.iter().map(|memory| memory.as_fd()).collect();
                // A peer that asks and does not take the answers is on its own.
                let _ = link.send_control(&message, &descriptors);
            }
            Err(_) => {
                self.packets_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn answer(&self, peer: &Arc<Peer>, request: Request) -> (Reply, Option<Arc<SharedMemory>>) {
        match request {
            Request::Introduce { name } => {
                peer.is_called(name);
                (Reply::Introduced { name: self.name().to_owned() }, None)
            }
            Request::Lend { bytes } => match self.lend(peer, bytes) {
                Ok((segment, memory)) => (Reply::Lent { segment }, Some(memory)),
                Err(LendError::TooMuch { free_bytes, .. }) => (Reply::TooMuch { free_bytes }, None),
                Err(error) => (Reply::Failed(error.to_string()), None),
            },
            Request::Release { segment } => {
                if self.ledger.lock().release(peer.id, segment) {
                    (Reply::Done, None)
                } else {
                    (Reply::Failed(format!("segment {segment} is not lent to you")), None)
                }
            }
            Request::Status { from } => {
                let (status, next) = self.status_part(from, MAX_STATUS_BYTES);
                (Reply::Status { status: Box::new(status), next }, None)
            }
            Request::Find { name } => (self.find_name(&name), None),
            Request::Open { name } => (self.open_name(peer, &name), None),
            Request::List { after } => (self.list_names(after.as_deref()), None),
            Request::Delete { name } => (self.delete_name(&name), None),
            Request::PathToken => (self.path_token(peer), None),
            Request::Carry(_) | Request::Create { .. } | Request::Publish { .. } | Request::BePath { .. } => {
                (Reply::Failed("that is not answered at once".into()), None)
            }
        }
    }

    fn lend(&self, peer: &Peer, bytes: u64) -> Result<(u16, Arc<SharedMemory>), LendError> {
        let room = self.ledger.lock().reserve(bytes)?;
        let memory = Arc::new(ledger::allocate(bytes)?);
        let segment = self.ledger.lock().enter(peer.id, Segment::new(memory.clone(), room))?;
        Ok((segment, memory))
    }
}
