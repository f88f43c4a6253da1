//! The accepting side's handshake of one secure session, from its first message to its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use tombolo_host::event::EventFd;
use tombolo_host::udp::UdpSocket;

use super::batch::IncomingBatch;
use super::keep_alive::End;
use super::noise::{Handshake, Seals};
use super::seal::SEAL_BYTES;
use super::wire::{self, HANDSHAKE_BYTES, HEADER_BYTES, Header, Kind};
use super::{Session, Settings, UdpLink};
use crate::identity::{Identity, Ticket};
use crate::{AcceptError, OpenError, PublicKey};

/// Datagrams taken in one turn, and those that the kernel has put together with the last: the handshake has one
/// more to come. What is left makes the socket readable.
const MAX_DATAGRAMS: usize = 8;

/// How far the handshake is.
#[derive(Debug)]
enum Stage {
    /// The second message is sent, and sent again for each repetition of the first.
    Answered(Handshake),
    /// The peer has proved this key, and ours is on its list: it is looked up in ours.
    Looking(Seals, PublicKey, Ticket),
    /// The peer's key is on the list, and ours on its.
    Agreed(Seals, PublicKey),
    /// The peer is told so each time it asks.
    Refused(Seals),
    /// There is nothing more to say.
    Over,
}

/// What came of the datagrams that were there.
#[derive(Debug)]
pub(super) enum Progress {
    /// It goes on.
    Waiting,
    /// Make the link.
    Agreed,
    /// Said once: the peer is not accepted.
    Refused(AcceptError),
}

/// A handshake with a peer that is known to be where it says.
#[derive(Debug)]
pub(super) struct Responder {
    pub(super) socket: UdpSocket,
    identity: Arc<Identity>,
    peer: SocketAddr,
    session: u64,
    nonce: u64,
    incoming: IncomingBatch,
    second: [u8; HANDSHAKE_BYTES],
    stage: Stage,
    /// Signalled when the key has been looked up.
    found: Arc<EventFd>,
}

impl Responder {
    /// Answers the first message; None: it is not genuine.
    pub(super) fn new(
        socket: UdpSocket,
        identity: Arc<Identity>,
        peer: SocketAddr,
        (session, nonce): (u64, u64),
        first: &[u8],
        found: &Arc<EventFd>,
    ) -> Result<Option<Self>, OpenError> {
        let mut handshake = Handshake::responder(&identity.keys, session, nonce)?;
        if handshake.read_first(first).is_err() {
            return Ok(None);
        }
        let second = wire::handshake(session, nonce, 2, &handshake.write()?);
        let (incoming, stage) = (IncomingBatch::new(), Stage::Answered(handshake));
        let found = found.clone();
        let responder = Self { socket, identity, peer, session, nonce, incoming, second, stage, found };
        responder.send(&responder.second);
        Ok(Some(responder))
    }

    /// The number of the session.
    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// Who asks.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// If it is lost, the peer asks again.
    fn send(&self, datagram: &[u8]) {
        let _ = self.socket.send(datagram);
    }

    /// Takes what has arrived.
    pub(super) fn advance(&mut self) -> Progress {
        let mut taken = 0;
        while taken < MAX_DATAGRAMS || self.incoming.has_more() {
            taken += 1;
            let range = match self.incoming.peek(&self.socket) {
                Ok(Some(range)) => range,
                Ok(None) => break,
                // About a datagram of ours that met nobody.
                Err(Errno::CONNREFUSED) => continue,
                Err(_) => break,
            };
            let mut datagram = [0; HANDSHAKE_BYTES];
            let found = self.incoming.datagram(range.clone());
            let whole = found.len() == HANDSHAKE_BYTES;
            if whole {
                datagram.copy_from_slice(found);
            }
            self.incoming.advance(&range);
            if whole {
                match self.hear(&datagram) {
                    Progress::Waiting => {}
                    progress => return progress,
                }
            }
        }
        Progress::Waiting
    }

    fn hear(&mut self, datagram: &[u8]) -> Progress {
        let Ok((header, body)) = Header::decode(datagram) else { return Progress::Waiting };
        if header.kind != Kind::Handshake || header.session != self.session {
            return Progress::Waiting;
        }
        if wire::handshake_of(body, 1).is_some() {
            if matches!(self.stage, Stage::Answered(_)) {
                self.send(&self.second);
            }
            return Progress::Waiting;
        }
        match wire::handshake_of(body, 3) {
            Some((nonce, third)) if nonce == self.nonce => self.hear_third(third),
            _ => Progress::Waiting,
        }
    }

    fn hear_third(&mut self, third: &[u8]) -> Progress {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Answered(handshake) => {
                let Ok((key, welcome, seals)) = handshake.finish_responder(third) else {
                    return Progress::Waiting;
                };
                if !welcome {
                    let ours = self.identity.keys.public();
                    return Progress::Refused(AcceptError::NotOnTheirList {
                        from: self.peer,
                        theirs: key,
                        ours,
                    });
                }
                self.stage = Stage::Looking(seals, key, self.identity.reader.ask(Some(&self.found)));
                self.look_up()
            }
            Stage::Refused(seals) => {
                self.stage = Stage::Refused(seals);
                self.refuse();
                Progress::Waiting
            }
            stage => {
                self.stage = stage;
                self.look_up()
            }
        }
    }

    /// Goes on if the peer's key has been looked up.
    pub(super) fn look_up(&mut self) -> Progress {
        let Stage::Looking(_, key, ticket) = self.stage else { return Progress::Waiting };
        let Some(rights) = self.identity.reader.answer(ticket) else { return Progress::Waiting };
        let Stage::Looking(seals, ..) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Progress::Waiting;
        };
        let is_allowed = rights.map(|rights| rights.of(&key).is_some());
        if let Ok(true) = is_allowed {
            self.stage = Stage::Agreed(seals, key);
            return Progress::Agreed;
        }
        self.stage = Stage::Refused(seals);
        self.refuse();
        Progress::Refused(match is_allowed {
            Err(error) => AcceptError::Open(error.into()),
            Ok(_) => {
                let list = self.identity.allowed.to_string();
                AcceptError::PeerNotAllowed { from: self.peer, key, list }
            }
        })
    }

    fn refuse(&mut self) {
        let mut datagram = [0; HEADER_BYTES + SEAL_BYTES];
        datagram[..HEADER_BYTES].copy_from_slice(&Header::new(Kind::Refused, self.session).encode());
        if let Stage::Refused(seals) = &mut self.stage
            && seals.sealer.seal(&mut datagram, Instant::now())
        {
            self.send(&datagram);
        }
    }

    /// The link, once agreed; the peer is told.
    pub(super) fn into_link(self, settings: Settings) -> Result<Option<UdpLink>, OpenError> {
        let Stage::Agreed(seals, key) = self.stage else { return Ok(None) };
        let (socket, incoming) = (self.socket, self.incoming);
        let (number, nonce) = (self.session, self.nonce);
        let (seals, peer_key, to_accept) = (Some(seals), Some(key), true);
        let end = End::Listening;
        let session = Session { socket, incoming, number, nonce, seals, peer_key, end, to_accept, settings };
        let link = UdpLink::new(session)?;
        link.send_acceptance();
        link.probe(Instant::now());
        Ok(Some(link))
    }
}
