//! Control messages between nodes: asking for memory, giving it back, asking how a node is.
//!
//! They travel on a link's control channel (reliable, ordered, small), in
//! `postcard`, inside a versioned enum: a node that meets a version it does not
//! know answers with an error that says so.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::fabric::life::{Life, NodeIdentity};

/// Any control message. New versions are new variants at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The first version.
    V1(MessageV1),
}

/// Version 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MessageV1 {
    /// Something is asked; the answer bears the same number.
    Ask {
        /// Chosen by the asker, unique on its side of the link.
        number: u32,
        /// What.
        request: Request,
    },
    /// The answer to a request of that number.
    Answer {
        /// The request's.
        number: u32,
        /// What is answered.
        reply: Reply,
    },
}

/// What can be asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Who asks. Said once for each link, before anything is asked for.
    Introduce {
        /// Name of the asking node, for people.
        name: String,
        /// Which life of it.
        life: Life,
    },
    /// Lend memory.
    Lend {
        /// How much, in bytes; a multiple of the page size.
        bytes: u64,
    },
    /// A segment is not needed any more.
    Release {
        /// Which.
        segment: u16,
    },
    /// How are you? As much as fits into an answer.
    Status {
        /// Where to go on: 0, or what the last answer said.
        from: u64,
        /// With the counters.
        counters: bool,
    },
    /// Move bytes of a program of yours. Answered with [`Reply::Carried`] when that is over.
    Carry(Box<Carriage>),
    /// Give me an empty segment to fill, through the engine, with what is to have a name.
    Create {
        /// How many bytes it is to have; any number.
        bytes: u64,
    },
    /// What was to be filled is full: from now on this is its name, and not that of what had it.
    /// The segment is the asker's no more, whatever is answered.
    Publish {
        /// Which.
        segment: u16,
        /// As [`SegmentName`](crate::SegmentName) has it.
        name: String,
        /// Of the bytes that were to come.
        checksum: Checksum,
    },
    /// What has this name?
    Find {
        /// Which.
        name: String,
    },
    /// Let me read what has this name, until I release it.
    Open {
        /// Which.
        name: String,
    },
    /// What has names? As many as fit into an answer.
    List {
        /// Of the names after this one.
        after: Option<String>,
    },
    /// Nothing is to have this name any more.
    Delete {
        /// Which.
        name: String,
    },
    /// What further links to you must show, to be paths of this one's peer.
    PathToken,
    /// This link is another path of the peer with that token.
    BePath {
        /// As it was given.
        token: [u8; 16],
    },
    /// Who are you? Answered with [`Reply::Introduced`]; says nothing of the asker.
    Identify,
    /// Who asks, as [`Request::Introduce`] says it, and wants this link to be the one between the two nodes.
    /// Answered with [`Reply::Introduced`] or [`Reply::JoinedAlready`].
    Join {
        /// Name of the asking node, for people.
        name: String,
        /// Which life of it.
        life: Life,
        /// It was answered that there is a link already, and has none.
        insists: bool,
    },
    /// Let a program of mine map this window of a program of yours. Answered with [`Reply::Window`].
    MapWindow {
        /// Whose, as on the wire.
        domain: u16,
        /// Where it begins there.
        address: u64,
    },
    /// Are you about to end? Answered with [`Reply::Ending`]. A borrower asks that now and then, and moves what it has
    /// there elsewhere in time.
    IsEnding,
    /// Let this node write to you on my behalf, of what it has: I ask it for transfers to you. Answered with [`Reply::Done`].
    LetCarry {
        /// Which, a neighbour of both.
        carrier: NodeIdentity,
    },
    /// This node has asked me for transfers to you: under which number do I write on its behalf? Answered with
    /// [`Reply::Asker`].
    WriteFor {
        /// Which, a neighbour of both.
        asker: NodeIdentity,
    },
}

/// A transfer that the node with its source is asked to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carriage {
    /// The node that they go to; None: they stay at the node that is asked.
    pub to: Option<NodeIdentity>,
    /// Whose bytes, as on the wire.
    pub source_domain: u16,
    /// Where they are.
    pub source_address: u64,
    /// Whose memory they go to, as on the wire.
    pub destination_domain: u16,
    /// Where they go.
    pub destination_address: u64,
    /// How many.
    pub size_bytes: u32,
    /// Where two words are written then, and which.
    pub notification: Option<[u64; 3]>,
    /// Its class: 0 high, 1 medium, 2 low.
    pub class: Option<u8>,
}

