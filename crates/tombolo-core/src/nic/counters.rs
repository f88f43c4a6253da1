//! Counters of a port, in the terms of RMON (RFC 2819): frames as they are on the wire, by size, and drops by reason (MICRO
//! §6.1.11).

use super::frame::{Frame, Mac};
use super::offload::Wire;
use super::switch::Refusal;

/// The largest frame of each size class but the last, in bytes with the checksum.
pub const SIZES: [u64; 6] = [64, 127, 255, 511, 1023, 1518];

/// Frames of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames on the wire.
    pub frames: u64,
    /// Their bytes, with checksums.
    pub bytes: u64,
    /// Segments, and frames that were not part of one, that were handed over.
    pub segments: u64,
    /// Frames by size class ([`SIZES`]). The last class has the longer frames.
    pub by_size: [u64; SIZES.len() + 1],
    /// Broadcast frames.
    pub broadcasts: u64,
    /// Multicast frames.
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

/// Counters of a port, or of the uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that it has sent, without refused ones.
    pub sent: Traffic,
    /// Frames that it has received.
    pub received: Traffic,
    /// Frames and segments that came from it (sent by the port, or received by the uplink) and were refused, by reason.
    pub refused: [u64; Refusal::ALL.len()],
    /// Frames and segments for it that it could not take.
    pub undelivered: u64,
    /// Frames that came from it and were dropped before they were read, since there was no room for them.
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
