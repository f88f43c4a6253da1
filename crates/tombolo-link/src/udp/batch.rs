//! Both ends of batching: datagrams gathered to be sent with one call, and a received batch cut up.

use rustix::io::Errno;
use std::ops::Range;
use tombolo_host::shared::SharedSpan;
use tombolo_host::udp::{MAX_BATCH_BYTES, MAX_SEGMENTS, RECEIVE_BUFFER_BYTES, UdpSocket};

use super::wire::{self, HEADER_BYTES};

/// A full segment may be padded by one part in so many.
const PADDING_SHARE: usize = 4;

/// Datagrams of one size that wait to be sent together; the last may be shorter.
///
/// Small packets travel in one datagram: a system call costs more than their bytes.
#[derive(Debug)]
pub(super) struct OutgoingBatch {
    buffer: Vec<u8>,
    /// What begins every datagram.
    head: [u8; HEADER_BYTES],
    max_datagram_bytes: usize,
    segment_bytes: usize,
    datagrams: usize,
    /// Where the last datagram begins.
    tail: usize,
}

/// How a packet joins those that wait.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    /// Behind the packets of the last datagram.
    Tail,
    /// In a datagram of its own, once the last one has been padded to the size of the others.
    Next,
}

impl OutgoingBatch {
    pub(super) fn new(head: [u8; HEADER_BYTES], max_datagram_bytes: usize) -> Self {
        let buffer = Vec::with_capacity(MAX_BATCH_BYTES);
        Self { buffer, head, max_datagram_bytes, segment_bytes: 0, datagrams: 0, tail: 0 }
    }

    fn room(&self, packet_bytes: usize) -> Option<Room> {
        let entry_bytes = wire::LENGTH_BYTES + packet_bytes;
        let tail_bytes = self.buffer.len() - self.tail;
        match self.datagrams {
            0 => return Some(Room::Next),
            1 if tail_bytes + entry_bytes <= self.max_datagram_bytes => return Some(Room::Tail),
            1 => {}
            _ if tail_bytes + entry_bytes <= self.segment_bytes => return Some(Room::Tail),
            _ => {}
        }
        let segment_bytes = if self.datagrams == 1 { tail_bytes } else { self.segment_bytes };
        let fits = HEADER_BYTES + entry_bytes <= segment_bytes
            && segment_bytes - tail_bytes <= segment_bytes / PADDING_SHARE
            && self.datagrams < MAX_SEGMENTS
            && self.tail + segment_bytes + HEADER_BYTES + entry_bytes <= MAX_BATCH_BYTES;
        fits.then_some(Room::Next)
    }

