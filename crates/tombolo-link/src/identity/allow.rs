//! The list of nodes that one node talks to.

use std::fmt;
use std::path::{Path, PathBuf};

use super::file::{self, KeyFileError};
use super::key::PublicKey;
use super::permissions::Permissions;

/// The public keys of the nodes that may link.
///
/// A file has one key a line, and after it, for people, a name, and `may=borrow,status` where not all is
/// permitted (see [`Permission`](super::Permission)); `#` begins a comment. It is read
/// again for each new link, so a node goes on while its list changes. Links that exist stay, until
/// somebody compares their keys with the list again.
#[derive(Debug, Clone)]
pub enum AllowList {
    /// These keys, with all permissions.
    Keys(Vec<PublicKey>),
    /// The keys in this file.
    File(PathBuf),
}

impl AllowList {
    /// The list in a file, which must be there and make sense.
    pub fn from_file(path: &Path) -> Result<Self, KeyFileError> {
        read(path)?;
        Ok(Self::File(path.to_owned()))
    }

    /// Whether the list has this key.
    pub fn allows(&self, key: &PublicKey) -> Result<bool, KeyFileError> {
        self.permissions_of(key).map(|permissions| permissions.is_some())
    }

    /// What the node with this key may ask for; `None` if the key is not on the list.
    pub fn permissions_of(&self, key: &PublicKey) -> Result<Option<Permissions>, KeyFileError> {
        Ok(self.rights()?.of(key))
    }

    /// What one reading of the list says.
    pub fn rights(&self) -> Result<KeyRights, KeyFileError> {
        let entries = match self {
            Self::Keys(keys) => keys.iter().copied().map(Entry::all).collect(),
            Self::File(path) => read(path)?,
        };
        Ok(KeyRights { entries })
    }
}

/// What the nodes with some keys may ask for: one reading of a list.
#[derive(Debug)]
pub struct KeyRights {
    entries: Vec<Entry>,
}

impl KeyRights {
    /// What the node with this key may ask for; `None` if the key is not on the list.
    #[must_use]
    pub fn of(&self, key: &PublicKey) -> Option<Permissions> {
        // A key with two lines may do only what both permit.
        let lines = self.entries.iter().filter(|entry| entry.key == *key).map(|entry| entry.permissions);
        lines.reduce(Permissions::and)
    }
}

impl fmt::Display for AllowList {
    /// Where the list is kept.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(_) => formatter.write_str("the list"),
            Self::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    key: PublicKey,
    permissions: Permissions,
}

impl Entry {
    fn all(key: PublicKey) -> Self {
        Self { key, permissions: Permissions::ALL }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.key, self.permissions)
    }
}

fn read(path: &Path) -> Result<Vec<Entry>, KeyFileError> {
    entries_in(&file::read_text(file::open(path)?, path)?, path)
}

/// The keys in a text, and what they may do.
pub(crate) fn entries_in(text: &str, path: &Path) -> Result<Vec<Entry>, KeyFileError> {
    let entries = file::lines(text).map(|(line, said)| {
        let mut words = said.split_whitespace();
        let key = words.next().unwrap_or_default().parse();
        let key = key.map_err(|reason| KeyFileError::Line { path: path.to_owned(), line, reason })?;
        let permissions = Permissions::named(words);
        let permissions = permissions.map_err(|reason| {
            let path = path.to_owned();
            KeyFileError::Permissions { path, line, reason }
        })?;
        Ok(Entry { key, permissions })
    });
    entries.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::file::tests::Scratch;
    use super::super::key::KeyPair;
    use super::*;

    #[test]
    fn a_list_has_names_and_comments_and_is_read_again() {
        let scratch = Scratch::new();
        let path = scratch.0.join("allow");
        let [one, two, three] = [(); 3].map(|()| KeyPair::generate().unwrap().public());
        fs::write(&path, format!("# friends\n\n{one} the first one\n  {two}# the second\n")).unwrap();
        let list = AllowList::from_file(&path).unwrap();
        assert!(list.allows(&one).unwrap() && list.allows(&two).unwrap());
        assert!(!list.allows(&three).unwrap());
        fs::write(&path, format!("{three}\tlate\r\n")).unwrap();
        assert!(list.allows(&three).unwrap() && !list.allows(&one).unwrap());
        fs::remove_file(&path).unwrap();
        assert!(list.allows(&three).is_err());
        assert_eq!(list.to_string(), path.display().to_string());
    }

    #[test]
    fn a_line_may_say_what_its_key_may_do() {
        use super::super::permissions::Permission;
        let scratch = Scratch::new();
        let path = scratch.0.join("allow");
        let [one, two, three, four] = [(); 4].map(|()| KeyPair::generate().unwrap().public());
        let text =
            format!("{one} old friend\n{two} new may=borrow,list\n{three} may=list\n{three} may=read,list\n");
        fs::write(&path, text).unwrap();
        let list = AllowList::from_file(&path).unwrap();
        let permitted = |key| list.permissions_of(&key).unwrap().map(|found| found.to_string());
        assert_eq!(list.permissions_of(&one).unwrap(), Some(Permissions::ALL));
        assert_eq!(permitted(two).as_deref(), Some("may=borrow,list"));
        assert_eq!(permitted(three).as_deref(), Some("may=list"), "what both lines permit");
        assert_eq!(permitted(four), None);
        assert!(!list.permissions_of(&two).unwrap().unwrap().include(Permission::Status));
        fs::write(&path, format!("# mine\n{one} may=everything\n")).unwrap();
        let error = AllowList::from_file(&path).unwrap_err().to_string();
        assert!(error.contains("allow:2: `everything` is no permission"), "{error}");
    }

    #[test]
    fn mistakes_name_the_file_and_the_line() {
        let scratch = Scratch::new();
        let path = scratch.0.join("allow");
        let pair = KeyPair::generate().unwrap();
        let (public, secret) = (pair.public(), pair.secret_text());
        for (text, expected) in [
            (format!("{public}\nname {public}\n"), "allow:2: a key begins with `tombolo-public:`"),
            (format!("# mine\n{}", *secret), "allow:2: this is a secret key"),
            (public.to_string()[..60].to_owned(), "allow:1: a key has 64 hexadecimal digits"),
        ] {
            fs::write(&path, text).unwrap();
            let error = AllowList::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains(&secret[20..]), "{error}");
        }
        fs::write(&path, "").unwrap();
        assert!(!AllowList::from_file(&path).unwrap().allows(&public).unwrap());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_list_or_an_error(text in "(?s).{0,300}") {
            let scratch = Scratch::new();
            let path = scratch.0.join("allow");
            fs::write(&path, text).unwrap();
            let _ = AllowList::from_file(&path);
        }
    }
}
