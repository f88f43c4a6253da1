//! What is particular to the shared-memory link: its socket file, strangers, murder.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::{
    PATIENCE, a_late_listener_is_found, accept, check, connect, connected, connected_to, listen,
    receive_until, scratch_address, scratch_path, send,
};
use crate::liveness::{SOONER_THAN_SILENCE, await_loss};
use tombolo_host::event::wait_readable;
use tombolo_host::shared::SharedMemory;
use tombolo_host::testing::{STRANGER, as_user, may_change_user};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};
use tombolo_link::shm::ShmListener;
use tombolo_link::{
    AcceptError, Address, Link, LinkState, Listener, LossReason, OpenError, PROTOCOL_VERSION,
};

const CHILD_PATH: &str = "TOMBOLO_LINK_TEST_CHILD_PATH";

fn hello(version: u8) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(b"TOMBOLO\0");
    bytes[8] = version;
    bytes[9] = 1;
    bytes
}

fn path_of(address: &Address) -> &std::path::Path {
    let Address::Shm(path) = address else { panic!("not shm") };
    path
}

fn answer(socket: &SeqpacketSocket, buffer: &mut [u8]) -> Result<usize, UnixError> {
    loop {
        match socket.receive(buffer) {
            Err(UnixError::WouldBlock) => {
                assert!(wait_readable(&[socket.as_fd()], Some(PATIENCE)).unwrap(), "no answer");
            }
            other => return other.map(|received| received.length_bytes),
        }
    }
}

/// Without a path in the environment there is nothing to do: it is the peer that
/// `a_killed_peer_is_noticed_at_once` starts and kills.
#[test]
fn child_that_sends_until_killed() {
    let Ok(path) = std::env::var(CHILD_PATH) else { return };
    let link = connect(&Address::Shm(path.into()), PATIENCE).unwrap();
    for number in 0.. {
        send(&*link, number, 2000);
        link.flush().unwrap();
    }
}

#[test]
fn a_killed_peer_is_noticed_at_once() {
    let listener = listen(&scratch_address()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "shm::child_that_sends_until_killed", "--nocapture"])
        .env(CHILD_PATH, path_of(&listener.address()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let link = accept(&*listener);
    assert_eq!(link.peer_process_id(), Some(child.id()));
    let received = std::cell::Cell::new(0_u32);
    receive_until(
        &*link,
        PATIENCE,
        |bytes| {
            check(bytes);
            received.set(received.get() + 1);
        },
        || received.get() > 1000,
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    assert_eq!(await_loss(&*link, PATIENCE), LossReason::PeerGone);
    assert!(killed.elapsed() < SOONER_THAN_SILENCE, "{:?}", killed.elapsed());
    // And the listener goes on.
    connected_to(&*listener);
}

#[test]
fn one_that_polls_without_sleeping_notices_too() {
    let (one, other) = connected(&scratch_address());
    drop(other);
    let deadline = Instant::now() + PATIENCE;
    while one.state() == LinkState::Up {
        assert!(Instant::now() < deadline);
        one.tick(Instant::now());
    }
}

/// Connects while the listener accepts.
fn connect_to(listener: &dyn Listener, address: &Address) -> Result<Arc<dyn Link>, OpenError> {
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut links = Vec::new();
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                links.extend(listener.accept_within(Duration::from_millis(10)).unwrap());
            }
        });
        let link = connect(address, PATIENCE);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        link
    })
}

#[test]
fn a_listener_of_another_user_is_refused_unless_that_user_is_named() {
    if !may_change_user() {
        return;
    }
    let address = scratch_address();
    let path = path_of(&address).to_owned();
    let listener = as_user(STRANGER, || listen(&address).unwrap());
    let error = connect_to(&*listener, &address).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::UntrustedListener { user_id: STRANGER, .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("belongs to user 65534"), "{said}");
    assert!(said.contains(&format!("connect to shm:65534@{}", path.display())), "{said}");

    // To name somebody else does not help.
    let other = Address::ShmOf { user_id: 1, path: path.clone() };
    let error = connect_to(&*listener, &other).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::UntrustedListener { user_id: STRANGER, .. }), "{error}");
    let named = Address::ShmOf { user_id: STRANGER, path: path.clone() };
    connect_to(&*listener, &named).unwrap();

    // A stranger's file whose listener is another's: it counts who listens, not whose the file is.
    drop(listener);
    let own = listen(&address).unwrap();
    std::os::unix::fs::chown(&path, Some(STRANGER), None).unwrap();
    connect_to(&*own, &address).unwrap();
}

#[test]
fn root_is_believed_by_other_users() {
    if !may_change_user() {
        return;
    }
    let address = scratch_address();
    let listener = listen(&address).unwrap();
    std::os::unix::fs::chown(path_of(&address), Some(STRANGER), None).unwrap();
    let connecting = std::thread::spawn(move || as_user(STRANGER, || connect(&address, PATIENCE).map(drop)));
    accept(&*listener);
    connecting.join().unwrap().unwrap();
}

