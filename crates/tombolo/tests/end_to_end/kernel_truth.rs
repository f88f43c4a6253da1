//! Far memory behaves as the kernel's own does, whatever a program does with it and with itself: the same
//! program plainly and on far memory gives the same bytes, the same errors and the same signals.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tombolo_host::process::share_memory;
use tombolo_host::testing::left_out;
use tombolo_random::Seeds;

use crate::common::{
    Lender, Link, Outcome, PATIENCE, Program, Running, Scratch, TOMBOLO, compiled, needs,
    once_more_if_exceeded, path_of, send, sized, supervisor_of,
};

fn far(link: Link, name: &str, local: &str, more: &[&str]) -> Outcome {
    let lender = Lender::start(link, "1G");
    let mut words = vec![compiled(name, &[]), "32".into()];
    words.extend(more.iter().map(|&word| word.to_owned()));
    same(&lender, &Program::new(&words).remote("512M"), local)
}

/// Runs the program plainly and on far memory: the same status and output.
fn same(lender: &Lender, program: &Program, local: &str) -> Outcome {
    let (plain, far) = (program.plain(), program.run_on(&[lender], local));
    assert_eq!(plain.code(), 0, "fails without Tombolo: {}", plain.stderr);
    assert_eq!(far.code(), 0, "stdout: {}\nstderr: {}", far.text(), far.stderr);
    assert_eq!(far.text(), plain.text(), "stderr: {}", far.stderr);
    far
}

#[test]
fn what_is_mapped_over_far_memory_or_dropped_behind_libc_is_right() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        let outcome = far(link, "replacing", "8M", &[]);
        assert!(outcome.counter("pages_out") > 0);
    }
}

#[test]
fn a_stopped_process_keeps_nobody_waiting_and_loses_nothing() {
    needs!("cc");
    let outcome = once_more_if_exceeded(|| far(Link::Shm, "stopping", "8M", &[]));
    // The stopped child's pages were evicted: the limit held.
    outcome.assert_within_limit(100);
}

#[test]
fn a_program_that_gives_something_up_forks_as_before() {
    needs!("cc");
    if !rustix::process::geteuid().is_root() {
        return left_out("giving privileges up needs some");
    }
    for what in ["user", "root", "users", "processes", "filter"] {
        let outcome = far(Link::Shm, "lowering", "8M", &[what]);
        // Where no agent may be made, that is said, and the memory is served.
        assert_eq!(outcome.stderr.contains("has no agent"), what == "filter", "{what}: {}", outcome.stderr);
        assert_eq!(outcome.counter("without_agent") > 0, what == "filter", "{what}: {:#}", outcome.report());
        assert!(outcome.counter("pages_out") > 0, "{what}: {:#}", outcome.report());
    }
}

/// A program that has forbidden itself what its own libc does not call is not ended for what the preloaded library calls.
#[test]
fn a_program_that_allows_itself_little_uses_its_memory() {
    needs!("cc");
    for more in [&[][..], &["alone"]] {
        let outcome = far(Link::Shm, "sandboxed", "8M", more);
        assert!(outcome.counter("pages_out") > 0, "{:#}", outcome.report());
    }
    // In a container its processes have other numbers.
    if !rustix::process::geteuid().is_root() {
        return left_out("needs root, to make a pid namespace");
    }
    let words = ["unshare", "--pid", "--fork", &compiled("sandboxed", &[]), "32"];
    let outcome = same(&Lender::start(Link::Shm, "1G"), &Program::new(&words).remote("512M"), "8M");
    assert!(outcome.counter("pages_out") > 0, "{:#}", outcome.report());
}

/// As QEMU, Firecracker's handlers and libfabric do.
#[test]
fn a_program_serves_page_faults_of_its_own() {
    needs!("cc");
    let outcome = far(Link::Shm, "own_faults", "8M", &[]);
    assert!(outcome.counter("pages_out") > 0, "{:#}", outcome.report());
}

#[test]
fn what_the_kernel_accesses_without_waiting_is_local() {
    needs!("cc");
    assert!(far(Link::Shm, "unwaited", "8M", &[]).counter("pages_out") > 0);
}

/// Also if it is more than may be local.
#[test]
fn what_a_child_finds_wiped_is_local() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        assert!(far(link, "wiped", "8M", &[]).counter("pages_out") > 0);
    }
}

