//! Small transfers while a large one is under way: what the classes are for.

use std::time::Instant;

use serde::Serialize;
use tombolo_client::{Spec, Status, Transfer};

use super::pair::Pair;
use super::{AREA, Engine, PATIENCE, Route, SAMPLES, WARM_UP};
use crate::Failure;
use crate::bench::summary::{Samples, Summary};

const SMALL_BYTES: u32 = 64;
/// The large transfers that follow each other, until so many bytes in all.
const LARGE_BYTES: usize = AREA / 2;
const ALTOGETHER: usize = 1 << 30;

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
        self.domain.write(self.there, spec)?.wait(PATIENCE)?;
        Ok(since.elapsed().as_nanos() as u64)
    }

    fn large(&self) -> Result<Transfer, Failure> {
        let offset = (AREA / 4) as u64;
        let (mine, theirs) = (self.memory.address() + offset, self.far_address + offset);
        Ok(self.domain.write(self.there, Spec::new(mine, theirs, LARGE_BYTES as u32))?)
    }

    /// Small writes alone, and beside large ones.
    pub fn interference(&self) -> Result<(Summary, Summary), Failure> {
        let (mut idle, mut busy) = (Samples::new(SAMPLES)?, Samples::new(SAMPLES)?);
        for number in 0..WARM_UP + SAMPLES / 4 {
            let latency_ns = self.small()?;
            if number >= WARM_UP {
                idle.note(latency_ns);
            }
        }
        // Memory that a node has not touched yet costs a fault a page.
        self.large()?.wait(PATIENCE)?;
        let mut under_way = self.large()?;
        let mut moved = 0;
        while moved < ALTOGETHER {
            let latency_ns = self.small()?;
            if under_way.status() == Status::Ongoing {
                busy.note(latency_ns);
                continue;
            }
            under_way.wait(PATIENCE)?;
            moved += LARGE_BYTES;
            under_way = self.large()?;
        }
        under_way.wait(PATIENCE)?;
        Ok((idle.summary()?, busy.summary()?))
    }
}
