//! One side of a connection.

use std::collections::VecDeque;
use std::ops::Range;

use super::{FREE, OUT_OF_DATA, after};

/// How a connection transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of data in a send buffer, and of the receive buffer; both sides have the same.
    pub buffer_bytes: u32,
    /// Up to this many bytes are read by loads, and sent at once.
    pub small_bytes: u32,
}

impl Default for Config {
    /// Those of SDP §4.2: a quarter of a buffer of 1 MB, and loads up to 512 bytes.
    fn default() -> Self {
        Self { buffer_bytes: 256 << 10, small_bytes: 512 }
    }
}

/// How data are taken out of the other side's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// By loads: cheap to begin.
    Loads,
    /// By the DMA engine.
    Dma,
}

/// Which call that waits may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// There is room to send.
    Sender,
    /// There is something to receive, or nothing will come any more.
    Receiver,
}

/// What the driver is to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Write the size, then the number into the own send buffer.
    Publish {
        /// The number.
        sequence: u32,
        /// Bytes of data.
        size: u32,
    },
    /// Interrupt the other side, which then calls [`Connection::signalled`].
    Signal,
    /// Read number and size of the other side's send buffer; then [`Connection::looked`].
    Look,
    /// Copy this many bytes from the start of the other side's send buffer into the receive buffer; then call [`Connection::fetched`].
    Fetch {
        /// How many.
        bytes: u32,
        /// How.
        by: Method,
    },
    /// Write [`FREE`] into the number of the other side's send buffer.
    Release,
    /// A program that waits goes on.
    Wake(Wake),
    /// Tell the other side that the connection is closed, and interrupt it: it calls [`Connection::closed_by_peer`].
    Finish,
}

/// What a call to receive gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// These bytes of the receive buffer. They are the program's, and are to be copied before the next action.
    Bytes(Range<u32>),
    /// Nothing yet: [`Wake::Receiver`] says when.
    Later,
    /// The other side sends no more.
    End,
}

/// Why a call cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SdpError {
    /// This side has said that it sends no more.
    #[error("this side has closed the connection")]
    Closed,
    /// The other side has closed the connection.
    #[error("the other side has closed the connection")]
    PeerClosed,
    /// The other side's memory could not be read.
    #[error("the other side cannot be reached")]
    Unreachable,
    /// The other side's buffer has a number that cannot be, or a size beyond the buffer.
    #[error("the other side's buffer says {sequence} and {size} bytes, which cannot be")]
    Protocol {
        /// Its number.
        sequence: u32,
        /// Its size.
        size: u32,
    },
}

/// What becomes of the other side's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    /// The program has not asked.
    Idle,
    /// The fields are being read; a signal has come meanwhile.
    Looking { again: bool },
    /// There was nothing: a signal says when to look again.
    Waiting,
    /// Data are being taken.
    Fetching { bytes: u32 },
}

/// Which directions this side has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    No,
    /// It sends no more.
    Half,
    /// It receives no more either.
    Whole,
}

/// One side of a connection. See the module's documentation.
///
/// Wherever a method asks for `own`, it is the number that stands in the own send buffer now: the other side changes it. What
/// [`Connection::poll`] gives is carried out before any other method is called.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    /// Bytes in the own send buffer.
    filled: u32,
    /// The number of the own buffer, while the other side has not released it; and whether it stands there: until then [`FREE`] does.
    published: Option<u32>,
    is_visible: bool,
    /// The number for the next data.
    next: u32,
    wants_room: bool,
    ending: Ending,
    has_said_end: bool,
    has_finished: bool,
    /// The number of the other side's next data.
    expected: u32,
    intake: Intake,
    /// What the program has not taken out of the receive buffer.
    held: Range<u32>,
    peer_is_out: bool,
    peer_has_closed: bool,
    error: Option<SdpError>,
    actions: VecDeque<Action>,
}

