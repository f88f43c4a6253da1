//! Sockets of TCP and ends of pairs, as the node makes and checks them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tombolo_core::sdp::handover::{Endpoint, Flow, Space};
use tombolo_host::sockets::{self, number, set_option};
use tombolo_sockets_protocol::Address;
use tombolo_sockets_protocol::name::End;

/// `SO_SNDBUFFORCE` of the kernel's `asm-generic/socket.h`.
const FORCE_SEND_BUFFER: i32 = 32;
/// Bytes that a side may have sent and the other not read; the kernel doubles it, and counts 768 for a message of 64.
const SEND_BUFFER_BYTES: i32 = 4 << 20;

/// A socket's address.
pub fn address_of(socket: &SocketAddr) -> Address {
    match socket.ip() {
        IpAddr::V4(ip) => Address::v4(ip.octets(), socket.port()),
        IpAddr::V6(ip) => Address { is_v4: false, ip: ip.octets(), port: socket.port() },
    }
}

/// The address as the standard library has it.
pub fn socket_address(address: &Address) -> SocketAddr {
    let ip = Ipv6Addr::from(address.ip);
    let ip = match ip.to_ipv4_mapped().filter(|_| address.is_v4) {
        Some(ip) => IpAddr::V4(ip),
        None => IpAddr::V6(ip),
    };
    SocketAddr::new(ip, address.port)
}

/// The same for the machine, which tells no families apart.
pub fn endpoint(address: &SocketAddr) -> Endpoint {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    Endpoint { address: ip.octets(), port: address.port() }
}

/// A socket of TCP that a program has passed.
pub fn check_tcp(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let is = |name: i32, values: &[i32]| Ok(values.contains(&number(socket, libc::SOL_SOCKET, name)?));
    let is_tcp = is(libc::SO_TYPE, &[libc::SOCK_STREAM])?
        && is(libc::SO_PROTOCOL, &[libc::IPPROTO_TCP])?
        && is(libc::SO_DOMAIN, &[libc::AF_INET, libc::AF_INET6])?;
    if is_tcp { Ok(()) } else { Err(Errno::PROTOTYPE) }
}

/// The network namespace of a socket.
pub fn space(socket: BorrowedFd<'_>) -> Result<Space, Errno> {
    Ok(Space(sockets::cookies(socket)?.1))
}

/// The state of a socket of TCP.
pub fn state(socket: BorrowedFd<'_>) -> Result<u8, Errno> {
    let mut information = [0];
    sockets::option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut information)?;
    Ok(information[0])
}

/// Whether a socket is set in a way that a pair cannot imitate.
pub fn is_special(socket: BorrowedFd<'_>) -> bool {
    const FASTOPEN_CONNECT: i32 = 30;
    const SOL_IP: i32 = 0;
    let is_on = |level: i32, name: i32| number(socket, level, name).is_ok_and(|value| value != 0);
    let mut linger = [0; 8];
    let resets = sockets::option(socket, libc::SOL_SOCKET, libc::SO_LINGER, &mut linger).is_ok()
        && linger[0] != 0
        && linger[4..] == [0; 4];
    let waits_for_more = number(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(|least| least > 1);
    // With no room for it the kernel says how many steps a filter has.
    let has_filter =
        sockets::option(socket, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []).is_ok_and(|steps| steps > 0);
    resets
        || waits_for_more
        || has_filter
        || is_on(libc::IPPROTO_TCP, FASTOPEN_CONNECT)
        || is_on(SOL_IP, libc::IP_TRANSPARENT)
}

/// The names of a connected socket: its own and its peer's.
pub fn names(socket: BorrowedFd<'_>) -> Result<(SocketAddr, SocketAddr), Errno> {
    let convert =
        |address: rustix::net::SocketAddrAny| SocketAddr::try_from(address).map_err(|_| Errno::AFNOSUPPORT);
    let peer = rustix::net::getpeername(socket)?.ok_or(Errno::NOTCONN)?;
    Ok((convert(rustix::net::getsockname(socket)?)?, convert(peer)?))
}

/// The connection of a client's socket.
pub fn flow(space: Space, client: &SocketAddr, server: &SocketAddr) -> Flow {
    Flow { space, client: endpoint(client), server: endpoint(server) }
}

/// A pair: the client's end and the server's.
pub fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let ends = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    for end in [&ends.0, &ends.1] {
        let bytes = SEND_BUFFER_BYTES.to_ne_bytes();
        // Without the right to force it there is as much as the machine allows.
        if set_option(end.as_fd(), libc::SOL_SOCKET, FORCE_SEND_BUFFER, &bytes).is_err() {
            set_option(end.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &bytes)?;
        }
    }
    Ok(ends)
}

/// Gives an end its name.
pub fn name(descriptor: BorrowedFd<'_>, end: &End) -> Result<(), Errno> {
    rustix::net::bind(descriptor, &SocketAddrUnix::new_abstract_name(&end.encode())?)
}

/// The end that a descriptor is of, if this process has made it.
pub fn of(descriptor: BorrowedFd<'_>) -> Option<End> {
    if number(descriptor, libc::SOL_SOCKET, libc::SO_TYPE) != Ok(libc::SOCK_STREAM) {
        return None;
    }
    let name: SocketAddrUnix = rustix::net::getsockname(descriptor).ok()?.try_into().ok()?;
    let end = End::decode(name.abstract_name()?)?;
    // Process, user, group. Of a socket without a peer the process is 0.
    let mut made_by = [0; 12];
    sockets::option(descriptor, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut made_by).ok()?;
    let [a, b, c, d, ..] = made_by;
    (u32::from_ne_bytes([a, b, c, d]) == std::process::id()).then_some(end)
}

/// Whether programs may have an option set on the socket of TCP that their end stands for. The node may set more than they may.
pub fn may_set(level: i32, name: i32, length: usize) -> bool {
    const NOT_SENT_LOW: i32 = 25;
    let is_harmless = match level {
        libc::IPPROTO_TCP => [
            libc::TCP_NODELAY,
            libc::TCP_MAXSEG,
            libc::TCP_CORK,
            libc::TCP_KEEPIDLE,
            libc::TCP_KEEPINTVL,
            libc::TCP_KEEPCNT,
            libc::TCP_SYNCNT,
            libc::TCP_LINGER2,
            libc::TCP_WINDOW_CLAMP,
            libc::TCP_QUICKACK,
            libc::TCP_USER_TIMEOUT,
            NOT_SENT_LOW,
        ]
        .contains(&name),
        libc::IPPROTO_IP => [libc::IP_TTL, libc::IP_MTU_DISCOVER].contains(&name),
        libc::IPPROTO_IPV6 => [libc::IPV6_UNICAST_HOPS, libc::IPV6_MTU_DISCOVER].contains(&name),
        libc::SOL_SOCKET => [libc::SO_SNDBUF, libc::SO_RCVBUF, libc::SO_RCVLOWAT].contains(&name),
        _ => false,
    };
    is_harmless && length == size_of::<i32>()
}

/// The number by which the kernel knows what a descriptor is of.
pub fn inode(descriptor: BorrowedFd<'_>) -> Result<u32, Errno> {
    Ok(rustix::fs::fstat(descriptor)?.st_ino as u32)
}
