//! `ADDR+ADDR`: several addresses of one node, as they are written on the command line.

use std::fmt;
use std::str::FromStr;

use tombolo_node::{Address, AddressError, MAX_PATHS};

use crate::failure::Failure;

use crate::output;

/// Addresses of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    /// The address that is asked first, and that messages name.
    pub first: Address,
    others: Vec<Address>,
}

/// Why parsing addresses failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaysError {
    /// A part is no address.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// What stands after a plus does not say of what kind it is.
    #[error("`{0}`: each address after a + is written in full, as in udp:10.0.0.1:7000+udp:10.1.0.1:7000")]
    NoKind(String),
    /// An address is there twice.
    #[error("{0} is named twice: what is joined by + are different ways to one node")]
    Twice(Address),
    /// There are too many addresses.
    #[error("{0} addresses of one node: at most {MAX_PATHS} are used at once")]
    TooMany(usize),
}

impl FromStr for Ways {
    type Err = WaysError;

    fn from_str(text: &str) -> Result<Self, WaysError> {
        // A path may have a plus in it.
        let marked = text.replace("+udp:", "\0udp:").replace("+shm:", "\0shm:");
        let mut words = marked.split('\0');
        let parse = |word: &str| match word.parse() {
            Err(AddressError::NoHostPort(_) | AddressError::UnknownHost { .. }) if word.contains('+') => {
                Err(WaysError::NoKind(word.to_owned()))
            }
            parsed => Ok(parsed?),
        };
        let first = parse(words.next().unwrap_or_default())?;
        let ways = Self { first, others: words.map(parse).collect::<Result<_, _>>()? };
        if ways.others.len() >= MAX_PATHS {
            return Err(WaysError::TooMany(1 + ways.others.len()));
        }
        match twice(ways.iter()) {
            Some(address) => Err(WaysError::Twice(address.clone())),
            None => Ok(ways),
        }
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.first)?;
        self.others.iter().try_for_each(|other| write!(formatter, "+{other}"))
    }
}

/// The first address that occurs a second time.
pub fn twice<'a>(addresses: impl Iterator<Item = &'a Address>) -> Option<&'a Address> {
    let mut seen = Vec::new();
    for address in addresses {
        if seen.contains(&address) {
            return Some(address);
        }
        seen.push(address);
    }
    None
}

impl From<Address> for Ways {
    fn from(first: Address) -> Self {
        Self { first, others: Vec::new() }
    }
}

impl Ways {
    /// All addresses, in the order in which they were named.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        [&self.first].into_iter().chain(&self.others)
    }

    /// All addresses.
    pub fn to_vec(&self) -> Vec<Address> {
        self.iter().cloned().collect()
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// Refuses shared memory among several: it is reached directly, which nothing is faster than.
    pub fn check_kind(&self) -> Result<(), Failure> {
        let shared = self.iter().find(|address| address.shm_path().is_some());
        match shared.filter(|_| self.are_several()) {
            Some(shared) => Err(Failure::new(format!(
                "{self}: {shared} is on this machine and needs no other way: name it alone, or udp: addresses alone"
            ))),
            None => Ok(()),
        }
    }

    /// Asks by one address after the other, until there is an answer; the last error where there is none.
    pub fn ask<T, E: fmt::Display>(&self, mut ask: impl FnMut(&Address) -> Result<T, E>) -> Result<T, E> {
        let mut answer = ask(&self.first);
        for other in &self.others {
            let Err(error) = &answer else { break };
            output::say(&format!("{error}; asking by {other}"));
            answer = ask(other);
        }
        answer
    }
}

/// Refuses an address that stands for two of these lenders, and ways that do not go together.
pub fn check_lenders(lenders: &[Ways]) -> Result<(), Failure> {
    match twice(lenders.iter().flat_map(Ways::iter)) {
        Some(address) => Err(Failure::new(format!(
            "{address} is named twice: name each lender once, with all of its addresses joined by +"
        ))),
        None => lenders.iter().try_for_each(Ways::check_kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<Ways>().unwrap_err().to_string()
    }

    #[test]
    fn addresses_of_one_node_are_joined_by_a_plus() {
        let text = "udp:127.0.0.1:1+shm:/tmp/a+b+udp:[::1]:2";
        let ways: Ways = text.parse().unwrap();
        let texts: Vec<String> = ways.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["udp:127.0.0.1:1", "shm:/tmp/a+b", "udp:[::1]:2"]);
        assert_eq!(ways.to_string(), text);
        assert!(ways.are_several() && !"shm:/tmp/a+b".parse::<Ways>().unwrap().are_several());
    }

    #[test]
    fn what_is_no_way_is_said() {
        assert!(error("").contains("expected shm:PATH"));
        assert!(error("udp:127.0.0.1:1+").contains("written in full"));
        assert!(error("udp:127.0.0.1:1+127.0.0.2:1").contains("written in full"));
        assert!(error("udp:127.0.0.1:1+udp:127.0.0.1").contains("HOST:PORT"));
        assert!(error("udp:127.0.0.1:1+shm:").contains("expected a path"));
        assert!(error("udp:127.0.0.1:1+udp:127.0.0.1:1").contains("udp:127.0.0.1:1 is named twice"));
        let many: Vec<String> = (1..=9).map(|port| format!("udp:127.0.0.1:{port}")).collect();
        assert!(error(&many.join("+")).contains("9 addresses of one node: at most 8"));
    }

    #[test]
    fn lenders_are_named_once_and_shared_memory_alone() {
        let check = |texts: &[&str]| {
            let lenders: Vec<Ways> = texts.iter().map(|text| text.parse().unwrap()).collect();
            check_lenders(&lenders).map_err(|failure| failure.text)
        };
        assert_eq!(check(&["udp:127.0.0.1:1+udp:127.0.0.1:2", "shm:/a"]), Ok(()));
        let twice = check(&["udp:127.0.0.1:1+udp:127.0.0.1:2", "udp:127.0.0.1:2"]).unwrap_err();
        assert!(twice.contains("udp:127.0.0.1:2 is named twice"), "{twice}");
        let mixed = check(&["udp:127.0.0.1:1+shm:/a"]).unwrap_err();
        assert!(mixed.contains("shm:/a is on this machine"), "{mixed}");
    }

    #[test]
    fn the_first_that_answers_is_enough() {
        let ways: Ways = "udp:127.0.0.1:1+udp:127.0.0.1:2".parse().unwrap();
        let second = |address: &Address| {
            if *address == ways.first { Err("no") } else { Ok(address.clone()) }
        };
        assert_eq!(ways.ask(second).unwrap().to_string(), "udp:127.0.0.1:2");
        assert_eq!(ways.ask(|_| Err::<(), _>("never")), Err("never"));
    }
}
