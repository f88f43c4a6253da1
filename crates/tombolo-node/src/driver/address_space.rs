//! Decides which memory of this node each poster may reach. No other module decides this.
//!
//! ```text
//!   range (holder, domain, address, length) ─┐
//!                                            ├─► resolve ─► memory of this node │ a program's own │ refusal
//!   access (poster, right) ──────────────────┘
//! ```
//!
//! A domain number means one of three things:
//!
//! - **0, the node's buffers**: for transfers of the node itself alone.
//! - **a lent segment**: the peer that holds it reads it. The peer also writes it, unless it opened the segment under a
//!   name.
//! - **a program's domain**: the domain's own processes may do anything. Other posters read and write what is granted
//!   to them. Memory that a program allocated lies in this node. Memory that it registered lies in the program.
//!
//! So the two directions of a link do not share numbers. A peer's write goes to memory that the peer has borrowed here,
//! and the answer to a read of this node goes to this node's buffers.

use std::sync::Arc;

use tombolo_channel::{Grant, Who, from_the_wire};
use tombolo_core::rdma::{PeerId, Transfer};
use tombolo_host::shared::SharedMemory;
use tombolo_wire::{Domain, NackCode, Refusal};

use crate::driver::node::Node;
use crate::fabric::numbers::Numbers;
use crate::fabric::table::ITSELF;
use crate::programs::Missing;
use crate::programs::domain::ProgramDomain;
use crate::programs::own::{OwnPlace, is_own};
use crate::programs::user::Poster;
use crate::programs::windows::{WindowPlace, Windows};

/// The domain of the node's own buffers.
pub(crate) const BUFFERS: Domain = Domain(0);

/// What an access may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    Read,
    Write,
    /// Read and write in one operation.
    Change,
}

/// What an access does with memory, and on whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) by: Poster,
    pub(crate) right: Right,
}

/// A range of memory as transfers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    /// The peer that a lent segment is lent to.
    pub(crate) holder: PeerId,
    pub(crate) domain: Domain,
    pub(crate) address: u64,
    pub(crate) length_bytes: u32,
}

/// Memory of this node, held as long as it is used.
pub(crate) enum Memory<'a> {
    Buffers(&'a SharedMemory),
    Shared(Arc<SharedMemory>),
}

impl Memory<'_> {
    pub(crate) fn get(&self) -> &SharedMemory {
        match self {
            Self::Buffers(memory) => memory,
            Self::Shared(memory) => memory,
        }
    }
}

/// Where a range lies, once the access to it is allowed.
pub(crate) enum Place<'a> {
    /// In memory of this node, at this offset. The caller checks the range's end against the memory's length.
    Node(Memory<'a>, usize),
    /// In a program's own memory.
    Own(OwnPlace),
}

/// Why a range may not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// There is no such domain or segment, or the domain now belongs to another life.
    NoDomain,
    /// The domain has no memory at this address.
    OutOfRange,
    /// The memory is not granted to this poster, or not for this access.
    NotGranted,
}

impl From<Missing> for Denied {
    fn from(missing: Missing) -> Self {
        match missing {
            Missing::Domain => Self::NoDomain,
            Missing::Range => Self::OutOfRange,
            Missing::Grant => Self::NotGranted,
        }
    }
}

impl Denied {
    /// The code that the sender of the access is told.
    pub(crate) fn code(self) -> NackCode {
        match self {
            Self::NoDomain => NackCode::NoContext,
            Self::OutOfRange => NackCode::DecodeError,
            Self::NotGranted => NackCode::DomainMismatch,
        }
    }

    /// The refusal that the sender is told, with this address.
    pub(crate) fn at(self, address: u64) -> Refusal {
        Refusal::at(self.code(), address)
    }
}

/// Whether `who` of a grant or of a mailbox includes this poster.
fn is_meant(by: Poster, who: Who, numbers: &Numbers) -> bool {
    match (who, by) {
        (Who::Anyone, _) => true,
        (Who::Program(meant), Poster::Program(number, _)) => meant == number,
        (Who::Node(meant), Poster::Program(..)) => numbers.life_number(ITSELF) == meant,
        (Who::Node(meant), Poster::Peer(peer)) => numbers.life_number(peer) == meant,
        (Who::Program(_), Poster::Peer(_)) | (Who::Program(_) | Who::Node(_), Poster::Node) => false,
    }
}

impl Access {
    pub(crate) fn reading(by: Poster) -> Self {
        Self { by, right: Right::Read }
    }

    pub(crate) fn writing(by: Poster) -> Self {
        Self { by, right: Right::Write }
    }

    pub(crate) fn changing(by: Poster) -> Self {
        Self { by, right: Right::Change }
    }

