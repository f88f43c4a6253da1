//! Sockets as the kernel has them: options by number, and what sock_diag(7) says of one.

use std::collections::BTreeSet;
use std::mem::size_of_val;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Fills `value` with that of an option; how long it is, as the kernel says.
///
/// # Errors
/// As getsockopt(2).
pub fn option(socket: BorrowedFd<'_>, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let mut length = value.len() as libc::socklen_t;
    let (socket, target) = (socket.as_raw_fd(), value.as_mut_ptr().cast());
    // SAFETY: the kernel writes at most as many bytes as the slice has, and the length.
    match unsafe { libc::getsockopt(socket, level, name, target, &raw mut length) } {
        0 => Ok(length as usize),
        _ => Err(last_error()),
    }
}

/// An option that is an integer.
///
/// # Errors
/// As getsockopt(2).
pub fn number(socket: BorrowedFd<'_>, level: i32, name: i32) -> Result<i32, Errno> {
    let mut value = [0; 4];
    option(socket, level, name, &mut value)?;
    Ok(i32::from_ne_bytes(value))
}

/// An option that is an integer of 64 bits.
///
/// # Errors
/// As getsockopt(2).
pub fn long_number(socket: BorrowedFd<'_>, level: i32, name: i32) -> Result<u64, Errno> {
    let mut value = [0; 8];
    option(socket, level, name, &mut value)?;
    Ok(u64::from_ne_bytes(value))
}

/// Sets an option.
///
/// # Errors
/// As setsockopt(2).
pub fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let (socket, from, length) = (socket.as_raw_fd(), value.as_ptr().cast(), size_of_val(value));
    // SAFETY: the kernel reads as many bytes as the slice has.
    match unsafe { libc::setsockopt(socket, level, name, from, length as libc::socklen_t) } {
        0 => Ok(()),
        _ => Err(last_error()),
    }
}

/// `SO_NETNS_COOKIE` of the kernel's `asm-generic/socket.h`.
const NAMESPACE_COOKIE: i32 = 71;

/// The number of a socket, and that of its network namespace. Neither is given again.
///
/// # Errors
/// It is no socket.
pub fn cookies(socket: BorrowedFd<'_>) -> Result<(u64, u64), Errno> {
    let own = long_number(socket, libc::SOL_SOCKET, libc::SO_COOKIE)?;
    Ok((own, long_number(socket, libc::SOL_SOCKET, NAMESPACE_COOKIE)?))
}

/// What the kernel says of a socket of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// As in `TCP_INFO`: 1 is connected, 10 listens.
    pub state: u8,
    /// The inode; 0: no program has accepted it.
    pub inode: u32,
    /// Its number, as [`cookies`] has it.
    pub cookie: u64,
}

impl TcpSocket {
    /// family, state, timer, retransmissions; the id of 48 bytes; expiry, queues, user, inode.
    fn read(answer: &[u8]) -> Option<Self> {
        let word = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
        let cookie = u64::from(word(44)?) | u64::from(word(48)?) << 32;
        Some(Self { state: *answer.get(1)?, cookie, inode: word(68)? })
    }
}

