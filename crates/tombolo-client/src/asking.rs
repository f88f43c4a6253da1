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

/// Messages taken at once where nobody waits for an answer: many more than an honest node ever has in the
/// socket, whose queue the kernel bounds.
const MAX_CAUGHT_UP: usize = 4096;
/// A message of the node.
enum Heard {
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
    /// The descriptor that belongs to the answer.
    pub(crate) fn descriptor(self) -> Result<PassedDescriptor, OpenError> {
        let descriptors = self.descriptors.ok_or(OpenError::NoDescriptors)?;
        descriptors.into_iter().next().ok_or(OpenError::UnexpectedMessage)
    }
}

/// Takes the next one, if there is one.
fn hear(socket: &SeqpacketSocket, buffer: &mut [u8]) -> Result<Option<Heard>, OpenError> {
    let (length_bytes, descriptors) = match socket.receive(buffer) {
        Ok(Received { length_bytes, descriptors }) => (length_bytes, Some(descriptors)),
        Err(UnixError::DescriptorsCut { length_bytes }) => (length_bytes, None),
        Err(UnixError::WouldBlock) => return Ok(None),
        Err(error) => return Err(OpenError::Lost(error)),
    };
    match decode(&buffer[..length_bytes]) {
        Some(Message::AnswerV2 { number, reply }) => {
            Ok(Some(Heard::Answer(number, Answer { reply, descriptors })))
        }
        Some(Message::EndedV1) => Ok(Some(Heard::Ended)),
        _ => Err(OpenError::UnexpectedMessage),
    }
}

/// What is needed to ask the node for something; one thread has it at a time.
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

    /// Asks the node for something and waits for the answer. `ended` hears of other messages. Where
    /// the request was sent and no answer to it is read, `what` says what the answer may bring later.
    pub(crate) fn ask(
        &mut self,
        socket: &SeqpacketSocket,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
        what: &mut dyn FnMut() -> GivenUp,
        patience: Patience,
        ended: &dyn Fn(),
    ) -> Result<Answer, OpenError> {
        // What is to be given back was to be asked before.
        self.give_back(socket)?;
        let number = self.requests.begin().ok_or(OpenError::Unanswered(MAX_GIVEN_UP))?;
        let message = encode(&Message::AskV2 { number, request });
        while let Err(error) = socket.send(&[&message], descriptors) {
            if !matches!(error, UnixError::WouldBlock) {
                return Err(OpenError::Lost(error));
            }
            if patience.left().is_zero() {
                // The node never sees it.
                return Err(patience.timed_out());
            }
            std::thread::sleep(BUSY_PAUSE);
        }
        match self.await_answer(socket, number, patience, ended) {
            Ok(Answer { reply: Reply::Failed(reason), .. }) => Err(OpenError::Refused(reason)),
            Ok(answer) => Ok(answer),
            Err(error) => {
                self.requests.give_up(number, what());
                Err(error)
            }
        }
    }

    /// Waits for the answer to the request of this number.
    fn await_answer(
        &mut self,
        socket: &SeqpacketSocket,
        number: u32,
        patience: Patience,
        ended: &dyn Fn(),
    ) -> Result<Answer, OpenError> {
        loop {
            let heard = hear(socket, &mut self.buffer)?;
            let is_quiet = heard.is_none();
            match heard {
                Some(Heard::Answer(answered, answer)) if answered == number => return Ok(answer),
                Some(Heard::Answer(answered, answer)) => self.take_late(socket, answered, answer)?,
                Some(Heard::Ended) => ended(),
                None => {}
            }
            // After every message: a node that goes on sending others must not hold the program up.
            let left = patience.left();
            if left.is_zero() {
                return Err(patience.timed_out());
            }
            if is_quiet {
                let _ = event::wait_readable(&[socket.as_fd()], Some(left));
            }
        }
    }

    /// Takes an answer that nobody waits for any more, and gives back what it grants.
    fn take_late(&mut self, socket: &SeqpacketSocket, number: u32, answer: Answer) -> Result<(), OpenError> {
        let descriptor = answer.descriptors.and_then(|descriptors| descriptors.into_iter().next());
        self.requests
            .answered_late(number, &answer.reply, descriptor)
            .map_err(|_| OpenError::UnexpectedMessage)?;
        self.give_back(socket)
    }

    /// Waits until nothing is open about a registration that was given up, and makes it nothing.
    pub(crate) fn settle(
        &mut self,
        socket: &SeqpacketSocket,
        address: u64,
        patience: Patience,
        ended: &dyn Fn(),
    ) -> Result<(), OpenError> {
        // Once at first: a release that the node refused may be possible now.
        self.requests.release_again(address);
        loop {
            let caught_up = self.catch_up(socket, ended);
            match self.requests.settling(address) {
                Settling::Done => return Ok(()),
                Settling::Refused(reason) => return Err(OpenError::Refused(reason)),
                // The node may have answered and hung up.
                Settling::Open => caught_up?,
            }
            let left = patience.left();
            if left.is_zero() {
                return Err(patience.timed_out());
            }
            // A full socket says nothing when it takes the next request.
            let pause = if self.requests.to_give_back().is_some() { BUSY_PAUSE.min(left) } else { left };
            let _ = event::wait_readable(&[socket.as_fd()], Some(pause));
        }
    }

    /// Gives back what came late, as far as the socket takes it now; the rest goes later.
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

    /// Takes what the node has said, without waiting: everything, but of a flood only a part. `ended` hears of
    /// transfers that ended.
    pub(crate) fn catch_up(&mut self, socket: &SeqpacketSocket, ended: &dyn Fn()) -> Result<(), OpenError> {
        self.give_back(socket)?;
        for _ in 0..MAX_CAUGHT_UP {
            match hear(socket, &mut self.buffer)? {
                Some(Heard::Answer(number, answer)) => self.take_late(socket, number, answer)?,
                Some(Heard::Ended) => ended(),
                None => break,
            }
        }
        Ok(())
    }
}

/// How long a request may take, from the call of the program on: waiting for its other threads counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    timeout: Duration,
    pub(crate) deadline: Instant,
}

impl Patience {
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
