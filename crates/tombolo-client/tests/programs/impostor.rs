//! Listeners that are not the program's own user's.

use std::os::fd::AsFd;
use std::path::Path;

use tombolo_channel::{ChannelPage, MAX_MESSAGE_BYTES, Message, Reply, decode, encode};
use tombolo_client::{Domain, OpenError};
use tombolo_host::event;
use tombolo_host::unix::{SeqpacketListener, UnixError};

use crate::harness::{PATIENCE, path};

/// The user `nobody`, who runs no node of ours.
const STRANGER: u32 = 65534;

/// Whether this process may act as another user; says loudly that a test is left out where it may not.
fn may_change_user(test: &str) -> bool {
    let may = rustix::process::geteuid().is_root();
    if !may {
        eprintln!("LEFT OUT: {test} needs root, to act as another user");
        assert!(
            std::env::var_os("TOMBOLO_REQUIRE_ALL").is_none_or(|value| value != "1"),
            "{test} is left out, and TOMBOLO_REQUIRE_ALL=1 forbids that"
        );
    }
    may
}

/// Does it as another user, which the kernel takes from the thread that does.
fn as_user<T: Send + 'static>(user: u32, work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(user);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        work()
    });
    done.join().unwrap()
}

fn listen_as(user: u32, path: &Path) -> SeqpacketListener {
    let path = path.to_owned();
    as_user(user, move || SeqpacketListener::bind(&path).unwrap())
}

/// Opens a domain for one program, as a node would.
fn serve_one(listener: &SeqpacketListener) {
    assert!(event::wait_readable(&[listener.as_fd()], Some(PATIENCE)).unwrap());
    let socket = listener.accept().unwrap().unwrap();
    assert!(event::wait_readable(&[socket.as_fd()], Some(PATIENCE)).unwrap());
    let mut buffer = vec![0; MAX_MESSAGE_BYTES];
    let received = socket.receive(&mut buffer).unwrap();
    let Some(Message::AskV2 { number, .. }) = decode(&buffer[..received.length_bytes]) else {
        panic!("no request");
    };
    let page = ChannelPage::create().unwrap();
    let answer = Message::AnswerV2 { number, reply: Reply::Opened { domain: 7 } };
    socket.send(&[&encode(&answer)], &[page.as_fd()]).unwrap();
}

#[test]
fn a_listener_of_another_user_is_asked_for_nothing_unless_that_user_is_named() {
    if !may_change_user("a programs' socket of another user") {
        return;
    }
    let path = path("impostor");
    let listener = listen_as(STRANGER, &path);
    let open = |user_id: Option<u32>| match user_id {
        None => Domain::open(&path, None),
        Some(user_id) => Domain::open_of_user(&path, None, user_id),
    };
    // To name somebody else does not help.
    for named in [None, Some(1)] {
        let error = std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(event::wait_readable(&[listener.as_fd()], Some(PATIENCE)).unwrap());
                let socket = listener.accept().unwrap().unwrap();
                assert!(event::wait_readable(&[socket.as_fd()], Some(PATIENCE)).unwrap());
                let heard = socket.receive(&mut [0; MAX_MESSAGE_BYTES]);
                assert!(matches!(heard, Err(UnixError::Closed)), "a stranger heard {heard:?}");
            });
            open(named).unwrap_err()
        });
        assert!(matches!(error, OpenError::UntrustedNode { user_id: STRANGER, .. }), "{error}");
        assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    }
    std::thread::scope(|scope| {
        scope.spawn(|| serve_one(&listener));
        assert_eq!(open(Some(STRANGER)).unwrap().number(), 7);
    });

    // It counts who listens, not whose the file is.
    drop(listener);
    let own = SeqpacketListener::bind(&path).unwrap();
    std::os::unix::fs::chown(&path, Some(STRANGER), None).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve_one(&own));
        assert_eq!(open(None).unwrap().number(), 7);
    });
}
