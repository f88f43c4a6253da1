//! Services and who asks them, by real sockets.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tombolo_control::{AskError, Client, MESSAGE_BYTES_MAX, Server, Service, Trust, ask_once};
use tombolo_host::testing::{as_user, may_change_user};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

const SOON: Duration = Duration::from_secs(30);
/// The user that owns nothing.
const STRANGER: u32 = 65534;

/// Answers what is asked; `"wait"` waits until the test lets it go.
struct Echo {
    go: Arc<AtomicBool>,
    waiting: Arc<AtomicU32>,
}

impl Service for Echo {
    type Ask = Value;
    type Answer = Value;
    const VERSION: u16 = 3;

    fn answer(&self, ask: Value) -> Value {
        if ask == "wait" {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            while !self.go.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if ask == "much" {
            return json!("x".repeat(MESSAGE_BYTES_MAX));
        }
        if ask == "hang up" {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            panic!("as it was asked to");
        }
        json!({ "asked": ask })
    }

    fn refuse(&self, reason: String) -> Value {
        json!({ "refused": reason })
    }
}

struct Running {
    path: PathBuf,
    go: Arc<AtomicBool>,
    waiting: Arc<AtomicU32>,
    server: Option<Server>,
}

impl Running {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tombolo-control-{name}-{}", std::process::id()));
        let (go, waiting) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let echo = Echo { go: go.clone(), waiting: waiting.clone() };
        let server = Server::start(SeqpacketListener::bind(&path).unwrap(), echo).unwrap();
        Self { path, go, waiting, server: Some(server) }
    }

    fn ask(&self, version: u16, ask: &str) -> Result<Value, AskError> {
        Client::connect(&self.path, Trust::Own, SOON)?.ask(version, &ask, &[], SOON)
    }
}

#[test]
fn who_asks_is_answered_and_rubbish_is_refused() {
    let service = Running::new("echo");
    assert_eq!(service.ask(3, "how are you").unwrap(), json!({ "asked": "how are you" }));
    let refused = service.ask(4, "how are you").unwrap();
    assert_eq!(refused["refused"], "this is version 3 of the protocol, not 4");
    let socket = SeqpacketSocket::connect(&service.path).unwrap();
    socket.send(&[b"rubbish"], &[]).unwrap();
    let mut buffer = [0; 1000];
    let since = Instant::now();
    let length = loop {
        match socket.receive(&mut buffer) {
            Ok(received) => break received.length_bytes,
            Err(_) => assert!(since.elapsed() < SOON),
        }
    };
    assert!(buffer[..length].starts_with(br#"{"refused":"not a request: "#));
}

/// A client whose question takes long delays no other client, and many clients that send nothing keep others out for a short time only.
#[test]
fn nobody_waits_for_anothers_answer() {
    let service = Running::new("slow");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| service.ask(3, "wait"));
        while service.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(service.ask(3, "quick").unwrap(), json!({ "asked": "quick" }));
        assert!(!waiting.is_finished());
        service.go.store(true, Ordering::SeqCst);
        assert_eq!(waiting.join().unwrap().unwrap(), json!({ "asked": "wait" }));
    });
    let silent: Vec<_> = (0..100).filter_map(|_| SeqpacketSocket::connect(&service.path).ok()).collect();
    let since = Instant::now();
    while service.ask(3, "quick").is_err() {
        assert!(since.elapsed() < SOON, "the silent ones are not closed");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(silent);
}

/// A service that ends does not wait for its clients, and removes its socket.
#[test]
fn a_service_ends_while_it_answers() {
    let mut service = Running::new("end");
    let (path, go) = (service.path.clone(), service.go.clone());
    let (ended, has_ended) = mpsc::channel();
    let waiting = service.waiting.clone();
    let client = Client::connect(&path, Trust::Own, SOON).unwrap();
    let asking = std::thread::spawn(move || client.ask::<_, Value>(3, &"wait", &[], SOON));
    while waiting.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let server = service.server.take();
    std::thread::spawn(move || {
        drop(server);
        ended.send(()).unwrap();
    });
    has_ended.recv_timeout(SOON).expect("it waits for who is being answered");
    assert!(!path.exists());
    assert!(Client::connect(&path, Trust::Own, SOON).is_err());
    go.store(true, Ordering::SeqCst);
    assert_eq!(asking.join().unwrap().unwrap(), json!({ "asked": "wait" }));
}

