//! Requests of programs to their node, and the answers.
//!
//! Work that may take long (memory, descriptors that a program passes) is done in the pool and answered from there. The
//! thread that receives programs must not wait, because it also handles their wake-up messages.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_channel::{Faults, Grant, PeerLife, PeerStatus, Reply, Request, Touch, Who};
use tombolo_core::iommu::{FaultMode, FaultPolicy, TouchPolicy};
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::pool::{BlockingTask, Step};
use tombolo_host::shared::SharedMemory;
use tombolo_host::timing::node as timing;
use tombolo_host::unix::UnixError;

use super::access::OwnAccess;
use super::domain::ProgramDomain;
use super::domains::{Programs, Region};
use super::windows::{self, AskedWindow, Window, Windows};
use crate::fabric::connection::Connection;
use crate::fabric::table::{Fabric, ITSELF};
use crate::memory::allocation::Allocation;
use crate::memory::reclaim::{Reclaimer, Room, Segment, TakeError};

/// The nodes that programs can name.
fn peer_statuses(fabric: &Fabric) -> Vec<PeerStatus> {
    let itself = PeerStatus { node: ITSELF.0, name: fabric.name().to_owned() };
    // A wanted node that is still being dialed is not listed.
    let is_dial = |connection: &Connection| {
        let neighbour = connection.neighbour();
        neighbour.is_wanted.load(Ordering::Relaxed) && neighbour.life().is_none()
    };
    let first = |connection: &Arc<Connection>| !connection.is_part() && !is_dial(connection);
    let others = fabric.connections().into_iter().filter(first).map(|connection| PeerStatus {
        node: fabric.numbers.number(connection.id),
        name: connection.neighbour().name(),
    });
    std::iter::once(itself).chain(others).collect()
}

/// The known lives of the nodes that programs can name.
fn peer_lives(fabric: &Fabric) -> Vec<PeerLife> {
    let itself = PeerLife { node: ITSELF.0, life: fabric.life().0 };
    let others = fabric.connections().into_iter().filter(|connection| !connection.is_part());
    let others = others.filter_map(|connection| {
        let life = connection.neighbour().life()?.0;
        Some(PeerLife { node: fabric.numbers.number(connection.id), life })
    });
    std::iter::once(itself).chain(others).collect()
}

/// Replaces a neighbour's number by that of its life: the one that has the neighbour's number, or the first that will
/// have it.
fn noted_who(fabric: &Fabric, who: Who) -> Who {
    match who {
        Who::Node(number) => Who::Node(fabric.numbers.life_called(number)),
        Who::Anyone | Who::Program(_) => who,
    }
}

fn noted(fabric: &Fabric, mut grants: Vec<Grant>) -> Vec<Grant> {
    grants.iter_mut().for_each(|grant| grant.who = noted_who(fabric, grant.who));
    grants
}

fn policy_of(faults: Faults) -> FaultPolicy {
    FaultPolicy {
        touch: match faults.touch {
            Touch::Page => TouchPolicy::Page,
            Touch::Ahead(pages) => TouchPolicy::Ahead(pages),
            Touch::Adaptive => TouchPolicy::Adaptive,
        },
        mode: if faults.terminates { FaultMode::Terminate } else { FaultMode::Stall },
    }
}

