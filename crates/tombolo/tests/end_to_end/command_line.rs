//! What users type, and what they are told.

use std::time::Duration;

use tombolo_host::testing::{left_out, may_change_user};

use crate::common::{
    Lender, Link, PATIENCE, Program, Running, Scratch, TOMBOLO, compiled, needs, path_of, send, tombolo,
};

#[test]
fn the_program_has_its_exit_status_and_signals() {
    needs!();
    let lender = Lender::start(Link::Shm, "256M");
    let run = |script: &str| Program::new(&["sh", "-c", script]).run_on(&[&lender], "16M");
    for code in [0, 1, 42, 255] {
        assert_eq!(run(&format!("exit {code}")).code(), code);
    }
    // As a shell reports it.
    assert_eq!(run("kill -TERM $$").code(), 143);
    assert_eq!(run("kill -KILL $$").code(), 137);
    assert_eq!(run("kill -SEGV $$").code(), 139);
}

#[test]
fn the_program_has_its_arguments_streams_and_directory() {
    needs!();
    let lender = Lender::start(Link::Shm, "256M");
    let script = "cat; echo \"$1|$2\"; pwd; echo to the errors >&2";
    let program = Program::new(&["sh", "-c", script, "name", "--local", "two words"]).input("piped in\n");
    let (plain, far) = (program.plain(), program.run_on(&[&lender], "16M"));
    assert_eq!(far.text(), plain.text());
    assert_eq!(far.stderr, plain.stderr);
    assert!(far.text().starts_with("piped in\n--local|two words\n"));
}

#[test]
fn a_signal_to_run_reaches_the_program() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let words = [compiled("hold", &[]), "32".into()];
    let run = Program::new(&words).start_on(&[&lender], "8M");
    run.output_with("holding", Duration::from_secs(60));
    run.signal(rustix::process::Signal::TERM);
    assert_eq!(run.wait(PATIENCE).code(), 143);
    lender.wait_until_free(PATIENCE);
}

#[test]
fn a_signal_ends_what_the_program_has_left_behind() {
    needs!();
    let lender = Lender::start(Link::Shm, "256M");
    // The second one takes no notice of the first signal. What has just been executed and has not begun is not known to be
    // there: a program that ends in that moment ends the run, so it waits.
    for (script, takes_notice) in
        [("sleep 3600 & sleep 1; exit 7", true), ("trap '' TERM; sleep 3600 & sleep 1; exit 7", false)]
    {
        let run = Program::new(&["sh", "-c", script]).start_on(&[&lender], "16M");
        run.errors_with("left behind", Duration::from_secs(60));
        run.signal(rustix::process::Signal::TERM);
        if !takes_notice {
            run.errors_with("the next one ends it", Duration::from_secs(60));
            run.signal(rustix::process::Signal::TERM);
        }
        assert_eq!(run.wait(Duration::from_secs(60)).code(), 7);
    }
}

/// A process that shares the program's memory has no agent of its own, and gets no signal.
#[test]
fn a_run_ends_though_somebody_whom_no_signal_reaches_has_its_memory() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "256M");
    let words = [compiled("outliving", &[]), "32".into(), "stays".into()];
    let run = Program::new(&words).remote("128M").start_on(&[&lender], "16M");
    let said = run.output_with("stays", Duration::from_secs(60));
    let pid = said.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("its number");
    run.errors_with("left behind", Duration::from_secs(60));
    run.signal(rustix::process::Signal::TERM);
    run.errors_with("the next one ends it", Duration::from_secs(60));
    run.signal(rustix::process::Signal::TERM);
    let outcome = run.wait(Duration::from_secs(60));
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cannot be ended from here"), "{}", outcome.stderr);
    rustix::process::test_kill_process(rustix::process::Pid::from_raw(pid).unwrap())
        .expect("it is not ours to end");
    send(pid.cast_unsigned(), rustix::process::Signal::KILL);
}

