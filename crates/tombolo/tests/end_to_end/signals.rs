//! Signals reach those for whom they were meant, and `tombolo run` is to a shell as its program would be.

use std::fs;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, waitid, waitpid};

use crate::common::{
    Lender, Link, Outcome, PATIENCE, Program, Running, TOMBOLO, compiled, needs, path_of, send, sized,
};

fn run_words(lender: &Lender) -> Vec<String> {
    let words = [TOMBOLO, "run", "--quiet", "--insecure", "--from", lender.address(), "--local", "16M", "--"];
    words.map(str::to_owned).to_vec()
}

/// Runs a command of this machine.
fn command<S: AsRef<str>>(words: &[S]) -> Command {
    let mut command = Command::new(words[0].as_ref());
    command.args(words[1..].iter().map(AsRef::as_ref));
    command
}

/// What a command that starts others does with a program, and with the same on far memory.
fn both(lender: &Lender, before: &[&str], program: &[&str]) -> [Outcome; 2] {
    [Vec::new(), run_words(lender)].map(|between| {
        let words = before.iter().map(|&word| word.to_owned()).chain(between);
        let words: Vec<String> = words.chain(program.iter().map(|&word| word.to_owned())).collect();
        Running::start(command(&words), Vec::new()).wait(PATIENCE)
    })
}

fn assert_same(lender: &Lender, before: &[&str], program: &[&str]) -> Outcome {
    let [plain, far] = both(lender, before, program);
    assert_eq!(far.text(), plain.text(), "{before:?} {program:?}: {}", far.stderr);
    assert_eq!(far.status, plain.status, "{before:?} {program:?}: {}", far.stderr);
    far
}

#[test]
fn every_signal_reaches_the_program_or_its_group_once() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "64M");
    let program = compiled("signals", &[]);
    for way in ["drive", "drive-session"] {
        let outcome = assert_same(&lender, &[&program, way], &[&program, "receive"]);
        assert_eq!(
            (outcome.text().as_str(), outcome.code()),
            ("each once\n", 0),
            "{way}: {}",
            outcome.stderr
        );
    }
}

#[test]
fn an_interactive_shell_controls_its_job() {
    needs!("bash", "python3");
    let lender = Lender::start(Link::Shm, "64M");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/job_control.py");
    let started = |words: Vec<String>| {
        let words: Vec<String> = ["python3", script].map(str::to_owned).into_iter().chain(words).collect();
        let outcome = Running::start(command(&words), Vec::new()).wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}{}", outcome.text(), outcome.stderr);
        outcome.text()
    };
    // `env` is as if it were not there.
    let plain = started(vec!["env".into()]);
    assert!(plain.ends_with("code 130\n"), "{plain}");
    assert_eq!(started(run_words(&lender)), plain);
}

/// A scenario of `sessions.py`, with a program and with the same on far memory.
fn assert_same_in_session(scenario: &str, last_line: &str) {
    let lender = Lender::start(Link::Shm, "64M");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/sessions.py");
    let [plain, far] = [vec!["env".to_owned()], run_words(&lender)].map(|between| {
        let words: Vec<String> =
            ["python3", script, scenario].map(str::to_owned).into_iter().chain(between).collect();
        let outcome = Running::start(command(&words), Vec::new()).wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}{}", outcome.text(), outcome.stderr);
        outcome.text()
    });
    assert!(plain.ends_with(last_line), "{plain}");
    assert_eq!(far, plain);
}

#[test]
fn a_program_that_makes_itself_a_group_is_still_the_shells_job() {
    needs!("bash", "python3");
    assert_same_in_session("in_a_group_of_its_own", "code 0\n");
}

#[test]
fn a_program_that_leads_its_session_is_not_stopped_by_its_terminal() {
    needs!("bash", "python3");
    assert_same_in_session("leads_the_session", "code 3\n");
}

#[test]
fn a_stopped_job_whose_shell_is_killed_is_told() {
    needs!("bash", "python3");
    assert_same_in_session("shell_is_killed", "told\n");
}

#[test]
fn a_program_that_nobody_could_continue_does_not_stay_stopped() {
    needs!("bash", "python3");
    assert_same_in_session("orphan", "told\n");
}

/// Such a library keeps a process from being split.
#[test]
fn a_library_that_starts_threads_is_the_programs() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "64M");
    let library = compiled("preloaded_thread", &["-shared", "-fPIC"]);
    let preload = format!("LD_PRELOAD={library}");
    let says = "echo $LD_PRELOAD; env | grep -c ^TOMBOLO_HANDED; ls /proc/$$/task | wc -l; trap";
    let run = |words: Vec<String>| Running::start(command(&words), Vec::new()).wait(PATIENCE);
    let words: Vec<String> = ["env", &preload].map(str::to_owned).into_iter().collect();
    let program = ["sh", "-c", says].map(str::to_owned);
    let far = run(words.into_iter().chain(run_words(&lender)).chain(program).collect());
    assert_eq!(far.code(), 0, "{}", far.stderr);
    let text = far.text();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with(&format!(":{library}")), "{text}");
    assert_eq!(lines[1], "0");
    assert!(lines[2].parse::<u32>().unwrap() >= 2, "{text}");
}