#[test]
fn a_listener_for_its_own_user_lets_no_other_in_whatever_the_path_says() {
    use std::os::unix::fs::PermissionsExt;
    let address = scratch_address();
    let path = path_of(&address).to_owned();
    let listener = ShmListener::bind_for_own_user(&path).unwrap();
    connect_to(&listener, &address).unwrap();
    if !may_change_user() {
        return;
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let connecting = std::thread::spawn(move || as_user(STRANGER, || connect(&address, PATIENCE).map(drop)));
    let refused = loop {
        match listener.accept_within(PATIENCE) {
            Err(error) => break error,
            Ok(link) => assert!(link.is_none(), "a stranger has a link"),
        }
    };
    assert!(matches!(refused, AcceptError::Stranger { user_id: STRANGER, .. }), "{refused}");
    connecting.join().unwrap().unwrap_err();
}

#[test]
fn several_listeners_are_one_and_none_waits_for_another() {
    let (shm, udp) = (scratch_address(), crate::harness::loopback());
    let listeners: Vec<_> = [&shm, &udp].map(|address| listen(address).unwrap()).into();
    let at_udp = listeners[1].address();
    let listener = tombolo_link::Listeners::new(listeners).unwrap();
    assert_eq!(listener.address(), shm);
    for address in [&shm, &at_udp, &at_udp, &shm] {
        let link = connect_to(&listener, address).unwrap();
        assert_eq!(link.supports_windows(), *address == shm);
    }
    // While somebody is at the one at all times, the other has its turn.
    let newcomers: Vec<SeqpacketSocket> = (0..2)
        .map(|_| {
            let socket = SeqpacketSocket::connect(path_of(&shm)).unwrap();
            socket.send(&[&hello(PROTOCOL_VERSION)], &[]).unwrap();
            socket
        })
        .collect();
    let connecting = std::thread::spawn(move || connect(&at_udp, PATIENCE).unwrap());
    let (mut windows, mut links) = (Vec::new(), Vec::new());
    while windows.len() < 3 {
        let link = listener.accept_within(PATIENCE).unwrap().expect("somebody waits");
        windows.push(link.supports_windows());
        links.push(link);
    }
    assert_eq!(windows.iter().filter(|windows| !**windows).count(), 1, "{windows:?}");
    assert!(!connecting.join().unwrap().supports_windows());
    drop(newcomers);
}

#[test]
fn nobody_listens_for_a_user() {
    let address = Address::ShmOf { user_id: 7, path: scratch_path() };
    let error = listen(&address).map(drop).unwrap_err();
    assert!(matches!(error, OpenError::ListenForUser(_)), "{error}");
}

#[test]
fn nobody_there_is_a_clear_error() {
    let address = scratch_address();
    let started = Instant::now();
    let error = connect(&address, Duration::from_millis(100)).unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(error.to_string(), format!("no node answers at {address} (waited 0.1 s)"));
    // A listener that never answers.
    let silent = SeqpacketListener::bind(path_of(&address)).unwrap();
    let error = connect(&address, Duration::from_millis(100)).unwrap_err();
    assert!(matches!(error, OpenError::NoAnswer { .. }), "{error}");
    drop(silent);
}

#[test]
fn a_listener_that_starts_late_is_found() {
    a_late_listener_is_found(&scratch_address());
}

#[test]
fn an_address_in_use_is_an_error_and_a_clean_end_removes_it() {
    let listener = listen(&scratch_address()).unwrap();
    let address = listener.address();
    let error = listen(&address).unwrap_err();
    assert_eq!(error.to_string(), format!("another process listens at {address}"));
    connected_to(&*listener);
    drop(listener);
    assert!(!path_of(&address).exists());
}

/// A version that nobody has yet.
const NEWER: u8 = PROTOCOL_VERSION + 1;

fn names_both(error: &str) -> bool {
    error.contains(&format!("version {NEWER}")) && error.contains(&format!("version {PROTOCOL_VERSION}"))
}

#[test]
fn versions_that_differ_are_named_on_both_sides() {
    let listener = listen(&scratch_address()).unwrap();
    let newer = SeqpacketSocket::connect(path_of(&listener.address())).unwrap();
    newer.send(&[&hello(NEWER)], &[]).unwrap();
    let error = listener.accept_within(PATIENCE).unwrap_err();
    assert!(matches!(error, AcceptError::VersionMismatch { ours: PROTOCOL_VERSION, theirs: NEWER }));
    assert!(names_both(&error.to_string()));
    let mut buffer = [0; 64];
    assert_eq!(answer(&newer, &mut buffer).unwrap(), 24);
    assert_eq!((&buffer[..8], buffer[8], buffer[9]), (b"TOMBOLO\0".as_slice(), PROTOCOL_VERSION, 3));
    connected_to(&*listener);

    // And a connector that meets a newer listener.
    let error = connect_to_fake(|socket| {
        let mut reject = hello(NEWER);
        reject[9] = 3;
        socket.send(&[&reject], &[]).unwrap();
    });
    assert!(
        matches!(error, OpenError::VersionMismatch { ours: PROTOCOL_VERSION, theirs: NEWER, .. }),
        "{error}"
    );
    assert!(names_both(&error.to_string()));
}

/// What `connect` says to a listener that does this after a hello.
fn connect_to_fake(behave: impl FnOnce(&SeqpacketSocket) + Send) -> OpenError {
    let path = scratch_path();
    let fake = SeqpacketListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        let connector =
            scope.spawn(|| connect(&Address::Shm(path.clone()), Duration::from_secs(5)).map(drop));
        wait_readable(&[fake.as_fd()], Some(PATIENCE)).unwrap();
        let socket = fake.accept().unwrap().unwrap();
        assert_eq!(answer(&socket, &mut [0; 64]).unwrap(), 24);
        behave(&socket);
        drop(socket);
        connector.join().unwrap().unwrap_err()
    })
}

