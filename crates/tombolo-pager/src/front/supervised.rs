//! The supervisor's side of the front.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitStatus};
use tombolo_host::signals::{self, Inherited};
use tombolo_host::split::InheritedDescriptors;
use tombolo_host::timing::pager as timing;
use tombolo_host::unix::SeqpacketSocket;
use tombolo_host::{family, process};

use super::messages::Message;

/// The front of this supervisor.
#[derive(Debug)]
pub struct Front {
    pid: Pid,
    pidfd: OwnedFd,
    /// The program is to be one of this group. `None`: it is from outside this pid namespace, and has no number here; the supervisor
    /// stays in it, too.
    group: Option<Pid>,
    socket: Arc<SeqpacketSocket>,
    inherited: Inherited,
    descriptors: Option<InheritedDescriptors>,
    /// Signals that came when the program had ended.
    left: Arc<Mutex<Vec<LeftSignal>>>,
}

/// A signal that came when the program had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftSignal {
    pub(crate) number: i32,
    /// Processes of the front's group have it.
    pub(crate) is_for_group: bool,
}

impl Front {
    /// This process becomes the supervisor.
    pub(super) fn new(
        pid: Pid,
        socket: SeqpacketSocket,
        inherited: Inherited,
        descriptors: InheritedDescriptors,
    ) -> io::Result<Self> {
        let group = family::own_group();
        if group.is_some() {
            rustix::process::setpgid(None, None)?;
        }
        let _ = rustix::thread::set_name(c"supervisor");
        // It ends when the program has. Somebody may mean all processes of this name, or of a control group.
        let faults = [
            libc::SIGILL,
            libc::SIGTRAP,
            libc::SIGABRT,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGSEGV,
            libc::SIGSYS,
            libc::SIGCHLD,
            libc::SIGXCPU,
            libc::SIGXFSZ,
        ];
        signals::ignore((1..=signals::LAST).filter(|number| !faults.contains(number)));
        Ok(Self {
            pid,
            pidfd: process::pidfd(pid.as_raw_pid().cast_unsigned())?,
            group,
            socket: Arc::new(socket),
            inherited,
            descriptors: Some(descriptors),
            left: Arc::default(),
        })
    }

    /// Its number, by which its user knows the run.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().cast_unsigned()
    }

    /// The program is about to be started by this command: the front keeps its signals, and the program begins with those blocked and
    /// ignored with which this command was started, in the front's group.
    pub(crate) fn starting(&self, command: &mut Command) -> io::Result<()> {
        Message::Starting.send(&self.socket, None);
        match Message::receive(&self.socket) {
            Some((Message::Starting, _)) => {}
            _ => return Err(io::Error::other("it could not get ready for signals")),
        }
        if let Some(group) = self.group {
            command.process_group(group.as_raw_pid());
        }
        self.inherited.pass_on(command);
        Ok(())
    }

    /// It was started. From now on the end of the front ends this process, as if it had been killed itself.
    pub(crate) fn started(&mut self, pid: u32, pidfd: &OwnedFd) -> io::Result<()> {
        Message::Started(pid.cast_signed()).send(&self.socket, Some(pidfd.as_fd()));
        if let Some(descriptors) = self.descriptors.take() {
            descriptors.give_up(true)?;
        }
        let (socket, left) = (self.socket.clone(), self.left.clone());
        let listen = move || {
            while let Some((message, _)) = Message::receive(&socket) {
                if let Message::Signal { number, is_for_group } = message {
                    left.lock().push(LeftSignal { number, is_for_group });
                }
            }
            // Nobody is there who could be told how the program ends. The keeper ends what is left.
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        };
        thread::Builder::new().name("front".into()).spawn(listen)?;
        rustix::process::set_parent_process_death_signal(None)?;
        Ok(())
    }

    /// The program has stopped, or goes on.
    pub(crate) fn changed(&self, pid: u32, status: WaitStatus) {
        if let Some(signal) = status.stopping_signal() {
            // It went on meanwhile, for a moment: the front stops anew, and is seen to.
            self.go_on();
            return Message::Stopped(signal).send(&self.socket, None);
        }
        self.go_on();
        // It may have been about to stop.
        thread::sleep(timing::FRONT_GOES_ON);
        if !family::is_stopped(pid) {
            self.go_on();
        }
    }

    /// The front goes on if it is stopped. (Otherwise this signal would hide one that is sent to it meanwhile.)
    fn go_on(&self) {
        if family::is_stopped(self.pid()) {
            let _ = process::signal(&self.pidfd, libc::SIGCONT);
        }
    }

    /// The program has ended.
    pub(crate) fn ended(&self, status: i32) {
        Message::Ended(status).send(&self.socket, None);
        // It may have been killed while it was stopped.
        self.go_on();
    }

    /// A signal that came when the program had ended, once.
    pub(crate) fn take_signal(&self) -> Option<LeftSignal> {
        let mut left = self.left.lock();
        if left.is_empty() { None } else { Some(left.remove(0)) }
    }

    /// Whether a process is in the front's group.
    pub(crate) fn has_in_its_group(&self, pid: u32) -> bool {
        family::group(pid) == Some(self.group())
    }

    /// The front's group.
    pub(crate) fn group(&self) -> u32 {
        self.group.map_or(0, |group| group.as_raw_pid().cast_unsigned())
    }
}
