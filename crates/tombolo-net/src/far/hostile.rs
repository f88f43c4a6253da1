//! Tests of an owner with hostile ports of another machine, which send what would never come from a TAP device, beside two
//! well-behaved ports.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use tombolo_control::Trust;
use tombolo_core::nic::offload::OFFLOAD_BYTES;
use tombolo_core::nic::pipe::RECORD_HEAD_BYTES;
use tombolo_core::nic::{Mode, Turns};
use tombolo_host::net::in_new_namespace;
use tombolo_random::{Random, Seeds};

use super::*;
use crate::client::Client;
use crate::serve::{Options, Owner};
use crate::uplink::UplinkName;

/// How long anything that must happen may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A port, and the hardware address that the owner has given it.
struct Given {
    far: FarOwner,
    mac: [u8; 6],
}

fn port(name: &str) -> Port {
    Port {
        name: name.into(),
        tap: "none".into(),
        namespace: None,
        mac: String::new(),
        mtu: 1500,
        weight: 1,
        rate_bits: 0,
        guaranteed_bits: 0,
        vlans: crate::protocol::Vlans::Untagged,
        addresses: None,
        is_promiscuous: false,
        groups: None,
    }
}

fn attach(address: &Address, port: &Port) -> Given {
    let how = Coalescing { frames: 1, after_ns: 0, is_adaptive: false };
    let since = Instant::now();
    loop {
        match FarOwner::attach(address, &Security::Insecure, port, how) {
            Ok((far, Answer::Attached { mac, .. })) => {
                let mac: tombolo_core::nic::Mac = mac.parse().expect("an address");
                return Given { far, mac: mac.0 };
            }
            // The one before is about to go.
            Err(FarError::NameTaken(_)) if since.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok((_, answer)) => panic!("{answer:?}"),
            Err(error) => panic!("{error}"),
        }
    }
}

impl FarOwner {
    /// Sends these bytes as a record.
    fn say(&mut self, parts: &[&[u8]]) {
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let since = Instant::now();
        while !self.station.push(self.now_ns(), self.key, Kind::Frame, &slices) {
            assert!(since.elapsed() < PATIENCE, "the owner takes nothing");
            self.turn();
        }
        self.turn();
    }

    /// The next frame that has come.
    fn heard(&mut self) -> Option<Vec<u8>> {
        self.turn();
        self.station.take(self.key, &mut self.buffer).ok().map(|()| self.buffer.frame().to_vec())
    }

    /// Waits until the owner has ended the connection, or its node has gone.
    fn await_end(&mut self, what: &str) {
        let since = Instant::now();
        loop {
            self.turn();
            while self.station.take(self.key, &mut self.buffer) != Err(Errno::AGAIN) {}
            if self.station.take_news().iter().any(|news| matches!(news, News::Ended { .. })) {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "{what}: it is heard still");
        }
    }
}

/// Sends a frame from one port to the other and back. As in any network, it may be lost behind many frames of other ports (a
/// segment with few bytes per frame is cut into thousands). Then it is sent again.
fn behave(one: &mut Given, other: &mut Given, number: u32) {
    for is_back in [false, true] {
        let (from, to) = if is_back { (&mut *other, &mut *one) } else { (&mut *one, &mut *other) };
        let (source, destination) = (from.mac, to.mac);
        let (from, to) = (&mut from.far, &mut to.far);
        let frame = [&destination[..], &source, &[0x88, 0xb5], &number.to_be_bytes(), &[7; 100]].concat();
        from.say(&[&[0; OFFLOAD_BYTES], &frame]);
        let (since, mut said) = (Instant::now(), Instant::now());
        while to.heard().as_ref() != Some(&frame) {
            from.turn();
            if said.elapsed() > Duration::from_secs(1) {
                said = Instant::now();
                from.say(&[&[0; OFFLOAD_BYTES], &frame]);
            }
            assert!(since.elapsed() < PATIENCE, "frame {number} does not come");
        }
    }
}

