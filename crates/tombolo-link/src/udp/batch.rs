//! Both ends of batching: datagrams gathered to be sent with one call, and a received batch cut up.

use std::net::SocketAddr;
use std::ops::Range;
use std::thread::LocalKey;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use smallvec::SmallVec;
use tombolo_host::shared::{HeldSpan, SharedSpan};
use tombolo_host::udp::{MAX_BATCH_BYTES, MAX_SEGMENTS, RECEIVE_BUFFER_BYTES, UdpSocket};

use super::seal::{COUNTER_BYTES, Sealer, TAG_BYTES};
use super::spare::Spare;
use super::wire::{self, HEADER_BYTES, Header};

thread_local! {
    static OUTGOING: Spare = const { Spare::new() };
    static INCOMING: Spare = const { Spare::new() };
}

/// A buffer, of this thread's if it has one. At the end of a thread its own are gone.
fn taken(spare: &'static LocalKey<Spare>, bytes: usize) -> Box<[u8]> {
    spare.try_with(|spare| spare.take(bytes)).unwrap_or_else(|_| vec![0; bytes].into_boxed_slice())
}

fn given_back(spare: &'static LocalKey<Spare>, buffer: &mut Box<[u8]>) {
    let buffer = std::mem::take(buffer);
    let _ = spare.try_with(|spare| spare.give(buffer));
}

/// A segment may be padded by at most its length divided by this.
const PADDING_SHARE: usize = 4;

