//! Both ends of batching: datagrams gathered to be sent with one call, and a received batch cut up.

use rustix::io::Errno;
use std::ops::Range;
use tombolo_host::shared::SharedSpan;
use tombolo_host::udp::{MAX_BATCH_BYTES, MAX_SEGMENTS, RECEIVE_BUFFER_BYTES, UdpSocket};

/// Datagrams of one size that wait to be sent together; the last may be shorter.
#[derive(Debug)]
pub(super) struct OutgoingBatch {
    buffer: Vec<u8>,
    segment_bytes: usize,
    datagrams: usize,
}

impl OutgoingBatch {
    pub(super) fn new() -> Self {
        Self { buffer: Vec::with_capacity(MAX_BATCH_BYTES), segment_bytes: 0, datagrams: 0 }
    }

    /// Whether a datagram of this size can join those that wait.
    pub(super) fn accepts(&self, datagram_bytes: usize) -> bool {
        self.datagrams == 0
            || (datagram_bytes <= self.segment_bytes
                && self.datagrams < MAX_SEGMENTS
                && self.buffer.len() + datagram_bytes <= MAX_BATCH_BYTES
                // A shorter one must be the last.
                && self.buffer.len().is_multiple_of(self.segment_bytes))
    }

    /// Adds a datagram that is accepted.
    pub(super) fn push(&mut self, parts: [&[u8]; 2], payload: SharedSpan<'_>) {
        if self.datagrams == 0 {
            self.segment_bytes = parts[0].len() + parts[1].len() + payload.len();
        }
        self.datagrams += 1;
        self.buffer.extend_from_slice(parts[0]);
        self.buffer.extend_from_slice(parts[1]);
        payload.append_to(&mut self.buffer);
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
                    self.buffer.drain(..sent_bytes.min(self.buffer.len()));
                    self.datagrams = self.buffer.len().div_ceil(self.segment_bytes);
                }
                Err(Errno::AGAIN) => return Err((Errno::AGAIN, 0)),
                Err(errno) => {
                    let lost = self.datagrams;
                    self.buffer.clear();
                    self.datagrams = 0;
                    return Err((errno, lost));
                }
            }
        }
        Ok(())
    }
}

/// What one call received, handed out datagram by datagram.
#[derive(Debug)]
pub(super) struct IncomingBatch {
    buffer: Box<[u8]>,
    filled_bytes: usize,
    segment_bytes: usize,
    next: usize,
}

impl IncomingBatch {
    pub(super) fn new() -> Self {
        let buffer = vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice();
        Self { buffer, filled_bytes: 0, segment_bytes: 0, next: 0 }
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_of_one_size_and_bounded() {
        let mut batch = OutgoingBatch::new();
        assert!(batch.accepts(5000));
        batch.push([b"head", b"er"], [1; 994].as_slice().into());
        assert!(!batch.accepts(1001));
        for _ in 1..63 {
            assert!(batch.accepts(1000));
            batch.push([&[0; 500], &[0; 500]], SharedSpan::empty());
        }
        batch.push([b"last", b""], SharedSpan::empty());
        assert!(!batch.accepts(1));
        assert_eq!(batch.buffer.len(), 63_004);
        let mut large = OutgoingBatch::new();
        for _ in 0..16 {
            large.push([&[0; 4000], &[]], SharedSpan::empty());
        }
        assert!(!large.accepts(4000));
    }
}
