//! UDP with keys, as two machines use it: each node has a configuration directory of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{Outcome, PATIENCE, Running, Scratch, TOMBOLO, compiled, needs, tombolo};

/// A machine: its user has a home, and in it perhaps a key.
struct Machine {
    home: Scratch,
}

impl Machine {
    fn new(name: &str) -> Self {
        Self { home: Scratch::new(name) }
    }

    /// One with a key, and the key's public half.
    fn with_key(name: &str) -> (Self, String) {
        let machine = Self::new(name);
        let outcome = machine.run(&["keygen"]);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
        let public = outcome.text().trim().to_owned();
        (machine, public)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.home.path().join(".config/tombolo").join(name)
    }

    fn allow(&self, keys: &[&str]) {
        fs::create_dir_all(self.file("allow").parent().unwrap()).unwrap();
        let lines: Vec<_> = keys.iter().map(|key| format!("{key} a friend\n")).collect();
        // A node may read the list at any time, and never sees half of it.
        fs::write(self.file("allow.new"), format!("# who may\n{}", lines.concat())).unwrap();
        fs::rename(self.file("allow.new"), self.file("allow")).unwrap();
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let mut command = Command::new(TOMBOLO);
        command.args(arguments).env("HOME", self.home.path()).env_remove("XDG_CONFIG_HOME");
        Running::start(command, Vec::new())
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.start(arguments).wait(PATIENCE)
    }

    /// A node that lends, and its address.
    fn lend(&self) -> (Running, String) {
        let node = self.start(&["node", "--listen", "udp:127.0.0.1:0", "--lend", "512M", "--name", "lender"]);
        let line = node.output_with(" at ", Duration::from_secs(30));
        let address = line.trim().rsplit(" at ").next().expect("an address").to_owned();
        (node, address)
    }
}

/// Two machines with keys, each on the other's list.
fn friends() -> (Machine, Machine) {
    let ((one, one_key), (other, other_key)) = (Machine::with_key("one"), Machine::with_key("other"));
    one.allow(&[&other_key]);
    other.allow(&[&one_key]);
    (one, other)
}

#[test]
fn a_program_runs_on_memory_over_secure_udp() {
    needs!("cc");
    let (lender, borrower) = friends();
    let (node, address) = lender.lend();
    let report = borrower.home.file("report.json");
    let program = compiled("threads", &[]);
    let run = borrower.run(&[
        "run", "--from", &address, "--local", "8M", "--remote", "128M", "--report", &report, "--", &program,
        "32",
    ]);
    assert_eq!(run.code(), 0, "{}{}", run.text(), run.stderr);
    let report: serde_json::Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    assert!(report["bytes_out"].as_u64() > Some(0) && report["bytes_in"].as_u64() > Some(0), "{report:#}");
    let status = borrower.run(&["status", &address]);
    assert!(status.text().contains("of 512 MiB"), "{}{}", status.text(), status.stderr);
    drop(node);
}

#[test]
fn status_tells_the_address_and_key_of_a_borrower() {
    needs!("cc");
    let ((lender, lender_key), (borrower, borrower_key)) =
        (Machine::with_key("lender"), Machine::with_key("borrower"));
    lender.allow(&[&borrower_key]);
    borrower.allow(&[&lender_key]);
    let (node, address) = lender.lend();
    let words = [compiled("hold", &[]), "32".into(), "rest".into()];
    let run = borrower.start(&[
        "run", "--from", &address, "--local", "8M", "--remote", "128M", "--", &words[0], &words[1], &words[2],
    ]);
    run.output_with("holding", Duration::from_secs(60));
    let said = borrower.run(&["status", &address]).text();
    let short = borrower_key.trim_start_matches("tombolo-public:").get(..8).unwrap();
    let line = said.lines().find(|line| line.contains(short)).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains(" MiB ") && line.contains("udp:127.0.0.1:"), "{line}");
    let status = borrower.run(&["status", "--json", &address]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let told = &status["borrowers"][0];
    assert_eq!(told["key"], borrower_key, "{status:#}");
    assert!(
        told["bytes"].as_u64().is_some_and(|bytes| (24 << 20..=160 << 20).contains(&bytes)),
        "{status:#}"
    );
    drop((run, node));
}