impl Connection {
    /// A connection that was established. Its buffers have room for `config.buffer_bytes`, at least 1.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config: Config { buffer_bytes: config.buffer_bytes.max(1), ..config },
            filled: 0,
            published: None,
            is_visible: false,
            next: 1,
            wants_room: false,
            ending: Ending::No,
            has_said_end: false,
            has_finished: false,
            expected: 1,
            intake: Intake::Idle,
            held: 0..0,
            peer_is_out: false,
            peer_has_closed: false,
            error: None,
            actions: VecDeque::new(),
        }
    }

    /// What the driver is to do next.
    pub fn poll(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        self.is_visible |= matches!(action, Some(Action::Publish { .. }));
        action
    }

    /// The program wants to send so many bytes: the place in the own send buffer for as many of them as there is room for, to which they
    /// are to be copied before the next action. An empty place: none now, and [`Wake::Sender`] says when (of no bytes at all it says nothing).
    ///
    /// # Errors
    /// [`SdpError`]; nothing is sent any more.
    pub fn send(&mut self, own: u32, wanted_bytes: u32) -> Result<Range<u32>, SdpError> {
        self.check()?;
        if self.ending > Ending::No {
            return Err(SdpError::Closed);
        }
        if self.peer_has_closed {
            return Err(SdpError::PeerClosed);
        }
        self.see(own);
        if self.published.is_some() {
            self.wants_room |= wanted_bytes > 0;
            return Ok(self.filled..self.filled);
        }
        let bytes = wanted_bytes.min(self.config.buffer_bytes - self.filled);
        let place = self.filled..self.filled + bytes;
        self.filled = place.end;
        let is_small = bytes == wanted_bytes && bytes <= self.config.small_bytes;
        if self.filled == self.config.buffer_bytes || is_small {
            self.publish();
        }
        Ok(place)
    }

    /// The program wants to receive so many bytes at most. What it has sent and is still here goes first.
    ///
    /// # Errors
    /// [`SdpError::Closed`], [`SdpError::Protocol`].
    pub fn receive(&mut self, own: u32, wanted_bytes: u32) -> Result<Received, SdpError> {
        if self.ending == Ending::Whole {
            return Err(SdpError::Closed);
        }
        self.see(own);
        self.publish();
        if !self.held.is_empty() {
            let bytes = wanted_bytes.min(self.held.end - self.held.start);
            let place = self.held.start..self.held.start + bytes;
            self.held.start = place.end;
            return Ok(Received::Bytes(place));
        }
        self.check()?;
        if self.peer_is_out || self.peer_has_closed {
            return Ok(Received::End);
        }
        if matches!(self.intake, Intake::Idle | Intake::Waiting) {
            self.look();
        }
        Ok(Received::Later)
    }

    /// The program sends no more; what is here still goes.
    pub fn shutdown(&mut self, own: u32) {
        self.end(own, Ending::Half);
    }

    /// The program is done with the connection; what it has sent still goes.
    pub fn close(&mut self, own: u32) {
        self.end(own, Ending::Whole);
    }

    fn end(&mut self, own: u32, ending: Ending) {
        self.ending = self.ending.max(ending);
        // Who waits in a call hears that it is over.
        self.actions.push_back(Action::Wake(Wake::Sender));
        if ending == Ending::Whole {
            self.actions.push_back(Action::Wake(Wake::Receiver));
        }
        self.see(own);
        self.publish();
        self.go_on();
        self.discard();
    }

    /// The program has closed: this side takes what the other side still sends and drops it, so that the other side can end, too.
    fn discard(&mut self) {
        if self.ending == Ending::Whole && self.intake == Intake::Idle && !self.peer_is_out {
            self.held = 0..0;
            self.look();
        }
    }

    /// The program ends the connection at once: what the other side has not taken is lost.
    pub fn abort(&mut self) {
        (self.ending, self.published, self.filled) = (Ending::Whole, None, 0);
        self.actions.extend([Action::Wake(Wake::Sender), Action::Wake(Wake::Receiver)]);
        self.go_on();
    }

    /// The other side's memory could not be read, or written.
    pub fn failed(&mut self) {
        self.fail(SdpError::Unreachable);
    }

    fn fail(&mut self, error: SdpError) {
        self.error.get_or_insert(error);
        self.intake = Intake::Idle;
        self.actions.extend([Action::Wake(Wake::Receiver), Action::Wake(Wake::Sender)]);
        self.go_on();
    }

    /// The other side has sent a signal.
    pub fn signalled(&mut self, own: u32) {
        self.see(own);
        match &mut self.intake {
            Intake::Waiting => self.look(),
            Intake::Looking { again } => *again = true,
            // A program that asks later looks then.
            Intake::Idle | Intake::Fetching { .. } => {}
        }
    }

    /// What stands in the other side's send buffer. What the other side has written before is here before this answer: so one that has
    /// closed the connection, and may use its buffer for another one, is known to have.
    pub fn looked(&mut self, sequence: u32, size: u32) {
        let Intake::Looking { again } = self.intake else { return };
        if self.is_deaf() {
            self.intake = Intake::Idle;
            return;
        }
        self.intake = Intake::Waiting;
        let has_data = sequence == self.expected && (1..=self.config.buffer_bytes).contains(&size);
        if has_data && self.ending == Ending::Whole {
            self.expected = after(self.expected);
            self.actions.extend([Action::Release, Action::Signal]);
        } else if has_data {
            let by = if size <= self.config.small_bytes { Method::Loads } else { Method::Dma };
            self.intake = Intake::Fetching { bytes: size };
            self.actions.push_back(Action::Fetch { bytes: size, by });
        } else if (sequence, size) == (OUT_OF_DATA, 0) {
            self.peer_is_out = true;
            self.intake = Intake::Idle;
            self.actions.push_back(Action::Wake(Wake::Receiver));
        } else if sequence != FREE {
            self.fail(SdpError::Protocol { sequence, size });
        } else if again {
            self.look();
        }
    }

    /// The data are in the receive buffer.
    pub fn fetched(&mut self) {
        let Intake::Fetching { bytes } = self.intake else { return };
        if self.is_deaf() {
            self.intake = Intake::Idle;
            return;
        }
        (self.intake, self.held) = (Intake::Idle, 0..bytes);
        self.expected = after(self.expected);
        self.actions.extend([Action::Release, Action::Signal, Action::Wake(Wake::Receiver)]);
        self.discard();
    }

    /// The other side has closed the connection: all that it sent was taken before.
    pub fn closed_by_peer(&mut self) {
        if !std::mem::replace(&mut self.peer_has_closed, true) {
            self.actions.extend([Action::Wake(Wake::Receiver), Action::Wake(Wake::Sender)]);
        }
    }

    /// Whether nothing of the other side counts any more: it has closed, or said what cannot be.
    fn is_deaf(&self) -> bool {
        self.peer_has_closed || self.error.is_some()
    }

    /// Whether the buffers may go: this side has closed, and has said so, or the other one has. An answer to [`Action::Look`] that is still on
    /// its way is not to be given to another connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ending == Ending::Whole && (self.has_finished || self.peer_has_closed) && self.actions.is_empty()
    }

    /// Whether there is something that the other side has not taken.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.filled > 0 || self.published.is_some()
    }

    fn check(&self) -> Result<(), SdpError> {
        self.error.map_or(Ok(()), Err)
    }

    /// What stands in the own send buffer.
    fn see(&mut self, own: u32) {
        if self.published.is_some() && self.is_visible && own == FREE {
            (self.published, self.filled) = (None, 0);
            if std::mem::take(&mut self.wants_room) {
                self.actions.push_back(Action::Wake(Wake::Sender));
            }
            self.go_on();
        }
    }

    /// Gives what is in the send buffer to the other side, if it is not there already.
    fn publish(&mut self) {
        if self.filled > 0 && self.published.is_none() {
            let sequence = self.next;
            self.next = after(sequence);
            (self.published, self.is_visible) = (Some(sequence), false);
            self.actions.extend([Action::Publish { sequence, size: self.filled }, Action::Signal]);
        }
    }

    /// Ends what can be ended by now.
    fn go_on(&mut self) {
        // Of one that cannot be reached, or lies, nothing is waited for.
        if self.ending == Ending::No || (self.has_unsent() && self.error.is_none()) {
            return;
        }
        if self.error.is_none() && !std::mem::replace(&mut self.has_said_end, true) {
            self.actions.extend([Action::Publish { sequence: OUT_OF_DATA, size: 0 }, Action::Signal]);
        }
        if self.ending == Ending::Whole && !std::mem::replace(&mut self.has_finished, true) {
            self.actions.push_back(Action::Finish);
        }
    }

    fn look(&mut self) {
        if self.is_deaf() {
            self.intake = Intake::Idle;
            return;
        }
        self.intake = Intake::Looking { again: false };
        self.actions.push_back(Action::Look);
    }
}
