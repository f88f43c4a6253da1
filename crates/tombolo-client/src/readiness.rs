//! The descriptor that a program polls for its transfers.
//!
//! The node's messages come by the socket, which other threads read, too, while they ask the node for
//! something. So the descriptor is that of an epoll over the socket and an event: a thread that reads a
//! message about an ended transfer while it waits for an answer sets the event.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tombolo_host::event::EventFd;
use tombolo_host::unix::{SeqpacketSocket, UnixError};

use crate::error::OpenError;

#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: OwnedFd,
    event: EventFd,
    /// Made when it is first needed.
    timer: OnceLock<OwnedFd>,
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
            Ok(Self { epoll, event, timer: OnceLock::new() })
        };
        made().map_err(|errno| match errno {
            Errno::MFILE | Errno::NFILE => OpenError::NoDescriptors,
            errno => OpenError::Lost(UnixError::System { operation: "epoll", errno }),
        })
    }

    pub(crate) fn set(&self) {
        let _ = self.event.signal();
    }

    /// Readable after that time, or at once where there is no timer.
    pub(crate) fn set_after(&self, pause: Duration) {
        let timer = match self.timer.get() {
            Some(timer) => Ok(timer),
            None => self.new_timer().map(|timer| self.timer.get_or_init(|| timer)),
        };
        let time = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: time };
        if timer.and_then(|timer| timerfd_settime(timer, TimerfdTimerFlags::empty(), &once)).is_err() {
            self.set();
        }
    }

    fn new_timer(&self) -> Result<OwnedFd, Errno> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        epoll::add(&self.epoll, &timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(timer)
    }

    pub(crate) fn clear(&self) {
        let _ = self.event.drain();
        if let Some(timer) = self.timer.get() {
            let _ = rustix::io::read(timer, &mut [0; 8]);
        }
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
