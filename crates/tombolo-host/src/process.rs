//! Another process: reading its memory, pinning our threads, its death.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::maps;

mod memory;
pub use memory::{Memory, SPANS_MAX, Span, read_exactly, read_memory};

/// A descriptor that becomes readable when the process ends.
pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes two integers and returns a new descriptor.
    let made = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has just returned this descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

/// A pidfd of the process that connected this Unix socket, or made the pair. Where the kernel has no such
/// option (before 6.5), of the process that has its number now.
pub fn peer_pidfd(socket: BorrowedFd<'_>, pid: u32) -> io::Result<OwnedFd> {
    const SO_PEERPIDFD: i32 = 77;
    let mut descriptor: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: an integer to be written, and its size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut descriptor).cast(),
            &raw mut length,
        )
    };
    if result == 0 && descriptor >= 0 {
        // SAFETY: the call above has just returned this descriptor to us alone.
        return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => pidfd(pid),
        error => Err(error),
    }
}

/// When a process began, in ticks since the kernel started: of all that ever have its number, it alone began then.
pub fn began(pid: u32) -> io::Result<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat"))?;
    // The 22nd field; the second may hold anything in parentheses.
    let rest = stat.iter().rposition(|&byte| byte == b')').and_then(|end| stat.get(end + 1..));
    let rest = rest.and_then(|rest| std::str::from_utf8(rest).ok());
    let field = rest.and_then(|rest| rest.split_ascii_whitespace().nth(19)?.parse().ok());
    field.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether the process of a pidfd has ended.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: pidfd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one structure, and no wait. An error, as when a signal comes, is no end.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 && poll.revents & libc::POLLIN != 0 }
}

/// How the process of a pidfd ended, which need not be a child of this one. Waits for it up to `limit`. `None`: it has not
/// ended, or it cannot be told (its parent has asked, and the kernel is older than 6.15).
pub fn how_it_ended(pidfd: BorrowedFd<'_>, limit: Duration) -> Option<ExitStatus> {
    let since = Instant::now();
    loop {
        let is_asked_for = matches!(pid_of(pidfd), Ok(None));
        // In this order: between the two, its parent may ask.
        if let Some(status) = status_until_asked_for(pidfd).or_else(|| status_once_asked_for(pidfd)) {
            return Some(status);
        }
        if is_asked_for || since.elapsed() >= limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The status of a process that has ended and whose parent has not asked for it.
fn status_until_asked_for(pidfd: BorrowedFd<'_>) -> Option<ExitStatus> {
    let pid = pid_of(pidfd).ok()??;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything. After it: the state, and 49 fields later the status.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let status = fields.get(49)?.parse().ok()?;
    // If it has its number still, that was it.
    let is_it = pid_of(pidfd).ok()? == Some(pid);
    (fields.first() == Some(&"Z") && is_it).then(|| ExitStatus::from_raw(status))
}

/// The status of a process whose parent has asked for it, as kernels from 6.15 on tell.
fn status_once_asked_for(pidfd: BorrowedFd<'_>) -> Option<ExitStatus> {
    /// The kernel's `pidfd_info`, as it first was.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        numbers: [u32; 11],
        status: i32,
    }
    const EXIT: u64 = 1 << 3;
    const GET_INFO: libc::Ioctl = 0xC040_FF0B;
    let mut info = Info { mask: EXIT, ..Info::default() };
    // SAFETY: a structure of the size that the number of the call names.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) };
    (result == 0 && info.mask & EXIT != 0).then(|| ExitStatus::from_raw(info.status))
}

/// Sends a signal through a pidfd: never to a process that took over the number.
pub fn signal(pidfd: &OwnedFd, signal: i32) -> io::Result<()> {
    // SAFETY: pidfd_send_signal(2) takes a descriptor, a number, no siginfo and no flags.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            std::ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether a process has the same memory (`CLONE_VM`) as another, whose first thread may have ended before
/// the others. `None`: the kernel does not say, or a thread ended meanwhile, after starting another, perhaps.
pub fn share_memory(first: u32, second: u32) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    let compare = |other: u32| {
        // SAFETY: kcmp(2) takes integers.
        let order = unsafe { libc::syscall(libc::SYS_kcmp, first, other, KCMP_VM, 0, 0) };
        match order {
            0 => Some(true),
            1.. => Some(false),
            _ => None,
        }
    };
    let has_gone = || io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    match compare(second) {
        Some(true) => return Some(true),
        Some(false) => {}
        None if has_gone() => return Some(false),
        None => return None,
    }
    let Ok(threads) = std::fs::read_dir(format!("/proc/{second}/task")) else { return Some(false) };
    let mut known = true;
    for thread in threads.flatten() {
        if let Some(thread) = thread.file_name().to_str().and_then(|name| name.parse().ok()) {
            match compare(thread) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => known = false,
            }
        }
    }
    known.then_some(false)
}

