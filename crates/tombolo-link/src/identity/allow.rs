//! The list of nodes that one node talks to.

use std::fmt;
use std::path::{Path, PathBuf};

use super::file::{self, KeyFileError};
use super::key::PublicKey;

/// The public keys of the nodes that may link.
///
/// A file has one key a line, and after it, for people, a name; `#` begins a comment. It is read
/// again for each new link, so a node goes on while its list changes. Links that exist stay, until
/// somebody compares their keys with the list again.
#[derive(Debug, Clone)]
pub enum AllowList {
    /// These.
    Keys(Vec<PublicKey>),
    /// Those in this file.
    File(PathBuf),
}

impl AllowList {
    /// The list in a file, which must be there and make sense.
    pub fn from_file(path: &Path) -> Result<Self, KeyFileError> {
        read(path)?;
        Ok(Self::File(path.to_owned()))
    }

    /// All keys that it has now.
    pub fn keys(&self) -> Result<Vec<PublicKey>, KeyFileError> {
        match self {
            Self::Keys(keys) => Ok(keys.clone()),
            Self::File(path) => read(path),
        }
    }

    /// Whether it has that key.
    pub fn allows(&self, key: &PublicKey) -> Result<bool, KeyFileError> {
        match self {
            Self::Keys(keys) => Ok(keys.contains(key)),
            Self::File(path) => Ok(read(path)?.contains(key)),
        }
    }
}

impl fmt::Display for AllowList {
    /// Where it is kept.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(_) => formatter.write_str("the list"),
            Self::File(path) => write!(formatter, "{}", path.display()),
        }
    }
}

fn read(path: &Path) -> Result<Vec<PublicKey>, KeyFileError> {
    keys_in(&file::read_text(file::open(path)?, path)?, path)
}

/// The keys in a text.
pub(crate) fn keys_in(text: &str, path: &Path) -> Result<Vec<PublicKey>, KeyFileError> {
    let keys = file::lines(text).map(|(line, said)| {
        let key = said.split_whitespace().next().unwrap_or_default();
        key.parse().map_err(|reason| KeyFileError::Line { path: path.to_owned(), line, reason })
    });
    keys.collect()
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