/// Datagrams of one size that wait to be sent together; the last may be shorter.
///
/// Small packets travel in one datagram: a system call costs more than their bytes. In a secure
/// session each datagram has room for its seal from the start, and all are sealed where they lie
/// before they are sent. Where nothing is sealed, the payload of large packets may stay where it
/// lies until they are sent; its place among the others is kept free.
#[derive(Debug)]
pub(super) struct OutgoingBatch {
    /// Empty while nothing waits.
    storage: Box<[u8]>,
    length: usize,
    /// Payloads that are held elsewhere, each with its place in the batch.
    elsewhere: Vec<(usize, HeldSpan)>,
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
    /// All datagrams are sealed: nothing can be added until they are sent.
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
            storage: Box::default(),
            length: 0,
            elsewhere: Vec::new(),
            head,
            tag_bytes,
            max_content_bytes: max_datagram_bytes.min(MAX_BATCH_BYTES).saturating_sub(tag_bytes),
            segment_bytes: 0,
            datagrams: 0,
            tail: 0,
            closed: false,
        }
    }

    /// Bounds the datagrams that packets are added to from now on.
    pub(super) fn bound(&mut self, max_datagram_bytes: usize) {
        self.max_content_bytes = max_datagram_bytes.min(MAX_BATCH_BYTES).saturating_sub(self.tag_bytes);
    }

    fn room(&self, packet_bytes: usize) -> Option<Room> {
        let entry_bytes = wire::LENGTH_BYTES + packet_bytes;
        let tail_bytes = self.length - self.tail;
        match self.datagrams {
            _ if self.closed => return None,
            0 => return Some(Room::Next),
            1 if tail_bytes + entry_bytes <= self.max_content_bytes => return Some(Room::Tail),
            1 => {}
            _ if tail_bytes + entry_bytes <= self.segment_bytes => {
                let fits = self.length + entry_bytes + self.tag_bytes <= MAX_BATCH_BYTES;
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
        let Some(begin) = self.make_room(header_bytes + payload.len()) else { return false };
        self.storage[begin..begin + header_bytes].fill(0);
        payload.copy_to(&mut self.storage[begin + header_bytes..self.length]);
        seal(&mut self.storage[begin..self.length]);
        true
    }

    /// The same of a packet whose payload stays where it lies; not for what will be sealed.
    #[must_use]
    pub(super) fn push_in_place(&mut self, header: &[u8], payload: &HeldSpan) -> bool {
        debug_assert_eq!(self.tag_bytes, 0);
        let Some(begin) = self.make_room(header.len() + payload.span().len()) else { return false };
        let place = begin + header.len();
        self.storage[begin..place].copy_from_slice(header);
        self.elsewhere.push((place, payload.clone()));
        true
    }

    /// Adds a packet without its bytes: where they begin, and they end where the batch does.
    fn make_room(&mut self, packet_bytes: usize) -> Option<usize> {
        let room = self.room(packet_bytes)?;
        let most_bytes = self.head.len() + wire::LENGTH_BYTES + packet_bytes + self.tag_bytes;
        if self.datagrams == 0 && most_bytes > MAX_BATCH_BYTES {
            return None;
        }
        if self.storage.is_empty() {
            self.storage = taken(&OUTGOING, MAX_BATCH_BYTES);
        }
        if room == Room::Next {
            if self.datagrams > 0 {
                let end = self.tail + self.stride_bytes();
                self.storage[self.length..end].fill(0);
                self.length = end;
            }
            self.tail = self.length;
            self.datagrams += 1;
            self.append_head();
        }
        let length_bytes = wire::length_of(packet_bytes);
        let begin = self.length + length_bytes.len();
        self.storage[self.length..begin].copy_from_slice(&length_bytes);
        self.length = begin + packet_bytes;
        if self.datagrams == 1 {
            self.segment_bytes = self.length;
        }
        Some(begin)
    }

    fn append_head(&mut self) {
        let end = self.length + self.head.len();
        self.storage[self.length..end].copy_from_slice(&self.head);
        self.length = end;
    }

    /// Copies the payloads that are held elsewhere to their places in the batch.
    fn copy_held_payloads(&mut self) {
        for (place, held) in self.elsewhere.drain(..) {
            held.span().copy_to(&mut self.storage[place..]);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// The distance from one datagram to the next.
    pub(super) fn stride_bytes(&self) -> usize {
        self.segment_bytes + self.tag_bytes
    }

    /// Seals all datagrams, once. Returns how many are dropped instead.
    fn close(&mut self, sealer: &Mutex<Sealer>) -> usize {
        if self.closed || self.is_empty() {
            return 0;
        }
        self.closed = true;
        self.length += self.tag_bytes;
        let (now, mut sealer) = (Instant::now(), sealer.lock());
        let mut datagrams = self.storage[..self.length].chunks_mut(self.segment_bytes + self.tag_bytes);
        if datagrams.all(|datagram| sealer.seal(datagram, now)) {
            return 0;
        }
        // The peer has acknowledged nothing for too long.
        let lost = self.datagrams;
        self.clear();
        lost
    }

    /// Sends what waits, sealed if a sealer is there. What the socket has no room for keeps waiting
    /// (`EAGAIN`); after another error everything is dropped, and the number of lost datagrams comes
    /// with it. Whatever lay elsewhere is not needed any more.
    pub(super) fn flush(
        &mut self,
        socket: &UdpSocket,
        sealer: Option<&Mutex<Sealer>>,
    ) -> Result<(), (Errno, usize)> {
        let lost = sealer.map_or(0, |sealer| self.close(sealer));
        if lost > 0 {
            return Err((Errno::NOKEY, lost));
        }
        if !self.elsewhere.is_empty() {
            let outcome = socket.send_scattered(&self.parts(), self.stride_bytes());
            match outcome {
                Ok(()) => {
                    self.clear();
                    return Ok(());
                }
                // For these errors the datagrams are sent one by one.
                Err(Errno::INVAL | Errno::IO | Errno::OPNOTSUPP | Errno::NOPROTOOPT | Errno::MSGSIZE) => {
                    self.copy_held_payloads()
                }
                Err(Errno::AGAIN) => {
                    self.copy_held_payloads();
                    return Err((Errno::AGAIN, 0));
                }
                // Some are said once.
                Err(errno) => {
                    let lost = self.datagrams;
                    self.clear();
                    return Err((errno, lost));
                }
            }
        }
        while !self.is_empty() {
            match socket.send_batch(&self.storage[..self.length], self.stride_bytes()) {
                Ok(sent_bytes) => {
                    if sent_bytes >= self.length {
                        self.clear();
                        continue;
                    }
                    // Whole datagrams, so the last one is still there.
                    self.storage.copy_within(sent_bytes..self.length, 0);
                    self.length -= sent_bytes;
                    self.tail = self.tail.saturating_sub(sent_bytes);
                    self.datagrams = self.length.div_ceil(self.stride_bytes());
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

    /// The batch as it is sent, from where its bytes lie.
    fn parts(&self) -> SmallVec<[SharedSpan<'_>; 16]> {
        let (mut parts, mut next) = (SmallVec::new(), 0);
        for (place, held) in &self.elsewhere {
            parts.push(SharedSpan::from(&self.storage[next..*place]));
            parts.push(held.span());
            next = place + held.span().len();
        }
        parts.push(SharedSpan::from(&self.storage[next..self.length]));
        parts
    }

    fn clear(&mut self) {
        self.elsewhere.clear();
        given_back(&OUTGOING, &mut self.storage);
        (self.length, self.tail, self.datagrams, self.closed) = (0, 0, 0, false);
    }
}

/// What one call received, handed out datagram by datagram.
#[derive(Debug)]
pub(super) struct IncomingBatch {
    /// Empty while the socket is known to have nothing.
    buffer: Box<[u8]>,
    filled_bytes: usize,
    segment_bytes: usize,
    next: usize,
    /// How far into the body of the next datagram its packets have been handed out.
    within: usize,
    /// What the next datagram is and where its body lies, once it has been looked at.
    understood: Option<(Header, Range<usize>)>,
    /// Who sent them, as far as the kernel says.
    sender: Option<SocketAddr>,
}

impl IncomingBatch {
    pub(super) fn new() -> Self {
        let buffer = Box::default();
        Self { buffer, filled_bytes: 0, segment_bytes: 0, next: 0, within: 0, understood: None, sender: None }
    }

    /// Whether datagrams are left from the last call.
    pub(super) fn has_more(&self) -> bool {
        self.next < self.filled_bytes
    }

    /// Where the next datagram lies, asking the socket when none are left; None when there is none.
    pub(super) fn peek(&mut self, socket: &UdpSocket) -> Result<Option<Range<usize>>, Errno> {
        if !self.has_more() {
            if self.buffer.is_empty() {
                self.buffer = taken(&INCOMING, RECEIVE_BUFFER_BYTES);
            }
            match socket.receive_from(&mut self.buffer) {
                Ok((batch, sender)) => {
                    self.next = 0;
                    self.sender = sender;
                    self.filled_bytes = batch.length_bytes;
                    self.segment_bytes = batch.segment_bytes.max(1);
                }
                Err(errno) => {
                    self.filled_bytes = 0;
                    given_back(&INCOMING, &mut self.buffer);
                    return if matches!(errno, Errno::AGAIN | Errno::INTR) { Ok(None) } else { Err(errno) };
                }
            }
        }
        let end = (self.next + self.segment_bytes).min(self.filled_bytes);
        Ok(Some(self.next..end))
    }

    /// The datagram at a range that `peek` gave.
    pub(super) fn datagram(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// Who sent the datagrams of the last call.
    pub(super) fn sender(&self) -> Option<SocketAddr> {
        self.sender
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
    /// packets; steps over it. None: it holds no more, or what is left is malformed, and has been stepped over.
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
    use std::sync::Arc;

    use tombolo_host::shared::SharedMemory;
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
        let mut opener = Opener::new(secret.clone(), &Arc::default());
        if sealed {
            assert_eq!(batch.close(&Mutex::new(Sealer::new(secret, &Arc::default(), Instant::now()))), 0);
        }
        assert!(batch.length <= MAX_BATCH_BYTES && batch.stride_bytes() <= MAX_DATAGRAM);
        let scattered: Vec<u8> = batch.parts().iter().flat_map(SharedSpan::to_vec).collect();
        batch.copy_held_payloads();
        assert_eq!(scattered, batch.storage[..batch.length]);
        let mut incoming = IncomingBatch::new();
        incoming.buffer = vec![0; RECEIVE_BUFFER_BYTES].into();
        incoming.buffer[..batch.length].copy_from_slice(&batch.storage[..batch.length]);
        (incoming.filled_bytes, incoming.segment_bytes) = (batch.length, batch.stride_bytes());
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
            if sealed || length % 2 == 0 {
                return batch.push(header, payload.into());
            }
            let memory = SharedMemory::create("test", 4096).unwrap();
            memory.span_mut(8, payload.len()).unwrap().copy_from(payload.into());
            batch.push_in_place(header, &HeldSpan::new(Arc::new(memory), 8, payload.len()).unwrap())
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
    fn payloads_go_from_their_places_with_and_without_offload() {
        let there = UdpSocket::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let here = UdpSocket::connect(there.local_address().unwrap()).unwrap();
        let lengths = [4201, 4201, 4200, 4201, 39];
        for offload in [true, false] {
            if !offload {
                here.disable_segmentation();
            }
            let (mut batch, taken) = batch_of(&lengths, false);
            assert_eq!((taken, batch.elsewhere.len()), (5, 4));
            batch.flush(&here, None).unwrap();
            assert!(batch.is_empty() && batch.elsewhere.is_empty());
            let (mut incoming, mut found) = (IncomingBatch::new(), Vec::new());
            while found.len() < lengths.len() {
                let Some(range) = incoming.peek(&there).unwrap() else { continue };
                let body = range.start + HEADER_BYTES..range.end;
                found.extend(incoming.packet(&range, &body).map(<[u8]>::to_vec));
            }
            let sent: Vec<_> = lengths.iter().enumerate().map(|(n, length)| packet(n, *length)).collect();
            assert_eq!(found, sent);
        }
    }

    #[test]
    fn who_is_not_there_is_noticed_by_what_goes_from_its_place() {
        let gone = UdpSocket::bind(([127, 0, 0, 1], 0).into()).unwrap().local_address().unwrap();
        let here = UdpSocket::connect(gone).unwrap();
        let refused = (0..100).any(|_| {
            let (mut batch, _) = batch_of(&[4201], false);
            let outcome = batch.flush(&here, None);
            assert!(batch.is_empty() && batch.elsewhere.is_empty());
            outcome == Err((Errno::CONNREFUSED, 1))
        });
        assert!(refused);
    }

    #[test]
    fn malformed_rest_of_a_datagram_is_stepped_over() {
        for body in [[].as_slice(), &[1], &[0, 0, 5], &[9, 0, 1, 2], &[0xFF, 0xFF]] {
            let mut incoming = IncomingBatch::new();
            incoming.buffer = vec![0; RECEIVE_BUFFER_BYTES].into();
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
