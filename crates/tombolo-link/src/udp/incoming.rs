//! What arrives at a link: opened where it is sealed, understood, and, unless it is packets, dealt with.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;

use super::seal::{SEALED_HEAD_BYTES, TAG_BYTES, Unopened};
use super::wire::{self, FLAG_MORE, FLAG_UNHEARD, HEADER_BYTES, Header, Kind, LENGTH_BYTES};
use super::{MAX_OTHERS, Receiving, UdpLink};
use crate::LossReason;

impl UdpLink {
    /// Does what a datagram other than a packet asks for.
    pub(super) fn handle(&self, header: Header, body: &[u8], sender: Option<SocketAddr>) {
        match header.kind {
            Kind::Hello if self.is_of_another(sender) => self.counters.discarded.add(1),
            Kind::Hello => self.handle_hello(body),
            _ if header.session != self.session => self.counters.discarded.add(1),
            Kind::Control => {
                let Some((sequence, text)) = wire::sequence_of(body) else {
                    return self.counters.discarded.add(1);
                };
                let more = header.flags & FLAG_MORE != 0;
                let arrived = {
                    let mut control = self.control.lock();
                    let arrived = control.arrived(sequence, text, more);
                    self.has_control.store(control.has_message(), Ordering::Release);
                    arrived
                };
                match arrived {
                    Ok(true) => {
                        let header = Header::new(Kind::ControlAck, self.session);
                        self.send_datagram(header, &[&sequence.to_le_bytes()]);
                    }
                    Ok(false) => {}
                    Err(reason) => {
                        self.mark_lost(reason);
                    }
                }
            }
            Kind::ControlAck => {
                if let Some((sequence, _)) = wire::sequence_of(body) {
                    let mut control = self.control.lock();
                    control.acknowledged(sequence);
                    self.send_due_control(&mut control, Instant::now());
                }
            }
            Kind::Probe => match wire::probe_of(body) {
                Some(id) => {
                    let datagram_bytes = self.around_bytes - LENGTH_BYTES + body.len();
                    let largest_bytes =
                        self.largest_heard_bytes.swap(0, Ordering::Relaxed).max(datagram_bytes);
                    let answer = wire::probe_ack(id, datagram_bytes as u32, largest_bytes as u32);
                    self.send_datagram(Header::new(Kind::ProbeAck, self.session), &[&answer]);
                }
                None => self.counters.discarded.add(1),
            },
            Kind::ProbeAck => {
                let Some([id, bytes, largest]) = wire::probe_ack_of(body) else {
                    return self.counters.discarded.add(1);
                };
                let (now, bytes, largest) = (Instant::now(), bytes as usize, largest as usize);
                if self.with_mtu(|mtu| mtu.arrived(id, bytes, largest, now)) {
                    self.probe(now);
                }
            }
            Kind::Ping => {
                let outage = wire::outage_of(body);
                self.keep_alive.lock().pinged(outage, header.flags & FLAG_UNHEARD != 0);
                let header = Header::new(Kind::Pong, self.session);
                match outage {
                    Some(outage) => self.send_datagram(header, &[&wire::outage(outage)]),
                    None => self.send_datagram(header, &[]),
                }
            }
            Kind::Pong => self.keep_alive.lock().ponged(wire::outage_of(body)),
            Kind::Bye => {
                // An unknown reason is one of a later version.
                self.mark_lost(match body {
                    [wire::BYE_KEY_REMOVED] => LossReason::KeyRevoked,
                    [wire::BYE_TOO_MANY] => LossReason::OneTooMany,
                    _ => LossReason::ClosedByPeer,
                });
            }
            // A welcome or acceptance is the answer to a question that we repeated.
            Kind::Welcome | Kind::Accepted => {}
            Kind::Packets | Kind::Reject | Kind::Handshake | Kind::Refused => {
                self.counters.discarded.add(1);
            }
        }
    }

    /// Whether a datagram is not the peer's. The kernel may have chosen this socket for it before that was connected, and put it there
    /// after those that [`tombolo_host::udp::UdpSocket::bind_beside`] has caught were read.
    fn is_of_another(&self, sender: Option<SocketAddr>) -> bool {
        let place = |address: SocketAddr| (address.ip(), address.port());
        let peer = self.socket.peer_address().ok().map(place);
        sender.is_some_and(|sender| peer != Some(place(sender)))
    }

    /// A hello at a session that exists: our welcome was lost, or the peer has begun a new life at
    /// the same port.
    fn handle_hello(&self, body: &[u8]) {
        match wire::nonce_of(body) {
            Some(nonce) if nonce == self.nonce => self.send_welcome(),
            Some(_) => {
                self.mark_lost(LossReason::ClosedByPeer);
            }
            None => self.counters.discarded.add(1),
        }
    }

