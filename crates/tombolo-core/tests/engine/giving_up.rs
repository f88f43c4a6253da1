//! Peers that do not answer: what is given up, when, and what is not. In virtual time.

use std::collections::{BTreeMap, BTreeSet};

use crate::bench::{BASE, Bench, DOMAIN, OTHER};
use tombolo_core::rdma::{
    Action, BlockNotification, Config, Direction, Engine, PathId, PeerId, Time, Transfer, TransferError,
};
use tombolo_random::{Random, Seeds};
use tombolo_wire::{
    Ack, Domain, Nack, NackCode, NotificationMark, Packet, ReadAccept, ReadReject, ReadRequest, Receipt,
    RequestId,
};

const SECOND: u64 = 1_000_000_000;

fn run(seeds: u64, test: &str, scenario: impl FnMut(u64)) -> u64 {
    let command = format!("cargo test -p tombolo-core --test engine {test}");
    Seeds::from_environment(seeds).run(&command, scenario)
}

/// A peer reads, and is stopped for longer than a silent peer is waited for, with room in its links or not. When
/// it goes on, it has what it has asked for. What others wanted of it was given up meanwhile.
#[test]
fn a_stopped_peer_that_goes_on_has_its_reads() {
    run(100, "a_stopped_peer_that_goes_on_has_its_reads", |seed| {
        let mut bench = Bench::new(Config::default(), seed, 4 << 20);
        for _ in 0..1 + bench.random.below(20) {
            let bytes = 1 + bench.random.below(100_000) as u32;
            let with_notification = bench.random.per_million(500_000);
            bench.post(0, Direction::Read, bytes, with_notification, None).expect("memory").expect("room");
        }
        for _ in 0..bench.random.below(60) {
            bench.step();
        }
        let reads = bench.watched.len();
        let most = if seed % 2 == 0 { usize::MAX } else { bench.random.below(20) as usize };
        bench.stop_node(0, most);
        let stopped_at = bench.now();
        let stopped_ns = 6 * SECOND + bench.random.below(120 * SECOND);
        bench.post(1, Direction::Write, 40_000, false, None).expect("memory").expect("room");
        while bench.now() < stopped_at.after_ns(stopped_ns) && bench.step() {
            if bench.watched[reads].status.is_none() {
                assert!(bench.now() < stopped_at.after_ns(8 * SECOND), "seed {seed}: a write waits for ever");
            }
        }
        assert_eq!(bench.watched[reads].status, Some(Err(TransferError::PeerUnreachable)), "seed {seed}");
        bench.skip_to(bench.now().max(stopped_at.after_ns(stopped_ns)));
        bench.go_on();
        bench.settle(10 * SECOND);
        for (number, watched) in bench.watched[..reads].iter().enumerate() {
            assert_eq!(watched.status, Some(Ok(())), "seed {seed}, read {number}");
        }
        bench.check_memory();
    });
}

fn transfer(direction: Direction, size_bytes: u32) -> Transfer {
    Transfer {
        direction,
        domain: DOMAIN,
        own_domain: DOMAIN,
        source_address: BASE,
        destination_address: 2 * BASE,
        size_bytes,
        notification: None,
        class: None,
        user: 0,
    }
}

/// What a peer answers that ends no transfer, to one packet or block.
fn useless_answer(random: &mut Random, action: &Action) -> Option<Packet<'static>> {
    let code = NackCode::BufferFull;
    match action {
        Action::SendBlock(block) if random.per_million(500_000) => Some(Packet::Receipt(Receipt {
            transaction: block.transaction,
            generation: block.generation,
            attempt: block.attempt,
        })),
        Action::SendBlock(block) => Some(Packet::Nack(Nack {
            transaction: block.transaction,
            generation: block.generation,
            attempt: block.attempt,
            refusal: code.into(),
        })),
        Action::Send { packet: Packet::ReadRequest(request), .. } => match random.per_million(500_000) {
            true => Some(Packet::ReadAccept(ReadAccept { request: request.request })),
            false => Some(Packet::ReadReject(ReadReject { request: request.request, refusal: code.into() })),
        },
        _ => None,
    }
}

