//! How a connection begins (SDP §4.2.3, Fig 4.4). At first the two sides share only registers that both can write.
//! At the end each side knows the address of the other's send buffer.
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
//! The id is the server's number of this attempt. The client writes it beside its introduction and into its
//! confirmation. So the server does not take for an answer what another client has written, or this client in an
//! earlier attempt: the attempt then ends by its timeout. Three registers differ from the document: one for the
//! confirmation, where the document has only a signal, and two for the end of a connection, where the document has
//! one.

/// Number of registers that both sides can read and write.
pub const MAILBOXES: usize = 7;

/// The registers, by their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mail {
    /// The port on which the server listens, or 0 if it does not listen.
    Port = 0,
    /// The id of the server's attempt.
    Offer = 1,
    /// The address of the client's buffer, in units of pages.
    Buffer = 2,
    /// The id of the attempt that the client answers.
    Answer = 3,
    /// The id of the connection that the client has.
    Confirm = 4,
    /// The id of a connection, or of an attempt, that the server has closed.
    ServerFinish = 5,
    /// The id of a connection, or of an attempt, that the client has closed.
    ClientFinish = 6,
}

/// A client's introduction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The client's network address.
    pub address: u32,
    /// The client's port.
    pub port: u16,
    /// The attempt that the client answers.
    pub id: u32,
}

/// What the driver is to do, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write a register.
    Write(Mail, u32),
    /// Write a size of 0 and [`super::FREE`] into the own send buffer, in place of what another connection or this
    /// handshake has left there.
    Clear,
    /// Write this introduction into the own send buffer, with 0 in the first word, where the server will write.
    Introduce(Hello),
    /// Map the other side's buffer at this address.
    Map(u32),
    /// Read the client's introduction from its buffer, which was mapped. Then call [`Accept::introduced`].
    Read,
    /// Write this address, that of the own buffer, into the first word of the client's buffer.
    Reply(u32),
    /// Interrupt the other side.
    Signal,
}

/// A connection that both sides know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Established {
    /// The id of the attempt by which it began.
    pub id: u32,
    /// The address of the other side's buffer.
    pub buffer: u32,
    /// The client's introduction. On the client's side: its own.
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
    /// For the introduction in the client's buffer.
    Hello { buffer: u32 },
    /// For the client's last signal.
    Signal { established: Established },
    /// For nothing: the connection is established.
    Nothing,
}

/// The server's side of the handshake for one connection.
#[derive(Debug)]
pub struct Accept {
    id: u32,
    /// The address of the own send buffer.
    buffer: u32,
    port: u16,
    waits: Waits,
    answer_by_ns: Option<u64>,
    timeout_ns: u64,
    steps: Vec<Step>,
}

impl Accept {
    /// Waits for a client on a port. `id`: a random number, not 0. A client that has begun has to complete the
    /// handshake within `timeout_ns`. After that another client may begin.
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

    /// The next step for the driver.
    pub fn poll(&mut self) -> Option<Step> {
        (!self.steps.is_empty()).then(|| self.steps.remove(0))
    }

