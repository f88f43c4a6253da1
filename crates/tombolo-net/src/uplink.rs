//! The uplink: an interface of the host, by a packet socket, or a TAP device into the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use tombolo_host::net::{Interface, PacketSocket, TapQueues, is_bound, is_tap};

use tombolo_core::nic::Tag;

use crate::frames::{End, FrameBuffer};

/// Which interface is the uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkName {
    /// An interface that exists.
    Interface(String),
    /// A TAP device that the owner makes.
    Tap(String),
}

impl std::str::FromStr for UplinkName {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix("tap:") {
            Some(name) => Self::Tap(name.to_owned()),
            None => Self::Interface(text.to_owned()),
        })
    }
}

/// An uplink that is open.
#[derive(Debug)]
pub struct Uplink {
    interface: Interface,
    end: End<OwnedFd>,
}

impl Uplink {
    /// Opens the uplink and switches it on. `mtu`: its new MTU, if that is to be changed.
    ///
    /// # Errors
    /// There is no such interface, or this process may not open it.
    pub fn open(name: &UplinkName, mtu: Option<u32>) -> io::Result<Self> {
        let uplink = match name {
            UplinkName::Interface(name) => {
                let interface = Interface::open(name)?;
                let end = End::Socket(PacketSocket::open(&interface)?.into());
                Self { interface, end }
            }
            UplinkName::Tap(name) => {
                let mut queues = TapQueues::new(name, 1)?.into_queues();
                let queue = queues.pop().ok_or(io::ErrorKind::NotFound)?;
                Self { interface: Interface::open(name)?, end: End::Queue(queue) }
            }
        };
        if let Some(mtu) = mtu {
            uplink.interface.set_mtu(mtu)?;
        }
        uplink.interface.set_up()?;
        Ok(uplink)
    }

    /// The interface.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// A copy of the uplink's descriptor, for [`is_bound`](Self::is_bound).
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn copy(&self) -> io::Result<End<OwnedFd>> {
        let copy = self.end.as_fd().try_clone_to_owned()?;
        Ok(match self.end {
            End::Socket(_) => End::Socket(copy),
            End::Queue(_) => End::Queue(copy),
        })
    }

    /// Whether frames still go to the interface that was opened. The kernel unbinds the sockets of an interface that is deleted or
    /// moved to another namespace, and does not bind them again if the interface comes back.
    pub fn is_bound(end: &End<OwnedFd>) -> bool {
        match end {
            End::Socket(socket) => is_bound(socket.as_fd()),
            End::Queue(queue) => is_tap(queue.as_fd()),
        }
    }

    /// The kind of descriptor by which frames go to the uplink, as text for people.
    pub fn kind(&self) -> &'static str {
        match self.end {
            End::Socket(_) => "packet socket",
            End::Queue(_) => "tap",
        }
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: there is no frame now.
    pub fn read(&self, buffer: &mut FrameBuffer) -> Result<(), Errno> {
        buffer.read(&self.end)
    }

    /// As [`End::take_overflows`].
    pub fn take_overflows(&self) -> u64 {
        self.end.take_overflows()
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: the uplink takes no more frames at present. Other errors: it does not take this frame.
    pub fn write(&self, buffer: &FrameBuffer, tag: Tag) -> Result<(), Errno> {
        buffer.write(&self.end, tag)
    }
}

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
}
