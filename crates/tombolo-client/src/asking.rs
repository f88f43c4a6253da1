//! Requests to the node and its answers, by the socket of a domain.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use tombolo_channel::{MAX_MESSAGE_BYTES, Message, Reply, Request, decode, encode};
use tombolo_host::event;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::timing::client::BUSY_PAUSE;
use tombolo_host::unix::{Received, SeqpacketSocket, UnixError};

use crate::error::OpenError;
use crate::requests::{GivenUp, MAX_GIVEN_UP, Requests, Settling};

/// The most messages that [`Asking::catch_up`] takes in one call: many more than an honest node ever has in the
/// socket, whose queue the kernel bounds.
const MAX_CAUGHT_UP: usize = 4096;
/// What the node sends.
enum NodeMessage {
    Answer(u32, Answer),
    Ended,
}

/// What the node answered.
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    /// `None` where the kernel closed what came, since this process has no descriptor left.
    descriptors: Option<Vec<PassedDescriptor>>,
}

impl Answer {
    /// The descriptors that belong to the answer, which are so many.
    pub(crate) fn descriptors<const N: usize>(self) -> Result<[PassedDescriptor; N], OpenError> {
        let descriptors = self.descriptors.ok_or(OpenError::NoDescriptors)?;
        descriptors.try_into().map_err(|_| OpenError::UnexpectedMessage)
    }

    /// The descriptor that belongs to the answer.
    pub(crate) fn descriptor(self) -> Result<PassedDescriptor, OpenError> {
        let descriptors = self.descriptors.ok_or(OpenError::NoDescriptors)?;
        descriptors.into_iter().next().ok_or(OpenError::UnexpectedMessage)
    }
}

/// Takes the next message from the socket; `None` if none is there.
fn receive_message(socket: &SeqpacketSocket, buffer: &mut [u8]) -> Result<Option<NodeMessage>, OpenError> {
    let (length_bytes, descriptors) = match socket.receive(buffer) {
        Ok(Received { length_bytes, descriptors }) => (length_bytes, Some(descriptors)),
        Err(UnixError::DescriptorsCut { length_bytes }) => (length_bytes, None),
        Err(UnixError::WouldBlock) => return Ok(None),
        Err(error) => return Err(OpenError::Lost(error)),
    };
    match decode(&buffer[..length_bytes]) {
        Some(Message::AnswerV2 { number, reply }) => {
            Ok(Some(NodeMessage::Answer(number, Answer { reply, descriptors })))
        }
        Some(Message::EndedV1) => Ok(Some(NodeMessage::Ended)),
        _ => Err(OpenError::UnexpectedMessage),
    }
}

/// The state of asking the node. One thread asks at a time.
#[derive(Debug)]
pub(crate) struct Asking {
    buffer: Vec<u8>,
    pub(crate) requests: Requests,
    /// The domain's mailbox was handed out.
    pub(crate) has_mailbox: bool,
}

