//! Connections that a node hands over ([`tombolo_core::sdp::handover`]), between clients, servers with and without the library, and a kernel.
//!
//! A seed draws who there is, and then, again and again, which of the steps that are possible is taken next: a message that arrives, a program that
//! goes on, a look of the node, a death. So each party may be late, stopped or dead at each step of the others. From some point on nobody dies or
//! gives up any more.
//!
//! Safety: what one side reads is what the other has written, in that order, from the first byte. Liveness: if both live, each has read all in
//! the end, and no offer is left.

use std::collections::{BTreeMap, VecDeque};

use tombolo_core::sdp::handover::{
    Action, Endpoint, Event, Flow, Handover, Limits, Listener, ListenerId, OfferId, RequestId, Space,
};
use tombolo_random::{Random, mix};

use crate::kernel::Trace;

/// A planted defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The node does not relay.
    Relay,
    /// The node does not hear that a server has given up.
    Left,
    /// The node never looks at what a server does.
    Look,
    /// The node lets go of an end once it has sent it.
    LetGo,
    /// A server is not told that there is an offer until the client has its end.
    Open,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Relay, Self::Left, Self::Look, Self::LetGo, Self::Open];
}

/// What a seed draws, for a message.
#[derive(Debug)]
pub struct Options {
    connections: usize,
    /// Of a hundred servers, so many have the library.
    with_library: u64,
    /// Of a thousand steps, so many are deaths of a client or a server.
    deaths: u64,
    /// Of a hundred thousand steps, so many are the death of the node.
    node_deaths: u64,
    /// Of a hundred waits that could end, so many do.
    gives_up: u64,
    /// Steps until nobody dies or gives up any more.
    steps: u64,
    /// Of a hundred connections, so many cannot be made at once.
    failures: u64,
    /// The node takes long to find things out, now and then.
    is_slow: bool,
}

/// What the scenario of a seed is.
pub fn options(seed: u64) -> Options {
    let mut random = Random::new(seed ^ 0x5d9);
    let mut sometimes = |most: u64| if random.one_in(2) { random.below(most) } else { 0 };
    let (deaths, node_deaths, gives_up, failures) =
        (sometimes(40), sometimes(100), sometimes(60), sometimes(30));
    Options {
        connections: random.range(1, 12) as usize,
        with_library: random.among(&[0, 50, 90, 100]),
        deaths,
        node_deaths,
        gives_up,
        steps: random.range(20, 400),
        failures,
        is_slow: random.one_in(2),
    }
}

/// Units that each side writes.
const UNITS: u32 = 4;
const PORT: u16 = 7;
/// Time that passes at each step.
const STEP_NS: u64 = 1_000_000;

/// One direction of a stream: units by number, and whether more may come.
#[derive(Debug, Default)]
struct Stream {
    units: VecDeque<u32>,
    is_closed: bool,
}

/// Where a program's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// It has done nothing yet.
    Nowhere,
    /// It has asked the node.
    Asking(RequestId),
    Tcp,
    Pair,
    Dead,
}

#[derive(Debug)]
struct Program {
    at: At,
    written: u32,
    read: u32,
    has_closed: bool,
    /// It has read the end of the stream, or a reset.
    is_over: bool,
}

impl Program {
    fn new() -> Self {
        Self { at: At::Nowhere, written: 0, read: 0, has_closed: false, is_over: false }
    }

    fn lives(&self) -> bool {
        self.at != At::Dead
    }
}

/// The two sides: 0 is the client's, 1 the server's.
const SIDES: [usize; 2] = [0, 1];

#[derive(Debug)]
struct Connection {
    programs: [Program; 2],
    has_library: bool,
    /// The server writes only when it has read all.
    answers: bool,
    /// What each side reads, by TCP.
    tcp: [Stream; 2],
    /// What each side reads, by the pair.
    pair: [Stream; 2],
    is_connected: bool,
    is_accepted: bool,
    offer: Option<OfferId>,
    /// The node has these, and closes them when it dies.
    node_has_pair: [bool; 2],
    node_has_tcp: [bool; 2],
    is_relayed: bool,
    is_kept: bool,
    /// Its server had accepted it and not asked, when the node looked.
    was_late: bool,
    /// The node has been told that the server wrote, or that it is gone.
    has_told: [bool; 2],
}

