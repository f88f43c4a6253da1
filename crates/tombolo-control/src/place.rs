//! Where services listen for commands of their own user, and how commands find them: sockets in a directory that both know.
//!
//! A socket is called `NAME.KIND`. While a live service has the name, the next one of its kind is called `NAME-2`, and so on. The socket of a
//! dead one is replaced by the next service of that name, or removed by a command that finds it.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use tombolo_host::unix::{Life, SeqpacketListener, UnixError, remove_dead};

/// Names another directory for the sockets.
pub const VARIABLE: &str = "TOMBOLO_RUNTIME_DIR";
/// The longest name of a socket without its kind. The kernel takes paths of 107 bytes.
const NAME_BYTES_MAX: usize = 48;
/// The most services of one kind and name.
const NAMESAKES_MAX: u32 = 1000;

/// What listens: the end of its socket's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind(&'static str);

impl Kind {
    /// `tombolo run`.
    pub const RUN: Self = Self("run");
    /// `tombolo node`, for commands that ask how it is.
    pub const NODE: Self = Self("node");
    /// A node's link, beside its [`Kind::NODE`]: for those who borrow and copy.
    pub const LINK: Self = Self("sock");
    /// `tombolo net serve`.
    pub const UPLINK: Self = Self("net");
    /// `tombolo sockets serve`, for commands that ask how it is.
    pub const SOCKETS: Self = Self("sockets");
    /// What programs ask beside that.
    pub const HANDOVER: Self = Self("handover");
    /// What programs map, beside both. No socket.
    pub const HANDOVER_TABLE: Self = Self("table");

    /// The socket of this kind beside others of the service with that stem.
    pub fn path(self, stem: &Path) -> PathBuf {
        let mut path = OsString::from(stem);
        path.push(".");
        path.push(self.0);
        path.into()
    }
}

/// What came of an attempt to listen under one of the names that a service can have.
#[derive(Debug)]
pub enum Bound<T> {
    /// The service listens.
    Listening(T),
    /// Another one has the name.
    Taken,
}

/// Listens at a socket of that kind.
///
/// # Errors
/// Why that is not possible.
pub fn bind(kind: Kind, stem: &Path) -> Result<Bound<SeqpacketListener>, UnixError> {
    match SeqpacketListener::bind(&kind.path(stem)) {
        Ok(listener) => Ok(Bound::Listening(listener)),
        Err(UnixError::InUse { .. }) => Ok(Bound::Taken),
        Err(error) => Err(error),
    }
}

/// Listens for commands of the own user, under the first name that is free: `name` itself, or with a number behind it. `bind` gets the
/// directory and the name as one path, behind which the kinds of its sockets are to be written.
///
/// # Errors
/// Why that is not possible, in each directory that comes into question.
pub fn listen<T, E: Display>(name: &str, bind: impl Fn(&Path) -> Result<Bound<T>, E>) -> Result<T, String> {
    let mut reasons = Vec::new();
    for directory in directories() {
        let listening = make_private(&directory).and_then(|()| listen_in(&directory, name, &bind));
        match listening {
            Ok(listening) => return Ok(listening),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

fn listen_in<T, E: Display>(
    directory: &Path,
    name: &str,
    bind: &impl Fn(&Path) -> Result<Bound<T>, E>,
) -> Result<T, String> {
    let name = file_name(name);
    for number in 1..=NAMESAKES_MAX {
        match bind(&directory.join(namesake(&name, number))) {
            Ok(Bound::Listening(listening)) => return Ok(listening),
            Ok(Bound::Taken) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(format!("{NAMESAKES_MAX} services are called `{name}` in {}", directory.display()))
}

/// Where a service listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Directory and name: each socket of it has a kind behind that.
    pub stem: PathBuf,
    /// The socket that was looked for.
    pub path: PathBuf,
}

/// What was found, by name.
#[derive(Debug, Default)]
pub struct Finds {
    /// Services that are alive.
    pub found: Vec<Found>,
    /// Directories that were not looked into although this user's services may be there, with the reason.
    pub refused: Vec<String>,
}

/// Looks for services of that kind in this user's directories; only what this user or root has made there counts. Sockets of dead ones are
/// removed.
pub fn find(kind: Kind) -> Finds {
    let mut finds = Finds::default();
    for (number, directory) in directories().iter().enumerate() {
        // Anybody can make the others, which says nothing of this user's services.
        let is_first = number == 0;
        find_in(directory, kind, is_first, &mut finds);
    }
    finds.found.sort_by(|one, other| one.name.cmp(&other.name));
    finds
}

fn find_in(directory: &Path, kind: Kind, is_first: bool, finds: &mut Finds) {
    match is_of(directory, &[own_user_id(), 0]) {
        Ok(true) => {}
        Ok(false) => {
            let is_own = || fs::symlink_metadata(directory).is_ok_and(|found| found.uid() == own_user_id());
            if is_first || is_own() {
                let directory = directory.display();
                finds.refused.push(format!("{directory} is not of this user or root alone"));
            }
            return;
        }
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                finds.refused.push(format!("{}: {error}", directory.display()));
            }
            return;
        }
    }
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return finds.refused.push(format!("{}: {error}", directory.display())),
    };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().and_then(|name| name.to_str()?.strip_suffix(kind.0)?.strip_suffix('.'));
        // Names are shown: no service of ours has another.
        let Some(name) = name.filter(|name| *name == file_name(name)).map(str::to_owned) else { continue };
        // One that cannot be removed, or is busy, is asked.
        if remove_dead(&path).unwrap_or(Life::MayLive) == Life::MayLive {
            let stem = directory.join(&name);
            finds.found.push(Found { name, stem, path });
        }
    }
}

