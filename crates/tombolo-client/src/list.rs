//! Transfers between several pieces of memory at each end (scatter and gather).

use tombolo_channel::{Descriptor, Target};
use tombolo_wire::Notification;

/// A piece of a domain's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub length_bytes: u32,
}

impl Piece {
    /// A piece of `length_bytes` from this address on.
    pub fn new(address: u64, length_bytes: u32) -> Self {
        Self { address, length_bytes }
    }
}

/// Pieces that make no transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// There is more, or less, to be moved than there is room for.
    #[error(
        "the pieces of the source have {source_bytes} bytes, and those of the destination {destination_bytes}"
    )]
    Lengths {
        /// All pieces of the source together.
        source_bytes: u64,
        /// All pieces of the destination together.
        destination_bytes: u64,
    },
    /// There is no piece at one end.
    #[error("a list has a piece at each end, be it one of no bytes")]
    Nothing,
    /// A piece ends behind the last address.
    #[error("a piece that begins at {0:#x} ends behind the last address")]
    Address(u64),
}

/// One transfer for a [`crate::Queue`], from several pieces of memory to several others: the bytes of the sources, one after the
/// other, fill the destinations, one after the other, wherever each piece ends. It has one end. Where it fails, any part of
/// it may have been moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Each is contiguous at both ends.
    pub(crate) parts: Vec<Descriptor>,
    /// Writes the notification.
    pub(crate) last: Option<Descriptor>,
    pub(crate) is_read: bool,
    pub(crate) is_fenced: bool,
    target: Target,
    source: Option<Target>,
    /// Where the first pieces begin, where there is nothing to move.
    begin: (u64, u64),
}

/// A place in pieces.
struct Cursor<'a> {
    pieces: &'a [Piece],
    done_bytes: u32,
}

impl Cursor<'_> {
    /// What is left of the piece that it is in.
    fn rest(&mut self) -> Option<Piece> {
        while let [first, others @ ..] = self.pieces {
            let left = first.length_bytes - self.done_bytes;
            if left > 0 {
                return Some(Piece::new(first.address + u64::from(self.done_bytes), left));
            }
            (self.pieces, self.done_bytes) = (others, 0);
        }
        None
    }
}

fn total(pieces: &[Piece]) -> Result<u64, ListError> {
    for piece in pieces {
        piece.address.checked_add(piece.length_bytes.into()).ok_or(ListError::Address(piece.address))?;
    }
    Ok(pieces.iter().map(|piece| u64::from(piece.length_bytes)).sum())
}

/// Splits two lists into parts: source, destination, length. Adjacent parts are merged.
fn parts(sources: &[Piece], destinations: &[Piece]) -> Vec<(u64, u64, u32)> {
    let [mut source, mut destination] =
        [sources, destinations].map(|pieces| Cursor { pieces, done_bytes: 0 });
    let mut parts: Vec<(u64, u64, u32)> = Vec::new();
    while let (Some(from), Some(to)) = (source.rest(), destination.rest()) {
        let length = from.length_bytes.min(to.length_bytes);
        source.done_bytes += length;
        destination.done_bytes += length;
        if let Some((first, into, bytes)) = parts.last_mut()
            && (*first + u64::from(*bytes), *into + u64::from(*bytes)) == (from.address, to.address)
            && let Some(both) = bytes.checked_add(length)
        {
            *bytes = both;
            continue;
        }
        parts.push((from.address, to.address, length));
    }
    parts
}

impl List {
    /// A write: from pieces of own memory to pieces of that of another domain.
    pub fn write(to: Target, sources: &[Piece], destinations: &[Piece]) -> Result<Self, ListError> {
        Self::new(to, None, false, sources, destinations)
    }

    /// A read: from pieces of another domain's memory to pieces of own memory.
    pub fn read(from: Target, sources: &[Piece], destinations: &[Piece]) -> Result<Self, ListError> {
        Self::new(from, None, true, sources, destinations)
    }

    /// A transfer between two other domains, as [`crate::Domain::carry`].
    pub fn carry(
        from: Target,
        to: Target,
        sources: &[Piece],
        destinations: &[Piece],
    ) -> Result<Self, ListError> {
        Self::new(to, Some(from), false, sources, destinations)
    }

