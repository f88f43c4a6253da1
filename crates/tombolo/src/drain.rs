//! How a node ends: it lends to nobody new, and waits for its borrowers and for the transfers of its programs, but not
//! for ever.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_host::service;
use tombolo_host::stops::Signals;
use tombolo_host::timing::command::{DRAIN_CHECK_INTERVAL, DRAIN_REPORT_INTERVAL};
use tombolo_node::{Borrower, Node, ProgramAtWork};

use crate::size::Size;
use crate::{duration, status};

/// This many borrowers or programs are named; the others are counted.
const MAX_NAMED: usize = 8;

/// A longer wait ends with a signal.
const LONGEST: Duration = Duration::from_secs(1 << 32);

/// What a node that is to end does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It checks again after this time.
    Wait(Duration),
    /// It ends.
    End,
}

/// Those for whom a node waits.
struct Awaited {
    borrowers: Vec<Borrower>,
    programs: Vec<ProgramAtWork>,
}

impl Awaited {
    fn of(node: &Node) -> Self {
        Self { borrowers: node.borrowers(), programs: node.programs_at_work() }
    }

    fn count(&self) -> usize {
        self.borrowers.len() + self.programs.len()
    }

    /// What is lent to them.
    fn bytes(&self) -> u64 {
        self.borrowers.iter().map(|borrower| borrower.bytes).sum()
    }