#[test]
fn a_program_that_a_signal_ends_ends_the_run_by_the_same() {
    needs!();
    let lender = Lender::start(Link::Shm, "64M");
    for signal in ["TERM", "INT", "HUP", "SEGV", "KILL", "USR1", "RTMIN+3"] {
        // Without core files, which are the program's alone.
        let script = format!("ulimit -c 0; kill -{signal} $$");
        let outcome = assert_same(&lender, &[], &["bash", "-c", &script]);
        assert!(outcome.status.signal().is_some(), "{:?}", outcome.status);
    }
    // A shell that waits for a program that SIGINT ends does not go on.
    let script = "trap 'echo interrupted; exit 7' INT; \"$@\"; echo goes on";
    let outcome =
        assert_same(&lender, &["bash", "-c", script, "bash"], &["sh", "-c", "kill -INT 0; sleep 60"]);
    assert_eq!(outcome.code(), 7);
}

#[test]
fn commands_that_start_others_do_with_it_as_with_its_program() {
    needs!("python3");
    let lender = Lender::start(Link::Shm, "64M");
    // Their blocked and ignored signals are the program's.
    let status: &[&str] = &["sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status"];
    assert_same(
        &lender,
        &["env", "--block-signal=USR1", "--ignore-signal=PIPE", "--ignore-signal=40"],
        status,
    );
    assert_same(&lender, &["env", "--ignore-signal=CHLD", "--ignore-signal=TERM"], status);
    assert_same(&lender, &["nohup"], &["sh", "-c", "kill -HUP $$; echo goes on"]);
    let outcome = assert_same(&lender, &["timeout", "2"], &["sleep", "60"]);
    assert_eq!(outcome.code(), 124);
    let takes_it = "trap 'echo told; kill $!; exit 3' USR1; sleep 60 & wait";
    assert_same(&lender, &["timeout", "--foreground", "-s", "USR1", "5"], &["sh", "-c", takes_it]);
    let outcome = assert_same(&lender, &["timeout", "-s", "KILL", "2"], &["sleep", "60"]);
    assert_eq!(outcome.code(), 137);
    assert_same(&lender, &["setsid", "-w"], &["sh", "-c", "kill -TERM $$"]);
    // An alarm that was set before is the program's.
    let alarm = "import os, signal, sys; signal.alarm(2); os.execvp(sys.argv[1], sys.argv[1:])";
    let outcome = assert_same(&lender, &["python3", "-c", alarm], &["sleep", "60"]);
    assert_eq!(outcome.status.signal(), Some(Signal::ALARM.as_raw()));
}

/// `systemd`, for instance, sends SIGTERM to every process of a service.
#[test]
fn a_signal_for_every_process_of_a_run_leaves_the_program_its_end() {
    needs!();
    let lender = Lender::start(Link::Shm, "64M");
    let script =
        "trap 'sleep 0.3; echo at its own time; exit 5' TERM; echo at work; while :; do sleep 0.1; done";
    for (what, are_all_meant) in [("those that are called so", false), ("all", true)] {
        let run = Program::new(&["sh", "-c", script]).start_on(&[&lender], "16M");
        run.output_with("at work", PATIENCE);
        let (front, supervisor) = (run.pid(), run.supervisor_pid());
        let mut meant = vec![front, supervisor];
        for parent in [front, supervisor] {
            meant.extend(crate::kernel_truth::children_of(parent).into_iter().map(|(pid, _)| pid));
        }
        let is_called_so = |pid: &u32| {
            let read = |name| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let mut names = read("comm");
            names.extend(read("cmdline"));
            names.windows(7).any(|name| name == b"tombolo")
        };
        meant.retain(|pid| are_all_meant || is_called_so(pid));
        assert!(meant.len() >= 3, "{meant:?}");
        for pid in meant {
            send(pid, Signal::TERM);
        }
        let outcome = run.wait(PATIENCE);
        assert_eq!(outcome.code(), 5, "{what}: {}", outcome.stderr);
        let times = outcome.text().matches("at its own time\n").count();
        // Who means all sends the program one, and `tombolo run` another.
        assert!(times == 1 || (are_all_meant && times == 2), "{what}: {}", outcome.text());
    }
}

