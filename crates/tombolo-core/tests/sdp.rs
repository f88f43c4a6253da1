//! Two sides of a Sockets Direct connection over a bridge that delivers late: every byte arrives once and in order, and nobody sleeps for
//! ever. Programs go on only when they are woken.

use std::collections::VecDeque;

use tombolo_core::sdp::{Action, Config, Connection, FREE, Method, Received, SdpError, Wake};
use tombolo_random::Random;

/// What goes over the bridge: writes and signals, and reads, which come behind the writes of the same side.
#[derive(Debug)]
enum Crossing {
    Release,
    Signal,
    Finish,
    Look,
    Fetch(u32),
}

/// What comes back.
enum Answer {
    Fields(u32, u32),
    Data(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Program {
    Runs,
    Sleeps,
    Done,
}

struct Side {
    connection: Connection,
    /// The send buffer, which the other side sees.
    sequence: u32,
    size: u32,
    data: Vec<u8>,
    receive_buffer: Vec<u8>,
    out: VecDeque<Crossing>,
    answers: VecDeque<Answer>,
    sender: Program,
    receiver: Program,
    to_send: u64,
    sent: u64,
    received: u64,
    /// Bytes after which it closes without receiving more; `None`: never.
    gives_up_after: Option<u64>,
    /// Transfers by loads and by DMA.
    fetches: [u64; 2],
    /// Whether actions wait until it is their turn, beside all else.
    acts_late: bool,
}

const SMALL_BYTES: u32 = 8;

impl Side {
    fn new(buffer_bytes: u32, to_send: u64) -> Self {
        let connection = Connection::new(Config { buffer_bytes, small_bytes: SMALL_BYTES });
        let buffer = vec![0; buffer_bytes as usize];
        Self {
            connection,
            sequence: FREE,
            size: 0,
            data: buffer.clone(),
            receive_buffer: buffer,
            out: VecDeque::new(),
            answers: VecDeque::new(),
            sender: Program::Runs,
            receiver: Program::Runs,
            to_send,
            sent: 0,
            received: 0,
            gives_up_after: None,
            fetches: [0; 2],
            acts_late: false,
        }
    }

    fn pattern(at: u64) -> u8 {
        (at * 31 % 251) as u8
    }

    fn send(&mut self, random: &mut Random) {
        if self.sent == self.to_send {
            self.connection.shutdown(self.sequence);
            self.sender = Program::Done;
            return;
        }
        let wanted = (1 + random.below(3 * self.data.len() as u64)).min(self.to_send - self.sent) as u32;
        match self.connection.send(self.sequence, wanted) {
            Ok(place) => {
                for at in place.clone() {
                    self.data[at as usize] = Self::pattern(self.sent);
                    self.sent += 1;
                }
                if place.is_empty() {
                    self.sender = Program::Sleeps;
                }
            }
            Err(SdpError::PeerClosed | SdpError::Closed) => self.sender = Program::Done,
            Err(error) => panic!("{error}"),
        }
    }

    fn receive(&mut self, random: &mut Random) {
        if self.gives_up_after.is_some_and(|most| self.received >= most) {
            self.connection.close(self.sequence);
            self.receiver = Program::Done;
            return;
        }
        let wanted = 1 + random.below(2 * self.data.len() as u64) as u32;
        match self.connection.receive(self.sequence, wanted) {
            Ok(Received::Bytes(place)) => {
                for at in place {
                    assert_eq!(self.receive_buffer[at as usize], Self::pattern(self.received));
                    self.received += 1;
                }
            }
            Ok(Received::Later) => self.receiver = Program::Sleeps,
            Ok(Received::End) => self.receiver = Program::Done,
            Err(error) => panic!("{error}"),
        }
    }

    fn act(&mut self) {
        while self.act_once() {}
    }

    fn act_once(&mut self) -> bool {
        let Some(action) = self.connection.poll() else { return false };
        {
            match action {
                Action::Publish { sequence, size } => (self.sequence, self.size) = (sequence, size),
                Action::Signal => self.out.push_back(Crossing::Signal),
                Action::Look => self.out.push_back(Crossing::Look),
                Action::Fetch { bytes, by } => {
                    assert_eq!(by == Method::Loads, bytes <= SMALL_BYTES);
                    self.fetches[usize::from(by == Method::Dma)] += 1;
                    self.out.push_back(Crossing::Fetch(bytes));
                }
                Action::Release => self.out.push_back(Crossing::Release),
                Action::Finish => self.out.push_back(Crossing::Finish),
                Action::Wake(wake) => {
                    let program = if wake == Wake::Sender { &mut self.sender } else { &mut self.receiver };
                    if *program == Program::Sleeps {
                        *program = Program::Runs;
                    }
                }
            }
        }
        true
    }
}

/// The other side gets what crosses.
fn cross(sides: &mut [Side; 2], from: usize) {
    let Some(crossing) = sides[from].out.pop_front() else { return };
    let to = &mut sides[1 - from];
    match crossing {
        Crossing::Release => to.sequence = FREE,
        Crossing::Signal => to.connection.signalled(to.sequence),
        Crossing::Finish => to.connection.closed_by_peer(),
        Crossing::Look => {
            let fields = Answer::Fields(to.sequence, to.size);
            sides[from].answers.push_back(fields);
        }
        Crossing::Fetch(bytes) => {
            let data = Answer::Data(to.data[..bytes as usize].to_vec());
            sides[from].answers.push_back(data);
        }
    }
}

fn answer(side: &mut Side) {
    match side.answers.pop_front() {
        Some(Answer::Fields(sequence, size)) => side.connection.looked(sequence, size),
        Some(Answer::Data(data)) => {
            side.receive_buffer[..data.len()].copy_from_slice(&data);
            side.connection.fetched();
        }
        None => {}
    }
}

/// Runs until nothing moves.
fn run(random: &mut Random, sides: &mut [Side; 2]) {
    loop {
        let mut could = Vec::new();
        for (number, side) in sides.iter().enumerate() {
            could.extend((side.sender == Program::Runs).then_some((0, number)));
            could.extend((side.receiver == Program::Runs).then_some((1, number)));
            could.extend((!side.out.is_empty()).then_some((2, number)));
            could.extend((!side.answers.is_empty()).then_some((3, number)));
            could.extend(side.acts_late.then_some((4, number)));
        }
        let is_idle = could.iter().all(|(what, _)| *what == 4);
        if is_idle && !sides.iter_mut().any(Side::act_once) {
            return;
        }
        if is_idle {
            continue;
        }
        let (what, number) = could[random.below(could.len() as u64) as usize];
        match what {
            0 => sides[number].send(random),
            1 => sides[number].receive(random),
            2 => cross(sides, number),
            3 => answer(&mut sides[number]),
            _ => drop(sides[number].act_once()),
        }
        sides.iter_mut().filter(|side| !side.acts_late).for_each(Side::act);
    }
}

#[test]
fn every_byte_arrives_in_order_and_nobody_sleeps_for_ever() {
    let mut fetches = [0; 2];
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let buffer_bytes = 1 + random.below(100) as u32;
        let mut sides = [(); 2].map(|()| Side::new(buffer_bytes, 0));
        for side in &mut sides {
            side.to_send = random.below(2_000);
            side.acts_late = random.one_in(2);
        }
        run(&mut random, &mut sides);
        let [one, other] = &sides;
        for side in &sides {
            assert_eq!((side.sender, side.receiver), (Program::Done, Program::Done), "seed {seed}");
            fetches = [fetches[0] + side.fetches[0], fetches[1] + side.fetches[1]];
        }
        assert_eq!((one.received, other.received), (other.sent, one.sent), "seed {seed}");
        // Then both close.
        for number in [0, 1] {
            let side = &mut sides[number];
            side.connection.close(side.sequence);
            side.act();
        }
        run(&mut random, &mut sides);
        assert!(sides.iter().all(|side| side.connection.is_over()), "seed {seed}");
    }
    assert!(fetches.iter().all(|count| *count > 10_000), "{fetches:?}");
}

#[test]
fn who_closes_early_ends_the_other_and_loses_nothing_of_its_own() {
    for seed in 0..3_000 {
        let mut random = Random::new(seed);
        let buffer_bytes = 1 + random.below(100) as u32;
        let mut sides = [(); 2].map(|()| Side::new(buffer_bytes, 0));
        for side in &mut sides {
            side.to_send = random.below(2_000);
            side.acts_late = random.one_in(2);
        }
        let early = random.below(2) as usize;
        sides[early].gives_up_after = Some(random.below(1_000));
        run(&mut random, &mut sides);
        for side in &sides {
            assert_eq!((side.sender, side.receiver), (Program::Done, Program::Done), "seed {seed}");
        }
        let [one, other] = &sides;
        let (closer, stayer) = if early == 0 { (one, other) } else { (other, one) };
        assert!(closer.connection.is_over() || closer.gives_up_after > Some(closer.received), "seed {seed}");
        // All that the one that closed had sent before has arrived.
        assert_eq!(stayer.received, closer.sent, "seed {seed}");
    }
}

/// Bytes are named, so a buffer that lies is seen before anything is taken from it.
#[test]
fn a_buffer_that_lies_ends_the_connection() {
    // The last one is what a bus reads of a device that is gone.
    for (sequence, size) in [(2, 1), (1, 0), (1, 101), (u32::MAX - 1, 5), (u32::MAX, u32::MAX)] {
        let mut connection = Connection::new(Config { buffer_bytes: 100, small_bytes: SMALL_BYTES });
        assert_eq!(connection.receive(FREE, 10), Ok(Received::Later));
        assert_eq!(connection.poll(), Some(Action::Look));
        connection.looked(sequence, size);
        assert_eq!(connection.poll(), Some(Action::Wake(Wake::Receiver)));
        let error = SdpError::Protocol { sequence, size };
        assert_eq!(connection.receive(FREE, 10), Err(error));
        assert_eq!(connection.send(FREE, 10), Err(error));
        // After the error this side ignores the other one, and can still close.
        while connection.poll().is_some() {}
        connection.signalled(FREE);
        connection.looked(1, 5);
        assert_eq!((connection.poll(), connection.receive(FREE, 10)), (None, Err(error)));
        connection.close(FREE);
        let last = std::iter::from_fn(|| connection.poll()).last();
        assert_eq!((last, connection.is_over()), (Some(Action::Finish), true));
    }
}

/// A number that does not stand in the buffer yet is not one that the other side has taken.
#[test]
fn what_is_published_is_not_taken_before_it_stands_there() {
    let connection = || Connection::new(Config { buffer_bytes: 100, small_bytes: SMALL_BYTES });
    let mut busy = connection();
    assert_eq!(busy.send(FREE, 100), Ok(0..100));
    busy.signalled(FREE);
    assert_eq!(busy.send(FREE, 100), Ok(100..100), "the program would write over what is not taken");
    let mut closing = connection();
    assert_eq!(closing.send(FREE, 100), Ok(0..100));
    closing.signalled(FREE);
    closing.close(FREE);
    let published =
        std::iter::from_fn(|| closing.poll()).filter(|action| matches!(action, Action::Publish { .. }));
    assert_eq!(published.collect::<Vec<_>>(), [Action::Publish { sequence: 1, size: 100 }]);
    assert!(!closing.is_over());
}

/// A buffer of a side that has closed may be another connection's by the time at which it is looked at.
#[test]
fn an_answer_that_comes_after_the_end_is_nothing() {
    let mut connection = Connection::new(Config { buffer_bytes: 100, small_bytes: SMALL_BYTES });
    assert_eq!(connection.receive(FREE, 10), Ok(Received::Later));
    assert_eq!(connection.poll(), Some(Action::Look));
    connection.closed_by_peer();
    connection.closed_by_peer();
    connection.looked(1, 5);
    let wakes = [Action::Wake(Wake::Receiver), Action::Wake(Wake::Sender)];
    assert_eq!(std::iter::from_fn(|| connection.poll()).collect::<Vec<_>>(), wakes);
    assert_eq!(connection.receive(FREE, 10), Ok(Received::End));
}

#[test]
fn who_waits_hears_of_the_end() {
    let mut connection = Connection::new(Config { buffer_bytes: 100, small_bytes: SMALL_BYTES });
    assert_eq!(connection.receive(FREE, 10), Ok(Received::Later));
    connection.abort();
    let all: Vec<_> = std::iter::from_fn(|| connection.poll()).collect();
    assert!(all.contains(&Action::Wake(Wake::Receiver)) && all.contains(&Action::Finish), "{all:?}");
    assert_eq!(connection.receive(FREE, 10), Err(SdpError::Closed));
    let mut lost = Connection::new(Config { buffer_bytes: 100, small_bytes: SMALL_BYTES });
    assert_eq!(lost.receive(FREE, 10), Ok(Received::Later));
    lost.failed();
    assert_eq!(lost.receive(FREE, 10), Err(SdpError::Unreachable));
}

/// SDP §4.2.2: a full buffer goes, small data go, and what is between goes when the program receives or closes.
#[test]
fn four_things_start_a_transfer() {
    let published = |act: &dyn Fn(&mut Connection)| {
        let mut connection = Connection::new(Config { buffer_bytes: 100, small_bytes: SMALL_BYTES });
        act(&mut connection);
        std::iter::from_fn(|| connection.poll()).find_map(|action| match action {
            Action::Publish { sequence: 1, size } => Some(size),
            _ => None,
        })
    };
    let send = |connection: &mut Connection, bytes| connection.send(FREE, bytes).map(|place| place.end);
    assert_eq!(published(&|connection| assert_eq!(send(connection, 50), Ok(50))), None);
    assert_eq!(published(&|connection| assert_eq!(send(connection, 120), Ok(100))), Some(100));
    assert_eq!(published(&|connection| assert_eq!(send(connection, 8), Ok(8))), Some(8));
    let then = |act: fn(&mut Connection)| {
        published(&|connection| {
            assert_eq!(send(connection, 50), Ok(50));
            act(connection);
        })
    };
    assert_eq!(then(|connection| assert_eq!(connection.receive(FREE, 1), Ok(Received::Later))), Some(50));
    assert_eq!(then(|connection| connection.close(FREE)), Some(50));
    assert_eq!(then(|connection| connection.shutdown(FREE)), Some(50));
    // Requests are gathered.
    assert_eq!(then(|connection| assert_eq!(connection.send(FREE, 5), Ok(50..55))), Some(55));
}
