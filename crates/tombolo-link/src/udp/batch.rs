//! Both ends of batching: datagrams gathered to be sent with one call, and a received batch cut up.

use std::ops::Range;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use tombolo_host::shared::SharedSpan;
use tombolo_host::udp::{MAX_BATCH_BYTES, MAX_SEGMENTS, RECEIVE_BUFFER_BYTES, UdpSocket};

use super::seal::{COUNTER_BYTES, Sealer, TAG_BYTES};
use super::wire::{self, HEADER_BYTES, Header};

/// A full segment may be padded by one part in so many.
const PADDING_SHARE: usize = 4;

/// Datagrams of one size that wait to be sent together; the last may be shorter.
///
/// Small packets travel in one datagram: a system call costs more than their bytes. In a secure
/// session each datagram has room for its seal from the start, and all are sealed where they lie
/// before they are sent.
#[derive(Debug)]
pub(super) struct OutgoingBatch {
    buffer: Vec<u8>,
    /// What begins every datagram: the header, and room for the counter if it will be sealed.
    head: Vec<u8>,
    /// Room for the proof behind every datagram.
    tag_bytes: usize,
    /// Bounds head and packets.
    max_content_bytes: usize,
    /// Head and packets of each datagram.
    segment_bytes: usize,
    datagrams: usize,
    /// Where the last datagram begins.
    tail: usize,
    /// All have their seals: nothing can be added until they are sent.
    closed: bool,
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
    pub(super) fn new(header: Header, sealed: bool, max_datagram_bytes: usize) -> Self {
        let (counter_bytes, tag_bytes) = if sealed { (COUNTER_BYTES, TAG_BYTES) } else { (0, 0) };
        let mut head = header.encode().to_vec();
        head.resize(HEADER_BYTES + counter_bytes, 0);
        Self {
            buffer: Vec::with_capacity(MAX_BATCH_BYTES),
            head,
            tag_bytes,
            max_content_bytes: max_datagram_bytes.saturating_sub(tag_bytes),
            segment_bytes: 0,
            datagrams: 0,
            tail: 0,
            closed: false,
        }
    }

    /// Bounds the datagrams that packets are added to from now on.
    pub(super) fn bound(&mut self, max_datagram_bytes: usize) {
        self.max_content_bytes = max_datagram_bytes.saturating_sub(self.tag_bytes);
    }

    fn room(&self, packet_bytes: usize) -> Option<Room> {
        let entry_bytes = wire::LENGTH_BYTES + packet_bytes;
        let tail_bytes = self.buffer.len() - self.tail;
        match self.datagrams {
            _ if self.closed => return None,
            0 => return Some(Room::Next),
            1 if tail_bytes + entry_bytes <= self.max_content_bytes => return Some(Room::Tail),
            1 => {}
            _ if tail_bytes + entry_bytes <= self.segment_bytes => {
                let fits = self.buffer.len() + entry_bytes + self.tag_bytes <= MAX_BATCH_BYTES;
                return fits.then_some(Room::Tail);
            }
            _ => {}
        }
        let segment_bytes = if self.datagrams == 1 { tail_bytes } else { self.segment_bytes };
        let content_bytes = self.head.len() + entry_bytes;
        let fits = content_bytes <= segment_bytes
            && segment_bytes - tail_bytes <= segment_bytes / PADDING_SHARE
            && self.datagrams < MAX_SEGMENTS
            && self.tail + segment_bytes + content_bytes + 2 * self.tag_bytes <= MAX_BATCH_BYTES;
        fits.then_some(Room::Next)
    }

    #[cfg(test)]
    fn push(&mut self, header: &[u8], payload: SharedSpan<'_>) -> bool {
        self.push_sealed(header.len(), payload, &mut |packet| packet[..header.len()].copy_from_slice(header))
    }

