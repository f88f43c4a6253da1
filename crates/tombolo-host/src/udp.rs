//! UDP sockets that send and receive many datagrams with one system call.
//!
//! A system call and a walk through the network stack cost more than the bytes of a 4 KiB
//! datagram. With segmentation offload (`UDP_SEGMENT`) one call hands the kernel up to 64 equal
//! datagrams, and with receive offload (`UDP_GRO`) one call takes as many; on loopback they cross
//! the stack as one. Where the kernel or the device refuses, the socket goes on datagram by
//! datagram.
//!
//! It also has what a listener needs to give each peer a socket of its own at the same address:
//! see [`UdpSocket::bind_beside`].

use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, UdpSocket as StandardSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use smallvec::SmallVec;

use crate::shared::SharedSpan;

/// The most datagrams one call sends: what every kernel with `UDP_SEGMENT` takes.
pub const MAX_SEGMENTS: usize = 64;
/// The most bytes one call sends.
pub const MAX_BATCH_BYTES: usize = 64_000;
/// A buffer of this size takes whatever one call can receive.
pub const RECEIVE_BUFFER_BYTES: usize = 65_536;

/// The most datagrams, or batches of them, that a socket made by [`UdpSocket::bind_beside`] has caught of others. The
/// kernel charges each with some 700 bytes at least, and the smallest receive buffer has less than 5 KB.
pub const MAX_CAUGHT: usize = 16;

/// Room for the one control message that each direction uses, aligned as the kernel wants it.
#[repr(C, align(8))]
struct ControlSpace([u8; 64]);

/// What one call received: datagrams of equal size side by side, the last perhaps shorter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceivedBatch {
    /// How many bytes of the buffer are filled.
    pub length_bytes: usize,
    /// The size of each datagram; 0 when the batch is one empty datagram.
    pub segment_bytes: usize,
}

/// A non-blocking UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    socket: StandardSocket,
    /// Cleared for good when the kernel refuses segmentation offload.
    segmentation: AtomicBool,
}

