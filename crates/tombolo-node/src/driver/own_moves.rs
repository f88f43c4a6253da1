//! Blocks from and to programs' own memory: where their ends are, and their bytes. What comes after what is decided by the machine
//! ([`tombolo_core::own`]).

use std::sync::Arc;

use smallvec::SmallVec;
use tombolo_core::iommu;
use tombolo_core::own::{MoveId, Part, Purpose, Refused, Went, Words};
use tombolo_core::rdma::{Block, BlockNotification, NotificationWrite, Placement};
use tombolo_host::shared::SharedSpan;
use tombolo_wire::{Attempt, Generation, NackCode, Notification, Refusal};

use crate::driver::address_space::{Access, Place, Range};
use crate::driver::loopback::{NOTIFICATION_BYTES, asker_of, write_words};
use crate::driver::node::Node;
use crate::driver::own_accesses::Work;
use crate::fabric::connection::Connection;
use crate::fabric::table::ITSELF;
use crate::programs::access::{Ordered, Staged};
use crate::programs::own::{OwnPlace, is_own};
use crate::programs::user::Poster;

/// An end of a block that stays here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Source,
    Destination,
    /// The words of its notification, at that address.
    Words(u64),
}

/// Whether an end of a block that stays here is in a program's own memory.
pub(crate) fn touches_own(block: &Block) -> bool {
    let words = match block.notification {
        BlockNotification::Now(words) => is_own(block.domain, words.address),
        BlockNotification::None => false,
        // Somebody has to remember whose it is until the words come.
        BlockNotification::Later => true,
    };
    words || is_own(block.own_domain, block.source_address) || is_own(block.domain, block.destination_address)
}

impl Node {
    /// Bytes from a peer go to a program's own memory.
    pub(crate) fn place_own(
        &self,
        placement: &Placement,
        payload: SharedSpan<'_>,
        place: &OwnPlace,
    ) -> Result<(), Refusal> {
        let (purpose, asker) = (Purpose::Place(*placement), Poster::of(placement.user));
        self.begin_access(place, placement.address, Work::Write(payload), purpose, asker)
    }

    /// Words that a peer asked for go there.
    pub(crate) fn notify_own(&self, write: NotificationWrite, place: &OwnPlace) -> Result<(), Refusal> {
        let (words, asker) = (write.words, Poster::of(write.user));
        let work = Work::Words([words.first, words.last]);
        self.begin_access(place, words.address, work, Purpose::Notify(write), asker)
    }

    /// A block to a peer comes from there.
    pub(crate) fn send_own(&self, block: &Block, place: &OwnPlace) {
        let begun = self.with_own_memory(|own_memory, engine| own_memory.send(self.now(), engine, block));
        let Some(id) = begun else { return };
        let work = Work::Read(block.length_bytes);
        let begun = self.begin_part(id, block, block.source_address, (iommu::End::Source, work), place);
        if let Err(refusal) = begun {
            self.with_own_memory(|own_memory, engine| own_memory.not_sent(self.now(), engine, id, refusal));
        }
    }

    /// Whether a copy of that block is being made. It then counts for this attempt of it.
    pub(crate) fn is_underway(&self, block: &Block) -> bool {
        self.with_own_memory(|own_memory, engine| own_memory.is_underway(self.now(), engine, block))
    }

    /// The bytes of a block to a peer have been read. The caller flushes the links in `touched` afterwards: blocks that were read together
    /// go together.
    pub(crate) fn send_copied(
        &self,
        block: &Block,
        staged: Option<&Staged>,
        touched: &mut SmallVec<[Arc<Connection>; 4]>,
    ) {
        let Some(staged) = staged else { return };
        if let Some(connection) = self.among(touched, (block.peer, block.path)) {
            self.send_packets(connection, block, staged.bytes(), None);
        }
    }

    /// Begins the access for a part of a block.
    fn begin_part(
        &self,
        id: MoveId,
        block: &Block,
        address: u64,
        (end, work): (iommu::End, Work<'_>),
        place: &OwnPlace,
    ) -> Result<(), Refusal> {
        let purpose = Purpose::Move { id, by: block.fault_source(), end };
        self.begin_access(place, address, work, purpose, Poster::of(block.user))
    }

    /// Where an end of a block that stays here is.
    fn end_of(&self, block: &Block, end: End) -> Result<Place<'_>, Refused> {
        let by = Poster::of(block.user);
        let (domain, address, length_bytes, access) = match end {
            End::Source => (block.own_domain, block.source_address, block.length_bytes, Access::reading(by)),
            End::Destination => {
                (block.domain, block.destination_address, block.length_bytes, Access::writing(by))
            }
            End::Words(address) => (block.domain, address, NOTIFICATION_BYTES, Access::writing(by)),
        };
        let range = Range { holder: ITSELF, domain, address, length_bytes };
        self.resolve(range, access).map_err(|denied| Refused { domain, refusal: denied.at(address) })
    }