/// Draws an offload header and a frame, random or nearly valid.
fn draw(random: &mut Random, [one, other, hostile]: [[u8; 6]; 3]) -> (Vec<u8>, Vec<u8>) {
    let mut frame = match random.below(4) {
        0 => one.to_vec(),
        1 => vec![0xff; 6],
        // To the hostile port itself, or to an address that no port has.
        2 if random.one_in(8) => hostile.to_vec(),
        2 => vec![2, 0, 0, 0, 0, random.below(8) as u8],
        _ => (0..6).map(|_| random.below(256) as u8).collect(),
    };
    frame.extend(if random.one_in(4) { other } else { hostile });
    let is_six = random.one_in(2);
    frame.extend(if is_six { [0x86, 0xdd] } else { [8, 0] });
    if random.one_in(8) {
        frame.extend([0x81, 0, 0, 5]);
    }
    let payload = [0, 1, 46, 1000, 1400, 4000, 20_000, 60_000][random.below(8) as usize];
    let protocol = [6, 17][random.below(2) as usize];
    let segment = 20 + payload as u16;
    if is_six {
        frame.extend([&[0x60, 0, 0, 0][..], &segment.to_be_bytes(), &[protocol, 64], &[1; 32]].concat());
    } else {
        let length = (20 + segment).to_be_bytes();
        frame.extend([&[0x45, 0][..], &length, &[0, 0, 0, 0, 64, protocol, 0, 0], &[10; 8]].concat());
    }
    frame.extend([0; 12]);
    frame.push(0x50);
    frame.resize(frame.len() + 7 + payload, 9);
    if random.one_in(3) {
        let at = random.below(frame.len() as u64) as usize;
        frame[at] ^= 1 << random.below(8);
    }
    if random.one_in(6) {
        frame.truncate(random.below(64) as usize);
    }
    let numbers = [0u16, 1, 6, 13, 14, 16, 20, 34, 54, 74, 1000, 1448, 8999, 65_535];
    let mut word = || numbers[random.below(numbers.len() as u64) as usize].to_le_bytes();
    let (length, size, start, offset) = (word(), word(), word(), word());
    let kind = [0, 1, 3, 4, 5, 0x81, 77][random.below(7) as usize];
    let flags = [0, 1, 1, 2, 255][random.below(5) as usize];
    let mut header = [&[flags, kind][..], &length, &size, &start, &offset].concat();
    if random.one_in(20) {
        header.truncate(random.below(10) as usize);
        frame.clear();
    }
    (header, frame)
}

/// Letters with impossible contents, for a ring that was filled up to the place `from`.
fn lies(session: u64, from: u64) -> Vec<(&'static str, Vec<u8>)> {
    let batch = |beyond, length, credit, inline| {
        let start = from.wrapping_add(beyond);
        Letter::Batch { session, from, start, length, credit, inline }.to_bytes()
    };
    // A record's head and eight bytes.
    let record = |length: u32, kind: u32| [length.to_le_bytes(), kind.to_le_bytes(), [0; 4], [0; 4]].concat();
    vec![
        ("a batch beyond the ring", batch(0, RING_BYTES + 8, 0, None)),
        ("a batch that begins far away", batch(1 << 60, 64, 0, None)),
        ("a batch of nothing", batch(0, 0, 0, None)),
        ("a batch that begins before", batch(u64::MAX - 7, 16, 0, None)),
        ("an inline batch of another length", batch(0, 16, 0, Some(&[0; 8]))),
        ("a record longer than its batch", batch(0, 16, 0, Some(&record(100, 1)))),
        ("a record as long as can be", batch(0, 16, 0, Some(&record(u32::MAX, 1)))),
        ("a record of no kind", batch(0, 16, 0, Some(&record(8, 99)))),
        ("a credit for what was not sent", batch(0, 16, 1 << 40, Some(&record(8, 1)))),
        ("a credit alone", Letter::Credit { session, head: u64::MAX }.to_bytes()),
    ]
}

fn refused(client: &Client, name: &str) -> BTreeMap<String, u64> {
    match client.ask(Ask::Show(name.into()), &[]) {
        Ok(Answer::Port(status)) => status.counters.refused.into_iter().collect(),
        answer => panic!("{answer:?}"),
    }
}

