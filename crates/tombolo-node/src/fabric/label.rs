//! Labels of peers, and text that other nodes choose and people read: names, versions, reasons.
//!
//! Such text is made harmless where it is received, so that it can neither control a terminal nor spoil the lines of a
//! list.

use crate::fabric::connection::Connection;
use crate::fabric::messages::Reply;

/// The longest name of a node, in bytes.
pub(crate) const MAX_NAME_BYTES: usize = 64;
/// The longest reason that a node gives, in bytes.
const MAX_REASON_BYTES: usize = 1024;
/// What stands for a character that must not be shown.
const SUBSTITUTE: char = '\u{FFFD}';

/// Who a peer is, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerLabel {
    /// What it calls itself, if it has introduced itself.
    pub name: Option<String>,
    /// The beginning of the key that it has proved, on a link that asks for keys.
    pub key: Option<String>,
    /// Its process, where the link knows.
    pub process_id: Option<u32>,
    /// Its address, if it is or may be on another machine.
    pub address: Option<String>,
}

impl Connection {
    /// Which node is at its other end, for people.
    pub fn label(&self) -> PeerLabel {
        let name = self.neighbour().name();
        PeerLabel {
            name: Some(name).filter(|name| !name.is_empty()),
            key: self.link.peer_key().map(|key| key.short()),
            process_id: self.link.peer_process_id(),
            address: self.link.peer_address().map(|address| address.to_string()),
        }
    }
}

/// Whether a character controls a terminal, changes the order of the text around it, or is invisible.
pub(crate) fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{AD}' | '\u{61C}' | '\u{180E}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
            | '\u{2060}'..='\u{206F}' | '\u{FEFF}' | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E007F}')
}

fn harmless(text: &str, max_bytes: usize) -> String {
    let mut clean: String =
        text.chars().map(|letter| if is_harmful(letter) { SUBSTITUTE } else { letter }).collect();
    clean.truncate(clean.floor_char_boundary(max_bytes));
    clean
}

/// Makes the name of a node or a run harmless, as it is kept and shown.
pub fn name(text: &str) -> String {
    harmless(text, MAX_NAME_BYTES)
}

/// Makes a reason that a peer gives harmless, as it is shown.
pub fn reason(text: &str) -> String {
    harmless(text, MAX_REASON_BYTES)
}

/// A peer's reply with harmless text.
pub(crate) fn reply(reply: Reply) -> Reply {
    match reply {
        Reply::Failed(text) => Reply::Failed(reason(&text)),
        Reply::Introduced { name: label, life } => Reply::Introduced { name: name(&label), life },
        // The text in a status is made harmless when the status is parsed.
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_replaced() {
        assert_eq!(name("plain näme 节点"), "plain näme 节点");
        assert_eq!(name("\u{1b}[2J\u{1b}]0;x\u{7}"), "\u{FFFD}[2J\u{FFFD}]0;x\u{FFFD}");
        assert_eq!(name("a\nb\r\tc\u{9b}31m\u{7f}"), "a\u{FFFD}b\u{FFFD}\u{FFFD}c\u{FFFD}31m\u{FFFD}");
        assert_eq!(name("\u{202e}abc\u{200b}\u{2066}"), "\u{FFFD}abc\u{FFFD}\u{FFFD}");
        let long = name(&"é".repeat(100));
        assert_eq!((long.len(), long.chars().count()), (64, 32));
    }

    #[test]
    fn so_it_is_in_answers() {
        assert_eq!(reply(Reply::Failed("no\u{1b}[1m".into())), Reply::Failed("no\u{FFFD}[1m".into()));
    }
}