/// A peer that loses its only path again and again, and answers nothing that ends a transfer, keeps none open for
/// ever, however long it has a path each time.
#[test]
fn a_peer_that_loses_and_regains_its_only_path_is_given_up() {
    run(12, "a_peer_that_loses_and_regains_its_only_path_is_given_up", |seed| {
        let mut random = Random::new(seed);
        let config = Config { transactions: 64, ..Config::default() };
        let mut engine = Engine::new(config);
        let mut now = Time(0);
        engine.add_peer(now, OTHER);
        let posted = 1 + random.below(6);
        for _ in 0..posted {
            let direction = if random.per_million(500_000) { Direction::Read } else { Direction::Write };
            engine.post(now, OTHER, transfer(direction, 1 + random.below(50_000) as u32)).expect("room");
        }
        // How long it has a path at a time, and how many of a million packets it answers.
        let most_up_ns = SECOND / random.among(&[100, 10, 1]) * 4;
        let answers = random.among(&[0, 100_000, 1_000_000]);
        let (mut ended, mut with_path_ns, mut losses) = (0, 0, 0);
        while ended < posted {
            // Of each window of blocks the first are given up, and then those that waited for them.
            let is_bounded = with_path_ns < posted * 2 * config.refused_give_up_ns
                || losses < posted * u64::from(2 * config.max_attempts);
            assert!(is_bounded, "seed {seed}: {ended} of {posted} ended, {losses} losses");
            let until = now.after_ns(1 + random.below(most_up_ns));
            with_path_ns += until.since_ns(now);
            loop {
                while let Some(action) = engine.poll(now) {
                    if let Action::Complete(completion) = action {
                        assert!(completion.status.is_err());
                        ended += 1;
                    } else if random.per_million(answers)
                        && let Some(answer) = useless_answer(&mut random, &action)
                    {
                        let _ = engine.handle(now, OTHER, &answer);
                    }
                }
                match engine.deadline() {
                    Some(due) if due <= until => now = now.max(due),
                    _ => break,
                }
                engine.expire(now);
            }
            now = until;
            engine.path_lost(now, OTHER, PathId(0));
            now = now.after_ns(random.below(2 * SECOND));
            engine.expire(now);
            assert!(engine.add_path(now, OTHER, PathId(0)));
            losses += 1;
        }
        while let Some(action) = engine.poll(now) {
            assert!(!matches!(action, Action::Complete(_)), "seed {seed}: ended twice");
        }
        assert!(engine.is_idle(), "seed {seed}");
        assert_eq!(engine.counters().illegal_transitions, 0);
    });
}

/// The same path of a peer that answers costs no transfer, unless there is no time to answer.
#[test]
fn an_honest_peer_that_loses_and_regains_its_only_path_has_all() {
    run(100, "an_honest_peer_that_loses_and_regains_its_only_path_has_all", |seed| {
        let mut bench = Bench::new(Config::default(), seed, 4 << 20);
        for number in 0..12 {
            let direction = if number % 2 == 0 { Direction::Read } else { Direction::Write };
            let bytes = 1 + bench.random.below(200_000) as u32;
            bench.post(number / 6, direction, bytes, true, None).expect("memory").expect("room");
        }
        while bench.open > 0 {
            let steps = 1 + bench.random.below(30);
            for _ in 0..steps {
                bench.step();
            }
            bench.leave_wire(0);
            let end = bench.now().after_ns(bench.random.below(20 * SECOND));
            bench.skip_to(end);
            bench.heal_wire(0);
        }
        bench.settle(SECOND);
        assert!(bench.watched.iter().all(|watched| watched.status == Some(Ok(()))), "seed {seed}");
        bench.check_memory();
    });
}

const BLOCK_BYTES: u32 = 16 * 1024;

fn request(number: u32, watermark: u32, domain: u16, size_bytes: u32) -> Packet<'static> {
    Packet::ReadRequest(ReadRequest {
        request: RequestId(number),
        watermark: RequestId(watermark),
        attempt: tombolo_wire::Attempt(0),
        domain: Domain(domain),
        size_bytes,
        source_address: BASE,
        destination_address: 2 * BASE,
        notification: None,
        class: None,
    })
}

/// The acknowledgement of all that an action asks to be placed or written.
fn acknowledgement(action: &Action) -> Option<Packet<'static>> {
    let (transaction, generation, attempt, bytes_only) = match action {
        Action::SendBlock(block) => {
            let is_later = block.notification == BlockNotification::Later;
            (block.transaction, block.generation, block.attempt, is_later)
        }
        Action::Send { packet: Packet::Notify(header) | Packet::NotifyAfter(header, _), .. } => {
            (header.transaction, header.generation, header.attempt, false)
        }
        Action::Send { packet: Packet::Data(header, _), .. } => {
            let is_elsewhere = header.notification == NotificationMark::Elsewhere;
            (header.transaction, header.generation, header.attempt, is_elsewhere)
        }
        _ => return None,
    };
    Some(Packet::Ack(Ack { transaction, generation, attempt, bytes_only }))
}

