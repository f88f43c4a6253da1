//! What scripts and operators count on: exit codes where output fails, the form of JSON, what errors name.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{
    Lender, Link, PATIENCE, Program, Running, Scratch, TOMBOLO, compiled, needs, runtime_directory, send,
    tombolo,
};

fn with_stdout(arguments: &[&str], stdout: impl Into<Stdio>) -> Output {
    let mut command = Command::new(TOMBOLO);
    command.args(arguments).env("TOMBOLO_RUNTIME_DIR", runtime_directory());
    command.stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    command.spawn().unwrap().wait_with_output().unwrap()
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let (scratch, lender) = (Scratch::new("full"), Lender::start(Link::Shm, "16M"));
    let (file, key, place) = (scratch.file("f"), scratch.file("key"), format!("{}:f", lender.address()));
    fs::write(&file, "bytes").unwrap();
    assert_eq!(tombolo(&["cp", &file, &place]).code(), 0);
    let node = format!("shm:{}", scratch.file("node"));
    let address = lender.address();
    for arguments in [
        &["ls", address][..],
        &["top", "--count", "1"],
        &["top", "--count", "1", "--json"],
        &["ls", address, "--json"],
        &["status", address],
        &["status", address, "--json"],
        &["ping", address, "-c", "2", "--interval", "0"],
        &["ping", address, "--interval", "0"],
        &["cp", &file, &place],
        &["cp", &place, "-"],
        &["keygen", "--out", &key],
        &["doctor"],
        &["node", "--listen", &node, "--lend", "1M"],
        &["ps", "programs", "--json"],
        &["--help"],
        &["--version"],
        &["help", "node"],
        &["completions", "bash"],
    ] {
        assert_cannot_be_written(arguments);
    }
}

fn assert_cannot_be_written(arguments: &[&str]) {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let outcome = with_stdout(arguments, full);
    let said = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(125), "{arguments:?}: {said}");
    assert!(said.contains("standard output"), "{arguments:?}: {said}");
}

/// What packages install is understood by those for whom it is.
#[test]
fn manual_pages_and_completions_are_well_formed() {
    let scratch = Scratch::new("man");
    let directory = scratch.file("man1");
    let outcome = tombolo(&["man", &directory]);
    assert_eq!((outcome.code(), outcome.text()), (0, String::new()), "{}", outcome.stderr);
    assert!(fs::exists(format!("{directory}/tombolo-net-attach.1")).unwrap());
    let taken = scratch.file("taken");
    fs::write(&taken, "").unwrap();
    tombolo(&["man", &taken]).assert_one_line(125, "cannot write manual pages");
    let script = scratch.file("completions");
    fs::write(&script, tombolo(&["completions", "bash"]).text()).unwrap();
    // It completes a command and an option of another.
    let complete = "source \"$0\"; COMP_WORDS=(tombolo \"$@\"); COMP_CWORD=$#; \
        _tombolo tombolo \"${!#}\" x; echo \"${COMPREPLY[@]}\"";
    for (words, wanted) in [(&["keyg"][..], "keygen"), (&["net", "attach", "--netn"], "--netns")] {
        let mut command = Command::new("bash");
        command.args(["-c", complete, &script]).args(words);
        let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
        assert_eq!(outcome.text().trim_end(), wanted, "{}", outcome.stderr);
    }
}

#[test]
fn lenders_that_cannot_be_listed_are_a_failure() {
    needs!();
    let lender = Lender::start(Link::Shm, "64M");
    let run = Program::new(&["sleep", "600"]).start_on(&[&lender], "16M");
    let program = run.pid().to_string();
    let since = std::time::Instant::now();
    while tombolo(&["lenders", "ls", &program]).code() != 0 {
        assert!(since.elapsed() < PATIENCE, "it is not listed: {}", run.errors());
        std::thread::sleep(Duration::from_millis(10));
    }
    for arguments in
        [&["lenders", "ls", &program][..], &["lenders", "ls", &program, "--json"], &["ps", "programs"]]
    {
        assert_cannot_be_written(arguments);
    }
}