/// A service that is stopped takes no connections once its queue is full: that is an answer, too.
#[test]
fn who_listens_and_takes_nobody_is_given_up() {
    let path = std::env::temp_dir().join(format!("tombolo-control-stopped-{}", std::process::id()));
    let _listener = SeqpacketListener::bind(&path).unwrap();
    let mut queued = Vec::new();
    while let Ok(socket) = SeqpacketSocket::connect(&path) {
        queued.push(socket);
        assert!(queued.len() < 100_000);
    }
    let since = Instant::now();
    let refused = Client::connect(&path, Trust::Own, Duration::from_millis(100));
    assert!(matches!(refused, Err(AskError::TimedOut(_))), "{refused:?}");
    assert!(since.elapsed() < SOON);
}

/// Whatever the permissions of the socket's file: processes of other users are not answered, and commands of root do not believe them.
#[test]
fn another_user_is_neither_answered_nor_believed() {
    if !may_change_user() {
        return;
    }
    let open = |path: &PathBuf| std::fs::set_permissions(path, Permissions::from_mode(0o666)).unwrap();
    let service = Running::new("others");
    open(&service.path);
    let asked = as_user(STRANGER, || {
        let client = Client::connect(&service.path, Trust::Own, SOON)?;
        client.ask::<_, Value>(3, &"how are you", &[], SOON)
    });
    assert!(matches!(asked, Err(AskError::Socket(UnixError::Closed))), "{asked:?}");
    assert_eq!(service.ask(3, "how are you").unwrap(), json!({ "asked": "how are you" }));
    let path = std::env::temp_dir().join(format!("tombolo-control-stranger-{}", std::process::id()));
    let listener = as_user(STRANGER, || SeqpacketListener::bind(&path).unwrap());
    let believed = Client::connect(&path, Trust::Own, SOON);
    assert!(matches!(believed, Err(AskError::Untrusted(_))), "{believed:?}");
    let client = Client::connect(&path, Trust::Anybody, SOON).unwrap();
    assert_eq!(client.peer().unwrap().user_id, STRANGER);
    drop(listener);
}

/// A question longer than a message may be is not answered, not even its beginning.
#[test]
fn a_question_that_is_too_long_ends_its_connection_alone() {
    let service = Running::new("long");
    let socket = SeqpacketSocket::connect(&service.path).unwrap();
    socket.send(&[&vec![b' '; MESSAGE_BYTES_MAX + 1]], &[]).unwrap();
    let (since, mut buffer) = (Instant::now(), [0; 1000]);
    loop {
        match socket.receive(&mut buffer) {
            Err(UnixError::WouldBlock) => assert!(since.elapsed() < SOON),
            Err(UnixError::Closed) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(service.ask(3, "how are you").unwrap(), json!({ "asked": "how are you" }));
}

#[test]
fn an_answer_that_is_too_long_is_said_to_be() {
    let service = Running::new("much");
    let refused = service.ask(3, "much").unwrap();
    assert!(refused["refused"].as_str().unwrap().contains("163840 at most"), "{refused}");
}

/// What was asked may have been done.
#[test]
fn a_service_that_hangs_up_is_not_asked_again() {
    let service = Running::new("hangs-up");
    let asked = ask_once::<_, Value>(&service.path, Trust::Own, 3, &"hang up", SOON);
    assert!(matches!(asked, Err(AskError::Socket(UnixError::Closed))), "{asked:?}");
    assert_eq!(service.waiting.load(Ordering::SeqCst), 1);
}

/// Clients beyond the most are told so, and closed at once, and answered when there is room again.
#[test]
fn as_many_are_answered_at_once_as_there_is_room_for() {
    const MOST: u32 = 64;
    let service = Running::new("many");
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..MOST).map(|_| scope.spawn(|| service.ask(3, "wait"))).collect();
        while service.waiting.load(Ordering::SeqCst) < MOST {
            std::thread::yield_now();
        }
        let further = service.ask(3, "quick");
        assert!(matches!(further, Err(AskError::Busy)), "{further:?}");
        let short = Duration::from_millis(100);
        let refused = ask_once::<_, Value>(&service.path, Trust::Own, 3, &"quick", short);
        let is_given_up = matches!(refused, Err(AskError::Busy | AskError::TimedOut(_)));
        assert!(is_given_up, "{refused:?}");
        // One that tries again is answered.
        let patient = scope.spawn(|| ask_once::<_, Value>(&service.path, Trust::Own, 3, &"quick", SOON));
        service.go.store(true, Ordering::SeqCst);
        assert_eq!(patient.join().unwrap().unwrap(), json!({ "asked": "quick" }));
        for asked in waiting {
            assert_eq!(asked.join().unwrap().unwrap(), json!({ "asked": "wait" }));
        }
    });
    let since = Instant::now();
    while service.ask(3, "quick").is_err() {
        assert!(since.elapsed() < SOON, "the places of clients that have gone are not free");
    }
}