/// The process of a pidfd, as this process numbers it; `None`: it has ended.
pub fn pid_of(pidfd: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse::<i32>().ok());
    match number {
        // It has none in this pid namespace.
        None | Some(0) => Err(io::Error::other("no process of this pid namespace is named")),
        Some(number) => Ok(u32::try_from(number).ok()),
    }
}

/// Local memory of a process by kind, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalMemory {
    /// Private and anonymous.
    pub anonymous_bytes: u64,
    /// Of no file on a disk, and shared, if only with what it may fork.
    pub shared_bytes: u64,
    /// Locked, of whatever kind.
    pub locked_bytes: u64,
}

/// Local memory of a process. `None`: it has none, or has ended.
pub fn local_memory(pid: u32) -> Option<LocalMemory> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
    };
    Some(LocalMemory {
        anonymous_bytes: bytes("RssAnon:")?,
        shared_bytes: bytes("RssShmem:")?,
        locked_bytes: bytes("VmLck:")?,
    })
}

/// Anonymous memory of a process that is resident, in bytes.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    local_memory(pid).map(|memory| memory.anonymous_bytes)
}

/// The process at the other end of a Unix socket: its number and its user's. `None`: it is of another pid namespace, where it has no number
/// here.
pub fn peer(socket: BorrowedFd<'_>) -> Option<(u32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: a structure to be written, and its size.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    let pid = u32::try_from(peer.pid).ok().filter(|pid| result == 0 && *pid > 0)?;
    Some((pid, peer.uid))
}

/// Whether this process may take another user.
pub fn may_change_user() -> bool {
    const SETUID: u32 = 7;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask >> SETUID & 1 != 0)
}

/// The name that a process has given itself, or its program's, cut off.
pub fn name(pid: u32) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

/// From now on a panic of any thread ends this process, by SIGABRT, once it has been said.
pub fn abort_on_panic() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::abort();
    }));
}

/// How many seccomp filters a process has, and whose child it is: its number may be another process's.
#[derive(Clone, Copy, Debug)]
pub struct Filters {
    /// How many.
    pub count: u32,
    /// The number of its parent.
    pub parent: u32,
}

/// How many seccomp filters a process has. `None`: there is no such process, or the kernel has no filters.
pub fn seccomp_filters(pid: u32) -> Option<Filters> {
    let [count, parent] = status_numbers(pid, ["Seccomp_filters:", "PPid:"])?;
    Some(Filters { count, parent })
}

/// Whether a process has given up gaining privileges by what it executes (`PR_SET_NO_NEW_PRIVS`), for good. False also where the
/// kernel does not say it.
pub fn gains_no_privileges(pid: u32) -> bool {
    status_numbers(pid, ["NoNewPrivs:"]) == Some([1])
}

/// Numbers that the kernel tells of a process, by name. `None`: there is no such process, or one of them is not told.
fn status_numbers<const COUNT: usize>(pid: u32, names: [&str; COUNT]) -> Option<[u32; COUNT]> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers =
        names.map(|name| status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok());
    numbers.into_iter().collect::<Option<Vec<u32>>>()?.try_into().ok()
}

