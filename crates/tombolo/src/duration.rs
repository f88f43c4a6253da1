//! Lengths of time as people write them: `30s`, `500ms`, `2m`, `1h`, `0`.

use std::time::Duration;

/// The longest that is accepted, a year and a day: more is a mistake. It bounds what is written, not a wait, so it
/// stands here and not in `timing`.
const MAX: Duration = Duration::from_secs(366 * 86400);

/// A length of time; a number without a unit is one of seconds.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no length of time: expected a number with ms, s, m or h, as in 30s");
    let split = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_s = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let found = Duration::try_from_secs_f64(number * unit_s).ok().filter(|found| *found <= MAX);
    found.ok_or_else(|| format!("`{text}` is longer than a year"))
}

/// The length of time in the unit that fits.
pub fn shown(duration: Duration) -> String {
    match duration.as_secs() {
        0 => format!("{} ms", duration.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} days", seconds / 86400),
    }
}

/// So many seconds in the unit that fits.
pub fn shown_s(seconds: u64) -> String {
    if seconds == 0 { "0 s".to_owned() } else { shown(Duration::from_secs(seconds)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, milliseconds) in
            [("0", 0), ("30", 30_000), ("1.5s", 1500), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "s", "-1s", "1d", "1..5s", "1e3", "nan", "99999999999h"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let shown_as = [400, 30_000, 600_000, 7_200_000].map(|time| shown(Duration::from_millis(time)));
        assert_eq!(shown_as, ["400 ms", "30 s", "10 min", "2 h"]);
        assert_eq!([0, 119, 172_800].map(shown_s), ["0 s", "119 s", "2 days"]);
    }
}