#[test]
fn a_reader_that_goes_away_ends_a_command_quietly() {
    let (scratch, lender) = (Scratch::new("pipe"), Lender::start(Link::Shm, "16M"));
    let (file, place) = (scratch.file("f"), format!("{}:f", lender.address()));
    fs::write(&file, vec![7; 1 << 20]).unwrap();
    assert_eq!(tombolo(&["cp", &file, &place]).code(), 0);
    let address = lender.address();
    for arguments in [
        &["ls", address][..],
        &["status", address],
        &["ping", address, "--interval", "0"],
        &["cp", &place, "-"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = with_stdout(arguments, writer);
        assert_eq!(outcome.status.code(), Some(141), "{arguments:?}");
        assert_eq!(String::from_utf8_lossy(&outcome.stderr), "", "{arguments:?}");
    }
    // As a shell does it: the reader goes after the first line.
    let mut command = Command::new("sh");
    let script = format!("{TOMBOLO} ping {address} --interval 1 | head -n 1");
    command.args(["-c", &script]);
    let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
    assert_eq!((outcome.code(), outcome.text().lines().count()), (0, 1), "{}", outcome.stderr);
}

#[test]
fn an_address_that_cannot_be_listened_at_is_named() {
    let scratch = Scratch::new("bind");
    let (key, allow) = (scratch.file("key"), scratch.file("allow"));
    let public = tombolo(&["keygen", "--out", &key]).text();
    fs::write(&allow, public).unwrap();
    // Of a range that no machine has (RFC 5737).
    let address = "udp:192.0.2.1:7000";
    let listen = ["node", "--listen", address, "--lend", "1M", "--key", &key, "--allow", &allow];
    tombolo(&listen).assert_one_line(125, address);
    let shm = format!("shm:{}", scratch.file("no/such/directory"));
    tombolo(&["node", "--listen", &shm, "--lend", "1M"]).assert_one_line(125, &scratch.file("no/such"));
}

#[test]
fn a_copied_file_is_on_disk_before_it_has_its_name() {
    needs!("cc");
    let (scratch, lender) = (Scratch::new("sync"), Lender::start(Link::Shm, "16M"));
    let (file, back) = (scratch.file("file"), scratch.file("back"));
    let place = format!("{}:file", lender.address());
    fs::write(&file, "new").unwrap();
    assert_eq!(tombolo(&["cp", &file, &place]).code(), 0);
    let library = compiled("failing_fsync", &["-shared", "-fPIC"]);
    let copy = |failing: &str| {
        fs::write(&back, "old").unwrap();
        let mut command = Command::new(TOMBOLO);
        command.args(["cp", &place, &back]).env("LD_PRELOAD", &library).env("FAILING_FSYNC", failing);
        Running::start(command, Vec::new()).wait(Duration::from_secs(60))
    };
    let outcome = copy("file");
    outcome.assert_one_line(125, "Input/output error");
    assert_eq!(fs::read_to_string(&back).unwrap(), "old", "it was replaced by what may not be on disk");
    let outcome = copy("directory");
    outcome.assert_one_line(125, "may not outlast a crash");
    let outcome = copy("nothing");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert_eq!(fs::read_to_string(&back).unwrap(), "new");
    let left: Vec<_> =
        fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn all_json_is_an_object() {
    let (scratch, lender) = (Scratch::new("json"), Lender::start(Link::Shm, "16M"));
    let (file, place) = (scratch.file("f"), format!("{}:f", lender.address()));
    fs::write(&file, "bytes").unwrap();
    let address = lender.address();
    for arguments in [
        &["cp", "--json", &file, &place][..],
        &["ls", address, "--json"],
        &["status", address, "--json"],
        &["ping", address, "-c", "1", "--json"],
        &["doctor", "--json"],
    ] {
        let said: serde_json::Value = serde_json::from_slice(&tombolo(arguments).stdout).expect("JSON");
        assert!(said.is_object(), "{arguments:?}: {said}");
    }
    assert!(lender.status()["counters"].is_object());
}

/// Somebody who has borrowed a page of that lender and uses it all the time.
fn borrower(lender: &Lender) -> Running {
    let mut command = Command::new(TOMBOLO);
    command.args(["ping", "--insecure", lender.address(), "--interval", "10", "--timeout", "60s"]);
    let ping = Running::start(command, Vec::new());
    ping.output_with(": 1: ", PATIENCE);
    ping
}

#[test]
fn a_lender_that_is_told_to_end_waits_for_its_borrowers() {
    for link in [Link::Shm, Link::Udp] {
        let lender = Lender::start_with(link, "16M", &["--drain-timeout", "1h"]);
        let ping = borrower(&lender);
        lender.signal(Signal::TERM);
        lender.errors_with("ends when its borrowers have gone, in 60 min at the latest", PATIENCE);
        lender.errors_with("ping", PATIENCE);
        // It still says how it is, and lends to nobody new.
        assert_eq!(lender.lent_bytes(), 4096);
        let newcomer = tombolo(&["ping", "--insecure", lender.address(), "-c", "1"]);
        newcomer.assert_one_line(125, "lends to nobody new");
        // Who was there before goes on until it has enough.
        let answered = ping.output().lines().count();
        ping.output_with(&format!(": {}: ", answered + 20), PATIENCE);
        ping.signal(Signal::INT);
        let ended = ping.wait(PATIENCE);
        assert_eq!(ended.code(), 0, "{}{}", ended.text(), ended.stderr);
        let outcome = lender.wait();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        assert!(!outcome.stderr.contains("takes back"), "{}", outcome.stderr);
    }
}

/// The directory of what packages install.
fn packaging(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What a unit starts, with this binary, as a shell takes it.
fn started_by(unit: &str) -> String {
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    format!("exec {}", line.replacen("/usr/bin/tombolo", TOMBOLO, 1))
}

#[test]
fn a_service_manager_hears_when_a_node_is_ready_alive_and_ending() {
    let scratch = Scratch::new("service");
    let place = scratch.file("notify");
    let manager = UnixDatagram::bind(&place).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let hear = || {
        let mut buffer = [0; 256];
        let length = manager.recv(&mut buffer).expect("the manager hears something");
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    };
    let unit = packaging("systemd/tombolo-node.service");
    let options =
        unit.lines().find_map(|line| line.strip_prefix("Environment=TOMBOLO_NODE_OPTIONS=")).unwrap();
    let options = options.trim_matches('"').replace("/run/tombolo", scratch.path().to_str().unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", &started_by(&unit)]);
    command.env("TOMBOLO_NODE_OPTIONS", options).env("TOMBOLO_RUNTIME_DIR", scratch.file("run"));
    command.env("NOTIFY_SOCKET", &place).env("WATCHDOG_USEC", "400000");
    let node = Running::start(command, Vec::new());
    assert_eq!(hear(), "READY=1");
    assert_eq!([hear(), hear(), hear()], ["WATCHDOG=1"; 3]);
    node.signal(Signal::TERM);
    let last = std::iter::repeat_with(hear).find(|text| text != "WATCHDOG=1");
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
    assert_eq!(node.wait(PATIENCE).code(), 0);
}

#[test]
fn units_are_well_formed() {
    needs!("systemd-analyze");
    let scratch = Scratch::new("units");
    for (name, instance) in [
        ("tombolo-node.service", "tombolo-node.service"),
        ("tombolo-net@.service", "tombolo-net@eth0.service"),
        ("tombolo-port@.service", "tombolo-port@web.service"),
    ] {
        let unit = packaging(&format!("systemd/{name}"));
        assert!(started_by(&unit).contains(&format!("{TOMBOLO} ")), "{unit}");
        // Neither the binary nor the pages are installed here.
        let unit: String = unit
            .lines()
            .filter(|line| !line.starts_with("Documentation="))
            .map(|line| line.replace("/usr/bin/tombolo", TOMBOLO) + "\n")
            .collect();
        fs::write(scratch.file(name), unit).unwrap();
        let mut command = Command::new("systemd-analyze");
        command.args(["verify", &scratch.file(instance)]);
        let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
        assert_eq!((outcome.code(), outcome.stderr.as_str()), (0, ""), "{name}: {}", outcome.text());
    }
}

#[test]
fn a_lender_does_not_wait_for_ever_nor_against_the_users_will() {
    for (drain, signals, said) in [
        ("1h", 2, "ends when its borrowers have gone"),
        ("500ms", 1, "in 500 ms at the latest"),
        ("0", 1, "takes back"),
    ] {
        let lender = Lender::start_with(Link::Shm, "16M", &["--drain-timeout", drain]);
        let ping = borrower(&lender);
        for _ in 0..signals {
            lender.signal(Signal::TERM);
            lender.errors_with(said, PATIENCE);
        }
        let outcome = lender.wait();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("takes back what is lent to ping"), "{}", outcome.stderr);
        assert_eq!(ping.wait(PATIENCE).code(), 1, "it has lost its page");
    }
    let wrong = ["node", "--listen", "shm:/tmp/x", "--drain-timeout", "soon"];
    assert!(tombolo(&wrong).stderr.contains("no length of time"));
}

#[test]
fn what_a_node_says_is_for_people_or_for_programs_and_as_much_as_is_wanted() {
    let said_with = |more: &[&str]| {
        let lender = Lender::start_with(Link::Shm, "16M", more);
        assert_eq!(tombolo(&["ls", lender.address()]).code(), 0);
        // It has heard that the other one is gone when it answers the next.
        lender.status();
        lender.signal(Signal::TERM);
        lender.wait().stderr
    };
    let text = said_with(&[]);
    let line =
        text.lines().find(|line| line.contains("a neighbour is there")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.starts_with("20") && line.contains("T") && line.contains("Z "), "no time: {line}");
    assert!(line.contains(" INFO ") && line.contains("peer=\"ls\"") && line.contains("process="), "{line}");
    assert!(!text.contains("a link is there"), "{text}");
    let json = said_with(&["--log-json", "--log", "debug"]);
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()), "{json}");
    let with = |message: &str| lines.iter().find(|line| line["message"] == message).expect(message);
    assert!(with("a link is there")["process"].is_u64(), "{json}");
    assert_eq!(with("a neighbour is there")["peer"], "ls");
    assert_eq!(said_with(&["--log", "off"]), "");
    let wrong = tombolo(&["node", "--listen", "shm:/tmp/x", "--log", "loud"]);
    assert!(wrong.stderr.contains("possible values: off, error, warn"), "{}", wrong.stderr);
}

#[test]
fn a_terminal_that_nobody_reads_keeps_no_node_from_its_work() {
    use std::io::{BufRead, BufReader};
    use tombolo_host::unix::{SeqpacketSocket, UnixError};
    let scratch = Scratch::new("slow");
    let path = scratch.path().join("node");
    let (reader, writer) = std::io::pipe().unwrap();
    rustix::pipe::fcntl_setpipe_size(&writer, 4096).unwrap();
    let address = format!("shm:{}", path.display());
    let mut command = Command::new(TOMBOLO);
    command.args(["node", "--listen", &address, "--lend", "1M"]).env("TOMBOLO_RUNTIME_DIR", scratch.path());
    let mut node = command.stdout(Stdio::null()).stderr(writer).spawn().unwrap();
    // It closes its end with this.
    drop(command);
    assert_eq!(tombolo(&["status", &address]).code(), 0);
    // One line each: another version of the protocol.
    let mut hello = [0_u8; 24];
    hello[..10].copy_from_slice(b"TOMBOLO\0\x63\x01");
    let strangers = 3000;
    for _ in 0..strangers {
        let since = std::time::Instant::now();
        let mut is_refused = false;
        // Until it is refused, so that the oldest need not give way. One that has said nothing for a second, because
        // it had no processor, is closed without an answer and without a line: it comes again.
        while !is_refused {
            assert!(since.elapsed() < PATIENCE, "no answer: the node waits for its terminal");
            std::thread::yield_now();
            let Ok(socket) = SeqpacketSocket::connect(&path) else { continue };
            let _ = socket.send(&[&hello], &[]);
            let mut answer = [0_u8; 24];
            is_refused = loop {
                match socket.receive(&mut answer) {
                    Err(UnixError::WouldBlock) if since.elapsed() < PATIENCE => std::thread::yield_now(),
                    answered => break answered.is_ok_and(|received| received.length_bytes == answer.len()),
                }
            };
        }
    }
    assert_eq!(tombolo(&["status", &address]).code(), 0);
    let (told, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(reader).lines().map_while(Result::ok).try_for_each(|line| told.send(line))
    });
    let (mut refused, mut missing) = (0, 0);
    while refused + missing < strangers {
        let line = heard.recv_timeout(PATIENCE).expect("all lines are there, or said to be missing");
        refused += usize::from(line.contains("a peer was refused"));
        let lost =
            line.split_once("WARN ").and_then(|(_, text)| text.split_once(" line(s) are missing here"));
        missing += lost.map_or(0, |(count, _)| count.parse::<usize>().unwrap());
    }
    send(node.id(), Signal::TERM);
    assert_eq!(node.wait().unwrap().code(), Some(0));
    assert!(missing > 0, "the queue took all of them: the test shows nothing");
    assert_eq!(refused + missing, strangers);
}

