//! One side of a connection.

use std::collections::VecDeque;
use std::ops::Range;

use super::{FREE, OUT_OF_DATA, after};

/// How a connection transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of data in a send buffer, and in the receive buffer. Both sides have the same sizes.
    pub buffer_bytes: u32,
    /// Up to this many bytes are fetched by loads. A call of [`Connection::send`] with at most this many bytes
    /// publishes them at once if all of them fit.
    pub small_bytes: u32,
}

impl Default for Config {
    /// The values of SDP §4.2: a quarter of a buffer of 1 MB, and loads up to 512 bytes.
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

/// Which waiting call of the program may go on.
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
    /// Write the size, then the sequence number, into the own send buffer.
    Publish {
        /// The sequence number.
        sequence: u32,
        /// Bytes of data.
        size: u32,
    },
    /// Interrupt the other side, which then calls [`Connection::signalled`].
    Signal,
    /// Read number and size of the other side's send buffer. Then call [`Connection::looked`].
    Look,
    /// Copy bytes from the start of the other side's send buffer into the receive buffer. Then call
    /// [`Connection::fetched`].
    Fetch {
        /// Number of bytes.
        bytes: u32,
        /// How to copy them.
        by: Method,
    },
    /// Write [`FREE`] in place of the number in the other side's send buffer.
    Release,
    /// Let a waiting call of the program go on.
    Wake(Wake),
    /// Tell the other side that the connection is closed, and interrupt it. It then calls
    /// [`Connection::closed_by_peer`].
    Finish,
}

/// What [`Connection::receive`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Bytes for the program, at this place of the receive buffer. Copy them before the next action.
    Bytes(Range<u32>),
    /// Nothing yet. [`Wake::Receiver`] says when to call again.
    Later,
    /// The other side sends no more.
    End,
}

/// Why a call cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SdpError {
    /// This side has closed this direction of the connection.
    #[error("this side has closed the connection")]
    Closed,
    /// The other side has closed the connection.
    #[error("the other side has closed the connection")]
    PeerClosed,
    /// The other side's memory could not be read or written.
    #[error("the other side cannot be reached")]
    Unreachable,
    /// The other side's buffer has an unexpected number, or a size of 0 or beyond the buffer.
    #[error("the other side's buffer says {sequence} and {size} bytes, which cannot be")]
    Protocol {
        /// The number found there.
        sequence: u32,
        /// The size found there.
        size: u32,
    },
}

/// State of taking the other side's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    /// Nothing is under way: the program has not asked for more.
    Idle,
    /// The other side's fields are being read. `again`: a signal has come meanwhile.
    Looking { again: bool },
    /// There were no data. After a signal, this side looks again.
    Waiting,
    /// Data are being copied into the receive buffer.
    Fetching { bytes: u32 },
}

/// Which directions this side has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    No,
    /// This side sends no more.
    Half,
    /// This side receives no more either.
    Whole,
}

/// One side of a connection. See the module's documentation.
///
/// The parameter `own` of a method is the number that the own send buffer has now, which the other side changes.
/// Carry out what [`Connection::poll`] returns before any other method is called.
#[derive(Debug)]
pub struct Connection {
    config: Config,
    /// Bytes in the own send buffer.
    filled: u32,
    /// The number of the data in the own send buffer, until the other side has released them. While `is_visible` is
    /// false, the number is not written yet, and the buffer still has [`FREE`].
    published: Option<u32>,
    is_visible: bool,
    /// The number for the next data.
    next: u32,
    wants_room: bool,
    ending: Ending,
    has_said_end: bool,
    has_finished: bool,
    /// The number that the other side's next data will have.
    expected: u32,
    intake: Intake,
    /// The place of the receive buffer that has bytes for the program.
    held: Range<u32>,
    peer_is_out: bool,
    peer_has_closed: bool,
    error: Option<SdpError>,
    actions: VecDeque<Action>,
}

impl Connection {
    /// An established connection. Each of its buffers has room for `config.buffer_bytes`, at least 1.
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

    /// The next action for the driver.
    pub fn poll(&mut self) -> Option<Action> {
        let action = self.actions.pop_front();
        self.is_visible |= matches!(action, Some(Action::Publish { .. }));
        action
    }

    /// Reserves a place in the own send buffer for up to `wanted_bytes` bytes of the program, as many as there is
    /// room for. Copy the bytes there before the next action. An empty place means that there is no room now.
    /// [`Wake::Sender`] then says when to call again, unless `wanted_bytes` is 0.
    ///
    /// # Errors
    /// [`SdpError`]. Nothing can be sent any more.
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

