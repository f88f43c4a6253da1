//! A link's probes: what is known of the path, and how large datagrams may be by it.

use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;

use super::mtu::PathMtu;
use super::wire::{self, Header, Kind, LENGTH_BYTES, PROBE_BYTES};
use super::{MAX_PROBES, UdpLink};

impl UdpLink {
    /// Does something with what is known of the path, and heeds what follows for datagrams.
    pub(super) fn with_mtu<T>(&self, change: impl FnOnce(&mut PathMtu) -> T) -> T {
        let mut mtu = self.mtu.lock();
        let before = mtu.present();
        let result = change(&mut mtu);
        let present = mtu.present();
        if present != before {
            self.datagram_bytes.store(present, Ordering::Relaxed);
            let changed =
                if present > before { &self.counters.size_raised } else { &self.counters.size_lowered };
            changed.add(1);
        }
        result
    }

    /// Sends the probes that are due; returns when to come back.
    pub(super) fn probe(&self, now: Instant) -> Instant {
        let sent_bytes = self.largest_sent_bytes.swap(0, Ordering::Relaxed);
        self.with_mtu(|mtu| mtu.sent(sent_bytes));
        let route = || self.socket.max_datagram_bytes().ok();
        for _ in 0..MAX_PROBES {
            let Some(probe) = self.with_mtu(|mtu| mtu.poll(now, &route)) else { break };
            let (header, number) = (Header::new(Kind::Probe, self.session), wire::probe(probe.id));
            let head_bytes = self.around_bytes - LENGTH_BYTES + PROBE_BYTES;
            let padding = vec![0; probe.bytes.saturating_sub(head_bytes)];
            self.counters.size_probes_sent.add(1);
            match self.try_send_datagram(header, &[&number, &padding]) {
                Err(Errno::MSGSIZE) => {
                    self.with_mtu(|mtu| mtu.refused(probe.bytes));
                    continue;
                }
                // Nobody is there, or there is no room: without a witness it goes again.
                Err(_) => {}
                Ok(()) => self.send_datagram(header, &[&number]),
            }
            break;
        }
        self.mtu.lock().deadline(now)
    }
}