#[test]
fn a_file_is_copied_over_secure_udp_and_back() {
    let (lender, borrower) = friends();
    let (node, address) = lender.lend();
    let bytes: Vec<u8> =
        (0..5_000_011u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let (file, back) = (borrower.home.file("file"), borrower.home.file("back"));
    fs::write(&file, &bytes).unwrap();
    let place = format!("{address}:file");
    for arguments in [["cp", &file, &place], ["cp", &place, &back]] {
        let outcome = borrower.run(&arguments);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    }
    assert!(fs::read(&back).unwrap() == bytes, "not the same bytes");
    let stranger = Machine::new("stranger");
    stranger.run(&["cp", "--insecure", &place, "-"]).assert_one_line(125, "without --insecure");
    assert!(borrower.run(&["ls", &address]).text().contains("file"));
    assert_eq!(borrower.run(&["rm", &place]).code(), 0);
    let status = borrower.run(&["status", "--json", &address]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["lent_bytes"], 0);
    drop(node);
}

#[test]
fn a_hangup_ends_the_links_of_keys_that_are_off_the_list() {
    let ((lender, lender_key), (kept, kept_key), (removed, removed_key)) =
        (Machine::with_key("lender"), Machine::with_key("kept"), Machine::with_key("removed"));
    lender.allow(&[&kept_key, &removed_key]);
    kept.allow(&[&lender_key]);
    removed.allow(&[&lender_key]);
    let (node, address) = lender.lend();
    let [kept_node, removed_node] = [(&kept, "kept"), (&removed, "removed")].map(|(machine, name)| {
        let listen = format!("shm:{}", machine.home.file("listen"));
        let node = machine.start(&["node", "--listen", &listen, "--peer", &address, "--name", name]);
        node.errors_with("joined", Duration::from_secs(30));
        node
    });
    lender.allow(&[&kept_key]);
    node.signal(Signal::HUP);
    node.errors_with("1 link(s) ended", Duration::from_secs(30));
    removed_node.errors_with("this node's key is no longer on the peer's list", Duration::from_secs(30));
    removed.run(&["status", &address]).assert_one_line(125, &format!("add `{removed_key}`"));
    // The node goes on, and so do the others; a list that makes no sense changes nothing.
    fs::write(lender.file("allow"), "nonsense\n").unwrap();
    node.signal(Signal::HUP);
    node.errors_with("all links stay", Duration::from_secs(30));
    lender.allow(&[&kept_key]);
    assert_eq!(kept.run(&["status", &address]).code(), 0);
    assert!(node.errors().contains(&format!("`removed`, {removed_key}")), "{}", node.errors());
    assert!(!kept_node.errors().contains("gone"), "{}", kept_node.errors());
    node.signal(Signal::TERM);
    assert_eq!(node.wait(PATIENCE).code(), 0);
}

#[test]
fn a_key_that_is_not_listed_is_named_on_both_sides() {
    let ((lender, lender_key), (borrower, borrower_key)) =
        (Machine::with_key("lender"), Machine::with_key("borrower"));
    lender.allow(&[]);
    borrower.allow(&[&lender_key]);
    let (node, address) = lender.lend();
    let refused = borrower.run(&["status", &address]);
    refused.assert_one_line(125, &format!("add `{borrower_key}`"));
    // The list is read again, so the node need not be started anew: its borrowers keep their memory.
    lender.allow(&[&borrower_key]);
    let status = borrower.run(&["status", &address]);
    assert_eq!(status.code(), 0, "{}", status.stderr);
    borrower.allow(&[&borrower_key]);
    borrower.run(&["status", &address]).assert_one_line(125, &format!("add `{lender_key}`"));
    std::thread::sleep(Duration::from_millis(300));
    node.signal(Signal::TERM);
    let told = node.wait(Duration::from_secs(20)).stderr;
    let allow = lender.file("allow").display().to_string();
    assert!(told.contains(&format!("add `{borrower_key}` to {allow}")), "{told}");
    assert!(told.contains("this node's key is not on the list of the node at"), "{told}");
}

#[test]
fn a_node_says_which_neighbour_it_speaks_of_by_name_and_key() {
    let ((lender, lender_key), (borrower, borrower_key)) =
        (Machine::with_key("lender"), Machine::with_key("borrower"));
    lender.allow(&[&borrower_key]);
    borrower.allow(&[&lender_key]);
    let (node, address) = lender.lend();
    assert_eq!(borrower.run(&["ls", &address]).code(), 0);
    let short = &borrower_key["tombolo-public:".len()..][..8];
    node.errors_with("a neighbour is gone", PATIENCE);
    for what in ["a neighbour is there", "a neighbour is gone"] {
        let said = node.errors();
        let line = said.lines().find(|line| line.contains(what)).unwrap_or_else(|| panic!("{said}"));
        let fields =
            [String::from("peer=\"ls\""), format!("key=\"{short}\""), "address=\"udp:127.0.0.1:".into()];
        assert!(fields.iter().all(|field| line.contains(field)), "{line}");
    }
}

#[test]
fn a_key_may_do_what_its_line_says_and_nothing_else() {
    let ((lender, lender_key), (owner, owner_key), (guest, guest_key)) =
        (Machine::with_key("lender"), Machine::with_key("owner"), Machine::with_key("guest"));
    let all = format!("{owner_key} owner");
    let permit = |permissions: &str| lender.allow(&[&all, &format!("{guest_key} guest {permissions}")]);
    permit("may=nothing");
    owner.allow(&[&lender_key]);
    guest.allow(&[&lender_key]);
    let (node, address) = lender.lend();
    let (file, place, other) =
        (owner.home.file("file"), format!("{address}:file"), format!("{address}:other"));
    fs::write(&file, "bytes").unwrap();
    assert_eq!(owner.run(&["cp", &file, &place]).code(), 0, "no permission named is all of them");
    let questions: [(&str, &[&str]); 6] = [
        ("list", &["ls", &address]),
        ("read", &["cp", &place, "-"]),
        ("status", &["status", &address]),
        ("borrow", &["ping", &address, "-c", "1"]),
        ("write", &["cp", &file, &other]),
        ("write", &["rm", &other]),
    ];
    for (permission, question) in questions {
        permit("may=nothing");
        guest.run(question).assert_one_line(125, &format!("permission `{permission}` is missing"));
        // New links find the list as it is.
        permit(&format!("may={permission}"));
        let answer = guest.run(question);
        assert_eq!(answer.code(), 0, "{question:?}: {}", answer.stderr);
        for (_, refused) in questions.iter().filter(|(other, _)| *other != permission) {
            let outcome = guest.run(refused);
            outcome.assert_one_line(125, &format!("its list has `may={permission}`"));
            // To lend more would not help.
            assert!(!outcome.stderr.contains("--lend"), "{}", outcome.stderr);
        }
    }
    lender.allow(&[&all, &format!("{guest_key} guest may=lend")]);
    let again = lender.run(&["node", "--listen", "udp:127.0.0.1:0", "--lend", "1M"]);
    again.assert_one_line(125, "allow:3: `lend` is no permission");
    drop(node);
}

#[test]
fn a_hangup_changes_what_a_live_neighbour_may_do() {
    use tombolo_node::identity::{AllowList, read_key_file};
    use tombolo_node::{Security, Store};
    let ((lender, lender_key), (guest, guest_key)) =
        (Machine::with_key("lender"), Machine::with_key("guest"));
    let permit = |permissions: &str| lender.allow(&[&format!("{guest_key} guest {permissions}")]);
    permit("may=list");
    guest.allow(&[&lender_key]);
    let (node, address) = lender.lend();
    let list = AllowList::from_file(&guest.file("allow")).unwrap();
    let security = Security::secure(read_key_file(&guest.file("key")).unwrap(), list);
    let store = Store::connect("guest", &[address.parse().unwrap()], &security).unwrap();
    assert_eq!(store.list().unwrap().len(), 0);
    for (permissions, permitted) in [("may=read", false), ("", true), ("may=status", false)] {
        permit(permissions);
        node.signal(Signal::HUP);
        let since = Instant::now();
        let answer = loop {
            let answer = store.list();
            if answer.is_ok() == permitted {
                break answer;
            }
            assert!(since.elapsed() < PATIENCE, "{permissions}: {answer:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        if let Err(error) = answer {
            let said = error.to_string();
            assert!(said.contains("permission `list` is missing"), "{said}");
            assert!(said.contains(permissions), "{said}");
        }
    }
    assert!(!node.errors().contains("gone"), "it is the same link: {}", node.errors());
}

#[test]
fn without_a_key_udp_is_one_clear_error() {
    let bare = Machine::new("bare");
    for arguments in [
        &["node", "--listen", "udp:127.0.0.1:0", "--lend", "1M"][..],
        &["node", "--listen", "udp:0.0.0.0:0", "--lend", "1M"],
        &["status", "udp:127.0.0.1:9"],
    ] {
        let outcome = bare.run(arguments);
        for hint in ["tombolo keygen", "--allow", "--insecure"] {
            outcome.assert_one_line(125, hint);
        }
    }
    let (keyed, key) = Machine::with_key("keyed");
    let no_list = keyed.run(&["status", "udp:127.0.0.1:9"]);
    no_list.assert_one_line(125, "put the public keys");
    keyed.allow(&[&key, "tombolo-public:12"]);
    keyed.run(&["status", "udp:127.0.0.1:9"]).assert_one_line(125, "allow:3: a key has 64");
    keyed.run(&["status", "udp:127.0.0.1:9", "--key", "/no/such"]).assert_one_line(125, "/no/such");
    let insecure = bare.run(&["node", "--insecure", "--listen", "udp:0.0.0.0:0", "--lend", "1M"]);
    insecure.assert_one_line(125, "tombolo keygen");
}

#[test]
fn one_side_insecure_is_an_error_that_says_so() {
    let (lender, borrower) = friends();
    let (_node, address) = lender.lend();
    borrower.run(&["status", "--insecure", &address]).assert_one_line(125, "without --insecure");
}

#[test]
fn keygen_makes_a_private_file_and_never_overwrites_it() {
    let (machine, public) = Machine::with_key("keys");
    assert!(public.starts_with("tombolo-public:") && !public.contains('\n'), "{public}");
    let key = machine.file("key");
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&key).unwrap();
    assert!(text.contains("tombolo-secret:") && text.contains(&public));
    machine.run(&["keygen"]).assert_one_line(125, "exists already");
    assert_eq!(fs::read_to_string(&key).unwrap(), text);
    assert_eq!(machine.run(&["keygen", "--show"]).text().trim_end(), public);
    let none = machine.home.file("none");
    machine.run(&["keygen", "--show", "--out", &none]).assert_one_line(125, "none");
    assert!(!fs::exists(&none).unwrap());
    let other = machine.home.file("another/key");
    assert_eq!(tombolo(&["keygen", "--out", &other]).code(), 0);
    assert_ne!(fs::read_to_string(&other).unwrap(), text);
}

#[test]
fn a_secret_that_others_can_read_is_refused() {
    let (lender, _borrower) = friends();
    fs::set_permissions(lender.file("key"), Permissions::from_mode(0o644)).unwrap();
    let node = lender.run(&["node", "--listen", "udp:127.0.0.1:0", "--lend", "1M"]);
    node.assert_one_line(125, "chmod 600");
}
