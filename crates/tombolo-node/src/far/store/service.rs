//! The store's own thread: keeps links alive, notices lenders that are silent, dials those that come back, and carries
//! out what no thread of the front end does.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tombolo_core::store::{LenderId, LenderState, MemberId, NoOtherLender, Roster, RosterAction, Who};
use tombolo_host::event;
use tombolo_host::timing::node as timing;
use tombolo_link::{Address, LossReason};

use super::lender::Job;
use super::{DeadWindows, FarStore, Lender, PAGE_BYTES};
use crate::driver::node::Node;
use crate::fabric::neighbourhood;
use crate::far::asking::BorrowError;
use crate::far::front::FarEvent;

/// Why a lender cannot be added or drained.
#[derive(Debug, thiserror::Error)]
pub enum LenderError {
    /// No lender has that name or address.
    #[error("no lender is called `{0}` or listens there")]
    Unknown(String),
    /// Several lenders have that name.
    #[error("several lenders are called `{0}`: name one by its address: {1}")]
    Several(String, String),
    /// The node is a lender already.
    #[error("{0} is a lender already")]
    Known(Address),
    /// It is the only lender.
    #[error("{0}")]
    NoOther(#[from] NoOtherLender),
    /// The node cannot be borrowed from.
    #[error("{0}")]
    Borrow(#[from] BorrowError),
}

/// The lenders that the user has named, with their addresses.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) roster: Roster,
    /// The addresses of each member.
    ways: Vec<Vec<Address>>,
}

impl Members {
    /// The first member that has one of these addresses.
    fn find(&self, ways: &[Address]) -> Option<MemberId> {
        let has = |known: &Vec<Address>| ways.iter().any(|way| known.contains(way));
        self.ways.iter().position(has).map(|index| MemberId(index as u32))
    }
}

impl FarStore {
    /// Adds a lender by its addresses, also while the store is in use.
    pub fn add_lender(self: &Arc<Self>, ways: &[Address]) -> Result<(), LenderError> {
        {
            let members = self.members.lock();
            let present = members.find(ways).filter(|member| members.roster.is_present(*member));
            if let (Some(first), Some(_)) = (ways.first(), present) {
                return Err(LenderError::Known(first.clone()));
            }
        }
        let lender = self.dial(ways)?;
        self.came(ways, lender);
        self.carry_out_and_send();
        Ok(())
    }

    /// Notes a lender that was reached because the user has named it.
    pub(super) fn came(&self, ways: &[Address], lender: LenderId) {
        let (now_ns, has_address) = (self.now_ns(), self.security.get().is_some());
        let mut members = self.members.lock();
        // Without an address that can be dialed, each lender is a member of its own.
        match members.find(ways).filter(|_| has_address) {
            Some(member) => {
                members.roster.came(now_ns, member, lender);
                if let Some(known) = members.ways.get_mut(member.0 as usize) {
                    ways.clone_into(known);
                }
            }
            None => {
                members.roster.add(now_ns, lender, has_address);
                members.ways.push(ways.to_vec());
            }
        }
        drop(members);
        self.is_full_told.store(false, Ordering::Relaxed);
        self.note_if_lost(lender);
    }

    /// Tells the roster if a lender is lost: the loss may have been reported before the roster knew the lender.
    fn note_if_lost(&self, lender: LenderId) {
        if self.lender(lender).is_none_or(|lender| lender.is_lost()) {
            self.members.lock().roster.lost(lender);
        }
    }

    /// Begins to move all pages away from a lender, which is named by its name or one of its addresses. The moves end
    /// later. A lender that is away is not awaited any more.
    pub fn drain_lender(&self, named: &str) -> Result<(), LenderError> {
        let is_meant = |lender: &Lender| {
            lender.name() == named || lender.ways.iter().any(|way| way.to_string() == named)
        };
        let all: Vec<Arc<Lender>> =
            self.lenders().iter().filter(|lender| is_meant(lender)).cloned().collect();
        // The pages of an earlier life were moved away already, or are lost.
        let is_in_use = |lender: &Lender| {
            let status = self.store.lock().lender(lender.id);
            !lender.is_lost()
                && status
                    .is_some_and(|status| matches!(status.state, LenderState::Active | LenderState::Draining))
        };
        let found: Vec<&Arc<Lender>> = all.iter().filter(|lender| is_in_use(lender)).collect();
        if found.is_empty() && !self.dismiss_awaited(named, &all) {
            return Err(LenderError::Unknown(named.to_owned()));
        }
        if let [_, _, ..] = &found[..] {
            let all = found.iter().map(|lender| lender.address().to_string());
            return Err(LenderError::Several(named.to_owned(), all.collect::<Vec<_>>().join(", ")));
        }
        for lender in found {
            self.store.lock().drain(lender.id)?;
            let mut members = self.members.lock();
            let member = members.find(&lender.ways);
            members.roster.dismiss_lender(lender.id, member);
        }
        self.carry_out_and_send();
        self.warn_of_few_lenders();
        self.ring();
        Ok(())
    }