/// Removes dead sockets of that kind whose services have none of another kind, which are `alive`.
pub fn remove_dead_besides(kind: Kind, alive: &[Found]) {
    for directory in directories() {
        if !is_of(&directory, &[own_user_id(), 0]).is_ok_and(|is_private| is_private) {
            continue;
        }
        for path in fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
            if path.extension() == Some(kind.0.as_ref())
                && !alive.iter().any(|found| kind.path(&found.stem) == path)
            {
                // What cannot be removed does no harm.
                let _ = remove_dead(&path);
            }
        }
    }
}

/// The directories in which the sockets may be. The first that can be used is used.
pub fn directories() -> Vec<PathBuf> {
    if let Some(directory) = env::var_os(VARIABLE).filter(|directory| !directory.is_empty()) {
        return vec![directory.into()];
    }
    let user_id = own_user_id();
    let fallback = env::temp_dir().join(format!("tombolo-{user_id}"));
    let of_session = || {
        let named = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        named.unwrap_or_else(|| PathBuf::from(format!("/run/user/{user_id}"))).join("tombolo")
    };
    // Root has one place, logged in or not.
    let first = if user_id == 0 { PathBuf::from("/run/tombolo") } else { of_session() };
    vec![first, fallback]
}

fn own_user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes a directory, unless it is there, and refuses one in which others can make sockets.
fn make_private(directory: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("cannot use {}: {error}", directory.display());
    // Others reach those sockets of root's that are for them.
    let mode = if own_user_id() == 0 { 0o711 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    // Who could read it could lock it, and hold up whoever listens there.
    let is_closed = fs::symlink_metadata(directory).map_err(failed)?.mode() & 0o044 == 0;
    if is_of(directory, &[own_user_id()]).map_err(failed)? && is_closed {
        return Ok(());
    }
    let directory = directory.display();
    Err(format!(
        "{directory} must be a directory of this user that nobody else can write to or read (`chmod go-rw`)"
    ))
}

/// Whether this is a directory of one of these users, to which no other user can write.
fn is_of(directory: &Path, users: &[u32]) -> std::io::Result<bool> {
    let found = fs::symlink_metadata(directory)?;
    Ok(found.is_dir() && users.contains(&found.uid()) && found.mode() & 0o022 == 0)
}

/// What the socket of a service is called: as the service, where that can be the name of a file.
pub fn file_name(name: &str) -> String {
    let allowed = |letter: char| letter.is_alphanumeric() || "-_.".contains(letter);
    let mut name: String = name.chars().map(|letter| if allowed(letter) { letter } else { '_' }).collect();
    name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
    match name.trim_start_matches('.') {
        "" => "unnamed".into(),
        shown => shown.into(),
    }
}

/// The name of the `number`th service of one name. It is not longer than [`NAME_BYTES_MAX`], or it would not be found.
fn namesake(name: &str, number: u32) -> String {
    if number == 1 {
        return name.to_owned();
    }
    let number = format!("-{number}");
    format!("{}{number}", &name[..name.floor_char_boundary(NAME_BYTES_MAX - number.len())])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = env::temp_dir().join(format!("tombolo-place-{name}-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).unwrap();
        directory
    }

    fn look(directory: &Path) -> (Vec<String>, usize) {
        let mut finds = Finds::default();
        find_in(directory, Kind::NODE, true, &mut finds);
        (finds.found.into_iter().map(|found| found.name).collect(), finds.refused.len())
    }

    #[test]
    fn what_others_can_write_to_has_no_services_and_that_is_said() {
        let directory = scratch("others");
        let listen = |name: &str| SeqpacketListener::bind(&directory.join(name)).unwrap();
        let _listening = ["good.node", "\u{1b}[31mbad.node", "turn\u{202e}ed.node", "other.run"].map(listen);
        assert_eq!(look(&directory), (vec!["good".to_owned()], 0));
        let link = directory.with_extension("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert_eq!(look(&link), (Vec::new(), 1));
        assert_eq!(look(&directory.join("none")), (Vec::new(), 0));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o770)).unwrap();
        assert_eq!(look(&directory), (Vec::new(), 1));
        make_private(&directory).unwrap_err();
        if own_user_id() == 0 {
            fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&directory, Some(65534), None).unwrap();
            assert_eq!(look(&directory), (Vec::new(), 1));
            // Where services of this user are looked for besides, anybody can make a directory.
            let mut finds = Finds::default();
            find_in(&directory, Kind::NODE, false, &mut finds);
            assert!(finds.found.is_empty() && finds.refused.is_empty(), "{finds:?}");
        }
        fs::remove_file(&link).unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn where_others_could_lock_nothing_listens() {
        let directory = scratch("readable");
        for (mode, is_fit) in [(0o700, true), (0o711, true), (0o755, false), (0o740, false), (0o703, false)] {
            fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(make_private(&directory).is_ok(), is_fit, "{mode:o}");
        }
        fs::remove_dir(&directory).unwrap();
    }

    /// Whoever of them removes it, none takes it for a service.
    #[test]
    fn a_dead_socket_that_many_find_at_once_is_found_by_none() {
        let directory = scratch("at-once");
        let (path, aside) = (directory.join("dead.node"), directory.join("aside"));
        for _ in 0..50 {
            let listener = SeqpacketListener::bind(&path).unwrap();
            fs::rename(&path, &aside).unwrap();
            drop(listener);
            fs::rename(&aside, &path).unwrap();
            std::thread::scope(|scope| {
                let finders: Vec<_> = (0..4).map(|_| scope.spawn(|| look(&directory))).collect();
                for finder in finders {
                    assert_eq!(finder.join().unwrap(), (Vec::new(), 0));
                }
            });
            assert!(!path.exists());
        }
        fs::remove_dir(&directory).unwrap();
    }

    #[test]
    fn any_name_is_a_name_of_a_file() {
        assert_eq!(file_name("one.example-2_b"), "one.example-2_b");
        assert_eq!(file_name("../a b/\n"), "_a_b__");
        assert_eq!(file_name("...a"), "a");
        assert_eq!([file_name(""), file_name("..")], ["unnamed", "unnamed"]);
        let long = file_name(&"é".repeat(100));
        assert!(long.len() <= NAME_BYTES_MAX);
        // By which it is found again.
        for number in [1, 2, 10, NAMESAKES_MAX] {
            let name = namesake(&long, number);
            assert_eq!(file_name(&name), name);
        }
        assert_eq!(namesake("lender", 2), "lender-2");
    }

    /// Two of one name, as of two pid namespaces, have sockets of their own; what a dead one left is removed.
    #[test]
    fn services_of_one_name_are_found_and_dead_ones_removed() {
        let directory = scratch("namesakes");
        let listen = || listen_in(&directory, "7", &|stem: &Path| bind(Kind::NODE, stem)).unwrap();
        let (one, two) = (listen(), listen());
        assert!(one.path().ends_with("7.node") && two.path().ends_with("7-2.node"), "{two:?}");
        // A killed process leaves its file.
        let path = two.path().to_owned();
        let aside = directory.join("aside");
        fs::rename(&path, &aside).unwrap();
        drop(two);
        fs::rename(&aside, &path).unwrap();
        assert!(path.exists());
        assert_eq!(look(&directory), (vec!["7".to_owned()], 0));
        assert!(!path.exists() && one.path().exists());
        drop(one);
        fs::remove_dir(&directory).unwrap();
    }
}
