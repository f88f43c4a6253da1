//! The witness: a process in the program's group that blocks every signal and tells the front of the group's signals. If
//! the front has left the group, the witness reports each signal as it comes. If the front is in the group, the witness
//! answers its questions.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tombolo_host::signals::{self, SignalSet, Taken};
use tombolo_host::split::{self, Half};
use tombolo_host::timing::pager as timing;
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_host::{event, jobs, process};

/// The front's handle of the witness.
#[derive(Debug)]
pub(super) struct Witness {
    pid: Pid,
    /// The pidfd: when the witness has ended, its number may be another process's.
    pidfd: OwnedFd,
    socket: SeqpacketSocket,
}

impl Witness {
    /// Starts a witness in `group`, or in the caller's group if that has no number in this pid namespace. The caller has
    /// blocked all signals. `is_asked`: the witness answers [`Self::take`]; otherwise it reports each signal
    /// ([`Self::next_reported`]).
    pub(super) fn start(is_asked: bool, group: Option<u32>) -> io::Result<Self> {
        let (ours, theirs) = SeqpacketSocket::pair().map_err(io::Error::other)?;
        let front = rustix::process::getpid();
        match split::fork()? {
            Half::Parent { child } => {
                let pidfd = process::pidfd(child.as_raw_pid().cast_unsigned())?;
                Ok(Self { pid: child, pidfd, socket: ours })
            }
            Half::Child => {
                drop(ours);
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                // `killall tombolo` and `pkill` are meant for the front. If the witness got their signal as well, it would
                // look like a signal for the group.
                let _ = split::rename("witness");
                if let Some(group) = group.and_then(|group| Pid::from_raw(group.cast_signed()))
                    && rustix::process::setpgid(None, Some(group)).is_err()
                {
                    // The group has no members any more.
                    std::process::exit(0)
                }
                let is_there = || rustix::process::getppid() == Some(front);
                if is_asked {
                    answer(is_there, &theirs)
                } else {
                    report(is_there, front, &theirs)
                }
                std::process::exit(0)
            }
        }
    }

    /// Takes a signal that waits at the witness. `Err`: the witness has ended.
    pub(super) fn take(&self, number: i32) -> Result<Option<Taken>, UnixError> {
        let (answer, was_continued) = self.ask(number)?;
        if was_continued {
            // That continuation came from the front. A continuation for the group would have continued the witness already.
            if number == libc::SIGCONT {
                return Ok(None);
            }
            self.ask(libc::SIGCONT)?;
        }
        Ok(answer)
    }

    /// The signals that wait at the witness.
    pub(super) fn pending(&self) -> Result<SignalSet, UnixError> {
        let (answer, _) = self.ask(PENDING)?;
        Ok(SignalSet::from_bits(answer.map_or(0, |answer| answer.value as u64)))
    }

    /// The witness's answer, and whether this call had to continue the witness first.
    fn ask(&self, question: i32) -> Result<(Option<Taken>, bool), UnixError> {
        self.socket.send(&[&question.to_ne_bytes()], &[])?;
        let mut was_continued = false;
        let since = Instant::now();
        loop {
            if since.elapsed() > timing::WITNESS_ANSWERS {
                // A debugger may have halted it. A late answer would be taken for the answer to a later question.
                let _ = process::signal(&self.pidfd, libc::SIGKILL);
                return Err(UnixError::Closed);
            }
            if let Some(answer) = self.receive()? {
                return Ok((answer, was_continued));
            }
            let came =
                event::wait_readable(&[self.socket.as_fd()], Some(timing::WITNESS_PAUSE)).unwrap_or(true);
            // A SIGSTOP for the group has stopped the witness, and only the front was continued.
            if !came {
                was_continued |= self.go_on();
            }
        }
    }

