//! How a connection begins (SDP §4.2.3, Fig 4.4): both sides know only registers that both can write, and end with the address of the
//! other's send buffer.
//!
//! ```text
//!   server                                   client
//!   1 listens
//!   2 writes port and a random id    ─────►  4 finds the port
//!   3 sleeps                                 5 writes who it is into its buffer,
//!                                              the buffer's address and the id into registers
//!                                    ◄─────  6 interrupts, sleeps
//!   7 maps the client's buffer,
//!     reads who it is
//!   8 writes the address of its own
//!     buffer there, interrupts       ─────►  9 maps it, interrupts
//!   established                      ◄─────  established
//! ```
//!
//! The id is the server's number of this attempt: what a client of an earlier one writes is not taken for an answer.

/// Registers that both sides can read and write.
pub const MAILBOXES: usize = 5;

/// What stands in which register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mail {
    /// The port on which the server waits; 0: it does not.
    Port = 0,
    /// The id of its attempt.
    Offer = 1,
    /// The address of the client's buffer, in units of pages.
    Buffer = 2,
    /// The id of the attempt that the client answers.
    Answer = 3,
    /// The id of a connection that its writer has closed.
    Finish = 4,
}

/// Who a client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Its network address.
    pub address: u32,
    /// Its port.
    pub port: u16,
}

/// What the driver is to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a register.
    Write(Mail, u32),
    /// Write this into the own send buffer; its first word, where the server will write, is 0.
    Introduce(Hello),
    /// Map the other side's buffer.
    Map(u32),
    /// Read who the client is from its buffer, which was mapped; then [`Accept::introduced`].
    Read,
    /// Write the own buffer's address into the first word of the client's.
    Reply(u32),
    /// Interrupt the other side.
    Signal,
}

/// A connection that both sides know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    /// Its id.
    pub id: u32,
    /// The other side's buffer.
    pub buffer: u32,
    /// Who the client is; on the client's side, itself.
    pub hello: Hello,
}

/// Why no connection came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Nobody waits on that port.
    #[error("nobody listens on port {0}")]
    Refused(u16),
    /// The other side does not answer.
    #[error("the other side does not answer")]
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waits {
    /// For a client.
    Client,
    /// For what stands in the client's buffer.
    Hello { buffer: u32 },
    /// For the client's last signal.
    Signal { established: Established },
}

/// The server's side of one connection that is to come.
#[derive(Debug)]
pub struct Accept {
    id: u32,
    /// The own send buffer.
    buffer: u32,
    port: u16,
    waits: Waits,
    answer_by_ns: Option<u64>,
    timeout_ns: u64,
    steps: Vec<Step>,
}

impl Accept {
    /// Waits on a port. `id`: a random number, not 0. A client that has begun has to go on within `timeout_ns`, else another may.
    #[must_use]
    pub fn new(port: u16, id: u32, buffer: u32, timeout_ns: u64) -> Self {
        let mut accept = Self {
            id,
            buffer,
            port,
            waits: Waits::Client,
            answer_by_ns: None,
            timeout_ns,
            steps: Vec::new(),
        };
        accept.offer();
        accept
    }

    fn offer(&mut self) {
        self.waits = Waits::Client;
        self.answer_by_ns = None;
        self.steps.extend([
            Step::Write(Mail::Answer, 0),
            Step::Write(Mail::Offer, self.id),
            Step::Write(Mail::Port, self.port.into()),
        ]);
    }

    /// What the driver is to do.
    pub fn poll(&mut self) -> Option<Step> {
        (!self.steps.is_empty()).then(|| self.steps.remove(0))
    }

    /// A signal has come: what stands in the registers. Both sides' numbers, if the connection is there.
    pub fn signalled(&mut self, now_ns: u64, mail: &[u32; MAILBOXES]) -> Option<Established> {
        match self.waits {
            Waits::Client if mail[Mail::Answer as usize] == self.id => {
                let buffer = mail[Mail::Buffer as usize];
                self.waits = Waits::Hello { buffer };
                self.answer_by_ns = Some(now_ns.saturating_add(self.timeout_ns));
                // No other client begins meanwhile.
                self.steps.extend([Step::Write(Mail::Port, 0), Step::Map(buffer), Step::Read]);
                None
            }
            Waits::Signal { established } => Some(established),
            // Somebody else's.
            Waits::Client | Waits::Hello { .. } => None,
        }
    }

    /// Who the client is.
    pub fn introduced(&mut self, hello: Hello) {
        let Waits::Hello { buffer } = self.waits else { return };
        self.waits = Waits::Signal { established: Established { id: self.id, buffer, hello } };
        self.steps.extend([Step::Reply(self.buffer), Step::Signal]);
    }

    /// When to call [`Accept::elapsed`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.answer_by_ns
    }

    /// Time has passed: a client that began and did not go on is given up, and the next one has a new id.
    pub fn elapsed(&mut self, now_ns: u64, next_id: u32) {
        if self.answer_by_ns.is_some_and(|by_ns| by_ns <= now_ns) {
            self.id = next_id;
            self.offer();
        }
    }
}

/// The client's side.
#[derive(Debug)]
pub struct Connect {
    id: u32,
    hello: Hello,
    by_ns: u64,
    steps: Vec<Step>,
}

impl Connect {
    /// Begins. `mail`: what stands in the registers; `buffer`: the own send buffer.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`].
    pub fn new(
        now_ns: u64,
        port: u16,
        mail: &[u32; MAILBOXES],
        hello: Hello,
        buffer: u32,
        timeout_ns: u64,
    ) -> Result<Self, HandshakeError> {
        let id = mail[Mail::Offer as usize];
        if id == 0 || port == 0 || mail[Mail::Port as usize] != u32::from(port) {
            return Err(HandshakeError::Refused(port));
        }
        let steps = vec![
            Step::Introduce(hello),
            Step::Write(Mail::Buffer, buffer),
            Step::Write(Mail::Answer, id),
            Step::Signal,
        ];
        Ok(Self { id, hello, by_ns: now_ns.saturating_add(timeout_ns), steps })
    }

