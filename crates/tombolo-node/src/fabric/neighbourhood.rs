//! Keeps this node joined to the nodes that it wants: carries out the decisions of [`tombolo_core::fabric::neighbour`].
//!
//! Dials take long, so each is made on a thread of its own. The threads that drive links report what happens to the
//! links, and the reports wait here in a queue. So nothing in here holds up the engine's loop, whatever the other nodes
//! do.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use tombolo_core::fabric::neighbour::{
    Action, Change, CloseReason, Dial, DialOutcome, Event, Identity, LinkId, NeighbourId, Neighbours, Pauses,
    Proof,
};
use tombolo_core::rdma::PeerId;
use tombolo_core::store::Who;
use tombolo_host::timing::node as timing;
use tombolo_link::{Address, Link, LossReason, Security};

use crate::fabric::connection::Connection;
use crate::fabric::joining;
use crate::fabric::life::Life;
use crate::fabric::link_driver::{JoinError, LinkDriver};
use crate::fabric::messages::{Message, MessageV1, Reply, Request};
use crate::fabric::table::Fabric;
use crate::fabric::wanted::WantedNeighbours;

/// Most requests to be joined that wait at once. Further ones are refused, and their senders ask again.
const MAX_JOINING: usize = 256;

/// What has happened to a neighbour, for people.
#[derive(Debug)]
pub enum NeighbourEvent<'a> {
    /// The neighbour is joined: the first time, or again.
    Joined {
        /// Its first address, as it was named.
        address: &'a Address,
        /// What it calls itself.
        name: String,
        /// Whether it was joined before.
        again: bool,
    },
    /// Its last link is lost.
    Lost {
        /// Its first address, as it was named.
        address: &'a Address,
        /// Why.
        reason: String,
    },
    /// The neighbour cannot be joined now by one of its addresses. It is tried again. Told only if the reason differs
    /// from the last one for that address since the neighbour was last joined.
    Failed {
        /// The address that was tried.
        address: &'a Address,
        /// Why.
        reason: String,
    },
    /// The neighbour is joined, but cannot be reached by this further address now. The address is tried again. Told
    /// only if the reason differs from the last one since the address could be reached.
    PathFailed {
        /// The address that was tried.
        address: &'a Address,
        /// Why.
        reason: String,
    },
}

/// Outcome of an attempt to add a path to a neighbour.
#[derive(Debug)]
enum PathOutcome {
    Up(Arc<Connection>),
    /// The neighbour has enough paths, or is lost.
    NotNeeded,
    Failed(String),
}

/// A report of what happened to a link or a dial.
#[derive(Debug)]
enum Report {
    Event(Event),
    /// A dial has failed, and why.
    Failed(Dial, String),
    /// A peer asks to be joined by this link. The flag says whether it insists.
    Came(Arc<Connection>, Joining, bool),
    /// An attempt to add a path has ended.
    Path(Dial, PathOutcome),
}

/// Reports what happens to links; held by the fabric.
#[derive(Debug)]
pub(crate) struct LinkReports {
    sender: Sender<Report>,
    /// Number of peers that wait to be joined.
    joining: Mutex<usize>,
    /// The state of the neighbours that are wanted.
    wanted: Arc<WantedNeighbours>,
}

impl LinkReports {
    /// Queues a report. When the node stops, the queue has no receiver any more, and the report is dropped.
    fn send(&self, report: Report) {
        let _ = self.sender.send(report);
    }

    /// Reports that a peer is lost, with all its links.
    pub(crate) fn lost(&self, peer: PeerId) {
        self.send(Report::Event(Event::Lost(LinkId(peer.0))));
    }

    /// Reports that a peer is silent on all its links, or is heard again.
    pub(crate) fn suspected(&self, peer: PeerId, is_suspect: bool) {
        self.send(Report::Event(Event::Suspected(LinkId(peer.0), is_suspect)));
    }
}

/// A peer's request to be joined, while it waits for its answer.
#[derive(Debug)]
struct Joining {
    number: u32,
    name: String,
    life: Life,
}

