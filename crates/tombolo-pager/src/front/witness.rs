//! The witness: a process of the program's group that blocks every signal. It has the front go on when the group does, and passes on what
//! comes when the program has ended. Or, where the front is of the group as well, it says which signals have come to it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use tombolo_host::signals::{self, Taken};
use tombolo_host::split::{self, Half};
use tombolo_host::timing::pager as timing;
use tombolo_host::unix::{SeqpacketSocket, UnixError};
use tombolo_host::{event, family, process};

/// The front's side.
#[derive(Debug)]
pub(super) struct Witness {
    pid: Pid,
    /// Its number may be another process's when it has ended.
    pidfd: OwnedFd,
    socket: SeqpacketSocket,
}

impl Witness {
    /// Starts one, in the group of this process, which has blocked all signals. `is_asked`: it answers [`Self::take`]; otherwise it has
    /// this process go on when the group does.
    pub(super) fn start(is_asked: bool) -> io::Result<Self> {
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
                // `killall tombolo` and `pkill` are for the front: had the witness their signal as well, it would look as if the group had it.
                let _ = split::rename("witness");
                let is_there = || rustix::process::getppid() == Some(front);
                if is_asked {
                    testify(is_there, &theirs)
                } else {
                    relay(is_there, front, &theirs)
                }
                std::process::exit(0)
            }
        }
    }

    /// Takes a signal that it has. `Err`: it has ended.
    pub(super) fn take(&self, number: i32) -> Result<Option<Taken>, UnixError> {
        self.socket.send(&[&number.to_ne_bytes()], &[])?;
        let mut answer = [0; ANSWER_BYTES];
        let mut was_continued = false;
        let length_bytes = loop {
            match self.socket.receive(&mut answer) {
                Ok(received) => break received.length_bytes,
                Err(UnixError::WouldBlock) => {}
                Err(error) => return Err(error),
            }
            let came =
                event::wait_readable(&[self.socket.as_fd()], Some(timing::WITNESS_PAUSE)).unwrap_or(true);
            // SIGSTOP for the group has stopped it, and only the front was continued.
            if !came && family::is_stopped(self.pid.as_raw_pid().cast_unsigned()) {
                let _ = process::signal(&self.pidfd, libc::SIGCONT);
                was_continued = true;
            }
        };
        if was_continued {
            // That was the front's; one for the group would have continued it.
            if number == libc::SIGCONT {
                return Ok(None);
            }
            self.take(libc::SIGCONT)?;
        }
        // Any other length: it has none.
        Ok(if length_bytes == ANSWER_BYTES { from_bytes(&answer) } else { None })
    }

    /// The program has ended: what is sent to the group is for those that it has left behind, and comes to the front from now on.
    pub(super) fn pass_on(&self) {
        let _ = self.socket.send(&[&[0]], &[]);
    }

    /// Its number.
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

const ANSWER_BYTES: usize = 24;

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

/// Has the front go on when the group does, until the front is gone; and passes the group's signals on to it when the front has said so.
fn relay(is_there: impl Fn() -> bool, front: Pid, socket: &SeqpacketSocket) {
    let number = front.as_raw_pid().cast_unsigned();
    let (Ok(signals), Ok(front)) = (signals::readable_while_pending(), process::pidfd(number)) else {
        return;
    };
    let mut passes = false;
    while is_there() {
        match socket.receive(&mut [0; 4]) {
            Ok(_) => passes = true,
            Err(UnixError::WouldBlock) => {}
            Err(_) => return,
        }
        while let Some(pending) = signals::pending().first() {
            // One that comes to a front that is not stopped would hide one that is sent to it alone.
            let is_due = if pending == libc::SIGCONT { family::is_stopped(number) } else { passes };
            if signals::take(pending).is_some() && is_due {
                let _ = process::signal(&front, pending);
            }
        }
        let _ = event::wait_readable(&[signals.as_fd(), socket.as_fd()], None);
    }
}

/// Answers until the front is gone.
fn testify(is_there: impl Fn() -> bool, socket: &SeqpacketSocket) {
    while is_there() {
        let mut asked = [0; 4];
        match socket.receive(&mut asked) {
            Ok(_) => {
                let answer = signals::take(i32::from_ne_bytes(asked));
                let sent = match answer {
                    Some(taken) => socket.send(&[&to_bytes(&taken)], &[]),
                    None => socket.send(&[&[0]], &[]),
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
