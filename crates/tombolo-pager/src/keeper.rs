//! The keeper: a small process that holds a duplicate of every userfaultfd.
//!
//! If all holders of a userfaultfd were gone, the kernel would let the threads that wait for a page go on, with zeroes. So
//! the keeper holds a duplicate. When the supervisor is lost, however it ends, the keeper ends the programs, and poisons
//! the pages that processes touch whose programs it does not know. It starts before the program, decides nothing else, and
//! is ended by the supervisor.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    self, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use tombolo_core::pager::PAGE_BYTES;
use tombolo_host::timing::pager as timing;
use tombolo_host::uffd::{Event, UffdError, Userfaultfd};
use tombolo_host::{event, process};

use crate::space::Space;

/// Message: a space begins. With its userfaultfd.
const ADD: u8 = 1;
/// Message: the program of a space is known. With its pidfd.
const PROGRAM: u8 = 2;
/// Message: a space has ended.
const REMOVE: u8 = 3;

/// The supervisor's handle of the keeper.
#[derive(Debug)]
pub struct Keeper {
    socket: OwnedFd,
    /// A pidfd rather than a process id: the supervisor waits for all its children, so a keeper that has ended may be
    /// reaped already, and another process may have its id.
    process: OwnedFd,
    /// Messages that the keeper's socket has not taken yet.
    waiting: Mutex<VecDeque<Outgoing>>,
}

/// A message to the keeper: its kind, the index of a space, and a descriptor.
type Outgoing = (u8, u32, Option<OwnedFd>);

impl Keeper {
    /// Starts a keeper: `command` is a program that calls [`keep`] with its standard input.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let (ours, theirs) = net::socketpair(
            net::AddressFamily::UNIX,
            net::SocketType::SEQPACKET,
            net::SocketFlags::CLOEXEC,
            None,
        )?;
        let child = command.stdin(theirs).stdout(Stdio::null()).spawn()?;
        Ok(Self { socket: ours, process: process::pidfd(child.id())?, waiting: Mutex::default() })
    }

    /// Process number of the keeper. `None` if it has ended.
    pub fn pid(&self) -> Option<u32> {
        process::pid_of(self.process.as_fd()).ok().flatten()
    }

    /// Sends the keeper a message, in order. If the socket is full (the keeper may have no processor while many processes
    /// are made), the message is kept and sent later. Returns `false` if there is no descriptor for a kept message, which
    /// is then lost.
    fn send(&self, kind: u8, space: u32, descriptor: Option<BorrowedFd<'_>>) -> bool {
        let mut waiting = self.waiting.lock();
        self.send_those(&mut waiting);
        if kind == REMOVE && waiting.iter().any(|(kind, of, _)| (*kind, *of) == (ADD, space)) {
            // The keeper was not told of that space yet.
            waiting.retain(|(_, of, _)| *of != space);
        } else if !waiting.is_empty() || !self.try_send(kind, space, descriptor) {
            let Ok(twin) = descriptor.map(|descriptor| descriptor.try_clone_to_owned()).transpose() else {
                return false;
            };
            waiting.push_back((kind, space, twin));
        }
        true
    }

    /// Sends the kept messages as far as the socket takes them.
    pub fn send_waiting(&self) {
        self.send_those(&mut self.waiting.lock());
    }

    fn send_those(&self, waiting: &mut VecDeque<Outgoing>) {
        while let Some((kind, space, descriptor)) = waiting.front() {
            if !self.try_send(*kind, *space, descriptor.as_ref().map(AsFd::as_fd)) {
                return;
            }
            waiting.pop_front();
        }
    }

    /// Sends a message. Returns `false` if the socket is full.
    fn try_send(&self, kind: u8, space: u32, descriptor: Option<BorrowedFd<'_>>) -> bool {
        let [a, b, c, d] = space.to_ne_bytes();
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        // Other errors do not matter: a keeper that was ended is needed only if the supervisor is lost as well, and agents
        // remain then.
        let sent = net::sendmsg(
            &self.socket,
            &[io::IoSlice::new(&[kind, a, b, c, d])],
            &mut control,
            SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
        );
        // `TOOMANYREFS`: too many descriptors are in sockets whose receivers have not read them.
        !matches!(sent, Err(Errno::AGAIN | Errno::NOBUFS | Errno::TOOMANYREFS | Errno::INTR))
    }

    /// Tells the keeper of a new space. Returns `false` if the message is lost.
    pub fn add(&self, space: &Space) -> bool {
        self.send(ADD, space.index, Some(space.uffd.as_fd()))
    }

    /// Tells the keeper the program of a space. If the message is lost, the keeper poisons the pages that the program
    /// touches.
    pub fn program(&self, space: &Space, pidfd: &OwnedFd) {
        self.send(PROGRAM, space.index, Some(pidfd.as_fd()));
    }

    /// Tells the keeper that a space has ended.
    pub fn remove(&self, space: &Space) {
        self.send(REMOVE, space.index, None);
    }

    /// Ends the keeper at the end of a run that has left no processes. SIGKILL also ends a keeper that is stopped.
    pub fn end(&self) {
        let _ = process::signal(&self.process, libc::SIGKILL);
        // A keeper in a frozen control group ends when the group is thawed. A keeper that was reaped has no status.
        let since = Instant::now();
        let flags = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        while let Ok(None) | Err(Errno::INTR) = waitid(WaitId::PidFd(self.process.as_fd()), flags)
            && since.elapsed() < timing::KEEPER_END
        {
            std::thread::sleep(timing::KEEPER_END_INTERVAL);
        }
    }
}

