//! Packet sockets: all frames of an interface, read and written after a `virtio_net_hdr`, so that segments stay whole.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sockopt};

use super::{Interface, told};

/// A socket that gets all frames that come to an interface from outside.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

/// A frame that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedFrame {
    /// Bytes of the buffer that it has filled, with its header; 0: it was longer than the buffer, and is lost.
    pub length_bytes: usize,
    /// Its tag, which the kernel has taken out: type and contents.
    pub tag: Option<(u16, u16)>,
}

/// What waits in the kernel, to be read or to be sent: some hundred segments.
pub const BUFFER_BYTES: usize = 8 << 20;
/// Of the kernel's `linux/if_packet.h`.
const TAG_IS_VALID: u32 = 1 << 4;
const TAG_TYPE_IS_VALID: u32 = 1 << 6;

impl PacketSocket {
    /// Opens an interface; what is not for its address comes, too. Nothing waits.
    ///
    /// # Errors
    /// This process may not.
    pub fn open(interface: &Interface) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        // No protocol, so nothing comes before it is bound.
        let failed =
            |error: &io::Error| told(format_args!("cannot have all frames of {}", interface.name()), error);
        let socket = rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, flags, None)
            .map_err(|errno| failed(&errno.into()))?;
        let socket = Self(socket);
        let one: libc::c_int = 1;
        for option in [libc::PACKET_VNET_HDR, libc::PACKET_AUXDATA, libc::PACKET_IGNORE_OUTGOING] {
            socket.set_option(option, &one).map_err(|error| failed(&error))?;
        }
        // By default three segments fill them.
        for set in [sockopt::set_socket_recv_buffer_size_force, sockopt::set_socket_send_buffer_size_force] {
            set(&socket, BUFFER_BYTES).map_err(|errno| failed(&errno.into()))?;
        }
        let index = interface.index()?.cast_signed();
        let membership = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_PROMISC as libc::c_ushort,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        socket.set_option(libc::PACKET_ADD_MEMBERSHIP, &membership).map_err(|error| failed(&error))?;
        // SAFETY: all bytes zero are a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let length = size_of_val(&address) as libc::socklen_t;
        // SAFETY: the kernel reads so many bytes of the address, which is a `sockaddr_ll`.
        if unsafe { libc::bind(socket.0.as_raw_fd(), (&raw const address).cast(), length) } < 0 {
            return Err(failed(&io::Error::last_os_error()));
        }
        Ok(socket)
    }

    fn set_option<T>(&self, option: libc::c_int, value: &T) -> io::Result<()> {
        let length = size_of::<T>() as libc::socklen_t;
        let value = std::ptr::from_ref(value).cast();
        // SAFETY: the kernel reads so many bytes of the value.
        if unsafe { libc::setsockopt(self.0.as_raw_fd(), libc::SOL_PACKET, option, value, length) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl From<PacketSocket> for OwnedFd {
    fn from(socket: PacketSocket) -> Self {
        socket.0
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether a descriptor, which another process may have passed, is a socket for all frames of an interface, as
/// [`PacketSocket`] opens one: with headers, and with tags beside the frames.
pub fn is_packet_socket(descriptor: BorrowedFd<'_>) -> bool {
    let has_option = |option| {
        let mut value: libc::c_int = 0;
        let mut length = size_of_val(&value) as libc::socklen_t;
        let socket = descriptor.as_raw_fd();
        let place = (&raw mut value).cast();
        // SAFETY: the kernel writes no more bytes of the value than the length says.
        let got = unsafe { libc::getsockopt(socket, libc::SOL_PACKET, option, place, &raw mut length) };
        got == 0 && value != 0
    };
    sockopt::socket_domain(descriptor) == Ok(AddressFamily::PACKET)
        && sockopt::socket_type(descriptor) == Ok(SocketType::RAW)
        && has_option(libc::PACKET_VNET_HDR)
        && has_option(libc::PACKET_AUXDATA)
}

/// Whether a packet socket still has an interface: the kernel takes it away from the sockets of one that is deleted or moved to another
/// namespace.
pub fn is_bound(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: all bytes zero are a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    let place = (&raw mut address).cast();
    // SAFETY: the kernel writes no more bytes of the address than the length says, all of whose values are valid.
    let got = unsafe { libc::getsockname(socket.as_raw_fd(), place, &raw mut length) };
    got == 0 && address.sll_ifindex > 0
}

/// How many frames the kernel has dropped since the last call, which had no room in the buffer of a [`PacketSocket`].
pub fn take_overflows(socket: BorrowedFd<'_>) -> u64 {
    let mut counts = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of_val(&counts) as libc::socklen_t;
    let place = (&raw mut counts).cast();
    let option = libc::PACKET_STATISTICS;
    // SAFETY: the kernel writes no more bytes of the value than the length says, all of whose values are valid.
    let got =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_PACKET, option, place, &raw mut length) };
    if got == 0 { u64::from(counts.tp_drops) } else { 0 }
}

/// Sends a frame, with its header before it, in parts.
///
/// # Errors
/// As the kernel says: [`Errno::AGAIN`], there is no room now.
pub fn send_frame(socket: BorrowedFd<'_>, parts: &[io::IoSlice<'_>]) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags)?;
    Ok(())
}

/// The next frame of a [`PacketSocket`], with its header before it.
///
/// # Errors
/// As the kernel says: [`Errno::AGAIN`], there is none now.
pub fn receive_frame(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<ReceivedFrame, Errno> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = MaybeUninit::<[u64; 16]>::uninit();
    // SAFETY: all bytes zero are a valid `msghdr` without parts.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<[u64; 16]>();
    // SAFETY: the kernel writes into the buffer and the control bytes, no more than the lengths beside them.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let Ok(mut length_bytes) = usize::try_from(received) else {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    };
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        length_bytes = 0;
    }
    let mut tag = None;
    // SAFETY: the kernel has filled in the message, and its control bytes are alive and aligned.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR return a header within the control bytes, or null.
    while let Some(found) = unsafe { header.as_ref() } {
        // The process that passed the socket may have set options by which control messages of other kinds and lengths come.
        let length = found.cmsg_len;
        // SAFETY: no bytes are read.
        let needed = unsafe { libc::CMSG_LEN(size_of::<libc::tpacket_auxdata>() as u32) } as usize;
        let is_tag = (found.cmsg_level, found.cmsg_type) == (libc::SOL_PACKET, libc::PACKET_AUXDATA);
        if is_tag && length >= needed {
            // SAFETY: the kernel has put a `tpacket_auxdata` there.
            let data: libc::tpacket_auxdata =
                unsafe { std::ptr::read_unaligned(libc::CMSG_DATA(found).cast()) };
            if data.tp_status & TAG_IS_VALID != 0 {
                let has_type = data.tp_status & TAG_TYPE_IS_VALID != 0;
                tag = Some((if has_type { data.tp_vlan_tpid } else { 0x8100 }, data.tp_vlan_tci));
            }
        }
        // SAFETY: as above.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(ReceivedFrame { length_bytes, tag })
}