/// A thread of this process that has its memory still: the first may have ended before others.
pub fn thread_with_memory(pid: u32) -> u32 {
    if anonymous_bytes(pid).is_some() {
        return pid;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads = threads.filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    threads.find(|&thread| anonymous_bytes(thread).is_some()).unwrap_or(pid)
}

/// Whether a process has a thread of this number.
pub fn has_thread(pid: u32, thread: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/task/{thread}")).exists()
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Its first address.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// Whether it is private, and of no file. A file whose inode number is 0, as some of FUSE have, is taken for none.
    pub is_private_anonymous: bool,
}

/// What a process has mapped, as text. Names of files may be of any bytes.
fn mappings_text(pid: u32) -> io::Result<String> {
    let text = std::fs::read(format!("/proc/{pid}/maps"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The mappings of a process, in order.
pub fn mappings(pid: u32) -> io::Result<Vec<Mapped>> {
    let text = mappings_text(pid)?;
    let parse = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let (rights, inode) = (words.next()?, words.nth(2)?);
        Some(Mapped { start, end, is_private_anonymous: rights.ends_with('p') && inode == "0" })
    };
    Ok(text.lines().filter_map(parse).collect())
}

/// The mappings of a process that overlap a range, cut off at its ends, in order.
pub fn mappings_within(pid: u32, range: std::ops::Range<u64>) -> io::Result<Vec<Mapped>> {
    let mut found = Vec::new();
    find_mapping(pid, range, |mapped| {
        found.push(mapped);
        false
    })?;
    Ok(found)
}

/// The first mapping of a process for which a condition holds, of those that overlap a range; all are cut off at its ends.
pub fn find_mapping(
    pid: u32,
    range: std::ops::Range<u64>,
    mut is_it: impl FnMut(Mapped) -> bool,
) -> io::Result<Option<Mapped>> {
    let cut = |mapped: Mapped| Mapped {
        start: mapped.start.max(range.start),
        end: mapped.end.min(range.end),
        ..mapped
    };
    let maps = std::fs::File::open(format!("/proc/{pid}/maps"))?;
    let mut at = range.start;
    while at < range.end {
        match maps::mapping_from(&maps, at) {
            Ok(mapping) if mapping.start < range.end => {
                let is_private_anonymous = !mapping.is_file && !mapping.allows(maps::Permission::Share);
                let found = cut(Mapped { start: mapping.start, end: mapping.end, is_private_anonymous });
                if is_it(found) {
                    return Ok(Some(found));
                }
                at = mapping.end;
            }
            Ok(_) => break,
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTTY | libc::EINVAL)) => {
                // Kernels before 6.11.
                let all = mappings(pid)?.into_iter().map(cut);
                return Ok(all.filter(|mapped| mapped.start < mapped.end).find(|mapped| is_it(*mapped)));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether a mapping of a process lies on both sides of an address. An error: it cannot be looked at, as in kernels before 6.11.
pub fn is_within_mapping(pid: u32, address: u64) -> io::Result<bool> {
    let maps = std::fs::File::open(format!("/proc/{pid}/maps"))?;
    match maps::mapping_at(&maps, address) {
        Ok(mapping) => Ok(mapping.start < address),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the mapping at an address of a process is writable, if there is one. An error: it cannot be looked at.
pub fn is_writable(pid: u32, address: u64) -> io::Result<Option<bool>> {
    let maps = std::fs::File::open(format!("/proc/{pid}/maps"))?;
    if let Ok(mapping) = maps::mapping_at(&maps, address) {
        return Ok(Some(mapping.allows(maps::Permission::Write)));
    }
    // Kernels before 6.11.
    let text = mappings_text(pid)?;
    Ok(text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        let rights = words.next()?;
        (start..end).contains(&address).then(|| rights.contains('w'))
    }))
}

/// Raises the limit of this process's open files as far as it may.
pub fn raise_descriptor_limit() {
    // SAFETY: an all-zero rlimit is valid, and the calls read and write one.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            let hard = limit.rlim_max;
            // A privileged process may go beyond the hard limit, up to the system's.
            for most in [hard.max(1 << 20), hard] {
                limit.rlim_cur = most;
                limit.rlim_max = most.max(hard);
                if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 {
                    break;
                }
            }
        }
    }
}

/// The processors this process may run on.
pub fn processors() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size is that of the structure passed.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if result < 0 {
        return vec![0];
    }
    // SAFETY: CPU_ISSET reads inside the structure for indices below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) }).collect()
}

/// How often the calling thread has given its processor up, or has lost it.
pub fn thread_switches() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    let counts =
        status.lines().filter_map(|line| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok());
    Ok(counts.sum())
}

/// Keeps the calling thread on one processor.
pub fn pin_thread(processor: usize) -> io::Result<()> {
    place_thread(0, &[processor])
}

/// Keeps a thread (0: the calling one) on these processors.
pub fn place_thread(thread: u32, processors: &[usize]) -> io::Result<()> {
    // SAFETY: an all-zero cpu_set_t is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processors.iter().any(|&processor| processor >= libc::CPU_SETSIZE as usize) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for &processor in processors {
        // SAFETY: the index was checked against CPU_SETSIZE.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the size is that of the structure passed.
    let result = unsafe { libc::sched_setaffinity(thread.cast_signed(), size, &raw const set) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The calling thread gets what other threads leave of the processors (`SCHED_IDLE`): the kernel counts a processor with
/// none but such threads as idle, and has others run there at once.
pub fn stand_back() {
    // SAFETY: an all-zero sched_param is what this policy wants; 0 is the calling thread. A thread may always ask for less.
    unsafe {
        let parameters: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters);
    }
}

/// Whether the calling thread has stood back.
pub fn stands_back() -> bool {
    // SAFETY: 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}

/// Keeps every page of this process, present and future, in memory. The
/// supervisor must never wait for the memory that it serves.
pub fn lock_memory() -> io::Result<()> {
    // SAFETY: mlockall(2) takes flags only.
    let result = unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE | MCL_ONFAULT) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lock a page when it is first touched, not when it is mapped: sparse tables stay sparse.
const MCL_ONFAULT: i32 = 4;

/// The process that this command starts is killed when the thread that starts it ends, however that ends.
pub fn end_with_this_thread(command: &mut Command) {
    let ask = || Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?);
    // SAFETY: the closure makes one system call, and nothing else.
    unsafe { command.pre_exec(ask) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_began_before_those_that_it_starts() {
        let own = began(std::process::id()).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let (first, again) = (began(child.id()), began(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(first.as_ref().unwrap(), again.as_ref().unwrap());
        assert!(own > 0 && own <= first.unwrap());
        assert!(began(u32::MAX).is_err());
    }
    use std::os::fd::AsFd;

    /// A page of each kind of mapping, side by side, after one that allows nothing and before another.
    fn side_by_side(kinds: &[(i32, i32)]) -> u64 {
        const PAGE: usize = 4096;
        let (bytes, flags) = ((kinds.len() + 2) * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at an address of the kernel's choice; what follows replaces parts of it.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        let first = base.wrapping_byte_add(PAGE);
        for (index, &(flags, file)) in kinds.iter().enumerate() {
            let at = first.wrapping_byte_add(index * PAGE);
            // SAFETY: a page of the memory made above.
            let made = unsafe { libc::mmap(at, PAGE, libc::PROT_READ, flags | libc::MAP_FIXED, file, 0) };
            assert_eq!(made, at, "{}", io::Error::last_os_error());
        }
        first as u64
    }

    #[test]
    fn mappings_say_what_they_are_in_both_ways() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1);
        let shared = (libc::MAP_SHARED | libc::MAP_ANONYMOUS, -1);
        let of_file = (libc::MAP_PRIVATE, file.as_raw_fd());
        // The kernel joins the first two.
        let base = side_by_side(&[anonymous, anonymous, of_file, anonymous, shared]);
        let page = |index: u64| base + index * 4096;
        let expected = [(0, 2, true), (2, 3, false), (3, 4, true), (4, 5, false)];
        let expected = expected.map(|(first, end, is)| Mapped {
            start: page(first),
            end: page(end),
            is_private_anonymous: is,
        });
        let own = std::process::id();
        assert_eq!(mappings_within(own, base..page(5)).unwrap(), expected);
        let text = mappings(own).unwrap();
        assert!(expected.iter().all(|one| text.contains(one)), "{text:x?}");
        let inner = Mapped { start: page(1), ..expected[0] };
        assert_eq!(mappings_within(own, page(1)..page(2)).unwrap(), [inner]);
        let other = find_mapping(own, base..page(5), |one| !one.is_private_anonymous).unwrap();
        assert_eq!(other, Some(expected[1]));
        if let Err(error) = is_within_mapping(own, base) {
            return crate::testing::left_out(&format!(
                "where a mapping ends, this kernel does not say ({error})"
            ));
        }
        let within = (0..6).filter(|index| is_within_mapping(own, page(*index)).unwrap());
        assert_eq!(within.collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_pidfd_names_its_process_until_that_has_ended() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let own = peer_pidfd(one.as_fd(), std::process::id()).unwrap();
        assert!(!has_ended(&own));
        assert!(signal(&own, 0).is_ok());
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = pidfd(child.id()).unwrap();
        assert!(!has_ended(&pidfd));
        assert_eq!(how_it_ended(pidfd.as_fd(), Duration::from_millis(2)), None, "it lives");
        assert_eq!(pid_of(pidfd.as_fd()).unwrap(), Some(child.id()));
        signal(&pidfd, libc::SIGKILL).unwrap();
        let told = how_it_ended(pidfd.as_fd(), Duration::from_secs(10));
        let status = child.wait().unwrap();
        assert_eq!(told, Some(status));
        assert!(has_ended(&pidfd));
        // Kernels before 6.15 do not tell.
        assert!(how_it_ended(pidfd.as_fd(), Duration::ZERO).is_none_or(|told| told == status));
        assert_eq!(pid_of(pidfd.as_fd()).unwrap(), None);
        assert!(pid_of(one.as_fd()).is_err(), "no pidfd");
    }

    #[test]
    fn memory_of_this_process_is_readable_and_an_unmapped_address_is_an_error() {
        let source = [7u8; 100];
        let mut copy = [0u8; 100];
        read_exactly(std::process::id(), source.as_ptr() as u64, &mut copy).unwrap();
        assert_eq!(source, copy);
        assert!(read_exactly(std::process::id(), 8, &mut copy).is_err());
    }
}