    /// Stops awaiting the members that are away and have this address or one of the addresses of these lenders. False:
    /// there is no such member.
    fn dismiss_awaited(&self, named: &str, lost: &[Arc<Lender>]) -> bool {
        let mut members = self.members.lock();
        let is_named = |ways: &&Vec<Address>| {
            let is_of_lost = |way: &Address| lost.iter().any(|lender| lender.ways.contains(way));
            ways.iter().any(|way| way.to_string() == named || is_of_lost(way))
        };
        let ids = (0..)
            .map(MemberId)
            .zip(&members.ways)
            .filter(|(_, ways)| is_named(ways))
            .map(|(member, _)| member);
        let awaited: Vec<MemberId> = ids.filter(|member| members.roster.is_awaited(*member)).collect();
        for member in &awaited {
            members.roster.dismiss(*member);
        }
        !awaited.is_empty()
    }

    /// Begins to move all pages away from a lender that is about to end, if there is another lender.
    fn leave(&self, lender: LenderId) {
        let has_begun = {
            let mut store = self.store.lock();
            let is_active = store.lender(lender).is_some_and(|status| status.state == LenderState::Active);
            if !is_active {
                return;
            }
            let has_begun = store.drain(lender).is_ok();
            if let Some(lender) = self.lender(lender).filter(|_| has_begun) {
                let within = Duration::from_secs(lender.ends_within_s.load(Ordering::Relaxed));
                store.ends_at(lender.id, self.now_ns().saturating_add(within.as_nanos() as u64));
            }
            has_begun
        };
        if !has_begun {
            // The roster repeats this action as long as the lender is there.
            let has_something = self.store.lock().lender(lender).is_some_and(|status| status.used_pages > 0);
            if let Some(lender) = self.lender(lender).filter(|_| has_something)
                && !lender.is_end_told.swap(true, Ordering::Relaxed)
            {
                self.notify(FarEvent::Notice(format!(
                    "lender {} ends in {} s at the latest, and no other lender is there for what it has: add one (`tombolo lenders add`)",
                    lender.address(),
                    lender.ends_within_s.load(Ordering::Relaxed)
                )));
            }
            return;
        }
        self.members.lock().roster.leaves(lender);
        self.carry_out();
        if let Some(lender) = self.lender(lender) {
            self.notify(FarEvent::Notice(format!(
                "lender {} ends in {} s at the latest: what it has is moved to others",
                lender.address(),
                lender.ends_within_s.load(Ordering::Relaxed)
            )));
        }
        self.warn_of_few_lenders();
    }

    /// Carries out the actions of the roster.
    fn run_roster(self: &Arc<Self>) {
        loop {
            let action = self.members.lock().roster.poll(self.now_ns());
            match action {
                None => return,
                Some(RosterAction::AskWhetherEnding(_, lender)) => {
                    if let Some(lender) = self.lender(lender) {
                        self.ask_whether_ending(&lender);
                    }
                }
                Some(RosterAction::Leave(lender)) => self.leave(lender),
                Some(RosterAction::Drain(lender)) => {
                    // If no other lender can take its pages, it stays until one can.
                    let has_begun = self.store.lock().drain(lender).is_ok();
                    self.members.lock().roster.drains(self.now_ns(), lender, has_begun);
                    self.carry_out();
                }
                Some(RosterAction::Close(lender)) => {
                    if let Some(lender) = self.lender(lender) {
                        neighbourhood::close(&*self.node, &lender.peer, LossReason::Restarted);
                    }
                }
                // These actions take long, so each gets a thread.
                Some(action @ (RosterAction::Dial(_) | RosterAction::AskWho(..))) => {
                    let weak = Arc::downgrade(self);
                    let started = std::thread::Builder::new().name("probe".into()).spawn(move || {
                        if let Some(store) = weak.upgrade() {
                            store.probe(action);
                        }
                    });
                    if started.is_err() {
                        self.answer(action, None, Who::Unknown);
                    }
                }
            }
        }
    }