    /// Adds a packet, whose header `seal` writes before the payload that lies there; false: those that
    /// wait must be sent first.
    #[must_use]
    pub(super) fn push_sealed(
        &mut self,
        header_bytes: usize,
        payload: SharedSpan<'_>,
        seal: &mut dyn FnMut(&mut [u8]),
    ) -> bool {
        let packet_bytes = header_bytes + payload.len();
        match self.room(packet_bytes) {
            None => return false,
            Some(Room::Tail) => {}
            Some(Room::Next) => {
                if self.datagrams > 0 {
                    self.buffer.resize(self.tail + self.stride_bytes(), 0);
                }
                self.tail = self.buffer.len();
                self.datagrams += 1;
                self.buffer.extend_from_slice(&self.head);
            }
        }
        self.buffer.extend_from_slice(&wire::length_of(packet_bytes));
        let begin = self.buffer.len();
        self.buffer.resize(begin + header_bytes, 0);
        payload.append_to(&mut self.buffer);
        seal(&mut self.buffer[begin..]);
        if self.datagrams == 1 {
            self.segment_bytes = self.buffer.len();
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// From one datagram to the next.
    pub(super) fn stride_bytes(&self) -> usize {
        self.segment_bytes + self.tag_bytes
    }

    /// Seals all datagrams, once.
    fn close(&mut self, sealer: &Mutex<Sealer>) {
        if self.closed || self.is_empty() {
            return;
        }
        self.closed = true;
        self.buffer.resize(self.buffer.len() + self.tag_bytes, 0);
        let (now, mut sealer) = (Instant::now(), sealer.lock());
        for datagram in self.buffer.chunks_mut(self.segment_bytes + self.tag_bytes) {
            sealer.seal(datagram, now);
        }
    }

    /// Sends what waits, sealed if a sealer is there. What the socket has no room for keeps waiting
    /// (`EAGAIN`); after another error everything is dropped, and the number of lost datagrams comes
    /// with it.
    pub(super) fn flush(
        &mut self,
        socket: &UdpSocket,
        sealer: Option<&Mutex<Sealer>>,
    ) -> Result<(), (Errno, usize)> {
        if let Some(sealer) = sealer {
            self.close(sealer);
        }
        while !self.is_empty() {
            match socket.send_batch(&self.buffer, self.stride_bytes()) {
                Ok(sent_bytes) => {
                    if sent_bytes >= self.buffer.len() {
                        self.clear();
                        continue;
                    }
                    // Whole datagrams, so the last one is still there.
                    self.buffer.drain(..sent_bytes);
                    self.tail = self.tail.saturating_sub(sent_bytes);
                    self.datagrams = self.buffer.len().div_ceil(self.stride_bytes());
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
        (self.tail, self.datagrams, self.closed) = (0, 0, false);
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
    /// What the next datagram is and where its body lies, once it has been looked at.
    understood: Option<(Header, Range<usize>)>,
}

impl IncomingBatch {
    pub(super) fn new() -> Self {
        let buffer = vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice();
        Self { buffer, filled_bytes: 0, segment_bytes: 0, next: 0, within: 0, understood: None }
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

    /// The same, to be opened where it lies.
    pub(super) fn datagram_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        &mut self.buffer[range]
    }

    /// What the next datagram has been found to be.
    pub(super) fn understood(&self) -> Option<(Header, Range<usize>)> {
        self.understood.clone()
    }

    /// Notes what the next datagram is and where its body lies, until it is stepped over.
    pub(super) fn understand(&mut self, header: Header, body: Range<usize>) {
        self.understood = Some((header, body));
    }

    /// Steps over the datagram that ends there.
    pub(super) fn advance(&mut self, range: &Range<usize>) {
        self.next = range.end;
        self.within = 0;
        self.understood = None;
    }

    /// The next packet of the datagram at that range, which `peek` gave and whose body holds
    /// packets; steps over it. None: it holds no more, or nonsense, and has been stepped over.
    pub(super) fn packet(&mut self, range: &Range<usize>, body: &Range<usize>) -> Option<&[u8]> {
        let left = body.start + self.within..body.end;
        let Some((length_bytes, rest)) = self.buffer.get(left).and_then(wire::split_length) else {
            self.advance(range);
            return None;
        };
        if rest.len() < length_bytes {
            self.advance(range);
            return None;
        }
        let start = body.end - rest.len();
        self.within += wire::LENGTH_BYTES + length_bytes;
        if rest.len() == length_bytes {
            self.advance(range);
        }
        Some(&self.buffer[start..start + length_bytes])
    }
}

#[cfg(test)]
mod tests {
    use zeroize::Zeroizing;

    use super::super::seal::Opener;
    use super::super::wire::Kind;
    use super::*;

    const MAX_DATAGRAM: usize = 4500;

    fn packet(number: usize, length: usize) -> Vec<u8> {
        (0..length).map(|index| (number + index) as u8).collect()
    }

    /// The packets of a batch, as a receiver finds them, and how many datagrams it has.
    fn received(batch: &mut OutgoingBatch) -> (Vec<Vec<u8>>, usize) {
        let secret = Zeroizing::new([3; 32]);
        let sealed = batch.tag_bytes > 0;
        let mut opener = Opener::new(secret.clone());
        if sealed {
            batch.close(&Mutex::new(Sealer::new(secret, Instant::now())));
        }
        assert!(batch.buffer.len() <= MAX_BATCH_BYTES && batch.stride_bytes() <= MAX_DATAGRAM);
        let mut incoming = IncomingBatch::new();
        incoming.buffer[..batch.buffer.len()].copy_from_slice(&batch.buffer);
        (incoming.filled_bytes, incoming.segment_bytes) = (batch.buffer.len(), batch.stride_bytes());
        let (mut packets, mut datagrams) = (Vec::new(), 0);
        while incoming.has_more() {
            datagrams += usize::from(incoming.within == 0);
            let end = (incoming.next + incoming.segment_bytes).min(incoming.filled_bytes);
            let range = incoming.next..end;
            if sealed && incoming.within == 0 {
                opener.open(incoming.datagram_mut(range.clone())).unwrap();
            }
            let body = range.start + batch.head.len()..range.end - batch.tag_bytes;
            packets.extend(incoming.packet(&range, &body).map(<[u8]>::to_vec));
        }
        (packets, datagrams)
    }

    fn batch_of(lengths: &[usize], sealed: bool) -> (OutgoingBatch, usize) {
        let mut batch = OutgoingBatch::new(Header::new(Kind::Packets, 7), sealed, MAX_DATAGRAM);
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
            for sealed in [false, true] {
                let (mut batch, taken) = batch_of(&lengths, sealed);
                assert_eq!(taken, lengths.len(), "{lengths:?}");
                let sent: Vec<_> = lengths.iter().enumerate().map(|(n, length)| packet(n, *length)).collect();
                assert_eq!(received(&mut batch), (sent, datagrams));
                assert!(!sealed || !batch.push(&[1], SharedSpan::empty()), "closed");
            }
        }
        for sealed in [false, true] {
            // Too much padding, too long for the others, and too many.
            assert_eq!(batch_of(&[4200, 4200, 40, 4200], sealed).1, 3);
            assert_eq!(batch_of(&[4000, 4100], sealed).1, 1);
            assert_eq!(batch_of(&[4200; 16], sealed).1, 15);
            // The last datagram would have room, and the call has not.
            let lengths = [[4400; 14].as_slice(), &[100; 60]].concat();
            let (mut batch, taken) = batch_of(&lengths, sealed);
            assert!((15..lengths.len()).contains(&taken));
            assert_eq!(received(&mut batch).0.len(), taken);
        }
    }

    #[test]
    fn nonsense_in_a_datagram_is_stepped_over() {
        for body in [[].as_slice(), &[1], &[0, 0, 5], &[9, 0, 1, 2], &[0xFF, 0xFF]] {
            let mut incoming = IncomingBatch::new();
            incoming.buffer[HEADER_BYTES..HEADER_BYTES + body.len()].copy_from_slice(body);
            let range = 0..HEADER_BYTES + body.len();
            incoming.filled_bytes = range.end;
            incoming.segment_bytes = range.end;
            assert_eq!(incoming.packet(&range, &(HEADER_BYTES..range.end)), None);
            assert!(!incoming.has_more());
        }
    }

    proptest::proptest! {
        #[test]
        fn what_goes_in_comes_out(
            lengths in proptest::collection::vec(0..4300_usize, 1..80),
            sealed: bool,
        ) {
            let (mut batch, taken) = batch_of(&lengths, sealed);
            let sent: Vec<_> = lengths[..taken].iter().enumerate().map(|(n, len)| packet(n, *len)).collect();
            proptest::prop_assert!(taken > 0);
            proptest::prop_assert_eq!(received(&mut batch).0, sent);
        }
    }
}
