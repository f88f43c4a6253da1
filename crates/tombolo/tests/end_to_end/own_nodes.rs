//! Nodes of this machine, as their user asks them: without an address, by their names, at several addresses.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use tombolo_host::testing::left_out;
use tombolo_host::unix::SeqpacketSocket;

use crate::common::{Lender, Outcome, PATIENCE, Running, Scratch, TOMBOLO, compiled, needs, tombolo};

/// A machine: a place for the sockets of its nodes.
struct Machine {
    scratch: Scratch,
}

impl Machine {
    fn new(name: &str) -> Self {
        Self { scratch: Scratch::new(name) }
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(TOMBOLO);
        command.args(arguments).env("TOMBOLO_RUNTIME_DIR", self.scratch.path().join("nodes"));
        Running::start(command, Vec::new())
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.start(arguments).wait(PATIENCE)
    }

    /// A node that only UDP leads to.
    fn node(&self, name: &str, lend: &str) -> Running {
        let node = self.start(&[
            "node",
            "--insecure",
            "--listen",
            "udp:127.0.0.1:0",
            "--name",
            name,
            "--lend",
            lend,
        ]);
        node.output_with(" at ", Duration::from_secs(30));
        node
    }

    /// What a node says of itself.
    fn status(&self, which: &[&str]) -> serde_json::Value {
        let outcome = self.run(&[&["status", "--json"], which].concat());
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        serde_json::from_slice(&outcome.stdout).expect("JSON")
    }

