//! When people are told that a lender or a link is silent, and that it answers again.

use std::time::{Duration, Instant};

/// The silence of a lender or a link, and what people were last told about it.
#[derive(Debug, Default)]
pub(crate) struct Silence {
    /// Since when it has been silent.
    began: Option<Instant>,
    /// When people were last told that it is silent.
    since: Option<Instant>,
    is_silent: bool,
}

impl Silence {
    /// Shortest time between two reports that it is silent, so that a link that comes and goes does not fill the log.
    const PAUSE: Duration = Duration::from_secs(30);

    /// Notes whether it is silent. Returns for how long it has been silent.
    pub(crate) fn note(&mut self, is_silent: bool, now: Instant) -> Duration {
        match is_silent {
            true => now.duration_since(*self.began.get_or_insert(now)),
            false => {
                self.began = None;
                Duration::ZERO
            }
        }
    }

    /// For how long it has been silent, if it is.
    pub(crate) fn lasts(&self) -> Option<Duration> {
        Some(self.began?.elapsed())
    }

    /// Whether to tell people that it is silent now, or that it answers again.
    pub(crate) fn is_news(&mut self, is_silent: bool, now: Instant) -> bool {
        if is_silent == self.is_silent {
            return false;
        }
        if is_silent && self.since.is_some_and(|since| now.duration_since(since) < Self::PAUSE) {
            return false;
        }
        self.is_silent = is_silent;
        if is_silent {
            self.since = Some(now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_and_its_end_are_told_and_not_too_often() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut silence = Silence::default();
        let told: Vec<bool> = [
            (false, 0),
            (true, 1),
            (true, 2),
            (false, 3),
            // Silent again, too soon after the last report: neither this silence nor its end is told.
            (true, 10),
            (false, 11),
            (true, 40),
            (false, 41),
        ]
        .into_iter()
        .map(|(is_silent, seconds)| silence.is_news(is_silent, at(seconds)))
        .collect();
        assert_eq!(told, [false, true, false, true, false, false, true, true]);
    }
}
