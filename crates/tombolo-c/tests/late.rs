//! A node, played by hand, that registers memory after the program has given up waiting: what C hears.

use std::ffi::{CStr, CString, c_void};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tombolo_c::{
    Domain, Result, tombolo_close, tombolo_deregister, tombolo_error, tombolo_open, tombolo_register,
};
use tombolo_channel::{ChannelPage, MAX_MESSAGE_BYTES, Message, Reply, Request, decode, encode};
use tombolo_host::event;
use tombolo_host::unix::{SeqpacketListener, SeqpacketSocket, UnixError};

/// Longer than the library waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(90);

struct Node(SeqpacketSocket);

impl Node {
    fn receive(&self) -> (u32, Request) {
        let mut buffer = vec![0; MAX_MESSAGE_BYTES];
        loop {
            match self.0.receive(&mut buffer) {
                Ok(received) => match decode(&buffer[..received.length_bytes]) {
                    // This node makes the accesses to programs' memory.
                    Some(Message::AskV2 { number, request: Request::OpenAccess }) => {
                        self.answer(number, Reply::Failed("no area".into()), &[]);
                    }
                    Some(Message::AskV2 { number, request }) => return (number, request),
                    other => panic!("{other:?}"),
                },
                Err(UnixError::WouldBlock) => {
                    let readable = event::wait_readable(&[self.0.as_fd()], Some(TIMEOUT)).unwrap();
                    assert!(readable, "the program asks for nothing");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn answer(&self, number: u32, reply: Reply, descriptors: &[BorrowedFd<'_>]) {
        self.0.send(&[&encode(&Message::AnswerV2 { number, reply })], descriptors).unwrap();
    }
}

fn open(path: &Path) -> *mut Domain {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut domain = std::ptr::null_mut();
    // SAFETY: a string, and a place to write to.
    assert_eq!(unsafe { tombolo_open(path.as_ptr(), 0, &raw mut domain) }, Result::Ok, "{:?}", error());
    domain
}

fn error() -> &'static CStr {
    // SAFETY: never null, and valid until this thread's next call.
    unsafe { CStr::from_ptr(tombolo_error()) }
}

/// A registration that the node carries out when the library waits no longer (so this takes as long as it
/// waits), and what settles it.
fn settled_by(name: &str, settle: impl FnOnce(*mut Domain, *mut c_void)) {
    let path = std::env::temp_dir().join(format!("tombolo-c-{name}-{}", std::process::id()));
    let listener = SeqpacketListener::bind(&path).unwrap();
    let (go, may_go) = std::sync::mpsc::channel();
    let playing = std::thread::spawn(move || {
        assert!(event::wait_readable(&[listener.as_fd()], Some(TIMEOUT)).unwrap());
        let node = Node(listener.accept().unwrap().unwrap());
        let page = ChannelPage::create().unwrap();
        let (number, _) = node.receive();
        node.answer(number, Reply::Opened { domain: 1 }, &[page.as_fd()]);
        let (number, request) = node.receive();
        let Request::RegisterV2 { address, .. } = request else { panic!("{request:?}") };
        may_go.recv().unwrap();
        node.answer(number, Reply::Done, &[]);
        let (number, request) = node.receive();
        assert_eq!(request, Request::Deregister { address });
        node.answer(number, Reply::Done, &[]);
    });
    let domain = open(&path);
    let mut bytes = vec![0_u8; 8192];
    let start = bytes.as_mut_ptr().cast::<c_void>();
    // SAFETY: the domain is open, the memory is there until the end, and there are no grants.
    let registered = unsafe { tombolo_register(domain, start, 8192, std::ptr::null(), 0) };
    assert_eq!(registered, Result::TimedOut);
    go.send(()).unwrap();
    settle(domain, start);
    // The node has been asked to deregister it by then.
    playing.join().unwrap();
}

#[test]
fn memory_that_may_be_registered_is_deregistered() {
    settled_by("deregister", |domain, start| {
        // SAFETY: the domain is open.
        let deregister = || unsafe { tombolo_deregister(domain, start) };
        assert_eq!(deregister(), Result::Ok, "{:?}", error());
        assert_eq!(deregister(), Result::BadArgument);
        // SAFETY: opened before, and not used after this.
        assert_eq!(unsafe { tombolo_close(domain) }, Result::Ok, "{:?}", error());
    });
}

#[test]
fn a_domain_that_is_closed_settles_memory_that_may_be_registered() {
    settled_by("close", |domain, _| {
        // SAFETY: opened before, and not used after this.
        assert_eq!(unsafe { tombolo_close(domain) }, Result::Ok, "{:?}", error());
    });
}