/// Keeps a node joined to the neighbours that it wants.
pub struct Neighbourhood {
    driver: Arc<dyn LinkDriver>,
    wanted: Vec<Vec<Address>>,
    security: Security,
    reports: Receiver<Report>,
    sender: Sender<Report>,
    seed: u64,
    /// Links whose requests to be joined wait for answers.
    joining: HashMap<LinkId, (Arc<Connection>, Joining)>,
    /// The peer that each joined neighbour is. After a loss it stays until the loss is reported.
    reached: HashMap<NeighbourId, Arc<Connection>>,
    /// Paths of neighbours beside the first link, by the index of the address.
    paths: HashMap<(NeighbourId, usize), Arc<Connection>>,
    /// Index of the address by which a neighbour's first link was dialed, and that link.
    firsts: HashMap<NeighbourId, (usize, LinkId)>,
    /// The state of the neighbours, for the node's status.
    known: Arc<WantedNeighbours>,
}

fn proof_of(link: &dyn Link) -> Proof {
    match (link.peer_key(), link.peer_process_identity()) {
        (Some(key), _) => Proof::Key(key.to_bytes()),
        // The kernel names a process in another pid namespace by the number 0.
        (None, Some((process, began))) if process != 0 => Proof::Process(process, began),
        (None, _) => Proof::Nothing,
    }
}

impl Fabric {
    /// The state of the neighbours that this node wants, if it has a neighbourhood.
    pub(crate) fn wanted(&self) -> Option<&WantedNeighbours> {
        self.reports.get().map(|reports| &*reports.wanted)
    }

    /// Handles a peer's request to be joined by this link. `None`: it is answered later.
    pub(crate) fn ask_to_be_joined(
        &self,
        connection: &Arc<Connection>,
        number: u32,
        name: String,
        life: Life,
        insists: bool,
    ) -> Option<Reply> {
        let Some(reports) = self.reports.get() else {
            // This node has no neighbourhood: it accepts links as they come.
            return Some(self.introduce(connection, &name, life));
        };
        let mut joining = reports.joining.lock();
        if connection.is_part() || *joining >= MAX_JOINING {
            return Some(Reply::Failed("this node cannot join by this link now".into()));
        }
        *joining += 1;
        reports.send(Report::Came(connection.clone(), Joining { number, name, life }, insists));
        None
    }
}

/// Connects to an address and asks to be joined.
fn dial_and_join(
    driver: &dyn LinkDriver,
    address: &Address,
    security: &Security,
    insists: bool,
) -> Result<DialOutcome, JoinError> {
    let fabric = driver.fabric();
    let link = tombolo_link::connect(address, security, timing::DIAL_TIMEOUT)?;
    let connection = fabric.add_peer(link);
    connection.neighbour().is_wanted.store(true, Ordering::Relaxed);
    let request = Request::Join { name: fabric.name().to_owned(), life: fabric.life(), insists };
    let proof = proof_of(&*connection.link);
    let answer = driver.ask_by(&connection, request, timing::DIAL_TIMEOUT);
    let refused = |why: String| JoinError::Refused(address.clone(), why);
    let outcome = match answer {
        Ok((Reply::Introduced { name, life }, _)) => {
            let identity = Identity { proof, life: life.0 };
            let introduced = fabric.introduced(&connection, &name, life).map_err(refused);
            introduced.map(|()| DialOutcome::Joined(LinkId(connection.id.0), identity))
        }
        Ok((Reply::JoinedAlready { life }, _)) => Ok(DialOutcome::Refused(Identity { proof, life: life.0 })),
        Ok((Reply::Failed(why), _)) => Err(refused(why)),
        Ok((other, _)) => Err(refused(format!("{other:?}"))),
        Err(error) => Err(JoinError::Ask(address.clone(), error)),
    };
    if !matches!(outcome, Ok(DialOutcome::Joined(..))) {
        close(driver, &connection, LossReason::Superseded);
    }
    outcome
}

/// Connects to an address and asks which node answers there.
fn identify(driver: &dyn LinkDriver, address: &Address, security: &Security) -> Option<Identity> {
    let link = tombolo_link::connect(address, security, timing::DIAL_TIMEOUT).ok()?;
    let connection = driver.fabric().add_peer(link);
    connection.neighbour().is_wanted.store(true, Ordering::Relaxed);
    let answer = driver.ask_by(&connection, Request::Identify, timing::DIAL_TIMEOUT);
    let proof = proof_of(&*connection.link);
    close(driver, &connection, LossReason::ClosedByPeer);
    match answer {
        Ok((Reply::Introduced { life, .. }, _)) => Some(Identity { proof, life: life.0 }),
        _ => None,
    }
}

