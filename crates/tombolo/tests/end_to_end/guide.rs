//! README and the guide: each command in their blocks works when it is pasted, and prints what they say.
//!
//! A page is run from top to bottom by one shell, in namespaces of its own, so that it may use any address and path:
//!
//! - ` ```sh `: commands. A line that ends in `&` goes on in the background; the next one waits until it has begun.
//! - ` ```sh user `: the same as an ordinary user, who may serve page faults, as the page says how.
//! - ` ```output `: what the block before prints, in order, whatever the numbers are. `…` stands for anything.
//! - ` ```console `: commands of several machines, `NAME$ command`, with their output. They have 192.0.2.1, 192.0.2.2, …
//!   in the order of their names' appearance, and an unused interface `eth0`. A word that ends in `…`, as a key does,
//!   stands for what was really printed there.
//!
//! Everything else is prose, or files and commands that need what no test has.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use tombolo_host::testing::left_out;

use crate::common::{Scratch, needs, product, send};

/// For a step of a page; README's demo is the longest.
const STEP_PATIENCE: Duration = Duration::from_secs(400);

/// A block of commands, of one kind.
#[derive(Debug, PartialEq)]
struct Block {
    kind: Kind,
    text: Vec<String>,
    /// Where it begins.
    line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Shell,
    User,
    Output,
    Console,
}

/// The blocks of a page that are run.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let is_indented = line.trim_start().starts_with("```") && !line.starts_with('`');
        assert!(!is_indented, "line {}: an indented block is not run", number + 1);
        let Some(info) = line.strip_prefix("```") else { continue };
        let text: Vec<String> =
            lines.by_ref().map(|(_, line)| line.to_owned()).take_while(|line| line != "```").collect();
        let kind = match info {
            "sh" => Kind::Shell,
            "sh user" => Kind::User,
            "output" => Kind::Output,
            "console" => Kind::Console,
            "text" | "rust" | "toml" | "c" => continue,
            other => panic!("line {}: a block of an unknown kind, `{other}`", number + 1),
        };
        blocks.push(Block { kind, text, line: number + 1 });
    }
    blocks
}

/// Commands of a block, each with the lines that continue it.
fn commands(text: &[String]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in text {
        match commands.last_mut() {
            Some(command) if goes_on => *command = format!("{command}\n{line}"),
            _ => commands.push(line.clone()),
        }
        goes_on = line.ends_with('\\');
    }
    commands.retain(|command| !command.trim().is_empty() && !command.trim_start().starts_with('#'));
    commands
}

/// A line without what differs from run to run: numbers and the spaces that align them.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    for word in line.split_whitespace() {
        if !shape.is_empty() {
            shape.push(' ');
        }
        let mut rest = word.chars().peekable();
        while let Some(next) = rest.next() {
            if !next.is_ascii_digit() {
                shape.push(next);
                continue;
            }
            shape.push('#');
            while rest.next_if(|next| next.is_ascii_digit() || *next == '.' || *next == ',').is_some() {}
        }
    }
    shape
}

/// Whether an expected line, in which `…` stands for anything, is this one.
fn fits(expected: &str, found: &str) -> bool {
    let (expected, found) = (shape(expected), shape(found));
    let mut parts = expected.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = found.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The first expected line that does not follow those before it.
fn missing<'a>(expected: &'a [String], found: &str) -> Option<&'a str> {
    let mut found = found.lines();
    expected
        .iter()
        .filter(|line| !line.trim().is_empty() && line.trim() != "…")
        .find(|line| !found.any(|found| fits(line, found)))
        .map(String::as_str)
}

/// A shell in namespaces of its own, that runs one command after the other.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    steps: usize,
    /// The machines of `console` blocks, in order.
    machines: Vec<String>,
    _scratch: Scratch,
}