    /// What has to happen before the node ends.
    fn until(&self) -> &'static str {
        match (self.borrowers.is_empty(), self.programs.is_empty()) {
            (_, true) => "its borrowers have gone",
            (true, false) => "the transfers of its programs are over",
            (false, false) => "its borrowers have gone and the transfers of its programs are over",
        }
    }

    fn listed(&self) -> String {
        let lists = [listed(&self.borrowers), listed_programs(&self.programs)];
        lists.into_iter().filter(|list| !list.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

/// What is next, given the time since the first signal, the number of borrowers and programs for whom it waits, and the
/// number of signals.
fn next(timeout: Duration, waited: Duration, awaited: usize, signals: u32) -> Next {
    match timeout.checked_sub(waited).filter(|left| !left.is_zero()) {
        Some(left) if awaited > 0 && signals < 2 => Next::Wait(left.min(DRAIN_CHECK_INTERVAL)),
        _ => Next::End,
    }
}

/// Waits for a signal: whether one has come in this time.
///
/// A descriptor that fails cannot be waited for. It counts as the first signal, since the node ends in an orderly way
/// while it can; but not as another one, by which a user gives up its borrowers.
fn signalled(signals: &dyn Fn(Option<Duration>) -> io::Result<bool>, pause: Option<Duration>) -> bool {
    signals(pause).unwrap_or_else(|_| {
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        pause.is_none()
    })
}

/// Waits for a signal, then for the borrowers to go and the programs' transfers to end; a further signal, or the end of the time, ends the node
/// at once. `say` tells the user.
pub fn end_at_signals(
    node: &Node,
    signals: &Signals,
    timeout: Duration,
    stop: &AtomicBool,
    say: &dyn Fn(&str),
) {
    let signals = |pause| signals.next(pause);
    let mut count = u32::from(signalled(&signals, None));
    service::stopping();
    let since = Instant::now();
    node.ends_at(since + timeout.min(LONGEST));
    let mut awaited = Awaited::of(node);
    if awaited.count() > 0 && !timeout.is_zero() {
        say(&format!(
            "ends when {}, in {} at the latest, or at once with another signal; it lends to nobody new. It waits for {}",
            awaited.until(),
            duration::shown(timeout),
            awaited.listed()
        ));
    }
    let mut told = (since, awaited.bytes());
    while let Next::Wait(pause) = next(timeout, since.elapsed(), awaited.count(), count) {
        count += u32::from(signalled(&signals, Some(pause)));
        awaited = Awaited::of(node);
        if told.0.elapsed() >= DRAIN_REPORT_INTERVAL && told.1 != awaited.bytes() {
            told = (Instant::now(), awaited.bytes());
            say(&format!("waits for {}", awaited.listed()));
        }
    }
    if !awaited.borrowers.is_empty() {
        say(&format!("ends now and takes back what is lent to {}", listed(&awaited.borrowers)));
    }
    if !awaited.programs.is_empty() {
        say(&format!("ends now, before transfers of {}", listed_programs(&awaited.programs)));
    }
    stop.store(true, Ordering::Relaxed);
    // A user who sends a second signal does not want to wait for anything.
    while signals(None).is_err() {
        // Nothing more will be heard: the node ends by itself.
        std::thread::park();
    }
    std::process::exit(130);
}

/// The borrowers and what they have.
fn listed(borrowers: &[Borrower]) -> String {
    let mut texts: Vec<String> = borrowers.iter().take(MAX_NAMED).map(status::said_of).collect();
    if let Some(others) = borrowers.len().checked_sub(MAX_NAMED).filter(|others| *others > 0) {
        let bytes = borrowers[MAX_NAMED..].iter().map(|borrower| borrower.bytes).sum();
        texts.push(format!("{others} others: {}", Size(bytes)));
    }
    texts.join("; ")
}

/// Which programs they are and how much they wait for.
fn listed_programs(programs: &[ProgramAtWork]) -> String {
    let said = |ProgramAtWork { domain, process_id, transfers }: &ProgramAtWork| {
        let process = process_id.map(|process| format!(" (process {process})")).unwrap_or_default();
        format!("domain {domain}{process}: {transfers} transfer(s)")
    };
    let mut texts: Vec<String> = programs.iter().take(MAX_NAMED).map(said).collect();
    if let Some(others) = programs.len().checked_sub(MAX_NAMED).filter(|others| *others > 0) {
        let transfers: u32 = programs[MAX_NAMED..].iter().map(|program| program.transfers).sum();
        texts.push(format!("{others} other domains: {transfers} transfer(s)"));
    }
    texts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_with_transfers_under_way_are_waited_for_and_named() {
        let program = |domain| ProgramAtWork { domain, process_id: Some(7), transfers: 2 };
        let awaited = Awaited { borrowers: Vec::new(), programs: vec![program(9)] };
        assert_eq!(awaited.count(), 1);
        assert_eq!(awaited.until(), "the transfers of its programs are over");
        assert_eq!(awaited.listed(), "domain 9 (process 7): 2 transfer(s)");
        let many: Vec<_> = (0..MAX_NAMED as u16 + 3).map(program).collect();
        assert!(listed_programs(&many).ends_with("; 3 other domains: 6 transfer(s)"));
    }

    #[test]
    fn it_waits_for_borrowers_until_they_go_or_the_time_or_the_patience_of_the_user_is_over() {
        let seconds = Duration::from_secs;
        assert_eq!(next(seconds(30), seconds(0), 1, 1), Next::Wait(DRAIN_CHECK_INTERVAL));
        let last = Duration::from_millis(29_950);
        assert_eq!(next(seconds(30), last, 1, 1), Next::Wait(Duration::from_millis(50)));
        for (timeout_s, waited_s, borrowers, signals) in
            [(30, 0, 0, 1), (30, 30, 1, 1), (30, 31, 1, 1), (30, 5, 1, 2), (0, 0, 1, 1)]
        {
            assert_eq!(next(seconds(timeout_s), seconds(waited_s), borrowers, signals), Next::End);
        }
    }

    #[test]
    fn signals_that_cannot_be_waited_for_are_the_first_and_no_other() {
        let fails = |_: Option<Duration>| Err(io::Error::other("a closed descriptor"));
        assert!(signalled(&fails, None));
        assert!(!signalled(&fails, Some(Duration::ZERO)), "its borrowers have their time");
        let comes = |_: Option<Duration>| Ok(true);
        assert!(signalled(&comes, None) && signalled(&comes, Some(Duration::ZERO)));
    }

    #[test]
    fn many_borrowers_are_counted() {
        let borrower = Borrower {
            name: "one".into(),
            process_id: Some(7),
            address: None,
            key: None,
            bytes: 1 << 20,
            segments: 1,
            ..Borrower::default()
        };
        assert_eq!(listed(&vec![borrower.clone(); 2]).matches("one (process 7): 1 MiB").count(), 2);
        let many = listed(&vec![borrower; MAX_NAMED + 3]);
        assert!(many.ends_with("; 3 others: 3 MiB"), "{many}");
    }
}
