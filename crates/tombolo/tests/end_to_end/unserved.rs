//! Programs whose memory is not served: they run as without Tombolo, and it is said; and programs in places and as users where one could think so.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tombolo_host::testing::left_out;

use crate::common::{Lender, Link, Outcome, Program, Running, Scratch, TOMBOLO, compiled, needs, path_of};

/// The status with which `filling` ends.
const FILLED: i32 = 3;

/// `filling` as a program of a kind, if its compiler is here; says so if not.
fn filling(scratch: &Scratch, name: &str, compiler: &[&str]) -> String {
    let target = scratch.file(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/filling.c");
    let mut command = Command::new(compiler[0]);
    let output = command.args(&compiler[1..]).args(["-O1", "-o", &target, source]).output().unwrap();
    assert!(output.status.success(), "{compiler:?}: {}", String::from_utf8_lossy(&output.stderr));
    target
}

/// A program, by itself and as a shell's child: the first is refused for this reason; the other one runs, and the reason is said and counted.
fn is_refused_and_runs_as_a_child(words: &[&str], name: &str, reason: &str) {
    let lender = Lender::start(Link::Shm, "128M");
    let plain = Program::new(words).plain();
    assert_eq!(plain.code(), FILLED, "{words:?}: {}", plain.stderr);
    let refused = Program::new(words).run_on(&[&lender], "16M");
    assert_eq!(refused.code(), 126, "{}", refused.stderr);
    assert!(refused.stderr.contains(reason) && refused.stderr.lines().count() == 1, "{}", refused.stderr);
    let line = format!("{}; exit $?", words.join(" "));
    let child = Program::new(&["sh", "-c", &line]).run_on(&[&lender], "16M");
    assert_eq!((child.code(), child.text()), (FILLED, plain.text()), "{}", child.stderr);
    let said = child.stderr.lines().filter(|line| line.contains("runs without far memory"));
    assert_eq!(said.filter(|line| line.contains(reason)).count(), 1, "{}", child.stderr);
    assert_eq!(child.stderr.lines().count(), 1, "{}", child.stderr);
    assert_eq!(child.report()["unserved"]["executed"][name]["count"], 1, "{:#}", child.report());
}

#[test]
fn programs_of_musl_run_without_the_library() {
    needs!("musl-gcc");
    let scratch = Scratch::new("musl");
    is_refused_and_runs_as_a_child(&[&filling(&scratch, "filling", &["musl-gcc"]), "8"], "musl", "musl");
}

#[test]
fn programs_of_sanitizers_run_without_the_library() {
    needs!("cc");
    let scratch = Scratch::new("sanitizers");
    for (name, flags) in [
        ("address", &["-fsanitize=address"][..]),
        ("thread", &["-fsanitize=thread"]),
        // Clang's are, and export their runtime's symbols.
        ("static", &["-fsanitize=address", "-static-libasan", "-rdynamic"]),
    ] {
        let program = filling(&scratch, name, &[&["cc"], flags].concat());
        is_refused_and_runs_as_a_child(&[&program, "8"], "sanitizer", "sanitizer");
    }
}

#[test]
fn what_valgrind_runs_runs_without_the_library() {
    needs!("cc", "valgrind");
    let program = compiled("filling", &[]);
    is_refused_and_runs_as_a_child(&["valgrind", "-q", &program, "1"], "valgrind", "valgrind");
}

#[test]
fn static_programs_run() {
    needs!("cc");
    let program = compiled("filling", &["-static"]);
    is_refused_and_runs_as_a_child(&[&program, "8"], "static", "statically linked");
    let program = compiled("filling", &["-static-pie"]);
    is_refused_and_runs_as_a_child(&[&program, "8"], "static", "statically linked");
}

/// A script in a static interpreter is as static as that.
#[test]
fn what_a_script_is_run_by_counts() {
    needs!("cc");
    let scratch = Scratch::new("script");
    let interpreter = compiled("filling", &["-static"]);
    let script = scratch.file("script");
    // It takes the script's name for a number.
    fs::write(&script, format!("#!{interpreter}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    is_refused_and_runs_as_a_child(&[&script], "static", "statically linked");
}

/// The dynamic linker is no static program.
#[test]
fn a_program_that_the_dynamic_linker_is_told_to_run_is_served() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "128M");
    let program = compiled("filling", &[]);
    let outcome = Program::new(&["/lib64/ld-linux-x86-64.so.2", &program, "40"]).run_on(&[&lender], "16M");
    is_far(&outcome);
}

fn is_far(outcome: &Outcome) {
    assert_eq!(outcome.code(), FILLED, "{}", outcome.stderr);
    assert!(outcome.report()["bytes_out"].as_u64() > Some(0), "{:#}\n{}", outcome.report(), outcome.stderr);
}

/// Every function that executes a program looks at it first.
#[test]
fn each_way_to_execute_a_program_looks_at_it() {
    needs!("cc");
    let scratch = Scratch::new("executing");
    let executing = compiled("executing", &[]);
    let path = format!("{}:{}", scratch.path().display(), std::env::var("PATH").unwrap());
    let lender = Lender::start(Link::Shm, "128M");
    for (name, flags, reason) in
        [("served", &[][..], ""), ("sanitized", &["-fsanitize=address"], "sanitizer")]
    {
        let program = filling(&scratch, name, &[&["cc"], flags].concat());
        let outcome =
            Program::new(&[&executing, &program, name]).variable("PATH", &path).run_on(&[&lender], "16M");
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        let lines: Vec<String> = outcome.text().lines().map(str::to_owned).collect();
        let ran = lines.iter().filter(|line| line.ends_with(" 3")).count();
        assert_eq!((ran, lines.len()), (14, 14), "{name}: {lines:?}\n{}", outcome.stderr);
        let unserved = &outcome.report()["unserved"]["executed"];
        if reason.is_empty() {
            assert_eq!(unserved.as_object().map(serde_json::Map::len), Some(0), "{unserved:#}");
        } else {
            assert_eq!(unserved[reason]["count"], 14, "{unserved:#}");
        }
    }
}

/// For other users, too.
fn for_all(program: &str, scratch: &Scratch) -> String {
    let target = scratch.file("program");
    fs::copy(program, &target).unwrap();
    for (path, mode) in [(scratch.path(), 0o755), (Path::new(&target), 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    target
}

/// A program that root starts as another user: that one may make no userfaultfd, nor find the supervisor's files by itself.
#[test]
fn a_program_that_has_taken_another_user_is_served() {
    needs!("cc", "setpriv");
    if !rustix::process::geteuid().is_root() {
        return left_out("needs root, to take another user");
    }
    let scratch = Scratch::new("user");
    let program = for_all(&compiled("filling", &[]), &scratch);
    let lender = Lender::start(Link::Shm, "128M");
    let setpriv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];
    let words = [&setpriv[..], &[&program, "40"]].concat();
    let outcome = Program::new(&words).run_on(&[&lender], "16M");
    is_far(&outcome);
    assert_eq!(outcome.stderr, "");
    // Also where temporary files are root's alone, as in a login with a directory of its own for them.
    let closed = scratch.file("closed");
    fs::create_dir_all(format!("{closed}/inner")).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let place = format!("{closed}/inner");
    is_far(&Program::new(&words).variable("TMPDIR", &place).run_on(&[&lender], "16M"));
    // The same of a child that changes by itself, and of its own.
    let line = format!("{} {program} 40; exit $?", setpriv.join(" "));
    is_far(&Program::new(&["sh", "-c", &line]).run_on(&[&lender], "16M"));
}

/// Who is not of the run's gets nothing from its supervisor.
#[test]
fn other_users_are_not_heard() {
    needs!("cc", "setpriv", "python3");
    if !rustix::process::geteuid().is_root() {
        return left_out("needs root, to be another user");
    }
    let lender = Lender::start(Link::Shm, "64M");
    let run = Program::new(&["sh", "-c", "echo $TOMBOLO_PAGER; exec sleep 60"]).start_on(&[&lender], "16M");
    let said = run.output_with("tombolo-pager", Duration::from_secs(60));
    let setting: Vec<&str> = said.trim().splitn(4, ':').collect();
    let (path, abstract_name) = (setting[3], format!("@tombolo-pager-{}", setting[2]));
    let speak = "import socket, sys\n\
                 s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                 s.connect(sys.argv[1].replace('@', chr(0)))\n\
                 try: print(s.recv(100))\n\
                 except ConnectionResetError: print(b'')";
    for socket in [path, &abstract_name] {
        let mut command = Command::new("setpriv");
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        command.args(user).args([&path_of("python3"), "-c", speak, socket]);
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "b''\n", "{socket}: {errors}");
    }
    run.signal(rustix::process::Signal::TERM);
    run.wait(Duration::from_secs(60));
}

/// Memory is read by an agent's number: were it to execute a set-user-id program, that program's secrets would leave.
#[test]
fn an_agent_that_may_gain_privileges_is_not_heard() {
    needs!("python3");
    let lender = Lender::start(Link::Shm, "64M");
    let speak = "import ctypes, os, socket, struct\n\
                 version, _, _, path = os.environ['TOMBOLO_PAGER'].split(':', 3)\n\
                 def answer():\n    \
                     s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n    \
                     s.connect(path)\n    \
                     s.send(struct.pack('=IIQQQQ', int(version), 0, 4096, 4096, 0, os.getpid()))\n    \
                     print(len(s.recv(100)), flush=True)\n\
                 answer()\n\
                 ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)\n\
                 answer()";
    let outcome = Program::new(&["python3", "-c", speak]).run_on(&[&lender], "16M");
    assert_eq!((outcome.code(), outcome.text().as_str()), (0, "8\n8\n"), "{}", outcome.stderr);
    let said = |text: &str| outcome.stderr.matches(text).count();
    assert_eq!(said("may gain privileges"), 1, "{}", outcome.stderr);
    assert_eq!(said("its hello brought no gate"), 1, "{}", outcome.stderr);
}

/// The dynamic linker takes paths apart at spaces and colons, and nothing can be loaded from some file systems.
#[test]
fn a_directory_for_temporary_files_that_takes_no_library_is_not_used() {
    needs!("cc");
    let scratch = Scratch::new("places");
    let program = compiled("filling", &[]);
    let lender = Lender::start(Link::Shm, "128M");
    let run_with =
        |place: &str| Program::new(&[&program, "40"]).variable("TMPDIR", place).run_on(&[&lender], "16M");
    for name in ["with space", "with:colon"] {
        let place = scratch.file(name);
        fs::create_dir(&place).unwrap();
        is_far(&run_with(&place));
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    }
    is_far(&run_with("nowhere/at/all"));
    if !rustix::process::geteuid().is_root() {
        return left_out("needs root, to mount a file system");
    }
    let place = scratch.file("noexec");
    fs::create_dir(&place).unwrap();
    let system =
        |words: &[&str]| assert!(Command::new(words[0]).args(&words[1..]).status().unwrap().success());
    system(&["mount", "-t", "tmpfs", "-o", "noexec,size=1m", "tmpfs", &place]);
    let outcome = run_with(&place);
    system(&["umount", &place]);
    is_far(&outcome);
}

/// Another root directory, where the library is not.
#[test]
fn a_program_in_another_root_runs_and_it_is_said() {
    needs!("cc", "chroot");
    if !rustix::process::geteuid().is_root() {
        return left_out("needs root, to change the root directory");
    }
    let scratch = Scratch::new("root");
    let program = compiled("filling", &[]);
    let listed = Command::new("ldd").arg(&program).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    for path in listed.split_whitespace().filter(|word| word.starts_with('/')).chain([program.as_str()]) {
        let target = scratch.file(path.trim_start_matches('/'));
        fs::create_dir_all(Path::new(&target).parent().unwrap()).unwrap();
        fs::copy(path, target).unwrap();
    }
    let lender = Lender::start(Link::Shm, "64M");
    let root = scratch.path().display().to_string();
    let outcome = Program::new(&["chroot", &root, &program, "8"]).run_on(&[&lender], "16M");
    assert_eq!(outcome.code(), FILLED, "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("another root directory"), "{}", outcome.stderr);
    assert_eq!(outcome.report()["unserved"]["executed"]["unreachable"]["count"], 1, "{:#}", outcome.report());
}

/// A static program starts another one: no library of ours sees that.
#[test]
fn what_the_library_does_not_see_is_found() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "64M");
    let starting = compiled("starting", &["-static"]);
    // It is looked for once a second, and counts when it is seen twice.
    let line = format!("{starting} {} 3.5; exit $?", path_of("sleep"));
    let outcome = Program::new(&["sh", "-c", &line]).run_on(&[&lender], "16M");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    let unserved = &outcome.report()["unserved"];
    assert_eq!(unserved["processes_peak"], 1, "{unserved:#}");
    assert!(unserved["bytes_peak"].as_u64() > Some(0), "{unserved:#}");
}

