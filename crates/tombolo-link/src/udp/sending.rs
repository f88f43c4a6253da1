//! What leaves a link: packets, gathered and flushed; small datagrams, at once; control fragments, when due.

use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::io::Errno;

use super::batch::OutgoingBatch;
use super::control::ControlChannel;
use super::seal::{COUNTER_BYTES, TAG_BYTES};
use super::wire::{FLAG_MORE, Header, Kind};
use super::{MAX_PACKET_BYTES, UdpLink};
use crate::SendError;

impl UdpLink {
    pub(super) fn flush_locked(&self, batch: &mut OutgoingBatch) {
        if batch.is_empty() {
            return;
        }
        let datagram_bytes = batch.stride_bytes();
        if datagram_bytes > self.largest_sent_bytes.load(Ordering::Relaxed) {
            self.largest_sent_bytes.fetch_max(datagram_bytes, Ordering::Relaxed);
        }
        match batch.flush(&self.socket, self.sealer.as_ref()) {
            Ok(()) | Err((Errno::AGAIN, _)) => {}
            Err((Errno::CONNREFUSED, _)) => self.failed(Errno::CONNREFUSED),
            Err((Errno::MSGSIZE, lost)) => {
                self.counters.send_failures.add(lost as u64);
                self.with_mtu(|mtu| mtu.refused(datagram_bytes));
            }
            Err((_, lost)) => self.counters.send_failures.add(lost as u64),
        }
    }

    /// Sends a small datagram at once. It may be lost like any other.
    pub(super) fn send_datagram(&self, header: Header, body: &[&[u8]]) {
        match self.try_send_datagram(header, body) {
            Ok(()) | Err(Errno::AGAIN) => {}
            Err(errno) => self.failed(errno),
        }
    }

    pub(super) fn try_send_datagram(&self, header: Header, body: &[&[u8]]) -> Result<(), Errno> {
        let mut datagram = header.encode().to_vec();
        if let Some(sealer) = &self.sealer {
            datagram.extend_from_slice(&[0; COUNTER_BYTES]);
            body.iter().for_each(|part| datagram.extend_from_slice(part));
            datagram.extend_from_slice(&[0; TAG_BYTES]);
            if !sealer.lock().seal(&mut datagram, Instant::now()) {
                self.counters.send_failures.add(1);
                return Ok(());
            }
        } else {
            body.iter().for_each(|part| datagram.extend_from_slice(part));
        }
        self.socket.send(&datagram)
    }

    /// Adds a packet of this many bytes to what is sent next.
    pub(super) fn add(
        &self,
        bytes: usize,
        push: &mut dyn FnMut(&mut OutgoingBatch) -> bool,
    ) -> Result<(), SendError> {
        self.check()?;
        let datagram_bytes = self.datagram_bytes.load(Ordering::Relaxed);
        let max_bytes = self.packet_bytes(datagram_bytes);
        if bytes > max_bytes {
            return Err(SendError::TooLarge { bytes, max_bytes });
        }
        let mut batch = self.sending.lock();
        batch.bound(datagram_bytes);
        if !push(&mut batch) {
            self.flush_locked(&mut batch);
            self.check()?;
            if !batch.is_empty() || !push(&mut batch) {
                self.counters.full.add(1);
                return Err(SendError::Full);
            }
        }
        self.counters.packets_sent.add_exclusively(1);
        self.counters.bytes_sent.add_exclusively(bytes as u64);
        Ok(())
    }

    /// The largest packet in datagrams of that size.
    pub(super) fn packet_bytes(&self, datagram_bytes: usize) -> usize {
        MAX_PACKET_BYTES.min(datagram_bytes.saturating_sub(self.around_bytes))
    }

    pub(super) fn send_due_control(&self, control: &mut ControlChannel, now: Instant) {
        if let Some(due) = control.poll(now) {
            if due.again {
                self.counters.control_retransmitted.add(1);
            }
            let mut header = Header::new(Kind::Control, self.session);
            header.flags = if due.more { FLAG_MORE } else { 0 };
            self.send_datagram(header, &[&due.sequence.to_le_bytes(), due.text]);
        }
    }
}
