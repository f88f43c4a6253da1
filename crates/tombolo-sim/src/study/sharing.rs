//! Nodes that share an interface.

use tombolo_core::nic::Coalescing;

use super::StudyError;
use super::outcome::Outcome;
use super::scenario::{Interface, Traffic};
use crate::boards::microzed::{self, Setup};
use crate::platform::Platform;

pub(super) fn run(platform: &Platform, interface: &Interface) -> Result<Outcome, StudyError> {
    let coalescing = Coalescing {
        frames: interface.frames_to_interrupt.max(1),
        after_ns: interface.interrupt_after_us.saturating_mul(1_000),
        is_adaptive: false,
    };
    let setup = Setup {
        nodes: interface.nodes.clamp(1, 64),
        traffic: match interface.traffic {
            Traffic::BareMetal => microzed::Traffic::BareMetal,
            Traffic::Raw => microzed::Traffic::Raw,
            Traffic::Tcp => microzed::Traffic::Tcp,
        },
        sends: interface.sends,
        receives: interface.receives,
        flows: usize::from(interface.flows.max(1)),
        coalescing,
    };
    let rates = microzed::run(platform, &setup)?;
    let bytes = platform.count(if interface.traffic == Traffic::Tcp { "payload" } else { "frame" })?;
    let gigabits = |frames: f64| frames * bytes as f64 * 8.0 / 1e9;
    let mut outcome = Outcome::new(rates.trace);
    outcome.add("sent_gbit_per_s", gigabits(rates.sent.iter().sum()));
    outcome.add("received_gbit_per_s", gigabits(rates.received.iter().sum()));
    outcome.add("busy_percent", rates.busy * 100.0);
    outcome.add("interrupts_per_s", rates.interrupts);
    for (number, (sent, received)) in rates.sent.iter().zip(&rates.received).enumerate() {
        let values = [("sent_gbit_per_s", gigabits(*sent)), ("received_gbit_per_s", gigabits(*received))];
        outcome
            .parts
            .push((format!("node {number}"), values.map(|(name, value)| (name.to_owned(), value)).to_vec()));
    }
    Ok(outcome)
}
