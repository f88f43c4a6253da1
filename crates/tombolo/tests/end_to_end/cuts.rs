//! Encrypted transfers between two machines whose network is cut again and again, for a second to ten minutes by the nodes' clocks,
//! which run 20 times as fast: so sealing keys change several times within a cut.
//!
//! `TOMBOLO_FULL=1` goes on for half an hour.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_client::{Domain, Grant, Spec, Target, Who};
use tombolo_random::Random;

use crate::common::{PATIENCE, Running, TOMBOLO, compiled, needs, sized};
use crate::network::{Machines, joined_times, machines};

/// Times that the nodes' clocks run as fast as ours.
const FAST: u32 = 20;
const SHORTEST_CUT: Duration = Duration::from_secs(1);
/// How long after a cut a transfer may still fail, by our clock.
const HEALING: Duration = Duration::from_secs(5);
const MEMORY_BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = 4096;

/// Starts a node whose clock runs fast.
fn node(machines: &Machines, which: usize, fast_clock: &str) -> Running {
    let (own, other) = (Machines::address(which), Machines::address(1 - which));
    let programs = machines.homes[which].file("programs");
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &machines.place(which), "env"]);
    command.args([&format!("LD_PRELOAD={fast_clock}"), &format!("FAST={FAST}"), TOMBOLO]);
    let name = format!("node-{which}");
    command.args([
        "node",
        "--name",
        &name,
        "--listen",
        &own,
        "--peer",
        &other,
        "--programs",
        &programs,
        "--outage",
        "1h",
    ]);
    command.env("HOME", machines.homes[which].path()).env_remove("XDG_CONFIG_HOME");
    let node = Running::start(command, Vec::new());
    node.output_with(" at ", PATIENCE);
    node
}

/// Frames to the other machine go nowhere, or arrive again: nobody is told.
fn set_cut(machines: &Machines, is_cut: bool) {
    for which in 0..2 {
        let shown = Command::new("ip")
            .args(["-n", &machines.place(1 - which), "-o", "link", "show", "cable"])
            .output()
            .expect("ip runs");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let mac =
            shown.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address");
        let mac = if is_cut { "02:de:ad:00:00:01" } else { mac };
        let to = format!("10.79.0.{}", 2 - which);
        machines.at(which, &format!("neigh replace {to} lladdr {mac} dev cable nud permanent")).unwrap();
    }
}

/// What each piece of the memory at the other machine holds; `None`: a transfer there has failed.
type Model = Vec<Option<u64>>;

fn filled(mark: u64) -> Vec<u8> {
    mark.to_le_bytes().repeat(PIECE_BYTES / 8)
}

fn assert_same(model: &Model, memory: &tombolo_client::Memory, what: &str) {
    let mut found = vec![0; PIECE_BYTES];
    for (piece, mark) in model.iter().enumerate() {
        memory.read(piece * PIECE_BYTES, &mut found).unwrap();
        assert!(mark.is_none_or(|mark| found == filled(mark)), "{what}: piece {piece} should hold {mark:?}");
    }
}