/// What is on its way between a program and the node. Messages of a request arrive in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Ask,
    Taken,
    Left,
    /// To the program: an end.
    End,
    /// To the program: it stays TCP.
    Refused,
}

#[derive(Debug)]
struct Request {
    connection: usize,
    side: usize,
    to_node: VecDeque<Message>,
    to_program: VecDeque<Message>,
}

/// A step that is possible.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(usize, usize),
    GiveUp(RequestId),
    ToNode(RequestId),
    ToProgram(RequestId),
    Write(usize, usize),
    Read(usize, usize),
    Close(usize, usize),
    Relay(usize),
    Tell(usize),
    Do(usize),
    Tick,
    Over(usize),
}

struct World {
    random: Random,
    plant: Option<Plant>,
    options: Options,
    now: u64,
    node: Option<Handover>,
    actions: Vec<Action>,
    connections: Vec<Connection>,
    requests: BTreeMap<RequestId, Request>,
    next_request: u64,
    is_healed: bool,
}

/// Runs the scenario of a seed.
pub fn run(seed: u64, plant: Option<Plant>) -> Trace {
    let options = options(seed);
    let mut random = Random::new(seed);
    let limits = Limits {
        offers_max: 64,
        offers_of_user_max: 64,
        listeners_max: 8,
        first_look: 30 * STEP_NS,
        last_look: 300 * STEP_NS,
    };
    let mut node = Handover::new(limits, 1);
    let connections = (0..options.connections).map(|_| Connection {
        programs: [Program::new(), Program::new()],
        has_library: random.below(100) < options.with_library,
        answers: random.one_in(2),
        tcp: Default::default(),
        pair: Default::default(),
        is_connected: false,
        is_accepted: false,
        offer: None,
        node_has_pair: [false; 2],
        node_has_tcp: [false; 2],
        is_relayed: false,
        is_kept: false,
        was_late: false,
        has_told: [false; 2],
    });
    let connections: Vec<_> = connections.collect();
    for (number, _) in connections.iter().enumerate() {
        node.handle(0, Event::Listens { listener: listener(number) });
    }
    let mut world = World {
        random,
        plant,
        options,
        now: 0,
        node: Some(node),
        actions: Vec::new(),
        connections,
        requests: BTreeMap::new(),
        next_request: 1,
        is_healed: false,
    };
    let mut hash = seed;
    for count in 0..100_000u64 {
        world.is_healed = count >= world.options.steps;
        world.die();
        let steps = world.steps();
        if steps.is_empty() && world.is_healed {
            world.check_end();
            return Trace::of(mix(hash ^ count));
        }
        world.now += STEP_NS;
        if steps.is_empty() {
            continue;
        }
        let number = world.random.index(steps.len());
        hash = mix(hash ^ number as u64);
        world.take(steps[number]);
    }
    panic!("it does not end: {:#?}\n{:#?}", world.connections, world.requests);
}

/// Each connection has a listener of its own, all at one port, as containers have.
fn listener(number: usize) -> Listener {
    let at = Endpoint { address: [0; 16], port: PORT };
    Listener { id: ListenerId(number as u64 + 1), space: Space(number as u64), at, process: 1, user: 0 }
}

fn flow(number: usize) -> Flow {
    let end = |port: u16| Endpoint { address: [1; 16], port };
    Flow { space: Space(number as u64), client: end(1000 + number as u16), server: end(PORT) }
}

