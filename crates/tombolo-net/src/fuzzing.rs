//! For tests and fuzzers alone: calls the code that parses bytes from other processes and nodes.

use crate::allowance::{Allowances, Whom};
use crate::control::config_of;
use crate::letters::Letter;
use crate::protocol::{Answer, Ask, Port, Request, Vlans};

/// Parses a letter of another node. If that succeeds, the letter's own bytes must parse to the same letter.
#[allow(clippy::missing_panics_doc, reason = "that is what it is for")]
pub fn letter(bytes: &[u8]) {
    if let Some(letter) = Letter::from_bytes(bytes) {
        assert_eq!(Letter::from_bytes(&letter.to_bytes()), Some(letter));
    }
}

/// Parses a message to an owner, and a message from an owner.
pub fn request(bytes: &[u8]) {
    if let Ok(Request { ask: Ask::Attach(port), .. }) = serde_json::from_slice(bytes) {
        drop(config_of(&port));
    }
    drop(serde_json::from_slice::<Answer>(bytes));
}

/// Parses a file of ports and applies it to a port, for the owner's user and for another user.
pub fn ports_file(bytes: &[u8]) {
    let Ok(all) = Allowances::parse(&String::from_utf8_lossy(bytes)) else { return };
    for whom in [None, Some(Whom::User(1000))] {
        let port = Port {
            name: "web".into(),
            tap: "eth0".into(),
            namespace: None,
            mac: "02:00:00:00:00:07".into(),
            mtu: 1500,
            weight: 1,
            rate_bits: 0,
            guaranteed_bits: 0,
            vlans: Vlans::Untagged,
            addresses: None,
            is_promiscuous: false,
            groups: None,
        };
        // A port as the file allows it is converted as an owner does.
        if let Ok(port) = all.apply(port, whom) {
            drop(config_of(&port));
        }
    }
}

#[cfg(test)]
mod tests;
