//! `ADDR:NAME` or `NODE:NAME`: a named segment at a node, as it is written on the command line. Several addresses of
//! the node are joined by +.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::str::FromStr;

use tombolo_node::{Address, CopyError, NameError, SegmentName, Store};

use crate::failure::Failure;
use crate::nearest;
use crate::size::Size;
use crate::ways::{Ways, WaysError};
use crate::which::Which;

/// A named segment, and the node that has it. A name has no colon: it is what follows the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentPlace {
    /// The node.
    pub node: Which,
    /// The name there.
    pub name: SegmentName,
}

/// Why parsing a place failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The text is an address without a name.
    #[error("`{0}` names a node and no segment: write {0}:NAME")]
    NoName(String),
    /// What stands before the name is no address.
    #[error(transparent)]
    Address(#[from] WaysError),
    /// What stands after the address is no name.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl FromStr for SegmentPlace {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let no_name = || PlaceError::NoName(text.trim_end_matches(':').to_owned());
        let (address, name) = text.rsplit_once(':').unwrap_or((text, ""));
        if name.is_empty() || matches!(address, "shm" | "udp") || is_address_alone(text) {
            // If the address is of no known kind, its error says which kinds there are.
            text.parse::<Ways>()?;
            return Err(no_name());
        }
        Ok(Self { node: address.parse()?, name: name.parse()? })
    }
}

/// Whether all of it is where a node listens, though its end could be a name: `HOST:PORT`, or the
/// path of a socket that is there.
fn is_address_alone(text: &str) -> bool {
    match text.parse::<Ways>().ok().and_then(|ways| ways.to_vec().pop()) {
        Some(Address::Udp(_)) => true,
        Some(address) => address
            .shm_path()
            .is_some_and(|path| std::fs::metadata(path).is_ok_and(|found| found.file_type().is_socket())),
        None => false,
    }
}

impl fmt::Display for SegmentPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.node, self.name)
    }
}

/// Whether a word means a place at a node, and not a file: it has a colon, and no slash before. A file that is called
/// so is `./a:b`.
pub fn is_at_a_node(word: &OsStr) -> bool {
    let text = word.to_string_lossy();
    text.split_once(':').is_some_and(|(node, _)| !node.contains('/'))
}

/// What is said of a failed copy: what failed, why, and what to do.
pub fn failure(error: CopyError, store: Option<&Store>, file: Option<&Path>) -> Failure {
    let file = file.map_or_else(String::new, |file| format!("{}: ", file.display()));
    match &error {
        CopyError::NoSuchName { name, address } => {
            let near = store.and_then(|store| store.list().ok()).unwrap_or_default();
            let near = nearest::nearest(name.as_str(), near.iter().map(|segment| segment.name.as_str()));
            let hint = match near {
                Some(near) => format!("; did you mean `{near}`?"),
                None => format!("; `tombolo ls {address}` lists what there is"),
            };
            Failure { text: format!("{error}{hint}"), code: 1 }
        }
        CopyError::NoRoom { address, asked_bytes, free_bytes } => Failure::new(format!(
            "node {address} has no room for {}: {} of what it lends is free; start it with a larger --lend, or free some with `tombolo rm`",
            Size(*asked_bytes),
            Size(*free_bytes)
        )),
        CopyError::Read(_) | CopyError::Write(_) | CopyError::Changed(_) => {
            Failure::new(format!("{file}{error}"))
        }
        CopyError::Interrupted => Failure { text: error.to_string(), code: 130 },
        _ => Failure::new(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_stands_after_the_last_colon() {
        for (text, address, name) in [
            ("shm:/run/node:data", "shm:/run/node", "data"),
            ("shm:/run/a:b:data.tar.gz", "shm:/run/a:b", "data.tar.gz"),
            ("udp:127.0.0.1:7000:with space", "udp:127.0.0.1:7000", "with space"),
            ("udp:[::1]:7000:x", "udp:[::1]:7000", "x"),
            ("udp:127.0.0.1:1+udp:[::1]:2:x", "udp:127.0.0.1:1+udp:[::1]:2", "x"),
            ("lender-2:data", "lender-2", "data"),
        ] {
            let place: SegmentPlace = text.parse().unwrap();
            assert_eq!((place.node.to_string().as_str(), place.name.as_str()), (address, name));
            assert_eq!(place.to_string(), text);
        }
    }

    #[test]
    fn a_colon_before_any_slash_means_a_node() {
        for (word, is_meant) in [
            ("shm:/run/node:data", true),
            ("lender:data", true),
            ("./lender:data", false),
            ("/tmp/a:b", false),
            ("file", false),
            ("-", false),
        ] {
            assert_eq!(is_at_a_node(OsStr::new(word)), is_meant, "{word}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_said() {
        let error = |text: &str| text.parse::<SegmentPlace>().unwrap_err().to_string();
        for text in
            ["shm:/run/node", "shm:/run/node:", "udp:127.0.0.1:7000", "udp:[::1]:7000", "udp:127.0.0.1:7000:"]
        {
            assert!(
                error(text).contains(":NAME") || error(text).contains("HOST:PORT"),
                "{text}: {}",
                error(text)
            );
        }
        assert!(error("udp:127.0.0.1:7000").contains("write udp:127.0.0.1:7000:NAME"));
        assert!(error("udp:127.0.0.1:1+udp:[::1]:2").contains("write udp:127.0.0.1:1+udp:[::1]:2:NAME"));
        assert!(error("udp:127.0.0.1:1+udp:127.0.0.1:1:x").contains("named twice"));
        assert!(error("shm:/run/node:").contains("write shm:/run/node:NAME"));
        assert!(error("shm:/run/node:a/b").contains("'/'"));
        assert!(error("tcp:1:2").contains("expected shm:PATH"));
        assert!(error("file").contains("expected shm:PATH"));
        assert!(error("shm:").contains("expected a path"));
        assert!(error("udp:host:name").contains("HOST:PORT"));
    }

    #[test]
    fn a_socket_with_a_colon_in_its_path_is_a_node_without_a_name() {
        let folder = std::env::temp_dir().join(format!("tombolo-place-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a:b");
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let text = format!("shm:{}", path.display());
        assert!(matches!(text.parse::<SegmentPlace>(), Err(PlaceError::NoName(_))));
        drop(socket);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
