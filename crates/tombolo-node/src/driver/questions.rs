//! What nodes ask each other over the control channel, and the answers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_core::rdma::PeerId;
use tombolo_host::passed::PassedDescriptor;
use tombolo_link::{LinkState, SendError};

use crate::driver::node::{Answer, AskError, Node, Peer};
use crate::driver::status::MAX_STATUS_BYTES;
use crate::fabric::label;
use crate::fabric::messages::{Message, MessageV1, Reply, Request};

/// Answers of one peer that are kept; it has far fewer questions open.
const MAX_ANSWERED: usize = 256;

/// What was asked for once, by the number of the question, and the answer when there is one: a question
/// that comes again by another link, since the first was lost, is not carried out again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered(Arc<Mutex<HashMap<PeerId, Questions>>>);

/// Those of one peer, the latest last.
type Questions = VecDeque<(u32, Option<Reply>)>;

impl Answered {
    /// A question has come. `Some`: not for the first time; and the answer, if there is one.
    fn begin(&self, peer: &Peer, number: u32) -> Option<Option<Reply>> {
        let mut peers = self.0.lock();
        if peer.loss().is_some() {
            // Forgotten already; there is nobody to answer.
            return Some(None);
        }
        let questions = peers.entry(peer.id).or_default();
        if let Some((_, reply)) = questions.iter().find(|(known, _)| *known == number) {
            return Some(reply.clone());
        }
        if questions.len() >= MAX_ANSWERED {
            questions.pop_front();
        }
        questions.push_back((number, None));
        None
    }

    /// The answer to a question is known.
    pub(crate) fn ended(&self, peer: &Peer, number: u32, reply: &Reply) {
        if let Some(questions) = self.0.lock().get_mut(&peer.id)
            && let Some((_, known)) = questions.iter_mut().find(|(known, _)| *known == number)
        {
            *known = Some(reply.clone());
        }
    }

    /// A peer is lost.
    pub(crate) fn forget(&self, peer: PeerId) {
        self.0.lock().remove(&peer);
    }
}

impl Node {
    /// Asks a peer and waits for its answer, driving the link meanwhile. Where that is lost and others
    /// are left, it asks by one of them what may be asked twice.
    pub fn ask(&self, peer: &Arc<Peer>, request: Request, timeout: Duration) -> Result<Answer, AskError> {
        let number = peer.next_number.fetch_add(1, Ordering::Relaxed);
        peer.answers.lock().insert(number, None);
        let deadline = Instant::now() + timeout;
        let repeats = request.may_be_repeated();
        // Who takes its leave does not wait for a link to come back, nor does who asks on a new one, which may be
        // that of a node that has just ended.
        let waits = !matches!(
            request,
            Request::Release { .. }
                | Request::Join { .. }
                | Request::Identify
                | Request::PathToken
                | Request::BePath { .. }
        );
        let message = Message::V1(MessageV1::Ask { number, request }).encode();
        let mut answer = self.ask_as(peer, number, &message, waits, deadline, timeout);
        while repeats && matches!(answer, Err(AskError::PathLost)) {
            answer = self.ask_as(peer, number, &message, waits, deadline, timeout);
        }
        peer.answers.lock().remove(&number);
        answer
    }

