//! Programs of the run whose memory is not served: which they are, why, and how much memory they have.
//!
//! The preloaded library reports each program that is about to be executed and cannot load the library
//! ([`Unserved::executed`]). The library does not see everything: a static program may start others. So this process looks
//! among its descendants about once a second ([`Pager::look_for_unserved`]). It may miss processes that live for less time.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tombolo_host::{family, process};

use crate::pager::Pager;
use tombolo_interpose::fitness::Reason;

/// What is known of the programs that are not served.
#[derive(Debug, Default)]
pub struct Unserved(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    summary: UnservedSummary,
    /// Processes that the previous search found.
    seen: BTreeSet<u32>,
    /// Descendants that this process had before it started the program.
    others: BTreeSet<u32>,
}

/// Programs that were not served.
#[derive(Clone, Debug, Default)]
pub struct UnservedSummary {
    /// Programs that were executed and could not load the library, by reason.
    pub executed: BTreeMap<Reason, Executed>,
    /// Number of processes: now, and at most.
    pub processes: [u64; 2],
    /// Bytes of memory of their own: now, and at most.
    pub bytes: [u64; 2],
}

/// Programs that could not load the library, for one reason.
#[derive(Clone, Debug, Default)]
pub struct Executed {
    /// How often such a program was executed.
    pub count: u64,
    /// Path of the first such program.
    pub first: String,
}

impl Unserved {
    /// Notes that a program was executed that cannot be served. Returns what to tell the user, once for each reason.
    fn executed(&self, reason: Reason, path: String) -> Option<String> {
        let mut known = self.0.lock();
        let executed = known.summary.executed.entry(reason).or_default();
        executed.count += 1;
        if executed.count > 1 {
            return None;
        }
        let told = format!(
            "{} {}: it runs without far memory (said once; the report counts others)",
            if path.is_empty() { "a program" } else { &path },
            reason.text()
        );
        executed.first = path;
        Some(told)
    }

    /// Excludes these processes from the search: they do not belong to the program.
    pub fn leave_out(&self, others: BTreeSet<u32>) {
        self.0.lock().others = others;
    }

    /// Returns what is known now.
    pub fn summary(&self) -> UnservedSummary {
        self.0.lock().summary.clone()
    }

    /// Notes the processes that a search has found, with the bytes of each. Processes that the previous search found as
    /// well are counted. Returns the largest of those.
    fn found(&self, now: &BTreeMap<u32, u64>) -> Option<(u32, u64)> {
        let mut known = self.0.lock();
        let lasting: Vec<_> = now.iter().filter(|(pid, _)| known.seen.contains(pid)).collect();
        let largest = lasting.iter().max_by_key(|(_, bytes)| **bytes).map(|(pid, bytes)| (**pid, **bytes));
        let (count, bytes) = (lasting.len() as u64, lasting.iter().map(|(_, bytes)| **bytes).sum());
        let UnservedSummary { processes, bytes: held, .. } = &mut known.summary;
        *processes = [count, processes[1].max(count)];
        *held = [bytes, held[1].max(bytes)];
        known.seen = now.keys().copied().collect();
        largest
    }
}

impl Pager {
    /// Called when the library reports a program that is about to be executed and cannot be served.
    pub(crate) fn executes_unserved(&self, reason: Reason, path: &[u8]) {
        let path = tombolo_node::harmless_reason(&String::from_utf8_lossy(path));
        if let Some(text) = self.unserved_programs.executed(reason, path) {
            (self.notify)(&text);
        }
    }

    /// Looks for descendants that have no space here.
    pub(crate) fn look_for_unserved(&self) {
        let mut served = self.unserved_programs.0.lock().others.clone();
        served.extend(self.keeper.pid());
        let mut controls = BTreeSet::new();
        for space in self.all_spaces() {
            controls.insert(space.control);
            served.extend(space.agent().or_else(|| space.retired_agent()).map(|agent| agent.pid));
            served.extend(space.named_program().map(|program| program.pid));
        }
        let found = family::descendants(std::process::id());
        let others = found.difference(&served);
        // A process with a control area is not counted: it is a forked child without an agent, a child that shares its
        // parent's memory, or an agent that has not said hello.
        let has_control = |pid: u32| {
            controls.iter().any(|&control| matches!(process::is_writable(pid, control), Ok(Some(true))))
        };
        // A process without memory has ended.
        let now = others
            .filter(|pid| !has_control(**pid))
            .filter_map(|&pid| Some((pid, process::anonymous_bytes(pid)?)))
            .collect();
        let Some((pid, bytes)) = self.unserved_programs.found(&now) else { return };
        if self.unserved_programs.summary().executed.is_empty() {
            self.say_once_with("descendant", || {
                format!(
                    "process {pid} ({}) runs without far memory, with {} KiB of its own (said once; the report tells how many there were)",
                    tombolo_node::harmless_name(&process::name(pid).unwrap_or_default()),
                    bytes / 1024
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_once_and_counted() {
        let unserved = Unserved::default();
        let told = unserved.executed(Reason::Musl, "/bin/a".into()).unwrap();
        assert!(told.starts_with("/bin/a has musl"), "{told}");
        assert_eq!(unserved.executed(Reason::Musl, "/bin/b".into()), None);
        assert!(unserved.executed(Reason::Static, String::new()).unwrap().starts_with("a program is static"));
        let executed = unserved.summary().executed;
        assert_eq!((executed[&Reason::Musl].count, &*executed[&Reason::Musl].first), (2, "/bin/a"));
    }

    #[test]
    fn who_is_seen_twice_counts() {
        let unserved = Unserved::default();
        assert_eq!(unserved.found(&BTreeMap::from([(1, 10), (2, 20)])), None);
        assert_eq!(unserved.found(&BTreeMap::from([(2, 30), (3, 90)])), Some((2, 30)));
        assert_eq!(unserved.found(&BTreeMap::from([(3, 40), (2, 30)])), Some((3, 40)));
        assert_eq!(unserved.found(&BTreeMap::new()), None);
        let summary = unserved.summary();
        assert_eq!((summary.processes, summary.bytes), ([0, 2], [0, 70]));
    }
}
