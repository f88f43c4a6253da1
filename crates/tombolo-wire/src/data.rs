//! Bytes of a block, and the completion notification bound to it.
//!
//! ```text
//!  8           10       12           16                24
//!  +-----------+--------+------------+-----------------+
//!  | slot      | domain | generation | block address   |
//!  +-----------+--------+------------+-----------------+
//!  24          26       28           30       32          36             40
//!  +-----------+--------+------------+--------+-----------+--------------+
//!  | block len | offset | payload len| asker  | data CRC  | in reply to  |
//!  +-----------+--------+------------+--------+-----------+--------------+
//!  40                     48           56          64
//!  +----------------------+------------+-----------+
//!  | notification address | first word | last word |   (only if carried)
//!  +----------------------+------------+-----------+
//! ```
//!
//! A notification belongs to the last block of its transfer (QOS §3.2.1). If
//! the sender may release it when it sends the block, the block's last packet
//! carries it; if earlier blocks are still unacknowledged, the packets only say
//! that one will come, and it comes alone, as [`NotifyHeader`], at once with a list
//! of those blocks or later without. All name the block by slot and generation, so
//! a receiver applies it once.

use crate::checksum::{self, Checksums};
use crate::view::{DATA_HEADER_BYTES, Draft, FLAG_CARRIES_NOTIFICATION, Kind, View};
use crate::{
    Asker, Attempt, Domain, GRANULE_BYTES, Generation, MAX_BLOCK_BYTES, MAX_HEADER_BYTES, RequestId,
    TransactionId, WireError,
};

const FLAG_REPLY: u8 = 1 << 0;
const FLAG_EXPECTS_NOTIFICATION: u8 = 1 << 1;

/// Two words written at the receiver when the transfer is there, the first
/// before the last (QOS §2.3.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notification {
    /// Where the first word goes; the last goes 8 bytes behind.
    pub address: u64,
    /// The word written first.
    pub first: u64,
    /// The word written last.
    pub last: u64,
}

/// What a packet says about the notification of its block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NotificationMark {
    /// The block has none.
    #[default]
    None,
    /// The block has one, and it travels in another packet.
    Elsewhere,
    /// Here it is.
    Here(Notification),
}

/// The header of a packet with bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The memory the addresses are of.
    pub domain: Domain,
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// Which transmission of the block.
    pub attempt: Attempt,
    /// Where the block goes: a virtual address of the domain.
    pub block_address: u64,
    /// Bytes of the block, at most [`MAX_BLOCK_BYTES`].
    pub block_bytes: u32,
    /// Where this packet's bytes lie in the block; a multiple of
    /// [`GRANULE_BYTES`].
    pub offset_bytes: u32,
    /// Bytes in this packet; a multiple of [`GRANULE_BYTES`] unless it ends the
    /// block. A packet without bytes of a block that has some asks whether the block
    /// is placed; it has offset 0 and carries no notification.
    pub payload_bytes: u32,
    /// The read this block answers, if it is the write-back of one.
    pub in_reply_to: Option<RequestId>,
    /// On whose behalf the block is written.
    pub asker: Asker,
    /// What the packet says about the block's notification.
    pub notification: NotificationMark,
}

/// The bytes of a packet, if they are what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// As sent (or the link does not check).
    Intact(&'a [u8]),
    /// Damaged or cut off under an intact header.
    Damaged,
}

