//! A read and the answers to it that are not data (QOS §3.6).
//!
//! A read moves no bytes itself: it asks the peer to write. The request says
//! which ids its sender still cares about (the watermark), so that the target
//! can forget the others without being told one by one.

use crate::checksum::Checksums;
use crate::view::{Draft, Kind, View};
use crate::{Attempt, CLASSES, Domain, Notification, Refusal, RequestId, WireError};

const FLAG_NOTIFICATION: u8 = 1 << 0;

/// "Write `size_bytes` from your `source_address` to my `destination_address`."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// The name of the read; every block of the answer carries it.
    pub request: RequestId,
    /// The oldest read its sender still wants; all before it are over.
    pub watermark: RequestId,
    /// Which transmission of the request.
    pub attempt: Attempt,
    /// The domain, at both ends.
    pub domain: Domain,
    /// Bytes to read.
    pub size_bytes: u32,
    /// Where they are, at the target.
    pub source_address: u64,
    /// Where they go, at the requester.
    pub destination_address: u64,
    /// The words to be written at the requester with the last byte.
    pub notification: Option<Notification>,
    /// The class of service the user asked for: 0 highest to 2; `None` = by size.
    pub class: Option<u8>,
}

impl ReadRequest {
    pub(crate) fn emit(&self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        self.check()?;
        let flags = if self.notification.is_some() { FLAG_NOTIFICATION } else { 0 };
        let notification = self.notification.unwrap_or_default();
        let mut draft = Draft::new(Kind::ReadRequest, flags, self.attempt.0);
        draft.u32_at::<8>(self.request.0);
        draft.u32_at::<12>(self.watermark.0);
        draft.u32_at::<16>(self.size_bytes);
        draft.u16_at::<20>(self.domain.0);
        draft.u8_at::<22>(self.class.map_or(0, |class| class + 1));
        draft.u64_at::<24>(self.source_address);
        draft.u64_at::<32>(self.destination_address);
        draft.u64_at::<40>(notification.address);
        draft.u64_at::<48>(notification.first);
        draft.u64_at::<56>(notification.last);
        draft.finish(out, checksums)
    }

    pub(crate) fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        view.only_flags(FLAG_NOTIFICATION)?;
        let words = Notification {
            address: view.u64_at::<40>(),
            first: view.u64_at::<48>(),
            last: view.u64_at::<56>(),
        };
        let has_notification = view.flags() & FLAG_NOTIFICATION != 0;
        if view.u8_at::<23>() != 0 || (!has_notification && words != Notification::default()) {
            return Err(WireError::Reserved);
        }
        let request = Self {
            request: RequestId(view.u32_at::<8>()),
            watermark: RequestId(view.u32_at::<12>()),
            attempt: Attempt(view.attempt()),
            domain: Domain(view.u16_at::<20>()),
            size_bytes: view.u32_at::<16>(),
            source_address: view.u64_at::<24>(),
            destination_address: view.u64_at::<32>(),
            notification: has_notification.then_some(words),
            class: view.u8_at::<22>().checked_sub(1),
        };
        request.check()?;
        Ok(request)
    }

    fn check(&self) -> Result<(), WireError> {
        if let Some(class) = self.class.filter(|class| *class >= CLASSES) {
            return Err(WireError::Class(class));
        }
        let size = u64::from(self.size_bytes);
        let fits = |address: u64| address.checked_add(size).is_some();
        if fits(self.source_address) && fits(self.destination_address) {
            Ok(())
        } else {
            Err(WireError::AddressOverflow)
        }
    }
}

/// A read cannot be served: for ever (2, 3, 5) or for now (7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadReject {
    /// Which read.
    pub request: RequestId,
    /// Why, and where.
    pub refusal: Refusal,
}

impl ReadReject {
    pub(crate) fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let mut draft = Draft::new(Kind::ReadReject, self.refusal.flags(), 0);
        draft.u32_at::<8>(self.request.0);
        draft.u8_at::<12>(self.refusal.code as u8);
        self.refusal.emit_address(&mut draft);
        draft.finish(out, checksums)
    }

    pub(crate) fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        if view.u8_at::<13>() != 0 || view.u16_at::<14>() != 0 || view.attempt() != 0 {
            return Err(WireError::Reserved);
        }
        let refusal = Refusal::interpret(view, view.u8_at::<12>())?;
        Ok(Self { request: RequestId(view.u32_at::<8>()), refusal })
    }
}

/// A read that was asked for again is known and waits or runs: the requester
/// learns that the target lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAccept {
    /// Which read.
    pub request: RequestId,
}

impl ReadAccept {
    pub(crate) fn emit(self, out: &mut [u8], checksums: Checksums) -> Result<usize, WireError> {
        let mut draft = Draft::new(Kind::ReadAccept, 0, 0);
        draft.u32_at::<8>(self.request.0);
        draft.finish(out, checksums)
    }

    pub(crate) fn interpret(view: &View<'_>) -> Result<Self, WireError> {
        view.ends_here()?;
        view.only_flags(0)?;
        if view.u32_at::<12>() != 0 || view.attempt() != 0 {
            return Err(WireError::Reserved);
        }
        Ok(Self { request: RequestId(view.u32_at::<8>()) })
    }
}
