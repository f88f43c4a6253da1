//! A link inside one process: two bounded queues. The simplest link that obeys all the rules.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::io::Errno;
use tombolo_host::event::EventFd;
use tombolo_host::passed::PassedDescriptor;
use tombolo_host::shared::SharedSpan;

use crate::counters::Counters;
use crate::link::check_control;
use crate::{
    ControlMessage, Link, LinkCounters, LinkError, LinkState, LossReason, MAX_DESCRIPTORS, Packet, SendError,
};

const MAX_PACKET_BYTES: usize = 16 * 1024 + 256;
const MAX_PACKETS: usize = 256;
const MAX_CONTROLS: usize = 64;

/// One direction.
#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    /// Readable while there is something in it, or it is closed, or room has come.
    event: EventFd,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct QueueState {
    packets: VecDeque<Vec<u8>>,
    controls: VecDeque<ControlMessage>,
    /// The sender met a full queue and wants to know of room.
    refused: bool,
}

impl Queue {
    fn new() -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self { state: Mutex::default(), event: EventFd::new()?, closed: AtomicBool::new(false) }))
    }
}

/// One end of a link inside this process.
#[derive(Debug)]
pub struct MemoryLink {
    outgoing: Arc<Queue>,
    incoming: Arc<Queue>,
    /// Our last packet found no room; ours alone, since the peer clears the queue's own mark.
    blocked: AtomicBool,
    lost: OnceLock<LossReason>,
    counters: Counters,
}

/// Both ends of one link.
pub type LinkPair = (Arc<dyn Link>, Arc<dyn Link>);

/// Two ends that are connected.
pub fn memory_pair() -> Result<LinkPair, Errno> {
    let (one, other) = (Queue::new()?, Queue::new()?);
    let end = |outgoing: &Arc<Queue>, incoming: &Arc<Queue>| MemoryLink {
        outgoing: Arc::clone(outgoing),
        incoming: Arc::clone(incoming),
        blocked: AtomicBool::new(false),
        lost: OnceLock::new(),
        counters: Counters::default(),
    };
    Ok((Arc::new(end(&one, &other)), Arc::new(end(&other, &one))))
}

impl MemoryLink {
    fn check(&self) -> Result<(), LossReason> {
        if let Some(reason) = self.lost.get() {
            return Err(*reason);
        }
        if self.incoming.closed.load(Ordering::Acquire) {
            return Err(LossReason::ClosedByPeer);
        }
        Ok(())
    }

    fn signal(queue: &Queue) -> Result<(), LossReason> {
        queue.event.signal().map_err(|errno| LossReason::System { operation: "eventfd", errno })
    }
}

impl Link for MemoryLink {
    fn max_packet_bytes(&self) -> usize {
        MAX_PACKET_BYTES
    }

    fn send(&self, header: &[u8], payload: SharedSpan<'_>) -> Result<(), SendError> {
        self.check()?;
        let bytes = header.len().saturating_add(payload.len());
        if bytes > MAX_PACKET_BYTES {
            return Err(SendError::TooLarge { bytes, max_bytes: MAX_PACKET_BYTES });
        }
        let mut state = self.outgoing.state.lock();
        if state.packets.len() >= MAX_PACKETS {
            state.refused = true;
            self.blocked.store(true, Ordering::Relaxed);
            self.counters.full.add(1);
            return Err(SendError::Full);
        }
        let mut packet = header.to_vec();
        payload.append_to(&mut packet);
        state.packets.push_back(packet);
        self.counters.packets_sent.add(1);
        self.counters.bytes_sent.add(bytes as u64);
        Self::signal(&self.outgoing)?;
        Ok(())
    }

    fn flush(&self) -> Result<(), LinkError> {
        Ok(self.check()?)
    }

    fn receive(&self, budget: usize, sink: &mut dyn FnMut(Packet<'_>)) -> Result<usize, LinkError> {
        let mut count = 0;
        while count < budget {
            // Not held while the sink runs, which may send.
            let (packet, refused) = {
                let mut state = self.incoming.state.lock();
                let Some(packet) = state.packets.pop_front() else {
                    break;
                };
                (packet, std::mem::take(&mut state.refused))
            };
            if refused {
                // The sender sleeps on its own incoming queue.
                Self::signal(&self.outgoing)?;
            }
            count += 1;
            self.counters.packets_received.add(1);
            self.counters.bytes_received.add(packet.len() as u64);
            sink(Packet::from_bytes(&packet));
        }
        if count == 0 {
            self.check()?;
        }
        Ok(count)
    }

    fn arm(&self) -> Result<bool, LinkError> {
        // Before the look at the queue, so that a signal after it stays.
        self.incoming.event.drain().map_err(|errno| LossReason::System { operation: "eventfd", errno })?;
        let ready = {
            let state = self.incoming.state.lock();
            !state.packets.is_empty() || !state.controls.is_empty()
        };
        let room = self.blocked.load(Ordering::Relaxed) && {
            let mut state = self.outgoing.state.lock();
            let room = state.packets.len() < MAX_PACKETS;
            state.refused = !room;
            self.blocked.store(!room, Ordering::Relaxed);
            room
        };
        Ok(ready || room || self.check().is_err())
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.incoming.event.as_fd()
    }

    fn send_control(&self, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        self.check()?;
        check_control(message)?;
        if descriptors.len() > MAX_DESCRIPTORS {
            return Err(SendError::Descriptors(descriptors.len()));
        }
        let mut state = self.outgoing.state.lock();
        if state.controls.len() >= MAX_CONTROLS {
            return Err(SendError::Full);
        }
        let copies: Result<Vec<_>, _> =
            descriptors.iter().map(|descriptor| descriptor.try_clone_to_owned()).collect();
        let copies = copies.map(|copies| copies.into_iter().map(PassedDescriptor::from).collect());
        let descriptors = copies.map_err(|_| SendError::Descriptors(descriptors.len()))?;
        state.controls.push_back(ControlMessage { bytes: message.to_vec(), descriptors });
        self.counters.control_sent.add(1);
        Self::signal(&self.outgoing)?;
        Ok(())
    }

    fn receive_control(&self) -> Result<Option<ControlMessage>, LinkError> {
        let message = self.incoming.state.lock().controls.pop_front();
        match message {
            Some(message) => {
                self.counters.control_received.add(1);
                Ok(Some(message))
            }
            None => {
                self.check()?;
                Ok(None)
            }
        }
    }

    fn tick(&self, _now: Instant) -> Option<Instant> {
        None
    }

    fn state(&self) -> LinkState {
        self.check().map_or_else(LinkState::Lost, |()| LinkState::Up)
    }

    fn supports_windows(&self) -> bool {
        true
    }

    fn protects_integrity(&self) -> bool {
        true
    }

    fn peer_process_id(&self) -> Option<u32> {
        Some(std::process::id())
    }

    fn peer_process_identity(&self) -> Option<(u32, u64)> {
        Some((std::process::id(), 0))
    }

    fn close(&self, reason: LossReason) {
        let _ = self.lost.set(reason);
        self.outgoing.closed.store(true, Ordering::Release);
        let _ = self.outgoing.event.signal();
    }

    fn counters(&self) -> LinkCounters {
        self.counters.snapshot()
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.close(LossReason::ClosedByPeer);
    }
}