impl DataHeader {
    /// Bytes of this header on the wire: 40, or 64 with a notification.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        match self.notification {
            NotificationMark::Here(_) => MAX_HEADER_BYTES,
            NotificationMark::None | NotificationMark::Elsewhere => DATA_HEADER_BYTES,
        }
    }

    /// Write the header in front of a payload that already lies in `datagram`
    /// at [`Self::header_bytes`]. Returns the length of the whole packet.
    ///
    /// # Errors
    /// [`WireError::TooShort`] if the datagram does not hold header and payload,
    /// [`WireError::Range`] if the packet does not lie in its block.
    pub fn seal(&self, datagram: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let header_bytes = self.header_bytes();
        let need = header_bytes + self.payload_bytes as usize;
        let have = datagram.len();
        let packet = datagram.get_mut(..need).ok_or(WireError::TooShort { have, need })?;
        let (front, payload) = packet.split_at_mut(header_bytes);
        self.emit_apart(payload, front, checksums)?;
        Ok(need)
    }

    /// Write only the header into `out`, for a link that takes header and
    /// payload from two places. Returns the length of the header.
    ///
    /// # Errors
    /// As [`Self::seal`]; [`WireError::PayloadLength`] if `payload` is not as
    /// long as the header says.
    pub fn emit_apart(
        &self,
        payload: &[u8],
        out: &mut [u8],
        checksums: Checksums,
    ) -> Result<usize, WireError> {
        check_range(self)?;
        if payload.len() != self.payload_bytes as usize {
            let need = self.payload_bytes as usize;
            return Err(WireError::PayloadLength { have: payload.len(), need });
        }
        let crc = match checksums {
            Checksums::On => checksum::of_payload(payload),
            Checksums::Off => 0,
        };
        draft(Kind::Data, self, crc)?.finish(out, checksums)
    }

    /// Write only the header of a payload whose CRC32C is known, for a link that sends the payload from where
    /// it lies. Returns the length of the header.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn emit_summed(&self, payload_crc: u32, out: &mut [u8]) -> Result<usize, WireError> {
        check_range(self)?;
        draft(Kind::Data, self, payload_crc)?.finish(out, Checksums::On)
    }

    /// Write only the header, for a link that protects integrity: there is no checksum, and the
    /// payload need not hold still. Returns the length of the header.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub fn emit_unchecked(&self, out: &mut [u8]) -> Result<usize, WireError> {
        check_range(self)?;
        draft(Kind::Data, self, 0)?.finish(out, Checksums::Off)
    }

    /// The header of a packet of `packet_bytes`, of which `head` is the beginning, on a link that
    /// protects integrity; and how long it is. The payload behind it may lie where its sender can
    /// still write. `None`: not a packet with bytes.
    ///
    /// # Errors
    /// Any [`WireError`]: drop the packet.
    pub fn peek(head: &[u8], packet_bytes: usize) -> Result<Option<(Self, usize)>, WireError> {
        let view = View::check(head, Checksums::Off)?;
        if view.kind() != Kind::Data {
            return Ok(None);
        }
        let header = fields(&view)?;
        let header_bytes = header.header_bytes();
        let need = header_bytes + header.payload_bytes as usize;
        if packet_bytes < need {
            return Err(WireError::TooShort { have: packet_bytes, need });
        }
        if packet_bytes > need {
            return Err(WireError::TrailingBytes { extra: packet_bytes - need });
        }
        Ok(Some((header, header_bytes)))
    }

    /// The meaning of a checked view, and its payload.
    pub(crate) fn interpret<'a>(
        view: &View<'a>,
        checksums: Checksums,
    ) -> Result<(Self, Payload<'a>), WireError> {
        let header = fields(view)?;
        let need = header.payload_bytes as usize;
        let Some((bytes, extra)) = view.rest().split_at_checked(need) else {
            return Ok((header, Payload::Damaged));
        };
        if !extra.is_empty() {
            return Err(WireError::TrailingBytes { extra: extra.len() });
        }
        let damaged = checksums == Checksums::On && view.u32_at::<32>() != checksum::of_payload(bytes);
        Ok((header, if damaged { Payload::Damaged } else { Payload::Intact(bytes) }))
    }
}

/// The header of a notification that travels without bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyHeader {
    /// The memory the addresses are of.
    pub domain: Domain,
    /// The transaction: the block's place in the sender's table.
    pub transaction: TransactionId,
    /// Which of the blocks that have had that place.
    pub generation: Generation,
    /// Which transmission of the block.
    pub attempt: Attempt,
    /// Where the block goes.
    pub block_address: u64,
    /// Bytes of the block.
    pub block_bytes: u32,
    /// The read the block answers, if it is the write-back of one.
    pub in_reply_to: Option<RequestId>,
    /// On whose behalf the block is written.
    pub asker: Asker,
    /// The notification.
    pub notification: Notification,
}

impl NotifyHeader {
    fn as_data(&self) -> DataHeader {
        DataHeader {
            domain: self.domain,
            transaction: self.transaction,
            generation: self.generation,
            attempt: self.attempt,
            block_address: self.block_address,
            block_bytes: self.block_bytes,
            offset_bytes: 0,
            payload_bytes: 0,
            in_reply_to: self.in_reply_to,
            asker: self.asker,
            notification: NotificationMark::Here(self.notification),
        }
    }

    pub(crate) fn emit(&self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        self.emit_as(Kind::Notify, 0, 0, out, checksums)
    }

    /// Writes the header of a packet that has a list of this many bytes behind it.
    pub(crate) fn emit_as(
        &self,
        kind: Kind,
        list_bytes: u16,
        list_crc: u32,
        out: &mut [u8],
        checksums: Checksums,
    ) -> Result<usize, WireError> {
        let header = self.as_data();
        check_range(&header)?;
        let mut draft = draft(kind, &header, list_crc)?;
        draft.u16_at::<28>(list_bytes);
        draft.finish(out, checksums)
    }

    pub(crate) fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        match Self::fields(view)? {
            (header, 0, 0) => Ok(header),
            _ => Err(WireError::Reserved),
        }
    }

    /// The header, and what it says of a list behind it: its length in bytes, and its checksum.
    pub(crate) fn fields(view: &View<'_>) -> Result<(Self, u16, u32), WireError> {
        let header = unchecked_fields(view)?;
        let NotificationMark::Here(notification) = header.notification else {
            return Err(WireError::Reserved);
        };
        if header.offset_bytes != 0 {
            return Err(WireError::Reserved);
        }
        let list_bytes = view.u16_at::<28>();
        check_range(&DataHeader { payload_bytes: 0, ..header })?;
        let header = Self {
            domain: header.domain,
            transaction: header.transaction,
            generation: header.generation,
            attempt: header.attempt,
            block_address: header.block_address,
            block_bytes: header.block_bytes,
            in_reply_to: header.in_reply_to,
            asker: header.asker,
            notification,
        };
        Ok((header, list_bytes, view.u32_at::<32>()))
    }
}

