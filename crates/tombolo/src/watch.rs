//! Looks at the runs of this user, and the rates that follow from two looks.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};

use crate::control::{self, Question};
use crate::size::Size;
use crate::{output, side_by_side};

/// Remembers the last look.
#[derive(Default)]
pub struct Watch {
    /// By where the run listens: runs in different pid namespaces may have the same number.
    before: HashMap<PathBuf, (Instant, Value)>,
    /// Of which it was said that they do not answer.
    silent: HashSet<PathBuf>,
}

impl Watch {
    /// How each run is. From the second look on with `per_s`, the rates since the last one.
    pub fn look(&mut self) -> Vec<Value> {
        let mut seen = HashMap::new();
        let mut silent = HashSet::new();
        let mut programs = Vec::new();
        let runs = control::runs();
        let answers = side_by_side::ask(&runs, |run| (run.ask(&Question::Status), Instant::now()));
        for (run, (answer, now)) in runs.iter().zip(answers) {
            let path = run.path().to_owned();
            let status = match answer {
                Ok(status @ Value::Object(_)) => status,
                answer => {
                    if !self.silent.contains(&path) {
                        let unexpected = |_| format!("the run of process {} answers no status", run.pid);
                        output::say(&format!(
                            "{}; it is left out",
                            answer.map_or_else(|reason| reason, unexpected)
                        ));
                    }
                    silent.insert(path);
                    continue;
                }
            };
            let mut told = status.clone();
            if let Some((since, before)) = self.before.get(&path) {
                rate(&mut told, before, (now - *since).as_secs_f64());
            }
            programs.push(told);
            seen.insert(path, (now, status));
        }
        self.silent = silent;
        self.before = seen;
        programs
    }
}

/// A number in a status.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// A number of bytes in a status.
pub fn size(value: &Value) -> String {
    Size(number(value)).to_string()
}

/// Adds what follows from an earlier status of the same run.
fn rate(status: &mut Value, before: &Value, elapsed_s: f64) {
    let per_s = |after: &Value, before: &Value| {
        (number(after).saturating_sub(number(before)) as f64 / elapsed_s).round() as u64
    };
    let counter = |name: &str| per_s(&status["counters"][name], &before["counters"][name]);
    let far = |name: &str| per_s(&status["far"][name], &before["far"][name]);
    let rates = json!({
        "far_faults": counter("far_faults"),
        "bytes_in": counter("pages_in") * 4096,
        "bytes_out": counter("pages_out") * 4096,
        "copies": far("copies_restored") + far("copies_moved"),
        "p99_us": late_us(&status["pauses"]["histogram"], &before["pauses"]["histogram"]),
    });
    status["per_s"] = rates;
    let known = before["far"]["lenders"].as_array().cloned().unwrap_or_default();
    let lenders = status.pointer_mut("/far/lenders").and_then(Value::as_array_mut);
    for (at, lender) in lenders.into_iter().flatten().enumerate().filter(|(_, lender)| lender.is_object()) {
        // Lenders stand in the order in which they came, and stay there.
        let earlier = known.get(at).unwrap_or(&Value::Null);
        let (read, written) = (
            per_s(&lender["read_bytes"], &earlier["read_bytes"]),
            per_s(&lender["written_bytes"], &earlier["written_bytes"]),
        );
        lender["per_s"] = json!({ "read_bytes": read, "written_bytes": written });
    }
}

/// The time in microseconds within which 99 of 100 pauses since then ended, as well as the histogram tells. 0: there was
/// none.
fn late_us(now: &Value, before: &Value) -> u64 {
    let counts = |histogram: &Value| -> HashMap<u64, u64> {
        let buckets = histogram.as_array().into_iter().flatten();
        buckets.map(|bucket| (number(&bucket["up_to_us"]), number(&bucket["count"]))).collect()
    };
    let before = counts(before);
    let mut since: Vec<(u64, u64)> = counts(now)
        .into_iter()
        .map(|(most_us, count)| (most_us, count - before.get(&most_us).copied().unwrap_or(0).min(count)))
        .collect();
    since.sort_unstable();
    let total: u64 = since.iter().map(|(_, count)| count).sum();
    let mut left = (total * 99).div_ceil(100);
    for (most_us, count) in since {
        if left > 0 && count >= left {
            return most_us;
        }
        left -= count;
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: &[(u64, u64)]) -> Value {
        buckets.iter().map(|(most_us, count)| json!({ "up_to_us": most_us, "count": count })).collect()
    }

    #[test]
    fn what_was_slow_before_does_not_count() {
        let before = histogram(&[(8, 5), (1024, 500)]);
        let now = histogram(&[(8, 104), (16, 1), (1024, 500)]);
        assert_eq!(late_us(&now, &before), 8);
        let now = histogram(&[(8, 104), (16, 2), (1024, 500)]);
        assert_eq!(late_us(&now, &before), 16);
        assert_eq!(late_us(&before, &before), 0);
        assert_eq!(late_us(&Value::Null, &before), 0);
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let status = |faults: u64, read: u64| {
            json!({
                "counters": { "far_faults": faults },
                "far": { "lenders": [{ "read_bytes": read }] },
            })
        };
        let mut now = status(30, 8192);
        rate(&mut now, &status(10, 0), 2.0);
        assert_eq!(now["per_s"]["far_faults"], 10);
        assert_eq!(now["far"]["lenders"][0]["per_s"]["read_bytes"], 4096);
        // One that has come since.
        let mut now = status(30, 8192);
        now["far"]["lenders"] = json!([{ "read_bytes": 1 }, { "read_bytes": 4 }]);
        rate(&mut now, &status(10, 1), 2.0);
        assert_eq!(now["far"]["lenders"][1]["per_s"]["read_bytes"], 2);
    }
}
