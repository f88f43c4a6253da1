//! Programs that listen and have the library.

use std::collections::{BTreeMap, BTreeSet};

use super::{Endpoint, Reason, Space};

/// A listening socket, as the kernel numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListenerId(pub u64);

/// A program that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its socket.
    pub id: ListenerId,
    /// Where it is.
    pub space: Space,
    /// Where it listens.
    pub at: Endpoint,
    /// Its process, as the node sees it; 0: it does not.
    pub process: u32,
    /// Its user.
    pub user: u32,
}

#[derive(Debug)]
struct Noted {
    listener: Listener,
    /// Connections to it are offered. Not any more, once a program without the library has accepted one.
    is_offered: bool,
    /// When it was noted last.
    turn: u64,
}

/// All that are noted. One that has closed is noted for a while: who connects finds out.
#[derive(Debug)]
pub(super) struct Listeners {
    most: usize,
    all: BTreeMap<ListenerId, Noted>,
    by_port: BTreeSet<(u16, ListenerId)>,
    by_turn: BTreeMap<u64, ListenerId>,
    turn: u64,
}

impl Listeners {
    pub(super) fn new(most: usize) -> Self {
        Self { most, all: BTreeMap::new(), by_port: BTreeSet::new(), by_turn: BTreeMap::new(), turn: 0 }
    }

    /// Notes one; the ports that this changes.
    pub(super) fn note(&mut self, listener: Listener) -> impl IntoIterator<Item = u16> + use<> {
        let mut changed = vec![listener.at.port];
        let is_offered = self.forget(listener.id).is_none_or(|noted| noted.is_offered);
        while self.all.len() >= self.most {
            let Some((_, &oldest)) = self.by_turn.first_key_value() else { break };
            changed.extend(self.forget(oldest).map(|noted| noted.listener.at.port));
        }
        let turn = self.turn;
        self.turn += 1;
        self.by_port.insert((listener.at.port, listener.id));
        self.by_turn.insert(turn, listener.id);
        self.all.insert(listener.id, Noted { listener, is_offered, turn });
        changed
    }

    /// One is gone; its port.
    pub(super) fn close(&mut self, id: ListenerId) -> Option<u16> {
        self.forget(id).map(|noted| noted.listener.at.port)
    }

    fn forget(&mut self, id: ListenerId) -> Option<Noted> {
        let noted = self.all.remove(&id)?;
        self.by_port.remove(&(noted.listener.at.port, id));
        self.by_turn.remove(&noted.turn);
        Some(noted)
    }

    fn at_port(&self, port: u16) -> impl Iterator<Item = &Noted> {
        let ids = self.by_port.range((port, ListenerId(0))..=(port, ListenerId(u64::MAX)));
        ids.filter_map(|(_, id)| self.all.get(id))
    }

    /// Whether somebody may listen there.
    pub(super) fn find(&self, space: Space, to: Endpoint) -> Result<(), Reason> {
        const ANY: [u8; 16] = [0; 16];
        // As the kernel maps an IPv4 address into IPv6.
        const ANY_V4: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0];
        let fits = |noted: &&Noted| {
            let at = noted.listener.at.address;
            noted.listener.space == space && (at == to.address || at == ANY || at == ANY_V4)
        };
        let mut reason = Reason::NoListener;
        for noted in self.at_port(to.port).filter(fits) {
            if noted.is_offered {
                return Ok(());
            }
            reason = Reason::AcceptedWithout;
        }
        Err(reason)
    }

    /// Whether connections to that one are offered.
    pub(super) fn check(&self, id: ListenerId) -> Result<(), Reason> {
        match self.all.get(&id) {
            None => Err(Reason::NoListener),
            Some(Noted { is_offered: false, .. }) => Err(Reason::AcceptedWithout),
            Some(_) => Ok(()),
        }
    }

    /// A program without the library accepts its connections.
    pub(super) fn accepts_without(&mut self, id: ListenerId) -> Option<u16> {
        let noted = self.all.get_mut(&id)?;
        noted.is_offered = false;
        Some(noted.listener.at.port)
    }

    pub(super) fn is_offered(&self, port: u16) -> bool {
        self.at_port(port).any(|noted| noted.is_offered)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&Listener, bool)> {
        self.all.values().map(|noted| (&noted.listener, noted.is_offered))
    }
}