/// An engine with peers that read and are stopped, and one that reads and answers.
struct Crowd {
    engine: Engine,
    now: Time,
    /// Packets and blocks that a stopped peer's link holds at most.
    most: usize,
    /// What the links of stopped peers hold; `None`: they have gone on.
    held: Option<BTreeMap<PeerId, Vec<Action>>>,
    /// The honest peer's reads that are not answered: when each was asked for.
    asked: BTreeMap<u32, Time>,
    next_request: u32,
    answered: u32,
    /// The longest that a read of the honest peer may wait.
    patience_ns: u64,
    /// Reads of stopped peers that were turned away.
    turned_away: BTreeSet<(PeerId, u32)>,
}

impl Crowd {
    const HONEST: PeerId = PeerId(0);

    fn is_stopped(&self, peer: PeerId) -> bool {
        peer != Self::HONEST && self.held.is_some()
    }

    fn ask(&mut self) {
        let number = self.next_request;
        self.next_request += 1;
        let watermark = self.asked.keys().next().copied().unwrap_or(number);
        self.asked.insert(number, self.now);
        let _ = self.engine.handle(self.now, Self::HONEST, &request(number, watermark, 1, BLOCK_BYTES));
    }

    fn perform(&mut self) {
        while let Some(action) = self.engine.poll(self.now) {
            let peer = match &action {
                Action::SendBlock(block) => block.peer,
                Action::Send { peer, .. } => *peer,
                other => panic!("{other:?}: this node asks for nothing"),
            };
            if self.is_stopped(peer) {
                let held = self.held.as_mut().expect("some are stopped").entry(peer).or_default();
                match &action {
                    Action::SendBlock(block) if held.len() >= self.most => {
                        self.engine.link_full(self.now, block);
                    }
                    _ => held.push(action),
                }
            } else {
                self.answer(peer, &action);
            }
        }
    }

    fn answer(&mut self, peer: PeerId, action: &Action) {
        if let Action::Send { packet: Packet::ReadReject(reject), .. } = action {
            assert_ne!(peer, Self::HONEST, "{reject:?}");
            self.turned_away.insert((peer, reject.request.0));
        }
        if let Some(answer) = acknowledgement(action) {
            let _ = self.engine.handle(self.now, peer, &answer);
        }
        if let Action::SendBlock(block) = action
            && peer == Self::HONEST
        {
            let request = block.in_reply_to.expect("an answer");
            self.answered += u32::from(self.asked.remove(&request.0).is_some());
        }
    }

    /// Runs until then; the honest peer reads again and again, and each read is answered in time.
    fn run_until(&mut self, end: Time, seed: u64, random: &mut Random) {
        while self.now < end {
            self.engine.expire(self.now);
            if self.asked.len() < 4 {
                self.ask();
            }
            self.perform();
            for (number, asked_at) in &self.asked {
                let waited_ns = self.now.since_ns(*asked_at);
                assert!(
                    waited_ns < self.patience_ns,
                    "seed {seed}: read {number} waits, {} done",
                    self.answered
                );
            }
            let next = self.now.after_ns(1 + random.below(SECOND / 5));
            self.now = self.engine.deadline().map_or(next, |due| due.clamp(self.now.after_ns(1), next));
        }
    }
}