/// A page that comes to stand where the agent unshares another one is not taken for one that reads as zero.
#[test]
fn pages_that_move_beside_forks_keep_what_they_hold() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let words = [compiled("moving", &["-pthread"]), "16".into(), "500".into()];
    let outcome = same(&lender, &Program::new(&words).remote("512M").minimum("4K"), "4M");
    assert!(outcome.counter("forks") >= 500 && outcome.counter("pages_out") > 0, "{:#}", outcome.report());
    // Nothing is dropped that the kernel does not report.
    assert_eq!(outcome.counter("unseen_drops"), 0, "{:#}", outcome.report());
}

/// Also where memory has become far unsaid: where a mapping has grown, or has moved and left an empty one behind.
#[test]
fn what_grew_or_was_left_behind_takes_guards_and_is_wiped() {
    needs!("cc");
    assert!(far(Link::Shm, "grown", "8M", &[]).counter("pages_out") > 0);
}

/// Guards need nothing to come back first, and split no mapping.
#[test]
fn guards_cost_what_they_cost_plainly() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        let outcome = far(link, "guards", "8M", &[]);
        assert!(outcome.counter("localised_pages") < 200, "{:#}", outcome.report());
        assert!(outcome.counter("pages_out") > 0);
    }
}

/// A fork beside them finds all of it or nothing.
#[test]
fn guards_and_forks_at_once() {
    needs!("cc");
    let outcome = far(Link::Udp, "guarding", "4M", &["-pthread"]);
    assert!(outcome.counter("pages_out") > 0 && outcome.counter("forks") > 100, "{:#}", outcome.report());
}

/// What a fork shares leaves as soon as it is the process's own. It must not wait for its turn: the next fork comes before.
#[test]
fn what_forks_again_and_again_share_leaves() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let program = compiled("forking_often", &[]);
    let outcome = same(&lender, &Program::new(&[&program, "64M"]).remote("256M"), "32M");
    assert!(outcome.counter("forks") >= 200, "{:#}", outcome.report());
    // Half of the memory leaves while nothing forks yet: 8192 pages. A page that leaves later is tried twice, once while it is shared, and
    // now and then a fork comes between; at their turn, they would be tried dozens of times.
    let (left, undone) = (outcome.counter("pages_out"), outcome.counter("evictions_undone"));
    assert!(undone < 8 * left.saturating_sub(8192), "{:#}", outcome.report());
}

#[test]
fn programs_in_other_namespaces_run_as_they_would() {
    needs!("cc", "unshare");
    if !rustix::process::geteuid().is_root() {
        return left_out("namespaces need privileges");
    }
    let lender = Lender::start(Link::Shm, "1G");
    let threads = compiled("threads", &[]);
    for words in [
        vec!["unshare", "-pf", "true"],
        vec!["unshare", "-pf", &threads, "32"],
        vec!["unshare", "-U", "true"],
        // The program itself stays where it is, and its first child is to be the first of a namespace.
        vec!["unshare", "-p", "sh", "-c", "env true && echo found"],
        vec!["unshare", "-m", &threads, "32"],
    ] {
        same(&lender, &Program::new(&words).remote("256M"), "8M");
    }
}

/// Linux 6.18 moves a page and reports an error where the page's entry changes meanwhile: about once in 70,000 moves here,
/// so mostly in full runs only.
#[test]
fn what_is_moved_out_while_it_is_looked_at_is_right() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let words = [compiled("cooling", &[]), "24".into(), "3".into(), sized("60000", "300000").into()];
    let outcome = Program::new(&words).run_on(&[&lender], "4M");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.counter("clean_drops") > 1000, "{:#}", outcome.report());
    eprintln!("    {} moves were misreported", outcome.counter("moves_misreported"));
}

#[test]
fn tight_limits_of_a_program_are_its_own() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let threads = compiled("threads", &[]);
    for (limit, far_at_all) in [("ulimit -v 1500000", true), ("ulimit -n 12", true), ("ulimit -n 80", true)] {
        let script = format!("{limit}; ulimit -n; env {threads} 32");
        let outcome = same(&lender, &Program::new(&["sh", "-c", &script]).remote("256M"), "8M");
        assert_eq!(outcome.counter("pages_out") > 0, far_at_all, "{limit}: {}", outcome.stderr);
    }
}

