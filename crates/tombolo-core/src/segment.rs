//! The segment table: where a borrowed byte lies (REMAP §III, VII).
//!
//! **What.** A borrower sees its far memory as one flat range of bytes from 0.
//! The table maps each of them to a lender's segment: which lender, in which
//! segment, at which offset. REMAP keeps an offset and a link id per segment;
//! here several segments can also be striped, so that one range is as fast as
//! all its lenders together.
//!
//! **Why.** Only this table knows of stripes and of several lenders. A front end asks for a range and gets pieces, each
//! for one transfer.
//! **How.** Segments may differ in length, so one stripe over all of them does not fit. The table is cut into *bands*.
//! The first band stripes over every segment up to the end of the shortest one, the next band over the segments that
//! are left, and so on. There is at most one band per segment, and the band of a byte is found in O(log n). Within a
//! band the place is computed.
//! Today's front ends use [`crate::store`] instead, whose lenders come and go; this table is for fixed sets of segments.
//!
//! ```text
//!  segment A  |0|3|6|9|           band 0: A B C   band 1: B C   band 2: C
//!  segment B  |1|4|7|10|12|14|
//!  segment C  |2|5|8|11|13|15|16|17|              (numbers: stripes in order)
//! ```

/// A lender: its number in the caller's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LenderId(pub u32);

/// A segment, by its number at the lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u64);

/// One segment lent to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its lender.
    pub lender: LenderId,
    /// Its number at the lender.
    pub segment: SegmentId,
    /// Its length in bytes; a multiple of the stripe.
    pub length_bytes: u64,
}

/// A run of far bytes that is contiguous in one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its lender.
    pub lender: LenderId,
    /// The segment that it lies in.
    pub segment: SegmentId,
    /// Where in the segment, in bytes.
    pub offset_bytes: u64,
    /// How many bytes.
    pub length_bytes: u64,
}

/// Why a table cannot be built, or a range cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SegmentError {
    /// The stripe is not a power of two of at least a page.
    #[error("a stripe of {0} bytes is not a power of two of at least 4096")]
    Stripe(u64),
    /// A segment whose length is zero or not a multiple of the stripe.
    #[error("segment {segment:?} of {length_bytes} bytes does not hold whole stripes")]
    Length {
        /// The segment.
        segment: SegmentId,
        /// Its length.
        length_bytes: u64,
    },
    /// All segments together pass 2⁶⁴ bytes.
    #[error("the segments together are longer than an address can say")]
    TooLong,
    /// A range outside the table.
    #[error("{length_bytes} bytes at {address:#x} are outside the {table_bytes} bytes of far memory")]
    OutOfRange {
        /// Where the range begins.
        address: u64,
        /// How long it is.
        length_bytes: u64,
        /// How long the table is.
        table_bytes: u64,
    },
}

/// The default stripe: long enough that a stripe is many blocks, short enough that a burst of page-ins meets all
/// lenders.
pub const DEFAULT_STRIPE_BYTES: u64 = 256 * 1024;

/// The least stripe: a page never lies in two segments.
pub const MIN_STRIPE_BYTES: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Band {
    /// First far byte of the band.
    start: u64,
    /// Where the band begins in each of its segments.
    segment_start: u64,
    /// Its segments, as a range of `SegmentTable::members`.
    members: std::ops::Range<usize>,
}

/// Maps far bytes to segments. Immutable: a new set of lenders needs a new table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTable {
    stripe_shift: u32,
    length_bytes: u64,
    bands: Vec<Band>,
    members: Vec<(LenderId, SegmentId)>,
}

