//! A process of one thread splits in two, and each goes on in the same program.

use std::fs::OpenOptions;
use std::io;

use rustix::process::Pid;

/// Which of the two this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// The one that was there before.
    Parent {
        /// The new one.
        child: Pid,
    },
    /// The new one.
    Child,
}

/// Whether this process has one thread only.
pub fn has_one_thread() -> io::Result<bool> {
    Ok(std::fs::read_dir("/proc/self/task")?.count() == 1)
}

/// Splits this process, which must have one thread only: of the others the child would have what they had locked, and not them.
pub fn fork() -> io::Result<Half> {
    if !has_one_thread()? {
        return Err(io::Error::other(
            "this process has several threads already; does /etc/ld.so.preload or LD_AUDIT name a library that starts some?",
        ));
    }
    // SAFETY: no other thread has anything locked or half done.
    match unsafe { libc::fork() } {
        0 => Ok(Half::Child),
        child => Pid::from_raw(child.max(0))
            .map(|child| Half::Parent { child })
            .ok_or_else(io::Error::last_os_error),
    }
}

/// The descriptors with which this process was started. They are meant for the program; nothing in this process uses them.
#[derive(Debug)]
pub struct InheritedDescriptors(Vec<i32>);

impl InheritedDescriptors {
    /// To be asked before this process opens any.
    pub fn new() -> io::Result<Self> {
        let entries = std::fs::read_dir("/proc/self/fd")?.flatten();
        let numbers: Vec<i32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // The directory's own is closed again.
        // SAFETY: fcntl(2) only asks.
        let is_open = |number: &i32| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0;
        Ok(Self(numbers.into_iter().filter(is_open).collect()))
    }

    /// Closes them; standard input and output, and standard error unless messages go there, become /dev/null. Who waits for the last
    /// process to close a pipe or a lock does not wait for this one.
    pub fn give_up(self, keeps_errors: bool) -> io::Result<()> {
        let nothing = OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        if !keeps_errors {
            rustix::stdio::dup2_stderr(&nothing)?;
        }
        for number in self.0.into_iter().filter(|number| *number > libc::STDERR_FILENO) {
            // SAFETY: it was open when this process was started, and nothing in it has taken it since.
            unsafe { libc::close(number) };
        }
        Ok(())
    }
}

/// Shows this process under another name, without arguments (`ps`, `pgrep`): a search for the process from which it was split does not find
/// this one. The command line cannot be asked for any more.
pub fn rename(name: &str) -> io::Result<()> {
    rustix::thread::set_name(&std::ffi::CString::new(name)?)?;
    let text = std::fs::read_to_string("/proc/self/stat")?;
    // Behind the name, which may contain anything, follow the third field and those after it; the 48th and 49th are where the arguments
    // begin and end.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace().skip(45).map(str::parse::<usize>);
    let (Some(Ok(start)), Some(Ok(end))) = (fields.next(), fields.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let shown = name.len().min(end.saturating_sub(start + 1));
    if start == 0 || shown == 0 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel says where it has put the arguments of this process, which nobody reads any more; all of it is writable.
    unsafe {
        std::ptr::write_bytes(start as *mut u8, 0, end - start);
        std::ptr::copy_nonoverlapping(name.as_ptr(), start as *mut u8, shown);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_threads_is_not_split() {
        // The test's own thread is one, and the harness's the other.
        assert!(fork().is_err());
    }
}