impl Programs {
    /// Answers a program's request, or starts a task that answers it.
    pub(super) fn answer(
        self: &Arc<Self>,
        fabric: &Fabric,
        windows: &dyn Windows,
        domain: &Arc<ProgramDomain>,
        number: u32,
        request: Request,
        descriptors: Vec<PassedDescriptor>,
    ) -> Result<(), UnixError> {
        let programs = self;
        let work = match request {
            Request::Open { .. } | Request::Join { .. } => {
                return domain.reply(number, Reply::Failed("a domain is open already".into()), &[]);
            }
            Request::Invite => {
                let reply =
                    Programs::invite(domain).map_or_else(Reply::Failed, |secret| Reply::Invited { secret });
                return domain.reply(number, reply, &[]);
            }
            Request::Peers => return domain.reply(number, Reply::Peers(peer_statuses(fabric)), &[]),
            Request::Lives => return domain.reply(number, Reply::Lives(peer_lives(fabric)), &[]),
            Request::TakeFaultRegisters => {
                let registers = programs.take_fault_registers(domain);
                return domain.reply(number, Reply::FaultRegisters(registers), &[]);
            }
            Request::OpenMailbox { messages, senders } => {
                let senders = senders.into_iter().map(|who| noted_who(fabric, who)).collect();
                return match programs.open_mailbox(domain, messages, senders) {
                    Ok(mailbox) => domain.reply(number, Reply::Mailbox, &[mailbox.as_fd()]),
                    Err(reason) => domain.reply(number, Reply::Failed(reason), &[]),
                };
            }
            Request::Deregister { address } => {
                return programs.deregister(fabric.now(), domain, number, address);
            }
            Request::Free { address } => {
                // From now on the memory cannot be found.
                let mut regions = programs.regions.write();
                let is_there = Programs::of_process(&regions, domain, address).is_some();
                let region = is_there.then(|| regions.remove(&(domain.number, address))).flatten();
                drop(regions);
                let Some(mut region) = region else {
                    let reason = format!("no memory begins at {address:#x}");
                    return domain.reply(number, Reply::Failed(reason), &[]);
                };
                drop(region.window.take());
                let work = Work::Free(region, Instant::now());
                let task = ProgramTask { programs: programs.clone(), domain: domain.clone(), number, work };
                self.pools.blocking.give_back(domain.owner(), Box::new(task));
                return Ok(());
            }
            Request::Allocate { bytes, grants } => match Programs::check_allocation(bytes, &grants) {
                Ok(()) => Work::AwaitRoom(bytes, Wanted::Memory(noted(fabric, grants)), Instant::now()),
                Err(reason) => return domain.reply(number, Reply::Failed(reason), &[]),
            },
            Request::AllocateWindow { bytes, grants } => {
                let checked = Programs::check_allocation(bytes, &grants);
                match checked.and_then(|()| windows::is_writable(&grants)) {
                    Ok(is_writable) => {
                        let wanted = Wanted::Window(noted(fabric, grants), is_writable);
                        Work::AwaitRoom(bytes, wanted, Instant::now())
                    }
                    Err(reason) => return domain.reply(number, Reply::Failed(reason), &[]),
                }
            }
            Request::OpenWindow { address } => Work::OpenWindow(address),
            Request::WindowMoved { address } => {
                let moved = programs.moved(domain, address);
                return domain.reply(number, moved.map_or_else(Reply::Failed, |()| Reply::Done), &[]);
            }
            Request::RevokeWindow { address } => match programs.window_to_revoke(domain, address) {
                Ok((_, Some(successor))) => Work::Withdraw(address, successor, Instant::now()),
                Ok((bytes, None)) => Work::AwaitRoom(bytes, Wanted::Successor(address), Instant::now()),
                Err(reason) => return domain.reply(number, Reply::Failed(reason), &[]),
            },
            Request::MapWindow { target, address } if target.node == ITSELF.0 => {
                let mapped = programs.map_here(windows, domain, target, address).and_then(|place| {
                    let descriptors = place.descriptors().map_err(|error| error.to_string())?;
                    let is_writable = place.is_writable;
                    Ok((Reply::Window { bytes: place.bytes(), is_writable }, descriptors))
                });
                return match mapped {
                    Ok((reply, descriptors)) => {
                        domain.reply(number, reply, &descriptors.each_ref().map(AsFd::as_fd))
                    }
                    Err(reason) => domain.reply(number, Reply::Failed(reason), &[]),
                };
            }
            Request::MapWindow { target, address } => match AskedWindow::new(fabric, target, address) {
                Ok(asked) => Work::AwaitWindow(asked),
                Err(reason) => return domain.reply(number, Reply::Failed(reason), &[]),
            },
            Request::OpenAccess => {
                return match programs.open_access(domain) {
                    Ok(access) => domain.reply(number, Reply::Access, &[access.descriptor()]),
                    Err(reason) => domain.reply(number, Reply::Failed(reason), &[]),
                };
            }
            Request::Register { address, bytes, grants } => {
                let faults = FaultPolicy::default();
                Work::Register((address, bytes), noted(fabric, grants), faults, descriptors)
            }
            Request::RegisterV2 { address, bytes, grants, faults } => {
                Work::Register((address, bytes), noted(fabric, grants), policy_of(faults), descriptors)
            }
        };
        let owner = if matches!(work, Work::Register(..)) { domain.process_owner() } else { domain.owner() };
        let task = ProgramTask { programs: programs.clone(), domain: domain.clone(), number, work };
        match self.pools.blocking.offer(owner, Box::new(task)) {
            Ok(()) => Ok(()),
            Err(error) => domain.reply(number, Reply::Failed(error.to_string()), &[]),
        }
    }
}