/// Asks which node answers at a neighbour's address: the same life as at `connection`, or the next one.
pub(crate) fn who_answers(
    driver: &dyn LinkDriver,
    connection: &Arc<Connection>,
    address: &Address,
    security: &Security,
) -> Who {
    match connection.identity().zip(identify(driver, address, security)) {
        // Only the same key, or the same process by the kernel's word, proves that this is a life of the same node.
        Some((known, found)) if found.proof == proof_of(&*connection.link) => {
            if found.life == known.life.0 {
                Who::Same
            } else {
                Who::NextLife
            }
        }
        _ => Who::Unknown,
    }
}

/// Connects to a neighbour by a further address of it.
fn add_path(
    driver: &dyn LinkDriver,
    first: &Arc<Connection>,
    address: &Address,
    security: &Security,
) -> Result<Arc<Connection>, JoinError> {
    let token = match driver.ask_by(first, Request::PathToken, timing::DIAL_TIMEOUT) {
        Ok((Reply::PathToken(token), _)) => token,
        Ok((Reply::Failed(why), _)) => return Err(JoinError::Refused(address.clone(), why)),
        Ok((other, _)) => return Err(JoinError::Refused(address.clone(), format!("{other:?}"))),
        Err(error) => return Err(JoinError::Ask(address.clone(), error)),
    };
    joining::join_as_path(driver, first, token, address, security, timing::DIAL_TIMEOUT)
}

/// Ends all links of a neighbour.
pub(crate) fn close(driver: &dyn LinkDriver, first: &Arc<Connection>, reason: LossReason) {
    let further = first.neighbour().further.read().clone();
    for connection in further.iter().chain([first]) {
        connection.link.close(reason);
        driver.mark_lost(connection, reason);
    }
    driver.forget_lost(first);
}

impl std::fmt::Debug for Neighbourhood {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Neighbourhood").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Neighbourhood {
    fn fabric(&self) -> &Fabric {
        self.driver.fabric()
    }

