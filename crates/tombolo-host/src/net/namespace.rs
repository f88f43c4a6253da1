//! Things done in another network namespace, by a thread that enters it and ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

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

/// Opens a network namespace: it is there as long as the descriptor.
///
/// # Errors
/// There is none at this path, or this process may not open it.
pub fn open_namespace(path: &Path) -> io::Result<OwnedFd> {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| told(format_args!("the network namespace {}", path.display()), &errno.into()))
}

/// Does something in a network namespace, or in that of this thread. Descriptors that are made there stay there.
///
/// # Errors
/// There is no such namespace, this process may not enter it, or what is done fails.
pub fn in_namespace<T: Send>(
    path: Option<&Path>,
    what: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    match path {
        Some(path) => {
            let namespace = open_namespace(path)?;
            enter(&namespace.as_fd(), &format!("the namespace {}", path.display()), what)
        }
        None => what(),
    }
}

/// Does something in a network namespace. Descriptors that are made there stay there.
///
/// # Errors
/// This process may not enter it, or what is done fails.
pub fn in_open_namespace<T: Send>(
    namespace: BorrowedFd<'_>,
    what: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    enter(&namespace, "a network namespace", what)
}

fn enter<T: Send>(
    namespace: &BorrowedFd<'_>,
    called: &str,
    what: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(*namespace, Some(LinkNameSpaceType::Network))
                .map_err(|errno| told(format_args!("cannot enter {called}"), &errno.into()))?;
            what()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Does something in a network namespace that is made for it, in which no interface gets an IPv6 address by itself. It is
/// there as long as descriptors that were made in it.
///
/// # Errors
/// This process may make none, or what is done fails.
pub fn in_new_namespace<T: Send>(what: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: descriptors stay shared; of network namespaces no code here takes anything for granted.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
                .map_err(|errno| told("cannot make a network namespace", &errno.into()))?;
            const SWITCH: &str = "/proc/sys/net/ipv6/conf/default/disable_ipv6";
            match std::fs::write(SWITCH, "1") {
                // A kernel without IPv6 has nothing to switch off.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(told(format_args!("cannot switch IPv6 off ({SWITCH})"), &error))
                }
                _ => what(),
            }
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