    pub(super) fn send_welcome(&self) {
        match self.socket.send(&wire::answer(Kind::Welcome, false, self.session, self.nonce)) {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(errno) => self.failed(errno),
        }
    }

    /// What the datagram at that range is and where its body lies, opened where the session is
    /// secure. None: nothing for us, and counted.
    pub(super) fn understand(
        &self,
        receiving: &mut Receiving,
        range: &Range<usize>,
    ) -> Option<(Header, Range<usize>)> {
        let Receiving { incoming, opener } = receiving;
        if let Some(understood) = incoming.understood() {
            return Some(understood);
        }
        let Ok((header, _)) = Header::decode(incoming.datagram(range.clone())) else {
            self.counters.discarded.add(1);
            return None;
        };
        let body = match opener {
            None => range.start + HEADER_BYTES..range.end,
            Some(_) if header.session != self.session || header.kind.is_open() => {
                self.repeat_acceptance(header);
                self.counters.discarded.add(1);
                return None;
            }
            Some(opener) => match opener.open(incoming.datagram_mut(range.clone())) {
                Ok(()) => range.start + SEALED_HEAD_BYTES..range.end - TAG_BYTES,
                Err(Unopened::Forged) => {
                    self.counters.forged.add(1);
                    return None;
                }
                Err(Unopened::Replayed) => {
                    self.counters.replayed.add(1);
                    return None;
                }
            },
        };
        if opener.is_some() && self.to_accept.load(Ordering::Relaxed) {
            // It seals, so it has been told.
            self.to_accept.store(false, Ordering::Relaxed);
        }
        if header.kind == Kind::Packets
            && header.session == self.session
            && range.len() > self.largest_heard_bytes.load(Ordering::Relaxed)
        {
            self.largest_heard_bytes.store(range.len(), Ordering::Relaxed);
        }
        incoming.understand(header, body.clone());
        Some((header, body))
    }

    /// A handshake that goes on: the peer has not been told that it is accepted.
    fn repeat_acceptance(&self, header: Header) {
        let asked = header.kind == Kind::Handshake && header.session == self.session;
        if asked && self.to_accept.load(Ordering::Relaxed) {
            self.send_acceptance();
        }
    }

    pub(super) fn send_acceptance(&self) {
        self.send_datagram(Header::new(Kind::Accepted, self.session), &[]);
    }

    /// Handles datagrams up to the first packet of the session, which stays; true when there is
    /// one, or anything else of the session came.
    pub(super) fn pump(&self, receiving: &mut Receiving) -> bool {
        let mut alive = false;
        for _ in 0..MAX_OTHERS {
            let Some(range) = self.next(&mut receiving.incoming) else {
                break;
            };
            if let Some((header, body)) = self.understand(receiving, &range) {
                let ours = header.session == self.session;
                if ours && header.kind == Kind::Packets {
                    return true;
                }
                if ours {
                    alive = true;
                    self.heard();
                }
                let sender = receiving.incoming.sender();
                self.handle(header, receiving.incoming.datagram(body), sender);
            }
            receiving.incoming.advance(&range);
        }
        alive
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::udp::UdpListener;
    use crate::{Link, LinkState, Listener, Security};

    /// What the kernel had chosen this socket for before it was connected may come at any time.
    #[test]
    fn a_hello_of_another_does_not_end_a_session_and_one_of_the_peer_does() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = UdpListener::bind(any, &Security::Insecure).unwrap();
        let crate::Address::Udp(address) = listener.address() else { panic!("no UDP address") };
        let link = std::thread::scope(|scope| {
            let connector =
                scope.spawn(|| UdpLink::connect(address, &Security::Insecure, Duration::from_secs(10)));
            while !connector.is_finished() {
                let _ = listener.accept_within(Duration::from_millis(5));
            }
            connector.join().unwrap().unwrap()
        });
        let (hello, foreign_nonce) = (Header::new(Kind::Hello, 0), wire::hello(link.nonce ^ 1, false));
        let body = &foreign_nonce[HEADER_BYTES..];
        let another = SocketAddr::from(([127, 0, 0, 7], address.port()));
        link.handle(hello, body, Some(another));
        assert_eq!((link.state(), Link::counters(&link).discarded), (LinkState::Up, 1));
        link.handle(hello, body, Some(address));
        assert_eq!(link.state(), LinkState::Lost(LossReason::ClosedByPeer));
    }
}