    /// A neighbourhood for these neighbours, each with its addresses. The node must have no peers yet, because the
    /// neighbours get the first numbers. Nothing happens before [`Neighbourhood::keep`].
    pub fn new<D: LinkDriver + 'static>(
        node: &Arc<D>,
        wanted: Vec<Vec<Address>>,
        security: &Security,
    ) -> io::Result<Self> {
        let mut seed = [0; 8];
        SystemRandom::new().fill(&mut seed).map_err(|_| io::Error::other("no random numbers"))?;
        let (sender, reports) = mpsc::channel();
        let known = Arc::new(WantedNeighbours::new(&wanted));
        let (fabric, to_report) = (
            node.fabric(),
            LinkReports { sender: sender.clone(), joining: Mutex::new(0), wanted: known.clone() },
        );
        if !fabric.keep_numbers(wanted.len()) || fabric.reports.set(to_report).is_err() {
            return Err(io::Error::other("this node has peers already, or is to have too many"));
        }
        Ok(Self {
            driver: node.clone(),
            wanted,
            security: security.clone(),
            reports,
            sender,
            seed: u64::from_le_bytes(seed),
            joining: HashMap::new(),
            reached: HashMap::new(),
            paths: HashMap::new(),
            firsts: HashMap::new(),
            known,
        })
    }

    /// Joins the neighbours, and joins lost ones again, until `stop` is set. Other threads must serve the node
    /// meanwhile.
    pub fn keep(mut self, stop: &AtomicBool, told: &dyn Fn(NeighbourEvent<'_>)) {
        let addresses: Vec<usize> = self.wanted.iter().map(Vec::len).collect();
        let looks = addresses.iter().any(|count| *count > 1);
        let longest = if looks { timing::NEIGHBOUR_PATHS_PAUSE } else { timing::MAX_SLEEP };
        let (life, now) = (self.fabric().life().0, self.fabric().now());
        let mut machine = Neighbours::new(life, &addresses, Pauses::default(), self.seed, now);
        let mut event = Event::Elapsed;
        while !stop.load(Ordering::Relaxed) {
            self.handle(&mut machine, event, told);
            if looks {
                self.look_at_paths(&mut machine, told);
            }
            let now = self.fabric().now();
            let until = machine.next_deadline().map(|deadline| Duration::from_nanos(deadline.since_ns(now)));
            let sleep = until.map_or(longest, |until| until.min(longest));
            event = match self.reports.recv_timeout(sleep) {
                Ok(report) => self.event_of(report, told),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Event::Elapsed,
            };
        }
    }

    fn handle(&mut self, machine: &mut Neighbours, event: Event, told: &dyn Fn(NeighbourEvent<'_>)) {
        let newcomer = match &event {
            Event::Dialed(dial, DialOutcome::Joined(link, _)) => {
                self.firsts.insert(dial.neighbour(), (dial.address(), *link));
                Some(*link)
            }
            Event::Came { link, .. } => Some(*link),
            _ => None,
        };
        machine.handle(self.fabric().now(), event);
        self.act(machine, told);
        // The link may have been lost before it was known here.
        if let Some(link) = newcomer
            && self.fabric().connection(PeerId(link.0)).is_none_or(|peer| peer.loss().is_some())
        {
            machine.handle(self.fabric().now(), Event::Lost(link));
            self.act(machine, told);
        }
    }

    fn act(&mut self, machine: &mut Neighbours, told: &dyn Fn(NeighbourEvent<'_>)) {
        while let Some(action) = machine.poll() {
            self.carry_out(action, told);
        }
    }

    /// The event that a report means to the machine. Failures are told to people on the way.
    fn event_of(&mut self, report: Report, told: &dyn Fn(NeighbourEvent<'_>)) -> Event {
        match report {
            Report::Event(event) => event,
            Report::Failed(dial, reason) => {
                let (neighbour, address) = (dial.neighbour(), dial.address());
                if self.known.note_failure(neighbour, address, &reason)
                    && let Some(address) = self.address(neighbour, address)
                {
                    told(NeighbourEvent::Failed { address, reason });
                }
                Event::Dialed(dial, DialOutcome::Failed)
            }
            Report::Came(peer, joining, insists) => {
                let link = LinkId(peer.id.0);
                let identity = Identity { proof: proof_of(&*peer.link), life: joining.life.0 };
                self.joining.insert(link, (peer, joining));
                Event::Came { link, identity, insists }
            }
            Report::Path(dial, outcome) => {
                let (neighbour, address) = (dial.neighbour(), dial.address());
                let is_up = matches!(outcome, PathOutcome::Up(_));
                match outcome {
                    PathOutcome::Up(path) => {
                        self.known.reached(neighbour, address);
                        self.paths.insert((neighbour, address), path);
                    }
                    // The neighbour has enough paths by other addresses, or is lost.
                    PathOutcome::NotNeeded => self.known.reached(neighbour, address),
                    PathOutcome::Failed(reason) => {
                        if self.known.note_failure(neighbour, address, &reason)
                            && let Some(address) = self.address(neighbour, address)
                        {
                            told(NeighbourEvent::PathFailed { address, reason });
                        }
                    }
                }
                Event::PathAdded(dial, is_up)
            }
        }
    }

    fn address(&self, neighbour: NeighbourId, address: usize) -> Option<&Address> {
        self.wanted.get(neighbour.0 as usize)?.get(address)
    }

    /// Does the work of a dial on a thread of its own, and queues the report that the work returns. If the thread
    /// cannot be started, queues the report that `failed` returns.
    fn on_a_thread(
        &self,
        dial: Dial,
        failed: fn(Dial) -> Report,
        work: impl FnOnce(&dyn LinkDriver, &Address, &Security, Dial) -> Report + Send + 'static,
    ) {
        let Some(address) = self.address(dial.neighbour(), dial.address()).cloned() else { return };
        let (driver, security, sender) = (self.driver.clone(), self.security.clone(), self.sender.clone());
        // The thread takes the dial. If the thread cannot be started, the dial is taken back here.
        let shared = Arc::new(Mutex::new(Some(dial)));
        let taken = shared.clone();
        let started = std::thread::Builder::new().name("dial".into()).spawn(move || {
            if let Some(dial) = taken.lock().take() {
                let _ = sender.send(work(&*driver, &address, &security, dial));
            }
        });
        if started.is_err()
            && let Some(dial) = shared.lock().take()
        {
            let _ = self.sender.send(failed(dial));
        }
    }

    fn carry_out(&mut self, action: Action, told: &dyn Fn(NeighbourEvent<'_>)) {
        match action {
            Action::Dial { dial, insist } => {
                let failed = |dial| Report::Failed(dial, "cannot start a thread".into());
                self.on_a_thread(dial, failed, move |driver, address, security, dial| {
                    match dial_and_join(driver, address, security, insist) {
                        Ok(outcome) => Report::Event(Event::Dialed(dial, outcome)),
                        Err(error) => Report::Failed(dial, error.to_string()),
                    }
                });
            }
            Action::Probe(dial) => {
                let failed = |dial| Report::Event(Event::Probed(dial, None));
                self.on_a_thread(dial, failed, |driver, address, security, dial| {
                    let found = identify(driver, address, security);
                    Report::Event(Event::Probed(dial, found))
                });
            }
            Action::AddPath(dial, link) => self.add_path(dial, link),
            Action::Answer(link, accepted) => self.answer(link, accepted),
            Action::Close(link, reason) => {
                let reason = match reason {
                    CloseReason::Duplicate => LossReason::Superseded,
                    CloseReason::Restarted => LossReason::Restarted,
                };
                if let Some(first) = self.fabric().connection(PeerId(link.0)) {
                    close(&*self.driver, &first, reason);
                }
            }
            Action::Assign(neighbour, link) => self.assign(neighbour, link),
            Action::Report(neighbour, change) => self.report(neighbour, change, told),
        }
    }

    fn answer(&mut self, link: LinkId, accepted: bool) {
        let Some((connection, Joining { number, name, life })) = self.joining.remove(&link) else { return };
        let fabric = self.fabric();
        if let Some(reports) = fabric.reports.get() {
            *reports.joining.lock() -= 1;
        }
        let reply = if accepted {
            fabric.introduce(&connection, &name, life)
        } else {
            connection.neighbour().is_wanted.store(true, Ordering::Relaxed);
            Reply::JoinedAlready { life: fabric.life() }
        };
        let message = Message::V1(MessageV1::Answer { number, reply }).encode();
        // If the link does not take the answer, the other side asks again by another link.
        let _ = connection.link.send_control(&message, &[]);
    }

    fn assign(&mut self, neighbour: NeighbourId, link: Option<LinkId>) {
        let number = neighbour.0 + 1;
        self.paths.retain(|(of, _), _| *of != neighbour);
        let first = link.and_then(|link| self.fabric().connection(PeerId(link.0)));
        let numbers = &self.fabric().numbers;
        match first {
            Some(first) => {
                first.neighbour().is_wanted.store(true, Ordering::Relaxed);
                let life = first.neighbour().life();
                numbers.assign(number, Some((first.id, &*first.link, life)));
                self.reached.insert(neighbour, first);
            }
            // There is no link, or it is lost already. The loss is told next.
            None => numbers.assign(number, None),
        }
    }

    fn report(&mut self, neighbour: NeighbourId, change: Change, told: &dyn Fn(NeighbourEvent<'_>)) {
        let number = neighbour.0 + 1;
        let Some(address) = self.wanted.get(neighbour.0 as usize).and_then(|ways| ways.first()) else {
            return;
        };
        match change {
            Change::Joined | Change::JoinedAgain => {
                let fabric = self.fabric();
                let first = fabric.numbers.peer(number).and_then(|peer| fabric.connection(peer));
                let name = first.map_or_else(String::new, |first| first.neighbour().name());
                told(NeighbourEvent::Joined { address, name, again: change == Change::JoinedAgain });
                self.known.joined(neighbour);
            }
            Change::Lost => {
                let lost = self.reached.remove(&neighbour).and_then(|peer| peer.loss());
                let reason = lost.map_or_else(|| "its link is gone".into(), |reason| reason.to_string());
                self.known.lost(neighbour);
                told(NeighbourEvent::Lost { address, reason });
            }
            Change::IsItself => {
                // The machine reports it once.
                let reason = "this is the node itself: name others".to_owned();
                self.known.note_failure(neighbour, 0, &reason);
                told(NeighbourEvent::Failed { address, reason });
            }
        }
    }

    fn add_path(&self, dial: Dial, link: LinkId) {
        let first = self.fabric().connection(PeerId(link.0));
        let ways = self.wanted.get(dial.neighbour().0 as usize);
        let wants_more = first.as_ref().zip(ways).is_some_and(|(first, ways)| {
            // The other side may have added paths, too.
            first.neighbour().further.read().len() + usize::from(first.has_link()) < ways.len()
        });
        let Some(first) = first.filter(|_| wants_more) else {
            let _ = self.sender.send(Report::Path(dial, PathOutcome::NotNeeded));
            return;
        };
        let failed = |dial| Report::Path(dial, PathOutcome::Failed("cannot start a thread".into()));
        self.on_a_thread(dial, failed, move |driver, address, security, dial| {
            let outcome = match add_path(driver, &first, address, security) {
                Ok(path) => PathOutcome::Up(path),
                // The neighbour is lost. That is told already, so this failure is not.
                Err(_) if first.loss().is_some() => PathOutcome::NotNeeded,
                Err(error) => PathOutcome::Failed(error.to_string()),
            };
            Report::Path(dial, outcome)
        });
    }

    /// Finds the paths that are lost, and tells the machine.
    fn look_at_paths(&mut self, machine: &mut Neighbours, told: &dyn Fn(NeighbourEvent<'_>)) {
        let mut lost: Vec<(NeighbourId, usize)> =
            self.paths.iter().filter(|(_, part)| !part.has_link()).map(|(place, _)| *place).collect();
        lost.iter().for_each(|place| _ = self.paths.remove(place));
        // First links of neighbours that have other links.
        let fabric = self.driver.fabric();
        self.firsts.retain(|neighbour, (address, link)| {
            let Some(peer) = fabric.connection(PeerId(link.0)).filter(|peer| peer.loss().is_none()) else {
                return machine.link_of(*neighbour) == Some(*link);
            };
            if !peer.has_link() {
                lost.push((*neighbour, *address));
            }
            peer.has_link()
        });
        for (neighbour, address) in lost {
            self.handle(machine, Event::PathLost(neighbour, address), told);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use tombolo_core::rdma::Time;

    use super::*;
    use crate::driver::node::Node;

    /// A neighbourhood for one neighbour with two addresses, and the machine.
    fn two_addresses() -> (Neighbourhood, Neighbours) {
        let node = Arc::new(Node::new("near", 0, 0).unwrap());
        let ways = ["shm:/nobody/one", "shm:/nobody/two"].map(|address| address.parse().unwrap());
        let neighbourhood = Neighbourhood::new(&node, vec![ways.to_vec()], &Security::Insecure).unwrap();
        (neighbourhood, Neighbours::new([1; 16], &[2], Pauses::default(), 1, Time(0)))
    }

    #[test]
    fn each_address_of_an_absent_neighbour_is_told_of_once_for_each_reason() {
        let (mut neighbourhood, mut machine) = two_addresses();
        let told = RefCell::new(Vec::new());
        let tell = |event: NeighbourEvent<'_>| match event {
            NeighbourEvent::Failed { address, reason } => {
                told.borrow_mut().push(format!("{address}: {reason}"))
            }
            other => panic!("{other:?}"),
        };
        let (mut now, mut dials) = (Time(0), 0);
        while dials < 8 {
            machine.handle(now, Event::Elapsed);
            while let Some(Action::Dial { dial, .. }) = machine.poll() {
                dials += 1;
                // The last two dials fail for another reason.
                let reason = format!("{} {}", if dials > 6 { "refused" } else { "nobody" }, dial.address());
                let event = neighbourhood.event_of(Report::Failed(dial, reason), &tell);
                machine.handle(now, event);
            }
            now = machine.next_deadline().unwrap();
        }
        let wanted = ["one: nobody 0", "two: nobody 1", "one: refused 0", "two: refused 1"];
        assert_eq!(told.into_inner(), wanted.map(|rest| format!("shm:/nobody/{rest}")));
    }

    #[test]
    fn a_further_address_that_is_wrong_is_told_of_once() {
        let (mut neighbourhood, mut machine) = two_addresses();
        let told = RefCell::new(Vec::new());
        let tell = |event: NeighbourEvent<'_>| {
            if let NeighbourEvent::PathFailed { address, reason } = event {
                told.borrow_mut().push(format!("{address}: {reason}"));
            }
        };
        machine.handle(Time(0), Event::Elapsed);
        let Some(Action::Dial { dial, .. }) = machine.poll() else { panic!("it is not dialed") };
        let identity = Identity { proof: Proof::Key([9; 32]), life: [9; 16] };
        machine.handle(Time(0), Event::Dialed(dial, DialOutcome::Joined(LinkId(7), identity)));
        let (mut now, mut attempts) = (Time(0), 0);
        while attempts < 5 {
            while let Some(action) = machine.poll() {
                let Action::AddPath(dial, _) = action else { continue };
                attempts += 1;
                assert_eq!(dial.address(), 1);
                let outcome = PathOutcome::Failed("it is another node".into());
                let event = neighbourhood.event_of(Report::Path(dial, outcome), &tell);
                machine.handle(now, event);
            }
            now = machine.next_deadline().unwrap_or(now);
            machine.handle(now, Event::Elapsed);
        }
        assert_eq!(told.into_inner(), ["shm:/nobody/two: it is another node"]);
    }
}