/// What memory is allocated for.
enum Wanted {
    /// Memory of a domain.
    Memory(Vec<Grant>),
    /// A window, and whether it is writable.
    Window(Vec<Grant>, bool),
    /// The memory that the window at this address moves to when it is revoked.
    Successor(u64),
}

/// The state of a task for a program.
enum Work {
    /// Memory that was given back may have to be freed first. Waiting since then.
    AwaitRoom(u64, Wanted, Instant),
    Allocate(Allocation, Room, Wanted),
    OpenWindow(u64),
    /// The window at this address was revoked, so no new transfer reaches it. Waits until no earlier transfer uses
    /// it, and then answers with this memory, to which its contents are to move. The time is that at which the wait
    /// began.
    Withdraw(u64, Arc<SharedMemory>, Instant),
    /// Waits for the answer of another node.
    AwaitWindow(AskedWindow),
    Register((u64, u64), Vec<Grant>, FaultPolicy, Vec<PassedDescriptor>),
    /// This memory cannot be found any more. Waiting since then to free it.
    Free(Region, Instant),
    /// The answer that is to be sent, what goes with it, and until when to try.
    Answer(Reply, Passed, Instant),
    Over,
}

/// What goes with an answer.
enum Passed {
    Nothing,
    Memory(Arc<SharedMemory>),
    /// A window of another node's program.
    Window(Vec<PassedDescriptor>),
}

struct ProgramTask {
    programs: Arc<Programs>,
    domain: Arc<ProgramDomain>,
    number: u32,
    work: Work,
}

impl ProgramTask {
    /// Only this answer is left to be sent.
    fn answer(&mut self, reply: Reply, passed: Passed) -> Step {
        self.work = Work::Answer(reply, passed, Instant::now() + timing::ANSWER_TIMEOUT);
        Step::More
    }

    fn await_room(&mut self, bytes: u64, wanted: Wanted, since: Instant) -> Result<Step, String> {
        match self.programs.memory.take(bytes) {
            Err(TakeError::BeingFreed) if since.elapsed() < timing::ALLOCATE_FREEING_TIMEOUT => {
                self.work = Work::AwaitRoom(bytes, wanted, since);
                Ok(self.programs.memory.help_to_free())
            }
            Err(_) => Err(self.programs.reserve(bytes).map_or_else(|reason| reason, |_| "ask again".into())),
            Ok(room) => {
                let allocation = match &wanted {
                    Wanted::Window(_, false) => Allocation::for_readers(bytes),
                    Wanted::Memory(_) | Wanted::Window(_, true) | Wanted::Successor(_) => {
                        Allocation::new(bytes)
                    }
                };
                self.work = Work::Allocate(allocation.map_err(|error| error.to_string())?, room, wanted);
                Ok(Step::More)
            }
        }
    }

    /// Does the next step of the allocation. On an error, the allocation is dropped before its room, so that the room
    /// is free only when the memory is.
    fn allocate(&mut self, room: Room, mut allocation: Allocation, wanted: Wanted) -> Result<Step, String> {
        if !allocation.go_on().map_err(|error| error.to_string())? {
            self.work = Work::Allocate(allocation, room, wanted);
            return Ok(Step::More);
        }
        let memory = Arc::new(allocation.finish());
        let reclaimer = Reclaimer::new(self.programs.pools.clone(), self.domain.owner());
        let segment = Segment::new(memory.clone(), room, reclaimer);
        let (grants, window) = match wanted {
            Wanted::Memory(grants) => (grants, None),
            Wanted::Window(grants, is_writable) => (grants, Some(Window::new(is_writable)?)),
            Wanted::Successor(address) => {
                drop(memory);
                let memory = self.programs.revoke(&self.domain, address, segment)?;
                self.work = Work::Withdraw(address, memory, Instant::now());
                return Ok(Step::More);
            }
        };
        let address = self.programs.enter(&self.domain, segment, grants, window)?;
        Ok(self.answer(Reply::Allocated { address }, Passed::Memory(memory)))
    }

