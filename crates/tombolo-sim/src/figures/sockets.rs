//! SDP §4.2: what starts a transfer, and how a connection begins and ends.

use super::{Claim, Class, Document, Figure, Kind, Report, named};
use crate::boards::pcie::machines;
use crate::hosts::SdpProgram;
use crate::kernel::{Span, Time};
use crate::platform::{Platform, PlatformError};
use tombolo_core::sdp::{
    Accept, Action, Config, Connect, Connection, Established, FREE, Hello, MAILBOXES, Received, Step,
};

const PLATFORM: &str = "pcie-ntb";
/// What figures of this file have in common.
const KIND: Kind = Kind { document: Document::Sdp, class: Class::Protocol, platform: PLATFORM };

/// Figures of this section.
pub const FIGURES: [Figure; 2] = [
    Figure { id: "S-START", document: Document::Sdp, run: starts },
    Figure { id: "S-CONN", document: Document::Sdp, run: connection },
];

/// Bytes that a connection gives to the other side after these calls.
fn given<R>(act: impl FnOnce(&mut Connection) -> R) -> Option<u32> {
    let mut connection = Connection::new(Config::default());
    drop(act(&mut connection));
    std::iter::from_fn(|| connection.poll()).find_map(|action| match action {
        Action::Publish { size, .. } if size > 0 => Some(size),
        _ => None,
    })
}

fn starts() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "S-START",
        "What starts a transfer",
        "SDP §4.2.2, 4.2.4",
        "the sender gathers what its program sends, until one of four things happens",
    );
    let Config { buffer_bytes, small_bytes } = Config::default();
    let some = 4 * small_bytes;
    let send = |connection: &mut Connection, bytes| connection.send(FREE, bytes).is_ok();
    for (what, found, wanted) in [
        ("some data alone start none", given(|one| send(one, some)), None),
        ("a full buffer does", given(|one| send(one, 2 * buffer_bytes)), Some(buffer_bytes)),
        ("small data do", given(|one| send(one, small_bytes)), Some(small_bytes)),
        (
            "a receive after a send does",
            given(|one| send(one, some) && one.receive(FREE, 1) == Ok(Received::Later)),
            Some(some),
        ),
        (
            "closing does",
            given(|one| {
                send(one, some);
                one.close(FREE);
            }),
            Some(some),
        ),
    ] {
        let said = found.map_or_else(|| "nothing leaves".into(), |bytes| format!("{bytes} bytes leave"));
        report.claims.push(Claim { what: what.into(), found: said, holds: found == wanted, note: None });
    }
    let both = [SdpProgram::Bounces { bytes: some, leads: true }; 2];
    let mut machines = machines(&platform, &[both])?;
    machines.world.run_until(Time::ZERO.after(Span::from_ns(20_000_000)));
    let messages = [0, 1].map(|number| machines.node(number).messages());
    report.claims.push(Claim {
        what: "both sides send, and then receive, again and again: neither waits for ever".into(),
        found: format!("{} and {} messages in 20 ms", messages[0], messages[1]),
        holds: messages.iter().all(|count| *count > 10),
        note: None,
    });
    Ok(report)
}

/// The registers, the buffers, and what has happened when.
struct Bridge {
    mail: [u32; MAILBOXES],
    /// The first word of the client's buffer, and who it is.
    word: u32,
    hello: Hello,
    now: Time,
    /// A load, and a write or an interrupt, over the bridge.
    load: Span,
    post: Span,
    wake: Span,
    signals: u32,
}

const SERVER: u32 = 1;
const CLIENT: u32 = 2;

impl Bridge {
    fn step(&mut self, step: Step) {
        let took = match step {
            Step::Write(mail, value) => {
                self.mail[mail as usize] = value;
                self.post
            }
            Step::Introduce(hello) => {
                (self.word, self.hello) = (0, hello);
                Span::ZERO
            }
            Step::Reply(buffer) => {
                self.word = buffer;
                self.post
            }
            Step::Signal => {
                self.signals += 1;
                // Who slept reads the registers.
                self.post.plus(self.wake).plus(self.load.times(MAILBOXES as u64))
            }
            Step::Read => self.load.times(3),
            Step::Clear | Step::Map(_) => Span::ZERO,
        };
        self.now = self.now.after(took);
    }

