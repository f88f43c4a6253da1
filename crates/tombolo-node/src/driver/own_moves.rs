//! Blocks from and to programs' own memory: resolves where their two ends are and moves their bytes. The machine
//! ([`tombolo_core::own`]) decides the order of the steps.

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

/// A place that a block between two programs of this node reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Source,
    Destination,
    /// The words of the block's notification, at this address.
    Words(u64),
}

/// Whether a block between two programs of this node has to go through the machine for programs' own memory.
pub(crate) fn touches_own(block: &Block) -> bool {
    let words = match block.notification {
        BlockNotification::Now(words) => is_own(block.domain, words.address),
        BlockNotification::None => false,
        // The words come later, without the poster's name. The machine remembers the poster until then.
        BlockNotification::Later => true,
    };
    words || is_own(block.own_domain, block.source_address) || is_own(block.domain, block.destination_address)
}

impl Node {
    /// Begins to write bytes from a peer to a program's own memory.
    pub(crate) fn place_own(
        &self,
        placement: &Placement,
        payload: SharedSpan<'_>,
        place: &OwnPlace,
    ) -> Result<(), Refusal> {
        let (purpose, asker) = (Purpose::Place(*placement), Poster::of(placement.user));
        self.begin_access(place, placement.address, Work::Write(payload), purpose, asker)
    }

    /// Begins to write the words of a peer's notification to a program's own memory.
    pub(crate) fn notify_own(&self, write: NotificationWrite, place: &OwnPlace) -> Result<(), Refusal> {
        let (words, asker) = (write.words, Poster::of(write.user));
        let work = Work::Words([words.first, words.last]);
        self.begin_access(place, words.address, work, Purpose::Notify(write), asker)
    }

    /// Begins to read a block for a peer from a program's own memory.
    pub(crate) fn send_own(&self, block: &Block, place: &OwnPlace) {
        let begun = self.with_own_memory(|own_memory, engine| own_memory.send(self.now(), engine, block));
        let Some(id) = begun else { return };
        let work = Work::Read(block.length_bytes);
        let begun = self.begin_part(id, block, block.source_address, (iommu::End::Source, work), place);
        if let Err(refusal) = begun {
            self.with_own_memory(|own_memory, engine| own_memory.not_sent(self.now(), engine, id, refusal));
        }
    }

    /// Whether a copy of this block is being made already. If so, that copy counts for this attempt of the block.
    pub(crate) fn is_underway(&self, block: &Block) -> bool {
        self.with_own_memory(|own_memory, engine| own_memory.is_underway(self.now(), engine, block))
    }

    /// Sends a block to a peer, after its bytes were read. The caller flushes the links in `touched` afterwards, so
    /// that blocks that were read together leave together.
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

    /// Resolves one place of a block between two programs of this node.
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

    /// Begins a block between two programs of this node that touches own memory of at least one of them.
    pub(crate) fn loop_back_own(&self, block: &Block) {
        let asker = asker_of(block.user);
        let begun =
            self.with_own_memory(|own_memory, engine| own_memory.stay(self.now(), engine, block, asker));
        if let Some(id) = begun {
            self.go_on_here(id, *block, Part::Copy);
        }
    }

    /// Carries out parts of a block between two programs of this node, until a part has to wait for an access or the
    /// block is over.
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

    /// Reads the block's source and, if that takes no access, writes it. `None`, here and below: an access has begun,
    /// and the block goes on when the access has ended.
    fn copy_part(&self, id: MoveId, block: &Block) -> Result<Option<Went>, Refused> {
        // Check the destination first: nothing is read in vain.
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

    /// Writes the words of a block between two programs of this node, when they come apart from the block. False: that
    /// block is not known.
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