    fn sockets(&self) -> Vec<String> {
        let entries = fs::read_dir(self.scratch.path().join("nodes")).unwrap().flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn the_only_node_of_a_machine_is_asked_without_an_address() {
    let machine = Machine::new("only");
    machine.run(&["status"]).assert_one_line(125, "no node of this user runs on this machine");
    let node = machine.node("one", "16M");
    assert_eq!(machine.status(&[])["lend_bytes"], 16 << 20);
    assert_eq!(machine.status(&["one"])["process_id"], node.pid());
    for arguments in [&["ls"][..], &["ping", "--count", "1"], &["run", "--local", "4M", "--", "/bin/true"]] {
        let outcome = machine.run(arguments);
        assert_eq!(outcome.code(), 0, "{arguments:?}: {}", outcome.stderr);
    }
    machine.run(&["status", "other"]).assert_one_line(125, "no node `other`");
    let mode = |name: &str| {
        let path = machine.scratch.path().join("nodes").join(name);
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(["one.sock", "one.node"].map(mode), [0o600, 0o600]);
    // Others reach what is for them in root's.
    let directory = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
    assert_eq!(mode(""), directory);
    node.signal(Signal::TERM);
    assert_eq!(node.wait(PATIENCE).code(), 0);
    assert_eq!(machine.sockets(), Vec::<String>::new());
}

#[test]
fn every_command_that_asks_a_node_takes_its_name() {
    let machine = Machine::new("named");
    let _node = machine.node("one", "16M");
    let _other = machine.node("other", "16M");
    for (arguments, example) in [
        (&["status"][..], "`tombolo status "),
        (&["ls"], "`tombolo ls "),
        (&["ping"], "`tombolo ping "),
        (&["run", "--local", "4M", "--", "/bin/true"], "`tombolo run --from "),
    ] {
        let outcome = machine.run(arguments);
        outcome.assert_one_line(125, "2 nodes run on this machine");
        assert!(outcome.stderr.contains(example), "{}", outcome.stderr);
    }
    let path = |name: &str| machine.scratch.path().join(name).to_str().unwrap().to_owned();
    let said = |arguments: &[&str]| {
        let outcome = machine.run(arguments);
        assert_eq!(outcome.code(), 0, "{arguments:?}: {}", outcome.stderr);
        String::from_utf8(outcome.stdout).unwrap()
    };
    fs::write(path("file"), "bytes").unwrap();
    said(&["cp", &path("file"), "one:data"]);
    assert!(said(&["ls", "one"]).contains("data"));
    assert!(!said(&["ls", "other"]).contains("data"));
    assert_eq!(said(&["cp", "one:data", "-"]), "bytes");
    said(&["ping", "one", "--count", "1"]);
    said(&["rm", "one:data"]);
    assert!(!said(&["ls", "one"]).contains("data"));
    said(&["run", "--from", "one,other", "--local", "4M", "--remote", "8M", "--", "/bin/true"]);
    for arguments in [
        &["ls", "nobody"][..],
        &["ping", "nobody"],
        &["rm", "nobody:data"],
        &["cp", "nobody:data", "-"],
        &["run", "--from", "nobody", "--local", "4M", "--", "/bin/true"],
    ] {
        machine.run(arguments).assert_one_line(125, "no node `nobody` of this user runs on this machine");
    }
}

#[test]
fn of_several_nodes_one_is_named_and_a_live_one_never_replaced() {
    let machine = Machine::new("several");
    let first = machine.node("twin", "1M");
    let second = machine.node("twin", "2M");
    let _third = machine.node("../a b", "3M");
    let sockets = ["_a_b.node", "_a_b.sock", "twin-2.node", "twin-2.sock", "twin.node", "twin.sock"];
    assert_eq!(machine.sockets(), sockets);
    let outcome = machine.run(&["status"]);
    outcome.assert_one_line(125, "3 nodes run on this machine");
    for node in [format!("twin (process {})", first.pid()), format!("twin-2 (process {})", second.pid())] {
        assert!(outcome.stderr.contains(&node), "{}", outcome.stderr);
    }
    for (which, lend_mib) in [("twin", 1), ("twin-2", 2), ("../a b", 3)] {
        assert_eq!(machine.status(&[which])["lend_bytes"], lend_mib << 20, "{which}");
    }
    // One that was killed leaves its socket; the next of its name takes it over.
    first.signal(Signal::KILL);
    first.wait(PATIENCE);
    assert!(machine.sockets().contains(&"twin.node".to_owned()));
    machine.run(&["status", "twin"]).assert_one_line(125, "no node `twin`");
    let left = machine.sockets();
    assert!(
        !left.iter().any(|name| name.starts_with("twin.")),
        "a command that finds a dead one removes it: {left:?}"
    );
    let _again = machine.node("twin", "4M");
    for (which, lend_mib) in [("twin", 4), ("twin-2", 2)] {
        assert_eq!(machine.status(&[which])["lend_bytes"], lend_mib << 20, "{which}");
    }
}

#[test]
fn a_node_whose_socket_cannot_be_made_says_so_and_lends() {
    let machine = Machine::new("open");
    let directory = machine.scratch.path().join("nodes");
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let node = machine.node("one", "1M");
    node.errors_with("nobody else can write to", PATIENCE);
    assert_eq!(machine.sockets(), Vec::<String>::new());
    let outcome = machine.run(&["ps"]);
    assert!(outcome.stderr.contains("nodes is not of this user or root alone"), "{}", outcome.stderr);
}

#[test]
fn one_node_listens_at_several_addresses() {
    let scratch = Scratch::new("both");
    let shm = format!("shm:{}", scratch.file("node"));
    for listen in [
        &["--listen", &shm, "--listen", "udp:127.0.0.1:0"][..],
        &["--listen", "udp:127.0.0.1:0", "--listen", &shm],
    ] {
        let words = [&["node", "--insecure", "--lend", "16M", "--name", "both"], listen].concat();
        let mut command = Command::new(TOMBOLO);
        command.args(words);
        let node = Running::start(command, Vec::new());
        let line = node.output_with(" at ", Duration::from_secs(30));
        let addresses = line.trim().rsplit(" at ").next().expect("addresses").split(", ");
        let processes = addresses.map(|address| {
            let outcome = tombolo(&["status", "--insecure", "--json", address]);
            assert_eq!(outcome.code(), 0, "{address}: {}", outcome.stderr);
            let status: serde_json::Value = serde_json::from_slice(&outcome.stdout).unwrap();
            status["process_id"].clone()
        });
        assert_eq!(processes.collect::<Vec<_>>(), [node.pid(), node.pid()]);
    }
    let both = format!("{shm},{shm}");
    tombolo(&["node", "--listen", &both]).assert_one_line(125, "twice");
    let taken = Lender::start(crate::common::Link::Shm, "1M");
    let both = format!("{shm},{}", taken.address());
    tombolo(&["node", "--listen", &both]).assert_one_line(125, taken.address());
}

/// A node that is stopped, and takes no more connections, is said to be silent; the others are shown, and asked by their names.
#[test]
fn a_stopped_node_hides_no_other() {
    let machine = Machine::new("stopped");
    let node = machine.node("one", "16M");
    let stopped = machine.node("two", "16M");
    stopped.signal(Signal::STOP);
    let socket = machine.scratch.path().join("nodes/two.node");
    let queued: Vec<_> =
        std::iter::from_fn(|| SeqpacketSocket::connect(&socket).ok()).take(100_000).collect();
    assert!(!queued.is_empty() && SeqpacketSocket::connect(&socket).is_err());
    let list = |arguments: &[&str]| -> Vec<serde_json::Value> {
        let outcome = machine.run(arguments);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        assert_eq!(outcome.stderr.matches("node `two` does not answer").count(), 1, "{}", outcome.stderr);
        outcome.text().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    for look in list(&["top", "nodes", "--count", "2", "--json", "--interval", "10ms"]) {
        assert_eq!(look["nodes"][0]["process_id"], node.pid(), "{look:#}");
        assert_eq!(
            (&look["silent"][0]["kind"], &look["silent"][0]["name"]),
            (&"nodes".into(), &"two".into())
        );
    }
    assert_eq!(machine.status(&["one"])["process_id"], node.pid());
    let nothing = machine.run(&["ps", "uplinks"]);
    assert_eq!((nothing.code(), &*nothing.stderr), (0, ""));
    assert_eq!(nothing.text().trim(), "nothing of this user runs here: no uplink");
    stopped.signal(Signal::CONT);
}

/// A program, a node, and an uplink with a port, in one list; who is stopped or killed is left out, and holds up no other.
#[test]
fn all_that_runs_here_is_listed() {
    needs!("cc", "unshare");
    if !rustix::process::geteuid().is_root() {
        left_out("only root makes network devices");
        return;
    }
    let machine = Machine::new("listed");
    // In network namespaces of their own.
    let apart = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--net", TOMBOLO]).args(arguments);
        command.env("TOMBOLO_RUNTIME_DIR", machine.scratch.path().join("nodes"));
        Running::start(command, Vec::new())
    };
    let path = |name: &str| machine.scratch.file(name);
    assert!(machine.run(&["ps"]).text().contains("nothing of this user runs here"));
    let lender = machine.start(&[
        "node",
        "--listen",
        &format!("shm:{}", path("lender")),
        "--name",
        "lender",
        "--lend",
        "64M",
    ]);
    lender.output_with(" at ", PATIENCE);
    let shared = format!("shm:{}", path("uplink"));
    let owner = apart(&["net", "serve", "--uplink", "tap:up0", "--listen", &shared]);
    owner.output_with(&shared, PATIENCE);
    let port = apart(&["net", "attach", "--from", &shared, "--tap", "p0", "--name", "web"]);
    port.output_with("web", PATIENCE);
    let run = machine.start(&[
        "run",
        "--local",
        "8M",
        "--remote",
        "32M",
        "--",
        &compiled("hold", &[]),
        "16",
        "rest",
    ]);
    run.output_with("holding", PATIENCE);
    let list = |kinds: &[&str]| -> serde_json::Value {
        let outcome = machine.run(&[&["ps", "--json"], kinds].concat());
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        serde_json::from_slice(&outcome.stdout).expect("JSON")
    };
    let all = list(&[]);
    assert_eq!(all["programs"][0]["run_pid"], run.pid(), "{all:#}");
    assert_eq!(all["nodes"][0]["name"], "lender", "{all:#}");
    assert_eq!(all["nodes"][0]["local_name"], "lender", "{all:#}");
    assert!(all["nodes"][0]["counters"].is_object(), "{all:#}");
    assert_eq!(all["nodes"][0]["borrowers"].as_array().map(Vec::len), Some(1), "{all:#}");
    assert_eq!(all["uplinks"][0]["uplink"]["interface"], "up0", "{all:#}");
    assert_eq!(all["uplinks"][0]["ports"][0]["port"]["name"], "web", "{all:#}");
    let text = machine.run(&["ps"]).text();
    let has = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["hold", "lender"]) && has(&["NODE", "BORROWERS"]) && has(&["up0", "web"]), "{text}");
    let programs = list(&["programs"]);
    assert_eq!((programs.get("nodes"), programs.get("uplinks")), (None, None), "not asked for");
    let text = machine.run(&["top", "--count", "1"]).text();
    let has = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(has(&["lender", "active"]) && has(&["NODE", "IN/S"]) && has(&["up0", "web"]), "{text}");
    // The owner is killed, and the node is stopped.
    owner.signal(Signal::KILL);
    owner.wait(PATIENCE);
    lender.signal(Signal::STOP);
    let outcome = machine.run(&["ps", "--json"]);
    let left: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("JSON");
    assert_eq!(
        (&left["nodes"], &left["uplinks"]),
        (&serde_json::json!([]), &serde_json::json!([])),
        "{left:#}"
    );
    assert_eq!(left["programs"][0]["run_pid"], run.pid(), "{left:#}");
    assert!(outcome.stderr.contains("node `lender` does not answer"), "{}", outcome.stderr);
    assert_eq!((&left["silent"][0]["kind"], &left["silent"][0]["name"]), (&"nodes".into(), &"lender".into()));
    lender.signal(Signal::CONT);
    drop(port);
}
