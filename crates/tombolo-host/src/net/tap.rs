//! TAP devices: Ethernet interfaces whose frames a process reads and writes, each after a `virtio_net_hdr`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use super::{name_of, told};

/// All queues of one TAP device; when the last copy of the last is closed, the device is gone.
#[derive(Debug)]
pub struct TapQueues(Vec<OwnedFd>);

const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;

impl TapQueues {
    /// Makes a device in the namespace of this thread. Reads and writes of its queues do not wait.
    ///
    /// # Errors
    /// There is an interface of this name, or this process may make none.
    pub fn new(name: &str, count: usize) -> io::Result<Self> {
        let queues = Self::without_offloads(name, count)?;
        queues.iter().try_for_each(allow_segments)?;
        Ok(queues)
    }

    /// Makes a device as [`TapQueues::new`] does, whose reader needs to know no offloads: the kernel cuts segments and adds
    /// checksums before it hands a frame over.
    ///
    /// # Errors
    /// As [`TapQueues::new`].
    pub fn without_offloads(name: &str, count: usize) -> io::Result<Self> {
        let kernel_name = name_of(name)?;
        let failed = |error: &io::Error| told(format_args!("cannot make the TAP device {name}"), error);
        let many = if count > 1 { libc::IFF_MULTI_QUEUE } else { 0 };
        let mut queues = Vec::new();
        for index in 0..count {
            let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let queue = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
                .map_err(|errno| told("/dev/net/tun", &errno.into()))?;
            // The first one makes the device, and does not join one that is there.
            let new = if index == 0 { libc::IFF_TUN_EXCL } else { 0 };
            // SAFETY: all bytes zero are a valid `ifreq`.
            let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
            request.ifr_name = kernel_name;
            request.ifr_ifru.ifru_flags = (FLAGS | many | new) as libc::c_short;
            // SAFETY: TUNSETIFF reads and writes an `ifreq`, and keeps no pointer.
            if unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
                return Err(failed(&io::Error::last_os_error()));
            }
            queues.push(queue);
        }
        Ok(Self(queues))
    }

    /// The queues.
    pub fn iter(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }

    /// The queues, to keep.
    pub fn into_queues(self) -> Vec<OwnedFd> {
        self.0
    }
}

/// Frames come as segments of up to 64 KiB, and without checksums: whoever reads them says so to the next one.
fn allow_segments(queue: BorrowedFd<'_>) -> io::Result<()> {
    let older = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // Kernels before 6.2 do not cut UDP.
    let all = older | libc::TUN_F_USO4 | libc::TUN_F_USO6;
    for features in [all, older] {
        // SAFETY: TUNSETOFFLOAD takes a number, and no pointer.
        if unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETOFFLOAD as _, libc::c_ulong::from(features)) }
            == 0
        {
            return Ok(());
        }
    }
    Err(told("cannot set what the TAP device leaves to others", &io::Error::last_os_error()))
}

/// Plugs the cable of a device in, or pulls it out.
///
/// # Errors
/// It is no queue of a TAP device.
pub fn set_carrier(queue: BorrowedFd<'_>, is_on: bool) -> io::Result<()> {
    let value = libc::c_int::from(is_on);
    // SAFETY: TUNSETCARRIER reads an int, and keeps no pointer.
    if unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNSETCARRIER as _, &raw const value) } < 0 {
        return Err(told("cannot set the carrier", &io::Error::last_os_error()));
    }
    Ok(())
}

/// The number of /dev/net/tun (Documentation/admin-guide/devices.txt).
const TUN_DEVICE: (u32, u32) = (10, 200);

/// Whether a descriptor, which another process may have passed, is a queue of a TAP device whose frames come after a
/// `virtio_net_hdr`, and whose writes do not wait.
pub fn is_tap(descriptor: BorrowedFd<'_>) -> bool {
    // A file system of another process may never answer, and a device of one could read and write our memory: so it is
    // the kernel's own driver, before it is asked for anything.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let Ok(found) = rustix::fs::statx(descriptor, "", flags, StatxFlags::TYPE) else { return false };
    let is_device = FileType::from_raw_mode(found.stx_mode.into()) == FileType::CharacterDevice;
    if !is_device || (found.stx_rdev_major, found.stx_rdev_minor) != TUN_DEVICE {
        return false;
    }
    // SAFETY: all bytes zero are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: it is the TUN driver, whose TUNGETIFF writes an `ifreq` and keeps no pointer.
    if unsafe { libc::ioctl(descriptor.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) } < 0 {
        return false;
    }
    // SAFETY: TUNGETIFF has written this member.
    let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
    // With NAPI_FRAGS a write waits for one of the peer's, which may never end.
    flags & FLAGS == FLAGS && flags & (libc::IFF_NAPI | libc::IFF_NAPI_FRAGS) == 0
}