/// What happened is said at the end, in one line.
#[test]
fn a_run_says_at_its_end_what_happened() {
    needs!("cc");
    let lender = Lender::start(Link::Shm, "128M");
    let run = |words: &[&str]| {
        let mut command = Command::new(TOMBOLO);
        command.args(["run", "--insecure", "--from", lender.address(), "--local", "16M", "--"]).args(words);
        Running::start(command, Vec::new()).wait(Duration::from_secs(60))
    };
    let nothing = run(&["sh", "-c", "exit 4"]);
    assert_eq!((nothing.code(), &*nothing.stderr), (4, "tombolo: sh: no page had to leave local memory\n"));
    let program = compiled("filling", &[]);
    let some = run(&[&program, "40"]);
    assert_eq!((some.code(), some.stderr.lines().count()), (FILLED, 1), "{}", some.stderr);
    assert!(
        some.stderr.contains(" MiB out and ") && some.stderr.contains("longest pause"),
        "{}",
        some.stderr
    );
    let fixed = compiled("filling", &["-static"]);
    let other = run(&["sh", "-c", &format!("{fixed} 1; {fixed} 1; exit 5")]);
    assert_eq!((other.code(), other.stderr.lines().count()), (5, 2), "{}", other.stderr);
    assert!(other.stderr.ends_with("; executed and not served: 2 static\n"), "{}", other.stderr);
}