impl World {
    fn die(&mut self) {
        if self.is_healed {
            return;
        }
        if self.random.below(100_000) < self.options.node_deaths && self.node.is_some() {
            self.node = None;
            self.actions.clear();
            for connection in &mut self.connections {
                connection.node_is_dead();
            }
            for request in self.requests.values_mut() {
                request.to_node.clear();
                // What it has sent arrives; then the connection ends.
                request.to_program.push_back(Message::Refused);
            }
        }
        if self.random.below(1000) < self.options.deaths {
            let (number, side) = (self.random.index(self.connections.len()), self.random.index(2));
            self.kill(number, side);
        }
    }

    fn kill(&mut self, number: usize, side: usize) {
        let connection = &mut self.connections[number];
        if let At::Asking(request) = connection.programs[side].at
            && let Some(request) = self.requests.get_mut(&request)
        {
            request.to_program.clear();
            request.to_node.push_back(Message::Left);
        }
        // The kernel closes what it has: of TCP, of the pair.
        connection.tcp[1 - side].is_closed |=
            !connection.node_has_tcp[side] || side == 1 && !connection.is_accepted;
        let had_pair = connection.programs[side].at == At::Pair;
        if had_pair && !connection.node_has_pair[side] {
            connection.pair[1 - side].is_closed = true;
        }
        connection.programs[side].at = At::Dead;
    }