#[test]
fn encrypted_transfers_outlive_cuts_of_seconds_and_minutes() {
    needs!("cc", "ip");
    let Some(machines) = machines() else { return };
    let time = sized(Duration::from_secs(25), Duration::from_secs(1800));
    // By the nodes' clocks.
    let longest_cut = sized(Duration::from_secs(100), Duration::from_secs(600));
    let fast_clock = compiled("fast_clock", &["-shared", "-fPIC"]);
    let nodes = [0, 1].map(|which| node(&machines, which, &fast_clock));
    for node in &nodes {
        joined_times(node, 1);
    }
    let [here, there] =
        [0, 1].map(|which| Domain::open(Path::new(&machines.homes[which].file("programs")), None).unwrap());
    let grant = Grant { who: Who::Anyone, read: true, write: true };
    let (ours, theirs) =
        (here.allocate(MEMORY_BYTES, &[]).unwrap(), there.allocate(MEMORY_BYTES, &[grant]).unwrap());
    let peers = here.peers().unwrap();
    // The first one is the node itself.
    let other = peers.iter().find(|peer| peer.name == "node-1").expect("it is joined");
    let to = Target { node: other.node, domain: there.number() };
    let seed = tombolo_random::amount("TOMBOLO_SEED").unwrap_or(std::process::id().into());
    println!("    TOMBOLO_SEED={seed}");
    let healed_at = std::sync::Mutex::new(Instant::now());
    let (is_over, is_cut, cuts) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let (mut done, mut failed, mut bytes) = (0u64, 0u64, 0u64);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random::new(seed);
            let (shortest, longest) = (SHORTEST_CUT.as_secs_f64().ln(), longest_cut.as_secs_f64().ln());
            while !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(random.range(100, 2000)));
                is_cut.store(true, Ordering::SeqCst);
                cuts.fetch_add(1, Ordering::SeqCst);
                set_cut(&machines, true);
                let part = random.below(1 << 20) as f64 / (1 << 20) as f64;
                let seconds = (shortest + part * (longest - shortest)).exp() / f64::from(FAST);
                let until = Instant::now() + Duration::from_secs_f64(seconds);
                while Instant::now() < until && !is_over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                set_cut(&machines, false);
                *healed_at.lock().unwrap() = Instant::now();
                is_cut.store(false, Ordering::SeqCst);
            }
        });
        let mut random = Random::new(seed + 1);
        let mut model: Model = vec![None; MEMORY_BYTES / PIECE_BYTES];
        let (begin, mut last_done) = (Instant::now(), Instant::now());
        let mut mark = 0;
        let patience = longest_cut / FAST + PATIENCE;
        while begin.elapsed() < time {
            let count = 1 + random.index(64);
            let piece = random.index(model.len() - count + 1);
            mark += 1;
            let (offset, length) = (piece * PIECE_BYTES, count * PIECE_BYTES);
            ours.write(offset, &filled(mark).repeat(count)).unwrap();
            let (before, was_cut) = (cuts.load(Ordering::SeqCst), is_cut.load(Ordering::SeqCst));
            let [source, destination] = [&ours, &theirs].map(|memory| memory.address() + offset as u64);
            let transfer = here.write(to, Spec::new(source, destination, length as u32)).unwrap();
            let since = Instant::now();
            while transfer.status() == tombolo_client::Status::Ongoing {
                assert!(since.elapsed() < patience, "a transfer does not end");
                let _ = transfer.wait(Duration::from_millis(200));
            }
            match transfer.status() {
                tombolo_client::Status::Finished => {
                    model[piece..piece + count].fill(Some(mark));
                    (done, bytes, last_done) = (done + 1, bytes + length as u64, Instant::now());
                }
                other => {
                    // The link goes on some seconds after a cut, by our clock.
                    let is_healing = healed_at.lock().unwrap().elapsed() < since.elapsed() + HEALING;
                    let has_been_cut = was_cut || is_healing || cuts.load(Ordering::SeqCst) != before;
                    assert!(has_been_cut, "{other:?} without a cut");
                    assert!(last_done.elapsed() < patience, "nothing goes any more: {other:?}");
                    model[piece..piece + count].fill(None);
                    failed += 1;
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            if mark % 64 == 0 {
                assert_same(&model, &theirs, "later");
            }
        }
        is_over.store(true, Ordering::Relaxed);
        // Healed, it goes on, and what was given up does not come late.
        let since = Instant::now();
        loop {
            mark += 1;
            ours.write(0, &filled(mark)).unwrap();
            let transfer =
                here.write(to, Spec::new(ours.address(), theirs.address(), PIECE_BYTES as u32)).unwrap();
            let _ = transfer.wait(patience);
            if transfer.status() == tombolo_client::Status::Finished {
                model[0] = Some(mark);
                break;
            }
            assert!(since.elapsed() < PATIENCE, "it does not heal: {:?}", transfer.status());
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_same(&model, &theirs, "at the end");
    });
    let cuts = cuts.load(Ordering::Relaxed);
    println!("    {done} transfers of {} MiB, {failed} given up, {cuts} cuts", bytes >> 20);
    assert!(done > 100 && cuts >= sized(3, 100));
    for node in &nodes {
        assert_eq!(node.errors().matches(" lost ").count(), 0, "{}", node.errors());
        assert_eq!(node.errors().matches(" joined ").count(), 1, "{}", node.errors());
    }
    drop((ours, theirs, here, there));
    for node in nodes {
        // Waits of the standard library have an end on the kernel's clock, which this one has left behind.
        node.signal(Signal::KILL);
        node.wait(PATIENCE);
    }
}
