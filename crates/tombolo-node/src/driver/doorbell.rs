//! Doorbells: what programs ask for in their channels, checked, and carried out or posted.

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

/// A transfer that stays here is carried out at once if it is no larger, and none like it is under way here. One
/// loopback block: 3 to 4 us of copying (decision 14).
const AT_ONCE_BYTES: u32 = 64 * 1024;
/// What is no larger goes even between the parts of another block's copy: one page, copied in a third of a
/// microsecond.
const TINY_BYTES: u32 = 4 * 1024;
/// Number of copies after a tiny one during which we expect another. A bound, not a measurement.
const TINY_LATELY: u32 = 1024;
/// Bytes of transfers carried out at once before others get their turn: four of the largest, 12 to 17 us of
/// copying.
const AT_ONCE_ALTOGETHER: u32 = 256 * 1024;

/// How a descriptor is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    /// By this node's engine, with that peer.
    Post(PeerId, Transfer),
    /// By that peer, which has the source, to another node or its own.
    Ask(PeerId, ThirdPartyTransfer),
}

/// The plan for what the program of that domain asks for in a channel.
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
            // At home both memories are here: a read is a write the other way round.
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
    /// Posts what programs rang for. Returns how many bells.
    pub(crate) fn serve_doorbells(&self) -> usize {
        let Some(domains) = self.programs.awake.if_rung() else { return 0 };
        let (mut count, mut budget) = (0, AT_ONCE_ALTOGETHER);
        let mut clock = CachedClock::new(self);
        // Whoever was left for later is first now.
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

    /// Whether tiny transfers between programs here are to be expected; asked once a copy, which is of
    /// several blocks where they lie side by side.
    pub(crate) fn expects_tiny(&self) -> bool {
        let left = self.programs.tiny_expected.load(Ordering::Relaxed);
        if left > 0 {
            self.programs.tiny_expected.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }

    /// The next, if they are expected; does not count.
    pub(crate) fn serve_expected_tiny_doorbells(&self) {
        if self.programs.tiny_expected.load(Ordering::Relaxed) > 0 {
            self.serve_tiny_doorbells(&self.programs.awake.domains());
        }
    }

    /// Carries out the tiny transfers between programs here that need no queue, while a large one goes on;
    /// whatever else was rung for stays so.
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
            // Another thread may be about to sleep, having seen no bell.
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

    /// Whether the transfer was one to be carried out at once, and has ended.
    fn end_at_once(
        &self,
        domain: &ProgramDomain,
        slot: usize,
        transfer: &Transfer,
        budget: &mut u32,
    ) -> bool {
        // One in a program's own memory goes on there, and may end before this thread looks again.
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
            // It ends as one that was posted.
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

    /// A lone small transfer between programs here needs no queue (QOS §3.3), nor does a change of one
    /// word. None: it is neither.
    fn at_once(&self, transfer: &Transfer, budget: &mut u32) -> Option<Result<Option<u64>, Failure>> {
        let is_small = transfer.size_bytes <= AT_ONCE_BYTES;
        let is_lone = self.programs.small_loopback.load(Ordering::Relaxed) == 0;
        // The own memory of a program may be slow.
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
            // A full mailbox: the engine tries again.
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
                // It was lost just now.
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
