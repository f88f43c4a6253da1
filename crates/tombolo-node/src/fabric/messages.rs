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
    /// A question. Its answer bears the same number.
    Ask {
        /// Chosen by the asker, unique on its side of the link.
        number: u32,
        /// What is asked.
        request: Request,
    },
    /// The answer to a question.
    Answer {
        /// The number of the question.
        number: u32,
        /// The answer itself.
        reply: Reply,
    },
}

/// What a node can ask of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Introduces the asking node. Comes first on a link, before requests that depend on which node asks.
    Introduce {
        /// Name of the asking node, for people.
        name: String,
        /// Its life.
        life: Life,
    },
    /// Asks for memory to borrow. Answered with [`Reply::Lent`] or [`Reply::TooMuch`].
    Lend {
        /// Length in bytes: a multiple of the page size.
        bytes: u64,
    },
    /// Releases a segment that the asking node does not need any more.
    Release {
        /// The segment, by its number on this link.
        segment: u16,
    },
    /// Asks for the status of the node. An answer holds one part of it.
    Status {
        /// The first entry of the part: 0, or `next` of the last answer.
        from: u64,
        /// Whether the counters are wanted, too.
        counters: bool,
    },
    /// Asks for a third-party transfer of bytes of a program at the node that is asked. Answered with
    /// [`Reply::Carried`] when the transfer has ended.
    Carry(Box<Carriage>),
    /// Asks for an empty segment. The asking node fills it through the engine and then publishes it under a name.
    Create {
        /// Length of the segment in bytes: any number.
        bytes: u64,
    },
    /// Gives a name to a segment that the asking node has filled. A segment that had the name before loses it. Whatever
    /// the answer, the asking node does not hold the segment any more.
    Publish {
        /// The segment, by its number on this link.
        segment: u16,
        /// The name, as a [`SegmentName`](crate::SegmentName) is written.
        name: String,
        /// Checksum of the bytes that the asking node has sent.
        checksum: Checksum,
    },
    /// Asks which segment has this name.
    Find {
        /// The name.
        name: String,
    },
    /// Asks to read the segment with this name, until the asking node releases it.
    Open {
        /// The name.
        name: String,
    },
    /// Asks for the named segments, as many as fit into an answer.
    List {
        /// Only names that come after this one; `None`: from the first name on.
        after: Option<String>,
    },
    /// Takes the name away from the segment that has it.
    Delete {
        /// The name.
        name: String,
    },
    /// Asks for the token that further links must show to become paths of this link's peer.
    PathToken,
    /// Makes this link another path of the peer that was given that token.
    BePath {
        /// The token, from [`Reply::PathToken`].
        token: [u8; 16],
    },
    /// Asks which node answers. Answered with [`Reply::Introduced`]. It does not introduce the asking node.
    Identify,
    /// Introduces the asking node, as [`Request::Introduce`] does, and asks that this link be the one that joins the
    /// two nodes. Answered with [`Reply::Introduced`] or [`Reply::JoinedAlready`].
    Join {
        /// Name of the asking node, for people.
        name: String,
        /// Its life.
        life: Life,
        /// The asking node was refused because of a link that exists already, but it has none.
        insists: bool,
    },
    /// Asks that a program of the asking node may map a window of a program of the node that is asked. Answered with
    /// [`Reply::Window`].
    MapWindow {
        /// The domain that the window is in, as on the wire.
        domain: u16,
        /// Where the window begins in its domain.
        address: u64,
    },
    /// Asks whether the node is about to end. Answered with [`Reply::Ending`]. A borrower asks this now and then, so
    /// that it can move its pages elsewhere in time.
    IsEnding,
    /// Lets another node, the carrier, write to the node that is asked, on behalf of the asking node: the asking node
    /// asks the carrier for transfers there. Answered with [`Reply::Done`].
    LetCarry {
        /// The carrier: a neighbour of both nodes.
        carrier: NodeIdentity,
    },
    /// Sent by a carrier: asks for the number under which it writes to this node on behalf of a third node, which has
    /// asked the carrier for transfers. Answered with [`Reply::Asker`].
    WriteFor {
        /// The third node: a neighbour of both nodes.
        asker: NodeIdentity,
    },
}

