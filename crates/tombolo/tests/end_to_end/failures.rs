//! Lenders, supervisors and programs are killed or fall silent: a clear error
//! in time, never a hang, never a wrong byte.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{
    Lender, Link, PATIENCE, Program, Running, Scratch, TOMBOLO, compiled, needs, path_of, send,
};
use crate::kernel_truth::{agents_of, children_of};
use crate::paths::relay::Relay;
use crate::programs::lines;
use crate::runtimes::source;

/// The promise is 2 s; a busy machine gets more, and the measured time is printed.
const SOON: Duration = Duration::from_secs(8);

fn measured(what: &str, elapsed: Duration) {
    let _ = writeln!(std::io::stderr(), "    {what}: {:.2} s", elapsed.as_secs_f64());
    assert!(elapsed < SOON, "{what}: {elapsed:?}");
}

/// A program of 64 MiB on 8 MiB, which goes on touching all of it.
fn holding(lenders: &[&Lender], mode: &str) -> Running {
    holding_with(lenders, mode, None)
}

/// The same, whose lenders may be silent for other than the default.
fn holding_with(lenders: &[&Lender], mode: &str, outage: Option<&str>) -> Running {
    let words = [compiled("hold", &[]), "64".into(), mode.into()];
    // What a dead lender has lent is mapped here, and a program that only reads it would not miss the lender.
    let mut program = Program::new(&words).remote("256M").options(&["--give-up-dead"]);
    if let Some(outage) = outage {
        program = program.outage(outage);
    }
    let run = program.start_on(lenders, "8M");
    run.output_with("holding", Duration::from_secs(120));
    run
}

fn lender_lost(link: Link, lenders: usize, signal: Signal) {
    let mut lenders: Vec<_> = (0..lenders).map(|_| Lender::start(link, "512M")).collect();
    // A silent lender is noticed by its silence, which a lender without a processor must not have; SOON bounds it
    // from above. A killed one is noticed at once, or not before SOON: the default is longer.
    let outage = (signal == Signal::STOP).then_some("4s");
    let run = holding_with(&lenders.iter().collect::<Vec<_>>(), "check", outage);
    let since = Instant::now();
    lenders[0].node().signal(signal);
    let outcome = run.wait(Duration::from_secs(60));
    measured(&format!("{link:?} lender lost by {signal:?}"), since.elapsed());
    // A wrong byte would be exit status 9.
    assert_eq!(outcome.code(), 135, "SIGBUS; stderr: {}", outcome.stderr);
    assert!(outcome.stderr.contains("tombolo: "), "no message: {}", outcome.stderr);
    assert!(outcome.stderr.contains(lenders[0].address()), "which lender? {}", outcome.stderr);
}

#[test]
fn a_killed_lender_is_a_bus_error_shm() {
    needs!("cc");
    lender_lost(Link::Shm, 1, Signal::KILL);
}

#[test]
fn a_killed_lender_is_a_bus_error_udp() {
    needs!("cc");
    lender_lost(Link::Udp, 1, Signal::KILL);
}

/// A program touches what is lost before anybody has looked at what it has lost, and ends by that.
#[test]
fn what_a_given_up_lender_takes_along_is_told() {
    needs!("cc");
    for _ in 0..4 {
        let mut lender = Lender::start(Link::Shm, "512M");
        let words = [compiled("hold", &[]), "64".into(), "check".into()];
        let run = Program::new(&words).remote("256M").options(&["--give-up-dead"]).start_on(&[&lender], "8M");
        run.output_with("holding", Duration::from_secs(120));
        lender.node().signal(Signal::KILL);
        let outcome = run.wait(Duration::from_secs(60));
        assert_eq!(outcome.code(), 135, "stderr: {}", outcome.stderr);
        assert!(outcome.stderr.contains("and with it "), "{}", outcome.stderr);
        assert!(
            !outcome.stderr.contains("nothing of the program") && !outcome.stderr.contains("child"),
            "{}",
            outcome.stderr
        );
    }
}

/// Whatever is made local of it: what is lost reads as zeroes nowhere.
#[test]
fn what_is_lost_stays_lost_where_memory_is_made_local() {
    needs!("cc");
    let mut lender = Lender::start(Link::Shm, "512M");
    let words = [compiled("losing", &[]), "64".into()];
    let run = Program::new(&words).remote("256M").options(&["--give-up-dead"]).start_on(&[&lender], "8M");
    run.output_with("holding", Duration::from_secs(120));
    lender.node().signal(Signal::KILL);
    send(run.program_pid(), Signal::USR1);
    let outcome = run.wait(Duration::from_secs(60));
    assert_eq!(outcome.code(), 0, "stderr: {}", outcome.stderr);
}