    /// Adds a packet; false: those that wait must be sent first.
    #[must_use]
    pub(super) fn push(&mut self, header: &[u8], payload: SharedSpan<'_>) -> bool {
        let packet_bytes = header.len() + payload.len();
        match self.room(packet_bytes) {
            None => return false,
            Some(Room::Tail) => {}
            Some(Room::Next) => {
                if self.datagrams > 1 {
                    self.buffer.resize(self.tail + self.segment_bytes, 0);
                }
                self.tail = self.buffer.len();
                self.datagrams += 1;
                self.buffer.extend_from_slice(&self.head);
            }
        }
        self.buffer.extend_from_slice(&wire::length_of(packet_bytes));
        self.buffer.extend_from_slice(header);
        payload.append_to(&mut self.buffer);
        if self.datagrams == 1 {
            self.segment_bytes = self.buffer.len();
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// Sends what waits. What the socket has no room for keeps waiting (`EAGAIN`); after another
    /// error everything is dropped, and the number of lost datagrams comes with it.
    pub(super) fn flush(&mut self, socket: &UdpSocket) -> Result<(), (Errno, usize)> {
        while !self.is_empty() {
            match socket.send_batch(&self.buffer, self.segment_bytes) {
                Ok(sent_bytes) => {
                    if sent_bytes >= self.buffer.len() {
                        self.clear();
                        continue;
                    }
                    // Whole datagrams, so the last one is still there.
                    self.buffer.drain(..sent_bytes);
                    self.tail = self.tail.saturating_sub(sent_bytes);
                    self.datagrams = self.buffer.len().div_ceil(self.segment_bytes);
                }
                Err(Errno::AGAIN) => return Err((Errno::AGAIN, 0)),
                Err(errno) => {
                    let lost = self.datagrams;
                    self.clear();
                    return Err((errno, lost));
                }
            }
        }
        Ok(())
    }

    fn clear(&mut self) {
        self.buffer.clear();
        (self.tail, self.datagrams) = (0, 0);
    }
}

/// What one call received, handed out datagram by datagram.
#[derive(Debug)]
pub(super) struct IncomingBatch {
    buffer: Box<[u8]>,
    filled_bytes: usize,
    segment_bytes: usize,
    next: usize,
    /// How far into the body of the next datagram its packets have been handed out.
    within: usize,
}

impl IncomingBatch {
    pub(super) fn new() -> Self {
        let buffer = vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice();
        Self { buffer, filled_bytes: 0, segment_bytes: 0, next: 0, within: 0 }
    }

    /// Whether datagrams are left from the last call.
    pub(super) fn has_more(&self) -> bool {
        self.next < self.filled_bytes
    }

    /// Where the next datagram lies, asking the socket when none are left; None when there is none.
    pub(super) fn peek(&mut self, socket: &UdpSocket) -> Result<Option<Range<usize>>, Errno> {
        if !self.has_more() {
            match socket.receive(&mut self.buffer) {
                Ok(batch) => {
                    self.next = 0;
                    self.filled_bytes = batch.length_bytes;
                    self.segment_bytes = batch.segment_bytes.max(1);
                }
                Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
                Err(errno) => return Err(errno),
            }
        }
        let end = (self.next + self.segment_bytes).min(self.filled_bytes);
        Ok(Some(self.next..end))
    }

    /// The datagram at a range that `peek` gave.
    pub(super) fn datagram(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Steps over the datagram that ends there.
    pub(super) fn advance(&mut self, range: &Range<usize>) {
        self.next = range.end;
        self.within = 0;
    }

    /// The next packet of the datagram at that range, which `peek` gave and which holds packets;
    /// steps over it. None: it holds no more, or nonsense, and has been stepped over.
    pub(super) fn packet(&mut self, range: &Range<usize>) -> Option<&[u8]> {
        let body = range.start + HEADER_BYTES + self.within..range.end;
        let Some((length_bytes, rest)) = self.buffer.get(body).and_then(wire::split_length) else {
            self.advance(range);
            return None;
        };
        if rest.len() < length_bytes {
            self.advance(range);
            return None;
        }
        let start = range.end - rest.len();
        self.within += wire::LENGTH_BYTES + length_bytes;
        if rest.len() == length_bytes {
            self.advance(range);
        }
        Some(&self.buffer[start..start + length_bytes])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_DATAGRAM: usize = 4500;

    fn packet(number: usize, length: usize) -> Vec<u8> {
        (0..length).map(|index| (number + index) as u8).collect()
    }

    /// The packets of a batch, as a receiver finds them, and how many datagrams it has.
    fn received(batch: &OutgoingBatch) -> (Vec<Vec<u8>>, usize) {
        let mut incoming = IncomingBatch::new();
        incoming.buffer[..batch.buffer.len()].copy_from_slice(&batch.buffer);
        (incoming.filled_bytes, incoming.segment_bytes) = (batch.buffer.len(), batch.segment_bytes);
        let (mut packets, mut datagrams) = (Vec::new(), 0);
        while incoming.has_more() {
            datagrams += usize::from(incoming.within == 0);
            let end = (incoming.next + incoming.segment_bytes).min(incoming.filled_bytes);
            let range = incoming.next..end;
            packets.extend(incoming.packet(&range).map(<[u8]>::to_vec));
        }
        (packets, datagrams)
    }

    fn batch_of(lengths: &[usize]) -> (OutgoingBatch, usize) {
        let mut batch = OutgoingBatch::new([7; HEADER_BYTES], MAX_DATAGRAM);
        let taken = lengths.iter().enumerate().take_while(|&(number, length)| {
            let bytes = packet(number, *length);
            let (header, payload) = bytes.split_at(length / 3);
            batch.push(header, payload.into())
        });
        let taken = taken.count();
        (batch, taken)
    }

    #[test]
    fn small_packets_share_a_datagram_and_large_ones_a_call() {
        for (lengths, datagrams) in [
            (vec![40, 50, 60], 1),
            (vec![40, 4200], 1),
            (vec![4200; 15], 15),
            (vec![40, 4200, 4200, 4200, 40, 40], 4),
            (vec![4200, 4200, 3900, 4200, 4200], 5),
            (vec![0, 1, 0], 1),
        ] {
            let (batch, taken) = batch_of(&lengths);
            assert_eq!(taken, lengths.len(), "{lengths:?}");
            let sent: Vec<_> = lengths.iter().enumerate().map(|(n, length)| packet(n, *length)).collect();
            assert_eq!(received(&batch), (sent, datagrams));
        }
        // Too much padding, too long for the others, and too many.
        assert_eq!(batch_of(&[4200, 4200, 40, 4200]).1, 3);
        assert_eq!(batch_of(&[4000, 4100]).1, 1);
        assert_eq!(batch_of(&[4200; 16]).1, 15);
    }

    #[test]
    fn nonsense_in_a_datagram_is_stepped_over() {
        for body in [[].as_slice(), &[1], &[0, 0, 5], &[9, 0, 1, 2], &[0xFF, 0xFF]] {
            let mut incoming = IncomingBatch::new();
            incoming.buffer[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(body);
            let range = 0..HEADER_BYTES + body.len();
            incoming.filled_bytes = range.end;
            incoming.segment_bytes = range.end;
            assert_eq!(incoming.packet(&range), None);
            assert!(!incoming.has_more());
        }
    }

    proptest::proptest! {
        #[test]
        fn what_goes_in_comes_out(lengths in proptest::collection::vec(0..4300_usize, 1..80)) {
            let (batch, taken) = batch_of(&lengths);
            let sent: Vec<_> = lengths[..taken].iter().enumerate().map(|(n, len)| packet(n, *len)).collect();
            proptest::prop_assert!(taken > 0);
            proptest::prop_assert_eq!(received(&batch).0, sent);
        }
    }
}