#[test]
fn what_others_put_beside_the_directories_of_runs_is_let_alone() {
    needs!();
    let lender = Lender::start(Link::Shm, "256M");
    let scratch = Scratch::new("stale");
    let name = scratch.file("tombolo-pager-fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &name, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
    let link = scratch.file("tombolo-pager-link");
    std::os::unix::fs::symlink("/dev", &link).unwrap();
    let stale = scratch.file("tombolo-pager-1.0");
    std::fs::create_dir(&stale).unwrap();
    let directory = scratch.path().to_string_lossy().into_owned();
    let outcome =
        Program::new(&["sh", "-c", "exit 7"]).variable("TMPDIR", &directory).run_on(&[&lender], "16M");
    assert_eq!(outcome.code(), 7, "{}", outcome.stderr);
    let left = [&name, &link, &stale].map(|path| std::fs::symlink_metadata(path).is_ok());
    assert_eq!(left, [true, true, false]);
}

#[test]
fn a_run_that_is_started_with_the_ends_of_children_ignored_sees_its_program_end() {
    needs!();
    let lender = Lender::start(Link::Shm, "256M");
    let mut command = std::process::Command::new("env");
    command.args(["--ignore-signal=CHLD", TOMBOLO, "run", "--insecure"]);
    command.args(["--from", lender.address(), "--local", "16M", "--"]);
    // A shell would not leave it so.
    command.args(["awk", "{ print } END { exit 7 }", "/proc/self/status"]);
    let outcome = Running::start(command, Vec::new()).wait(Duration::from_secs(60));
    assert_eq!(outcome.code(), 7, "{}", outcome.stderr);
    let text = outcome.text();
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
    assert_ne!(ignored >> 16 & 1, 0, "the program does not ignore them: {ignored:x}");
}

#[test]
fn a_report_that_cannot_be_written_leaves_the_program_its_exit_status() {
    needs!();
    let lender = Lender::start(Link::Shm, "256M");
    let scratch = Scratch::new("report");
    let directory = scratch.file("reports");
    std::fs::create_dir(&directory).unwrap();
    let mut command = std::process::Command::new(TOMBOLO);
    command.args(["run", "--insecure", "--from", lender.address(), "--local", "16M", "--report"]);
    command.arg(format!("{directory}/report.json"));
    command.args(["--", "sh", "-c", &format!("rm -r {directory}; exit 7")]);
    let outcome = Running::start(command, Vec::new()).wait(Duration::from_secs(60));
    assert_eq!(outcome.code(), 7, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("cannot write the report"), "{}", outcome.stderr);
}

#[test]
fn a_key_is_shown_though_nothing_else_can_be_said() {
    let scratch = Scratch::new("keygen");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "exec \"$0\" keygen --out \"$1\" 2>/dev/full", TOMBOLO, &scratch.file("key")]);
    let outcome = Running::start(command, Vec::new()).wait(Duration::from_secs(60));
    assert_eq!(outcome.code(), 0);
    assert!(outcome.text().starts_with("tombolo-public:"), "{}", outcome.text());
}

#[test]
fn a_ping_that_pauses_for_an_hour_ends_with_a_signal() {
    let lender = Lender::start(Link::Shm, "256M");
    let mut command = std::process::Command::new(TOMBOLO);
    command.args(["ping", "--insecure", lender.address(), "--interval", "3600000"]);
    let ping = Running::start(command, Vec::new());
    ping.output_with(": 1: ", Duration::from_secs(60));
    ping.signal(rustix::process::Signal::TERM);
    let outcome = ping.wait(Duration::from_secs(60));
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.text().contains("1 sent, 1 answered"), "{}", outcome.text());
}