    fn withdraw(&mut self, address: u64, memory: Arc<SharedMemory>, since: Instant) -> Result<Step, String> {
        if !self.programs.is_reached(&self.domain, address) {
            return Ok(self.answer(Reply::Allocated { address }, Passed::Memory(memory)));
        }
        if since.elapsed() > timing::IN_USE_TIMEOUT {
            return Err("a transfer that was under way reaches the window still: try again".into());
        }
        self.work = Work::Withdraw(address, memory, since);
        Ok(Step::Waits)
    }

    fn await_window(&mut self, mut asked: AskedWindow) -> Result<Step, String> {
        let Some(answer) = asked.go_on() else {
            self.work = Work::AwaitWindow(asked);
            return Ok(Step::Waits);
        };
        let (reply, descriptors) = windows::answer_of(answer?)?;
        Ok(self.answer(reply, Passed::Window(descriptors)))
    }

    fn send(&mut self, reply: Reply, passed: Passed, until: Instant) -> Step {
        let descriptors: Vec<_> = match &passed {
            Passed::Nothing => Vec::new(),
            Passed::Memory(memory) => vec![memory.as_fd()],
            Passed::Window(descriptors) => descriptors.iter().map(AsFd::as_fd).collect(),
        };
        match self.domain.reply(self.number, reply.clone(), &descriptors) {
            Ok(()) => Step::Over,
            Err(UnixError::WouldBlock) if Instant::now() < until => {
                self.work = Work::Answer(reply, passed, until);
                Step::Waits
            }
            Err(_) => {
                // A program that does not take its answers would not know its state.
                self.domain.socket.hang_up();
                Step::Over
            }
        }
    }
}

impl BlockingTask for ProgramTask {
    fn step(&mut self) -> Step {
        let step = match std::mem::replace(&mut self.work, Work::Over) {
            Work::AwaitRoom(bytes, wanted, since) => self.await_room(bytes, wanted, since),
            Work::Allocate(allocation, room, wanted) => self.allocate(room, allocation, wanted),
            Work::Withdraw(address, memory, since) => self.withdraw(address, memory, since),
            Work::AwaitWindow(asked) => self.await_window(asked),
            Work::OpenWindow(address) => {
                let opened = self.programs.open_window(&self.domain, address);
                opened.map(|()| self.answer(Reply::Done, Passed::Nothing))
            }
            Work::Register(range, grants, faults, descriptors) => {
                let registered = self.programs.register(&self.domain, range, grants, faults, descriptors);
                registered.map(|()| self.answer(Reply::Done, Passed::Nothing))
            }
            Work::Free(mut region, since) => {
                // A thread that found the memory before copies or sends a block and then drops it.
                if region.segment.is_in_use() && since.elapsed() < timing::IN_USE_TIMEOUT {
                    self.work = Work::Free(region, since);
                    return Step::Waits;
                }
                drop(region);
                Ok(self.answer(Reply::Done, Passed::Nothing))
            }
            Work::Answer(reply, passed, until) => Ok(self.send(reply, passed, until)),
            Work::Over => Ok(Step::Over),
        };
        step.unwrap_or_else(|reason| self.answer(Reply::Failed(reason), Passed::Nothing))
    }
}

/// Waits until no other thread holds a closed access area and its helper has ended, and then drops it.
pub(super) struct LastAccess(pub(super) Arc<OwnAccess>);

impl BlockingTask for LastAccess {
    fn step(&mut self) -> Step {
        match (Arc::strong_count(&self.0), self.0.is_abandoned()) {
            (1, true) => Step::Over,
            (1, false) => Step::Rests,
            _ => Step::Waits,
        }
    }
}

/// Waits until no other thread holds a process that has left its domain, and then drops it.
pub(super) struct LastHolder(pub(super) Arc<ProgramDomain>);

