//! An owner: it listens, answers, and has its thread move frames.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tombolo_core::nic::{Exchange, Limits, Mode, Turns};
use tombolo_host::unix::{PeerIdentity, SeqpacketListener, SeqpacketSocket, UnixError};

use crate::control::{Control, SEGMENT_BYTES_MAX};
use crate::protocol::{Answer, MESSAGE_BYTES_MAX};
use crate::uplink::{Uplink, UplinkName};
use crate::worker::Handle;

/// How an owner is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which interface.
    pub uplink: UplinkName,
    /// Bits a second that it is shaped to; 0: as much as it takes.
    pub rate_bits: u64,
    /// What ports take turns by.
    pub turns: Turns,
    /// Whether ports reach each other.
    pub mode: Mode,
    /// The uplink's MTU, if it is to be changed.
    pub mtu: Option<u32>,
}

/// How often the uplink's carrier and the caller's wish to end are looked at.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How late the thread is woken, 99th percentile: 20 to 50 µs from halt, and as much again on a busy machine.
const WAKE_NS: u64 = 100_000;
/// The most connections.
const CONNECTIONS_MAX: usize = 4096;

/// An owner that listens.
pub struct Owner {
    listeners: Vec<SeqpacketListener>,
    control: Control,
    interface: tombolo_host::net::Interface,
    index: u32,
    connections: HashMap<u64, (SeqpacketSocket, PeerIdentity)>,
    next_connection: u64,
}

impl Owner {
    /// Opens the uplink and listens at these paths.
    ///
    /// # Errors
    /// Another process listens there, or this one may not have the uplink.
    pub fn open(options: &Options, paths: &[&Path]) -> io::Result<Self> {
        let listen = |path: &&Path| SeqpacketListener::bind(path).map_err(io::Error::other);
        let listeners = paths.iter().map(listen).collect::<io::Result<_>>()?;
        let uplink = Uplink::open(&options.uplink, options.mtu)?;
        let interface = tombolo_host::net::Interface::open(uplink.interface().name())?;
        let limits = Limits {
            turns: options.turns,
            rate: Some(options.rate_bits / 8).filter(|rate| *rate > 0),
            wake_ns: WAKE_NS,
            segment_bytes_max: u64::from(SEGMENT_BYTES_MAX),
            mtu: interface.mtu()?,
        };
        let has_carrier = interface.is_running()?;
        let worker = Handle::start(Exchange::new(options.mode, limits), uplink)?;
        let control = Control::new(worker, has_carrier, limits.mtu);
        let index = interface.index()?;
        Ok(Self { listeners, control, interface, index, connections: HashMap::new(), next_connection: 0 })
    }

    /// Serves until the caller says so.
    ///
    /// # Errors
    /// The uplink is gone, or the kernel does not let it wait.
    pub fn serve(&mut self, is_over: impl Fn() -> bool) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: CHECK_INTERVAL.subsec_nanos().into() };
        let mut buffer = vec![0; MESSAGE_BYTES_MAX];
        while !is_over() {
            let numbers: Vec<u64> = self.connections.keys().copied().collect();
            let sockets = numbers.iter().filter_map(|number| self.connections.get(number));
            let mut waits: Vec<_> =
                self.listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
            waits.extend(sockets.map(|(socket, _)| PollFd::new(socket, PollFlags::IN)));
            match poll(&mut waits, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            let ready: Vec<bool> = waits.iter().map(|wait| !wait.revents().is_empty()).collect();
            drop(waits);
            let (listeners, sockets) = ready.split_at(self.listeners.len());
            let ready_numbers: Vec<u64> =
                numbers.iter().zip(sockets).filter(|(_, ready)| **ready).map(|(number, _)| *number).collect();
            // Before a port of the same number may come.
            for number in self.control.take_gone() {
                self.hang_up(number);
            }
            for number in ready_numbers {
                self.receive(number, &mut buffer);
            }
            if listeners.contains(&true) {
                self.accept();
            }
            // It may have another name now. One of its name that has come since is another one.
            if self.interface.index().ok() != Some(self.index) {
                self.interface.rename(self.index)?;
            }
            if self.control.is_of_no_use() {
                return Err(io::Error::other(format!("the uplink {} is gone", self.interface.name())));
            }
            self.control.set_uplink_state(self.interface.is_running()?, self.interface.mtu()?);
            self.tell_ports();
        }
        Ok(())
    }

    fn accept(&mut self) {
        for listener in &self.listeners {
            match listener.accept() {
                Ok(Some(socket)) if self.connections.len() < CONNECTIONS_MAX => {
                    // Who it is cannot be told: it is nobody's business then.
                    if let Ok(peer) = socket.peer() {
                        self.connections.insert(self.next_connection, (socket, peer));
                        self.next_connection += 1;
                    }
                }
                Ok(_) => {}
                Err(error) => tracing::warn!(%error, "a connection is not accepted"),
            }
        }
    }

    fn receive(&mut self, number: u64, buffer: &mut [u8]) {
        let Some((socket, peer)) = self.connections.get(&number) else { return };
        let answer = match socket.receive(buffer) {
            Ok(received) => {
                let message = buffer.get(..received.length_bytes).unwrap_or_default();
                self.control.answer(number, *peer, message, received.descriptors)
            }
            Err(UnixError::WouldBlock) => return,
            Err(error @ (UnixError::Truncated | UnixError::DescriptorsCut { .. })) => {
                Answer::Refused(error.to_string())
            }
            Err(_) => {
                self.hang_up(number);
                return;
            }
        };
        if !send(socket, &answer) {
            self.hang_up(number);
        }
    }

    fn hang_up(&mut self, number: u64) {
        self.control.hung_up(number);
        self.connections.remove(&number);
    }

    /// Tells ports what has changed of the uplink.
    fn tell_ports(&mut self) {
        let Some(answer) = self.control.take_news() else { return };
        let numbers: Vec<u64> = self.control.connections().collect();
        for number in numbers {
            if self.connections.get(&number).is_none_or(|(socket, _)| !send(socket, &answer)) {
                self.hang_up(number);
            }
        }
    }
}

/// Sends an answer. False: the peer has gone, or does not read what it is sent.
fn send(socket: &SeqpacketSocket, answer: &Answer) -> bool {
    serde_json::to_vec(answer).is_ok_and(|message| socket.send(&[&message], &[]).is_ok())
}
