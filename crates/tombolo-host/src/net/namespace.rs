//! Things done in another network namespace, by a thread that enters it and ends.

use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::told;

/// Where a network namespace is found: a path, the name of one that `ip netns` has made, or the number of a process in
/// it.
pub fn path_of_namespace(text: &str) -> PathBuf {
    let named = PathBuf::from(format!("/run/netns/{text}"));
    if text.contains('/') {
        text.into()
    } else if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) && !named.exists() {
        format!("/proc/{text}/ns/net").into()
    } else {
        named
    }
}

/// Does something in a network namespace, or in that of this thread. Descriptors that are made there stay there.
///
/// # Errors
/// There is no such namespace, this process may not enter it, or what is done fails.
pub fn in_namespace<T: Send>(
    path: Option<&Path>,
    what: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some(path) = path else { return what() };
    let namespace = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| told(format_args!("the network namespace {}", path.display()), &errno.into()))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), Some(LinkNameSpaceType::Network))
                .map_err(|errno| {
                    told(format_args!("cannot enter the namespace {}", path.display()), &errno.into())
                })?;
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