    /// Asks a lender whether it is about to end, on the lender's thread. While that thread waits for memory, which may
    /// be long, another thread asks.
    fn ask_whether_ending(self: &Arc<Self>, lender: &Arc<Lender>) {
        if !lender.is_asked_for_memory.load(Ordering::Relaxed) {
            return lender.give(Job::AskWhetherEnding);
        }
        let (weak, asked) = (Arc::downgrade(self), lender.clone());
        let started = std::thread::Builder::new().name("probe".into()).spawn(move || {
            if let Some(store) = weak.upgrade() {
                store.ask_lender(&asked, Job::AskWhetherEnding);
            }
        });
        if started.is_err() {
            lender.give(Job::AskWhetherEnding);
        }
    }

    /// Dials a member, or asks which node answers at its address.
    fn probe(self: &Arc<Self>, action: RosterAction) {
        let (mut reached, mut who) = (None, Who::Unknown);
        let is_stopping = self.stop.load(Ordering::Relaxed);
        match action {
            RosterAction::Dial(member) if !is_stopping => {
                let ways = self.members.lock().ways.get(member.0 as usize).cloned();
                reached = ways.and_then(|ways| self.dial(&ways).ok());
            }
            RosterAction::AskWho(_, lender) if !is_stopping => {
                if let (Some(lender), Some(security)) = (self.lender(lender), self.security.get()) {
                    who = neighbourhood::who_answers(&*self.node, &lender.peer, lender.address(), security);
                }
            }
            _ => {}
        }
        self.answer(action, reached, who);
        self.ring();
    }

    fn answer(&self, action: RosterAction, reached: Option<LenderId>, who: Who) {
        let now_ns = self.now_ns();
        match action {
            RosterAction::Dial(member) => {
                self.members.lock().roster.dialed(now_ns, member, reached);
                if let Some(lender) = reached {
                    self.note_if_lost(lender);
                }
            }
            RosterAction::AskWho(_, lender) => self.members.lock().roster.answered(now_ns, lender, who),
            _ => {}
        }
    }

    /// One round of the service thread: keeps links alive and notices silent lenders. False: the thread is to end.
    pub(super) fn look_after(self: &Arc<Self>) -> bool {
        if self.stop.load(Ordering::Relaxed) {
            return false;
        }
        self.drive(|node| _ = node.tick());
        self.note_suspects();
        self.run_roster();
        // The front end does not poll links with windows, because no packets come by them.
        let lenders = self.lenders();
        let windowed: Vec<&Arc<Lender>> =
            lenders.iter().filter(|lender| lender.is_windowed && !lender.is_lost()).collect();
        for lender in &windowed {
            if self.node.arm(&lender.peer).unwrap_or(true) {
                self.drive(|node| _ = node.drive(&lender.peer));
            }
        }
        self.carry_out();
        self.note_copies_without_room();
        self.drive(Node::pump);
        // Actions of the roster are carried out within `WINDOWS_MAX_SLEEP` of their time.
        let deadline = self.store.lock().next_deadline();
        let sleep = deadline.map_or(timing::WINDOWS_MAX_SLEEP, |at_ns| {
            Duration::from_nanos(at_ns.saturating_sub(self.now_ns()))
                .clamp(timing::FAR_STORE_MIN_SLEEP, timing::WINDOWS_MAX_SLEEP)
        });
        let links = windowed.iter().map(|lender| lender.peer.link.descriptor());
        // Threads that ask lenders drive links, too, so events may come without this thread.
        let descriptors: Vec<_> = links.chain([self.work.as_fd(), self.node_events.as_fd()]).collect();
        let _ = event::wait_readable(&descriptors, Some(sleep));
        let _ = rustix::io::read(&self.work, &mut [0u8; 8]);
        true
    }