    /// A block between two programs here, with own memory at an end of it.
    pub(crate) fn loop_back_own(&self, block: &Block) {
        let asker = asker_of(block.user);
        let begun =
            self.with_own_memory(|own_memory, engine| own_memory.stay(self.now(), engine, block, asker));
        if let Some(id) = begun {
            self.go_on_here(id, *block, Part::Copy);
        }
    }

    /// Carries out parts of a block that stays here, until one takes time or the block is over.
    pub(crate) fn go_on_here(&self, id: MoveId, block: Block, part: Part<Ordered>) {
        let mut next = Some((block, part));
        while let Some((block, part)) = next {
            let went = match part {
                Part::Copy => self.copy_part(id, &block),
                Part::Write(Ordered { staged: Some(staged), .. }) => {
                    self.write_part(id, &block, Work::WriteStaged(staged))
                }
                Part::Write(_) => {
                    Err(Refused { domain: block.own_domain, refusal: NackCode::DecodeError.into() })
                }
                Part::Words(words) => self.words_part(id, &block, &words),
            };
            let Some(went) = went.transpose() else { return };
            next = self.with_own_memory(|own_memory, engine| own_memory.went(self.now(), engine, id, went));
        }
    }

    /// `None`, here and below: an access has begun, and the block goes on when that is over.
    fn copy_part(&self, id: MoveId, block: &Block) -> Result<Option<Went>, Refused> {
        // Nothing is read that could not be written.
        self.end_of(block, End::Destination).map(drop)?;
        match self.end_of(block, End::Source)? {
            Place::Own(place) => {
                let work = (iommu::End::Source, Work::Read(block.length_bytes));
                let begun = self.begin_part(id, block, block.source_address, work, &place);
                begun.map(|()| None).map_err(Refused::of(block.own_domain))
            }
            Place::Node(memory, offset) => {
                let source = memory.get().span(offset, block.length_bytes as usize);
                let refusal = |_| Refused {
                    domain: block.own_domain,
                    refusal: Refusal::at(NackCode::DecodeError, block.source_address),
                };
                self.write_part(id, block, Work::Write(source.map_err(refusal)?))
            }
        }
    }

    fn write_part(&self, id: MoveId, block: &Block, work: Work<'_>) -> Result<Option<Went>, Refused> {
        match self.end_of(block, End::Destination)? {
            Place::Own(place) => {
                let work = (iommu::End::Destination, work);
                let begun = self.begin_part(id, block, block.destination_address, work, &place);
                begun.map(|()| None).map_err(Refused::of(block.domain))
            }
            Place::Node(memory, offset) => {
                let target = memory.get().span_mut(offset, block.length_bytes as usize);
                let refusal = |_| Refused {
                    domain: block.domain,
                    refusal: Refusal::at(NackCode::DecodeError, block.destination_address),
                };
                let target = target.map_err(refusal)?;
                match &work {
                    Work::Write(bytes) => target.copy_from(*bytes),
                    Work::WriteStaged(staged) => target.copy_from(staged.bytes()),
                    Work::Read(_) | Work::Words(_) | Work::Change(_) => 0,
                };
                Ok(Some(Went::Written))
            }
        }
    }

    fn words_part(&self, id: MoveId, block: &Block, words: &Notification) -> Result<Option<Went>, Refused> {
        match self.end_of(block, End::Words(words.address))? {
            Place::Own(place) => {
                let work = (iommu::End::Notification, Work::Words([words.first, words.last]));
                let begun = self.begin_part(id, block, words.address, work, &place);
                begun.map(|()| None).map_err(Refused::of(block.domain))
            }
            Place::Node(memory, offset) => write_words(&memory, offset, words)
                .map(|()| Some(Went::Said))
                .map_err(Refused::of(block.domain)),
        }
    }

    /// The words of a block that stays here, apart from it. False: nobody remembers that block.
    pub(crate) fn notify_here_own(
        &self,
        slot: u16,
        generation: Generation,
        attempt: Attempt,
        words: Notification,
    ) -> bool {
        let apart = Words { peer: ITSELF, slot, generation, attempt, words };
        let known = self.programs.own_memory.lock().words(&apart);
        if let Some(Some((id, block))) = known {
            self.go_on_here(id, block, Part::Words(words));
        }
        known.is_some()
    }
}
