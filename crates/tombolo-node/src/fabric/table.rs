//! The links of a node, by numbers that are never used twice, and the engine that knows them as its peers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tombolo_channel::Failure;
use tombolo_core::rdma::{Engine, PeerId, PostError, Time, Transfer};
use tombolo_link::identity::{Identity, Permissions};
use tombolo_link::udp::DEFAULT_OUTAGE;
use tombolo_link::{Link, LossReason};

use crate::fabric::answered::Answered;
use crate::fabric::arrangements::Arrangements;
use crate::fabric::carriers::Carriers;
use crate::fabric::connection::Connection;
use crate::fabric::label::{self, PeerLabel};
use crate::fabric::life::{Life, NodeIdentity};
use crate::fabric::messages::{Reply, Request};
use crate::fabric::neighbour::Neighbour;
use crate::fabric::neighbourhood::LinkReports;
use crate::fabric::numbers::Numbers;
use crate::fabric::stirred::Stirred;
use crate::fabric::third_party::ThirdPartyTransfers;
use tombolo_wire::Asker;

/// This node as its own peer: transfers between its programs.
pub(crate) const ITSELF: PeerId = PeerId(0);

/// A place in the table of links.
#[derive(Debug, Default)]
struct Place {
    connection: Option<Arc<Connection>>,
    /// How many links have had this place. Each had a number of its own. So grants to one link, or packets under way to
    /// it, do not count for the next link.
    given: u32,
}

impl Place {
    /// A place whose number is taken: by the node itself, or for a neighbour. No link gets it.
    fn kept() -> Self {
        Self { connection: None, given: PeerId::PEERS_OF_A_PLACE }
    }

    fn can_be_given(&self) -> bool {
        self.connection.is_none() && self.given < PeerId::PEERS_OF_A_PLACE
    }
}

/// The links of a node, and what it knows of the nodes at their other ends.
pub struct Fabric {
    name: String,
    life: Life,
    started: Instant,
    /// How long a link may be silent before it is lost.
    outage: Mutex<Duration>,
    pub(crate) engine: Mutex<Engine>,
    places: RwLock<Vec<Place>>,
    /// Grows with each link that comes.
    pub(crate) arrivals: AtomicU32,
    /// Grows with each link that is lost.
    pub(crate) departures: AtomicU32,
    /// Quiet links that the engine's loop is to look at again.
    pub(crate) stirred: Stirred,
    /// The numbers by which programs call other nodes.
    pub(crate) numbers: Numbers,
    pub(crate) answered: Answered,
    pub(crate) third_party: ThirdPartyTransfers,
    pub(crate) arrangements: Arrangements,
    pub(crate) carriers: Carriers,
    /// Where what happens to links is reported, if this node has a neighbourhood.
    pub(super) reports: OnceLock<LinkReports>,
    /// The identity of this node. Its list says what peers may ask for, by their keys.
    pub(super) identity: OnceLock<Arc<Identity>>,
    /// When this node ends at the latest, if it is about to end. It lends to no new borrower then.
    pub(super) ends_at: OnceLock<Instant>,
}