/// As a service manager does it with a service, whose first process leads a session.
#[test]
fn a_signal_for_every_process_of_a_session_hides_no_later_one() {
    needs!("bash", "setsid");
    let lender = Lender::start(Link::Shm, "64M");
    let script =
        "trap 'echo told' USR1; exec {pipe}<> <(:); echo at work; while :; do read -t 0.05 -u $pipe; done";
    let words: Vec<String> =
        ["setsid", "-w"].map(str::to_owned).into_iter().chain(run_words(&lender)).collect();
    let words: Vec<String> = words.into_iter().chain(["bash", "-c", script].map(str::to_owned)).collect();
    let run = Running::start(command(&words), Vec::new());
    run.output_with("at work", PATIENCE);
    let children = |parent: u32| crate::kernel_truth::children_of(parent).into_iter().map(|(pid, _)| pid);
    let front = children(run.pid()).next().unwrap();
    let mut all: Vec<u32> = children(front).collect();
    all.extend(children(front).collect::<Vec<_>>().into_iter().flat_map(children));
    all.push(front);
    let is_bash =
        |pid: &&u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end() == "bash";
    let program = *all.iter().find(is_bash).unwrap();
    let told = || run.output_with("at work", PATIENCE).matches("told").count();
    let becomes = |count: usize| {
        let since = Instant::now();
        while told() < count {
            assert!(since.elapsed() < PATIENCE, "{} of {count}", told());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    for round in 0..6 {
        // The front is served first or last.
        if round % 2 == 0 {
            all.reverse();
        }
        let before = told();
        for &pid in &all {
            send(pid, Signal::USR1);
        }
        becomes(before + 1);
        // Those that come now are the same call's no longer.
        std::thread::sleep(Duration::from_millis(200));
        let before = told();
        send(front, Signal::USR1);
        becomes(before + 1);
    }
    send(program, Signal::KILL);
    run.wait(PATIENCE);
}

/// How the child of this process is: stopped by a signal, going on, or neither.
fn change_of(run: &Running) -> Option<i32> {
    let pid = Pid::from_raw(run.pid().cast_signed());
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        let options = WaitOptions::UNTRACED | WaitOptions::CONTINUED | WaitOptions::NOHANG;
        if let Some((_, status)) = waitpid(pid, options).expect("our child") {
            assert!(status.stopped() || status.continued(), "it ends: {}", run.errors());
            return status.stopping_signal();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("nothing changes: {}", run.errors())
}

#[test]
fn a_run_stops_and_goes_on_as_its_program_does() {
    needs!();
    let lender = Lender::start(Link::Shm, "64M");
    // One process alone: what else is in the group stays stopped below.
    let script =
        "trap 'echo told' USR1; exec {pipe}<> <(:); echo at work; while :; do read -t 0.05 -u $pipe; done";
    let run = Program::new(&["bash", "-c", script]).start_on(&[&lender], "16M");
    run.output_with("at work", PATIENCE);
    let group = Pid::from_raw(run.pid().cast_signed()).unwrap();
    let program = run.program_pid();
    let is_stopped = || tombolo_host::jobs::is_stopped(program);
    // The front goes on first, and then has the program go on.
    let goes_on = || {
        assert_eq!(change_of(&run), None);
        let since = Instant::now();
        while is_stopped() {
            assert!(since.elapsed() < PATIENCE, "the program stays stopped");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    for signal in [Signal::TSTP, Signal::TTIN, Signal::TTOU] {
        run.signal(signal);
        assert_eq!(change_of(&run), Some(signal.as_raw()));
        assert!(is_stopped());
        run.signal(Signal::CONT);
        goes_on();
        kill_process_group(group, signal).unwrap();
        assert_eq!(change_of(&run), Some(signal.as_raw()));
        kill_process_group(group, Signal::CONT).unwrap();
        goes_on();
    }
    for signal in [Signal::STOP, Signal::TSTP] {
        send(program, signal);
        assert_eq!(change_of(&run), Some(signal.as_raw()));
        send(program, Signal::CONT);
        goes_on();
    }
    // Everybody in the group is stopped, also who tells for whom signals are; then the number alone goes on.
    for _ in 0..3 {
        kill_process_group(group, Signal::STOP).unwrap();
        assert_eq!(change_of(&run), Some(Signal::STOP.as_raw()));
        run.signal(Signal::CONT);
        goes_on();
    }
    run.signal(Signal::USR1);
    run.output_with("told", PATIENCE);
    // Stopped and killed.
    run.signal(Signal::TSTP);
    assert_eq!(change_of(&run), Some(Signal::TSTP.as_raw()));
    send(program, Signal::KILL);
    let mut run = run;
    let status = run.await_end(PATIENCE);
    assert_eq!(status.signal(), Some(Signal::KILL.as_raw()));
}

/// As a shell sees it, which continues the job whenever it stops.
#[test]
fn a_stop_while_it_starts_is_seen_and_ends() {
    needs!();
    let lender = Lender::start(Link::Shm, "64M");
    let mut random = tombolo_random::Random::for_test(1);
    let mut seen = 0;
    for _ in 0..sized(12, 200) {
        let mut run = Program::new(&["true"]).start_on(&[&lender], "16M");
        let group = Pid::from_raw(run.pid().cast_signed()).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        let since = Instant::now();
        let mut stops = 0;
        loop {
            // Some stops meet the program's process before it is executed.
            if stops < 40 {
                let _ = kill_process_group(group, Signal::TSTP);
                stops += 1;
            }
            let options = WaitIdOptions::EXITED
                | WaitIdOptions::STOPPED
                | WaitIdOptions::NOHANG
                | WaitIdOptions::NOWAIT;
            match waitid(WaitId::Pid(group), options).expect("our child") {
                Some(status) if status.stopped() => {
                    seen += 1;
                    let _ = kill_process_group(group, Signal::CONT);
                }
                Some(_) => break,
                None => {}
            }
            assert!(since.elapsed() < PATIENCE, "it neither stops nor ends: {}", run.errors());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(run.await_end(PATIENCE).code(), Some(0), "{}", run.errors());
    }
    assert!(seen > 0, "nothing was ever stopped");
}

/// The program has ended, and only what it has left behind is there, in another group, to be interrupted by the terminal.
#[test]
fn a_terminal_interrupts_what_the_program_has_left_behind() {
    needs!("bash");
    let lender = Lender::start(Link::Shm, "64M");
    let run =
        Program::new(&["bash", "-c", "set -m; sleep 600 & sleep 1; exit 7"]).start_on(&[&lender], "16M");
    run.errors_with("left behind", PATIENCE);
    kill_process_group(Pid::from_raw(run.pid().cast_signed()).unwrap(), Signal::INT).unwrap();
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 7, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("passed signal 2 on"), "{}", outcome.stderr);
}

/// Whoever waits for the end of a pipe waits for the program that has it, and for nobody else.
#[test]
fn a_pipe_that_the_program_closes_is_closed() {
    needs!("bash");
    let lender = Lender::start(Link::Shm, "64M");
    let mut words = run_words(&lender);
    words.extend(["bash", "-c", "echo said; exec >&- 7>&-; sleep 600"].map(str::to_owned));
    // A pipe at 7, too, of which the reader is here.
    let (mut reader, writer) = std::io::pipe().unwrap();
    let script = "exec \"$@\" 7>&0 < /dev/null";
    let mut starting = Command::new("bash");
    starting.args(["-c", script, "bash"]).args(&words);
    starting.process_group(0).stdin(writer).stdout(Stdio::piped());
    let mut run = starting.spawn().unwrap();
    drop(starting);
    let mut said = String::new();
    run.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said, "said\n");
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the end of the other one");
    assert_eq!(run.try_wait().unwrap(), None, "the program runs");
    send(run.id(), Signal::TERM);
    assert_eq!(run.wait().unwrap().signal(), Some(Signal::TERM.as_raw()));
}

/// Nobody could be told how the program ends.
#[test]
fn a_front_that_is_killed_ends_the_run() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let words = [compiled("hold", &[]), "32".into(), "check".into()];
    let mut run = Program::new(&words).remote("128M").start_on(&[&lender], "8M");
    run.output_with("holding", PATIENCE);
    let pids = [run.program_pid(), run.supervisor_pid()];
    run.signal(Signal::KILL);
    assert_eq!(run.await_end(PATIENCE).signal(), Some(Signal::KILL.as_raw()));
    await_ends(&pids);
    lender.wait_until_free(PATIENCE);
    // Also one that has no agent, and is unknown to the keeper.
    let script = format!("exec {} 8 check", compiled("hold", &["-static"]));
    let mut run = Program::new(&["sh", "-c", &script]).start_on(&[&lender], "8M");
    run.output_with("holding", PATIENCE);
    let pids = [run.program_pid(), run.supervisor_pid()];
    run.signal(Signal::KILL);
    run.await_end(PATIENCE);
    await_ends(&pids);
}

fn await_ends(pids: &[u32]) {
    let since = Instant::now();
    while let Some(pid) = pids.iter().find(|&&pid| crate::kernel_truth::lives(pid)) {
        assert!(since.elapsed() < PATIENCE, "{pid} stays");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A user who interrupts before the program is there.
#[test]
fn a_run_that_is_interrupted_while_it_joins_its_lender_ends() {
    needs!();
    // Nobody answers there, and it is tried for seconds.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = format!("udp:{}", silent.local_addr().unwrap());
    let mut run = Program::new(&[path_of("true")]).start_from(&from, "16M");
    let supervisor = run.supervisor_pid();
    run.signal(Signal::INT);
    assert_eq!(run.await_end(PATIENCE).signal(), Some(Signal::INT.as_raw()));
    await_ends(&[supervisor]);
}