    fn new(
        target: Target,
        source: Option<Target>,
        is_read: bool,
        sources: &[Piece],
        destinations: &[Piece],
    ) -> Result<Self, ListError> {
        let (source_bytes, destination_bytes) = (total(sources)?, total(destinations)?);
        if source_bytes != destination_bytes {
            return Err(ListError::Lengths { source_bytes, destination_bytes });
        }
        let (Some(first), Some(into)) = (sources.first(), destinations.first()) else {
            return Err(ListError::Nothing);
        };
        let begin = (first.address, into.address);
        let mut list =
            Self { parts: Vec::new(), last: None, is_read, is_fenced: false, target, source, begin };
        list.parts = parts(sources, destinations)
            .into_iter()
            .map(|(from, to, length)| list.part(from, to, length))
            .collect();
        Ok(list)
    }

    fn part(&self, from: u64, to: u64, length: u32) -> Descriptor {
        Descriptor { source: self.source, ..Descriptor::new(from, to, length, self.target) }
    }

    /// This list, which writes two words at the destination's side when all its bytes are there, the first before the last.
    #[must_use]
    pub fn notify(self, notification: Notification) -> Self {
        // Nothing is moved with it, but what has no bytes lies somewhere, too.
        let (from, to) =
            self.parts.first().map_or(self.begin, |part| (part.source_address, part.destination_address));
        let last = Descriptor { notification: Some(notification), ..self.part(from, to, 0) };
        Self { last: Some(last), ..self }
    }

    /// This list, all of it in one class of service: 0 high, 1 medium, 2 low.
    #[must_use]
    pub fn in_class(mut self, class: u8) -> Self {
        self.parts.iter_mut().chain(&mut self.last).for_each(|part| part.class = Some(class));
        self
    }

    /// This list, behind a fence, as [`crate::Order::fenced`].
    #[must_use]
    pub fn fenced(self) -> Self {
        Self { is_fenced: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every byte's source and destination.
    fn bytes(parts: &[(u64, u64, u32)]) -> Vec<(u64, u64)> {
        parts
            .iter()
            .flat_map(|(from, to, length)| (0..u64::from(*length)).map(move |at| (from + at, to + at)))
            .collect()
    }

    fn addresses(pieces: &[Piece]) -> impl Iterator<Item = u64> {
        pieces.iter().flat_map(|piece| (0..u64::from(piece.length_bytes)).map(|at| piece.address + at))
    }

    /// The pieces of a text of bytes, cut at random.
    fn cut(lengths: &[u32], bytes: u32, gap: u64) -> Vec<Piece> {
        let (mut pieces, mut address, mut left) = (Vec::new(), 1000, bytes);
        for &length in lengths.iter().chain([&u32::MAX]) {
            let length = length.min(left);
            pieces.push(Piece::new(address, length));
            address += u64::from(length) + gap;
            left -= length;
        }
        pieces
    }

    proptest! {
        #[test]
        fn every_byte_goes_where_it_belongs(
            one in proptest::collection::vec(0u32..40, 0..20),
            other in proptest::collection::vec(0u32..40, 0..20),
            length in 0u32..300,
            gaps in [0u64..3, 0u64..3],
        ) {
            let (sources, destinations) = (cut(&one, length, gaps[0]), cut(&other, length, gaps[1]));
            let parts = parts(&sources, &destinations);
            let expected: Vec<_> = addresses(&sources).zip(addresses(&destinations)).collect();
            prop_assert_eq!(bytes(&parts), expected);
            prop_assert!(parts.iter().all(|part| part.2 > 0));
            // No two parts could be one.
            for pair in parts.windows(2) {
                let length = u64::from(pair[0].2);
                prop_assert!((pair[0].0 + length, pair[0].1 + length) != (pair[1].0, pair[1].1));
            }
        }
    }

    #[test]
    fn what_makes_no_transfer_is_refused() {
        let there = Target { node: 1, domain: 2 };
        let [short, long] = [[Piece::new(0, 5)], [Piece::new(0, 6)]];
        let lengths = ListError::Lengths { source_bytes: 5, destination_bytes: 6 };
        assert_eq!(List::write(there, &short, &long), Err(lengths));
        let behind = [Piece::new(u64::MAX - 3, 5)];
        assert_eq!(List::read(there, &short, &behind), Err(ListError::Address(u64::MAX - 3)));
        assert_eq!(List::read(there, &[], &[Piece::new(8, 0)]), Err(ListError::Nothing));
        // More than one transfer can have is two.
        let huge = [Piece::new(0, u32::MAX), Piece::new(u32::MAX.into(), u32::MAX)];
        assert_eq!(List::read(there, &huge, &huge).unwrap().parts.len(), 2);
    }
}
