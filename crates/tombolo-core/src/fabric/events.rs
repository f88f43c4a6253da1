//! What the machine of neighbours is told, and what it asks for.

/// A neighbour: its place among those that are wanted, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeighbourId(pub u32);

/// A link, by a number of the caller's that no other link has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// What a node has proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// A key.
    Key([u8; 32]),
    /// The kernel names its process on this machine: its number, and when it began.
    Process(u32, u64),
    /// Nothing. What it says of its life is believed only if it was dialed.
    Nothing,
}

/// One life of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// What the node has proved.
    pub proof: Proof,
    /// Chosen at random when it started.
    pub life: [u8; 16],
}

/// A dial under way: its outcome comes back with it, once.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Dial {
    pub(super) number: u64,
    pub(super) neighbour: NeighbourId,
    pub(super) address: usize,
}

impl Dial {
    /// Who is dialed.
    pub fn neighbour(&self) -> NeighbourId {
        self.neighbour
    }

    /// By which of its addresses.
    pub fn address(&self) -> usize {
        self.address
    }
}

/// What became of [`Action::Dial`].
#[derive(Debug, PartialEq, Eq)]
pub enum DialOutcome {
    /// A link to this node is up, and it has taken it.
    Joined(LinkId, Identity),
    /// This node answers, and says that there is a link already. The dialed one is closed.
    Refused(Identity),
    /// Nothing came of it.
    Failed,
}

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed.
    Elapsed,
    /// An [`Action::Dial`] has ended.
    Dialed(Dial, DialOutcome),
    /// An [`Action::Probe`] has ended; who answers, if anybody does.
    Probed(Dial, Option<Identity>),
    /// An [`Action::AddPath`] has ended; whether there is that path now.
    PathAdded(Dial, bool),
    /// Another node has dialed, and asks to be joined by this link: to be answered with [`Action::Answer`].
    Came {
        /// By this link.
        link: LinkId,
        /// Who it is.
        identity: Identity,
        /// It was refused before, and has no link.
        insists: bool,
    },
    /// Nothing is heard by a link for a while, or is again.
    Suspected(LinkId, bool),
    /// A link is lost, with all its paths.
    Lost(LinkId),
    /// A path that was dialed by that address is lost, and others of the neighbour are left.
    PathLost(NeighbourId, usize),
}

/// Why a link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// There is another one to the same node.
    Duplicate,
    /// At the neighbour's address another life answers.
    Restarted,
}

/// How a neighbour is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Joined for the first time.
    Joined,
    /// Joined again.
    JoinedAgain,
    /// Its link is lost.
    Lost,
    /// Its address leads to this node itself.
    IsItself,
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the address, and ask to be joined.
    Dial {
        /// Comes back with [`Event::Dialed`], and says where.
        dial: Dial,
        /// It was refused before, and has no link.
        insist: bool,
    },
    /// Connect to the address, ask who answers, and close. Ends with [`Event::Probed`].
    Probe(Dial),
    /// Connect to the address as another path of a link's peer. Ends with [`Event::PathAdded`].
    AddPath(Dial, LinkId),
    /// Tell who has dialed whether it is joined; if not, close the link.
    Answer(LinkId, bool),
    /// Close a link.
    Close(LinkId, CloseReason),
    /// From now on the neighbour is reached by this link, or by none.
    Assign(NeighbourId, Option<LinkId>),
    /// Tell people.
    Report(NeighbourId, Change),
}
