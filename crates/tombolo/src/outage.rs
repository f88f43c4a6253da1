//! `--outage`: how long another node may be silent.

use std::time::Duration;

use clap::Args;
use tombolo_link::udp::SUSPECT_AFTER;

use crate::duration;
use tombolo_host::timing::link::MAX_OUTAGE;

/// How silence is dealt with.
#[derive(Args, Clone, Copy)]
pub struct OutageArguments {
    /// How long nothing may be heard of another node before it is lost, as 10s, 1.5s or 2m. What is
    /// under way waits meanwhile, and goes on when the link is back.
    #[arg(long, value_name = "TIME", value_parser = outage, default_value = DEFAULT)]
    outage: Duration,
}

/// As links have it.
const DEFAULT: &str = "10s";

impl OutageArguments {
    /// How long.
    pub fn outage(self) -> Duration {
        self.outage
    }
}

fn outage(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text)?;
    if time < SUSPECT_AFTER {
        return Err(format!(
            "{text} is less than {} s, after which silence is noticed at all",
            SUSPECT_AFTER.as_secs_f64()
        ));
    }
    if time > MAX_OUTAGE {
        return Err(format!("{text} is more than a day"));
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use tombolo_link::udp::DEFAULT_OUTAGE;

    use super::*;

    #[test]
    fn times_are_written_with_their_units() {
        assert_eq!(outage(DEFAULT), Ok(DEFAULT_OUTAGE));
        for (text, milliseconds) in [("1.5s", 1500), ("1500ms", 1500), ("2m", 120_000), ("1h", 3_600_000)] {
            assert_eq!(outage(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "1", "s", "1.s.s", "-3s", "3 s", "3d", "1s", "0s", "25h", "1e9s", "nans"] {
            assert!(outage(text).is_err(), "{text}");
        }
    }
}
