//! The network outside: an interface of the host, by a packet socket, or a TAP device into the host.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use tombolo_host::net::{Interface, PacketSocket, TapQueues};

use tombolo_core::nic::Tag;

use crate::frames::FrameBuffer;

/// Which interface is the uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UplinkName {
    /// One that exists.
    Interface(String),
    /// A TAP device that is made.
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

#[derive(Debug)]
enum Way {
    Packets(PacketSocket),
    Tap(OwnedFd),
}

/// An uplink that is open.
#[derive(Debug)]
pub struct Uplink {
    interface: Interface,
    way: Way,
}

impl Uplink {
    /// Opens it, and switches it on.
    ///
    /// # Errors
    /// There is no such interface, or this process may not.
    pub fn open(name: &UplinkName, mtu: Option<u32>) -> io::Result<Self> {
        let uplink = match name {
            UplinkName::Interface(name) => {
                let interface = Interface::open(name)?;
                let way = Way::Packets(PacketSocket::open(&interface)?);
                Self { interface, way }
            }
            UplinkName::Tap(name) => {
                let mut queues = TapQueues::new(name, 1)?.into_queues();
                let queue = queues.pop().ok_or(io::ErrorKind::NotFound)?;
                Self { interface: Interface::open(name)?, way: Way::Tap(queue) }
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

    /// How frames go there.
    pub fn kind(&self) -> &'static str {
        match self.way {
            Way::Packets(_) => "packet socket",
            Way::Tap(_) => "tap",
        }
    }

    /// Reads the next frame.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: there is none.
    pub fn read(&self, buffer: &mut FrameBuffer) -> Result<(), Errno> {
        match &self.way {
            Way::Tap(queue) => buffer.read(queue.as_fd()),
            Way::Packets(socket) => {
                buffer.set_length(0);
                let received = socket.receive(buffer.space());
                let received = received.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
                buffer.set_length(received.length_bytes);
                if let Some((kind, contents)) = received.tag {
                    buffer.insert(kind, contents);
                }
                Ok(())
            }
        }
    }

    /// Writes a frame.
    ///
    /// # Errors
    /// [`Errno::AGAIN`]: it takes no more at present; others: it does not take this one.
    pub fn write(&self, buffer: &FrameBuffer, tag: Tag) -> Result<(), Errno> {
        buffer.write(self.as_fd(), tag, true)
    }
}

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.way {
            Way::Tap(queue) => queue.as_fd(),
            Way::Packets(socket) => socket.as_fd(),
        }
    }
}
