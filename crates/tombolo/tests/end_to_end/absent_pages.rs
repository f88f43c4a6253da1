//! Programs that use the engine on memory of their own, while they map, unmap, protect and fork: plainly, and on far
//! memory, from which pages come back only when they are asked for.
//!
//! `TOMBOLO_SEED=7` repeats one seed, `TOMBOLO_SECONDS=300` goes on for that long ([`Seeds`]).

use std::path::Path;
use std::time::Duration;

use tombolo_host::testing::left_out;
use tombolo_random::Seeds;

use crate::common::{Lender, Link, Outcome, Program, Scratch, compiled, needs, sized};
use crate::paths::relay::Relay;

/// How long one run disturbs itself.
const SECONDS: &str = "2";

/// A test program, linked to the library for C.
fn program(name: &str) -> String {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("tombolo-c");
    // Beside this test, where Cargo puts it for the tests of its own package.
    let test = std::env::current_exe().unwrap();
    let libraries = test.parent().unwrap();
    let library = libraries.join("libtombolo_c.so");
    assert!(library.is_file(), "no {}: cargo test --package tombolo-c --no-run", library.display());
    let flags = [
        "-Wno-unused-function".to_owned(),
        format!("-I{}", crates.join("include").display()),
        format!("-I{}", crates.join("examples").display()),
        format!("-L{}", libraries.display()),
        "-ltombolo_c".to_owned(),
        format!("-Wl,-rpath,{}", libraries.display()),
    ];
    compiled(name, &flags.each_ref().map(String::as_str))
}

/// One node, or two that are joined, and where the programs find them.
struct Nodes {
    nodes: Vec<Lender>,
    _scratch: Scratch,
    arguments: [String; 3],
    /// On the way from one to the other, where datagrams are lost.
    relay: Option<Relay>,
}

impl Nodes {
    fn start(link: Option<Link>) -> Self {
        Self::start_with(link, None)
    }

    /// Every n-th datagram between them is lost.
    fn start_with(link: Option<Link>, loses: Option<u64>) -> Self {
        let mut relay = None;
        let scratch = Scratch::new("absent-pages");
        let [near, far] = ["near", "far"].map(|name| scratch.file(name));
        let (nodes, arguments) = match link {
            None => {
                let only = Lender::start_with(Link::Shm, "0", &["--programs", &near]);
                (vec![only], [near.clone(), near, "0".into()])
            }
            Some(link) => {
                let lender = Lender::start_with(link, "0", &["--programs", &far]);
                let mut address = lender.address().to_owned();
                if let Some(one_of) = loses {
                    let way = Relay::to(&address.parse().unwrap(), 0);
                    way.lose(one_of);
                    address = way.address.to_string();
                    relay = Some(way);
                }
                let peer = ["--programs", &near, "--peer", &address];
                let other = Lender::start_with(Link::Shm, "0", &peer);
                other.errors_with("joined", Duration::from_secs(30));
                (vec![lender, other], [near, far, "1".into()])
            }
        };
        Self { nodes, _scratch: scratch, arguments, relay }
    }

    /// Runs the program with these seeds: one, or as many as there is time for.
    fn run(&self, pages: usize, run: impl Fn(&Program) -> Outcome) {
        let test = "cargo xtask test memory_changes_under";
        Seeds::from_environment(1).run(test, |seed| {
            eprintln!("    absent_pages: TOMBOLO_SEED={seed}");
            let [near, far, node] = &self.arguments;
            let (pages, seed) = (pages.to_string(), seed.to_string());
            let program = Program::new(&[&program("absent_pages"), near, far, node, &pages, SECONDS, &seed]);
            let outcome = run(&program.patience(Duration::from_secs(180)).remote("256M"));
            let text = outcome.text();
            assert_eq!(outcome.code(), 0, "seed {seed}: {text}{}", outcome.stderr);
            assert_eq!(text, "every word is where it belongs\n", "seed {seed}: {}", outcome.stderr);
        });
    }
}

#[test]
fn memory_changes_under_transfers_of_one_node() {
    Nodes::start(None).run(256, Program::plain);
}

#[test]
fn memory_changes_under_transfers_over_shared_memory() {
    Nodes::start(Some(Link::Shm)).run(600, Program::plain);
}

#[test]
fn memory_changes_under_transfers_over_udp() {
    Nodes::start(Some(Link::Udp)).run(600, Program::plain);
}

