//! Joining other nodes: by one address, by several addresses of the same node, and again by addresses whose links were
//! lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tombolo_host::timing::node as timing;
use tombolo_link::{Address, Link, LinkState, LossReason, Security};

use crate::fabric::connection::Connection;
use crate::fabric::link_driver::{JoinError, LinkDriver};
use crate::fabric::messages::{Reply, Request};
use crate::fabric::paths::Token;

/// The links to one node that is joined by several of its addresses.
#[derive(Debug)]
pub struct Paths {
    first: Arc<Connection>,
    token: Token,
    routes: Vec<Route>,
}

/// One address of the node, and the link by it.
#[derive(Debug)]
struct Route {
    address: Address,
    connection: Option<Arc<Connection>>,
    /// Whether the loss of the link has been told.
    told: bool,
    pause: Duration,
    try_at: Instant,
}

/// Introduces this node by a link that is up. The address is only for errors.
pub(crate) fn join_over(
    driver: &dyn LinkDriver,
    link: Arc<dyn Link>,
    address: &Address,
    timeout: Duration,
) -> Result<Arc<Connection>, JoinError> {
    let fabric = driver.fabric();
    let connection = fabric.add_peer(link);
    let refused = |why| JoinError::Refused(address.clone(), why);
    match driver.ask_by(&connection, fabric.introduction(), timeout) {
        Ok((Reply::Introduced { name, life }, _)) => {
            fabric.introduced(&connection, &name, life).map_err(refused)?;
            Ok(connection)
        }
        Ok((Reply::Failed(why), _)) => Err(refused(why)),
        Ok((other, _)) => Err(refused(format!("{other:?}"))),
        Err(error) => Err(JoinError::Ask(address.clone(), error)),
    }
}

/// Joins a node by all of these addresses. It was joined by the first one already.
pub(crate) fn join_again(
    driver: &dyn LinkDriver,
    first: &Arc<Connection>,
    addresses: &[Address],
    security: &Security,
    timeout: Duration,
) -> Result<Paths, JoinError> {
    let mut paths = Paths { first: first.clone(), token: Token::default(), routes: Vec::new() };
    let Some((address, others)) = addresses.split_first() else { return Ok(paths) };
    paths.token = match driver.ask_by(first, Request::PathToken, timeout) {
        Ok((Reply::PathToken(token), _)) => token,
        Ok((other, _)) => return Err(JoinError::Refused(address.clone(), format!("{other:?}"))),
        Err(error) => return Err(JoinError::Ask(address.clone(), error)),
    };
    paths.routes.push(Route::new(address, Some(first.clone())));
    for address in others {
        let further = join_as_path(driver, first, paths.token, address, security, timeout)?;
        paths.routes.push(Route::new(address, Some(further)));
    }
    Ok(paths)
}

/// Connects to a neighbour by a further address, and adds the link as a path.
pub(super) fn join_as_path(
    driver: &dyn LinkDriver,
    first: &Arc<Connection>,
    token: Token,
    address: &Address,
    security: &Security,
    timeout: Duration,
) -> Result<Arc<Connection>, JoinError> {
    let link = tombolo_link::connect(address, security, timeout)?;
    let refused = |why: String| JoinError::Refused(address.clone(), why);
    let fabric = driver.fabric();
    // Packets that come by the link count as the neighbour's from the start. Packets go by it only after the answer.
    let further = fabric.add_further(first.neighbour(), link);
    let further = further.ok_or_else(|| refused("it has too many links".into()))?;
    let joined = match driver.ask_by(&further, Request::BePath { token }, timeout) {
        Ok((Reply::Done, _)) => fabric.open_path(&further).map_err(refused),
        Ok((Reply::Failed(why), _)) => Err(refused(why)),
        Ok((other, _)) => Err(refused(format!("{other:?}"))),
        Err(error) => Err(JoinError::Ask(address.clone(), error)),
    };
    if joined.is_err() {
        driver.mark_lost(&further, LossReason::ClosedByPeer);
        driver.forget_lost(&further);
    }
    joined.map(|()| further)
}

impl Route {
    fn new(address: &Address, connection: Option<Arc<Connection>>) -> Self {
        let (pause, try_at) = (timing::FIRST_PATH_PAUSE, Instant::now());
        Self { address: address.clone(), connection, told: false, pause, try_at }
    }

    fn is_up(&self) -> bool {
        let up =
            |connection: &Arc<Connection>| connection.has_link() && connection.link.state() == LinkState::Up;
        self.connection.as_ref().is_some_and(up)
    }

    /// Why the link was lost, if that has not been told yet.
    fn news(&mut self) -> Option<LossReason> {
        let lost = self.connection.as_ref().filter(|lost| !self.told && !lost.has_link())?;
        self.told = true;
        lost.link_loss().or_else(|| lost.loss())
    }
}

impl Paths {
    /// The node at the other end, by its first link.
    pub fn peer(&self) -> &Arc<Connection> {
        &self.first
    }

    /// How many of the links are up.
    pub fn up(&self) -> usize {
        self.routes.iter().filter(|route| route.is_up()).count()
    }

    /// Restores lost paths as soon as it can, until the neighbour is lost or `stop` is set. Another thread must drive
    /// the node meanwhile.
    pub fn keep<D: LinkDriver>(
        &mut self,
        node: &D,
        security: &Security,
        timeout: Duration,
        stop: &AtomicBool,
    ) {
        self.maintain(node, security, timeout, stop, &|_, _| {});
    }

    /// As [`Self::keep`]. `told` is called with each link that is lost while others are left.
    pub(crate) fn maintain(
        &mut self,
        driver: &dyn LinkDriver,
        security: &Security,
        timeout: Duration,
        stop: &AtomicBool,
        told: &dyn Fn(&Address, LossReason),
    ) {
        while !stop.load(Ordering::Relaxed) && self.first.loss().is_none() {
            for route in &mut self.routes {
                if let Some(reason) = route.news() {
                    told(&route.address, reason);
                }
            }
            self.mend(driver, security, timeout);
            std::thread::sleep(timing::PATHS_PAUSE);
        }
    }

    /// Tries once to restore each lost path whose time has come.
    fn mend(&mut self, driver: &dyn LinkDriver, security: &Security, timeout: Duration) {
        for route in &mut self.routes {
            if route.is_up() || Instant::now() < route.try_at {
                continue;
            }
            match join_as_path(driver, &self.first, self.token, &route.address, security, timeout) {
                Ok(further) => {
                    route.connection = Some(further);
                    route.told = false;
                    route.pause = timing::FIRST_PATH_PAUSE;
                }
                Err(_) => route.pause = (route.pause * 2).min(timing::LONGEST_PATH_PAUSE),
            }
            route.try_at = Instant::now() + route.pause;
        }
    }
}