    fn server(&mut self, accept: &mut Accept) {
        while let Some(step) = accept.poll() {
            self.step(step);
            if step == Step::Read {
                accept.introduced(CLIENT, self.hello);
            }
        }
    }

    fn client(&mut self, connect: &mut Connect) {
        while let Some(step) = connect.poll() {
            self.step(step);
        }
    }
}

/// Both sides of a connection, and how long that took.
fn begun(platform: &Platform) -> Result<Option<(Established, Established, Bridge)>, PlatformError> {
    const PORT: u16 = 7_734;
    const TIMEOUT_NS: u64 = 1_000_000_000;
    let load = platform.span("load")?;
    let mut bridge = Bridge {
        mail: [0; MAILBOXES],
        word: 0,
        hello: Hello::default(),
        now: Time::ZERO,
        load,
        post: Span::from_picos(load.picos() / 2),
        wake: platform.span("wake")?,
        signals: 0,
    };
    let mut accept = Accept::new(PORT, 77, SERVER, TIMEOUT_NS);
    bridge.server(&mut accept);
    let now_ns = |bridge: &Bridge| bridge.now.of_core().0;
    let hello = Hello { address: 1, port: 40_000, id: 0 };
    let Ok(mut connect) = Connect::new(now_ns(&bridge), PORT, &bridge.mail, hello, CLIENT, TIMEOUT_NS) else {
        return Ok(None);
    };
    bridge.client(&mut connect);
    if accept.signalled(now_ns(&bridge), &bridge.mail).is_some() {
        return Ok(None);
    }
    bridge.server(&mut accept);
    let client = connect.signalled(bridge.word);
    bridge.client(&mut connect);
    let server = accept.signalled(now_ns(&bridge), &bridge.mail);
    Ok(client.zip(server).map(|(client, server)| (client, server, bridge)))
}

fn connection() -> Result<Report, PlatformError> {
    let platform = named(PLATFORM);
    let mut report = KIND.report(
        "S-CONN",
        "How a connection begins and ends",
        "SDP §4.2.3, Fig 4.4",
        "registers that both machines can write, and interrupts; then each has mapped the other's buffer",
    );
    let established = begun(&platform)?;
    report.claims.push(Claim {
        what: "after nine steps both sides have the same connection, and each the other's buffer".into(),
        found: established.as_ref().map_or_else(
            || "there is none".into(),
            |(.., bridge)| {
                let us = bridge.now.picos() as f64 / 1e6;
                format!("after {} interrupts and {us:.0} us", bridge.signals)
            },
        ),
        holds: established.as_ref().is_some_and(|(client, server, bridge)| {
            (client.id, client.buffer, server.buffer, bridge.signals) == (server.id, SERVER, CLIENT, 3)
        }),
        note: None,
    });
    let mut one = Connection::new(Config::default());
    let sent = one.send(FREE, 10_000).is_ok();
    one.close(FREE);
    let first: Vec<_> = std::iter::from_fn(|| one.poll()).collect();
    // The other side has taken it.
    one.signalled(FREE);
    let then: Vec<_> = std::iter::from_fn(|| one.poll()).collect();
    report.claims.push(Claim {
        what: "a side that closes says so when all that it has sent was taken".into(),
        found: format!("{} actions before that, {} after it", first.len(), then.len()),
        holds: sent && !first.contains(&Action::Finish) && then.last() == Some(&Action::Finish),
        note: None,
    });
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_holds() {
        for report in [starts(), connection()].map(|report| report.expect("constants")) {
            assert!(report.claims.iter().all(|claim| claim.holds), "{:?}", report.claims);
        }
    }
}