    /// The next message of the witness, if there is one: a signal, or `None` for "no signal".
    fn receive(&self) -> Result<Option<Option<Taken>>, UnixError> {
        let mut answer = [0; ANSWER_BYTES];
        match self.socket.receive(&mut answer) {
            Ok(received) if received.length_bytes == ANSWER_BYTES => Ok(Some(from_bytes(&answer))),
            Ok(_) => Ok(Some(None)),
            Err(UnixError::WouldBlock) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next signal of the group that the witness has reported. `Err`: the witness has ended.
    pub(super) fn next_reported(&self) -> Result<Option<Taken>, UnixError> {
        Ok(self.receive()?.flatten())
    }

    /// All signals that have come to the group until now and that the front has not read yet.
    pub(super) fn drain_reported(&self) -> Vec<Taken> {
        let mut told = Vec::new();
        let since = Instant::now();
        if self.socket.send(&[&PENDING.to_ne_bytes()], &[]).is_err() {
            return told;
        }
        // A debugger may have halted the witness.
        while since.elapsed() < timing::WITNESS_ANSWERS {
            match self.receive() {
                Ok(Some(Some(taken))) => {
                    if taken.number == libc::SIGCONT {
                        self.acknowledge();
                    }
                    told.push(taken);
                }
                Ok(Some(None)) | Err(_) => break,
                Ok(None) => {
                    let came = event::wait_readable(&[self.socket.as_fd()], Some(timing::WITNESS_PAUSE))
                        .unwrap_or(true);
                    if !came {
                        self.go_on();
                    }
                }
            }
        }
        told
    }

    /// Tells the witness that the front has read a continuation.
    pub(super) fn acknowledge(&self) {
        let _ = self.socket.send(&[&HEARD.to_ne_bytes()], &[]);
    }

    /// Continues the witness if it is stopped. Returns whether it was.
    pub(super) fn go_on(&self) -> bool {
        jobs::go_on(&self.pidfd, self.pid.as_raw_pid().cast_unsigned())
    }

    /// Readable when the witness has sent a message.
    pub(super) fn readable(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Process number of the witness.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = process::signal(&self.pidfd, libc::SIGKILL);
        let _ = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED);
    }
}

/// Question in place of a signal's number: which signals are pending?
const PENDING: i32 = 0;
/// Sent in place of a signal's number: the front has read a continuation.
const HEARD: i32 = -1;
const ANSWER_BYTES: usize = 24;
/// The message for "no signal": any length but `ANSWER_BYTES`.
const NONE: [u8; 1] = [0];

fn to_bytes(taken: &Taken) -> [u8; ANSWER_BYTES] {
    let Taken { number, code, sender, user, value } = *taken;
    let mut bytes = [0; ANSWER_BYTES];
    let words = [number.cast_unsigned(), code.cast_unsigned(), sender.cast_unsigned(), user];
    for (place, word) in words.iter().enumerate() {
        bytes[4 * place..4 * place + 4].copy_from_slice(&word.to_ne_bytes());
    }
    bytes[16..].copy_from_slice(&value.to_ne_bytes());
    bytes
}

fn from_bytes(bytes: &[u8; ANSWER_BYTES]) -> Option<Taken> {
    let word = |place: usize| Some(u32::from_ne_bytes(bytes.get(4 * place..4 * place + 4)?.try_into().ok()?));
    let value = usize::from_ne_bytes(bytes[16..].try_into().ok()?);
    Some(Taken {
        number: word(0)?.cast_signed(),
        code: word(1)?.cast_signed(),
        sender: word(2)?.cast_signed(),
        user: word(3)?,
        value,
    })
}

/// Reports each signal of the group to the front until the front is gone, and continues the front when the group is continued. Answers a
/// question once all signals that came before it are reported.
fn report(is_there: impl Fn() -> bool, front: Pid, socket: &SeqpacketSocket) {
    let number = front.as_raw_pid().cast_unsigned();
    let (Ok(signals), Ok(front_pidfd)) = (signals::readable_while_pending(), process::pidfd(number)) else {
        return;
    };
    let (mut is_asked, mut is_to_go_on) = (false, false);
    while is_there() {
        loop {
            let mut said = [0; 4];
            match socket.receive(&mut said) {
                Ok(_) if i32::from_ne_bytes(said) == HEARD => is_to_go_on = false,
                Ok(_) => is_asked = true,
                Err(UnixError::WouldBlock) => break,
                Err(_) => return,
            }
        }
        while let Some(pending) = signals::pending().first() {
            let Some(taken) = signals::take(pending) else { continue };
            let is_continuation = taken.number == libc::SIGCONT;
            if is_continuation && taken.sender == front.as_raw_pid() {
                continue;
            }
            // A stopped front does not read. If the socket is full, the signal is lost, just as the kernel drops a signal
            // of which one is pending already.
            let is_sent = socket.send(&[&to_bytes(&taken)], &[]).is_ok();
            is_to_go_on |= is_continuation && is_sent;
        }
        // Repeated until the front has read the continuation, since the front may be about to stop. A continuation for a
        // front that is not stopped would merge with one that was sent to the front alone.
        if is_to_go_on {
            jobs::go_on(&front_pidfd, number);
        }
        if is_asked && !matches!(socket.send(&[&NONE], &[]), Err(UnixError::WouldBlock)) {
            is_asked = false;
        }
        let pause = (is_asked || is_to_go_on).then_some(timing::WITNESS_PAUSE);
        let _ = event::wait_readable(&[signals.as_fd(), socket.as_fd()], pause);
    }
}

/// Answers the front's questions until the front is gone.
fn answer(is_there: impl Fn() -> bool, socket: &SeqpacketSocket) {
    while is_there() {
        let mut asked = [0; 4];
        match socket.receive(&mut asked) {
            Ok(_) => {
                let answer = match i32::from_ne_bytes(asked) {
                    PENDING => {
                        let value = signals::pending().to_bits() as usize;
                        Some(Taken { number: PENDING, code: 0, sender: 0, user: 0, value })
                    }
                    number => signals::take(number),
                };
                let sent = match answer {
                    Some(taken) => socket.send(&[&to_bytes(&taken)], &[]),
                    None => socket.send(&[&NONE], &[]),
                };
                if sent.is_err() {
                    break;
                }
            }
            Err(UnixError::WouldBlock) => {
                let _ = event::wait_readable(&[socket.as_fd()], None);
            }
            Err(_) => break,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_says_is_understood() {
        let taken = Taken { number: 64, code: -1, sender: 4_000_000, user: u32::MAX, value: usize::MAX - 5 };
        assert_eq!(from_bytes(&to_bytes(&taken)), Some(taken));
    }
}
