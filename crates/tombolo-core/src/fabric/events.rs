//! Events and actions of the state machine of neighbours.

/// A neighbour: its index among those that are wanted, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NeighbourId(pub u32);

/// A link: a number that the caller chooses, and that no other link has or had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// What a node has proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// A key.
    Key([u8; 32]),
    /// Its process on this machine, as the kernel names it: the process number, and when the process began.
    Process(u32, u64),
    /// Nothing. The life that the node claims is believed only if this node has dialed it.
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

/// A dial under way. The caller gives it back once, with the outcome.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Dial {
    pub(super) number: u64,
    pub(super) neighbour: NeighbourId,
    pub(super) address: usize,
}

impl Dial {
    /// The neighbour that is dialed.
    pub fn neighbour(&self) -> NeighbourId {
        self.neighbour
    }

    /// Index of the neighbour's address that is dialed.
    pub fn address(&self) -> usize {
        self.address
    }
}

/// What became of [`Action::Dial`].
#[derive(Debug, PartialEq, Eq)]
pub enum DialOutcome {
    /// A link to the node with this identity is up, and that node has accepted it.
    Joined(LinkId, Identity),
    /// The node with this identity answers that there is a link already. The dialed link is closed.
    Refused(Identity),
    /// The dial failed.
    Failed,
}

/// What has happened.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed.
    Elapsed,
    /// An [`Action::Dial`] has ended.
    Dialed(Dial, DialOutcome),
    /// An [`Action::Probe`] has ended. The identity is that of the node that answers, if one does.
    Probed(Dial, Option<Identity>),
    /// An [`Action::AddPath`] has ended, and whether the path is up now.
    PathAdded(Dial, bool),
    /// Another node has dialed, and asks to be joined by this link. The machine answers with [`Action::Answer`].
    Came {
        /// The link by which the node asks.
        link: LinkId,
        /// The identity of the node.
        identity: Identity,
        /// The node was refused because of a link that exists already, but it has none.
        insists: bool,
    },
    /// Whether a link is suspect: nothing has been heard by it for a while.
    Suspected(LinkId, bool),
    /// A link is lost, with all its paths.
    Lost(LinkId),
    /// The path by that address of a neighbour is lost, and other paths to the neighbour are left.
    PathLost(NeighbourId, usize),
}

/// Why a link is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// There is another link to the same node.
    Duplicate,
    /// Another life answers at the neighbour's address.
    Restarted,
}

/// A change in the state of a neighbour, for people.
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

/// What the caller is to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Connect to the address, and ask to be joined.
    Dial {
        /// The dial: it says where to connect, and comes back with [`Event::Dialed`].
        dial: Dial,
        /// This node was refused because of a link that exists already, but it has none.
        insist: bool,
    },
    /// Connect to the address, ask which node answers, and close. Ends with [`Event::Probed`].
    Probe(Dial),
    /// Connect to the address as another path of the link's peer. Ends with [`Event::PathAdded`].
    AddPath(Dial, LinkId),
    /// Tell the node that has dialed whether it is joined. If it is not, the link is to be closed.
    Answer(LinkId, bool),
    /// Close a link.
    Close(LinkId, CloseReason),
    /// From now on the neighbour is reached by this link, or by none.
    Assign(NeighbourId, Option<LinkId>),
    /// Tell people.
    Report(NeighbourId, Change),
}
