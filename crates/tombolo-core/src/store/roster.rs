//! The nodes that a store borrows from: which of them are dialed, and what they are asked beside memory.
//!
//! A *member* is a node as it was named to the store. Each time that it is reached, it is another lender of the
//! [`Store`](super::Store).
//!
//! ```text
//!            reached               ┌─ silent: asked each second who answers at its address; if its next life does,
//!   absent ─────────► present ───────┤  Close, and the loss follows
//!    ▲  ▲ │ failed: dialed again     └─ heard: asked each second whether it is about to end; if so, Leave
//!    │  └─┘ after a pause  │
//!    └───────── lost ──────┘
//! ```
//!
//! A member that was told to go is not dialed when it is lost, until it comes again.
//!
//! The caller carries out each [`RosterAction`] of [`Roster::poll`], answers a dial and a question to a lender that is not lost
//! once, whatever became of it, and comes back at [`Roster::next_deadline`].

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
    /// Connect to a member; report it with [`Roster::dialed`].
    Dial(MemberId),
    /// Find out who answers at a member's address; report it with [`Roster::answered`].
    AskWho(MemberId, LenderId),
    /// Ask a lender whether it is about to end; report it with [`Roster::said_whether_ending`].
    AskWhetherEnding(MemberId, LenderId),
    /// End the link to a lender: its node was started again, and what it lent is gone. Its loss is reported as any
    /// other.
    Close(LenderId),
    /// Drain a lender that is about to end. If that is not possible now, this comes again.
    Leave(LenderId),
    /// Drain a lender that was reached by a dial while the user told its node to go; report it with [`Roster::drains`].
    Drain(LenderId),
}

/// Who answers at the address of a lender that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Nobody, or one who cannot prove to be that node.
    Unknown,
    /// The life that was reached before.
    Same,
    /// A later life of that node: its process was started again.
    NextLife,
}

/// What is asked again and again, with a pause after each answer.
#[derive(Clone, Copy, Debug)]
enum Question {
    Dial,
    Who,
    Ending,
    /// Whether it can be drained.
    Drain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// Not now: at this time.
    At(u64),
    /// It is not answered yet.
    Open,
}

#[derive(Debug)]
struct Member {
    /// The life of it that was reached last, until that is lost.
    lender: Option<LenderId>,
    is_silent: bool,
    /// It is being drained because it is about to end.
    is_leaving: bool,
    /// It was reached while nobody wanted it, and is not drained yet.
    is_to_drain: bool,
    /// It is dialed when it is lost.
    is_wanted: bool,
    /// It can be dialed.
    has_address: bool,
    /// By [`Question`].
    asked: [Asked; 4],
}

/// The members of a store.
#[derive(Debug, Default)]
pub struct Roster {
    members: Vec<Member>,
    /// What follows from answers.
    ready: VecDeque<RosterAction>,
}

impl Roster {
    /// A new member, which was reached. `has_address`: it may be dialed.
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

    /// A known member was reached at the wish of the user, and is wanted from now on.
    pub fn came(&mut self, now_ns: u64, member: MemberId, lender: LenderId) {
        if let Some(known) = self.members.get_mut(member.0 as usize) {
            known.is_wanted = true;
            known.reached(now_ns, lender);
            known.is_to_drain = false;
        }
    }

    /// A dial of [`RosterAction::Dial`] has ended.
    pub fn dialed(&mut self, now_ns: u64, member: MemberId, reached: Option<LenderId>) {
        let Some(known) = self.members.get_mut(member.0 as usize) else { return };
        known.answered(Question::Dial, now_ns);
        if let Some(lender) = reached {
            known.reached(now_ns, lender);
            known.is_to_drain |= !known.is_wanted && known.lender == Some(lender);
        }
    }

    /// A lender is lost. It is dialed at once, unless it was reached by a dial that ended just now.
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

    /// The user has told a member to go.
    pub fn dismiss(&mut self, member: MemberId) {
        if let Some(known) = self.members.get_mut(member.0 as usize) {
            known.is_wanted = false;
        }
    }

    /// As [`Roster::dismiss`], of the member that this lender is, or, if `member` was it and has no lender now, of that.
    pub fn dismiss_lender(&mut self, lender: LenderId, member: Option<MemberId>) {
        if let Some(member) = self.of(lender) {
            member.is_wanted = false;
        } else if let Some(known) = member.and_then(|member| self.members.get_mut(member.0 as usize))
            && known.lender.is_none()
        {
            known.is_wanted = false;
        }
    }

    /// Whether a member is wanted, and away.
    pub fn is_awaited(&self, member: MemberId) -> bool {
        self.members.get(member.0 as usize).is_some_and(|known| known.is_wanted && known.lender.is_none())
    }

    /// The answer to [`RosterAction::Drain`]. Where there is no other lender at present, it comes again.
    pub fn drains(&mut self, now_ns: u64, lender: LenderId, has_begun: bool) {
        let Some(member) = self.of(lender) else { return };
        member.answered(Question::Drain, now_ns);
        member.is_to_drain &= !has_begun;
    }

    /// A lender is being drained because it is about to end.
    pub fn leaves(&mut self, lender: LenderId) {
        if let Some(member) = self.of(lender) {
            member.is_leaving = true;
        }
    }

    /// The answer to [`RosterAction::AskWho`].
    pub fn answered(&mut self, now_ns: u64, lender: LenderId, who: Who) {
        let Some(member) = self.of(lender) else { return };
        member.answered(Question::Who, now_ns);
        if who == Who::NextLife {
            self.ready.push_back(RosterAction::Close(lender));
        }
    }

    /// The answer to [`RosterAction::AskWhetherEnding`]; that there was none counts as "no".
    pub fn said_whether_ending(&mut self, now_ns: u64, lender: LenderId, is_ending: bool) {
        let Some(member) = self.of(lender) else { return };
        member.answered(Question::Ending, now_ns);
        if is_ending {
            self.ready.push_back(RosterAction::Leave(lender));
        }
    }

    /// Whether a member is there, and wanted.
    pub fn is_present(&self, member: MemberId) -> bool {
        self.members.get(member.0 as usize).is_some_and(|known| known.is_wanted && known.lender.is_some())
    }

    /// The next action, if there is one. To be called until there is none.
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

    /// The member that a lender is the present life of.
    fn of(&mut self, lender: LenderId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.lender == Some(lender))
    }
}

impl Member {
    fn reached(&mut self, now_ns: u64, lender: LenderId) {
        // Lenders are numbered in the order in which they are reached.
        if self.lender.is_some_and(|known| known >= lender) {
            return;
        }
        self.lender = Some(lender);
        (self.is_silent, self.is_leaving, self.is_to_drain) = (false, false, false);
        // Answers to what its earlier life was asked do not count.
        self.asked[Question::Who as usize] = Asked::At(now_ns);
        self.asked[Question::Ending as usize] = Asked::At(now_ns);
        self.asked[Question::Drain as usize] = Asked::At(now_ns);
    }

    fn answered(&mut self, question: Question, now_ns: u64) {
        self.asked[question as usize] = Asked::At(now_ns.saturating_add(PAUSE_NS));
    }

    /// What it is to be asked as it is now.
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
