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
//!     buffer there, interrupts       ─────►  9 maps it, confirms the id, interrupts
//!   established                      ◄─────  established
//! ```
//!
//! The id is the server's number of this attempt. It stands beside who the client is, and in what the client confirms, so that what another
//! client, or this one at an earlier attempt, has written is not taken for an answer: the attempt ends by its time then. The register for the
//! confirmation, and two for the end of a connection, are ours: the document has one signal for the one, and one register for the other.

/// Registers that both sides can read and write.
pub const MAILBOXES: usize = 7;

/// What stands in which register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mail {
    /// The port on which the server listens; 0 if it does not.
    Port = 0,
    /// The id of its attempt.
    Offer = 1,
    /// The address of the client's buffer, in units of pages.
    Buffer = 2,
    /// The id of the attempt that the client answers.
    Answer = 3,
    /// The id of the connection that the client has.
    Confirm = 4,
    /// The id of a connection, or of an attempt, that the server has closed.
    ServerFinish = 5,
    /// That of one that the client has.
    ClientFinish = 6,
}

/// Who a client is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Its network address.
    pub address: u32,
    /// Its port.
    pub port: u16,
    /// The attempt that it answers.
    pub id: u32,
}

/// What the driver is to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a register.
    Write(Mail, u32),
    /// Write a size of 0 and [`super::FREE`] into the own send buffer: what stood there was of another connection, or of this beginning.
    Clear,
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
    /// No server listens on that port.
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
    /// For nothing: the connection is there.
    Nothing,
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
            Step::Clear,
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
        let is_given_up = mail[Mail::ClientFinish as usize] == self.id;
        match self.waits {
            // It may begin anew.
            Waits::Hello { .. } | Waits::Signal { .. } if is_given_up => {
                self.answer_by_ns = Some(now_ns);
                None
            }
            Waits::Client if mail[Mail::Answer as usize] == self.id => {
                let buffer = mail[Mail::Buffer as usize];
                self.waits = Waits::Hello { buffer };
                self.answer_by_ns = Some(now_ns.saturating_add(self.timeout_ns));
                // No other client begins meanwhile.
                self.steps.extend([Step::Write(Mail::Port, 0), Step::Map(buffer), Step::Read]);
                None
            }
            Waits::Signal { established }
                if mail[Mail::Confirm as usize] == self.id
                    && mail[Mail::Buffer as usize] == established.buffer =>
            {
                (self.waits, self.answer_by_ns) = (Waits::Nothing, None);
                Some(established)
            }
            // A signal for another connection, or of another client.
            Waits::Client | Waits::Hello { .. } | Waits::Signal { .. } | Waits::Nothing => None,
        }
    }

    /// Who the client of this buffer is. One that answers another attempt is none: this one ends by its time.
    pub fn introduced(&mut self, buffer: u32, hello: Hello) {
        if self.waits != (Waits::Hello { buffer }) || hello.id != self.id {
            return;
        }
        self.waits = Waits::Signal { established: Established { id: self.id, buffer, hello } };
        self.steps.extend([Step::Reply(self.buffer), Step::Signal]);
    }

    /// When to call [`Accept::elapsed`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.answer_by_ns
    }

    /// Time has passed: a client that began and did not go on is given up and told, and the next one has a new id: a random number. A client
    /// that is told of its attempt's end after it has a connection closes that.
    pub fn elapsed(&mut self, now_ns: u64, next_id: u32) {
        if self.answer_by_ns.is_some_and(|by_ns| by_ns <= now_ns) {
            self.steps.extend([Step::Write(Mail::ServerFinish, self.id), Step::Signal]);
            // A new id differs from the old one, and is not 0, which means that there is no attempt.
            self.id =
                if next_id == 0 || next_id == self.id { self.id.wrapping_add(1).max(1) } else { next_id };
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
        let hello = Hello { id, ..hello };
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
        self.steps.extend([
            Step::Map(first_word),
            // What the server wrote there is no number of a buffer.
            Step::Clear,
            Step::Write(Mail::Confirm, self.id),
            Step::Signal,
        ]);
        Some(Established { id: self.id, buffer: first_word, hello: self.hello })
    }

    /// When to give up.
    #[must_use]
    pub fn next_deadline(&self) -> u64 {
        self.by_ns
    }

    /// Time has passed. The buffer may be used for something else only when the server offers another attempt: until then it may still be
    /// written there.
    ///
    /// # Errors
    /// [`HandshakeError::TimedOut`]; the steps that are left tell the server.
    pub fn elapsed(&mut self, now_ns: u64) -> Result<(), HandshakeError> {
        if now_ns < self.by_ns {
            return Ok(());
        }
        self.steps = vec![Step::Write(Mail::ClientFinish, self.id), Step::Signal];
        Err(HandshakeError::TimedOut)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Action, Config, Connection, FREE, OUT_OF_DATA, Received};
    use super::*;

    const PORT: u16 = 7734;
    const TIMEOUT_NS: u64 = 1_000;
    const SERVER_BUFFER: u32 = 500;
    const CLIENT_BUFFER: u32 = 600;

    /// Registers, and the first two words of each buffer, with who a client is beside it.
    #[derive(Default)]
    struct Bridge {
        mail: [u32; MAILBOXES],
        words: std::collections::BTreeMap<u32, [u32; 2]>,
        hellos: std::collections::BTreeMap<u32, Hello>,
        mapped: Vec<u32>,
        signals: u32,
    }

    impl Bridge {
        fn server(&mut self, accept: &mut Accept) {
            while let Some(step) = accept.poll() {
                let client = self.mapped.last().copied().unwrap_or_default();
                match step {
                    Step::Read => {
                        accept.introduced(client, self.hellos.get(&client).copied().unwrap_or_default())
                    }
                    Step::Reply(buffer) => self.words.entry(client).or_default()[0] = buffer,
                    step => self.do_one(step, SERVER_BUFFER),
                }
            }
        }

        fn client(&mut self, connect: &mut Connect, buffer: u32) {
            while let Some(step) = connect.poll() {
                self.do_one(step, buffer);
            }
        }

        fn do_one(&mut self, step: Step, own: u32) {
            match step {
                Step::Write(mail, value) => self.mail[mail as usize] = value,
                Step::Clear => drop(self.words.insert(own, [FREE, 0])),
                Step::Introduce(hello) => {
                    self.words.insert(own, [0, 7]);
                    self.hellos.insert(own, hello);
                }
                Step::Map(buffer) => self.mapped.push(buffer),
                Step::Signal => self.signals += 1,
                Step::Read | Step::Reply(_) => unreachable!("the server alone does"),
            }
        }

        fn first_word(&self, buffer: u32) -> u32 {
            self.words.get(&buffer).map_or(0, |words| words[0])
        }
    }

    const HELLO: Hello = Hello { address: 0x0A00_0002, port: 40_000, id: 0 };

    fn begun(bridge: &mut Bridge, buffer: u32, now_ns: u64) -> Connect {
        let mut connect =
            Connect::new(now_ns, PORT, &bridge.mail, HELLO, buffer, TIMEOUT_NS).expect("it listens");
        bridge.client(&mut connect, buffer);
        connect
    }

    fn listening(bridge: &mut Bridge) -> Accept {
        let mut accept = Accept::new(PORT, 77, SERVER_BUFFER, TIMEOUT_NS);
        bridge.server(&mut accept);
        accept
    }

    #[test]
    fn nine_steps_lead_to_a_connection_that_both_know_and_whose_buffers_are_clear() {
        let mut bridge = Bridge::default();
        // What an earlier connection has left.
        bridge.words.insert(SERVER_BUFFER, [OUT_OF_DATA, 0]);
        let mut accept = listening(&mut bridge);
        assert_eq!(accept.signalled(0, &bridge.mail), None, "a signal for another connection");
        let mut connect = begun(&mut bridge, CLIENT_BUFFER, 0);
        assert_eq!(connect.signalled(bridge.first_word(CLIENT_BUFFER)), None);
        assert_eq!(accept.signalled(0, &bridge.mail), None);
        bridge.server(&mut accept);
        // Another one's signal is not the client's last one.
        assert_eq!(accept.signalled(0, &bridge.mail), None);
        let client = connect.signalled(bridge.first_word(CLIENT_BUFFER)).expect("an answer");
        bridge.client(&mut connect, CLIENT_BUFFER);
        let server = accept.signalled(1, &bridge.mail).expect("established");
        let hello = Hello { id: 77, ..HELLO };
        assert_eq!((client.id, client.buffer, client.hello), (77, SERVER_BUFFER, hello));
        assert_eq!((server.id, server.buffer, server.hello), (77, CLIENT_BUFFER, hello));
        assert_eq!((bridge.mapped.clone(), bridge.signals), (vec![CLIENT_BUFFER, SERVER_BUFFER], 3));
        assert_eq!((accept.next_deadline(), accept.signalled(2, &bridge.mail)), (None, None));
        // Each side's first look finds nothing, and no error.
        for buffer in [CLIENT_BUFFER, SERVER_BUFFER] {
            let mut connection = Connection::new(Config::default());
            assert_eq!(connection.receive(FREE, 1), Ok(Received::Later));
            assert_eq!(connection.poll(), Some(Action::Look));
            let [sequence, size] = bridge.words[&buffer];
            connection.looked(sequence, size);
            assert_eq!(connection.receive(FREE, 1), Ok(Received::Later));
        }
    }

    #[test]
    fn nobody_connects_to_a_port_where_nobody_waits_or_another_does() {
        let mut bridge = Bridge::default();
        let connect =
            |mail: &[u32; MAILBOXES]| Connect::new(0, PORT, mail, HELLO, CLIENT_BUFFER, TIMEOUT_NS).err();
        assert_eq!(connect(&bridge.mail), Some(HandshakeError::Refused(PORT)));
        let mut accept = Accept::new(PORT + 1, 77, SERVER_BUFFER, TIMEOUT_NS);
        bridge.server(&mut accept);
        assert_eq!(connect(&bridge.mail), Some(HandshakeError::Refused(PORT)));
    }

    #[test]
    fn a_client_that_stops_half_way_blocks_nobody_and_is_not_taken_for_the_next() {
        let mut bridge = Bridge::default();
        let mut accept = listening(&mut bridge);
        let mut first = begun(&mut bridge, CLIENT_BUFFER, 0);
        accept.signalled(10, &bridge.mail);
        bridge.server(&mut accept);
        // While it is being answered no other begins.
        assert!(Connect::new(10, PORT, &bridge.mail, HELLO, 700, TIMEOUT_NS).is_err());
        assert_eq!(accept.next_deadline(), Some(1_010));
        accept.elapsed(1_009, 78);
        assert!(accept.poll().is_none());
        accept.elapsed(1_010, 78);
        bridge.server(&mut accept);
        assert_eq!(bridge.mail[Mail::ServerFinish as usize], 77);
        // The first one goes on now: what it writes is of its attempt.
        let late = first.signalled(bridge.first_word(CLIENT_BUFFER)).expect("it was answered");
        bridge.client(&mut first, CLIENT_BUFFER);
        assert_eq!((late.id, accept.signalled(1_011, &bridge.mail)), (77, None));
        let mut second = begun(&mut bridge, 700, 1_011);
        accept.signalled(1_012, &bridge.mail);
        bridge.server(&mut accept);
        assert!(second.signalled(bridge.first_word(700)).is_some());
        bridge.client(&mut second, 700);
        let server = accept.signalled(1_013, &bridge.mail).expect("established");
        assert_eq!((server.id, server.buffer), (78, 700));
    }

    /// Two clients answer one offer: the buffer of one and the id of the other come to no connection, and then one does.
    #[test]
    fn clients_that_write_over_each_other_try_again() {
        let mut bridge = Bridge::default();
        let mut accept = listening(&mut bridge);
        let mut first = begun(&mut bridge, CLIENT_BUFFER, 0);
        let mut second = begun(&mut bridge, 700, 0);
        // The first one's address comes last.
        bridge.mail[Mail::Buffer as usize] = CLIENT_BUFFER;
        bridge.hellos.insert(CLIENT_BUFFER, Hello { id: 76, ..HELLO });
        accept.signalled(0, &bridge.mail);
        bridge.server(&mut accept);
        assert!([CLIENT_BUFFER, 700].iter().all(|buffer| bridge.first_word(*buffer) == 0));
        for connect in [&mut first, &mut second] {
            assert_eq!(connect.elapsed(1_000), Err(HandshakeError::TimedOut));
        }
        bridge.client(&mut second, 700);
        // It was told, and need not wait for its own time.
        accept.signalled(500, &bridge.mail);
        accept.elapsed(500, 0);
        bridge.server(&mut accept);
        let mut third = begun(&mut bridge, 800, 600);
        accept.signalled(600, &bridge.mail);
        bridge.server(&mut accept);
        assert_eq!(third.signalled(bridge.first_word(800)).map(|established| established.id), Some(78));
        bridge.client(&mut third, 800);
        assert_eq!(accept.signalled(601, &bridge.mail).map(|established| established.buffer), Some(800));
    }
}
