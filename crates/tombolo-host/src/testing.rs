//! For tests: what is left out where a privilege is missing, and how to act as another user.

use std::io::Write;

/// The user `nobody`, who runs no node of ours.
pub const STRANGER: u32 = 65534;

/// Says that the running test, or a part of it, is left out.
///
/// # Panics
///
/// With `TOMBOLO_REQUIRE_ALL=1`: then nothing may be left out.
pub fn left_out(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    assert!(
        std::env::var_os("TOMBOLO_REQUIRE_ALL").is_none_or(|value| value != "1"),
        "{test} is left out, which TOMBOLO_REQUIRE_ALL=1 forbids: {reason}"
    );
    // Straight to the descriptor: the test harness captures what `eprintln!` prints.
    let _ = writeln!(std::io::stderr(), "LEFT OUT: {test}: {reason}");
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
