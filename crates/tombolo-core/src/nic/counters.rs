//! What is counted of a port, in the words of RMON (RFC 2819): frames as they are on the wire, by size, and drops by
//! reason (MICRO §6.1.11).

use super::frame::{Frame, Mac};
use super::offload::Wire;
use super::switch::Refusal;

/// The largest frame, with its checksum, of each class of sizes but the last.
pub const SIZES: [u64; 6] = [64, 127, 255, 511, 1023, 1518];

/// Frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames on the wire.
    pub frames: u64,
    /// Their bytes, with checksums.
    pub bytes: u64,
    /// Segments or frames that were handed over at once.
    pub segments: u64,
    /// Frames by [`SIZES`]; the last: longer ones.
    pub by_size: [u64; SIZES.len() + 1],
    /// Frames to all.
    pub broadcasts: u64,
    /// Frames to groups.
    pub multicasts: u64,
}

impl Traffic {
    /// Counts a frame or segment that was handed over.
    pub(super) fn count(&mut self, frame: &[u8], wire: &Wire) {
        match Frame::parse(frame).map(|frame| frame.destination) {
            Some(Mac::BROADCAST) => self.broadcasts += wire.frames,
            Some(destination) if destination.is_group() => self.multicasts += wire.frames,
            _ => {}
        }
        let before = wire.frames.saturating_sub(1);
        self.segments += 1;
        self.frames += wire.frames;
        self.bytes += before * wire.frame_bytes + wire.last_bytes;
        for (bytes, frames) in [(wire.frame_bytes, before), (wire.last_bytes, 1)] {
            let class = SIZES.iter().position(|most| bytes <= *most).unwrap_or(SIZES.len());
            if let Some(count) = self.by_size.get_mut(class) {
                *count += frames;
            }
        }
    }
}

/// What is counted of a port, or of the uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// What it has sent, without what was refused.
    pub sent: Traffic,
    /// What it has received.
    pub received: Traffic,
    /// What came from it and was refused, by reason: what a port has sent, what the uplink has received.
    pub refused: [u64; Refusal::ALL.len()],
    /// Frames and segments for it that it could not take.
    pub undelivered: u64,
    /// What came from it and was dropped before it was read, since there was no room for it.
    pub overflowed: u64,
}

impl Counters {
    /// Frames and segments that were refused for this reason.
    pub fn refused_for(&self, refusal: Refusal) -> u64 {
        self.refused.get(refusal as usize).copied().unwrap_or(0)
    }

    pub(super) fn refuse(&mut self, refusal: Refusal) {
        if let Some(count) = self.refused.get_mut(refusal as usize) {
            *count += 1;
        }
    }
}
