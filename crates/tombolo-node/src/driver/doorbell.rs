//! Doorbells: reads the descriptors of channels that programs rang for, checks them, and carries out or posts their
//! transfers.

use std::sync::atomic::Ordering;

use tombolo_channel::{
    Descriptor, Failure, MAX_MAIL_BYTES, NODE_ADDRESSES, Target, TransferStatus, Work, is_read, mail_address,
    on_the_wire, reaches_mail,
};
use tombolo_core::rdma::{Class, Direction, PeerId, PostError, Transfer};
use tombolo_wire::NackCode;

use crate::driver::loopback::failure;
use crate::driver::node::Node;
use crate::driver::pump::{CachedClock, Flush};
use crate::driver::third_party::ThirdPartyTransfer;
use crate::fabric::table::ITSELF;
use crate::programs::domain::ProgramDomain;
use crate::programs::domains::Domains;
use crate::programs::user::SMALL_LOOPBACK;

/// A transfer between two programs of this node is carried out at once if it is no larger than this and no other such
/// small transfer is under way. One loopback block: 3 to 4 us of copying (decision 14).
const AT_ONCE_BYTES: u32 = 64 * 1024;
/// A transfer no larger than this is carried out even between two parts of a larger copy: one page, copied in a third
/// of a microsecond.
const TINY_BYTES: u32 = 4 * 1024;
/// Number of copies after a tiny one during which we expect another. A bound, not a measurement.
const TINY_LATELY: u32 = 1024;
/// Bytes of transfers carried out at once before other work gets its turn: four of the largest, 12 to 17 us of copying.
const AT_ONCE_ALTOGETHER: u32 = 256 * 1024;

/// How a descriptor is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// This node's engine makes the transfer, with this peer.
    Post(PeerId, Transfer),
    /// This peer, which has the source, makes the transfer, to another node or within itself.
    Ask(PeerId, ThirdPartyTransfer),
}

/// The plan for a descriptor in a channel of domain `number`.
fn plan(number: u16, user: u64, slot: usize, wanted: &Descriptor) -> Result<Plan, Failure> {
    let (own, other) = (on_the_wire(number), on_the_wire(wanted.target.domain));
    let peer = PeerId(wanted.target.node);
    let mut transfer = Transfer {
        direction: Direction::Write,
        domain: other,
        own_domain: own,
        source_address: wanted.source_address,
        destination_address: wanted.destination_address,
        size_bytes: wanted.size_bytes,
        notification: wanted.notification,
        class: wanted.class.map(Class::from_number),
        user,
    };
    let peer = match (wanted.work, wanted.source) {
        (Work::Atomic(_) | Work::Mail, _) | (_, Some(_)) if is_read(slot) => {
            return Err(Failure::BadDescriptor);
        }
        (Work::Atomic(operation), _) => {
            transfer.direction = Direction::Atomic(operation);
            transfer.source_address = 0;
            peer
        }
        (Work::Mail, _) => {
            if !(1..=MAX_MAIL_BYTES).contains(&(wanted.size_bytes as usize)) {
                return Err(Failure::BadDescriptor);
            }
            transfer.destination_address = mail_address(number);
            peer
        }
        (Work::Move, _) if reaches_mail(wanted.destination_address, wanted.size_bytes) => {
            return Err(Failure::BadDescriptor);
        }
        (Work::Move, None) => {
            // Within this node both memories are here: a read is a write in the other direction.
            match (is_read(slot), peer == ITSELF) {
                (false, _) => {}
                (true, false) => transfer.direction = Direction::Read,
                (true, true) => (transfer.own_domain, transfer.domain) = (other, own),
            }
            peer
        }
        (Work::Move, Some(Target { node, domain })) => {
            let source = on_the_wire(domain);
            match (PeerId(node), peer) {
                (ITSELF, _) => {
                    transfer.own_domain = source;
                    peer
                }
                (from, ITSELF) => {
                    transfer.direction = Direction::Read;
                    (transfer.own_domain, transfer.domain) = (other, source);
                    from
                }
                (from, to) => {
                    transfer.own_domain = source;
                    return Ok(Plan::Ask(
                        from,
                        ThirdPartyTransfer { to: (to != from).then_some(to), transfer },
                    ));
                }
            }
        }
    };
    if peer == ITSELF && transfer.size_bytes <= AT_ONCE_BYTES {
        transfer.user |= SMALL_LOOPBACK;
    }
    Ok(Plan::Post(peer, transfer))
}