#[test]
fn a_silent_lender_is_a_bus_error_udp() {
    needs!("cc");
    lender_lost(Link::Udp, 1, Signal::STOP);
}

/// What it has lent is mapped here, so nothing is lost with it; what is new goes to the other one.
#[test]
fn a_stopped_lender_over_shared_memory_is_told_of_and_given_up() {
    needs!("cc");
    let mut lenders: Vec<_> = (0..2).map(|_| Lender::start(Link::Shm, "512M")).collect();
    let words = [compiled("hold", &[]), "64".into(), "check".into()];
    let program = Program::new(&words).remote("256M").outage("4s");
    let run = program.start_on(&lenders.iter().collect::<Vec<_>>(), "8M");
    run.output_with("holding", Duration::from_secs(120));
    lenders[0].node().signal(Signal::STOP);
    let silent = format!("lender {} does not answer", lenders[0].address());
    run.errors_with(&silent, Duration::from_secs(30));
    lenders[0].node().signal(Signal::CONT);
    run.errors_with("answers again", Duration::from_secs(30));
    lenders[0].node().signal(Signal::STOP);
    run.errors_with(&format!("lender {} is gone (silent for", lenders[0].address()), Duration::from_secs(60));
    // It goes on with what it has, and ends at a wrong byte.
    std::thread::sleep(Duration::from_secs(1));
    run.signal(Signal::TERM);
    let outcome = run.wait(Duration::from_secs(60));
    lenders[0].node().signal(Signal::CONT);
    assert_eq!((outcome.code(), outcome.counter("lost_pages")), (143, 0), "{}", outcome.stderr);
}

/// Nobody reads what `run` has to say, or it cannot be written: the program hears of a lost lender all the same.
#[test]
fn a_lost_lender_is_a_bus_error_though_nothing_can_be_said() {
    needs!("cc");
    let scratch = Scratch::new("mute");
    let pipe = scratch.file("full");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    let mut full = fs::OpenOptions::new();
    full.read(true).write(true);
    std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut full,
        rustix::fs::OFlags::NONBLOCK.bits().cast_signed(),
    );
    let mut full = full.open(&pipe).unwrap();
    while full.write(&[b' '; 4096]).is_ok() {}
    for (target, redirection) in [("/dev/full", "exec 2>\"$0\""), (pipe.as_str(), "exec 2<>\"$0\"")] {
        let mut lender = Lender::start(Link::Shm, "512M");
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{redirection}; exec \"$@\""), target, TOMBOLO, "run", "--insecure"]);
        command.args(["--from", lender.address(), "--local", "8M", "--remote", "256M", "--outage", "1.5s"]);
        command.arg("--give-up-dead");
        command.args(["--", &compiled("hold", &[]), "64", "check"]);
        let run = Running::start(command, Vec::new());
        run.output_with("holding", Duration::from_secs(120));
        lender.node().signal(Signal::KILL);
        assert_eq!(run.wait(Duration::from_secs(60)).code(), 135, "with {target} as standard error");
    }
}

/// A lender that does not run for three seconds, twice as long as it takes to be noticed, costs nothing but time.
#[test]
fn a_lender_that_was_silent_for_three_seconds_costs_nothing_but_time() {
    needs!("sort");
    let scratch = Scratch::new("silent");
    let input = scratch.file("input");
    fs::write(&input, lines(70_000)).unwrap();
    let words = [&path_of("sort"), "--buffer-size=400M", "--parallel=2", &input];
    let program = Program::new(&words).remote("128M");
    let plain = program.plain();
    let mut lender = Lender::start(Link::Udp, "1G");
    let relay = Relay::to(&lender.address().parse().unwrap(), 0);
    let run = program.start_from(&relay.address.to_string(), "8M");
    let since = Instant::now();
    while relay.carried_bytes() < 4 << 20 {
        assert!(since.elapsed() < PATIENCE, "nothing is far\n{}", run.errors());
        std::thread::sleep(Duration::from_millis(1));
    }
    lender.node().signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(3));
    lender.node().signal(Signal::CONT);
    let outcome = run.wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.stdout == plain.stdout, "the output differs");
    assert!(outcome.counter("lost_pages") == 0 && !outcome.stderr.contains("SIGBUS"), "{}", outcome.stderr);
    lender.wait_until_free(Duration::from_secs(30));
}

#[test]
fn one_lender_of_two_killed_is_a_bus_error() {
    needs!("cc");
    lender_lost(Link::Shm, 2, Signal::KILL);
    lender_lost(Link::Udp, 2, Signal::KILL);
}