impl std::fmt::Debug for Fabric {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Fabric").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A link that is not in the table yet. Whatever takes time or sends something is done when this is made, without any
/// lock of the table.
pub(super) struct Newcomer {
    link: Arc<dyn Link>,
    permissions: Permissions,
    /// Which reading of the list gave the permissions.
    reading: u64,
}

/// Tells the engine whether a link is reliable, so that it loses no packets: a link between processes of this machine
/// is.
pub(super) fn tell_whether_reliable(engine: &mut Engine, connection: &Connection) {
    let (id, path) = connection.place();
    engine.set_reliable(id, path, connection.link.supports_windows());
}

impl Fabric {
    pub(crate) fn new(
        name: &str,
        life: Life,
        mut engine: Engine,
        home_block_bytes: u32,
        stirred: Stirred,
    ) -> Self {
        engine.add_loopback_peer(Time(0), ITSELF, home_block_bytes);
        Self {
            name: label::name(name),
            life,
            started: Instant::now(),
            outage: Mutex::new(DEFAULT_OUTAGE),
            engine: Mutex::new(engine),
            // The first place is this node's own.
            places: RwLock::new(vec![Place::kept()]),
            arrivals: AtomicU32::new(0),
            departures: AtomicU32::new(0),
            stirred,
            numbers: Numbers::default(),
            answered: Answered::default(),
            third_party: ThirdPartyTransfers::default(),
            arrangements: Arrangements::default(),
            carriers: Carriers::default(),
            reports: OnceLock::new(),
            identity: OnceLock::new(),
            ends_at: OnceLock::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn life(&self) -> Life {
        self.life
    }

    /// Time since this node started.
    pub(crate) fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// Now, on the engine's clock.
    pub(crate) fn now(&self) -> Time {
        Time(self.started.elapsed().as_nanos() as u64)
    }

    /// How long a link may be silent before it is lost.
    pub(crate) fn outage(&self) -> Duration {
        *self.outage.lock()
    }

    pub(crate) fn set_outage(&self, outage: Duration) {
        *self.outage.lock() = outage;
    }

    /// Keeps the first numbers for neighbours. False: there are links already, or too many neighbours.
    pub(super) fn keep_numbers(&self, count: usize) -> bool {
        let mut places = self.places.write();
        let has_room = (count as u64) < u64::from(PeerId::PLACES) / 2;
        if places.len() > 1 || !has_room || !self.numbers.keep(count as u32) {
            return false;
        }
        places.extend((0..count).map(|_| Place::kept()));
        true
    }

    /// Adds a link that is up, as the first one of a new peer.
    pub(crate) fn add_peer(&self, link: Arc<dyn Link>) -> Arc<Connection> {
        let newcomer = self.newcomer(link);
        self.add_link(newcomer, |connection| {
            let mut engine = self.engine.lock();
            engine.add_peer(self.now(), connection.id);
            tell_whether_reliable(&mut engine, connection);
        })
    }

    pub(super) fn newcomer(&self, link: Arc<dyn Link>) -> Newcomer {
        let (permissions, reading) = self.permissions_of(&*link);
        let outage = *self.outage.lock();
        link.set_outage(outage);
        Newcomer { link, permissions, reading }
    }

    /// Puts a link that is up into the table. `prepare` sets it up before any other thread can see it.
    pub(super) fn add_link(
        &self,
        newcomer: Newcomer,
        prepare: impl FnOnce(&Arc<Connection>),
    ) -> Arc<Connection> {
        let Newcomer { link, permissions, reading } = newcomer;
        let mut places = self.places.write();
        let free = places.iter().position(Place::can_be_given);
        let index = free.unwrap_or_else(|| {
            places.push(Place::default());
            places.len() - 1
        });
        let id = PeerId::at(index as u32, places[index].given);
        let connection = Connection::new(id, link, permissions);
        if index as u64 >= u64::from(PeerId::PLACES) {
            places.pop();
            drop(places);
            // The engine does not know the link, and the caller finds it lost.
            connection.own().set_lost(LossReason::TooManyLinks);
            connection.link.close(LossReason::TooManyLinks);
            return connection;
        }
        prepare(&connection);
        places[index].connection = Some(connection.clone());
        places[index].given += 1;
        self.arrivals.fetch_add(1, Ordering::Release);
        drop(places);
        self.permit_anew(&connection, reading);
        connection
    }

    /// All links.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        self.places.read().iter().filter_map(|place| place.connection.clone()).collect()
    }

    /// The link with that number.
    pub(crate) fn connection(&self, id: PeerId) -> Option<Arc<Connection>> {
        let places = self.places.read();
        places.get(id.index())?.connection.as_ref().filter(|connection| connection.id == id).cloned()
    }

    /// Forgets a lost link, so that its place may be given to another one. False: that was done before.
    pub(crate) fn forget(&self, connection: &Connection) -> bool {
        let mut places = self.places.write();
        let place = places.get_mut(connection.id.index());
        // A second call for the same link must not remove the next link of that place.
        let is_its =
            |place: &&mut Place| place.connection.as_ref().is_some_and(|known| known.id == connection.id);
        let Some(place) = place.filter(is_its) else { return false };
        place.connection = None;
        // Code that holds the lock of the numbers locks the places, so never the other way round.
        drop(places);
        self.numbers.forget(connection.id);
        true
    }

    /// Called when all links of a neighbour are lost: fails its transfers, and forgets what it asked for.
    pub(crate) fn peer_lost(&self, neighbour: &Neighbour) {
        self.engine.lock().peer_lost(self.now(), neighbour.id);
        if let Some(reports) = self.reports.get() {
            reports.lost(neighbour.id);
        }
        self.answered.forget(neighbour.id);
    }

    /// Notes that a peer has introduced itself.
    pub(crate) fn introduced(&self, connection: &Connection, name: &str, life: Life) -> Result<(), String> {
        let is_new = connection.identity().is_none();
        connection.neighbour().introduce(name, life)?;
        if is_new {
            let PeerLabel { name, key, process_id, address } = connection.label();
            let (peer_name, key, address) = (name.as_deref(), key.as_deref(), address.as_deref());
            tracing::info!(peer = peer_name, key, process = process_id, address, "a neighbour is there");
        }
        self.numbers.introduced(connection.id, &*connection.link, life, |before| {
            self.connection(before).is_none_or(|before| before.loss().is_some())
        });
        Ok(())
    }

    /// How this node introduces itself.
    pub(crate) fn introduction(&self) -> Request {
        Request::Introduce { name: self.name.clone(), life: self.life }
    }

    /// The answer to an introduction.
    pub(crate) fn welcome(&self) -> Reply {
        Reply::Introduced { name: self.name.clone(), life: self.life }
    }

    /// Notes that a peer introduces itself, and returns the answer.
    pub(crate) fn introduce(&self, connection: &Connection, name: &str, life: Life) -> Reply {
        self.introduced(connection, name, life).map_or_else(Reply::Failed, |()| self.welcome())
    }

    pub(crate) fn post(&self, peer: PeerId, transfer: Transfer) -> Result<(), PostError> {
        self.post_at(self.now(), peer, transfer)
    }

    /// As [`Fabric::post`], on behalf of another node.
    pub(crate) fn post_for(&self, peer: PeerId, transfer: Transfer, asker: Asker) -> Result<(), PostError> {
        self.engine.lock().post_for(self.now(), peer, transfer, asker).map(|_| ())
    }

    pub(crate) fn post_at(&self, now: Time, peer: PeerId, transfer: Transfer) -> Result<(), PostError> {
        self.engine.lock().post(now, peer, transfer).map(|_| ())
    }

    /// The peer that has this identity. If several links have it, their keys or processes show whether they lead to one
    /// node. If two different nodes claim the identity, the result is [`Failure::AmbiguousNode`].
    pub(crate) fn peer_with(&self, identity: &NodeIdentity) -> Result<PeerId, Failure> {
        let mut candidates = self.connections().into_iter().filter(|connection| {
            !connection.is_part()
                && connection.loss().is_none()
                && connection.identity().is_some_and(|known| known.may_be(identity))
        });
        let proof = |known: &Connection| (known.link.peer_key(), known.link.peer_process_identity());
        let first = candidates.next().ok_or(Failure::NoSuchNode)?;
        let known = proof(&first);
        if candidates.any(|other| known == (None, None) || proof(&other) != known) {
            return Err(Failure::AmbiguousNode);
        }
        Ok(first.id)
    }
}

#[cfg(test)]
mod tests {
    use tombolo_core::rdma::Config;
    use tombolo_link::identity::{AllowList, KeyPair};
    use tombolo_link::testing::{Alteration, Altered, memory_pair};
    use tombolo_link::{PublicKey, Security};

