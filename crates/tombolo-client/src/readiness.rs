//! The descriptor that a program polls for its transfers.
//!
//! The node's messages come by the socket, which other threads read, too, while they ask the node for
//! something. So the descriptor is that of an epoll over the socket and an event: a thread that reads a
//! message about an ended transfer while it waits for an answer sets the event.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use tombolo_host::event::EventFd;
use tombolo_host::unix::{SeqpacketSocket, UnixError};

use crate::error::OpenError;

#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: OwnedFd,
    event: EventFd,
}

impl Readiness {
    /// Readable while the socket is, and when set.
    pub(crate) fn of(socket: &SeqpacketSocket) -> Result<Self, OpenError> {
        let made = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let event = EventFd::new()?;
            let data = epoll::EventData::new_u64(0);
            epoll::add(&epoll, socket, data, epoll::EventFlags::IN)?;
            epoll::add(&epoll, event.as_fd(), data, epoll::EventFlags::IN)?;
            Ok(Self { epoll, event })
        };
        made().map_err(|errno| match errno {
            Errno::MFILE | Errno::NFILE => OpenError::NoDescriptors,
            errno => OpenError::Lost(UnixError::System { operation: "epoll", errno }),
        })
    }

    pub(crate) fn set(&self) {
        let _ = self.event.signal();
    }

    pub(crate) fn clear(&self) {
        let _ = self.event.drain();
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
