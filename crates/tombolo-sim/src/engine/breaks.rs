//! Links that break, nodes that restart, and what may then be anywhere.

use super::{BASE, Bench, Event, OTHER};
use tombolo_core::rdma::{Direction, Engine, TransferError};

impl Bench {
    /// A transfer failed. Its destination may hold anything; but it is its program's again, and nothing may be written there any
    /// more: unless the target of a write was lost or silent, or its program was stopped in the middle of a copy.
    pub(super) fn forget(&mut self, which: usize) {
        let watched = &self.watched[which];
        if matches!(watched.spec.direction, Direction::Atomic(_)) {
            return;
        }
        let (to, spec) = (watched.destination(), watched.spec);
        let (stays, asker) = (watched.stays, watched.asker);
        self.note_failed_write(which);
        let watched = &self.watched[which];
        let at = (spec.destination_address - BASE) as usize;
        let bytes = at..at + watched.source.len();
        let words = spec.notification.map(|words| {
            let at = (words.address - BASE) as usize;
            at..at + 16
        });
        for range in [Some(bytes), words].into_iter().flatten() {
            if self.is_free(to, BASE + range.start as u64) {
                continue;
            }
            match spec.direction {
                // What stays at its node fails when nobody copies to its program's memory any more.
                _ if stays && asker == spec.domain => self.reuse(to, range),
                Direction::Read => self.reuse(to, range),
                Direction::Write if self.has_ended_for_all(which) => self.reuse(to, range),
                Direction::Write | Direction::Atomic(_) => self.anything.push((to, range)),
            }
        }
    }

    /// Whether nothing of a write that failed may come any more.
    fn has_ended_for_all(&self, which: usize) -> bool {
        match self.watched[which].status {
            Some(Err(TransferError::Refused(refusal) | TransferError::Local(refusal))) => {
                !refusal.code.is_transient() && !self.programs_stop
            }
            _ => false,
        }
    }

    /// A write to another node has failed: the same memory may be written again, where programs take their orders in order.
    fn note_failed_write(&mut self, which: usize) {
        let watched = &self.watched[which];
        if self.own_faults.is_some()
            && watched.spec.direction == Direction::Write
            && !watched.stays
            && watched.spec.size_bytes > 0
        {
            self.failed_writes.push(which);
        }
    }

    /// The program writes to its memory.
    fn reuse(&mut self, node: usize, range: std::ops::Range<usize>) {
        let value = self.random.next() as u8;
        self.memory[node][range.clone()].fill(value);
        self.expected[node][range].fill(value);
    }

    /// Events of which this says so, by their node, do not happen.
    fn drop_events(&mut self, is_dropped: impl Fn(usize, &Event) -> bool) {
        let dropped = self.kernel.remove_messages(|to, event| is_dropped(to.0 as usize, event));
        for event in dropped {
            if let Event::Arrive { packet, .. } | Event::Copied { bytes: packet, .. } = event {
                self.packets.discard(packet);
            }
        }
    }

    /// The link breaks and comes back: a new session, nothing of the old one
    /// arrives any more, but copies that were begun go on.
    pub fn reset_link(&mut self) {
        self.drop_events(|_, event| matches!(event, Event::Arrive { .. }));
        for node in 0..2 {
            self.engines[node].peer_lost(self.now(), OTHER);
            self.engines[node].add_peer(self.now(), OTHER);
            self.add_paths(node);
        }
    }

    /// A node dies with all it was doing and starts afresh; the other notices.
    pub fn restart(&mut self, node: usize) {
        self.drop_events(|at, event| at == node || matches!(event, Event::Arrive { .. }));
        self.engines[node] = Engine::new(self.config);
        self.engines[node].add_peer(self.now(), OTHER);
        self.restart_programs(node);
        self.engines[1 - node].peer_lost(self.now(), OTHER);
        self.engines[1 - node].add_peer(self.now(), OTHER);
        self.add_paths(0);
        self.add_paths(1);
        for which in 0..self.watched.len() {
            let watched = &self.watched[which];
            if watched.poster != node || watched.status.is_some() {
                continue;
            }
            self.note_failed_write(which);
            let watched = &mut self.watched[which];
            watched.status = Some(Err(TransferError::PeerLost));
            self.open -= 1;
            if matches!(watched.spec.direction, Direction::Atomic(_)) {
                continue;
            }
            let to = watched.destination();
            let at = (watched.spec.destination_address - BASE) as usize;
            self.anything.push((to, at..at + watched.source.len()));
            if let Some(words) = watched.spec.notification {
                let at = (words.address - BASE) as usize;
                self.anything.push((to, at..at + 16));
            }
        }
    }
}
