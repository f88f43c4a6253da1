//! For tests and fuzzers alone: everything here that reads what others send or users write. Any bytes
//! do no harm, and what is understood survives being written again.

use std::path::Path;

use crate::identity::{KeyPair, allow, file};
pub use crate::shm::handshake::{fuzz as shm_handshake, samples as shm_handshakes};
pub use crate::udp::fuzzing::{
    control_fragments, cookie, cookies, counters, datagram, datagrams, noise, sealed,
};
use crate::{Address, AddressError};

/// A file with a secret key.
pub fn key_file(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match file::secret_in(text, Path::new("key")) {
        Ok(keys) => {
            let again = KeyPair::parse_secret(&keys.secret_text());
            assert_eq!(again.map(|again| again.public()), Ok(keys.public()));
        }
        // What is said of it does not repeat it.
        Err(error) => assert!(error.to_string().len() < 200),
    }
}

/// A file with the keys of peers.
pub fn allow_list(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match allow::entries_in(text, Path::new("allow")) {
        Ok(entries) => {
            let again: Vec<String> = entries.iter().map(ToString::to_string).collect();
            assert_eq!(allow::entries_in(&again.join("\n"), Path::new("allow")).ok(), Some(entries));
        }
        Err(error) => assert!(error.to_string().len() < 300),
    }
}

/// Where a node listens. Nobody is asked for the addresses of hosts.
pub fn address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if text
        .strip_prefix("udp:")
        .is_some_and(|rest| rest.contains(|letter| !"0123456789.:[]".contains(letter)))
    {
        return;
    }
    match text.parse::<Address>() {
        Ok(address) => assert_eq!(address.to_string().parse(), Ok(address)),
        Err(error) => assert!(!matches!(error, AddressError::UnknownHost { .. }), "a resolver was asked"),
    }
}
