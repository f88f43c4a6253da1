//! Accesses to memory as bursts: a compute block cuts them, and knows which answers end them; a memory block puts them together.

use std::collections::BTreeMap;

use tombolo_wire::{BEAT_BYTES, BusAddress, BusTransaction};

use super::Egress;

/// Beats of one burst at most: its length has eight bits.
const MAX_BEATS: u64 = 256;
/// Memory has no more addresses than a burst can name (40 bits).
const ADDRESSES: u64 = 1 << 40;

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusOperation {
    /// Bytes come back.
    Read,
    /// Bytes go there.
    Write,
}

/// An access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusAccess {
    /// Reads or writes.
    pub operation: BusOperation,
    /// Where it begins.
    pub address: u64,
    /// How many bytes it is about. A read brings whole beats; a write changes these bytes and no others.
    pub length_bytes: u32,
}

/// The accesses of a compute block that are not answered, by interface and number.
#[derive(Debug, Default)]
pub struct Accesses {
    /// Bursts of each without an answer.
    open: BTreeMap<(u8, u16), u64>,
    next_id: u16,
}

impl Accesses {
    /// An access of an interface leaves by these links: each of its bursts by the next one. `data` gives the beat at an address, of a
    /// write. Returns its number. `None`: it has no bytes, or some that no burst can name; or all numbers of its interface are under way;
    /// or there is no such interface or link.
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
        // Of the last beat, as many bytes count as are left.
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
            // Where the first burst can leave, all can.
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

    /// A transaction has come back: the number of the access that is whole with it.
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

    /// Accesses without an answer.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

/// A burst at a memory block: by which link and whose it came, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBurst {
    /// Reads or writes.
    pub operation: BusOperation,
    /// The link that its answer takes.
    pub link: u8,
    /// Whose it is.
    pub interface: u8,
    /// Its number, where it begins, and how long it is.
    pub at: BusAddress,
}

impl MemoryBurst {
    /// How many bytes it is about.
    #[must_use]
    pub fn length_bytes(&self) -> u32 {
        (u32::from(self.at.length) + 1) * BEAT_BYTES as u32
    }

    /// The memory has made it: its answer leaves. `data` gives the beat at an address, of a read. `false`: there is no such interface or
    /// link.
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

/// Data of a burst came without their address, or an address before the data of the burst before it. What belongs to no whole burst is
/// dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interface {interface}: a part of a burst is missing")]
pub struct BurstError {
    /// Whose burst it was.
    pub interface: u8,
}

/// Bursts that a memory block puts together: of each link and interface one, whose data follow its address.
#[derive(Debug, Default)]
pub struct Bursts {
    /// Those whose data come, with the beats that have.
    written: BTreeMap<(u8, u8), (BusAddress, u32)>,
}

impl Bursts {
    /// A transaction has come: the burst that is whole with it. Answers are none of its business.
    ///
    /// # Errors
    /// [`BurstError`], if something before it was lost. The next address begins a burst anew.
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

    /// Bursts that are not whole.
    #[must_use]
    pub fn open(&self) -> usize {
        self.written.len()
    }
}
