//! Small transfers while a large one is under way: what the classes are for.

use std::time::Instant;

use serde::Serialize;
use tombolo_client::{Spec, Status, Transfer};

use super::pair::Pair;
use super::{ANSWER_TIMEOUT, AREA, Engine, Route, WARM_UP};
use crate::Failure;
use crate::summary::{Samples, Summary};

const SMALL_BYTES: u32 = 64;
/// Size of a large transfer. They follow each other until [`ALTOGETHER`] bytes have moved.
const LARGE_BYTES: usize = AREA / 2;
const ALTOGETHER: usize = 1 << 30;
/// The large transfers pause this often, and this many small ones run alone.
const TURNS: usize = 8;
const IDLE: usize = 1000;
/// The most small transfers beside them that are noted.
const MOST_BUSY: usize = 1 << 20;

/// Latencies of small writes.
#[derive(Debug, Serialize)]
pub struct Interference {
    pub link: Route,
    pub how: Engine,
    /// With nothing else under way.
    pub idle: Summary,
    /// Beside a large transfer.
    pub busy: Summary,
}

impl Pair {
    fn small(&self) -> Result<u64, Failure> {
        let since = Instant::now();
        let spec = Spec::new(self.memory.address(), self.far_address, SMALL_BYTES);
        self.domain.write(self.there, spec)?.wait(ANSWER_TIMEOUT)?;
        Ok(since.elapsed().as_nanos() as u64)
    }

    fn large(&self) -> Result<Transfer, Failure> {
        let offset = (AREA / 4) as u64;
        let (mine, theirs) = (self.memory.address() + offset, self.far_address + offset);
        Ok(self.domain.write(self.there, Spec::new(mine, theirs, LARGE_BYTES as u32))?)
    }

    /// Small writes alone, and beside large ones: by turns, so that what else disturbs the machine disturbs
    /// both.
    pub fn interference(&self) -> Result<(Summary, Summary), Failure> {
        let (mut idle, mut busy) = (Samples::new(IDLE * TURNS)?, Samples::new(MOST_BUSY)?);
        // Memory that a node has not touched yet costs a fault a page.
        self.large()?.wait(ANSWER_TIMEOUT)?;
        for _ in 0..TURNS {
            for number in 0..WARM_UP + IDLE {
                let latency_ns = self.small()?;
                if number >= WARM_UP {
                    idle.note(latency_ns);
                }
            }
            for _ in 0..ALTOGETHER / TURNS / LARGE_BYTES {
                let large = self.large()?;
                loop {
                    let latency_ns = self.small()?;
                    // One that outlasts the large one was partly alone.
                    if large.status() != Status::Ongoing {
                        break;
                    }
                    busy.note(latency_ns);
                }
                large.wait(ANSWER_TIMEOUT)?;
            }
        }
        Ok((idle.summary()?, busy.summary()?))
    }
}