#[test]
fn a_false_listener_is_seen_through() {
    let welcome = |ring_bytes: u64| {
        let mut bytes = hello(PROTOCOL_VERSION);
        bytes[9] = 2;
        bytes[16..].copy_from_slice(&ring_bytes.to_le_bytes());
        bytes
    };
    let not_a_node = |error: OpenError| assert!(matches!(error, OpenError::NotANode { .. }), "{error}");
    not_a_node(connect_to_fake(|_| {}));
    not_a_node(connect_to_fake(|socket| socket.send(&[b"HTTP/1.1 200 OK"], &[]).unwrap()));
    not_a_node(connect_to_fake(|socket| socket.send(&[&[7; 500]], &[]).unwrap()));
    not_a_node(connect_to_fake(|socket| socket.send(&[&hello(PROTOCOL_VERSION)], &[]).unwrap()));
    not_a_node(connect_to_fake(|socket| socket.send(&[&welcome(1 << 20)], &[]).unwrap()));
    for ring_bytes in [0, 1, 4096, (1 << 20) + 1, 1 << 40, u64::MAX] {
        let memory = SharedMemory::create("test", 8192).unwrap();
        not_a_node(connect_to_fake(|socket| {
            socket.send(&[&welcome(ring_bytes)], &[memory.as_fd()]).unwrap();
        }));
    }
    // Memory that is too small, and a descriptor that is no memory.
    let memory = SharedMemory::create("test", 8192).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for descriptor in [memory.as_fd(), null.as_fd()] {
        let error = connect_to_fake(|socket| {
            socket.send(&[&welcome(1 << 20)], &[descriptor]).unwrap();
        });
        assert!(matches!(error, OpenError::Memory(_)), "{error}");
    }
}