impl SegmentTable {
    /// A table over `segments`, in this order, in stripes of `stripe_bytes`. There may be one segment, or none.
    ///
    /// # Errors
    /// [`SegmentError::Stripe`], [`SegmentError::Length`], [`SegmentError::TooLong`].
    pub fn new(segments: &[Segment], stripe_bytes: u64) -> Result<Self, SegmentError> {
        if stripe_bytes < MIN_STRIPE_BYTES || !stripe_bytes.is_power_of_two() {
            return Err(SegmentError::Stripe(stripe_bytes));
        }
        for &Segment { segment, length_bytes, .. } in segments {
            if length_bytes == 0 || !length_bytes.is_multiple_of(stripe_bytes) {
                return Err(SegmentError::Length { segment, length_bytes });
            }
        }
        let mut table = Self {
            stripe_shift: stripe_bytes.trailing_zeros(),
            length_bytes: 0,
            bands: Vec::new(),
            members: Vec::new(),
        };
        let mut done_bytes = 0;
        loop {
            let left = || segments.iter().filter(|segment| segment.length_bytes > done_bytes);
            let Some(end_bytes) = left().map(|segment| segment.length_bytes).min() else {
                break;
            };
            let first = table.members.len();
            table.members.extend(left().map(|segment| (segment.lender, segment.segment)));
            let members = first..table.members.len();
            let band_bytes =
                (members.len() as u64).checked_mul(end_bytes - done_bytes).ok_or(SegmentError::TooLong)?;
            table.bands.push(Band { start: table.length_bytes, segment_start: done_bytes, members });
            table.length_bytes = table.length_bytes.checked_add(band_bytes).ok_or(SegmentError::TooLong)?;
            done_bytes = end_bytes;
        }
        Ok(table)
    }

    /// Bytes of far memory.
    #[must_use]
    pub fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Bytes of a stripe.
    #[must_use]
    pub fn stripe_bytes(&self) -> u64 {
        1 << self.stripe_shift
    }

    /// The pieces of a range, in order. Adjacent bytes that are contiguous in one segment are one piece.
    ///
    /// # Errors
    /// [`SegmentError::OutOfRange`]; nothing of the range is resolved then.
    pub fn resolve(&self, address: u64, length_bytes: u64) -> Result<Pieces<'_>, SegmentError> {
        match address.checked_add(length_bytes) {
            Some(end) if end <= self.length_bytes => {
                Ok(Pieces { table: self, address, left_bytes: length_bytes })
            }
            _ => {
                let table_bytes = self.length_bytes;
                Err(SegmentError::OutOfRange { address, length_bytes, table_bytes })
            }
        }
    }

    /// The place of one byte, and how many bytes from there lie together.
    fn locate(&self, address: u64) -> Option<Piece> {
        let at = self.bands.partition_point(|band| band.start <= address).checked_sub(1)?;
        let band = &self.bands[at];
        let end = self.bands.get(at + 1).map_or(self.length_bytes, |next| next.start);
        let in_band = address - band.start;
        let width = band.members.len() as u64;
        if width == 1 {
            let (lender, segment) = self.members[band.members.start];
            let offset_bytes = band.segment_start + in_band;
            return Some(Piece { lender, segment, offset_bytes, length_bytes: end - address });
        }
        let stripe = in_band >> self.stripe_shift;
        let in_stripe = in_band & (self.stripe_bytes() - 1);
        let (lender, segment) = self.members[band.members.start + (stripe % width) as usize];
        Some(Piece {
            lender,
            segment,
            offset_bytes: band.segment_start + ((stripe / width) << self.stripe_shift) + in_stripe,
            length_bytes: self.stripe_bytes() - in_stripe,
        })
    }
}

