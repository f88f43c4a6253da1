//! Attaches a port to an owner, and attaches it again when the owner has ended and another one has started.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::io::Errno;
use tombolo_control::Trust;
use tombolo_core::nic::{Coalescing, Mac};
use tombolo_host::timing::net::{CHECK_INTERVAL, NAME_TIMEOUT, RETRY_INTERVAL, RETRY_INTERVAL_MAX};
use tombolo_host::unix::UnixError;
use tombolo_node::{Address, Security};

use crate::client::{AskError, Client};
use crate::device::{Device, DeviceName};
use crate::far::{FarError, FarOwner};
use crate::protocol::{Answer, Ask, Port};

/// A port that is attached, or was attached and will be again.
pub struct Attached {
    device: Device,
    port: Port,
    /// The hardware address that the port's user has asked for. Empty: the owner gives one.
    wanted_mac: String,
    place: Place,
    owner: Option<Owner>,
    /// The user of the last owner on this machine. A warning is logged when another user's process is the owner.
    told_of_user: Option<u32>,
}

/// Where the owner is.
#[derive(Clone, Debug)]
pub enum Place {
    /// On this machine, at the path of a socket.
    Here(PathBuf),
    /// On another machine: where the owner's node listens, with which keys, and when the owner is notified of frames.
    There(Address, Security, Coalescing),
}

/// A connection to the owner.
enum Owner {
    /// To an owner on this machine, which has the device's queues.
    Here(Client),
    /// To an owner on another machine. This process moves the frames.
    There(Box<FarOwner>),
}

