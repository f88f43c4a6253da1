//! Accesses to memory as bursts. A compute block cuts accesses into bursts, and knows which answers end an access.
//! A memory block puts the bursts together.

use std::collections::BTreeMap;

use tombolo_wire::{BEAT_BYTES, BusAddress, BusTransaction};

use super::Egress;

/// Most beats of one burst: its length has eight bits.
const MAX_BEATS: u64 = 256;
/// Number of addresses that a burst can name (40 bits).
const ADDRESSES: u64 = 1 << 40;

/// Whether an access reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusOperation {
    /// Bytes are read from memory.
    Read,
    /// Bytes are written to memory.
    Write,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusAccess {
    /// Whether it reads or writes.
    pub operation: BusOperation,
    /// Address of its first byte.
    pub address: u64,
    /// Number of bytes. A read brings whole beats. A write changes these bytes and no others.
    pub length_bytes: u32,
}

/// The unanswered accesses of a compute block, by interface and number.
#[derive(Debug, Default)]
pub struct Accesses {
    /// Number of unanswered bursts of each access.
    open: BTreeMap<(u8, u16), u64>,
    next_id: u16,
}

impl Accesses {
    /// Begins an access of an interface and queues its bursts, each on the next one of these links. `data` returns
    /// the beat at an address, for a write. Returns the number of the access. `None` if the access has no bytes, if
    /// it has an address that no burst can name, if all numbers of its interface are in use, or if there is no such
    /// interface or link.
    pub fn begin(
        &mut self,
        egress: &mut Egress,
        interface: u8,
        links: &[u8],
        access: BusAccess,
        mut data: impl FnMut(u64) -> u128,
    ) -> Option<u16> {
        const BEAT: u64 = BEAT_BYTES as u64;
        let BusAccess { operation, address, length_bytes } = access;
        let beats = u64::from(length_bytes).div_ceil(BEAT);
        let end = address.checked_add(beats * BEAT)?;
        if beats == 0 || end > ADDRESSES {
            return None;
        }
        let id = (0..=u16::MAX)
            .map(|step| self.next_id.wrapping_add(step))
            .find(|id| !self.open.contains_key(&(interface, *id)))?;
        // In the last beat, only the remaining bytes count.
        let over = length_bytes % BEAT_BYTES as u32;
        let last_strobe = if over == 0 { u16::MAX } else { (1 << over) - 1 };
        let (mut first, mut bursts) = (0, 0);
        while first < beats {
            let count = MAX_BEATS.min(beats - first);
            let start = BusAddress {
                id,
                address: address + first * BEAT,
                length: (count - 1) as u8,
                size: BEAT_BYTES.trailing_zeros() as u8,
                ..BusAddress::default()
            };
            let is_sent = match operation {
                BusOperation::Read => egress.push(interface, links, [BusTransaction::ReadAddress(start)]),
                BusOperation::Write => {
                    let beat = |beat: u64| BusTransaction::WriteData {
                        data: data(address + beat * BEAT),
                        strobe: if beat + 1 == beats { last_strobe } else { u16::MAX },
                        is_last: beat + 1 == first + count,
                    };
                    let address = std::iter::once(BusTransaction::WriteAddress(start));
                    egress.push(interface, links, address.chain((first..first + count).map(beat)))
                }
            };
            // If the first burst can be queued, all can.
            if !is_sent {
                return None;
            }
            bursts += 1;
            first += count;
        }
        self.open.insert((interface, id), bursts);
        self.next_id = id.wrapping_add(1);
        Some(id)
    }

    /// Takes a transaction that has come back. Returns the number of the access that is complete with it, if any.
    pub fn answered(&mut self, interface: u8, transaction: &BusTransaction) -> Option<u16> {
        let (BusTransaction::ReadData { id, is_last: true, .. } | BusTransaction::WriteAnswer { id, .. }) =
            *transaction
        else {
            return None;
        };
        let bursts = self.open.get_mut(&(interface, id))?;
        *bursts -= 1;
        if *bursts > 0 {
            return None;
        }
        self.open.remove(&(interface, id));
        Some(id)
    }

    /// Number of unanswered accesses.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

/// A burst that has come to a memory block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBurst {
    /// Whether it reads or writes.
    pub operation: BusOperation,
    /// The link that its answer takes.
    pub link: u8,
    /// The interface that sent it, and that gets the answer.
    pub interface: u8,
    /// Its number, address and length.
    pub at: BusAddress,
}

impl MemoryBurst {
    /// Number of bytes in its beats.
    #[must_use]
    pub fn length_bytes(&self) -> u32 {
        (u32::from(self.at.length) + 1) * BEAT_BYTES as u32
    }

    /// Queues the answer, after the memory has carried the burst out. `data` returns the beat at an address, for a
    /// read. `false` if there is no such interface or link.
    pub fn answer(&self, egress: &mut Egress, mut data: impl FnMut(u64) -> u128) -> bool {
        let (id, response) = (self.at.id, 0);
        match self.operation {
            BusOperation::Read => {
                let beat = |beat: u8| BusTransaction::ReadData {
                    id,
                    data: data(self.at.address + u64::from(beat) * BEAT_BYTES as u64),
                    response,
                    is_last: beat == self.at.length,
                };
                egress.push(self.interface, &[self.link], (0..=self.at.length).map(beat))
            }
            BusOperation::Write => {
                egress.push(self.interface, &[self.link], [BusTransaction::WriteAnswer { id, response }])
            }
        }
    }
}

/// A part of a burst is missing: data came without their address, an address came before all data of the burst
/// before it, or a burst had too few or too many data. The incomplete burst is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interface {interface}: a part of a burst is missing")]
pub struct BurstError {
    /// The interface whose burst it was.
    pub interface: u8,
}

/// The write bursts that a memory block is putting together. The data of a burst follow its address, so each
/// interface has at most one incomplete burst on each link.
#[derive(Debug, Default)]
pub struct Bursts {
    /// Incomplete write bursts by link and interface, with the number of beats that have come.
    written: BTreeMap<(u8, u8), (BusAddress, u32)>,
}

impl Bursts {
    /// Takes a transaction that has come. Returns the burst that is complete with it, if any. Answers are ignored.
    ///
    /// # Errors
    /// [`BurstError`], if an earlier part of the burst was lost. An address always begins a new burst.
    pub fn accept(
        &mut self,
        link: u8,
        interface: u8,
        transaction: &BusTransaction,
    ) -> Result<Option<MemoryBurst>, BurstError> {
        let burst = |operation, at| Some(MemoryBurst { operation, link, interface, at });
        let (key, error) = ((link, interface), Err(BurstError { interface }));
        match *transaction {
            BusTransaction::ReadAddress(at) => Ok(burst(BusOperation::Read, at)),
            BusTransaction::WriteAddress(at) => match self.written.insert(key, (at, 0)) {
                None => Ok(None),
                Some(_) => error,
            },
            BusTransaction::WriteData { is_last, .. } => {
                let Some((at, beats)) = self.written.get_mut(&key) else { return error };
                let (at, is_due) = (*at, *beats == u32::from(at.length));
                *beats += 1;
                if is_last != is_due {
                    self.written.remove(&key);
                    return error;
                }
                if !is_last {
                    return Ok(None);
                }
                self.written.remove(&key);
                Ok(burst(BusOperation::Write, at))
            }
            BusTransaction::ReadData { .. } | BusTransaction::WriteAnswer { .. } => Ok(None),
        }
    }

    /// Number of incomplete bursts.
    #[must_use]
    pub fn open(&self) -> usize {
        self.written.len()
    }
}