impl BlockingTask for LastHolder {
    fn step(&mut self) -> Step {
        match Arc::strong_count(&self.0) {
            1 => Step::Over,
            _ => Step::Waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tombolo_channel::{MAX_MESSAGE_BYTES, Message, decode, encode};
    use tombolo_host::event;
    use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket};

    use std::time::Duration;

    use super::*;
    use crate::driver::node::Node;
    use crate::memory::blocking::{Owner, testing};

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// Ends the thread that receives programs even if the test fails, because the test would otherwise wait for that
    /// thread.
    struct Stopping<'a>(&'a AtomicBool);

    impl Drop for Stopping<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct Program(SeqpacketSocket);

    impl Program {
        fn ask(&self, number: u32, request: Request) {
            self.0.send(&[&encode(&Message::AskV2 { number, request })], &[]).unwrap();
        }

        fn answer(&self) -> (u32, Reply) {
            let mut buffer = vec![0; MAX_MESSAGE_BYTES];
            assert_eq!(event::wait_readable(&[self.0.as_fd()], Some(TIMEOUT)), Ok(true), "no answer");
            let received = self.0.receive(&mut buffer).unwrap();
            match decode(&buffer[..received.length_bytes]) {
                Some(Message::AnswerV2 { number, reply }) => (number, reply),
                other => panic!("{other:?}"),
            }
        }

        fn open(path: &std::path::Path, domain: u16) -> Self {
            let program = Self(SeqpacketSocket::connect(path).unwrap());
            program.ask(1, Request::Open { domain: Some(domain) });
            assert_eq!(program.answer(), (1, Reply::Opened { domain }));
            program
        }
    }

    #[test]
    fn allocating_for_one_program_holds_up_nobody_not_even_it() {
        const BYTES: u64 = 1 << 20;
        let node = Arc::new(Node::new("programs", 0, 0).unwrap());
        let path = std::env::temp_dir().join(format!("tombolo-requests-{}", std::process::id()));
        let listener = SeqpacketListener::bind(&path).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| crate::receive_programs(&node, &listener, &stop));
            let _stopping = Stopping(&stop);
            let slow = Program::open(&path, 1);
            let owner = node.programs.process((1, 0)).unwrap().owner();
            assert!(matches!(owner, Owner::Program(1, _)));
            let hanging = testing::hang(&node.programs.pools.blocking, owner);
            slow.ask(2, Request::Allocate { bytes: BYTES, grants: Vec::new() });
            slow.ask(3, Request::Peers);
            assert!(matches!(slow.answer(), (3, Reply::Peers(_))), "it waits for the allocation");
            let other = Program::open(&path, 2);
            other.ask(2, Request::Allocate { bytes: BYTES, grants: Vec::new() });
            let (2, Reply::Allocated { address }) = other.answer() else { panic!("not allocated") };
            other.ask(3, Request::Free { address });
            assert_eq!(other.answer(), (3, Reply::Done));
            drop(hanging);
            assert!(matches!(slow.answer(), (2, Reply::Allocated { .. })));
            // A program that ends while memory is allocated for it leaves none behind.
            let hanging = testing::hang(&node.programs.pools.blocking, owner);
            slow.ask(4, Request::Allocate { bytes: BYTES, grants: Vec::new() });
            slow.ask(5, Request::Peers);
            assert!(matches!(slow.answer(), (5, _)));
            drop(slow);
            let since = Instant::now();
            while node.programs.process((1, 0)).is_some() {
                assert!(since.elapsed() < TIMEOUT, "the domain stays open");
                std::thread::yield_now();
            }
            // The program's memory is released after its domain closes.
            while node.programs.memory.in_use_bytes() > 0 {
                assert!(since.elapsed() < TIMEOUT, "memory stays in use");
                std::thread::yield_now();
            }
            drop(hanging);
            while node.programs.memory.being_freed_bytes() > 0
                || node.programs.pools.blocking.waiting_of(owner) > 0
            {
                assert!(since.elapsed() < TIMEOUT, "memory is not freed");
                std::thread::yield_now();
            }
            assert!(node.programs.regions.read().is_empty());
        });
    }
}
