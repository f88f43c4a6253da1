//! What was measured: of whom, what, at which size, in each run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::median;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// Half of the latencies are no longer.
    MedianNs,
    /// Their sum by their number.
    MeanNs,
    /// 99 of 100 are no longer.
    P99Ns,
    /// Throughput.
    BytesPerS,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::MedianNs => "median_ns",
            Self::MeanNs => "mean_ns",
            Self::P99Ns => "p99_ns",
            Self::BytesPerS => "bytes_per_s",
        }
    }
}

/// A party under a congestion control.
pub fn under(who: &str, control: Option<&str>) -> String {
    control.map_or_else(|| who.to_owned(), |control| format!("{who}, {control}"))
}

/// The better of several congestion controls, or the only figure there is.
#[derive(Clone, Debug, PartialEq)]
pub struct Best {
    pub value: f64,
    /// Under which it was, of a party that was measured under several.
    pub control: Option<String>,
}

/// All figures. A party that failed at a size in one run has none at this size:
/// other runs may not hide it.
#[derive(Debug, Default)]
pub struct Figures {
    runs: BTreeMap<(String, What, u64), Vec<f64>>,
    missing: BTreeMap<(String, u64), String>,
}

impl Figures {
    /// Notes what a run found. What is no positive number was not measured.
    pub fn note(&mut self, who: &str, what: What, size_bytes: u64, value: f64) {
        if value.is_finite() && value > 0.0 {
            self.runs.entry((who.to_owned(), what, size_bytes)).or_default().push(value);
        }
    }

    /// Notes that there is no figure, and why; the first reason is kept.
    pub fn fail(&mut self, who: &str, size_bytes: u64, reason: &str) {
        self.missing.entry((who.to_owned(), size_bytes)).or_insert_with(|| reason.to_owned());
    }

    /// Whether it failed.
    pub fn is_missing(&self, who: &str, size_bytes: u64) -> bool {
        self.missing.contains_key(&(who.to_owned(), size_bytes))
    }

    /// The median over the runs.
    pub fn get(&self, who: &str, what: What, size_bytes: u64) -> Option<f64> {
        if self.is_missing(who, size_bytes) {
            return None;
        }
        median(self.runs.get(&(who.to_owned(), what, size_bytes))?)
    }

    /// A typical latency: the median, or the mean where there is no median.
    fn latency(&self, who: &str, size_bytes: u64) -> Option<f64> {
        self.get(who, What::MedianNs, size_bytes).or_else(|| self.get(who, What::MeanNs, size_bytes))
    }

    /// Variants of a party: itself, and itself under each congestion control.
    fn variants(&self, who: &str) -> BTreeSet<(&str, Option<&str>)> {
        let control_of = |name: &str| name.strip_prefix(who)?.strip_prefix(", ").map(str::len);
        let names = self.runs.keys().map(|(name, _, _)| name.as_str());
        names
            .filter_map(|name| match control_of(name) {
                Some(length) => Some((name, name.get(name.len() - length..))),
                None => (name == who).then_some((name, None)),
            })
            .collect()
    }

    /// The shortest latency of a party's variants, in nanoseconds: medians, or means where there are no medians.
    pub fn best_latency(&self, who: &str, size_bytes: u64) -> Option<Best> {
        self.shortest(who, |name| self.latency(name, size_bytes))
    }

    /// The shortest mean, or the shortest median, of a party's variants, in nanoseconds.
    pub fn best_of(&self, who: &str, what: What, size_bytes: u64) -> Option<f64> {
        self.shortest(who, |name| self.get(name, what, size_bytes)).map(|best| best.value)
    }

    fn shortest(&self, who: &str, latency: impl Fn(&str) -> Option<f64>) -> Option<Best> {
        let found = self.variants(who).into_iter().filter_map(|(name, control)| {
            Some(Best { value: latency(name)?, control: control.map(str::to_owned) })
        });
        found.min_by(|one, other| one.value.total_cmp(&other.value))
    }

    /// The highest throughput of a party's variants.
    pub fn best_throughput(&self, who: &str, size_bytes: u64) -> Option<Best> {
        let found = self.variants(who).into_iter().filter_map(|(name, control)| {
            let value = self.get(name, What::BytesPerS, size_bytes)?;
            Some(Best { value, control: control.map(str::to_owned) })
        });
        found.max_by(|one, other| one.value.total_cmp(&other.value))
    }

    /// Why there are no figures: each party with a reason, and at which sizes.
    pub fn missing(&self) -> Vec<(&str, &str, Vec<u64>)> {
        let mut found: Vec<(&str, &str, Vec<u64>)> = Vec::new();
        for ((who, size), reason) in &self.missing {
            match found.iter_mut().find(|(other, cause, _)| other == who && cause == reason) {
                Some((_, _, sizes)) => sizes.push(*size),
                None => found.push((who, reason, vec![*size])),
            }
        }
        found
    }

    /// All of them, with every run.
    pub fn json(&self) -> Value {
        let figures = self.runs.iter().map(|((who, what, size_bytes), runs)| {
            json!({
                "who": who,
                "what": what.name(),
                "size_bytes": size_bytes,
                "median": self.get(who, *what, *size_bytes),
                "runs": runs,
            })
        });
        figures.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_its_runs() {
        let mut figures = Figures::default();
        for value in [5.0, 900.0, 6.0] {
            figures.note("a", What::MeanNs, 64, value);
        }
        assert_eq!(figures.get("a", What::MeanNs, 64), Some(6.0));
        assert_eq!(figures.get("a", What::MedianNs, 64), None);
        assert_eq!(figures.get("a", What::MeanNs, 65), None);
    }

    #[test]
    fn one_failure_is_not_hidden_by_other_runs() {
        let mut figures = Figures::default();
        figures.note("a", What::MeanNs, 64, 5.0);
        figures.fail("a", 64, "killed");
        figures.fail("a", 64, "later");
        figures.fail("a", 256, "killed");
        figures.note("a", What::MeanNs, 64, 5.0);
        assert_eq!(figures.get("a", What::MeanNs, 64), None);
        assert_eq!(figures.best_latency("a", 64), None);
        assert_eq!(figures.missing(), [("a", "killed", vec![64, 256])]);
        assert_eq!(figures.json()[0]["median"], Value::Null);
    }

    #[test]
    fn no_time_at_all_is_no_figure() {
        let mut figures = Figures::default();
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            figures.note("a", What::MeanNs, 64, value);
        }
        assert_eq!(figures.get("a", What::MeanNs, 64), None);
    }

    #[test]
    fn the_better_congestion_control_counts_at_each_size() {
        let mut figures = Figures::default();
        for (control, small, large) in [("cubic", 7.0, 9e9), ("bbr", 5.0, 4e9)] {
            let who = under("a tcp", Some(control));
            figures.note(&who, What::MedianNs, 64, small);
            figures.note(&who, What::BytesPerS, 64, large);
        }
        figures.note("a tcp;other, cubic", What::MedianNs, 64, 1.0);
        let best = |value, control: &str| Some(Best { value, control: Some(control.into()) });
        assert_eq!(figures.best_latency("a tcp", 64), best(5.0, "bbr"));
        assert_eq!(figures.best_throughput("a tcp", 64), best(9e9, "cubic"));
        assert_eq!(figures.best_of("a tcp", What::MedianNs, 64), Some(5.0));
        assert_eq!(figures.best_of("a tcp", What::MeanNs, 64), None);
        figures.note("b", What::MeanNs, 64, 3.0);
        assert_eq!(figures.best_latency("b", 64), Some(Best { value: 3.0, control: None }));
    }
}
