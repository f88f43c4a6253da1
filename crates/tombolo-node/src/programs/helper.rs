//! Helpers: processes that make accesses to the memory of programs that cannot have threads for it, because a seccomp
//! filter forbids them or their number is limited.
//!
//! Each such domain has a helper of its own. An absent page may hold up any thread that touches it, and a thread that
//! waits in the kernel for another program's page cannot be interrupted by signals. A process, however, can be killed.
//! So an access that hangs ends with its domain, and leaves nothing in the node.
//!
//! ```text
//!  node ── socket: the area, the program's files of /proc ──► helper: access threads ── /proc/PID/mem ──► program
//!        ◄── event: there are answers ──────────────────────
//! ```
//!
//! A helper ends when the node's end of its socket is closed, however the node ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use tombolo_channel::access::{AccessArea, AccessThreads};
use tombolo_host::event::{self, EventFd};
use tombolo_host::own::{self, ProgramMemory};
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::timing::node as timing;
use tombolo_host::unix::{SeqpacketSocket, UnixError};

/// Makes the command that starts a helper: a program that calls [`help_accesses`] with its standard input.
pub type HelperCommand = fn() -> Command;

/// Why a helper could not be started, or could not work.
#[derive(Debug, thiserror::Error)]
pub enum HelperError {
    /// The process cannot be started, or a system call failed.
    #[error("cannot start a process for accesses to this program's memory: {0}")]
    Start(std::io::Error),
    /// The helper cannot be told what to do.
    #[error("cannot pass a program's memory to a helper: {0}")]
    Socket(#[from] UnixError),
    /// An unexpected message came over the socket between node and helper.
    #[error("what a node and its helper pass each other: {0}")]
    Unexpected(String),
}

/// The node's handle of a helper. Dropping it kills the helper, but does not wait for its end, because the helper may
/// be waiting in the kernel for the program.
#[derive(Debug)]
pub(super) struct Helper {
    child: Mutex<Child>,
    /// The helper ends when this is closed.
    socket: SeqpacketSocket,
}

impl Helper {
    /// Starts a helper for a program's memory. The helper takes orders from the area, and signals `wake` after each
    /// answer.
    pub(super) fn start(
        command: HelperCommand,
        area: &AccessArea,
        memory: &ProgramMemory,
        wake: &EventFd,
    ) -> Result<Self, HelperError> {
        let (ours, theirs) = SeqpacketSocket::pair()?;
        let its_input = theirs.as_fd().try_clone_to_owned().map_err(HelperError::Start)?;
        // Only the helper may hold its end of the socket, so that its end shows at once.
        drop(theirs);
        let spawned = command().stdin(its_input).stdout(Stdio::null()).spawn();
        let helper = Self { child: Mutex::new(spawned.map_err(HelperError::Start)?), socket: ours };
        let mut descriptors = vec![area.as_fd(), wake.as_fd()];
        descriptors.extend(memory.descriptors());
        helper.socket.send(&[&memory.process_id().to_le_bytes()], &descriptors)?;
        // The helper sends a message when its threads run.
        let begins = wait(helper.socket.as_fd(), Some(timing::HELPER_START_TIMEOUT))?
            && helper.socket.receive(&mut [0; 4]).is_ok();
        if begins { Ok(helper) } else { Err(HelperError::Unexpected("it ended at once".into())) }
    }

    /// Whether the helper has ended, by itself or killed.
    pub(super) fn has_ended(&self) -> bool {
        self.child.lock().try_wait().is_ok_and(|ended| ended.is_some())
    }

    /// Kills the helper. It may not have ended yet: see [`Self::has_ended`].
    pub(super) fn kill(&self) {
        // An error means that the helper has ended already.
        let _ = self.child.lock().kill();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
        self.has_ended();
    }
}

/// Runs as a helper until the node at the other end of `socket` is done with it, or is gone.
///
/// # Errors
/// [`HelperError`]: no access was made.
pub fn help_accesses(socket: OwnedFd) -> Result<(), HelperError> {
    // Signals from the terminal, or to the node's process group, are for the node.
    let _ = rustix::process::setsid();
    own::serving_faults_alone(|| help(socket))
}

fn help(socket: OwnedFd) -> Result<(), HelperError> {
    let socket = SeqpacketSocket::from_descriptor(socket);
    let unexpected = |text: &str| HelperError::Unexpected(text.into());
    let mut number = [0; 4];
    if !wait(socket.as_fd(), Some(timing::HELPER_START_TIMEOUT))? {
        return Err(unexpected("nothing comes on standard input"));
    }
    let received = socket.receive(&mut number)?;
    let mut descriptors = received.descriptors.into_iter();
    let (Some(area), Some(wake)) = (descriptors.next(), descriptors.next()) else {
        return Err(unexpected("no descriptors came on standard input"));
    };
    let area = AccessArea::open(area).map_err(|error| unexpected(&error.to_string()))?;
    let wake = EventFd::from_descriptor(OwnedFd::from(wake));
    let files: Vec<PassedDescriptor> = descriptors.collect();
    let memory = ProgramMemory::of(u32::from_le_bytes(number), files);
    let memory = memory.map_err(|error| unexpected(&error.to_string()))?;
    let notify = move || {
        // An error does not matter: a node that is gone needs no signal.
        let _ = wake.signal();
    };
    let threads =
        AccessThreads::start(area, Box::new(memory), Box::new(notify)).map_err(HelperError::Start)?;
    socket.send(&[&[1]], &[])?;
    // From now on the socket becomes readable only when the node's end is closed.
    while !wait(socket.as_fd(), None)? {}
    // Do not wait for the threads: they may be waiting for pages.
    std::mem::forget(threads);
    Ok(())
}

fn wait(socket: BorrowedFd<'_>, limit: Option<Duration>) -> Result<bool, HelperError> {
    event::wait_readable(&[socket], limit).map_err(|errno| HelperError::Start(errno.into()))
}
