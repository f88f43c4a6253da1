//! TAP devices: Ethernet interfaces whose frames a process reads and writes, each after a `virtio_net_hdr`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags};

use super::{Interface, in_open_namespace, name_of, told};

/// All queues of one TAP device; when the last copy of the last is closed, the device is gone.
#[derive(Debug)]
pub struct TapQueues(Vec<OwnedFd>);

/// `_IO('T', 227)`: a descriptor of the namespace that the device is in (Linux 5.2).
const TUNGETDEVNETNS: libc::c_ulong = 0x54e3;

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

    /// Moves a new device to another network namespace, where it has this name. The device ends with that namespace, since its queues belong to
    /// the namespace of this thread.
    ///
    /// # Errors
    /// There is one of that name, or this process may not.
    pub fn move_to(&self, namespace: BorrowedFd<'_>, name: &str) -> io::Result<()> {
        self.interface()?.move_to(namespace, name)
    }

    /// The interface of a device in the namespace of this thread, whatever it is called by now.
    ///
    /// # Errors
    /// It is gone, or in another namespace.
    pub fn interface(&self) -> io::Result<Interface> {
        Interface::open(&self.name()?)
    }

    /// Does something with the interface, in whatever namespace it is.
    ///
    /// # Errors
    /// It is gone, this process may not enter its namespace, or what is done fails.
    pub fn with_interface<T: Send>(
        &self,
        what: impl FnOnce(&Interface) -> io::Result<T> + Send,
    ) -> io::Result<T> {
        let queue = self.0.first().ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: TUNGETDEVNETNS takes no argument, and returns a descriptor.
        let namespace = unsafe { libc::ioctl(queue.as_raw_fd(), TUNGETDEVNETNS as _, 0) };
        if namespace < 0 {
            return Err(told("the namespace of a TAP device", &io::Error::last_os_error()));
        }
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        let namespace = unsafe { OwnedFd::from_raw_fd(namespace) };
        let name = self.name()?;
        in_open_namespace(namespace.as_fd(), || what(&Interface::open(&name)?))
    }

    /// What the device is called now.
    fn name(&self) -> io::Result<String> {
        let queue = self.0.first().ok_or(io::ErrorKind::NotFound)?;
        // SAFETY: all bytes zero are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        // SAFETY: TUNGETIFF writes an `ifreq` and keeps no pointer.
        if unsafe { libc::ioctl(queue.as_raw_fd(), libc::TUNGETIFF as _, &raw mut request) } < 0 {
            return Err(told("a TAP device", &io::Error::last_os_error()));
        }
        let bytes = request.ifr_name.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0);
        Ok(String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned())
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
