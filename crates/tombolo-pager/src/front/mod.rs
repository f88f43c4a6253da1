//! The front: the process that a shell has started, and that stands for the program towards the shell.
//!
//! ```text
//!  shell ── front ──┬── supervisor ──┬── program, in the group that the front has left
//!                   └── witness      └── keeper
//! ```
//!
//! The program is in the process group in which the front was started, as it would be without Tombolo. So it gets signals
//! for that group, from a terminal for instance, directly. Supervisor and front have a group of their own. A signal that
//! the front gets was sent to the front alone, and was meant for the program: the front passes it on. The witness stays in
//! the program's group, and tells the front which signals the group gets, for instance that the front is to go on. If a
//! program makes a group of its own, the front passes on to it the signals for the group that it would lead without
//! Tombolo.
//!
//! The leader of a session cannot leave its group (`setsid`, the first process of a container). There the witness is asked whether a signal
//! came to the whole group (`judge`), and the supervisor moves into a session of its own: then no process of the program's session could
//! continue the program, and the kernel treats the group as orphaned, as it would without Tombolo.
//!
//! When the program stops, the front stops, and when the program continues, the front continues. When the supervisor has
//! ended, the front ends as the program has ended, if need be by the same signal.
//!
//! The front has no threads and takes signals one by one. It cannot take SIGKILL and SIGSTOP: SIGKILL ends the run, and
//! SIGSTOP stops the front alone. The program sees the front as the sender of a signal that is passed on, except one with a
//! value.

mod judge;
mod messages;
mod stand_in;
mod supervised;
mod witness;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};
use tombolo_host::jobs;
use tombolo_host::signals::{self, Inherited};
use tombolo_host::split::{self, Half, InheritedDescriptors};
use tombolo_host::unix::SeqpacketSocket;

pub use supervised::Front;
pub(crate) use supervised::LeftSignal;

/// Which process this one is after [`split_off`].
#[derive(Debug)]
pub enum Side {
    /// The front, whose work is done. It is to end with this exit code.
    Front(u8),
    /// The supervisor, which goes on.
    Supervisor(Front),
}

/// Name of the environment variable with the user's `LD_PRELOAD` when this process was executed again without `LD_PRELOAD`.
const HANDED_PRELOAD: &str = "TOMBOLO_HANDED_PRELOAD";

/// The user's `LD_PRELOAD`, which is meant for the program.
pub(crate) fn users_preload() -> Option<OsString> {
    std::env::var_os(HANDED_PRELOAD)
        .or_else(|| std::env::var_os("LD_PRELOAD"))
        .filter(|value| !value.is_empty())
}

/// Removes the variable from the environment of the command's program.
pub(crate) fn hide_handed_preload(command: &mut Command) {
    command.env_remove(HANDED_PRELOAD);
}

/// Executes this program again without `LD_PRELOAD`: a library in it has started threads, and a process with threads cannot
/// be split. Returns without an error if the variable is not set.
fn start_again_without_preload(inherited: Inherited) -> io::Result<()> {
    let Some(preload) = std::env::var_os("LD_PRELOAD").filter(|value| !value.is_empty()) else {
        return Ok(());
    };
    let mut arguments = std::env::args_os();
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).env(HANDED_PRELOAD, preload).env_remove("LD_PRELOAD");
    // SAFETY: the closure does nothing.
    unsafe { inherited.pass_on(&mut command, || Ok(())) };
    Err(command.exec())
}

/// Splits this process into a front and a supervisor. It must have opened nothing yet.
pub fn split_off() -> io::Result<Side> {
    let inherited = Inherited::new();
    if !split::has_one_thread()? {
        start_again_without_preload(inherited)?;
    }
    let descriptors = InheritedDescriptors::new()?;
    let leads_its_session = jobs::leads_its_session();
    let (ours, theirs) = SeqpacketSocket::pair().map_err(io::Error::other)?;
    let front = rustix::process::getpid();
    // If SIGCHLD is ignored, the kernel keeps no status of children.
    signals::take_by_default(libc::SIGCHLD);
    match split::fork()? {
        Half::Parent { child } => {
            drop(theirs);
            descriptors.give_up(false)?;
            Ok(Side::Front(stand_in::stand_in(ours, child, leads_its_session, inherited)))
        }
        Half::Child => {
            drop(ours);
            end_with(front)?;
            let front = Front::new(front, leads_its_session, theirs, inherited, descriptors)?;
            Ok(Side::Supervisor(front))
        }
    }
}

/// Makes this process end with its front until the program is started, whatever it is doing.
fn end_with(front: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if rustix::process::getppid() == Some(front) { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
}