#[test]
fn a_stopped_lender_on_the_same_machine_costs_nothing() {
    needs!("cc");
    // Pages come straight from the lender's memory: it need not run.
    let mut lender = Lender::start(Link::Shm, "512M");
    let program = Program::new(&[compiled("threads", &[]), "32".into()]).remote("128M");
    // It is silent for longer than it may be over UDP; here nothing is given up for that while there is no other lender.
    let hold = holding_with(&[&lender], "rest", Some("1.5s"));
    lender.node().signal(Signal::STOP);
    // Given up, it would be after three seconds at the earliest.
    std::thread::sleep(Duration::from_secs(8));
    assert!(alive(hold.program_pid()), "{}", hold.errors());
    assert!(
        hold.errors().contains("does not answer") && !hold.errors().contains("is gone"),
        "{}",
        hold.errors()
    );
    lender.node().signal(Signal::CONT);
    hold.errors_with("answers again", PATIENCE);
    drop(hold);
    assert_eq!(program.run_on(&[&lender], "8M").code(), 0);
}

#[test]
fn a_node_says_when_a_link_does_not_answer_and_when_it_answers_again() {
    let lender = Lender::start(Link::Udp, "64M");
    let run = Program::new(&[path_of("sleep").as_str(), "300"]).start_on(&[&lender], "8M");
    lender.errors_with("a neighbour is there", PATIENCE);
    let supervisor = run.supervisor_pid();
    send(supervisor, Signal::STOP);
    lender.errors_with("a link does not answer", PATIENCE);
    send(supervisor, Signal::CONT);
    lender.errors_with("a link answers again", PATIENCE);
    run.signal(Signal::TERM);
    assert_eq!(run.wait(PATIENCE).code(), 128 + Signal::TERM.as_raw());
}

#[test]
fn a_killed_supervisor_ends_the_program() {
    needs!("cc");
    for (link, mode) in [(Link::Shm, "check"), (Link::Shm, "rest"), (Link::Udp, "check")] {
        let lender = Lender::start(link, "512M");
        let run = holding(&[&lender], mode);
        let program = run.program_pid();
        run.signal(Signal::KILL);
        let since = Instant::now();
        let outcome = run.wait(Duration::from_secs(60));
        assert_eq!(outcome.code(), 137);
        while alive(program) {
            assert!(since.elapsed() < SOON, "the program outlives its supervisor");
            std::thread::sleep(Duration::from_millis(10));
        }
        measured("program gone after its supervisor", since.elapsed());
        assert!(!outcome.stderr.contains("pattern.h"), "a wrong byte: {}", outcome.stderr);
        measured("memory free after the supervisor", lender.wait_until_free(Duration::from_secs(30)));
    }
}

/// The process that keeps the userfaultfds of a run.
fn keeper_of(run: &Running) -> u32 {
    let is_keeper =
        |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.ends_with(b"\0keep\0"));
    let keepers: Vec<_> = children_of(run.supervisor_pid())
        .into_iter()
        .map(|(pid, _)| pid)
        .filter(|&pid| is_keeper(pid))
        .collect();
    assert_eq!(keepers.len(), 1, "{keepers:?}");
    keepers[0]
}

#[test]
fn a_run_needs_its_keeper_for_nothing_while_it_lives() {
    needs!("cc");
    let scratch = Scratch::new("keeper");
    for signal in [Signal::KILL, Signal::STOP] {
        let lender = Lender::start(Link::Shm, "512M");
        let ready = scratch.file(&format!("{signal:?}"));
        let run = Program::new(&[compiled("resting", &[]), "32".into(), ready.clone()])
            .remote("256M")
            .start_on(&[&lender], "8M");
        let since = Instant::now();
        while fs::metadata(&ready).is_err() {
            assert!(since.elapsed() < PATIENCE, "{}", run.errors());
            std::thread::sleep(Duration::from_millis(10));
        }
        let program = run.program_pid();
        send(keeper_of(&run), signal);
        send(program, Signal::USR1);
        let outcome = run.wait(Duration::from_secs(60));
        assert_eq!(
            (outcome.code(), outcome.text().as_str()),
            (0, "rested\n"),
            "{signal:?}: {}",
            outcome.stderr
        );
    }
}