/// Nobody who looks waits for a run that is stopped, or for one that is busy with another's question.
#[test]
fn a_look_waits_for_no_run() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "128M");
    let words = [compiled("hold", &[]), "16".into(), "rest".into()];
    let run = Program::new(&words).remote("64M").start_on(&[&lender], "8M");
    run.output_with("holding", PATIENCE);
    let is_seen = || {
        let looked = tombolo(&["ps", "programs", "--json"]);
        let looked: serde_json::Value = serde_json::from_slice(&looked.stdout).expect("JSON");
        let mut programs = looked["programs"].as_array().unwrap().iter();
        programs.any(|program| program["run_pid"] == run.pid())
    };
    assert!(is_seen());
    // A lender that does not answer is dialed for seconds.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = format!("udp:{}", silent.local_addr().unwrap());
    let mut command = Command::new(TOMBOLO);
    command.args(["lenders", "add", &run.pid().to_string(), &address]);
    let adding = Running::start(command, Vec::new());
    // It has been asked for an answer.
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    silent.recv(&mut [0; 2000]).expect("it dials");
    assert!(is_seen(), "it answers nobody else meanwhile");
    let failed = adding.wait(PATIENCE);
    assert!(failed.code() != 0 && failed.stderr.contains(&address), "{}", failed.stderr);
    // Each look leaves what it asked in the queue of one that is stopped.
    let supervisor = run.supervisor_pid();
    send(supervisor, Signal::STOP);
    for _ in 0..3 {
        let looked = tombolo(&["ps", "programs"]);
        assert_eq!(looked.code(), 0, "{}", looked.stderr);
        let said = format!("the run of process {} does not answer", run.pid());
        assert!(looked.stderr.contains(&said), "{}", looked.stderr);
    }
    send(supervisor, Signal::CONT);
    assert!(is_seen());
}