impl Attached {
    /// Makes or opens the device of a port and attaches the port to an owner. If the port names no hardware address, the owner
    /// gives one to a device that is made.
    ///
    /// # Errors
    /// The device to make exists, or the one to open does not. Or this process may not open it, or the owner refuses the port.
    pub fn new(
        port: Port,
        name: &DeviceName,
        namespace: Option<&Path>,
        owner: Place,
    ) -> Result<Self, AttachError> {
        let mac: Option<Mac> = match port.mac.as_str() {
            "" => None,
            text => Some(text.parse().map_err(io::Error::other)?),
        };
        let device = Device::open(name, namespace, mac, port.mtu)?;
        let wanted_mac = port.mac.clone();
        let mut attached = Self { device, port, wanted_mac, place: owner, owner: None, told_of_user: None };
        let since = Instant::now();
        loop {
            match attached.connect() {
                // An earlier process of this port at this machine may have ended just now.
                Err(AttachError::Far(FarError::NameTaken(_))) if since.elapsed() < NAME_TIMEOUT => {
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
        let connected = self.connect_as_it_is();
        let is_refused = |error: &AttachError| {
            matches!(error, AttachError::Ask(AskError::Refused(_)) | AttachError::Far(FarError::Refused(_)))
        };
        if connected.as_ref().is_err_and(is_refused) {
            // This owner may not accept the address that an earlier owner has given: the next attempt asks for a new one.
            self.port.mac.clone_from(&self.wanted_mac);
        }
        connected
    }

    fn connect_as_it_is(&mut self) -> Result<(), AttachError> {
        if matches!(self.place, Place::There(..)) {
            self.port.mac.clone_from(&self.wanted_mac);
        }
        let (owner, answer) = match &self.place {
            Place::Here(path) => {
                let client = Client::connect(path, Trust::Anybody)?;
                let peer = client.peer()?;
                if self.told_of_user.replace(peer.user_id) != Some(peer.user_id) && !peer.is_own_or_root() {
                    let (path, user) = (path.display(), peer.user_id);
                    tracing::warn!(
                        "the owner at {path} is of user {user}, who sees and can change all that this port carries"
                    );
                }
                let ends = self.device.ends();
                let ends: Vec<_> = ends.iter().map(AsFd::as_fd).collect();
                let answer = client.ask(Ask::Attach(self.port.clone()), &ends)?;
                (Owner::Here(client), answer)
            }
            Place::There(address, security, how) => {
                let (far, answer) = FarOwner::attach(address, security, &self.port, *how)?;
                (Owner::There(Box::new(far)), answer)
            }
        };
        if let Answer::Attached { mac, .. } = &answer {
            self.have_mac(mac)?;
        }
        self.heed(&answer);
        self.owner = Some(owner);
        Ok(())
    }

    /// Gives the device the hardware address that the owner has given to the port.
    fn have_mac(&mut self, mac: &str) -> Result<(), AttachError> {
        if !mac.is_empty() && mac != self.port.mac {
            self.device.set_mac(mac.parse().map_err(io::Error::other)?)?;
            mac.clone_into(&mut self.port.mac);
        }
        Ok(())
    }

    /// Follows what the owner says of the uplink and of this port.
    fn heed(&mut self, answer: &Answer) {
        if let Answer::Changed(changes) = answer {
            (**changes).clone().apply(&mut self.port);
        }
        if let Answer::Attached { has_carrier, segment_bytes_max, mtu, .. } = answer {
            if *mtu < self.port.mtu {
                tracing::warn!(
                    uplink = mtu,
                    port = self.port.mtu,
                    "frames longer than the uplink's MTU are lost there"
                );
            }
            if let Err(error) = self.device.set_segment_bytes(*segment_bytes_max) {
                tracing::warn!(%error, "longer segments of this port are cut by the owner, which takes processor time");
            }
            self.plug(*has_carrier);
        }
    }

    fn plug(&self, has_carrier: bool) {
        if let Err(error) = self.device.plug(has_carrier) {
            tracing::warn!(%error, "the carrier is as it was");
        }
    }

    /// Keeps the port until `is_over` returns true, and attaches it again when an owner has gone and another one comes. Calls
    /// `says` when an owner goes, comes, or refuses the port.
    ///
    /// # Errors
    /// The port's device is gone, alone or with its namespace.
    pub fn keep(
        &mut self,
        is_over: impl Fn() -> bool,
        mut says: impl FnMut(&str),
    ) -> Result<(), AttachError> {
        let mut refused = String::new();
        let mut pause = RETRY_INTERVAL;
        while !is_over() {
            if !self.device.is_there() {
                return Err(io::Error::other(format!("the device {} is gone", self.port.tap)).into());
            }
            let Some(owner) = &mut self.owner else {
                match self.connect() {
                    Ok(()) => {
                        refused.clear();
                        pause = RETRY_INTERVAL;
                        says("attached again");
                    }
                    // No owner listens yet.
                    Err(AttachError::Ask(AskError::Socket(UnixError::Path {
                        errno: Errno::CONNREFUSED | Errno::NOENT,
                        ..
                    }))) => {
                        pause = RETRY_INTERVAL;
                        std::thread::sleep(RETRY_INTERVAL);
                    }
                    Err(error) => {
                        let reason = error.to_string();
                        if reason != refused {
                            says(&format!("cannot attach again: {reason}"));
                            refused = reason;
                        }
                        // An owner that refuses the port is asked less and less often.
                        pause = if error.is_refusal() {
                            (2 * pause).min(RETRY_INTERVAL_MAX)
                        } else {
                            RETRY_INTERVAL
                        };
                        let since = Instant::now();
                        while !is_over() && since.elapsed() < pause {
                            std::thread::sleep(pause.min(CHECK_INTERVAL));
                        }
                    }
                }
                continue;
            };
            let said = match owner {
                Owner::Here(client) => match client.next(Some(CHECK_INTERVAL)) {
                    // An owner of a later version may send messages that this version does not know.
                    Err(AskError::NoAnswer(_)) => Ok(None),
                    said => said.map_err(|error| error.to_string()),
                },
                Owner::There(far) => {
                    far.carry(&self.device.ends(), CHECK_INTERVAL).map_err(|error| error.to_string())
                }
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

/// Why a port is not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its device cannot be made or opened.
    #[error(transparent)]
    Device(#[from] io::Error),
    /// The owner on this machine does not answer, or refuses the port.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The owner at another machine does not answer, or refuses the port.
    #[error(transparent)]
    Far(#[from] FarError),
}

impl AttachError {
    /// Whether the owner has answered that it does not take the port.
    fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Ask(AskError::Refused(_) | AskError::NameTaken(_))
                | Self::Far(FarError::Refused(_) | FarError::NameTaken(_))
        )
    }
}