    /// Whether the access is made by the node itself or by the program that the domain belongs to.
    fn is_of_owner(self, domain: u16) -> bool {
        match self.by {
            Poster::Node => true,
            Poster::Program(number, _) => number == domain,
            Poster::Peer(_) => false,
        }
    }

    fn is_granted(self, domain: u16, grants: &[Grant], numbers: &Numbers) -> bool {
        if self.is_of_owner(domain) {
            return true;
        }
        let mut meant = grants.iter().filter(|grant| is_meant(self.by, grant.who, numbers));
        match self.right {
            Right::Read => meant.any(|grant| grant.read),
            Right::Write => meant.any(|grant| grant.write),
            Right::Change => meant.clone().any(|grant| grant.read) && meant.any(|grant| grant.write),
        }
    }
}

/// Whether a peer may ask this node for this transfer. Both ends must be programs' memory. Mail is excluded, because it
/// names the program that sent it.
pub(crate) fn may_be_third_party(transfer: &Transfer) -> bool {
    let mut domains = [transfer.domain, transfer.own_domain].into_iter();
    domains.all(|domain| from_the_wire(domain).is_some())
        && !tombolo_channel::reaches_mail(transfer.destination_address, transfer.size_bytes)
}

impl Node {
    /// Finds where a range lies, if this access to it is allowed.
    pub(crate) fn resolve(&self, range: Range, access: Access) -> Result<Place<'_>, Denied> {
        let Range { holder, domain, address, length_bytes } = range;
        let numbers = &self.fabric.numbers;
        if let Some(number) = from_the_wire(domain) {
            let is_granted = |grants: &[Grant]| access.is_granted(number, grants, numbers);
            // After a process has left its domain, its unfinished transfers no longer reach the memory of the domain's
            // processes.
            let life = match access.by {
                Poster::Program(own, life) if own == number => Some(life),
                Poster::Program(..) | Poster::Node | Poster::Peer(_) => None,
            };
            if !is_own(domain, address) {
                let found = self.programs.find(number, life, address, length_bytes, is_granted);
                let (memory, offset) = found?;
                return Ok(Place::Node(Memory::Shared(memory), offset));
            }
            return Ok(Place::Own(self.programs.find_own(
                number,
                life,
                address,
                length_bytes,
                is_granted,
            )?));
        }
        let offset = usize::try_from(address).map_err(|_| Denied::OutOfRange)?;
        if domain == BUFFERS && access.by == Poster::Node {
            return Ok(Place::Node(Memory::Buffers(self.buffers()), offset));
        }
        let (memory, is_read_only) =
            self.lending.ledger.lock().find(holder, domain.0).ok_or(Denied::NoDomain)?;
        if is_read_only && access.right != Right::Read {
            return Err(Denied::NotGranted);
        }
        Ok(Place::Node(Memory::Shared(memory), offset))
    }

    /// As [`Self::resolve`], for ranges in memory of this node only: a program's own memory is refused.
    pub(crate) fn resolve_here(&self, range: Range, access: Access) -> Result<(Memory<'_>, usize), Refusal> {
        match self.resolve(range, access).map_err(|denied| denied.at(range.address))? {
            Place::Node(memory, offset) => Ok((memory, offset)),
            Place::Own(_) => Err(Denied::OutOfRange.at(range.address)),
        }
    }

    /// The process that has the mailbox of a domain, if this sender at this peer may write to it. The sender's number
    /// is what the sending node claims: it proves something only if that is this node.
    pub(crate) fn resolve_mailbox(
        &self,
        domain: Domain,
        peer: PeerId,
        sender: u16,
    ) -> Result<Arc<ProgramDomain>, Denied> {
        let number = from_the_wire(domain).ok_or(Denied::NoDomain)?;
        let by = if peer == ITSELF { Poster::Program(sender, 0) } else { Poster::Peer(peer) };
        let numbers = &self.fabric.numbers;
        let is_sender = |senders: &[Who]| senders.iter().any(|who| is_meant(by, *who, numbers));
        Ok(self.programs.find_mailbox(number, is_sender)?)
    }
}