#[test]
fn many_processes_run_under_a_low_limit_of_descriptors() {
    needs!("cc", "prlimit");
    let lender = Lender::start(Link::Shm, "1G");
    let script = format!("for i in $(seq 40); do {} 2 & done; wait", compiled("threads", &[]));
    let program = Program::new(&["sh", "-c", &script]).remote("512M");
    // The supervisor may have more than it begins with, and raises its limit.
    let raised = same(&lender, &program.clone().under(&["prlimit", "--nofile=64:4096"]), "8M");
    assert!(raised.counter("spaces") >= 41, "{:#}", raised.report());
    assert!(!raised.stderr.contains("descriptors"), "{}", raised.stderr);
    // Where it may not, new programs run in local memory and a child that cannot be served is ended; that is said.
    let tight = program.under(&["prlimit", "--nofile=64:64"]).run_on(&[&lender], "8M");
    assert!(tight.text().lines().all(|line| line == "512 pages right"), "{}", tight.text());
    for said in ["few file descriptors are left", "runs without far memory: Too many open files"] {
        assert!(tight.stderr.contains(said), "{said}: {}", tight.stderr);
    }
    // The shell, too, if it was forking.
    let is_whole = tight.code() == 0 && tight.text().lines().count() == 40;
    assert!(is_whole || tight.stderr.contains("ending process"), "{}", tight.stderr);
}

#[test]
fn programs_are_found_by_name_from_local_memory() {
    needs!("cc", "unshare");
    if !rustix::process::geteuid().is_root() {
        return left_out("namespaces need privileges");
    }
    let lender = Lender::start(Link::Shm, "512M");
    let spawning = compiled("spawning", &[]);
    for by in ["execvp", "execvpe", "execlp", "posix_spawnp"] {
        // Its children are to be in another namespace, where no agent of its own can be.
        let words = ["unshare", "-p", &spawning, "1", "by-name", by];
        let outcome = same(&lender, &Program::new(&words).remote("64M"), "8M");
        assert!(outcome.stderr.contains("runs in local memory only"), "{by}: {}", outcome.stderr);
        assert_eq!(outcome.text(), "found\n", "{by}");
    }
}

/// A control group of this test's own, of version 1.
struct Group(PathBuf);

impl Group {
    fn new(controller: &str) -> Option<Self> {
        let root = PathBuf::from("/sys/fs/cgroup").join(controller);
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let group = root.join(format!("tombolo-test-{}-{number}", std::process::id()));
        if !root.join("tasks").exists() || fs::create_dir(&group).is_err() {
            left_out(&format!("no control groups of version 1 for {controller}"));
            return None;
        }
        Some(Self(group))
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.0.join(file), value).unwrap_or_else(|error| panic!("{file} = {value}: {error}"));
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.0.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // After a failure some may be frozen in it.
        let _ = fs::write(self.0.join("freezer.state"), "THAWED");
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_frozen_program_keeps_nobody_waiting_and_loses_nothing() {
    needs!("cc");
    freeze(false);
}

/// As what freezes containers does: the agent is in the same control group.
#[test]
fn a_program_that_is_frozen_with_its_agent_keeps_nobody_waiting_and_loses_nothing() {
    needs!("cc");
    freeze(true);
}

fn freeze(with_agent: bool) {
    let Some(group) = Group::new("freezer") else { return };
    let lender = Lender::start(Link::Shm, "1G");
    let scratch = Scratch::new("freezer");
    let (ready, go) = (scratch.file("ready"), scratch.file("go"));
    // The first waits, frozen, with its memory; the second needs all of what is local. Where nothing of the first can leave, the second has
    // the little that is left, and is slow.
    let megabytes = if with_agent { 4 } else { 32 };
    let script = format!(
        "{} 24 {ready} & while [ ! -e {ready} ]; do sleep 0.05; done; cat {go}; {} {megabytes}; wait",
        compiled("resting", &[]),
        compiled("threads", &[]),
    );
    let made = Command::new(path_of("mkfifo")).arg(&go).status().expect("mkfifo");
    assert!(made.success());
    let run = Program::new(&["sh", "-c", &script]).remote("512M").start_on(&[&lender], "8M");
    let since = Instant::now();
    while fs::metadata(&ready).is_err() {
        assert!(since.elapsed() < PATIENCE, "{}", run.errors());
        std::thread::sleep(Duration::from_millis(10));
    }
    let frozen: u32 = fs::read_to_string(&ready).expect("its number").trim().parse().expect("a number");
    group.set("tasks", &frozen.to_string());
    if with_agent {
        let agents = agents_of(frozen);
        assert!(!agents.is_empty(), "{}", run.errors());
        agents.iter().for_each(|agent| group.set("tasks", &agent.to_string()));
    }
    group.set("freezer.state", "FROZEN");
    while group.read("freezer.state").trim() != "FROZEN" {
        assert!(since.elapsed() < PATIENCE, "it is not frozen");
        std::thread::sleep(Duration::from_millis(1));
    }
    fs::write(&go, "\n").expect("the script goes on");
    // Ended while the first is frozen.
    run.output_with("pages right", PATIENCE);
    group.set("freezer.state", "THAWED");
    send(frozen, Signal::USR1);
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}{}", outcome.text(), outcome.stderr);
    assert!(outcome.text().contains("rested"), "{}", outcome.text());
    if !with_agent {
        outcome.assert_within_limit(100);
    }
}

