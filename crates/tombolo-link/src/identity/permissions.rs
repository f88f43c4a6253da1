//! What a peer on the list may ask for: `may=borrow,status` on its line.

use std::fmt;
use std::str::FromStr;

/// The prefix of a list of permissions.
const PREFIX: &str = "may=";
/// The word for no permission at all.
const NOTHING: &str = "nothing";
/// The most characters of an unknown word that an error repeats: a line may hold a secret by mistake.
const MAX_REPEATED: usize = 12;

/// Something that a peer may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Permission {
    /// Borrow memory.
    Borrow,
    /// Read named segments.
    Read,
    /// Make, replace and remove named segments.
    Write,
    /// List named segments.
    List,
    /// Ask how the node is.
    Status,
    /// Attach ports to its network interface.
    Port,
}

impl Permission {
    const EACH: [Self; 6] = [Self::Borrow, Self::Read, Self::Write, Self::List, Self::Status, Self::Port];

    /// The word for it on the list.
    pub fn word(self) -> &'static str {
        match self {
            Self::Borrow => "borrow",
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::Status => "status",
            Self::Port => "port",
        }
    }

    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// A set of permissions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permissions(u8);

impl Permissions {
    /// No permission.
    pub const NONE: Self = Self(0);
    /// All permissions: those of a peer whose line names none.
    pub const ALL: Self = Self((1 << Permission::EACH.len()) - 1);

    /// Whether the set has this permission.
    pub fn include(self, permission: Permission) -> bool {
        self.0 & permission.bit() != 0
    }

    /// The permissions that are in both sets.
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The permissions that the words after a key name. A word that might be meant as permissions but names
    /// none is an error: otherwise a mistake would permit all.
    pub(super) fn named<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, PermissionsError> {
        let (mut found, mut before) = (None, "");
        for word in words {
            let is_prefix = word.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX));
            if before.eq_ignore_ascii_case("may") && word.starts_with('=') {
                return Err(PermissionsError::Spaces);
            }
            if is_prefix && found.replace(word[PREFIX.len()..].parse()?).is_some() {
                return Err(PermissionsError::Twice);
            }
            before = word;
        }
        Ok(found.unwrap_or(Self::ALL))
    }
}

impl FromStr for Permissions {
    type Err = PermissionsError;

    fn from_str(text: &str) -> Result<Self, PermissionsError> {
        if text == NOTHING {
            return Ok(Self::NONE);
        }
        let mut permissions = Self::NONE;
        for word in text.split(',') {
            let known = Permission::EACH.into_iter().find(|permission| permission.word() == word);
            permissions.0 |= known.ok_or_else(|| PermissionsError::unknown(word))?.bit();
        }
        Ok(permissions)
    }
}

impl fmt::Display for Permissions {
    /// As a line of the list has them.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> =
            Permission::EACH.into_iter().filter(|each| self.include(*each)).map(Permission::word).collect();
        let words = if words.is_empty() { NOTHING.to_owned() } else { words.join(",") };
        write!(formatter, "{PREFIX}{words}")
    }
}

/// Why words are no permissions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PermissionsError {
    /// A permission is not known.
    #[error(
        "`{0}` is no permission: expected some of borrow, read, write, list, status and port, as in may=borrow,status, or may=nothing"
    )]
    Unknown(String),
    /// There is a space in the middle.
    #[error("permissions are written without spaces, as in may=borrow,status")]
    Spaces,
    /// A line has two lists of permissions.
    #[error("a key has one list of permissions, as in may=borrow,status")]
    Twice,
}

impl PermissionsError {
    fn unknown(word: &str) -> Self {
        let mut repeated: String = word.chars().take(MAX_REPEATED).flat_map(char::escape_default).collect();
        if word.chars().nth(MAX_REPEATED).is_some() {
            repeated.push('…');
        }
        Self::Unknown(repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_read_as_they_are_written() {
        for text in ["may=borrow", "may=read,list", "may=nothing", "may=borrow,read,write,list,status"] {
            assert_eq!(Permissions::named([text].into_iter()).unwrap().to_string(), text);
        }
        let named = |text: &str| Permissions::named(text.split_whitespace());
        assert_eq!(named("a friend of mine"), Ok(Permissions::ALL));
        assert_eq!(named("may and june"), Ok(Permissions::ALL));
        let some = named("the host MAY=status,read of a friend").unwrap();
        let included = Permission::EACH.map(|permission| some.include(permission));
        assert_eq!(included, [false, true, false, false, true, false]);
    }

    #[test]
    fn what_might_be_meant_as_permissions_is_some_or_an_error() {
        let error = |text: &str| Permissions::named(text.split_whitespace()).unwrap_err().to_string();
        for (text, expected) in [
            ("may=lend", "`lend` is no permission"),
            ("may=borrow, status", "`` is no permission"),
            ("may=", "`` is no permission"),
            ("may=Borrow", "`Borrow` is no permission"),
            ("may=borrow,nothing", "`nothing` is no permission"),
            ("may=tombolo-secret:1234", "`tombolo-secr…` is no permission"),
            ("may=\u{1b}[2J", "`\\u{1b}[2J` is no permission"),
            ("may =borrow", "without spaces"),
            ("may = borrow", "without spaces"),
            ("may=read may=list", "one list"),
        ] {
            assert!(error(text).contains(expected), "{text}: {}", error(text));
        }
    }
}
