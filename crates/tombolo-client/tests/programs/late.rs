//! A node that answers after the program has given up waiting, and one that dies while a program polls.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tombolo_channel::{ChannelPage, MAX_MESSAGE_BYTES, Message, Reply, Request, decode, encode};
use tombolo_client::{Domain, Failure, OpenError, OwnMemory, Spec, Status, Target, WaitError, Who};
use tombolo_host::event;
use tombolo_host::shared::SharedMemory;
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

use crate::harness::{Host, PATIENCE, path, shm};

/// How long the program waits for a node that does not answer: however long, it is not answered meanwhile.
const SHORT: Duration = Duration::from_millis(20);

/// A node played by hand.
pub(crate) struct Slow {
    socket: SeqpacketSocket,
    pub(crate) page: ChannelPage,
}

impl Slow {
    fn receive(&self) -> (u32, Request) {
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        loop {
            match self.socket.receive(&mut buffer) {
                Ok(received) => match decode(&buffer[..received.length_bytes]) {
                    // This node makes the accesses to programs' memory.
                    Some(Message::AskV2 { number, request: Request::OpenAccess }) => {
                        self.answer(number, Reply::Failed("no area".into()), &[]);
                    }
                    Some(Message::AskV2 { number, request }) => return (number, request),
                    other => panic!("{other:?}"),
                },
                Err(UnixError::WouldBlock) => {
                    let readable = event::wait_readable(&[self.socket.as_fd()], Some(PATIENCE)).unwrap();
                    assert!(readable, "the program asks for nothing");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn answer(&self, number: u32, reply: Reply, descriptors: &[BorrowedFd<'_>]) {
        self.socket.send(&[&encode(&Message::AnswerV2 { number, reply })], descriptors).unwrap();
    }

    /// Tells a program that waits for a message that something has ended.
    pub(crate) fn say_ended(&self) {
        self.socket.send(&[&encode(&Message::EndedV1)], &[]).unwrap();
    }

    fn allocated(&self, number: u32, address: u64, first_byte: u8) {
        let memory = SharedMemory::create("late", 4096).unwrap();
        memory.span_mut(0, 1).unwrap().copy_from([first_byte].as_slice().into());
        self.answer(number, Reply::Allocated { address }, &[memory.as_fd()]);
    }
}

/// A domain at a node whose side `play` plays. It is let go on by what is sent.
pub(crate) fn at_slow_node(
    play: impl FnOnce(&Slow, &Receiver<()>) + Send + 'static,
) -> (Domain, Sender<()>, JoinHandle<()>) {
    let path = path("slow");
    let listener = SeqpacketListener::bind(&path).unwrap();
    let (go, may_go) = channel();
    let node = std::thread::spawn(move || {
        event::wait_readable(&[listener.as_fd()], Some(PATIENCE)).unwrap();
        let socket = listener.accept().unwrap().unwrap();
        let slow = Slow { socket, page: ChannelPage::create().unwrap() };
        let (number, request) = slow.receive();
        assert_eq!(request, Request::Open { domain: Some(3) });
        slow.answer(number, Reply::Opened { domain: 3 }, &[slow.page.as_fd()]);
        play(&slow, &may_go);
    });
    let domain = Domain::open(&path, Some(3)).unwrap();
    (domain, go, node)
}

fn is_timed_out<T>(result: Result<T, OpenError>) -> bool {
    matches!(result, Err(OpenError::TimedOut(_)))
}

#[test]
fn memory_that_comes_late_is_not_the_next_one_s_and_is_given_back() {
    let (domain, go, node) = at_slow_node(|node, may_go| {
        let (first, request) = node.receive();
        assert!(matches!(request, Request::Allocate { .. }), "{request:?}");
        may_go.recv().unwrap();
        node.allocated(first, 1 << 56, 1);
        let (second, request) = node.receive();
        assert!(matches!(request, Request::Allocate { .. }), "{request:?}");
        assert_ne!(first, second);
        let (third, request) = node.receive();
        assert_eq!(request, Request::Free { address: 1 << 56 });
        node.answer(third, Reply::Done, &[]);
        node.allocated(second, 2 << 56, 2);
        let (fourth, request) = node.receive();
        assert_eq!(request, Request::Peers);
        node.answer(fourth, Reply::Peers(Vec::new()), &[]);
    });
    domain.set_request_timeout(SHORT);
    assert!(is_timed_out(domain.allocate(4096, &[])));
    domain.set_request_timeout(PATIENCE);
    go.send(()).unwrap();
    let memory = domain.allocate(4096, &[]).unwrap();
    let mut byte = [0];
    memory.read(0, &mut byte).unwrap();
    assert_eq!((memory.address(), byte), (2 << 56, [2]));
    assert_eq!(domain.peers().unwrap(), []);
    node.join().unwrap();
}

#[test]
fn own_memory_that_is_registered_late_is_deregistered_and_one_deregistered_late_is_free() {
    let (domain, go, node) = at_slow_node(|node, may_go| {
        let (first, request) = node.receive();
        let Request::RegisterV2 { address, .. } = request else { panic!("{request:?}") };
        may_go.recv().unwrap();
        node.answer(first, Reply::Done, &[]);
        // The program waits for nothing, but looks at its messages.
        let (second, request) = node.receive();
        assert_eq!(request, Request::Deregister { address });
        node.answer(second, Reply::Done, &[]);
        // Another is registered, and deregistered late.
        let (third, request) = node.receive();
        assert!(matches!(request, Request::RegisterV2 { .. }), "{request:?}");
        node.answer(third, Reply::Done, &[]);
        let (fourth, request) = node.receive();
        let Request::Deregister { address } = request else { panic!("{request:?}") };
        may_go.recv().unwrap();
        node.answer(fourth, Reply::Done, &[]);
        let (fifth, request) = node.receive();
        assert_eq!(request, Request::Deregister { address });
        node.answer(fifth, Reply::Failed("no memory registered there".into()), &[]);
    });
    let map = || OwnMemory::map(4096).unwrap();
    domain.set_request_timeout(SHORT);
    assert!(is_timed_out(domain.register(map(), &[])));
    domain.set_request_timeout(PATIENCE);
    go.send(()).unwrap();
    assert!(event::wait_readable(&[domain.as_fd()], Some(PATIENCE)).unwrap());
    domain.drain().unwrap();
    let memory = domain.register(map(), &[]).unwrap();
    domain.set_request_timeout(SHORT);
    let failed = domain.deregister(memory).unwrap_err();
    assert!(matches!(failed.error, OpenError::TimedOut(_)), "{failed}");
    domain.set_request_timeout(PATIENCE);
    go.send(()).unwrap();
    let memory = domain.deregister(*failed.memory).unwrap();
    assert_eq!(memory.len(), 4096);
    node.join().unwrap();
}

#[test]
fn memory_that_may_be_registered_is_settled() {
    let (domain, go, node) = at_slow_node(|node, may_go| {
        let (first, request) = node.receive();
        let Request::RegisterV2 { address, .. } = request else { panic!("{request:?}") };
        may_go.recv().unwrap();
        node.answer(first, Reply::Done, &[]);
        let (second, request) = node.receive();
        assert_eq!(request, Request::Deregister { address });
        node.answer(second, Reply::Failed("a copy hangs".into()), &[]);
        let (third, request) = node.receive();
        assert_eq!(request, Request::Deregister { address });
        node.answer(third, Reply::Done, &[]);
    });
    let memory = OwnMemory::map(4096).unwrap();
    let address = memory.address();
    domain.set_request_timeout(SHORT);
    assert!(is_timed_out(domain.register(memory, &[])));
    assert!(is_timed_out(domain.settle(address)), "the node has not said yet what has become of it");
    domain.settle(address + 4096).unwrap();
    domain.set_request_timeout(PATIENCE);
    go.send(()).unwrap();
    let refused = domain.settle(address);
    assert!(matches!(&refused, Err(OpenError::Refused(reason)) if reason == "a copy hangs"), "{refused:?}");
    domain.settle(address).unwrap();
    domain.settle(address).unwrap();
    node.join().unwrap();
}

#[test]
fn a_late_deregistration_does_not_end_that_of_a_later_range() {
    let (domain, go, node) = at_slow_node(|node, may_go| {
        let register = |node: &Slow| {
            let (number, request) = node.receive();
            assert!(matches!(request, Request::RegisterV2 { .. }), "{request:?}");
            node.answer(number, Reply::Done, &[]);
        };
        let deregister = |node: &Slow| {
            let (number, request) = node.receive();
            assert!(matches!(request, Request::Deregister { .. }), "{request:?}");
            number
        };
        register(node);
        let late = deregister(node);
        may_go.recv().unwrap();
        let again = deregister(node);
        node.answer(again, Reply::Done, &[]);
        // The program registers the same range again; a copy of that range hangs.
        register(node);
        node.answer(late, Reply::Done, &[]);
        let hanging = deregister(node);
        node.answer(hanging, Reply::Failed("a copy hangs".into()), &[]);
    });
    let memory = domain.register(OwnMemory::map(4096).unwrap(), &[]).unwrap();
    domain.set_request_timeout(SHORT);
    let failed = domain.deregister(memory).unwrap_err();
    domain.set_request_timeout(PATIENCE);
    go.send(()).unwrap();
    let memory = domain.deregister(*failed.memory).unwrap();
    let memory = domain.register(memory, &[]).unwrap();
    let failed = domain.deregister(memory).expect_err("memory is handed back that a copy may still touch");
    assert!(matches!(failed.error, OpenError::Refused(_)), "{failed}");
    node.join().unwrap();
}

#[test]
fn a_node_that_only_says_other_things_holds_nobody_up() {
    let (domain, _go, node) = at_slow_node(|node, _| {
        node.receive();
        let since = Instant::now();
        // Until the program is gone.
        loop {
            match node.socket.send(&[&encode(&Message::EndedV1)], &[]) {
                Ok(()) | Err(UnixError::WouldBlock) => {}
                Err(_) => return,
            }
            assert!(since.elapsed() < PATIENCE, "the program never gives up");
        }
    });
    domain.set_request_timeout(SHORT);
    assert!(is_timed_out(domain.peers()));
    drop(domain);
    node.join().unwrap();
}

#[test]
fn who_waits_for_another_thread_s_request_waits_no_longer_and_frees_its_memory_later() {
    let (asked, is_asked) = channel();
    let (domain, go, node) = at_slow_node(move |node, may_go| {
        let (first, request) = node.receive();
        assert!(matches!(request, Request::Allocate { .. }), "{request:?}");
        node.allocated(first, 1 << 56, 1);
        let (second, request) = node.receive();
        assert_eq!(request, Request::Peers);
        asked.send(()).unwrap();
        may_go.recv().unwrap();
        node.answer(second, Reply::Peers(Vec::new()), &[]);
        let (third, request) = node.receive();
        assert_eq!(request, Request::Free { address: 1 << 56 });
        node.answer(third, Reply::Done, &[]);
        let (fourth, request) = node.receive();
        assert_eq!(request, Request::Peers);
        node.answer(fourth, Reply::Peers(Vec::new()), &[]);
    });
    domain.set_request_timeout(PATIENCE);
    let memory = domain.allocate(4096, &[]).unwrap();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| domain.peers());
        is_asked.recv().unwrap();
        domain.set_request_timeout(SHORT);
        assert!(is_timed_out(domain.free(memory)));
        go.send(()).unwrap();
        assert_eq!(asking.join().unwrap().unwrap(), []);
    });
    domain.set_request_timeout(PATIENCE);
    assert_eq!(domain.peers().unwrap(), []);
    node.join().unwrap();
}

#[test]
fn a_short_timeout_is_said_as_it_is() {
    assert_eq!(OpenError::TimedOut(SHORT).to_string(), "the node does not answer within 20ms");
}

/// The part of the next test that has no descriptors left, in a process of its own.
const WITHOUT_DESCRIPTORS: &str = "TOMBOLO_TEST_WITHOUT_DESCRIPTORS";

#[test]
fn without_descriptors_nothing_is_lost_and_the_node_is_not_taken_for_dead() {
    if std::env::var_os(WITHOUT_DESCRIPTORS).is_some() {
        return ask_without_descriptors();
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture"])
        .arg("late::without_descriptors_nothing_is_lost_and_the_node_is_not_taken_for_dead")
        .env(WITHOUT_DESCRIPTORS, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn ask_without_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let (ready, is_ready) = channel();
    let (domain, go, node) = at_slow_node(move |node, may_go| {
        let memory = SharedMemory::create("unseen", 4096).unwrap();
        let mailbox = tombolo_channel::Mailbox::create(4).unwrap();
        ready.send(()).unwrap();
        let (first, request) = node.receive();
        assert!(matches!(request, Request::Allocate { .. }), "{request:?}");
        node.answer(first, Reply::Allocated { address: 1 << 56 }, &[memory.as_fd()]);
        let (second, request) = node.receive();
        assert_eq!(request, Request::Free { address: 1 << 56 });
        node.answer(second, Reply::Done, &[]);
        for _ in 0..2 {
            let (number, request) = node.receive();
            assert!(matches!(request, Request::OpenMailbox { messages: 4, .. }), "{request:?}");
            node.answer(number, Reply::Mailbox, &[mailbox.as_fd()]);
        }
        may_go.recv().unwrap();
    });
    // All descriptors that the node needs are there.
    is_ready.recv().unwrap();
    let limit = getrlimit(Resource::Nofile);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let fill: Vec<_> = {
        setrlimit(Resource::Nofile, Rlimit { current: Some(open + 16), ..limit }).unwrap();
        (0..open + 16).map_while(|_| std::fs::File::open("/dev/null").ok()).collect()
    };
    let error = domain.allocate(4096, &[]).unwrap_err();
    assert!(matches!(error, OpenError::NoDescriptors), "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    let error = domain.open_mailbox(4, &[Who::Anyone]).unwrap_err();
    assert!(matches!(error, OpenError::NoDescriptors), "{error}");
    drop(fill);
    let mailbox = domain.open_mailbox(4, &[Who::Anyone]).unwrap();
    assert_eq!(mailbox.try_receive(), Ok(None));
    let error = domain.open_mailbox(4, &[Who::Anyone]).unwrap_err();
    assert!(matches!(error, OpenError::Refused(_)), "{error}");
    go.send(()).unwrap();
    node.join().unwrap();
}

#[test]
fn a_mailbox_is_given_again_and_only_as_it_is() {
    let (host, _) = Host::start(&shm(), &[]);
    let socket = SeqpacketSocket::connect(&host.programs).unwrap();
    let ask = |number, request| {
        socket.send(&[&encode(&Message::AskV2 { number, request })], &[]).unwrap();
        assert!(event::wait_readable(&[socket.as_fd()], Some(PATIENCE)).unwrap());
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        let received = socket.receive(&mut buffer).unwrap();
        match decode(&buffer[..received.length_bytes]) {
            Some(Message::AnswerV2 { number: answered, reply }) if answered == number => {
                (reply, received.descriptors.len())
            }
            other => panic!("{other:?}"),
        }
    };
    let mailbox = |messages, senders| Request::OpenMailbox { messages, senders };
    assert!(matches!(ask(1, Request::Open { domain: None }), (Reply::Opened { .. }, 1)));
    for number in [2, 3] {
        assert_eq!(ask(number, mailbox(4, vec![Who::Anyone])), (Reply::Mailbox, 1));
    }
    for (number, other) in [(4, mailbox(8, vec![Who::Anyone])), (5, mailbox(4, Vec::new()))] {
        let (Reply::Failed(reason), 0) = ask(number, other) else { panic!("another mailbox") };
        assert!(reason.contains("for 4 messages"), "{reason}");
    }
}

#[test]
fn a_mailbox_that_comes_late_is_found() {
    let (domain, go, node) = at_slow_node(|node, may_go| {
        let (first, request) = node.receive();
        assert!(matches!(request, Request::OpenMailbox { messages: 4, .. }), "{request:?}");
        may_go.recv().unwrap();
        let mailbox = tombolo_channel::Mailbox::create(4).unwrap();
        node.answer(first, Reply::Mailbox, &[mailbox.as_fd()]);
        // A domain has only one: it is not asked for again.
        let (second, request) = node.receive();
        assert_eq!(request, Request::Peers);
        node.answer(second, Reply::Peers(Vec::new()), &[]);
    });
    domain.set_request_timeout(SHORT);
    assert!(is_timed_out(domain.open_mailbox(4, &[Who::Anyone])));
    domain.set_request_timeout(PATIENCE);
    go.send(()).unwrap();
    assert!(event::wait_readable(&[domain.as_fd()], Some(PATIENCE)).unwrap());
    let mailbox = domain.open_mailbox(4, &[Who::Anyone]).unwrap();
    assert_eq!(mailbox.try_receive(), Ok(None));
    assert_eq!(domain.peers().unwrap(), []);
    node.join().unwrap();
}

#[test]
fn a_program_that_numbers_nothing_is_told_so() {
    let (host, _) = Host::start(&shm(), &[]);
    let socket = SeqpacketSocket::connect(&host.programs).unwrap();
    socket.send(&[&encode(&Message::AskV1(Request::Open { domain: None }))], &[]).unwrap();
    assert!(event::wait_readable(&[socket.as_fd()], Some(PATIENCE)).unwrap());
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let received = socket.receive(&mut buffer).unwrap();
    let Some(Message::AnswerV1(Reply::Failed(reason))) = decode(&buffer[..received.length_bytes]) else {
        panic!("another answer");
    };
    assert!(reason.contains("older"), "{reason}");
}

/// Polls until something is so.
fn poll_until(mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "polling never sees that the node is gone");
        std::hint::spin_loop();
    }
}

#[test]
fn a_node_that_ends_is_seen_by_polling() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let memory = domain.allocate(8192, &[]).unwrap();
    let mailbox = domain.open_mailbox(4, &[Who::Anyone]).unwrap();
    let target = Target { node: 0, domain: 1 };
    domain.send(target, b"last words").unwrap().wait(PATIENCE).unwrap();
    drop(host);
    let spec = Spec::new(memory.address(), memory.address() + 4096, 64);
    let transfer = domain.write(target, spec).unwrap();
    let gone = Status::FinishedWithError(Failure::NodeGone);
    poll_until(|| transfer.status() == gone);
    assert_eq!(transfer.wait(Duration::ZERO), Err(WaitError::NodeGone));
    // What came before its end is not lost.
    assert_eq!(mailbox.try_receive().unwrap().unwrap().bytes, b"last words");
    poll_until(|| mailbox.try_receive() == Err(WaitError::NodeGone));
    assert_eq!(mailbox.receive(Duration::ZERO), Err(WaitError::NodeGone));
    // Channels of transfers that will never end are free again.
    for _ in 0..100 {
        let transfer = domain.write(target, spec).unwrap();
        assert_eq!(transfer.status(), gone);
    }
}

#[test]
fn waits_of_no_time_see_that_the_node_is_gone() {
    let (host, _) = Host::start(&shm(), &[]);
    let domain = host.domain(1);
    let mailbox = domain.open_mailbox(4, &[Who::Anyone]).unwrap();
    drop(host);
    poll_until(|| mailbox.receive(Duration::ZERO) == Err(WaitError::NodeGone));
}