#[test]
fn pages_for_which_the_kernel_has_no_memory_come_when_it_has() {
    needs!("cc");
    let Some(group) = Group::new("memory") else { return };
    let scratch = Scratch::new("memory");
    for link in [Link::Shm, Link::Udp] {
        let lender = Lender::start(link, "512M");
        let ready = scratch.file(&format!("ready-{link:?}"));
        let words = [compiled("resting", &[]), "32".into(), ready.clone()];
        let run = Program::new(&words).remote("256M").start_on(&[&lender], "16M");
        let since = Instant::now();
        while fs::metadata(&ready).is_err() {
            assert!(since.elapsed() < PATIENCE, "{}", run.errors());
            std::thread::sleep(Duration::from_millis(10));
        }
        let pid = run.program_pid();
        // It may have a megabyte more, and nobody is killed for wanting another.
        group.set("memory.limit_in_bytes", "1048576");
        group.set("memory.oom_control", "1");
        group.set("tasks", &pid.to_string());
        let refused = |group: &Group| group.read("memory.failcnt").trim().parse::<u64>().expect("a count");
        let before = refused(&group);
        send(pid, Signal::USR1);
        let since = Instant::now();
        while refused(&group) < before + 200 {
            assert!(since.elapsed() < PATIENCE, "nothing was refused");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(run.output(), "", "it has not ended");
        group.set("memory.limit_in_bytes", "-1");
        let outcome = run.wait(PATIENCE);
        assert_eq!((outcome.code(), outcome.text().as_str()), (0, "rested\n"), "{}", outcome.stderr);
    }
}

/// Processes called `tombolo-agent` that have the memory of this process.
pub fn agents_of(program: u32) -> Vec<u32> {
    let numbers = fs::read_dir("/proc").expect("proc").flatten();
    numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.trim_end() == "tombolo-agent" && share_memory(*pid, program) == Some(true)
        })
        .collect()
}

#[test]
fn no_wait_of_a_program_sees_its_agent() {
    needs!("cc", "unshare");
    let lender = Lender::start(Link::Shm, "1G");
    let waiting = compiled("waiting", &[]);
    let mut runs = vec![vec![&*waiting, "16"], vec![&*waiting, "16", "reaper"]];
    if rustix::process::geteuid().is_root() {
        // It is the first process of a namespace.
        runs.push(vec!["unshare", "-pf", &waiting, "16"]);
    } else {
        left_out("namespaces need privileges");
    }
    for words in runs {
        let outcome = same(&lender, &Program::new(&words).remote("256M"), "8M");
        assert!(outcome.counter("spaces") >= 4, "{words:?}: {:#}", outcome.report());
        assert_eq!(outcome.counter("without_agent"), 0, "{words:?}: {}", outcome.stderr);
    }
}

/// Whether there is such a process, and it has not ended.
pub fn lives(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// The children of a process, with their states.
pub fn children_of(parent: u32) -> Vec<(u32, String)> {
    let numbers = fs::read_dir("/proc").expect("proc").flatten();
    numbers
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            let mut words = stat.rsplit(')').next()?.split_whitespace();
            let state = words.next()?.to_owned();
            (words.next()?.parse() == Ok(parent)).then_some((pid, state))
        })
        .collect()
}