    fn ask_as(
        &self,
        peer: &Arc<Peer>,
        number: u32,
        message: &[u8],
        waits_for_link: bool,
        mut deadline: Instant,
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
            if !peer.has_link() || peer.link.is_suspect() {
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
                if !(waits_for_link && peer.is_waiting()) {
                    return Err(AskError::TimedOut(timeout));
                }
                // A pause of the link does not count: it ends, or the link does.
                deadline = Instant::now() + timeout;
            }
            let is_of_use = link.state() == LinkState::Up && !link.is_suspect();
            if !is_of_use && self.has_several(peer) && !peer.control_link().is_suspect() {
                return Err(AskError::PathLost);
            }
            // Another thread may take the answer off the link: not for long.
            let _ = peer.control_link().wait(Duration::from_millis(5));
            self.tick();
        }
    }

    /// Whether there are links to that peer besides its first one, or were before that was lost.
    pub(crate) fn has_several(&self, peer: &Peer) -> bool {
        peer.loss().is_none() && !(peer.is_part() || peer.paths.read().is_empty())
    }

    /// A control message has come.
    pub(crate) fn control(&self, peer: &Arc<Peer>, bytes: &[u8], descriptors: Vec<PassedDescriptor>) {
        match Message::decode(bytes) {
            Ok(Message::V1(MessageV1::Answer { number, reply })) => {
                let whole = peer.whole();
                if self.carried_by(whole.id, number, &reply) {
                    return;
                }
                // An answer that nobody asked for is dropped, or a peer could fill our memory with them.
                let asker = if peer.answers.lock().contains_key(&number) { peer } else { whole };
                if let Some(open) = asker.answers.lock().get_mut(&number) {
                    *open = Some((label::reply(reply), descriptors));
                }
            }
            Ok(Message::V1(MessageV1::Ask { number, request })) => {
                let (link, newcomer, peer) = (&peer.link, peer, peer.whole());
                if let Some(reason) = self.refusal(newcomer, &request) {
                    let answer = MessageV1::Answer { number, reply: Reply::Failed(reason) };
                    let _ = link.send_control(&Message::V1(answer).encode(), &[]);
                    return;
                }
                let is_for_once = request.is_for_once();
                if is_for_once && let Some(answer) = self.answered.begin(peer, number) {
                    // It goes again if there is one, or follows.
                    if let Some(reply) = answer {
                        let message = Message::V1(MessageV1::Answer { number, reply }).encode();
                        let _ = link.send_control(&message, &[]);
                    }
                    return;
                }
                let answer = match request {
                    Request::BePath { token } => Some(self.be_path(newcomer, &token)),
                    Request::Carry(carriage) => {
                        // The transfer's end is the answer.
                        self.carry_for(peer, number, &carriage);
                        None
                    }
                    Request::Lend { bytes } => self.lend(newcomer, number, bytes),
                    Request::Create { bytes } => self.create(newcomer, number, bytes),
                    Request::Publish { segment, name, checksum } => {
                        self.publish(newcomer, number, segment, &name, checksum)
                    }
                    Request::Join { name, life, insists } => {
                        self.ask_to_be_joined(peer, number, name, life, insists)
                    }
                    request => Some(self.answer(peer, request)),
                };
                let Some(reply) = answer else { return };
                if is_for_once {
                    self.answered.ended(peer, number, &reply);
                }
                let message = Message::V1(MessageV1::Answer { number, reply }).encode();
                // A peer that asks and does not take the answers is on its own.
                let _ = link.send_control(&message, &[]);
            }
            Err(_) => {
                self.packets_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn answer(&self, peer: &Arc<Peer>, request: Request) -> Reply {
        match request {
            Request::Introduce { name, life } => match self.introduced(peer, &name, life) {
                Ok(()) => Reply::Introduced { name: self.name().to_owned(), life: self.life() },
                Err(why) => Reply::Failed(why),
            },
            Request::Release { segment } => {
                // What was released is freed later, and under no lock.
                let released = self.ledger.lock().release(peer.id, segment);
                match released {
                    true => Reply::Done,
                    false => Reply::Failed(format!("segment {segment} is not lent to you")),
                }
            }
            Request::Status { from } => {
                let (status, next) = self.status_part(from, MAX_STATUS_BYTES);
                Reply::Status { status: Box::new(status), next }
            }
            Request::Identify => Reply::Introduced { name: self.name().to_owned(), life: self.life() },
            Request::Find { name } => self.find_name(&name),
            Request::Open { name } => self.open_name(peer, &name),
            Request::List { after } => self.list_names(after.as_deref()),
            Request::Delete { name } => self.delete_name(&name),
            Request::PathToken => self.path_token(peer),
            Request::Lend { .. }
            | Request::Carry(_)
            | Request::Create { .. }
            | Request::Publish { .. }
            | Request::Join { .. }
            | Request::BePath { .. } => Reply::Failed("that is not answered at once".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_link::Link;
    use tombolo_link::testing::memory_pair;

    use super::*;
    use crate::lending::ledger::{self, Published, Segment};
    use crate::lending::named::Checksum;
    use crate::memory::blocking::Owner;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn question(link: &dyn Link) -> Option<u32> {
        let message = link.receive_control().ok()??;
        match Message::decode(&message.bytes) {
            Ok(Message::V1(MessageV1::Ask { number, request: Request::Delete { .. } })) => Some(number),
            other => panic!("{other:?}"),
        }
    }

    fn next_question(link: &dyn Link) -> u32 {
        let since = Instant::now();
        loop {
            if let Some(number) = question(link) {
                return number;
            }
            assert!(since.elapsed() < PATIENCE, "nothing is asked");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_asked_again_is_done_once_and_answered_as_before() {
        let node = Node::new("asked", 1 << 20, 0).unwrap();
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        {
            let mut ledger = node.ledger.lock();
            let room = ledger.reserve(4096).unwrap();
            let memory = Arc::new(ledger::allocate(4096).unwrap());
            let segment = Segment::new(memory, room, node.reclaimer(Owner::Peer(PeerId(1))));
            let published = Published {
                segment: Arc::new(segment),
                length_bytes: 5,
                checksum: Checksum([0; 32]),
                since: Instant::now(),
            };
            let _ = ledger.publish("name".parse().unwrap(), published);
        }
        let delete = |number: u32| {
            let request = Request::Delete { name: "name".into() };
            far.send_control(&Message::V1(MessageV1::Ask { number, request }).encode(), &[]).unwrap();
            node.drive(&peer);
            let message = far.receive_control().unwrap().unwrap();
            match Message::decode(&message.bytes) {
                Ok(Message::V1(MessageV1::Answer { number: answered, reply })) if answered == number => reply,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!([delete(9), delete(9), delete(10)], [Reply::Done, Reply::Done, Reply::NoSuchName]);
    }

    #[test]
    fn a_question_that_is_lost_with_its_link_is_asked_again_by_another() {
        let node = Node::new("asker", 0, 0).unwrap();
        let ((first, far_first), (second, far_second)) = (memory_pair().unwrap(), memory_pair().unwrap());
        let whole = node.add_peer(first);
        let token = [7; 16];
        let _ = whole.token.set(token);
        let part = node.add_peer(second);
        assert_eq!(node.be_path(&part, &token), Reply::Done);
        std::thread::scope(|scope| {
            let request = Request::Delete { name: "name".into() };
            let asker = scope.spawn(|| node.ask(&whole, request, PATIENCE));
            let number = next_question(&*far_first);
            drop(far_first);
            assert_eq!(next_question(&*far_second), number);
            let reply = Message::V1(MessageV1::Answer { number, reply: Reply::Done }).encode();
            far_second.send_control(&reply, &[]).unwrap();
            assert!(matches!(asker.join().unwrap(), Ok((Reply::Done, _))));
        });
    }

    #[test]
    fn answers_are_kept_in_a_bounded_number() {
        let node = Node::new("asked", 0, 0).unwrap();
        let (near, _far) = memory_pair().unwrap();
        let (peer, answered) = (node.add_peer(near), Answered::default());
        for number in 0..2 * MAX_ANSWERED as u32 {
            assert_eq!(answered.begin(&peer, number), None);
            assert_eq!(answered.begin(&peer, number), Some(None));
            answered.ended(&peer, number, &Reply::Done);
            assert_eq!(answered.begin(&peer, number), Some(Some(Reply::Done)));
        }
        assert_eq!(answered.0.lock()[&peer.id].len(), MAX_ANSWERED);
        answered.forget(peer.id);
        assert!(answered.0.lock().is_empty());
    }
}