/// The matrix of absent pages whose pages are at another node, where the pager of their program has moved them.
fn evicted(link: Option<Link>, loses: Option<u64>) {
    needs!();
    let (nodes, lender) = (Nodes::start_with(link, loses), Lender::start(Link::Shm, "1G"));
    let [near, far, node] = &nodes.arguments;
    let program = Program::new(&[program("evicted").as_str(), near, far, node, sized("16", "48")]);
    let outcome =
        program.patience(Duration::from_secs(180)).remote("256M").run_on(&[&lender], sized("6M", "16M"));
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "every cell is right\n"), "{}", outcome.stderr);
    for node in &nodes.nodes {
        assert_eq!(
            node.status()["counters"]["programs_helpers_started"],
            0,
            "threads of the program bring pages"
        );
    }
    // Those that the pager has protected were met as such, wherever their program's node is.
    let met = |node: &Lender, end| {
        node.status()["counters"][format!("faults_{end}_write_protected")].as_u64().unwrap_or(0)
    };
    let protected: u64 = nodes.nodes.iter().map(|node| met(node, "destination") + met(node, "atomic")).sum();
    assert!(protected > 10, "of 30 cells with protected pages, {protected} met one");
    assert!(nodes.relay.as_ref().is_none_or(|relay| relay.lost() > 20), "too little was lost");
}

#[test]
fn evicted_pages_come_back_for_transfers_of_one_node() {
    evicted(None, None);
}

#[test]
fn evicted_pages_come_back_for_transfers_over_shared_memory() {
    evicted(Some(Link::Shm), None);
}

#[test]
fn evicted_pages_come_back_for_transfers_over_udp() {
    evicted(Some(Link::Udp), None);
}

#[test]
fn evicted_pages_come_back_for_transfers_over_udp_with_losses() {
    evicted(Some(Link::Udp), Some(29));
}

/// A program that may start no thread has a process that makes the accesses to its memory.
#[test]
fn a_program_without_threads_has_a_helper_that_ends_with_its_domain() {
    let scratch = Scratch::new("confined");
    let socket = scratch.file("programs");
    let mut node = Lender::start_with(Link::Shm, "0", &["--programs", &socket]);
    let process = node.node().pid().to_string();
    let outcome = Program::new(&[&program("confined"), &socket, &process]).plain();
    assert_eq!(
        (outcome.code(), outcome.text().as_str()),
        (0, "as well without threads\n"),
        "{}",
        outcome.stderr
    );
    assert_eq!(node.status()["counters"]["programs_helpers_started"], 2);
}

/// A program that gives its user up has threads that make the accesses, though it may not look at its own page map: absent pages are
/// found all the same.
#[test]
fn a_program_that_gives_its_user_up_registers_memory_afterwards() {
    if !rustix::process::geteuid().is_root() {
        return left_out("giving a user up needs root");
    }
    let scratch = Scratch::new("given_up");
    let socket = scratch.file("programs");
    let node = Lender::start_with(Link::Shm, "0", &["--programs", &socket]);
    let outcome = Program::new(&[&program("given_up"), &socket]).plain();
    assert_eq!(
        (outcome.code(), outcome.text().as_str()),
        (0, "as well as another user\n"),
        "{}",
        outcome.stderr
    );
    let counters = &node.status()["counters"];
    for met in ["faults_destination_missing", "faults_source_missing"] {
        assert!(counters[met].as_u64() > Some(0), "no {met}: {counters:#}");
    }
    assert_eq!(counters["programs_helpers_started"], 0);
}

/// The same, unchanged, with most of the memory at a lender: its pages come back for the transfers.
fn on_far_memory(link: Option<Link>) {
    needs!();
    let (nodes, lender) = (Nodes::start(link), Lender::start(Link::Shm, "1G"));
    nodes.run(2048, |program| {
        let outcome = program.run_on(&[&lender], "4M");
        if outcome.code() == 0 {
            let report = outcome.report();
            for bytes in ["bytes_in", "bytes_out"] {
                assert!(report[bytes].as_u64() > Some(0), "no {bytes}: {report:#}");
            }
        }
        outcome
    });
}

#[test]
fn far_memory_changes_under_transfers_of_one_node() {
    on_far_memory(None);
}

#[test]
fn far_memory_changes_under_transfers_over_shared_memory() {
    on_far_memory(Some(Link::Shm));
}

#[test]
fn far_memory_changes_under_transfers_over_udp() {
    on_far_memory(Some(Link::Udp));
}