/// Agents do not stay zombies in a container whose first process never calls wait, such as `sleep infinity`.
#[test]
fn agents_are_reaped_where_the_first_process_reaps_nobody() {
    needs!("cc", "unshare", "python3");
    if !rustix::process::geteuid().is_root() {
        return left_out("namespaces need privileges");
    }
    let lender = Lender::start(Link::Shm, "512M");
    // It waits for the run alone, and then looks who is left.
    let script = r#"
import os, sys, time
run = os.fork()
if run == 0:
    os.execv(sys.argv[1], sys.argv[1:])
_, status = os.waitpid(run, 0)
def states():
    for name in os.listdir('/proc'):
        if name.isdigit():
            try:
                yield open(f'/proc/{name}/stat').read().rsplit(')', 1)[1].split()[0]
            except OSError:
                pass
print(status, sum(state == 'Z' for state in states()))
"#;
    let forks = "for i in $(seq 20); do env true; (true; true); done";
    let words = ["unshare", "-pf", "--kill-child", "--mount-proc", "python3", "-c", script, TOMBOLO, "run"];
    let mut command = Command::new(path_of(words[0]));
    command.args(&words[1..]).args([
        "--insecure",
        "--from",
        lender.address(),
        "--local",
        "8M",
        "--remote",
        "64M",
    ]);
    command.args(["--", "sh", "-c", forks]);
    let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
    // The keeper ends after the run.
    let left: u32 = outcome.text().trim().strip_prefix("0 ").and_then(|left| left.parse().ok()).unwrap_or(99);
    assert!(left <= 1, "{}{}", outcome.text(), outcome.stderr);
}

/// A thread in another pid namespace has the number there that a thread of the supervisor has here.
#[test]
fn a_thread_that_is_numbered_as_one_of_the_supervisors_is_served() {
    needs!("unshare", "python3");
    let lender = Lender::start(Link::Shm, "256M");
    let scratch = Scratch::new("numbered");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/numbered.py");
    let file = scratch.file("number");
    let words = ["unshare", "-pf", "--kill-child", "--mount-proc", "python3", script, &file];
    let run = Program::new(&words).remote("128M").start_on(&[&lender], "8M");
    run.program_pid();
    let tasks = fs::read_dir(format!("/proc/{}/task", run.supervisor_pid())).unwrap().flatten();
    let is_evictor = |task: &fs::DirEntry| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "evict\n")
    };
    let evictor = tasks.into_iter().find(is_evictor).expect("it has an evictor");
    let number = evictor.file_name().into_string().unwrap();
    fs::write(&file, number + "\n").unwrap();
    let outcome = run.wait(PATIENCE);
    assert_eq!((outcome.code(), outcome.text().trim()), (0, "7"), "{}", outcome.stderr);
}

