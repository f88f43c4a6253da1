//! Services and who asks them, by real sockets.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tombolo_control::{AskError, Client, Server, Service, Trust};
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket};

const SOON: Duration = Duration::from_secs(30);

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