    use super::*;

    /// Notes whether the locks are free when the link's outage is set, or its key is looked up.
    struct Watching {
        key: PublicKey,
        is_free: Box<dyn Fn() -> bool + Send + Sync>,
        noted: Mutex<Vec<bool>>,
    }

    impl std::fmt::Debug for Watching {
        fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            formatter.debug_struct("Watching").finish_non_exhaustive()
        }
    }

    impl Alteration for Watching {
        fn set_outage(&self, _link: &dyn Link, _outage: Duration) {
            self.noted.lock().push((self.is_free)());
        }

        fn peer_key(&self, _link: &dyn Link) -> Option<PublicKey> {
            self.noted.lock().push((self.is_free)());
            Some(self.key)
        }
    }

    #[test]
    fn nothing_is_sent_and_no_list_is_read_under_a_lock_when_a_link_comes() {
        let engine = Engine::new(Config::default());
        let fabric =
            Arc::new(Fabric::new("fabric", Life([1; 16]), engine, 64 * 1024, Stirred::new().unwrap()));
        let keys = KeyPair::generate().unwrap();
        let key = keys.public();
        fabric.permit_by_list(&Security::secure(keys, AllowList::Keys(vec![key])));
        let (near, _far) = memory_pair().unwrap();
        let first = fabric.add_peer(near);
        let neighbour = first.neighbour().clone();
        let watching = || {
            let (weak, neighbour) = (Arc::downgrade(&fabric), neighbour.clone());
            let is_free = move || {
                let is_table_free = weak.upgrade().is_some_and(|fabric| fabric.places.try_write().is_some());
                is_table_free && neighbour.further.try_write().is_some()
            };
            let inner = memory_pair().unwrap().0;
            let watching = Watching { key, is_free: Box::new(is_free), noted: Mutex::default() };
            Arc::new(Altered::with(inner, watching))
        };
        let (other, further) = (watching(), watching());
        fabric.add_peer(other.clone());
        assert!(fabric.add_further(&neighbour, further.clone()).is_some());
        for link in [other, further] {
            assert_eq!(
                *link.alteration().noted.lock(),
                [true, true],
                "its key is looked up, and its outage said"
            );
        }
    }
}