/// The supervisor is killed while it holds the gate, by which it and an agent take turns.
#[test]
fn a_supervisor_that_is_killed_in_the_gate_leaves_nobody() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let words = [compiled("hold", &[]), "32".into(), "check".into()];
    let run = Program::new(&words).remote("128M").start_on(&[&lender], "8M");
    run.output_with("holding", PATIENCE);
    let program = run.program_pid();
    let agents = agents_of(program);
    assert_eq!(agents.len(), 1, "one agent");
    let descriptors = fs::read_dir(format!("/proc/{}/fd", run.supervisor_pid())).expect("it runs").flatten();
    let mut paths = descriptors.map(|entry| entry.path());
    let gate =
        paths.find(|path| fs::read_link(path).is_ok_and(|to| to.to_string_lossy().contains("tombolo-gate")));
    let gate = fs::OpenOptions::new().write(true).open(gate.expect("a gate")).expect("the gate");
    // The word that says that the supervisor holds the gate. Nobody releases it any more.
    gate.write_all_at(&2u32.to_ne_bytes(), 0).expect("the gate");
    std::thread::sleep(Duration::from_millis(300));
    send(run.supervisor_pid(), Signal::KILL);
    let since = Instant::now();
    while lives(program) || lives(agents[0]) {
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "they go on: {} {}",
            lives(program),
            lives(agents[0])
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A job that is stopped when its shell ends gets SIGHUP, as it does without Tombolo: nobody could continue it.
#[test]
fn a_stopped_job_of_a_shell_that_has_ended_ends() {
    needs!("cc", "bash");
    let lender = Lender::start(Link::Shm, "512M");
    // The shell ends before it has been told that its job has stopped, or after.
    for pause in ["", "sleep 0.5;"] {
        let job = compiled("hold", &[]);
        let script = format!("set -m; {job} 16 rest & sleep 1; kill -STOP $!; {pause} exit 3");
        let run = Program::new(&["bash", "-c", &script]).remote("64M").start_on(&[&lender], "8M");
        let outcome = run.wait(Duration::from_secs(60));
        assert_eq!(outcome.code(), 3, "{pause}: {}", outcome.stderr);
    }
}

/// What the supervisor keeps of a child ends with it.
#[test]
fn four_hundred_children_leave_nothing_in_the_supervisor() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let words = [compiled("forking_in_turn", &[]), "16".into(), "400".into()];
    let run = Program::new(&words).remote("64M").start_on(&[&lender], "64M");
    let resident = || {
        let status = fs::read_to_string(format!("/proc/{}/status", run.supervisor_pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("it has memory");
        line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number")
    };
    run.output_with("100 children", PATIENCE);
    let before_kib = resident();
    run.output_with("500 children", PATIENCE);
    let after_kib = resident();
    send(run.program_pid(), Signal::USR1);
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    // Each had 4,096 pages, with names of 8 bytes.
    assert!(after_kib < before_kib + 2048, "{before_kib} KiB, then {after_kib}");
}

#[test]
fn a_supervisor_that_is_the_first_process_of_a_namespace_reaps_agents() {
    needs!("cc", "unshare");
    if !rustix::process::geteuid().is_root() {
        return left_out("namespaces need privileges");
    }
    let lender = Lender::start(Link::Shm, "512M");
    let script = format!("for i in $(seq 20); do env true; done; exec {} 16 rest", compiled("hold", &[]));
    let mut command = Command::new(path_of("unshare"));
    command.args([
        "-pf",
        "--kill-child",
        "--mount-proc",
        TOMBOLO,
        "run",
        "--insecure",
        "--from",
        lender.address(),
    ]);
    command.args(["--local", "8M", "--remote", "64M", "--", "sh", "-c", &script]);
    let run = Running::start(command, Vec::new());
    run.output_with("holding", PATIENCE);
    let fronts = children_of(run.pid());
    assert_eq!(fronts.len(), 1, "{fronts:?}");
    let supervisor = supervisor_of(fronts[0].0).expect("it runs");
    let since = Instant::now();
    loop {
        // The keeper, the program and its agent live.
        let children = children_of(supervisor);
        if children.len() == 3 && children.iter().all(|(_, state)| state != "Z") {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{children:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_agent_can_do_little() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let words = [path_of("nice"), "-n".into(), "5".into(), compiled("hold", &[]), "16".into(), "rest".into()];
    let run = Program::new(&words).remote("64M").start_on(&[&lender], "8M");
    run.output_with("holding", Duration::from_secs(60));
    let agents = agents_of(run.program_pid());
    assert_eq!(agents.len(), 1, "one agent");
    let status = fs::read_to_string(format!("/proc/{}/status", agents[0])).expect("it runs");
    // Of all privileges it has CAP_KILL at most.
    let root = rustix::process::geteuid().is_root();
    let privileges = if root { "CapPrm:\t0000000000000020" } else { "CapPrm:\t0000000000000000" };
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", privileges] {
        assert!(status.contains(line), "no {line:?} in {status}");
    }
    let stat = fs::read_to_string(format!("/proc/{}/stat", agents[0])).expect("it runs");
    let niceness =
        stat.rsplit(')').next().and_then(|fields| fields.split_whitespace().nth(16)).map(str::to_owned);
    assert!(niceness.as_deref() == Some("0") || !root, "{niceness:?}: {stat}");
    let cwd = fs::read_link(format!("/proc/{}/cwd", agents[0])).expect("it runs");
    assert_eq!(cwd, PathBuf::from("/"));
    // Whatever somebody makes it call: getpid, setuid, fork, socket; and on any descriptor, its own as well: another ioctl (to set an
    // interface up), a read of something else, a message to an address, another signal, one to a whole group, another advice.
    let other = (0..16).flat_map(|descriptor| {
        [
            format!("16 {descriptor} 0x8914 0"),
            format!("44 {descriptor} 0 0 0 0x1000 0"),
            format!("424 {descriptor} 15 0 0"),
            format!("424 {descriptor} 9 0 4"),
            format!("424 {descriptor} 9 4096 0"),
        ]
    });
    let calls: Vec<String> = ["39", "105 0", "57", "41 1 1 0", "28 0 4096 8", "0 99 0 0"]
        .map(str::to_owned)
        .into_iter()
        .chain(other)
        .collect();
    let mut calling = Command::new(compiled("calling", &[]));
    calling.arg(agents[0].to_string()).args(&calls);
    let results = Running::start(calling, Vec::new()).wait(PATIENCE);
    // EPERM.
    assert_eq!(results.text(), "-1\n".repeat(calls.len()), "{}", results.stderr);
}

#[test]
fn threads_that_wait_for_pages_never_go_on_with_zeroes() {
    needs!("cc", "python3");
    // The supervisor and the agents hold the userfaultfd, too. The agents are stopped when it is killed, or were killed before
    // it: then the keeper alone is left.
    // Nor does the keeper need anybody who reads what it says.
    let unread =
        ["python3", "-c", "import os, sys; os.dup2(os.pipe()[1], 2); os.execv(sys.argv[1], sys.argv[1:])"];
    for (signal, under) in
        [(Signal::STOP, &[][..]), (Signal::KILL, &[]), (Signal::STOP, &unread), (Signal::KILL, &unread)]
    {
        let lender = Lender::start(Link::Shm, "512M");
        let words = [compiled("hold", &[]), "64".into(), "check".into()];
        let run = Program::new(&words).remote("256M").under(under).start_on(&[&lender], "8M");
        run.output_with("holding", Duration::from_secs(120));
        let program = run.program_pid();
        let agents = agents_of(program);
        let since = Instant::now();
        for &agent in &agents {
            send(agent, signal);
        }
        while signal == Signal::KILL && agents.iter().any(|agent| lives(*agent)) {
            assert!(since.elapsed() < Duration::from_secs(20), "an agent outlives SIGKILL");
            std::thread::sleep(Duration::from_millis(1));
        }
        run.signal(Signal::KILL);
        let outcome = run.wait(Duration::from_secs(60));
        assert!(!outcome.stderr.contains("pattern.h"), "a wrong byte: {}", outcome.stderr);
        while lives(program) {
            assert!(since.elapsed() < Duration::from_secs(20), "the program outlives its supervisor");
            std::thread::sleep(Duration::from_millis(10));
        }
        for agent in agents.into_iter().filter(|agent| lives(*agent)) {
            send(agent, Signal::KILL);
        }
    }
}

#[test]
fn random_calls_on_memory_come_out_as_they_do_plainly() {
    needs!("cc");
    let mut lenders = [Lender::start(Link::Shm, "1G"), Lender::start(Link::Udp, "1G")];
    let differential = compiled("differential", &[]);
    let test = "cargo xtask test random_calls_on_memory";
    Seeds::from_environment(4).run(test, |seed| {
        eprintln!("    differential: TOMBOLO_SEED={seed}");
        let words = [&differential, "16", &seed.to_string(), "300", "3"].map(str::to_owned);
        let program = Program::new(&words).remote("256M").minimum("4K");
        let plain = program.plain();
        assert_eq!(plain.code(), 0, "seed {seed} fails without Tombolo: {}", plain.stderr);
        // Mostly by windows, which are quicker, and now and then by messages.
        let lender = &mut lenders[usize::from(seed % 4 == 3)];
        let run = program.start_on(&[lender], "4M");
        // Stops at moments that differ from run to run.
        let pid = run.program_pid();
        let mut random = tombolo_random::Random::new(seed);
        // And now and then somebody kills its agent.
        let kill_at = (seed % 3 == 2).then(|| random.below(6));
        for stop in 0..6 {
            std::thread::sleep(Duration::from_millis(random.below(128)));
            if kill_at == Some(stop) {
                agents_of(pid).into_iter().for_each(|agent| send(agent, Signal::KILL));
            }
            if fs::metadata(format!("/proc/{pid}")).is_err() {
                break;
            }
            send(pid, Signal::STOP);
            std::thread::sleep(Duration::from_millis(random.below(32)));
            send(pid, Signal::CONT);
        }
        let far = run.wait(Duration::from_secs(120));
        assert_eq!((far.code(), far.text()), (0, plain.text()), "seed {seed}; stderr: {}", far.stderr);
        for pages in ["pages_out", "pages_in"] {
            assert!(far.counter(pages) > 0, "seed {seed}: {pages}; {:#}", far.report());
        }
    });
}
