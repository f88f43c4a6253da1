//! The front: the process that a shell has started, and that stands for the program there.
//!
//! ```text
//!  shell ── front ──┬── supervisor ──┬── program, in the front's group
//!                   └── witness      └── keeper
//! ```
//!
//! The program is in the group in which the front was started, as it would be without all this: what is sent to that group, by a terminal
//! for instance, it gets itself. Supervisor and front have a group of their own. So what the front gets was sent to it alone, and was meant
//! for the program: the front passes it on. The witness stays, and has the front go on when its old group does.
//!
//! The leader of a session cannot leave its group (`setsid`, the first process of a container). There the witness tells whether a signal
//! came to the whole group (`judge`).
//!
//! When the program stops, the front stops, and when the program goes on, it goes on. It ends as the program has ended, by the same
//! signal perhaps, when the supervisor has.
//!
//! The front has no threads: signals are taken one by one. (SIGKILL and SIGSTOP cannot be taken. Whoever kills the front ends the run;
//! whoever stops it stops it alone. And a signal that is passed on has the front as its sender, except one with a value.)

mod judge;
mod messages;
mod stand_in;
mod supervised;
mod witness;

use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal};
use tombolo_host::signals::{self, Inherited};
use tombolo_host::split::{self, Half, InheritedDescriptors};
use tombolo_host::unix::SeqpacketSocket;

pub use supervised::Front;
pub(crate) use supervised::LeftSignal;

/// Which process this one is after [`split_off`].
#[derive(Debug)]
pub enum Side {
    /// The front, whose work is done: its exit code is this.
    Front(u8),
    /// The supervisor, which goes on.
    Supervisor(Front),
}

/// Splits this process, which has no other threads and has opened nothing, into a front and a supervisor.
pub fn split_off() -> io::Result<Side> {
    let inherited = Inherited::new();
    let descriptors = InheritedDescriptors::new()?;
    let (ours, theirs) = SeqpacketSocket::pair().map_err(io::Error::other)?;
    let front = rustix::process::getpid();
    // Where the ends of children are ignored, nobody's status is kept.
    signals::take_by_default(libc::SIGCHLD);
    match split::fork()? {
        Half::Parent { child } => {
            drop(theirs);
            descriptors.give_up(false)?;
            Ok(Side::Front(stand_in::stand_in(ours, child, inherited)))
        }
        Half::Child => {
            drop(ours);
            end_with(front)?;
            Ok(Side::Supervisor(Front::new(front, theirs, inherited, descriptors)?))
        }
    }
}

/// Until the program is started, this process ends with its front, whatever it is doing.
fn end_with(front: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(front) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}

/// The descriptor that came with a message.
fn only(descriptors: Vec<tombolo_host::passed::PassedDescriptor>) -> Option<OwnedFd> {
    descriptors.into_iter().next().map(OwnedFd::from)
}
