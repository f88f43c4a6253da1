//! The supervisor's handle of the front.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, WaitStatus};
use tombolo_host::signals::{self, Inherited};
use tombolo_host::split::InheritedDescriptors;
use tombolo_host::timing::pager as timing;
use tombolo_host::unix::SeqpacketSocket;
use tombolo_host::{jobs, process};

use super::messages::Message;

/// The front of this supervisor.
#[derive(Debug)]
pub struct Front {
    pid: Pid,
    pidfd: OwnedFd,
    /// The group of the program. `None` if it comes from outside this pid namespace and has no number here. Then the
    /// supervisor stays in that group, too.
    group: Option<Pid>,
    /// Whether the front leads its session. If so, the supervisor moves into another session, so that the program's group
    /// is orphaned.
    leads_its_session: bool,
    socket: Arc<SeqpacketSocket>,
    inherited: Inherited,
    descriptors: Option<InheritedDescriptors>,
    /// Number of stops of the program that the front was told of.
    stops_told: u32,
    heard: Arc<Heard>,
}

/// State that the front's messages change.
#[derive(Debug, Default)]
struct Heard {
    /// Number of stops of the program that the front has acknowledged: it is no longer stopped for them.
    stops_done: AtomicU32,
    /// Signals that came after the program had ended.
    left: Mutex<Vec<LeftSignal>>,
}

/// A signal that came after the program had ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeftSignal {
    pub(crate) number: i32,
    /// Whether the processes of the front's group have it already.
    pub(crate) is_for_group: bool,
}

impl Front {
    /// Makes this process the supervisor.
    pub(super) fn new(
        pid: Pid,
        leads_its_session: bool,
        socket: SeqpacketSocket,
        inherited: Inherited,
        descriptors: InheritedDescriptors,
    ) -> io::Result<Self> {
        let group = jobs::own_group();
        // If the front leads its session, this process calls `setsid` later, which the leader of a group cannot do.
        if group.is_some() && !leads_its_session {
            rustix::process::setpgid(None, None)?;
        }
        let _ = rustix::thread::set_name(c"supervisor");
        // The supervisor has to outlive the program, so it ignores signals that are sent to all processes of its name or
        // control group.
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
            leads_its_session,
            socket: Arc::new(socket),
            inherited,
            descriptors: Some(descriptors),
            stops_told: 0,
            heard: Arc::default(),
        })
    }

    /// Process number of the front, by which the user knows the run.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().cast_unsigned()
    }

    /// Prepares the start of the program by this command. The front keeps its signals from now on. The program begins in
    /// the front's group, with the blocked and ignored signals with which this process was started.
    pub(crate) fn starting(&self, command: &mut Command) -> io::Result<()> {
        let not_ready = |error| io::Error::other(format!("its front does not take its signals: {error}"));
        Message::Starting.send_and_await_the_same(&self.socket).map_err(not_ready)?;
        let (group, socket) = (self.group, self.socket.clone());
        let join = move || {
            if let Some(group) = group {
                rustix::process::setpgid(None, Some(group))?;
            }
            Message::Joined(rustix::process::getpid().as_raw_pid()).send_and_await_the_same(&socket)
        };
        // SAFETY: the closure makes system calls, and allocates and locks nothing.
        unsafe { self.inherited.pass_on(command, join) };
        Ok(())
    }

    /// Called when the program was started. From now on, the end of the front ends the program and this process, as if both
    /// had been killed.
    pub(crate) fn started(&mut self, pidfd: &OwnedFd) -> io::Result<()> {
        if self.leads_its_session {
            rustix::process::setsid()?;
        }
        Message::Started.send(&self.socket);
        if let Some(descriptors) = self.descriptors.take() {
            descriptors.give_up(true)?;
        }
        let (socket, heard, program) = (self.socket.clone(), self.heard.clone(), pidfd.try_clone()?);
        let listen = move || {
            while let Some(message) = Message::receive(&socket) {
                match message {
                    Message::StopDone => drop(heard.stops_done.fetch_add(1, Ordering::Release)),
                    Message::Signal { number, is_for_group } => {
                        heard.left.lock().push(LeftSignal { number, is_for_group });
                    }
                    _ => {}
                }
            }
            // The front has ended, so the program's end cannot be reported. The program is killed first: it may have no
            // agent, and be unknown to the keeper, which ends the other processes.
            let _ = process::signal(&program, libc::SIGKILL);
            let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
        };
        thread::Builder::new().name("front".into()).spawn(listen)?;
        rustix::process::set_parent_process_death_signal(None)?;
        Ok(())
    }

    /// Called when the program has stopped, or was continued.
    pub(crate) fn changed(&mut self, pid: u32, status: WaitStatus) {
        if let Some(signal) = status.stopping_signal() {
            // If the front is still stopped, the program was continued and stopped again: the front does the same, so that
            // its parent is notified.
            self.go_on();
            self.stops_told = self.stops_told.wrapping_add(1);
            return Message::Stopped(signal).send(&self.socket);
        }
        self.go_on_until(|| jobs::is_stopped(pid));
    }

    /// Continues the front if it is stopped. A needless SIGCONT would merge with one that a user sends.
    fn go_on(&self) {
        jobs::go_on(&self.pidfd, self.pid());
    }

    /// Continues the front, even if it is only about to stop, until it has acknowledged all stops or the program has
    /// stopped again.
    fn go_on_until(&self, stops_again: impl Fn() -> bool) {
        let since = Instant::now();
        loop {
            self.go_on();
            let is_done = self.heard.stops_done.load(Ordering::Acquire) == self.stops_told;
            if is_done || stops_again() || since.elapsed() > timing::FRONT_GOES_ON {
                return;
            }
            thread::sleep(timing::FRONT_GOES_ON_INTERVAL);
        }
    }

    /// Tells the front that the program has ended.
    pub(crate) fn ended(&self, status: i32) {
        Message::Ended(status).send(&self.socket);
        // The program may have been killed while it was stopped, so the front may be stopped.
        self.go_on_until(|| false);
    }

    /// Takes the next signal that came after the program had ended.
    pub(crate) fn take_signal(&self) -> Option<LeftSignal> {
        let mut left = self.heard.left.lock();
        if left.is_empty() { None } else { Some(left.remove(0)) }
    }

    /// Whether a process is in the front's group.
    pub(crate) fn has_in_its_group(&self, pid: u32) -> bool {
        jobs::group(pid) == Some(self.group())
    }

    /// The front's group.
    pub(crate) fn group(&self) -> u32 {
        self.group.map_or(0, |group| group.as_raw_pid().cast_unsigned())
    }
}
