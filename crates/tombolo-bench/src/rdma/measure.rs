//! Latencies and rates of one kind of transfer.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tombolo_client::{Atomic, Notification, Spec, Transfer};

use super::pair::Pair;
use super::{ANSWER_TIMEOUT, BYTES, DISCARD, ECHO, Operation, Places, SAMPLES, WARM_UP, WINDOW, WORDS, long};
use crate::Failure;
use crate::summary::{Samples, Summary};

/// Something under way.
enum Started {
    Transfer(Transfer),
    Atomic(Atomic),
}

impl Started {
    fn wait(&self) -> Result<(), Failure> {
        match self {
            Self::Transfer(transfer) => transfer.wait(ANSWER_TIMEOUT)?,
            Self::Atomic(atomic) => {
                atomic.wait(ANSWER_TIMEOUT)?;
            }
        }
        Ok(())
    }
}

impl Pair {
    fn post(&self, op: Operation, at: usize, size: usize) -> Result<Started, Failure> {
        let (mine, theirs) = (self.memory.address() + at as u64, self.far_address + at as u64);
        Ok(match op {
            Operation::Write | Operation::PingPong => {
                Started::Transfer(self.domain.write(self.there, Spec::new(mine, theirs, size as u32))?)
            }
            Operation::Read => {
                Started::Transfer(self.domain.read(self.there, Spec::new(theirs, mine, size as u32))?)
            }
            Operation::Atomic => {
                Started::Atomic(self.domain.fetch_add(self.there, self.far_address + WORDS as u64 + 64, 1)?)
            }
            Operation::Mailbox => Started::Transfer(self.domain.send(self.there, &vec![DISCARD; size])?),
        })
    }

    /// From posting to done, or half of there and back.
    pub fn latency(&self, op: Operation, size: usize) -> Result<Summary, Failure> {
        let mut samples = Samples::new(SAMPLES)?;
        let mut places = Places::new(size);
        let mut begin = Instant::now();
        let mut under_way = VecDeque::new();
        let mut turn = self.memory.word(WORDS + 8)?.load(Ordering::Acquire);
        for number in 0..WARM_UP + SAMPLES {
            if number == WARM_UP {
                begin = Instant::now();
            }
            let at = places.next();
            let since = Instant::now();
            let trips = match op {
                Operation::PingPong => {
                    turn += 1;
                    under_way.push_back(self.ping(size, turn)?);
                    self.await_pong(turn)?;
                    2
                }
                Operation::Mailbox => {
                    under_way.push_back(self.domain.send(self.there, &vec![ECHO; size])?);
                    self.mailbox.receive(ANSWER_TIMEOUT)?;
                    2
                }
                Operation::Write | Operation::Read | Operation::Atomic => {
                    self.post(op, at, size)?.wait()?;
                    1
                }
            };
            if number >= WARM_UP {
                samples.note(since.elapsed().as_nanos() as u64 / trips);
            }
            if under_way.len() > 4
                && let Some(oldest) = under_way.pop_front()
            {
                oldest.wait(ANSWER_TIMEOUT)?;
            }
            if number > WARM_UP && begin.elapsed() > long() {
                break;
            }
        }
        samples.summary()
    }

    fn ping(&self, size: usize, turn: u64) -> Result<Transfer, Failure> {
        let words = Notification { address: self.far_address + WORDS as u64, first: size as u64, last: turn };
        let spec = Spec::new(self.memory.address(), self.far_address, size as u32).notify(words);
        Ok(self.domain.write(self.there, spec)?)
    }

    fn await_pong(&self, turn: u64) -> Result<(), Failure> {
        let word = self.memory.word(WORDS + 8)?;
        let since = Instant::now();
        loop {
            // The clock costs as much as some looks.
            for _ in 0..32 {
                self.progress();
                if word.load(Ordering::Acquire) == turn {
                    return Ok(());
                }
            }
            if since.elapsed() > ANSWER_TIMEOUT {
                return Err(Failure::new("the other program does not answer"));
            }
        }
    }

    /// With several under way.
    pub fn throughput(&self, op: Operation, size: usize) -> Result<f64, Failure> {
        let mut places = Places::new(size);
        let mut under_way = VecDeque::with_capacity(WINDOW);
        let (mut done, mut since, mut number) = (0, Instant::now(), 0);
        loop {
            while under_way.len() < WINDOW {
                under_way.push_back(self.post(op, places.next(), size)?);
            }
            if let Some(oldest) = under_way.pop_front() {
                oldest.wait()?;
            }
            number += 1;
            done += size as u64;
            if number == WARM_UP.min(64) {
                (done, since) = (0, Instant::now());
            } else if number > WARM_UP && (done >= BYTES || (number % 16 == 0 && since.elapsed() >= long())) {
                break;
            }
        }
        let rate = done as f64 / since.elapsed().as_secs_f64();
        for transfer in under_way {
            transfer.wait()?;
        }
        Ok(rate)
    }
}
