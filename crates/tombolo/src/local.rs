//! The nodes of this machine, as their own user finds them: each `tombolo node` listens at a Unix socket in a
//! directory that everybody knows, wherever else it listens.
//!
//! The socket is called as the node is. While a node of that name is alive, the next one's is called
//! `NAME-2`, and so on; the socket of a dead one is replaced.

use std::env;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use tombolo_host::unix::{PeerIdentity, SeqpacketSocket, UnixError};
use tombolo_node::{Address, Listener, OpenError, ShmListener};

use crate::failure::Failure;
use crate::output;

/// Names another directory for the sockets.
const VARIABLE: &str = "TOMBOLO_RUNTIME_DIR";
/// The suffix of the sockets' names.
const SUFFIX: &str = ".sock";
/// The longest name of a socket without the suffix. The kernel takes paths of 107 bytes.
const MAX_NAME_BYTES: usize = 48;
/// The most nodes of one name.
const MAX_NAMESAKES: u32 = 1000;

fn own_user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The directories in which the sockets may be. The first that can be used is used.
fn directories() -> Vec<PathBuf> {
    if let Some(directory) = env::var_os(VARIABLE).filter(|directory| !directory.is_empty()) {
        return vec![directory.into()];
    }
    let user_id = own_user_id();
    let fallback = env::temp_dir().join(format!("tombolo-{user_id}"));
    let of_session = || {
        let named = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        named.unwrap_or_else(|| PathBuf::from(format!("/run/user/{user_id}"))).join("tombolo")
    };
    // Root has one place, logged in or not: users who log in later ask the services.
    let first = if user_id == 0 { PathBuf::from("/run/tombolo") } else { of_session() };
    vec![first, fallback]
}

/// Makes a directory, unless it is there, and refuses one in which others can make sockets.
fn make_private(directory: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot use {}: {error}", directory.display());
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    if is_of(directory, &[own_user_id()]).map_err(failed)? {
        return Ok(());
    }
    let directory = directory.display();
    Err(format!("{directory} must be a directory of this user that nobody else can write to"))
}

/// Whether this is a directory of one of these users, to which no other user can write.
fn is_of(directory: &Path, users: &[u32]) -> std::io::Result<bool> {
    let found = fs::symlink_metadata(directory)?;
    Ok(found.is_dir() && users.contains(&found.uid()) && found.mode() & 0o022 == 0)
}

/// What the socket of a node is called: as the node, where that can be the name of a file.
fn file_name(name: &str) -> String {
    let allowed = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    let mut name: String = name.chars().map(|letter| if allowed(letter) { letter } else { '_' }).collect();
    name.truncate(name.floor_char_boundary(MAX_NAME_BYTES));
    match name.trim_start_matches('.') {
        "" => "node".into(),
        shown => shown.into(),
    }
}

/// The name of the socket of the `number`th node of one name. It is not longer than [`MAX_NAME_BYTES`], or the node would not be found.
fn namesake(name: &str, number: u32) -> String {
    if number == 1 {
        return name.to_owned();
    }
    let number = format!("-{number}");
    format!("{}{number}", &name[..name.floor_char_boundary(MAX_NAME_BYTES - number.len())])
}

