//! What comes of a run.

use serde::Serialize;

use crate::kernel::{Time, Trace};
use crate::parts::Slice;

/// What comes of a run: values under names, in an order that only depends on the scenario's shape.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The values.
    pub values: Vec<(String, f64)>,
    /// Every counter of every machine, and how much each part was busy.
    pub parts: Vec<(String, Vec<(String, f64)>)>,
    /// A hash of all that has happened.
    pub trace_hash: String,
    /// What parts did when, if that was kept.
    #[serde(skip)]
    pub tracks: Vec<Track>,
    /// From when on they are incomplete: a timeline keeps so many slices and no more.
    #[serde(skip)]
    pub tracks_cut_at: Option<Time>,
}

/// A track of a timeline: on it one thing follows the other, or, of transfers, several are under way.
#[derive(Clone, Debug)]
pub struct Track {
    /// Its part, by name.
    pub part: String,
    /// Its name.
    pub name: &'static str,
    /// What stands on it.
    pub slices: Vec<Slice>,
}

impl Outcome {
    pub(super) fn new(trace: Trace) -> Self {
        Self {
            values: Vec::new(),
            parts: Vec::new(),
            trace_hash: trace.to_string(),
            tracks: Vec::new(),
            tracks_cut_at: None,
        }
    }

    pub(super) fn add(&mut self, name: impl Into<String>, value: f64) {
        self.values.push((name.into(), value));
    }

    /// A value by its name.
    pub fn value(&self, name: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }

    /// Puts slices on tracks, by part and track.
    pub(super) fn keep(&mut self, mut slices: Vec<Slice>, name: impl Fn(crate::kernel::PartId) -> String) {
        slices.sort_by_key(|slice| (slice.part, slice.track, slice.from, slice.to));
        for slice in slices {
            let is_next = self
                .tracks
                .last()
                .and_then(|track| track.slices.last())
                .is_some_and(|last| (last.part, last.track) == (slice.part, slice.track));
            if !is_next {
                self.tracks.push(Track { part: name(slice.part), name: slice.track, slices: Vec::new() });
            }
            if let Some(track) = self.tracks.last_mut() {
                track.slices.push(slice);
            }
        }
    }
}

/// The value below which a part of these, sorted, lies, in percent; 0 of none.
pub(super) fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(0.0)
}

/// Of the time until a moment, how much, in percent.
pub(super) fn busy_percent(busy: crate::kernel::Span, until: Time) -> f64 {
    busy.picos() as f64 * 100.0 / until.picos().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_there() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [0, 1, 50, 99, 100].map(|percent| percentile(&values, percent)),
            [1.0, 1.0, 50.0, 99.0, 100.0]
        );
        assert_eq!((percentile(&[7.0], 99), percentile(&[], 50)), (7.0, 0.0));
    }
}
