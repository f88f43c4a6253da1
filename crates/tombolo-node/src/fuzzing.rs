//! For tests and fuzzers alone: what nodes say to each other, the reading of it, and a neighbour that says what
//! it likes.

mod hostile;

pub use self::hostile::hostile;
pub use crate::fabric::life::{Life, NodeIdentity};
pub use crate::fabric::messages::{
    Carriage, MalformedMessage, Message, MessageV1, NamedSegment, Reply, Request,
};
use crate::fabric::status::NodeStatus;
use crate::lending::named::SegmentName;

/// Any bytes as a control message: no panic, and what is one survives being written again, a status with harmless text.
pub fn control(bytes: &[u8]) {
    let Ok(message) = Message::decode(bytes) else { return };
    assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
    if let Message::V1(MessageV1::Answer { reply: Reply::Status { part, .. }, .. }) = message
        && let Ok(status) = NodeStatus::parse(&part)
    {
        assert!(!status.name.contains(char::is_control));
        assert_eq!(NodeStatus::parse(&status.text()).ok(), Some(status));
    }
}

/// Any text as a segment's name.
pub fn segment_name(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(name) = text.parse::<SegmentName>() else { return };
    assert_eq!(name.as_str(), text);
    assert_eq!(name.to_string().parse(), Ok(name));
}