/// Sets the machine up in which a page is run. `$1`: what becomes /tmp.
const SETUP: &str = r#"
set -eu
mount --make-rprivate /
mkdir -p "$1/lock"
mount --bind /run/lock "$1/lock"
mount --rbind "$1" /tmp
mount -o remount,bind,dev,suid /tmp
mount -t tmpfs none /run
mkdir -p /run/netns /run/lock /tmp/home /tmp/user
# The machine's: runs of zram take turns by a file there.
mount --bind /tmp/lock /run/lock
chmod 1777 /tmp
chown 65534:65534 /tmp/user
ip link set lo up
# A device of its own: a page may change who opens it.
number() { printf '%d' "0x$(stat -c "$1" /dev/userfaultfd)"; }
mknod -m 600 /tmp/userfaultfd c "$(number %t)" "$(number %T)"
mount --bind /tmp/userfaultfd /dev/userfaultfd
export HOME=/tmp/home PATH="/tmp/bin:$PATH" LC_ALL=C.UTF-8 COLUMNS=80
set -o pipefail
unset TOMBOLO_RUNTIME_DIR XDG_RUNTIME_DIR TOMBOLO_KEY TOMBOLO_ALLOW
cd /tmp/home
sudo() { "$@"; }
# What would be built here has been: the product is in the path, and so are the examples.
cargo() {
    case "$*" in
        "run --release -- "*) shift 3; tombolo "$@" ;;
        "run -p tombolo-client --example "*) local name="$5"; shift 6; "/tmp/bin/examples/$name" "$@" ;;
        "install --locked --path crates/tombolo") test -x /tmp/bin/tombolo ;;
        *) echo "this test does not know: cargo $*" >&2; return 1 ;;
    esac
}
# The beginning of what goes on in the background: until it says something, or for so many looks. It must not have failed.
begun() {
    for _ in $(seq "$3"); do
        sleep 0.05
        if [ -s "$1" ]; then sleep 0.2; break; fi
    done
    kill -0 "$2" 2>/dev/null || wait "$2"
}
machine() (
    set -e
    ip netns add "$1"
    ip link add "link-$2" type veth peer name net0 netns "$1"
    ip link set "link-$2" master bridge up
    ip -n "$1" link set lo up
    ip -n "$1" link set net0 up
    ip -n "$1" address add "192.0.2.$2/24" dev net0
    ip link add "spare-$2" type veth peer name eth0 netns "$1"
    ip link set "spare-$2" up
    ip -n "$1" link set eth0 up
    mkdir -p "/tmp/$1/run"
    chmod 700 "/tmp/$1/run"
)
"#;

