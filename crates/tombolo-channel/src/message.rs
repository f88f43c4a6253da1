//! The messages between a program and its node, in `postcard`, inside a versioned enum.

use serde::{Deserialize, Serialize};

use crate::slot::Target;

/// Who else may reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// Any program of any node that this node is connected to.
    Anyone,
    /// The program that has the domain of that number, at the same node: whichever it is. A number that the node has chosen is not
    /// given out again before all others were.
    Program(u16),
    /// Any program at the node of that number. Which of them, the other node decides: nodes trust
    /// each other so far.
    Node(u32),
}

/// What somebody else may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Who.
    pub who: Who,
    /// May read.
    pub read: bool,
    /// May write.
    pub write: bool,
}

impl Grant {
    /// Reading and writing.
    pub const fn all(who: Who) -> Self {
        Self { who, read: true, write: true }
    }

    /// Reading only.
    pub const fn read(who: Who) -> Self {
        Self { who, read: true, write: false }
    }

    /// Writing only.
    pub const fn write(who: Who) -> Self {
        Self { who, read: false, write: true }
    }
}

/// Any message. New versions are new variants at the end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The program asks, first version: without a number. Refused, since its answer could be taken
    /// for that of another request.
    AskV1(Request),
    /// The node answers, first version: only that it refuses [`Self::AskV1`].
    AnswerV1(Reply),
    /// The program has rung while the node slept. Has no answer.
    WakeV1,
    /// The node says that a transfer has ended, once for each time that the program asked for that
    /// with [`crate::Waiting::Message`].
    EndedV1,
    /// The program asks, second version.
    AskV2 {
        /// Chosen by the program; no other request of this connection that is open has it.
        number: u32,
        /// What it asks for.
        request: Request,
    },
    /// The node answers, second version.
    AnswerV2 {
        /// The request's.
        number: u32,
        /// The answer.
        reply: Reply,
    },
}

/// By which a process joins a domain. Not shown.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 16]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Secret")
    }
}

/// What a program can ask for. Requests are carried out in the order in which they were sent, but the
/// answer to [`Self::Deregister`] may come after those to later ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// A domain, first of all; of this number, or any.
    Open {
        /// From [`crate::DOMAINS`].
        domain: Option<u16>,
    },
    /// Memory from the node.
    Allocate {
        /// How much; whole pages.
        bytes: u64,
        /// What others may do with it; nothing if there is none. At most [`crate::MAX_GRANTS`].
        grants: Vec<Grant>,
    },
    /// Memory that is not needed any more.
    Free {
        /// Where it begins, in the domain.
        address: u64,
    },
    /// Which nodes are there?
    Peers,
    /// A mailbox for this domain; it has one at most.
    OpenMailbox {
        /// For how many messages that are not taken yet; a power of two.
        messages: u32,
        /// Who may send to it.
        senders: Vec<Who>,
    },
    /// A range of the program's own memory becomes memory of the domain, at its own address behind [`crate::process_base`]. Its
    /// `/proc/self/mem` (to read and write) and `/proc/self/maps` come along.
    Register {
        /// Where it begins in the domain.
        address: u64,
        /// How long it is.
        bytes: u64,
        /// As for [`Self::Allocate`].
        grants: Vec<Grant>,
    },
    /// Memory of its own that is not to be reached any more. Answered when it is not.
    Deregister {
        /// Where it begins.
        address: u64,
    },
    /// Which lives do the nodes have that are there, and this one?
    Lives,
    /// The area by which this program makes the accesses to its own memory that the node asks for, by
    /// [`crate::access::AccessThreads`].
    OpenAccess,
    /// As [`Self::Register`], with a choice of how absent pages are dealt with. After [`Self::OpenAccess`], no
    /// descriptors come along; otherwise, `/proc/self/pagemap` is the third.
    RegisterV2 {
        /// As for [`Self::Register`].
        address: u64,
        /// As for [`Self::Register`].
        bytes: u64,
        /// As for [`Self::Allocate`].
        grants: Vec<Grant>,
        /// How.
        faults: Faults,
    },
    /// The fault registers of this domain, which are clear then.
    TakeFaultRegisters,
    /// As [`Self::Allocate`], memory that others can map once [`Self::OpenWindow`] has said so. All grants allow reading, and
    /// all or none writing.
    AllocateWindow {
        /// How much; whole pages.
        bytes: u64,
        /// Who can map it.
        grants: Vec<Grant>,
    },
    /// The program has mapped its window: from now on others can, and where they may only read, nobody else for writing.
    OpenWindow {
        /// Where it begins, in the domain.
        address: u64,
    },
    /// A window of another domain, or the own one.
    MapWindow {
        /// Whose.
        target: Target,
        /// Where it begins there.
        address: u64,
    },
    /// Others may not reach a window any more. Answered with [`Reply::Allocated`] and memory of the same size that the
    /// program moves it to; no transfer reaches it until [`Self::WindowMoved`]. May be asked again, with the same answer.
    RevokeWindow {
        /// Where it begins, in the domain.
        address: u64,
    },
    /// The program has moved a window that was revoked: it is memory of the domain, and no window any more.
    WindowMoved {
        /// Where it begins, in the domain.
        address: u64,
    },
    /// What another process needs to join this domain.
    Invite,
    /// Another process joins a domain, first of all, in place of [`Self::Open`].
    Join {
        /// Its number.
        domain: u16,
        /// From [`Reply::Invited`].
        secret: Secret,
    },
}