impl Node {
    /// Starts the transfers that programs rang for. Returns the number of bells.
    pub(crate) fn serve_doorbells(&self) -> usize {
        let Some(domains) = self.programs.awake.if_rung() else { return 0 };
        let (mut count, mut budget) = (0, AT_ONCE_ALTOGETHER);
        let mut clock = CachedClock::new(self);
        // Begin with the domain whose bells the last call left for later.
        let first = self.programs.turn();
        for domain in domains.range(first..).chain(domains.range(..first)).map(|(_, domain)| domain) {
            let mut rung = domain.page.take_rung();
            if rung != 0 {
                domain.rang.store(true, Ordering::Relaxed);
            }
            while rung != 0 {
                if budget == 0 {
                    let _ = domain.page.ring(rung);
                    self.programs.turn_is_of(domain.key());
                    self.pump_and(Flush::All, None, &mut clock);
                    return count;
                }
                let slot = rung.trailing_zeros() as usize;
                rung &= rung - 1;
                count += 1;
                let before = budget;
                self.start(domain, slot, &mut budget, &mut clock);
                clock.passed_for(before - budget);
            }
        }
        if count > 0 {
            self.pump_and(Flush::All, None, &mut clock);
        }
        count
    }

    /// Whether tiny transfers between programs of this node are expected. To be called once for each copy, which covers
    /// several blocks if they are adjacent.
    pub(crate) fn expects_tiny(&self) -> bool {
        let left = self.programs.tiny_expected.load(Ordering::Relaxed);
        if left > 0 {
            self.programs.tiny_expected.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// Serves tiny transfers if they are expected. Unlike [`Self::expects_tiny`], it counts no copy.
    pub(crate) fn serve_expected_tiny_doorbells(&self) {
        if self.programs.tiny_expected.load(Ordering::Relaxed) > 0 {
            self.serve_tiny_doorbells(&self.programs.awake.domains());
        }
    }

    /// Carries out tiny transfers between programs of this node that need no queue, while a larger copy goes on. All
    /// other bells stay rung.
    pub(crate) fn serve_tiny_doorbells(&self, domains: &Domains) {
        for domain in domains.values() {
            let (mut rung, mut later) = (domain.page.take_rung(), 0);
            if rung != 0 {
                domain.rang.store(true, Ordering::Relaxed);
            }
            while rung != 0 {
                let slot = rung.trailing_zeros() as usize;
                rung &= rung - 1;
                if !self.start_tiny(domain, slot) {
                    later |= 1 << slot;
                }
            }
            // Another thread may have seen no bell while this one held them, and may be about to sleep.
            if later != 0 && domain.page.ring(later) {
                self.programs.wake_domain(domain);
            }
        }
    }

    fn start_tiny(&self, domain: &ProgramDomain, slot: usize) -> bool {
        if domain.busy.load(Ordering::Relaxed) >> slot & 1 != 0 {
            return false;
        }
        let Ok(wanted) = domain.page.descriptor(slot) else { return false };
        match plan(domain.number, domain.user(slot), slot, &wanted) {
            Ok(Plan::Post(ITSELF, transfer)) if transfer.size_bytes <= TINY_BYTES => {
                self.end_at_once(domain, slot, &transfer, &mut 0)
            }
            _ => false,
        }
    }

    /// Carries the transfer out at once if it is of the kind for that. Returns whether the channel needs nothing more.
    fn end_at_once(
        &self,
        domain: &ProgramDomain,
        slot: usize,
        transfer: &Transfer,
        budget: &mut u32,
    ) -> bool {
        // An atomic operation in a program's own memory ends later, perhaps before this thread goes on: mark it before
        // it begins.
        if matches!(transfer.direction, Direction::Atomic(_)) && transfer.destination_address < NODE_ADDRESSES
        {
            domain.busy.fetch_or(1 << slot, Ordering::Relaxed);
            let _ = domain.page.notify(slot, TransferStatus::Ongoing);
        }
        let Some(outcome) = self.at_once(transfer, budget) else { return false };
        let counts = &self.programs.counts;
        counts.transfers.fetch_add(1, Ordering::Relaxed);
        let outcome = match outcome {
            Ok(Some(before)) => Ok(before),
            // It goes on in a program's own memory, and ends as a posted transfer does.
            Ok(None) => return true,
            Err(Failure::Refused { code: NackCode::BufferFull, .. }) => {
                domain.pause(slot);
                return true;
            }
            Err(failure) => Err(failure),
        };
        counts.failed.fetch_add(u64::from(outcome.is_err()), Ordering::Relaxed);
        if transfer.size_bytes <= TINY_BYTES {
            self.programs.tiny_expected.store(TINY_LATELY, Ordering::Relaxed);
        }
        domain.end(slot, outcome);
        true
    }

    /// Carries out a transfer that needs no queue: a lone small transfer between programs of this node (QOS §3.3), or
    /// an atomic operation. `None`: the transfer is neither, or its mailbox is full.
    fn at_once(&self, transfer: &Transfer, budget: &mut u32) -> Option<Result<Option<u64>, Failure>> {
        let is_small = transfer.size_bytes <= AT_ONCE_BYTES;
        let is_lone = self.programs.small_loopback.load(Ordering::Relaxed) == 0;
        // An access to a program's own memory may be slow.
        let words = transfer.notification.map_or(NODE_ADDRESSES, |words| words.address);
        let is_quick = [transfer.source_address, transfer.destination_address, words]
            .iter()
            .all(|address| *address >= NODE_ADDRESSES);
        let is_atomic = matches!(transfer.direction, Direction::Atomic(_));
        if !(is_atomic || is_small && is_lone && is_quick) {
            return None;
        }
        *budget = budget.saturating_sub(transfer.size_bytes);
        let size = u64::from(transfer.size_bytes);
        let ends = [(transfer.source_address, size), (transfer.destination_address, size)];
        if ends.iter().any(|(address, size)| address.checked_add(*size).is_none()) {
            return Some(Err(Failure::BadDescriptor));
        }
        match self.carry_out(transfer) {
            // The mailbox is full: the engine repeats the message.
            Err(refused) if refused.refusal.code == NackCode::BufferFull && !is_atomic => None,
            outcome => Some(outcome.map_err(|refused| failure(&refused, transfer.user))),
        }
    }

    fn start(&self, domain: &ProgramDomain, slot: usize, budget: &mut u32, clock: &mut CachedClock<'_>) {
        let counts = &self.programs.counts;
        if domain.busy.load(Ordering::Relaxed) >> slot & 1 != 0 {
            counts.bells_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let descriptor = domain.page.descriptor(slot).map_err(|_| Failure::BadDescriptor);
        let descriptor = descriptor.and_then(|mut wanted| {
            for target in [Some(&mut wanted.target), wanted.source.as_mut()].into_iter().flatten() {
                target.node = self.fabric.numbers.peer(target.node).ok_or(Failure::Unreachable)?.0;
            }
            Ok(wanted)
        });
        let plan = descriptor.and_then(|wanted| plan(domain.number, domain.user(slot), slot, &wanted));
        if let Ok(Plan::Post(ITSELF, transfer)) = &plan
            && self.end_at_once(domain, slot, transfer, budget)
        {
            return;
        }
        counts.transfers.fetch_add(1, Ordering::Relaxed);
        domain.busy.fetch_or(1 << slot, Ordering::Relaxed);
        let _ = domain.page.notify(slot, TransferStatus::Ongoing);
        let posted = plan.and_then(|plan| match plan {
            Plan::Ask(peer, wanted) => self.ask_third_party(peer, &wanted),
            Plan::Post(peer, transfer) => match self.fabric.post_at(clock.now(), peer, transfer) {
                Ok(()) => {
                    let is_small = transfer.user & SMALL_LOOPBACK != 0;
                    self.programs.small_loopback.fetch_add(is_small.into(), Ordering::Relaxed);
                    Ok(true)
                }
                Err(PostError::Full) => Ok(false),
                // The neighbour was lost just now.
                Err(PostError::UnknownPeer(peer)) if self.fabric.numbers.is_kept(peer) => {
                    Err(Failure::Unreachable)
                }
                Err(PostError::UnknownPeer(_)) => Err(Failure::NoSuchNode),
                Err(_) => Err(Failure::BadDescriptor),
            },
        });
        match posted {
            Ok(true) => {}
            Ok(false) => domain.pause(slot),
            Err(failure) => {
                counts.descriptors_refused.fetch_add(1, Ordering::Relaxed);
                domain.end(slot, Err(failure));
            }
        }
    }
}
