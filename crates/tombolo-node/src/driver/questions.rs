//! Questions between nodes over the control channel: asks a peer and waits for the answer, and answers the questions of
//! peers.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use tombolo_channel::from_the_wire;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::timing::node as timing;
use tombolo_link::{LinkState, SendError};
use tombolo_wire::Domain;

use crate::driver::node::Node;
use crate::fabric::connection::Connection;
use crate::fabric::label;
use crate::fabric::link_driver::AskError;
use crate::fabric::messages::{Message, MessageV1, Reply, Request};
use crate::fabric::neighbour::{Answer, Neighbour};
use crate::programs::user::Poster;
use crate::programs::windows::{Windows, why_not};

impl Node {
    /// Asks a peer and waits for its answer, and drives the link meanwhile. If the link is lost or suspect and the peer
    /// has a link that is not, a request that may be repeated is asked again by that link. Any other request fails.
    pub fn ask(
        &self,
        connection: &Arc<Connection>,
        request: Request,
        timeout: Duration,
    ) -> Result<Answer, AskError> {
        self.ask_while(connection, request, timeout, &|| true)
    }

    /// As [`Node::ask`], but stops as soon as `goes_on` returns false.
    pub fn ask_while(
        &self,
        connection: &Arc<Connection>,
        request: Request,
        timeout: Duration,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Answer, AskError> {
        let asked = connection.own();
        let number = asked.next_number();
        asked.open_question(number);
        let deadline = Instant::now() + timeout;
        let repeats = request.may_be_repeated();
        // These requests do not wait for a suspect link to come back: the first because the node takes its leave, the
        // rest because the link is new and may lead to a node that has just ended.
        let waits = !matches!(
            request,
            Request::Release { .. }
                | Request::Join { .. }
                | Request::Identify
                | Request::PathToken
                | Request::BePath { .. }
        );
        let message = Message::V1(MessageV1::Ask { number, request }).encode();
        let ask = || self.ask_as(connection, number, &message, waits, deadline, timeout, goes_on);
        let mut answer = ask();
        while repeats && matches!(answer, Err(AskError::PathLost)) {
            answer = ask();
        }
        asked.close_question(number);
        answer
    }

    #[expect(clippy::too_many_arguments, reason = "a deadline, and the timeout that an error names")]
    fn ask_as(
        &self,
        connection: &Arc<Connection>,
        number: u32,
        message: &[u8],
        waits_for_link: bool,
        mut deadline: Instant,
        timeout: Duration,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Answer, AskError> {
        let mut link = connection.control_link();
        while let Err(error) = link.send_control(message, &[]) {
            if !goes_on() {
                return Err(AskError::Interrupted);
            }
            // If the peer has several links, the lost one is soon removed and another is used.
            let waits = matches!(error, SendError::Full) || connection.has_several();
            if !waits || Instant::now() > deadline {
                return Err(AskError::Send(error));
            }
            std::thread::sleep(timing::ASK_SEND_PAUSE);
            self.tick();
            link = connection.control_link();
        }
        loop {
            self.drive(connection);
            if !connection.has_link() || connection.link.is_suspect() {
                let further = connection.own().further.read().clone();
                further.iter().for_each(|further| _ = self.drive(further));
            }
            if let Some(answer) = connection.own().take_answer(number) {
                return Ok(answer);
            }
            if let Some(reason) = connection.loss() {
                return Err(AskError::Lost(reason));
            }
            if !goes_on() {
                return Err(AskError::Interrupted);
            }
            if Instant::now() > deadline {
                if !(waits_for_link && connection.is_waiting()) {
                    return Err(AskError::TimedOut(timeout));
                }
                // The time of a suspect link does not count: either the link answers again or it is lost.
                deadline = Instant::now() + timeout;
            }
            let is_of_use = link.state() == LinkState::Up && !link.is_suspect();
            if !is_of_use && connection.has_several() && !connection.control_link().is_suspect() {
                return Err(AskError::PathLost);
            }
            // Sleep briefly, because another thread may take the answer off the link.
            let _ = connection.control_link().wait(timing::ASK_MAX_SLEEP);
            self.tick();
        }
    }

    /// Handles a control message from a peer.
    pub(crate) fn control(
        &self,
        connection: &Arc<Connection>,
        bytes: &[u8],
        descriptors: Vec<PassedDescriptor>,
    ) {
        match Message::decode(bytes) {
            Ok(Message::V1(MessageV1::Answer { number, reply })) => {
                if self.third_party_answered(connection.neighbour(), number, &reply) {
                    return;
                }
                let mut answer = Some((label::reply(reply), descriptors));
                let mut answer = || answer.take().unwrap_or((Reply::Done, Vec::new()));
                // The question was asked under the number of this link alone, or of the neighbour.
                if !connection.own().answered(number, &mut answer) {
                    connection.neighbour().answered(number, &mut answer);
                }
            }
            Ok(Message::V1(MessageV1::Ask { number, request })) => {
                let (link, neighbour) = (&connection.link, connection.neighbour());
                let has_memory = || self.lending.has_some(neighbour.id);
                if let Some(reason) = self.fabric.refusal(connection, &request, has_memory) {
                    let answer = MessageV1::Answer { number, reply: Reply::Failed(reason) };
                    let _ = link.send_control(&Message::V1(answer).encode(), &[]);
                    return;
                }
                let is_for_once = request.is_for_once();
                if is_for_once
                    && let Some(answer) =
                        self.fabric.answered.begin(neighbour, &Arc::downgrade(connection), number)
                {
                    // Send the answer again if it is known already. Otherwise it follows.
                    if let Some(reply) = answer {
                        self.answer_again(connection, number, reply);
                    }
                    return;
                }
                let answer = match request {
                    Request::BePath { token } => {
                        let reply = self.fabric.be_path(connection, &token);
                        if connection.is_part() {
                            // Drop what was arranged with this link's peer while the link counted as a neighbour of its
                            // own.
                            self.third_party_lost(connection.id);
                        }
                        Some(reply)
                    }
                    Request::Carry(carriage) => {
                        // The answer follows when the transfer ends.
                        self.make_for(neighbour, number, &carriage);
                        None
                    }
                    Request::MapWindow { domain, address } => {
                        self.answer_with_window(connection, number, domain, address)
                    }
                    Request::Lend { bytes } => self.lending.lend(connection, number, bytes),
                    Request::Create { bytes } => self.lending.create(connection, number, bytes),
                    Request::Publish { segment, name, checksum } => {
                        self.lending.publish(connection, number, segment, &name, checksum)
                    }
                    Request::Join { name, life, insists } => {
                        let Some(first) = neighbour.first() else { return };
                        self.fabric.ask_to_be_joined(&first, number, name, life, insists)
                    }
                    Request::Status { from, counters } => {
                        self.answer_with_status(connection, number, from, counters)
                    }
                    request => Some(self.answer(neighbour, request)),
                };
                let Some(reply) = answer else { return };
                if is_for_once {
                    self.fabric.answered.ended(neighbour, number, &reply);
                }
                let message = Message::V1(MessageV1::Answer { number, reply }).encode();
                // A peer that does not take the answers to its questions loses them.
                let _ = link.send_control(&message, &[]);
                connection.tick_at_ns.store(0, Ordering::Relaxed);
            }
            Err(_) => {
                self.packets_dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Repeats an answer, with the memory that belongs to it.
    fn answer_again(&self, connection: &Connection, number: u32, reply: Reply) {
        let memory = match &reply {
            Reply::Lent { segment } if connection.link.supports_windows() => {
                self.lending.ledger.lock().lent(connection.neighbour().id, *segment)
            }
            _ => None,
        };
        let descriptors: SmallVec<[_; 1]> = memory.iter().map(|memory| memory.as_fd()).collect();
        let message = Message::V1(MessageV1::Answer { number, reply }).encode();
        let _ = connection.link.send_control(&message, &descriptors);
    }

    /// Passes a window of a program here to a peer, or says why not.
    fn answer_with_window(
        &self,
        connection: &Connection,
        number: u32,
        domain: u16,
        address: u64,
    ) -> Option<Reply> {
        let Some(domain) = from_the_wire(Domain(domain)) else {
            return Some(Reply::Failed(format!("{domain} is no program's domain")));
        };
        if !connection.link.supports_windows() {
            return Some(Reply::Failed("this link passes no memory".into()));
        }
        let place = match self.window(domain, address, Poster::Peer(connection.neighbour().id)) {
            Ok(place) => place,
            Err(missing) => return Some(Reply::Failed(why_not(missing, domain, address))),
        };
        let descriptors = match place.descriptors() {
            Ok(descriptors) => descriptors,
            Err(error) => return Some(Reply::Failed(error.to_string())),
        };
        let reply = Reply::Window { bytes: place.bytes(), is_writable: place.is_writable };
        let message = Message::V1(MessageV1::Answer { number, reply }).encode();
        // A peer that does not take the answers to its questions loses them.
        let _ = connection.link.send_control(&message, &descriptors.each_ref().map(AsFd::as_fd));
        None
    }

    fn answer(&self, neighbour: &Neighbour, request: Request) -> Reply {
        match request {
            Request::Introduce { name, life } => match neighbour.first() {
                Some(first) => self.fabric.introduce(&first, &name, life),
                None => Reply::Failed("the link is lost".into()),
            },
            Request::Release { segment } => {
                // The segment's memory is freed later, without a lock.
                let released = self.lending.ledger.lock().release(neighbour.id, segment);
                match released {
                    true => Reply::Done,
                    false => Reply::Failed(format!("segment {segment} is not lent to you")),
                }
            }
            Request::Identify => self.fabric.welcome(),
            Request::LetCarry { carrier } => self.fabric.let_carry(neighbour, &carrier),
            Request::WriteFor { asker } => self.fabric.write_for(neighbour, &asker),
            Request::IsEnding => {
                Reply::Ending { within_s: self.fabric.ends_within().map(|within| within.as_secs()) }
            }
            Request::Find { name } => self.lending.find_name(&name),
            Request::Open { name } => self.lending.open_name(neighbour, &name),
            Request::List { after } => self.lending.list_names(after.as_deref()),
            Request::Delete { name } => self.lending.delete_name(&name),
            Request::PathToken => self.fabric.path_token(neighbour),
            Request::Lend { .. }
            | Request::Status { .. }
            | Request::Carry(_)
            | Request::Create { .. }
            | Request::Publish { .. }
            | Request::Join { .. }
            | Request::MapWindow { .. }
            | Request::BePath { .. } => Reply::Failed("that is not answered at once".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tombolo_core::rdma::PeerId;
    use tombolo_link::Link;
    use tombolo_link::testing::memory_pair;

    use super::*;
    use crate::fabric::messages::Checksum;
    use crate::lending::ledger::Published;
    use crate::memory::allocation::allocate;
    use crate::memory::blocking::Owner;
    use crate::memory::reclaim::Segment;

    const TIMEOUT: Duration = Duration::from_secs(60);

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
            assert!(since.elapsed() < TIMEOUT, "nothing is asked");
            std::thread::yield_now();
        }
    }

    /// A peer that sends many questions at once does not keep other peers waiting.
    #[test]
    fn a_turn_takes_few_messages_of_a_link() {
        let node = Node::new("asked", 0, 0).unwrap();
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        for number in 0..10 {
            let message = MessageV1::Ask { number, request: Request::IsEnding };
            far.send_control(&Message::V1(message).encode(), &[]).unwrap();
        }
        let answers = || std::iter::from_fn(|| far.receive_control().unwrap()).count();
        let turns = [(); 4].map(|()| (node.drive(&peer), answers()));
        assert_eq!(turns, [(4, 4), (4, 4), (2, 2), (0, 0)]);
    }

    #[test]
    fn what_is_asked_again_is_done_once_and_answered_as_before() {
        let node = Node::new("asked", 1 << 20, 0).unwrap();
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        {
            let mut ledger = node.lending.ledger.lock();
            let room = ledger.reserve(4096).unwrap();
            let memory = Arc::new(allocate(4096).unwrap());
            let segment = Segment::new(memory, room, node.lending.reclaimer(Owner::Peer(PeerId(1))));
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
        whole.neighbour().set_token(token);
        let part = node.add_peer(second);
        assert_eq!(node.fabric.be_path(&part, &token), Reply::Done);
        std::thread::scope(|scope| {
            let request = Request::Delete { name: "name".into() };
            let asker = scope.spawn(|| node.ask(&whole, request, TIMEOUT));
            let number = next_question(&*far_first);
            drop(far_first);
            assert_eq!(next_question(&*far_second), number);
            let reply = Message::V1(MessageV1::Answer { number, reply: Reply::Done }).encode();
            far_second.send_control(&reply, &[]).unwrap();
            assert!(matches!(asker.join().unwrap(), Ok((Reply::Done, _))));
        });
    }

    /// The next answer that comes by a link.
    fn next_answer(node: &Node, asked: &Arc<Connection>, link: &dyn Link) -> (u32, Reply) {
        let since = Instant::now();
        loop {
            node.drive(asked);
            if let Some(message) = link.receive_control().unwrap() {
                match Message::decode(&message.bytes) {
                    Ok(Message::V1(MessageV1::Answer { number, reply })) => return (number, reply),
                    other => panic!("{other:?}"),
                }
            }
            assert!(since.elapsed() < TIMEOUT, "no answer");
            std::thread::yield_now();
        }
    }

    #[test]
    fn memory_that_is_asked_for_again_by_another_link_is_lent_once() {
        // The node can lend only one page.
        let node = Node::new("lender", 4096, 0).unwrap();
        let ((first, far_first), (second, far_second)) = (memory_pair().unwrap(), memory_pair().unwrap());
        let (whole, token) = (node.add_peer(first), [7; 16]);
        whole.neighbour().set_token(token);
        let further = node.add_peer(second);
        assert_eq!(node.fabric.be_path(&further, &token), Reply::Done);
        for (number, request) in [(1, Request::Lend { bytes: 4096 }), (2, Request::Create { bytes: 100 })] {
            let message = Message::V1(MessageV1::Ask { number, request }).encode();
            // The question comes again while the memory is still being allocated.
            let hanging =
                crate::memory::blocking::testing::hang(&node.lending.pools.blocking, Owner::Peer(whole.id));
            far_first.send_control(&message, &[]).unwrap();
            node.drive(&whole);
            far_second.send_control(&message, &[]).unwrap();
            node.drive(&further);
            drop(hanging);
            let answer = next_answer(&node, &further, &*far_second);
            let (answered, Reply::Lent { segment }) = answer else { panic!("{answer:?}") };
            assert_eq!((answered, node.status().lent_bytes), (number, 4096));
            // And again after the memory was lent.
            far_second.send_control(&message, &[]).unwrap();
            assert_eq!(next_answer(&node, &further, &*far_second), (number, Reply::Lent { segment }));
            assert!(far_first.receive_control().unwrap().is_none(), "answered twice");
            assert!(node.lending.ledger.lock().release(whole.id, segment));
        }
    }

    #[test]
    fn what_is_opened_again_by_another_link_is_held_once() {
        let node = Node::new("lender", 1 << 20, 0).unwrap();
        let (near, far) = memory_pair().unwrap();
        let peer = node.add_peer(near);
        let room = node.lending.ledger.lock().reserve(4096).unwrap();
        let memory = Arc::new(allocate(4096).unwrap());
        let segment = Segment::new(memory, room, node.lending.reclaimer(Owner::Peer(peer.id)));
        let published = Published {
            segment: Arc::new(segment),
            length_bytes: 5,
            checksum: Checksum([0; 32]),
            since: Instant::now(),
        };
        let _ = node.lending.ledger.lock().publish("name".parse().unwrap(), published);
        let open = || {
            let request = Request::Open { name: "name".into() };
            far.send_control(&Message::V1(MessageV1::Ask { number: 3, request }).encode(), &[]).unwrap();
            next_answer(&node, &peer, &*far)
        };
        assert_eq!(open(), open());
        let (_, Reply::Opened { segment, .. }) = open() else { panic!("not opened") };
        assert!(node.lending.ledger.lock().find(peer.id, segment + 1).is_none(), "held twice");
    }
}
