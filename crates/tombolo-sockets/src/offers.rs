//! The sockets of offers, and what is done with them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::fs::OFlags;
use rustix::io::Errno;
use tombolo_core::sdp::handover::{Flow, ListenerId, OfferId, Reason, Space};
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::sockets::{Diagnosis, state};
use tombolo_sockets_protocol::Address;
use tombolo_sockets_protocol::name::End;

use crate::ends;

/// What the node holds of an offer.
#[derive(Debug)]
pub struct Held {
    /// The client's socket, until a relay has it.
    pub client_tcp: Option<PassedDescriptor>,
    /// What the server has accepted, once it has asked.
    pub server_tcp: Option<PassedDescriptor>,
    /// The client's end, until the connection is handed over or relayed.
    pub client_end: Option<PassedDescriptor>,
    /// The server's end, until then.
    pub server_end: Option<PassedDescriptor>,
    /// The ends, as the kernel numbers them.
    pub inodes: [u32; 2],
    /// Names of the connection: the client's, the server's.
    pub names: (SocketAddr, SocketAddr),
}

/// A client's request to connect.
#[derive(Debug)]
pub struct Wish {
    /// Its socket.
    pub socket: PassedDescriptor,
    /// Where to.
    pub to: Address,
    /// Its process.
    pub token: u64,
}

/// What came of an attempt.
#[derive(Debug)]
pub enum Attempt {
    /// It is connected, and can be handed over.
    Made(Box<Held>, Flow, ListenerId),
    /// It stays TCP.
    Not {
        /// Why.
        reason: Reason,
        /// The socket may be connected or about to be.
        is_begun: bool,
    },
}

/// Looks who listens there, connects the socket without waiting, and makes a pair.
pub fn attempt(wish: Wish, offer: OfferId, space: Space, diagnosis: &Diagnosis) -> Attempt {
    let not = |reason, is_begun| Attempt::Not { reason, is_begun };
    let target = ends::socket_address(&wish.to);
    let nobody = SocketAddr::new(target.ip(), 0);
    let listener = match diagnosis.tcp(target, nobody) {
        Ok(Some(found)) if found.state == state::LISTENS => ListenerId(found.cookie),
        Ok(_) => return not(Reason::NoListener, false),
        Err(_) => return not(Reason::NoMeans, false),
    };
    let Ok(pair) = ends::pair() else { return not(Reason::NoMeans, false) };
    match connect(&wish.socket, &target) {
        Ok(()) => {}
        Err(is_begun) => return not(Reason::NotConnected, is_begun),
    }
    let made = || -> Result<_, Errno> {
        let names = ends::names(wish.socket.as_fd())?;
        // The kernel has the other end in this namespace, too: it leads to no other machine.
        let there = diagnosis.tcp(names.1, names.0)?.ok_or(Errno::NOENT)?;
        if there.state != state::ESTABLISHED || names.0 == names.1 {
            return Err(Errno::NOENT);
        }
        let end = End {
            is_server: false,
            id: offer.0,
            token: wish.token,
            local: ends::address_of(&names.0),
            remote: ends::address_of(&names.1),
        };
        ends::name(pair.0.as_fd(), &end)?;
        Ok((names, [ends::inode(pair.0.as_fd())?, ends::inode(pair.1.as_fd())?]))
    };
    match made() {
        Ok((names, inodes)) => {
            let flow = ends::flow(space, &names.0, &names.1);
            let held = Held {
                client_tcp: Some(wish.socket),
                server_tcp: None,
                client_end: Some(pair.0.into()),
                server_end: Some(pair.1.into()),
                inodes,
                names,
            };
            Attempt::Made(Box::new(held), flow, listener)
        }
        Err(Errno::NOENT | Errno::NOTCONN) => not(Reason::Elsewhere, true),
        Err(_) => not(Reason::NoMeans, true),
    }
}

/// Connects without waiting; the error says whether the attempt goes on. The socket is one that does not wait: the library has set it so, and sets it back.
fn connect(socket: &PassedDescriptor, target: &SocketAddr) -> Result<(), bool> {
    let flags = rustix::fs::fcntl_getfl(socket).map_err(|_| false)?;
    if !flags.contains(OFlags::NONBLOCK) {
        return Err(false);
    }
    match rustix::net::connect(socket, target) {
        Ok(()) => Ok(()),
        // On one machine it has been answered meanwhile, unless the listener's queue is full.
        Err(Errno::INPROGRESS) => match ends::state(socket.as_fd()) {
            Ok(state::ESTABLISHED) => Ok(()),
            _ => Err(true),
        },
        Err(_) => Err(false),
    }
}

/// All offers' sockets.
pub type All = BTreeMap<OfferId, Held>;

/// Lets the client of an offer see a reset: the kernel does that where bytes are left unread at the end that is closed.
pub fn reset_client(mut held: Held) {
    if let (Some(client), Some(server)) = (held.client_end.take(), held.server_end.take()) {
        let flags = rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL;
        // Where it is full, there is something unread.
        let _ = rustix::net::send(&client, b"!", flags);
        drop(server);
    }
}