    fn steps(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (id, request) in &self.requests {
            if !request.to_node.is_empty() && self.node.is_some() {
                steps.push(Step::ToNode(*id));
            }
            let asks = |program: &Program| program.at == At::Asking(*id);
            if asks(&self.connections[request.connection].programs[request.side]) {
                if !request.to_program.is_empty() {
                    steps.push(Step::ToProgram(*id));
                } else if !self.is_healed && self.random.below(100) < self.options.gives_up {
                    steps.push(Step::GiveUp(*id));
                }
            }
        }
        for (number, connection) in self.connections.iter().enumerate() {
            for side in SIDES {
                connection.steps_of(number, side, &mut steps);
            }
            let is_there = self.node.is_some() && connection.offer.is_some();
            if is_there && connection.is_relayed && self.plant != Some(Plant::Relay) {
                let [ab, ba] = [&connection.pair[1], &connection.tcp[0]];
                let carries =
                    |from: &Stream, to: &Stream| !from.units.is_empty() || from.is_closed && !to.is_closed;
                if carries(ab, &connection.tcp[1]) || carries(ba, &connection.pair[0]) {
                    steps.push(Step::Relay(number));
                } else if connection.tcp[1].is_closed && connection.pair[0].is_closed {
                    steps.push(Step::Over(number));
                }
            }
            if is_there && connection.node_has_tcp[0] && !connection.is_relayed {
                let told = connection.has_told;
                let heard = &connection.tcp[0];
                if !told[0] && !heard.units.is_empty() || !told[1] && heard.is_closed {
                    steps.push(Step::Tell(number));
                }
            }
            if is_there && connection.is_kept && SIDES.iter().all(|side| connection.has_let_go_of_pair(*side))
            {
                steps.push(Step::Over(number));
            }
        }
        if let Some(node) = &self.node {
            steps.extend((0..self.actions.len()).map(Step::Do));
            if node.next_deadline().is_some_and(|at| at <= self.now || self.is_healed && steps.is_empty()) {
                steps.push(Step::Tick);
            }
        }
        steps
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Begin(number, side) => self.begin(number, side),
            Step::GiveUp(id) => {
                let request = self.requests.get_mut(&id).expect("it is asked");
                request.to_program.clear();
                request.to_node.push_back(Message::Left);
                let (number, side) = (request.connection, request.side);
                self.connections[number].goes_by_tcp(side);
            }
            Step::ToNode(id) => self.reach_node(id),
            Step::ToProgram(id) => self.reach_program(id),
            Step::Write(number, side) => self.connections[number].write(side),
            Step::Read(number, side) => self.connections[number].read(side),
            Step::Close(number, side) => self.connections[number].close(side),
            Step::Relay(number) => self.connections[number].relay(),
            Step::Tell(number) => {
                let connection = &mut self.connections[number];
                let offer = connection.offer.expect("it is offered");
                let is_reset = connection.programs[1].at == At::Dead;
                connection.has_told[usize::from(connection.tcp[0].is_closed)] = true;
                self.event(if is_reset { Event::Reset { offer } } else { Event::Wrote { offer } });
            }
            Step::Do(number) => {
                let action = self.actions.remove(number);
                self.act(action);
            }
            Step::Tick => {
                let now = self.now;
                if let Some(node) = &mut self.node {
                    let at = node.next_deadline().unwrap_or(now).max(now);
                    self.now = at;
                    node.tick(at);
                }
                self.collect();
            }
            Step::Over(number) => {
                let offer = self.connections[number].offer.expect("it is offered");
                self.event(Event::Over { offer });
            }
        }
    }

    fn begin(&mut self, number: usize, side: usize) {
        let has_client_end = self.connections[number].programs[0].at == At::Pair;
        let is_open = self.node.as_ref().is_some_and(|node| {
            let is_shown = || match self.plant {
                Some(Plant::Open) => has_client_end,
                _ => node.open_at(PORT) > 0,
            };
            side == 0 && node.is_offered(PORT) || side == 1 && is_shown()
        });
        let connection = &mut self.connections[number];
        if side == 1 {
            connection.is_accepted = true;
        }
        if !is_open || side == 1 && !connection.has_library {
            return connection.goes_by_tcp(side);
        }
        let id = RequestId(self.next_request);
        self.next_request += 1;
        connection.programs[side].at = At::Asking(id);
        let to_node = VecDeque::from([Message::Ask]);
        self.requests.insert(id, Request { connection: number, side, to_node, to_program: VecDeque::new() });
    }

    fn event(&mut self, event: Event) {
        if let Some(node) = &mut self.node {
            node.handle(self.now, event);
        }
        self.collect();
    }

    /// Most actions are carried out at once and in their order; some later, as if they took long.
    fn collect(&mut self) {
        while let Some(action) = self.node.as_mut().and_then(Handover::poll) {
            let is_slow = matches!(action, Action::Examine { .. } | Action::Look { .. });
            if is_slow && self.options.is_slow && self.random.one_in(3) {
                self.actions.push(action);
            } else {
                self.act(action);
            }
        }
    }

    fn reach_node(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("it has messages");
        let message = request.to_node.pop_front().expect("it has messages");
        let (number, side) = (request.connection, request.side);
        let space = Space(number as u64);
        match (message, side) {
            (Message::Ask, 0) => {
                self.event(Event::Connects { request: id, space, to: flow(number).server, other_user: None });
            }
            (Message::Ask, _) => self.event(Event::Accepts { request: id, flow: flow(number) }),
            (Message::Taken, _) => self.event(Event::Taken { request: id }),
            (Message::Left, 1) if self.plant == Some(Plant::Left) => {}
            (Message::Left, _) => self.event(Event::Left { request: id }),
            (Message::End | Message::Refused, _) => unreachable!("these go to programs"),
        }
    }

    fn reach_program(&mut self, id: RequestId) {
        let request = self.requests.get_mut(&id).expect("it has messages");
        let message = request.to_program.pop_front().expect("it has messages");
        let connection = &mut self.connections[request.connection];
        if message == Message::End {
            connection.programs[request.side].at = At::Pair;
            if self.node.is_some() {
                request.to_node.push_back(Message::Taken);
            } else {
                // It has let go of its socket, and nobody else has that.
                connection.tcp[1 - request.side].is_closed = true;
            }
        } else {
            connection.goes_by_tcp(request.side);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Examine { offer, request, to } => {
                assert_eq!(to.port, PORT);
                let number = self.requests[&request].connection;
                let found = if self.random.below(100) < self.options.failures {
                    Err(tombolo_core::sdp::handover::Reason::NotConnected)
                } else {
                    let connection = &mut self.connections[number];
                    connection.is_connected = true;
                    connection.offer = Some(offer);
                    (connection.node_has_pair, connection.node_has_tcp) = ([true; 2], [true, false]);
                    Ok((flow(number), listener(number).id))
                };
                self.event(Event::Examined { offer, found });
            }
            Action::Refuse { request, .. } => self.send(request, Message::Refused),
            Action::GiveToClient { request, .. } => self.give(request, 0),
            Action::GiveToServer { request, .. } => self.give(request, 1),
            Action::Look { offer } => {
                if self.plant == Some(Plant::Look) {
                    return;
                }
                // It may be over by now.
                let found = self.connections.iter_mut().find(|one| one.offer == Some(offer));
                let Some(connection) = found else { return };
                let is_accepted = connection.is_accepted;
                connection.was_late |= is_accepted;
                self.event(Event::Looked { offer, is_accepted });
            }
            Action::Keep { offer } => {
                let connection = self.of(offer);
                connection.is_kept = true;
                connection.let_go_of_pair();
            }
            Action::Relay { offer } => {
                let connection = self.of(offer);
                connection.is_relayed = true;
                assert!(connection.node_has_pair[1] && connection.node_has_tcp[0], "nothing to relay by");
                // It has the server's end alone from now on.
                connection.node_has_pair[0] = false;
                if connection.programs[0].at != At::Pair {
                    connection.pair[1].is_closed = true;
                }
            }
            Action::ResetClient { offer } | Action::Close { offer } => {
                let Some(connection) = self.connections.iter_mut().find(|one| one.offer == Some(offer))
                else {
                    return;
                };
                connection.let_go_of_pair();
                connection.let_go_of_tcp();
                connection.offer = None;
            }
        }
    }

    fn give(&mut self, request: RequestId, side: usize) {
        self.send(request, Message::End);
        if self.plant == Some(Plant::LetGo) {
            let number = self.requests[&request].connection;
            self.connections[number].node_has_pair[side] = false;
        }
    }

    /// Sends an answer, unless nobody waits for it.
    fn send(&mut self, id: RequestId, message: Message) {
        let request = self.requests.get_mut(&id).expect("it was asked");
        if self.connections[request.connection].programs[request.side].at == At::Asking(id) {
            request.to_program.push_back(message);
        }
    }

    fn of(&mut self, offer: OfferId) -> &mut Connection {
        self.connections.iter_mut().find(|one| one.offer == Some(offer)).expect("the offer is there")
    }

    fn check_end(&self) {
        for (number, connection) in self.connections.iter().enumerate() {
            let [client, server] = &connection.programs;
            assert!(!(client.at == At::Tcp && server.at == At::Pair), "{number}: {connection:#?}");
            let was_served = self.node.is_some() || client.at == At::Tcp || connection.is_kept;
            if client.lives() && server.lives() && was_served {
                assert!(
                    client.read == UNITS && server.read == UNITS,
                    "{number}: not all has arrived: {connection:#?}"
                );
            }
            let Options { deaths, node_deaths, gives_up, is_slow, .. } = self.options;
            let is_undisturbed = (deaths, node_deaths, gives_up, is_slow) == (0, 0, 0, false);
            if is_undisturbed && connection.has_library && client.at == At::Pair {
                assert!(
                    connection.is_kept || connection.was_late,
                    "{number}: it was not handed over: {connection:#?}"
                );
            }
            // A server that nobody connects to waits, as it should.
            let begun = |program: &&Program| program.lives() && program.at != At::Nowhere;
            for program in connection.programs.iter().filter(begun) {
                assert!(program.is_over, "{number}: one waits for ever: {connection:#?}");
            }
        }
        if let Some(node) = &self.node {
            assert_eq!(node.all().count(), 0, "offers are left: {node:#?}");
            assert_eq!(node.open_at(PORT), 0, "{node:#?}");
            assert_eq!(node.next_deadline(), None, "{node:#?}");
        }
    }
}

