//! `tombolo ping`: round trips of the engine to a node, by each of its addresses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;
use tombolo_host::timing::command::{MAX_PING_TIMEOUT, PING_CHECK_INTERVAL, PING_TIMEOUT};
use tombolo_node::{Address, MAX_PING_BYTES, PingError, Pinger, Security};

use crate::asked::NodeArguments;
use crate::failure::Failure;
use crate::size::Size;
use crate::{duration, output};

/// Arguments of `tombolo ping`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    node: NodeArguments,
    /// How many, by each address; until interrupted unless given.
    #[arg(long, short)]
    count: Option<u64>,
    /// How many bytes each writes, at most 4K.
    #[arg(long, default_value = "64")]
    size: Size,
    /// Milliseconds between two; 0: one after the other.
    #[arg(long, default_value_t = 1000)]
    interval: u64,
    /// How long an answer may take, as 10s or 500ms; at most a minute, and three seconds unless given.
    #[arg(long, value_name = "TIME", value_parser = timeout)]
    timeout: Option<Duration>,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text)?;
    if time.is_zero() {
        return Err(format!("{text} is no time for an answer"));
    }
    if time > MAX_PING_TIMEOUT {
        return Err(format!("{text} is more than a minute"));
    }
    Ok(time)
}

/// The result for one address.
#[derive(Debug, Serialize)]
struct Outcome {
    address: String,
    size_bytes: u64,
    sent: u64,
    answered: u64,
    min_us: f64,
    median_us: f64,
    p99_us: f64,
    max_us: f64,
}

static STOP: AtomicBool = AtomicBool::new(false);
/// Pings that are not counted: the first one finds caches and processors cold.
const WARM_UP: u64 = 1;

/// One way to the node, until it fails.
struct Way<'a> {
    address: &'a Address,
    pinger: Option<Pinger>,
    timeout: Duration,
    sent: u64,
    times: Times,
}

/// Round trips, in as much memory as for one however many there are.
struct Times {
    histogram_ns: Histogram<u64>,
    /// The shortest, exactly: the histogram rounds to three digits.
    min: Duration,
    max: Duration,
}

impl Times {
    /// The longest that the histogram tells apart: as long as a ping may wait.
    const MAX_NS: u64 = MAX_PING_TIMEOUT.as_secs() * 1_000_000_000;

    fn new() -> Self {
        let histogram_ns = Histogram::new_with_bounds(1, Self::MAX_NS, 3)
            .unwrap_or_else(|_| unreachable!("the bounds are constants that it takes"));
        Self { histogram_ns, min: Duration::MAX, max: Duration::ZERO }
    }

    fn record(&mut self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.histogram_ns.saturating_record(nanoseconds);
        (self.min, self.max) = (self.min.min(time), self.max.max(time));
    }

    fn count(&self) -> u64 {
        self.histogram_ns.len()
    }

    /// Minimum, median, 99th percentile and maximum; zeros if there were no pings.
    fn summary_us(&self) -> [f64; 4] {
        if self.count() == 0 {
            return [0.0; 4];
        }
        let microseconds = |time: Duration| time.as_nanos() as f64 / 1000.0;
        let (min, max) = (microseconds(self.min), microseconds(self.max));
        let at = |quantile| (self.histogram_ns.value_at_quantile(quantile) as f64 / 1000.0).clamp(min, max);
        [min, at(0.5), at(0.99), max]
    }
}

impl<'a> Way<'a> {
    fn new(address: &'a Address, timeout: Duration) -> Self {
        Self { address, pinger: None, timeout, sent: 0, times: Times::new() }
    }

    fn open(&mut self, size: u32, security: &Security) -> Result<(), PingError> {
        let mut pinger = Pinger::new(self.address, security, self.timeout)?;
        for _ in 0..WARM_UP {
            pinger.ping(size, self.timeout)?;
        }
        self.pinger = Some(pinger);
        Ok(())
    }

    /// Pings once. After an error this address is not pinged again.
    fn ping(&mut self, size: u32, silent: bool) {
        let Some(pinger) = &mut self.pinger else { return };
        self.sent += 1;
        match pinger.ping(size, self.timeout) {
            Ok(time) => {
                let microseconds = time.as_nanos() as f64 / 1000.0;
                self.times.record(time);
                if !silent {
                    output::line(&format!(
                        "{size} bytes to {}: {}: {microseconds:.1} µs",
                        self.address, self.sent
                    ));
                }
            }
            Err(error) => {
                output::say(&format!("{}: {}: {error}", self.address, self.sent));
                self.pinger = None;
            }
        }
    }

