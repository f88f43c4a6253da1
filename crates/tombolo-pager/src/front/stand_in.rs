//! The front's own process: it stands in for the program.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;

use rustix::process::{DumpableBehavior, Pid, WaitOptions};
use tombolo_host::signals::{self, Inherited, Taken};
use tombolo_host::timing::pager as timing;
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_host::{event, family, process};

use super::judge::{Judge, Meant, Queues};
use super::messages::Message;
use super::witness::Witness;

/// Stands in for the program until the supervisor has ended. Returns the exit code, unless the program, or else the supervisor, was ended
/// by a signal: this process ends by the same.
pub(super) fn stand_in(supervisor: SeqpacketSocket, pid: Pid, inherited: Inherited) -> u8 {
    let mut status = None;
    let mut program = None;
    // Until a program is about to start, signals do to this process what they do to any.
    if let Some((Message::Starting, _)) = Message::receive(&supervisor) {
        signals::block_all();
        if let Ok(mut front) = StandIn::new(&supervisor, pid, inherited) {
            Message::Starting.send(&supervisor, None);
            front.serve();
            (status, program) = (front.supervisor_status, front.ended);
        }
    }
    drop(supervisor);
    let status = status.or_else(|| wait_for(pid));
    end_as(program, status)
}

/// The status of a child, once it has ended.
fn wait_for(child: Pid) -> Option<ExitStatus> {
    loop {
        match rustix::process::waitpid(Some(child), WaitOptions::empty()) {
            Ok(Some((_, status))) => return Some(ExitStatus::from_raw(status.as_raw())),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}

/// Ends as the program has; where there was none, or nobody knows how it has ended, as the supervisor.
fn end_as(program: Option<ExitStatus>, supervisor: Option<ExitStatus>) -> u8 {
    let code = supervisor.and_then(|status| status.code());
    let signal = match code {
        Some(_) => program.and_then(|status| status.signal()),
        None => Some(supervisor.and_then(|status| status.signal()).unwrap_or(libc::SIGKILL)),
    };
    if let Some(signal) = signal {
        // The program has left its own.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
        signals::suffer(signal);
        return 128u8.wrapping_add(signal as u8);
    }
    code.map_or(125, |code| code as u8)
}

struct StandIn<'a> {
    supervisor: &'a SeqpacketSocket,
    supervisor_pid: Pid,
    inherited: Inherited,
    /// Readable while signals wait.
    signals: OwnedFd,
    witness: Witness,
    /// Where this process could not leave the program's group.
    judge: Option<Judge>,
    program: Option<Program>,
    /// What it was stopped by last.
    stopped_by: Option<i32>,
    /// How it ended.
    ended: Option<ExitStatus>,
    /// How the supervisor ended.
    supervisor_status: Option<ExitStatus>,
}

struct Program {
    pid: u32,
    pidfd: OwnedFd,
}

impl<'a> StandIn<'a> {
    fn new(supervisor: &'a SeqpacketSocket, supervisor_pid: Pid, inherited: Inherited) -> io::Result<Self> {
        let stays = family::leads_its_session();
        Ok(Self {
            supervisor,
            supervisor_pid,
            inherited,
            signals: signals::readable_while_pending()?,
            witness: Witness::start(stays)?,
            judge: stays.then(Judge::default),
            program: None,
            stopped_by: None,
            ended: None,
            supervisor_status: None,
        })
    }

    /// Until the supervisor is gone.
    fn serve(&mut self) {
        loop {
            // What came before the program did was for it: it may not have been in the group yet.
            let is_known = self.program.is_some();
            if is_known {
                self.take_signals(false);
            }
            match Message::try_receive(self.supervisor) {
                None => return,
                Some(Some((message, descriptor))) => self.heard(message, descriptor),
                Some(None) => {
                    let both = [self.supervisor.as_fd(), self.signals.as_fd()];
                    let _ = event::wait_readable(if is_known { &both } else { &both[..1] }, None);
                }
            }
        }
    }

    fn heard(&mut self, message: Message, descriptor: Option<OwnedFd>) {
        match (message, descriptor) {
            (Message::Started(pid), Some(pidfd)) => {
                self.program = Some(Program { pid: pid.cast_unsigned(), pidfd });
                if self.judge.is_none() {
                    self.leave_group();
                }
                self.take_signals(true);
            }
            // It may go on by now.
            (Message::Stopped(signal), _) if self.is_stopped() => {
                self.stopped_by = Some(signal);
                signals::suffer(signal);
            }
            (Message::Ended(status), _) => {
                self.ended = Some(ExitStatus::from_raw(status));
                if self.judge.is_none() {
                    self.witness.pass_on();
                }
            }
            _ => {}
        }
    }

    fn is_stopped(&self) -> bool {
        self.program.as_ref().is_some_and(|program| family::is_stopped(program.pid))
    }

    /// What is sent to the group does not reach this process from now on.
    fn leave_group(&self) {
        // For the supervisor's; where that has none of its own, since this one's has no number here, for a new one. It may: it does not
        // lead its session.
        let _ = rustix::process::setpgid(None, Some(self.supervisor_pid))
            .or_else(|_| rustix::process::setpgid(None, None));
    }

    /// Takes those that wait. `all_for_the_program`: none of them has reached it.
    fn take_signals(&mut self, all_for_the_program: bool) {
        while let Some(number) = signals::pending().first() {
            let taken = match &mut self.judge {
                Some(judge) => judge.take(number, &mut Kernel { witness: &mut self.witness }),
                None => signals::take(number).map(|taken| (taken, Meant::Process)),
            };
            if let Some((taken, meant)) = taken {
                self.taken(&taken, if all_for_the_program { Meant::Process } else { meant });
            }
        }
    }

    fn taken(&mut self, taken: &Taken, meant: Meant) {
        let is_kernels = taken.code > libc::SI_USER;
        if taken.number == libc::SIGCHLD && is_kernels {
            return self.reap();
        }
        // The program goes on, or its group, and so does this process.
        let is_of_witness = taken.sender == self.witness.pid().as_raw_pid();
        let is_ours = is_of_witness || taken.sender == self.supervisor_pid.as_raw_pid();
        if taken.number == libc::SIGCONT && is_ours {
            // Unless it has stopped again.
            if let Some(signal) = self.stopped_by.filter(|_| self.is_stopped()) {
                signals::suffer(signal);
            }
            return;
        }
        let meant = if is_of_witness { Meant::Group } else { meant };
        let alive = self
            .program
            .as_ref()
            .filter(|program| self.ended.is_none() && !process::has_ended(&program.pidfd));
        match (alive, taken.number) {
            (Some(program), _) => {
                // One that has just ended, or has another user, gets none.
                if meant == Meant::Process {
                    let _ = signals::pass_on(program.pidfd.as_fd(), taken);
                }
            }
            (None, number @ (libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGHUP))
                if !self.inherited.ignores(number) =>
            {
                let is_for_group = meant == Meant::Group;
                Message::Signal { number, is_for_group }.send(self.supervisor, None);
            }
            (None, number @ (libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU))
                if !self.inherited.ignores(number) =>
            {
                signals::suffer(number);
            }
            (None, _) => {}
        }
    }

    /// Takes the status of all children that have ended: as the first process of a pid namespace, this one gets the orphans in it.
    fn reap(&mut self) {
        while let Ok(Some((child, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if child == self.supervisor_pid {
                self.supervisor_status = Some(ExitStatus::from_raw(status.as_raw()));
            } else if self.witness.pid() == child
                && self.judge.is_some()
                && let Ok(witness) = Witness::start(true)
            {
                self.witness = witness;
            }
        }
    }
}

/// The kernel's queues of the front and its witness.
struct Kernel<'a> {
    witness: &'a mut Witness,
}

impl Queues for Kernel<'_> {
    fn own(&mut self, number: i32) -> Option<Taken> {
        signals::take(number)
    }

    fn own_waits(&mut self, number: i32) -> bool {
        signals::pending().contains(number)
    }

    fn twin(&mut self, number: i32) -> Option<Taken> {
        match self.witness.take(number) {
            Ok(taken) => taken,
            Err(UnixError::WouldBlock) => None,
            // Somebody has killed it. What it had is not known.
            Err(_) => {
                if let Ok(witness) = Witness::start(true) {
                    *self.witness = witness;
                }
                None
            }
        }
    }

    fn settle(&mut self) {
        thread::sleep(timing::GROUP_SETTLES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_as_the_program_or_else_as_the_supervisor() {
        let code = |code: i32| Some(ExitStatus::from_raw(code << 8));
        assert_eq!(end_as(code(3), code(3)), 3);
        // A program that could not be started.
        assert_eq!(end_as(None, code(127)), 127);
        assert_eq!(end_as(code(0), code(255)), 255);
    }
}
