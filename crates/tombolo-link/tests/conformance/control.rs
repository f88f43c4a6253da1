//! Control messages: each once, in order, whatever happens to packets.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::harness::{PATIENCE, Pair, try_send};
use tombolo_link::{ControlMessage, Link, MAX_CONTROL_BYTES, SendError};

pub fn send_control(link: &dyn Link, message: &[u8]) {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = link.send_control(message, &[]) {
        assert_eq!(error, SendError::Full);
        assert!(Instant::now() < deadline, "full for too long");
        // Acknowledgements come in with whatever else is received.
        link.receive(16, &mut |_| {}).unwrap();
        link.tick(Instant::now());
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The next control message, driving both ends' timers.
pub fn next_control(link: &dyn Link, peer: &dyn Link) -> ControlMessage {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(message) = link.receive_control().unwrap() {
            return message;
        }
        assert!(Instant::now() < deadline, "no control message came");
        link.receive(16, &mut |_| {}).unwrap();
        peer.receive(16, &mut |_| {}).unwrap();
        peer.tick(Instant::now());
        link.wait(Duration::from_millis(1)).unwrap();
    }
}

pub fn messages_arrive_once_and_in_order(pair: &Pair) {
    for round in 0..20_u32 {
        for number in 0..10_u32 {
            send_control(&*pair.one, format!("message {round} {number}").as_bytes());
        }
        for number in 0..10_u32 {
            let message = next_control(&*pair.other, &*pair.one);
            assert_eq!(message.bytes, format!("message {round} {number}").as_bytes());
        }
    }
    std::thread::sleep(Duration::from_millis(20));
    pair.one.tick(Instant::now());
    assert!(pair.other.receive_control().unwrap().is_none());
    assert_eq!(pair.other.counters().control_received, 200);
}

pub fn both_ways_under_load(pair: &Pair) {
    const MESSAGES: u32 = 300;
    let finished = std::sync::Barrier::new(2);
    let exchange = |link: &dyn Link| {
        let (mut sent, mut received) = (0, 0_u32);
        let deadline = Instant::now() + PATIENCE;
        while sent < MESSAGES || received < MESSAGES || link.counters().control_sent == 0 {
            assert!(Instant::now() < deadline, "{sent} sent, {received} received");
            if sent < MESSAGES && link.send_control(&message(sent), &[]).is_ok() {
                sent += 1;
            }
            for _ in 0..8 {
                let _ = try_send(link, 1, 1000);
            }
            link.flush().unwrap();
            link.receive(32, &mut |_| {}).unwrap();
            while let Some(found) = link.receive_control().unwrap() {
                assert_eq!(found.bytes, message(received));
                received += 1;
            }
            link.tick(Instant::now());
        }
        // The peer may still need our acknowledgements.
        let until = Instant::now() + Duration::from_millis(600);
        while Instant::now() < until {
            link.receive(64, &mut |_| {}).unwrap();
            assert!(link.receive_control().unwrap().is_none());
            link.wait(Duration::from_millis(5)).unwrap();
        }
        finished.wait();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| exchange(&*pair.one));
        scope.spawn(|| exchange(&*pair.other));
    });
}

fn message(number: u32) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(4 + (number as usize * 37) % 2000, number as u8);
    bytes
}

pub fn large_and_impossible_sizes(pair: &Pair) {
    for bytes in [1, 4000, 4080, 5000, MAX_CONTROL_BYTES - 1, MAX_CONTROL_BYTES] {
        let message: Vec<u8> = (0..bytes).map(|index| (index / 3) as u8).collect();
        send_control(&*pair.one, &message);
        assert_eq!(next_control(&*pair.other, &*pair.one).bytes, message);
    }
    for bytes in [0, MAX_CONTROL_BYTES + 1] {
        let error = pair.one.send_control(&vec![0; bytes], &[]).unwrap_err();
        assert_eq!(error, SendError::TooLarge { bytes, max_bytes: MAX_CONTROL_BYTES });
    }
}

pub fn descriptors_pass_where_supported(pair: &Pair) {
    let path = crate::harness::scratch_path();
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let descriptors: [BorrowedFd<'_>; 2] = [file.as_fd(), file.as_fd()];
    let result = pair.one.send_control(b"files", &descriptors);
    if !pair.one.supports_windows() {
        assert_eq!(result, Err(SendError::Descriptors(2)));
        return;
    }
    result.unwrap();
    let mut message = next_control(&*pair.other, &*pair.one);
    assert_eq!(message.descriptors.len(), 2);
    let mut theirs = File::from(std::os::fd::OwnedFd::from(message.descriptors.remove(0)));
    theirs.write_all(b"through the link").unwrap();
    let (mut ours, mut text) = (&file, String::new());
    ours.rewind().unwrap();
    ours.read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the link");
    let many = [file.as_fd(); 9];
    assert_eq!(pair.one.send_control(b"files", &many), Err(SendError::Descriptors(9)));
    assert_eq!(pair.one.peer_process_id(), Some(std::process::id()));
}