/// Listens for this user's own commands.
pub fn listen(name: &str) -> Result<Box<dyn Listener>, String> {
    let mut reasons = Vec::new();
    for directory in directories() {
        let listening = make_private(&directory).and_then(|()| listen_in(&directory, name));
        match listening {
            Ok(listener) => return Ok(listener),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

/// The directory in which this user's processes listen, made if need be.
pub fn usable_directory() -> Result<PathBuf, String> {
    let mut reasons = Vec::new();
    for directory in directories() {
        match make_private(&directory) {
            Ok(()) => return Ok(directory),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

/// What lies in the directories of this user and root.
pub fn entries() -> Vec<PathBuf> {
    let is_ours =
        |directory: &PathBuf| is_of(directory, &[own_user_id(), 0]).is_ok_and(|is_private| is_private);
    let directories = directories().into_iter().filter(is_ours);
    directories
        .filter_map(|directory| fs::read_dir(directory).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect()
}

fn listen_in(directory: &Path, name: &str) -> Result<Box<dyn Listener>, String> {
    let name = file_name(name);
    for number in 1..=MAX_NAMESAKES {
        let name = namesake(&name, number);
        match ShmListener::bind_for_own_user(&directory.join(name + SUFFIX)) {
            Ok(listener) => return Ok(Box::new(listener)),
            Err(OpenError::InUse(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(format!("{MAX_NAMESAKES} nodes are called `{name}` in {}", directory.display()))
}

/// A node that is alive.
struct Found {
    name: String,
    path: PathBuf,
    /// Which process it is, where the kernel says.
    process_id: Option<u32>,
}

impl Found {
    fn address(self) -> Address {
        Address::Shm(self.path)
    }

    fn described(&self) -> String {
        let process = self.process_id.map(|process| format!(" (process {process})"));
        format!("{}{}", self.name, process.unwrap_or_default())
    }
}

/// The node behind a socket, if one of this user or root listens there, in a directory of theirs.
fn node_at(path: PathBuf) -> Option<Found> {
    let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.to_owned();
    // The name is shown: no node of ours has another.
    if name != file_name(&name) {
        return None;
    }
    let process_id = match SeqpacketSocket::connect(&path) {
        Ok(socket) => {
            let peer = socket.peer().ok().filter(PeerIdentity::is_own_or_root)?;
            peer.process_id
        }
        // The node is alive, and its queue is full.
        Err(UnixError::WouldBlock) => None,
        // One that was killed, or has ended just now.
        Err(UnixError::Path { errno: Errno::CONNREFUSED | Errno::NOENT, .. }) => return None,
        Err(error) => {
            output::say(&format!("the node at {} is left out: {error}", path.display()));
            return None;
        }
    };
    Some(Found { name, path, process_id })
}

/// All nodes of this machine that are alive, sorted by name.
fn nodes() -> Vec<Found> {
    let mut nodes: Vec<Found> = directories().iter().flat_map(|directory| nodes_in(directory)).collect();
    nodes.sort_by(|one, other| one.name.cmp(&other.name));
    nodes
}

/// The nodes in a directory; none if other users could have made the directory, or sockets in it.
fn nodes_in(directory: &Path) -> Vec<Found> {
    if !is_of(directory, &[own_user_id(), 0]).is_ok_and(|is_private| is_private) {
        return Vec::new();
    }
    let entries = fs::read_dir(directory).into_iter().flatten();
    entries.flatten().filter_map(|entry| node_at(entry.path())).collect()
}

/// Where each node of this machine listens that is alive, by name.
pub fn node_addresses() -> Vec<(String, Address)> {
    nodes().into_iter().map(|node| (node.name.clone(), node.address())).collect()
}

fn described(nodes: &[Found]) -> String {
    nodes.iter().map(Found::described).collect::<Vec<_>>().join(", ")
}

fn none(example: &str) -> Failure {
    let looked: Vec<String> = directories().iter().map(|path| path.display().to_string()).collect();
    Failure::new(format!(
        "no node of this user runs on this machine (looked in {}): say where one listens, as in `tombolo {example} shm:/tmp/lender`",
        looked.join(" and ")
    ))
}

/// The only node of this user on this machine. The example is what stands before a name on the command line.
pub fn only_node(example: &str) -> Result<Address, Failure> {
    let mut nodes = nodes();
    match (nodes.len(), nodes.pop()) {
        (_, None) => Err(none(example)),
        (1, Some(node)) => Ok(node.address()),
        (count, Some(node)) => {
            let name = node.name.clone();
            nodes.push(node);
            Err(Failure::new(format!(
                "{count} nodes run on this machine: say which, as in `tombolo {example} {name}`: {}",
                described(&nodes)
            )))
        }
    }
}

/// The node of that name.
pub fn node_named(name: &str) -> Result<Address, Failure> {
    let mut nodes = nodes();
    let wanted = file_name(name);
    if let Some(index) = nodes.iter().position(|node| node.name == wanted) {
        return Ok(nodes.swap_remove(index).address());
    }
    let others = if nodes.is_empty() { String::new() } else { format!(", but {}", described(&nodes)) };
    Err(Failure::new(format!(
        "no node `{name}` of this user runs on this machine{others}; an address is shm:PATH or udp:HOST:PORT"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_can_write_to_has_no_nodes_and_names_are_as_we_make_them() {
        use std::os::unix::fs::PermissionsExt;

        use tombolo_host::unix::SeqpacketListener;

        let directory = env::temp_dir().join(format!("tombolo-local-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).unwrap();
        let bind = |name: &str| SeqpacketListener::bind(&directory.join(name)).unwrap();
        let _listening = ["good.sock", "\u{1b}[31mbad.sock", "turn\u{202e}ed.sock"].map(bind);
        let names = |directory: &Path| -> Vec<String> {
            nodes_in(directory).into_iter().map(|node| node.name).collect()
        };
        assert_eq!(names(&directory), ["good"]);
        let link = directory.with_extension("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(names(&link).is_empty());
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o770)).unwrap();
        assert!(names(&directory).is_empty());
        if own_user_id() == 0 {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&directory, Some(65534), None).unwrap();
            assert!(names(&directory).is_empty());
        }
        fs::remove_file(&link).unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn any_name_of_a_node_is_a_name_of_a_file() {
        assert_eq!(file_name("one.example-2_b"), "one.example-2_b");
        assert_eq!(file_name("../a b/\n"), "_a_b__");
        assert_eq!(file_name("...a"), "a");
        assert_eq!([file_name(""), file_name("..")], ["node", "node"]);
        let long = file_name(&"é".repeat(100));
        assert!(long.len() <= MAX_NAME_BYTES);
        // By which it is found again.
        for number in [1, 2, 10, MAX_NAMESAKES] {
            let name = namesake(&long, number);
            assert_eq!(file_name(&name), name);
        }
        assert_eq!(namesake("lender", 2), "lender-2");
    }
}
