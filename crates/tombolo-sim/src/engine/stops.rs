//! Nodes that are stopped for a while: nothing of them runs, their links stay, and what arrives waits.

use super::{Bench, OTHER, path_of};
use crate::kernel::PacketId;

/// A node that is stopped.
pub(super) struct Stop {
    node: usize,
    /// Packets that its links hold at most.
    most: usize,
    held: Vec<(usize, PacketId)>,
}

impl Bench {
    pub(super) fn is_stopped(&self, node: usize) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.node == node)
    }

    pub(super) fn is_link_to_stopped_full(&self, from: usize) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.node != from && stop.held.len() >= stop.most)
    }

    pub(super) fn hold(&mut self, wire: usize, packet: PacketId) {
        self.stop.as_mut().expect("a node is stopped").held.push((wire, packet));
    }

    /// From now on a node does not run, and its links hold at most so many packets for it, and some more.
    pub fn stop_node(&mut self, node: usize, most: usize) {
        self.stop = Some(Stop { node, most, held: Vec::new() });
    }

    /// The stopped node goes on: what it wants at first is decided by timers that are long due.
    pub fn go_on(&mut self) {
        let stop = self.stop.take().expect("a node is stopped");
        self.engines[stop.node].expire(self.now());
        self.drain();
        for (wire, packet) in stop.held {
            self.arrive_packet(stop.node, wire, packet);
        }
        for wire in 0..self.wires.len() {
            self.engines[1 - stop.node].link_has_room(OTHER, path_of(1 - stop.node, wire));
        }
    }
}