#[test]
fn strangers_do_no_harm_to_the_others() {
    let listener = listen(&scratch_address()).unwrap();
    let address = listener.address();
    let (one, other) = connected_to(&*listener);
    let mut strangers = Vec::new();
    for round in 0..200_usize {
        let stranger = match SeqpacketSocket::connect(path_of(&address)) {
            Ok(stranger) => stranger,
            // The queue of the listener is full for the moment.
            Err(UnixError::WouldBlock) => {
                let _ = listener.accept();
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        match round % 5 {
            0 => {}
            1 => stranger.send(&[&hello(PROTOCOL_VERSION)[..round % 24 + 1]], &[]).unwrap(),
            2 => stranger.send(&[&vec![0xA5; 3000]], &[]).unwrap(),
            3 => drop(stranger.send(&[b"x"], &[listener.descriptor()])),
            _ => {
                strangers.push(stranger);
                let _ = listener.accept();
                continue;
            }
        }
        let _ = listener.accept();
    }
    let (third, fourth) = connected_to(&*listener);
    for (from, to) in [(&one, &other), (&fourth, &third)] {
        send(&**from, 3, 5000);
        from.flush().unwrap();
        let mut got = 0;
        assert_eq!(to.receive(4, &mut |bytes| got = check(bytes)), Ok(1));
        assert_eq!(got, 3);
        assert_eq!((from.state(), to.state()), (LinkState::Up, LinkState::Up));
    }
}

/// A raw connection that has shaken hands, and the node's end of it.
fn raw_peer(listener: &ShmListener) -> (SeqpacketSocket, Arc<dyn Link>, SharedMemory) {
    let socket = SeqpacketSocket::connect(path_of(&listener.address())).unwrap();
    socket.send(&[&hello(PROTOCOL_VERSION)], &[]).unwrap();
    let link = accept(listener);
    let mut buffer = [0; 64];
    wait_readable(&[socket.as_fd()], Some(PATIENCE)).unwrap();
    let mut received = socket.receive(&mut buffer).unwrap();
    let ring_bytes = u64::from_le_bytes(buffer[16..24].try_into().unwrap()) as usize;
    let memory = SharedMemory::open(
        received.descriptors.pop().unwrap(),
        2 * tombolo_host::ring::footprint_bytes(ring_bytes),
    )
    .unwrap();
    (socket, link, memory)
}

#[test]
fn a_hostile_peer_loses_its_own_link_only() {
    let listener = ShmListener::bind_with_rings(&scratch_path(), 1 << 16).unwrap();
    let (_honest, honest_link, _) = raw_peer(&listener);
    // Nonsense on the socket.
    for nonsense in [b"\xFF".as_slice(), b"\x10more", b"\x11", &[0x11; 20_000]] {
        let (socket, link, _) = raw_peer(&listener);
        socket.send(&[nonsense], &[]).unwrap();
        let reason = await_loss(&*link, PATIENCE);
        assert!(matches!(reason, LossReason::Protocol(_)), "{reason}");
    }
    // Nonsense in the ring that we read: an index, then a length.
    let theirs = tombolo_host::ring::footprint_bytes(1 << 16);
    for (offset, value) in [(theirs, u64::MAX), (theirs, 1 << 40), (theirs, 12), (theirs, 16)] {
        let (_socket, link, memory) = raw_peer(&listener);
        if value == 16 {
            memory.span_mut(theirs + 4096, 4).unwrap().copy_from([0xF0; 4].as_slice().into());
        }
        let word = memory.atomic_u64(offset).unwrap();
        word.store(value, std::sync::atomic::Ordering::Release);
        let reason = await_loss(&*link, PATIENCE);
        assert!(matches!(reason, LossReason::Ring(_)), "{reason}");
        assert!(link.receive(1, &mut |_| panic!("from a broken ring")).is_err());
    }
    // Nonsense in the ring that we write.
    let (_socket, link, memory) = raw_peer(&listener);
    memory.atomic_u64(128).unwrap().store(1 << 50, std::sync::atomic::Ordering::Release);
    let mut last = Ok(());
    for number in 0..10_000 {
        last = crate::harness::try_send(&*link, number, 4000);
        if last.is_err() {
            break;
        }
    }
    let reason = await_loss(&*link, PATIENCE);
    assert!(matches!(reason, LossReason::Ring(_)), "{reason} after {last:?}");
    assert_eq!(honest_link.state(), LinkState::Up);
}

/// A process that is stopped does not end: what it is sent lies there. The side that connected notices.
#[test]
fn a_peer_that_reads_nothing_is_suspect() {
    let listener = listen(&scratch_address()).unwrap();
    let (accepted, connector) = connected_to(&*listener);
    let began = Instant::now() + Duration::from_millis(100);
    let look = |link: &dyn Link, ms: u64| _ = link.tick(began + Duration::from_millis(ms));
    let look_until = |link: &dyn Link, from_ms: u64, to_ms: u64| {
        (from_ms..to_ms).step_by(25).for_each(|ms| look(link, ms))
    };
    look_until(&*connector, 0, 3000);
    assert!(!connector.is_suspect(), "nothing was sent");
    connector.send_control(b"a question", &[]).unwrap();
    look_until(&*connector, 3000, 4450);
    assert!(!connector.is_suspect());
    look_until(&*connector, 4450, 4600);
    assert!(connector.is_suspect() && connector.state() == LinkState::Up);
    assert!(accepted.receive_control().unwrap().is_some());
    look_until(&*connector, 4600, 4700);
    assert!(!connector.is_suspect(), "it has been read");
    // This process itself was stopped in between: the silence begins anew.
    connector.send_control(b"another", &[]).unwrap();
    look_until(&*connector, 4700, 9000);
    assert!(connector.is_suspect());
    look_until(&*connector, 20_000, 21_000);
    assert!(!connector.is_suspect());
    // One that is always asked again before the next look, and answers.
    assert!(accepted.receive_control().unwrap().is_some());
    for ms in (21_000..25_000).step_by(25) {
        accepted.send_control(b"an answer", &[]).unwrap();
        assert!(connector.receive_control().unwrap().is_some());
        connector.send_control(b"one more", &[]).unwrap();
        look(&*connector, ms);
        assert!(!connector.is_suspect(), "it answers");
        assert!(accepted.receive_control().unwrap().is_some());
    }
    // Who was connected to waits for the end of the process.
    accepted.send_control(b"an answer", &[]).unwrap();
    look_until(&*accepted, 0, 60_000);
    assert!(!accepted.is_suspect() && accepted.state() == LinkState::Up);
}