/// A third-party transfer, as the node that has the source is asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carriage {
    /// The node that the bytes go to; `None`: they stay at the node that is asked.
    pub to: Option<NodeIdentity>,
    /// Domain of the source, as on the wire.
    pub source_domain: u16,
    /// Address of the source in its domain.
    pub source_address: u64,
    /// Domain of the destination, as on the wire.
    pub destination_domain: u16,
    /// Address of the destination in its domain.
    pub destination_address: u64,
    /// Number of bytes.
    pub size_bytes: u32,
    /// A notification: its address, its first word and its last word.
    pub notification: Option<[u64; 3]>,
    /// Its class: 0 high, 1 medium, 2 low.
    pub class: Option<u8>,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// Memory is lent. On a link with windows, the memory's descriptor comes along.
    Lent {
        /// Number of the segment on this link, and the protection domain of its transfers.
        segment: u16,
    },
    /// Less memory can be lent than was asked for.
    TooMuch {
        /// How many bytes can be lent.
        free_bytes: u64,
    },
    /// A part of the node's status.
    Status {
        /// The part, as [`NodeStatus`](crate::NodeStatus) in JSON.
        part: String,
        /// Where the next part begins, if this is not the last.
        next: Option<u64>,
    },
    /// The request could not be carried out.
    Failed(String),
    /// The transfer has ended. If it failed: the `tombolo_channel::Failure::code`.
    Carried(Option<u64>),
    /// Introduces the answering node, and accepts the introduction of the asking node, if there was one.
    Introduced {
        /// Name of the answering node, for people.
        name: String,
        /// Its life.
        life: Life,
    },
    /// The segment with the name that was asked for.
    Found(NamedSegment),
    /// The segment with the name that was asked for can be read now.
    Opened {
        /// Number of the segment on this link, and the protection domain of its transfers.
        segment: u16,
        /// Its description.
        found: NamedSegment,
    },
    /// Named segments.
    Names {
        /// The segments, in the order of their names.
        segments: Vec<NamedSegment>,
        /// Whether there are more after the last of these.
        more: bool,
    },
    /// No segment has that name.
    NoSuchName,
    /// The bytes that have arrived are not those that were sent.
    Mismatch {
        /// Checksum of the bytes that have arrived.
        checksum: Checksum,
    },
    /// The token that further links must show.
    PathToken([u8; 16]),
    /// Refuses this link, because the two nodes have one already: this one is to be closed. The life is that of the
    /// answering node.
    JoinedAlready {
        /// Its life.
        life: Life,
    },
    /// A window. Two descriptors come along: that of its memory and that of its state.
    Window {
        /// Length of the window.
        bytes: u64,
        /// Whether it may be written.
        is_writable: bool,
    },
    /// Whether the node is about to end.
    Ending {
        /// In how many seconds it ends at the latest; `None`: it is not about to end.
        within_s: Option<u64>,
    },
    /// The number under which the carrier that asks writes on behalf of the third node. A write under it is refused
    /// unless the third node has a grant for it.
    Asker(u16),
}

/// The SHA-256 of a segment's bytes: what `sha256sum` prints for a file with the same bytes.
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
    /// Checksum of its bytes.
    pub checksum: Checksum,
    /// For how many seconds it has had the name.
    pub age_s: u64,
}

impl Request {
    /// Whether the request may be sent again, under its number and by another link, when it is unknown whether it has
    /// arrived. False for [`Self::Carry`], which is repeated in a way of its own (`fabric::third_party`).
    pub(crate) fn may_be_repeated(&self) -> bool {
        !matches!(self, Self::BePath { .. } | Self::Join { .. } | Self::Carry(_))
    }

    /// Whether the request must be carried out only once, however often it arrives under one number.
    pub(crate) fn is_for_once(&self) -> bool {
        match self {
            // A second segment would be held until the last link ends, and there may not be memory for two.
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
            // Random bytes may happen to be a message. Decoding them must not panic.
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
