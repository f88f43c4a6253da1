//! The nodes that a store borrows from: which of them are dialed, and which questions besides those for memory they are
//! asked.
//!
//! A *member* is a node that was named to the store. Each time that the member is reached, it becomes a new lender of
//! the [`Store`](super::Store).
//!
//! ```text
//!            reached               ┌─ silent: asked each second who answers at its address; if its next life does,
//!   absent ─────────► present ───────┤  Close, and the loss follows
//!    ▲  ▲ │ failed: dialed again     └─ heard: asked each second whether it is about to end; if so, Leave
//!    │  └─┘ after a pause  │
//!    └───────── lost ──────┘
//! ```
//!
//! A member that the user has dismissed is not dialed after it is lost, until the user names it again.
//!
//! The caller carries out each [`RosterAction`] that [`Roster::poll`] returns, and polls again at
//! [`Roster::next_deadline`]. It reports the end of each dial exactly once, failure included. It does the same for each
//! question, unless the lender is lost.

use std::collections::VecDeque;

use super::LenderId;

/// Pause between two questions to a member, and between two attempts to reach it.
const PAUSE_NS: u64 = 1_000_000_000;

/// Names a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u32);

/// What the caller is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RosterAction {
    /// Connect to a member; report the end with [`Roster::dialed`].
    Dial(MemberId),
    /// Find out which node answers at a member's address; report it with [`Roster::answered`].
    AskWho(MemberId, LenderId),
    /// Ask a lender whether it is about to end; report it with [`Roster::said_whether_ending`].
    AskWhetherEnding(MemberId, LenderId),
    /// End the link to a lender whose node was restarted, so that what it lent is gone. The loss is then reported with
    /// [`Roster::lost`], as any other.
    Close(LenderId),
    /// Drain a lender that is about to end; report with [`Roster::leaves`] if the drain has begun. Otherwise, this
    /// action is repeated.
    Leave(LenderId),
    /// Drain a lender that was reached by a dial during which the user dismissed its member; report with
    /// [`Roster::drains`] whether the drain has begun.
    Drain(LenderId),
}

/// Which node answers at the address of a silent lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// No node, or one that cannot prove that it is the lender's.
    Unknown,
    /// The life that was reached before.
    Same,
    /// A later life of that node: its process was started again.
    NextLife,
}

/// What a member is asked repeatedly, with a pause after each answer. A dial counts as a question.
#[derive(Clone, Copy, Debug)]
enum Question {
    Dial,
    Who,
    Ending,
    /// Whether the lender can be drained.
    Drain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// The question is due at this time, in nanoseconds.
    At(u64),
    /// The question was asked, and is not answered yet.
    Open,
}

#[derive(Debug)]
struct Member {
    /// The member's number as a lender. It gets a new one each time it is reached. `None` from the loss of that
    /// lender until the member is reached again.
    lender: Option<LenderId>,
    is_silent: bool,
    /// It is being drained because it is about to end.
    is_leaving: bool,
    /// It was reached after the user had dismissed it, and its drain has not begun.
    is_to_drain: bool,
    /// It is dialed when its lender is lost. False after the user has dismissed it.
    is_wanted: bool,
    /// Its address is known, so it can be dialed.
    has_address: bool,
    /// The state of each question, indexed by [`Question`].
    asked: [Asked; 4],
}

/// The members of a store.
#[derive(Debug, Default)]
pub struct Roster {
    members: Vec<Member>,
    /// Actions that follow from answers.
    ready: VecDeque<RosterAction>,
}

impl Roster {
    /// Adds a member that was reached as `lender`. `has_address`: it can be dialed.
    pub fn add(&mut self, now_ns: u64, lender: LenderId, has_address: bool) -> MemberId {
        let member = MemberId(self.members.len() as u32);
        let asked = [Asked::At(0); 4];
        self.members.push(Member {
            lender: None,
            is_silent: false,
            is_leaving: false,
            is_to_drain: false,
            is_wanted: true,
            has_address,
            asked,
        });
        self.came(now_ns, member, lender);
        member
    }

    /// A known member was reached because the user named it again. It is wanted from now on.
    pub fn came(&mut self, now_ns: u64, member: MemberId, lender: LenderId) {
        if let Some(known) = self.members.get_mut(member.0 as usize) {
            known.is_wanted = true;
            known.reached(now_ns, lender);
            known.is_to_drain = false;
        }
    }

    /// A dial of [`RosterAction::Dial`] has ended. `reached`: the new lender, if the dial succeeded.
    pub fn dialed(&mut self, now_ns: u64, member: MemberId, reached: Option<LenderId>) {
        let Some(known) = self.members.get_mut(member.0 as usize) else { return };
        known.answered(Question::Dial, now_ns);
        if let Some(lender) = reached {
            known.reached(now_ns, lender);
            known.is_to_drain |= !known.is_wanted && known.lender == Some(lender);
        }
    }

    /// A lender is lost. Its member, if it is wanted, is dialed at once, but not within a second of the end of its last
    /// dial.
    pub fn lost(&mut self, lender: LenderId) {
        if let Some(member) = self.of(lender) {
            member.lender = None;
        }
    }

    /// Nothing is heard of a lender, or it is heard again.
    pub fn set_silent(&mut self, lender: LenderId, is_silent: bool) {
        if let Some(member) = self.of(lender) {
            member.is_silent = is_silent;
        }
    }

