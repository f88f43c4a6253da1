//! The devices of ports: a TAP device, an interface that exists, or the socket of a virtual machine. The process that
//! attaches a port keeps its device open while owners end and start.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use tombolo_core::nic::Mac;
use tombolo_host::net::{
    Interface, PacketSocket, TapQueues, in_namespace, in_open_namespace, is_tap, open_namespace, set_carrier,
};
use tombolo_host::timing::net::{DEVICE_TIMEOUT, RETRY_INTERVAL};
use tombolo_host::unix::MAX_DESCRIPTORS;

use crate::frames::End;
use crate::machine::Machine;

/// The most queues of a port: as many as one message passes.
pub const QUEUES_MAX: usize = MAX_DESCRIPTORS;

/// The device that a port is to have.
#[derive(Clone, Debug)]
pub enum DeviceName {
    /// [`Device::open`] makes a TAP device of this name with this number of queues.
    Tap(String, usize),
    /// An interface that exists: the outer end of a container's veth pair, or a virtual machine's TAP. The container or
    /// machine at its other end has the port's hardware address.
    Interface(String),
    /// A virtual machine that connects to a socket at this path, as QEMU's `-netdev stream` does.
    Machine(PathBuf),
}

impl DeviceName {
    /// The device's name, or the path of its socket.
    pub fn text(&self) -> String {
        match self {
            Self::Tap(name, _) | Self::Interface(name) => name.clone(),
            Self::Machine(path) => path.display().to_string(),
        }
    }
}

/// A port's device.
#[derive(Debug)]
pub enum Device {
    /// As [`DeviceName::Tap`]. The interface is `None` if it is in another namespace, which an open one would keep alive.
    Tap(TapQueues, Option<Interface>),
    /// As [`DeviceName::Interface`], with the number of the interface.
    Interface(PacketSocket, Interface, u32),
    /// As [`DeviceName::Machine`].
    Machine(Machine),
}

impl Device {
    /// Makes or opens the device in a namespace (`None`: that of this process), and switches it on. Without `mac`, a TAP device
    /// has some hardware address until [`Device::set_mac`].
    ///
    /// # Errors
    /// The device to make exists, or the one to open does not. Or this process may not make or open it.
    pub fn open(name: &DeviceName, namespace: Option<&Path>, mac: Option<Mac>, mtu: u32) -> io::Result<Self> {
        let given =
            || mac.ok_or_else(|| io::Error::other("whose hardware address it is has to be said (--mac)"));
        match name {
            DeviceName::Tap(name, count) => {
                let count = (*count).clamp(1, QUEUES_MAX);
                let prepare = |tap: &TapQueues, interface: &Interface| {
                    // Programs are to send nothing before the owner reads the queues.
                    tap.iter().try_for_each(|queue| set_carrier(queue, false))?;
                    if let Some(mac) = mac {
                        interface.set_mac(mac.0)?;
                    }
                    interface.set_mtu(mtu)
                };
                let Some(namespace) = namespace else {
                    let tap = make(|| TapQueues::new(name, count))?;
                    let interface = Interface::open(name)?;
                    prepare(&tap, &interface)?;
                    interface.set_up()?;
                    return Ok(Self::Tap(tap, Some(interface)));
                };
                // Queues that are opened in a namespace keep it alive after its last process has ended. So the device is made in the
                // namespace of this process, and then moved.
                let namespace = open_namespace(namespace)?;
                let tap = make(|| {
                    // Without this check, each attempt would show a device of another name there for a moment.
                    if in_open_namespace(namespace.as_fd(), || Interface::open(name)).is_ok() {
                        return Err(io::Error::new(
                            io::ErrorKind::AlreadyExists,
                            "there is one of this name",
                        ));
                    }
                    let tap = make_aside(count)?;
                    prepare(&tap, &tap.interface()?)?;
                    tap.move_to(namespace.as_fd(), name)?;
                    Ok(tap)
                });
                let tap = tap.map_err(|error| {
                    io::Error::new(error.kind(), format!("cannot make the TAP device {name}: {error}"))
                })?;
                tap.with_interface(Interface::set_up)?;
                Ok(Self::Tap(tap, None))
            }
            DeviceName::Interface(name) => {
                given()?;
                in_namespace(namespace, || {
                    let interface = Interface::open(name)?;
                    let index = interface.index()?;
                    let socket = PacketSocket::open(&interface)?;
                    // A larger MTU stays: the owner drops frames that are longer than the port's.
                    if interface.mtu()? < mtu {
                        interface.set_mtu(mtu)?;
                    }
                    interface.set_up()?;
                    Ok(Self::Interface(socket, interface, index))
                })
            }
            DeviceName::Machine(path) => {
                given()?;
                Ok(Self::Machine(Machine::listen(path, mtu)?))
            }
        }
    }