/// The fault registers of a domain, named as those of FAULT §3.2.1. They hold the first fault since they were taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRegisters {
    /// FSR.TF: a page was not present, nothing is mapped there, or its page cannot be had.
    pub translation_fault: bool,
    /// FSR.PF: an access was not permitted.
    pub permission_fault: bool,
    /// FSR.MULTI: there was another fault after the one that the others tell of.
    pub multiple: bool,
    /// FAR: where.
    pub address: u64,
    /// FSYNR.WNR: by a write (at a destination), not a read (at a source).
    pub write_not_read: bool,
}

/// Which pages are brought in when a transfer meets an absent one (FAULT §3.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Touch {
    /// Touch-a-page: the one that is absent.
    Page,
    /// Touch-ahead: that many, at most 64, from the one that is absent, but none behind the block.
    Ahead(u16),
    /// All of the block that are absent, and more along a run of them.
    #[default]
    Adaptive,
}

/// How absent pages of a range are dealt with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Which pages are brought in.
    pub touch: Touch,
    /// The block is refused and comes again when its pages are there, in place of waiting with its bytes at the node.
    pub terminates: bool,
}

/// What the node can answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The domain is open. The channel page comes with it.
    Opened {
        /// Its number.
        domain: u16,
    },
    /// The memory, whose descriptor comes along.
    Allocated {
        /// Where it is in the domain.
        address: u64,
    },
    /// Done.
    Done,
    /// The nodes.
    Peers(Vec<PeerStatus>),
    /// It could not be done, for this reason.
    Failed(String),
    /// The mailbox, whose descriptor comes along.
    Mailbox,
    /// The lives of those nodes that have introduced themselves.
    Lives(Vec<PeerLife>),
    /// The area, whose descriptor comes along.
    Access,
    /// The fault registers.
    FaultRegisters(FaultRegisters),
    /// The window, whose descriptor comes along, and that of its state.
    Window {
        /// How large it is.
        bytes: u64,
        /// Whether it may be written.
        is_writable: bool,
    },
    /// The secret of the domain: the node lets each process join that shows it.
    Invited {
        /// Random, and another one for each domain.
        secret: Secret,
    },
    /// The domain is open for this process, too. A channel page of its own comes with it.
    Joined {
        /// Its number among the processes of the domain.
        process: u8,
    },
}

/// A node that transfers can go to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its number at this node, for [`crate::Target::node`].
    pub node: u32,
    /// As it introduced itself; may be empty.
    pub name: String,
}

/// Which life of a node it is that has a number now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerLife {
    /// As [`PeerStatus::node`].
    pub node: u32,
    /// Random; another one when the node is started again.
    pub life: [u8; 16],
}

/// A message as bytes.
pub fn encode(message: &Message) -> Vec<u8> {
    postcard::to_stdvec(message).unwrap_or_default()
}

/// The message that these bytes are.
pub fn decode(bytes: &[u8]) -> Option<Message> {
    postcard::from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(message) = decode(&bytes) {
                prop_assert_eq!(decode(&encode(&message)), Some(message));
            }
        }
    }
}