/// Length and kind of the first of several messages.
fn header(messages: &[u8]) -> Option<(usize, u16)> {
    let size = u32::from_ne_bytes(messages.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(messages.get(4..6)?.try_into().ok()?);
    (size >= HEADER_BYTES).then_some((size, kind))
}

/// States of sockets, as `TCP_INFO` and sock_diag(7) have them.
pub mod state {
    /// Connected.
    pub const ESTABLISHED: u8 = 1;
    /// Not connected.
    pub const CLOSED: u8 = 7;
    /// The peer has ended its writing.
    pub const PEER_HAS_CLOSED: u8 = 8;
    /// It listens.
    pub const LISTENS: u8 = 10;
}

/// Asks the kernel about sockets of this process's network namespace.
#[derive(Debug)]
pub struct Diagnosis {
    socket: OwnedFd,
}

const REQUEST: u16 = 0x01;
const BY_FAMILY: u16 = 20;
const ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;
const ANSWER_BYTES: usize = 32768;
const DUMP: u16 = 0x300;

impl Diagnosis {
    /// # Errors
    /// The kernel has no sock_diag, or there is no descriptor.
    pub fn new() -> Result<Self, Errno> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )?;
        Ok(Self { socket })
    }

    fn send(&self, request: &[u8], flags: u16) -> Result<(), Errno> {
        let mut message = Vec::with_capacity(HEADER_BYTES + request.len());
        message.extend(((HEADER_BYTES + request.len()) as u32).to_ne_bytes());
        message.extend(BY_FAMILY.to_ne_bytes());
        message.extend((REQUEST | flags).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(request);
        rustix::net::send(&self.socket, &message, SendFlags::empty()).map(drop)
    }

    /// What the kernel answers to a request without its header. `None`: there is no such socket.
    fn ask(&self, request: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        self.send(request, 0)?;
        let mut answer = vec![0; ANSWER_BYTES];
        let (length, _) = rustix::net::recv(&self.socket, &mut *answer, RecvFlags::empty())?;
        answer.truncate(length);
        let kind = answer.get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        let body = answer.get(HEADER_BYTES..).ok_or(Errno::PROTO)?;
        match kind {
            Some(BY_FAMILY) => Ok(Some(body.to_vec())),
            Some(ERROR) => {
                let code = body.first_chunk().map(|code| -i32::from_ne_bytes(*code)).unwrap_or(0);
                match Errno::from_raw_os_error(code) {
                    Errno::NOENT => Ok(None),
                    _ if code == 0 => Err(Errno::PROTO),
                    error => Err(error),
                }
            }
            _ => Err(Errno::PROTO),
        }
    }

    /// Each part of a list that the kernel answers with.
    fn list(&self, request: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
        const DONE: u16 = 3;
        self.send(request, DUMP)?;
        let mut answer = vec![0; ANSWER_BYTES];
        let mut outcome = Ok(());
        loop {
            let (length, _) = rustix::net::recv(&self.socket, &mut *answer, RecvFlags::empty())?;
            let mut rest = answer.get(..length).unwrap_or(&[]);
            while let Some((size, kind)) = header(rest) {
                match kind {
                    BY_FAMILY => each(rest.get(HEADER_BYTES..size).unwrap_or(&[])),
                    DONE => return outcome,
                    ERROR => return Err(Errno::IO),
                    _ => outcome = Err(Errno::PROTO),
                }
                rest = rest.get(size.next_multiple_of(4)..).unwrap_or(&[]);
            }
        }
    }

    /// The socket that gets what comes for `local` from `remote`: a connected one, or one that listens.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn tcp(&self, local: SocketAddr, remote: SocketAddr) -> Result<Option<TcpSocket>, Errno> {
        const ALL_STATES: u32 = u32::MAX;
        const NO_COOKIE: [u8; 8] = [0xff; 8];
        let (local_ip, remote_ip) = (local.ip().to_canonical(), remote.ip().to_canonical());
        let is_v4 = local_ip.is_ipv4() && remote_ip.is_ipv4();
        let mut request = vec![if is_v4 { libc::AF_INET } else { libc::AF_INET6 } as u8];
        request.extend([libc::IPPROTO_TCP as u8, 0, 0]);
        request.extend(ALL_STATES.to_ne_bytes());
        request.extend(local.port().to_be_bytes());
        request.extend(remote.port().to_be_bytes());
        for ip in [local_ip, remote_ip] {
            let mut bytes = [0; 16];
            match ip {
                IpAddr::V4(ip) if is_v4 => bytes[..4].copy_from_slice(&ip.octets()),
                IpAddr::V4(ip) => bytes = ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => bytes = ip.octets(),
            }
            request.extend(bytes);
        }
        request.extend([0; 4]);
        request.extend(NO_COOKIE);
        let Some(answer) = self.ask(&request)? else { return Ok(None) };
        TcpSocket::read(&answer).map(Some).ok_or(Errno::PROTO)
    }

    /// The numbers of all sockets of TCP that listen.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn listening(&self) -> Result<BTreeSet<u64>, Errno> {
        let mut found = BTreeSet::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut request = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
            request.extend((1u32 << state::LISTENS).to_ne_bytes());
            request.extend([0; 48]);
            self.list(&request, |body| found.extend(TcpSocket::read(body).map(|socket| socket.cookie)))?;
        }
        Ok(found)
    }

    /// The inodes of all Unix sockets.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn unix_inodes(&self) -> Result<BTreeSet<u32>, Errno> {
        let mut request = vec![libc::AF_UNIX as u8, 0, 0, 0];
        request.extend(u32::MAX.to_ne_bytes());
        request.extend([0; 16]);
        let mut found = BTreeSet::new();
        // family, type, state, padding; the inode.
        self.list(&request, |body| {
            found.extend(body.get(4..8).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes));
        })?;
        Ok(found)
    }
}