    /// The user has dismissed a member: it is not dialed any more.
    pub fn dismiss(&mut self, member: MemberId) {
        if let Some(known) = self.members.get_mut(member.0 as usize) {
            known.is_wanted = false;
        }
    }

    /// Dismisses the member whose present lender is `lender`. If there is none, dismisses `member`, provided that it
    /// has no lender now.
    pub fn dismiss_lender(&mut self, lender: LenderId, member: Option<MemberId>) {
        if let Some(member) = self.of(lender) {
            member.is_wanted = false;
        } else if let Some(known) = member.and_then(|member| self.members.get_mut(member.0 as usize))
            && known.lender.is_none()
        {
            known.is_wanted = false;
        }
    }

    /// Whether a member is wanted and has no lender now.
    pub fn is_awaited(&self, member: MemberId) -> bool {
        self.members.get(member.0 as usize).is_some_and(|known| known.is_wanted && known.lender.is_none())
    }

    /// Reports the end of a [`RosterAction::Drain`]. The action is repeated until the drain has begun, which needs
    /// another lender.
    pub fn drains(&mut self, now_ns: u64, lender: LenderId, has_begun: bool) {
        let Some(member) = self.of(lender) else { return };
        member.answered(Question::Drain, now_ns);
        member.is_to_drain &= !has_begun;
    }

    /// The drain of a lender that is about to end has begun.
    pub fn leaves(&mut self, lender: LenderId) {
        if let Some(member) = self.of(lender) {
            member.is_leaving = true;
        }
    }

    /// Reports the answer to a [`RosterAction::AskWho`].
    pub fn answered(&mut self, now_ns: u64, lender: LenderId, who: Who) {
        let Some(member) = self.of(lender) else { return };
        member.answered(Question::Who, now_ns);
        if who == Who::NextLife {
            self.ready.push_back(RosterAction::Close(lender));
        }
    }

    /// Reports the answer to a [`RosterAction::AskWhetherEnding`]. No answer counts as "no".
    pub fn said_whether_ending(&mut self, now_ns: u64, lender: LenderId, is_ending: bool) {
        let Some(member) = self.of(lender) else { return };
        member.answered(Question::Ending, now_ns);
        if is_ending {
            self.ready.push_back(RosterAction::Leave(lender));
        }
    }

    /// Whether a member is wanted and has a lender now.
    pub fn is_present(&self, member: MemberId) -> bool {
        self.members.get(member.0 as usize).is_some_and(|known| known.is_wanted && known.lender.is_some())
    }

    /// Returns the next action, if there is one. The caller repeats the call until it returns `None`.
    pub fn poll(&mut self, now_ns: u64) -> Option<RosterAction> {
        let asks = |(number, member): (u32, &mut Member)| member.poll(MemberId(number), now_ns);
        self.ready.pop_front().or_else(|| (0..).zip(&mut self.members).find_map(asks))
    }

    /// When to call [`Roster::poll`] at the latest.
    pub fn next_deadline(&self) -> Option<u64> {
        let due = |member: &Member| match member.asked[member.question()? as usize] {
            Asked::At(at_ns) => Some(at_ns),
            Asked::Open => None,
        };
        if self.ready.is_empty() { self.members.iter().filter_map(due).min() } else { Some(0) }
    }

    /// The member whose present lender is `lender`.
    fn of(&mut self, lender: LenderId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.lender == Some(lender))
    }
}

impl Member {
    fn reached(&mut self, now_ns: u64, lender: LenderId) {
        // Lenders are numbered in the order in which they are reached: a lower number is an older one.
        if self.lender.is_some_and(|known| known >= lender) {
            return;
        }
        self.lender = Some(lender);
        (self.is_silent, self.is_leaving, self.is_to_drain) = (false, false, false);
        // The new lender is asked anew, even if a question to the previous one is not answered yet.
        self.asked[Question::Who as usize] = Asked::At(now_ns);
        self.asked[Question::Ending as usize] = Asked::At(now_ns);
        self.asked[Question::Drain as usize] = Asked::At(now_ns);
    }

    fn answered(&mut self, question: Question, now_ns: u64) {
        self.asked[question as usize] = Asked::At(now_ns.saturating_add(PAUSE_NS));
    }

    /// The question that the member is to be asked in its present state.
    fn question(&self) -> Option<Question> {
        let may_be_dialed = self.is_wanted && self.has_address;
        match self.lender {
            None => may_be_dialed.then_some(Question::Dial),
            Some(_) if self.is_silent => self.has_address.then_some(Question::Who),
            Some(_) if self.is_to_drain => Some(Question::Drain),
            Some(_) => (self.is_wanted && !self.is_leaving).then_some(Question::Ending),
        }
    }

    fn poll(&mut self, id: MemberId, now_ns: u64) -> Option<RosterAction> {
        let question = self.question()?;
        let asked = &mut self.asked[question as usize];
        if !matches!(*asked, Asked::At(at_ns) if at_ns <= now_ns) {
            return None;
        }
        *asked = Asked::Open;
        match (question, self.lender) {
            (Question::Dial, _) | (_, None) => Some(RosterAction::Dial(id)),
            (Question::Who, Some(lender)) => Some(RosterAction::AskWho(id, lender)),
            (Question::Ending, Some(lender)) => Some(RosterAction::AskWhetherEnding(id, lender)),
            (Question::Drain, Some(lender)) => Some(RosterAction::Drain(lender)),
        }
    }
}