    /// Handles a signal. `mail`: the contents of the registers. Returns the connection if it is established now.
    pub fn signalled(&mut self, now_ns: u64, mail: &[u32; MAILBOXES]) -> Option<Established> {
        let is_given_up = mail[Mail::ClientFinish as usize] == self.id;
        match self.waits {
            // The client has given up: the attempt is over at once, so that a client can begin again.
            Waits::Hello { .. } | Waits::Signal { .. } if is_given_up => {
                self.answer_by_ns = Some(now_ns);
                None
            }
            Waits::Client if mail[Mail::Answer as usize] == self.id => {
                let buffer = mail[Mail::Buffer as usize];
                self.waits = Waits::Hello { buffer };
                self.answer_by_ns = Some(now_ns.saturating_add(self.timeout_ns));
                // While the port is 0, no other client begins.
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
            // The signal is for another connection, or of another client.
            Waits::Client | Waits::Hello { .. } | Waits::Signal { .. } | Waits::Nothing => None,
        }
    }

    /// Takes the introduction that was read from the client's buffer. An introduction that answers another attempt
    /// is ignored: this attempt then ends by its timeout.
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

    /// Ends an attempt whose time is over. The client that began and did not complete it is given up and told. The
    /// next attempt gets the id `next_id`, a random number. A client that has a connection already when it is told
    /// that its attempt has ended closes that connection.
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

/// The client's side of the handshake for one connection.
#[derive(Debug)]
pub struct Connect {
    id: u32,
    hello: Hello,
    by_ns: u64,
    steps: Vec<Step>,
}

impl Connect {
    /// Begins a handshake. `mail`: the contents of the registers. `buffer`: the address of the own send buffer.
    ///
    /// # Errors
    /// [`HandshakeError::Refused`], if no server waits for a client on that port.
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

    /// The next step for the driver.
    pub fn poll(&mut self) -> Option<Step> {
        (!self.steps.is_empty()).then(|| self.steps.remove(0))
    }

    /// Handles a signal. `first_word`: the first word of the own buffer. Returns the connection if the server has
    /// answered. The remaining steps are still to be carried out.
    pub fn signalled(&mut self, first_word: u32) -> Option<Established> {
        if first_word == 0 {
            return None;
        }
        self.steps.extend([
            Step::Map(first_word),
            // The address that the server wrote there is not a sequence number.
            Step::Clear,
            Step::Write(Mail::Confirm, self.id),
            Step::Signal,
        ]);
        Some(Established { id: self.id, buffer: first_word, hello: self.hello })
    }

    /// When to call [`Connect::elapsed`].
    #[must_use]
    pub fn next_deadline(&self) -> u64 {
        self.by_ns
    }

    /// Gives up if the time is over. After that, the buffer may be used for something else only when the server
    /// offers another attempt: until then the server may still write to the buffer.
    ///
    /// # Errors
    /// [`HandshakeError::TimedOut`]. The remaining steps tell the server.
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

    /// What both sides share: the registers, the first two words of each buffer, and the introductions in the
    /// buffers.
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
        // Left by an earlier connection.
        bridge.words.insert(SERVER_BUFFER, [OUT_OF_DATA, 0]);
        let mut accept = listening(&mut bridge);
        assert_eq!(accept.signalled(0, &bridge.mail), None, "a signal for another connection");
        let mut connect = begun(&mut bridge, CLIENT_BUFFER, 0);
        assert_eq!(connect.signalled(bridge.first_word(CLIENT_BUFFER)), None);
        assert_eq!(accept.signalled(0, &bridge.mail), None);
        bridge.server(&mut accept);
        // A signal of another client does not end the handshake.
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
        // While the server answers the first client, no other client begins.
        assert!(Connect::new(10, PORT, &bridge.mail, HELLO, 700, TIMEOUT_NS).is_err());
        assert_eq!(accept.next_deadline(), Some(1_010));
        accept.elapsed(1_009, 78);
        assert!(accept.poll().is_none());
        accept.elapsed(1_010, 78);
        bridge.server(&mut accept);
        assert_eq!(bridge.mail[Mail::ServerFinish as usize], 77);
        // The first client goes on now: what it writes belongs to its old attempt.
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

    /// Two clients answer one offer. The buffer of one with the id of the other leads to no connection. A later
    /// attempt does.
    #[test]
    fn clients_that_write_over_each_other_try_again() {
        let mut bridge = Bridge::default();
        let mut accept = listening(&mut bridge);
        let mut first = begun(&mut bridge, CLIENT_BUFFER, 0);
        let mut second = begun(&mut bridge, 700, 0);
        // The first client's address is written last.
        bridge.mail[Mail::Buffer as usize] = CLIENT_BUFFER;
        bridge.hellos.insert(CLIENT_BUFFER, Hello { id: 76, ..HELLO });
        accept.signalled(0, &bridge.mail);
        bridge.server(&mut accept);
        assert!([CLIENT_BUFFER, 700].iter().all(|buffer| bridge.first_word(*buffer) == 0));
        for connect in [&mut first, &mut second] {
            assert_eq!(connect.elapsed(1_000), Err(HandshakeError::TimedOut));
        }
        bridge.client(&mut second, 700);
        // The server was told, and need not wait for its own timeout.
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
