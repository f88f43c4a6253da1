//! Logs refusals of ports, at most once a second for each asker, since askers come again as often as they like.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tombolo_node::harmless_reason;

/// How often refusals of one asker are logged at most.
const INTERVAL: Duration = Duration::from_secs(1);
/// Most askers that are told apart. Further askers share one entry.
const ASKERS_MAX: usize = 64;
/// Most characters that are logged of a text that another process or node may have chosen.
const TEXT_MAX: usize = 300;

/// For each asker, when a refusal was logged last, and how many refusals were left out since.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<String, (Instant, u64)>);

impl Refusals {
    /// Logs that a port is refused, unless a refusal of this asker was logged less than a second ago.
    pub fn say(&mut self, port: &str, by: &str, reason: &str) {
        if let Some(left_out) = self.is_due(Instant::now(), by) {
            let short = |text: &str| harmless_reason(text).chars().take(TEXT_MAX).collect::<String>();
            let (port, by, reason) = (short(port), short(by), short(reason));
            tracing::warn!(port, by, reason, left_out, "a port is refused");
        }
    }

    /// Whether a refusal of this asker is to be logged now: `None` if not, else the number of refusals left out since the last
    /// one that was logged.
    fn is_due(&mut self, now: Instant, by: &str) -> Option<u64> {
        if self.0.len() >= ASKERS_MAX && !self.0.contains_key(by) {
            self.0.retain(|_, (said, _)| now.duration_since(*said) < INTERVAL);
        }
        let by = if self.0.len() >= ASKERS_MAX && !self.0.contains_key(by) { "" } else { by };
        match self.0.get_mut(by) {
            Some((said, left_out)) if now.duration_since(*said) < INTERVAL => {
                *left_out += 1;
                None
            }
            Some(known) => Some(std::mem::replace(known, (now, 0)).1),
            None => {
                self.0.insert(by.to_owned(), (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_asker_is_heard_once_a_second() {
        let (mut refusals, begin) = (Refusals::default(), Instant::now());
        let at = |ms| begin + Duration::from_millis(ms);
        assert_eq!(refusals.is_due(at(0), "one"), Some(0));
        assert_eq!(refusals.is_due(at(10), "one"), None);
        assert_eq!(refusals.is_due(at(20), "other"), Some(0), "one does not hide the other");
        assert_eq!(refusals.is_due(at(500), "one"), None);
        assert_eq!(refusals.is_due(at(1000), "one"), Some(2));
        for asker in 0..1000 {
            let _ = refusals.is_due(at(1500), &asker.to_string());
        }
        assert!(refusals.0.len() <= ASKERS_MAX + 1);
        assert_eq!(refusals.is_due(at(3000), "late"), Some(0));
    }
}