    /// Tells the store which lenders are silent.
    fn note_suspects(&self) {
        let lenders = self.lenders();
        for lender in lenders.iter().filter(|lender| !lender.is_lost()) {
            let is_suspect = lender.peer.is_waiting();
            self.store.lock().set_suspect(self.now_ns(), lender.id, is_suspect);
            let silent_for = lender.silence.lock().note(is_suspect, Instant::now());
            let may_be_left = lender.is_windowed && self.dead_windows == DeadWindows::Read;
            if may_be_left && silent_for >= self.node.fabric.outage() && self.has_another(lender.id) {
                // The memory that it has lent can be read here until the pages have been copied to other lenders.
                neighbourhood::close(&*self.node, &lender.peer, LossReason::Silent(silent_for));
                continue;
            }
            if lender.silence.lock().is_news(is_suspect, Instant::now()) {
                let what = if is_suspect { "does not answer; it is waited for" } else { "answers again" };
                self.notify(FarEvent::Notice(format!("lender {} {what}", lender.address())));
            }
            self.members.lock().roster.set_silent(lender.id, is_suspect);
        }
        self.carry_out();
    }

    /// Whether other lenders that answer, and are to stay, have room for the pages of this one. If not, nothing is
    /// gained by giving up a lender whose memory is mapped here: a link by shared memory is lost only when its process
    /// ends.
    fn has_another(&self, id: LenderId) -> bool {
        let lenders = self.lenders();
        let store = self.store.lock();
        let room_pages = |lender: &Arc<Lender>| {
            let status = store.lender(lender.id)?;
            let is_well = status.state == LenderState::Active && !status.is_suspect;
            let lendable_pages = lender.lendable_pages.load(Ordering::Relaxed).max(status.borrowed_pages);
            is_well.then(|| lendable_pages.saturating_sub(status.used_pages))
        };
        let others = lenders.iter().filter(|lender| lender.id != id && !lender.is_lost());
        let room_pages: u64 = others.filter_map(room_pages).sum();
        room_pages > store.lender(id).map_or(0, |status| status.used_pages)
    }

    /// Tells the user that copies are wanted for which no lender has room: once, until another lender comes.
    fn note_copies_without_room(&self) {
        if self.is_full_told.load(Ordering::Relaxed) {
            return;
        }
        let (pages, used) = {
            let store = self.store.lock();
            (store.without_room(), u64::from(store.used()))
        };
        // A few such slots come and go, and are not worth a notice.
        if pages == 0 || pages < used / 256 || self.is_full_told.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_leaving = |lender: &&Arc<Lender>| matches!(self.state_of(lender.id), "draining" | "dead");
        let why = match self.lenders().iter().find(is_leaving) {
            Some(lender) => format!("are to be moved away from lender {}", lender.address()),
            None => "are to have a second copy".to_owned(),
        };
        self.notify(FarEvent::Notice(format!(
            "the lenders have no room for {} MiB that {why}: add one (`tombolo lenders add`)",
            (pages * PAGE_BYTES).div_ceil(1 << 20)
        )));
    }

    /// Warns if there are fewer lenders than copies, because the end of one would lose the pages that it has.
    pub(super) fn warn_of_few_lenders(&self) {
        let usable = {
            let lenders = self.lenders();
            let store = self.store.lock();
            let is_active = |lender: &&Arc<Lender>| {
                let status = store.lender(lender.id);
                !lender.is_lost() && status.is_some_and(|status| status.state == LenderState::Active)
            };
            lenders.iter().filter(is_active).count()
        };
        if (1..usize::from(self.copies)).contains(&usable)
            && self.is_ready.load(Ordering::Relaxed)
            && !self.stop.load(Ordering::Relaxed)
        {
            self.notify(FarEvent::Notice(format!(
                "there are to be {} copies of each far page, and {usable} lender(s) for them: what is stored now has fewer copies until \
                 another lender comes",
                self.copies
            )));
        }
    }

    /// The state of a lender, for messages.
    pub(super) fn state_of(&self, id: LenderId) -> &'static str {
        match self.store.lock().lender(id) {
            Some(status) => match (status.state, status.is_suspect) {
                (LenderState::Active, true) => "suspect",
                (LenderState::Active, false) => "active",
                (LenderState::Draining, _) => "draining",
                (LenderState::DeadReadable, _) => "dead",
                (LenderState::Gone, _) => "gone",
            },
            None => "gone",
        }
    }
}
