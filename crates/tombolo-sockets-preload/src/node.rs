//! Asking the node, by a connection for each question.

use tombolo_interpose::sys::set_signal_mask;
use tombolo_sockets_protocol::ANSWER_TIMEOUT_MS;
use tombolo_sockets_protocol::messages::{ANSWER_BYTES, Answer, Request, TAKEN};

use crate::{ends, start, sys, unconnected};

/// A connection to the node, closed when it is dropped.
struct Connection(i32);

impl Drop for Connection {
    fn drop(&mut self) {
        // A child that another thread has forked meanwhile may have it, too: the node is to see its end all the same.
        sys::shut_down(self.0);
        sys::close(self.0);
    }
}

fn connect() -> Option<Connection> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let connection = Connection(sys::socket(libc::AF_UNIX, kind).ok()? as i32);
    let address = core::ptr::from_ref(start::node_address()) as usize;
    let arguments = [connection.0 as usize, address, size_of::<libc::sockaddr_un>(), 0, 0, 0];
    // SAFETY: an address that stays.
    let connected = unsafe { tombolo_interpose::sys::call(libc::SYS_connect, arguments) };
    if connected.is_err() {
        start::pause();
        return None;
    }
    let mut credentials = [0; 12];
    sys::option(connection.0, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials).ok()?;
    let [_, _, _, _, a, b, c, d, ..] = credentials;
    ends::is_trusted(u32::from_ne_bytes([a, b, c, d])).then_some(connection)
}

fn question(request: &Request, descriptor: Option<i32>) -> Option<Connection> {
    let connection = connect()?;
    sys::send(connection.0, &request.encode(), descriptor).ok()?;
    Some(connection)
}

fn answer(connection: &Connection) -> Option<(Answer, Option<i32>)> {
    let until = sys::now_ns() + ANSWER_TIMEOUT_MS as u64 * 1_000_000;
    if !sys::wait_readable(connection.0, until) {
        start::pause();
        return None;
    }
    let mut bytes = [0; ANSWER_BYTES];
    let (length, descriptor) = sys::receive(connection.0, &mut bytes).ok()?;
    let answer = bytes.get(..length).and_then(Answer::decode);
    if answer.is_none() {
        descriptor.into_iter().for_each(sys::close);
    }
    Some((answer?, descriptor))
}

/// Asks, and waits for the answer. `None`: there is none.
pub fn ask(request: &Request, descriptor: Option<i32>) -> Option<(Answer, Option<i32>)> {
    let connection = question(request, descriptor)?;
    answer(&connection)
}

/// Leaves an end to the node, for when this process is no more: the connection stays open until then.
pub fn tell_at_end(descriptor: i32) {
    if let Some(connection) = question(&Request::CloseAtEnd, Some(descriptor)) {
        core::mem::forget(connection);
    }
}

/// Tells the node something; whether that is on its way.
pub fn tell(request: &Request, descriptor: Option<i32>) -> bool {
    question(request, descriptor).is_some()
}

/// What has come of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchanged {
    /// The descriptor is an end of a pair now.
    End,
    /// It is the socket that it was. The node may have begun to connect it.
    Socket { may_be_connected: bool },
}

/// Has the node exchange a socket for an end of a pair.
/// `flags`: those of the socket, as the program has set them.
pub fn exchange(request: &Request, descriptor: i32, flags: usize) -> Exchanged {
    // Where a signal handler left for good, the node would have the end, and this program, too.
    let mask = set_signal_mask(u64::MAX);
    let exchanged = exchange_undisturbed(request, descriptor, flags);
    set_signal_mask(mask);
    exchanged
}

fn exchange_undisturbed(request: &Request, descriptor: i32, flags: usize) -> Exchanged {
    let Some(connection) = question(request, Some(descriptor)) else {
        return Exchanged::Socket { may_be_connected: false };
    };
    match answer(&connection) {
        Some((Answer::End { id }, Some(end))) => {
            ends::taken(id);
            if install(end, descriptor, flags) {
                let _ = sys::send(connection.0, &TAKEN, None);
                Exchanged::End
            } else {
                Exchanged::Socket { may_be_connected: true }
            }
        }
        Some((answer, other)) => {
            other.into_iter().for_each(sys::close);
            let may_be_connected = !matches!(answer, Answer::Tcp { is_begun: false });
            Exchanged::Socket { may_be_connected }
        }
        None => Exchanged::Socket { may_be_connected: true },
    }
}

/// Options of sockets of any kind, which the end is to have as the socket had them.
const KEPT: [i32; 5] =
    [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_LINGER, libc::SO_KEEPALIVE, libc::SO_OOBINLINE];

/// Puts an end in the place of a socket, as it was set. The end's own descriptor is closed.
fn install(end: i32, descriptor: i32, flags: usize) -> bool {
    for name in KEPT {
        let mut value = [0; 16];
        if let Ok(length) = sys::option(descriptor, libc::SOL_SOCKET, name, &mut value)
            && value.iter().any(|byte| *byte != 0)
        {
            let _ = sys::set_option(end, libc::SOL_SOCKET, name, value.get(..length).unwrap_or(&[]));
        }
    }
    let kept = flags & (libc::O_NONBLOCK | libc::O_ASYNC) as usize;
    if kept & libc::O_ASYNC as usize != 0 {
        for (get, set) in [(libc::F_GETOWN, libc::F_SETOWN), (F_GETSIG, F_SETSIG)] {
            if let Ok(value) = sys::control(descriptor, get, 0) {
                let _ = sys::control(end, set, value);
            }
        }
    }
    let _ = sys::control(end, libc::F_SETFL, kept);
    let is_closed_on_exec = sys::control(descriptor, libc::F_GETFD, 0) != Ok(0);
    let flag = if is_closed_on_exec { libc::O_CLOEXEC } else { 0 };
    unconnected::leave_sets(descriptor);
    // SAFETY: both are descriptors of this program; the second is one that it has asked to exchange.
    let placed = unsafe {
        tombolo_interpose::sys::call(
            libc::SYS_dup3,
            [end as usize, descriptor as usize, flag as usize, 0, 0, 0],
        )
    };
    unconnected::enter_sets(descriptor);
    sys::close(end);
    placed.is_ok()
}

const F_SETSIG: i32 = 10;
const F_GETSIG: i32 = 11;