impl Asking {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; MAX_MESSAGE_BYTES], requests: Requests::default(), has_mailbox: false }
    }

    /// Asks the node for something and waits for the answer. `on_ended` is called for each message that says
    /// that a transfer has ended. If the request was sent and its answer did not come in time, `given_up` says
    /// what a late answer may bring.
    pub(crate) fn ask(
        &mut self,
        socket: &SeqpacketSocket,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        given_up: &mut dyn FnMut() -> GivenUp,
        limit: TimeLimit,
        on_ended: &dyn Fn(),
    ) -> Result<Answer, OpenError> {
        // Requests that give something back were queued earlier, so they are sent first.
        self.give_back(socket)?;
        let number = self.requests.begin().ok_or(OpenError::Unanswered(MAX_GIVEN_UP))?;
        let message = encode(&Message::AskV2 { number, request });
        while let Err(error) = socket.send(&[&message], descriptors) {
            if !matches!(error, UnixError::WouldBlock) {
                return Err(OpenError::Lost(error));
            }
            if limit.left().is_zero() {
                // The request was not sent.
                return Err(limit.timed_out());
            }
            std::thread::sleep(BUSY_PAUSE);
        }
        match self.await_answer(socket, number, limit, on_ended) {
            Ok(Answer { reply: Reply::Failed(reason), .. }) => Err(OpenError::Refused(reason)),
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.requests.give_up(number, given_up());
                Err(error)
            }
        }
    }

    /// Waits for the answer to the request of this number.
    fn await_answer(
        &mut self,
        socket: &SeqpacketSocket,
        number: u32,
        limit: TimeLimit,
        on_ended: &dyn Fn(),
    ) -> Result<Answer, OpenError> {
        loop {
            let heard = receive_message(socket, &mut self.buffer)?;
            let is_quiet = heard.is_none();
            match heard {
                Some(NodeMessage::Answer(answered, answer)) if answered == number => return Ok(answer),
                Some(NodeMessage::Answer(answered, answer)) => self.take_late(socket, answered, answer)?,
                Some(NodeMessage::Ended) => on_ended(),
                None => {}
            }
            // Checked after every message: a node that goes on sending other messages must not hold the program up.
            let left = limit.left();
            if left.is_zero() {
                return Err(limit.timed_out());
            }
            if is_quiet {
                let _ = event::wait_readable(&[socket.as_fd()], Some(left));
            }
        }
    }

    /// Takes an answer that came after its request was given up, and gives back what the answer grants.
    fn take_late(&mut self, socket: &SeqpacketSocket, number: u32, answer: Answer) -> Result<(), OpenError> {
        let descriptor = answer.descriptors.and_then(|descriptors| descriptors.into_iter().next());
        self.requests
            .answered_late(number, &answer.reply, descriptor)
            .map_err(|_| OpenError::UnexpectedMessage)?;
        self.give_back(socket)
    }

    /// Waits until the registrations of this address that were given up are either refused by the node or taken
    /// back.
    pub(crate) fn settle(
        &mut self,
        socket: &SeqpacketSocket,
        address: u64,
        limit: TimeLimit,
        on_ended: &dyn Fn(),
    ) -> Result<(), OpenError> {
        // A deregistration that the node refused earlier may succeed now.
        self.requests.release_again(address);
        loop {
            let caught_up = self.catch_up(socket, on_ended);
            match self.requests.settling(address) {
                Settling::Done => return Ok(()),
                Settling::Refused(reason) => return Err(OpenError::Refused(reason)),
                // Only here is a lost connection an error: the node may have sent its answers and then closed.
                Settling::Open => caught_up?,
            }
            let left = limit.left();
            if left.is_zero() {
                return Err(limit.timed_out());
            }
            // Nothing tells when a full socket has room again.
            let pause = if self.requests.to_give_back().is_some() { BUSY_PAUSE.min(left) } else { left };
            let _ = event::wait_readable(&[socket.as_fd()], Some(pause));
        }
    }

    /// Sends the requests that give back what late answers granted, as many as the socket takes now.
    fn give_back(&mut self, socket: &SeqpacketSocket) -> Result<(), OpenError> {
        while let Some((number, request)) = self.requests.to_give_back() {
            let message = Message::AskV2 { number: *number, request: request.clone() };
            match socket.send(&[&encode(&message)], &[]) {
                Ok(()) => self.requests.sent_back(),
                Err(UnixError::WouldBlock) => break,
                Err(error) => return Err(OpenError::Lost(error)),
            }
        }
        Ok(())
    }

    /// Takes the messages that are there, at most [`MAX_CAUGHT_UP`], and does not wait. `on_ended` is called for each
    /// message that says that a transfer has ended.
    pub(crate) fn catch_up(
        &mut self,
        socket: &SeqpacketSocket,
        on_ended: &dyn Fn(),
    ) -> Result<(), OpenError> {
        self.give_back(socket)?;
        for _ in 0..MAX_CAUGHT_UP {
            match receive_message(socket, &mut self.buffer)? {
                Some(NodeMessage::Answer(number, answer)) => self.take_late(socket, number, answer)?,
                Some(NodeMessage::Ended) => on_ended(),
                None => break,
            }
        }
        Ok(())
    }
}

/// The time limit of one request. It begins with the program's call, so the time in which the call waits for other
/// threads counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeLimit {
    timeout: Duration,
    pub(crate) deadline: Instant,
}

impl TimeLimit {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { timeout, deadline: Instant::now() + timeout }
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(crate) fn timed_out(&self) -> OpenError {
        OpenError::TimedOut(self.timeout)
    }
}