#[test]
fn what_cannot_be_served_is_said_in_one_line() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "256M");
    let run = |word: &str| Program::new(&[word]).run_on(&[&lender], "16M");
    run(&compiled("hold", &["-static"])).assert_one_line(126, "statically linked");
    run("no-such-program-anywhere").assert_one_line(127, "no such program");
    run("/no/such/program").assert_one_line(127, "no such program");
    run("/tmp").assert_one_line(126, "directory");
    let scratch = Scratch::new("plain");
    std::fs::write(scratch.file("text"), "no program\n").unwrap();
    run(&scratch.file("text")).assert_one_line(126, "ermission");
}

#[test]
fn a_lender_with_nothing_is_told_before_the_program_starts() {
    needs!();
    let scratch = Scratch::new("mark");
    for link in [Link::Shm, Link::Udp] {
        let nothing = Lender::start(link, "0");
        let outcome = Program::new(&["touch", &scratch.file("mark")]).run_on(&[&nothing], "16M");
        outcome.assert_one_line(125, "lend");
        assert!(!scratch.path().join("mark").exists(), "the program was started");
        // What may be borrowed at most need not be there.
        let lender = Lender::start(link, "64M");
        assert_eq!(Program::new(&["true"]).remote("256M").run_on(&[&lender], "32M").code(), 0);
        assert_eq!(lender.lent_bytes(), 0, "nothing stays lent");
    }
}