impl UdpSocket {
    fn new(address: SocketAddr) -> Result<Self, Errno> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let descriptor = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
        let socket = StandardSocket::from(descriptor);
        set_int(&socket, libc::SOL_UDP, libc::UDP_GRO, 1).ok();
        // Datagrams are sized to the path; a fragmented one would be lost whole with any part. How large
        // they may be the links find out; what routers say, or someone in their name, does not bound it.
        if address.is_ipv4() {
            sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::PROBE)?;
        } else {
            sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::PROBE)?;
        }
        Ok(Self { socket, segmentation: AtomicBool::new(true) })
    }

    fn bind_descriptor(&self, address: SocketAddr) -> Result<(), Errno> {
        rustix::net::bind(&self.socket, &address)
    }

    /// A socket at an address that nobody else uses (`EADDRINUSE` otherwise).
    pub fn bind(address: SocketAddr) -> Result<Self, Errno> {
        let socket = Self::new(address)?;
        socket.bind_descriptor(address)?;
        Ok(socket)
    }

    /// A socket for one peer, at an address of the kernel's choice.
    pub fn connect(peer: SocketAddr) -> Result<Self, Errno> {
        let socket = Self::new(peer)?;
        rustix::net::connect(&socket.socket, &peer)?;
        Ok(socket)
    }

    /// A second socket at our own address, for one peer: the kernel delivers what this peer sends
    /// to it and the rest to us, since a connected socket matches better.
    ///
    /// Between its binding and its connecting the new socket may catch datagrams of other peers, at most
    /// [`MAX_CAUGHT`] however long that takes, for until then it has room for no more. They come before all that
    /// its own peer sends: the caller reads so many and treats them by who sent them
    /// ([`UdpSocket::receive_from`]), and then asks for larger buffers.
    pub fn bind_beside(&self, peer: SocketAddr) -> Result<Self, Errno> {
        let address = self.local_address()?;
        // We share only for this moment, so that another process that asks for our address is
        // told that it is in use. The sockets beside us go on sharing, or they would be in the
        // way of the next one; they are connected, so they take nothing from anyone.
        sockopt::set_socket_reuseport(&self.socket, true)?;
        let beside = Self::new(address).and_then(|beside| {
            sockopt::set_socket_reuseport(&beside.socket, true)?;
            // The kernel makes its least of it: some kilobytes.
            sockopt::set_socket_recv_buffer_size(&beside.socket, 0)?;
            beside.bind_descriptor(address)?;
            rustix::net::connect(&beside.socket, &peer)?;
            Ok(beside)
        });
        sockopt::set_socket_reuseport(&self.socket, false)?;
        beside
    }

    /// Asks for kernel buffers of this size, and takes less where less is allowed.
    pub fn set_buffer_bytes(&self, bytes: usize) {
        // FORCE needs a capability; the plain form is cut to the system's limit. Both only tune.
        if sockopt::set_socket_recv_buffer_size_force(&self.socket, bytes).is_err() {
            let _ = sockopt::set_socket_recv_buffer_size(&self.socket, bytes);
        }
        if sockopt::set_socket_send_buffer_size_force(&self.socket, bytes).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(&self.socket, bytes);
        }
    }

    /// What the kernel buffers of what arrives, with its own bookkeeping.
    pub fn receive_buffer_bytes(&self) -> Result<usize, Errno> {
        sockopt::socket_recv_buffer_size(&self.socket)
    }

    /// Where the socket is bound.
    pub fn local_address(&self) -> Result<SocketAddr, Errno> {
        self.socket.local_addr().map_err(|error| errno_of(&error))
    }

    /// Where datagrams go to.
    pub fn peer_address(&self) -> Result<SocketAddr, Errno> {
        self.socket.peer_addr().map_err(|error| errno_of(&error))
    }

    /// What IP and UDP put before a datagram.
    pub fn headers_bytes(&self) -> Result<usize, Errno> {
        Ok(if self.local_address()?.is_ipv4() { 20 + 8 } else { 40 + 8 })
    }

    /// The largest datagram that the route to the connected peer takes in one piece, as far as the kernel
    /// knows: its interface, and what routers have said of late.
    pub fn max_datagram_bytes(&self) -> Result<usize, Errno> {
        let mtu_bytes = if self.local_address()?.is_ipv4() {
            sockopt::ip_mtu(&self.socket)?
        } else {
            sockopt::ipv6_mtu(&self.socket)?
        };
        Ok((mtu_bytes as usize).saturating_sub(self.headers_bytes()?).min(65_507))
    }

    /// Sends one datagram to the connected peer. `EAGAIN`: not now; `EMSGSIZE`: too large for the interface.
    pub fn send(&self, datagram: &[u8]) -> Result<(), Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        unless_said_of_another(|| rustix::net::send(&self.socket, datagram, flags).map(|_| ()))
    }

    /// Sends one datagram to anyone. `EAGAIN`: not now.
    pub fn send_to(&self, datagram: &[u8], to: SocketAddr) -> Result<(), Errno> {
        match self.socket.send_to(datagram, to) {
            Ok(_) => Ok(()),
            Err(error) => Err(errno_of(&error)),
        }
    }

    /// Sends datagrams of `segment_bytes` (the last may be shorter) to the connected peer.
    ///
    /// Returns how many bytes were sent, whole datagrams always; fewer than given means: the rest
    /// not now. `EAGAIN`: nothing now; `EMSGSIZE`: too large for the interface. At most [`MAX_SEGMENTS`] and [`MAX_BATCH_BYTES`].
    pub fn send_batch(&self, datagrams: &[u8], segment_bytes: usize) -> Result<usize, Errno> {
        if segment_bytes == 0 {
            return Err(Errno::INVAL);
        }
        let several = datagrams.len() > segment_bytes;
        if several && self.segmentation.load(Ordering::Relaxed) {
            let whole =
                libc::iovec { iov_base: datagrams.as_ptr().cast_mut().cast(), iov_len: datagrams.len() };
            match unless_said_of_another(|| self.send_segmented(&[whole], segment_bytes)) {
                // Refused by an old kernel, a device without checksum offload, or a route whose
                // packets are transformed; or, before Linux 6.14, for their size.
                Err(Errno::INVAL | Errno::IO | Errno::OPNOTSUPP | Errno::NOPROTOOPT) => {}
                result => return result,
            }
        }
        let mut sent_bytes = 0;
        for datagram in datagrams.chunks(segment_bytes) {
            match self.send(datagram) {
                Ok(()) => sent_bytes += datagram.len(),
                Err(Errno::AGAIN | Errno::MSGSIZE) if sent_bytes > 0 => break,
                Err(errno) => return Err(errno),
            }
            if several {
                // It was not for their size.
                self.segmentation.store(false, Ordering::Relaxed);
            }
        }
        Ok(sent_bytes)
    }

    /// As [`Self::send_batch`], of bytes that lie in several places. All of them, or an error: then, and where
    /// segmentation offload is not to be had (`EOPNOTSUPP`), nothing was sent.
    pub fn send_scattered(&self, parts: &[SharedSpan<'_>], segment_bytes: usize) -> Result<(), Errno> {
        let length_bytes: usize = parts.iter().map(SharedSpan::len).sum();
        if segment_bytes == 0 {
            return Err(Errno::INVAL);
        }
        if length_bytes > segment_bytes && !self.segments() {
            return Err(Errno::OPNOTSUPP);
        }
        let slices: SmallVec<[libc::iovec; 16]> = parts
            .iter()
            .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
            .collect();
        // A datagram is sent whole or not at all, and a batch of them, too.
        unless_said_of_another(|| self.send_segmented(&slices, segment_bytes)).map(|_| ())
    }

    /// Stops the use of segmentation offload, as a refusal by the kernel does.
    pub fn disable_segmentation(&self) {
        self.segmentation.store(false, Ordering::Relaxed);
    }

    /// Whether batches still go out in one call.
    pub fn segments(&self) -> bool {
        self.segmentation.load(Ordering::Relaxed)
    }

    /// The slices are of spans or slices that live.
    fn send_segmented(&self, slices: &[libc::iovec], segment_bytes: usize) -> Result<usize, Errno> {
        let segment = u16::try_from(segment_bytes).map_err(|_| Errno::INVAL)?;
        let mut space = ControlSpace([0; 64]);
        // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = slices.as_ptr().cast_mut();
        message.msg_iovlen = slices.len();
        if slices.iter().map(|slice| slice.iov_len).sum::<usize>() > segment_bytes {
            message.msg_control = (&raw mut space).cast();
            // SAFETY: CMSG_SPACE only computes. CMSG_FIRSTHDR and CMSG_DATA point into `space`, which
            // is aligned for a cmsghdr and larger than the CMSG_SPACE of one u16.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as usize;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::SOL_UDP;
                (*header).cmsg_type = libc::UDP_SEGMENT;
                (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as usize;
                libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment);
            }
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // Not the C library's: there it is a point where a thread may be cancelled, which costs time.
        // SAFETY: the message points at live buffers or spans, and the kernel only reads the datagrams.
        let sent =
            unsafe { libc::syscall(libc::SYS_sendmsg, self.socket.as_raw_fd(), &raw const message, flags) };
        usize::try_from(sent).map_err(|_| errno_of(&io::Error::last_os_error()))
    }

    /// Takes what has arrived: one datagram, or several of one size and one sender.
    /// From whom, [`Self::receive_from`] says.
    ///
    /// Give it [`RECEIVE_BUFFER_BYTES`]. `EAGAIN`: nothing there. `ECONNREFUSED`: nobody is bound
    /// where we are connected.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<ReceivedBatch, Errno> {
        self.receive_message(buffer, None)
    }

    /// As [`Self::receive`], and from whom, as far as the kernel says.
    pub fn receive_from(&self, buffer: &mut [u8]) -> Result<(ReceivedBatch, Option<SocketAddr>), Errno> {
        // SAFETY: all-zero is a valid sockaddr_storage (family AF_UNSPEC).
        let mut name: libc::sockaddr_storage = unsafe { MaybeUninit::zeroed().assume_init() };
        let batch = self.receive_message(buffer, Some(&mut name))?;
        Ok((batch, address_of(&name)))
    }

    fn receive_message(
        &self,
        buffer: &mut [u8],
        name: Option<&mut libc::sockaddr_storage>,
    ) -> Result<ReceivedBatch, Errno> {
        let mut slice = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut space = ControlSpace([0; 64]);
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        if let Some(name) = name {
            message.msg_name = (&raw mut *name).cast();
            message.msg_namelen = size_of::<libc::sockaddr_storage>() as u32;
        }
        message.msg_iov = &raw mut slice;
        message.msg_iovlen = 1;
        message.msg_control = (&raw mut space).cast();
        message.msg_controllen = size_of::<ControlSpace>();
        // As for sending, not the C library's.
        // SAFETY: the message points at live buffers with their true lengths.
        let received = unsafe {
            libc::syscall(libc::SYS_recvmsg, self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT)
        };
        let length_bytes = usize::try_from(received).map_err(|_| errno_of(&io::Error::last_os_error()))?;
        if message.msg_flags & libc::MSG_TRUNC != 0 {
            return Err(Errno::MSGSIZE);
        }
        let segment_bytes = received_segment(&message)
            .filter(|segment| *segment > 0)
            .unwrap_or(length_bytes)
            .min(length_bytes);
        Ok(ReceivedBatch { length_bytes, segment_bytes })
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl From<UdpSocket> for OwnedFd {
    fn from(socket: UdpSocket) -> Self {
        socket.socket.into()
    }
}

/// The size of each datagram of a batch, when the kernel merged several.
fn received_segment(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control buffer of `message`, which is still alive, and set
    // its length; the CMSG functions stay within that.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: a non-null header points at a whole cmsghdr in the control buffer.
        let (level, kind) = unsafe { ((*header).cmsg_level, (*header).cmsg_type) };
        if level == libc::SOL_UDP && kind == libc::UDP_GRO {
            // SAFETY: the data of this kind is a C int, written by the kernel.
            let segment = unsafe { libc::CMSG_DATA(header).cast::<i32>().read_unaligned() };
            return usize::try_from(segment).ok();
        }
        // SAFETY: as for the first header.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

fn address_of(name: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match i32::from(name.ss_family) {
        libc::AF_INET => {
            // SAFETY: the kernel says it is a sockaddr_in, for which the storage is large and
            // aligned enough.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let ip = std::net::Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
            Some(SocketAddr::from((ip, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => {
            // SAFETY: likewise for sockaddr_in6.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in6>() };
            let ip = std::net::Ipv6Addr::from(name.sin6_addr.s6_addr);
            Some(SocketAddr::from((ip, u16::from_be(name.sin6_port))))
        }
        _ => None,
    }
}

/// Sends; where the kernel says "too large", once more: the first time it may only have passed on what a
/// router, or someone in its name, said of an earlier datagram.
fn unless_said_of_another<T>(send: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match send() {
        Err(Errno::MSGSIZE) => send(),
        result => result,
    }
}

fn set_int(socket: &impl AsRawFd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    // SAFETY: the kernel reads four bytes from a live i32.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size_of::<i32>() as u32)
    };
    if result == 0 { Ok(()) } else { Err(errno_of(&io::Error::last_os_error())) }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::wait_readable;
    use std::time::Duration;

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    /// Datagrams received within the patience, split.
    fn receive_all(socket: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        let mut datagrams = Vec::new();
        while datagrams.len() < count
            && wait_readable(&[socket.as_fd()], Some(Duration::from_secs(2))).unwrap()
        {
            let batch = socket.receive(&mut buffer).unwrap();
            let filled = &buffer[..batch.length_bytes];
            datagrams.extend(filled.chunks(batch.segment_bytes).map(<[u8]>::to_vec));
        }
        datagrams
    }

    #[test]
    fn batches_keep_their_datagrams_with_and_without_offload() {
        let server = UdpSocket::bind(loopback()).unwrap();
        let client = UdpSocket::connect(server.local_address().unwrap()).unwrap();
        assert!(client.max_datagram_bytes().unwrap() >= 1472);
        for offload in [true, false] {
            if !offload {
                client.disable_segmentation();
            }
            let mut batch = Vec::new();
            for value in 0..9_u8 {
                batch.extend_from_slice(&[value; 1000]);
            }
            batch.extend_from_slice(&[9; 10]);
            assert_eq!(client.send_batch(&batch, 1000).unwrap(), 9010);
            let datagrams = receive_all(&server, 10);
            assert_eq!(datagrams.len(), 10);
            assert_eq!(datagrams[3], [3; 1000]);
            assert_eq!(datagrams[9], [9; 10]);
        }
    }

    #[test]
    fn a_socket_beside_takes_one_peer_and_the_address_stays_taken() {
        let listener = UdpSocket::bind(loopback()).unwrap();
        let address = listener.local_address().unwrap();
        assert_eq!(UdpSocket::bind(address).unwrap_err(), Errno::ADDRINUSE);
        let one = UdpSocket::connect(address).unwrap();
        let two = UdpSocket::connect(address).unwrap();
        let beside = listener.bind_beside(one.local_address().unwrap()).unwrap();
        let another = listener.bind_beside(two.local_address().unwrap()).unwrap();
        assert_eq!(UdpSocket::bind(address).unwrap_err(), Errno::ADDRINUSE);
        for round in 0..50_u8 {
            one.send(&[1, round]).unwrap();
            two.send(&[2, round]).unwrap();
            let three = UdpSocket::connect(address).unwrap();
            three.send(&[3, round]).unwrap();
            assert_eq!(receive_all(&beside, 1), [vec![1, round]]);
            assert_eq!(receive_all(&another, 1), [vec![2, round]]);
            assert_eq!(receive_all(&listener, 1), [vec![3, round]]);
        }
        beside.send(b"back").unwrap();
        assert_eq!(receive_all(&one, 1), [b"back".to_vec()]);
    }

    #[test]
    fn a_socket_has_room_for_few_datagrams_before_it_is_connected() {
        let listener = UdpSocket::bind(loopback()).unwrap();
        let one = UdpSocket::connect(listener.local_address().unwrap()).unwrap();
        let beside = listener.bind_beside(one.local_address().unwrap()).unwrap();
        for _ in 0..1000 {
            one.send(b"hello").unwrap();
        }
        let mut buffer = vec![0; RECEIVE_BUFFER_BYTES];
        let caught = (0..).take_while(|_| beside.receive(&mut buffer).is_ok()).count();
        assert!((1..=MAX_CAUGHT).contains(&caught), "{caught}");
    }

    #[test]
    fn nobody_there_is_refused() {
        let gone = UdpSocket::bind(loopback()).unwrap().local_address().unwrap();
        let client = UdpSocket::connect(gone).unwrap();
        client.send(b"hello").unwrap();
        let mut buffer = [0; 64];
        assert_eq!(client.receive(&mut buffer).unwrap_err(), Errno::CONNREFUSED);
    }
}