/// Many peers read and are stopped, more than the table has slots for. One that is not stopped goes on soon. What
/// is not in the way of others waits, and the stopped have it when they go on; the rest they are told.
#[test]
fn stopped_readers_keep_no_other_out() {
    let (mut crowded, mut roomy) = (0, 0);
    let count = run(20, "stopped_readers_keep_no_other_out", |seed| {
        let mut random = Random::new(seed);
        let config = Config { transactions: random.among(&[64, 256, 1024]), ..Config::default() };
        let stopped = random.among(&[1, 8, 64]);
        // A quarter of the table is free again each time: peers to which nothing was sent yet take it in turn.
        let quarters = u64::from(stopped) * 4 / u64::from(config.transactions);
        let mut crowd = Crowd {
            patience_ns: (7 + 5 * quarters) * SECOND,
            engine: Engine::new(config),
            now: Time(0),
            most: random.among(&[usize::MAX, 64, 5]),
            held: Some(BTreeMap::new()),
            asked: BTreeMap::new(),
            next_request: 0,
            answered: 0,
            turned_away: BTreeSet::new(),
        };
        for peer in 0..=stopped {
            crowd.engine.add_peer(crowd.now, PeerId(peer));
        }
        let mut read = 0;
        for peer in 1..=stopped {
            let (reads, size_bytes) = random.among(&[(3, 1000), (100, 1000), (60, 200_000)]);
            for number in 0..reads {
                let _ = crowd.engine.handle(crowd.now, PeerId(peer), &request(number, 0, 1, size_bytes));
                read += 1;
            }
        }
        // So the one that goes on may begin that much later.
        let end = Time((30 + 5 * quarters) * SECOND);
        crowd.run_until(end, seed, &mut random);
        assert!(crowd.answered > 100, "seed {seed}: {} answered", crowd.answered);
        // Half of the stopped readers' blocks find room: none had to give way.
        let blocks_of_all = read * 2;
        let has_room = blocks_of_all < usize::from(config.transactions) / 2;

        let held = crowd.held.take().expect("some are stopped");
        for (peer, actions) in held {
            for action in actions {
                crowd.answer(peer, &action);
            }
            crowd.engine.link_has_room(peer, PathId(0));
        }
        crowd.run_until(end.after_ns(10 * SECOND), seed, &mut random);
        if has_room {
            assert!(crowd.turned_away.is_empty(), "seed {seed}: {:?}", crowd.turned_away);
            roomy += 1;
        }
        crowded += u32::from(!crowd.turned_away.is_empty());
        assert!(crowd.turned_away.len() < read, "seed {seed}: all {read} were turned away");
        while !crowd.asked.is_empty() {
            crowd.perform();
        }
        assert!(crowd.engine.is_idle(), "seed {seed}");
        assert_eq!(crowd.engine.counters().illegal_transitions, 0, "seed {seed}");
    });
    if count >= 10 {
        assert!(crowded > 0 && roomy > 0, "{crowded} crowded, {roomy} with room");
    }
}

/// A stopped reader that holds little has it when it goes on, although others keep the table full.
#[test]
fn a_lone_stopped_reader_keeps_its_answer_beside_busy_peers() {
    run(10, "a_lone_stopped_reader_keeps_its_answer_beside_busy_peers", |seed| {
        const STOPPED: PeerId = PeerId(0);
        let mut random = Random::new(seed);
        let mut engine = Engine::new(Config { transactions: 64, congestion: None, ..Config::default() });
        let mut now = Time(0);
        for peer in 0..=4 {
            engine.add_peer(now, PeerId(peer));
        }
        let _ = engine.handle(now, STOPPED, &request(0, 0, 1, 1000));
        let (mut kept, mut under_way, mut next) = (Vec::new(), Vec::new(), [0; 5]);
        let mut fullest = 0;
        while now < Time(20 * SECOND) {
            for peer in 1..=4 {
                let first = next[peer as usize];
                for number in first..first + 24 {
                    let domain = 1 + (number % 8) as u16;
                    let _ = engine.handle(now, PeerId(peer), &request(number, first, domain, 400_000));
                }
            }
            while let Some(action) = engine.poll(now) {
                match &action {
                    Action::SendBlock(block) if block.peer == STOPPED => kept.push(action),
                    Action::SendBlock(block) => under_way.push((block.peer, action)),
                    Action::Send { peer: STOPPED, packet: Packet::ReadReject(_), .. } => {
                        panic!("seed {seed}: the stopped reader is turned away at {now:?}");
                    }
                    Action::Send { .. } => {}
                    other => panic!("{other:?}: this node asks for nothing"),
                }
            }
            // Timers run while all that the busy have asked for is under way.
            fullest = fullest.max(under_way.len());
            now = now.after_ns(1 + random.below(SECOND / 20));
            engine.expire(now);
            for (peer, action) in under_way.drain(..) {
                if let Some(answer) = acknowledgement(&action) {
                    let _ = engine.handle(now, peer, &answer);
                }
                next[peer.index()] += u32::from(random.per_million(50_000));
            }
        }
        assert!(fullest > 48, "seed {seed}: {fullest} blocks of the busy were under way at most");
        let Some(Action::SendBlock(block)) = kept.pop() else { panic!("seed {seed}: nothing was sent") };
        assert!(engine.is_open(&block), "seed {seed}");
        let answer = acknowledgement(&Action::SendBlock(block)).expect("a block");
        let _ = engine.handle(now, STOPPED, &answer);
        assert!(!engine.is_open(&block), "seed {seed}");
    });
}
