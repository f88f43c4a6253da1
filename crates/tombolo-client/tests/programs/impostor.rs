//! Listeners that are not the program's own user's.

use std::os::fd::AsFd;

use tombolo_channel::{ChannelPage, MAX_MESSAGE_BYTES, Message, Reply, decode, encode};
use tombolo_client::{Domain, OpenError};
use tombolo_host::event;
use tombolo_host::testing::{STRANGER, as_user, may_change_user};
use tombolo_host::unix::{SeqpacketListener, UnixError};

use crate::harness::{PATIENCE, path};

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
    if !may_change_user() {
        return;
    }
    let path = path("impostor");
    let listener = as_user(STRANGER, || SeqpacketListener::bind(&path).unwrap());
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