#[test]
fn wrong_addresses_and_sizes_are_one_clear_error_each() {
    let error = |arguments: &[&str], text: &str| {
        let outcome = tombolo(arguments);
        assert!([2, 125].contains(&outcome.code()), "{arguments:?}: {}", outcome.code());
        let first = outcome.stderr.lines().next().unwrap_or_default();
        assert!(first.contains(text), "{arguments:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
    };
    let from = |address: &str, text: &str| {
        error(&["run", "--from", address, "--local", "16M", "--", "true"], text);
    };
    from("bogus", "an address is shm:PATH or udp:HOST:PORT");
    from("tcp:1.2.3.4:5", "expected shm:PATH or udp:HOST:PORT");
    from("udp:127.0.0.1", "udp:127.0.0.1");
    from("udp:127.0.0.1:99999", "udp:127.0.0.1:99999");
    from("", "expected shm:PATH or udp:HOST:PORT");
    for size in ["", "16Q", "-1", "x", "99999999999T"] {
        error(&["run", "--from", "shm:x", &format!("--local={size}"), "--", "true"], "--local");
    }
    error(&["node", "--listen", "shm:/tmp/x", "--lend", "many"], "not a size");
    error(&["node", "--insecure", "--listen", "udp:0.0.0.0:0", "--lend", "1M"], "loopback");
    error(&["node", "--listen", "shm:/no/such/directory/node", "--lend", "1M"], "/no/such/directory/node");
    error(&["node", "--listen", "shm:/tmp/x", "--lend", "900000G"], "--lend");
    error(&["status", "bogus"], "an address is shm:PATH or udp:HOST:PORT");
    error(&["status", "tcp:1.2.3.4:5"], "expected shm:PATH or udp:HOST:PORT");
}

#[test]
fn a_node_that_is_not_there_is_said_within_seconds() {
    needs!();
    for address in ["shm:/no/such/node", "udp:127.0.0.1:9"] {
        let status = tombolo(&["status", "--insecure", address]);
        status.assert_one_line(125, address);
        let run = tombolo(&["run", "--insecure", "--from", address, "--local", "16M", "--", "true"]);
        run.assert_one_line(125, address);
        assert!(run.elapsed < Duration::from_secs(20), "{:?}", run.elapsed);
    }
}

#[test]
fn too_little_local_memory_is_an_error_and_the_least_works() {
    needs!();
    let lender = Lender::start(Link::Shm, "256M");
    for local in ["0", "4096", "1M"] {
        Program::new(&["true"]).run_on(&[&lender], local).assert_one_line(125, "--local");
    }
    assert_eq!(Program::new(&["true"]).run_on(&[&lender], "4M").code(), 0);
}

#[test]
fn a_second_node_at_the_same_address_is_an_error() {
    for link in [Link::Shm, Link::Udp] {
        let lender = Lender::start(link, "16M");
        let second = tombolo(&["node", "--insecure", "--listen", lender.address(), "--lend", "1M"]);
        second.assert_one_line(125, lender.address());
        assert_eq!(lender.status()["lend_bytes"], 16 << 20, "the first still answers");
    }
}

#[test]
fn status_names_borrowers_and_doctor_prints_json() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "256M");
    let words = [compiled("hold", &[]), "32".into(), "rest".into()];
    let run = Program::new(&words).remote("128M").start_on(&[&lender], "8M");
    run.output_with("holding", Duration::from_secs(60));
    let status = lender.status();
    let lent_bytes = status["lent_bytes"].as_u64().unwrap();
    assert!((24 << 20..96 << 20).contains(&lent_bytes), "{status:#}");
    assert_eq!(status["borrowers"][0]["process_id"], run.supervisor_pid(), "{status:#}");
    let text = tombolo(&["status", lender.address()]).text();
    assert!(text.contains(&format!("lent {} MiB of 256 MiB", lent_bytes >> 20)), "{text}");
    drop(run);
    let doctor = tombolo(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    assert_eq!(json["paging"], true);
    // What users other than root lack comes with commands that root types.
    let needs = json["users"].as_array().unwrap();
    let names: Vec<_> = needs.iter().map(|need| need["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["page faults", "forks", "locked memory"]);
    let text = tombolo(&["doctor"]).text();
    for need in needs {
        let commands = need["commands"].as_array().unwrap();
        assert_eq!(need["outcome"] == "ok", commands.is_empty(), "{need}");
        assert!(commands.iter().all(|command| text.contains(command.as_str().unwrap())), "{need}: {text}");
    }
}

#[test]
fn two_programs_share_a_lender() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let program = Program::new(&[compiled("threads", &[]), "32".into()]).remote("128M");
    let first = program.start_on(&[&lender], "8M");
    let second = program.start_on(&[&lender], "8M");
    for run in [first, second] {
        let outcome = run.wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    }
    lender.wait_until_free(PATIENCE);
}

#[test]
fn a_script_and_a_shell_pipeline_run() {
    needs!("python3", "sort");
    let lender = Lender::start(Link::Shm, "512M");
    let script = format!(
        "seq 1 200000 | {} -r | tail -n 3; {} -c 'print(sum(range(9)))'",
        path_of("sort"),
        path_of("python3")
    );
    let program = Program::new(&["sh", "-c", &script]);
    let (far, plain) = (program.run_on(&[&lender], "8M"), program.plain());
    assert_eq!((far.code(), far.text()), (0, plain.text()), "{}", far.stderr);
    assert_eq!(plain.code(), 0);
}

#[test]
fn without_privileges_the_error_says_what_to_do() {
    needs!("setpriv");
    if !may_change_user() {
        return;
    }
    let lender = Lender::start(Link::Udp, "64M");
    // A copy that anybody may execute, wherever this one lies.
    let scratch = Scratch::new("copy");
    let binary = scratch.file("tombolo");
    std::fs::copy(TOMBOLO, &binary).unwrap();
    let unprivileged = |arguments: &[&str]| {
        let setpriv = path_of("setpriv");
        let ids = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", binary.as_str()];
        let words: Vec<_> = [setpriv.as_str()].iter().chain(&ids).chain(arguments).copied().collect();
        Program::new(&words).plain()
    };
    let doctor = unprivileged(&["doctor"]);
    if doctor.code() == 0 {
        return left_out("this kernel allows everybody to serve page faults");
    }
    assert!(doctor.text().contains("MISSING"), "{}", doctor.text());
    for arguments in [&["run", "--from", lender.address(), "--local", "16M", "--", "true"][..], &["demo"]] {
        unprivileged(arguments).assert_one_line(125, "tombolo doctor");
    }
}
