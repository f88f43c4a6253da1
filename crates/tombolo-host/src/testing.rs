//! For tests: what is left out where a privilege is missing, and how to act as another user.

use std::io::Write;

/// The user `nobody`, who runs no node of ours.
pub const STRANGER: u32 = 65534;

/// Says that the running test, or a part of it, is left out: on standard error, and, since a runner may show nothing of
/// a test that passes, in the file that `TOMBOLO_LEFT_OUT` names.
///
/// # Panics
///
/// With `TOMBOLO_REQUIRE_ALL=1`: then nothing may be left out.
pub fn left_out(reason: &str) {
    let thread = std::thread::current();
    // Of a test in a process of its own, cargo-nextest says the name.
    let named = std::env::var("NEXTEST_TEST_NAME");
    let test = named.as_deref().unwrap_or(thread.name().unwrap_or("a test"));
    assert!(
        std::env::var_os("TOMBOLO_REQUIRE_ALL").is_none_or(|value| value != "1"),
        "{test} is left out, which TOMBOLO_REQUIRE_ALL=1 forbids: {reason}"
    );
    // Straight to the descriptor: the test harness captures what `eprintln!` prints.
    let _ = writeln!(std::io::stderr(), "LEFT OUT: {test}: {reason}");
    if let Some(path) = std::env::var_os("TOMBOLO_LEFT_OUT") {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        // One write a line: others append, too.
        let line = format!("{test}\t{}\n", reason.replace('\n', " "));
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Whether this process may act as another user; where it may not, the test is left out.
pub fn may_change_user() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        left_out("needs root, to act as another user");
    }
    is_root
}

/// Does some work as another user. The work runs on a thread of its own: the kernel keeps the user of each thread.
///
/// # Panics
///
/// If this process may not change its user, or the work panics.
pub fn as_user<T: Send>(user_id: u32, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let user = rustix::process::Uid::from_raw(user_id);
            rustix::thread::set_thread_res_uid(user, user, user).expect("this process may change its user");
            work()
        });
        done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives the pages of a range back to the system: they are zero and absent then.
pub fn give_pages_back(memory: &crate::own::OwnMemory) {
    // SAFETY: memory that is only reached through spans and atomics, which mind no change.
    unsafe {
        libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_DONTNEED);
    }
}

/// Puts the pages of a range together to huge pages, whatever it held. The kernel does not while somebody else holds a page
/// for a moment, nor while it has no memory in one piece: it is asked again for a minute.
pub fn collapse(memory: &crate::own::OwnMemory) -> std::io::Result<()> {
    let since = std::time::Instant::now();
    loop {
        // SAFETY: to put pages together changes no contents.
        if unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_COLLAPSE) } == 0 {
            return Ok(());
        }
        let error = std::io::Error::last_os_error();
        let is_passing = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM));
        if !is_passing || since.elapsed() > std::time::Duration::from_secs(60) {
            return Err(error);
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Has the kernel swap a range out. It passes over pages that wait to be listed by another processor, and over
/// those that a forked child shares: so each that is still there is written, and it is asked again.
///
/// # Panics
///
/// If some of the range is still there after a minute, or this process's page tables cannot be read.
pub fn swap_out(memory: &crate::own::OwnMemory) {
    const PAGE: usize = 4096;
    let entries = std::fs::File::open("/proc/self/pagemap").expect("this process's page tables");
    let is_swapped = |offset: usize| {
        let mut entry = [0; 8];
        let at = (memory.address() + offset as u64) / PAGE as u64 * 8;
        std::os::unix::fs::FileExt::read_exact_at(&entries, &mut entry, at).expect("a page's entry");
        u64::from_ne_bytes(entry) & 1 << 62 != 0
    };
    let since = std::time::Instant::now();
    loop {
        let mut left = (0..memory.len()).step_by(PAGE).filter(|&offset| !is_swapped(offset)).peekable();
        if left.peek().is_none() {
            return;
        }
        for offset in left {
            let mut byte = [0];
            memory.read(offset, &mut byte).expect("a page of this program's");
            memory.write(offset, &byte).expect("a page of this program's");
        }
        assert!(since.elapsed() < std::time::Duration::from_mins(1), "the kernel swaps nothing out");
        // SAFETY: to swap out changes no contents.
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_PAGEOUT) };
    }
}

/// Forbids or allows writing to a range.
///
/// # Panics
///
/// If the kernel refuses.
pub fn protect(memory: &crate::own::OwnMemory, writable: bool) {
    let flags = rustix::mm::MprotectFlags::READ
        | if writable { rustix::mm::MprotectFlags::WRITE } else { rustix::mm::MprotectFlags::empty() };
    // SAFETY: memory that nobody uses but through accesses that survive a fault.
    unsafe { rustix::mm::mprotect(memory.as_mut_ptr().cast(), memory.len(), flags) }.expect("mprotect");
}

/// A child of this process with the memory that it had, until this is dropped: it does nothing.
#[derive(Debug)]
pub struct Fork(libc::pid_t);

impl Fork {
    /// Forks.
    ///
    /// # Panics
    ///
    /// If there can be no child.
    pub fn new() -> Self {
        // SAFETY: the child makes async-signal-safe calls alone.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            // SAFETY: it ends with the thread that made it, also where that is killed.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                // SAFETY: waits for a signal.
                unsafe { libc::pause() };
            }
        }
        Self(child)
    }
}

impl Default for Fork {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        // SAFETY: a child of ours that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}
