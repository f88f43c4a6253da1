//! A link that misbehaves as a seed says: it loses, repeats, reorders, corrupts and stalls packets.
//!
//! It wraps any link, so that whatever stands above can be tried against everything a link may do.
//! Control messages, whose delivery a link does promise, pass untouched.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tombolo_host::shared::SharedSpan;

use super::Random;
use super::altered::{Alteration, Altered};
use crate::{Link, LinkError, SendError};

/// How often packets suffer each fault, in a thousand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Faults {
    /// Lost.
    pub loss_per_mille: u32,
    /// Sent twice.
    pub duplication_per_mille: u32,
    /// Held back until up to eight later ones have gone.
    pub reordering_per_mille: u32,
    /// One bit flipped. No real link does that unnoticed; for checksums above.
    pub corruption_per_mille: u32,
    /// The beginning of a stall: this packet and all later ones wait for `stall`.
    pub stall_per_mille: u32,
    /// How long a stall lasts.
    pub stall: Duration,
}

/// The most packets that wait to be sent; with more the link is full.
const MAX_WAITING: usize = 256;
/// A packet that is held back to be overtaken goes after this time in any case.
const MAX_HOLD: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Held {
    packet: Vec<u8>,
    overtakers_left: u64,
    until: Instant,
}

#[derive(Debug)]
struct Disorder {
    random: Random,
    /// To be overtaken.
    held: Vec<Held>,
    /// To go next, in this order.
    due: VecDeque<Vec<u8>>,
    stalled_until: Option<Instant>,
}

/// Packets are lost, repeated, reordered, changed and delayed.
#[derive(Debug)]
pub struct Misbehaviour {
    faults: Faults,
    disorder: Mutex<Disorder>,
}

/// A link that misbehaves.
pub type FaultyLink = Altered<Misbehaviour>;

impl FaultyLink {
    /// Makes a link misbehave in sending.
    pub fn new(link: Arc<dyn Link>, faults: Faults, seed: u64) -> Self {
        let disorder = Disorder {
            random: Random::new(seed),
            held: Vec::new(),
            due: VecDeque::new(),
            stalled_until: None,
        };
        Self::with(link, Misbehaviour { faults, disorder: Mutex::new(disorder) })
    }
}

impl Misbehaviour {
    /// Passes on what is due, as far as the link below takes it.
    fn pass_on(link: &dyn Link, disorder: &mut Disorder, now: Instant) -> Result<(), SendError> {
        let mut index = 0;
        while index < disorder.held.len() {
            if disorder.held[index].overtakers_left == 0 || disorder.held[index].until <= now {
                let packet = disorder.held.remove(index).packet;
                disorder.due.push_back(packet);
            } else {
                index += 1;
            }
        }
        if disorder.stalled_until.is_some_and(|until| now < until) {
            return Ok(());
        }
        disorder.stalled_until = None;
        while let Some(packet) = disorder.due.front() {
            match link.send(packet, SharedSpan::empty()) {
                Ok(()) => {
                    disorder.due.pop_front();
                }
                Err(SendError::Full) => break,
                // The link takes less than when the packet was checked: the packet is lost.
                Err(SendError::TooLarge { .. }) => {
                    disorder.due.pop_front();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn afflict(&self, disorder: &mut Disorder, mut packet: Vec<u8>, now: Instant) {
        let faults = self.faults;
        for held in &mut disorder.held {
            held.overtakers_left = held.overtakers_left.saturating_sub(1);
        }
        if disorder.random.per_mille(faults.loss_per_mille) {
            return;
        }
        if disorder.random.per_mille(faults.corruption_per_mille) && !packet.is_empty() {
            let bit = disorder.random.below(packet.len() as u64 * 8);
            packet[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        if disorder.random.per_mille(faults.stall_per_mille) {
            disorder.stalled_until = Some(now + faults.stall);
        }
        if disorder.random.per_mille(faults.duplication_per_mille) {
            disorder.due.push_back(packet.clone());
        }
        if disorder.random.per_mille(faults.reordering_per_mille) {
            let overtakers_left = 1 + disorder.random.below(8);
            disorder.held.push(Held { packet, overtakers_left, until: now + MAX_HOLD });
        } else {
            disorder.due.push_back(packet);
        }
    }

    /// When the next waiting packet may go.
    fn deadline(disorder: &Disorder, now: Instant) -> Option<Instant> {
        let held = disorder.held.iter().map(|held| held.until).min();
        let due = (!disorder.due.is_empty())
            .then(|| disorder.stalled_until.unwrap_or(now + Duration::from_millis(1)));
        held.into_iter().chain(due).min()
    }
}

impl Alteration for Misbehaviour {
    fn needs_whole_packets(&self) -> bool {
        true
    }

    fn send(&self, link: &dyn Link, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        let bytes = header.len().saturating_add(payload.len());
        let max_bytes = link.max_packet_bytes();
        if bytes > max_bytes {
            return Err(SendError::TooLarge { bytes, max_bytes });
        }
        let mut packet = header.to_vec();
        payload.append_to(&mut packet);
        let mut disorder = self.disorder.lock();
        let now = Instant::now();
        Self::pass_on(link, &mut disorder, now)?;
        if disorder.due.len() + disorder.held.len() >= MAX_WAITING {
            return Err(SendError::Full);
        }
        self.afflict(&mut disorder, packet, now);
        Self::pass_on(link, &mut disorder, now)
    }

    fn flush(&self, link: &dyn Link) -> Result<(), LinkError> {
        {
            let mut disorder = self.disorder.lock();
            // `send` has checked the sizes.
            if let Err(SendError::Lost(reason)) = Self::pass_on(link, &mut disorder, Instant::now()) {
                return Err(reason.into());
            }
        }
        link.flush()
    }

    fn arm(&self, link: &dyn Link) -> Result<bool, LinkError> {
        // If the link is lost, its own `arm` says so.
        let _ = Self::pass_on(link, &mut self.disorder.lock(), Instant::now());
        link.arm()
    }

    fn tick(&self, link: &dyn Link, now: Instant) -> Option<Instant> {
        let ours = {
            let mut disorder = self.disorder.lock();
            let _ = Self::pass_on(link, &mut disorder, now);
            let _ = link.flush();
            Self::deadline(&disorder, now)
        };
        let theirs = link.tick(now);
        ours.into_iter().chain(theirs).min()
    }

    fn protects_integrity(&self, link: &dyn Link) -> bool {
        link.protects_integrity() && self.faults.corruption_per_mille == 0
    }
}