fn run(seed: u64, path: &Path, address: &Address) {
    let mut random = Random::new(seed);
    let client = Client::connect(path, Trust::Own).unwrap();
    // A port cannot choose its hardware address, which could be the gateway's.
    let chosen = Port { mac: "02:00:00:00:00:01".into(), ..port("chooser") };
    let how = Coalescing { frames: 1, after_ns: 0, is_adaptive: false };
    match FarOwner::attach(address, &Security::Insecure, &chosen, how) {
        Err(FarError::Refused(reason)) => assert!(reason.contains("the owner gives"), "{reason}"),
        _ => panic!("a port chooses its address"),
    }
    let (mut one, mut other) = (attach(address, &port("one")), attach(address, &port("other")));
    behave(&mut one, &mut other, 0);
    let mut hostile = attach(address, &port("hostile"));
    let macs = [one.mac, other.mac, hostile.mac];
    let mut lie = |one: &mut Given, other: &mut Given| {
        let (header, frame) = draw(&mut random, macs);
        hostile.far.say(&[&header, &frame]);
        while hostile.far.heard().is_some() {}
        while one.far.heard().is_some() {}
        while other.far.heard().is_some() {}
    };
    for number in 1..=3000 {
        lie(&mut one, &mut other);
        if number % 300 == 0 {
            behave(&mut one, &mut other, number);
        }
    }
    // Each kind of mistake must be found and counted under its own reason. Some kinds are drawn seldom, so drawing goes on.
    let reasons = ["bad_offload", "malformed", "too_long", "wrong_source", "unknown_destination"];
    let since = Instant::now();
    loop {
        let found = refused(&client, "hostile");
        if reasons.iter().all(|reason| found[*reason] > 0) {
            break;
        }
        assert!(since.elapsed() < PATIENCE, "{found:?}");
        lie(&mut one, &mut other);
    }
    drop(hostile);
    // A port that sends an impossible letter about a ring is disconnected.
    let liar = port("liar");
    // The request by which the port is attached: its record is the first in the ring, and ends at `place`.
    let request = Request { version: crate::protocol::VERSION, ask: Ask::Attach(liar.clone()) };
    let length = serde_json::to_vec(&request).unwrap().len() as u64;
    let place = u64::from(RECORD_HEAD_BYTES) + length.next_multiple_of(u64::from(RECORD_HEAD_BYTES));
    for index in 0..lies(0, 0).len() {
        let mut liar = attach(address, &liar).far;
        let (what, letter) = lies(liar.station.session(liar.key), place).swap_remove(index);
        liar.station.post_any(liar.owner, letter);
        liar.await_end(what);
        behave(&mut one, &mut other, 10_000 + index as u32);
    }
}

#[test]
fn ports_of_other_machines_that_lie_disturb_nobody() {
    let folder = std::env::temp_dir().join(format!("tombolo-net-hostile-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("owner");
    let done = in_new_namespace(|| {
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
        assert!(up.success());
        let options = Options {
            uplink: UplinkName::Tap("up".into()),
            rate_bits: 0,
            turns: Turns::Bytes,
            mode: Mode::Bridge,
            mtu: None,
            far: Some((Address::Udp("127.0.0.1:0".parse().map_err(io::Error::other)?), Security::Insecure)),
            coalescing: Coalescing { frames: 1, after_ns: 0, is_adaptive: false },
            allowances: None,
        };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let (path, options, is_over) = (&path, &options, &is_over);
            let serving = scope.spawn(move || {
                let mut owner = Owner::open(options, &[path], None)?;
                let _ = sender.send(owner.far_address().cloned());
                owner.serve(|| is_over.load(Ordering::Relaxed))
            });
            let address = receiver.recv().map_err(io::Error::other)?.expect("it listens");
            let ran = std::panic::catch_unwind(|| {
                Seeds::from_environment(2).run("cargo test -p tombolo-net hostile", |seed| {
                    run(seed, path, &address);
                });
            });
            is_over.store(true, Ordering::Relaxed);
            serving.join().expect("the owner panics")?;
            ran.map_err(|_| io::Error::other("see above"))
        })
    });
    let _ = std::fs::remove_dir_all(&folder);
    match done {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tombolo_host::testing::left_out(&format!("ports of other machines that lie: {error}"));
        }
        done => done.unwrap(),
    }
}
