//! Programs that are looked at and held up from outside: debuggers, tracers, stops, dumps.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{
    Lender, Link, Outcome, PATIENCE, Program, Running, Scratch, compiled, needs, once_more_if_exceeded,
    path_of, send,
};

const MEBIBYTES: u64 = 24;

/// The program `traced` on far memory, most of it far.
struct Traced {
    _lender: Lender,
    run: Running,
    pid: u32,
}

impl Traced {
    fn start(more: &[&str]) -> Self {
        let lender = Lender::start(Link::Shm, "512M");
        let mut words = vec![compiled("traced", &["-g"]), MEBIBYTES.to_string()];
        words.extend(more.iter().map(|&word| word.to_owned()));
        let run = Program::new(&words).remote("256M").start_on(&[&lender], "6M");
        run.output_with("holding", PATIENCE);
        let pid = run.program_pid();
        Self { _lender: lender, run, pid }
    }

    /// Lets it go on to its end.
    fn finish(self) -> Outcome {
        send(self.pid, Signal::USR1);
        self.run.wait(Duration::from_secs(120))
    }

    fn finish_right(self) -> Outcome {
        let outcome = self.finish();
        assert_eq!((outcome.code(), outcome.text().as_str()), (0, "holding\nright\n"), "{}", outcome.stderr);
        assert!(
            outcome.counter("pages_in") > 0 && outcome.counter("pages_out") > 0,
            "{:#}",
            outcome.report()
        );
        outcome
    }
}

fn tool(name: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(path_of(name));
    command.args(arguments);
    let outcome = Running::start(command, Vec::new()).wait(Duration::from_secs(120));
    assert_eq!(outcome.code(), 0, "{name}: {}{}", outcome.text(), outcome.stderr);
    outcome
}

fn mix(mut value: u64) -> u64 {
    value ^= value >> 33;
    value = value.wrapping_mul(0xff51_afd7_ed55_8ccd);
    value ^= value >> 33;
    value = value.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    value ^ value >> 33
}

/// The first word of a page in round 1, as `pattern.h` fills it.
fn first_word(page: u64) -> u64 {
    mix(page << 20 ^ 1 << 10) | 1
}

#[test]
fn a_debugger_reads_what_is_far_and_lets_go() {
    needs!("cc", "gdb");
    once_more_if_exceeded(debug_and_let_go).assert_within_limit(100);
}

fn debug_and_let_go() -> Outcome {
    let traced = Traced::start(&[]);
    let pid = traced.pid.to_string();
    let mut arguments = vec!["-batch", "-nx", "-p", &pid, "-ex", "break turn", "-ex", "continue"];
    // Spread over the memory, four times what is local. The kernel lets no debugger wait for a page (ptrace and
    // /proc/PID/mem give an error where it is far), so the program itself is told to fetch it first.
    let pages: Vec<_> = (0..MEBIBYTES << 8).step_by(511).collect();
    let reads: Vec<_> = pages
        .iter()
        .flat_map(|page| {
            [
                format!("call (int)madvise(memory + 4096ul * {page}, 4096ul, 22)"),
                format!("printf \"page %lx\\n\", *(unsigned long *)(memory + 4096ul * {page})"),
            ]
        })
        .collect();
    arguments.extend(reads.iter().flat_map(|read| ["-ex", read.as_str()]));
    arguments.extend(["-ex", "delete", "-ex", "detach"]);
    let gdb = tool("gdb", &arguments);
    let text = gdb.text();
    assert!(text.contains("Breakpoint 1, turn ("), "{text}");
    let found: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("page ")).collect();
    let expected: Vec<_> = pages.iter().map(|&page| format!("{:x}", first_word(page))).collect();
    assert_eq!(found, expected, "{text}{}", gdb.stderr);
    traced.finish_right()
}

#[test]
fn a_program_that_aborts_dumps_and_ends() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "512M");
    let scratch = Scratch::new("abort");
    let traced = compiled("traced", &["-g"]);
    // What is far is missing in the kernel's own dump, as the guide says; the program ends as it would.
    let script = format!("cd {} && ulimit -c unlimited; exec {traced} 16 abort", scratch.path().display());
    let run = Program::new(&["sh", "-c", &script]).remote("256M").start_on(&[&lender], "6M");
    run.output_with("holding", PATIENCE);
    send(run.program_pid(), Signal::USR1);
    let outcome = run.wait(Duration::from_secs(120));
    assert_eq!(outcome.code(), 128 + 6, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("pattern.h"), "{}", outcome.stderr);
}

#[test]
fn strace_attaches_to_a_program_that_pages() {
    needs!("cc", "strace");
    let traced = Traced::start(&[]);
    let scratch = Scratch::new("strace");
    let log = scratch.file("log");
    let mut command = Command::new(path_of("strace"));
    command.args(["-f", "-p", &traced.pid.to_string(), "-o", &log]);
    let strace = Running::start(command, Vec::new());
    strace.errors_with("attached", Duration::from_secs(30));
    let outcome = traced.finish();
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "holding\nright\n"), "{}", outcome.stderr);
    assert_eq!(strace.wait(Duration::from_secs(30)).code(), 0);
    let log = fs::read_to_string(log).expect("a log");
    assert!(log.contains("SIGUSR1") && log.contains("exited with 0"), "{log:.2000}");
}

#[test]
fn strace_and_what_it_starts_run_on_far_memory() {
    needs!("cc", "strace");
    let lender = Lender::start(Link::Shm, "1G");
    let scratch = Scratch::new("strace");
    let log = scratch.file("log");
    let (strace, threads) = (path_of("strace"), compiled("threads", &[]));
    // Three processes, each with an agent: strace waits for every child that it has, and follows every child that
    // the others make.
    let script = format!("{threads} 16; {threads} 16");
    let words = [&*strace, "-f", "-o", &log, "sh", "-c", &script];
    let outcome =
        Program::new(&words).remote("512M").patience(Duration::from_secs(120)).run_on(&[&lender], "8M");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert_eq!(outcome.text(), "4096 pages right\n".repeat(2));
    assert!(outcome.counter("pages_in") > 0 && outcome.counter("pages_out") > 0, "{:#}", outcome.report());
    let log = fs::read_to_string(log).expect("a log");
    // No agent is traced: it would answer late, and a tracer could hold it up.
    assert!(log.contains("exited with 0") && !log.contains("tombolo-agent"), "{log:.2000}");
}

#[test]
fn one_program_of_a_run_is_stopped_and_another_goes_on() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let (traced, threads) = (compiled("traced", &["-g"]), compiled("threads", &[]));
    let scratch = Scratch::new("stopped");
    let said = scratch.file("said");
    // The other one runs from its start to its end while the first one is stopped, three seconds at least. The
    // first one is stopped when it has said that it has its memory and knows SIGUSR1, which would end it before.
    let script = format!(
        "rm -f {said}; mkfifo {said}; {traced} 12 >{said} & held=$!; exec 3<{said}; read line <&3; kill -STOP $held
         sleep 3 & nap=$!; test \"$line\" = holding && {threads} 24 && wait $nap && kill -CONT $held &&
         kill -USR1 $held && wait $held && cat <&3"
    );
    let program = Program::new(&["sh", "-c", &script]).remote("512M");
    let outcome = once_more_if_exceeded(|| {
        let outcome = program.run_on(&[&lender], "8M");
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        assert_eq!(outcome.text(), "6144 pages right\nright\n");
        outcome
    });
    assert!(outcome.counter("pages_in") > 0 && outcome.counter("pages_out") > 0, "{:#}", outcome.report());
    outcome.assert_within_limit(100);
}