impl Windows for Node {
    fn window(&self, domain: u16, address: u64, by: Poster) -> Result<WindowPlace, Missing> {
        let numbers = &self.fabric.numbers;
        self.programs.find_window(domain, address, |grants, is_writable| {
            let access = if is_writable { Access::changing(by) } else { Access::reading(by) };
            access.is_granted(domain, grants, numbers)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::allocation::allocate;
    use crate::memory::blocking::Owner;
    use crate::memory::reclaim::{Reclaimer, Segment};

    /// A node in which tests open programs' domains and lend segments.
    struct Scene {
        node: Node,
    }

    const OWN: u16 = 5;
    const OTHER: u16 = 6;
    const PEER: PeerId = PeerId(7);

    fn on_the_wire(number: u16) -> Domain {
        tombolo_channel::on_the_wire(number)
    }

    impl Scene {
        fn new() -> Self {
            Self { node: Node::new("scene", 1 << 20, 0).unwrap() }
        }

        fn open(&self, number: u16) -> Arc<ProgramDomain> {
            let (socket, _theirs) = tombolo_host::unix::SeqpacketSocket::pair().unwrap();
            self.node.programs.open(Some(number), socket).map_err(|(_, reason)| reason).unwrap()
        }

        fn allocate(&self, domain: &ProgramDomain, grants: Vec<Grant>) -> Result<u64, String> {
            let (programs, memory) = (&self.node.programs, Arc::new(allocate(4096).unwrap()));
            let room = programs.reserve(4096).unwrap();
            let reclaimer = self.node.lending.reclaimer(Owner::Peer(PEER));
            programs.enter(domain, Segment::new(memory, room, reclaimer), grants, None)
        }

        /// Why a poster may not read 64 bytes, write them, or change a word there. `None`: it may.
        fn rights(&self, domain: Domain, address: u64, by: Poster) -> [Option<Denied>; 3] {
            let range = Range { holder: PEER, domain, address, length_bytes: 64 };
            [Access::reading(by), Access::writing(by), Access::changing(by)]
                .map(|access| self.node.resolve(range, access).err())
        }
    }

    const ALL: [Option<Denied>; 3] = [None; 3];
    const NONE: [Option<Denied>; 3] = [Some(Denied::NotGranted); 3];
    const READ: [Option<Denied>; 3] = [None, Some(Denied::NotGranted), Some(Denied::NotGranted)];
    const WRITE: [Option<Denied>; 3] = [Some(Denied::NotGranted), None, Some(Denied::NotGranted)];

    #[test]
    fn others_reach_what_is_granted_to_them_and_the_owner_all() {
        let scene = Scene::new();
        let domain = scene.open(OWN);
        let (wire, owner) = (on_the_wire(OWN), Poster::of(domain.user(3)));
        let program = |number| Poster::Program(number, 0);
        let [one, two] = [Poster::Peer(PEER), Poster::Peer(PeerId(8))];
        let grant = |who, read, write| Grant { who, read, write };
        for (grants, [for_other, for_one, for_two]) in [
            (vec![], [NONE; 3]),
            (vec![grant(Who::Anyone, true, false)], [READ; 3]),
            (vec![grant(Who::Program(OTHER), false, true)], [WRITE, NONE, NONE]),
            (vec![grant(Who::Node(PEER.0), true, true)], [NONE, ALL, NONE]),
            (vec![grant(Who::Node(0), true, false)], [READ, NONE, NONE]),
            (
                vec![grant(Who::Node(PEER.0), true, false), grant(Who::Anyone, false, true)],
                [WRITE, ALL, WRITE],
            ),
        ] {
            let address = scene.allocate(&domain, grants.clone()).unwrap();
            let of = |by| scene.rights(wire, address, by);
            assert_eq!([of(owner), of(Poster::Node)], [ALL; 2], "{grants:?}");
            assert_eq!([of(program(OTHER)), of(one), of(two)], [for_other, for_one, for_two], "{grants:?}");
        }
    }

    #[test]
    fn a_lent_segment_is_its_holders_alone_and_what_has_a_name_is_read_only() {
        let scene = Scene::new();
        let segment = || {
            let room = scene.node.lending.ledger.lock().reserve(4096).unwrap();
            let reclaimer: Reclaimer = scene.node.lending.reclaimer(Owner::Peer(PEER));
            Segment::new(Arc::new(allocate(4096).unwrap()), room, reclaimer)
        };
        let lent = segment();
        let lent = scene.node.lending.ledger.lock().enter(PEER, lent).unwrap();
        let named = crate::lending::ledger::Published {
            segment: Arc::new(segment()),
            length_bytes: 9,
            checksum: crate::Checksum([0; 32]),
            since: std::time::Instant::now(),
        };
        let name = "name".parse().unwrap();
        let read = {
            let mut ledger = scene.node.lending.ledger.lock();
            assert!(ledger.publish(name, named).is_none());
            ledger.open(PEER, &"name".parse().unwrap()).unwrap().unwrap().0
        };
        let by = Poster::Peer(PEER);
        assert_eq!(scene.rights(Domain(lent), 0, by), ALL);
        assert_eq!(scene.rights(Domain(read), 0, by), READ);
        assert_eq!(scene.rights(Domain(lent + 7), 0, by), [Some(Denied::NoDomain); 3]);
        let range = Range { holder: PeerId(8), domain: Domain(lent), address: 0, length_bytes: 64 };
        assert_eq!(scene.node.resolve(range, Access::reading(by)).err(), Some(Denied::NoDomain));
        // Only the node itself reaches its buffers.
        assert_eq!(scene.rights(BUFFERS, 0, Poster::Node), ALL);
        assert_eq!(scene.rights(BUFFERS, 0, by), [Some(Denied::NoDomain); 3]);
        assert_eq!(scene.rights(BUFFERS, 0, Poster::Program(OWN, 0)), [Some(Denied::NoDomain); 3]);
    }

    #[test]
    fn a_mailbox_takes_messages_of_its_senders_alone() {
        let scene = Scene::new();
        let domain = scene.open(OWN);
        let to = |peer, sender| scene.node.resolve_mailbox(on_the_wire(OWN), peer, sender).err();
        assert_eq!(to(PEER, OTHER), Some(Denied::OutOfRange), "it has none");
        let senders = vec![Who::Program(OTHER), Who::Node(PEER.0)];
        scene.node.programs.open_mailbox(&domain, 8, senders).unwrap();
        assert_eq!([to(ITSELF, OTHER), to(PEER, OTHER), to(PEER, OWN)], [None; 3]);
        assert_eq!([to(ITSELF, OWN), to(PeerId(8), OTHER)], [Some(Denied::NotGranted); 2]);
        let elsewhere = scene.node.resolve_mailbox(on_the_wire(OTHER), ITSELF, OTHER).err();
        assert_eq!(elsewhere, Some(Denied::NoDomain));
    }

    /// A process leaves while its transfers go on, and other processes of its domain stay.
    #[test]
    fn transfers_of_a_process_that_has_left_find_nothing_of_those_that_stay() {
        let scene = Scene::new();
        let founder = scene.open(OWN);
        let secret = crate::programs::domains::Programs::invite(&founder).unwrap();
        let join = || {
            let (socket, _theirs) = tombolo_host::unix::SeqpacketSocket::pair().unwrap();
            scene.node.programs.join(OWN, &secret, socket).map_err(|(_, reason)| reason).unwrap()
        };
        let (leaver, other) = (join(), join());
        let grants = vec![Grant { who: Who::Anyone, read: true, write: true }];
        let address = scene.allocate(&founder, grants).unwrap();
        let leavers_own = scene.allocate(&leaver, Vec::new()).unwrap();
        let rights = |domain: &ProgramDomain, address| {
            scene.rights(on_the_wire(OWN), address, Poster::of(domain.user(3)))
        };
        assert_eq!(
            [rights(&leaver, address), rights(&other, address), rights(&other, leavers_own)],
            [ALL; 3]
        );
        scene.node.programs.close(&leaver);
        assert_eq!(rights(&leaver, address), [Some(Denied::NoDomain); 3]);
        assert_eq!(rights(&other, address), ALL);
        assert_eq!(rights(&other, leavers_own), [Some(Denied::OutOfRange); 3]);
        // A late report of its bell does not put it in the place of another process.
        let next = join();
        scene.node.programs.wake_domain(&leaver);
        scene.node.programs.wake_domain(&next);
        let awake = scene.node.programs.awake.domains();
        assert!(awake.values().all(|domain| !Arc::ptr_eq(domain, &leaver)));
        assert!(awake.values().any(|domain| Arc::ptr_eq(domain, &next)));
    }

    /// A program dies while its transfers go on, and another opens a domain of the same number.
    #[test]
    fn transfers_of_a_closed_domain_find_nothing_in_the_next_of_its_number() {
        let scene = Scene::new();
        let domain = on_the_wire(OWN);
        let found = |address, by| {
            let range = Range { holder: ITSELF, domain, address, length_bytes: 64 };
            scene.node.resolve(range, Access::writing(by)).err()
        };
        let old = scene.open(OWN);
        let by_old = Poster::of(old.user(3));
        let address = scene.allocate(&old, Vec::new()).unwrap();
        assert_eq!(found(address, by_old), None);
        scene.node.programs.close(&old);
        assert_eq!(found(address, by_old), Some(Denied::NoDomain));
        let new = scene.open(OWN);
        let by_new = Poster::of(new.user(3));
        let other = scene.allocate(&new, Vec::new()).unwrap();
        assert!(scene.allocate(&old, Vec::new()).is_err(), "memory that comes late for a closed domain");
        assert_eq!(found(address, by_old), Some(Denied::OutOfRange));
        assert_eq!((found(other, by_new), scene.node.programs.memory.in_use_bytes()), (None, 4096));
        // Programs choose the addresses of their own memory, so two may be equal.
        assert_eq!(
            [found(4096, by_old), found(4096, by_new)],
            [Some(Denied::NoDomain), Some(Denied::OutOfRange)]
        );
    }
}
