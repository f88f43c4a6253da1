//! The front's own process, which stands in for the program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread;

use rustix::process::{DumpableBehavior, Pid, WaitOptions};
use tombolo_host::jobs::STOPS;
use tombolo_host::signals::{self, Inherited, SignalSet, Taken};
use tombolo_host::timing::pager as timing;
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_host::{event, jobs, process};

use super::judge::{Judge, Meant, Queues};
use super::messages::Message;
use super::witness::Witness;

/// Stands in for the program until the supervisor has ended. Returns the exit code. If the program was ended by a signal,
/// or else the supervisor was, this process ends by the same signal instead.
pub(super) fn stand_in(
    supervisor: SeqpacketSocket,
    pid: Pid,
    leads_its_session: bool,
    inherited: Inherited,
) -> u8 {
    let mut status = None;
    let mut program = None;
    // Until a program is about to start, signals have their usual effect on this process.
    if Message::receive(&supervisor) == Some(Message::Starting) {
        signals::block_all();
        if let Ok(mut front) = StandIn::new(&supervisor, pid, leads_its_session, inherited) {
            Message::Starting.send(&supervisor);
            front.serve();
            front.end_program();
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

/// Ends as the program has ended. If there was no program, or its status is unknown, ends as the supervisor has ended.
fn end_as(program: Option<ExitStatus>, supervisor: Option<ExitStatus>) -> u8 {
    let code = supervisor.and_then(|status| status.code());
    let signal = match code {
        Some(_) => program.and_then(|status| status.signal()),
        None => Some(supervisor.and_then(|status| status.signal()).unwrap_or(libc::SIGKILL)),
    };
    if let Some(signal) = signal {
        // The program has left its own core file.
        let _ = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
        signals::apply_default_action(signal);
        return 128u8.wrapping_add(signal as u8);
    }
    code.map_or(125, |code| code as u8)
}

struct StandIn<'a> {
    supervisor: &'a SeqpacketSocket,
    supervisor_pid: Pid,
    inherited: Inherited,
    /// The group in which this process was started, which is the program's. `None` if it comes from outside this pid
    /// namespace.
    group: Option<u32>,
    /// A descriptor that is readable while signals are pending.
    signals: OwnedFd,
    witness: Witness,
    witness_is_gone: bool,
    /// Present if this process could not leave the program's group.
    judge: Option<Judge>,
    /// Whether the witness may have signals that never came to this process ([`Judge::forget`]).
    has_judged: bool,
    program: Option<Program>,
    /// Whether the program was executed. Before that, the supervisor waits for the execution and does not see stops.
    is_started: bool,
    /// The stop signal that came before the program was executed, if there was one.
    early_stop: Option<i32>,
    /// How the program ended.
    ended: Option<ExitStatus>,
    /// How the supervisor ended.
    supervisor_status: Option<ExitStatus>,
}

struct Program {
    pid: u32,
    pidfd: OwnedFd,
}

impl Program {
    fn has_ended(&self) -> bool {
        process::has_ended(&self.pidfd)
    }

    /// Whether the program is still stopped, after the kernel has reported a stop.
    fn is_stopped(&self) -> bool {
        jobs::is_stopped_or_traced(self.pid) && !self.has_ended()
    }
}

impl<'a> StandIn<'a> {
    /// Starts the witness and leaves the group, unless this process leads its session.
    fn new(
        supervisor: &'a SeqpacketSocket,
        supervisor_pid: Pid,
        leads_its_session: bool,
        inherited: Inherited,
    ) -> io::Result<Self> {
        let group = jobs::own_group().map(|group| group.as_raw_pid().cast_unsigned());
        let front = Self {
            supervisor,
            supervisor_pid,
            inherited,
            group,
            signals: signals::readable_while_pending()?,
            witness: Witness::start(leads_its_session, group)?,
            witness_is_gone: false,
            judge: leads_its_session.then(Judge::default),
            has_judged: false,
            program: None,
            is_started: false,
            early_stop: None,
            ended: None,
            supervisor_status: None,
        };
        if leads_its_session || front.leave_group() {
            Ok(front)
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }

    /// Moves this process into the supervisor's group, or into a new one if the supervisor has none (its group is from
    /// outside this pid namespace). Returns whether that succeeded; it cannot fail for a process that does not lead its
    /// session.
    fn leave_group(&self) -> bool {
        let group = rustix::process::setpgid(None, Some(self.supervisor_pid));
        group.or_else(|_| rustix::process::setpgid(None, None)).is_ok()
    }

    /// Passes signals and messages on until the supervisor is gone.
    fn serve(&mut self) {
        loop {
            // Signals that come before the program is executed stay pending.
            if self.is_started {
                // In this order: the witness reports a continuation before it continues this process.
                self.read_witness();
                self.take_signals();
            }
            match Message::try_receive(self.supervisor) {
                None => return,
                Some(Some(message)) => self.handle_message(message),
                Some(None) => {
                    let all: [BorrowedFd<'_>; 3] =
                        [self.supervisor.as_fd(), self.signals.as_fd(), self.witness.readable()];
                    // A witness that answers questions sends nothing else.
                    let is_told = self.judge.is_none() && !self.witness_is_gone;
                    let (listened, pause) = match (self.is_started, is_told) {
                        (false, _) => (1, self.program.as_ref().map(|_| timing::STARTING_INTERVAL)),
                        (true, false) => (2, self.has_judged.then_some(timing::TWINS_KEPT)),
                        (true, true) => (3, None),
                    };
                    let came = event::wait_readable(&all[..listened], pause).unwrap_or(true);
                    if !came {
                        self.handle_timeout();
                    }
                }
            }
        }
    }

    fn handle_timeout(&mut self) {
        if !self.is_started {
            self.end_early_stop();
        } else if let Some(judge) = &mut self.judge {
            self.has_judged = false;
            judge.forget(&mut Kernel { witness: &mut self.witness });
        }
    }

    /// Continues a program that was stopped before it is executed, since the supervisor waits for the execution. The
    /// program is stopped again afterwards.
    fn end_early_stop(&mut self) {
        if let Some(program) = self.program.as_ref().filter(|program| jobs::is_stopped(program.pid)) {
            self.early_stop.get_or_insert(libc::SIGTSTP);
            let _ = process::signal(&program.pidfd, libc::SIGCONT);
        }
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Joined(pid) => {
                let pid = pid.cast_unsigned();
                // The process waits for the answer, so its number is not given again.
                let Ok(pidfd) = process::pidfd(pid) else { return Message::NotReady.send(self.supervisor) };
                self.program = Some(Program { pid, pidfd });
                self.send_earlier_signals();
                message.send(self.supervisor);
            }
            Message::Started => {
                self.is_started = true;
                if self.judge.is_none()
                    && self.witness.drain_reported().iter().any(|told| told.number == libc::SIGCONT)
                {
                    self.early_stop = None;
                }
                if let (Some(stop), Some(program)) = (self.early_stop, &self.program) {
                    let _ = process::signal(&program.pidfd, stop);
                }
            }
            Message::Stopped(signal) => {
                self.program_stopped(signal);
                Message::StopDone.send(self.supervisor);
            }
            Message::Ended(status) => {
                if self.judge.is_none() {
                    // These came while the program lived, and one of them may have ended it.
                    let _ = self.witness.drain_reported();
                }
                self.ended = Some(ExitStatus::from_raw(status));
            }
            Message::Starting | Message::NotReady | Message::StopDone | Message::Signal { .. } => {}
        }
    }

    /// Kills the program if the supervisor has ended without reporting the program's end: a program without an agent is
    /// unknown to the keeper.
    fn end_program(&self) {
        if let (None, Some(program)) = (self.ended, &self.program) {
            let _ = process::signal(&program.pidfd, libc::SIGKILL);
        }
    }

    /// Sends the program's process the group's signals that came before it joined the group. It has blocked all signals and
    /// waits for the answer, so a signal below 32 that came to both the witness and this process a moment ago is delivered
    /// once.
    fn send_earlier_signals(&mut self) {
        let earlier: Vec<Taken> = match &mut self.judge {
            // The group's signals come to this process, too.
            Some(judge) => {
                let mut kernel = Kernel { witness: &mut self.witness };
                let all_of = |number| std::iter::from_fn(move || signals::take(number));
                let taken = signals::pending().iter().flat_map(all_of).collect();
                judge.forget(&mut kernel);
                self.has_judged = true;
                taken
            }
            None => self.witness.drain_reported(),
        };
        if earlier.iter().any(|signal| signal.number == libc::SIGCHLD) {
            self.reap();
        }
        let Some(program) = &self.program else { return };
        for signal in earlier {
            if STOPS.contains(&signal.number) {
                // Sent later: the supervisor waits until the program is executed.
                self.early_stop = Some(signal.number);
            } else if !is_of_children(&signal) {
                let _ = signals::pass_on(program.pidfd.as_fd(), &signal);
            }
        }
    }

    /// Stops this process by the signal that has stopped the program; the supervisor continues it when the program is continued.
    fn program_stopped(&mut self, signal: i32) {
        // The program may have been continued meanwhile.
        if !self.is_stopped() {
            return;
        }
        if STOPS.contains(&signal) {
            if signal != libc::SIGTSTP && self.give_terminal() {
                return self.send_to_its_group(libc::SIGCONT);
            }
            if self.is_orphaned() {
                return self.resume_orphan(signal);
            }
        }
        // The shell may have continued the job since: were this process stopped now, the shell would take the job for stopped again.
        if self.is_started {
            self.read_witness();
        }
        if self.is_stopped() {
            signals::apply_default_action(signal);
        }
    }

    fn is_stopped(&self) -> bool {
        self.program.as_ref().is_some_and(Program::is_stopped)
    }

    /// The program's own group, if the program has made one and this process led the group in which both were started.
    /// Without Tombolo the program would lead that group and still be in it.
    fn own_group_of_program(&self) -> Option<u32> {
        let pid = self.program.as_ref()?.pid;
        let did_lead = self.group == Some(std::process::id());
        (did_lead && jobs::leads_its_group(pid)).then_some(pid)
    }

    /// The group in which the program is.
    fn group_of_program(&self) -> Option<u32> {
        jobs::group(self.program.as_ref()?.pid)
    }

    /// Hands the terminal to the program's own group if the shell has given it to the group in which the program was started.
    fn give_terminal(&self) -> bool {
        let (Some(from), Some(to)) = (self.group, self.own_group_of_program()) else { return false };
        jobs::hand_terminal_on(from, to)
    }

    /// Sends a signal to the program's group, or to the program alone if the group is that of a container's first process.
    fn send_to_its_group(&self, number: i32) {
        match (self.group_of_program(), &self.program) {
            (Some(group @ 2..), _) => jobs::pass_on(group, number),
            (_, Some(program)) => drop(process::signal(&program.pidfd, number)),
            _ => {}
        }
    }

    /// Whether the program's group would be orphaned without Tombolo: the kernel would not have stopped the program then.
    /// The supervisor, its parent, keeps the kernel from seeing that. (Where this process leads its session, the supervisor
    /// is in another, and the kernel sees it.)
    fn is_orphaned(&self) -> bool {
        let (None, Some(group)) = (&self.judge, self.group) else { return false };
        let own = std::process::id();
        let Some((parent, session)) = jobs::parent_and_session(own) else { return false };
        let ours = [own, self.supervisor_pid.as_raw_pid().cast_unsigned()];
        !jobs::looks_after(parent, group, session) && !jobs::is_looked_after(group, session, &ours)
    }

    /// Resumes a stopped program of an orphaned group. The kernel would have dropped SIGTSTP, and failed the read or write
    /// of the terminal; since that cannot be done afterwards, the group gets what the kernel sends when a stopped group
    /// becomes orphaned.
    fn resume_orphan(&self, signal: i32) {
        if signal == libc::SIGTSTP {
            return self.send_to_its_group(libc::SIGCONT);
        }
        self.send_to_its_group(libc::SIGHUP);
        self.send_to_its_group(libc::SIGCONT);
        // A program that ignores SIGHUP tries again.
        thread::sleep(timing::ORPHAN_STOP_INTERVAL);
    }

    /// Handles the signals that the witness has reported, where this process has left the group.
    fn read_witness(&mut self) {
        while self.judge.is_none() && !self.witness_is_gone {
            match self.witness.next_reported() {
                Ok(Some(taken)) => {
                    self.handle_group_signal(&taken);
                    if taken.number == libc::SIGCONT {
                        self.witness.acknowledge();
                    }
                }
                Ok(None) => return,
                Err(_) => self.witness_is_gone = true,
            }
        }
    }

    /// Takes and handles the pending signals.
    fn take_signals(&mut self) {
        while let Some(number) = signals::pending().first() {
            let taken = match &mut self.judge {
                Some(judge) => {
                    self.has_judged = true;
                    judge.take(number, &mut Kernel { witness: &mut self.witness })
                }
                None => signals::take(number).map(|taken| (taken, Meant::Process)),
            };
            if let Some((taken, meant)) = taken {
                self.handle_signal(&taken, meant);
            }
        }
    }

    fn handle_signal(&mut self, taken: &Taken, meant: Meant) {
        if taken.number == libc::SIGCHLD {
            self.reap();
        }
        if is_of_children(taken) {
            return;
        }
        let is_continuation = taken.number == libc::SIGCONT;
        let is_ours = [self.witness.pid(), self.supervisor_pid].map(Pid::as_raw_pid).contains(&taken.sender);
        // The supervisor or the witness has continued this process. If the program has stopped again, the supervisor reports that.
        if is_continuation && is_ours {
            return;
        }
        // The kernel has found this process's group orphaned: its shell has ended.
        let is_kernels = taken.code > libc::SI_USER;
        if self.judge.is_none() && is_kernels && (is_continuation || taken.number == libc::SIGHUP) {
            if !is_continuation && self.is_stopped() && self.is_orphaned() {
                self.resume_orphan(taken.number);
            }
            return;
        }
        if meant == Meant::Group {
            return self.handle_group_signal(taken);
        }
        let Some(program) = self.living_program() else { return self.forward_to_descendants(taken, false) };
        // Fails if the program has just ended, or has another user.
        let _ = signals::pass_on(program.pidfd.as_fd(), taken);
        if is_continuation {
            // A SIGSTOP for the group has stopped the witness, too.
            self.witness.go_on();
        }
    }

    fn living_program(&self) -> Option<&Program> {
        self.program.as_ref().filter(|program| self.ended.is_none() && !program.has_ended())
    }

    /// Handles a signal that every process of the group has got.
    fn handle_group_signal(&self, taken: &Taken) {
        if self.ended.is_some() {
            return self.forward_to_descendants(taken, true);
        }
        // A program that has just ended may have been ended by this signal.
        if self.living_program().is_some()
            && let Some(group) = self.own_group_of_program()
        {
            if taken.number == libc::SIGCONT {
                self.give_terminal();
            }
            jobs::pass_on(group, taken.number);
        }
    }

    /// Handles a signal that came after the program has ended: it is for the program's descendants.
    fn forward_to_descendants(&self, taken: &Taken, is_for_group: bool) {
        let number = taken.number;
        if self.inherited.ignores(number) {
            return;
        }
        match number {
            libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGHUP => {
                Message::Signal { number, is_for_group }.send(self.supervisor);
            }
            _ if STOPS.contains(&number) => signals::apply_default_action(number),
            _ => {}
        }
    }

    /// Takes the status of all children that have ended or stopped. As the first process of a pid namespace, this process
    /// also gets the orphans in it.
    fn reap(&mut self) {
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Ok(Some((child, status))) = rustix::process::wait(options) {
            let has_stopped = status.stopped();
            if child == self.supervisor_pid && !has_stopped {
                self.supervisor_status = Some(ExitStatus::from_raw(status.as_raw()));
            } else if child == self.witness.pid() {
                let killed = status.terminating_signal();
                if has_stopped || killed == Some(libc::SIGKILL) {
                    self.forward_uncatchable(if has_stopped { libc::SIGSTOP } else { libc::SIGKILL });
                }
                if !has_stopped {
                    self.witness_is_gone = true;
                    self.replace_witness();
                }
            }
        }
    }

    /// Forwards SIGSTOP or SIGKILL, which the witness could not take and the group was sent, to the program's own group.
    fn forward_uncatchable(&self, number: i32) {
        if let Some(group) = self.own_group_of_program().filter(|_| self.ended.is_none()) {
            jobs::pass_on(group, number);
        }
    }

    /// Starts another witness in the same group if that group still exists.
    fn replace_witness(&mut self) {
        let own = std::process::id();
        let is_judged = self.judge.is_some();
        // The number of an empty group may become another job's, unless it is this process's number.
        let made_anew = match self.group {
            _ if is_judged => false,
            Some(group) if jobs::is_group(group) => false,
            Some(group) if group == own => rustix::process::setpgid(None, None).is_ok(),
            _ => return,
        };
        if let Ok(witness) = Witness::start(is_judged, self.group) {
            self.witness = witness;
            self.witness_is_gone = false;
        }
        if made_anew {
            self.leave_group();
        }
    }
}

/// Whether a signal tells of the end of a child of this process: that is not for the program.
fn is_of_children(taken: &Taken) -> bool {
    taken.number == libc::SIGCHLD && taken.code > libc::SI_USER
}

/// The kernel's signal queues of the front and of its witness.
struct Kernel<'a> {
    witness: &'a mut Witness,
}

impl Kernel<'_> {
    /// Unwraps an answer of the witness. Replaces a witness that was killed; its signals are lost.
    fn answer_of_witness<T>(&mut self, answer: Result<T, UnixError>) -> Option<T> {
        match answer {
            Ok(answer) => return Some(answer),
            Err(UnixError::WouldBlock) => {}
            Err(_) => {
                if let Ok(witness) = Witness::start(true, None) {
                    *self.witness = witness;
                }
            }
        }
        None
    }
}

impl Queues for Kernel<'_> {
    fn own(&mut self, number: i32) -> Option<Taken> {
        signals::take(number)
    }

    fn own_waits(&mut self, number: i32) -> bool {
        signals::pending().contains(number)
    }

    fn twin(&mut self, number: i32) -> Option<Taken> {
        let answer = self.witness.take(number);
        self.answer_of_witness(answer)?
    }

    fn twins(&mut self) -> SignalSet {
        let answer = self.witness.pending();
        self.answer_of_witness(answer).unwrap_or_default()
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