/// What can be answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// Memory is lent. On a link with windows its descriptor comes along.
    Lent {
        /// Its number on this link; also the protection domain of its transfers.
        segment: u16,
    },
    /// Not so much can be lent.
    TooMuch {
        /// What could be.
        free_bytes: u64,
    },
    /// How the node is: a part of it.
    Status {
        /// The part, as [`NodeStatus`](crate::NodeStatus) in JSON.
        part: String,
        /// Where the next part begins, if this is not the last.
        next: Option<u64>,
    },
    /// The request could not be carried out.
    Failed(String),
    /// The transfer has ended; why it failed, if it did (`tombolo_channel::Failure::code`).
    Carried(Option<u64>),
    /// Welcome; who answers.
    Introduced {
        /// Name of the answering node, for people.
        name: String,
        /// Which life of it.
        life: Life,
    },
    /// What has the name that was asked for.
    Found(NamedSegment),
    /// The segment with the name that was asked for; it can be read.
    Opened {
        /// Its number on this link; also the protection domain of its transfers.
        segment: u16,
        /// What it is.
        found: NamedSegment,
    },
    /// What has names.
    Names {
        /// In the order of the names.
        segments: Vec<NamedSegment>,
        /// There are more after the last.
        more: bool,
    },
    /// Nothing has that name.
    NoSuchName,
    /// Not what was to come has come.
    Mismatch {
        /// Of what has come.
        checksum: Checksum,
    },
    /// What further links are to show.
    PathToken([u8; 16]),
    /// There is a link between the two nodes, and this one is to be closed; who answers.
    JoinedAlready {
        /// Which life of it.
        life: Life,
    },
    /// A window. Its descriptor comes along, and that of its state.
    Window {
        /// How large it is.
        bytes: u64,
        /// Whether it may be written.
        is_writable: bool,
    },
    /// The node ends in so many seconds at the latest; `None`: it is not about to end.
    Ending {
        /// See there.
        within_s: Option<u64>,
    },
    /// The number under which the node that asks writes on another one's behalf: what is written under it is granted to
    /// that one, or is refused.
    Asker(u16),
}

/// The SHA-256 of a segment's bytes: what `sha256sum` prints for a file with the same.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum(pub [u8; 32]);

impl fmt::Display for Checksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Checksum({self})")
    }
}

/// A segment with a name. It is complete, and does not change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSegment {
    /// Its name.
    pub name: String,
    /// How many bytes it has.
    pub bytes: u64,
    /// Their checksum.
    pub checksum: Checksum,
    /// For how many seconds it has had the name.
    pub age_s: u64,
}

impl Request {
    /// Whether it may be asked again, under its number and by another link, when nobody knows if it has
    /// arrived. [`Self::Carry`] is by itself.
    pub(crate) fn may_be_repeated(&self) -> bool {
        !matches!(self, Self::BePath { .. } | Self::Join { .. } | Self::Carry(_))
    }

    /// Whether what is asked must be done only once, however often it comes under one number.
    pub(crate) fn is_for_once(&self) -> bool {
        match self {
            // What is lent twice would be held until the end of the links, and what there is may not do for two.
            Self::Lend { .. } | Self::Create { .. } | Self::Open { .. } => true,
            Self::Publish { .. } | Self::Delete { .. } => true,
            Self::Introduce { .. }
            | Self::Join { .. }
            | Self::Identify
            | Self::Release { .. }
            | Self::Status { .. }
            | Self::Carry(_)
            | Self::Find { .. }
            | Self::List { .. }
            | Self::PathToken
            | Self::MapWindow { .. }
            | Self::LetCarry { .. }
            | Self::WriteFor { .. }
            | Self::IsEnding
            | Self::BePath { .. } => false,
        }
    }
}

impl Message {
    /// The bytes of a message.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// The message in these bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedMessage> {
        match postcard::take_from_bytes(bytes) {
            Ok((message, [])) => Ok(message),
            _ => Err(MalformedMessage),
        }
    }
}

/// A control message that cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a control message that this version does not understand")]
pub struct MalformedMessage;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        for message in [
            MessageV1::Ask { number: 5, request: Request::Lend { bytes: 1 << 40 } },
            MessageV1::Answer {
                number: u32::MAX,
                reply: Reply::Status { part: "{}".into(), next: Some(1 << 32) },
            },
            MessageV1::Ask {
                number: 6,
                request: Request::Publish {
                    segment: 3,
                    name: "a name".into(),
                    checksum: Checksum(std::array::from_fn(|index| index as u8 * 8)),
                },
            },
        ] {
            let message = Message::V1(message);
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        let mut random = tombolo_random::Random::for_test(1);
        for length in 0..64 {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            // Random bytes may spell a message; they must not do worse.
            let _ = Message::decode(&bytes);
        }
        assert_eq!(Message::decode(&[]), Err(MalformedMessage));
        assert_eq!(Message::decode(&[9, 9, 9]), Err(MalformedMessage));
        let mut longer =
            Message::V1(MessageV1::Ask { number: 1, request: Request::Status { from: 0, counters: true } })
                .encode();
        longer.push(0);
        assert_eq!(Message::decode(&longer), Err(MalformedMessage));
    }
}