/// Killed while it moves pages, mostly: all that threads do here is evict.
#[test]
fn a_killed_agent_takes_no_page_along() {
    needs!("cc");
    for (round, link) in [Link::Shm, Link::Udp].into_iter().cycle().take(8).enumerate() {
        let lender = Lender::start(link, "512M");
        let run =
            Program::new(&[compiled("threads", &[]), "64".into()]).remote("256M").start_on(&[&lender], "8M");
        let since = Instant::now();
        let agents = loop {
            let agents = agents_of(run.program_pid());
            if !agents.is_empty() {
                break agents;
            }
            assert!(since.elapsed() < PATIENCE, "no agent");
            std::thread::sleep(Duration::from_millis(1));
        };
        std::thread::sleep(Duration::from_millis(50 + 37 * round as u64));
        for agent in agents {
            send(agent, Signal::KILL);
        }
        let outcome = run.wait(Duration::from_secs(120));
        assert_eq!(outcome.code(), 0, "{link:?}, round {round}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("signal: 9"), "how did it end? {}", outcome.stderr);
    }
}

/// Killed while its drop of a page waits until the supervisor reads the kernel's event, which is gone then: the page is
/// dropped all the same.
#[test]
fn an_agent_that_is_killed_while_it_drops_a_page_takes_none_along() {
    const MADVISE: &str = "28 ";
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    for how in [&["64", "40"][..], &["64", "40", "leaderless"]] {
        let mut words = vec![compiled("readonly", &[])];
        words.extend(how.iter().map(|&word| word.to_owned()));
        let run = Program::new(&words).remote("256M").start_on(&[&lender], "8M");
        let (program, since) = (run.program_pid(), Instant::now());
        let agent = loop {
            let agents = agents_of(program);
            assert!(since.elapsed() < PATIENCE, "no agent drops a page");
            let [agent] = agents[..] else { continue };
            send(run.supervisor_pid(), Signal::STOP);
            while !tombolo_host::jobs::is_stopped(run.supervisor_pid()) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            let call = fs::read_to_string(format!("/proc/{agent}/syscall")).unwrap_or_default();
            // One that only has no processor has heard already that the event was read.
            let stat = fs::read_to_string(format!("/proc/{agent}/stat")).unwrap_or_default();
            let waits = stat.rsplit(") ").next().is_some_and(|state| state.starts_with(['S', 'D']));
            if call.starts_with(MADVISE) && waits {
                break agent;
            }
            send(run.supervisor_pid(), Signal::CONT);
            std::thread::sleep(Duration::from_millis(3));
        };
        send(agent, Signal::KILL);
        std::thread::sleep(Duration::from_millis(20));
        send(run.supervisor_pid(), Signal::CONT);
        let outcome = run.wait(Duration::from_secs(120));
        assert_eq!(outcome.code(), 0, "{how:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("signal: 9"), "how did it end? {}", outcome.stderr);
    }
}

/// The supervisor's orphans have a parent that asks for nobody's status.
#[test]
fn the_agent_of_a_killed_supervisor_ends_with_the_program() {
    needs!("cc", "python3");
    let lender = Lender::start(Link::Shm, "512M");
    let mut command = Command::new(path_of("python3"));
    command.arg(source("orphans.py")).args([TOMBOLO, "run", "--insecure", "--from", lender.address()]);
    command.args(["--local", "8M", "--remote", "64M", "--", &compiled("hold", &[]), "16", "rest"]);
    let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
}

/// Whether the process runs, other than as a zombie that nobody reaps.
fn alive(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit(')').next().unwrap_or_default();
    !state.trim_start().starts_with(['Z', 'X'])
}

#[test]
fn a_killed_program_gives_its_memory_back() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        let lender = Lender::start(link, "512M");
        let run = holding(&[&lender], "check");
        assert!(lender.lent_bytes() > 0);
        send(run.program_pid(), Signal::KILL);
        let since = Instant::now();
        assert_eq!(run.wait(Duration::from_secs(60)).code(), 137);
        measured("run ends after its program", since.elapsed());
        measured("memory free after the program", lender.wait_until_free(Duration::from_secs(30)));
    }
}

#[test]
fn a_program_larger_than_both_memories_fails_clearly() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let words = [compiled("hold", &[]), "96".into(), "rest".into()];
    let run = Program::new(&words).remote("16M").start_on(&[&lender], "8M");
    let outcome = run.wait(Duration::from_secs(60));
    assert_ne!(outcome.code(), 0);
    assert_ne!(outcome.code(), 9, "a wrong byte: {}", outcome.stderr);
    assert!(outcome.stderr.contains("tombolo: "), "no message: {}", outcome.stderr);
}

#[test]
fn nothing_is_left_behind() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let folder = std::env::temp_dir();
    let run = holding(&[&lender], "rest");
    let own = folder.join(format!("tombolo-pager-{}.0", run.supervisor_pid()));
    assert!(own.exists(), "the run's directory");
    run.signal(Signal::TERM);
    run.wait(Duration::from_secs(30));
    assert!(!own.exists(), "the run's directory stays behind");
    // One that was killed cannot tidy up; the next run does.
    let run = holding(&[&lender], "rest");
    let own = folder.join(format!("tombolo-pager-{}.0", run.supervisor_pid()));
    run.signal(Signal::KILL);
    run.wait(Duration::from_secs(30));
    assert_eq!(Program::new(&["true"]).run_on(&[&lender], "8M").code(), 0);
    assert!(!own.exists(), "the killed run's directory stays behind");
}
