//! A port: a TAP device in a namespace, which whoever attaches it keeps while owners come and go.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tombolo_core::nic::{Coalescing, Mac};
use tombolo_host::net::{Interface, TapQueues, in_namespace, is_tap, set_carrier};
use tombolo_host::unix::{MAX_DESCRIPTORS, UnixError};
use tombolo_node::{Address, Security};

use crate::client::{AskError, Client};
use crate::far::{FarError, FarOwner};
use crate::protocol::{Answer, Ask, NAME_TAKEN, Port};

/// After an owner has gone, the next one is looked for so often.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// How often the caller's wish to end is looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long a device of the same name may take to go.
const GOING_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a port of the same name may take to go whose process at another machine was killed: until nothing was heard
/// of its node for [`crate::far::OUTAGE`], and it was looked at.
const NAME_TIMEOUT: Duration = Duration::from_secs(4);
/// The most queues of a port: as many as one message passes.
pub const QUEUES_MAX: usize = MAX_DESCRIPTORS;

/// A TAP device that is made.
pub struct Attached {
    tap: TapQueues,
    interface: Interface,
    port: Port,
    place: Place,
    owner: Option<Owner>,
}

/// Where the owner is.
#[derive(Clone, Debug)]
pub enum Place {
    /// On this machine, at the path of a socket.
    Here(PathBuf),
    /// At another one: where its node listens, with which keys, and when it is told of frames.
    There(Address, Security, Coalescing),
}

/// A connection to the owner.
enum Owner {
    /// Which has the device's queues.
    Here(Client),
    /// To which this process carries frames.
    There(Box<FarOwner>),
}

impl Attached {
    /// Makes the device of a port and attaches it to the owner at a path. Where the port says no hardware address, the
    /// kernel chooses one.
    ///
    /// # Errors
    /// There is such a device, this process may make none, or the owner refuses the port.
    pub fn new(
        mut port: Port,
        namespace: Option<&Path>,
        queues: usize,
        owner: Place,
    ) -> Result<Self, AttachError> {
        let mac: Option<Mac> = match port.mac.as_str() {
            "" => None,
            text => Some(text.parse().map_err(io::Error::other)?),
        };
        let (tap, interface, mac) = in_namespace(namespace, || {
            let tap = make(&port.tap, queues.clamp(1, QUEUES_MAX))?;
            // Nothing is to be sent before somebody reads it.
            tap.iter().try_for_each(|queue| set_carrier(queue, false))?;
            let interface = Interface::open(&port.tap)?;
            if let Some(mac) = mac {
                interface.set_mac(mac.0)?;
            }
            interface.set_mtu(port.mtu)?;
            interface.set_up()?;
            let mac = interface.mac()?;
            Ok((tap, interface, mac))
        })?;
        port.mac = Mac(mac).to_string();
        let mut attached = Self { tap, interface, port, place: owner, owner: None };
        let since = Instant::now();
        loop {
            match attached.connect() {
                // An earlier process of this port at this machine may have ended just now.
                Err(AttachError::Far(FarError::Refused(reason)))
                    if reason.starts_with(NAME_TAKEN) && since.elapsed() < NAME_TIMEOUT =>
                {
                    std::thread::sleep(RETRY_INTERVAL);
                }
                connected => return connected.map(|()| attached),
            }
        }
    }

    /// The port, with its hardware address.
    pub fn port(&self) -> &Port {
        &self.port
    }

    fn connect(&mut self) -> Result<(), AttachError> {
        let (owner, answer) = match &self.place {
            Place::Here(path) => {
                let client = Client::connect(path)?;
                let queues: Vec<_> = self.tap.iter().collect();
                let answer = client.ask(Ask::Attach(self.port.clone()), &queues)?;
                (Owner::Here(client), answer)
            }
            Place::There(address, security, how) => {
                let (far, answer) = FarOwner::attach(address, security, &self.port, *how)?;
                (Owner::There(Box::new(far)), answer)
            }
        };
        self.heed(&answer);
        self.owner = Some(owner);
        Ok(())
    }

    /// Follows what the owner says of the uplink.
    fn heed(&self, answer: &Answer) {
        if let Answer::Attached { has_carrier, segment_bytes_max, mtu } = answer {
            if *mtu < self.port.mtu {
                tracing::warn!(
                    uplink = mtu,
                    port = self.port.mtu,
                    "frames longer than the uplink's MTU are lost there"
                );
            }
            if let Err(error) = self.interface.set_segment_bytes(*segment_bytes_max) {
                tracing::warn!(%error, "others wait for longer segments of this port");
            }
            self.plug(*has_carrier);
        }
    }

    fn plug(&self, has_carrier: bool) {
        // It is the device's, whichever queue is asked.
        if let Some(Err(error)) = self.tap.iter().next().map(|queue| set_carrier(queue, has_carrier)) {
            tracing::warn!(%error, "the carrier is as it was");
        }
    }

    /// Keeps the port until the caller says so; an owner that has gone is waited for. `says` tells when one goes and
    /// comes, or refuses the port.
    ///
    /// # Errors
    /// Its device is gone. (Its namespace stays as long as this does.)
    pub fn keep(
        &mut self,
        is_over: impl Fn() -> bool,
        mut says: impl FnMut(&str),
    ) -> Result<(), AttachError> {
        let mut refused = String::new();
        while !is_over() {
            // It may have been deleted by hand. It may have another name, or be in another namespace.
            if !self.tap.iter().all(is_tap) {
                return Err(io::Error::other(format!("the device {} is gone", self.port.tap)).into());
            }
            let Some(owner) = &mut self.owner else {
                match self.connect() {
                    Ok(()) => {
                        refused.clear();
                        says("attached again");
                    }
                    // Nobody listens yet.
                    Err(AttachError::Ask(AskError::Socket(UnixError::Path {
                        errno: Errno::CONNREFUSED | Errno::NOENT,
                        ..
                    }))) => std::thread::sleep(RETRY_INTERVAL),
                    Err(error) => {
                        let reason = error.to_string();
                        if reason != refused {
                            says(&format!("cannot attach again: {reason}"));
                            refused = reason;
                        }
                        std::thread::sleep(RETRY_INTERVAL);
                    }
                }
                continue;
            };
            let said = match owner {
                Owner::Here(client) => client.next(Some(CHECK_INTERVAL)).map_err(|error| error.to_string()),
                Owner::There(far) => far.carry(&self.tap, CHECK_INTERVAL).map_err(|error| error.to_string()),
            };
            match said {
                Ok(None) => {}
                Ok(Some(answer)) => self.heed(&answer),
                Err(reason) => {
                    tracing::info!(reason, "the connection to the owner has ended");
                    self.owner = None;
                    self.plug(false);
                    says("the owner has gone: waiting for the next one");
                }
            }
        }
        Ok(())
    }
}

/// Makes a device. One of this name may be going just now: the owner has it until it sees that its port has ended.
fn make(name: &str, queues: usize) -> io::Result<TapQueues> {
    let since = Instant::now();
    loop {
        match TapQueues::new(name, queues) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && since.elapsed() < GOING_TIMEOUT => {
                std::thread::sleep(RETRY_INTERVAL);
            }
            made => return made,
        }
    }
}

/// Why a port is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its device cannot be made.
    #[error(transparent)]
    Device(#[from] io::Error),
    /// The owner does not answer, or refuses it.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The owner at another machine does not answer, or refuses the port.
    #[error(transparent)]
    Far(#[from] FarError),
}