    /// Gives the program at most `wanted_bytes` received bytes. Publishes what is in the send buffer first.
    ///
    /// # Errors
    /// [`SdpError::Closed`], [`SdpError::Protocol`], [`SdpError::Unreachable`].
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

    /// Ends sending. What is in the send buffer is still sent.
    pub fn shutdown(&mut self, own: u32) {
        self.end(own, Ending::Half);
    }

    /// Closes the connection. What is in the send buffer is still sent.
    pub fn close(&mut self, own: u32) {
        self.end(own, Ending::Whole);
    }

    fn end(&mut self, own: u32, ending: Ending) {
        self.ending = self.ending.max(ending);
        // Waiting calls go on and return that this direction is closed.
        self.actions.push_back(Action::Wake(Wake::Sender));
        if ending == Ending::Whole {
            self.actions.push_back(Action::Wake(Wake::Receiver));
        }
        self.see(own);
        self.publish();
        self.go_on();
        self.discard();
    }

    /// After the program has closed the connection, takes and drops what the other side still sends, so that the
    /// other side can end, too.
    fn discard(&mut self) {
        if self.ending == Ending::Whole && self.intake == Intake::Idle && !self.peer_is_out {
            self.held = 0..0;
            self.look();
        }
    }

    /// Ends the connection at once. What the other side has not taken is lost.
    pub fn abort(&mut self) {
        (self.ending, self.published, self.filled) = (Ending::Whole, None, 0);
        self.actions.extend([Action::Wake(Wake::Sender), Action::Wake(Wake::Receiver)]);
        self.go_on();
    }

    /// Records that the other side's memory could not be read or written.
    pub fn failed(&mut self) {
        self.fail(SdpError::Unreachable);
    }

    fn fail(&mut self, error: SdpError) {
        self.error.get_or_insert(error);
        self.intake = Intake::Idle;
        self.actions.extend([Action::Wake(Wake::Receiver), Action::Wake(Wake::Sender)]);
        self.go_on();
    }

    /// Handles a signal of the other side.
    pub fn signalled(&mut self, own: u32) {
        self.see(own);
        match &mut self.intake {
            Intake::Waiting => self.look(),
            Intake::Looking { again } => *again = true,
            // The next call of the program to receive looks at the buffer.
            Intake::Idle | Intake::Fetching { .. } => {}
        }
    }

    /// Handles the fields of the other side's send buffer. Earlier writes of the other side arrive before these
    /// fields do. So if the other side has closed the connection, and uses its buffer for another one now, this
    /// side knows that already and ignores the fields.
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

    /// Records that the data are in the receive buffer.
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

    /// Records that the other side has closed the connection, after all that it sent was taken.
    pub fn closed_by_peer(&mut self) {
        if !std::mem::replace(&mut self.peer_has_closed, true) {
            self.actions.extend([Action::Wake(Wake::Receiver), Action::Wake(Wake::Sender)]);
        }
    }

    /// Whether data of the other side are ignored: it has closed the connection, or an error was found.
    fn is_deaf(&self) -> bool {
        self.peer_has_closed || self.error.is_some()
    }

    /// Whether the buffers may be reused: this side has closed the connection, and either it has said so or the
    /// other side has closed, too. An answer to [`Action::Look`] may still be on its way: do not hand it to another
    /// connection.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ending == Ending::Whole && (self.has_finished || self.peer_has_closed) && self.actions.is_empty()
    }

    /// Whether the other side has not yet taken all bytes of the send buffer.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.filled > 0 || self.published.is_some()
    }

    fn check(&self) -> Result<(), SdpError> {
        self.error.map_or(Ok(()), Err)
    }

    /// Handles the number in the own send buffer: [`FREE`] if the other side has taken the data.
    fn see(&mut self, own: u32) {
        if self.published.is_some() && self.is_visible && own == FREE {
            (self.published, self.filled) = (None, 0);
            if std::mem::take(&mut self.wants_room) {
                self.actions.push_back(Action::Wake(Wake::Sender));
            }
            self.go_on();
        }
    }

    /// Publishes what is in the send buffer, if it is not published already.
    fn publish(&mut self) {
        if self.filled > 0 && self.published.is_none() {
            let sequence = self.next;
            self.next = after(sequence);
            (self.published, self.is_visible) = (Some(sequence), false);
            self.actions.extend([Action::Publish { sequence, size: self.filled }, Action::Signal]);
        }
    }

    /// Tells the other side the end of sending, and the end of the connection, if this side has closed and
    /// everything is taken.
    fn go_on(&mut self) {
        // After an error nothing is waited for: the other side cannot be reached, or breaks the protocol.
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