impl Connection {
    fn steps_of(&self, number: usize, side: usize, steps: &mut Vec<Step>) {
        let program = &self.programs[side];
        match program.at {
            // A client whose server is dead connects to nobody.
            At::Nowhere if side == 0 || self.is_connected => {
                steps.push(Step::Begin(number, side));
            }
            At::Tcp | At::Pair => {
                let has_to_read = side == 1 && self.answers && program.read < UNITS && !program.is_over;
                if program.written < UNITS {
                    steps.extend((!has_to_read).then_some(Step::Write(number, side)));
                } else if !program.has_closed {
                    steps.push(Step::Close(number, side));
                }
                let from = self.reads(side);
                if !program.is_over && (!from.units.is_empty() || from.is_closed) {
                    steps.push(Step::Read(number, side));
                }
            }
            _ => {}
        }
    }

    fn reads(&self, side: usize) -> &Stream {
        if self.programs[side].at == At::Tcp { &self.tcp[side] } else { &self.pair[side] }
    }

    fn writes(&mut self, side: usize) -> &mut Stream {
        let is_tcp = self.programs[side].at == At::Tcp;
        if is_tcp { &mut self.tcp[1 - side] } else { &mut self.pair[1 - side] }
    }

    fn goes_by_tcp(&mut self, side: usize) {
        self.programs[side].at = At::Tcp;
        if side == 0 {
            self.is_connected = true;
        }
        if self.programs[1 - side].at == At::Dead && !self.is_accepted && side == 0 {
            self.tcp[0].is_closed = true;
        }
    }