    /// Gives a TAP device another hardware address. For other devices this does nothing: the container or machine at the other
    /// end has the address.
    ///
    /// # Errors
    /// The device is gone, or this process may not.
    pub fn set_mac(&self, mac: Mac) -> io::Result<()> {
        match self {
            // The interface is found by its queues, since it may have been renamed or moved.
            Self::Tap(tap, _) => {
                tap.with_interface(
                    |interface| {
                        if interface.mac()? == mac.0 { Ok(()) } else { interface.set_mac(mac.0) }
                    },
                )
            }
            Self::Interface(..) | Self::Machine(_) => Ok(()),
        }
    }

    /// The descriptors that frames are read from and written to.
    pub fn ends(&self) -> Vec<End<BorrowedFd<'_>>> {
        match self {
            Self::Tap(tap, _) => tap.iter().map(End::Queue).collect(),
            Self::Interface(socket, ..) => vec![End::Socket(socket.as_fd())],
            Self::Machine(machine) => vec![machine.end()],
        }
    }

    /// Whether the device is still there. A TAP device may be deleted, and may have got another name or namespace; an
    /// interface that existed may have got another name, and is gone when it is moved to another namespace.
    pub fn is_there(&self) -> bool {
        match self {
            Self::Tap(tap, _) => tap.iter().all(is_tap),
            Self::Interface(_, interface, index) => interface.has_index(*index),
            Self::Machine(machine) => machine.is_there(),
        }
    }

    /// Gives a TAP device the carrier of the uplink. Other devices have a carrier of their own.
    ///
    /// # Errors
    /// The device is gone.
    pub fn plug(&self, has_carrier: bool) -> io::Result<()> {
        match self {
            // All queues share the device's carrier.
            Self::Tap(tap, _) => tap.iter().next().map_or(Ok(()), |queue| set_carrier(queue, has_carrier)),
            Self::Interface(..) | Self::Machine(_) => Ok(()),
        }
    }

    /// Limits the length of the segments that the kernel makes for a TAP device. For other devices this does nothing: the
    /// container or machine at the other end decides.
    ///
    /// # Errors
    /// The device is gone.
    pub fn set_segment_bytes(&self, bytes: u32) -> io::Result<()> {
        match self {
            Self::Tap(_, Some(interface)) => interface.set_segment_bytes(bytes),
            Self::Tap(tap, None) => tap.with_interface(|interface| interface.set_segment_bytes(bytes)),
            Self::Interface(..) | Self::Machine(_) => Ok(()),
        }
    }
}

/// Makes a device. If there is one of this name, tries again for some time: that one may be about to go, since its owner keeps
/// it until the owner sees that the port has ended.
fn make(how: impl Fn() -> io::Result<TapQueues>) -> io::Result<TapQueues> {
    let since = Instant::now();
    loop {
        match how() {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::AlreadyExists)
                    && since.elapsed() < DEVICE_TIMEOUT =>
            {
                std::thread::sleep(RETRY_INTERVAL);
            }
            made => return made,
        }
    }
}

/// Makes a device under a name that no other interface of this namespace has.
fn make_aside(queues: usize) -> io::Result<TapQueues> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // The name has at most 15 bytes, as it must, since process numbers have 22 bits.
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % 100;
    let name = format!("tmb{}-{number}", std::process::id());
    TapQueues::new(&name, queues)
}
