//! `tombolo ping`: round trips of the engine to a node, by each of its addresses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tombolo_host::timing::command::PING_TIMEOUT;
use tombolo_node::{Address, MAX_PING_BYTES, PingError, Pinger, Security};

use crate::asked::NodeArguments;
use crate::size::Size;
use crate::{Failure, output};

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
}

/// What all of them come to, by one address.
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
/// The first finds caches and processors cold, and is not counted.
const WARM_UP: u64 = 1;

/// One way to the node, until it fails.
struct Way<'a> {
    address: &'a Address,
    pinger: Option<Pinger>,
    sent: u64,
    times_us: Vec<f64>,
}

impl<'a> Way<'a> {
    fn new(address: &'a Address) -> Self {
        Self { address, pinger: None, sent: 0, times_us: Vec::new() }
    }

    fn open(&mut self, size: u32, security: &Security) -> Result<(), PingError> {
        let mut pinger = Pinger::new(self.address, security, PING_TIMEOUT)?;
        for _ in 0..WARM_UP {
            pinger.ping(size, PING_TIMEOUT)?;
        }
        self.pinger = Some(pinger);
        Ok(())
    }

    /// Pings once; an error is the last thing that it has.
    fn ping(&mut self, size: u32, silent: bool) {
        let Some(pinger) = &mut self.pinger else { return };
        self.sent += 1;
        match pinger.ping(size, PING_TIMEOUT) {
            Ok(time) => {
                let microseconds = time.as_nanos() as f64 / 1000.0;
                self.times_us.push(microseconds);
                if !silent {
                    output::line(&format!(
                        "{size} bytes to {}: {}: {microseconds:.1} µs",
                        self.address, self.sent
                    ));
                }
            }
            Err(error) => {
                eprintln!("tombolo: {}: {}: {error}", self.address, self.sent);
                self.pinger = None;
            }
        }
    }

    fn outcome(mut self, size: u32) -> Outcome {
        self.times_us.sort_by(f64::total_cmp);
        let last = self.times_us.len().saturating_sub(1) as f64;
        let at = |part: f64| self.times_us.get((last * part).round() as usize).copied().unwrap_or(0.0);
        let [min_us, median_us, p99_us, max_us] = [0.0, 0.5, 0.99, 1.0].map(at);
        let (address, answered) = (self.address.to_string(), self.times_us.len() as u64);
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
    tombolo_host::process::stop_on_signals(&STOP);
    let NodeArguments { address, ask } = &arguments.node;
    let security = ask.security(address)?;
    let several = address.are_several();
    let mut ways: Vec<Way<'_>> = address.iter().map(Way::new).collect();
    for way in &mut ways {
        match way.open(size, &security) {
            Err(error) if several => eprintln!("tombolo: {}: {error}", way.address),
            opened => opened?,
        }
    }
    let mut round = 0;
    // Nobody reads on, or the disk is full: there is nothing to go on for.
    let stopped = || STOP.load(Ordering::Relaxed) || output::failed();
    let goes_on = |round| !stopped() && arguments.count.is_none_or(|count| round < count);
    while goes_on(round) && ways.iter().any(|way| way.pinger.is_some()) {
        if round > 0 && arguments.interval > 0 {
            std::thread::sleep(Duration::from_millis(arguments.interval));
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
