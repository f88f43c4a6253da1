//! What stays within its bounds: resident memory, and the CPU of an idle node.

use std::fs;
use std::io::Write;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Lender, Link, Outcome, PATIENCE, Program, compiled, needs, send};

/// Clock ticks of CPU time that a process has used.
fn ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<_> = stat.rsplit(')').next().expect("a name").split_whitespace().collect();
    // utime and stime, the 14th and 15th of the line.
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn assert_idle(pid: u32, what: &str) {
    const SECONDS: u64 = 6;
    // What led here has its aftermath.
    std::thread::sleep(Duration::from_secs(1));
    let window = || {
        let before = ticks(pid);
        std::thread::sleep(Duration::from_secs(SECONDS));
        let used = ticks(pid) - before;
        used as f64 / (SECONDS * rustix::param::clock_ticks_per_second()) as f64 * 100.0
    };
    // On a machine that is busy with others the aftermath lasts into the first window. What is not idle is busy in
    // all three.
    let mut percent = window();
    for _ in 0..2 {
        if percent >= 1.0 {
            percent = window();
        }
    }
    let _ = writeln!(std::io::stderr(), "    {what}: {percent:.2} % CPU idle");
    // In ticks of 10 ms: 1 % is six of them.
    assert!(percent < 1.0, "{what} uses {percent} % CPU");
}

#[test]
fn an_idle_node_uses_no_processor_time() {
    for link in [Link::Shm, Link::Udp] {
        let mut lender = Lender::start(link, "64M");
        let pid = lender.node().pid();
        assert_idle(pid, &format!("{link:?} node without borrowers"));
    }
}

#[test]
fn a_node_and_a_supervisor_of_a_resting_program_are_idle() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        let mut lender = Lender::start(link, "512M");
        let words = [compiled("hold", &[]), "64".into(), "rest".into()];
        let run = Program::new(&words).remote("256M").start_on(&[&lender], "8M");
        run.output_with("holding", PATIENCE);
        assert_idle(lender.node().pid(), &format!("{link:?} node with a resting borrower"));
        assert_idle(run.supervisor_pid(), &format!("{link:?} supervisor of a resting program"));
        assert_idle(run.pid(), &format!("{link:?} front of a resting program"));
    }
}

/// Resident bytes of the mappings that are registered with userfaultfd, as the kernel counts them, and whether
/// `address` is in one of them.
fn resident_bytes(pid: u32, address: u64) -> (u64, bool) {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("it runs");
    let (mut total, mut found) = (0, false);
    let (mut here, mut resident) = (false, 0);
    for line in text.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            here = (start..end).contains(&address);
        } else if let Some(rest) = line.strip_prefix("Rss:") {
            resident = rest.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024;
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|flag| flag == "um")
        {
            total += resident;
            found |= here;
        }
    }
    (total, found)
}

#[test]
fn the_kernel_agrees_that_resident_memory_is_within_the_limit() {
    needs!("cc");
    for link in [Link::Shm, Link::Udp] {
        let lender = Lender::start(link, "512M");
        let words = [compiled("hold", &[]), "64".into()];
        let run = Program::new(&words).remote("256M").start_on(&[&lender], "16M");
        let line = run.output_with("holding 0x", PATIENCE);
        let address = line.trim().rsplit("0x").next().unwrap();
        let address = u64::from_str_radix(address, 16).unwrap();
        let mut most = 0;
        let program = run.program_pid();
        for _ in 0..100 {
            // A page that leaves behind the reading of a mapping and one that comes before it are both counted: what
            // is read must not move.
            send(program, Signal::STOP);
            let (resident, found) = resident_bytes(program, address);
            send(program, Signal::CONT);
            assert!(found, "{address:x} is not far");
            most = most.max(resident);
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = writeln!(std::io::stderr(), "    {link:?}: {} KiB of 16384 resident at most", most / 1024);
        // The control area counts, too.
        assert!(most <= (16 << 20) + (512 << 10), "{most} bytes are resident");
        assert!(most >= 8 << 20, "only {most} bytes are resident: the limit is not used");
    }
}

/// What `run` says to its user is said once, with how much it is, and stands in the report.
#[test]
fn what_is_not_served_or_gets_full_is_said_once() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "1G");
    let said = |outcome: &Outcome, text: &str| {
        let lines: Vec<_> = outcome.stderr.lines().filter(|line| line.contains(text)).collect();
        assert_eq!(lines.len(), 1, "{text}: {}", outcome.stderr);
        assert!(lines[0].contains("MiB"), "how much? {}", lines[0]);
    };
    // Mapped behind libc, as Go does: 96 MiB, where at most 64 go without saying.
    let behind = Program::new(&[compiled("behind", &[]), "96".into()]).remote("64M");
    let behind = behind.run_on(&[&lender], "8M");
    assert_eq!((behind.code(), behind.text().as_str()), (0, "all of it was there\n"), "{}", behind.stderr);
    said(&behind, "behind libc");
    let peak = behind.report()["mapped_behind_libc_peak_bytes"].as_u64();
    assert!(peak.is_some_and(|bytes| (90 << 20..200 << 20).contains(&bytes)), "{:#}", behind.report());
    let shared = Program::new(&[compiled("behind", &[]), "96".into(), "shared".into()]).remote("64M");
    let shared = shared.run_on(&[&lender], "8M");
    assert_eq!(shared.code(), 0, "{}", shared.stderr);
    said(&shared, "of shared memory");
    for kind in ["shared_memory_peak_bytes", "locked_peak_bytes"] {
        let peak = shared.report()[kind].as_u64();
        assert!(peak.is_some_and(|bytes| (96 << 20..200 << 20).contains(&bytes)), "{:#}", shared.report());
    }
    // Three quarters of what was borrowed.
    let full = Program::new(&[compiled("threads", &[]), "60".into()]).remote("64M").run_on(&[&lender], "8M");
    assert_eq!(full.code(), 0, "{}", full.stderr);
    said(&full, "three quarters of the 64 MiB");
    // Without --remote it may use what there is, and borrows what it needs.
    let lender = Lender::start(Link::Shm, "100M");
    let full = Program::new(&[compiled("threads", &[]), "90".into()]).run_on(&[&lender], "8M");
    assert_eq!(full.code(), 0, "{}", full.stderr);
    said(&full, "three quarters of the 100 MiB");
}
