//! Whose child a process is.

use std::collections::BTreeSet;
use std::path::Path;

/// Where a process stands among others.
#[derive(Clone, Debug)]
pub(crate) struct Kin {
    /// As the kernel shows it: T is stopped, Z has ended.
    pub(crate) state: String,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
}

pub(crate) fn kin(pid: u32) -> Option<Kin> {
    kin_in(Path::new(&format!("/proc/{pid}")))
}

/// That of a process's or thread's folder.
pub(crate) fn kin_in(folder: &Path) -> Option<Kin> {
    let text = std::fs::read_to_string(folder.join("stat")).ok()?;
    // The name, in parentheses, may contain anything. After it: the state, and these three.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.to_owned();
    let mut numbers = fields.map(|field| field.parse().ok());
    Some(Kin { state, parent: numbers.next()??, group: numbers.next()??, session: numbers.next()?? })
}

/// Parents that are looked at, from a process upwards. A process with more of them counts as a stranger: the supervisor's reception
/// must not spend its time on a stranger's long chain.
const GENERATIONS_MAX: u32 = 256;
/// Attempts to follow a chain of parents: one may end meanwhile, and its children have another parent then.
const ATTEMPTS: u32 = 4;

/// Whether a process is this one, or descends from it. Where all descendants of a process stay with it when their parents end
/// (`PR_SET_CHILD_SUBREAPER`), these are all that it has ever started and that have not ended.
pub fn descends_from(pid: u32, ancestor: u32) -> bool {
    (0..ATTEMPTS).find_map(|_| try_to_descend(pid, ancestor)).unwrap_or(false)
}

/// `None`: a process of the chain has ended meanwhile.
fn try_to_descend(pid: u32, ancestor: u32) -> Option<bool> {
    let mut at = pid;
    for _ in 0..GENERATIONS_MAX {
        if at == ancestor {
            return Some(true);
        }
        match kin(at)?.parent {
            0 => return Some(false),
            parent => at = parent,
        }
    }
    Some(false)
}

/// The descendants of a process, those that have ended and not been waited for among them.
pub fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut left = children(pid);
    while let Some(next) = left.pop() {
        // One that ends meanwhile gives its children to another.
        if found.insert(next) {
            left.extend(children(next));
        }
    }
    found
}

fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    texts
        .flat_map(|text| {
            text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn children_and_their_children_descend() {
        let own = std::process::id();
        // The shell waits for its child, which waits for the end of its input.
        let mut shell = Command::new("sh").args(["-c", "cat; exit 0"]).stdin(Stdio::piped()).spawn().unwrap();
        let mut of_shell = BTreeSet::new();
        for _ in 0..1000 {
            of_shell = descendants(shell.id());
            if !of_shell.is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let cat = of_shell.pop_first().unwrap();
        assert!(of_shell.is_empty(), "{of_shell:?}");
        assert!(descends_from(cat, own) && descends_from(cat, shell.id()) && descends_from(own, own));
        assert!(!descends_from(own, shell.id()) && !descends_from(u32::MAX, own));
        let all = descendants(own);
        assert!(all.contains(&cat) && all.contains(&shell.id()), "{all:?}");
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