    fn write(&mut self, side: usize) {
        let unit = self.programs[side].written;
        self.writes(side).units.push_back(unit);
        self.programs[side].written += 1;
    }

    fn read(&mut self, side: usize) {
        let stream =
            if self.programs[side].at == At::Tcp { &mut self.tcp[side] } else { &mut self.pair[side] };
        let unit = stream.units.pop_front();
        let program = &mut self.programs[side];
        match unit {
            Some(unit) => {
                assert_eq!(unit, program.read, "side {side} reads another unit");
                program.read += 1;
            }
            None => program.is_over = true,
        }
    }

    /// It writes no more, and has read all when the other side does so, too.
    fn close(&mut self, side: usize) {
        self.writes(side).is_closed = true;
        self.programs[side].has_closed = true;
    }

    fn relay(&mut self) {
        let carry = |from: &mut Stream, to: &mut Stream| match from.units.pop_front() {
            Some(unit) => to.units.push_back(unit),
            None => to.is_closed |= from.is_closed,
        };
        let Self { tcp: [to_client, to_server], pair: [client, server], .. } = self;
        carry(server, to_server);
        carry(to_client, client);
    }

    fn has_let_go_of_pair(&self, side: usize) -> bool {
        let program = &self.programs[side];
        !program.lives() || program.has_closed && program.is_over
    }

    /// The node closes its copies of the ends: where it had the only one, the other side sees that.
    fn let_go_of_pair(&mut self) {
        for side in SIDES {
            if self.node_has_pair[side] && self.programs[side].at != At::Pair {
                self.pair[1 - side].is_closed = true;
            }
            self.node_has_pair[side] = false;
        }
    }

    fn let_go_of_tcp(&mut self) {
        if self.node_has_tcp[0]
            && self.programs[0].at != At::Tcp
            && !matches!(self.programs[0].at, At::Asking(_))
        {
            self.tcp[1].is_closed = true;
        }
        self.node_has_tcp = [false; 2];
    }

    fn node_is_dead(&mut self) {
        if self.offer.is_some() {
            self.let_go_of_pair();
            self.let_go_of_tcp();
            // Whoever is on the pair with nobody at its other end.
            for side in SIDES {
                if self.programs[1 - side].at != At::Pair && !self.is_kept {
                    self.pair[side].is_closed = true;
                }
            }
        }
        self.is_relayed = false;
        self.offer = None;
    }
}