/// Iterator over the pieces of a range, from [`SegmentTable::resolve`].
#[derive(Clone, Debug)]
pub struct Pieces<'a> {
    table: &'a SegmentTable,
    address: u64,
    left_bytes: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let mut piece: Option<Piece> = None;
        while self.left_bytes > 0 {
            let Some(mut next) = self.table.locate(self.address) else {
                break;
            };
            next.length_bytes = next.length_bytes.min(self.left_bytes);
            match &mut piece {
                None => piece = Some(next),
                Some(piece)
                    if piece.segment == next.segment
                        && piece.lender == next.lender
                        && piece.offset_bytes + piece.length_bytes == next.offset_bytes =>
                {
                    piece.length_bytes += next.length_bytes;
                }
                Some(_) => break,
            }
            self.address += next.length_bytes;
            self.left_bytes -= next.length_bytes;
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn segments(stripes: &[u64]) -> Vec<Segment> {
        (0u32..)
            .zip(stripes)
            .map(|(number, stripes)| Segment {
                lender: LenderId(number % 3),
                segment: SegmentId(100 + u64::from(number)),
                length_bytes: stripes * 4096,
            })
            .collect()
    }

    /// The slow way: deal stripes round robin to the lenders that have room.
    fn oracle(segments: &[Segment]) -> Vec<(SegmentId, u64)> {
        let (mut dealt, mut round) = (Vec::new(), 0);
        while segments.iter().any(|segment| segment.length_bytes > round) {
            for segment in segments.iter().filter(|segment| segment.length_bytes > round) {
                dealt.push((segment.segment, round));
            }
            round += 4096;
        }
        dealt
    }

    proptest! {
        #[test]
        fn agrees_with_the_oracle(
            stripes in proptest::collection::vec(1..9u64, 0..6),
            from in any::<u64>(),
            length in any::<u64>(),
        ) {
            let segments = segments(&stripes);
            let table = SegmentTable::new(&segments, 4096).expect("whole stripes");
            let dealt = oracle(&segments);
            prop_assert_eq!(table.length_bytes(), dealt.len() as u64 * 4096);
            let from = from % (table.length_bytes() + 1);
            let length = length % (table.length_bytes() - from + 1);
            let mut address = from;
            let mut before: Option<Piece> = None;
            for piece in table.resolve(from, length).expect("inside") {
                prop_assert!(piece.length_bytes > 0);
                for at in 0..piece.length_bytes {
                    let (segment, start) = dealt[((address + at) / 4096) as usize];
                    prop_assert_eq!(segment, piece.segment);
                    prop_assert_eq!(start + (address + at) % 4096, piece.offset_bytes + at);
                }
                if let Some(before) = before {
                    let joined = before.segment == piece.segment
                        && before.offset_bytes + before.length_bytes == piece.offset_bytes;
                    prop_assert!(!joined, "two pieces where one would do");
                }
                address += piece.length_bytes;
                before = Some(piece);
            }
            prop_assert_eq!(address, from + length);
        }

        #[test]
        fn every_far_byte_has_a_place_of_its_own(stripes in proptest::collection::vec(1..6u64, 1..6)) {
            let segments = segments(&stripes);
            let table = SegmentTable::new(&segments, 4096).expect("whole stripes");
            let mut taken: BTreeMap<(SegmentId, u64), u64> = BTreeMap::new();
            for page in 0..table.length_bytes() / 4096 {
                let piece = table.resolve(page * 4096, 4096).expect("inside").next().expect("a page");
                prop_assert_eq!(piece.length_bytes, 4096);
                let other = taken.insert((piece.segment, piece.offset_bytes), page);
                prop_assert_eq!(other, None);
                let length = segments.iter().find(|segment| segment.segment == piece.segment);
                prop_assert!(length.is_some_and(|segment| piece.offset_bytes < segment.length_bytes));
            }
        }
    }

    #[test]
    fn one_lender_is_one_piece() {
        let table = SegmentTable::new(&segments(&[64]), 4096).expect("whole stripes");
        let pieces: Vec<_> = table.resolve(1000, 200_000).expect("inside").collect();
        assert_eq!(pieces.len(), 1);
        assert_eq!((pieces[0].offset_bytes, pieces[0].length_bytes), (1000, 200_000));
    }

    #[test]
    fn mistakes_are_named() {
        let two = segments(&[2, 1]);
        assert_eq!(SegmentTable::new(&two, 2048), Err(SegmentError::Stripe(2048)));
        assert_eq!(SegmentTable::new(&two, 12288), Err(SegmentError::Stripe(12288)));
        assert!(matches!(SegmentTable::new(&two, 8192), Err(SegmentError::Length { .. })));
        let table = SegmentTable::new(&two, 4096).expect("whole stripes");
        assert!(table.resolve(12288, 0).is_ok());
        assert!(matches!(table.resolve(12288, 1), Err(SegmentError::OutOfRange { .. })));
        assert!(matches!(table.resolve(u64::MAX, 2), Err(SegmentError::OutOfRange { .. })));
        let vast = Segment { length_bytes: 1 << 63, ..two[0] };
        let many = [vast, Segment { length_bytes: 1 << 63, ..two[1] }];
        assert_eq!(SegmentTable::new(&many, 4096), Err(SegmentError::TooLong));
    }
}