impl AsFd for Diagnosis {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn the_kernel_says_who_listens_and_who_is_connected() {
        let diagnosis = Diagnosis::new().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let nobody: SocketAddr = (Ipv4Addr::LOCALHOST, 0).into();
        let found = diagnosis.tcp(at, nobody).unwrap().unwrap();
        let (cookie, namespace) = cookies(listener.as_fd()).unwrap();
        assert_eq!((found.state, found.cookie), (state::LISTENS, cookie));
        let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let all = diagnosis.listening().unwrap();
        assert!(all.contains(&cookie) && all.contains(&cookies(v6.as_fd()).unwrap().0));
        let client = TcpStream::connect(at).unwrap();
        assert_eq!(cookies(client.as_fd()).unwrap().1, namespace);
        let from = client.local_addr().unwrap();
        let waiting = diagnosis.tcp(at, from).unwrap().unwrap();
        assert_eq!((waiting.state, waiting.inode), (state::ESTABLISHED, 0));
        let (accepted, _) = listener.accept().unwrap();
        let taken = diagnosis.tcp(at, from).unwrap().unwrap();
        assert!(taken.inode != 0 && taken.cookie == cookies(accepted.as_fd()).unwrap().0);
        let own = diagnosis.tcp(from, at).unwrap().unwrap();
        assert_eq!(own.cookie, cookies(client.as_fd()).unwrap().0);
        drop((listener, client, accepted));
        assert_eq!(diagnosis.tcp(at, nobody).unwrap(), None);
        assert!(!diagnosis.listening().unwrap().contains(&cookie));
    }

    #[test]
    fn the_kernel_says_whether_a_unix_socket_is_there() {
        let diagnosis = Diagnosis::new().unwrap();
        let (one, other) = UnixStream::pair().unwrap();
        let inode = rustix::fs::fstat(&one).unwrap().st_ino as u32;
        assert!(diagnosis.unix_inodes().unwrap().contains(&inode));
        drop(one);
        assert!(!diagnosis.unix_inodes().unwrap().contains(&inode));
        drop(other);
    }

    #[test]
    fn options_are_as_they_were_set() {
        let (one, _other) = UnixStream::pair().unwrap();
        set_option(one.as_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1i32.to_ne_bytes()).unwrap();
        assert_eq!(number(one.as_fd(), libc::SOL_SOCKET, libc::SO_KEEPALIVE), Ok(1));
        assert_eq!(number(one.as_fd(), libc::IPPROTO_TCP, 1), Err(Errno::OPNOTSUPP));
        let wrong = set_option(one.as_fd(), libc::IPPROTO_TCP, 1, &[0; 4]);
        assert_eq!(wrong, Err(Errno::OPNOTSUPP));
    }
}