/// What the keeper knows of a space.
struct Kept {
    uffd: Userfaultfd,
    program: Option<OwnedFd>,
}

/// Runs the keeper until the supervisor at the other end of `socket` is lost.
pub fn keep(socket: &OwnedFd) -> io::Result<()> {
    // The terminal's signals are for the program and its supervisor.
    let _ = rustix::process::setsid();
    process::raise_descriptor_limit();
    let mut kept = HashMap::new();
    while let Some(message) = receive(socket)? {
        match message {
            (ADD, space, Some(descriptor)) => {
                kept.insert(space, Kept { uffd: Userfaultfd::from_descriptor(descriptor), program: None });
            }
            (PROGRAM, space, Some(descriptor)) => {
                if let Some(known) = kept.get_mut(&space) {
                    known.program = Some(descriptor);
                }
            }
            (REMOVE, space, _) => {
                kept.remove(&space);
            }
            _ => {}
        }
    }
    if !kept.is_empty() {
        let count = kept.len();
        end_programs(kept.into_values().collect());
        // Last: writing to standard error may fail, or wait for ever.
        let said = format!(
            "tombolo: the supervisor is gone, and the far memory of its programs with it: {count} process(es) ended\n"
        );
        let _ = io::stderr().write_all(said.as_bytes());
    }
    Ok(())
}

type Message = (u8, u32, Option<OwnedFd>);

/// Receives the next message. `None` if the supervisor is gone.
fn receive(socket: &OwnedFd) -> io::Result<Option<Message>> {
    let mut bytes = [0u8; 5];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    let mut parts = [io::IoSliceMut::new(&mut bytes)];
    let received = loop {
        match net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(Some((bytes[0], u32::from_ne_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]), descriptor)))
}

/// Ends the known programs; other processes that touch far memory get SIGBUS. Returns when no space has a process left.
fn end_programs(mut kept: Vec<Kept>) {
    let pause = event::timespec(timing::KEEPER_INTERVAL);
    while !kept.is_empty() {
        for space in &kept {
            if let Some(program) = &space.program {
                let _ = process::signal(program, libc::SIGKILL);
            }
        }
        let mut forked = Vec::new();
        for space in &kept {
            while let Ok(Some(event)) = space.uffd.read_event() {
                match event {
                    Event::Fault { address, .. } => {
                        // If the page is present after all, the thread goes on with it.
                        let _ = space.uffd.poison(address, PAGE_BYTES as usize);
                        let _ = space.uffd.write_protect(address, PAGE_BYTES as usize, false);
                        let _ = space.uffd.wake(address, PAGE_BYTES as usize);
                    }
                    Event::Fork(uffd) => forked.push(Kept { uffd, program: None }),
                    _ => {}
                }
            }
        }
        kept.retain(|space| {
            !matches!(space.uffd.write_protect(PAGE_BYTES, PAGE_BYTES as usize, false), Err(UffdError::Gone))
        });
        kept.extend(forked);
        let mut descriptors: Vec<PollFd<'_>> =
            kept.iter().map(|space| PollFd::from_borrowed_fd(space.uffd.as_fd(), PollFlags::IN)).collect();
        let _ = poll(&mut descriptors, Some(&pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_host::event::EventFd;

    #[test]
    fn a_keeper_that_is_slow_hears_of_every_space_in_order() {
        let (ours, theirs) = net::socketpair(
            net::AddressFamily::UNIX,
            net::SocketType::SEQPACKET,
            net::SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        net::sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
        let process = process::pidfd(std::process::id()).unwrap();
        let keeper = Keeper { socket: ours, process, waiting: Mutex::default() };
        let descriptor = EventFd::new().unwrap();
        for space in 0..300 {
            assert!(keeper.send(ADD, space, Some(descriptor.as_fd())));
        }
        let left = keeper.waiting.lock().len();
        assert!((1..299).contains(&left), "the socket has taken all but {left}");
        // The first has been told, the last has not.
        keeper.send(REMOVE, 0, None);
        keeper.send(REMOVE, 299, None);
        let mut heard = Vec::new();
        while heard.len() < 300 {
            let (kind, space, with) = receive(&theirs).unwrap().unwrap();
            assert_eq!(with.is_some(), kind == ADD);
            heard.push((kind, space));
            keeper.send_waiting();
        }
        let expected: Vec<_> = (0..299).map(|space| (ADD, space)).chain([(REMOVE, 0)]).collect();
        assert_eq!(heard, expected);
        assert!(keeper.waiting.lock().is_empty());
        // When the keeper is gone, nothing waits for it.
        drop(theirs);
        keeper.send(ADD, 5, Some(descriptor.as_fd()));
        assert!(keeper.waiting.lock().is_empty());
    }
}