fn draft(kind: Kind, header: &DataHeader, payload_crc: u32) -> Result<Draft, WireError> {
    let short = |value: u32| u16::try_from(value).map_err(|_| WireError::Range);
    let mut flags = 0;
    if header.in_reply_to.is_some() {
        flags |= FLAG_REPLY;
    }
    match header.notification {
        NotificationMark::None => {}
        NotificationMark::Elsewhere => flags |= FLAG_EXPECTS_NOTIFICATION,
        NotificationMark::Here(_) => {
            flags |= FLAG_EXPECTS_NOTIFICATION | FLAG_CARRIES_NOTIFICATION;
        }
    }
    let mut draft = Draft::new(kind, flags, header.attempt.0);
    draft.u16_at::<8>(header.transaction.0);
    draft.u16_at::<10>(header.domain.0);
    draft.u32_at::<12>(header.generation.0);
    draft.u64_at::<16>(header.block_address);
    draft.u16_at::<24>(short(header.block_bytes)?);
    draft.u16_at::<26>(short(header.offset_bytes)?);
    draft.u16_at::<28>(short(header.payload_bytes)?);
    draft.u16_at::<30>(header.asker.0);
    draft.u32_at::<32>(payload_crc);
    draft.u32_at::<36>(header.in_reply_to.unwrap_or_default().0);
    if let NotificationMark::Here(notification) = header.notification {
        draft.u64_at::<40>(notification.address);
        draft.u64_at::<48>(notification.first);
        draft.u64_at::<56>(notification.last);
    }
    Ok(draft)
}

fn fields(view: &View<'_>) -> Result<DataHeader, WireError> {
    let header = unchecked_fields(view)?;
    check_range(&header)?;
    let is_probe = header.block_bytes != 0 && header.payload_bytes == 0;
    if is_probe && (header.offset_bytes != 0 || matches!(header.notification, NotificationMark::Here(_))) {
        return Err(WireError::Range);
    }
    Ok(header)
}

/// As [`fields`], where the payload need not lie in its block.
fn unchecked_fields(view: &View<'_>) -> Result<DataHeader, WireError> {
    view.only_flags(FLAG_REPLY | FLAG_EXPECTS_NOTIFICATION | FLAG_CARRIES_NOTIFICATION)?;
    let flags = view.flags();
    let request = view.u32_at::<36>();
    let asker = Asker(view.u16_at::<30>());
    let is_reply = flags & FLAG_REPLY != 0;
    if (is_reply && asker != Asker::SENDER) || (!is_reply && request != 0) {
        return Err(WireError::Reserved);
    }
    let expects = flags & FLAG_EXPECTS_NOTIFICATION != 0;
    let notification = match (expects, flags & FLAG_CARRIES_NOTIFICATION != 0) {
        (false, false) => NotificationMark::None,
        (true, false) => NotificationMark::Elsewhere,
        (true, true) => NotificationMark::Here(Notification {
            address: view.u64_at::<40>(),
            first: view.u64_at::<48>(),
            last: view.u64_at::<56>(),
        }),
        (false, true) => return Err(WireError::Reserved),
    };
    Ok(DataHeader {
        domain: Domain(view.u16_at::<10>()),
        transaction: TransactionId(view.u16_at::<8>()),
        generation: Generation(view.u32_at::<12>()),
        attempt: Attempt(view.attempt()),
        block_address: view.u64_at::<16>(),
        block_bytes: view.u16_at::<24>().into(),
        offset_bytes: view.u16_at::<26>().into(),
        payload_bytes: view.u16_at::<28>().into(),
        in_reply_to: is_reply.then_some(RequestId(request)),
        asker,
        notification,
    })
}

/// A packet lies in its block, on granules; a block lies in the address space.
fn check_range(header: &DataHeader) -> Result<(), WireError> {
    let end_bytes = header.offset_bytes.checked_add(header.payload_bytes);
    let in_block = end_bytes.is_some_and(|end| {
        end <= header.block_bytes
            && (end == header.block_bytes || header.payload_bytes.is_multiple_of(GRANULE_BYTES))
    });
    if header.block_bytes > MAX_BLOCK_BYTES || !in_block || !header.offset_bytes.is_multiple_of(GRANULE_BYTES)
    {
        return Err(WireError::Range);
    }
    match header.block_address.checked_add(header.block_bytes.into()) {
        Some(_) => Ok(()),
        None => Err(WireError::AddressOverflow),
    }
}