    fn outcome(self, size: u32) -> Outcome {
        let [min_us, median_us, p99_us, max_us] = self.times.summary_us();
        let (address, answered) = (self.address.to_string(), self.times.count());
        let (size_bytes, sent) = (size.into(), self.sent);
        Outcome { address, size_bytes, sent, answered, min_us, median_us, p99_us, max_us }
    }
}

/// Pings until the count is reached or an interrupt comes. Fails where one was not answered.
pub fn main(arguments: &Arguments) -> Result<u8, Failure> {
    let size = u32::try_from(arguments.size.0).ok().filter(|size| *size <= MAX_PING_BYTES);
    let Some(size) = size else {
        return Err(Failure::new(format!(
            "--size {} is more than {}",
            arguments.size,
            Size(MAX_PING_BYTES.into())
        )));
    };
    tombolo_host::stops::stop_on_signals(&STOP);
    let address = arguments.node.ways("ping")?;
    let ask = &arguments.node.ask;
    let security = ask.security(&address)?;
    let several = address.are_several();
    let timeout = arguments.timeout.unwrap_or(PING_TIMEOUT);
    let mut ways: Vec<Way<'_>> = address.iter().map(|way| Way::new(way, timeout)).collect();
    for way in &mut ways {
        match way.open(size, &security) {
            Err(error) if several => output::say(&format!("{}: {error}", way.address)),
            opened => opened?,
        }
    }
    let mut round = 0;
    // Output fails when the reader has gone or the disk is full: then more pings are of no use.
    let stopped = || STOP.load(Ordering::Relaxed) || output::failed();
    let goes_on = |round| !stopped() && arguments.count.is_none_or(|count| round < count);
    while goes_on(round) && ways.iter().any(|way| way.pinger.is_some()) {
        if round > 0 && arguments.interval > 0 {
            pause(Duration::from_millis(arguments.interval), &stopped);
            if stopped() {
                break;
            }
        }
        round += 1;
        ways.iter_mut().for_each(|way| way.ping(size, ask.json));
    }
    let outcomes: Vec<Outcome> = ways.into_iter().map(|way| way.outcome(size)).collect();
    match (ask.json, several, outcomes.first()) {
        (true, false, Some(only)) => output::json(only)?,
        (true, ..) => output::json(&serde_json::json!({ "addresses": outcomes }))?,
        (false, ..) => outcomes.iter().for_each(|outcome| say(outcome, several)),
    }
    Ok(u8::from(outcomes.iter().any(|outcome| outcome.answered < outcome.sent || outcome.answered == 0)))
}

/// Sleeps for so long, or until it is to stop: a sleep of the standard library goes on after a signal.
fn pause(interval: Duration, is_stopped: &dyn Fn() -> bool) {
    let since = Instant::now();
    while !is_stopped() {
        let left = interval.saturating_sub(since.elapsed());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(PING_CHECK_INTERVAL));
    }
}

fn say(outcome: &Outcome, several: bool) {
    let Outcome { address, sent, answered, min_us, median_us, p99_us, max_us, .. } = outcome;
    let whose = if several { format!("{address}: ") } else { String::new() };
    if *answered > 0 {
        output::line(&format!(
            "{whose}{sent} sent, {answered} answered; least {min_us:.1}, median {median_us:.1}, 99 % {p99_us:.1}, most {max_us:.1} µs"
        ));
    } else if several {
        output::line(&format!("{whose}{sent} sent, none answered"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up_within_a_thousandth() {
        let mut times = Times::new();
        assert_eq!(times.summary_us(), [0.0; 4]);
        for microseconds in 1..=1000 {
            times.record(Duration::from_micros(microseconds));
        }
        let [min, median, high, max] = times.summary_us();
        assert_eq!((times.count(), min, max), (1000, 1.0, 1000.0));
        assert!((499.0..=501.0).contains(&median) && (988.0..=992.0).contains(&high), "{median} {high}");
        times.record(Duration::from_secs(3600));
        assert_eq!(times.summary_us()[3], 3.6e9);
    }

    #[test]
    fn an_answer_may_take_a_minute_at_most() {
        assert_eq!(timeout("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(timeout("1m"), Ok(MAX_PING_TIMEOUT));
        for (text, error) in [("61s", "more than a minute"), ("0", "no time for"), ("soon", "no length of")] {
            assert!(timeout(text).unwrap_err().contains(error), "{text}");
        }
    }

    #[test]
    fn a_pause_ends_when_it_is_over_or_is_to_stop() {
        let looks = std::cell::Cell::new(0);
        pause(Duration::from_millis(1), &|| false);
        // An hour, but for the third look.
        pause(Duration::from_secs(3600), &|| {
            looks.set(looks.get() + 1);
            looks.get() == 3
        });
        assert_eq!(looks.get(), 3);
    }
}