impl Shell {
    /// `None`: it is said what this machine lacks.
    fn start(product: &str) -> Option<Self> {
        let scratch = Scratch::new("guide");
        let own = scratch.path().join("tmp");
        fs::create_dir_all(own.join("bin/examples")).expect("a directory");
        fs::copy(product, own.join("bin/tombolo")).expect("the product");
        for entry in fs::read_dir(examples()).into_iter().flatten().flatten() {
            // Those whose names end in a hash are the same once more.
            if entry.path().is_file()
                && entry.path().extension().is_none()
                && !entry.file_name().to_string_lossy().contains('-')
            {
                fs::copy(entry.path(), own.join("bin/examples").join(entry.file_name())).expect("an example");
            }
        }
        let namespaces = ["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let probe = Command::new("unshare").args(namespaces).arg("true").output().expect("unshare is there");
        if !probe.status.success() {
            left_out(&format!("namespaces to run a page in: {}", String::from_utf8_lossy(&probe.stderr)));
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(namespaces).args(["bash", "-s"]).arg(&own).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("unshare is there");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let mut shell = Self { child, input, output, steps: 0, machines: Vec::new(), _scratch: scratch };
        shell.run(SETUP).unwrap_or_else(|said| panic!("a page has no machine to run in: {said}"));
        shell.run("set +eu").expect("it goes on after a failure");
        Some(shell)
    }

    /// Where the present step writes: what is not hidden by the directories that a page has of its own.
    fn output_file(&self) -> String {
        format!("/dev/shm/guide-{}-{}", self.child.id(), self.steps)
    }

    /// Runs a command; what it has printed. The error: what a command that failed has printed.
    fn run(&mut self, command: &str) -> Result<String, String> {
        self.steps += 1;
        let file = self.output_file();
        let waits = match command.trim_end().ends_with('&') {
            // What it says may go elsewhere.
            true => {
                format!("begun {file} $! {}; status=$?", if command.contains('>') { 60 } else { 1200 })
            }
            false => String::new(),
        };
        let end = "the end of a step, with status";
        write!(
            self.input,
            "{{ {command}\n}} > {file} 2>&1 < /dev/null\nstatus=$?\n{waits}\ncat {file}\nrm {file}\n\
             echo; echo \"{end} $status\"\n"
        )
        .expect("the shell is there");
        let mut said = String::new();
        let (finished, watched) = mpsc::channel::<()>();
        let shell = self.child.id();
        // Not for longer: the runner's own bound would say neither the step nor what it has printed.
        thread::spawn(move || {
            if watched.recv_timeout(STEP_PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
                send(shell, Signal::KILL);
            }
        });
        loop {
            let mut line = String::new();
            if self.output.read_line(&mut line).expect("its output") == 0 {
                let so_far = fs::read_to_string(&file).unwrap_or_default();
                return Err(format!(
                    "{said}{so_far}\nthe shell has ended, or was ended after {STEP_PATIENCE:?}"
                ));
            }
            match line.trim_end().strip_prefix(end) {
                Some(" 0") => break drop(finished),
                Some(status) => return Err(format!("{said}status{status}")),
                None => said.push_str(&line),
            }
        }
        Ok(said)
    }

    /// Runs a command at a machine, which there is from then on.
    fn run_at(&mut self, machine: &str, command: &str) -> Result<String, String> {
        if !self.machines.iter().any(|known| known == machine) {
            if self.machines.is_empty() {
                self.run("ip link add bridge type bridge && ip link set bridge up")?;
            }
            self.machines.push(machine.to_owned());
            self.run(&format!("machine {machine} {}", self.machines.len()))?;
        }
        let (command, background) = quoted(command);
        let home = format!("HOME=/tmp/{machine} TOMBOLO_RUNTIME_DIR=/tmp/{machine}/run");
        self.run(&format!("ip netns exec {machine} env {home} bash -c 'cd; {command}' {background}"))
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Everything that it started is in its namespace of processes, and ends with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Of the step in which it ended.
        let _ = fs::remove_file(self.output_file());
    }
}

/// Examples are built with the tests, beside the directory of this one.
fn examples() -> PathBuf {
    let test = std::env::current_exe().expect("this test");
    test.ancestors().nth(2).expect("cargo's directories").join("examples")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs all commands of a page.
fn page(name: &str) {
    needs!("unshare", "ip", "setpriv", "setcap", "wget", "python3");
    if !rustix::process::geteuid().is_root() {
        return left_out("namespaces to run a page in need root");
    }
    let Some(product) = product() else { return };
    let text = fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let Some(mut shell) = Shell::start(&product) else { return };
    let (mut printed, mut count) = (String::new(), 0);
    let mut words = BTreeMap::new();
    for block in blocks(&text) {
        let place = format!("{name}:{}", block.line);
        match block.kind {
            Kind::Output => {
                let missing = missing(&block.text, &printed);
                assert!(
                    missing.is_none(),
                    "{place}: no line `{}` in\n{printed}",
                    missing.unwrap_or_default()
                );
            }
            Kind::Console => {
                printed.clear();
                count += console(&mut shell, &place, &block.text, &mut words);
            }
            Kind::Shell | Kind::User => {
                printed.clear();
                for command in commands(&block.text) {
                    count += 1;
                    let command = if block.kind == Kind::User { as_user(&command) } else { command };
                    let said = shell.run(&command);
                    printed += &said.unwrap_or_else(|said| panic!("{place}: `{command}` fails\n{said}"));
                }
            }
        }
    }
    assert!(count > 0, "{name} has no commands");
}

/// A command to be run by another shell, and whether it goes on in the background.
fn quoted(command: &str) -> (String, &str) {
    let (command, background) = match command.trim_end().strip_suffix('&') {
        Some(command) => (command, "&"),
        None => (command, ""),
    };
    (command.replace('\'', r"'\''"), background)
}

/// As an ordinary user, with a home.
fn as_user(command: &str) -> String {
    let (command, background) = quoted(command);
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups env HOME=/tmp/user";
    format!("{user} bash -c 'cd; {command}' {background}")
}

/// Runs the commands of several machines; how many. `words`: what stands for keys, and the keys.
fn console(shell: &mut Shell, place: &str, text: &[String], words: &mut BTreeMap<String, String>) -> usize {
    let prompt = |line: &str| -> Option<(String, String)> {
        let (machine, command) = line.split_once("$ ")?;
        machine.bytes().all(|byte| byte.is_ascii_lowercase()).then(|| (machine.into(), command.into()))
    };
    let (mut count, mut printed) = (0, String::new());
    for line in text {
        if let Some((machine, mut command)) = prompt(line) {
            for (word, key) in &*words {
                command = command.replace(word, key);
            }
            let said = shell.run_at(&machine, &command);
            printed = said.unwrap_or_else(|said| panic!("{place}: `{line}` fails\n{said}"));
            count += 1;
            continue;
        }
        // What is shown of a key is another one's: it is found by what stands around it.
        let shown = line.split('…').map(|part| part.trim_end_matches(char::is_alphanumeric));
        let pattern = if line.contains('…') { shown.collect::<Vec<_>>().join("…") } else { line.clone() };
        let found = printed.lines().find(|found| fits(&pattern, found));
        let found = found.unwrap_or_else(|| panic!("{place}: no line `{line}` in\n{printed}"));
        for (word, real) in line.split_whitespace().zip(found.split_whitespace()) {
            if word.ends_with('…') {
                words.insert(word.to_owned(), real.to_owned());
            }
        }
    }
    count
}

#[test]
fn the_readme_is_right() {
    page("README.md");
}

#[test]
fn the_guide_to_paging_is_right() {
    page("docs/guide/paging.md");
}

#[test]
fn the_guide_to_lenders_is_right() {
    page("docs/guide/lenders.md");
}

#[test]
fn the_guide_to_the_network_is_right() {
    page("docs/guide/network.md");
}

#[test]
fn the_guide_to_sockets_is_right() {
    page("docs/guide/sockets.md");
}

#[test]
fn the_guide_to_security_is_right() {
    page("docs/guide/security.md");
}

#[test]
fn the_guide_to_rdma_is_right() {
    page("docs/guide/rdma.md");
}

#[test]
fn the_guide_to_limits_is_right() {
    page("docs/guide/limits.md");
}

#[test]
fn the_guide_to_the_simulator_is_right() {
    page("docs/guide/simulator.md");
}

#[test]
fn the_guide_to_installing_is_right() {
    page("docs/guide/installing.md");
}

#[test]
fn the_guide_to_operating_is_right() {
    page("docs/guide/operating.md");
}

/// No page is forgotten, and no link in one leads nowhere.
#[test]
fn each_page_is_run_and_its_links_lead_somewhere() {
    let this = include_str!("guide.rs");
    let mut pages = vec![PathBuf::from("README.md")];
    for entry in fs::read_dir(root().join("docs/guide")).unwrap().flatten() {
        pages.push(Path::new("docs/guide").join(entry.file_name()));
    }
    for page in pages {
        let name = page.to_str().unwrap();
        let is_index = name == "docs/guide/README.md";
        assert!(is_index || this.contains(&format!("page(\"{name}\")")), "{name} is not run");
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or_default();
            if file.is_empty() || file.contains("://") {
                continue;
            }
            let target = root().join(&page).parent().unwrap().join(file);
            assert!(target.exists(), "{name} links to {link}");
        }
    }
}

#[test]
fn a_page_that_is_wrong_is_found() {
    let page = "text\n```sh\na &\nb \\\n  c\n# d\n```\n```output\nin 12 s… done\n```\n```text\nx\n```\n";
    let found = blocks(page);
    assert_eq!((found.len(), found[0].line, found[0].kind), (2, 2, Kind::Shell));
    assert_eq!(commands(&found[0].text), ["a &", "b \\\n  c"]);
    assert_eq!(missing(&found[1].text, "first\nin   3.5 s, all of it, done\n"), None);
    assert_eq!(missing(&found[1].text, "in 3.5 s, all of it"), Some("in 12 s… done"));
    assert!(fits("a 1.5x b", "a   22x b") && !fits("a 1x b", "a x b") && !fits("a", "a b"));
    assert!(std::panic::catch_unwind(|| blocks("```bash\nls\n```\n")).is_err(), "an unknown kind");
}
