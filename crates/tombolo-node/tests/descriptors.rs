//! A node that has no file descriptors left refuses what needs some, and keeps the program that asked.
//!
//! The limit is the process's, so this test has a binary of its own.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tombolo_channel::{MAX_MESSAGE_BYTES, Message, Reply, Request, decode, encode};
use tombolo_host::event;
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket};
use tombolo_node::{Node, receive_programs};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Descriptors beyond those that are open, for what is opened before the rest is taken.
const SPARE: u64 = 32;

struct Program(SeqpacketSocket);

impl Program {
    fn ask(&self, number: u32, request: Request, passed: &[File]) {
        let descriptors: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
        self.0.send(&[&encode(&Message::AskV2 { number, request })], &descriptors).unwrap();
    }

    fn answer(&self) -> (u32, Reply) {
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        assert_eq!(event::wait_readable(&[self.0.as_fd()], Some(TIMEOUT)), Ok(true), "no answer");
        let received = self.0.receive(&mut buffer).expect("the node keeps the program");
        match decode(&buffer[..received.length_bytes]) {
            Some(Message::AnswerV2 { number, reply }) => (number, reply),
            other => panic!("{other:?}"),
        }
    }
}

/// Ends the thread that receives programs, also where the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_program_whose_descriptors_the_node_cannot_take_is_refused_and_kept() {
    let node = Arc::new(Node::new("programs", 0, 0).unwrap());
    let path = std::env::temp_dir().join(format!("tombolo-node-descriptors-{}", std::process::id()));
    let listener = SeqpacketListener::bind(&path).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| receive_programs(&node, &listener, &stop));
        let _stop = Stop(&stop);
        let program = Program(SeqpacketSocket::connect(&path).unwrap());
        program.ask(1, Request::Open { domain: Some(1) }, &[]);
        assert_eq!(program.answer(), (1, Reply::Opened { domain: 1 }));
        let memory = vec![0_u8; 4096];
        let register =
            || Request::Register { address: memory.as_ptr().addr() as u64, bytes: 4096, grants: Vec::new() };
        let own = |file: &str| File::options().read(true).write(true).open(file).unwrap();
        let passed = || vec![own("/proc/self/mem"), File::open("/proc/self/maps").unwrap()];
        let cut = passed();

        // Another answer: what opening a domain leaves to be closed is closed.
        program.ask(5, Request::Peers, &[]);
        assert!(matches!(program.answer(), (5, Reply::Peers(_))));
        let open = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(open + SPARE), ..limit }).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        program.ask(2, register(), &cut);
        let (2, Reply::Failed(reason)) = program.answer() else { panic!("not refused") };
        assert!(reason.contains("did not get the file descriptors"), "{reason}");
        assert!(reason.contains("ulimit -n"), "{reason}");
        // Its other requests are answered as ever.
        program.ask(3, Request::Peers, &[]);
        assert!(matches!(program.answer(), (3, Reply::Peers(_))));

        drop(taken);
        program.ask(4, register(), &passed());
        let (4, reply) = program.answer() else { panic!("another request's answer") };
        assert_eq!(reply, Reply::Done);
    });
}