    /// What the driver is to do.
    pub fn poll(&mut self) -> Option<Step> {
        (!self.steps.is_empty()).then(|| self.steps.remove(0))
    }

    /// A signal has come: the first word of the own buffer. The connection, if the server has answered; the steps that are left are to be
    /// done.
    pub fn signalled(&mut self, first_word: u32) -> Option<Established> {
        if first_word == 0 {
            return None;
        }
        self.steps.extend([Step::Map(first_word), Step::Signal]);
        Some(Established { id: self.id, buffer: first_word, hello: self.hello })
    }

    /// When to give up.
    #[must_use]
    pub fn next_deadline(&self) -> u64 {
        self.by_ns
    }

    /// Time has passed.
    ///
    /// # Errors
    /// [`HandshakeError::TimedOut`].
    pub fn elapsed(&self, now_ns: u64) -> Result<(), HandshakeError> {
        if now_ns < self.by_ns { Ok(()) } else { Err(HandshakeError::TimedOut) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 7734;
    const TIMEOUT_NS: u64 = 1_000;

    /// Registers, the client's buffer, and what was mapped.
    #[derive(Default)]
    struct Bridge {
        mail: [u32; MAILBOXES],
        client_word: u32,
        client_hello: Hello,
        mapped: Vec<u32>,
        signals: u32,
    }

    impl Bridge {
        fn server(&mut self, accept: &mut Accept) {
            while let Some(step) = accept.poll() {
                match step {
                    Step::Read => accept.introduced(self.client_hello),
                    step => self.do_one(step),
                }
            }
        }

        fn client(&mut self, connect: &mut Connect) {
            while let Some(step) = connect.poll() {
                self.do_one(step);
            }
        }

        fn do_one(&mut self, step: Step) {
            match step {
                Step::Write(mail, value) => self.mail[mail as usize] = value,
                Step::Introduce(hello) => (self.client_word, self.client_hello) = (0, hello),
                Step::Map(buffer) => self.mapped.push(buffer),
                Step::Reply(buffer) => self.client_word = buffer,
                Step::Signal => self.signals += 1,
                Step::Read => unreachable!("the server alone reads"),
            }
        }
    }

    const HELLO: Hello = Hello { address: 0x0A00_0002, port: 40_000 };

    #[test]
    fn nine_steps_lead_to_a_connection_that_both_know() {
        let (mut bridge, mut accept) = (Bridge::default(), Accept::new(PORT, 77, 500, TIMEOUT_NS));
        bridge.server(&mut accept);
        assert_eq!(accept.signalled(0, &bridge.mail), None, "a signal of somebody else");
        let mut connect = Connect::new(0, PORT, &bridge.mail, HELLO, 600, TIMEOUT_NS).expect("it listens");
        bridge.client(&mut connect);
        assert_eq!(connect.signalled(bridge.client_word), None);
        assert_eq!(accept.signalled(0, &bridge.mail), None);
        bridge.server(&mut accept);
        let client = connect.signalled(bridge.client_word).expect("an answer");
        bridge.client(&mut connect);
        let server = accept.signalled(1, &bridge.mail).expect("established");
        assert_eq!((client.id, client.buffer, client.hello), (77, 500, HELLO));
        assert_eq!((server.id, server.buffer, server.hello), (77, 600, HELLO));
        assert_eq!((bridge.mapped, bridge.signals), (vec![600, 500], 3));
    }

    #[test]
    fn nobody_connects_to_a_port_where_nobody_waits_or_another_does() {
        let mut bridge = Bridge::default();
        let connect = |mail| Connect::new(0, PORT, mail, HELLO, 600, TIMEOUT_NS).err();
        assert_eq!(connect(&bridge.mail), Some(HandshakeError::Refused(PORT)));
        let mut accept = Accept::new(PORT + 1, 77, 500, TIMEOUT_NS);
        bridge.server(&mut accept);
        assert_eq!(connect(&bridge.mail), Some(HandshakeError::Refused(PORT)));
    }

    #[test]
    fn a_client_that_stops_half_way_blocks_nobody() {
        let (mut bridge, mut accept) = (Bridge::default(), Accept::new(PORT, 77, 500, TIMEOUT_NS));
        bridge.server(&mut accept);
        let mut first = Connect::new(0, PORT, &bridge.mail, HELLO, 600, TIMEOUT_NS).expect("it listens");
        bridge.client(&mut first);
        accept.signalled(10, &bridge.mail);
        bridge.server(&mut accept);
        // While it is being answered no other begins.
        assert!(Connect::new(10, PORT, &bridge.mail, HELLO, 700, TIMEOUT_NS).is_err());
        assert_eq!(accept.next_deadline(), Some(1_010));
        accept.elapsed(1_009, 78);
        assert!(accept.poll().is_none());
        accept.elapsed(1_010, 78);
        bridge.server(&mut accept);
        assert_eq!(first.elapsed(1_010), Err(HandshakeError::TimedOut));
        // What the first one signals now is not taken for the second's.
        let second =
            Connect::new(1_010, PORT, &bridge.mail, HELLO, 700, TIMEOUT_NS).expect("it listens again");
        assert_eq!(accept.signalled(1_011, &bridge.mail), None);
        assert_eq!((second.next_deadline(), second.id), (2_010, 78));
    }
}
