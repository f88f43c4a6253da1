//! Another preloaded library in a program on far memory: both are in all that the program executes, in either order, and each sees each
//! execution once.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Lender, Link, PATIENCE, Running, Scratch, TOMBOLO, compiled, needs};

/// The second library, which Cargo has built beside this test.
fn second() -> String {
    let own = std::env::current_exe().unwrap();
    let examples = own.ancestors().nth(2).unwrap().join("examples");
    let path = examples.join("libsecond.so");
    let how = "`cargo build -p tombolo-interpose --examples` builds it";
    assert!(path.exists(), "{}: {how}", path.display());
    // A test of this crate alone does not build it.
    let changed = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tombolo-interpose");
    for source in ["src", "examples"].iter().flat_map(|folder| fs::read_dir(package.join(folder)).unwrap()) {
        let source = source.unwrap().path();
        assert!(
            changed(&source) <= changed(&path),
            "{} is older than {}: {how}",
            path.display(),
            source.display()
        );
    }
    path.display().to_string()
}

/// Runs `chained` with both libraries, in that order; what it printed, and how many executions the second has seen.
fn chained(is_second_first: bool) -> (String, usize) {
    let (scratch, lender) = (Scratch::new("two"), Lender::start(Link::Shm, "64M"));
    let (notes, program, second) = (scratch.file("notes"), compiled("chained", &[]), second());
    fs::write(&notes, "").unwrap();
    let names =
        if is_second_first { ["libsecond.so", "tombolo-pager-"] } else { ["tombolo-pager-", "libsecond.so"] };
    let mut command = Command::new(TOMBOLO);
    command.args(["run", "--quiet", "--insecure", "--from", lender.address(), "--local", "16M", "--"]);
    command.env("TOMBOLO_SECOND", &notes);
    if is_second_first {
        // As a program that has the pager's starts another with one more.
        let script = "LD_PRELOAD=\"$0:$LD_PRELOAD\" exec \"$@\"";
        command.args(["sh", "-c", script, &second]);
    } else {
        command.env("LD_PRELOAD", &second);
    }
    command.arg(&program).args(names);
    let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
    assert_eq!(outcome.code(), 0, "{}{}", outcome.text(), outcome.stderr);
    (outcome.text(), fs::read_to_string(&notes).unwrap().lines().count())
}

const WAYS: [&str; 13] = [
    "execve",
    "execv",
    "execvp",
    "execvpe",
    "execl",
    "execlp",
    "execle",
    "fexecve",
    "execveat",
    "posix_spawn",
    "posix_spawnp",
    "vfork",
    "system",
];
const ENVIRONMENTS: [&str; 5] = ["inherited", "empty", "null", "foreign", "first alone"];

#[test]
fn both_libraries_are_in_all_that_a_program_executes() {
    needs!("cc");
    for is_second_first in [false, true] {
        let (text, seen) = chained(is_second_first);
        let mut executed = 0;
        for kind in ENVIRONMENTS {
            for way in WAYS {
                // glibc gives a null environment to fexecve as an error.
                let is_error = way == "fexecve" && kind == "null";
                let is_shell = way == "system";
                if is_shell && kind != "inherited" {
                    continue;
                }
                let line = if is_error { "exit status 99" } else { "first second" };
                let line = format!("{way} {kind}: {line}");
                assert!(
                    text.lines().any(|found| found == line),
                    "no `{line}`, second first {is_second_first}:\n{text}"
                );
                executed += usize::from(!is_error);
            }
        }
        // `system` executes a shell unseen; the shell's own execution of the program is seen.
        assert_eq!(seen, executed, "second first {is_second_first}:\n{text}");
    }
}

#[test]
fn the_libraries_export_what_they_replace_and_nothing_else() {
    needs!("cc");
    let scratch = Scratch::new("exports");
    let mut command = Command::new(TOMBOLO);
    command.args(["library", scratch.path().to_str().unwrap()]);
    let written = Running::start(command, Vec::new()).wait(PATIENCE).text();
    let [of_pager, of_sockets] = written.lines().collect::<Vec<_>>()[..] else { panic!("{written}") };
    let says = |program: &str, option: &str, library: &str| {
        let mut command = Command::new(program);
        command.args([option, library]);
        let outcome = Running::start(command, Vec::new()).wait(PATIENCE);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        outcome.text()
    };
    let exported = |library: &str| {
        let symbols = says("nm", "-D", library);
        let names = symbols.lines().filter_map(|line| {
            let [_, kind, name] = line.split_whitespace().collect::<Vec<_>>()[..] else { return None };
            (kind != "U" && kind != "w").then(|| name.to_owned())
        });
        names.collect::<BTreeSet<_>>()
    };
    let executions = [
        "dlopen",
        "execl",
        "execle",
        "execlp",
        "execv",
        "execve",
        "execveat",
        "execvp",
        "execvpe",
        "fexecve",
        "posix_spawn",
        "posix_spawnp",
        "pidfd_spawn",
        "pidfd_spawnp",
    ];
    let memory = [
        "aligned_alloc",
        "calloc",
        "free",
        "malloc",
        "malloc_usable_size",
        "memalign",
        "posix_memalign",
        "pvalloc",
        "realloc",
        "reallocarray",
        "valloc",
        "mmap",
        "mmap64",
        "munmap",
        "mremap",
        "madvise",
        "process_madvise",
        "prctl",
        "ioctl",
        "pthread_create",
        "pthread_mutex_init",
    ];
    let sockets = [
        "accept",
        "accept4",
        "close",
        "connect",
        "dup",
        "dup2",
        "dup3",
        "epoll_ctl",
        "fcntl",
        "fcntl64",
        "getpeername",
        "getsockname",
        "getsockopt",
        "listen",
        "sendmsg",
        "setsockopt",
        "socket",
    ];
    let all = |names: &[&str]| {
        names.iter().chain(&executions).map(|name| (*name).to_owned()).collect::<BTreeSet<_>>()
    };
    assert_eq!(exported(of_pager), all(&memory));
    assert_eq!(exported(of_sockets), all(&sockets));
    // One library of a program alone can be the first to be initialised.
    assert!(says("readelf", "-d", of_pager).contains("INITFIRST"));
    assert!(!says("readelf", "-d", of_sockets).contains("INITFIRST"));
}
