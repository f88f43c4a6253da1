//! What listeners do when no file descriptors are left. In a process of its own, which has none then.

use std::fs::File;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tombolo_host::event::wait_readable;
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_link::{AcceptError, Address, Listener, OpenError, PROTOCOL_VERSION, Security, connect, listen};

const TIMEOUT: Duration = Duration::from_secs(20);

/// All descriptors that this process may still have.
fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// How many descriptors this process has.
fn count() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn is_readable(listener: &dyn Listener) -> bool {
    wait_readable(&[listener.descriptor()], Some(Duration::ZERO)).unwrap()
}

/// Turns of a loop that has somebody to accept and cannot; how often that is said.
fn turns(listener: &dyn Listener) -> usize {
    let said = (0..1000).filter(|_| match listener.accept() {
        Ok(link) => {
            assert!(link.is_none());
            false
        }
        Err(AcceptError::Open(OpenError::NoDescriptors { .. })) => true,
        Err(other) => panic!("{other}"),
    });
    said.count()
}

fn shared_memory() {
    let path = std::env::temp_dir().join(format!("tombolo-descriptors-{}", std::process::id()));
    let address = Address::Shm(path.clone());
    let listener = listen(&address, &Security::Insecure).unwrap();
    let first = SeqpacketSocket::connect(&path).unwrap();
    // Many wait, so that some are left after the first was hung up on.
    let _others: Vec<_> = (0..20).map(|_| SeqpacketSocket::connect(&path).unwrap()).collect();
    let all = take_all();
    assert_eq!(turns(&*listener), 1, "it is said once");
    let since = Instant::now();
    while is_readable(&*listener) {
        assert!(since.elapsed() < TIMEOUT, "whoever polls it would never sleep");
        assert!(listener.accept().unwrap().is_none());
    }
    assert!(matches!(first.receive(&mut [0; 8]), Err(UnixError::Closed)), "the first was hung up on");
    drop(all);
    // Who comes then, gets in.
    std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(&address, &Security::Insecure, TIMEOUT).map(drop));
        assert!(listener.accept_within(TIMEOUT).unwrap().is_some());
        connector.join().unwrap().unwrap();
    });
}

/// A message that comes with a descriptor that this process cannot take is heard without it, and the link stays.
fn passed_descriptors() {
    let path = std::env::temp_dir().join(format!("tombolo-passed-{}", std::process::id()));
    let address = Address::Shm(path);
    let listener = listen(&address, &Security::Insecure).unwrap();
    let (one, other) = std::thread::scope(|scope| {
        let connector = scope.spawn(|| connect(&address, &Security::Insecure, TIMEOUT).unwrap());
        (listener.accept_within(TIMEOUT).unwrap().unwrap(), connector.join().unwrap())
    });
    let passed = File::open("/dev/null").unwrap();
    let all = take_all();
    one.send_control(b"take this", &[passed.as_fd()]).unwrap();
    let message = other.receive_control().unwrap().expect("a message");
    assert_eq!((&*message.bytes, message.descriptors.len()), (&b"take this"[..], 0));
    drop(all);
    one.send_control(b"and this", &[passed.as_fd()]).unwrap();
    let message = other.receive_control().unwrap().expect("a message");
    assert_eq!((&*message.bytes, message.descriptors.len()), (&b"and this"[..], 1));
}

fn datagrams() {
    let listener = listen(&"udp:127.0.0.1:0".parse().unwrap(), &Security::Insecure).unwrap();
    let Address::Udp(address) = listener.address() else { panic!("not UDP") };
    let peer = UdpSocket::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    peer.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut hello = [0; 64];
    hello[..4].copy_from_slice(&[b'T', b'm', PROTOCOL_VERSION, 1]);
    peer.send_to(&hello, address).unwrap();
    assert!(listener.accept().unwrap().is_none());
    let mut first_word = [0; 24];
    peer.recv(&mut first_word).unwrap();
    first_word[3] = 7;
    let all = take_all();
    for _ in 0..20 {
        peer.send_to(&first_word, address).unwrap();
    }
    assert_eq!(turns(&*listener), 1, "it is said once");
    assert!(!is_readable(&*listener));
    drop(all);
    peer.send_to(&first_word, address).unwrap();
    assert!(listener.accept_within(TIMEOUT).unwrap().is_some(), "who asks again gets in");
}

#[test]
fn a_listener_without_descriptors_says_so_once_does_not_spin_and_goes_on() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let before = count();
    for part in [shared_memory, passed_descriptors, datagrams] {
        part();
        // A link's thread may close some later.
        let since = Instant::now();
        while count() > before {
            assert!(since.elapsed() < TIMEOUT, "{} descriptors, {before} before", count());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
